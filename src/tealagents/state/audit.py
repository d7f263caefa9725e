"""Verifies the audit: whether every entry of a task's log is as it was written.

Finds the first entry that was changed, dropped (even from the end), moved or forged. Without an audit key,
anyone who can write to the store can also make a new chain that verifies: then only accidental damage is
found.
"""

from collections.abc import Iterator

from msgspec import Struct

from tealagents.domain.errors import CorruptState
from tealagents.domain.models import Head, LogRecord
from tealagents.state import keys
from tealagents.state.audit_chain import GENESIS, NO_SEAL, body_fault
from tealagents.state.codec import unseal
from tealagents.state.records import RecordStore

#: log records read at a time
PAGE = 50


class BadEntry(Struct, frozen=True):
    """The first bad entry of a log. `seq` is its number, or the number expected in its place."""

    task_id: str
    seq: int
    reason: str

    def __str__(self) -> str:
        return f"task {self.task_id}, entry {self.seq}: {self.reason}"


class Verified(Struct, frozen=True):
    """The result for one log: the number of good entries, and the first bad one."""

    task_id: str
    entries: int
    fault: BadEntry | None = None


async def verify(records: RecordStore, partition: str, task_id: str) -> Verified | None:
    """Verifies a task's log as it stands. None if the task does not exist, or no longer does."""
    log = _Log(records, partition, task_id)
    head = await log.head()
    while head is not None and not isinstance(head, BadEntry):
        fault = await log.read_on()
        before, head = head, await log.head()
        if isinstance(head, Head) and head.log_id != before.log_id:  # deleted, and imported again
            return await verify(records, partition, task_id)
        if fault is not None:
            return Verified(task_id, log.seq, fault) if head is not None else None
        if isinstance(head, Head) and head.tail_seq == before.tail_seq:
            return Verified(task_id, log.seq, log.end_fault(head))
    return Verified(task_id, log.seq, head) if head is not None else None


class _Log:
    """One log, verified up to entry `seq`."""

    def __init__(self, records: RecordStore, partition: str, task_id: str) -> None:
        self._records = records
        self._partition = partition
        self._task_id = task_id
        self.seq = 0
        self._hash = GENESIS
        self._after = keys.log(task_id, 0)

    async def head(self) -> Head | BadEntry | None:
        """The task's head, or why it cannot be read; None if the task is gone."""
        try:
            found = await self._records.get(self._partition, keys.task(self._task_id), Head)
        except CorruptState as error:
            return self._fault(f"cannot be judged, because the task's head {error.reason}")
        return found.value if found is not None and not found.value.erased else None

    async def read_on(self) -> BadEntry | None:
        """Verifies the entries after those verified so far, up to the first fault."""
        prefix, store = keys.logs(self._task_id), self._records.store
        while found := await store.scan(self._partition, prefix, after=self._after, limit=PAGE):
            for key, record in found:
                fault = await self._log_record(key, record.value)
                if fault is not None:
                    return fault
                self._after = key
        return None

    async def _log_record(self, key: str, stored: bytes) -> BadEntry | None:
        if key != keys.log(self._task_id, self.seq + 1):
            return self._fault(f"is missing: the log continues at {keys.last_segment(key)}")
        try:
            try:
                log_record = unseal(self._partition, key, stored, LogRecord)
            except CorruptState as listed:
                raise await self._records.damage(self._partition, key, listed) from None
            if not log_record.entries:
                raise CorruptState(key, "holds no entry")
            bodies = iter(await self._records.bodies(self._partition, self._task_id, log_record))
        except CorruptState as error:
            return self._fault(f"cannot be read: {error}")
        return self._entries(log_record, bodies)

    def _entries(self, log_record: LogRecord, bodies: Iterator[bytes]) -> BadEntry | None:
        for entry in log_record.entries:
            reason = self._records.chain.fault(entry, self.seq + 1, self._hash)
            reason = reason or body_fault(entry, next(bodies, None))
            if reason is not None:
                return self._fault(reason)
            self.seq, self._hash = entry.seq, entry.hash
        return None if next(bodies, None) is None else self._fault("is missing, and its body is there")

    def end_fault(self, head: Head) -> BadEntry | None:
        """What is wrong with the end of a log whose entries are all good; None: nothing."""
        if head.tail_seq > self.seq:
            return self._fault(f"is missing: the task knows {head.tail_seq} entries")
        if head.tail_seq < self.seq:
            extra = head.tail_seq + 1
            return BadEntry(self._task_id, extra, "is not the task's: its log ends before it")
        if head.tail_hash != (self._hash if self.seq else ""):
            return BadEntry(self._task_id, self.seq, "is not the one that the task knows as its last")
        if head.tail_seal == NO_SEAL:
            return BadEntry(
                self._task_id,
                self.seq,
                "is the last of an audit that was continued although its end was not sealed with the audit "
                "key: entries before it may have been dropped",
            )
        if head.tail_seal != self._records.chain.seal(self._task_id, self.seq, self._hash):
            return BadEntry(
                self._task_id,
                self.seq,
                "is not sealed as this task's last with this audit key: later ones may have been dropped",
            )
        return None

    def _fault(self, reason: str) -> BadEntry:
        return BadEntry(self._task_id, self.seq + 1, reason)
