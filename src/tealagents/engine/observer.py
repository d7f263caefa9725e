"""Hooks to observe requests, model calls and tool calls. The base classes do nothing and cost nothing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Self

from msgspec import Struct

from tealagents.domain.errors import TealError
from tealagents.domain.events import ModelDone
from tealagents.domain.models import RequestRecord, ToolCall

#: the known ids of the current request (session, task, request), for every log line and span
current_ids: ContextVar[Mapping[str, str]] = ContextVar("current_ids", default={})  # noqa: B039 - never changed


class Load(Struct, frozen=True, kw_only=True):
    """How busy this process is, and the state of its lease."""

    #: requests that were admitted and have not ended or paused
    in_flight: int
    #: of these, those that wait for their turn on a task
    queued: int
    #: open streams of events
    followers: int
    #: the part of the lease that has passed since the last beat: normally at most a third; 1 when it is lost.
    #: 0 before the first is taken
    lease_used: float
    #: how often the lease was lost
    leases_lost: int


class ModelWatch:
    """Observes one model call."""

    def headers(self, sent: Mapping[str, str]) -> Mapping[str, str]:
        """The headers for the model service: `sent`, and those that continue the trace there."""
        return sent

    def first_piece(self) -> None:
        """The first text has arrived."""

    def done(self, done: ModelDone, text: str) -> None:
        """The call succeeded with this text."""

    def failed(self, error: BaseException) -> None:
        """The call failed or was canceled."""


_UNWATCHED = ModelWatch()


class ToolWatch:
    """Observes one tool call."""

    def done(self, output: str, *, is_error: bool) -> None:
        """The call was made."""

    def deferred(self) -> None:
        """The call waits for the user."""


class RequestWatch:
    """Observes one run of a request, from its start or a decision to its end or a pause.

    While its context is entered, `current_ids` has the request's ids.
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
        """The request ended or paused with this record. Not `here`: its end was written outside this run."""

    def failed(self, error: TealError) -> None:
        """The run's end could not be stored."""


class Observer:
    """Observes requests, model calls and tool calls of one process."""

    def request(self, request: RequestRecord) -> RequestWatch:
        """A context that a run enters for everything that it does."""
        return RequestWatch(request)

    def ended_outside(self, request: RequestRecord) -> None:
        """A request without a run was ended here: its process had died, or it waited or was paused."""

    def named(self, **ids: str) -> Mapping[str, str]:
        """The current HTTP request is about these: `task_id`, `request_id`, … Returns all named so far."""
        return ids

    def refused(self, error: TealError) -> None:
        """The current HTTP request was answered with an error."""

    def loaded(self, load: Callable[[], Load]) -> None:
        """`load` reports how busy the process is; it may be called at any time, on any thread."""

    def model_call(self, model: str, provider: str, *, streamed: bool) -> ModelWatch:
        """A model call begins."""
        return _UNWATCHED

    @contextmanager
    def tool_call(self, call: ToolCall, *, known: bool) -> Iterator[ToolWatch]:
        """A context for one tool call. Not `known`: there is no such tool, so the model made up its name."""
        yield ToolWatch()
