"""Turns a message into a request: one commit stores it and takes its task, or a place in the queue."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import (
    AlreadyExists,
    CheckpointMoved,
    Conflict,
    CorruptState,
    IdempotencyKeyReused,
    NotFound,
    NotOwner,
    Overloaded,
    SessionMismatch,
)
from tealagents.domain.models import (
    Caller,
    Deleting,
    Head,
    IdempotencyRecord,
    Json,
    Message,
    Note,
    RequestRecord,
    Session,
)
from tealagents.domain.ports import Record
from tealagents.state import keys
from tealagents.state.audit_chain import draft
from tealagents.state.codec import checked
from tealagents.state.endings import SUPERSEDED
from tealagents.state.head_commits import Written
from tealagents.state.importing import Importing
from tealagents.state.new_message import Earlier, Key, NewMessage, check_earlier, message_of
from tealagents.state.new_task import new_task
from tealagents.state.queue import QueuedRequest, keep_waiting
from tealagents.state.records import Stored
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks, occupied
from tealagents.state.transitions import Transition, queued, received

#: task id → the log (`Head.log_id`) whose messages are cached, and the first numbers of the log records to
#: read again, so that damage to cached ones is noticed
RecheckKeys = Callable[[str], tuple[str, Sequence[int]]]


class Replayed(Struct, frozen=True):
    """The idempotency key was used before: the request that its first use started."""

    request: Stored[RequestRecord]
    partition: str


class GivesWay(Struct, frozen=True):
    """The task runs, and by the config the running request has to give way to the message."""

    partition: str
    request_id: str


class _Found(Struct, frozen=True):
    """All records that the outcome of a message depends on, as read."""

    task: Stored[Head] | None = None
    session: Stored[Session] | None = None
    key: Stored[IdempotencyRecord] | None = None
    #: a task that already has the id that the client has chosen for a new one
    taken: Stored[Head] | None = None
    #: an unfinished import of such a task
    importing: Stored[Importing] | None = None
    deleting: Stored[Deleting] | None = None


Begun = TaskWriter | QueuedRequest | Replayed | GivesWay


class Submission:
    """Submits messages: stores them as requests, and takes tasks for them."""

    def __init__(self, tasks: Tasks, recheck_keys: RecheckKeys) -> None:
        self._tasks = tasks
        self._recheck_keys = recheck_keys

    async def begin(
        self, caller: Caller, message: NewMessage, key: Key | None, *, streamed: bool = True
    ) -> Begun:
        """Stores a message as a new request, and takes its task for it if the task is free.

        Everything is one commit: the task, the session if it is new, the request, the message, the key.
        `streamed` is False if the client learns of the request only when it has ended.

        Raises `IdempotencyKeyReused`, `NotFound`, `NotOwner`, `AlreadyExists`, `SessionMismatch`,
        `CheckpointMoved`, `TaskBusy`, `ApprovalPending`, `Overloaded` (a full queue), `InvalidRequest` (too
        many earlier messages).
        """
        check_earlier(message.earlier)
        attempt = _Attempt(self._tasks, self._recheck_keys, caller, message, key, streamed=streamed)
        return await attempt.begin()

    async def first_use(self, caller: Caller, key: Key) -> Replayed | None:
        """The first use of this key, if there was one. Raises `IdempotencyKeyReused`, `NotFound`."""
        records = self._tasks.records
        partition = records.partition(caller.user)
        known = await records.get(partition, keys.idempotency(key.name), IdempotencyRecord)
        return await _replay(self._tasks, partition, key, known.value) if known is not None else None

    async def open(self, caller: Caller, metadata: Json, earlier: Sequence[Earlier]) -> Head:
        """A new task without a request: it holds the earlier messages, and waits for its first message."""
        check_earlier(earlier)
        message = NewMessage(items=(), metadata=metadata, earlier=tuple(earlier))
        return await _Attempt(self._tasks, self._recheck_keys, caller, message, None, streamed=False).open()


async def _replay(tasks: Tasks, partition: str, key: Key, known: IdempotencyRecord) -> Replayed:
    try:
        request = await tasks.request(partition, known.request_id)  # first: no error names a deleted one
    except NotFound as error:  # the client knows the key alone, no request
        raise NotFound(
            "What was sent first under this key was deleted, or has expired. If it is still wanted, send it "
            "again under a new idempotency key or id."
        ).with_ids(**error.ids) from None
    if known.digest != key.digest:
        raise IdempotencyKeyReused(
            request_id=known.request_id, task_id=known.task_id, session_id=known.session_id
        )
    return Replayed(request, partition)


class _Attempt:
    """The submission of one message."""

    def __init__(
        self,
        tasks: Tasks,
        recheck_keys: RecheckKeys,
        caller: Caller,
        message: NewMessage,
        key: Key | None,
        *,
        streamed: bool,
    ) -> None:
        self._tasks = tasks
        self._recheck_keys = recheck_keys
        self._caller = caller
        self._message = message
        self._key = key
        self._streamed = streamed
        self._partition = tasks.records.partition(caller.user)
        self._found = _Found()
        #: the user's message as it is stored
        self._stored: Message | None = None

    async def begin(self) -> Begun:
        await self._tasks.directory.introduce(self._caller.user)
        written: Written | Replayed | GivesWay = await self._tasks.heads.transact(
            self._partition, self._look, self._decide
        )
        if isinstance(written, Replayed | GivesWay):
            return written
        request = written.request
        assert request is not None
        if request.status == "Queued":
            return QueuedRequest(self._partition, request, self._deadline(request))
        return TaskWriter(self._tasks, written, self._stored)

    async def open(self) -> Head:
        """A new task that waits for its first message."""
        await self._tasks.directory.introduce(self._caller.user)
        written = await self._tasks.heads.transact(self._partition, self._look, self._opened)
        return written.head

    # --- reading ---------------------------------------------------------------------------------

    async def _look(self) -> Stored[Head] | None:
        """Reads, at once, all that the message's outcome depends on. Returns the head that it replaces."""
        await self._tasks.lease.ensure()
        message, key, partition, records = self._message, self._key, self._partition, self._tasks.records
        wanted: dict[str, tuple[str, type[Any]]] = {}
        logged: list[str] = []
        log_id = ""
        if message.task_id:
            wanted["task"] = keys.task(message.task_id), Head
            wanted["deleting"] = keys.DELETING, Deleting
            log_id, log_records = self._recheck_keys(message.task_id)
            logged = [keys.log(message.task_id, first) for first in log_records]
        else:
            if message.session_id:
                wanted["session"] = keys.session(message.session_id), Session
            if message.new_task_id:
                wanted["taken"] = keys.task(message.new_task_id), Head
                wanted["importing"] = keys.importing(message.new_task_id), Importing
        if key:
            wanted["key"] = keys.idempotency(key.name), IdempotencyRecord
        names = [*(name for name, _ in wanted.values()), *logged]
        read = await records.store.read(partition, names) if names else []
        found = dict(zip(names, read, strict=True))
        self._found = _Found(
            **{
                what: records.open(partition, name, found[name], kind)
                for what, (name, kind) in wanted.items()
            }
        )
        task = self._found.task
        if task is not None and not task.value.erased and task.value.log_id == log_id:
            for name in logged:
                await self._check_log_record(name, found[name], task.value.task_id)
        taken = self._found.taken  # perhaps the tombstone of a first message that was never finished
        return taken if taken is not None and taken.value.making else task

    async def _check_log_record(self, name: str, record: Record | None, task_id: str) -> None:
        try:
            if record is None:
                raise CorruptState(name, "is missing")
            checked(self._partition, name, record.value)
        except CorruptState as damage:
            error = await self._tasks.records.unless_deleted(self._partition, task_id, damage)
            raise error.with_ids(task_id=task_id) from None

    # --- deciding --------------------------------------------------------------------------------

    async def _decide(self, found: Stored[Head] | None) -> Transition | Replayed | GivesWay:
        if self._key is not None and self._found.key is not None:
            return await _replay(self._tasks, self._partition, self._key, self._found.key.value)
        if self._message.task_id is None:
            return await self._new_task()
        return await self._follow_up(self._message.task_id, found)

    async def _opened(self, found: Stored[Head] | None) -> Transition:
        task = await self._planned()
        entry = draft("task.opened", self._caller.user.key, None, Note("opened"))
        return replace(task, head=replace(task.head, status="Completed"), entries=[*task.entries, entry])

    async def _new_task(self) -> Transition:
        task = await self._planned()
        # the entries of the message's request come after those of the earlier messages
        behind = replace(task.head, tail_seq=task.head.tail_seq + len(task.entries))
        transition = self._received(behind, task.head.created_at)
        return replace(
            transition,
            head=replace(transition.head, tail_seq=task.head.tail_seq),
            entries=[*task.entries, *transition.entries],
            put={**task.put, **transition.put},
            expect={**task.expect, **transition.expect},
        )

    async def _planned(self) -> Transition:
        found, wanted = self._found, self._message.new_task_id
        if found.importing is not None:
            raise AlreadyExists(
                f"The task {wanted} is just being imported. If that was broken off, import it again.",
                task_id=wanted,
            )
        task = await new_task(self._tasks, self._message, self._caller.user, found.session, found.taken)
        if wanted is None:
            return task
        return replace(task, expect={**task.expect, keys.importing(wanted): None})

    async def _follow_up(self, task_id: str, found: Stored[Head] | None) -> Transition | GivesWay:
        """Decides on a message to an existing task."""
        tasks, message, partition = self._tasks, self._message, self._partition
        if found is None:
            await tasks.directory.foreign(self._caller, keys.task, task_id)
        stored = await tasks.end_due(partition, tasks.present(found, task_id, self._found.deleting))
        if found is None or stored.version != found.version:
            raise Conflict(keys.task(task_id))
        head, now = stored.value, tasks.records.clock.now()
        if message.session_id is not None and message.session_id != head.session_id:
            await self._refuse_session(head, message.session_id)
        self._check_place(head)
        if head.pending is not None:
            await self._end_pause(stored)
            raise Conflict(keys.task(task_id))
        if tasks.rules.concurrency == "enqueue" and not head.idle:
            self._check_room(head)
            return self._queued(head, now)
        if head.running is None:
            return self._received(head, now)
        if tasks.rules.concurrency in ("interrupt", "rollback"):
            return GivesWay(partition, head.running.request_id)
        raise occupied(head, head.running)

    def _check_place(self, head: Head) -> None:
        """`CheckpointMoved` unless the task is where the message is to continue it: idle at its checkpoint,
        if it names one, and without a request that its sender has not seen."""
        wanted, end = self._message.at_checkpoint, self._message.at_end
        if wanted is not None and not (head.idle and head.checkpoint_id == wanted):
            raise CheckpointMoved("The task continues from another checkpoint.", **head.ids)
        if end is not None and head.end != end:
            raise CheckpointMoved("The task has changed meanwhile.", **head.ids)

    async def _end_pause(self, stored: Stored[Head]) -> None:
        """Cancels the pause that the task waits in, if the message says so; otherwise `ApprovalPending`."""
        head, pending = stored.value, stored.value.pending
        assert pending is not None
        if not self._message.supersede:
            raise occupied(head, pending)
        if head.queue:  # the message will be queued; if there is no room, it must not end the pause
            self._check_room(head)
        actor = self._caller.user.key
        await self._tasks.end(self._partition, stored, pending.request_id, SUPERSEDED, actor)

    def _check_room(self, head: Head) -> None:
        most = self._tasks.rules.max_queued
        if len(head.queue) >= most:
            raise Overloaded(
                f"Too many messages wait on this task (at most {most}). Wait for one to end."
            ).with_ids(**head.ids)

    async def _refuse_session(self, head: Head, session_id: str) -> None:
        """Raises `NotOwner` if the session is another user's, and `SessionMismatch` otherwise."""
        tasks = self._tasks
        key = keys.session(session_id)
        if await tasks.records.version(self._partition, key) is None:
            owner = await tasks.directory.owner_of(session_id, key)
            if owner is not None and owner != self._caller.user:
                raise NotOwner(
                    f"The session {session_id} belongs to another user. Check the id.",
                    task_id=head.task_id,
                    session_id=session_id,
                )
        raise SessionMismatch(
            f"The task {head.task_id} belongs to another session. Send its own session_id, or none.",
        ).with_ids(**head.ids)

    # --- what is written -------------------------------------------------------------------------

    def _received(self, head: Head, now: datetime) -> Transition:
        request = self._request(head, now, status="Running")
        self._stored = self._user_message(request)
        return replace(
            received(head, request, self._stored, self._caller.user.key, now),
            expect=self._key_absent(),
            fresh=True,
            # with a key it is synced: after a power cut, a retry must not make the model answer twice
            unsynced=not self._streamed and self._key is None,
        )

    def _queued(self, head: Head, now: datetime) -> Transition:
        request = self._request(head, now, status="Queued")
        waiting, parts = keep_waiting(self._user_message(request))
        request = replace(request, waiting=waiting)
        actor = self._caller.user.key
        transition = queued(head, request, self._deadline(request), actor, now)
        return replace(transition, expect=self._key_absent(), takes=True, parts=parts, fresh=True)

    def _deadline(self, request: RequestRecord) -> datetime:
        return request.created_at + timedelta(seconds=self._tasks.rules.request_timeout_seconds)

    def _key_absent(self) -> dict[str, str | None]:
        return {keys.idempotency(self._key.name): None} if self._key is not None else {}

    def _request(self, head: Head, now: datetime, *, status: Literal["Running", "Queued"]) -> RequestRecord:
        message, key, waits = self._message, self._key, status == "Queued"
        return RequestRecord(
            request_id=ids.new_id(self._caller.user.key),
            task_id=head.task_id,
            session_id=head.session_id,
            status=status,
            created_at=now,
            started_at=None if waits else now,
            worker_id=self._tasks.lease.worker_id,
            source=self._tasks.source,
            parent=head.checkpoint_id,
            first_seq=0 if waits else head.tail_seq + 1,
            last_event=1,
            idempotency=(key.name, key.digest) if key else None,
            **message.per_request,
        )

    def _user_message(self, request: RequestRecord) -> Message:
        return message_of(request.request_id, "user", self._message.items, request.created_at)
