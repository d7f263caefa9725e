"""What happens while a request runs.

Two kinds. *Model events* are what a model client yields for one call. *Stream events* are what a
client of the service is shown; they are plain `(name, data)` pairs, numbered when published.
"""

from typing import Any, Literal

from msgspec import Struct

from tealagents.domain.models import ToolCall, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "refusal"]


class Piece(Struct, frozen=True):
    """Some text of the answer, as the model service sent it."""

    text: str


class Refused(Struct, frozen=True):
    """Some text of a refusal: shown like an answer, told apart in result and trace."""

    text: str


class ModelDone(Struct, frozen=True, kw_only=True):
    """The last event of a model call that ended as it should."""

    finish_reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    #: the model that answered, as the service names it
    model: str = ""
    #: the id of the response (remote threads continue it), or of the completion
    response_id: str | None = None


ModelEvent = Piece | Refused | ModelDone

EventName = Literal[
    "request",
    "partial-response",
    "tool-call",
    "tool-result",
    "approval-required",
    "final-response",
    "error",
]

#: each of these ends a stream
TERMINAL: frozenset[str] = frozenset({"approval-required", "final-response", "error"})


class StreamEvent(Struct, frozen=True, array_like=True):
    """One numbered event of a request's stream. `data` lacks the three ids until it is encoded."""

    id: int
    name: EventName
    data: Any
