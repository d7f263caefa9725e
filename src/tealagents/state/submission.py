"""How a message becomes a request: one commit stores it and takes its task, or its place in the queue."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, lifecycle
from tealagents.domain.errors import (
    ApprovalPending,
    Conflict,
    CorruptState,
    IdempotencyKeyReused,
    NotFound,
    NotOwner,
    Overloaded,
    PersistenceUnavailable,
    SessionMismatch,
    TaskBusy,
)
from tealagents.domain.models import (
    Caller,
    Head,
    IdempotencyRecord,
    Item,
    Json,
    Message,
    MessageBody,
    Note,
    RequestRecord,
    Session,
)
from tealagents.domain.ports import Record
from tealagents.state import keys, owner_directory
from tealagents.state.audit_chain import Draft, draft
from tealagents.state.codec import checked, decoder, encode_json
from tealagents.state.records import BlobRef, Stored
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import SUPERSEDED, Tasks

T = TypeVar("T")

#: messages that can wait on one task, whatever the config says: its head names them all
MOST_QUEUED = 2000


#: the batches of a task to check besides, because what was made of them is not read again, and whose log
#: (`Head.log_id`) they are of
RecheckKeys = Callable[[str], tuple[str, Sequence[int]]]


class NewMessage(Struct, frozen=True, kw_only=True):
    """What a client sends."""

    items: tuple[Item, ...]
    session_id: str | None = None
    task_id: str | None = None
    user_context: dict[str, str] = {}
    metadata: Json = {}
    supersede: bool = False


class Key(Struct, frozen=True):
    """An idempotency key: the digest that names its record, and the digest of the body it came with."""

    name: str
    digest: str


class Replayed(Struct, frozen=True):
    """A message whose idempotency key is already used: what became of the first."""

    request: Stored[RequestRecord]
    partition: str


class Waiting(Struct, frozen=True):
    """A message that waits its turn."""

    partition: str
    request: RequestRecord
    deadline: datetime


class BusyElsewhere(Struct, frozen=True):
    """The task runs, and the config says that the running request gives way."""

    partition: str
    request_id: str
    worker_id: str


class _Found(Struct, frozen=True):
    task: Stored[Head] | None
    session: Stored[Session] | None
    key: Stored[IdempotencyRecord] | None


class _Plan(Struct, frozen=True):
    """How a message begins: on which head, expecting and writing what besides."""

    head: Head
    expect: dict[str, str | None]
    put: dict[str, object]
    request_id: str
    waits: bool


Begun = TaskWriter | Waiting | Replayed | BusyElsewhere


class Submission:
    """Turns messages into requests, and takes tasks for them."""

    def __init__(self, tasks: Tasks, recheck_keys: RecheckKeys = lambda _: ("", ())) -> None:
        self._tasks = tasks
        self._recheck_keys = recheck_keys
        self._records = tasks.records
        self._lease = tasks.lease
        self._directory = tasks.directory
        self._rules = tasks.rules

    # --- beginning -------------------------------------------------------------------------------

    async def begin(
        self, caller: Caller, message: NewMessage, key: Key | None, *, announced: bool = True
    ) -> Begun:
        """Stores a message as a new request, and takes its task for it if it is free.

        Everything is one commit: the task, the session if it is new, the request, the message, the key.
        `announced` is False where the answer to the client waits for the request's end.
        """
        tag = await self._directory.introduce(caller.user)
        partition = self._records.partition(caller.user)
        while True:
            await self._lease.ensure()
            found = await self._look(partition, message, key)
            if key is not None and (first := await self._first_use(partition, key, found.key)):
                return first
            if message.task_id is None:
                plan = await self._plan_new(caller, tag, partition, message, found)
            else:
                continued = await self._plan_follow_on(caller, tag, partition, message, found)
                if isinstance(continued, BusyElsewhere):
                    return continued
                if continued is None:
                    continue
                plan = continued
            try:
                with self._tasks.beginning(partition, plan.request_id):
                    return await self._commit_begin(
                        caller, partition, message, key, plan, announced=announced
                    )
            except Conflict:
                if not message.task_id:  # the bodies of a task that will never be
                    await self._records.erase_log(partition, plan.head.task_id)
                continue
            except PersistenceUnavailable as error:
                raise error.with_ids(
                    session_id=plan.head.session_id,
                    task_id=plan.head.task_id,
                    request_id=plan.request_id,
                ) from None

    async def _look(self, partition: str, message: NewMessage, key: Key | None) -> "_Found":
        """All that a message's fate depends on, in one read."""
        names = []
        log_id = ""
        logged: list[str] = []
        if message.task_id:
            names.append(keys.task(message.task_id))
            log_id, batches = self._recheck_keys(message.task_id)
            logged = [keys.log(message.task_id, first) for first in batches]
        if message.session_id and not message.task_id:
            names.append(keys.session(message.session_id))
        if key:
            names.append(keys.idempotency(key.name))
        names += logged
        read = await self._records.store.read(partition, names) if names else []
        records = dict(zip(names, read, strict=True))
        open_ = self._records.open

        def opened(name: str, kind: type[T]) -> Stored[T] | None:
            return open_(partition, name, records.get(name), kind)

        task = opened(keys.task(message.task_id), Head) if message.task_id else None
        if task is not None and not task.value.erased and task.value.log_id == log_id:
            for name in logged:
                self._check(partition, name, records[name], task.value.task_id)
        return _Found(
            task=task,
            session=opened(keys.session(message.session_id), Session) if message.session_id else None,
            key=opened(keys.idempotency(key.name), IdempotencyRecord) if key else None,
        )

    @staticmethod
    def _check(partition: str, name: str, record: Record | None, task_id: str) -> None:
        try:
            if record is None:
                raise CorruptState(name, "is missing")
            checked(partition, name, record.value)
        except CorruptState as error:
            raise error.with_ids(task_id=task_id) from None

    async def _plan_new(
        self, caller: Caller, tag: str, partition: str, message: NewMessage, found: "_Found"
    ) -> "_Plan":
        now = self._records.clock.now()
        put: dict[str, object] = {}
        expect: dict[str, str | None] = {}
        session_id = message.session_id or ids.new_id(tag)
        session_key = keys.session(session_id)
        if found.session is None:
            if message.session_id:
                await self.claim_session(caller, session_id)
            put[session_key] = Session(session_id=session_id, owner=caller.user, created_at=now)
            put[keys.session_by_creation(now, session_id)] = session_id
            expect[session_key] = None
        else:
            if found.session.value.erased:
                raise NotFound(f"There is no session {session_id}. It was deleted.", session_id=session_id)
            expect[session_key] = found.session.version
        task_id = ids.new_id(tag)
        put[keys.task_by_creation(now, task_id)] = task_id
        put[keys.task_by_session(session_id, now, task_id)] = task_id
        expect[keys.task(task_id)] = None
        head = Head(
            task_id=task_id,
            session_id=session_id,
            owner=caller.user,
            status="Running",
            created_at=now,
            updated_at=now,
            metadata=message.metadata,
        )
        return _Plan(head=head, expect=expect, put=put, request_id=ids.new_id(tag), waits=False)

    async def claim_session(self, caller: Caller, session_id: str) -> None:
        """Takes a session id that the client brought, unless it is another user's."""
        owner = await self._directory.owner_of(session_id, keys.session(session_id))
        if owner is not None and owner != caller.user:
            raise NotOwner(f"The session {session_id} belongs to another user.")
        await self._directory.claim(session_id, caller.user)

    async def _plan_follow_on(
        self, caller: Caller, tag: str, partition: str, message: NewMessage, found: "_Found"
    ) -> "_Plan | BusyElsewhere | None":
        """How a message to an existing task begins; None where the task changed while we looked."""
        task_id = message.task_id or ""
        if found.task is None:
            await owner_directory.foreign(self._directory, self._records, caller, keys.task, task_id)
        stored = await self._tasks.settle(partition, self._tasks.present(found.task, task_id))
        head = stored.value
        if message.session_id is not None and message.session_id != head.session_id:
            await self._check_session(caller, partition, message.session_id)
            raise SessionMismatch(
                f"The task {task_id} belongs to another session. Send its own session_id, or none.",
                task_id=task_id,
                session_id=head.session_id,
            )
        if head.pending is not None:
            if not message.supersede:
                raise ApprovalPending(
                    request_id=head.pending.request_id,
                    approval_id=head.pending.approval_id,
                    task_id=task_id,
                    session_id=head.session_id,
                )
            if head.queue:  # whoever waits comes first, and a message that is refused must end no pause
                self._check_room(head)
            await self._tasks.end(partition, stored, head.pending.request_id, SUPERSEDED, caller.user.key)
            return None
        waits = False
        if head.running is not None or head.queue:
            if self._rules.concurrency == "enqueue":
                waits = True
                self._check_room(head)
            elif head.running is not None and self._rules.concurrency in ("interrupt", "rollback"):
                return BusyElsewhere(partition, head.running.request_id, head.running.worker_id)
            elif head.running is not None:
                raise TaskBusy(
                    request_id=head.running.request_id,
                    task_id=task_id,
                    session_id=head.session_id,
                )
        expect: dict[str, str | None] = {keys.task(task_id): stored.version}
        return _Plan(head=head, expect=expect, put={}, request_id=ids.new_id(tag), waits=waits)

    def _check_room(self, head: Head) -> None:
        if len(head.queue) >= min(self._rules.max_queued, MOST_QUEUED):
            raise Overloaded(
                f"{len(head.queue)} messages already wait on this task. Wait for some to finish.",
                retry_after=1,
                task_id=head.task_id,
                session_id=head.session_id,
            )

    async def _check_session(self, caller: Caller, partition: str, session_id: str) -> None:
        """Refuses a session that belongs to somebody else before saying that it does not fit."""
        (own,) = await self._records.store.read(partition, [keys.session(session_id)])
        if own is None:
            owner = await self._directory.owner_of(session_id, keys.session(session_id))
            if owner is not None and owner != caller.user:
                raise NotOwner(f"The session {session_id} belongs to another user.")

    async def _commit_begin(
        self,
        caller: Caller,
        partition: str,
        message: NewMessage,
        key: Key | None,
        plan: "_Plan",
        *,
        announced: bool,
    ) -> TaskWriter | Waiting:
        now = self._records.clock.now()
        head = plan.head
        request = RequestRecord(
            request_id=plan.request_id,
            task_id=head.task_id,
            session_id=head.session_id,
            status="Queued" if plan.waits else "Running",
            created_at=now,
            started_at=None if plan.waits else now,
            worker_id=self._lease.worker_id,
            parent=head.checkpoint_id,
            first_seq=0 if plan.waits else head.tail_seq + 1,
            last_event=1,
            user_context=message.user_context,
            idempotency=(key.name, key.digest) if key else None,
        )
        expect = dict(plan.expect)
        put = dict(plan.put)
        if key:
            expect[keys.idempotency(key.name)] = None
            put.update(self._tasks.key_put(request))
        user_message = Message(
            message_id=ids.random_id(),
            request_id=plan.request_id,
            role="user",
            created_at=now,
            items=message.items,
        )
        if plan.waits:
            return await self._commit_waiting(caller, partition, head, request, user_message, expect, put)
        started = lifecycle.start(head, plan.request_id, self._lease.worker_id, now)
        drafts = self._start_drafts(caller.user.key, user_message)
        started, log_key, batch = await self._records.append(partition, started, drafts)
        # the request last, and first at its end, where it grows: a row that grows in the midst of full pages
        # makes SQLite write their neighbours, too
        put |= {keys.task(head.task_id): started, log_key: batch, keys.request(plan.request_id): request}
        expect[log_key] = None
        version = await self._records.commit(
            partition,
            marker=log_key,
            expect=expect,
            put=put,
            ttl=self._tasks.key_ttl(request),
            # under a key it is synced: a power cut must not make the model answer twice
            unsynced=not announced and key is None,
        )
        return TaskWriter(self._tasks, partition, started, version, request, version, user_message)

    @staticmethod
    def _start_drafts(actor: str, message: Message) -> list[Draft]:
        return [draft("message.received", actor, message.request_id, MessageBody(message))]

    async def _commit_waiting(
        self,
        caller: Caller,
        partition: str,
        head: Head,
        request: RequestRecord,
        message: Message,
        expect: dict[str, str | None],
        put: dict[str, object],
    ) -> Waiting:
        now = request.created_at
        deadline = now + timedelta(seconds=self._rules.request_timeout_seconds)
        body = encode_json(message)
        stored: Message | BlobRef = message
        if len(body) > 65536:
            stored = await self._records.put_blob(partition, head.task_id, body)
        request = replace(request, waiting=msgspec.to_builtins(stored))
        note = draft(
            "request.queued",
            caller.user.key,
            request.request_id,
            Note("waits its turn", {"place": len(head.queue) + 1}),
        )
        grown, log_key, batch = await self._records.append(partition, head, [note])
        grown = lifecycle.noted(head, grown)
        grown = lifecycle.enqueue(grown, request.request_id, self._lease.worker_id, deadline, now)
        put |= {keys.task(head.task_id): grown, keys.request(request.request_id): request, log_key: batch}
        expect[log_key] = None
        await self._records.commit(
            partition, marker=log_key, expect=expect, put=put, ttl=self._tasks.key_ttl(request)
        )
        return Waiting(partition, request, deadline)

    async def _first_use(
        self, partition: str, key: Key, found: Stored[IdempotencyRecord] | None
    ) -> Replayed | None:
        if found is None:
            return None
        known = found.value
        if known.digest != key.digest:
            raise IdempotencyKeyReused(
                request_id=known.request_id,
                task_id=known.task_id,
                session_id=known.session_id,
            )
        return Replayed(await self._tasks.request(partition, known.request_id), partition)

    # --- the queue -------------------------------------------------------------------------------

    async def try_start(self, caller_key: str, waiting: Waiting) -> TaskWriter | RequestRecord | None:
        """Takes the task for a request that waits, if it is its turn (None: not yet).

        Returns the request's record where it was ended meanwhile (canceled, or its time is up).
        """
        request_id = waiting.request.request_id
        while True:
            await self._lease.ensure()
            stored = await self._tasks.head(waiting.partition, waiting.request.task_id)
            head = stored.value
            if not any(queued.request_id == request_id for queued in head.queue):
                return await self._begun_before(waiting, stored)
            if head.running or head.pending or head.queue[0].request_id != request_id:
                return None
            try:
                return await self._start_waiting(caller_key, waiting, stored)
            except Conflict:
                continue

    async def _begun_before(self, waiting: Waiting, stored: Stored[Head]) -> TaskWriter | RequestRecord:
        """A request that waits no more: ended meanwhile, or begun here by a commit whose reply was lost."""
        partition, running = waiting.partition, stored.value.running
        request = await self._tasks.request(partition, waiting.request.request_id)
        if (
            running is None
            or running.request_id != request.value.request_id
            or running.worker_id != self._lease.worker_id
            or request.value.status != "Running"
        ):
            return request.value
        message = await self._waiting_message(partition, waiting.request)
        return TaskWriter(
            self._tasks, partition, stored.value, stored.version, request.value, request.version, message
        )

    async def _start_waiting(self, caller_key: str, waiting: Waiting, stored: Stored[Head]) -> TaskWriter:
        partition, request_id = waiting.partition, waiting.request.request_id
        now = self._records.clock.now()
        message = await self._waiting_message(partition, waiting.request)
        started = lifecycle.start(stored.value, request_id, self._lease.worker_id, now)
        request = replace(
            waiting.request,
            status="Running",
            started_at=now,
            parent=stored.value.checkpoint_id,
            first_seq=stored.value.tail_seq + 1,
            waiting=None,
        )
        started, log_key, batch = await self._records.append(
            partition, started, self._start_drafts(caller_key, message)
        )
        version = await self._records.commit(
            partition,
            marker=log_key,
            expect={keys.task(request.task_id): stored.version, log_key: None},
            put={keys.task(request.task_id): started, keys.request(request_id): request, log_key: batch},
        )
        return TaskWriter(self._tasks, partition, started, version, request, version, message)

    async def _waiting_message(self, partition: str, request: RequestRecord) -> Message:
        stored = request.waiting or {}
        if "blob" in stored:
            ref = msgspec.convert(stored, BlobRef)
            return decoder(Message).decode(await self._records.get_blob(partition, request.task_id, ref))
        return msgspec.convert(stored, Message)
