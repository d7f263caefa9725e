"""The Responses API: `POST /responses`, and the conversations that the service keeps.

With `store` (the default) a conversation lives at the service: only what is new is sent, together with
what it continues: a response (`resp_…`, the chain that ends in it) or a conversation (`conv_…`). Without,
the whole history is sent each time, as for chat completions.

The system prompt is not part of a conversation there. It is the first element of `ModelCall.prompt`, where
`encode_system` has put it, and is sent as `instructions` with every call, which the service does not carry
over. System messages further back are sent where they stand.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import quote

import orjson
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import RemoteThreadLost, RunFailure
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import FinishReason, Item, Json, Message, Role, ToolCall, Usage
from tealagents.domain.ports import ModelCall, ToolSpec
from tealagents.llm.encoding import Shape, arguments, compact, reader, to_json, user_text
from tealagents.llm.failures import AttemptFailed, Complaint, complaint, cut, failed_midway, quoted, unusable
from tealagents.llm.options import OpenAIOptions
from tealagents.llm.service import Question, Service

#: what `encode_system` writes before the text, by which the text is found again without parsing
_SYSTEM = b'{"type":"message","role":"system","content":'

_CONVERSATION = "conv"

#: the service's codes for a conversation that it no longer has
_LOST_CODES = frozenset({"previous_response_not_found", "conversation_not_found", "response_not_found"})

#: items of one page when a conversation is listed
_PAGE = 100


class OpenAIResponsesOptions(OpenAIOptions):
    #: the service keeps the conversation (`kind: remote`); False to send the whole history each time
    store: bool = True


class OpenAIResponses:
    """A model behind the Responses API. A `tealagents.domain.ports.Model`, and `RemoteConversations`."""

    Options: ClassVar = OpenAIResponsesOptions

    def __init__(self, options: OpenAIResponsesOptions) -> None:
        self.name = options.model
        self.provider: str = options.provider
        self.supports_remote_threads = options.store
        self._secrets = options.secrets()
        self._service = Service(options)
        self._head = b'{"model":' + to_json(options.model)
        self._tail = _settings(options)

    def encode_system(self, text: str) -> bytes:
        return _SYSTEM + to_json(text) + b"}"

    def encode(self, message: Message) -> bytes:
        """The message's items: one, or for an assistant that calls tools an array of them."""
        items = list(_sent_items(message))
        return compact(to_json(items[0] if len(items) == 1 else items))

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return compact(to_json([_tool(tool) for tool in tools])) if tools else b""

    def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        return self._service.events(
            Question("/responses", self._body(call), call.headers, call.stream),
            reading=lambda: ResponsesReading(self._secrets, call.remote_id),
            meaning=lambda said: self._meaning(said, call.remote_id),
        )

    async def __aenter__(self) -> "OpenAIResponses":
        await self._service.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._service.__aexit__(*exc)

    def _body(self, call: ModelCall) -> bytes:
        prompt = [piece[1:-1] if piece.startswith(b"[") else piece for piece in call.prompt]
        instructions = b""
        if prompt and prompt[0].startswith(_SYSTEM):
            instructions = b',"instructions":' + prompt[0][len(_SYSTEM) : -1]
            del prompt[0]
        tools = b',"tools":' + call.tools if call.tools else b""
        follow = b',"stream":true' if call.stream else b""
        continued = _continued(call.remote_id)
        items = b",".join(filter(None, prompt))
        return b"".join(
            (self._head, instructions, continued, b',"input":[', items, b"]", tools, self._tail, follow, b"}")
        )

    def _meaning(self, said: Complaint, remote_id: str | None) -> ModelDone | RunFailure | None:
        if said.code == "content_filter":
            return ModelDone(finish_reason="content_filter", model=self.name, response_id=remote_id)
        if remote_id is not None and _is_lost(said, remote_id):
            return _lost(remote_id)
        return None

    # --- conversations that the service keeps ---

    async def list_remote(self, remote_id: str) -> list[Message]:
        """The messages of a conversation, oldest first, with the service's own ids.

        System messages and the model's thoughts are left out. The service keeps no time for each item: a
        message has that of the response, or the conversation, which it was listed with.
        """
        if remote_id.startswith(_CONVERSATION):
            path = f"/conversations/{_safe(remote_id)}"
            about = _read_kept(await self._get(path, remote_id))
            return _messages(await self._items(f"{path}/items", remote_id), remote_id, about.created)
        return await self._chain(remote_id)

    async def delete_remote(self, remote_id: str) -> None:
        """Deletes a conversation, or a response and all that it continues; what is gone already is fine.

        Not to be called while something else continues one of these responses: a fork shares them.
        """
        if remote_id.startswith(_CONVERSATION):
            await self._delete(f"/conversations/{_safe(remote_id)}", remote_id)
            return
        chain: list[str] = []
        following: str | None = remote_id
        while following is not None:
            try:
                kept = _read_kept(await self._get(f"/responses/{_safe(following)}", following))
            except RemoteThreadLost:
                break
            chain.append(following)
            following = kept.previous_response_id
        # the oldest first: where this breaks off, what is left can still be found from its end
        for response_id in reversed(chain):
            await self._delete(f"/responses/{_safe(response_id)}", response_id)

    async def fork_remote(self, remote_id: str) -> str | None:
        """A response can be continued many times, so its id is the fork's too. A conversation cannot be
        forked: whoever holds its id writes to the same one."""
        return None if remote_id.startswith(_CONVERSATION) else remote_id

    async def _chain(self, remote_id: str) -> list[Message]:
        """The messages of the responses that lead to this one.

        The input items of a response hold those before it as well, at some services; where they do, the way
        back ends after one step.
        """
        turns: list[list[Message]] = []
        seen: set[str] = set()
        following: str | None = remote_id
        while following is not None:
            path = f"/responses/{_safe(following)}"
            kept = _read_kept(await self._get(path, following))
            if seen and {item.id for item in kept.output} <= seen:
                break
            items = [*await self._items(f"{path}/input_items", following), *kept.output]
            new = [item for item in items if item.id not in seen]
            seen.update(item.id for item in new)
            turns.append(_messages(new, following, kept.created))
            following = kept.previous_response_id
        return [message for turn in reversed(turns) for message in turn]

    async def _items(self, path: str, remote_id: str) -> "list[_Item]":
        items: list[_Item] = []
        after = ""
        while True:
            page = _read_page(await self._get(f"{path}?order=asc&limit={_PAGE}{after}", remote_id))
            items += page.data
            if not page.has_more or not page.data:
                return items
            after = f"&after={_safe(page.data[-1].id)}"

    async def _get(self, path: str, remote_id: str) -> bytes:
        try:
            return await self._service.get(path)
        except AttemptFailed as failed:
            failure = _lost(remote_id) if _is_lost(failed.complaint, remote_id) else failed.error
        raise failure

    async def _delete(self, path: str, remote_id: str) -> None:
        try:
            await self._service.delete(path)
        except AttemptFailed as failed:
            if _is_lost(failed.complaint, remote_id):
                return
            failure = failed.error
        else:
            return
        raise failure


def _is_lost(said: Complaint | None, remote_id: str) -> bool:
    """A 404 alone would not do: a wrong URL gives one, too."""
    if said is None or said.status not in (400, 404):
        return False
    return said.code in _LOST_CODES or (remote_id in said.message and "not found" in said.message.lower())


def _lost(remote_id: str) -> RemoteThreadLost:
    return RemoteThreadLost(
        f"The model service no longer has the conversation {quoted(remote_id)}: it was deleted there, or has "
        "expired, or belongs to another project. Begin a new task, or fork one from before."
    )


def _safe(remote_id: str) -> str:
    return quote(remote_id, safe="")


# --- what is sent -----------------------------------------------------------------------------------


def _settings(options: OpenAIResponsesOptions) -> bytes:
    """What every body ends with: the settings that are set."""
    effort = options.reasoning_effort
    settings = {
        "store": options.store,
        "temperature": options.temperature,
        "max_output_tokens": options.max_tokens,
        "reasoning": {"effort": effort} if effort is not None else None,
    }
    return b"," + to_json({name: value for name, value in settings.items() if value is not None})[1:-1]


def _continued(remote_id: str | None) -> bytes:
    if remote_id is None:
        return b""
    name = b"conversation" if remote_id.startswith(_CONVERSATION) else b"previous_response_id"
    return b',"' + name + b'":' + to_json(remote_id)


def _sent_items(message: Message) -> Iterator[Json]:
    match message.role:
        case "user":
            text = user_text(message)
            yield _said_by("user", text if text is not None else _parts(message))
        case "assistant":
            if message.text or not message.tool_calls:
                yield _said_by("assistant", message.text)
            yield from map(_call, message.tool_calls)
        case "tool":
            yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.text}


def _said_by(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


def _parts(message: Message) -> list[Json]:
    return [
        {"type": "input_text", "text": item.content}
        if item.content_type == "text"
        else {"type": "input_image", "image_url": item.content, "detail": "auto"}
        for item in message.items
    ]


def _call(call: ToolCall) -> Json:
    return {"type": "function_call", "call_id": call.id, "name": call.tool, "arguments": arguments(call)}


def _tool(tool: ToolSpec) -> Json:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        # the default here is strict, which only takes schemas written for it
        "strict": False,
    }


# --- what comes back ----------------------------------------------------------------------------------


class _Item(Struct, gc=False):
    """An item of a conversation: of all its fields those that we need."""

    id: str = ""
    type: str = ""
    role: str | None = None
    #: a message's: a string, or parts
    content: Any = None
    #: a function call's
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    #: a function call's output: a string, or parts
    output: Any = None


class _Page(Struct, gc=False):
    data: list[_Item] = []
    has_more: bool = False


class _Tokens(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Kept(Struct, gc=False):
    """A response, or a conversation."""

    id: str | None = None
    model: str | None = None
    created_at: float = 0
    status: str | None = None
    output: list[_Item] = []
    usage: _Tokens | None = None
    incomplete_details: _Incomplete | None = None
    previous_response_id: str | None = None
    error: Any = None

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.created_at, UTC)


class _Event(Struct, gc=False):
    type: str = ""
    #: what is new of a text, of a refusal, of arguments, …
    delta: Any = None
    item: _Item | None = None
    response: _Kept | None = None


_read_event = reader(_Event)
_read_kept = reader(_Kept)
_read_page = reader(_Page)

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class ResponsesReading:
    """Reads one answer, whole or in events."""

    def __init__(self, secrets: Sequence[str] = (), remote_id: str | None = None) -> None:
        self.begun = False
        self._secrets = secrets
        self._remote_id = remote_id
        self._response: _Kept | None = None
        self._said = False
        self._refused = False
        #: in the order in which they came; the end of the answer repeats them
        self._calls: dict[str, ToolCall] = {}

    @property
    def finished(self) -> bool:
        return self._response is not None

    def take(self, data: bytes) -> Iterator[ModelEvent]:
        event = self._understood(_read_event, data)
        match event.type:
            case "response.output_text.delta" if isinstance(event.delta, str):
                self.begun = self._said = True
                yield TextDelta(event.delta)
            case "response.refusal.delta" if isinstance(event.delta, str):
                self.begun = self._said = self._refused = True
                yield TextDelta(event.delta, refusal=True)
            case "response.output_item.done" if event.item is not None:
                self.begun = True
                self._note(event.item)
            case "error":
                raise failed_midway(complaint(orjson.loads(data)), self._secrets)
            case kind if kind in _ENDS and event.response is not None:
                yield from self._end(event.response)
            case kind if kind.endswith(".delta") or kind == "response.output_item.added":
                self.begun = True

    def whole(self, body: bytes) -> Iterable[ModelEvent]:
        return self._end(self._understood(_read_kept, body))

    def done(self) -> ModelDone:
        response = self._response
        if response is None:
            raise cut("it ended before the service said that it was complete")
        reason = self._finish_reason(response)
        return ModelDone(
            finish_reason=reason,
            tool_calls=tuple(self._calls.values()) if reason == "tool_calls" else (),
            usage=_usage(response.usage),
            model=response.model or "",
            response_id=self._continued_by(response),
        )

    def _end(self, response: _Kept) -> Iterator[ModelEvent]:
        if response.error:
            raise failed_midway(complaint(response.error), self._secrets)
        if response.status not in ("completed", "incomplete"):
            raise cut(f"the service left it {quoted(response.status or 'without a status')}")
        self.begun = True
        self._response = response
        said = self._said
        for item in response.output:
            self._note(item)
            if not said and item.type == "message":
                yield from self._texts(item)

    def _texts(self, message: _Item) -> Iterator[ModelEvent]:
        for part in _part_list(message.content):
            if part.get("type") == "refusal":
                self._refused = True
                yield TextDelta(str(part.get("refusal", "")), refusal=True)
            elif text := part.get("text"):
                yield TextDelta(str(text))

    def _note(self, item: _Item) -> None:
        if item.type == "function_call":
            # the service always sends a call_id; the item's own id stands in where one does not
            call_id = item.call_id or item.id
            self._calls[call_id] = ToolCall(call_id, item.name or "", item.arguments or "")

    def _finish_reason(self, response: _Kept) -> FinishReason:
        """One of ours. A call that was cut short must not run: an incomplete answer has none."""
        if response.status == "incomplete":
            why = response.incomplete_details.reason if response.incomplete_details is not None else None
            return "content_filter" if why == "content_filter" else "length"
        if self._calls:
            return "tool_calls"
        return "refusal" if self._refused else "stop"

    def _continued_by(self, response: _Kept) -> str | None:
        """What the next call continues: the same conversation, or this response."""
        if self._remote_id is not None and self._remote_id.startswith(_CONVERSATION):
            return self._remote_id
        return response.id

    def _understood(self, read: Callable[[bytes], Shape], data: bytes) -> Shape:
        try:
            return read(data)
        except ValueError:
            raise unusable("what is no response", data, self._secrets) from None


def _usage(tokens: _Tokens | None) -> Usage:
    if tokens is None:
        return Usage()
    prompt, completion = tokens.input_tokens or 0, tokens.output_tokens or 0
    return Usage(prompt, completion, tokens.total_tokens or prompt + completion)


def _messages(items: Iterable[_Item], request_id: str, at: datetime) -> list[Message]:
    """The messages in a conversation's items. Calls join the assistant's message before them."""
    messages: list[Message] = []
    tools: dict[str | None, str] = {}

    def add(item: _Item, role: Role, **parts: Any) -> None:
        message_id = item.id or f"{request_id}-{len(messages)}"
        messages.append(
            Message(message_id=message_id, request_id=request_id, role=role, created_at=at, **parts)
        )

    for item in items:
        match item.type:
            case "message" if item.role == "user":
                add(item, "user", items=_contents(item.content))
            case "message" if item.role == "assistant":
                add(item, "assistant", items=_contents(item.content))
            case "function_call":
                call = ToolCall(item.call_id or item.id, item.name or "", item.arguments or "")
                tools[call.id] = call.tool
                if not messages or messages[-1].role != "assistant":
                    add(item, "assistant")
                messages[-1] = replace(messages[-1], tool_calls=(*messages[-1].tool_calls, call))
            case "function_call_output":
                contents = _contents(item.output)
                add(item, "tool", items=contents, tool_call_id=item.call_id, tool=tools.get(item.call_id))
    return messages


def _contents(content: Any) -> tuple[Item, ...]:
    return tuple(_contents_of(part) for part in _part_list(content))


def _contents_of(part: Json) -> Item:
    if image := part.get("image_url"):
        return Item("image", str(image))
    return Item("text", str(part.get("text") or part.get("refusal") or ""))


def _part_list(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
