"""Pauses: asked of the user in the middle of a call, in either era, or decided with `decide`; done once."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp_talk import (
    Asked,
    Era,
    OlderCall,
    accepted,
    approving,
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
from talk import call, lines

from tealagents.api import open_calls, questions
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.events import Recorded
from tealagents.domain.ports import Commit, Record
from tealagents.stores.memory import MemoryStore
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import eventually

Json = dict[str, Any]


async def test_the_user_is_asked_in_the_middle_of_a_call(
    service: ServiceThread, era: Era, file: Path
) -> None:
    """With the very call and its arguments; once approved, it runs once and the call returns the answer."""
    seen: list[Asked] = []

    def human(asked: Asked) -> types.ElicitResult:
        seen.append(asked)
        return approving(asked)

    async with host(service, era, human=human) as client:
        words = call("Work-write", file=str(file), line="one")
        done = await ask(client, words)
        described = (await client.list_tools()).tools[0].output_schema
    assert (done["status"], done["extra_data"]) == ("Completed", {"wrote": "one"})
    assert described is not None
    assert done.keys() <= described["properties"].keys(), "clients make a type of it"
    assert lines(file) == ["one"]
    (asked,) = seen
    assert isinstance(asked, types.ElicitRequestFormParams)
    assert "Work-write" in asked.message
    assert str(file) in asked.message
    assert asked.requested_schema["properties"]["action"]["enum"] == ["approve", "reject"]


@pytest.mark.parametrize(
    "answer",
    [accepted(action="reject", reason="not today"), types.ElicitResult(action="decline")],
    ids=["rejected", "declined"],
)
async def test_what_the_user_rejects_is_not_run(
    service: ServiceThread, era: Era, file: Path, answer: types.ElicitResult
) -> None:
    """The model gets the rejection with its reason, and answers."""
    async with host(service, era, human=lambda _: answer) as client:
        done = await ask(client, call("Work-write", file=str(file), line="one"))
    assert done["status"] == "Completed"
    assert lines(file) == []
    assert ("not today" in done["output"]) is (answer.action == "accept")


async def test_a_user_who_does_not_decide_leaves_the_pause(
    service: ServiceThread, era: Era, file: Path
) -> None:
    """It can be decided later, from anywhere; until then the conversation takes no other message."""
    dismissed = types.ElicitResult(action="cancel")
    async with host(service, era, human=lambda _: dismissed) as client:
        paused = await ask(client, call("Work-write", file=str(file), line="one"))
        assert paused["status"] == "Paused"
        busy = await ask(client, "and now?", conversation=paused["conversation"])
        assert error(busy) == "approval_pending"
        assert busy["approval_id"] == paused["approval"]["approval_id"]
    with service.client() as own:
        done = own.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"}).json()
    assert done["status"] == "Completed"
    assert lines(file) == ["one"]


@pytest.mark.parametrize("content", [None, {}])
async def test_an_answer_that_decides_nothing_leaves_the_pause(
    service: ServiceThread, era: Era, file: Path, content: Json | None
) -> None:
    """Some hosts have a button to accept, and no form; the call says what `decide` needs."""
    empty = types.ElicitResult(action="accept", content=content)
    async with host(service, era, human=lambda _: empty) as client:
        paused = await ask(client, call("Work-write", file=str(file), line="one"))
        assert paused["status"] == "Paused"
        which = {"request_id": paused["request_id"], "approval_id": paused["approval"]["approval_id"]}
        done = structured_result(await client.call_tool("decide", {**which, "action": "approve"}))
    assert done["status"] == "Completed"
    assert lines(file) == ["one"]


async def test_a_form_that_decides_each_call_but_has_no_action_leaves_the_pause(
    era: Era, tmp_path: Path
) -> None:
    """The action is required."""
    first, second = tmp_path / "first", tmp_path / "second"
    script = {"rules": [{"when": "both", "reply": {"tool_calls": _calls(first, second)}}]}
    each = accepted(call_1="approve", call_2="approve")
    with serving(script) as (scripted, _):
        async with host(scripted, era, human=lambda _: each) as client:
            assert (await ask(client, "both"))["status"] == "Paused"
    assert (lines(first), lines(second)) == ([], [])


async def test_a_pause_that_is_decided_elsewhere_is_asked_about_no_longer(
    service: ServiceThread, file: Path
) -> None:
    """The question of an older call is withdrawn, and the call returns what came of the decision."""
    withdrawn = asyncio.Event()

    async def human(_: Asked) -> types.ElicitResult:
        try:
            await asyncio.to_thread(_approve_the_last, service, "zoe")
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return types.ElicitResult(action="cancel")

    async with host(service, "2025-11-25", "zoe", human) as client, asyncio.timeout(30):
        done = await ask(client, call("Work-write", file=str(file), line="one"))
        await withdrawn.wait()
    assert done["status"] == "Completed"
    assert lines(file) == ["one"]


async def test_a_pause_whose_task_is_deleted_is_asked_about_no_longer(
    service: ServiceThread, file: Path
) -> None:
    """The question of an older call is withdrawn, and the call says that there is nothing to decide."""
    withdrawn = asyncio.Event()

    async def human(_: Asked) -> types.ElicitResult:
        try:
            await asyncio.to_thread(_delete_the_last, service, "wim")
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return types.ElicitResult(action="cancel")

    async with host(service, "2025-11-25", "wim", human) as client, asyncio.timeout(30):
        refused = await ask(client, call("Work-write", file=str(file), line="one"))
        await withdrawn.wait()
    assert error(refused) == "not_found"
    assert lines(file) == []


@pytest.mark.parametrize("where", ["approval/", "answer/"])
async def test_an_answer_waits_for_the_store(
    monkeypatch: pytest.MonkeyPatch, service: ServiceThread, file: Path, where: str
) -> None:
    """Hosts of 2025-11-25 send it once: what was approved while the store was away runs once it is back."""
    away = _Away(monkeypatch, where)

    def human(asked: Asked) -> types.ElicitResult:
        away.now.set()
        return approving(asked)

    async with host(service, "2025-11-25", "una", human) as client, asyncio.timeout(30):
        asked = asyncio.ensure_future(ask(client, call("Work-write", file=str(file), line="one")))
        await eventually(away.refused.is_set)
        away.now.clear()
        assert (await asked)["status"] == "Completed"
    assert lines(file) == ["one"]


async def test_a_call_whose_answer_may_be_lost_ends(
    monkeypatch: pytest.MonkeyPatch, service: ServiceThread, file: Path
) -> None:
    """The store is away for longer than an answer waits: the model can read why."""
    away, withdrawn = _Away(monkeypatch, "answer/"), asyncio.Event()
    monkeypatch.setattr(questions, "KEPT_SECONDS", 0.5)

    async def human(_: Asked) -> types.ElicitResult:
        away.now.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return types.ElicitResult(action="cancel")

    async with host(service, "2025-11-25", "ute", human) as client, asyncio.timeout(30):
        refused = await ask(client, call("Work-write", file=str(file), line="one"))
        assert error(refused) == "persistence_unavailable"
        await withdrawn.wait()
        away.now.clear()
        decision = {"request_id": refused["request_id"], "action": "approve"}
        assert structured_result(await client.call_tool("decide", decision))["status"] == "Completed"
    assert lines(file) == ["one"]


async def test_a_decision_made_elsewhere_is_seen_after_the_store_was_away(
    monkeypatch: pytest.MonkeyPatch, service: ServiceThread, file: Path
) -> None:
    """The call that asks has noticed that the store was away."""
    follow, broken = Exchange.follow, asyncio.Event()

    async def breaking(exchange: Exchange, view: RequestView) -> AsyncIterator[Sequence[Recorded]]:
        if view.after and not broken.is_set():
            broken.set()
            raise PersistenceUnavailable("it is away")
        async for batch in follow(exchange, view):
            yield batch

    async def human(_: Asked) -> types.ElicitResult:
        await eventually(broken.is_set)
        await asyncio.to_thread(_approve_the_last, service, "uwe")
        await asyncio.Event().wait()
        return types.ElicitResult(action="cancel")

    monkeypatch.setattr(Exchange, "follow", breaking)
    monkeypatch.setattr(open_calls, "CHECK_SECONDS", 0.05)
    async with host(service, "2025-11-25", "uwe", human) as client, asyncio.timeout(30):
        done = await ask(client, call("Work-write", file=str(file), line="one"))
    assert done["status"] == "Completed"
    assert lines(file) == ["one"]


class _Away:
    """The store, which cannot be reached for records under a prefix while it is away `now`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
        self.now, self.refused = threading.Event(), threading.Event()
        self._prefix = prefix
        read, commit = MemoryStore.read, MemoryStore.commit

        async def reading(store: MemoryStore, partition: str, keys: Sequence[str]) -> list[Record | None]:
            self._reach(store, keys)
            return await read(store, partition, keys)

        async def committing(store: MemoryStore, partition: str, given: Commit) -> None:
            self._reach(store, given.put)
            await commit(store, partition, given)

        monkeypatch.setattr(MemoryStore, "read", reading)
        monkeypatch.setattr(MemoryStore, "commit", committing)

    def _reach(self, store: MemoryStore, keys: Iterable[str]) -> None:
        if self.now.is_set() and any(key.startswith(self._prefix) for key in keys):
            self.refused.set()
            raise store.unavailable("no one answers")


@pytest.mark.parametrize("session", [None, "another.f.1"], ids=["own", "of another process"])
def test_a_call_that_is_given_up_asks_no_longer(
    service: ServiceThread, file: Path, session: str | None
) -> None:
    """Whichever process holds its session: the question is withdrawn, and an approval runs nothing."""
    with service.client("uli") as own, service.client("eve") as eve:
        session = session or opened(own, elicitation={})
        with OlderCall(session, own, call("Work-write", file=str(file), line="one")) as older:
            asked = older.comes()
            assert older.cancel(eve) in (202, 404)
            assert older.cancel(own) == 202
            assert older.answer(own, asked, "accept", action="approve") == 202
            withdrawn, *_ = older.events
            assert withdrawn.get("method") == "notifications/cancelled"
            assert withdrawn["params"]["requestId"] == asked["id"]
        assert own.get("/tasks").json()["items"][0]["status"] == "Paused"
        assert lines(file) == []
    _approve_the_last(service, "uli")
    assert lines(file) == ["one"]


def test_no_answer_is_stored_behind_the_deletion_of_its_pause(
    monkeypatch: pytest.MonkeyPatch, service: ServiceThread, file: Path
) -> None:
    """Its task was deleted between the look at the pause and the write, which no deletion would erase."""
    commit, deleted = MemoryStore.commit, threading.Event()

    async def behind(self: MemoryStore, partition: str, sent: Commit) -> None:
        if any(key.startswith("answer/") for key in sent.put) and not deleted.is_set():
            deleted.set()
            await asyncio.to_thread(_delete_the_last, service, "udo")
        await commit(self, partition, sent)

    monkeypatch.setattr(MemoryStore, "commit", behind)
    with service.client("udo") as own:
        session = opened(own, elicitation={})
        with OlderCall(session, own, call("Work-write", file=str(file), line="one")) as older:
            assert older.answer(own, older.comes(), "accept", action="approve") == 404
    assert deleted.is_set()


@pytest.mark.parametrize("session", [None, "another.f.1"], ids=["own", "of another process"])
def test_a_call_that_is_given_up_waits_no_longer_for_what_was_decided_elsewhere(
    service: ServiceThread, file: Path, session: str | None
) -> None:
    """It would ask again at the next pause. What was approved elsewhere runs on: that is another's call."""
    words = call("Work-linger", file=str(file), line="one", seconds=30)
    with service.client("ulf") as own:
        session = session or opened(own, elicitation={})
        with OlderCall(session, own, words) as older:
            older.comes()
            request = f"/requests/{_last_paused(own)}"
            aside = {"prefer": "respond-async"}
            own.post(f"{request}/resume", json={"action": "approve"}, headers=aside).raise_for_status()
            assert older.comes().get("method") == "notifications/cancelled"
            assert older.cancel(own) == 202
            (ended,) = older.events
        if session.startswith("another"):
            assert ended["result"]["structuredContent"]["status"] == "Running"
        else:  # in its own process the SDK ends it
            assert ended["error"]["code"] == -32800
        assert own.get(request).json()["status"] == "Running"
        own.post(f"{request}/cancel").raise_for_status()


async def test_a_dismissed_question_says_what_came_of_its_pause(
    service: ServiceThread, era: Era, file: Path
) -> None:
    """Where it was decided elsewhere meanwhile, it does not wait for a decision."""

    async def human(_: Asked) -> types.ElicitResult:
        await asyncio.to_thread(_approve_the_last, service, "yan")
        return types.ElicitResult(action="cancel")

    async with host(service, era, "yan", human) as client:
        done = await ask(client, call("Work-write", file=str(file), line="one"))
    assert done["status"] == "Completed"
    assert lines(file) == ["one"]


def _delete_the_last(service: ServiceThread, user: str) -> None:
    with service.client(user) as own:
        task_id = own.get("/tasks?status=Paused").json()["items"][0]["task_id"]
        own.delete(f"/tasks/{task_id}").raise_for_status()


def _approve_the_last(service: ServiceThread, user: str) -> None:
    """Approves the pause of the user's newest task over the service's own API."""
    with service.client(user) as own:
        done = own.post(f"/requests/{_last_paused(own)}/resume", json={"action": "approve"})
        assert done.json()["status"] == "Completed"


def _last_paused(own: httpx.Client) -> str:
    """The id of the request that the user's newest paused task waits with."""
    task_id = own.get("/tasks?status=Paused").json()["items"][0]["task_id"]
    (_, paused) = own.get(f"/tasks/{task_id}/messages").json()["items"][:2]
    return str(paused["request_id"])


def test_a_malformed_answer_leaves_the_pause(service: ServiceThread, file: Path) -> None:
    """The call says what waits, with its ids, as when the user has not decided."""
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
    body["params"] = {"name": "ask", "arguments": {"message": call("Work-write", file=str(file), line="one")}}
    with service.client() as own:
        headers = headers_of(body, "2025-11-25") | {"mcp-session-id": opened(own, elicitation={})}
        with own.stream("POST", "/mcp", json=body, headers=headers) as answer:
            said = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))
            asked = next(said)
            malformed = {"jsonrpc": "2.0", "id": asked["id"], "result": {"bla": 1}}
            assert own.post("/mcp", json=malformed, headers=headers).status_code == 202
            result = next(said)["result"]
    assert result["structuredContent"]["status"] == "Paused"
    assert lines(file) == []


async def test_each_call_of_a_pause_can_be_decided_by_itself(
    service: ServiceThread, era: Era, tmp_path: Path
) -> None:
    """The form has a field for each; what it leaves out is decided by the first."""
    first, second = tmp_path / "first", tmp_path / "second"
    words = "\n".join(call("Work-write", file=str(each), line="x") for each in (first, second))

    def human(asked: Asked) -> types.ElicitResult:
        assert isinstance(asked, types.ElicitRequestFormParams)
        assert {"call_1", "call_2"} <= asked.requested_schema["properties"].keys()
        return accepted(action="approve", call_2="reject")

    script = {"rules": [{"when": "both", "reply": {"tool_calls": _calls(first, second)}}]}
    with serving(script) as (scripted, _):
        async with host(scripted, era, human=human) as client:
            done = await ask(client, "both " + words)
    assert done["status"] == "Completed"
    assert (lines(first), lines(second)) == (["x"], [])


def _calls(*files: Path) -> list[Json]:
    return [{"name": "Work-write", "arguments": {"file": str(each), "line": "x"}} for each in files]


async def test_a_host_that_cannot_ask_decides_with_a_tool(
    service: ServiceThread, era: Era, file: Path
) -> None:
    """It is shown what waits and how to decide it; the same decision sent again runs nothing again."""
    async with host(service, era) as client:
        result = await client.call_tool("ask", {"message": call("Work-write", file=str(file), line="one")})
        paused = structured_result(result)
        assert paused["status"] == "Paused"
        (waiting,) = paused["approval"]["tool_calls"]
        assert (waiting["plugin_name"], waiting["function_name"]) == ("Work", "write")
        text = result.content[0]
        assert isinstance(text, types.TextContent)
        assert paused["request_id"] in text.text
        assert paused["approval"]["approval_id"] in text.text
        # some hosts show their model the structured content alone
        assert "Ask the user" in paused["approval"]["what_to_do"]
        assert text.text.endswith(paused["approval"]["what_to_do"])
        decision = {
            "request_id": paused["request_id"],
            "approval_id": paused["approval"]["approval_id"],
            "decisions": [{"id": waiting["id"], "action": "approve", "arguments": _edited(file)}],
        }
        done = structured_result(await client.call_tool("decide", decision))
        assert done["status"] == "Completed"
        assert lines(file) == ["edited"]
        again = structured_result(await client.call_tool("decide", decision))
        assert again == done
        other = {"request_id": paused["request_id"], "action": "reject"}
        refused = structured_result(await client.call_tool("decide", other))
        assert error(refused) == "already_decided"
        assert "call `decide` with the action that was taken" in refused["error"]["message"]
    assert lines(file) == ["edited"]


def _edited(file: Path) -> Json:
    return {"file": str(file), "line": "edited"}


async def test_of_many_approvals_from_both_eras_one_is_executed(service: ServiceThread, file: Path) -> None:
    """The second one gets the outcome of the first."""
    async with host(service, "2026-07-28") as one, host(service, "2025-11-25") as two:
        paused = await ask(one, call("Work-write", file=str(file), line="one"))
        decision = {"request_id": paused["request_id"], "action": "approve"}
        answers = await asyncio.gather(
            *(client.call_tool("decide", decision) for client in (one, two) for _ in range(8))
        )
        assert {structured_result(answer)["output"] for answer in answers} == {"Work-write said: wrote one"}
    assert lines(file) == ["one"]


def test_an_answered_question_that_is_sent_again_runs_nothing(service: ServiceThread, file: Path) -> None:
    """A host of 2026-07-28 may repeat its call with the user's answers."""
    words = call("Work-write", file=str(file), line="one")
    with service.client() as client:
        asked = post(client, asking(words, elicits=True)).json()["result"]
        assert asked["resultType"] == "input_required"
        assert set(asked["inputRequests"]) == {"decision"}
        body = _answering(asked["requestState"], words, action="accept", content={"action": "approve"})
        first, second = (post(client, body).json()["result"]["structuredContent"] for _ in range(2))
        assert first["status"] == "Completed"
        assert first == second
        (task,) = [t for t in client.get("/tasks").json()["items"] if t["task_id"] == first["conversation"]]
        assert task["status"] == "Completed"
    assert lines(file) == ["one"]


@pytest.mark.parametrize("answers", [None, {}])
def test_a_question_that_was_not_answered_is_asked_again(
    service: ServiceThread, file: Path, answers: Json | None
) -> None:
    """Where a host of 2026-07-28 sends its call again without the answer."""
    words = call("Work-write", file=str(file), line="one")
    with service.client() as client:
        asked = post(client, asking(words, elicits=True)).json()["result"]
        body = asking(words, elicits=True)
        body["params"]["requestState"] = asked["requestState"]
        if answers is not None:
            body["params"]["inputResponses"] = answers
        assert post(client, body).json()["result"] == asked
        body = _answering(asked["requestState"], words, action="accept", content={"action": "approve"})
        assert post(client, body).json()["result"]["structuredContent"]["status"] == "Completed"
    assert lines(file) == ["one"]


def _answering(state: str, words: str, **answer: Any) -> Json:
    params = {
        "name": "ask",
        "arguments": {"message": words},
        "requestState": state,
        "inputResponses": {"decision": answer},
    }
    return modern("tools/call", params, elicits=True)


def test_a_state_that_was_forged_grants_nothing(service: ServiceThread, file: Path) -> None:
    """It names what the caller could name anyway; another user finds nothing behind it."""
    words = call("Work-write", file=str(file), line="one")
    approve = {"action": "accept", "content": {"action": "approve"}}
    with service.client() as ada, service.client("eve") as eve:
        state = post(ada, asking(words, elicits=True)).json()["result"]["requestState"]
        other = post(ada, asking(words, elicits=True)).json()["result"]["requestState"]
        mixed = state.split("/")[0] + "/" + other.split("/")[1]
        for client, forged in [
            (eve, state),
            (ada, mixed),
            (ada, ""),
            (ada, "/"),
            (ada, "x/y"),
            (ada, state[:9]),
            (ada, state.split("/")[0] + "/é"),
            (ada, state.split("/")[0] + "/" + "x" * 300),
        ]:
            result = post(client, _answering(forged, words, **approve)).json()["result"]
            assert error(result["structuredContent"]) == "not_found", forged
            if forged == mixed:  # the request is the caller's own
                assert "`requestState` names no pause of this request." in result["content"][0]["text"]
        wrong = {"action": "accept", "content": {"action": "perhaps"}}
        result = post(ada, _answering(state, words, **wrong)).json()["result"]
        assert error(result["structuredContent"]) == "invalid_request"
        assert state.startswith(result["structuredContent"]["request_id"])
    assert lines(file) == []


async def test_a_consent_is_a_link_and_the_form_is_answered_afterwards(
    service: ServiceThread, era: Era, file: Path
) -> None:
    """The user approves the call, visits the link, and says so; then the tool is entered, once."""
    consent = file.with_name("consent")
    seen: list[str] = []

    def human(asked: Asked) -> types.ElicitResult:
        seen.append(asked.mode)
        if isinstance(asked, types.ElicitRequestURLParams):
            assert asked.url == "https://secrets.example/consent"
            assert "secrets" in asked.message
            consent.touch()
        return approving(asked)

    async with host(service, era, human=human) as client:
        done = await ask(client, call("Work-enter", file=str(file), consent=str(consent)))
    assert done["status"] == "Completed", done
    assert lines(file) == ["entered"]
    assert sorted(seen) == ["form", "form", "url"]


@pytest.mark.parametrize(
    "answers",
    [
        {"authorization_0": {"action": "accept"}},
        {"decision": {"action": "accept", "content": {"action": "approve"}}},
        {"authorization_0": {"action": "accept"}, "other": {"action": "cancel"}},
        {"authorization_0": {"action": "accept"}, "decision": {"roots": []}},
    ],
    ids=["link", "form", "another", "no answer"],
)
def test_a_consent_that_was_answered_in_part_is_asked_for_again(
    service: ServiceThread, file: Path, answers: Json
) -> None:
    """The link alone runs nothing where the form was asked too, nor does the form alone."""
    consent = file.with_name("consent")
    words = call("Work-peek", file=str(file), consent=str(consent))
    with service.client() as client:
        asked = post(client, asking(words, elicits=True)).json()["result"]
        assert set(asked["inputRequests"]) == {"authorization_0", "decision"}
        consent.touch()
        body = asking(words, elicits=True)
        body["params"] |= {"requestState": asked["requestState"], "inputResponses": answers}
        assert post(client, body).json()["result"] == asked
        assert lines(file) == []
        approve = {"action": "accept", "content": {"action": "approve"}}
        body["params"]["inputResponses"] = {"authorization_0": _VISITED, "decision": approve}
        done = post(client, body).json()["result"]["structuredContent"]
    assert done["status"] == "Completed"
    assert lines(file) == ["peeked"]


@pytest.mark.parametrize(("action", "status"), [("cancel", "Paused"), ("decline", "Completed")])
@pytest.mark.parametrize("name", ["authorization_0", "decision"])
def test_a_consent_that_is_declined_or_dismissed_in_part_is_not_asked_for_again(
    service: ServiceThread, file: Path, name: str, action: str, status: str
) -> None:
    """One answer that declines rejects the call, and one that dismisses leaves the pause."""
    consent = file.with_name("consent")
    words = call("Work-peek", file=str(file), consent=str(consent))
    with service.client() as client:
        body = asking(words, elicits=True)
        state = post(client, body).json()["result"]["requestState"]
        consent.touch()
        body["params"] |= {"requestState": state, "inputResponses": {name: {"action": action}}}
        result = post(client, body).json()["result"]
    assert result["structuredContent"]["status"] == status
    assert lines(file) == []


def test_a_host_that_shows_links_only_is_asked_for_consent_alone(service: ServiceThread, file: Path) -> None:
    """Having visited the link lets the call run that waits for it."""
    consent = file.with_name("consent")
    words = call("Work-peek", file=str(file), consent=str(consent))
    with service.client() as client:
        asked = post(client, _with_links(asking(words))).json()["result"]
        assert set(asked["inputRequests"]) == {"authorization_0"}
        consent.touch()
        params = {"requestState": asked["requestState"], "inputResponses": {"authorization_0": _VISITED}}
        done = post(client, _with_links(asking(words), **params)).json()["result"]["structuredContent"]
    assert done["status"] == "Completed"
    assert lines(file) == ["peeked"]


def test_a_link_approves_no_call_that_needs_approval(service: ServiceThread, file: Path) -> None:
    """Where one waits with the call that waits for consent, a host that shows links only is not asked."""
    calls = (
        call("Work-peek", file=str(file), consent=str(file)),
        call("Work-write", file=str(file), line="one"),
    )
    words = " and ".join(calls)
    with service.client() as client:
        paused = post(client, _with_links(asking(words))).json()["result"]["structuredContent"]
        assert paused["status"] == "Paused"
        message = paused["approval"]["message"]
        assert "authorization is needed before Work-peek can run, and approval before Work-write" in message
        state = f"{paused['request_id']}/{paused['approval']['approval_id']}"
        params = {"requestState": state, "inputResponses": {"authorization_0": _VISITED}}
        still = post(client, _with_links(asking(words), **params)).json()["result"]["structuredContent"]
        assert still == paused
    assert lines(file) == []


_VISITED = {"action": "accept"}


def _with_links(body: Json, **params: Any) -> Json:
    """A call from a host that shows links, and no forms."""
    body["params"] |= params
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {"url": {}}}
    return body


async def test_a_host_without_links_is_given_the_link_to_show(
    service: ServiceThread, era: Era, file: Path
) -> None:
    """As text, for a user who then decides with the tool."""
    consent = file.with_name("consent")
    async with host(service, era) as client:
        paused = await ask(client, call("Work-enter", file=str(file), consent=str(consent)))
        decision = {"request_id": paused["request_id"], "action": "approve"}
        result = await client.call_tool("decide", decision)
        linked = structured_result(result)
        assert linked["status"] == "Paused"
        (authorization,) = linked["approval"]["authorizations"]
        assert authorization["url"] in result.content[0].model_dump()["text"]
        consent.touch()
        decision["approval_id"] = linked["approval"]["approval_id"]
        assert structured_result(await client.call_tool("decide", decision))["status"] == "Completed"
    assert lines(file) == ["entered"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "invalid_request"),
        ({"request_id": 5}, "invalid_request"),
        ({"request_id": "x", "action": "approve"}, "not_found"),
        ({"request_id": "REQUEST"}, "invalid_request"),
        ({"request_id": "REQUEST", "action": "perhaps"}, "invalid_request"),
        ({"request_id": "REQUEST", "action": "approve", "extra": 1}, "invalid_request"),
        ({"request_id": "REQUEST", "action": "approve", "approval_id": "x"}, "invalid_request"),
        ({"request_id": "REQUEST", "decisions": [{"id": "none", "action": "approve"}]}, "invalid_request"),
    ],
)
async def test_what_decides_nothing_is_refused(
    service: ServiceThread, file: Path, arguments: Json, code: str
) -> None:
    """And the pause stays as it was."""
    async with host(service, "2026-07-28") as client:
        paused = await ask(client, call("Work-write", file=str(file), line="one"))
        given = {k: paused["request_id"] if v == "REQUEST" else v for k, v in arguments.items()}
        assert error(structured_result(await client.call_tool("decide", given))) == code
    with httpx.Client(headers={"authorization": "Bearer ada"}) as own:
        found = own.get(f"{service.url}/requests/{paused['request_id']}").json()
    assert found["status"] == "Paused"
    assert lines(file) == []


@pytest.mark.parametrize("pause", [None, "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"])
async def test_a_request_that_does_not_wait_is_not_said_to_be_unknown(
    service: ServiceThread, file: Path, pause: str | None
) -> None:
    """It is the caller's own; what is wrong with the decision is said."""
    words = call("Work-write", file=str(file), line="one") if pause else "hello"
    async with host(service, "2026-07-28") as client:
        known = await ask(client, words)
        given = {"request_id": known["request_id"], "action": "approve"}
        given |= {"approval_id": pause} if pause else {}
        refused = structured_result(await client.call_tool("decide", given))
    assert error(refused) == "not_found"
    assert refused["request_id"] == known["request_id"]
    assert ("has no pause" if pause else "is not waiting for a decision") in refused["error"]["message"]
    assert lines(file) == []
