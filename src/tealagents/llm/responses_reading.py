"""Reads the Responses API: an answer, whole or in events, and the items of a conversation. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.events import ModelDone, TextDelta
from tealagents.domain.models import FinishReason, Item, Json, Message, Role, ToolCall
from tealagents.llm.encoding import Shape, argument_text, parsed, reader, token_usage
from tealagents.llm.failures import complaint, cut, failed_midway, quoted, unusable, waiting
from tealagents.llm.native import kept

#: the prefix of the ids of conversations
CONVERSATION = "conv"

#: stand for a message and a call in the recorded order of an answer's items
TEXT, CALL = "text", "call"


class StoredItem(Struct, gc=False):
    """An item of a conversation, with the fields that are used."""

    id: str | None = None
    type: str = ""
    role: str | None = None
    #: a message's: a string, or parts
    content: Any = None
    #: a message's: says whether it is the answer or a commentary before it
    phase: str | None = None
    #: a function call's
    call_id: str | None = None
    name: str | None = None
    #: a string; an object from services that do not encode it
    arguments: Any = None
    #: a function call's output: a string, or parts
    output: Any = None
    #: reasoning's: the part that is shown
    summary: Any = None
    #: reasoning's: all of it, which only the service can read
    encrypted_content: Any = None


class _ItemPage(Struct, gc=False):
    data: list[StoredItem] = []
    has_more: bool = False


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _StoredResponse(Struct, gc=False):
    """A response, or a conversation."""

    id: str | None = None
    model: str | None = None
    created_at: float | None = None
    status: str | None = None
    output: list[StoredItem] | None = None
    usage: Any = None
    incomplete_details: _Incomplete | None = None
    previous_response_id: str | None = None
    error: Any = None

    @property
    def created(self) -> datetime:
        try:
            return datetime.fromtimestamp(self.created_at or 0, UTC)
        except (ValueError, OverflowError, OSError):  # the unit is not seconds
            return datetime.fromtimestamp(0, UTC)


class _Event(Struct, gc=False):
    type: str = ""
    #: the new part of a text, a refusal, arguments, …
    delta: Any = None
    item: StoredItem | None = None
    response: _StoredResponse | None = None
    #: an error without a type, as some gateways send it
    error: Any = None


_read_event = reader(_Event, {"delta"})
read_stored = reader(_StoredResponse)
read_page = reader(_ItemPage)

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class ResponsesReading:
    """Reads one answer, whole or in events."""

    def __init__(
        self,
        secrets: Sequence[str] = (),
        remote_id: str | None = None,
        source: str = "",
        response_ids: list[str] | None = None,
    ) -> None:
        """`source` is stored with the model's native data (`native.source_of`). The id of the response is
        added to `response_ids` once it is known."""
        self.begun = False
        self.called = 0
        self._source = source
        self._response_ids = [] if response_ids is None else response_ids
        self._response_id: str | None = None
        self._secrets = secrets
        self._remote_id = remote_id
        self._response: _StoredResponse | None = None
        self._said = False
        self._refused = False
        #: the complete items
        self._items: list[StoredItem] = []
        self._calls: list[ToolCall] = []

    @property
    def finished(self) -> bool:
        return self._response is not None

    @property
    def ended(self) -> bool:
        return self.finished

    def take(self, data: bytes) -> Iterator[TextDelta]:
        event = self._understood(_read_event, data)
        if event.response is not None:
            self._note(event.response)
        match event.type:
            case "response.output_text.delta" if isinstance(event.delta, str) and event.delta:
                self.begun = self._said = True
                yield TextDelta(event.delta)
            case "response.refusal.delta" if isinstance(event.delta, str) and event.delta:
                self.begun = self._said = self._refused = True
                yield TextDelta(event.delta, refusal=True)
            case "response.output_item.added" | "response.output_item.done" if event.item is not None:
                # reasoning that is not shown does not count as a part of the answer
                self.begun = self.begun or event.item.type != "reasoning"
                if event.type == "response.output_item.done":
                    self._items.append(event.item)
                    self.called += _size(_calls_of([event.item]))
            case "error" | "" if event.type or event.error:
                raise failed_midway(complaint(self._understood(parsed, data)), self._secrets)
            case kind if kind in _ENDS and event.response is not None:
                yield from self._end(event.response, event.response.status or kind.partition(".")[2])
            case kind if kind.endswith(".delta"):
                self.begun = True

    def whole(self, body: bytes) -> Iterable[TextDelta]:
        response = self._understood(read_stored, body)
        self._note(response)
        return self._end(response, response.status)

    def done(self) -> ModelDone:
        response = self._response
        if response is None:
            raise cut("it ended before the service said that it was complete")
        reason = self._finish_reason(response)
        return ModelDone(
            finish_reason=reason,
            tool_calls=tuple(self._calls) if reason == "tool_calls" else (),
            usage=token_usage(response.usage, "input_tokens", "output_tokens"),
            model=response.model or "",
            response_id=self._continued_by(response),
            native=self._native() if reason == "tool_calls" else "",
        )

    def _native(self) -> str:
        order = _order_of(self._items)
        phase = next((message.phase for message in _messages_in(self._items) if message.phase), None)
        value = {"order": order, "phase": phase}
        return kept(self._source, len(self._calls), value) if any(value.values()) else ""

    def _end(self, response: _StoredResponse, status: str | None) -> Iterator[TextDelta]:
        if response.error:
            raise failed_midway(complaint(response.error), self._secrets)
        if status not in ("completed", "incomplete"):
            raise cut(f"the service left it {quoted(status or 'without a status')}")
        self.begun = True
        self._response = replace(response, status=status)
        output = response.output or []
        if _calls_of(output):  # at most services, the end of an answer repeats all items
            self._items = output
        self._items = _distinct(self._items)
        self._calls = _calls_of(self._items)
        self.called = _size(self._calls)
        for item in output:
            if item.type == "mcp_approval_request":
                raise waiting(item.name or "", self._secrets)
        if not self._said:
            for message in _messages_in(output) or _messages_in(self._items):
                yield from self._texts(message)

    def _texts(self, message: StoredItem) -> Iterator[TextDelta]:
        for part in _part_list(message.content):
            if part.get("type") == "refusal":
                self._refused = True
                yield TextDelta(str(part.get("refusal", "")), refusal=True)
            elif text := part.get("text"):
                yield TextDelta(str(text))

    def _finish_reason(self, response: _StoredResponse) -> FinishReason:
        """The finish reason in our terms. Calls that were cut must not run: an incomplete answer has none."""
        if response.status == "incomplete":
            why = response.incomplete_details.reason if response.incomplete_details is not None else None
            return "content_filter" if why == "content_filter" else "length"
        if self._calls:
            return "tool_calls"
        return "refusal" if self._refused else "stop"

    def _note(self, response: _StoredResponse) -> None:
        """Adds the response's id to `response_ids`; only the last one if a service names several. Not in a
        conversation, which is deleted as a whole."""
        if response.id in (None, self._response_id) or self._in_conversation:
            return
        if self._response_id is not None:
            self._response_ids.remove(self._response_id)
        self._response_id = response.id
        self._response_ids.append(response.id)

    def _continued_by(self, response: _StoredResponse) -> str | None:
        """The id that the next call continues: the conversation's, or this response's."""
        return self._remote_id if self._in_conversation else response.id

    @property
    def _in_conversation(self) -> bool:
        return self._remote_id is not None and self._remote_id.startswith(CONVERSATION)

    def _understood(self, read: Callable[[bytes], Shape], data: bytes) -> Shape:
        try:
            return read(data)
        except ValueError:
            raise unusable("what is not a response", data, self._secrets) from None


def messages_of(
    items: Iterable[StoredItem], request_id: str, at: datetime, tools: dict[str | None, str] | None = None
) -> list[Message]:
    """The messages in a conversation's items. Tool calls become part of the assistant message before them.

    `tools` maps the ids of earlier calls to their tools; the calls found here are added to it.
    """
    messages: list[Message] = []
    #: position of a message → its calls
    calls: defaultdict[int, list[ToolCall]] = defaultdict(list)
    tools = {} if tools is None else tools

    def add(item: StoredItem, role: Role, **parts: Any) -> None:
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
                call = _call_of(item)
                tools[call.id] = call.tool
                if not messages or messages[-1].role != "assistant":
                    add(item, "assistant")
                calls[len(messages) - 1].append(call)
            case "function_call_output":
                contents = _contents(item.output)
                add(item, "tool", items=contents, tool_call_id=item.call_id, tool=tools.get(item.call_id))
    for place, made in calls.items():
        messages[place] = replace(messages[place], tool_calls=tuple(made))
    return messages


def _order_of(items: Iterable[StoredItem]) -> list[Json | str]:
    """The reasoning items that can be sent back, in order with `TEXT` and `CALL`; empty if there are none."""
    order: list[Json | str] = []
    for item in items:
        match item.type:
            case "message":
                order.append(TEXT)
            case "function_call":
                order.append(CALL)
            case "reasoning" if item.encrypted_content:
                fields = {"summary": item.summary or [], "encrypted_content": item.encrypted_content}
                content = {"content": item.content} if item.content else {}
                order.append({"type": "reasoning", "id": item.id, **fields, **content})
    return order if any(isinstance(each, dict) for each in order) else []


def _distinct(items: Iterable[StoredItem]) -> list[StoredItem]:
    """The items without those that a gateway repeats under their own id."""
    found: dict[object, StoredItem] = {}
    for place, item in enumerate(items):
        call = _call_of(item)  # of an item that is no call, only the id
        found.setdefault((item.type, call) if call.id else place, item)
    return [*found.values()]


def _calls_of(items: Iterable[StoredItem]) -> list[ToolCall]:
    return [_call_of(item) for item in items if item.type == "function_call"]


def _size(calls: Iterable[ToolCall]) -> int:
    return sum(len(call.id) + len(call.tool) + len(call.arguments) for call in calls)


def _messages_in(items: Iterable[StoredItem]) -> list[StoredItem]:
    return [item for item in items if item.type == "message"]


def _call_of(item: StoredItem) -> ToolCall:
    # OpenAI always sends a call_id; the item's id is used for services that do not
    return ToolCall(item.call_id or item.id or "", item.name or "", argument_text(item.arguments or ""))


def _contents(content: Any) -> tuple[Item, ...]:
    return tuple(_contents_of(part) for part in _part_list(content))


def _contents_of(part: Json) -> Item:
    if image := part.get("image_url"):
        return Item("image", str(image))
    if part.get("type") == "input_image":  # an image file that is stored at the service
        return Item("text", "[image]")
    return Item("text", str(part.get("text") or part.get("refusal") or ""))


def _part_list(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
