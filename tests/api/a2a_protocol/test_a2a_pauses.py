"""Pauses over A2A: shown as a state of the task, decided by the document for that, never by other text."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from a2a_talk import BINDINGS, Json, Wire, answer, decision, message, state, streamed_text
from oauth_setup import Provider
from talk import call, lines

from tealagents.testing.service import ServiceThread


def pause(wire: Wire, file: Path, line: str = "one", words: str = "") -> Json:
    """A task that waits for the approval of one call."""
    task = wire.send(f"{words} {call('Work-write', file=str(file), line=line)}".strip())
    assert state(task) == "INPUT_REQUIRED"
    return task


def shown(task: Json) -> Json:
    """What a pause waits for."""
    (data,) = [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]
    return dict(data)


def test_a_pause_is_a_state_of_the_task(wire: Wire, file: Path) -> None:
    """The blocking call returns with it; its message says in words and as data what is waited for.

    [CORE-EXECUTION-MODE-001]
    """
    task = pause(wire, file)
    said = task["status"]["message"]
    assert (said["role"], said["taskId"], said["contextId"]) == ("ROLE_AGENT", task["id"], task["contextId"])
    assert said["parts"][0]["text"]
    waits = shown(task)
    assert set(waits) == {"approval_id", "expires_at", "tool_calls", "authorizations"}
    assert waits["tool_calls"][0]["function_name"] == "write"
    assert state(wire.get(task["id"])) == "INPUT_REQUIRED"
    assert not lines(file)


def test_an_approval_runs_what_was_shown_once(wire: Wire, file: Path) -> None:
    """Repeated, it is answered with the outcome; contradicted, it is refused. [CORE-MULTI-005]"""
    task = pause(wire, file)
    sent = {"message": decision(task)}
    done = wire.result("SendMessage", sent)["task"]
    assert (done["id"], done["contextId"], state(done)) == (task["id"], task["contextId"], "COMPLETED")
    assert lines(file) == ["one"]
    again = wire.result("SendMessage", sent)["task"]
    assert (again["id"], answer(again)) == (task["id"], answer(done))
    other = wire.result("SendMessage", {"message": decision(task)})["task"]
    assert answer(other) == answer(done)
    assert wire.error("SendMessage", {"message": decision(task, "reject")})[1] == "UNSUPPORTED_OPERATION"
    assert (
        wire.error("SendMessage", {"message": message("hi", taskId=task["id"])})[1] == "UNSUPPORTED_OPERATION"
    )
    assert lines(file) == ["one"]


def test_a_decision_may_name_its_context_in_upper_case(wire: Wire, file: Path) -> None:
    """As the task's own id; another context is refused."""
    task = pause(wire, file)
    sent = {**decision({"id": task["id"].upper()}), "contextId": task["contextId"].upper()}
    assert state(wire.result("SendMessage", {"message": sent})["task"]) == "COMPLETED"
    assert lines(file) == ["one"]


def test_a_stream_of_a_decision_that_was_carried_out_ends_once(wire: Wire, file: Path) -> None:
    """What came of it comes again, from a task that works on it."""
    sent = {"message": decision(pause(wire, file))}
    done = wire.result("SendMessage", sent)["task"]
    first, *updates = wire.stream("SendStreamingMessage", sent)
    assert (first["task"]["id"], state(first["task"])) == (done["id"], "WORKING")
    states = [state(event["statusUpdate"]) for event in updates if "statusUpdate" in event]
    assert states == ["WORKING", "COMPLETED"]
    assert streamed_text(updates) == answer(done)
    assert lines(file) == ["one"]


def test_of_many_approvals_one_runs(wire: Wire, file: Path) -> None:
    """All are answered with the same end."""
    task = pause(wire, file)
    found: list[str] = []

    def approve() -> None:
        found.append(state(wire.result("SendMessage", {"message": decision(task)})["task"]))

    threads = [threading.Thread(target=approve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["COMPLETED"] * 8
    assert lines(file) == ["one"]


def test_a_rejection_reaches_the_model(wire: Wire, file: Path) -> None:
    """The task continues without the call, with its reason."""
    task = pause(wire, file)
    done = wire.result("SendMessage", {"message": decision(task, "reject", reason="not today")})["task"]
    assert state(done) == "COMPLETED"
    assert not lines(file)


def test_edited_arguments_are_run_as_they_were_sent(wire: Wire, file: Path) -> None:
    """Numbers too: protobuf knows floats alone."""
    task = wire.send(call("Work-linger", file=str(file), line="shown", seconds=0))
    edited = {"id": shown(task)["tool_calls"][0]["id"], "action": "approve"}
    edited["arguments"] = {"file": str(file), "line": "edited", "seconds": 0}
    done = wire.result("SendMessage", {"message": decision(task, "approve", decisions=[edited])})["task"]
    assert state(done) == "COMPLETED"
    assert lines(file) == ["edited"]


def test_only_a_decision_decides(wire: Wire, file: Path) -> None:
    """Text, text beside data, wrong fields and unknown calls are refused, and the pause stays."""
    task = pause(wire, file)
    data = {"data": {"action": "approve"}}
    wrong: list[list[Json]] = [
        [{"text": "yes, go ahead"}],
        [data, {"text": "please"}],
        [data, data],
        [{"data": "approve"}],
        [{"data": {"action": "allow"}}],
        [{"data": {"action": "approve", "extra": 1}}],
        [{"data": {"decisions": [{"id": "call_nothing", "action": "approve"}]}}],
        [{"data": {"action": "approve", "approval_id": "x"}}],
        [{"data": {"action": "approve", "approval_id": "00000000-0000-4000-8000-000000000001"}}],
        [{"data": {}}],
    ]
    for parts in wrong:
        refused = wire.error("SendMessage", {"message": message(taskId=task["id"], parts=parts)})
        assert refused == (-32602 if wire.rpc else 400, "INVALID_PARAMS"), parts
    assert state(wire.get(task["id"])) == "INPUT_REQUIRED"
    assert not lines(file)


def part(document: str) -> Json:
    return {"raw": base64.b64encode(document.encode()).decode(), "mediaType": "application/json"}


def test_a_decision_may_come_as_a_raw_part(wire: Wire, file: Path) -> None:
    """For clients that send no data parts. It is strict: nothing around it, nothing in it that is unknown."""
    task = pause(wire, file)
    wrong = [
        'Sure: {"action": "approve"}',
        '{"action": "approve"} please',
        '```json\n{"action": "approve"}\n```',
        '{"action": "allow"}',
        '{"action": "approve", "extra": 1}',
        '{"action": "Approve"}',
        '[{"action": "approve"}]',
        '"approve"',
        '{"Action": "approve"}',
        '{"action": "approve", "approval_id": "00000000-0000-4000-8000-000000000001"}',
        "{}",
    ]
    for document in wrong:
        sent = {"message": message(taskId=task["id"], parts=[part(document)])}
        assert wire.error("SendMessage", sent) == (-32602 if wire.rpc else 400, "INVALID_PARAMS"), document
    twice = {"message": message(taskId=task["id"], parts=[part('{"action": "approve"}')] * 2)}
    assert wire.error("SendMessage", twice)[1] == "INVALID_PARAMS"
    assert state(wire.get(task["id"])) == "INPUT_REQUIRED"
    sent = {"message": message(taskId=task["id"], parts=[part(' {"action": "approve"}\n')])}
    done = wire.result("SendMessage", sent)["task"]
    again = wire.result("SendMessage", sent)["task"]
    assert (state(done), state(again)) == ("COMPLETED", "COMPLETED")
    assert lines(file) == ["one"]


def test_what_decides_nothing_is_told_what_does(wire: Wire, file: Path) -> None:
    """Text never decides, not even the document itself: a model may have written it. covers: HITL-1"""
    task = pause(wire, file)
    approve = {"text": '{"action": "approve"}'}
    files = [
        {"raw": base64.b64encode(approve["text"].encode()).decode(), "mediaType": media_type}
        for media_type in ("text/plain", " Text/JSON; charset=utf-8")
    ]
    for part in ({"text": "yes"}, approve, {**approve, "data": None}, {"text": '{"sure": true}'}, *files):
        refused = wire.call("SendMessage", {"message": message(parts=[part], taskId=task["id"])})
        assert "must be one data part" in refused.json()["error"]["message"], refused.text
        assert "cancel the task" in refused.json()["error"]["message"], refused.text
    assert state(wire.get(task["id"])) == "INPUT_REQUIRED"
    assert not lines(file)


def test_a_decision_in_a_new_task_is_only_a_message(wire: Wire) -> None:
    """Without the id of a task that waits it is what the user says."""
    task = wire.send('{"action": "approve"}')
    assert state(task) == "COMPLETED"
    assert wire.get(task["id"])["history"][0]["parts"] == [{"text": '{"action": "approve"}'}]


def test_another_message_in_a_context_that_waits_is_refused(wire: Wire, file: Path) -> None:
    """The error names the task and the pause to decide first."""
    task = pause(wire, file)
    response = wire.call("SendMessage", {"message": message("hello", contextId=task["contextId"])})
    assert wire.refusal(response)[1] == "APPROVAL_PENDING"
    error = response.json()["error"]
    named = (error["data"] if wire.rpc else error["details"])[0]["metadata"]
    assert named["taskId"] == task["id"]
    assert named["approvalId"] == shown(task)["approval_id"]


def test_a_second_pause_is_named_by_its_decision(wire: Wire, file: Path) -> None:
    """A bare action could be one that was sent before; with the id of the pause it is not."""
    first = pause(wire, file, line="first", words="two pauses")
    second = wire.result("SendMessage", {"message": decision(first)})["task"]
    assert state(second) == "INPUT_REQUIRED"
    assert wire.error("SendMessage", {"message": decision(first)})[1] == "APPROVAL_PENDING"
    approved = decision(first, approval_id=shown(second)["approval_id"])
    assert state(wire.result("SendMessage", {"message": approved})["task"]) == "COMPLETED"


def test_a_task_whose_pause_was_decided_has_changed_since(wire: Wire, file: Path) -> None:
    """It is listed before what ended meanwhile, and its time is not before that of its pause."""
    task = wire.send(call("Work-linger", file=str(file), line="one", seconds=600))
    assert state(task) == "INPUT_REQUIRED"
    other = wire.send()
    sent = {"message": decision(task), "configuration": {"returnImmediately": True}}
    working = wire.result("SendMessage", sent)["task"]
    try:
        assert state(working) == "WORKING"
        assert working["status"]["timestamp"] >= other["status"]["timestamp"]
        since = {"statusTimestampAfter": task["status"]["timestamp"]}
        listed = [each["id"] for each in wire.result("ListTasks", since)["tasks"]]
        assert [each for each in listed if each in (task["id"], other["id"])] == [task["id"], other["id"]]
    finally:
        wire.result("CancelTask", {"id": task["id"]})


def test_a_subscription_goes_through_the_pause_to_the_end(wire: Wire, file: Path) -> None:
    """The sender's stream ends at the pause; a follower's waits for the decision, wherever it is made."""
    events = list(
        wire.stream(
            "SendStreamingMessage", {"message": message(call("Work-write", file=str(file), line="x"))}
        )
    )
    assert state(events[-1]["statusUpdate"]) == "INPUT_REQUIRED"
    task = events[0]["task"]
    follower = wire.stream("SubscribeToTask", {"id": task["id"]})
    seen = [next(follower)]
    assert state(seen[0]["task"]) == "INPUT_REQUIRED"
    while "statusUpdate" not in seen[-1] or state(seen[-1]["statusUpdate"]) != "INPUT_REQUIRED":
        seen.append(next(follower))
    decided = list(wire.stream("SendStreamingMessage", {"message": decision(task)}))
    assert decided[0]["task"]["id"] == task["id"]
    rest = list(follower)
    assert state(rest[-1]["statusUpdate"]) == "COMPLETED" == state(decided[-1]["statusUpdate"])
    assert streamed_text(rest) == streamed_text(decided) == answer(wire.get(task["id"]))


def test_a_pause_is_decided_over_either_api(wire: Wire, file: Path, ada: httpx.Client) -> None:
    """What A2A began the service's own API decides, and the other way round."""
    task = pause(wire, file, line="one")
    done = ada.post(f"/requests/{task['id']}/resume", json={"action": "approve"}).json()
    assert (done["status"], state(wire.get(task["id"]))) == ("Completed", "COMPLETED")
    begun = ada.post(
        "",
        json={"items": [{"content_type": "text", "content": call("Work-write", file=str(file), line="two")}]},
    )
    decided = wire.result("SendMessage", {"message": decision({"id": begun.json()["request_id"]})})["task"]
    assert state(decided) == "COMPLETED"
    assert lines(file) == ["one", "two"]


def test_a_paused_task_can_be_canceled(wire: Wire, file: Path) -> None:
    """Its followers see it, and what it waited for can no longer be approved."""
    task = pause(wire, file)
    follower = wire.stream("SubscribeToTask", {"id": task["id"]})
    next(follower)
    assert state(wire.result("CancelTask", {"id": task["id"]})) == "CANCELED"
    *_, last = follower
    assert state(last["statusUpdate"]) == "CANCELED"
    assert wire.error("SendMessage", {"message": decision(task)})[1] == "UNSUPPORTED_OPERATION"
    assert not lines(file)


# --- consent -----------------------------------------------------------------------------------------


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def secured(provider: Provider) -> Iterator[ServiceThread]:
    from test_oauth_pause import serving

    with serving(provider, protocols=("a2a",)) as service:
        yield service


@pytest.mark.parametrize("binding", BINDINGS)
def test_consent_is_asked_for_as_authorization(
    secured: ServiceThread, provider: Provider, binding: str
) -> None:
    """The state says so and the message has the link; once it was visited, the decision runs the tool."""
    with Wire(secured, binding) as wire:
        task = wire.send("call secure-connect {}")
        assert state(task) == "AUTH_REQUIRED"
        (authorization,) = shown(task)["authorizations"]
        assert authorization["url"] in task["status"]["message"]["parts"][0]["text"]
        assert state(wire.get(task["id"])) == "AUTH_REQUIRED"
        listed = wire.result("ListTasks", {"status": "TASK_STATE_AUTH_REQUIRED"})["tasks"]
        assert [each["id"] for each in listed] == [task["id"]]
        provider.user = "Ada"
        assert httpx.get(authorization["url"], follow_redirects=True).status_code == 200
        assert state(wire.result("SendMessage", {"message": decision(task)})["task"]) == "COMPLETED"
