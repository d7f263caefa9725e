"""The events of a request, and what a model client yields for one call.

`Event` is the one vocabulary between engine, log and followers; each protocol folds it into its own frames.
"""

from typing import Literal, assert_never

from msgspec import Struct

from tealagents.domain.models import (
    Approval,
    Failure,
    FinishReason,
    Outcome,
    RequestRecord,
    TokenUsage,
    ToolCall,
)


class TextDelta(Struct, frozen=True, array_like=True, tag="text"):
    """Some text of the answer, as the model service sent it."""

    text: str
    #: the text is a refusal: shown like an answer, marked in the outcome and the trace
    refusal: bool = False


class ModelDone(Struct, frozen=True, kw_only=True):
    """The last event of a model call that succeeded."""

    finish_reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = TokenUsage()
    #: the model that answered, as the service names it
    model: str = ""
    #: remote threads: the response or conversation to continue; otherwise the completion's id
    response_id: str | None = None
    #: data that the service expects back with the tool calls, as `Message.native`
    native: str = ""


ModelEvent = TextDelta | ModelDone


class Started(Struct, frozen=True, array_like=True, tag="started"):
    """The first event of every request; repeated, with `Running`, when a decided request continues."""

    status: Literal["Running", "Queued"] = "Running"


class ToolCalled(Struct, frozen=True, array_like=True, tag="called"):
    """A tool is about to run."""

    call: ToolCall


class ToolReturned(Struct, frozen=True, array_like=True, tag="returned"):
    """A tool has run; `output` is what the model is sent."""

    call_id: str
    tool: str
    output: str
    is_error: bool
    duration_ms: float


class Paused(Struct, frozen=True, array_like=True, tag="paused"):
    """The request waits for decisions on a pause; None if the viewer may not see it."""

    approval: Approval | None


class Completed(Struct, frozen=True, array_like=True, tag="completed"):
    """The request has its answer; None if the viewer may not see it."""

    outcome: Outcome | None


class Failed(Struct, frozen=True, array_like=True, tag="failed"):
    """The request ended without an answer."""

    error: Failure


class Canceled(Struct, frozen=True, array_like=True, tag="canceled"):
    """The request was canceled before it had an answer."""

    error: Failure


Event = Started | TextDelta | ToolCalled | ToolReturned | Paused | Completed | Failed | Canceled

#: each of these ends a stream
Terminal = Paused | Completed | Failed | Canceled


class Recorded(Struct, frozen=True, array_like=True):
    """One event of a request as it is stored and followed, numbered from 1 without gaps.

    With two exceptions: decided pauses are left out for a follower that comes later, and the end of a request
    whose process died jumps past every number that may have been shown without being stored
    (`state.streams.JUMP`).
    """

    id: int
    event: Event


def beginning(record: RequestRecord) -> Started:
    """The first event of a request's stream, as its sender received it: `Queued` if it had to wait."""
    return Started("Queued" if record.started_at != record.created_at else "Running")


def ending(record: RequestRecord) -> Terminal:
    """The last event of the stream of a request that has ended or paused."""
    if record.status == "Completed":
        return Completed(record.outcome)
    if record.status == "Paused":
        return Paused(record.pause)
    error = record.error or Failure("corrupt_state", "The request ended, but its record does not say why.")
    return Canceled(error) if record.status == "Canceled" else Failed(error)


def redacted(event: Event) -> Event | None:
    """The event as an approver who is not the owner may see it; None: not at all."""
    match event:
        case Started():  # it only says that the request runs or waits
            return event
        case TextDelta() | ToolCalled() | ToolReturned():
            return None
        case Paused():
            return Paused(None)
        case Completed():
            return Completed(None)
        case Failed(error):
            return Failed(error.redacted("Failed"))
        case Canceled(error):
            return Canceled(error.redacted("Canceled"))
    assert_never(event)
