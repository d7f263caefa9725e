"""What `store: false` leaves behind: nothing, however the response ends, and nothing to continue."""

import json
import re
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import WEATHER, create, raw, retrieved, serving
from starlette.types import Message
from talk import call, in_service

from tealagents.api import stretches
from tealagents.domain.errors import PersistenceUnavailable
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until


def writing(file: Path) -> str:
    """The words for a call that waits for approval."""
    return call("Work-write", file=str(file), line="one")


def approved(paused: dict[str, Any]) -> Any:
    request = paused["output"][-1]["id"]
    return [{"type": "mcp_approval_response", "approval_request_id": request, "approve": True}]


@pytest.fixture
def stored(wire: httpx.Client) -> dict[str, Any]:
    """A response to branch from."""
    return create(wire, input="hello")


def test_nothing_is_learned_or_forgotten_with_what_is_not_stored() -> None:
    """What context providers know of the user is used, and stays as it is. covers: THREAD-10"""
    providers = ["user_preferences", "facts"]
    with serving(thread={"context_providers": providers}) as (service, model), raw(service) as wire:
        create(wire, input="I prefer tea. My name is Ada.")
        for said in ("I prefer milk. My cat is Tom.", "I prefer tea.", "Forget my preferences."):
            create(wire, input=said, store=False)
            wire.post("/chat/completions", json=completion(said)).raise_for_status()
        asked = call("facts-remember", fact="My dog is Bo.")
        create(wire, input=asked, store=False)
        asks = [each["function"]["name"] for each in model.requests[-1]["body"]["tools"]]
        assert "facts-search" in asks
        assert "facts-remember" not in asks
        create(wire, input="hello")
        known = str(model.requests[-1]["body"]["messages"])
    assert "- tea" in known
    assert "name is Ada" in known
    assert not {"milk", "Tom", "Bo"} & set(re.findall(r"\w+", known))


def completion(said: str) -> dict[str, Any]:
    return {"model": "Tester", "messages": [{"role": "user", "content": said}], "store": False}


@pytest.mark.parametrize("branches", [False, True])
def test_a_cancelled_pause_is_erased(
    wire: httpx.Client, file: Path, stored: dict[str, Any], branches: bool
) -> None:
    """With its conversation, which nothing can be added to; the response it branched from is untouched."""
    about = {"previous_response_id": stored["id"]} if branches else {}
    paused = create(wire, input=writing(file), store=False, **about)
    cancelled = wire.post(f"/responses/{paused['id']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    assert wire.get(f"/responses/{paused['id']}").status_code == 404
    assert wire.get(f"/conversations/{paused['conversation']['id']}").status_code == 404
    following = wire.post("/responses", json={"input": "hi", "previous_response_id": paused["id"]})
    assert following.status_code == 404
    assert retrieved(wire, stored["id"]) == stored


@pytest.mark.parametrize("branches", [False, True])
def test_a_pause_that_is_left_expires(
    service: ServiceThread, wire: httpx.Client, file: Path, stored: dict[str, Any], branches: bool
) -> None:
    """Where no response comes to the end of it, a day is the longest that it is kept."""
    about = {"previous_response_id": stored["id"]} if branches else {}
    paused = create(wire, input=writing(file), store=False, **about)
    with service.client() as ada:
        task = ada.get(f"/tasks/{paused['conversation']['id'][5:]}").json()
    assert task["expires_at"] is not None


def test_what_was_not_stored_is_not_continued(service: ServiceThread, wire: httpx.Client, file: Path) -> None:
    """Where it has ended elsewhere and is still there: what is stored must not expire with it."""
    paused = create(wire, input=writing(file), store=False)
    with service.client() as ada:
        ada.post(f"/requests/{paused['id'].split('_')[1]}/cancel").raise_for_status()
    for field, name in (
        ("previous_response_id", paused["id"]),
        ("conversation", paused["conversation"]["id"]),
    ):
        refused = wire.post("/responses", json={"input": "hello", field: name})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_a_pause_that_is_not_stored_is_not_answered_in_the_background(wire: httpx.Client, file: Path) -> None:
    """Nothing would be left to read; the pause still waits."""
    paused = create(wire, input=writing(file), store=False)
    refused = wire.post("/responses", json={"input": approved(paused), "background": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
    assert not file.exists()
    ended = create(wire, input=approved(paused))
    assert wire.get(f"/responses/{ended['id']}").status_code == 404


def test_an_expiry_does_not_make_a_response_unstored(
    service: ServiceThread, ada: OpenAI, wire: httpx.Client, file: Path
) -> None:
    """`store: false` is refused for the calls of a stored response, whenever that expires."""
    paused = create(wire, input=writing(file))
    with service.client() as native:
        task = f"/tasks/{paused['conversation']['id'][5:]}"
        native.patch(task, json={"expires_at": "2999-01-01T00:00:00Z"}).raise_for_status()
    with pytest.raises(openai.BadRequestError) as refused:
        ada.responses.create(model="Tester", input=approved(paused), store=False)
    assert refused.value.param == "store"
    assert not file.exists()
    ended = create(wire, input=approved(paused))
    assert create(wire, input="go on", previous_response_id=ended["id"])["status"] == "completed"


def gone(wire: httpx.Client, name: str | None) -> bool:
    return wire.get(f"/conversations/{name}").status_code == 404


@pytest.mark.parametrize("streams", [False, True])
def test_a_completion_that_is_not_stored_is_erased(ada: OpenAI, wire: httpx.Client, streams: bool) -> None:
    """Once it has ended; without `store`, and with `store: true`, its conversation is there."""
    hello: Any = {"model": "Tester", "messages": [{"role": "user", "content": "hello"}], "stream": streams}
    for store, kept in ((False, False), (None, True), (True, True)):
        made = ada.chat.completions.with_raw_response.create(**hello, store=store)
        assert made.http_response.read()
        name = made.headers["x-conversation-id"]
        if kept:
            assert not gone(wire, name)
        else:
            until(lambda name=name: gone(wire, name))  # type: ignore[misc]


def test_a_completion_in_a_conversation_is_stored(ada: OpenAI, wire: httpx.Client) -> None:
    """`store: false` is refused there, as over Responses."""
    messages: Any = [{"role": "user", "content": "hello"}]
    home = create(wire, input="hello")["conversation"]["id"]
    with pytest.raises(openai.BadRequestError) as refused:
        ada.chat.completions.create(
            model="Tester", messages=messages, store=False, extra_headers={"X-Conversation-Id": home}
        )
    assert refused.value.param == "store"


def test_a_tool_of_the_client_in_a_completion_that_is_not_stored(ada: OpenAI, wire: httpx.Client) -> None:
    """Its call waits for the answer, behind which nothing is left."""
    messages: Any = [{"role": "user", "content": call("get_weather", place="Rome")}]
    options: Any = {"model": "Tester", "tools": [{"type": "function", "function": WEATHER}], "store": False}
    waiting = ada.chat.completions.with_raw_response.create(messages=messages, **options)
    (wanted,) = waiting.parse().choices[0].message.tool_calls or []
    messages += [
        {"role": "assistant", "tool_calls": [wanted.to_dict()]},
        {"role": "tool", "tool_call_id": wanted.id, "content": "sunny"},
    ]
    answer = ada.chat.completions.create(messages=messages, **options)
    assert "sunny" in (answer.choices[0].message.content or "")
    assert gone(wire, waiting.headers["x-conversation-id"])


@pytest.mark.parametrize(("path", "field"), [("responses", "input"), ("chat/completions", "messages")])
def test_what_is_left_before_it_begins_is_erased(service: ServiceThread, path: str, field: str) -> None:
    """Its client sends a message that is not to be stored, and leaves before the stream of the answer."""
    said = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "Tester", "store": False, "stream": True, field: said}).encode()
    sent: list[Message] = []
    received = iter([{"type": "http.request", "body": body}])

    async def receive() -> Message:
        return next(received, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "path": f"{service.prefix}/openai/v1/{path}",
        "headers": [(b"authorization", b"Bearer zoe"), (b"content-type", b"application/json")],
    }
    in_service(service, service.app(scope, receive, send))
    assert [message.get("status") for message in sent] == [200]
    with service.client("zoe") as zoe:
        until(lambda: zoe.get("/tasks").json()["items"] == [])


@pytest.mark.parametrize("kept", [None, "2999-01-01T00:00:00Z"])
@pytest.mark.parametrize("again", ["cancel", "answer", "key", "stream"])
def test_a_task_that_its_owner_keeps_is_not_erased(
    service: ServiceThread, wire: httpx.Client, file: Path, again: str, kept: str | None
) -> None:
    """For good, or for longer; whatever is sent once more to the response that was not to be stored."""
    body = {"input": writing(file), "store": False}
    key = {"Idempotency-Key": f"kept-{again}-{kept}"}
    paused = wire.post("/responses", json=body, headers=key).raise_for_status().json()
    task, request = paused["conversation"]["id"][5:], paused["id"].split("_")[1]
    action = {"cancel": "cancel"}.get(again, "resume")
    with service.client() as ada:
        ended = {"action": "approve"} if action == "resume" else None
        ada.post(f"/requests/{request}/{action}", json=ended).raise_for_status()
        ada.patch(f"/tasks/{task}", json={"expires_at": kept}).raise_for_status()
        later = {"task_id": task, "items": [{"content_type": "text", "content": "hello"}]}
        ada.post("", json=later).raise_for_status()
        if again == "cancel":
            wire.post(f"/responses/{paused['id']}/cancel").raise_for_status()
        elif again == "key":
            wire.post("/responses", json=body, headers=key).raise_for_status()
        else:
            streams = again == "stream"
            wire.post("/responses", json={"input": approved(paused), "stream": streams}).raise_for_status()
        sleep(0.1)  # what a stream leaves is erased behind it
        assert ada.get(f"/tasks/{task}").status_code == 200


def test_what_is_decided_is_erased_though_its_answer_fails(
    wire: httpx.Client, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away for the moment between the decision and the response."""
    paused = create(wire, input=writing(file), store=False)

    async def away(*_: object) -> None:
        raise PersistenceUnavailable("The store is away.")

    cut = stretches.cut
    monkeypatch.setattr(stretches, "cut", lambda *given: away() if given[-1] == 2 else cut(*given))
    assert wire.post("/responses", json={"input": approved(paused)}).status_code == 503
    monkeypatch.undo()
    until(lambda: wire.get(f"/responses/{paused['id']}").status_code == 404)
