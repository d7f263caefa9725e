"""Pauses and decisions: what is shown, what runs, what is refused, and that nothing runs twice."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import httpx
import jsonschema
import pytest
from msgspec.structs import replace
from talk import (
    approve,
    begin,
    call,
    cancel,
    decide,
    in_service,
    items,
    lines,
    numbers,
    paused,
    request,
    send,
    streamed_text,
    working_process,
    working_service,
)
from wire import NOBODYS, Json, events, lapse, problem, streamed, text

from tealagents.domain.ids import operation_id
from tealagents.domain.models import Head, User
from tealagents.domain.ports import Commit
from tealagents.llm.offline import OfflineModel
from tealagents.state import keys
from tealagents.testing.forking import Nursery
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

SCRIPT = """
rules:
  - when: {text: then again, tool_result: true, result_text: first}
    reply: {tool_calls: [{id: again, name: Work-write, arguments: '{"file": "/dev/null", "line": "second"}'}]}
  - when: {text: then fail, tool_result: true}
    reply: {error: {status: 400, message: the model heard a secret}}
"""

BOSS = {"provider": "mock", "options": {"approver_users": ["boss"]}}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT, auth=BOSS) as pair:
        yield pair


@pytest.fixture
def boss(service: ServiceThread) -> Iterator[httpx.Client]:
    with service.client("boss") as client:
        yield client


def sent_last(model: OfflineModel) -> list[Json]:
    messages: list[Json] = model.requests[-1]["body"]["messages"]
    return messages


def results(messages: list[Json]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


# --- what a pause shows ---------------------------------------------------------------------------


def test_a_governed_call_pauses_and_is_shown_whole(
    ada: httpx.Client, service: ServiceThread, file: Path
) -> None:
    """The answer has the ids, the calls, where to decide and until when. covers: HITL-1, HITL-2"""
    answer = send(ada, call("Work-write", file=str(file), line="one"))
    assert answer["status"] == "Paused"
    content = answer["content"]
    assert set(content) == {
        *("session_id", "task_id", "request_id", "approval_id", "message"),
        *("approval_url", "rejection_url", "expires_at", "authorizations", "tool_calls"),
    }
    for name in ("session_id", "task_id", "request_id"):
        assert content[name] == answer[name]
    assert str(uuid.UUID(content["approval_id"])) == content["approval_id"]
    url = f"{service.prefix}/requests/{answer['request_id']}/resume?approval_id={content['approval_id']}"
    assert content["approval_url"] == content["rejection_url"] == url
    assert "Work-write" in content["message"]
    assert content["authorizations"] == []
    [shown] = content["tool_calls"]
    assert set(shown) == {"id", "plugin_name", "function_name", "arguments"}
    assert (shown["plugin_name"], shown["function_name"]) == ("Work", "write")
    assert shown["arguments"] == f'{{"file": "{file}", "line": "one"}}'
    expires = datetime.fromisoformat(content["expires_at"])
    left = (expires - datetime.now(expires.tzinfo)).total_seconds()
    assert 86000 < left <= 86400
    assert lines(file) == []
    assert request(ada, answer["request_id"])["content"] == content
    task = ada.get(f"/tasks/{answer['task_id']}").json()
    assert (task["status"], task["request_id"]) == ("Paused", answer["request_id"])
    assert task["approval_id"] == content["approval_id"]


def test_a_pause_is_read_with_the_schemas_of_its_tools(
    ada: httpx.Client, boss: httpx.Client, file: Path
) -> None:
    """So that arguments can be edited in a form: by the owner, and by approvers."""
    content = send(ada, call("Work-write", file=str(file), line="one"))["content"]
    where = f"/requests/{content['request_id']}/approvals/{content['approval_id']}"
    for client in (ada, boss):
        document = client.get(where).raise_for_status().json()
        [listed] = [
            item
            for item in client.get("/approvals").json()["items"]
            if item["approval_id"] == content["approval_id"]
        ]
        [shown] = document["tool_calls"]
        tool = {name: shown.pop(name) for name in ("description", "parameters")}
        assert document == listed
        assert tool["parameters"]["type"] == "object"
        assert tool["parameters"]["required"] == ["file", "line"]
        assert {name: of["type"] for name, of in tool["parameters"]["properties"].items()} == {
            "file": "string",
            "line": "string",
        }
    decide = f"/requests/{content['request_id']}/resume"
    ada.post(decide, json={"action": "reject"}).raise_for_status()
    assert ada.get(where).json()["status"] == "decided"


def test_the_urls_of_a_pause_decide_it_as_they_stand(
    ada: httpx.Client, service: ServiceThread, file: Path
) -> None:
    """A client that shows the pause needs only its URL. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    url = service.root + pause["approval_url"]
    answer = ada.post(url, json={"action": "approve"}).raise_for_status().json()
    assert answer["status"] == "Completed"
    assert answer["content"]["output"] == "Work-write said: wrote one"
    assert answer["content"]["extra_data"] == {"wrote": "one"}
    assert lines(file) == ["one"]


def test_only_governed_calls_wait_and_the_others_of_the_round_have_run_once(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """A round of free and governed calls: the free ones run before the pause. covers: HITL-1"""
    words = " and ".join(
        [
            call("Work-write", file=str(file), line="governed 1"),
            call("Work-note", file=str(file), line="free"),
            call("Work-write", file=str(file), line="governed 2"),
        ]
    )
    pause = paused(ada, words)
    assert [shown["function_name"] for shown in pause["tool_calls"]] == ["write", "write"]
    assert lines(file) == ["free"]
    assert len(model.requests) == 1
    answer = approve(ada, pause)
    assert answer["status"] == "Completed"
    assert sorted(lines(file)) == ["free", "governed 1", "governed 2"]
    assert len(model.requests) == 2
    assert sorted(results(sent_last(model))) == ["noted free", "wrote governed 1", "wrote governed 2"]


def test_a_pause_ends_the_stream_with_what_json_would_have_said(ada: httpx.Client, file: Path) -> None:
    """`approval-required` is the last event, and the request reads the same. covers: HITL-1"""
    found = streamed(ada, "", text(call("Work-write", file=str(file), line="one")))
    assert [event.name for event in found] == ["request", "approval-required"]
    last = found[-1].data
    assert last["status"] == "Paused"
    assert last["content"] == request(ada, last["request_id"])["content"]


def test_a_call_that_cannot_run_asks_no_one(ada: httpx.Client, model: OfflineModel) -> None:
    """Arguments that are no object are reported to the model, without human approval. covers: HITL-1"""
    model.script(
        {
            "rules": [
                {
                    "when": {"text": "broken", "tool_result": False},
                    "reply": {"tool_calls": [{"name": "Work-write", "arguments": '{"file": '}]},
                }
            ]
        }
    )
    try:
        answer = send(ada, "broken")
    finally:
        model.script(SCRIPT)
    assert answer["status"] == "Completed"
    [result] = results(sent_last(model))
    assert "not a JSON object" in result


# --- deciding ------------------------------------------------------------------------------------


def test_rejecting_gives_the_model_the_reason_and_the_task_continues(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """The model answers knowing the reason, and the task takes the next message. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    answer = decide(ada, pause, action="reject", reason="not on a Friday").json()
    assert answer["status"] == "Completed"
    [result] = results(sent_last(model))
    assert "reject" in result
    assert "not on a Friday" in result
    assert lines(file) == []
    assert send(ada, "hello", task_id=pause["task_id"])["status"] == "Completed"


def test_calls_are_decided_one_by_one_with_edited_arguments(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """Each call runs as it was decided: as shown, as edited, or not at all. covers: HITL-1"""
    words = " and ".join(call("Work-write", file=str(file), line=line) for line in ("one", "two", "three"))
    pause = paused(ada, words)
    first, second, third = (shown["id"] for shown in pause["tool_calls"])
    decisions = [
        {"id": third, "action": "approve", "arguments": {"file": str(file), "line": "edited"}},
        {"id": first, "action": "reject"},
    ]
    answer = decide(ada, pause, action="approve", reason="as discussed", decisions=decisions).json()
    assert answer["status"] == "Completed"
    assert sorted(lines(file)) == ["edited", "two"]
    told_back = results(sent_last(model))
    assert [("reject" in result, result[-3:]) for result in told_back] == [
        (True, "sed"),
        (False, "two"),
        (False, "ted"),
    ]
    ids = [m["tool_call_id"] for m in sent_last(model) if m["role"] == "tool"]
    assert ids == [first, second, third]


def test_decisions_alone_will_do_when_they_name_every_call(ada: httpx.Client, file: Path) -> None:
    """Without `action`, `decisions` must decide all. covers: HITL-1"""
    words = " and ".join(call("Work-write", file=str(file), line=line) for line in ("one", "two"))
    pause = paused(ada, words)
    first, second = (shown["id"] for shown in pause["tool_calls"])
    one = {"id": first, "action": "approve"}
    problem(decide(ada, pause, decisions=[one]), 422, "invalid_request", "action")
    answer = decide(ada, pause, bare=True, decisions=[one, {"id": second, "action": "reject"}])
    assert answer.json()["status"] == "Completed"
    assert lines(file) == ["one"]


BAD: dict[str, tuple[Callable[[str], Json], str]] = {
    "nothing": (lambda call_id: {}, "action"),
    "an unknown action": (lambda call_id: {"action": "maybe"}, "action"),
    "an unknown field": (lambda call_id: {"action": "approve", "force": True}, "force"),
    "an unknown call": (
        lambda call_id: {"action": "approve", "decisions": [{"id": "call_99", "action": "reject"}]},
        "decisions.0.id",
    ),
    "a repeated call": (
        lambda call_id: {"decisions": [{"id": call_id, "action": "approve"}] * 2},
        "decisions.1.id",
    ),
    "an unknown action of a call": (
        lambda call_id: {"decisions": [{"id": call_id, "action": "maybe"}]},
        "decisions.0.action",
    ),
    "an unknown field of a call": (
        lambda call_id: {"decisions": [{"id": call_id, "action": "approve", "why": "so"}]},
        "decisions.0.why",
    ),
    "no action for a call": (lambda call_id: {"decisions": [{"id": call_id}]}, "decisions.0.action"),
    "arguments that are no object": (
        lambda call_id: {"decisions": [{"id": call_id, "action": "approve", "arguments": "x"}]},
        "decisions.0.arguments",
    ),
    "arguments that the tool does not have": (
        lambda call_id: {"decisions": [{"id": call_id, "action": "approve", "arguments": {"line": 7}}]},
        "decisions.0.arguments",
    ),
    "edited arguments of a rejected call": (
        lambda call_id: {"decisions": [{"id": call_id, "action": "reject", "arguments": {}}]},
        "decisions.0.arguments",
    ),
    "a reason that is no text": (lambda call_id: {"action": "reject", "reason": 7}, "reason"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "by id"])
def test_a_decision_that_does_not_fit_is_refused_and_changes_nothing(
    ada: httpx.Client, file: Path, name: str, bare: bool
) -> None:
    """422 names the field; the pause waits on as it was. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    body, field = BAD[name]
    refused = decide(ada, pause, bare=bare, **body(pause["tool_calls"][0]["id"]))
    problem(refused, 422, "invalid_request", field)
    found = request(ada, pause["request_id"])
    assert (found["status"], found["content"]) == ("Paused", pause)
    assert lines(file) == []


def test_a_call_of_the_clients_own_tool_is_said_to_be_answered_by_its_client_or_rejected() -> None:
    """Its output cannot be sent in this protocol, so none is asked for. covers: HITL-1"""
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    asked = {"model": "Tester", "input": call("get_weather"), "tools": [tool]}
    with working_service(protocols=["openai"]) as (service, _), service.client() as ada:
        assert ada.post("/openai/v1/responses", json=asked).status_code == 200
        (pause,) = items(ada, "/approvals", status="pending")
        each = [{"id": pause["tool_calls"][0]["id"], "action": "approve"}]
        for field, decision in (
            ("decisions", {"action": "approve"}),
            ("decisions.0.action", {"decisions": each}),
        ):
            refused = decide(ada, pause, **decision)
            problem(refused, 422, "invalid_request", field)
            assert "the client that declared the tool runs it and sends its output" in refused.text
            assert "others can only reject the call" in refused.text
        assert decide(ada, pause, action="reject").json()["status"] == "Completed"


def test_what_is_not_there_to_be_decided_is_said(ada: httpx.Client, file: Path) -> None:
    """An unknown request is refused as when it is read; an unknown pause is 404, a malformed id 422, a
    request without a pause 404."""
    unknown = ada.post(f"/requests/{NOBODYS}/resume", json={"action": "approve"})
    problem(unknown, 404, "not_found")
    assert unknown.text == ada.get(f"/requests/{NOBODYS}").text
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    url = f"/requests/{pause['request_id']}/resume?approval_id="
    problem(ada.post(url + NOBODYS, json={"action": "approve"}), 404, "not_found")
    problem(ada.post(url + "one", json={"action": "approve"}), 422, "invalid_request", "approval_id")
    answered = send(ada, "hello")
    refused = ada.post(f"/requests/{answered['request_id']}/resume", json={"action": "approve"})
    problem(refused, 404, "not_found")
    assert lines(file) == []


# --- deciding again ------------------------------------------------------------------------------


def test_the_same_decision_again_is_answered_with_the_outcome(ada: httpx.Client, file: Path) -> None:
    """Received many times, executed once. covers: SESSION-7, HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    first = approve(ada, pause)
    for bare in (True, False):
        again = decide(ada, pause, bare=bare, action="approve")
        assert again.json() == first
    by_call = {"id": pause["tool_calls"][0]["id"], "action": "approve"}
    as_shown = {**by_call, "arguments": {"line": "one", "file": str(file)}}
    for each in (by_call, as_shown):
        assert decide(ada, pause, bare=True, decisions=[each]).json() == first
    replay = list(
        events(
            ada.post(
                pause["approval_url"].partition(ada_prefix(ada))[2].replace("/resume?", "/resume/sse?"),
                json={"action": "approve"},
            ).text
        )
    )
    assert replay[-1].data == first
    assert lines(file) == ["one"]


def ada_prefix(client: httpx.Client) -> str:
    return client.base_url.path.rstrip("/")


def test_a_contrary_decision_is_refused(ada: httpx.Client, file: Path) -> None:
    """Another action, other arguments, an explicit edit: 409, and what was decided stays. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    first = approve(ada, pause)
    call_id = pause["tool_calls"][0]["id"]
    edited = {"id": call_id, "action": "approve", "arguments": {"file": str(file), "line": "two"}}
    for contrary in ({"action": "reject"}, {"decisions": [edited]}):
        refused = problem(decide(ada, pause, **contrary), 409, "already_decided")
        assert refused["approval_id"] == pause["approval_id"]
        assert refused["request_id"] == pause["request_id"]
    assert request(ada, pause["request_id"])["content"] == first["content"]
    assert lines(file) == ["one"]


@pytest.mark.parametrize("action", ["approve", "reject"])
@pytest.mark.parametrize("nothing", [{}, {"decisions": []}, {"reason": "late"}], ids=str)
def test_a_body_that_decides_nothing_is_refused_of_a_decided_pause_too(
    ada: httpx.Client, file: Path, action: str, nothing: Json
) -> None:
    """It is no repetition of the decision, whatever that was. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    decide(ada, pause, action=action).raise_for_status()
    for bare in (True, False):
        problem(decide(ada, pause, bare=bare, **nothing), 422, "invalid_request", "action")
    assert lines(file) == ["one"] * (action == "approve")


def test_a_pause_that_was_decided_before_its_task_was_imported_stays_so(
    ada: httpx.Client, file: Path
) -> None:
    """Whatever is decided now: it is late, not unknown, and nothing runs again. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    decide(ada, pause, action="approve").raise_for_status()
    task = f"/tasks/{pause['task_id']}"
    document = ada.get(f"{task}/export").raise_for_status().json()
    ada.delete(task).raise_for_status()
    ada.post("/tasks/import", json=document).raise_for_status()
    for action in ("approve", "reject"):
        problem(decide(ada, pause, action=action), 409, "already_decided")
    assert lines(file) == ["one"]


def test_the_same_decision_while_it_is_carried_out_says_running(ada: httpx.Client, file: Path) -> None:
    """The second of two equal decisions does not wait for the first's tools. covers: SESSION-7"""
    pause = paused(ada, call("Work-linger", file=str(file), line="one", seconds=30))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(decide, ada, pause, action="approve")
        until(lambda: lines(file))
        again = decide(ada, pause, action="approve").json()
        assert (again["status"], again["content"]) == ("Running", None)
        assert again["request_id"] == pause["request_id"]
        problem(decide(ada, pause, action="reject"), 409, "already_decided")
        ada.post(f"/requests/{pause['request_id']}/cancel").raise_for_status()
        problem(first.result(), 409, "request_canceled")
    problem(decide(ada, pause, action="approve"), 409, "request_canceled")
    assert lines(file) == ["one"]


def tool_steps(client: httpx.Client, pause: Json) -> list[tuple[str, str]]:
    """The names and outcomes of the tool calls in the trace of a paused request's task."""
    trace = client.get(f"/tasks/{pause['task_id']}/trace").raise_for_status().json()["items"]
    return [(step["name"], step["outcome"]) for step in trace if step["kind"] == "tool"]


def test_an_approved_call_that_was_canceled_is_a_step_of_the_trace(ada: httpx.Client, file: Path) -> None:
    """It may have done what it was to do: the trace says so, and that its outcome is unknown."""
    pause = paused(ada, call("Work-linger", file=str(file), line="one", seconds=30))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(decide, ada, pause, action="approve")
        until(lambda: lines(file))
        ada.post(f"/requests/{pause['request_id']}/cancel").raise_for_status()
        problem(first.result(), 409, "request_canceled")
    assert tool_steps(ada, pause) == [("Work-linger", "unknown")]


def second_pause(client: httpx.Client, file: Path) -> tuple[Json, Json]:
    """The first and the second pause of one request, the first approved."""
    first = paused(client, f"then again: {call('Work-write', file=str(file), line='first')}")
    second = approve(client, first)
    assert second["status"] == "Paused"
    return first, second["content"]


def test_a_second_pause_needs_to_be_named(ada: httpx.Client, file: Path) -> None:
    """A repeated answer to the first pause never decides the second. covers: HITL-1, SESSION-7"""
    first, second = second_pause(ada, file)
    assert second["approval_id"] != first["approval_id"]
    assert second["tool_calls"][0]["id"] == "again"
    for bare in ({"action": "approve"}, {"action": "reject"}):
        refused = problem(decide(ada, first, bare=True, **bare), 409, "approval_pending")
        assert refused["approval_id"] == second["approval_id"]
        assert refused["request_id"] == second["request_id"]
    repeated = decide(ada, first, action="approve").json()
    assert (repeated["status"], repeated["content"]) == ("Paused", second)
    problem(decide(ada, first, action="reject"), 409, "already_decided")
    named = [{"id": first["tool_calls"][0]["id"], "action": "approve"}]
    assert decide(ada, first, bare=True, decisions=named).json() == repeated
    assert request(ada, first["request_id"])["content"] == second
    answer = approve(ada, second)
    assert answer["status"] == "Completed"
    assert lines(file) == ["first"]
    assert decide(ada, first, bare=True, action="approve").json() == answer


def test_a_second_pause_is_decided_by_its_calls(ada: httpx.Client, file: Path) -> None:
    """`decisions` that name its calls say which pause is meant. covers: HITL-1"""
    first, second = second_pause(ada, file)
    decision = {"id": "again", "action": "reject"}
    answer = decide(ada, first, bare=True, decisions=[decision]).json()
    assert answer["status"] == "Completed"
    problem(decide(ada, second, action="approve"), 409, "already_decided")


# --- pauses that end otherwise -------------------------------------------------------------------


def test_a_message_to_a_paused_task_waits_or_supersedes(ada: httpx.Client, file: Path) -> None:
    """409 names the pause; `supersede` cancels it and continues. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    refused = problem(ada.post("", json=text("hello", task_id=pause["task_id"])), 409, "approval_pending")
    assert refused["request_id"] == pause["request_id"]
    assert refused["approval_id"] == pause["approval_id"]
    answer = send(ada, "hello", task_id=pause["task_id"], supersede=True)
    assert answer["status"] == "Completed"
    found = request(ada, pause["request_id"])
    assert (found["status"], found["error"]["code"]) == ("Canceled", "request_canceled")
    problem(decide(ada, pause, action="approve"), 409, "request_canceled")
    assert lines(file) == []


def test_a_canceled_pause_cannot_be_decided(ada: httpx.Client, file: Path) -> None:
    """Once canceled, approving and rejecting are refused alike, and what to do is said. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    assert ada.post(f"/requests/{pause['request_id']}/cancel").json()["status"] == "Canceled"
    for action in ("approve", "reject"):
        for bare in (True, False):
            refused = problem(decide(ada, pause, bare=bare, action=action), 409, "request_canceled")
            assert "If it is still wanted, send its message again" in refused["detail"]
    assert [found["status"] for found in approvals(ada, pause)] == ["canceled"]
    assert lines(file) == []


def test_a_request_that_was_canceled_before_any_pause_cannot_be_decided(
    ada: httpx.Client, file: Path
) -> None:
    """The same is said of it, though it never asked."""
    running = begin(ada, call("Work-rest", file=str(file), seconds=600))
    cancel(ada, running)
    refused = problem(decide(ada, running, bare=True, action="approve"), 409, "request_canceled")
    assert "If it is still wanted, send its message again" in refused["detail"]


def approvals(client: httpx.Client, pause: Json, **query: str) -> list[Json]:
    """What the inbox shows of a pause."""
    found = items(client, "/approvals", limit="200", **query)
    return [entry for entry in found if entry["approval_id"] == pause["approval_id"]]


def test_an_expired_pause_ends_its_request_and_frees_the_task(file: Path) -> None:
    """A late decision is refused as late, and the task takes the next message. covers: HITL-1"""
    limits = {"approval_expiry_seconds": 0.2}
    with working_service(limits=limits) as (service, _), service.client() as client:
        pause = paused(client, call("Work-write", file=str(file), line="one"))
        until(lambda: request(client, pause["request_id"])["status"] != "Paused")
        for action in ("approve", "reject"):
            refused = problem(decide(client, pause, action=action), 409, "approval_expired")
            assert refused["approval_id"] == pause["approval_id"]
        found = request(client, pause["request_id"])
        assert (found["status"], found["error"]["code"]) == ("Canceled", "approval_expired")
        assert approvals(client, pause, status="pending") == []
        assert len(approvals(client, pause, status="expired")) == 1
        assert send(client, "hello", task_id=pause["task_id"])["status"] == "Completed"
        late = paused(client, call("Work-write", file=str(file), line="two"))
        time.sleep(0.25)
        problem(decide(client, late, action="approve"), 409, "approval_expired")
    assert lines(file) == []


# --- the older path, streams, background ---------------------------------------------------------


@pytest.mark.parametrize("path", ["/requests/{}/resume", "/tealagents/v1alpha1/resume/{}"])
def test_a_decision_is_taken_at_both_paths_in_all_ways(ada: httpx.Client, file: Path, path: str) -> None:
    """JSON, SSE by path and by `Accept`, and in the background, at the older path too. covers: HITL-1"""

    def fresh() -> tuple[Json, str]:
        pause = paused(ada, call("Work-write", file=str(file), line="one"))
        return pause, path.format(pause["request_id"])

    _, url = fresh()
    assert ada.post(url, json={"action": "approve"}).json()["status"] == "Completed"
    for suffix, headers in (("/sse", {}), ("", {"accept": "text/event-stream"})):
        pause, url = fresh()
        found = list(events(ada.post(url + suffix, json={"action": "approve"}, headers=headers).text))
        names = [event.name for event in found]
        assert names[:3] == ["request", "tool-call", "tool-result"]
        assert names[-1] == "final-response"
        assert streamed_text(found) == found[-1].data["content"]["output"]
        assert found[-1].data["content"] == request(ada, pause["request_id"])["content"]
        whole = list(events(ada.get(f"/requests/{pause['request_id']}/events").text))
        assert numbers(whole) == [1, *numbers(found)]
    pause, url = fresh()
    accepted = ada.post(url, json={"action": "approve"}, headers={"prefer": "respond-async"})
    assert (accepted.status_code, accepted.json()["status"]) == (202, "Running")
    assert accepted.headers["location"] == f"{ada_prefix(ada)}/requests/{pause['request_id']}"
    until(lambda: request(ada, pause["request_id"])["status"] != "Running")
    assert lines(file) == ["one"] * 4


# --- who may decide ------------------------------------------------------------------------------


def test_strangers_decide_nothing(ada: httpx.Client, eve: httpx.Client, file: Path) -> None:
    """Another user is refused, and does not see the pause. covers: AUTH-3, HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    for path in (
        f"/requests/{pause['request_id']}/resume",
        f"/tealagents/v1alpha1/resume/{pause['request_id']}",
    ):
        for suffix in ("", "/sse"):
            refused = eve.post(path + suffix, json={"action": "approve"})
            problem(refused, 401, "not_owner")
            assert refused.headers["www-authenticate"] == "Bearer"
    assert approvals(eve, pause) == []
    assert lines(file) == []


def test_an_approver_sees_the_calls_and_decides_and_reads_no_content(
    ada: httpx.Client, boss: httpx.Client, file: Path
) -> None:
    """The approver gets ids and status back, as JSON and as a stream, never content. covers: HITL-1"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    [shown] = approvals(boss, pause, status="pending")
    assert shown["tool_calls"] == pause["tool_calls"]
    assert shown["status"] == "pending"
    problem(boss.get(f"/requests/{pause['request_id']}"), 401, "not_owner")
    problem(boss.get(f"/requests/{pause['request_id']}/events"), 401, "not_owner")
    problem(boss.post(f"/requests/{pause['request_id']}/cancel"), 401, "not_owner")
    problem(boss.get(f"/tasks/{pause['task_id']}/messages"), 401, "not_owner")
    ids = {name: pause[name] for name in ("session_id", "task_id", "request_id")}
    answer = approve(boss, pause)
    assert answer == {**ids, "status": "Completed", "content": None}
    assert decide(boss, pause, action="approve").json() == answer
    assert lines(file) == ["one"]

    pause = paused(ada, call("Work-write", file=str(file), line="two"))
    found = streamed(boss, f"/requests/{pause['request_id']}/resume/sse", {"action": "approve"})
    assert [event.name for event in found] == ["request", "final-response"]
    assert found[-1].data == {**answer, **{n: pause[n] for n in ids}}
    assert lines(file) == ["one", "two"]


def test_the_cursors_of_an_inbox_are_those_that_are_described(
    ada: httpx.Client, boss: httpx.Client, file: Path
) -> None:
    """Clients that check patterns send what they were given: an approver's cursor, and an owner's."""
    paths = ada.get("/openapi.json").json()["paths"]
    operation = next(path["get"] for name, path in paths.items() if name.endswith("/approvals"))
    described = next(each["schema"] for each in operation["parameters"] if each["name"] == "cursor")
    for _ in range(2):
        paused(ada, call("Work-write", file=str(file), line="one"))
    for reader in (ada, boss):
        cursor = reader.get("/approvals", params={"limit": 1}).json()["next_cursor"]
        assert reader.get("/approvals", params={"limit": 1, "cursor": cursor}).json()["items"]
        jsonschema.validate(cursor, described)


def test_a_request_that_never_paused_is_no_affair_of_an_approver(
    ada: httpx.Client, boss: httpx.Client
) -> None:
    """Its ids are not shown either: it is another user's, as on every other path. covers: AUTH-3, HITL-1"""
    answer = ada.post("", json=text("hello")).raise_for_status().json()
    for suffix in ("", "/sse"):
        refused = boss.post(f"/requests/{answer['request_id']}/resume{suffix}", json={"action": "approve"})
        problem(refused, 401, "not_owner")
        assert answer["task_id"] not in refused.text
    refused = boss.get(f"/requests/{answer['request_id']}/approvals/{uuid.uuid4()}")
    problem(refused, 401, "not_owner")
    assert answer["task_id"] not in refused.text


def test_an_approver_learns_of_a_second_pause_and_of_a_failure_only_that_it_is(
    ada: httpx.Client, boss: httpx.Client, file: Path
) -> None:
    """Neither the next pause's answer nor an error shows the approver what was said. covers: HITL-1"""
    first = paused(ada, f"then again: {call('Work-write', file=str(file), line='first')}")
    answer = approve(boss, first)
    assert (answer["status"], answer["content"]) == ("Paused", None)
    for way in ("json", "sse"):
        pause = paused(ada, f"then fail: {call('Work-write', file=str(file), line='one')}")
        if way == "json":
            refused = decide(boss, pause, action="approve")
            document = problem(refused, 502, "model_error")
        else:
            path = f"/requests/{pause['request_id']}/resume/sse"
            last = streamed(boss, path, {"action": "approve"})[-1]
            assert last.name == "error"
            document = last.data
        assert document["request_id"] == pause["request_id"]
        assert "secret" not in str(document)
        assert "secret" in str(request(ada, pause["request_id"])["error"])


def test_who_decided_what_and_when_is_in_the_trace_and_the_audit(
    ada: httpx.Client, boss: httpx.Client, file: Path
) -> None:
    """The approver, each decision and the payload that was seen are on record. covers: HITL-1, SESSION-8"""
    words = " and ".join(call("Work-write", file=str(file), line=line) for line in ("one", "two"))
    pause = paused(ada, words)
    first, second = (shown["id"] for shown in pause["tool_calls"])
    rejected = [{"id": second, "action": "reject"}]
    decide(boss, pause, action="approve", reason="one is enough", decisions=rejected).raise_for_status()
    steps = items(ada, f"/tasks/{pause['task_id']}/trace")
    asked, decided = (step for step in steps if step["kind"] == "approval")
    assert asked["input"]["tool_calls"] == decided["input"]["tool_calls"] == pause["tool_calls"]
    assert decided["output"]["decided_by"] == {"tid": "mock", "oid": "boss"}
    assert decided["output"]["reason"] == "one is enough"
    assert [(d["id"], d["action"]) for d in decided["output"]["decisions"]] == [
        (first, "approve"),
        (second, "reject"),
    ]
    assert asked["started_at"] <= decided["started_at"]
    entries = {entry["action"]: entry for entry in items(ada, f"/tasks/{pause['task_id']}/audit")}
    requested, decision = entries["approval.requested"], entries["approval.decided"]
    assert decision["actor"] == "mock.boss"
    assert decision["request_id"] == pause["request_id"]
    assert decision["details"]["decisions"] == {first: "approve", second: "reject"}
    assert decision["details"]["payload_sha256"] == requested["details"]["payload_sha256"]
    [listed] = approvals(ada, pause, status="decided")
    assert listed["decided_by"] == {"tid": "mock", "oid": "boss"}
    assert listed["decided_at"] is not None


def test_a_call_that_needs_the_owners_token_waits_approved_for_the_owner(
    ada: httpx.Client, boss: httpx.Client, file: Path
) -> None:
    """An approver's token never acts for the owner; only the owner's own resume runs it. covers: HITL-1"""
    pause = paused(ada, call("Work-act_for_owner", file=str(file)))
    answer = approve(boss, pause)
    assert (answer["status"], answer["content"]) == ("Paused", None)
    assert lines(file) == []
    waiting = request(ada, pause["request_id"])["content"]
    assert waiting["approval_id"] != pause["approval_id"]
    assert waiting["tool_calls"] == pause["tool_calls"]
    assert "approved" in waiting["message"]
    # for the approver it is decided: it is not in the inbox, approving changes nothing, rejecting is refused
    assert approvals(boss, waiting, status="pending") == []
    assert [found["status"] for found in approvals(ada, waiting, status="pending")] == ["pending"]
    again = decide(boss, waiting, action="approve").json()
    assert (again["status"], again["content"]) == ("Paused", None)
    problem(decide(boss, waiting, action="reject"), 409, "already_decided")
    # nor are arguments taken, which the owner's resume would leave out
    edited = [{"id": pause["tool_calls"][0]["id"], "action": "approve", "arguments": {"file": "/elsewhere"}}]
    problem(decide(boss, waiting, decisions=edited), 409, "already_decided")
    # a repeated answer to the first pause, which showed the same call, does not decide this one
    named = [{"id": pause["tool_calls"][0]["id"], "action": "approve"}]
    for client in (boss, ada):
        problem(decide(client, pause, bare=True, decisions=named), 409, "approval_pending")
    assert request(ada, pause["request_id"])["content"] == waiting
    answer = approve(ada, waiting)
    assert answer["status"] == "Completed"
    assert lines(file) == ["token of ada"]


def test_the_owner_may_still_reject_what_waits_for_the_owner(
    ada: httpx.Client, boss: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """The owner has the last word on what is done with the owner's token. covers: HITL-1"""
    pause = paused(ada, call("Work-act_for_owner", file=str(file)))
    approve(boss, pause)
    waiting = request(ada, pause["request_id"])["content"]
    assert decide(ada, waiting, action="reject", reason="not mine").json()["status"] == "Completed"
    assert "not mine" in results(sent_last(model))[0]
    assert lines(file) == []


def test_a_tool_that_needs_consent_pauses_with_where_to_give_it(
    ada: httpx.Client, boss: httpx.Client, file: Path, tmp_path: Path
) -> None:
    """Approved before the consent it asks again; after it, the call runs once. covers: HITL-3"""
    consent = tmp_path / "consent"
    pause = paused(ada, call("Work-enter", file=str(file), consent=str(consent)))
    assert pause["authorizations"] == []
    asked = approve(ada, pause)["content"]
    place = {"server": "secrets", "url": "https://secrets.example/consent", "scopes": ["secrets.open"]}
    assert asked["authorizations"] == [place]
    assert asked["tool_calls"] == pause["tool_calls"]
    # the link is for the owner alone, not for another approver
    assert [found["authorizations"] for found in approvals(ada, asked)] == [[place]]
    assert [found["authorizations"] for found in approvals(boss, asked)] == [[]]
    again = approve(ada, asked)
    assert again["status"] == "Paused"
    assert lines(file) == []
    consent.touch()
    answer = approve(ada, again["content"])
    assert answer["status"] == "Completed"
    assert lines(file) == ["entered"]


def test_calls_of_a_canceled_pause_are_reported_where_their_code_had_begun(
    ada: httpx.Client, boss: httpx.Client, model: OfflineModel, file: Path, tmp_path: Path
) -> None:
    """What found within that it has to wait for its owner or for consent may have done something before."""
    for words in (
        call("Work-act_for_owner", file=str(file)),
        call("Work-enter", file=str(file), consent=str(tmp_path / "consent")),
    ):
        pause = paused(ada, words)
        approve(boss if "owner" in words else ada, pause)
        assert request(ada, pause["request_id"])["status"] == "Paused"
        send(ada, "hello", task_id=pause["task_id"], supersede=True)
        (note,) = [m["content"] for m in sent_last(model)[1:] if m["role"] == "system"]
        assert note.count("its outcome is unknown") == 1


def test_a_pause_that_its_task_knows_nothing_of_is_damage(
    ada: httpx.Client, service: ServiceThread, file: Path
) -> None:
    """State that contradicts itself is reported as such, and nothing runs. covers: STATE-4"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    records = service.app.exchange.service.records
    partition = records.partition(User("mock", "ada"))
    key = keys.task(pause["task_id"])

    async def forget() -> None:
        head = (await records.get(partition, key, Head)).value
        await records.commit(partition, marker=key, put={key: replace(head, pending=None)})

    in_service(service, forget())
    problem(decide(ada, pause, action="approve"), 500, "corrupt_state")
    assert lines(file) == []


def test_a_pause_that_the_store_has_lost_is_damage(
    ada: httpx.Client, service: ServiceThread, file: Path
) -> None:
    """Its task waits for it, so it is not one that never was. covers: STATE-4"""
    pause = paused(ada, call("Work-write", file=str(file), line="one"))
    records = service.app.exchange.service.records
    partition = records.partition(User("mock", "ada"))
    key = keys.approval(pause["approval_id"])

    async def lose() -> None:
        await records.store.commit(partition, Commit(operation=operation_id(), delete=[key]))

    in_service(service, lose())
    problem(decide(ada, pause, action="approve"), 500, "corrupt_state")
    assert lines(file) == []
    assert send(ada, "hello", task_id=pause["task_id"], supersede=True)["status"] == "Completed"


# --- restarts, and many at once ------------------------------------------------------------------


def test_a_pause_survives_a_restart(nursery: Nursery, tmp_path: Path, file: Path) -> None:
    """Killed and started anew, the service still knows what waits, and runs it once. covers: HITL-1"""
    store = tmp_path / "state.db"
    with OfflineModel() as model, working_process(nursery, store, model, auth=BOSS) as service:
        with service.client() as client:
            found = streamed(client, "", text(call("Work-write", file=str(file), line="one")))
            pause = found[-1].data["content"]
        service.kill()
        service.start()
        with service.client() as client, service.client("boss") as boss:
            assert request(client, pause["request_id"])["content"] == pause
            assert [found["tool_calls"] for found in approvals(boss, pause, status="pending")] == [
                pause["tool_calls"]
            ]
            refused = client.post("", json=text("hello", task_id=pause["task_id"]))
            problem(refused, 409, "approval_pending")
            more = streamed(client, f"/requests/{pause['request_id']}/resume", {"action": "approve"})
            assert more[-1].name == "final-response"
            whole = list(events(client.get(f"/requests/{pause['request_id']}/events").text))
            assert numbers(whole) == [*numbers(found)[:-1], *numbers(more)]
    assert lines(file) == ["one"]


def test_a_tool_cut_off_by_a_crash_is_reported_as_unknown_and_not_run_again(
    nursery: Nursery, tmp_path: Path, file: Path
) -> None:
    """Killed between approval and result: the next model call says so, and nothing runs twice.

    covers: HITL-1, STATE-4
    """
    store = tmp_path / "state.db"
    with OfflineModel() as model, working_process(nursery, store, model) as service:
        with service.client() as client:
            words = " and ".join(
                [
                    call("Work-note", file=str(file), line="before"),
                    call("Work-linger", file=str(file), line="one", seconds=60),
                ]
            )
            pause = paused(client, words)
            client.post(
                f"/requests/{pause['request_id']}/resume",
                json={"action": "approve"},
                headers={"prefer": "respond-async"},
            ).raise_for_status()
            until(lambda: lines(file) == ["before", "one"])
        service.kill()
        lapse(f"sqlite:///{store}")
        service.start()
        with service.client() as client:
            until(lambda: request(client, pause["request_id"])["status"] != "Running")
            found = request(client, pause["request_id"])
            assert (found["status"], found["error"]["code"]) == ("Failed", "interrupted")
            assert ("Work-linger", "unknown") in tool_steps(client, pause)
            again = decide(client, pause, action="approve")
            problem(again, 503, "interrupted")
            assert "retry-after" not in again.headers, "it stays so, however often it is decided"
            problem(decide(client, pause, action="reject"), 409, "already_decided")
            for _ in range(2):
                send(client, "hello", task_id=pause["task_id"])
                notes = [m["content"] for m in sent_last(model)[1:] if m["role"] == "system"]
                assert len(notes) == 1
                assert notes[0].count("Work-note") == notes[0].count("Work-linger") == 1
                by_tool = {line.split()[1]: line for line in notes[0].splitlines() if line.startswith("- ")}
                assert by_tool["Work-note"].endswith("it was done")
                assert by_tool["Work-linger"].endswith("its outcome is unknown")
    assert lines(file) == ["before", "one"]


async def _race(url: str, file: Path, rounds: int) -> None:
    """Rounds of eight concurrent decisions of one pause: five the same, three contrary."""
    headers = {"authorization": "Bearer ada"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:

        async def one(number: int) -> None:
            line = f"round {number}"
            sent = await client.post("", json=text(call("Work-write", file=str(file), line=line)))
            pause = sent.raise_for_status().json()["content"]
            path = f"/requests/{pause['request_id']}/resume"
            decisions: list[Json] = [{"action": "approve"}] * 5 + [{"action": "reject"}] * 3
            answers = await asyncio.gather(*(client.post(path, json=decision) for decision in decisions))
            final = (await client.get(f"/requests/{pause['request_id']}")).json()
            while final["status"] == "Running":
                final = (await client.get(f"/requests/{pause['request_id']}")).json()
            assert final["status"] == "Completed"
            approved = "wrote" in final["content"]["output"]
            for decision, answer in zip(decisions, answers, strict=True):
                if (decision["action"] == "approve") == approved:
                    assert answer.status_code == 200, answer.text
                    document = answer.json()
                    assert document["status"] in ("Running", "Completed"), document
                    if document["status"] == "Completed":
                        assert document["content"] == final["content"]
                else:
                    problem(answer, 409, "already_decided")
            written = [entry for entry in lines(file) if entry == line]
            assert len(written) == (1 if approved else 0)

        places = asyncio.Semaphore(4)

        async def bounded(number: int) -> None:
            async with places:
                await one(number)

        await asyncio.gather(*(bounded(number) for number in range(rounds)))


STORES = ["memory", "sqlite", "files", "redis", "postgres"]


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    local = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/state.db",
        "files": f"file:///{tmp_path}/state",
    }
    name = request.param
    return local[name] if name in local else str(request.getfixturevalue(f"{name}_url"))


async def test_of_many_decisions_at_once_one_is_carried_out(store_url: str, file: Path) -> None:
    """The side effect happens once; equal decisions get the outcome, contrary ones 409.

    covers: SESSION-7, SESSION-5, HITL-1
    """
    with working_service(env={"TA_PERSISTENCE": store_url}) as (service, _):
        await _race(service.url, file, 12)


@pytest.mark.soak
@pytest.mark.parametrize("store_url", [*STORES, "dynamodb"], indirect=True)
async def test_of_many_decisions_at_once_one_is_carried_out_a_thousand_times(
    store_url: str, file: Path
) -> None:
    """As above, a thousand rounds. covers: SESSION-7, SESSION-5, HITL-1"""
    with working_service(env={"TA_PERSISTENCE": store_url}) as (service, _):
        await _race(service.url, file, 1000)


async def test_decisions_in_two_processes_are_carried_out_once(
    nursery: Nursery, tmp_path: Path, file: Path
) -> None:
    """Replicas that share a store do not both run what was approved. covers: SESSION-7, SESSION-5"""
    store = tmp_path / "state.db"
    with (
        OfflineModel() as model,
        working_process(nursery, store, model) as a,
        working_process(nursery, store, model) as b,
    ):
        headers = {"authorization": "Bearer ada"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as client:
            for number in range(6):
                line = f"round {number}"
                words = call("Work-write", file=str(file), line=line)
                pause = (await client.post(a.url, json=text(words))).json()["content"]
                paths = [f"{s.url}/requests/{pause['request_id']}/resume" for s in (a, b)] * 3
                answers = await asyncio.gather(
                    *(client.post(path, json={"action": "approve"}) for path in paths)
                )
                for answer in answers:
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["status"] in ("Running", "Completed")
        assert sorted(lines(file)) == [f"round {number}" for number in range(6)]
