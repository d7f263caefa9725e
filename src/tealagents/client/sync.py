# Generated from aio.py by scripts/generate_sync_client.py: edit that one, and run the script.

"""The synchronous driver: carries out what `rules` decide, on `httpx.Client`."""

from threading import Lock
from time import monotonic
from typing import Generic, Self, TypeVar, Unpack, assert_never, cast

import httpx

from tealagents.client.backends import Backend, Chunks, Token
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


class Client:
    """One agent, seen by one user.

    Parameters:
        base_url: the agent's prefix, `https://host/{name}/{version}`.
        token: a bearer token, or a function that returns a valid one before each call.
        timeouts: how long to wait for what.
        retry: how often to repeat what can safely be repeated.
        http: your own HTTP client; it is not closed. By default, the client makes one.

    Use it in `with`, or call `close`. One client can serve many callers at once, a stream only one.
    Every failure of the network or the service is a `ClientError` (see `errors`). A URL, id, key, token or
    value that cannot be sent is a mistake in the program: a `ValueError` or `TypeError`, and nothing is sent.
    A call that could be executed twice is never repeated.
    """

    def __init__(
        self,
        base_url: str,
        token: Token = "",
        *,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        self.base_url = prefix(base_url)
        self._backend = Backend(token, http)
        self._timeouts = timeouts or Timeouts()
        self._operations = Operations(retry=retry or Retry(), timeouts=self._timeouts)

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- messages -------------------------------------------------------------------------------------

    def send(self, content: Content, **options: Unpack[MessageOptions]) -> Answer:
        """Send a message and wait for its answer: the model's output, or a pause.

        The call carries an idempotency key: it is repeated after lost connections, restarts and overload,
        and executed once.

        Raises:
            TaskBusy, ApprovalPending, …: the message was rejected.
            ModelError, RequestCanceled, …: the request began and failed.
            ConnectionLost: the outcome is unknown; a call with the same key returns it.
        """
        return self._run(self._operations.send(content, options))

    def stream(self, content: Content, **options: Unpack[MessageOptions]) -> "EventStream":
        """Send a message and follow its answer, across broken connections.

        Every event comes once, in order, and the last one is `Final`, `ApprovalRequired` or `Failed`.
        The message is sent when the first event is requested.
        """
        position = Position()
        return EventStream(self._operations.stream(content, options, position), self._wire(), position)

    def background(self, content: Content, **options: Unpack[MessageOptions]) -> Accepted:
        """Send a message and return as soon as the service has stored it."""
        return self._run(self._operations.background(content, options))

    # --- requests -------------------------------------------------------------------------------------

    def request(self, request_id: str) -> RequestDocument:
        """The request as it stands now."""
        return self._run(self._operations.request(request_id))

    def wait(self, request_id: str, *, timeout: float | None = None) -> Answer:
        """Wait until the request has ended or paused. A failure is raised.

        `timeout` bounds neither the time of a token function nor that of headers that trickle in, of which
        only the wait for each next byte is bounded.

        Raises:
            StillRunning: after `timeout` seconds. The request continues.
            ConnectionLost: the service was away at the end of that time, or for as long as `Retry` allows;
                `ProblemError` where a gateway answered in its place.
        """
        return self._run(self._operations.wait(request_id, timeout))

    def follow(self, request_id: str, *, after: int = 0) -> "EventStream":
        """The events of a request after the one numbered `after`, to the end.

        Where the request has ended and its log is gone, or was read to its end, the last event is repeated,
        with `id` None.
        """
        position = Position(request_id=request_id, last_event_id=after, located=True)
        return EventStream(self._operations.follow(request_id, position), self._wire(), position)

    def resume(self, of: str | Approval, action: Action, **options: Unpack[DecisionOptions]) -> Answer:
        """Approve or reject a pause and wait for the outcome.

        `of` is the `Approval` itself, which names its pause, or the request's id.
        """
        return self._run(self._operations.resume(of, action, options))

    def resume_stream(
        self, of: str | Approval, action: Action, *, after: int = 0, **options: Unpack[DecisionOptions]
    ) -> "EventStream":
        """Approve or reject a pause and follow the request.

        `after` is the `id` of the `ApprovalRequired` event: earlier events are not repeated.
        """
        position = Position(request_id=of if isinstance(of, str) else of.request_id, last_event_id=after)
        return EventStream(
            self._operations.resume_stream(of, action, options, position), self._wire(), position
        )

    def cancel(self, request_id: str) -> RequestDocument:
        """Cancel a running or paused request. One that has ended stays as it is."""
        return self._run(self._operations.cancel(request_id))

    def prompt(self, request_id: str, *, step_id: str | None = None) -> "Items[PromptPart]":
        """What the model was sent in a call, oldest first: that of a step of the trace, or the last one."""
        return self._list(self._operations.prompt(request_id, step_id))

    # --- sessions and tasks ---------------------------------------------------------------------------

    def sessions(self) -> "Items[Session]":
        """The caller's sessions, newest first."""
        return self._list(self._operations.sessions())

    def session(self, session_id: str) -> Session:
        """A session with its tasks."""
        return self._run(self._operations.session(session_id))

    def delete_session(self, session_id: str) -> None:
        """Delete a session with all its tasks. This cannot be undone."""
        self._run(self._operations.delete_session(session_id))

    def tasks(self, *, session_id: str | None = None, status: str | None = None) -> "Items[Task]":
        """The caller's tasks, newest first."""
        return self._list(self._operations.tasks(session_id, status))

    def task(self, task_id: str) -> Task:
        """A task: its status, times and metadata."""
        return self._run(self._operations.task(task_id))

    def patch_task(self, task_id: str, **changes: Unpack[TaskChanges]) -> Task:
        """Change a task's metadata or the time it expires."""
        return self._run(self._operations.patch_task(task_id, changes))

    def delete_task(self, task_id: str) -> None:
        """Delete a task with everything it holds. This cannot be undone."""
        self._run(self._operations.delete_task(task_id))

    def messages(self, task_id: str, *, checkpoint_id: str | None = None) -> "Items[Message]":
        """The interaction history, oldest first: of the current path, or as of a checkpoint."""
        return self._list(self._operations.messages(task_id, checkpoint_id))

    def trace(self, task_id: str) -> "Items[Step]":
        """The steps of the execution, oldest first."""
        return self._list(self._operations.trace(task_id))

    def checkpoints(self, task_id: str, *, parents: bool = False) -> "Items[Checkpoint]":
        """The points a task can be rolled back to or forked at, newest first; with `parents` as a tree."""
        return self._list(self._operations.checkpoints(task_id, parents))

    def audit(self, task_id: str) -> "Items[AuditEntry]":
        """The audit entries of a task."""
        return self._list(self._operations.audit(task_id))

    def rollback(self, task_id: str, checkpoint_id: str) -> Task:
        """Make an earlier, or later, checkpoint the current one. Nothing is erased."""
        return self._run(self._operations.rollback(task_id, checkpoint_id))

    def fork(self, task_id: str, *, checkpoint_id: str | None = None, message_id: str | None = None) -> Task:
        """A new task with the history up to and including a point, by default the last completed request."""
        return self._run(self._operations.fork(task_id, checkpoint_id, message_id))

    def export_task(self, task_id: str) -> Json:
        """The whole task as one JSON document."""
        return self._run(self._operations.export_task(task_id))

    def import_task(self, document: Json) -> Task:
        """Import an exported task."""
        return self._run(self._operations.import_task(document))

    # --- the rest -------------------------------------------------------------------------------------

    def approvals(self, *, status: str | None = "pending") -> "Items[Approval]":
        """The pauses that the caller can decide."""
        return self._list(self._operations.approvals(status))

    def approval(self, request_id: str, approval_id: str) -> Approval:
        """A pause, with the description and the arguments' schema of each call's tool."""
        return self._run(self._operations.approval(request_id, approval_id))

    def me(self) -> Me:
        """Who the caller is to the service."""
        return self._run(self._operations.me())

    def tenant_tasks(
        self, *, oid: str | None = None, status: str | None = None, metadata: str | None = None
    ) -> "Items[Task]":
        """For auditors: the tasks of all users of the tenant; `metadata` is `key:value`."""
        return self._list(self._operations.tenant_tasks(oid, status, metadata))

    def health(self) -> Health:
        """The state of the service. The call is not repeated."""
        return self._run(self._operations.health())

    def _run(self, flow: Flow[T]) -> T:
        wire = self._wire()
        outcome: Outcome = None
        try:
            while True:
                outcome = wire.perform(flow.send(outcome))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()
            wire.close()

    def _list(self, flow: Stream[E, None]) -> "Items[E]":
        return Items(flow, self._wire())

    def _wire(self) -> "_Wire":
        return _Wire(self._backend, self.base_url, self._timeouts)


class Items(Generic[E]):
    """An iterator. To free its connection, exhaust it, use it in `with`, or call `close`.

    Reading on after `close` or an error raises a `ClientError`, unless the end had been reached. While one
    caller reads, further readers and `close` get a `RuntimeError`.
    """

    def __init__(self, flow: Stream[E, None], wire: "_Wire") -> None:
        self._flow = flow
        self._wire = wire
        self._outcome: Outcome = None
        self._ended = self._closed = False
        self._reader = Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        self._take()
        try:
            while True:
                step = advance(self._flow, self._outcome)
                self._outcome = None
                if isinstance(step, Emit):
                    return step.item
                if step is None:
                    self._end()
                    raise StopIteration
                self._outcome = self._wire.perform(step)
        except BaseException:
            self._free()
            raise
        finally:
            self._reader.release()

    def close(self) -> None:
        self._take()
        try:
            self._free()
        finally:
            self._reader.release()

    def _take(self) -> None:
        if not self._reader.acquire(blocking=False):
            raise RuntimeError("this is being read already; it has one reader at a time")

    def _free(self) -> None:
        self._closed = True
        self._flow.close()
        self._wire.close()

    def _end(self) -> None:
        """`ClientError` if the list was closed early: an incomplete list must not pass for a complete one."""
        if self._closed and not self._ended:
            raise ClientError("this list was closed before its end; request it again")
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventStream(Items[StreamEvent], Positioned):
    """The events of one request. Its ids are known from the first event on."""

    def __init__(self, flow: Stream[StreamEvent, None], wire: "_Wire", position: Position) -> None:
        super().__init__(flow, wire)
        self._position = position

    def _end(self) -> None:
        if not self._position.ended:
            raise self._position.closed_early()

    def answer(self) -> Answer:
        """Read to the end and return what `send` would have returned. A failure is raised."""
        with self:
            for event in self:
                if (answer := outcome_of(event)) is not None:
                    return answer
        raise self._position.keyed(UnexpectedAnswer("the stream was read to its end before"))


class _Wire:
    """Carries out effects, and holds at most one open stream."""

    def __init__(self, backend: Backend, base_url: str, timeouts: Timeouts) -> None:
        self._backend = backend
        self._base_url = base_url
        self._timeouts = timeouts
        self._response: httpx.Response | None = None
        self._chunks: Chunks | None = None

    def perform(self, effect: Effect) -> Outcome:
        match effect:
            case Fetch(call):
                return self._exchange(call)
            case Open(call):
                self.close()
                return self._exchange(call, leave_open=True)
            case Receive():
                return self._receive()
            case Close():
                self.close()
            case Sleep(seconds):
                self._backend.sleep(seconds)
            case _:
                assert_never(effect)
        return None

    def _exchange(self, call: Call, *, leave_open: bool = False) -> Reply | Lost:
        http = self._backend.http()
        token = "" if call.anonymous else self._backend.token()
        request = build_request(http, self._base_url, call, token, self._timeouts)
        return self._backend.settle(self._sent(http, request, call.most_seconds, leave_open))

    def _sent(
        self, http: httpx.Client, request: httpx.Request, most_seconds: float, leave_open: bool
    ) -> Reply | Lost:
        try:
            response = http.send(request, stream=True, follow_redirects=False)
            if leave_open and response.status_code == 200 and is_event_stream(response.headers):
                self._response = response
                self._chunks = cast(Chunks, response.iter_bytes())
                return Reply(status=response.status_code, headers=response.headers)
            body = self._body(response, most_seconds)
        except httpx.RequestError as error:
            return lost(error)
        return Reply(status=response.status_code, headers=response.headers, body=body)

    def _body(self, response: httpx.Response, seconds: float) -> bytes:
        """A whole body. httpx bounds each wait for bytes, but not all together (nor those of a head)."""
        due, chunks = monotonic() + seconds, list[bytes]()
        try:
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                if monotonic() > due:
                    late = f"no whole answer within {seconds:.1f} seconds"
                    raise httpx.ReadTimeout(late, request=response.request)
        finally:
            response.close()
        return b"".join(chunks)

    def _receive(self) -> bytes | Lost:
        return b"" if self._chunks is None else self._backend.settle(self._next(self._chunks))

    def _next(self, chunks: Chunks) -> bytes | Lost:
        try:
            return next(chunks, b"")
        except httpx.RequestError as error:
            return lost(error)

    def close(self) -> None:
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        if response is not None and chunks is not None:
            self._backend.release(response, chunks)
