"""The asynchronous driver: carries out what `rules` decide, on `httpx.AsyncClient`."""

from threading import Lock
from time import monotonic
from typing import Generic, Self, TypeVar, Unpack, assert_never, cast

import httpx

from tealagents.client.backends import AsyncBackend, AsyncChunks, AsyncToken
from tealagents.client.calls import DecisionOptions, MessageOptions, TaskChanges
from tealagents.client.documents import (
    Accepted,
    Answer,
    Approval,
    AuditEntry,
    Checkpoint,
    Health,
    Json,
    Me,
    Message,
    PromptPart,
    RequestDocument,
    Session,
    Step,
    Task,
)
from tealagents.client.errors import ClientError, UnexpectedAnswer
from tealagents.client.events import StreamEvent, outcome_of
from tealagents.client.items import Action, Content
from tealagents.client.operations import Operations
from tealagents.client.retry import Retry
from tealagents.client.rules import Position, Positioned
from tealagents.client.wire import (
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
    prefix,
)

T = TypeVar("T")
E = TypeVar("E")


class AsyncClient:
    """One agent, seen by one user.

    Parameters:
        base_url: the agent's prefix, `https://host/{name}/{version}`.
        token: a bearer token, or a function that returns a valid one before each call.
        timeouts: how long to wait for what.
        retry: how often to repeat what can safely be repeated.
        http: your own HTTP client; it is not closed. By default, the client makes one.

    Use it in `async with`, or call `aclose`. One client can serve many callers at once, a stream only one.
    Every failure of the network or the service is a `ClientError` (see `errors`). A URL, id, key, token or
    value that cannot be sent is a mistake in the program: a `ValueError` or `TypeError`, and nothing is sent.
    A call that could be executed twice is never repeated.
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
        self.base_url = prefix(base_url)
        self._backend = AsyncBackend(token, http)
        self._timeouts = timeouts or Timeouts()
        self._operations = Operations(retry=retry or Retry(), timeouts=self._timeouts)

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- messages -------------------------------------------------------------------------------------

    async def send(self, content: Content, **options: Unpack[MessageOptions]) -> Answer:
        """Send a message and wait for its answer: the model's output, or a pause.

        The call carries an idempotency key: it is repeated after lost connections, restarts and overload,
        and executed once.

        Raises:
            TaskBusy, ApprovalPending, …: the message was rejected.
            ModelError, RequestCanceled, …: the request began and failed.
            ConnectionLost: the outcome is unknown; a call with the same key returns it.
        """
        return await self._run(self._operations.send(content, options))

    def stream(self, content: Content, **options: Unpack[MessageOptions]) -> "AsyncEventStream":
        """Send a message and follow its answer, across broken connections.

        Every event comes once, in order, and the last one is `Final`, `ApprovalRequired` or `Failed`.
        The message is sent when the first event is requested.
        """
        position = Position()
        return AsyncEventStream(self._operations.stream(content, options, position), self._wire(), position)

    async def background(self, content: Content, **options: Unpack[MessageOptions]) -> Accepted:
        """Send a message and return as soon as the service has stored it."""
        return await self._run(self._operations.background(content, options))

    # --- requests -------------------------------------------------------------------------------------

    async def request(self, request_id: str) -> RequestDocument:
        """The request as it stands now."""
        return await self._run(self._operations.request(request_id))

    async def wait(self, request_id: str, *, timeout: float | None = None) -> Answer:
        """Wait until the request has ended or paused. A failure is raised.

        `timeout` bounds neither the time of a token function nor that of headers that trickle in, of which
        only the wait for each next byte is bounded.

        Raises:
            StillRunning: after `timeout` seconds. The request continues.
            ConnectionLost: the service was away at the end of that time, or for as long as `Retry` allows;
                `ProblemError` where a gateway answered in its place.
        """
        return await self._run(self._operations.wait(request_id, timeout))

    def follow(self, request_id: str, *, after: int = 0) -> "AsyncEventStream":
        """The events of a request after the one numbered `after`, to the end.

        Where the request has ended and its log is gone, or was read to its end, the last event is repeated,
        with `id` None.
        """
        position = Position(request_id=request_id, last_event_id=after, located=True)
        return AsyncEventStream(self._operations.follow(request_id, position), self._wire(), position)

    async def resume(self, of: str | Approval, action: Action, **options: Unpack[DecisionOptions]) -> Answer:
        """Approve or reject a pause and wait for the outcome.

        `of` is the `Approval` itself, which names its pause, or the request's id.
        """
        return await self._run(self._operations.resume(of, action, options))

    def resume_stream(
        self, of: str | Approval, action: Action, *, after: int = 0, **options: Unpack[DecisionOptions]
    ) -> "AsyncEventStream":
        """Approve or reject a pause and follow the request.

        `after` is the `id` of the `ApprovalRequired` event: earlier events are not repeated.
        """
        position = Position(request_id=of if isinstance(of, str) else of.request_id, last_event_id=after)
        return AsyncEventStream(
            self._operations.resume_stream(of, action, options, position), self._wire(), position
        )

    async def cancel(self, request_id: str) -> RequestDocument:
        """Cancel a running or paused request. One that has ended stays as it is."""
        return await self._run(self._operations.cancel(request_id))

    def prompt(self, request_id: str, *, step_id: str | None = None) -> "AsyncItems[PromptPart]":
        """What the model was sent in a call, oldest first: that of a step of the trace, or the last one."""
        return self._list(self._operations.prompt(request_id, step_id))

    # --- sessions and tasks ---------------------------------------------------------------------------

    def sessions(self) -> "AsyncItems[Session]":
        """The caller's sessions, newest first."""
        return self._list(self._operations.sessions())

    async def session(self, session_id: str) -> Session:
        """A session with its tasks."""
        return await self._run(self._operations.session(session_id))

    async def delete_session(self, session_id: str) -> None:
        """Delete a session with all its tasks. This cannot be undone."""
        await self._run(self._operations.delete_session(session_id))

    def tasks(self, *, session_id: str | None = None, status: str | None = None) -> "AsyncItems[Task]":
        """The caller's tasks, newest first."""
        return self._list(self._operations.tasks(session_id, status))

    async def task(self, task_id: str) -> Task:
        """A task: its status, times and metadata."""
        return await self._run(self._operations.task(task_id))

    async def patch_task(self, task_id: str, **changes: Unpack[TaskChanges]) -> Task:
        """Change a task's metadata or the time it expires."""
        return await self._run(self._operations.patch_task(task_id, changes))

    async def delete_task(self, task_id: str) -> None:
        """Delete a task with everything it holds. This cannot be undone."""
        await self._run(self._operations.delete_task(task_id))

    def messages(self, task_id: str, *, checkpoint_id: str | None = None) -> "AsyncItems[Message]":
        """The interaction history, oldest first: of the current path, or as of a checkpoint."""
        return self._list(self._operations.messages(task_id, checkpoint_id))

    def trace(self, task_id: str) -> "AsyncItems[Step]":
        """The steps of the execution, oldest first."""
        return self._list(self._operations.trace(task_id))

    def checkpoints(self, task_id: str, *, parents: bool = False) -> "AsyncItems[Checkpoint]":
        """The points a task can be rolled back to or forked at, newest first; with `parents` as a tree."""
        return self._list(self._operations.checkpoints(task_id, parents))

    def audit(self, task_id: str) -> "AsyncItems[AuditEntry]":
        """The audit entries of a task."""
        return self._list(self._operations.audit(task_id))

    async def rollback(self, task_id: str, checkpoint_id: str) -> Task:
        """Make an earlier, or later, checkpoint the current one. Nothing is erased."""
        return await self._run(self._operations.rollback(task_id, checkpoint_id))

    async def fork(
        self, task_id: str, *, checkpoint_id: str | None = None, message_id: str | None = None
    ) -> Task:
        """A new task with the history up to and including a point, by default the last completed request."""
        return await self._run(self._operations.fork(task_id, checkpoint_id, message_id))

    async def export_task(self, task_id: str) -> Json:
        """The whole task as one JSON document."""
        return await self._run(self._operations.export_task(task_id))

    async def import_task(self, document: Json) -> Task:
        """Import an exported task."""
        return await self._run(self._operations.import_task(document))

    # --- the rest -------------------------------------------------------------------------------------

    def approvals(self, *, status: str | None = "pending") -> "AsyncItems[Approval]":
        """The pauses that the caller can decide."""
        return self._list(self._operations.approvals(status))

    async def approval(self, request_id: str, approval_id: str) -> Approval:
        """A pause, with the description and the arguments' schema of each call's tool."""
        return await self._run(self._operations.approval(request_id, approval_id))

    async def me(self) -> Me:
        """Who the caller is to the service."""
        return await self._run(self._operations.me())

    def tenant_tasks(
        self, *, oid: str | None = None, status: str | None = None, metadata: str | None = None
    ) -> "AsyncItems[Task]":
        """For auditors: the tasks of all users of the tenant; `metadata` is `key:value`."""
        return self._list(self._operations.tenant_tasks(oid, status, metadata))

    async def health(self) -> Health:
        """The state of the service. The call is not repeated."""
        return await self._run(self._operations.health())

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
        return _AsyncWire(self._backend, self.base_url, self._timeouts)


class AsyncItems(Generic[E]):
    """An iterator. To free its connection, exhaust it, use it in `async with`, or call `aclose`.

    Reading on after `aclose` or an error raises a `ClientError`, unless the end had been reached. While one
    caller reads, further readers and `aclose` get a `RuntimeError`.
    """

    def __init__(self, flow: Stream[E, None], wire: "_AsyncWire") -> None:
        self._flow = flow
        self._wire = wire
        self._outcome: Outcome = None
        self._ended = self._closed = False
        self._reader = Lock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        self._take()
        try:
            while True:
                step = advance(self._flow, self._outcome)
                self._outcome = None
                if isinstance(step, Emit):
                    return step.item
                if step is None:
                    self._end()
                    raise StopAsyncIteration
                self._outcome = await self._wire.perform(step)
        except BaseException:
            await self._free()
            raise
        finally:
            self._reader.release()

    async def aclose(self) -> None:
        self._take()
        try:
            await self._free()
        finally:
            self._reader.release()

    def _take(self) -> None:
        if not self._reader.acquire(blocking=False):
            raise RuntimeError("this is being read already; it has one reader at a time")

    async def _free(self) -> None:
        self._closed = True
        self._flow.close()
        await self._wire.aclose()

    def _end(self) -> None:
        """`ClientError` if the list was closed early: an incomplete list must not pass for a complete one."""
        if self._closed and not self._ended:
            raise ClientError("this list was closed before its end; request it again")
        self._ended = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncEventStream(AsyncItems[StreamEvent], Positioned):
    """The events of one request. Its ids are known from the first event on."""

    def __init__(self, flow: Stream[StreamEvent, None], wire: "_AsyncWire", position: Position) -> None:
        super().__init__(flow, wire)
        self._position = position

    def _end(self) -> None:
        if not self._position.ended:
            raise self._position.closed_early()

    async def answer(self) -> Answer:
        """Read to the end and return what `send` would have returned. A failure is raised."""
        async with self:
            async for event in self:
                if (answer := outcome_of(event)) is not None:
                    return answer
        raise self._position.keyed(UnexpectedAnswer("the stream was read to its end before"))


class _AsyncWire:
    """Carries out effects, and holds at most one open stream."""

    def __init__(self, backend: AsyncBackend, base_url: str, timeouts: Timeouts) -> None:
        self._backend = backend
        self._base_url = base_url
        self._timeouts = timeouts
        self._response: httpx.Response | None = None
        self._chunks: AsyncChunks | None = None

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
                await self._backend.sleep(seconds)
            case _:
                assert_never(effect)
        return None

    async def _exchange(self, call: Call, *, leave_open: bool = False) -> Reply | Lost:
        http = self._backend.http()
        token = "" if call.anonymous else await self._backend.token()
        request = build_request(http, self._base_url, call, token, self._timeouts)
        return await self._backend.settle(self._sent(http, request, call.most_seconds, leave_open))

    async def _sent(
        self, http: httpx.AsyncClient, request: httpx.Request, most_seconds: float, leave_open: bool
    ) -> Reply | Lost:
        try:
            response = await http.send(request, stream=True, follow_redirects=False)
            if leave_open and response.status_code == 200 and is_event_stream(response.headers):
                self._response = response
                self._chunks = cast(AsyncChunks, response.aiter_bytes())
                return Reply(status=response.status_code, headers=response.headers)
            body = await self._body(response, most_seconds)
        except httpx.RequestError as error:
            return lost(error)
        return Reply(status=response.status_code, headers=response.headers, body=body)

    async def _body(self, response: httpx.Response, seconds: float) -> bytes:
        """A whole body. httpx bounds each wait for bytes, but not all together (nor those of a head)."""
        due, chunks = monotonic() + seconds, list[bytes]()
        try:
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                if monotonic() > due:
                    late = f"no whole answer within {seconds:.1f} seconds"
                    raise httpx.ReadTimeout(late, request=response.request)
        finally:
            await response.aclose()
        return b"".join(chunks)

    async def _receive(self) -> bytes | Lost:
        return b"" if self._chunks is None else await self._backend.settle(self._next(self._chunks))

    async def _next(self, chunks: AsyncChunks) -> bytes | Lost:
        try:
            return await anext(chunks, b"")
        except httpx.RequestError as error:
            return lost(error)

    async def aclose(self) -> None:
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        if response is not None and chunks is not None:
            await self._backend.release(response, chunks)
