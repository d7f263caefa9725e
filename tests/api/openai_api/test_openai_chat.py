"""Chat Completions with OpenAI's SDK, as chat front ends use them."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_talk import WEATHER, sdk, serving
from talk import call

from tealagents.llm.offline import OfflineModel

TOOL: Any = {"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}


def asked(words: str) -> Any:
    return [{"role": "user", "content": words}]


def test_a_completion_from_a_resent_history(ada: OpenAI) -> None:
    """The history is known, unknown parameters are ignored, tokens are counted."""
    history: Any = [
        {"role": "system", "content": "Be brief."},
        *asked("My name is Ada."),
        {"role": "assistant", "content": "Hello Ada."},
        *asked("What is my name?"),
    ]
    made = ada.chat.completions.create(
        model="Tester", messages=history, temperature=0.3, max_tokens=5, extra_body={"later": True}
    )
    ChatCompletion.model_validate(made.to_dict())
    (choice,) = made.choices
    assert "Ada" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert made.usage
    assert made.usage.total_tokens > 0


@pytest.mark.parametrize("reply", [{"refusal": "No."}, {"text": ""}])
def test_an_answer_without_content_is_sent_again(reply: Any) -> None:
    """A refusal has no content, an empty answer has an empty one; the chat continues with either."""
    with serving({"rules": [{"when": "odd", "reply": reply}]}) as (service, _), sdk(service) as ada:
        messages: Any = asked("odd")
        first = ada.chat.completions.create(model="Tester", messages=messages).choices[0].message
        assert first.content == reply.get("text")
        with ada.chat.completions.stream(model="Tester", messages=messages) as events:
            streamed = events.until_done().get_final_completion().choices[0].message
        assert (streamed.content, streamed.refusal) == (first.content, first.refusal)
        messages += [first.to_dict(), *asked("hello")]
        assert ada.chat.completions.create(model="Tester", messages=messages).choices[0].message.content


def test_a_long_history_is_known_by_its_end(ada: OpenAI) -> None:
    """A chat does not end where its history is longer than a new conversation takes."""
    messages: Any = [{"role": role, "content": "hi"} for role in ("user", "assistant")] * 260
    messages += [*asked("My name is Ada."), {"role": "assistant", "content": "Hello Ada."}]
    made = ada.chat.completions.create(model="Tester", messages=[*messages, *asked("What is my name?")])
    assert "Ada" in (made.choices[0].message.content or "")


def test_a_completion_is_streamed(ada: OpenAI) -> None:
    """Chunks add up to the answer; usage comes last where it was asked for."""
    chunks = list(
        ada.chat.completions.create(
            model="Tester", messages=asked("hello"), stream=True, stream_options={"include_usage": True}
        )
    )
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict())
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    whole = ada.chat.completions.create(model="Tester", messages=asked("hello"))
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_named_conversation_keeps_its_own_history(ada: OpenAI, eve: OpenAI) -> None:
    """Only what is new is taken of the messages; another's conversation is not found."""
    first = ada.chat.completions.with_raw_response.create(model="Tester", messages=asked("My name is Ada."))
    headers = {"X-Conversation-Id": first.headers["x-conversation-id"]}
    history: Any = [*asked("forged"), {"role": "assistant", "content": "x"}, *asked("What is my name?")]
    second = ada.chat.completions.with_raw_response.create(
        model="Tester", messages=history, extra_headers=headers
    )
    assert second.headers["x-conversation-id"] == headers["X-Conversation-Id"]
    assert "Ada" in (second.parse().choices[0].message.content or "")
    items = ada.conversations.items.list(headers["X-Conversation-Id"], limit=10).data
    assert len(items) == 4
    with pytest.raises(openai.NotFoundError):
        eve.chat.completions.create(model="Tester", messages=asked("hi"), extra_headers=headers)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_the_client(ada: OpenAI, stream: bool) -> None:
    """They come as `tool_calls`, answered by messages of the role `tool`."""
    history = asked(call("get_weather", place="Rome"))
    options: Any = {"model": "Tester", "tools": [TOOL]}
    if stream:
        with ada.chat.completions.stream(messages=history, **options) as events:
            message = events.until_done().get_final_completion().choices[0].message
    else:
        made = ada.chat.completions.create(messages=history, **options)
        assert made.choices[0].finish_reason == "tool_calls"
        message = made.choices[0].message
    assert message.tool_calls
    (wanted,) = message.tool_calls
    assert wanted.type == "function"
    assert wanted.function.name == "get_weather"
    history += [
        {"role": "assistant", "tool_calls": [wanted.to_dict()]},
        {"role": "tool", "tool_call_id": wanted.id, "content": "sunny"},
    ]
    answer = ada.chat.completions.create(messages=history, **options)
    assert "sunny" in (answer.choices[0].message.content or "")
    history += [{"role": "assistant", "content": "sunny"}, *asked("thanks")]
    assert ada.chat.completions.create(messages=history, **options).choices[0].message.content


def test_a_call_has_an_id_that_is_as_short_as_openais(wire: httpx.Client, ada: OpenAI) -> None:
    """Of at most 40 characters: some clients rename a longer one, and their output would match no call.

    The same call may be answered by the longer name that it has in Responses, and there by the shorter one.
    """
    history = asked(call("get_weather", place="Rome"))
    options: Any = {"model": "Tester", "tools": [TOOL]}
    reply = ada.chat.completions.with_raw_response.create(messages=history, **options)
    calls: Any = reply.parse().choices[0].message.tool_calls
    wanted = calls[0]
    assert len(wanted.id) <= 40
    items = wire.get(f"/conversations/{reply.headers['x-conversation-id']}/items").raise_for_status()
    (longer,) = (each["call_id"] for each in items.json()["data"] if each["type"] == "function_call")
    for name in (wanted.id, longer, "call_" + wanted.id[5:].upper()):
        made: Any = {"role": "assistant", "tool_calls": [{**wanted.to_dict(), "id": name}]}
        result: Any = {"role": "tool", "tool_call_id": name, "content": "sunny"}
        answer = ada.chat.completions.create(messages=[*history, made, result], **options)
        assert "sunny" in (answer.choices[0].message.content or "")
    output: Any = {"type": "function_call_output", "call_id": wanted.id, "output": "sunny"}
    assert "sunny" in ada.responses.create(model="Tester", input=[output]).output_text


def test_each_result_may_stand_right_behind_its_call(ada: OpenAI) -> None:
    """In a message of its own each, in a history and in a conversation that a header names."""
    words = " and ".join(call("get_weather", place=place) for place in ("Rome", "Oslo"))
    options: Any = {"model": "Tester", "tools": [TOOL]}
    for named in (False, True):
        reply = ada.chat.completions.with_raw_response.create(messages=asked(words), **options)
        headers = {"X-Conversation-Id": reply.headers["x-conversation-id"]} if named else {}
        history = asked(words)
        for each in reply.parse().choices[0].message.tool_calls or ():
            history.append({"role": "assistant", "tool_calls": [each.to_dict()]})
            history.append({"role": "tool", "tool_call_id": each.id, "content": "sunny"})
        done = ada.chat.completions.create(messages=history, extra_headers=headers, **options)
        assert "sunny" in (done.choices[0].message.content or "")


@pytest.mark.parametrize("named", [False, True])
def test_a_client_that_makes_one_call_at_a_time_leaves_out_the_others(
    ada: OpenAI, model: OfflineModel, named: bool
) -> None:
    """The model learns that they were not made. The same history gets the same answer again."""
    words = " and ".join(call("get_weather", place=place) for place in ("Rome", "Oslo"))
    options: Any = {"model": "Tester", "tools": [TOOL], "parallel_tool_calls": False}
    history = asked(words)
    reply = ada.chat.completions.with_raw_response.create(messages=history, **options)
    if named:
        options["extra_headers"] = {"X-Conversation-Id": reply.headers["x-conversation-id"]}
    made: Any = reply.parse().choices[0].message.tool_calls
    history.append({"role": "assistant", "tool_calls": [made[1].to_dict()]})
    history.append({"role": "tool", "tool_call_id": made[1].id, "content": "rain"})
    answers = [ada.chat.completions.create(messages=history, **options) for _ in range(2)]
    assert answers[0] == answers[1]
    sent = [each["content"] for each in model.requests[-1]["body"]["messages"] if each["role"] == "tool"]
    assert sent == ["The client did not make this call. Repeat it if it is still needed.", "rain"]
    history[-1] = {**history[-1], "content": "sunny"}
    with pytest.raises(openai.ConflictError):
        ada.chat.completions.create(messages=history, **options)


def test_a_call_that_waits_for_approval_is_shown(ada: OpenAI, file: Path) -> None:
    """A front end that cannot approve shows that approval is needed; nothing has run."""
    words = call("Work-write", file=str(file), line="one")
    made = ada.chat.completions.with_raw_response.create(model="Tester", messages=asked(words))
    message = made.parse().choices[0].message
    assert "Approval is needed" in (message.content or "")
    assert message.tool_calls is None
    assert not file.exists()
    headers = {"X-Conversation-Id": made.headers["x-conversation-id"]}
    with pytest.raises(openai.ConflictError):
        ada.chat.completions.create(model="Tester", messages=asked("go on"), extra_headers=headers)


def test_a_client_answers_its_call_before_approval_is_asked_for(file: Path) -> None:
    """It can answer nothing else, and an approver has no output of its tool."""
    calls = [
        {"name": "get_weather", "arguments": {"place": "Rome"}},
        {"name": "Work-write", "arguments": {"file": str(file), "line": "x"}},
    ]
    script = {"rules": [{"when": "both", "reply": {"tool_calls": calls}}]}
    options: Any = {"model": "Tester", "tools": [TOOL]}
    with serving(script) as (service, _), sdk(service) as ada, service.client() as client:
        made: Any = ada.chat.completions.create(messages=asked("both"), **options).choices[0].message
        assert (made.content, [each.function.name for each in made.tool_calls]) == (None, ["get_weather"])
        result = {"role": "tool", "tool_call_id": made.tool_calls[0].id, "content": "sunny"}
        history = [*asked("both"), made.to_dict(), result]
        waits = ada.chat.completions.create(messages=history, **options).choices[0]
        assert (waits.finish_reason, waits.message.content) == (
            "stop",
            "Approval is needed before Work-write can run.",
        )
        (inbox,) = client.get("/approvals", params={"status": "pending"}).json()["items"]
        where, which = f"/requests/{inbox['request_id']}/resume", {"approval_id": inbox["approval_id"]}
        client.post(where, params=which, json={"action": "approve"}).raise_for_status()
        assert file.read_text() == "x\n"


def test_calls_that_are_streamed_come_one_in_a_chunk(ada: OpenAI) -> None:
    """Some clients read only the first of a chunk."""
    words = " and ".join(call("get_weather", place=place) for place in ("Rome", "Oslo"))
    options: Any = {"model": "Tester", "tools": [TOOL], "stream": True}
    chunks: Any = list(ada.chat.completions.create(messages=asked(words), **options))
    found = [chunk.choices[0].delta.tool_calls for chunk in chunks]
    assert [[each.index for each in calls] for calls in found if calls] == [[0], [1]]
    # some show a text for any content that is not null
    assert {chunk.choices[0].delta.content for chunk in chunks} == {None}


def test_what_would_change_the_meaning_is_refused(ada: OpenAI) -> None:
    """By its name, rather than answered as if it had not been asked."""
    refused: list[tuple[str, Any]] = [
        ("n", 2),
        ("logprobs", True),
        ("tool_choice", "required"),
        ("modalities", ["audio"]),
        ("messages", []),
        ("messages", "hello"),
    ]
    for name, value in refused:
        with pytest.raises(openai.BadRequestError) as error:
            ada.chat.completions.create(**{"model": "Tester", "messages": asked("hi"), name: value})
        assert error.value.param == name
    calls: Any = {"role": "assistant", "tool_calls": 3}
    with pytest.raises(openai.BadRequestError) as error:
        ada.chat.completions.create(model="Tester", messages=[calls, *asked("hi")])
    assert error.value.param == "messages.0.tool_calls"


def test_a_stream_that_fails_raises(wire: httpx.Client, ada: OpenAI, file: Path) -> None:
    """The error of a request that failed is the last thing in its stream."""
    words = call("Work-rest", file=str(file), seconds=30)
    stream = ada.chat.completions.create(model="Tester", messages=asked(words), stream=True)
    request = stream.response.headers["x-request-id"]
    next(iter(stream))
    wire.post(f"/responses/resp_{request}_1/cancel").raise_for_status()
    with pytest.raises(openai.APIError) as error:
        list(stream)
    assert error.value.code == "request_canceled"


def test_a_refusal_names_the_fields_of_this_api(ada: OpenAI) -> None:
    """Not those of Responses: of answers to some calls only, and of one to no call at all."""
    history = asked(f"{call('get_weather', place='Rome')} and {call('get_weather', place='Oslo')}")
    options: Any = {"model": "Tester", "tools": [TOOL]}
    made: Any = ada.chat.completions.create(messages=history, **options).choices[0].message.tool_calls
    history += [{"role": "assistant", "tool_calls": [each.to_dict() for each in made]}]
    answer = {"role": "tool", "tool_call_id": made[0].id, "content": "sunny"}
    for given, param in (
        ([answer], "messages"),
        ([{**answer, "tool_call_id": None}], "messages.2.tool_call_id"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ada.chat.completions.create(messages=history + given, **options)
        assert refused.value.param == param


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"name": "Work-note"}, "function.name"),
        ({"name": 5}, "function.name"),
        ({"name": "x", "description": 5}, "function.description"),
        ({"name": "x", "parameters": "none"}, "function.parameters"),
    ],
)
def test_a_refused_function_is_named_as_it_was_sent(ada: OpenAI, tool: Any, field: str) -> None:
    """Within `function`, which Responses does not have: there is the same field beside the type."""
    tools: Any = [TOOL, {"type": "function", "function": tool}]
    with pytest.raises(openai.BadRequestError) as refused:
        ada.chat.completions.create(model="Tester", messages=asked("hi"), tools=tools)
    assert refused.value.param == f"tools.1.{field}"
    flat: Any = [WEATHER, {"type": "function", **tool}]
    with pytest.raises(openai.BadRequestError) as refused:
        ada.responses.create(model="Tester", input="hi", tools=flat)
    assert refused.value.param == f"tools.1.{field.removeprefix('function.')}"


@pytest.mark.parametrize("name", ["Work-note", "a name", WEATHER["name"], 5])
def test_a_refused_function_is_counted_among_all_that_was_sent(ada: OpenAI, name: Any) -> None:
    """With the servers that a client may name, which are not its own tools."""
    server: Any = {"type": "mcp", "server_label": "Work"}
    tools: Any = [server, TOOL, server, {"type": "function", "function": {"name": name}}]
    with pytest.raises(openai.BadRequestError) as refused:
        ada.chat.completions.create(model="Tester", messages=asked("hi"), tools=tools)
    assert refused.value.param == "tools.3.function.name"
    flat: Any = [server, WEATHER, server, {"type": "function", "name": name}]
    with pytest.raises(openai.BadRequestError) as refused:
        ada.responses.create(model="Tester", input="hi", tools=flat)
    assert refused.value.param == "tools.3.name"


def test_too_many_parts_are_refused_by_the_name_of_their_field() -> None:
    """It is another in each of the two APIs."""
    with serving(limits={"max_items": 3}) as (service, _), sdk(service) as ada:
        parts: Any = [{"type": "text", "text": "x"}] * 4
        with pytest.raises(openai.BadRequestError) as refused:
            ada.chat.completions.create(model="Tester", messages=[{"role": "user", "content": parts}])
        assert refused.value.param == "messages"
        with pytest.raises(openai.BadRequestError) as refused:
            ada.responses.create(model="Tester", input=[{"role": "user", "content": parts}])
        assert refused.value.param == "input"
        said: Any = {"role": "assistant", "content": "yes"}
        history: Any = [{"role": "user", "content": parts}, said, {"role": "user", "content": "hello"}]
        with pytest.raises(openai.BadRequestError, match="has a message of 4 items") as refused:
            ada.chat.completions.create(model="Tester", messages=history)
        assert refused.value.param == "messages"
        with pytest.raises(openai.BadRequestError, match="has a message of 4 items") as refused:
            ada.responses.create(model="Tester", input=history)
        assert refused.value.param == "input"
