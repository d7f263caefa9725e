"""What can be watched of a request. The base watches nothing and costs nothing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Self

from msgspec import Struct

from tealagents.domain.errors import TealError
from tealagents.domain.events import ModelDone
from tealagents.domain.models import RequestRecord, ToolCall

#: `session_id`, `task_id`, `request_id` of the request being worked on, as far as they are known; every log
#: line and span carries them
current_ids: ContextVar[Mapping[str, str]] = ContextVar("current_ids", default={})  # noqa: B039 - never changed


class Load(Struct, frozen=True, kw_only=True):
    """How busy this process is, and how its lease stands."""

    #: requests that were admitted and have not ended or paused
    in_flight: int
    #: of these, those that wait for their turn on a task
    queued: int
    #: streams of events that are open
    followers: int
    #: how much of the lease has passed since the last beat: a third in good order, 1 where it is lost
    lease_used: float
    #: how often the lease was lost
    leases_lost: int


class ModelWatch:
    """One model call."""

    def headers(self, sent: Mapping[str, str]) -> Mapping[str, str]:
        """The headers sent to the model service, and what continues the trace there."""
        return sent

    def first_piece(self) -> None:
        """The first piece has come."""

    def done(self, done: ModelDone, text: str) -> None:
        """It ended as it should."""

    def failed(self, error: BaseException) -> None:
        """It did not."""


_UNWATCHED = ModelWatch()


class ToolWatch:
    """One tool call."""

    def done(self, output: str, *, is_error: bool) -> None:
        """It was made."""

    def deferred(self) -> None:
        """It waits for the user."""


class RequestWatch:
    """One stretch of a request, to its end or its pause: around everything that a run does.

    While it is entered, the ids of the request are those of `current_ids`.
    """

    def __init__(self, request: RequestRecord) -> None:
        self._ids = request.ids
        self._token: Token[Mapping[str, str]] | None = None

    def __enter__(self) -> Self:
        self._token = current_ids.set(self._ids)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            current_ids.reset(self._token)

    def ended(self, request: RequestRecord, *, here: bool = True) -> None:
        """It ended or paused so; not `here`: another process has written its end."""

    def failed(self, error: TealError) -> None:
        """Its end could not be stored."""


class Observer:
    """Observes requests, model calls and tool calls, and keeps the ids of the current one at hand."""

    def request(self, request: RequestRecord) -> RequestWatch:
        """Around everything that a run does."""
        return RequestWatch(request)

    def ended_outside(self, request: RequestRecord) -> None:
        """A request without a run was ended here: its process had died, or it waited or was paused."""

    def named(self, **ids: str) -> Mapping[str, str]:
        """An HTTP request is about these: `task_id`, `request_id`, … Returns all that it has named."""
        return ids

    def refused(self, error: TealError) -> None:
        """An HTTP request was answered with a problem."""

    def loaded(self, load: Callable[[], Load]) -> None:
        """`load` reports how busy the process is; it may be called at any time, on any thread."""

    def model_call(self, model: str, provider: str, *, streamed: bool) -> ModelWatch:
        return _UNWATCHED

    @contextmanager
    def tool_call(self, call: ToolCall) -> Iterator[ToolWatch]:
        """Around one tool call."""
        yield ToolWatch()
