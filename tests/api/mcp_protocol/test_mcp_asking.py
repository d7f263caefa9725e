"""Asking the agent from hosts of both eras: conversations, progress, keys, errors, cancellation."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_talk import (
    Era,
    ask,
    asking,
    error,
    headers_of,
    host,
    modern,
    opened,
    post,
    serving,
    structured_result,
)
from talk import call, connections, in_service

from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.protocols import ProtocolConfigError
from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.events import Recorded
from tealagents.domain.ports import Commit
from tealagents.stores.memory import MemoryStore
from tealagents.testing.service import ServiceThread, offline_service
from tealagents.testing.waits import eventually, until

NOBODYS = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"
SLOW = {
    "rules": [
        {"when": {"text": "for ever"}, "reply": {"pieces": ["begun ", {"text": "end", "delay_ms": 600_000}]}},
        {"when": {"text": "slowly"}, "reply": {"text": "a b c d", "headers_delay_ms": 600_000}},
    ]
}


async def test_the_agent_is_two_tools(service: ServiceThread, era: Era) -> None:
    """Described as the agent is, with schemas of what they take and give."""
    async with host(service, era) as client:
        assert client.server_info is not None
        assert client.server_info.name == "Tester"
        assert "An agent under test." in (client.instructions or "")
        asked, decide = (await client.list_tools()).tools
    assert (asked.name, decide.name) == ("ask", "decide")
    assert "An agent under test." in (asked.description or "")
    assert asked.input_schema["required"] == ["message"]
    assert set(asked.input_schema["properties"]) == {"message", "conversation", "idempotency_key"}
    assert decide.input_schema["required"] == ["request_id"]
    for schema in (asked.input_schema, decide.input_schema, *decide.input_schema["$defs"].values()):
        assert schema["title"].isalpha()
        assert all("description" in each for each in schema["properties"].values())
    assert asked.output_schema == decide.output_schema


async def test_a_conversation_is_continued_and_is_the_same_over_the_own_api(
    service: ServiceThread, era: Era
) -> None:
    """The agent remembers; the conversation's id is the task's."""
    async with host(service, era) as client:
        first = await ask(client, "My name is Ada.")
        assert first["status"] == "Completed"
        again = await ask(client, "What is my name?", conversation=first["conversation"])
    assert "Ada" in again["output"]
    assert again["conversation"] == first["conversation"]
    assert again["usage"]["total_tokens"] > 0
    with service.client() as own:
        messages = own.get(f"/tasks/{first['conversation']}/messages").json()["items"]
        assert [message["request_id"] for message in messages] == [
            *[first["request_id"]] * 2,
            *[again["request_id"]] * 2,
        ]
        followed = own.post(
            "",
            json={
                "task_id": first["conversation"],
                "items": [{"content_type": "text", "content": "What is my name?"}],
            },
        )
        assert "Ada" in followed.json()["content"]["output"]


async def test_progress_is_the_text_as_it_comes_and_the_tools_as_they_run(
    service: ServiceThread, era: Era, tmp_path: Any
) -> None:
    """Rising numbers; what was said adds up to the answer."""
    seen: list[tuple[float, str]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        seen.append((progress, message or ""))

    async with host(service, era) as client:
        await client.call_tool("ask", {"message": "pieces-6@5ms"}, progress_callback=on_progress)
        assert "".join(message for _, message in seen) == "1 2 3 4 5 6"
        assert [number for number, _ in seen] == sorted({number for number, _ in seen})
        seen.clear()
        words = f"call Work-note {json.dumps({'file': str(tmp_path / 'x'), 'line': 'hi'})}"
        await client.call_tool("ask", {"message": words}, progress_callback=on_progress)
        whole = "".join(message for _, message in seen)
        assert "[calling Work-note]" in whole
        assert "[Work-note returned]" in whole


async def test_progress_that_breaks_off_does_not_hide_the_answer(
    monkeypatch: pytest.MonkeyPatch, service: ServiceThread, era: Era
) -> None:
    """The store was away for a moment, while the events were read."""
    follow, told = Exchange.follow, []

    async def broken(exchange: Exchange, view: RequestView) -> AsyncIterator[Sequence[Recorded]]:
        async for batch in follow(exchange, view):
            told.append(batch)
            yield batch
            raise PersistenceUnavailable("The store is away.")

    async def told_on(progress: float, total: float | None, message: str | None) -> None:
        pass

    monkeypatch.setattr(Exchange, "follow", broken)
    async with host(service, era) as client:
        result = await client.call_tool("ask", {"message": "hello"}, progress_callback=told_on)
    assert told
    assert structured_result(result)["status"] == "Completed"


async def test_a_key_is_answered_with_the_first_outcome(service: ServiceThread, era: Era) -> None:
    """Also while the first still runs: both get its answer. With other arguments it is refused."""
    with serving(SLOW) as (slow, model):
        async with host(slow, era) as one, host(slow, era) as two:
            asked = [asyncio.ensure_future(ask(each, "slowly", idempotency_key="k")) for each in (one, two)]
            await eventually(lambda: model.requests)
            model.release()
            first, second = await asyncio.gather(*asked)
            assert first == second == await ask(one, "slowly", idempotency_key="k")
            assert len(model.requests) == 1
            assert error(await ask(one, "other", idempotency_key="k")) == "idempotency_key_reused"
        async with host(slow, era, "eve") as eve:
            assert (await ask(eve, "hello", idempotency_key="k"))["request_id"] != first["request_id"]


async def test_the_key_of_a_deleted_conversation_is_refused_with_what_to_do(
    service: ServiceThread, era: Era
) -> None:
    """The model would be refused again if it only left out the conversation."""
    async with host(service, era) as client:
        first = await ask(client, "hello", idempotency_key=f"deleted-{era}")
        with service.client() as own:
            own.delete(f"/tasks/{first['conversation']}").raise_for_status()
        refused = await ask(client, "hello", idempotency_key=f"deleted-{era}")
    assert refused["error"]["code"] == "not_found"
    assert "id or key. Check it, or start a new conversation without it." in refused["error"]["message"]


async def test_a_key_stands_for_the_same_message_however_its_conversation_is_written(
    service: ServiceThread, era: Era
) -> None:
    """Absent, null or empty, in lower or upper case."""
    async with host(service, era) as client:
        first, null = f"first-{era}", {"conversation": None}
        begun = await ask(client, "hello", idempotency_key=first)
        assert await ask(client, "hello", idempotency_key=first, **null) == begun
        assert await ask(client, "hello", idempotency_key=first, conversation="") == begun
        names = (begun["conversation"], begun["conversation"].upper())
        one, two = [await ask(client, "hi", idempotency_key=f"then-{era}", conversation=n) for n in names]
        assert one == two
        assert error(await ask(client, "hi", idempotency_key=first)) == "idempotency_key_reused"
        other = await ask(client, "hello", idempotency_key=first, conversation=names[0])
        assert error(other) == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("arguments", "code", "where"),
    [
        ({}, "invalid_request", "message"),
        ({"message": ""}, "invalid_request", "message"),
        ({"message": 5}, "invalid_request", "message"),
        ({"message": "hi", "temperature": 2}, "invalid_request", "temperature"),
        ({"message": "hi", "conversation": "nonsense"}, "invalid_request", "conversation"),
        ({"message": "hi", "conversation": NOBODYS}, "not_found", "start a new conversation"),
        ({"message": "hi", "idempotency_key": ""}, "invalid_request", "idempotency_key"),
        ({"message": "hi", "idempotency_key": "k" * 256}, "invalid_request", "idempotency_key"),
    ],
)
async def test_what_cannot_be_meant_is_an_error_that_the_model_can_read(
    service: ServiceThread, era: Era, arguments: Any, code: str, where: str
) -> None:
    """A result of the tool, which names the field."""
    async with host(service, era) as client:
        result = await client.call_tool("ask", arguments)
        assert result.is_error
        assert error(result.structured_content) == code
        assert where in result.structured_content["error"]["message"]
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("erase", {})


async def test_what_failed_says_so(era: Era) -> None:
    """A model that fails is a result with its code and the ids; the conversation continues."""
    script = {"rules": [{"when": "fail", "reply": {"error": {"status": 400}}}]}
    with serving(script) as (service, _):
        async with host(service, era) as client:
            failed = await ask(client, "fail")
            assert (failed["status"], failed["error"]["code"]) == ("Failed", "model_error")
            after = await ask(client, "hello", conversation=failed["conversation"])
            assert after["status"] == "Completed"


async def test_a_busy_conversation_says_so(era: Era) -> None:
    """The second message is refused, and the answer says when to retry."""
    with serving(SLOW) as (service, model):
        async with host(service, era) as client, host(service, era) as other:
            conversation = (await ask(client, "hello"))["conversation"]
            running = asyncio.ensure_future(ask(client, "slowly", conversation=conversation))
            with service.client() as own:
                await eventually(lambda: own.get(f"/tasks/{conversation}").json()["status"] == "Running")
            busy = await ask(other, "me, too", conversation=conversation)
            assert error(busy) == "task_busy"
            assert busy["error"]["retry_after_seconds"] >= 1
            assert busy["conversation"] == conversation
            model.release()
            assert (await running)["status"] == "Completed"


async def test_a_call_of_a_process_that_lost_its_lease_says_how_to_learn_the_outcome(era: Era) -> None:
    """It is called again under its key: a host can read no request."""
    with serving(SLOW) as (service, _):
        async with host(service, era) as client:
            running = asyncio.ensure_future(ask(client, "slowly", idempotency_key="k"))
            with service.client() as own:
                await eventually(lambda: own.get("/tasks?status=Running").json()["items"])
            lease = service.app.exchange.service.tasks.lease
            await asyncio.to_thread(in_service, service, lease._lose("a test says so"))
            lost = await running
            assert error(lost) == "interrupted"
            assert "under the same idempotency key" in lost["error"]["message"]
            outcome = await ask(client, "slowly", idempotency_key="k")
            assert (outcome["status"], outcome["error"]["code"]) == ("Failed", "interrupted")
            assert outcome["request_id"] == lost["request_id"]


async def test_giving_a_call_up_cancels_its_request(era: Era) -> None:
    """By closing the stream in 2026-07-28, by a notification before: what runs is ended, and nothing else."""
    with serving(SLOW) as (service, _):
        async with host(service, era) as client:
            calling = asyncio.ensure_future(ask(client, "for ever"))
            with service.client() as own:
                await eventually(lambda: own.get("/tasks?status=Running").json()["items"])
                calling.cancel()
                await eventually(lambda: own.get("/tasks?status=Canceled").json()["items"])
            assert (await ask(client, "hello"))["status"] == "Completed"


@pytest.mark.parametrize("session", [None, "another.1"], ids=["own", "of another process"])
def test_closing_the_stream_of_an_older_call_does_not_cancel_it(session: str | None) -> None:
    """In 2025-11-25 a connection that breaks is no cancellation, whichever process holds the session."""
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "ask", "arguments": {"message": "slowly"}, "_meta": {"progressToken": "p"}},
    }
    with serving(SLOW) as (service, model), service.client() as own:
        assert own.get("/tasks").json()["items"] == []
        before = connections(service)
        _leave(service, body, "2025-11-25", lambda: own.get("/tasks?status=Running").json()["items"], session)
        until(lambda: connections(service) <= before)
        model.release()
        until(lambda: own.get("/tasks").json()["items"][0]["status"] != "Running")
        assert own.get("/tasks").json()["items"][0]["status"] == "Completed"


@pytest.mark.parametrize("session", [None, "another.1"], ids=["own", "of another process"])
def test_a_notification_cancels_an_older_call(session: str | None) -> None:
    """Whichever process holds the session, where the notification reaches the one that runs the call."""
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "ask", "arguments": {"message": "for ever"}},
    }
    with serving(SLOW) as (service, _), service.client() as own, service.client("eve") as eve:
        headers = {**headers_of(body, "2025-11-25"), "mcp-session-id": session or opened(own)}

        def given_up(client: httpx.Client, **params: Any) -> None:
            said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            answer = client.post("/mcp", json=said, headers=headers)
            assert answer.status_code == 202 if client is own else answer.status_code in (202, 404)

        with own.stream("POST", "/mcp", json=body, headers=headers):
            until(lambda: own.get("/tasks?status=Running").json()["items"])
            given_up(eve, requestId=7)
            given_up(own, requestId=8)
            assert own.get("/tasks?status=Running").json()["items"]
            given_up(own, requestId=7)
            until(lambda: own.get("/tasks?status=Canceled").json()["items"])


def _asking_under(rpc_id: int | str, words: str) -> dict[str, Any]:
    params = {"name": "ask", "arguments": {"message": words}}
    return {"jsonrpc": "2.0", "id": rpc_id, "method": "tools/call", "params": params}


def _answered(lines: Iterable[str]) -> tuple[int | str, str]:
    [found] = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return found["id"], found["result"]["structuredContent"]["output"]


@pytest.mark.parametrize("again", [7, "7"])
def test_a_call_with_the_id_of_an_open_one_gets_its_own_answer(again: int | str) -> None:
    """At once: in its session it would get that of the first, which would then wait for ever."""
    with serving(SLOW) as (service, model), service.client() as own, service.client() as other:
        one, two = _asking_under(7, "slowly"), _asking_under(again, "say two")
        headers = {**headers_of(one, "2025-11-25"), "mcp-session-id": opened(own)}
        with own.stream("POST", "/mcp", json=one, headers=headers) as first:
            until(lambda: model.requests)
            answer = other.post("/mcp", json=two, headers=headers).text
            assert _answered(answer.splitlines()) == (again, "You said: “say two”")
            model.release()
            assert _answered(first.iter_lines()) == (7, "a b c d")


def test_a_call_does_not_get_the_answer_of_an_earlier_one_that_its_host_has_left() -> None:
    """Some hosts give all their calls the same id, and lose the connection of one that is slow."""
    with serving(SLOW) as (service, model), service.client() as own, service.client() as other:
        one, two = _asking_under(7, "slowly"), _asking_under(7, "slowly, too")
        headers = {**headers_of(one, "2025-11-25"), "mcp-session-id": opened(own)}
        before = connections(service)
        with own.stream("POST", "/mcp", json=one, headers=headers):
            until(lambda: model.requests)
        until(lambda: connections(service) <= before)
        (left,) = other.get("/tasks").json()["items"]
        with own.stream("POST", "/mcp", json=two, headers=headers) as second:
            until(lambda: len(model.requests) == 2)
            other.post(f"/requests/{left['request_id']}/cancel").raise_for_status()
            model.release()
            assert _answered(second.iter_lines()) == (7, "a b c d")


@pytest.mark.parametrize("session", [None, "another.1"], ids=["own", "of another process"])
def test_closing_the_stream_of_an_older_call_cancels_it_where_leaving_cancels(session: str | None) -> None:
    """With `on_disconnect: cancel`."""
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "ask", "arguments": {"message": "for ever"}},
    }
    with serving(SLOW, on_disconnect="cancel") as (service, _), service.client() as own:
        _leave(service, body, "2025-11-25", lambda: own.get("/tasks?status=Running").json()["items"], session)
        until(lambda: own.get("/tasks?status=Canceled").json()["items"])


@pytest.mark.parametrize("by", ["DELETE", "the SDK"])
@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
async def test_the_end_of_a_session_cancels_an_older_call_where_leaving_cancels(
    on_disconnect: str, by: str
) -> None:
    """And nothing where it does not, whether a host ends the session itself or closes the SDK's client."""
    asked: dict[str, Any] = {"message": "slowly"}
    params = {"name": "ask", "arguments": asked}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    with serving(SLOW, on_disconnect=on_disconnect) as (service, model), service.client() as own:
        if by == "DELETE":
            headers = {**headers_of(body, "2025-11-25"), "mcp-session-id": opened(own)}
            calling: asyncio.Future[Any] = asyncio.ensure_future(
                asyncio.to_thread(own.post, "/mcp", json=body, headers=headers)
            )
            await eventually(lambda: model.requests)
            assert own.delete("/mcp", headers=headers).status_code == 200
        else:
            async with host(service, "2025-11-25") as client:
                calling = asyncio.ensure_future(client.call_tool("ask", asked))
                await eventually(lambda: model.requests)
        await asyncio.gather(calling, return_exceptions=True)
        if on_disconnect == "continue":
            model.release()
        await eventually(lambda: own.get("/tasks").json()["items"][0]["status"] != "Running")
        ended = "Canceled" if on_disconnect == "cancel" else "Completed"
        assert own.get("/tasks").json()["items"][0]["status"] == ended


def test_an_answer_is_plain_json_where_nothing_is_to_be_shown_before(service: ServiceThread) -> None:
    """Without a progress token a quick answer opens no stream."""
    with service.client() as client:
        answer = post(client, asking("hello"))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        result = answer.json()["result"]
        assert result["structuredContent"]["status"] == "Completed"
        assert types.CallToolResult.model_validate(result)


def test_a_silent_answer_becomes_a_stream_that_is_kept_alive() -> None:
    """So that no proxy ends the connection; the answer is the only message, and no comment looks like one."""
    with serving(SLOW, limits={"keepalive_seconds": 0.05}) as (service, model), service.client() as client:
        body = asking("slowly")
        with client.stream("POST", "/mcp", json=body, headers=headers_of(body)) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            seen: list[str] = []
            for line in answer.iter_lines():
                seen.append(line)
                if seen.count(": keepalive") == 3:
                    model.release()
        (message,) = [line.removeprefix("data: ") for line in seen if line.startswith("data: ")]
        assert json.loads(message)["result"]["structuredContent"]["status"] == "Completed"
        assert set(seen) == {": keepalive", "event: message", f"data: {message}", ""}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_stream_of_a_session_is_kept_alive(method: str) -> None:
    """As often as the config says, not as the SDK has it."""
    params = {"name": "ask", "arguments": {"message": "slowly"}}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    with serving(SLOW, limits={"keepalive_seconds": 0.05}) as (service, _), service.client() as client:
        headers = {**headers_of(body, "2025-11-25"), "mcp-session-id": opened(client)}
        sent = body if method == "POST" else None
        with client.stream(method, "/mcp", json=sent, headers=headers) as answer:
            for line in (line for line in answer.iter_lines() if line):
                assert line == ": keepalive"
                break


def test_leaving_a_stream_of_progress_cancels_its_request() -> None:
    """In 2026-07-28: there is no other cancellation."""
    body = asking("for ever")
    body["params"]["_meta"]["progressToken"] = 7
    with serving(SLOW) as (service, _), service.client() as client:
        with client.stream("POST", "/mcp", json=body, headers=headers_of(body)) as answer:
            data = next(line for line in answer.iter_lines() if line.startswith("data: "))
            said = json.loads(data.removeprefix("data: "))
            assert said["method"] == "notifications/progress"
            assert said["params"] == {"progressToken": 7, "progress": 2, "message": "begun "}
        until(lambda: client.get("/tasks?status=Canceled").json()["items"])


@pytest.mark.parametrize("tool", ["ask", "decide"])
def test_a_host_that_leaves_while_its_request_begins_cancels_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    """In 2026-07-28, as one that leaves later: what it sent has not failed, and a decision is not lost."""
    holding, stored = threading.Event(), threading.Event()
    commit = MemoryStore.commit

    async def slowly(store: MemoryStore, partition: str, given: Commit) -> None:
        await commit(store, partition, given)
        if holding.is_set() and any(key.startswith("task/") for key in given.put):
            stored.set()
            await eventually(lambda: not holding.is_set())

    monkeypatch.setattr(MemoryStore, "commit", slowly)
    with serving(SLOW) as (service, _), service.client() as own:
        body = asking("for ever")
        if tool == "decide":
            words = call("Work-linger", file=str(tmp_path / "written"), line="one", seconds=600)
            paused = post(own, asking(words)).json()["result"]["structuredContent"]
            arguments = {"request_id": paused["request_id"], "action": "approve"}
            body = modern("tools/call", {"name": "decide", "arguments": arguments})
        before = connections(service)
        holding.set()
        _leave(service, body, "2026-07-28", stored.is_set)
        until(lambda: connections(service) <= before)
        holding.clear()
        until(lambda: own.get("/tasks").json()["items"][0]["status"] not in ("Running", "Paused"))
        (task,) = own.get("/tasks").json()["items"]
        assert task["status"] == "Canceled"


def test_what_the_server_can_do_is_discovered(service: ServiceThread) -> None:
    """Tools, and nothing else: neither prompts nor resources nor subscriptions."""
    with service.client() as client:
        found = post(client, modern("server/discover")).json()["result"]
    assert set(found["capabilities"]) == {"tools"}
    assert found["supportedVersions"] == ["2026-07-28"]


def test_without_an_authority_there_is_no_metadata(service: ServiceThread) -> None:
    """With the mock provider no token server is named."""
    known = httpx.get(f"{service.root}/.well-known/oauth-protected-resource{service.prefix}/mcp")
    assert known.status_code == 404
    with service.client(None) as client:
        refused = post(client, asking("hello"))
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_nothing_is_imported_where_it_is_not_served(service: ServiceThread) -> None:
    """Without the protocol there is neither its path nor its discovery document."""
    with offline_service() as (plain, _), plain.client() as client:
        assert post(client, asking("hello")).status_code == 404
        known = httpx.get(f"{plain.root}/.well-known/oauth-protected-resource{plain.prefix}/mcp")
        assert known.status_code == 404


def test_without_the_extra_the_start_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator is shown what to install."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith(("mcp.", "tealagents.api.mcp"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ProtocolConfigError, match=r"needs mcp.*pip install 'tealagents\[mcp\]'"), serving():
        pass


# --- tools of the tests --------------------------------------------------------------------------


def _leave(service: ServiceThread, body: Any, era: Era, when: Any, session: str | None = None) -> None:
    """Sends a call over a plain connection, and closes that when something is true."""
    data = json.dumps(body).encode()
    headers = {**headers_of(body, era), "authorization": "Bearer ada", "content-type": "application/json"}
    with service.client() as client:
        headers["mcp-session-id"] = session or opened(client)
    head = f"POST {service.prefix}/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", service.port)) as link:
        link.sendall(head.encode() + b"\r\n" + data)
        until(when)
