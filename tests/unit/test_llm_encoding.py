"""What the clients send: each message encoded once, by itself."""

import sys
from typing import Any

import orjson
import pytest
from llm_setup import call, called, client, message, result, tool
from msgspec.structs import replace

from tealagents.domain.ids import shown_call_id
from tealagents.domain.models import Message, ResponseFormat, ToolCall
from tealagents.domain.ports import Model, ModelCall

IMAGE = "data:image/png;base64,iVBORw0KGgo="
URL = "http://127.0.0.1:9/v1"


def chat(**options: Any) -> Any:
    return client(URL, "openai-chat", **options)


def responses(**options: Any) -> Any:
    return client(URL, "openai-responses", **options)


def encoded(model: Model, said: Message) -> Any:
    return orjson.loads(model.encode(said))


def sent(model: Any, *messages: Message, **parts: Any) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(model._body(call(model, *messages, **parts)))
    return body


# --- chat completions ---------------------------------------------------------------------------------


def test_a_text_is_sent_as_plain_content() -> None:
    """A user's text is a string, several of them are lines of one."""
    assert encoded(chat(), message("user", "hi")) == {"role": "user", "content": "hi"}
    assert encoded(chat(), message("user", "one", "two"))["content"] == "one\ntwo"


def test_an_image_is_sent_beside_the_text() -> None:
    """A message with an image is sent in parts, the image as the data URI it came as."""
    assert encoded(chat(), message("user", "what is it?", images=[IMAGE]))["content"] == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": IMAGE}},
    ]


def test_calls_and_results_are_sent_as_the_service_knows_them() -> None:
    """An assistant's calls have null content where nothing was said; a result names its call."""
    asked = ToolCall("call_1", "Shell-delete", '{"path": "/x"}')
    function = {"name": "Shell-delete", "arguments": '{"path": "/x"}'}
    assert encoded(chat(), called(asked)) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    assert encoded(chat(), called(asked, text="I will."))["content"] == "I will."
    assert encoded(chat(), result("call_1", "done")) == {
        "role": "tool",
        "tool_call_id": "call_1",
        "content": "done",
    }


@pytest.mark.parametrize("native", ["call_1", "call_1" + "x" * 200], ids=len)
def test_calls_to_which_the_service_gave_one_id_are_sent_under_two(native: str) -> None:
    """Also if the service, which kept the conversation, needed its own id then. A long id that no other call
    has is sent as it came."""
    first = shown_call_id(native)
    asked = [
        ToolCall(name, "Shell-look", "{}", native_id=native if name != native else "")
        for name in (first, f"{first}-2")
    ]
    said = called(*asked)
    answers = [replace(result(call.id, "done"), native_call_id=call.native_id) for call in asked]
    ids = [native, f"{first}-2"]
    assert [each["id"] for each in encoded(chat(), said)["tool_calls"]] == ids
    assert [encoded(chat(), each)["tool_call_id"] for each in answers] == ids
    assert [each["call_id"] for each in encoded(responses(), said)] == ids
    assert [encoded(responses(), each)["call_id"] for each in answers] == ids


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_sent_back_as_words(text: str) -> None:
    """Many services refuse an assistant's message without content, and with it the conversation for ever."""
    said = message("assistant", text)
    for model in (chat(), responses()):
        assert encoded(model, said)["content"] == "(no answer)"
    asked = called(ToolCall("call_1", "Shell-delete", "{}"), text=text)
    assert encoded(chat(), asked)["content"] is None
    assert encoded(responses(), asked)["type"] == "function_call"


@pytest.mark.parametrize(
    ("written", "sent_back"),
    [
        ('{"path": "/x"}', {"path": "/x"}),
        ("", {}),
        ('{"path": "/x', {"invalid_json": '{"path": "/x'}),
        ("[1]", {"invalid_json": "[1]"}),
    ],
)
def test_arguments_are_always_sent_back_as_an_object(written: str, sent_back: object) -> None:
    """A call that the model wrote wrongly cannot make a service refuse the conversation for ever."""
    asked = called(ToolCall("call_1", "Shell-delete", written))
    for arguments in (
        encoded(chat(), asked)["tool_calls"][0]["function"]["arguments"],
        encoded(responses(), asked)["arguments"],
    ):
        assert orjson.loads(arguments) == sent_back


@pytest.mark.parametrize(
    ("made_up", "sent_back"),
    [
        ("Shell-delete", "Shell-delete"),
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("", "_"),
        ("L\u00f6schen " * 20, ("L_schen_" * 20)[:64]),
    ],
)
def test_a_tool_that_the_model_made_up_is_sent_back_under_a_name(made_up: str, sent_back: str) -> None:
    """No name that it calls can make a service refuse the conversation for ever."""
    asked = called(ToolCall("call_1", made_up, "{}"))
    assert encoded(chat(), asked)["tool_calls"][0]["function"]["name"] == sent_back
    assert encoded(responses(), asked)["name"] == sent_back


def test_half_a_character_does_not_stop_a_conversation() -> None:
    """A tool's output that is not valid Unicode is sent all the same."""
    assert encoded(chat(), result("call_1", "\ud83d!"))["content"] == "?!"


def test_an_integer_beyond_64_bits_does_not_stop_a_conversation() -> None:
    """A tool server may bound an argument by one; it is sent as it is, and what is no number as null."""
    bounded = {"n": {"maximum": 2**70, "default": float("inf")}}
    large = replace(tool(), parameters={"type": "object", "properties": bounded})
    for model in (chat(), responses()):
        assert f'"n":{{"maximum":{2**70},"default":null}}'.encode() in model.encode_tools([large])


def test_a_kept_message_takes_no_more_memory_than_its_bytes() -> None:
    """What `encode` returns is not a slice of something larger."""
    for model in (chat(), responses()):
        for kept in (
            model.encode(message("user", "hi")),
            model.encode_system("hi"),
            model.encode_tools([tool()]),
        ):
            assert sys.getsizeof(kept) < len(kept) + 64


def test_the_prompt_is_sent_in_its_order() -> None:
    """The system prompt comes first, then each message once."""
    history = [message("user", "1"), message("assistant", "2"), message("user", "3")]
    body = sent(chat(), *history)
    assert [part["content"] for part in body["messages"]] == ["Be brief.", "1", "2", "3"]
    assert [part["role"] for part in body["messages"]] == ["system", "user", "assistant", "user"]


def test_zero_is_a_temperature() -> None:
    """`temperature: 0` is sent; what is not set is not. covers: the model client's settings"""
    assert sent(chat(temperature=0))["temperature"] == 0
    assert sent(responses(temperature=0))["temperature"] == 0
    assert not {"temperature", "max_tokens", "reasoning_effort"} & sent(chat()).keys()
    assert not {"temperature", "max_output_tokens", "reasoning"} & sent(responses()).keys()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"model": "gpt-4o"}, "max_tokens"),
        ({"model": "llama3"}, "max_tokens"),
        ({"model": "o3-mini"}, "max_completion_tokens"),
        ({"model": "gpt-5-nano"}, "max_completion_tokens"),
        ({"model": "openai/o4-mini"}, "max_completion_tokens"),
        ({"model": "my-deployment", "reasoning_effort": "low"}, "max_completion_tokens"),
        ({"model": "o3", "max_tokens_field": "max_tokens"}, "max_tokens"),
    ],
)
def test_the_most_tokens_are_sent_where_the_model_looks(options: dict[str, str], field: str) -> None:
    """Models that reason take another field than all the others."""
    body = sent(chat(max_tokens=7, **options))
    assert {name: body[name] for name in body if name.startswith("max_")} == {field: 7}
    assert body.get("reasoning_effort") == options.get("reasoning_effort")


def test_tools_are_sent_when_there_are_some() -> None:
    """Each tool with its schema; no list for none."""
    model = chat()
    assert model.encode_tools([]) == b""
    body = sent(model, tools=model.encode_tools([tool()]))
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "Shell-delete",
                "description": "Delete one file.",
                "parameters": tool().parameters,
            },
        }
    ]
    assert "tools" not in sent(model)


def test_a_stream_is_asked_for_with_its_accounts() -> None:
    """Streamed where it may be followed, whole otherwise."""
    body = sent(chat(), stream=True)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "stream" not in sent(chat(), stream=False)


# --- responses ----------------------------------------------------------------------------------------


def test_the_system_prompt_is_sent_as_instructions() -> None:
    """The first system message becomes `instructions`, others stay where they are."""
    model = responses()
    prompt = [
        model.encode_system('say "hi"'),
        model.encode_system("note"),
        model.encode(message("user", "x")),
    ]
    body = orjson.loads(model._body(ModelCall(prompt=prompt)))
    assert body["instructions"] == 'say "hi"'
    assert [(part["role"], part["content"]) for part in body["input"]] == [("system", "note"), ("user", "x")]


def test_a_message_with_calls_is_several_items() -> None:
    """What was said and each call are items of their own, in one JSON value."""
    asked = (ToolCall("call_1", "A-b", "{}"), ToolCall("call_2", "A-c", "{}"))
    items = encoded(responses(), called(*asked, text="Wait."))
    assert [item["type"] for item in items] == ["message", "function_call", "function_call"]
    body = sent(responses(), called(*asked), result("call_1", "ok"))
    assert [item.get("call_id") for item in body["input"]] == ["call_1", "call_2", "call_1"]
    assert body["input"][-1] == {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


def test_what_is_continued_is_named_by_its_kind() -> None:
    """A response is continued by `previous_response_id`, a conversation by `conversation`."""
    assert sent(responses(), remote_id="resp_1")["previous_response_id"] == "resp_1"
    assert sent(responses(), remote_id="conv_1")["conversation"] == "conv_1"
    assert not {"previous_response_id", "conversation"} & sent(responses()).keys()


def test_the_service_keeps_the_conversation_only_if_asked_to() -> None:
    """`store` is always said, and decides whether there are remote threads."""
    assert sent(responses())["store"] is True
    assert sent(responses(store=False))["store"] is False
    assert responses().supports_remote_threads
    assert not responses(store=False).supports_remote_threads
    assert not chat().supports_remote_threads


def test_images_and_tools_have_their_own_shape_here() -> None:
    """Parts are `input_…`, tools are flat, and schemas are taken as they are."""
    model = responses()
    said = encoded(model, message("user", "look", images=[IMAGE]))
    assert [part["type"] for part in said["content"]] == ["input_text", "input_image"]
    assert said["content"][1]["image_url"] == IMAGE
    (offered,) = orjson.loads(model.encode_tools([tool()]))
    assert offered == {
        "type": "function",
        "name": "Shell-delete",
        "description": "Delete one file.",
        "parameters": tool().parameters,
        "strict": False,
    }


def test_effort_and_most_tokens_have_their_own_names_here() -> None:
    """`max_output_tokens` and `reasoning.effort`."""
    body = sent(responses(max_tokens=9, reasoning_effort="high"))
    assert body["max_output_tokens"] == 9
    assert body["reasoning"] == {"effort": "high"}


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
def test_structured_output_is_asked_for(name: str) -> None:
    """The shape of an answer goes with the call that wants it, in each client's own field."""
    model: Any = client("http://127.0.0.1:9/v1", name)
    shape = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    wanted = ResponseFormat(name="Sum", schema=shape, strict=False)
    body = orjson.loads(model._body(call(model, response_format=wanted)))
    shape_sent = {"name": "Sum", "schema": shape, "strict": False}
    if name == "openai-chat":
        assert body["response_format"] == {"type": "json_schema", "json_schema": shape_sent}
    else:
        assert body["text"] == {"format": {"type": "json_schema", **shape_sent}}
    assert not {"response_format", "text"} & orjson.loads(model._body(call(model))).keys()
