"""An auth provider of one's own that names no one: nothing is stored for a user that cannot be read."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar

import httpx
import pytest
from a2a_talk import VERSION
from agui_talk import run_input, user
from mcp_talk import ACCEPT, modern, post
from served_routes import PROTOCOLS
from sse_starlette.sse import AppStatus
from talk import in_service
from wire import Json, problem, text

from tealagents.domain.errors import InsufficientScope
from tealagents.domain.models import Caller, User
from tealagents.domain.ports import Commit, Record
from tealagents.stores.memory import MemoryStore
from tealagents.testing.service import ServiceThread, offline_service


class Faulty:
    """Returns what its token stands for, at once where the token says so."""

    ANSWERS: ClassVar[dict[str, Any]] = {
        "number": Caller(User("t", 5)),  # type: ignore[arg-type]
        "empty": Caller(User("t", "")),
        "tenantless": Caller(User("", "ada")),
        "half": Caller(User("t", "\udce4")),
        "none": None,
        "user": User("t", "ada"),
        "text": Caller("ada"),  # type: ignore[arg-type]
        "sync": Caller(User("t", "ada")),
    }

    #: by the token that lacks it
    REQUIRED: ClassVar = {
        "sendable": "call admin",
        "polish": "zugriff_ł",
        "latin": "Prüfer",
        "quoted": 'a"b',
        "escaped": "a\\b",
        "broken": "a\nb",
    }

    #: a call has come that is held up
    HELD: ClassVar = threading.Event()

    def __init__(self, options: object, clock: object) -> None: ...

    def authenticate(self, token: str) -> Any:
        answer = self.ANSWERS.get(token, Caller(User("t", token)))

        async def awaited() -> Any:
            if token == "canceled":  # as what it waited for was
                raise asyncio.CancelledError
            if token == "held":
                self.HELD.set()
                await asyncio.Event().wait()
            if token == "leaving":
                sys.exit(3)
            if token == "raising":
                raise LookupError("no badge for the token raising")
            if token in self.REQUIRED:
                raise InsufficientScope("No.", required=self.REQUIRED[token])
            return answer

        return answer if token == "sync" else awaited()

    def resource_metadata(self, resource: str) -> None:
        return None

    async def __aenter__(self) -> "Faulty":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Holding(MemoryStore):
    """State in memory, that does not answer while it `holds`."""

    holds: ClassVar[bool] = False

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        await self._held(partition)
        return await super().read(partition, keys)

    async def commit(self, partition: str, commit: Commit) -> None:
        await self._held(partition)
        await super().commit(partition, commit)

    async def _held(self, partition: str) -> None:
        while type(self).holds and "/user/" in partition:
            Faulty.HELD.set()
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    with offline_service(env={"TA_AUTH": f"{__name__}:Faulty"}) as (running, _):
        yield running


def sent_to(client: httpx.Client, protocol: str) -> httpx.Response:
    """A first message, in a protocol's words."""
    asking = {"name": "ask", "arguments": {"message": "hi"}}
    legacy = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": asking}
    send = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
    rpc = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": send}
    match protocol:
        case "v1alpha1":
            return client.post("", json=text("hi"))
        case "OpenAI":
            return client.post("/openai/v1/responses", json={"input": "hi"})
        case "A2A":
            return client.post("/a2a", json=rpc, headers=VERSION)
        case "A2A over REST":
            return client.post("/a2a/message:send", json=send, headers=VERSION)
        case "AG-UI":
            return client.post("/ag-ui", json=run_input("t", user("hi")))
        case "MCP":
            return post(client, {**modern("tools/call", asking), "id": 7})
        case _:
            return client.post("/mcp", json=legacy, headers={"accept": ACCEPT, "mcp-session-id": "x"})


#: where a response says which error it is, and by what
CUT_OFF: dict[str, tuple[tuple[str, ...], object]] = {
    "v1alpha1": (("code",), "persistence_unavailable"),
    "OpenAI": (("error", "code"), "persistence_unavailable"),
    "A2A": (("error", "code"), -32000),
    "A2A over REST": (("error", "status"), "UNAVAILABLE"),
    "MCP": (("error", "code"), -32603),
    "MCP before 2026-07-28": (("error", "code"), -32603),
}


#: a stream of an earlier MCP has begun before the store is asked: it ends
HELD_BY = [*((each, "the provider") for each in CUT_OFF), *((each, "the store") for each in [*CUT_OFF][:-1])]


@pytest.mark.parametrize(("protocol", "holder"), HELD_BY)
def test_what_the_server_cuts_off_is_answered_in_the_words_of_its_protocol(
    protocol: str, holder: str
) -> None:
    """A process that has drained waits only so long for a call that something holds up, such as a store."""
    place, error = CUT_OFF[protocol]
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        running = stack.enter_context(ExitStack())
        env = {"TA_AUTH": f"{__name__}:Faulty"}
        spec: Json = {"protocols": ["openai", "a2a", "mcp"], "persistence": f"{__name__}:Holding"}
        service, _ = running.enter_context(offline_service(env=env, **spec))
        client = stack.enter_context(service.client("held" if holder == "the provider" else "ada"))
        Faulty.HELD.clear()
        Holding.holds = holder == "the store"
        answer = pool.submit(sent_to, client, protocol)
        answer.add_done_callback(lambda _: setattr(Holding, "holds", False))
        assert Faulty.HELD.wait(60)
        in_service(service, service.app.exchange.service.drain(0))
        running.close()
        held = answer.result(60)
    assert held.status_code == 503, held.text
    found = said = held.json()
    for name in place:
        found = found[name]
    assert found == error, held.text
    assert "unavailable" in held.text
    assert "The store is unavailable." not in held.text  # it may be the provider
    if "jsonrpc" in said:
        assert said["id"] == (7 if holder == "the store" else None)


def test_a_stream_that_its_library_ends_with_the_process_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's library of streams ends one of A2A 0.3 on the signal itself, before its first event."""
    sent = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "hi"}]}
    rpc = {"jsonrpc": "2.0", "id": 7, "method": "message/stream", "params": {"message": sent}}
    env = {"TA_AUTH": f"{__name__}:Faulty"}
    spec: Json = {"protocols": ["a2a"], "persistence": f"{__name__}:Holding"}
    with (
        offline_service(env=env, **spec) as (service, _),
        service.client("ada") as client,
        ThreadPoolExecutor() as pool,
    ):
        Faulty.HELD.clear()
        Holding.holds = True
        answer = pool.submit(client.post, "/a2a", json=rpc)
        answer.add_done_callback(lambda _: setattr(Holding, "holds", False))
        assert Faulty.HELD.wait(60)
        in_service(service, service.app.exchange.service.drain(0))
        monkeypatch.setattr(AppStatus, "should_exit", True)
        held = answer.result(60)
    assert (held.status_code, held.json()["id"], held.json()["error"]["code"]) == (503, 7, -32000)
    assert "unavailable" in held.text


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("number", "the user's oid must be text"),
        ("empty", "the user's oid must not be empty"),
        ("half", "the user's oid must be text without NUL and lone surrogates"),
        ("none", "did not return a Caller"),
        ("user", "did not return a Caller"),
        ("text", "did not return a Caller with a User"),
        ("sync", "is not async"),
        ("canceled", "its authenticate raised CancelledError"),
        ("leaving", "its authenticate raised SystemExit"),
        ("raising", "its authenticate raised LookupError. "),
    ],
)
def test_a_provider_that_names_no_one_is_named(service: ServiceThread, token: str, why: str) -> None:
    """The error says that the provider is at fault, and how; no message is taken."""
    with service.client(token) as client:
        for answer in (client.post("", json=text("hi")), client.get("/tasks")):
            refused = problem(answer, 500, "internal_error")
            assert "The auth provider Faulty is faulty" in refused["detail"]
            assert why in refused["detail"]


@pytest.fixture(scope="module")
def everywhere() -> Iterator[ServiceThread]:
    env = {"TA_AUTH": f"{__name__}:Faulty"}
    with offline_service(env=env, protocols=list(PROTOCOLS)) as (running, _):
        yield running


@pytest.mark.parametrize("protocol", [*CUT_OFF, "AG-UI"])
@pytest.mark.parametrize("token", Faulty.REQUIRED)
def test_a_scope_that_a_header_cannot_name_is_left_out(
    everywhere: ServiceThread, token: str, protocol: str
) -> None:
    """The refusal is the same otherwise: part of the scope would be another one."""
    with everywhere.client(token) as client:
        refused = sent_to(client, protocol)
    assert refused.status_code == 403, refused.text
    named = ', scope="call admin"' if token == "sendable" else ""
    assert refused.headers["www-authenticate"] == f'Bearer error="insufficient_scope"{named}'


def test_what_a_provider_raises_is_logged_once(
    service: ServiceThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Its traceback is logged under the provider's name; the caller does not see its text."""
    with service.client("raising") as client:
        refused = problem(client.get("/tasks"), 500, "internal_error")
    assert "no badge" not in str(refused)
    [traced] = [each for each in caplog.records if each.exc_info]
    assert traced.getMessage() == "the auth provider Faulty failed"
    assert caplog.text.count("LookupError: no badge") == 1


def test_a_refusal_is_answered_without_the_providers_metadata(
    service: ServiceThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider that raises there costs no client its answer; the log names it."""

    def raising(self: Faulty, resource: str) -> None:
        raise LookupError("no metadata")

    monkeypatch.setattr(Faulty, "resource_metadata", raising)
    with service.client() as client:
        refused = client.post("", json=text("hi"), headers={"authorization": ""})
    assert problem(refused, 401, "unauthenticated")
    assert refused.headers["www-authenticate"].startswith('Bearer error="invalid_token"')
    assert "resource_metadata of the auth provider Faulty failed" in caplog.text
    assert "LookupError: no metadata" in caplog.text


@pytest.mark.parametrize("token", ["ada", "tenantless"])
def test_others_are_served(service: ServiceThread, token: str) -> None:
    """Another caller of the same provider sends and reads, also where there are no tenants."""
    with service.client(token) as ada:
        task = ada.post("", json=text("hi")).raise_for_status().json()["task_id"]
        assert ada.get(f"/tasks/{task}").json()["status"] == "Completed"
