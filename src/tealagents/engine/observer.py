"""What can be watched of a request. The base watches nothing and costs nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from tealagents.domain.current import current_ids
from tealagents.domain.errors import TealError
from tealagents.domain.events import ModelDone
from tealagents.domain.models import RequestRecord, ToolCall


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

    def headers(self) -> dict[str, str]:
        """What continues the trace at the model service."""
        return {}

    def first_piece(self) -> None:
        """The first piece has come."""

    def done(self, done: ModelDone, text: str) -> None:
        """It ended as it should."""

    def failed(self, error: BaseException) -> None:
        """It did not."""


class ToolWatch:
    """One tool call."""

    def done(self, output: str, *, is_error: bool) -> None:
        """It was made."""

    def deferred(self) -> None:
        """It waits for the user."""


class RequestWatch:
    """One stretch of a request: to its end or its pause."""

    def ended(self, request: RequestRecord) -> None:
        """It ended or paused so."""

    def failed(self, error: TealError) -> None:
        """Its end could not be stored."""


class Observer:
    """Observes requests, model calls and tool calls, and keeps the ids of the current one at hand."""

    @contextmanager
    def request(self, request: RequestRecord) -> Iterator[RequestWatch]:
        """Around everything that a run does."""
        token = current_ids.set(
            {
                "session_id": request.session_id,
                "task_id": request.task_id,
                "request_id": request.request_id,
            }
        )
        try:
            yield self.watch_request(request)
        finally:
            current_ids.reset(token)

    def named(self, **ids: str) -> None:
        """An HTTP request is about these: `task_id`, `request_id`, …"""

    def refused(self, error: TealError) -> None:
        """An HTTP request was answered with a problem."""

    def loaded(self, load: Callable[[], Load]) -> None:
        """`load` reports how busy the process is; it may be called at any time, on any thread."""

    def watch_request(self, request: RequestRecord) -> RequestWatch:
        return RequestWatch()

    def model_call(self, model: str, provider: str, *, streamed: bool) -> ModelWatch:
        return ModelWatch()

    @contextmanager
    def tool_call(self, call: ToolCall) -> Iterator[ToolWatch]:
        """Around one tool call."""
        yield ToolWatch()
