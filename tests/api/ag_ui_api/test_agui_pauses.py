"""Pauses over AG-UI: interrupts, what resumes them, tools of the page, consents."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from agui_talk import WEATHER, Json, Page, interrupts, kinds, refusal, resume, serving, streamed_text, user
from talk import call, lines
from wire import text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.waits import until

APPROVE = {"action": "approve"}


def write(file: Path, line: str = "one") -> str:
    return call("Work-write", file=str(file), line=line)


def weather(place: str = "Rome") -> str:
    return call("get_weather", place=place)


def output(page: Page, content: Any, **fields: Any) -> None:
    """The page has run the call that it was shown last."""
    shown = [each for message in page.messages for each in message.get("toolCalls", ())]
    page.messages.append(
        {
            "id": "t" + shown[-1]["id"],
            "role": "tool",
            "toolCallId": shown[-1]["id"],
            "content": content,
            **fields,
        }
    )


def test_a_call_that_needs_approval_is_an_interrupt(page: Page, file: Path) -> None:
    """It is shown with its arguments, says what answers it and until when; approved, it runs once."""
    asked = page.say(write(file))
    (interrupt,) = interrupts(asked)
    assert interrupt["reason"] == "tool_call"
    assert interrupt["toolCallId"] == page.messages[-1]["toolCalls"][0]["id"]
    assert datetime.fromisoformat(interrupt["expiresAt"]) > datetime.now(UTC)
    assert interrupt["responseSchema"]["properties"]["action"]["enum"] == ["approve", "reject"]
    assert lines(file) == []
    found = page.answer(asked, APPROVE)
    assert kinds(found)[:4] == ["RUN_STARTED", "STEP_STARTED", "TOOL_CALL_RESULT", "STEP_FINISHED"]
    assert found[-1]["outcome"] == {"type": "success"}
    assert found[-1]["result"] == {"wrote": "one"}
    assert lines(file) == ["one"]


def test_a_resume_that_comes_again_decides_nothing_again(page: Page, file: Path) -> None:
    """The same answer gives the same events, another one an error; the first run replays as it was."""
    page.messages.append(user(write(file)))
    sent = list(page.messages)
    first = page.post(runId="r1")
    asked = page.run(runId="r1")
    answers = resume(asked, APPROVE)
    held = list(page.messages)
    again = [page.post(runId=name, resume=answers).text for name in ("r2", "r2")]
    assert again[0] == again[1]
    refusal(page.post(resume=resume(asked, {"action": "reject"})), 409, "already_decided")
    assert lines(file) == ["one"]
    page.messages = sent
    assert page.post(runId="r1").text == first.text
    page.messages = held
    assert page.run(resume=answers)[-1]["outcome"] == {"type": "success"}
    assert page.say("and now?")[-1]["outcome"] == {"type": "success"}


def test_usage_is_that_of_the_run(page: Page, ada: httpx.Client, file: Path) -> None:
    """Each run counts its own model calls; together they are the request's."""
    asked = page.say(write(file))
    ended = page.answer(asked, APPROVE)
    total = sum(found[-1]["usage"][0]["totalTokens"] for found in (asked, ended))
    request = ended[0]["metadata"]["tealagents"]["request_id"]
    assert ada.get(f"/requests/{request}").json()["token_usage"]["total_tokens"] == total


@pytest.mark.parametrize("payload", [{"action": "reject", "reason": "not today"}, None])
def test_what_is_rejected_or_abandoned_does_not_run(page: Page, file: Path, payload: Json | None) -> None:
    """The model sees the rejection, the call has a result that says so, and the thread continues."""
    found = page.answer(page.say(write(file)), payload)
    (result,) = [event for event in found if event["type"] == "TOOL_CALL_RESULT"]
    assert "rejected" in result["content"]
    assert ("not today" in result["content"]) is (payload is not None)
    assert lines(file) == []
    late = Page(page.client, page.thread)
    late.run()
    assert [m["content"] for m in late.messages if m["role"] == "tool"] == [result["content"]]


def test_arguments_can_be_edited(page: Page, file: Path) -> None:
    """What runs is what the person has written."""
    edited = {**APPROVE, "arguments": {"file": str(file), "line": "two"}}
    page.answer(page.say(write(file)), edited)
    assert lines(file) == ["two"]


def test_arguments_that_cannot_be_taken_are_named_as_the_page_has_sent_them(page: Page, file: Path) -> None:
    """By their place in `resume`, whatever place the call has in the pause; nothing is decided."""
    asked = page.say(f"{write(file)} and {write(file, 'two')}")
    first, second = resume(asked, APPROVE, APPROVE)
    for payload in ({**APPROVE, "arguments": {}}, {"action": "reject", "arguments": {}}):
        sent = [{**second, "payload": payload}, first]
        refused = refusal(page.post(resume=sent), 422, "invalid_request")
        assert refused["message"].startswith("resume.0.payload.arguments: "), refused
    assert lines(file) == []
    assert page.answer(asked, APPROVE, APPROVE)[-1]["outcome"] == {"type": "success"}
    assert lines(file) == ["one", "two"]


def test_a_paused_thread_asks_for_answers(page: Page, file: Path) -> None:
    """Another message, an answer to a part, answers to what was not asked: nothing runs, and it says why."""
    asked = page.say(write(file))
    answers = resume(asked, APPROVE)
    quiet = list(page.messages)
    page.messages.append(user("go on"))
    told_why = refusal(page.post(), 409, "approval_pending")
    assert "`resume`" in told_why["message"]
    stranger = {**answers[0], "interruptId": "int_6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f_0"}
    refusal(page.post(resume=[stranger]), 409, "approval_pending")
    refusal(page.post(resume=[*answers, *answers]), 422, "invalid_request")
    for payload in (
        None,
        1,
        {},
        {"action": "maybe"},
        {**APPROVE, "more": 1},
        {"action": "approve", "reason": 1},
    ):
        refusal(page.post(resume=[{**answers[0], "payload": payload}]), 422, "invalid_request")
    refusal(
        page.post(resume=[{**answers[0], "payload": {**APPROVE, "arguments": {}}}]), 422, "invalid_request"
    )
    page.messages = quiet
    again = page.run()
    assert kinds(again) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert interrupts(again) == interrupts(asked)
    assert lines(file) == []
    assert page.answer(again, APPROVE)[-1]["outcome"] == {"type": "success"}


def test_answers_come_first_and_then_what_is_said_besides(page: Page, file: Path) -> None:
    """A message beside the answers is answered after them, and the page is shown both."""
    asked = page.say(write(file))
    page.messages.append(user("and tell me more"))
    found = page.answer(asked, APPROVE)
    assert kinds(found)[1] == "MESSAGES_SNAPSHOT"
    assert lines(file) == ["one"]
    assert page.said("user") == [write(file), "and tell me more"]
    assert len([text for text in page.said() if text]) == 2


def test_a_run_of_answers_and_a_message_that_comes_again_is_the_same_run(page: Page, file: Path) -> None:
    """Also once it has ended; under another `runId` the page is shown all that was said."""
    asked = page.say(write(file))
    page.messages.append(user("and tell me more"))
    answers = resume(asked, APPROVE)
    first, again = (page.post(runId="r", resume=answers).text for _ in range(2))
    assert again == first
    assert kinds(page.run(resume=answers)) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert page.said("user") == [write(file), "and tell me more"]
    assert lines(file) == ["one"]


def test_a_message_does_not_hide_that_something_else_was_decided(page: Page, file: Path) -> None:
    """It is refused with the answers, and not stored; also where it came before, with those decided."""
    asked = page.say(write(file))
    held = list(page.messages)
    page.answer(asked, None)
    page.messages = [*held, user("and hello")]
    sent = list(page.messages)
    approved = resume(asked, APPROVE)
    refusal(page.post(resume=approved), 409, "already_decided")
    late = Page(page.client, page.thread)
    late.run()
    assert late.said("user") == [write(file)]
    for _ in range(2):
        page.messages = list(sent)
        assert page.answer(asked, {"action": "reject"})[-1]["outcome"] == {"type": "success"}
        assert page.said("user") == [write(file), "and hello"]
    page.messages = sent
    refusal(page.post(resume=approved), 409, "already_decided")
    assert lines(file) == []


@pytest.mark.parametrize("answered", ["interrupt", "tool of the page"])
def test_answers_that_lead_to_another_pause_end_with_its_interrupts(file: Path, answered: str) -> None:
    """Whatever was said besides, also when the run comes again. What was said is sent with the next ones."""
    two = {"tool_calls": [{"name": "Work-write", "arguments": {"file": str(file), "line": "two"}}]}
    rules = [{"when": {"text": "twice", "tool_result": True, "call": 2}, "reply": two}]
    with serving({"rules": rules}) as (service, _), service.client() as client:
        page = Page(client)
        given: Json = {"tools": [WEATHER]}
        if answered == "interrupt":
            given["resume"] = resume(page.say(f"twice {write(file)}"), APPROVE)
        else:
            page.say(f"{weather()} and {write(file, 'two')}", tools=[WEATHER])
            output(page, "28 degrees")
        page.messages.append(user("and hello"))
        sent = list(page.messages)
        first = page.run(runId="r", **given)
        page.messages = sent
        asked = page.run(runId="r", **given)
        assert interrupts(asked) == interrupts(first)
        assert "and hello" not in page.said("user")
        page.messages.append(user("and hello"))
        assert page.answer(asked, APPROVE)[-1]["outcome"] == {"type": "success"}
        assert lines(file)[-1] == "two"
        assert page.said("user")[1:] == ["and hello"]


def test_an_interrupt_is_not_another_users(page: Page, eve: httpx.Client, file: Path) -> None:
    """Neither on the thread it is of, nor on one of the stranger's own."""
    asked = page.say(write(file))
    answers = resume(asked, APPROVE)
    refusal(Page(eve, page.thread).post(resume=answers), 404, "not_found")
    own = Page(eve)
    own.say("hello")
    assert own.run(resume=answers)[-1]["outcome"] == {"type": "success"}
    assert lines(file) == []
    assert interrupts(page.run()) == interrupts(asked)


def test_a_tool_of_the_page_is_run_there(page: Page) -> None:
    """The run ends with the call, unanswered; the output comes with the next run's messages."""
    found = page.say(weather(), tools=[WEATHER])
    shown = page.messages[-1]["toolCalls"][0]
    assert found[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [shown["id"]]}
    assert shown["function"] == {"name": "get_weather", "arguments": '{"place": "Rome"}'}
    refusal(
        page.client.post("/ag-ui", json={"threadId": page.thread, "runId": "x", "messages": [user("?")]}),
        409,
        "approval_pending",
    )
    assert page.run()[-1]["outcome"]["pendingToolCallIds"] == [shown["id"]]
    output(page, "28 degrees")
    sent = list(page.messages)
    found = page.run()
    assert "TOOL_CALL_RESULT" not in kinds(found)
    assert "28 degrees" in streamed_text(found)
    shown_now = page.said()
    for again in ("28 degrees", "5 degrees"):  # the page has lost the answer, or thinks better of it
        page.messages = sent[:-1]
        output(page, again)
        assert kinds(page.run()) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert page.said() == shown_now
        assert page.said("tool") == ["28 degrees"]


def test_a_run_that_is_replayed_after_an_import_shows_each_message_under_its_own_id() -> None:
    """Its events are made again from the messages, between which the pause is gone."""
    asked = {"name": "get_weather", "arguments": {"place": "Rome"}}
    rules = [
        {"when": {"text": "go"}, "reply": {"text": "Let me see.", "tool_calls": [asked]}},
        {"when": {"tool_result": True}, "reply": {"text": "It is warm."}},
    ]
    with serving({"rules": rules}) as (service, _), service.client() as ada:
        page = Page(ada)
        page.say("go", tools=[WEATHER], runId="first")
        output(page, "28 degrees")
        page.run()
        document = ada.get(f"/tasks/{page.thread}/export").raise_for_status().json()
        ada.delete(f"/tasks/{page.thread}").raise_for_status()
        ada.post("/tasks/import", json=document).raise_for_status()
        late = Page(ada, page.thread)
        late.messages = page.messages[:1]
        found = late.run(runId="first")
        begun = [event["messageId"] for event in found if event["type"] == "TEXT_MESSAGE_START"]
        assert begun == [m["id"] for m in page.messages if m["role"] == "assistant"]
        assert late.said() == page.said() == ["Let me see.", "It is warm."]


@pytest.mark.parametrize("brings", [True, False])
def test_a_run_with_an_output_brings_what_goes_with_it(page: Page, model: OfflineModel, brings: bool) -> None:
    """Its tools, instructions and context, in the place of those before; what it leaves out stays."""
    page.messages = [{"id": "s", "role": "system", "content": "FIRST"}]
    page.say(weather(), tools=[WEATHER], context=[{"description": "city", "value": "Oslo"}])
    output(page, "28 degrees")
    if brings:
        page.messages[0] = {"id": "s", "role": "system", "content": "SECOND"}
        tools = [WEATHER, {**WEATHER, "name": "get_time"}]
        page.run(tools=tools, context=[{"description": "city", "value": "Lima"}])
    else:
        page.messages = page.messages[1:]
        page.run(tools=[WEATHER])
    sent = model.requests[-1]["body"]
    assert ("get_time" in str(sent["tools"])) is brings
    for before, after in (("FIRST", "SECOND"), ("Oslo", "Lima")):
        assert (before in str(sent["messages"]), after in str(sent["messages"])) == (not brings, brings)


@pytest.mark.parametrize("answered", ["interrupt", "tool of the page"])
def test_a_message_inherits_what_the_answers_beside_it_do(
    page: Page, model: OfflineModel, file: Path, answered: str
) -> None:
    """The tools, instructions and context of the run before, where theirs leaves them out."""
    page.messages = [{"id": "s", "role": "system", "content": "FIRST"}]
    said = write(file) if answered == "interrupt" else weather()
    asked = page.say(said, tools=[WEATHER], context=[{"description": "city", "value": "Oslo"}])
    given: Json = {}
    if answered == "interrupt":
        given["resume"] = resume(asked, APPROVE)
    else:
        output(page, "28 degrees")
    del page.messages[0]
    page.say("and now?", **given)
    sent = model.requests[-1]["body"]
    assert "get_weather" in str(sent["tools"])
    for each in ("FIRST", "Oslo", "and now?"):
        assert each in str(sent["messages"])


def test_what_another_protocol_has_set_holds_when_a_page_decides(
    ada: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """The context that the request came with."""
    asked = {"items": [{"content_type": "text", "content": write(file)}], "user_context": {"city": "Oslo"}}
    paused = ada.post("", json=asked).json()
    page = Page(ada, paused["task_id"])
    page.answer(page.run(), APPROVE, tools=[WEATHER])
    assert lines(file) == ["one"]
    sent = model.requests[-1]["body"]
    assert "Oslo" in str(sent["messages"])
    assert "get_weather" in str(sent["tools"])


def test_each_interrupt_has_its_own_reason(page: Page, file: Path) -> None:
    """The results of two rejected calls say why each of them was."""
    asked = page.say(f"{write(file)} and {write(file, 'two')}")
    found = page.answer(asked, *({"action": "reject", "reason": why} for why in ("too red", "too blue")))
    results = [event["content"] for event in found if event["type"] == "TOOL_CALL_RESULT"]
    assert [("too red" in each, "too blue" in each) for each in results] == [(True, False), (False, True)]


def test_a_client_from_before_versions_is_told_only_what_it_knows(page: Page) -> None:
    """Its outcomes take no unknown members; the calls that wait for it are those without a result."""
    old: Json = {"protocolVersion": None, "tools": [WEATHER]}
    sent = [user(weather())]
    page.messages = list(sent)
    assert page.run(runId="r", **old)[-1]["outcome"] == {"type": "success"}
    assert page.run(**old)[-1]["outcome"] == {"type": "success"}
    (shown,) = page.messages[-1]["toolCalls"]
    again = Page(page.client, page.thread)
    again.messages = sent
    assert again.run(runId="r", tools=[WEATHER])[-1]["outcome"]["pendingToolCallIds"] == [shown["id"]]
    output(page, "28 degrees")
    assert "28 degrees" in streamed_text(page.run(**old))


def test_calls_of_one_round_are_of_one_message(page: Page, file: Path) -> None:
    """Whether they run at once, are the page's own, or wait for approval behind those; live and reloaded."""
    note = call("Work-note", file=str(file), line="noted")
    asked = page.say(f"{weather()} and {write(file)} and {note}", tools=[WEATHER])
    (pending,) = asked[-1]["outcome"]["pendingToolCallIds"]
    assert [m["role"] for m in page.messages] == ["user", "assistant", "tool"]
    late = Page(page.client, page.thread)
    late.run()
    assert [m["role"] for m in late.messages] == ["user", "assistant", "tool"]
    assert [m["id"] for m in late.messages[1:]] == [m["id"] for m in page.messages[1:]]
    for each in (page, late):  # the second one sends again what the first has sent
        each.messages.append({"id": "t", "role": "tool", "toolCallId": pending, "content": "sunny"})
        asked = each.run()
        (interrupt,) = interrupts(asked)
        assert [m["role"] for m in each.messages] == ["user", "assistant", "tool", "tool"]
        shown = [made["id"] for made in each.messages[1]["toolCalls"]]
        assert len(shown) == len(set(shown)) == 3
        assert interrupt["toolCallId"] in shown
    assert lines(file) == ["noted"]
    page.answer(asked, APPROVE)
    assert lines(file) == ["noted", "one"]
    late = Page(page.client, page.thread)
    late.run()
    assert [m["id"] for m in late.messages if m["role"] == "assistant"] == [
        m["id"] for m in page.messages if m["role"] == "assistant"
    ]
    assert [m["role"] for m in late.messages] == ["user", "assistant", "tool", "tool", "tool", "assistant"]


def test_calls_of_two_rounds_are_of_two_messages(file: Path) -> None:
    """Also where nothing is said between them, and the second only waits; behind the pause comes a third."""
    told = {"file": str(file), "line": "one"}
    replies = [
        {"tool_calls": [{"name": name, "arguments": told}]} for name in ("Work-note", "Work-write") * 2
    ]
    rules = [{"when": {"call": n}, "reply": reply} for n, reply in enumerate(replies[:3], 1)]
    with serving({"rules": rules}) as (service, _), service.client() as client:
        page = Page(client)
        page.answer(page.say("begin"), APPROVE)
        late = Page(client, page.thread)
        late.run()
        for each in (page, late):
            assert [m["role"] for m in each.messages] == ["user", *["assistant", "tool"] * 3, "assistant"]
        assert [m["id"] for m in late.messages[1:]] == [m["id"] for m in page.messages[1:]]


def test_a_page_that_was_reloaded_keeps_the_output_of_its_tool(page: Page) -> None:
    """What the run is set back to holds the output that began it, for this page and for one that joins."""
    page.say(weather(), tools=[WEATHER])
    late = Page(page.client, page.thread)
    late.run()
    output(late, "28 degrees")
    sent = list(late.messages)
    found = late.run(runId="r")
    assert [m["role"] for m in late.messages] == ["user", "assistant", "tool", "assistant"]
    assert late.messages[2]["toolCallId"] == late.messages[1]["toolCalls"][0]["id"]
    assert late.said("tool") == ["28 degrees"]
    assert "28 degrees" in streamed_text(found)
    shown = list(late.messages)
    late.messages = sent
    late.run(runId="r")
    assert late.said() == [m.get("content", "") for m in shown if m["role"] == "assistant"]
    joined = Page(page.client, page.thread)
    joined.run()
    assert [m["id"] for m in joined.messages[:3]] == [m["id"] for m in shown[:3]]
    assert "MESSAGES_SNAPSHOT" not in kinds(late.say("thanks"))


def test_an_output_may_come_with_the_next_message(page: Page) -> None:
    """A page that shows something and needs no answer sends the output with the user's next message."""
    page.say(weather(), tools=[WEATHER])
    output(page, "shown")
    page.say("and tomorrow?", tools=[WEATHER])
    assert [text for text in page.said() if text][-1]
    assert page.said("user") == [weather(), "and tomorrow?"]
    assert page.say("thanks")[-1]["outcome"] == {"type": "success"}


@pytest.mark.parametrize("waits", ["output", "approval"])
def test_what_the_services_own_tools_returned_answers_nothing(page: Page, file: Path, waits: str) -> None:
    """It is no output of the page's: a message is refused while the other call of that round waits."""
    other = weather() if waits == "output" else write(file)
    page.say(f"{call('Work-note', file=str(file), line='noted')} and {other}", tools=[WEATHER])
    assert page.said("tool") == ["noted noted"]
    page.messages.append(user("go on"))
    refusal(page.post(tools=[WEATHER]), 409, "approval_pending")


def test_a_tool_of_the_page_that_failed(page: Page) -> None:
    """The model gets the error; parts that are not text are ignored."""
    page.say(weather(), tools=[WEATHER])
    output(page, [{"type": "text", "text": "no sensor"}], error="it broke")
    assert "it broke" in streamed_text(page.run())


@pytest.mark.parametrize(
    "tool",
    [{**WEATHER, "name": "no spaces"}, {**WEATHER, "parameters": [1]}, {**WEATHER, "name": "Work-write"}],
    ids=["name", "parameters", "taken"],
)
def test_a_tool_that_cannot_be_offered_is_refused(page: Page, tool: Json) -> None:
    page.messages = [user("hi")]
    refusal(page.post(tools=[tool]), 422, "invalid_request")


@pytest.mark.parametrize("gone", ["canceled", "expired"])
def test_the_output_of_a_frontend_tool_that_comes_too_late_is_refused(gone: str) -> None:
    """As an answer to an interrupt is; the page cannot take it back, so that its next message is answered."""
    seconds = 1 if gone == "expired" else 3600
    with serving(limits={"approval_expiry_seconds": seconds}) as (service, _), service.client() as client:
        page = Page(client)
        asked = page.say(weather(), tools=[WEATHER])
        request = asked[0]["metadata"]["tealagents"]["request_id"]
        if gone == "canceled":
            client.post(f"/requests/{request}/cancel").raise_for_status()
        else:
            until(lambda: client.get(f"/requests/{request}").json()["status"] != "Paused")
        output(page, "rain")
        code = "request_canceled" if gone == "canceled" else "approval_expired"
        for _ in range(2):
            refused = refusal(page.post(tools=[WEATHER]), 409, code)
            assert "Send a message to continue the thread." in refused["message"]
        assert page.say("hello", tools=[WEATHER])[-1]["outcome"] == {"type": "success"}
        assert page.said("tool") == []


@pytest.mark.parametrize("how", ["failed", "canceled"])
def test_an_output_that_comes_again_gets_the_end_of_a_run_that_was_not_answered(how: str) -> None:
    """The page has lost the stream: a success without an answer would hide that. A new message continues."""
    broken = {"text": "It is rain", "fault": {"kind": "error", "after_pieces": 1}}
    hangs = {"text": "never", "headers_delay_ms": 600_000}
    rule = {"when": {"tool_result": True}, "reply": broken if how == "failed" else hangs, "times": 1}
    with serving({"rules": [rule]}) as (service, _), service.client() as client:
        page = Page(client)
        request = page.say(weather(), tools=[WEATHER])[0]["metadata"]["tealagents"]["request_id"]
        output(page, "rain")
        sent = list(page.messages)

        def cancel() -> None:
            if how == "canceled":
                client.post(f"/requests/{request}/cancel").raise_for_status()

        first = page.run(begun=cancel, tools=[WEATHER], runId="run")
        outcome = {"code": "model_error"} if how == "failed" else {"outcome": {"type": "cancelled"}}
        assert first[-1].items() >= outcome.items()
        page.messages = list(sent)
        assert page.run(tools=[WEATHER], runId="run") == first
        page.messages = sent
        assert page.say("hello", tools=[WEATHER])[-1]["outcome"] == {"type": "success"}
        assert page.said("tool") == ["rain"]


def test_a_late_output_keeps_no_page_from_the_thread_that_has_continued(page: Page, file: Path) -> None:
    """Another client has sent a message: the page sees what waits, as without the output, and answers it."""
    page.say(weather(), tools=[WEATHER])
    output(page, "rain")
    sent = list(page.messages)
    said = text(write(file), task_id=page.thread, supersede=True)
    page.client.post("", json=said).raise_for_status()
    page.messages.append(user("hello"))
    refusal(page.post(tools=[WEATHER]), 409, "approval_pending")
    page.messages = list(sent)
    asked = page.run(tools=[WEATHER])
    assert page.said("tool") == []
    page.messages = sent
    assert page.answer(asked, APPROVE)[-1]["outcome"] == {"type": "success"}
    assert lines(file) == ["one"]


def test_a_page_with_a_late_output_follows_the_run_that_is_under_way() -> None:
    """Another client's."""
    slow = {"when": {"text": "slowly"}, "reply": {"text": "a b c", "headers_delay_ms": 600_000}}
    with serving({"rules": [slow]}) as (service, model), service.client() as client:
        page = Page(client)
        page.say(weather(), tools=[WEATHER])
        output(page, "rain")
        said = text("slowly", task_id=page.thread, supersede=True)
        client.post("", json=said, headers={"prefer": "respond-async"}).raise_for_status()
        assert "a b c" in streamed_text(page.run(begun=model.release, tools=[WEATHER]))
        assert page.said("tool") == []


def test_a_consent_is_an_interrupt_with_a_link(page: Page, file: Path, tmp_path: Path) -> None:
    """Where the user's own consent is needed, the interrupt says where; resumed again, the call runs."""
    consent = tmp_path / "consent"
    asked = page.say(call("Work-enter", file=str(file), consent=str(consent)))
    paused = page.answer(asked, APPROVE)
    (interrupt,) = interrupts(paused)
    assert interrupt["reason"] == "tealagents:authorization"
    assert "https://secrets.example/consent" in interrupt["message"]
    (link,) = interrupt["metadata"]["tealagents"]["authorizations"]
    assert link["url"] == "https://secrets.example/consent"
    assert interrupt["id"] != interrupts(asked)[0]["id"]
    consent.touch()
    assert page.answer(paused, APPROVE)[-1]["outcome"] == {"type": "success"}
    assert lines(file) == ["entered"]


def test_an_interrupt_that_expired_can_only_be_abandoned(file: Path) -> None:
    """A late answer is refused; if it is canceled, the thread continues."""
    with serving(limits={"approval_expiry_seconds": 1}) as (service, _), service.client() as client:
        page = Page(client)
        asked = page.say(write(file))
        expires = datetime.fromisoformat(interrupts(asked)[0]["expiresAt"])
        while datetime.now(UTC) < expires:
            assert interrupts(asked)
        error = refusal(page.post(resume=resume(asked, APPROVE)), 409, "approval_expired")
        assert "under a new idempotency key or id" in error["message"]
        assert "Cancel the interrupt" in error["message"]
        found = page.answer(asked, None)
        assert found[-1]["outcome"] == {"type": "success"}
        assert page.say("hello", resume=resume(asked, None))[-1]["outcome"] == {"type": "success"}
        assert lines(file) == []


@pytest.mark.parametrize("line", ["one", "two"])
def test_an_interrupt_that_was_approved_elsewhere_can_be_canceled(
    page: Page, ada: httpx.Client, file: Path, line: str
) -> None:
    """With whatever arguments: the page gets what came of it, or with its next message; an error says so."""
    asked = page.say(write(file))
    request = asked[0]["metadata"]["tealagents"]["request_id"]
    (shown,) = ada.get(f"/requests/{request}").json()["content"]["tool_calls"]
    edited = {"id": shown["id"], **APPROVE, "arguments": {"file": str(file), "line": line}}
    ada.post(f"/requests/{request}/resume", json={"decisions": [edited]}).raise_for_status()
    refused = refusal(page.post(resume=resume(asked, {"action": "reject"})), 409, "already_decided")
    assert "Cancel" in refused["message"]
    held = list(page.messages)
    assert kinds(page.answer(asked, None)) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert page.said()[-1] == ada.get(f"/requests/{request}").json()["content"]["output"]
    page.messages = [*held, user("hello")]
    assert page.answer(asked, None)[-1]["outcome"] == {"type": "success"}
    assert lines(file) == [line]


def test_a_page_that_cancels_what_was_rejected_elsewhere_gets_what_followed_and_then_the_rest(
    page: Page, ada: httpx.Client, file: Path
) -> None:
    """The answers are the same, so the run is; what was said since comes with the next one."""
    asked = page.say(write(file))
    ids = asked[0]["metadata"]["tealagents"]
    ada.post(f"/requests/{ids['request_id']}/resume", json={"action": "reject"}).raise_for_status()
    later = {"task_id": ids["task_id"], "items": [{"content_type": "text", "content": "hello"}]}
    answer = ada.post("", json=later).json()["content"]["output"]
    shown = kinds(page.answer(asked, None))
    assert "MESSAGES_SNAPSHOT" not in shown
    assert "TOOL_CALL_RESULT" in shown
    assert page.said()[-1] == ada.get(f"/requests/{ids['request_id']}").json()["content"]["output"]
    assert "MESSAGES_SNAPSHOT" in kinds(page.run())
    assert page.said()[-1] == answer


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside_a_result"])
def test_an_interrupt_of_a_canceled_request_can_be_canceled(
    page: Page, ada: httpx.Client, file: Path, beside: bool
) -> None:
    """Another answer says so."""
    noted = call("Work-note", file=f"{file}s", line="noted")
    asked = page.say(f"{noted} and {write(file)}" if beside else write(file))
    request = asked[0]["metadata"]["tealagents"]["request_id"]
    ada.post(f"/requests/{request}/cancel").raise_for_status()
    refused = refusal(page.post(resume=resume(asked, APPROVE)), 409, "request_canceled")
    assert "Cancel" in refused["message"]
    assert page.answer(asked, None)[-1]["outcome"] == {"type": "success"}
    assert lines(file) == []
