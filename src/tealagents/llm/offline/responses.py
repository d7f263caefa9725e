"""The responses API: reads requests, and writes answers as JSON or as a stream of events."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from tealagents.llm.offline.answer import FunctionCall, ModelAnswer, TokenCounts, in_pieces
from tealagents.llm.offline.chat import forced_tool, offered_tools, requested_limit, requested_model
from tealagents.llm.offline.delivery import Delivery, Frame, answered_in_stream, answered_whole
from tealagents.llm.offline.errors import invalid
from tealagents.llm.offline.ids import IdSource
from tealagents.llm.offline.items import Item, as_messages, check_calls, input_items
from tealagents.llm.offline.prompt import ModelPrompt
from tealagents.llm.offline.reading import optional, required
from tealagents.llm.offline.shapes import ANY_OBJECT
from tealagents.llm.offline.stored import ResponsesStore, StoredConversation, StoredResponse


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    body: dict[str, Any]
    prompt: ModelPrompt
    #: The new items of this request.
    items: list[Item]
    previous: StoredResponse | None
    conversation: StoredConversation | None

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def is_stored(self) -> bool:
        return self.body.get("store") is not False


def read_request(body: dict[str, Any], stored: ResponsesStore, ids: IdSource) -> ResponseRequest:
    """Reads a request body. Raises `ServiceError` for what the real service refuses, and for `background`."""
    if body.get("background"):
        raise invalid("The offline model does not answer in the background.", "background")
    previous, conversation = _continued(body, stored)
    if body.get("input") is None and previous is None and conversation is None:
        raise invalid(
            "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided."
        )
    items = input_items(body.get("input") or [], ids)
    earlier = previous.conversation() if previous else conversation.items if conversation else []
    context = [*earlier, *items]
    check_calls(context)
    tools = offered_tools(body.get("tools"))
    prompt = ModelPrompt(
        [*_instructions(body), *as_messages(context)],
        model=requested_model(body),
        tools=() if body.get("tool_choice") == "none" else tools,
        forced=forced_tool(body.get("tool_choice"), tools),
        max_tokens=requested_limit(body, "max_output_tokens"),
        shape=_shape(body),
    )
    return ResponseRequest(body, prompt, items, previous, conversation)


def _shape(body: dict[str, Any]) -> dict[str, Any] | None:
    wanted = (optional(body.get("text"), dict, "text") or {}).get("format")
    described = optional(wanted, dict, "text.format") or {}
    if described.get("type") == "json_object":
        return ANY_OBJECT
    return optional(described.get("schema"), dict, "text.format.schema")


def _continued(
    body: dict[str, Any], stored: ResponsesStore
) -> tuple[StoredResponse | None, StoredConversation | None]:
    previous_id, conversation_id = body.get("previous_response_id"), _conversation_id(body)
    if previous_id is not None and conversation_id is not None:
        raise invalid(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. "
            "Ensure you are only providing one of them.",
            code="mutually_exclusive_parameters",
        )
    return (
        None if previous_id is None else stored.previous_response(previous_id),
        None if conversation_id is None else stored.conversation(conversation_id),
    )


def _conversation_id(body: dict[str, Any]) -> Any:
    given = body.get("conversation")
    return required(given.get("id"), str, "conversation.id") if isinstance(given, dict) else given


def _instructions(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The `instructions` as a message. They apply to this request only, and are not stored."""
    given = optional(body.get("instructions"), str, "instructions")
    return [{"role": "system", "content": given}] if given else []


def deliver(
    request: ResponseRequest, answer: ModelAnswer, stored: ResponsesStore, ids: IdSource, created: int
) -> Delivery:
    response = _Response(request, answer, ids, created)
    final = response.final()
    if request.stream:
        delivery = answered_in_stream(list(_frames(response, final)), answer, partial(_failed, response))
    else:
        delivery = answered_whole(orjson.dumps(final), answer)
    if answer.fault is None:
        delivery.commit = partial(_keep, request, final, stored)
    return delivery


def _keep(request: ResponseRequest, final: dict[str, Any], stored: ResponsesStore) -> None:
    if request.is_stored:
        stored.responses.put(final["id"], StoredResponse(final, request.items, request.previous))
    if request.conversation is not None:
        request.conversation.items.extend((*request.items, *final["output"]))


class _Response:
    """A response that is being made: its ids, and its body in each state."""

    def __init__(self, request: ResponseRequest, answer: ModelAnswer, ids: IdSource, created: int) -> None:
        self.request = request
        self.answer = answer
        self.id = ids.new("resp_")
        self._created = created
        self.message_id = ids.new("msg_")
        self.calls = [(ids.new("fc_"), call.id or ids.new("call_"), call) for call in answer.tool_calls]

    @property
    def has_message(self) -> bool:
        """False for an answer of tool calls alone."""
        answer = self.answer
        return bool(answer.pieces) or answer.refusal is not None or not answer.tool_calls

    @property
    def incomplete_reason(self) -> str | None:
        return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(self.answer.finish)

    @property
    def item_status(self) -> str:
        return "incomplete" if self.incomplete_reason else "completed"

    def body(self, status: str, **changes: Any) -> dict[str, Any]:
        asked = self.request.body
        conversation = self.request.conversation
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "completed_at": None,
            "conversation": None if conversation is None else {"id": conversation.body["id"]},
            "error": None,
            "incomplete_details": None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": asked.get("metadata") or {},
            "model": self.request.prompt.model,
            "output": [],
            "parallel_tool_calls": asked.get("parallel_tool_calls") is not False,
            "previous_response_id": asked.get("previous_response_id"),
            "reasoning": asked.get("reasoning") or {"effort": None, "summary": None},
            "service_tier": "default",
            "store": self.request.is_stored,
            "temperature": asked.get("temperature", 1.0),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "top_logprobs": 0,
            "top_p": asked.get("top_p", 1.0),
            "truncation": asked.get("truncation") or "disabled",
            "usage": None,
            "user": None,
            **changes,
        }

    def final(self) -> dict[str, Any]:
        fault = self.answer.fault
        if fault is not None and fault.kind == "error":
            return self.failed()
        if fault is not None and fault.kind == "end":
            return self.body("in_progress")
        reason = self.incomplete_reason
        return self.body(
            "incomplete" if reason else "completed",
            completed_at=None if reason else self._created,
            incomplete_details={"reason": reason} if reason else None,
            output=self.output(),
            usage=_usage_body(self.answer.usage_after(self.request.prompt.tokens)),
        )

    def failed(self) -> dict[str, Any]:
        fault = self.answer.fault
        error = {"code": fault.code, "message": fault.message} if fault else None
        return self.body("failed", error=error)

    def output(self) -> list[Item]:
        message = [self.message(self.item_status, [self.content()])] if self.has_message else []
        return [*message, *(self.call(*made, is_done=True) for made in self.calls)]

    def message(self, status: str, content: list[Item]) -> Item:
        return {
            "id": self.message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def content(self, text: str | None = None) -> Item:
        """The only content part of the message; by default, with all of its text."""
        refusal = self.answer.refusal
        if refusal is not None:
            return {"type": "refusal", "refusal": refusal if text is None else text}
        said = self.answer.text if text is None else text
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": said}

    def call(self, item_id: str, call_id: str, call: FunctionCall, *, is_done: bool) -> Item:
        return {
            "id": item_id,
            "type": "function_call",
            "status": "completed" if is_done else "in_progress",
            "call_id": call_id,
            "name": call.name,
            "arguments": call.arguments if is_done else "",
        }


def _usage_body(usage: TokenCounts | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _failed(response: _Response, events_before: int) -> bytes:
    return _event("response.failed", events_before, {"response": response.failed()})


def _event(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class _Events:
    """Numbers the events of one answer, and adds the delays of its pieces."""

    def __init__(self, before: Callable[[int], float]) -> None:
        self._before = before
        self._number = 0
        self._pieces = 0

    def frame(self, kind: str, *, is_piece: bool = False, **fields: Any) -> Frame:
        number = self._number
        self._number += 1
        return Frame(_event(kind, number, fields), self._delay() if is_piece else 0.0, is_piece)

    def pieces(self, kind: str, pieces: tuple[str, ...] | list[str], **fields: Any) -> Iterator[Frame]:
        """The deltas of these pieces. What they have in common is encoded only once."""
        head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())
        tail = b"," + orjson.dumps(fields)[1:] + b"\n\n"
        for piece in pieces:
            data = b'%b%d,"delta":%b%b' % (head, self._number, orjson.dumps(piece), tail)
            self._number += 1
            yield Frame(data, self._delay(), True)

    def _delay(self) -> float:
        position = self._pieces
        self._pieces += 1
        return self._before(position)


def _frames(response: _Response, final: dict[str, Any]) -> Iterator[Frame]:
    events = _Events(response.answer.pacing.before)
    begun = response.body("in_progress")
    yield events.frame("response.created", response=begun)
    yield events.frame("response.in_progress", response=begun)
    if response.has_message:
        yield from _message_frames(events, response)
    for index, made in enumerate(response.calls, start=int(response.has_message)):
        yield from _call_frames(events, response, index, made)
    yield events.frame(f"response.{final['status']}", response=final)


def _message_frames(events: _Events, response: _Response) -> Iterator[Frame]:
    refusal = response.answer.refusal
    at: dict[str, Any] = {"item_id": response.message_id, "output_index": 0, "content_index": 0}
    yield events.frame("response.output_item.added", output_index=0, item=response.message("in_progress", []))
    yield events.frame("response.content_part.added", **at, part=response.content(""))
    if refusal is not None:
        yield from events.pieces("response.refusal.delta", in_pieces(refusal), **at)
        yield events.frame("response.refusal.done", **at, refusal=refusal)
    else:
        yield from events.pieces("response.output_text.delta", response.answer.pieces, **at, logprobs=[])
        yield events.frame("response.output_text.done", **at, text=response.answer.text, logprobs=[])
    yield events.frame("response.content_part.done", **at, part=response.content())
    done = response.message(response.item_status, [response.content()])
    yield events.frame("response.output_item.done", output_index=0, item=done)


def _call_frames(
    events: _Events, response: _Response, index: int, made: tuple[str, str, FunctionCall]
) -> Iterator[Frame]:
    item_id, _, call = made
    at: dict[str, Any] = {"item_id": item_id, "output_index": index}
    begun = response.call(*made, is_done=False)
    yield events.frame("response.output_item.added", is_piece=True, output_index=index, item=begun)
    yield from events.pieces("response.function_call_arguments.delta", call.argument_pieces(), **at)
    yield events.frame("response.function_call_arguments.done", **at, arguments=call.arguments)
    done = response.call(*made, is_done=True)
    yield events.frame("response.output_item.done", output_index=index, item=done)
