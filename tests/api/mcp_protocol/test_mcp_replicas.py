"""The MCP server on several processes over one store, and after a process was killed."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp_talk import ACCEPT, SPEC, Era, OlderCall, ask, asking, error, host, opened, post, structured_result
from replicas import replicas
from talk import PLUGINS, call, lines
from wire import lapsed

from tealagents.testing.forking import Nursery
from tealagents.testing.pytest_stores import Place
from tealagents.testing.waits import eventually

SCRIPT = {
    "rules": [
        {"when": {"text": "slowly"}, "reply": {"text": "a b c d", "headers_delay_ms": 500}},
        {"when": {"text": "for ever"}, "reply": {"text": "never", "headers_delay_ms": 600_000}},
    ]
}


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
async def test_a_conversation_continues_and_is_decided_elsewhere(
    place: Place, nursery: Nursery, tmp_path: Path, era: Era
) -> None:
    """What one process began another continues and decides, once; a key is waited for across processes."""
    env = {"TA_PERSISTENCE": place.url, "TA_PLUGIN_MODULE": str(PLUGINS)}
    file = tmp_path / "written"
    with replicas(nursery, tmp_path, env=env, script=SCRIPT, **SPEC) as pair:
        async with host(pair.first, era) as one, host(pair.second, era) as two:
            first = await ask(one, "My name is Ada.")
            again = await ask(two, "What is my name?", conversation=first["conversation"])
            assert "Ada" in again["output"]
            answers = await asyncio.gather(
                *(ask(client, "slowly", idempotency_key="k") for client in (one, two))
            )
            assert answers[0] == answers[1]
            paused = await ask(one, call("Work-write", file=str(file), line="one"))
            decision = {"request_id": paused["request_id"], "action": "approve"}
            done = await asyncio.gather(*(client.call_tool("decide", decision) for client in (one, two)))
            assert {structured_result(each)["status"] for each in done} == {"Completed"}
            assert lines(file) == ["one"]


def test_a_session_of_another_process_needs_no_new_one(nursery: Nursery, tmp_path: Path) -> None:
    """Calls in it are answered anywhere; what answers no question of ours, or ends it, needs its process."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    with (
        replicas(nursery, tmp_path, env=env, **SPEC) as pair,
        pair.first.client() as one,
        pair.second.client() as two,
    ):
        headers = {"accept": ACCEPT, "mcp-session-id": opened(one), "mcp-protocol-version": "2025-11-25"}
        body: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "ask", "arguments": {"message": "hello"}},
        }
        for client in (one, two):
            answer = client.post("/mcp", json=body, headers=headers)
            assert answer.status_code == 200
            assert '"status":"Completed"' in answer.text
        response = {"jsonrpc": "2.0", "id": 3, "result": {"action": "accept", "content": {}}}
        assert two.post("/mcp", json=response, headers=headers).status_code == 404
        assert one.post("/mcp", json=response, headers=headers).status_code == 202
        for number, (client, ended, afterwards) in enumerate([(two, 405, 200), (one, 200, 404)], start=4):
            listing = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
            assert client.delete("/mcp", headers=headers).status_code == ended
            assert one.post("/mcp", json=listing, headers=headers).status_code == afterwards


def test_a_user_is_asked_whichever_processes_the_call_and_the_answer_come_to(
    nursery: Nursery, tmp_path: Path
) -> None:
    """An approval runs the call once; one that is dismissed leaves the pause; links come before the form."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    file, consent = tmp_path / "written", tmp_path / "consent"
    write = call("Work-write", file=str(file), line="one")
    with (
        replicas(nursery, tmp_path, env=env, **SPEC) as pair,
        pair.first.client() as one,
        pair.second.client() as two,
        pair.second.client("eve") as eve,
    ):
        session = opened(one, elicitation={"form": {}, "url": {}})
        for n, (called, answered) in enumerate([(one, one), (one, two), (two, one), (two, two)], 1):
            with OlderCall(session, called, write) as older:
                asked = older.comes()
                assert asked["method"] == "elicitation/create"
                assert older.answer(eve, asked, "accept", action="reject") == 404
                assert older.answer(answered, asked, "accept", action="approve") == 202
                assert older.comes()["result"]["structuredContent"]["status"] == "Completed"
                assert older.answer(answered, asked, "accept", action="reject") == 202, "it comes too late"
            assert lines(file) == ["one"] * n
        with OlderCall(session, one, write) as older:
            assert older.answer(two, older.comes(), "cancel") == 202
            paused = older.comes()["result"]["structuredContent"]
            assert paused["status"] == "Paused"
        with OlderCall(session, one, call("Work-enter", file=str(file), consent=str(consent))) as older:
            assert older.answer(two, older.comes(), "accept", action="approve") == 202
            assert (link := older.comes())["params"]["mode"] == "url"
            consent.touch()
            assert older.answer(two, link, "accept") == 202
            assert (form := older.comes())["params"]["mode"] == "form"
            assert older.answer(two, form, "accept", action="approve") == 202
            assert older.comes()["result"]["structuredContent"]["status"] == "Completed"
        assert lines(file) == [*["one"] * 4, "entered"]


def test_a_question_is_withdrawn_where_another_process_decides(nursery: Nursery, tmp_path: Path) -> None:
    """The call of another process's session returns what came of the decision."""
    env, file = {"TA_PLUGIN_MODULE": str(PLUGINS)}, tmp_path / "written"
    with (
        replicas(nursery, tmp_path, env=env, **SPEC) as pair,
        pair.first.client() as one,
        pair.second.client() as two,
    ):
        session = opened(one, elicitation={})
        with OlderCall(session, two, call("Work-write", file=str(file), line="one")) as older:
            asked = older.comes()
            (task,) = one.get("/tasks").json()["items"]
            request = one.get(f"/tasks/{task['task_id']}/messages").json()["items"][0]["request_id"]
            one.post(f"/requests/{request}/resume", json={"action": "approve"}).raise_for_status()
            withdrawn = older.comes()
            assert withdrawn["method"] == "notifications/cancelled"
            assert withdrawn["params"]["requestId"] == asked["id"]
            assert older.comes()["result"]["structuredContent"]["status"] == "Completed"
    assert lines(file) == ["one"]


def test_a_question_is_asked_again_where_the_process_that_asked_has_died(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The call that comes again elsewhere has its pause; the answer to the first question decides nothing."""
    env, file = {"TA_PLUGIN_MODULE": str(PLUGINS)}, tmp_path / "written"
    words = call("Work-write", file=str(file), line="one")
    with (
        replicas(nursery, tmp_path, env=env, **SPEC) as pair,
        pair.first.client() as one,
        pair.second.client() as two,
    ):
        session = opened(one, elicitation={})
        with OlderCall(session, one, words, idempotency_key="k") as older:
            asked = older.comes()
            pair.first.kill()
            with pytest.raises(httpx.TransportError):
                older.comes()
        with OlderCall(session, two, words, idempotency_key="k") as again:
            other = again.comes()
            assert other["params"] == asked["params"]
            assert again.answer(two, asked, "accept", action="reject") == 202
            assert again.answer(two, other, "accept", action="approve") == 202
            done = again.comes()["result"]["structuredContent"]
            assert done["status"] == "Completed"
        with OlderCall(session, two, words, idempotency_key="k") as repeated:
            assert repeated.comes()["result"]["structuredContent"] == done
    assert lines(file) == ["one"]


def test_a_host_that_cannot_ask_is_not_asked_by_another_process(nursery: Nursery, tmp_path: Path) -> None:
    """Nor is one whose session says nothing of it."""
    env, file = {"TA_PLUGIN_MODULE": str(PLUGINS)}, tmp_path / "written"
    with (
        replicas(nursery, tmp_path, env=env, **SPEC) as pair,
        pair.first.client() as one,
        pair.second.client() as two,
    ):
        for session in (opened(one), "another.f"):
            with OlderCall(session, two, call("Work-write", file=str(file), line="one")) as older:
                assert older.comes()["result"]["structuredContent"]["status"] == "Paused"


def test_a_stop_while_a_host_is_connected_logs_no_error(nursery: Nursery, tmp_path: Path) -> None:
    """The stream of its session is ended, not broken off."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    with replicas(nursery, tmp_path, 1, env=env, **SPEC) as alone, alone.first.client() as own:
        headers = {"accept": ACCEPT, "mcp-session-id": opened(own), "mcp-protocol-version": "2025-11-25"}
        with own.stream("GET", "/mcp", headers=headers) as stream:
            assert alone.first.terminate() == 0
            stream.read()
        assert "ERROR" not in alone.first.log()


async def test_what_was_answered_survives_a_kill(nursery: Nursery, tmp_path: Path, era: Era) -> None:
    """After `kill -9` the host continues where it was; what ran has failed, and does not run again."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    file = tmp_path / "written"
    with replicas(nursery, tmp_path, 1, env=env, script=SCRIPT, **SPEC) as alone:
        async with host(alone.first, era) as client:
            first = await ask(client, "My name is Ada.", idempotency_key="first")
            paused = await ask(client, call("Work-write", file=str(file), line="one"))
            with alone.first.client() as own:
                lost = asking("for ever", idempotency_key="lost")
                running = asyncio.ensure_future(asyncio.to_thread(post, own, lost))
                await eventually(lambda: own.get("/tasks?status=Running").json()["items"])
                await asyncio.to_thread(alone.first.kill)
                with pytest.raises(httpx.TransportError):
                    await running
            await lapsed(f"sqlite:///{tmp_path}/state.db")
            await asyncio.to_thread(alone.first.start)
            assert await ask(client, "My name is Ada.", idempotency_key="first") == first
            again = await ask(client, "What is my name?", conversation=first["conversation"])
            assert "Ada" in again["output"]
            decision = {"request_id": paused["request_id"], "action": "approve"}
            assert structured_result(await client.call_tool("decide", decision))["status"] == "Completed"
            assert lines(file) == ["one"]
            ended = await ask(client, "for ever", idempotency_key="lost")
            assert (ended["status"], ended["error"]["code"]) == ("Failed", "interrupted")
            assert error(await ask(client, "other", idempotency_key="lost")) == "idempotency_key_reused"
