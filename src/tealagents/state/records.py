"""Reads and commits typed records, large ones with parts that are stored out of line."""

import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, NotFound, TealError
from tealagents.domain.models import Approval, Body, Entry, Head, Json, LogRecord, RequestRecord, User
from tealagents.domain.ports import COMMIT_RECORDS, Clock, Commit, Put, Record, Store
from tealagents.state import codec, commits, keys
from tealagents.state.audit_chain import GENESIS, NO_SEAL, AuditChain, Draft, decode_body
from tealagents.state.out_of_line import (
    OUT_OF_LINE,
    BlobRef,
    Headless,
    OutOfLine,
    blob_ref,
    chunks,
    is_large,
    too_large,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

#: records listed at a time to be deleted; a scan of the file store lists all keys below its prefix
ERASED_AT_ONCE = 50


class Stored(msgspec.Struct, Generic[T], frozen=True):
    """A record and its version."""

    value: T
    version: str


class RecordStore:
    """One agent's records in one store."""

    def __init__(self, store: Store, agent: str, clock: Clock, *, audit_key: bytes = b"") -> None:
        self.store = store
        self.agent = agent
        self.clock = clock
        self.chain = AuditChain(audit_key)

    def partition(self, owner: User) -> str:
        return keys.user(self.agent, owner.key)

    # --- reading ---------------------------------------------------------------------------------

    async def get(self, partition: str, key: str, kind: type[T]) -> Stored[T] | None:
        (record,) = await self.store.read(partition, [key])
        return await self.whole(partition, key, record, kind)

    async def version(self, partition: str, key: str) -> str | None:
        """The version of a record, whatever it holds; None if there is none."""
        return await commits.version(self.store, partition, key)

    async def whole(self, partition: str, key: str, record: Record | None, kind: type[T]) -> Stored[T] | None:
        """Like `open`, for records that may be stored out of line: requests and approvals."""
        if record is None:
            return None
        value = codec.checked(partition, key, record.value)
        if value.startswith(OUT_OF_LINE):
            ref = codec.parse(key, value, OutOfLine)
            try:
                value = await self.get_blob(partition, ref.task_id, BlobRef(ref.apart, ref.pieces))
            except CorruptState:
                (again,) = await self.store.read(partition, [key])
                if again == record:
                    raise
                return await self.whole(partition, key, again, kind)  # it was erased meanwhile
        return Stored(codec.parse(key, value, kind), record.version)

    async def request(self, partition: str, task_id: str, request_id: str) -> Stored[RequestRecord]:
        """A request that its task names. `CorruptState` if it is missing; `NotFound` if the task is, too."""
        return await self.named(partition, task_id, keys.request(request_id), RequestRecord)

    async def named(self, partition: str, task_id: str, key: str, kind: type[T]) -> Stored[T]:
        """A record that its task names. Raises as `request`."""
        found = await self.get(partition, key, kind)
        if found is None:
            gap = CorruptState(key, "is missing", task_id=task_id)
            raise await self.unless_deleted(partition, task_id, gap)
        return found

    async def context_of(self, partition: str, head: Head) -> Json | None:
        """The context of a task's current checkpoint; None if it has none."""
        if head.checkpoint_id is None:
            return None
        found = await self.get(partition, keys.request(head.checkpoint_id), RequestRecord)
        return found.value.context if found else None

    def open(self, partition: str, key: str, record: Record | None, kind: type[T]) -> Stored[T] | None:
        """Checks and parses a record that was read; None for None."""
        if record is None:
            return None
        return Stored(codec.unseal(partition, key, record.value, kind), record.version)

    async def every(
        self, partition: str, prefix: str, *, page: int = 100
    ) -> AsyncIterator[tuple[str, Record]]:
        """All records under a prefix, as stored, read page by page."""
        after = None
        while found := await self.store.scan(partition, prefix, after=after, limit=page):
            for key, record in found:
                yield key, record
            after = found[-1][0]

    async def of_task(self, partition: str, task_id: str) -> tuple[set[str], set[str]]:
        """The ids of a task's requests and approvals, searched among all of the user's. For damaged logs."""
        return (
            await self._search(partition, keys.request(""), RequestRecord, task_id),
            await self._search(partition, keys.approval(""), Approval, task_id),
        )

    async def _search(
        self, partition: str, prefix: str, kind: type[RequestRecord] | type[Approval], task_id: str
    ) -> set[str]:
        found: set[str] = set()
        async for key, record in self.every(partition, prefix):
            try:
                stored = await self.whole(partition, key, record, kind)
            except CorruptState:
                continue
            if stored is not None and stored.value.task_id == task_id:
                found.add(keys.last_segment(key))
        return found

    async def scan(
        self,
        partition: str,
        prefix: str,
        kind: type[T],
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, T]]:
        found = await self.store.scan(partition, prefix, after=after, limit=limit, reverse=reverse)
        return [(key, codec.unseal(partition, key, record.value, kind)) for key, record in found]

    async def damage(self, partition: str, key: str, listed: CorruptState) -> CorruptState:
        """Why a record that was `listed` cannot be read: a scan does not say why one does not open."""
        try:
            await self.get(partition, key, object)
        except CorruptState as error:
            return error
        return listed

    # --- writing ---------------------------------------------------------------------------------

    async def commit(
        self,
        partition: str,
        *,
        marker: str,
        expect: Mapping[str, str | None] | None = None,
        put: Mapping[str, object] | None = None,
        ttl: Mapping[str, float] | None = None,
        delete: Collection[str] = (),
        operation: str | None = None,
        unsynced: bool = False,
        notify: Collection[str] = (),
    ) -> str:
        """Commits, and returns the operation id: the version of everything that was put.

        `marker` is the key whose version shows, if the reply is lost, whether this commit was applied: one of
        `put`, if possible one that no later commit overwrites. If records are only deleted, it is one of
        them: sent again, such a commit is a `Conflict`.

        Raises `Conflict`; `CorruptState` if a log continues beyond its head's tail; `Headless` if a large
        record's task has no head yet; `PersistenceUnavailable` if the store is unavailable, or does not
        report the outcome of the commit in time (`commits`).
        """
        commit = Commit(
            operation=operation or ids.operation_id(),
            expect=expect or {},
            put=await self._sealed(partition, put or {}, ttl or {}, expect or {}),
            delete=delete,
            unsynced=unsynced,
            notify=notify,
        )
        await commits.send(self.store, self.clock, partition, commit, marker)
        return commit.operation

    async def _sealed(
        self,
        partition: str,
        records: Mapping[str, object],
        ttl: Mapping[str, float],
        expect: Mapping[str, str | None],
    ) -> dict[str, Put]:
        """The records' bytes; a large one is stored out of line, and a reference takes its place."""
        puts: dict[str, Put] = {}
        for key, record in records.items():
            value = codec.seal(partition, key, record)
            if is_large(record, value):
                task_id, version = record.task_id, expect.get(keys.task(record.task_id))
                ref = await self.put_part(partition, task_id, codec.encode_json(record), version)
                value = codec.seal(partition, key, OutOfLine(ref.blob, ref.pieces, task_id))
            puts[key] = Put(value, ttl.get(key))
        return puts

    async def delete(
        self,
        partition: str,
        names: Collection[str],
        *,
        expect: Mapping[str, str | None] | None = None,
        notify: Collection[str] = (),
    ) -> None:
        """Deletes records, whatever they hold now, as many per commit as fit.

        `Conflict` if an expected record has changed.
        """
        names, expect = list(names), expect or {}
        room = COMMIT_RECORDS - len(expect)
        for start in range(0, len(names), room):
            some = tuple(names[start : start + room])
            commit = Commit(operation=ids.operation_id(), expect=expect, delete=some, notify=notify)
            await commits.send_deletion(self.store, self.clock, partition, commit)

    # --- the log ---------------------------------------------------------------------------------

    async def extended(
        self, partition: str, head: Head, drafts: Sequence[Draft], version: str | None = None
    ) -> tuple[Head, str, LogRecord]:
        """The head with `drafts` appended, the key of the log record, and the log record.

        Only large bodies are written here: the caller commits head and log record. For a large body, raises
        `Conflict` if the head is no longer at `version`, and `Headless` if it has none.
        """
        bodies = await self._offload(partition, head.task_id, [item.body for item in drafts], version)
        intact = not head.tail_seq or head.tail_seal == self.chain.seal(
            head.task_id, head.tail_seq, head.tail_hash
        )
        if not intact and head.tail_seal not in ("", NO_SEAL):
            log.error(
                "the audit of task %s was sealed with another TA_AUDIT_KEY, or was changed: what is added "
                "now will not verify",
                head.task_id,
            )
        entries = self.chain.extend(head.tail_seq, head.tail_hash or GENESIS, self.clock.now(), drafts)
        first = head.tail_seq + 1
        log_record = LogRecord(entries=entries, bodies=tuple(msgspec.Raw(body) for body in bodies))
        last = entries[-1]
        seal = self.chain.seal(head.task_id, last.seq, last.hash)
        grown = msgspec.structs.replace(
            head,
            tail_seq=last.seq,
            tail_hash=last.hash,
            # a seal would deny that entries before these may have been dropped
            tail_seal=seal if intact or not seal else NO_SEAL,
            tail_key=first,
        )
        return grown, keys.log(head.task_id, first), log_record

    async def _offload(
        self, partition: str, task_id: str, bodies: list[bytes], version: str | None
    ) -> list[bytes]:
        """Stores large bodies out of line; returns all bodies, with references in place of the large ones."""
        kept: list[bytes] = []
        for body, large in zip(bodies, too_large(bodies), strict=True):
            if large:
                body = codec.encode_json(await self.put_part(partition, task_id, body, version))
            kept.append(body)
        return kept

    def parts(self, partition: str, drafts: Sequence[Draft], put: Mapping[str, object]) -> list[bytes]:
        """The bytes stored out of line for a commit that appends `drafts` and puts these records."""
        bodies = [item.body for item in drafts]
        found = [body for body, large in zip(bodies, too_large(bodies), strict=True) if large]
        for key, record in put.items():
            if is_large(record, codec.seal(partition, key, record)):
                found.append(codec.encode_json(record))
        return found

    async def put_part(self, partition: str, task_id: str, data: bytes, version: str | None) -> BlobRef:
        """Stores a part of a commit out of line, while the task's head is at `version` (None: `Headless`)."""
        if version is None:
            raise Headless
        return await self.put_blob(partition, task_id, data, version=version)

    async def put_blob(
        self, partition: str, task_id: str, data: bytes, *, version: str | None = None
    ) -> BlobRef:
        """Stores `data` in chunks named by its digest. Storing it twice is harmless.

        `Conflict` if the task's head is no longer at `version`: chunks of a deleted task would stay for ever.
        """
        ref = blob_ref(data)
        named = dict(zip(ref.keys(task_id), chunks(data), strict=True))
        expect = {keys.task(task_id): version} if version is not None else {}
        for put in commits.portions(named):
            await self.commit(partition, marker=next(iter(put)), expect=expect, put=put)
        return ref

    async def unless_deleted(self, partition: str, task_id: str, damage: CorruptState) -> TealError:
        """`damage`, or `NotFound` if the task was deleted meanwhile, so that nothing is damaged."""
        head = await self.get(partition, keys.task(task_id), Head)
        return no_task(task_id) if head is None or head.value.erased else damage

    async def get_blob(self, partition: str, task_id: str, ref: BlobRef) -> bytes:
        names = ref.keys(task_id)
        parts: list[str] = []
        for start in range(0, len(names), 8):
            chunk = names[start : start + 8]
            for key, record in zip(chunk, await self.store.read(partition, chunk), strict=True):
                if record is None:
                    raise CorruptState(key, "is missing", task_id=task_id)
                parts.append(codec.unseal(partition, key, record.value, str))
        data = "".join(parts).encode()
        if hashlib.sha256(data).hexdigest() != ref.blob:
            raise CorruptState(keys.blobs(task_id) + ref.blob, "does not match its digest", task_id=task_id)
        return data

    async def bodies(self, partition: str, task_id: str, log_record: LogRecord) -> list[bytes]:
        """The bodies of a log record, including those stored out of line."""
        found = []
        for raw in log_record.bodies:
            data = bytes(raw)
            if data.startswith(b'{"blob":'):
                ref = codec.parse(_log_key(task_id, log_record), data, BlobRef)
                data = await self.get_blob(partition, task_id, ref)
            found.append(data)
        return found

    async def opened(
        self, partition: str, task_id: str, log_record: LogRecord
    ) -> list[tuple[Entry, Body, int]]:
        """The entries of a log record, each with its parsed body and the body's size in bytes."""
        bodies = await self.bodies(partition, task_id, log_record)
        try:
            return [(e, decode_body(b), len(b)) for e, b in zip(log_record.entries, bodies, strict=True)]
        except (msgspec.DecodeError, ValueError) as error:
            key = _log_key(task_id, log_record)
            raise CorruptState(key, f"does not hold valid entries ({error})", task_id=task_id) from error


def _log_key(task_id: str, log_record: LogRecord) -> str:
    return keys.log(task_id, log_record.entries[0].seq if log_record.entries else 0)


def named_in(log_record: LogRecord) -> tuple[set[str], set[str]]:
    """The ids of the requests and the approvals that a log record names."""
    requests = {entry.request_id for entry in log_record.entries if entry.request_id}
    approvals = {str(e.details["approval_id"]) for e in log_record.entries if "approval_id" in e.details}
    return requests, approvals


def check_not_emptied(head: Head) -> None:
    """`CorruptState` if a stored head has no entries: its log was emptied, and would begin anew unnoticed."""
    if not head.tail_seq:
        key = keys.task(head.task_id)
        raise CorruptState(key, "says that its task has no entries", task_id=head.task_id)


def no_task(task_id: str) -> NotFound:
    text = f"There is no task {task_id}. Check the id; it may have been deleted or expired."
    return NotFound(text, task_id=task_id)


def no_session(session_id: str) -> NotFound:
    return NotFound(
        f"There is no session {session_id}. Check the id; it may have been deleted.", session_id=session_id
    )


def no_checkpoint(task_id: str, checkpoint_id: str) -> NotFound:
    text = f"The task {task_id} has no checkpoint {checkpoint_id}. List its checkpoints to choose one."
    return NotFound(text, task_id=task_id)
