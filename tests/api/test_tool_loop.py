"""Rounds of tool calls: how they run, what the model is sent, where they end, what is on record."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from talk import call, items, lines, request, send, streamed_text, working_service
from wire import Json, events, problem, streamed, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

#: some gateways keep what the model wants back in the id
LONG_ID = "call_abc__thought__" + "Sig/+=" * 200

SCRIPT = f"""
rules:
  - when: {{text: long id}}
    reply:
      tool_calls:
        - {{id: {LONG_ID}, name: Work-repeat, arguments: {{text: a, times: 1}}}}
        - {{id: {LONG_ID}2, name: Work-repeat, arguments: {{text: b, times: 2}}}}
  - when: {{text: same huge id}}
    reply:
      tool_calls:
        - {{id: {LONG_ID}, name: Work-repeat, arguments: {{text: a, times: 1}}}}
        - {{id: {LONG_ID}, name: Work-repeat, arguments: {{text: b, times: 2}}}}
  - when: {{text: same huge id, tool_result: true, result_text: bb}}
    reply: {{tool_calls: [{{id: {LONG_ID}, name: Work-repeat, arguments: {{text: c, times: 3}}}}]}}
"""
SCRIPT += """
  - when: {text: for ever}
    reply: {tool_calls: [{name: Work-repeat, arguments: '{"text": "a", "times": 1}'}]}
  - when: {text: for ever, tool_result: true}
    reply: {tool_calls: [{name: Work-repeat, arguments: '{"text": "a", "times": 1}'}]}
  - when: {text: nobody has}
    reply:
      tool_calls:
        - {id: call_1, name: Work-fly, arguments: '{}'}
        - {id: call_2, name: fly, arguments: '{}'}
  - when: {text: broken}
    reply:
      tool_calls:
        - {id: call_1, name: Work-repeat, arguments: '{"text": '}
        - {id: call_2, name: Work-repeat, arguments: '[1]'}
        - {id: call_3, name: Work-repeat, arguments: ''}
        - {id: call_4, name: Work-repeat, arguments: {text: ab, times: many}}
  - when: {text: same id}
    reply:
      tool_calls:
        - {id: same, name: Work-repeat, arguments: {text: a, times: 1}}
        - {id: same, name: Work-repeat, arguments: {text: b, times: 2}}
  - when: {text: same id, tool_result: true, result_text: bb}
    reply: {tool_calls: [{id: same, name: Work-repeat, arguments: {text: c, times: 3}}]}
  - when: {text: two rounds}
    reply:
      text: Let me see.
      tool_calls: [{id: one, name: Work-repeat, arguments: {text: a, times: 3}}]
      usage: {prompt_tokens: 10, completion_tokens: 1}
  - when: {text: two rounds, tool_result: true, result_text: aaa}
    reply:
      text: And more.
      tool_calls: [{id: two, name: Work-repeat, arguments: {text: b, times: 2}}]
      usage: {prompt_tokens: 20, completion_tokens: 2}
  - when: {text: two rounds, tool_result: true, result_text: bb}
    reply: {text: Done it is., usage: {prompt_tokens: 40, completion_tokens: 4}}
  - when: {text: then fail, tool_result: true}
    reply: {error: {status: 400, message: not today}}
  - when: {text: then hang, tool_result: true}
    reply: {fault: silence}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT, limits={"max_tool_rounds": 3}) as pair:
        yield pair


def results(model: OfflineModel) -> list[str]:
    """The tool results that the model was sent last."""
    return [m["content"] for m in model.requests[-1]["body"]["messages"] if m["role"] == "tool"]


# --- how calls run -------------------------------------------------------------------------------


def test_the_calls_of_a_round_run_at_once_and_are_returned_in_their_order(
    ada: httpx.Client, model: OfflineModel
) -> None:
    """Four calls that wait for each other all end; the model gets them in its order. covers: FLOW-1"""
    words = " and ".join(call("Work-meet", place=str(model.base_url) + "a", parties=4) for _ in range(4))
    answer = send(ada, words)
    assert answer["status"] == "Completed"
    asked, told_back = [], []
    for message in model.requests[-1]["body"]["messages"]:
        asked += [each["id"] for each in message.get("tool_calls", [])]
        if message["role"] == "tool":
            told_back.append(message["tool_call_id"])
    assert told_back == asked
    assert sorted(results(model)) == [f"met as number {n}" for n in (1, 2, 3, 4)]
    stored = items(ada, f"/tasks/{answer['task_id']}/messages")
    assert [m["tool_call_id"] for m in stored if m["role"] == "tool"] == asked


def test_the_fastest_call_is_shown_first_and_returned_in_its_place(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """Events come as calls finish, messages in the order of the calls."""
    words = (
        f"{call('Work-rest', file=str(file), seconds=0.2)} and {call('Work-note', file=str(file), line='x')}"
    )
    found = streamed(ada, "", text(words))
    shown = [(event.name, event.data["tool"]) for event in found if event.name.startswith("tool-")]
    assert shown == [
        ("tool-call", "Work-rest"),
        ("tool-call", "Work-note"),
        ("tool-result", "Work-note"),
        ("tool-result", "Work-rest"),
    ]
    assert results(model) == ["rested", "noted x"]


def test_a_tool_that_blocks_its_thread_blocks_no_other_request(
    ada: httpx.Client, eve: httpx.Client, file: Path, tmp_path: Path
) -> None:
    """While it holds on, other requests are answered. covers: STATE-5"""
    let_go = tmp_path / "until"
    with ThreadPoolExecutor() as pool:
        held = pool.submit(send, ada, call("Work-block", file=str(file), until=str(let_go)))
        until(lambda: lines(file))
        for _ in range(3):
            assert send(eve, "hello")["status"] == "Completed"
            assert eve.get("/health/ready").status_code == 200
        assert not held.done()
        let_go.touch()
        assert "unblocked" in held.result()["content"]["output"]


# --- what the model is sent ----------------------------------------------------------------------


def test_an_unknown_tool_is_reported_with_the_known_ones(ada: httpx.Client, model: OfflineModel) -> None:
    """The model learns the names it may use, and answers."""
    assert send(ada, "nobody has")["status"] == "Completed"
    first, second = results(model)
    assert "'Work-fly'" in first
    assert "Work-note" in first
    assert "'fly'" in second


def test_broken_arguments_are_reported_to_the_model(ada: httpx.Client, model: OfflineModel) -> None:
    """Broken JSON, another kind, nothing, and a value of the wrong type: each says what is wrong."""
    assert send(ada, "broken")["status"] == "Completed"
    broken, array, empty, wrong = results(model)
    assert "not a JSON object" in broken
    assert "got list" in array
    assert "text" in empty
    assert "times" in wrong


@pytest.mark.parametrize("words", ["same id", "same huge id"])
def test_a_model_that_uses_an_id_twice_gets_distinct_calls(
    ada: httpx.Client, model: OfflineModel, words: str
) -> None:
    """In one round and over rounds: each call runs once and has a result of its own."""
    answer = send(ada, words)
    assert answer["status"] == "Completed"
    sent = model.requests[-1]["body"]["messages"]
    asked = [each["id"] for message in sent for each in message.get("tool_calls", [])]
    assert len(set(asked)) == len(asked) == 3
    assert [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"] == [
        (asked[0], "a"),
        (asked[1], "bb"),
        (asked[2], "ccc"),
    ]


def test_a_long_id_goes_back_as_it_came_and_is_shown_short(ada: httpx.Client, model: OfflineModel) -> None:
    """What a service keeps in an id reaches it whole; clients get ids that they can send with decisions."""
    answer = send(ada, "long id")
    for sent in (model.requests[-1]["body"]["messages"], _sent_next(ada, model, answer["task_id"])):
        asked = [each["id"] for message in sent for each in message.get("tool_calls", [])]
        assert asked == [LONG_ID, f"{LONG_ID}2"]
        answered = [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"]
        assert answered == [(LONG_ID, "a"), (f"{LONG_ID}2", "bb")]
    messages = items(ada, f"/tasks/{answer['task_id']}/messages")
    shown = [call["id"] for message in messages for call in message["tool_calls"]]
    assert len(set(shown)) == 2
    assert all(len(each) < 100 for each in shown)
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == shown
    trace = items(ada, f"/tasks/{answer['task_id']}/trace")
    assert {step["input"]["call_id"] for step in trace if step["kind"] == "tool"} == set(shown)


def _sent_next(ada: httpx.Client, model: OfflineModel, task: str) -> list[Json]:
    """What the model is sent with the next message of a task."""
    send(ada, "and?", task_id=task)
    sent: list[Json] = model.requests[-1]["body"]["messages"]
    return sent


def test_a_slow_tool_is_given_up_and_what_became_of_it_is_unknown(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """The result says that the tool may have taken effect all the same. covers: STATE-5"""
    answer = send(ada, call("Work-hesitate", file=str(file)))
    assert answer["status"] == "Completed"
    [result] = results(model)
    assert "0.05 seconds" in result
    assert "unknown" in result
    [step] = [s for s in items(ada, f"/tasks/{answer['task_id']}/trace") if s["kind"] == "tool"]
    assert (step["is_error"], step["outcome"]) == (True, "unknown")
    assert lines(file) == ["hesitated"]


def test_a_tools_own_timeout_is_reported_as_what_it_is(ada: httpx.Client, model: OfflineModel) -> None:
    """Only the service's own deadline is reported as such."""
    send(ada, call("Work-slip"))
    assert results(model) == ["Error: TimeoutError: the printer gave no answer"]


def test_a_tool_that_refuses_is_an_error_to_the_model_and_none_of_the_request(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """The model's result, the event and the message say so; the request completes."""
    found = streamed(ada, "", text(call("Work-refuse", file=str(file))))
    assert found[-1].name == "final-response"
    [result] = [event.data for event in found if event.name == "tool-result"]
    assert (result["is_error"], result["output"]) == (True, "Error: it is closed on Mondays")
    assert results(model) == ["Error: it is closed on Mondays"]
    task_id = found[-1].data["task_id"]
    [message] = [m for m in items(ada, f"/tasks/{task_id}/messages") if m["role"] == "tool"]
    assert message["is_error"] is True


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_huge_result_is_cut_where_it_says_so_and_the_request_continues(
    ada: httpx.Client, model: OfflineModel, size: int
) -> None:
    """What the model is sent is bounded; event, history and trace hold the same text. covers: STATE-5"""
    found = streamed(ada, "", text(call("Work-repeat", text="häh", times=size // 3)))
    assert found[-1].name == "final-response", found[-1].data
    [result] = results(model)
    whole = size // 3 * 3
    assert result.startswith("häh" * 30_000)
    assert ("[Cut here: 200,000 of" in result) == (whole > 200_000)
    [event] = [event.data for event in found if event.name == "tool-result"]
    assert event["output"] == result
    ids = found[-1].data
    replayed = list(events(ada.get(f"/requests/{ids['request_id']}/events").text))
    assert [(e.name, e.number, e.data) for e in replayed] == [(e.name, e.number, e.data) for e in found]
    [message] = [m for m in items(ada, f"/tasks/{ids['task_id']}/messages") if m["role"] == "tool"]
    assert message["items"] == [{"content_type": "text", "content": result}]
    assert send(ada, "hello", task_id=ids["task_id"])["status"] == "Completed"


def test_many_large_results_of_one_round_are_all_kept(ada: httpx.Client, model: OfflineModel) -> None:
    """Twelve results of 200,000 characters in one round are more than one record holds."""
    words = " and ".join(call("Work-repeat", text=f"{n:x}", times=200_000) for n in range(12))
    found = streamed(ada, "", text(words))
    assert found[-1].name == "final-response", found[-1].data
    assert results(model) == [f"{n:x}" * 200_000 for n in range(12)]
    replayed = list(events(ada.get(f"/requests/{found[-1].data['request_id']}/events").text))
    assert [e.number for e in replayed] == [e.number for e in found]


# --- where it ends -------------------------------------------------------------------------------


def test_a_model_that_asks_for_tools_for_ever_is_stopped(ada: httpx.Client, model: OfflineModel) -> None:
    """After `max_tool_rounds` the request fails with a code, and the task continues. covers: STATE-5"""
    refused = problem(ada.post("", json=text("for ever")), 502, "tool_rounds_exceeded")
    assert len(model.requests) == 4
    assert "max_tool_rounds" in refused["detail"]
    found = request(ada, refused["request_id"])
    assert (found["status"], found["error"]["code"]) == ("Failed", "tool_rounds_exceeded")
    assert send(ada, "hello", task_id=refused["task_id"])["status"] == "Completed"


# --- what is shown and kept ----------------------------------------------------------------------


def test_events_of_tools_have_the_promised_fields(ada: httpx.Client) -> None:
    """`tool-call` and `tool-result` name call, tool, arguments and outcome. covers: SESSION-6"""
    found = streamed(ada, "", text(call("Work-repeat", text="ab", times=2)))
    made, result = (event.data for event in found if event.name.startswith("tool-"))
    ids = {name: found[-1].data[name] for name in ("session_id", "task_id", "request_id")}
    assert set(made) == {*ids, "call_id", "tool", "arguments"}
    assert set(result) == {*ids, "call_id", "tool", "output", "is_error", "duration_ms"}
    assert ids.items() <= made.items()
    assert ids.items() <= result.items()
    assert (made["tool"], made["arguments"]) == ("Work-repeat", '{"text": "ab", "times": 2}')
    assert (result["call_id"], result["tool"]) == (made["call_id"], made["tool"])
    assert (result["output"], result["is_error"]) == ("abab", False)
    assert result["duration_ms"] >= 0


def test_extra_data_and_ids_reach_and_leave_a_tool(ada: httpx.Client, model: OfflineModel) -> None:
    """What tools add is in the answer; their context says whom they serve. covers: SESSION-6"""
    words = f"{call('Work-tell', key='a', value='1')} and {call('Work-tell', key='b', value='2')}"
    answer = send(ada, words)
    assert answer["content"]["extra_data"] == {"a": "1", "b": "2"}
    ids = f"{answer['session_id']} {answer['task_id']} {answer['request_id']} ada"
    assert results(model) == [ids, ids]
    assert send(ada, "hello", task_id=answer["task_id"])["content"]["extra_data"] is None


def test_the_trace_says_how_long_a_failed_model_call_took(ada: httpx.Client) -> None:
    """It has no step of its own: the step of its error begins with it, behind what was done before."""
    failed = ada.post("", json=text(f"{call('Work-repeat', text='a', times=1)} then fail")).json()
    assert failed["code"] == "model_error"
    record = request(ada, failed["request_id"])
    *_, tool, error = items(ada, f"/tasks/{failed['task_id']}/trace")
    assert (tool["kind"], error["kind"]) == ("tool", "error")
    assert error["duration_ms"] > 0
    assert tool["started_at"] <= error["started_at"] < record["ended_at"]


def test_usage_is_summed_and_every_call_is_in_the_trace(ada: httpx.Client) -> None:
    """Three model calls and two tool calls: five steps, and one sum. covers: TASK-3, SESSION-8"""
    found = streamed(ada, "", text("two rounds"))
    answer = found[-1].data
    assert answer["content"]["token_usage"] == {
        "prompt_tokens": 70,
        "completion_tokens": 7,
        "total_tokens": 77,
    }
    assert answer["content"]["output"] == "Done it is."
    assert streamed_text(found) == "Let me see.And more.Done it is."
    steps = items(ada, f"/tasks/{answer['task_id']}/trace")
    assert [(s["kind"], s["outcome"]) for s in steps] == [
        ("model", "tool_calls"),
        ("tool", "done"),
        ("model", "tool_calls"),
        ("tool", "done"),
        ("model", "stop"),
    ]
    assert {step["request_id"] for step in steps} == {answer["request_id"]}
    assert [s["usage"]["total_tokens"] for s in steps if s["kind"] == "model"] == [11, 22, 44]
    inputs = [s["input"] for s in steps if s["kind"] == "tool"]
    assert [i["call_id"] for i in inputs] == ["one", "two"]
    assert [s["output"]["output"] for s in steps if s["kind"] == "tool"] == ["aaa", "bb"]
    assert all(s["duration_ms"] >= 0 and s["started_at"] for s in steps)
    messages = items(ada, f"/tasks/{answer['task_id']}/messages")
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "one"


# --- effects of requests without an answer -------------------------------------------------------


def notes(model: OfflineModel) -> list[str]:
    """The notes among what the model was sent last."""
    sent = model.requests[-1]["body"]["messages"]
    return [m["content"] for m in sent[1:] if m["role"] == "system"]


def test_what_the_tools_of_a_failed_request_did_is_reported_once(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """Each call by name: done, failed, or unknown; later model calls get the same. covers: STATE-3"""
    words = " and ".join(
        [
            f"then fail: {call('Work-note', file=str(file), line='x')}",
            call("Work-refuse", file=str(file)),
            call("Work-hesitate", file=str(file)),
        ]
    )
    refused = problem(ada.post("", json=text(words)), 502, "model_error")
    assert sorted(lines(file)) == ["hesitated", "refused", "x"]
    for _ in range(2):
        send(ada, "hello", task_id=refused["task_id"])
        [note] = notes(model)
        by_tool = {line.split()[1]: line for line in note.splitlines() if line.startswith("- ")}
        assert set(by_tool) == {"Work-note", "Work-refuse", "Work-hesitate"}
        assert by_tool["Work-note"].endswith("it was done")
        assert by_tool["Work-refuse"].endswith("it failed")
        assert by_tool["Work-hesitate"].endswith("its outcome is unknown")
        assert str(file) in by_tool["Work-note"]
        sent = model.requests[-1]["body"]["messages"]
        assert not [m for m in sent if m["role"] == "tool" or "then fail" in str(m["content"])]


def test_what_the_tools_of_a_canceled_request_did_is_reported(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """A call that was under way is unknown, one that had ended was done, one not begun is not named."""
    words = (
        f"{call('Work-rest', file=str(file), seconds=60)} and {call('Work-note', file=str(file), line='x')}"
    )
    accepted = ada.post("", json=text(words), headers={"prefer": "respond-async"}).json()
    follow = f"/requests/{accepted['request_id']}/events"
    with ada.stream("GET", follow) as stream:
        for event in events(stream.iter_lines()):
            if event.name == "tool-result":
                break
    ada.post(f"/requests/{accepted['request_id']}/cancel").raise_for_status()
    send(ada, "hello", task_id=accepted["task_id"])
    [note] = notes(model)
    by_tool = {line.split()[1]: line for line in note.splitlines() if line.startswith("- ")}
    assert by_tool["Work-rest"].endswith("its outcome is unknown")
    assert by_tool["Work-note"].endswith("it was done")
    assert sorted(lines(file)) == ["rest begins", "rest is stopped", "x"]


def test_the_note_goes_with_the_path_it_belongs_to(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """Rolled back to before it, the note is gone; rolled forward again, it is back. covers: THREAD-7"""
    task = send(ada, "My name is Ada.")
    first = task["request_id"]
    words = f"then fail: {call('Work-note', file=str(file), line='x')}"
    problem(ada.post("", json=text(words, task_id=task["task_id"])), 502, "model_error")
    later = send(ada, "What is my name?", task_id=task["task_id"])
    assert later["content"]["output"] == "Your name is Ada."
    assert len(notes(model)) == 1
    back = {"checkpoint_id": first}
    ada.post(f"/tasks/{task['task_id']}/rollback", json=back).raise_for_status()
    aside = send(ada, "What is my name?", task_id=task["task_id"])
    assert notes(model) == []
    again = {"checkpoint_id": later["request_id"]}
    ada.post(f"/tasks/{task['task_id']}/rollback", json=again).raise_for_status()
    send(ada, "What is my name?", task_id=task["task_id"])
    assert len(notes(model)) == 1
    assert aside["status"] == "Completed"


def test_a_request_without_tools_that_fails_leaves_no_note(ada: httpx.Client, model: OfflineModel) -> None:
    """Only calls are reported, not failures."""
    model.script({"rules": [{"when": "oops", "reply": {"error": {"status": 400}}}]})
    try:
        refused = problem(ada.post("", json=text("oops")), 502, "model_error")
        send(ada, "hello", task_id=refused["task_id"])
    finally:
        model.script(SCRIPT)
    assert notes(model) == []


def test_a_request_that_failed_after_its_pause_shows_what_was_done_before(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """Free calls that ran before the decision are not forgotten when the request fails after it."""
    free, governed = (call(name, file=str(file), line="x") for name in ("Work-note", "Work-write"))
    words = f"then fail: {free} and {governed}"
    answer = send(ada, words)
    resumed = ada.post(f"/requests/{answer['request_id']}/resume", json={"action": "approve"})
    problem(resumed, 502, "model_error")
    send(ada, "hello", task_id=answer["task_id"])
    [note] = notes(model)
    by_tool = {line.split()[1]: line for line in note.splitlines() if line.startswith("- ")}
    assert by_tool["Work-note"].endswith("it was done")
    assert by_tool["Work-write"].endswith("it was done")


def test_a_blocked_tool_does_not_keep_its_request_from_being_canceled(
    ada: httpx.Client, file: Path, tmp_path: Path
) -> None:
    """Canceled when the call returns, though the thread runs to its own end. covers: STATE-5"""
    let_go = tmp_path / "until"
    words = call("Work-block", file=str(file), until=str(let_go))
    accepted: Json = ada.post("", json=text(words), headers={"prefer": "respond-async"}).json()
    until(lambda: lines(file))
    canceled = ada.post(f"/requests/{accepted['request_id']}/cancel").json()
    assert canceled["status"] == "Canceled"
    assert send(ada, "hello", task_id=accepted["task_id"])["status"] == "Completed"
    let_go.touch()
