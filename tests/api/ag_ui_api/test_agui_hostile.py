"""Strangers, hostile tokens and broken bodies on AG-UI's route."""

import http.client
import json
import random
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from agui_talk import PLUGINS, SPEC, WEATHER, Page, call, refusal, resume, run_input, user
from broken_bodies import broken
from hostile_tokens import HOSTILE, Forge
from wire import NOBODYS, records, store_of

from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

SENDABLE = [hostile for hostile in HOSTILE if hostile.sendable]
SECRET = "the blue heron"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[ServiceThread, Forge]]:
    """A service with real tokens."""
    with LocalAuthority() as authority, OfflineModel() as model:
        env = authority.environment(
            TA_BASE_URL=model.base_url,
            TA_API_KEY="offline-key",
            TA_PLUGIN_MODULE=str(PLUGINS),
            TA_ENTRA_APPROVER_ROLE="Approver",
            TA_ENTRA_AUDITOR_ROLE="Auditor",
        )
        with ServiceThread(agent_config(**SPEC), env) as service:
            yield service, Forge(authority)


def paths(service: ServiceThread) -> list[str]:
    """Every path there is below the agent's, and one that is not."""
    (served,) = [each for each in service.app._others if each.path.endswith("/ag-ui")]
    app = served.app
    while not hasattr(app, "routes"):
        app = app.app
    found = [route.path.removeprefix(service.prefix) for route in app.routes]
    assert found == ["/ag-ui", "/ag-ui/"]
    return found


@pytest.mark.parametrize("roles", [[], ["Approver"], ["Auditor"]])
def test_a_stranger_finds_nothing(guarded: tuple[ServiceThread, Forge], roles: list[str]) -> None:
    """To join, to continue, to resume, to answer for a tool, to replay: not found, and not a byte changes."""
    service, forge = guarded
    with (
        service.client(forge.authority.token("alice")) as alice,
        service.client(forge.authority.token("mallory", roles=roles)) as mallory,
    ):
        talk, waits, asks = Page(alice), Page(alice), Page(alice)
        talk.say(f"Remember that {SECRET} is shy.", runId="r")
        paused = waits.say(call("Work-write", file="/dev/null", line=SECRET))
        asks.say(call("get_weather", place=SECRET), tools=[WEATHER])
        shown = asks.messages[-1]["toolCalls"][0]["id"]
        output = {"id": "t", "role": "tool", "toolCallId": shown, "content": "x"}
        partition = f"Tester/user/{TENANT}.{object_id('alice')}"
        before = records(store_of(service), partition)
        assert before
        answers = resume(paused, {"action": "approve"})
        tried = [
            run_input(talk.thread),
            run_input(talk.thread, user("and?")),
            run_input(talk.thread, *talk.messages, user("and?")),
            {**run_input(talk.thread, *talk.messages[:1]), "runId": "r"},
            run_input(waits.thread, *waits.messages, resume=answers),
            run_input(asks.thread, *asks.messages, output),
        ]
        for path in paths(service):
            for body in tried:
                answer = mallory.post(path, json=body)
                assert SECRET not in str(refusal(answer, 404, "not_found"))
        own = Page(mallory)
        own.say("hello")
        assert SECRET not in str(own.run(resume=answers))
        assert records(store_of(service), partition) == before


def test_every_hostile_token_is_refused_on_every_path(guarded: tuple[ServiceThread, Forge]) -> None:
    """With the right status and challenge, whatever the body."""
    service, forge = guarded
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    metadata = f"{service.root}/.well-known/oauth-protected-resource{service.prefix}/ag-ui"
    assert httpx.get(metadata).json()["resource"] == f"{service.url}/ag-ui"
    right = json.dumps(run_input(NOBODYS, user("hi"))).encode()
    for hostile in SENDABLE:
        token = hostile.make(forge)
        for path in paths(service):
            for body in (b"", right):
                headers: Any = {
                    "authorization": b"Bearer " + token.encode(),
                    "content-type": "application/json",
                }
                connection.request("POST", service.prefix + path, body, headers)
                answer = connection.getresponse()
                document = json.loads(answer.read())
                assert answer.status == (401 if not token.strip() else hostile.status), (path, hostile)
                assert answer.headers["www-authenticate"].startswith(f'Bearer resource_metadata="{metadata}"')
                assert document["code"] in ("unauthenticated", "insufficient_scope")
    connection.close()


def test_what_is_no_run_is_refused(service: ServiceThread, ada: httpx.Client) -> None:
    """Other methods, other paths, other types, too much."""
    refusal(ada.get("/ag-ui"), 405, "method_not_allowed")
    refusal(ada.post("/ag-ui/runs", json={}), 404, "not_found")
    refusal(ada.post("/ag-ui", content=b"x", headers={"content-type": "text/plain"}), 422, "invalid_request")
    refusal(
        ada.post("/ag-ui", content=b"{", headers={"content-type": "application/json"}), 400, "invalid_request"
    )
    refusal(ada.post("/ag-ui", json=run_input("t", user("x" * 21_000_000))), 413, "too_large")
    for name in ("threadId", "runId"):
        for value in ("", "x" * 256, 1, None):
            refusal(
                ada.post("/ag-ui", json={**run_input("t", user("x")), name: value}), 422, "invalid_request"
            )
    image = {"type": "image", "source": {"type": "data", "value": "???", "mimeType": "image/png"}}
    refusal(ada.post("/ag-ui", json=run_input("t", user([image]))), 422, "invalid_request")
    sound = {"type": "audio", "source": {"type": "url", "value": "http://127.0.0.1:1/"}}
    for nothing in ("", [], [sound]):
        refusal(ada.post("/ag-ui", json=run_input("t", user(nothing))), 422, "invalid_request")


#: a body that is right, with all that there can be in one
RIGHT = {
    "threadId": NOBODYS,
    "runId": "r",
    "protocolVersion": "1.0",
    "state": {"a": 1},
    "forwardedProps": {},
    "messages": [
        {"id": "s", "role": "system", "content": "x"},
        {"id": "u", "role": "user", "content": "hi"},
        {
            "id": f"msg_{NOBODYS}_1",
            "role": "assistant",
            "content": "x",
            "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {
            "id": "t",
            "role": "tool",
            "toolCallId": f"call_{NOBODYS}_c",
            "content": [{"type": "text", "text": "x"}],
        },
        {
            "id": "v",
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
                {"type": "document", "source": {"type": "url", "value": "http://127.0.0.1:1/"}},
            ],
        },
    ],
    "tools": [WEATHER],
    "context": [{"description": "a", "value": "b"}],
    "resume": [{"interruptId": f"int_{NOBODYS}_0", "status": "resolved", "payload": {"action": "approve"}}],
}
WORDS = [
    "user",
    "assistant",
    "tool",
    "reasoning",
    "activity",
    "image",
    "cancelled",
    "0.9",
    f"msg_{NOBODYS}_9",
]


def send_broken(service: ServiceThread, seed: str, count: int) -> None:
    """Whatever comes is answered: with a run, or with an error in the form of RUN_ERROR and never a 5xx."""
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    headers = {"authorization": "Bearer fuzz", "content-type": "application/json"}
    for n in range(count):
        right = {**RIGHT, "threadId": str(uuid.UUID(int=rng.getrandbits(128))), "runId": str(n)}
        body = broken(rng, right, WORDS)
        connection.request("POST", service.prefix + "/ag-ui", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 500, (body, text)
        if answer.status == 200:
            assert text.startswith(b'data: {"type":"RUN_STARTED"'), body
            assert b'"internal_error"' not in text, body
        else:
            assert json.loads(text)["type"] == "RUN_ERROR", body
            assert len(text) < 4000
    connection.close()


def test_no_body_is_our_fault(service: ServiceThread) -> None:
    send_broken(service, "some", 500)


@pytest.mark.soak
def test_no_body_of_many_is_our_fault(service: ServiceThread) -> None:
    send_broken(service, "many", 10_000)
