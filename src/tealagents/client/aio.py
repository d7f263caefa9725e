"""The asynchronous driver: carries out what `rules` decide, on `httpx.AsyncClient`."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, Self, TypeVar, Unpack, assert_never, cast

import anyio
import httpx

from tealagents.client.calls import DecisionOptions, MessageOptions, TaskChanges
from tealagents.client.documents import (
    Accepted,
    Answer,
    Approval,
    AuditEntry,
    Checkpoint,
    Health,
    Json,
    Message,
    RequestDocument,
    Session,
    Step,
    Task,
)
from tealagents.client.errors import UnexpectedAnswer
from tealagents.client.events import StreamEvent, outcome_of
from tealagents.client.items import Action, Content
from tealagents.client.operations import Operations
from tealagents.client.retry import Retry
from tealagents.client.rules import Cursor
from tealagents.client.wire import (
    LIMITS,
    Call,
    Close,
    Effect,
    Emit,
    Fetch,
    Flow,
    Lost,
    Open,
    Outcome,
    Receive,
    Reply,
    Sleep,
    Stream,
    Timeouts,
    advance,
    build_request,
    is_event_stream,
    lost,
)

T = TypeVar("T")
E = TypeVar("E")

#: a bearer token, or what gives one; it is asked before every call, so that a stream outlives a token
AsyncToken = str | Callable[[], str | Awaitable[str]]


class AsyncClient:
    """One agent, seen by one user.

    Parameters:
        base_url: the agent's prefix, `https://host/{name}/{version}`.
        token: a bearer token, or a function, sync or async, that gives one that is still good.
        timeouts: how long to wait for what.
        retry: how often to try again what can safely be tried again.
        http: used instead of a client of our own, and left open.

    Use it as an async context manager, or call `aclose`. One client may serve many tasks at once.
    What goes wrong is a `ClientError` (see `errors`); nothing is tried again that could be done twice.
    """

    def __init__(
        self,
        base_url: str,
        token: AsyncToken = "",
        *,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._token = token
        self._timeouts = timeouts or Timeouts()
        self._does = Operations(retry=retry or Retry(), timeouts=self._timeouts)
        self._owns_http = http is None
        self._http = http or httpx.AsyncClient(limits=LIMITS)

    async def aclose(self) -> None:
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- messages -------------------------------------------------------------------------------------

    async def send(self, content: Content, **options: Unpack[MessageOptions]) -> Answer:
        """Send a message and wait for its answer, which is the model's output or a pause.

        Carried by an idempotency key, it is repeated through lost connections, restarts and overload
        without being done twice.

        Raises:
            TaskBusy, ApprovalPending, …: it was refused.
            ModelError, RequestCanceled, …: it began and failed.
            ConnectionLost: its fate is not known; its key tells it.
        """
        return await self._run(self._does.send(content, options))

    def stream(self, content: Content, **options: Unpack[MessageOptions]) -> "AsyncEventStream":
        """Send a message and follow its answer, through any number of broken connections.

        Every event comes once, in order, and the last one is `Final`, `ApprovalRequired` or `Failed`.
        Nothing is sent before the first event is asked for.
        """
        cursor = Cursor()
        return AsyncEventStream(self._does.stream(content, options, cursor), self._wire(), cursor)

    async def background(self, content: Content, **options: Unpack[MessageOptions]) -> Accepted:
        """Send a message and come back as soon as the service has stored it."""
        return await self._run(self._does.background(content, options))

    # --- requests -------------------------------------------------------------------------------------

    async def request(self, request_id: str) -> RequestDocument:
        """The request as it stands now."""
        return await self._run(self._does.request(request_id))

    async def wait(self, request_id: str, *, timeout: float | None = None) -> Answer:
        """Wait until the request has ended or paused; its failure is raised.

        Raises:
            StillRunning: after `timeout` seconds. The request goes on.
        """
        return await self._run(self._does.wait(request_id, timeout))

    def follow(self, request_id: str, *, after: int = 0) -> "AsyncEventStream":
        """The events of a request behind the one numbered `after`, to its end.

        Of a request that has ended, and whose log is gone or was read to its end, the last event is
        told again, with `id` None.
        """
        cursor = Cursor(request_id=request_id, last_event_id=after, located=True)
        return AsyncEventStream(self._does.follow(request_id, cursor), self._wire(), cursor)

    async def resume(self, of: str | Approval, action: Action, **options: Unpack[DecisionOptions]) -> Answer:
        """Approve or reject a pause and wait for what comes of it.

        `of` is the `Approval` itself, which names its pause, or the request's id.
        """
        return await self._run(self._does.resume(of, action, options))

    def resume_stream(
        self, of: str | Approval, action: Action, *, after: int = 0, **options: Unpack[DecisionOptions]
    ) -> "AsyncEventStream":
        """Approve or reject a pause and follow what comes of it.

        `after` is the `id` of the `ApprovalRequired` event: what came before it is not told again.
        """
        cursor = Cursor(request_id=of if isinstance(of, str) else of.request_id, last_event_id=after)
        return AsyncEventStream(self._does.resume_stream(of, action, options, cursor), self._wire(), cursor)

    async def cancel(self, request_id: str) -> RequestDocument:
        """End a running or paused request; one that has ended stays as it is."""
        return await self._run(self._does.cancel(request_id))

    # --- sessions and tasks ---------------------------------------------------------------------------

    def sessions(self) -> "AsyncItems[Session]":
        """The caller's sessions, newest first."""
        return self._list(self._does.sessions())

    async def session(self, session_id: str) -> Session:
        """A session with its tasks."""
        return await self._run(self._does.session(session_id))

    async def delete_session(self, session_id: str) -> None:
        """Delete a session with all its tasks. This cannot be undone."""
        await self._run(self._does.delete_session(session_id))

    def tasks(self, *, session_id: str | None = None, status: str | None = None) -> "AsyncItems[Task]":
        """The caller's tasks, newest first."""
        return self._list(self._does.tasks(session_id, status))

    async def task(self, task_id: str) -> Task:
        """A task: its status, times and metadata."""
        return await self._run(self._does.task(task_id))

    async def patch_task(self, task_id: str, **changes: Unpack[TaskChanges]) -> Task:
        """Change a task's metadata or the time it expires."""
        return await self._run(self._does.patch_task(task_id, changes))

    async def delete_task(self, task_id: str) -> None:
        """Delete a task with everything it holds. This cannot be undone."""
        await self._run(self._does.delete_task(task_id))

    def messages(self, task_id: str, *, checkpoint_id: str | None = None) -> "AsyncItems[Message]":
        """The interaction history, oldest first: of the current path, or as of a checkpoint."""
        return self._list(self._does.messages(task_id, checkpoint_id))

    def trace(self, task_id: str) -> "AsyncItems[Step]":
        """The steps of the execution, oldest first."""
        return self._list(self._does.trace(task_id))

    def checkpoints(self, task_id: str) -> "AsyncItems[Checkpoint]":
        """The points a task can be rolled back to or forked at, newest first."""
        return self._list(self._does.checkpoints(task_id))

    def audit(self, task_id: str) -> "AsyncItems[AuditEntry]":
        """The append-only record of who did what."""
        return self._list(self._does.audit(task_id))

    async def rollback(self, task_id: str, checkpoint_id: str) -> Task:
        """Make an earlier, or later, checkpoint the current one. Nothing is erased."""
        return await self._run(self._does.rollback(task_id, checkpoint_id))

    async def fork(
        self, task_id: str, *, checkpoint_id: str | None = None, message_id: str | None = None
    ) -> Task:
        """A new task with the history up to and including a point; by default the last completed request."""
        return await self._run(self._does.fork(task_id, checkpoint_id, message_id))

    async def export_task(self, task_id: str) -> Json:
        """The whole task as one JSON document."""
        return await self._run(self._does.export_task(task_id))

    async def import_task(self, document: Json) -> Task:
        """Bring an exported task back."""
        return await self._run(self._does.import_task(document))

    # --- the rest -------------------------------------------------------------------------------------

    def approvals(self, *, status: str | None = "pending") -> "AsyncItems[Approval]":
        """The pauses that the caller may decide."""
        return self._list(self._does.approvals(status))

    async def health(self) -> Health:
        """How the service is; one attempt."""
        return await self._run(self._does.health())

    async def _run(self, flow: Flow[T]) -> T:
        wire = self._wire()
        outcome: Outcome = None
        try:
            while True:
                outcome = await wire.perform(flow.send(outcome))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()
            await wire.aclose()

    def _list(self, flow: Stream[E, None]) -> "AsyncItems[E]":
        return AsyncItems(flow, self._wire())

    def _wire(self) -> "_AsyncWire":
        return _AsyncWire(self._http, self.base_url, self._token, self._timeouts)


class AsyncItems(Generic[E]):
    """An async iterator. Leave it by its end, `async with` or `aclose`, so that its connection is free."""

    def __init__(self, flow: Stream[E, None], wire: "_AsyncWire") -> None:
        self._flow = flow
        self._wire = wire
        self._outcome: Outcome = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        try:
            while True:
                step = advance(self._flow, self._outcome)
                self._outcome = None
                if isinstance(step, Emit):
                    return step.item
                if step is None:
                    raise StopAsyncIteration
                self._outcome = await self._wire.perform(step)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        self._flow.close()
        await self._wire.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncEventStream(AsyncItems[StreamEvent]):
    """The events of one request. Its ids are known once the first event is."""

    def __init__(self, flow: Stream[StreamEvent, None], wire: "_AsyncWire", cursor: Cursor) -> None:
        super().__init__(flow, wire)
        self._cursor = cursor

    @property
    def session_id(self) -> str | None:
        return self._cursor.session_id

    @property
    def task_id(self) -> str | None:
        return self._cursor.task_id

    @property
    def request_id(self) -> str | None:
        return self._cursor.request_id

    @property
    def last_event_id(self) -> int:
        """The highest id handed on: another process can `follow` the request from here."""
        return self._cursor.last_event_id

    async def answer(self) -> Answer:
        """Read to the end and give what `send` would have given; a failure is raised."""
        async with self:
            async for event in self:
                if (answer := outcome_of(event)) is not None:
                    return answer
        raise UnexpectedAnswer("the stream was read to its end before")


class _AsyncWire:
    """Carries out effects, and holds at most one open stream."""

    def __init__(self, http: httpx.AsyncClient, base_url: str, token: AsyncToken, timeouts: Timeouts) -> None:
        self._http = http
        self._base_url = base_url
        self._token = token
        self._timeouts = timeouts
        self._response: httpx.Response | None = None
        self._chunks: AsyncGenerator[bytes, None] | None = None

    async def perform(self, effect: Effect) -> Outcome:
        match effect:
            case Fetch(call):
                return await self._exchange(call)
            case Open(call):
                await self.aclose()
                return await self._exchange(call, leave_open=True)
            case Receive():
                return await self._receive()
            case Close():
                await self.aclose()
            case Sleep(seconds):
                await anyio.sleep(seconds)
            case _:
                assert_never(effect)
        return None

    async def _exchange(self, call: Call, *, leave_open: bool = False) -> Reply | Lost:
        request = build_request(self._http, self._base_url, call, await self._bearer(), self._timeouts)
        try:
            response = await self._http.send(request, stream=True, follow_redirects=False)
            if leave_open and response.status_code == 200 and is_event_stream(response.headers):
                self._response = response
                self._chunks = cast(AsyncGenerator[bytes, None], response.aiter_bytes())
                return Reply(status=response.status_code, headers=response.headers)
            try:
                body = await response.aread()
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            return lost(error)
        return Reply(status=response.status_code, headers=response.headers, body=body)

    async def _receive(self) -> bytes | Lost:
        if self._chunks is None:
            return b""
        try:
            return await anext(self._chunks, b"")
        except httpx.RequestError as error:
            return lost(error)

    async def _bearer(self) -> str:
        if isinstance(self._token, str):
            return self._token
        token = self._token()
        return await token if inspect.isawaitable(token) else token

    async def aclose(self) -> None:
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        if response is None or chunks is None:
            return
        # a caller that is being canceled must not leave its connection to the pool half read
        with anyio.CancelScope(shield=True), suppress(httpx.RequestError):
            await chunks.aclose()
            await response.aclose()
