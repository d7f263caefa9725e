"""Copies of tasks: forks, and whole tasks as one document.

A copy is written from its beginning to its end, and its head last: until then no one can see it, and
what a crash leaves behind is harmless.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, lifecycle
from tealagents.domain.errors import (
    AlreadyExists,
    Conflict,
    CorruptState,
    InvalidRequest,
    NotFound,
    NotOwner,
    PersistenceUnavailable,
)
from tealagents.domain.models import (
    Body,
    Caller,
    Effects,
    Head,
    Json,
    Message,
    MessageBody,
    Note,
    Origin,
    Path,
    RequestEnd,
    RequestRecord,
    Session,
    StepBody,
    User,
)
from tealagents.state import keys
from tealagents.state.audit_chain import Draft, canonical, draft
from tealagents.state.history import Logged
from tealagents.state.records import BATCH_BYTES, MOST_RECORDS, RecordStore, Stored
from tealagents.state.task_document import FORMAT, ExportedEntry, ExportedTask, read
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)

#: entries of one batch of a copy
BATCH_ENTRIES = 100
#: requests written in one commit of a copy
REQUESTS = 4


class Copy:
    """A task in the making: entries and requests are added, the head is written at the end."""

    def __init__(
        self, records: RecordStore, partition: str, head: Head, guard: Mapping[str, str | None] | None = None
    ) -> None:
        """`guard` are records that must stay as they are meanwhile; they go when the copy is finished."""
        self._records = records
        self._partition = partition
        self._guard = guard or {}
        self.head = head
        self._drafts: list[Draft] = []
        self._size = 0
        self._requests: list[RequestRecord] = []
        #: the requests that are written
        self._written: list[str] = []
        #: the last commit was sent: what is copied may be visible
        self._finished = False

    @property
    def next_seq(self) -> int:
        return self.head.tail_seq + len(self._drafts) + 1

    async def add(self, entry: Draft) -> None:
        self._drafts.append(entry)
        self._size += len(entry.body)
        if len(self._drafts) >= BATCH_ENTRIES or self._size > BATCH_BYTES // 2:
            await self.flush()

    async def add_request(self, request: RequestRecord) -> None:
        self._requests.append(request)
        if len(self._requests) >= REQUESTS:
            await self._flush_requests()

    async def flush(self) -> None:
        """Writes the entries gathered so far as one batch."""
        drafts, self._drafts, self._size = self._drafts, [], 0
        if drafts:
            head, key, batch = await self._records.append(self._partition, self.head, drafts)
            await self._records.commit(
                self._partition, marker=key, expect={key: None, **self._guard}, put={key: batch}
            )
            self.head = head

    async def _flush_requests(self) -> None:
        requests, self._requests = self._requests, []
        if requests:
            self._written += [keys.request(request.request_id) for request in requests]
            put = {keys.request(request.request_id): request for request in requests}
            first = next(iter(put))
            await self._records.commit(
                self._partition, marker=first, expect={**dict.fromkeys(put), **self._guard}, put=put
            )

    async def discard(self) -> None:
        """Removes what was written of a copy that was not finished: no one else would. One that may be there
        after all stays."""
        if self._finished:
            return
        await self._records.erase_log(self._partition, self.head.task_id)
        for start in range(0, len(self._written), MOST_RECORDS):
            await self._records.delete(self._partition, self._written[start : start + MOST_RECORDS])

    async def finish(self, head: Head, session: Stored[Session] | None) -> Head:
        """Makes the copy visible. `Conflict` where its session was deleted or its id taken meanwhile."""
        await self.flush()
        await self._flush_requests()
        task_key, session_key = keys.task(head.task_id), keys.session(head.session_id)
        put: dict[str, object] = {
            task_key: head,
            keys.task_by_creation(head.created_at, head.task_id): head.task_id,
            keys.task_by_session(head.session_id, head.created_at, head.task_id): head.task_id,
        }
        if session is None:
            now = self._records.clock.now()
            put[session_key] = Session(session_id=head.session_id, owner=head.owner, created_at=now)
            put[keys.session_by_creation(now, head.session_id)] = head.session_id
        self._finished = True
        try:
            await self._records.commit(
                self._partition,
                marker=task_key,
                expect={task_key: None, session_key: session.version if session else None, **self._guard},
                put=put,
                delete=list(self._guard),
            )
        except Conflict:
            self._finished = False
            raise
        return head


class Importing(Struct, frozen=True):
    """`importing/{task_id}`: who is writing an imported task that no one can see yet."""

    worker_id: str


class Transfer:
    """Forks, exports and imports tasks."""

    def __init__(self, records: RecordStore, tasks: Tasks) -> None:
        self._records = records
        self._tasks = tasks
        self._history = tasks.history
        #: the tasks that are being imported in this process
        self._importing: set[str] = set()

    # --- fork ------------------------------------------------------------------------------------

    async def fork(
        self,
        partition: str,
        task_id: str,
        actor: User,
        *,
        checkpoint_id: str | None = None,
        message_id: str | None = None,
    ) -> Head:
        """A new task with the history up to and including a point; costs what that history is long.

        `NotFound` for an unknown point, `InvalidRequest` for one between a tool call and its result.
        """
        source = (await self._tasks.head(partition, task_id)).value
        path, remote_id = await self._fork_path(partition, source, checkpoint_id, message_id)
        tag = ids.owner_tag(source.owner.key)
        now = self._records.clock.now()
        point: Json = {"task_id": task_id}
        if checkpoint_id or (source.checkpoint_id and not message_id):
            point["checkpoint_id"] = checkpoint_id or source.checkpoint_id
        if message_id:
            point["message_id"] = message_id
        head = Head(
            task_id=ids.new_id(tag),
            session_id=source.session_id,
            owner=source.owner,
            status="Completed",
            created_at=now,
            updated_at=now,
            expires_at=source.expires_at,
            metadata=source.metadata,
            origin=point,
            remote_id=remote_id,
        )
        copy = Copy(self._records, partition, head)
        try:
            return await self._fork(partition, source, path, actor, point, message_id, copy, tag)
        except CorruptState:
            await copy.discard()
            await self._tasks.head(partition, task_id)  # `NotFound` where it was deleted meanwhile: no damage
            raise
        except BaseException:
            await copy.discard()
            raise

    async def _fork(
        self,
        partition: str,
        source: Head,
        path: Path,
        actor: User,
        point: Json,
        message_id: str | None,
        copy: Copy,
        tag: str,
    ) -> Head:
        await copy.add(draft("task.forked", actor.key, None, Note("forked", point), **point))
        last, end = await self._copy_rounds(partition, source, path, message_id, copy, tag)
        await copy.flush()
        effects = tuple(
            Effects(1, known.tools)
            for known in source.effects
            if any(first <= known.first_seq <= min(last_seq, end) for first, last_seq in path)
        )
        done = replace(copy.head, checkpoint_id=last, path=((1, copy.head.tail_seq),), effects=effects)
        session = await self._records.get(partition, keys.session(source.session_id), Session)
        if session is None or session.value.erased:
            raise NotFound(f"There is no session {source.session_id}.", session_id=source.session_id)
        try:
            return await copy.finish(done, session)
        except Conflict:
            raise NotFound(
                f"The session {source.session_id} was deleted.", session_id=source.session_id
            ) from None

    async def _fork_path(
        self, partition: str, source: Head, checkpoint_id: str | None, message_id: str | None
    ) -> tuple[Path, str | None]:
        if message_id is not None:
            return lifecycle.current_path(source), None
        wanted = checkpoint_id or source.checkpoint_id
        if wanted is None:
            return (), None
        found = await self._records.get(partition, keys.request(wanted), RequestRecord)
        if found is None or found.value.task_id != source.task_id or found.value.status != "Completed":
            raise NotFound(f"The task {source.task_id} has no checkpoint {wanted}.", task_id=source.task_id)
        return found.value.path, found.value.remote_id

    async def _copy_rounds(
        self, partition: str, source: Head, path: Path, message_id: str | None, copy: Copy, tag: str
    ) -> tuple[str | None, int]:
        """Copies the requests of a path that completed, or up to a message.

        Returns the last one's new id, and the number of the last entry that was looked at.
        """
        last: str | None = None
        end = 0
        context: Json | None = None
        async for request_id, messages, complete, end in self._rounds(partition, source.task_id, path):
            ends = message_id is not None and any(m.message_id == message_id for m in messages)
            if not complete and not ends:
                continue
            kept = _up_to(messages, message_id) if message_id is not None and ends else messages
            whole = complete and len(kept) == len(messages)
            record = await self._copied(partition, source, request_id, kept, copy, tag, whole=whole)
            # what is remembered as of the end of a request is not yet so in its middle
            context = record.context if whole else context
            await copy.add_request(replace(record, parent=last, context=context))
            last = record.request_id
            if ends:
                return last, end
        if message_id is not None:
            raise NotFound(
                f"The task {source.task_id} has no message {message_id} on its current path.",
                task_id=source.task_id,
            )
        return last, path[-1][1] if path else 0

    async def _rounds(
        self, partition: str, task_id: str, path: Path
    ) -> AsyncIterator[tuple[str, list[Message], bool, int]]:
        """The requests of a path, oldest first: id, messages, whether it completed, the last number read."""
        current: str | None = None
        messages: list[Message] = []
        seq = 0
        async for logged in self._history.forwards(partition, task_id, path):
            body, seq = logged.body, logged.seq
            if isinstance(body, MessageBody):
                if current is not None and body.message.request_id != current:
                    yield current, messages, False, seq
                    messages = []
                current = body.message.request_id
                messages.append(body.message)
            elif isinstance(body, RequestEnd) and current is not None:
                yield current, messages, body.status == "Completed", seq
                current, messages = None, []
        if current is not None:
            yield current, messages, False, seq

    async def _copied(
        self,
        partition: str,
        source: Head,
        request_id: str,
        messages: Sequence[Message],
        copy: Copy,
        tag: str,
        *,
        whole: bool,
    ) -> RequestRecord:
        """Adds a request's entries to the copy; returns its record, to be added as well."""
        found = await self._records.get(partition, keys.request(request_id), RequestRecord)
        if found is None:
            raise CorruptState(keys.request(request_id), "is missing", task_id=source.task_id)
        old, new_id, first = found.value, ids.new_id(tag), copy.next_seq
        for message in messages:
            copied = replace(
                message,
                message_id=ids.random_id(),
                request_id=new_id,
                origin=Origin(source.task_id, message.message_id),
            )
            await copy.add(draft("message.copied", "service", new_id, MessageBody(copied)))
        ended_at = old.ended_at or messages[-1].created_at
        remote_id = old.remote_id if whole else None
        end = RequestEnd(
            request_id=new_id, status="Completed", first_seq=first, ended_at=ended_at, remote_id=remote_id
        )
        last = copy.next_seq
        await copy.add(draft("request.copied", "service", new_id, end))
        return replace(
            old,
            request_id=new_id,
            task_id=copy.head.task_id,
            status="Completed",
            worker_id=None,
            ended_at=ended_at,
            first_seq=first,
            last_seq=last,
            path=((1, last),),
            remote_id=remote_id,
            output=old.output if whole else messages[-1].text,
            finish_reason=old.finish_reason if whole else None,
            extra_data=old.extra_data if whole else None,
            source=self._tasks.source,
            error=None,
            approvals=(),
            idempotency=None,
            last_event=2,
        )

    # --- export ----------------------------------------------------------------------------------

    async def export(self, partition: str, task_id: str) -> Json:
        """The whole task as one document. `InvalidRequest` while a request runs, waits or is paused."""
        head = (await self._tasks.head(partition, task_id)).value
        if head.running or head.pending or head.queue:
            raise InvalidRequest(
                "task_id", "has a request that has not ended; wait for it, decide it or cancel it first"
            )
        whole: Path = ((1, head.tail_seq),) if head.tail_seq else ()
        entries = []
        order: dict[str, None] = {}
        async for logged in self._history.forwards(partition, task_id, whole):
            entries.append(_exported(logged))
            if logged.entry.request_id:
                order.setdefault(logged.entry.request_id)
        requests = []
        for request_id in order:
            found = await self._records.get(partition, keys.request(request_id), RequestRecord)
            if found is None:
                raise CorruptState(keys.request(request_id), "is missing", task_id=task_id)
            requests.append(replace(found.value, idempotency=None))
        document = ExportedTask(
            format=FORMAT,
            agent=self._records.agent,
            task=replace(head, tail_hash="", tail_seal="", tail_key=0, log_id=""),
            requests=tuple(requests),
            entries=tuple(entries),
        )
        exported: Json = msgspec.to_builtins(document)
        return exported

    # --- import ----------------------------------------------------------------------------------

    async def import_(self, caller: Caller, value: Any) -> Head:
        """A task from its document: ids, messages and times kept; trace and decisions marked."""
        document = read(value, caller.user)
        task_id = document.task.task_id
        if task_id in self._importing:
            raise _exists(task_id)
        self._importing.add(task_id)
        try:
            return await self._import(caller, value, document)
        except Conflict:
            raise _exists(task_id) from None
        finally:
            self._importing.discard(task_id)

    async def _import(self, caller: Caller, value: Any, document: ExportedTask) -> Head:
        partition = self._records.partition(caller.user)
        await self._tasks.directory.introduce(caller.user)
        await self._check_new(caller, partition, document)
        guard = await self._guarded(partition, document)
        try:
            if await self._is_there(partition, document):
                raise _exists(document.task.task_id)
            return await self._written(caller, value, document, partition, guard)
        except Exception:
            await self._give_up(partition, document, guard)
            raise

    async def _is_there(self, partition: str, document: ExportedTask) -> bool:
        """Whether another import of the document has ended before this one took the right to write it."""
        (head,) = await self._records.store.read(partition, [keys.task(document.task.task_id)])
        return head is not None

    async def _give_up(self, partition: str, document: ExportedTask, guard: Mapping[str, str | None]) -> None:
        """Removes what a failed import has written, so that it can be tried anew, by any replica.

        The guard is taken anew first: then the end of the import, should it still be on its way, fails.
        """
        (key,) = guard
        try:
            version = await self._records.commit(
                partition, marker=key, expect=guard, put={key: Importing(self._tasks.lease.worker_id)}
            )
            if not await self._is_there(partition, document):
                await self._clear(partition, document)
            await self._records.commit(partition, marker=key, expect={key: version}, delete=[key])
        except (Conflict, PersistenceUnavailable) as error:
            # another process has continued it, or will, once this worker is gone
            log.info("the import of task %s was not cleared away: %s", document.task.task_id, error)

    async def _clear(self, partition: str, document: ExportedTask) -> None:
        await self._records.erase_log(partition, document.task.task_id)
        for request in document.requests:
            await self._records.delete(partition, [keys.request(request.request_id)])

    async def _written(
        self,
        caller: Caller,
        value: Any,
        document: ExportedTask,
        partition: str,
        guard: dict[str, str | None],
    ) -> Head:
        task = document.task
        session = await self._session(caller, partition, task.session_id)
        digest = hashlib.sha256(canonical(value)).hexdigest()
        shift = 1
        copy = Copy(
            self._records,
            partition,
            replace(
                task,
                tail_seq=0,
                tail_hash="",
                tail_key=0,
                path=(),
                checkpoint_id=None,
                effects=(),
                remote_id=None,  # the document may name another user's conversation
            ),
            guard,
        )
        note = Note("imported", {"document_sha256": digest})
        await copy.add(draft("task.imported", caller.user.key, None, note, document_sha256=digest))
        # a fork has what it was told of its source's tools in its head alone
        ended = {entry.body.first_seq for entry in document.entries if isinstance(entry.body, RequestEnd)}
        effects: tuple[Effects, ...] = ()
        for known in task.effects:
            if known.tools and known.first_seq not in ended:
                effects = lifecycle.remembering(effects, Effects(known.first_seq + shift, known.tools))
        for entry in document.entries:
            body = _marked(_shifted(entry.body, shift))
            if isinstance(body, RequestEnd) and body.tools and body.status != "Completed":
                effects = lifecycle.remembering(effects, Effects(body.first_seq, body.tools))
            await copy.add(
                draft(entry.action, entry.actor, entry.request_id, body, imported=True, at=entry.at)
            )
        for request in document.requests:
            await copy.add_request(_imported(request, shift))
        await copy.flush()
        head = replace(
            copy.head,
            log_id=ids.operation_id(),
            status=task.status,
            checkpoint_id=task.checkpoint_id,
            path=_moved(task.path, shift),
            effects=effects,
        )
        return await copy.finish(head, session)

    async def _guarded(self, partition: str, document: ExportedTask) -> dict[str, str | None]:
        """Takes the right to write the task, and removes what an import that broke off has left of it."""
        task_id = document.task.task_id
        key = f"importing/{task_id}"
        found = await self._records.get(partition, key, Importing)
        lease = self._tasks.lease
        await lease.ensure()
        writer = found.value.worker_id if found else lease.worker_id
        if writer != lease.worker_id and not await lease.dead(writer):
            raise _exists(task_id)
        version = await self._records.commit(
            partition,
            marker=key,
            expect={key: found.version if found else None},
            put={key: Importing(lease.worker_id)},
        )
        if found is not None:
            await self._clear(partition, document)
        return {key: version}

    async def _check_new(self, caller: Caller, partition: str, document: ExportedTask) -> None:
        task_id = document.task.task_id
        directory = self._tasks.directory
        names = [(keys.task, task_id), *((keys.request, r.request_id) for r in document.requests)]
        for kind, identifier in names:
            if await self._taken(partition, kind(identifier), task_id):
                raise AlreadyExists(
                    f"The {_word(kind(identifier))} exists already. Delete its task to import it again.",
                    task_id=task_id,
                )
            if ids.tag_of(identifier) != ids.owner_tag(caller.user.key):
                owner = await directory.owner_of(identifier, kind(identifier))
                if owner is not None:
                    raise NotOwner(f"The {_word(kind(identifier))} belongs to another user.")
                await directory.claim(identifier, caller.user)

    async def _taken(self, partition: str, key: str, task_id: str) -> bool:
        """Whether a record exists; one that a broken import of the same task has left does not count."""
        (record,) = await self._records.store.read(partition, [key])
        if record is None:
            return False
        (begun,) = await self._records.store.read(partition, [f"importing/{task_id}"])
        if begun is None or key == keys.task(task_id):
            return True
        left = await self._records.get(partition, key, RequestRecord)
        return left is not None and left.value.task_id != task_id

    async def _session(self, caller: Caller, partition: str, session_id: str) -> Stored[Session] | None:
        found = await self._records.get(partition, keys.session(session_id), Session)
        if found is None:
            owner = await self._tasks.directory.owner_of(session_id, keys.session(session_id))
            if owner is not None and owner != caller.user:
                raise NotOwner(f"The session {session_id} belongs to another user.")
            await self._tasks.directory.claim(session_id, caller.user)
        elif found.value.erased:
            raise NotFound(f"There is no session {session_id}. It was deleted.", session_id=session_id)
        return found


def _exists(task_id: str) -> AlreadyExists:
    return AlreadyExists(f"The task {task_id} exists already, or is just being imported.", task_id=task_id)


def _up_to(messages: Sequence[Message], message_id: str) -> list[Message]:
    """The messages up to and including one; `InvalidRequest` between a tool call and its result."""
    kept: list[Message] = []
    open_calls: set[str] = set()
    for message in messages:
        kept.append(message)
        open_calls |= {call.id for call in message.tool_calls}
        open_calls.discard(message.tool_call_id or "")
        if message.message_id == message_id:
            break
    if open_calls:
        raise InvalidRequest(
            "message_id", "lies between a tool call and its result; fork before or after both"
        )
    return kept


def _exported(logged: Logged) -> ExportedEntry:
    entry = logged.entry
    return ExportedEntry(
        seq=entry.seq,
        at=str(entry.details.get("at", entry.at)) if entry.details.get("imported") else entry.at,
        actor=entry.actor,
        action=entry.action,
        request_id=entry.request_id,
        body=logged.body,
    )


def _marked(body: Body) -> Body:
    if isinstance(body, StepBody):
        return StepBody(replace(body.step, imported=True))
    return body


def _shifted(body: Body, by: int) -> Body:
    if isinstance(body, RequestEnd):
        return replace(body, first_seq=body.first_seq + by, remote_id=None)
    return body


def _moved(path: Path, by: int) -> Path:
    return tuple((first + by, last + by) for first, last in path)


def _imported(request: RequestRecord, by: int) -> RequestRecord:
    return replace(
        request,
        first_seq=request.first_seq + by if request.first_seq else 0,
        last_seq=request.last_seq + by,
        path=_moved(request.path, by),
        remote_id=None,
        worker_id=None,
        approvals=(),
        imported_pauses=len(request.approvals) + request.imported_pauses,
        idempotency=None,
        waiting=None,
        last_event=max(2, request.last_event),
        imported=True,
    )


def _word(key: str) -> str:
    """A record as users name it."""
    kind, _, identifier = key.partition("/")
    return f"{kind} {identifier}"
