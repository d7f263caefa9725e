"""What comes with an answer to a call, and answers that are sent again, as agents of other frameworks do."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import WEATHER, create, kinds, raw, retrieved, said, serving, stream
from talk import call, lines

from tealagents.api.sending import MOST_ATTEMPTS
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until
from tealagents.threads import ContextProvider, Invocation

ASK = call("get_weather", place="Rome")
TIME: dict[str, Any] = {**WEATHER, "name": "get_time"}
NOTE = {"file": os.devnull, "line": "two"}
#: behind the client's first tool the model calls its second one; behind another tool, it fails once
SCRIPT: Any = {
    "rules": [
        {
            "when": {"tool_result": True, "text": "fail before"},
            "reply": {"error": {"status": 400, "message": "no such luck"}},
            "times": 1,
        },
        {
            "when": {"tool_result": True, "result_of": "get_weather", "text": "then the time"},
            "reply": {"tool_calls": [{"name": "get_time", "arguments": {"place": "Rome"}}]},
        },
        {
            "when": {"tool_result": True, "result_of": "Work-write", "text": "then note"},
            "reply": {"text": "Noted.", "tool_calls": [{"name": "Work-note", "arguments": NOTE}]},
        },
        {
            "when": {"tool_result": True, "text": "then fail"},
            "reply": {"error": {"status": 400, "message": "no such luck"}},
            "times": 1,
        },
        {
            "when": {"tool_result": True, "text": "always fail"},
            "reply": {"error": {"status": 400, "message": "no such luck"}},
        },
        {
            "when": {"tool_result": True, "text": "and wait"},
            "reply": {"text": "!", "headers_delay_ms": 600_000},
        },
    ]
}


@pytest.fixture
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving(SCRIPT) as pair:
        yield pair


def output(item: Any, text: str = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": item["call_id"], "output": text}


def sent(model: OfflineModel) -> tuple[list[str], list[str]]:
    """The system messages of the last model call behind the agent's own, and the client's tools in it."""
    body = model.requests[-1]["body"]
    told = [each["content"] for each in body["messages"] if each["role"] == "system"]
    names = [each["function"]["name"] for each in body["tools"]]
    return told[1:], [name for name in names if not name.startswith("Work-")]


def prompt(wire: httpx.Client, response: Any) -> Any:
    """What the last call of the model in the request of a response was sent, put together again."""
    base = str(wire.base_url).removesuffix("/openai/v1/")
    request_id = response["id"].split("_")[1]
    url = f"{base}/requests/{request_id}/prompt"
    found = httpx.get(url, headers={"Authorization": "Bearer ada"}).raise_for_status().json()
    assert found["gaps"] == []
    return found["items"]


# --- what comes with an answer -------------------------------------------------------------------


def test_instructions_and_tools_that_come_with_an_output_hold_from_then_on(
    wire: httpx.Client, model: OfflineModel
) -> None:
    """As when one agent hands over to another; each response keeps those that it was made with."""
    words = f"{ASK} then the time"
    first = create(wire, input=words, instructions="You are Front.", tools=[WEATHER])
    assert sent(model) == (["You are Front."], ["get_weather"])
    answer = {"input": [output(first["output"][0])], "previous_response_id": first["id"]}
    second = create(wire, **answer, instructions="You are Bee.", tools=[TIME])
    assert sent(model) == (["You are Bee."], ["get_time"])
    assert second["output"][-1]["name"] == "get_time"
    notes = [each for each in prompt(wire, second) if each["origin"] == "note"]
    assert [note["items"][0]["content"] for note in notes] == ["You are Bee."]
    assert (second["instructions"], second["tools"][0]["name"]) == ("You are Bee.", "get_time")
    assert retrieved(wire, first["id"]) == first
    third = create(wire, input=[output(second["output"][-1], "noon")])
    assert sent(model) == (["You are Bee."], ["get_time"])
    assert third["instructions"] == "You are Bee."
    assert [retrieved(wire, each["id"]) for each in (first, second)] == [first, second]


def test_a_resent_history_is_all_that_holds(wire: httpx.Client, model: OfflineModel) -> None:
    """Instructions and tools that it leaves out are gone, as for an agent without any."""
    history: list[Any] = [
        {"role": "developer", "content": "You are Front."},
        {"role": "user", "content": ASK},
    ]
    first = create(wire, input=history, tools=[WEATHER])
    create(wire, input=[*history[1:], *first["output"], output(first["output"][0])])
    assert sent(model) == ([], [])


def test_tools_that_are_taken_are_refused_with_an_output(wire: httpx.Client) -> None:
    """The pause is as it was."""
    first = create(wire, input=ASK, tools=[WEATHER])
    answer = [output(first["output"][0])]
    refused = wire.post("/responses", json={"input": answer, "tools": [{**WEATHER, "name": "Work-note"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools.0.name")
    assert "sunny" in said(create(wire, input=answer))


def test_a_chat_may_change_its_instructions_and_tools(ada: OpenAI, model: OfflineModel) -> None:
    """The system's message and the tools of each call hold for it."""

    def declared(tool: dict[str, Any]) -> Any:
        return [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}]

    history: Any = [{"role": "system", "content": "Level one."}, {"role": "user", "content": ASK}]
    made = ada.chat.completions.create(model="Tester", messages=history, tools=declared(WEATHER))
    message = made.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    history = [{"role": "system", "content": "Level two."}, history[1], message.to_dict(), result]
    ada.chat.completions.create(model="Tester", messages=history, tools=declared(TIME))
    assert sent(model) == (["Level two."], ["get_time"])


def test_the_message_may_come_again_before_the_outputs(wire: httpx.Client) -> None:
    """Some clients send it, and all outputs so far, but no calls; any other message is refused."""
    conversation = wire.post("/conversations", json={}).json()["id"]
    asked = {"role": "user", "content": f"{ASK} then the time"}
    tools = [WEATHER, TIME]
    first = create(wire, input=[asked], conversation=conversation, tools=tools)
    outputs = [output(first["output"][0])]
    other = [{**asked, "content": "What is new?"}, *outputs]
    for given in (other, [*outputs, asked]):
        refused = wire.post("/responses", json={"input": given, "conversation": conversation})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    second = create(wire, input=[asked, *outputs], conversation=conversation, tools=tools)
    outputs += [output(second["output"][0], "noon")]
    third = create(wire, input=[asked, *outputs], conversation=conversation, tools=tools)
    assert kinds(third) == ["message"]
    elsewhere = create(wire, input=ASK, tools=tools)
    mixed = [output(elsewhere["output"][0]), outputs[1]]
    assert wire.post("/responses", json={"input": mixed}).status_code == 400


# --- answers that are sent again -----------------------------------------------------------------


def test_a_chat_is_tried_again_behind_the_result_of_a_tool(ada: OpenAI, model: OfflineModel) -> None:
    """The same history gets a new attempt after a failure of the model, in which no call is made again."""
    tools: Any = [{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}]
    history: Any = [{"role": "user", "content": f"{ASK} then fail"}]
    made = ada.chat.completions.create(model="Tester", messages=history, tools=tools)
    message = made.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    history += [message.to_dict(), result]
    with pytest.raises(openai.InternalServerError):
        ada.chat.completions.create(model="Tester", messages=history, tools=tools)
    again = ada.chat.completions.create(model="Tester", messages=history, tools=tools)
    assert "sunny" in (again.choices[0].message.content or "")
    roles = [each["role"] for each in model.requests[-1]["body"]["messages"]]
    assert roles[-3:] == ["user", "assistant", "tool"]
    calls = len(model.requests)
    repeated = ada.chat.completions.create(model="Tester", messages=history, tools=tools)
    assert repeated.choices == again.choices
    assert len(model.requests) == calls


def test_a_response_is_tried_again_behind_an_output(wire: httpx.Client) -> None:
    """In the conversation, which continues from it; each is read and streamed as it was."""
    asked = create(wire, input=f"{ASK} then fail", tools=[WEATHER], metadata={"a": "b"})
    answer: Any = {"input": [output(asked["output"][0])], "previous_response_id": asked["id"]}
    assert wire.post("/responses", json=answer).status_code == 502
    events = stream(wire, **answer)
    again = events[-1]["response"]
    assert (kinds(again), again["status"]) == (["message"], "completed")
    assert (again["conversation"], again["metadata"]) == (asked["conversation"], {"a": "b"})
    assert retrieved(wire, again["id"]) == again
    shown = [each["role"] for each in prompt(wire, again) if each["origin"] == "request"]
    assert shown == ["user", "assistant", "tool"]
    following = create(wire, input="hello", previous_response_id=again["id"])
    assert following["conversation"] == asked["conversation"]
    failed = retrieved(wire, f"{asked['id'][:-1]}2")
    assert failed["status"] == "failed"


def test_what_the_first_response_did_not_say_is_not_said_of_one_that_is_tried_again(
    wire: httpx.Client,
) -> None:
    """Whether it runs in the background and its metadata are set with the message."""
    asked = create(wire, input=f"{ASK} then fail", tools=[WEATHER])
    answer: Any = {"input": [output(asked["output"][0])], "background": True, "metadata": {"a": "b"}}
    ended = [settled(wire, create(wire, **answer)["id"]) for _ in range(2)]
    assert [each["status"] for each in ended] == ["failed", "completed"]
    assert [(each["background"], each["metadata"]) for each in ended] == [(False, {})] * 2


def test_what_is_tried_again_in_a_remote_thread_shows_the_calls_that_were_sent_again() -> None:
    """The model service keeps what came before the request, and nothing of the attempt that failed."""
    with serving(SCRIPT, thread={"kind": "remote"}) as (service, model), raw(service) as wire:
        before = create(wire, input="hello")
        words = f"{ASK} then fail"
        asked = create(wire, input=words, tools=[WEATHER], previous_response_id=before["id"])
        answer: Any = {"input": [output(asked["output"][0])], "previous_response_id": asked["id"]}
        assert wire.post("/responses", json=answer).status_code == 502
        again = create(wire, **answer)
        sent = model.requests[-1]["body"]["input"]
        assert [each["type"] for each in sent] == ["message", "function_call", "function_call_output"]
        shown = [(each["origin"], each["role"]) for each in prompt(wire, again)]
        assert shown[1:] == [("request", role) for role in ("user", "assistant", "tool")]


def test_a_tool_of_the_service_runs_once_however_often_it_is_tried(
    wire: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """What it returned before the failure is what each attempt continues from."""
    words = f"{call('Work-write', file=str(file), line='one')} always fail"
    paused = create(wire, input=words)
    answer = {
        "input": [
            {
                "type": "mcp_approval_response",
                "approval_request_id": paused["output"][-1]["id"],
                "approve": True,
            }
        ]
    }
    before = len(model.requests)
    for _ in range(3):
        assert wire.post("/responses", json=answer).status_code == 502
    tried = [each["body"]["messages"] for each in model.requests[before:]]
    assert [messages[-1]["content"] for messages in tried] == ["wrote one"] * 3
    assert lines(file) == ["one"]


@pytest.mark.parametrize("before", [[], ["hello"]])
@pytest.mark.parametrize("again", ["the same answer", "a message"])
def test_a_branch_behind_a_failure_knows_what_its_tools_did(
    wire: httpx.Client, model: OfflineModel, file: Path, before: list[str], again: str
) -> None:
    """As the conversation itself would, had it not gone on meanwhile; also the branch's own branches."""
    conversation = wire.post("/conversations", json={}).json()["id"]
    for words in before:
        create(wire, input=words, conversation=conversation)
    words = f"{call('Work-write', file=str(file), line='one')} then fail"
    paused = create(wire, input=words, conversation=conversation)
    request = paused["output"][-1]["id"]
    answer: Any = [{"type": "mcp_approval_response", "approval_request_id": request, "approve": True}]
    assert wire.post("/responses", json={"input": answer}).status_code == 502
    create(wire, input="Never mind.", conversation=conversation)
    failed = {"previous_response_id": f"{paused['id'][:-1]}2"}
    made = create(wire, **({"input": answer} if again == "the same answer" else {"input": "hi", **failed}))
    assert made["conversation"]["id"] != conversation
    response = made
    for _ in range(3):
        (told,), _ = sent(model)
        assert "- Work-write " in told
        assert "): it was done" in told
        (note,) = [each for each in prompt(wire, response) if each["origin"] == "note"]
        assert note["items"][0]["content"] == told
        response = create(wire, input="hi", previous_response_id=made["id"])
    assert lines(file) == ["one"]


def test_a_branch_shows_what_an_attempt_did_and_not_what_it_repeats(wire: httpx.Client, file: Path) -> None:
    """As the response itself does: the call before the failure stays with the response that failed."""
    paused = create(wire, input=f"{call('Work-write', file=str(file), line='one')} fail before then note")
    request = paused["output"][-1]["id"]
    answer = [{"type": "mcp_approval_response", "approval_request_id": request, "approve": True}]
    assert wire.post("/responses", json={"input": answer}).status_code == 502
    again = create(wire, input=answer)
    assert kinds(again) == ["message", "mcp_call", "message"]
    create(wire, input="hello", previous_response_id=again["id"])
    branch = create(wire, input="hello", previous_response_id=again["id"])["conversation"]
    assert branch != again["conversation"]
    items = wire.get(f"/conversations/{branch['id']}/items", params={"order": "asc"}).json()["data"]
    assert [{**item, "id": ""} for item in items[1:-2]] == [{**item, "id": ""} for item in again["output"]]


def test_what_a_message_of_another_protocol_said_for_its_request_holds_when_it_is_tried_again(
    service: ServiceThread, wire: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """Its context is sent to the model with each attempt."""
    words = f"{call('Work-write', file=str(file), line='one')} then fail"
    message = {"items": [{"content_type": "text", "content": words}], "user_context": {"city": "Rome"}}
    with service.client("ada") as other:
        paused = other.post("", json=message).json()
    asked = retrieved(wire, f"resp_{paused['request_id']}_1")["output"][-1]
    approval = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    assert wire.post("/responses", json={"input": [approval]}).status_code == 502
    create(wire, input=[approval])
    assert all("city: Rome" in str(each["body"]["messages"]) for each in model.requests[-3:])


def test_a_request_that_always_fails_is_tried_again_so_many_times(
    wire: httpx.Client, model: OfflineModel
) -> None:
    """Then its last failure stays, and nothing is asked of the model any more."""
    asked = create(wire, input=f"{ASK} always fail", tools=[WEATHER])
    before, answer = len(model.requests), {"input": [output(asked["output"][0])]}
    for _ in range(MOST_ATTEMPTS + 3):
        assert wire.post("/responses", json=answer).status_code == 502
    assert len(model.requests) - before == 1 + MOST_ATTEMPTS


def test_answers_that_come_again_while_they_are_tried_again_join_that_attempt(wire: httpx.Client) -> None:
    """As they do while they are carried out for the first time."""
    asked = create(wire, input=f"{ASK} then fail and wait", tools=[WEATHER], background=True)
    asked = settled(wire, asked["id"])
    answer = {"input": [output(asked["output"][0])], "background": True}
    failed = settled(wire, create(wire, **answer)["id"])
    assert failed["status"] == "failed"
    trying = create(wire, **answer)
    assert (trying["status"], create(wire, **answer)["id"]) == ("in_progress", trying["id"])
    wire.post(f"/responses/{trying['id']}/cancel").raise_for_status()


def test_answers_that_come_again_in_the_background_are_answered_at_once(wire: httpx.Client) -> None:
    """As they are the first time, while the response is made and when it has failed."""
    asked = settled(wire, create(wire, input=f"{ASK} and wait", tools=[WEATHER], background=True)["id"])
    answer = {"input": [output(asked["output"][0])], "background": True}
    begun = create(wire, **answer)
    assert create(wire, **answer) == begun
    assert begun["status"] == "in_progress"
    wire.post(f"/responses/{begun['id']}/cancel").raise_for_status()
    asked = settled(wire, create(wire, input=f"{ASK} always fail", tools=[WEATHER], background=True)["id"])
    answer = {"input": [output(asked["output"][0])], "background": True}
    for _ in range(1 + MOST_ATTEMPTS):
        last = settled(wire, create(wire, **answer)["id"])
    assert last["status"] == "failed"
    assert create(wire, **answer) == last


def test_outputs_of_a_request_that_was_tried_again_may_all_come_again(wire: httpx.Client) -> None:
    """Without the calls: to the client it is one request."""
    conversation = wire.post("/conversations", json={}).json()["id"]
    asked = {"role": "user", "content": f"{ASK} fail before the time, then the time"}
    sent: Any = {"conversation": conversation, "tools": [WEATHER, TIME]}
    outputs = [output(create(wire, input=[asked], **sent)["output"][0])]
    assert wire.post("/responses", json={"input": [asked, *outputs], **sent}).status_code == 502
    outputs.append(output(create(wire, input=[asked, *outputs], **sent)["output"][-1], "noon"))
    assert kinds(create(wire, input=[asked, *outputs], **sent)) == ["message"]


@pytest.mark.parametrize("names", ["itself", "the next"])
def test_an_imported_request_that_stands_for_itself_is_looked_for_once(names: str) -> None:
    """Directly, or over the one that stands for it: its answers are refused, and the process serves on."""
    with serving(SCRIPT) as (service, _), raw(service) as wire, service.client("ada") as native:
        asked = create(wire, input=f"{ASK} fail before the time, then the time", tools=[WEATHER, TIME])
        conversation = asked["conversation"]["id"]
        answer = {"input": [output(asked["output"][0])]}
        assert wire.post("/responses", json=answer).status_code == 502
        more = {"items": [{"role": "user", "content": "more"}]}  # what stands for it is in a branch
        wire.post(f"/conversations/{conversation}/items", json=more).raise_for_status()
        again = create(wire, **answer)
        task, first = conversation.removeprefix("conv_"), asked["id"].split("_")[1]
        document = native.get(f"/tasks/{task}/export").json()
        (failed,) = (each for each in document["requests"] if each["request_id"] == first)
        failed["retries"] = first if names == "itself" else again["id"].split("_")[1]
        native.delete(f"/tasks/{task}").raise_for_status()
        native.post("/tasks/import", json=document).raise_for_status()
        other = output({"call_id": f"call_{uuid4()}_0"})
        both = {"input": [other, output(again["output"][-1])]}
        refused = wire.post("/responses", json=both)
        assert refused.status_code == 400
        assert "answers a call of another response" in refused.json()["error"]["message"]


class Clerk(ContextProvider):
    """Fails as often as a test says."""

    name = "clerk"
    failures = 0

    async def invoking(self, invocation: Invocation) -> None:
        if Clerk.failures:
            Clerk.failures -= 1
            raise RuntimeError("It is away.")


def test_what_tools_returned_outlives_an_attempt_that_does_not_reach_the_model(file: Path) -> None:
    """The next attempt continues from all of it: no call is made again."""
    arguments = {"file": str(file), "line": "noted"}
    note = {
        "when": {"tool_result": True, "result_of": "get_weather", "text": "then note"},
        "reply": {"tool_calls": [{"name": "Work-note", "arguments": arguments}]},
    }
    script = {"rules": [note, *SCRIPT["rules"]]}
    thread = {"context_providers": [{"name": f"{__name__}:Clerk", "required": True}]}
    with serving(script, thread=thread) as (service, model), raw(service) as wire:
        asked = create(wire, input=f"{ASK} then note, then fail", tools=[WEATHER])
        answer = {"input": [output(asked["output"][0])]}
        assert wire.post("/responses", json=answer).status_code == 502
        Clerk.failures = 1
        assert wire.post("/responses", json=answer).status_code == 502
        assert Clerk.failures == 0
        assert kinds(create(wire, **answer)) == ["message"]
        roles = [each["role"] for each in model.requests[-1]["body"]["messages"]]
    assert roles[-5:] == ["user", "assistant", "tool", "assistant", "tool"]
    assert lines(file) == ["noted"]


def settled(wire: httpx.Client, response_id: str) -> Any:
    """A response in the background, once it has ended."""
    until(lambda: retrieved(wire, response_id)["status"] not in ("queued", "in_progress"))
    return retrieved(wire, response_id)
