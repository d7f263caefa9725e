"""What every protocol needs, written once: identify, limit, submit, decide, follow, outcome, cancel.

A protocol turns what its clients send into a `NewMessage` or a `Command`, hands it to the exchange, and folds
the recorded events into frames of its own. What a viewer may not see is left out here, so that no protocol
forgets it.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive

from tealagents.api import bodies, setups, sse
from tealagents.api.bearer import Bearer, ProtectedResource
from tealagents.api.http import left, reported, status_of
from tealagents.api.settings import ApiSettings
from tealagents.domain.errors import (
    Draining,
    InvalidRequest,
    NotFound,
    PersistenceUnavailable,
    TealError,
    TooLarge,
    let_go_of_frames,
)
from tealagents.domain.events import Event, Paused, Recorded, Terminal, redacted
from tealagents.domain.models import (
    Approval,
    Caller,
    Failure,
    Head,
    Json,
    RequestRecord,
    User,
)
from tealagents.domain.ports import Authenticator, ToolSpec
from tealagents.engine.agent import AgentSpec
from tealagents.engine.approvals import Approvals, Command
from tealagents.engine.following import check_kept, nothing_left
from tealagents.engine.run import shutting_down
from tealagents.engine.service import Service, Submitted
from tealagents.state import forking, keys
from tealagents.state.audit_chain import canonical
from tealagents.state.catalog import Catalog
from tealagents.state.changes import Changes, check_metadata
from tealagents.state.erasing import Eraser
from tealagents.state.history import History
from tealagents.state.importing import TaskImporter
from tealagents.state.new_message import Earlier, Key, NewMessage
from tealagents.state.owner_directory import Kind, anothers
from tealagents.state.records import RecordStore, Stored
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)
R = TypeVar("R")

#: tasks of one user that are forked at the same time: each fork holds in memory what it copies
COPIES = 2
#: characters of the longest idempotency key
LONGEST_KEY = 255
_KEY = re.compile(rf"[!-~](?:[ -~]{{0,{LONGEST_KEY - 2}}}[!-~])?", re.ASCII)

#: the key of an ASGI scope under which `identify` leaves the caller's user
_USER = "tealagents.user"


class Fold(Protocol):
    """Recorded events as the bytes that a protocol sends for them."""

    def __call__(self, recorded: Recorded, /) -> bytes:
        """The bytes of an event; empty for one that is not shown."""
        ...

    def failed(self, error: TealError, /) -> bytes:
        """The bytes of an error that is no part of what was recorded: the end cannot be reported."""
        ...


class RequestView(Struct, frozen=True, kw_only=True):
    """A request, as one caller sees it."""

    record: RequestRecord
    partition: str
    caller: Caller
    #: the caller may read what was said: its owner, or an auditor; an approver sees ids and status alone
    own: bool
    #: the caller may end the request by leaving: it was sent on this connection
    sender: bool = False
    #: answered with the outcome of an earlier message under the same idempotency key, or of the same decision
    replayed: bool = False
    #: the stream starts after the event with this id
    after: int = 0

    @property
    def failure(self) -> Failure | None:
        """Why the request ended without an answer; its text is for the owner alone."""
        error = self.record.error
        if error is None or self.own:
            return error
        return error.redacted(self.record.status)


class ShownApproval(Struct, frozen=True):
    """A pause, and the tools of its calls by their ids: as they were when it was shown, or None."""

    approval: Approval
    tools: Mapping[str, ToolSpec | None]


class Exchange:
    """One agent, as protocols talk to it."""

    def __init__(self, service: Service, authenticator: Authenticator, settings: ApiSettings) -> None:
        self.service = service
        self.authenticator = authenticator
        self.settings = settings
        self.catalog = Catalog(service.tasks)
        self.changes = Changes(service.tasks)
        self.eraser = Eraser(service.tasks)
        self.importer = TaskImporter(service.tasks)
        self._approvals = Approvals(service)
        self._bearer = Bearer(authenticator, service.agent.forward_headers)
        #: user → how many more tasks of theirs may be forked at the same time
        self._copying: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        #: what `GET /` lists: name of a protocol → its paths
        self.urls: dict[str, Mapping[str, str]] = {}
        #: work that no client waits for (`in_background`)
        self._background: set[asyncio.Task[object]] = set()

    @property
    def tasks(self) -> Tasks:
        return self.service.tasks

    @property
    def history(self) -> History:
        return self.service.tasks.history

    @property
    def agent(self) -> AgentSpec:
        return self.service.agent

    @property
    def records(self) -> RecordStore:
        return self.service.tasks.records

    @property
    def prefix(self) -> str:
        return self.settings.prefix

    # --- who asks --------------------------------------------------------------------------------

    async def identify(self, connection: HTTPConnection) -> Caller:
        """The caller. Raises `Unauthenticated`, `InsufficientScope`, `AuthUnavailable`."""
        caller = await self._bearer.caller(connection)
        connection.scope[_USER] = caller.user.key
        return caller

    def resource(self, path: str) -> ProtectedResource:
        """What clients that look for a token can read about the protocol at `path`."""
        return ProtectedResource(self.authenticator, path, self.settings.public_url)

    async def locate(
        self, caller: Caller, kind: Kind, identifier: str, *, reading: bool = False, deciding: bool = False
    ) -> str:
        """The partition of a record that the caller may use; see `Directory.locate`."""
        self.agent.observer.named(**{f"{kind.__name__}_id": identifier})
        directory = self.tasks.directory
        return await directory.locate(caller, kind, identifier, reading=reading, deciding=deciding)

    def partition(self, caller: Caller) -> str:
        """The partition of what is the caller's own."""
        return self.records.partition(caller.user)

    # --- limits ----------------------------------------------------------------------------------

    async def body(self, request: Request, *, empty: Any = None) -> Any:
        """The JSON value of the body, within the limits; `empty`, if given, where there is no body."""
        none = (
            request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
        )
        if none and empty is not None:
            return empty
        bodies.require_json(request)
        return await self.read(request, bodies.parse)

    async def read(self, request: Request, use: Callable[[bytes], R]) -> R:
        """What `use` makes of the body as it came, within the limits."""
        user, most = request.scope.get(_USER, ""), self.settings.max_body_bytes
        return await bodies.read(request, most, user, self.service.admission, use)

    def holding(self, caller: Caller, size: int) -> AbstractContextManager[None]:
        """Counts `size` bytes against the caller's budget while work on them lasts. `Overloaded`."""
        return self.service.admission.answering.taken(caller.user.key, size)

    def _check_earlier(self, said: Sequence[Earlier]) -> None:
        for each in said:
            bodies.check_count(each.items, self.settings.max_items, "earlier", "a message of ")
        self.check_size(sum(each.size for each in said))

    def check_size(self, size: int) -> None:
        """`TooLarge` for more earlier messages than a body could hold: it may refer to them instead."""
        most = self.settings.max_body_bytes
        if size > most:
            raise TooLarge(f"The earlier messages are larger than {most} bytes (`limits.max_body_bytes`).")

    # --- sending ---------------------------------------------------------------------------------

    async def submit(
        self, caller: Caller, message: NewMessage, key: Key | None, *, streamed: bool
    ) -> RequestView:
        """Stores a message and begins to answer it. `streamed`: its events are followed, now or later.

        Raises every refusal of a message: `TaskBusy`, `ApprovalPending`, `NotOwner`, `Overloaded`, …
        """
        bodies.check_count(message.items, self.settings.max_items, "items")
        self._check_earlier(message.earlier)
        check_metadata(message.metadata)
        setups.check(message.setup, self.agent.toolbox)
        where = {"session_id": message.session_id, "task_id": message.task_id}
        self.agent.observer.named(**{name: given for name, given in where.items() if given is not None})
        sent = await self.service.submit(caller, message, key, streamed=streamed)
        return self._view(caller, sent)

    async def open(self, caller: Caller, metadata: Json, earlier: Sequence[Earlier]) -> Head:
        """A new task without a request; it may begin with what was said before."""
        check_metadata(metadata)
        self._check_earlier(earlier)
        with self.holding(caller, sum(each.size for each in earlier)):
            return await self.service.submission.open(caller, metadata, earlier)

    async def add(self, caller: Caller, partition: str, head: Head, said: Sequence[Earlier]) -> Head:
        """Appends messages from elsewhere to a task; see `Changes.add` for what it raises."""
        self._check_earlier(said)
        remote = self.agent.thread_kind == "remote"
        with self.holding(caller, sum(each.size for each in said)):
            return await self.changes.add(partition, head.task_id, caller.user, said, remote=remote)

    async def fork(
        self,
        caller: Caller,
        partition: str,
        task_id: str,
        *,
        checkpoint_id: str | None = None,
        message_id: str | None = None,
        failed: RequestRecord | None = None,
        expires_at: datetime | None = None,
    ) -> Head:
        """A new task with the history of another one, as `forking.fork`; it waits for others of its user."""
        async with self.copying(caller):
            return await forking.fork(
                self.tasks,
                partition,
                task_id,
                caller.user,
                checkpoint_id=checkpoint_id,
                message_id=message_id,
                failed=failed,
                expires_at=expires_at,
            )

    async def branch(
        self,
        caller: Caller,
        behind: RequestRecord,
        message: NewMessage,
        key: Key | None,
        *,
        streamed: bool,
    ) -> RequestView:
        """Sends a message from an earlier point: to a fork of the task after a request that has ended.

        If the message is refused, the fork is erased. If it is in doubt, the fork stays only if the message
        was stored. A key that was used before is answered without another fork.
        """
        partition = await self.locate(caller, keys.task, behind.task_id)
        if key is not None and await self.service.submission.first_use(caller, key) is not None:
            return await self.submit(caller, message, key, streamed=streamed)
        answered = behind.status == "Completed"
        with self.holding(caller, message.size):
            forked = await self.fork(
                caller,
                partition,
                behind.task_id,
                checkpoint_id=behind.request_id if answered else None,
                failed=None if answered else behind,
                expires_at=message.expires_at,
            )
        try:
            view = await self.submit(caller, replace(message, task_id=forked.task_id), key, streamed=streamed)
        except BaseException:
            with suppress(TealError):
                await asyncio.shield(self._drop_fork(partition, forked))
            raise
        if view.record.task_id != forked.task_id:  # another message under the same key was quicker
            await self.eraser.delete_task(partition, forked.task_id)
        return view

    def copying(self, caller: Caller) -> asyncio.Semaphore:
        """Limits one user's forks at the same time: each holds in memory what it copies."""
        return self._copying.setdefault(caller.user.key, asyncio.Semaphore(COPIES))

    async def _drop_fork(self, partition: str, forked: Head) -> None:
        """Erases a fork unless its message was stored after all. A message still being stored then fails."""
        found = await self.tasks.stored_head(partition, forked.task_id)
        if found.value.tail_seq == forked.tail_seq:
            await self.eraser.delete_even_running(partition, found)

    async def decide(
        self, caller: Caller, request_id: str, command: Command, *, streamed: bool
    ) -> RequestView:
        """Carries out a decision on a pause, once; see `Approvals.resume` for what it raises."""
        if command.setup is not None:
            setups.check(command.setup, self.agent.toolbox)
        sent = await self._approvals.resume(caller, request_id, command, streamed=streamed)
        return self._view(caller, sent)

    def _view(self, caller: Caller, sent: Submitted) -> RequestView:
        self.agent.observer.named(**sent.request.ids)
        own = sent.partition == self.partition(caller)
        return RequestView(
            record=sent.request,
            partition=sent.partition,
            caller=caller,
            own=own,
            sender=own and not sent.replayed,
            replayed=sent.replayed,
            after=sent.after,
        )

    # --- reading ---------------------------------------------------------------------------------

    async def approval(self, caller: Caller, request_id: str, approval_id: str) -> ShownApproval:
        """A pause that the caller may read or decide, with the tools of its calls. `NotFound`, `NotOwner`."""
        partition = await self.locate(caller, keys.request, request_id, reading=True, deciding=True)
        if partition != self.partition(caller) and not caller.auditor:
            record = (await self.tasks.request(partition, request_id)).value
            if not record.approvals:  # an approver may see what asks for approval, and nothing else
                raise anothers(keys.request, request_id)
        approval = await self.catalog.approval(partition, request_id, approval_id)
        if approval.is_closed_to(caller.user) and not caller.auditor:
            raise anothers(keys.request, request_id)
        toolbox = self.agent.toolbox.of(approval.owner).with_brought(approval.brought)
        return ShownApproval(approval, {call.id: toolbox.as_shown(call) for call in approval.calls})

    async def task(self, caller: Caller, task_id: str) -> tuple[str, Head]:
        """A task that the caller may change, as its partition and its head. `NotFound`, `NotOwner`."""
        return await self._found(caller, keys.task, task_id, self.tasks.head)

    async def request(self, caller: Caller, request_id: str) -> RequestView:
        """A request that the caller may read. `NotFound`, `NotOwner`."""
        read = self.tasks.request
        partition, record = await self._found(caller, keys.request, request_id, read, reading=True)
        if record.pause is not None:
            record = replace(record, pause=record.pause.shown_to(caller.user))
        return RequestView(record=record, partition=partition, caller=caller, own=True)

    async def _found(
        self,
        caller: Caller,
        kind: Kind,
        identifier: str,
        read: Callable[[str, str], Awaitable[Stored[R]]],
        *,
        reading: bool = False,
    ) -> tuple[str, R]:
        """What `read` finds in the partition that `locate` gives. The caller's own is read only once."""
        self.agent.observer.named(**{f"{kind.__name__}_id": identifier})
        own = self.partition(caller)
        with suppress(NotFound):
            return own, (await read(own, identifier)).value
        partition = await self.locate(caller, kind, identifier, reading=reading)
        return partition, (await read(partition, identifier)).value

    def rest(self, view: RequestView, *, after: int) -> RequestView | None:
        """The view that begins after an event; None if nothing follows. `NotFound` if the events are gone."""
        check_kept(self.tasks, view.record)
        return None if nothing_left(view.record, after) else replace(view, after=after)

    def follow(self, view: RequestView) -> AsyncGenerator[Sequence[Recorded]]:
        """The events behind `view.after`, some at a time, to the one that ends the stream.

        Where the process shuts down, events of a request that runs elsewhere end without that one.
        """
        events = self.service.follow(view.partition, view.record.request_id, view.after)
        if view.partition == self.partition(view.caller):
            return events
        return _seen(events, partial(_shown_to, view.caller.user) if view.own else redacted)

    async def follow_unbroken(self, view: RequestView) -> AsyncGenerator[Sequence[Recorded]]:
        """The events as `follow`, but `Draining` where they would end without the last one.

        Most clients take a stream that just ends for a whole answer.
        """
        last: Event | None = None
        async with aclosing(self.follow(view)) as events:
            async for batch in events:
                yield batch
                if batch:  # an approver sees nothing of some
                    last = batch[-1].event
        if not isinstance(last, Terminal):
            raise Draining("Ask again under the same id").with_ids(**view.record.ids)

    async def outcome(self, view: RequestView, receive: Receive | None = None) -> RequestRecord:
        """The request as it ended or paused. Raises what kept its end from being stored.

        With `on_disconnect: cancel`, a sender who leaves, as `receive` reports, ends it.
        """
        with self.ended_by_leaving(view, receive):
            return await self.service.outcome(Submitted(view.record, view.partition, replayed=view.replayed))

    @contextmanager
    def ended_by_leaving(self, view: RequestView, receive: Receive | None) -> Iterator[None]:
        """With `on_disconnect: cancel`, a sender who leaves meanwhile, as `receive` reports, cancels it."""
        if receive is None or not self._leaving_cancels(view):
            yield
            return
        leaving = asyncio.ensure_future(self._canceled_when_left(view, receive))
        try:
            yield
        finally:
            leaving.cancel()

    async def _canceled_when_left(self, view: RequestView, receive: Receive) -> None:
        await left(receive)
        self._cancel_left(view)

    def stream(
        self,
        view: RequestView,
        fold: Fold,
        *,
        headers: Mapping[str, str] | None = None,
        events: AsyncGenerator[Sequence[Recorded]] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Response:
        """Server-sent events: what `fold` makes of each event, and of an end that is unknown.

        `events` are those of `follow_unbroken`, or a protocol's own choice of them. `on_end` is called once
        nothing more is sent, whether or not the client has stayed.
        """
        return sse.EventStreamResponse(
            self._frames(view, events or self.follow_unbroken(view), fold),
            keepalive_seconds=self.settings.keepalive_seconds,
            headers=headers,
            on_disconnect=partial(self._cancel_left, view) if self._leaving_cancels(view) else None,
            on_end=on_end,
        )

    async def _frames(
        self, view: RequestView, events: AsyncGenerator[Sequence[Recorded]], fold: Fold
    ) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(events):
                async for batch in events:
                    yield b"".join(map(fold, batch))
        except TealError as error:
            yield fold.failed(error.with_ids(**view.record.ids))
        except Exception as error:
            self.faulty(error)  # the server logs it
            raise

    # --- errors ----------------------------------------------------------------------------------

    def cut_off(self, canceled: asyncio.CancelledError) -> BaseException:
        """The error to answer a canceled call with.

        At the end of a drain the server cancels the calls that remain, for example those that wait for the
        store or the auth provider, and would answer them with a text of its own.
        """
        return shutting_down() if self.service.admission.draining else canceled

    def refused(self, error: Exception) -> TealError:
        """Called by the protocol for each error that it answers with: counted, and logged where ours.

        Returns it as a client may see it.
        """
        if not isinstance(error, TealError):
            facts = self.agent.observer.named()
            log.error("internal error in a call", exc_info=error, extra={"facts": facts})
            return self.faulty(error)
        named = self.agent.observer.named(**error.ids)
        if status_of(error) >= 500:
            log.warning("%s: %s", error.code, error, extra={"facts": named})
        self.agent.observer.refused(error)
        let_go_of_frames(error)
        return reported(error)

    def faulty(self, error: Exception) -> TealError:
        """Called instead of `refused` for a fault that is logged elsewhere, such as by the server: counted.

        Returns it as a client may see it.
        """
        shown = reported(error)
        self.agent.observer.refused(shown)
        return shown

    # --- ending ----------------------------------------------------------------------------------

    async def cancel(self, caller: Caller, request_id: str) -> RequestRecord:
        """Ends a running, paused or waiting request `Canceled`; one that has ended stays as it is."""
        try:
            partition = await self.locate(caller, keys.request, request_id)
        except PersistenceUnavailable:  # the caller's own is stopped here without the store
            partition = self.partition(caller)
        return await self.service.cancel(partition, request_id, caller.user.key)

    def _cancel_left(self, view: RequestView) -> None:
        """Cancels a request whose sender has left."""
        user = view.caller.user.key
        self.in_background(self.service.cancel(view.partition, view.record.request_id, user))

    def _leaving_cancels(self, view: RequestView) -> bool:
        if view.record.client.get("background"):  # as it was asked for
            return False
        return view.sender and self.agent.on_disconnect == "cancel"

    def in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Does work to its end, although no client waits for it."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[object]) -> None:
        self._background.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, TealError):
            log.warning("background work failed: %s", error)
        else:  # without the error's text, which may quote a message
            log.warning("background work failed", exc_info=error)


def key_of(caller: Caller, given: str, value: Any) -> Key:
    """A caller's idempotency key `given` with a message whose JSON is `value`; 1.0 and 1e0 are one number.

    Its name, which no store encrypts, does not show that two users have given the same.
    """
    digest = hashlib.sha256(canonical(_by_value(value))).hexdigest()
    return Key(hashlib.sha256(f"{caller.user.key}\0{given}".encode()).hexdigest(), digest)


def key_in(caller: Caller, request: Request, value: Any) -> Key | None:
    """The key in the header `Idempotency-Key`, with a body whose JSON is `value`. `InvalidRequest`."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        text = f"must be one text of 1 to {LONGEST_KEY} printable ASCII characters"
        raise InvalidRequest("Idempotency-Key", text)
    return key_of(caller, given[0], value)


def _by_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _by_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_by_value(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _seen(
    events: AsyncGenerator[Sequence[Recorded]], see: Callable[[Event], Event | None]
) -> AsyncGenerator[Sequence[Recorded]]:
    """The events that a viewer other than the owner may see."""
    async with aclosing(events):
        async for batch in events:
            seen = [(each.id, see(each.event)) for each in batch]
            yield [Recorded(event_id, event) for event_id, event in seen if event is not None]


def _shown_to(user: User, event: Event) -> Event:
    """An event as an auditor sees it."""
    if isinstance(event, Paused) and event.approval is not None:
        return Paused(event.approval.shown_to(user))
    return event
