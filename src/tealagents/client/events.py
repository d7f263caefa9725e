"""The events of a stream, as frozen values.

A stream is `Request`, then any of `Delta`, `ToolCall` and `ToolResult`, then exactly one of
`ApprovalRequired`, `Final` and `Failed`. `id` is the event's number within its request; it is None
where the end was not read from the stream but from the request itself, after the log was gone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tealagents.client.documents import Answer, Approval, Json, json_text, text, three_ids
from tealagents.client.errors import ProblemError, UnexpectedAnswer, decoded, problem_from_document
from tealagents.client.sse import ServerSentEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields that all events have."""

    id: int | None
    session_id: str
    task_id: str
    request_id: str
    raw: Json = field(repr=False, compare=False, default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Event):
    """The service has the message, in its store. `status` is `Queued` while it waits its turn."""

    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(Event):
    """Some text of the answer, as the model service sent it."""

    text: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(Event):
    """A tool begins. `arguments` is JSON text."""

    call_id: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult(Event):
    """A tool has ended."""

    call_id: str
    tool: str
    output: str
    is_error: bool = False
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequired(Event):
    """The request waits for a human. The last event of its stream."""

    answer: Answer

    @property
    def approval(self) -> Approval:
        return self.answer.approval or replace(Approval.parse(self.answer.raw), status="pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Final(Event):
    """The answer, whole. The last event of its stream."""

    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The request failed or was canceled. The last event of its stream."""

    error: ProblemError


StreamEvent = Request | Delta | ToolCall | ToolResult | ApprovalRequired | Final | Failed
Terminal = ApprovalRequired | Final | Failed


def parse_event(message: ServerSentEvent) -> StreamEvent | None:
    """The event, or None where this version of the client does not know its name.

    Raises:
        UnexpectedAnswer: an event of a known name whose data is no JSON object.
    """
    read = _READERS.get(message.name)
    if read is None:
        return None
    try:
        document = decoded(message.data)
    except ValueError as error:
        raise UnexpectedAnswer(f"the data of a `{message.name}` event is not JSON") from error
    if not isinstance(document, dict):
        raise UnexpectedAnswer(f"the data of a `{message.name}` event is not a JSON object")
    return read(event_number(message), document)


def event_number(message: ServerSentEvent) -> int | None:
    """The event's number in its request's log; None where it is no part of it."""
    id = message.id
    return int(id) if message.own_id and id.isascii() and id.isdigit() and len(id) < 19 else None


def ending(answer: Answer) -> ApprovalRequired | Final:
    """The last event that stands for an answer that came without a stream."""
    kind = ApprovalRequired if answer.paused else Final
    return kind(**_common(None, answer.raw), answer=answer)


def failure(id: int | None, document: Json) -> Failed:
    """The last event that stands for a problem document."""
    return Failed(**_common(id, document), error=problem_from_document(document))


def outcome_of(event: StreamEvent) -> Answer | None:
    """The answer that an event ends a stream with; None of an event that ends none.

    Raises:
        ProblemError: the event is `Failed`.
    """
    if isinstance(event, Failed):
        raise event.error
    return event.answer if isinstance(event, Final | ApprovalRequired) else None


def _request(id: int | None, document: Json) -> Request:
    return Request(**_common(id, document), status=text(document, "status"))


def _delta(id: int | None, document: Json) -> Delta:
    return Delta(
        **_common(id, document), text=text(document, "output_partial"), source=text(document, "source")
    )


def _tool_call(id: int | None, document: Json) -> ToolCall:
    return ToolCall(
        **_common(id, document),
        call_id=text(document, "call_id"),
        tool=text(document, "tool"),
        arguments=json_text(document.get("arguments")),
    )


def _tool_result(id: int | None, document: Json) -> ToolResult:
    duration = document.get("duration_ms")
    return ToolResult(
        **_common(id, document),
        call_id=text(document, "call_id"),
        tool=text(document, "tool"),
        output=json_text(document.get("output")),
        is_error=document.get("is_error") is True,
        duration_ms=duration if isinstance(duration, int | float) else None,
    )


def _approval_required(id: int | None, document: Json) -> ApprovalRequired:
    return ApprovalRequired(**_common(id, document), answer=Answer.parse(document))


def _final(id: int | None, document: Json) -> Final:
    return Final(**_common(id, document), answer=Answer.parse(document))


def _common(id: int | None, document: Json) -> dict[str, Any]:
    return {"id": id, **three_ids(document), "raw": document}


_READERS: dict[str, Callable[[int | None, Json], StreamEvent]] = {
    "request": _request,
    "partial-response": _delta,
    "tool-call": _tool_call,
    "tool-result": _tool_result,
    "approval-required": _approval_required,
    "final-response": _final,
    "error": failure,
}
