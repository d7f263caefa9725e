"""The chat completions API: reads requests, and writes answers as JSON or as a stream of chunks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson

from tealagents.llm.offline.answer import FunctionCall, ModelAnswer, TokenCounts, in_pieces
from tealagents.llm.offline.delivery import Delivery, Frame, answered_in_stream, answered_whole
from tealagents.llm.offline.errors import ServiceError, invalid
from tealagents.llm.offline.ids import IdSource
from tealagents.llm.offline.prompt import Message, ModelPrompt, OfferedTool
from tealagents.llm.offline.reading import one_of, optional, required, text_or_parts
from tealagents.llm.offline.shapes import ANY_OBJECT

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_SPEAKERS = ("user", "assistant", "system", "developer")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_DONE = Frame(b"data: [DONE]\n\n")

#: Azure's first chunk, which has no choices and describes the prompt.
_AZURE_PROMPT_CHUNK = Frame(
    b'data: {"choices":[],"created":0,"id":"","model":"","object":"",'
    b'"prompt_filter_results":[{"prompt_index":0,"content_filter_results":{}}]}\n\n'
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    prompt: ModelPrompt
    stream: bool
    include_usage: bool
    of_azure: bool


def read_request(body: dict[str, Any], deployment: str | None = None) -> ChatRequest:
    """Reads a request body. Raises `ServiceError` for what the real service refuses, and for several choices.

    `deployment` is the model's name in the path, with Azure's dated API.
    """
    if (requested_limit(body, "n") or 1) > 1:
        raise invalid("The offline model gives one choice.", "n")
    messages = required(body.get("messages"), list, "messages")
    check_messages(messages)
    tools = offered_tools(body.get("tools"), "function")
    prompt = ModelPrompt(
        messages,
        model=requested_model(body, deployment),
        tools=() if body.get("tool_choice") == "none" else tools,
        forced=forced_tool(body.get("tool_choice"), tools, "function"),
        max_tokens=requested_limit(body, "max_completion_tokens", "max_tokens"),
        shape=_shape(body),
    )
    options = optional(body.get("stream_options"), dict, "stream_options") or {}
    return ChatRequest(prompt, bool(body.get("stream")), bool(options.get("include_usage")), bool(deployment))


def _shape(body: dict[str, Any]) -> dict[str, Any] | None:
    wanted = optional(body.get("response_format"), dict, "response_format") or {}
    if wanted.get("type") == "json_object":
        return ANY_OBJECT
    described = optional(wanted.get("json_schema"), dict, "response_format.json_schema") or {}
    return optional(described.get("schema"), dict, "response_format.json_schema.schema")


def requested_model(body: dict[str, Any], deployment: str | None = None) -> str:
    model = body.get("model") or deployment
    if not isinstance(model, str):
        raise invalid("you must provide a model parameter", "model")
    return model


def requested_limit(body: dict[str, Any], *names: str) -> int | None:
    """The first of these limits that is set."""
    for name in names:
        limit = optional(body.get(name), int, name)
        if limit is not None and limit < 1:
            raise invalid(
                f"Invalid '{name}': integer below minimum value. "
                f"Expected a value >= 1, but got {limit} instead.",
                name,
                "integer_below_min_value",
            )
        if limit is not None:
            return limit
    return None


def forced_tool(
    choice: Any, tools: Sequence[OfferedTool], nested_in: str | None = None
) -> OfferedTool | None:
    """The tool that must be called; the first one if any tool may be."""
    if choice == "required" and tools:
        return tools[0]
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    named = required(choice.get(nested_in), dict, f"tool_choice.{nested_in}") if nested_in else choice
    for tool in tools:
        if tool.name == named.get("name"):
            return tool
    raise invalid("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")


def offered_tools(tools: Any, nested_in: str | None = None) -> tuple[OfferedTool, ...]:
    """The function tools. In chat completions their fields are `nested_in` an object."""
    given = enumerate(optional(tools, list, "tools") or ())
    named = (_tool(tool, f"tools[{position}]", nested_in) for position, tool in given)
    return tuple(tool for tool in named if tool is not None)


def _tool(given: Any, param: str, nested_in: str | None) -> OfferedTool | None:
    """None for a tool that is not a function: it is never called."""
    tool = required(given, dict, param)
    if tool.get("type") != "function":
        return None
    if nested_in:
        param = f"{param}.{nested_in}"
        tool = required(tool.get(nested_in), dict, param)
    parameters = tool.get("parameters")
    return OfferedTool(_checked_name(tool, param), parameters if isinstance(parameters, dict) else {})


def _checked_name(tool: dict[str, Any], param: str) -> str:
    name = required(tool.get("name"), str, f"{param}.name")
    if not _TOOL_NAME.match(name):
        raise invalid(
            f"Invalid '{param}.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            f"{param}.name",
            "invalid_value",
        )
    return name


def check_messages(messages: list[Any]) -> None:
    """Checks roles and contents, and that tool calls are followed by exactly their results."""
    if not messages:
        raise invalid(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            "messages",
            "empty_array",
        )
    waiting: list[str] = []
    for position, message in enumerate(messages):
        if waiting or not _is_plain(message):
            waiting = _check_message(message, position, waiting)
    _check_none_waits(waiting, len(messages))


def _is_plain(message: Any) -> bool:
    """Whether this is a text message without tool calls, as most are, which needs no further checks."""
    return (
        isinstance(message, dict)
        and message.get("role") in _SPEAKERS
        and isinstance(message.get("content"), str)
        and "tool_calls" not in message
    )


def _check_message(given: Any, position: int, waiting: list[str]) -> list[str]:
    """Checks a message. Returns the ids of the tool calls whose results are missing after it."""
    param = f"messages[{position}]"
    message = required(given, dict, param)
    role = one_of(message.get("role"), _ROLES, f"{param}.role")
    calls = optional(message.get("tool_calls"), list, f"{param}.tool_calls") if role == "assistant" else None
    if message.get("content") is not None or not (calls or message.get("refusal")):
        _check_content(message.get("content"), f"messages.[{position}].content")
    if role == "tool":
        return _answered(message, position, waiting)
    _check_none_waits(waiting, position)
    return [_call_id(call, f"{param}.tool_calls[{n}]") for n, call in enumerate(calls or ())]


def _check_content(content: Any, param: str) -> None:
    if content is None:
        raise invalid("Invalid value for 'content': expected a string, got null.", param)
    text_or_parts(content, param)


def _call_id(given: Any, param: str) -> str:
    call = required(given, dict, param)
    function = required(call.get("function"), dict, f"{param}.function")
    _checked_name(function, f"{param}.function")
    required(function.get("arguments"), str, f"{param}.function.arguments")
    return required(call.get("id"), str, f"{param}.id")


def _answered(message: Message, position: int, waiting: list[str]) -> list[str]:
    call_id = message.get("tool_call_id")
    if call_id not in waiting:
        raise invalid(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
            "with 'tool_calls'.",
            f"messages.[{position}].role",
        )
    return [other for other in waiting if other != call_id]


def _check_none_waits(waiting: list[str], position: int) -> None:
    if waiting:
        raise invalid(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(waiting)}",
            f"messages.[{position}].role",
        )


def deliver(request: ChatRequest, answer: ModelAnswer, ids: IdSource, created: int) -> Delivery:
    if not request.stream:
        return _deliver_whole(request, answer, ids, created)
    frames = list(_frames(request, answer, ids, created))
    fault = answer.fault
    message, code = (fault.message, fault.code) if fault else ("", "")
    error = ServiceError(500, message, type="server_error", code=code)
    return answered_in_stream(frames, answer, lambda _: b"data: " + error.encoded() + b"\n\n")


def _deliver_whole(request: ChatRequest, answer: ModelAnswer, ids: IdSource, created: int) -> Delivery:
    fault = answer.fault
    if fault is not None and fault.kind == "error":
        raise ServiceError(500, fault.message, type="server_error", code=fault.code)
    completion = {
        "id": ids.new("chatcmpl-"),
        "object": "chat.completion",
        "created": created,
        "model": request.prompt.model,
        "choices": [
            {
                "index": 0,
                "message": _message(answer, ids),
                "logprobs": None,
                "finish_reason": None if fault is not None and fault.kind == "end" else answer.finish,
            }
        ],
        "usage": usage_body(answer.usage_after(request.prompt.tokens)),
        "service_tier": "default",
        "system_fingerprint": "fp_offline",
    }
    if completion["usage"] is None:
        del completion["usage"]
    return answered_whole(orjson.dumps(completion), answer)


def _message(answer: ModelAnswer, ids: IdSource) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None
        if answer.refusal is not None or (not answer.pieces and answer.tool_calls)
        else answer.text,
        "refusal": answer.refusal,
        "annotations": [],
    }
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id or ids.new("call_"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return message


def usage_body(usage: TokenCounts | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class _Chunks:
    """Makes the chunks of one answer. What they have in common is encoded only once."""

    def __init__(self, completion_id: str, created: int, model: str, *, with_usage: bool) -> None:
        common = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "service_tier": "default",
            "system_fingerprint": "fp_offline",
        }
        self._head = b"data: " + orjson.dumps(common)[:-1] + b',"choices":'
        self._before = self._head + b'[{"index":0,"delta":'
        #: If usage is asked for, all chunks except the last have `"usage": null`.
        self._end = b',"usage":null}\n\n' if with_usage else b"}\n\n"
        self._after = b',"logprobs":null,"finish_reason":null}]' + self._end

    def delta(self, delta: bytes) -> bytes:
        return self._before + delta + self._after

    def finish(self, reason: str) -> bytes:
        return self._before + b'{},"logprobs":null,"finish_reason":"' + reason.encode() + b'"}]' + self._end

    def usage(self, usage: TokenCounts) -> bytes:
        return self._head + b'[],"usage":' + orjson.dumps(usage_body(usage)) + b"}\n\n"


def _frames(request: ChatRequest, answer: ModelAnswer, ids: IdSource, created: int) -> Iterator[Frame]:
    prompt = request.prompt
    chunks = _Chunks(ids.new("chatcmpl-"), created, prompt.model, with_usage=request.include_usage)
    if request.of_azure:
        yield _AZURE_PROMPT_CHUNK
    content = b"null" if answer.tool_calls and not answer.pieces else b'""'
    yield Frame(chunks.delta(b'{"role":"assistant","content":%b,"refusal":null}' % content))
    yield from _paced_pieces(chunks, answer, ids)
    yield Frame(chunks.finish(answer.finish))
    usage = answer.usage_after(prompt.tokens) if request.include_usage else None
    if usage is not None:
        yield Frame(chunks.usage(usage))
    yield _DONE


def _paced_pieces(chunks: _Chunks, answer: ModelAnswer, ids: IdSource) -> Iterator[Frame]:
    before, position = answer.pacing.before, count()
    for field, pieces in (("content", answer.pieces), ("refusal", in_pieces(answer.refusal or ""))):
        opening = b'{"%b":' % field.encode()
        for piece in pieces:
            data = chunks.delta(opening + orjson.dumps(piece) + b"}")
            yield Frame(data, before(next(position)), True)
    yield from _call_frames(chunks, answer.tool_calls, ids, before, position)


def _call_frames(
    chunks: _Chunks, calls: Sequence[FunctionCall], ids: IdSource, before: Any, position: Iterator[int]
) -> Iterator[Frame]:
    """The chunks of each call: first its name, then its arguments in pieces."""
    for index, call in enumerate(calls):
        function: dict[str, Any] = {"name": call.name, "arguments": ""}
        named = {"index": index, "id": call.id or ids.new("call_"), "type": "function", "function": function}
        yield Frame(chunks.delta(orjson.dumps({"tool_calls": [named]})), before(next(position)), True)
        for piece in call.argument_pieces():
            part = {"index": index, "function": {"arguments": piece}}
            yield Frame(chunks.delta(orjson.dumps({"tool_calls": [part]})), before(next(position)), True)
