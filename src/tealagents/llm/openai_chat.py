"""Chat completions: `POST /chat/completions`, as OpenAI, Azure OpenAI and compatible services speak it."""

import re
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import ClassVar, Literal

import orjson

from tealagents.domain.events import ModelDone, ModelEvent
from tealagents.domain.models import (
    Json,
    Message,
    ResponseFormat,
    ToolCall,
    ToolChoice,
)
from tealagents.domain.ports import ModelCall, ToolSpec
from tealagents.llm.adjustments import NO_ADJUSTMENTS, Adjustments, joined
from tealagents.llm.chat_reading import ChatReading
from tealagents.llm.encoding import (
    answer_text,
    arguments,
    call_id,
    compact,
    format_fields,
    other_id,
    to_json,
    user_text,
    valid_name,
)
from tealagents.llm.failures import Complaint
from tealagents.llm.native import returned, source_of
from tealagents.llm.options import OpenAIOptions
from tealagents.llm.service import ModelRequest, ModelService

#: names of reasoning models, which refuse `max_tokens` and require `max_completion_tokens`
_REASONING_FAMILY = re.compile(r"(?:.*/)?(?:o\d|gpt-5)", re.IGNORECASE)

#: the bytes of system and user messages before their content, by which `joined` recognizes them
_SYSTEM, _USER = (b'{"role":"%s","content":' % role for role in (b"system", b"user"))


class OpenAIChatOptions(OpenAIOptions):
    #: the field in which `max_tokens` is sent; by default, the one that the model's family requires
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None


class OpenAIChat:
    """A model with the chat completions API. Implements `tealagents.domain.ports.Model`."""

    Options: ClassVar = OpenAIChatOptions

    supports_remote_threads = False

    def __init__(self, options: OpenAIChatOptions) -> None:
        self.name = options.model
        self.provider: str = options.provider
        self._source = source_of("openai-chat", options)
        self._secrets = options.secrets()
        self._service = ModelService(options, deployment=options.called_model)
        self._head = b'{"model":' + to_json(options.called_model) + b',"messages":['
        self._tail = _settings(options)

    def encode_system(self, text: str) -> bytes:
        return _SYSTEM + to_json(text) + b"}"

    def encode(self, message: Message) -> bytes:
        return compact(to_json(_message(message, self._source)))

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return compact(to_json([_tool(tool) for tool in tools])) if tools else b""

    def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        return self._service.events(
            ModelRequest("/chat/completions", partial(self._body, call), call.headers, call.stream),
            reading=self._reading,
            meaning=self._meaning,
        )

    async def __aenter__(self) -> "OpenAIChat":
        await self._service.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._service.__aexit__(*exc)

    def _body(self, call: ModelCall, adjusted: Adjustments = NO_ADJUSTMENTS) -> bytes:
        prompt = (
            joined(call.prompt, system=_SYSTEM, user=_USER, text="text") if adjusted.order else call.prompt
        )
        if adjusted.other_ids:
            prompt = list(map(_with_other_ids, prompt))
        tools = b',"tools":' + call.tools if call.tools else b""
        follow = b',"stream":true' if call.stream else b""
        if call.stream and not adjusted.stream_options:
            follow += b',"stream_options":{"include_usage":true}'
        wanted = _response_format(call.response_format) + _tool_choice(call.tool_choice)
        return b"".join((self._head, b",".join(prompt), b"]", tools, wanted, self._tail, follow, b"}"))

    def _reading(self) -> "ChatReading":
        return ChatReading(self._secrets, self._source)

    def _meaning(self, said: Complaint) -> ModelDone | None:
        """The end of the answer for a message that Azure's content filter refuses with status 400."""
        if said.code == "content_filter":
            return ModelDone(finish_reason="content_filter", model=self.name)
        return None


# --- the request -----------------------------------------------------------------------------------


def _settings(options: OpenAIChatOptions) -> bytes:
    """The end of every body: the settings that are configured."""
    settings = {
        "temperature": options.temperature,
        _max_tokens_field(options): options.max_tokens,
        "reasoning_effort": options.reasoning_effort,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return b"," + to_json(given)[1:-1] if given else b""


def _response_format(wanted: ResponseFormat | None) -> bytes:
    if wanted is None:
        return b""
    shape = format_fields(wanted)
    kind = {"type": "json_schema", "json_schema": shape} if shape else {"type": "json_object"}
    return b',"response_format":' + to_json(kind)


def _tool_choice(wanted: ToolChoice | None) -> bytes:
    if wanted is None:
        return b""
    named = {"type": "function", "function": {"name": wanted.name}}
    return b',"tool_choice":' + to_json(named if wanted.name else wanted.mode)


def _max_tokens_field(options: OpenAIChatOptions) -> str:
    if options.max_tokens_field is not None:
        return options.max_tokens_field
    reasons = options.reasoning_effort is not None or _REASONING_FAMILY.match(options.model)
    return "max_completion_tokens" if reasons else "max_tokens"


def _message(message: Message, source: str) -> Json:
    match message.role:
        case "user":
            text = user_text(message)
            return {"role": "user", "content": text if text is not None else _parts(message)}
        case "assistant" if message.tool_calls:
            native = returned(message, source)
            calls = [_call(call) for call in message.tool_calls]
            for call, fields in zip(calls, native.get("of_calls", ()), strict=False):
                call.update(fields)
            # some services refuse a blank text
            text = message.text if message.text.strip() else None
            said = {"role": "assistant", "content": text, "tool_calls": calls}
            return {**said, **native.get("of_message", {})}
        case "assistant":
            return {"role": "assistant", "content": answer_text(message)}
        case "tool":
            answered = call_id(message.tool_call_id, message.native_call_id)
            return {"role": "tool", "tool_call_id": answered, "content": message.text}


def _parts(message: Message) -> list[Json]:
    return [
        {"type": "text", "text": item.content}
        if item.content_type == "text"
        else {"type": "image_url", "image_url": {"url": item.content}}
        for item in message.items
    ]


def _call(call: ToolCall) -> Json:
    function = {"name": valid_name(call.tool), "arguments": arguments(call)}
    return {"id": call_id(call.id, call.native_id), "type": "function", "function": function}


def _with_other_ids(piece: bytes) -> bytes:
    if b'"tool_calls":' not in piece and b'"tool_call_id":' not in piece:
        return piece
    message = orjson.loads(piece)
    for call in message.get("tool_calls", ()):
        call["id"] = other_id(call["id"])
    if "tool_call_id" in message:
        message["tool_call_id"] = other_id(message["tool_call_id"])
    return to_json(message)


def _tool(tool: ToolSpec) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
