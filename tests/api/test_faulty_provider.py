"""An auth provider of one's own that names no one: nothing is stored for a user that cannot be read."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from talk import in_service
from wire import problem, text

from tealagents.domain.models import Caller, User
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
            return answer

        return answer if token == "sync" else awaited()

    def resource_metadata(self, resource: str) -> None:
        return None

    async def __aenter__(self) -> "Faulty":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    with offline_service(env={"TA_AUTH": f"{__name__}:Faulty"}) as (running, _):
        yield running


@pytest.mark.parametrize(("path", "code"), [("", "code"), ("/openai/v1/responses", "error")])
def test_what_the_server_cuts_off_is_answered_in_the_words_of_its_protocol(path: str, code: str) -> None:
    """A process that has drained waits only so long for a call that something holds up, such as a store."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        running = stack.enter_context(ExitStack())
        env = {"TA_AUTH": f"{__name__}:Faulty"}
        service, _ = running.enter_context(offline_service(env=env, protocols=["openai"]))
        client = stack.enter_context(service.client("held"))
        Faulty.HELD.clear()
        answer = pool.submit(client.post, path, json=text("hi"))
        assert Faulty.HELD.wait(60)
        in_service(service, service.app.exchange.service.drain(0))
        running.close()
        held = answer.result(60)
    assert held.status_code == 503, held.text
    said = held.json() if code == "code" else held.json()["error"]
    assert said["code"] == "persistence_unavailable"


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
    ],
)
def test_a_provider_that_names_no_one_is_named(service: ServiceThread, token: str, why: str) -> None:
    """The error says that the provider is at fault, and how; no message is taken."""
    with service.client(token) as client:
        for answer in (client.post("", json=text("hi")), client.get("/tasks")):
            refused = problem(answer, 500, "internal_error")
            assert "The auth provider Faulty is faulty" in refused["detail"]
            assert why in refused["detail"]


@pytest.mark.parametrize("token", ["ada", "tenantless"])
def test_others_are_served(service: ServiceThread, token: str) -> None:
    """Another caller of the same provider sends and reads, also where there are no tenants."""
    with service.client(token) as ada:
        task = ada.post("", json=text("hi")).raise_for_status().json()["task_id"]
        assert ada.get(f"/tasks/{task}").json()["status"] == "Completed"
