"""Exports all state of one agent as lines of JSON (`dump_import` imports it into another store).

The first line names the format and the agent. Every other line is one record, with the checksum it is
stored with::

    {"key":"session/…","partition":"Tester/user/tid.oid","sha256":"…","value":{…}}

The last line has the number of records, so that a truncated file is not taken for a whole one.

The order is fixed: the owner index and the locators; then, user by user, each task by its id with all its
records, its head last, followed by the user's records outside tasks; then each thread that a program keeps,
its chunks first. So the same state gives the same bytes, whatever the store. A damaged record is exported as
it was found, as base64 under `damaged`, and reported.

An export leaves out what expires or can be rebuilt: leases, pending deletions, stream events, users' secrets
for tool servers, indexes and idempotency keys. An import rebuilds the indexes, and the keys that are still
valid.
"""

import base64
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import IO, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import CorruptState
from tealagents.domain.models import (
    Head,
    LogRecord,
    Session,
    User,
)
from tealagents.domain.ports import Record
from tealagents.state import codec, keys
from tealagents.state.inventory import Inventory, Progress
from tealagents.state.out_of_line import BlobRef
from tealagents.state.records import RecordStore, named_in

T = TypeVar("T")

FORMAT = "tealagents/state/v1"
#: the beginning of the last line
LAST = b'{"records":'
#: prefix of an imported value that is damaged and still sealed: without it, the new store would seem to be
#: encrypted with another key than its own
KEPT_SEALED = b"damaged "
#: how often a task is read, as long as it changes meanwhile
ATTEMPTS = 5
#: bytes of one task that are held in memory; more go to a temporary file
IN_MEMORY = 8 * 1024 * 1024


class NoTemporaryFile(Exception):
    """A temporary file cannot be created or written. The text says where, and what to do."""

    def __init__(self, error: OSError) -> None:
        where = f" in {tempfile.tempdir}" if tempfile.tempdir else ""
        why = error.strerror or type(error).__name__
        super().__init__(
            f"No temporary file can be written{where}: {why}. Set TMPDIR to a folder on a disk with space."
        )


class Row(Struct, frozen=True):
    """One record of an export."""

    partition: str
    key: str
    stored: bytes

    def line(self) -> bytes:
        names = {"key": self.key, "partition": self.partition}
        begin = codec.encode_json(names)[:-1]
        if self.damaged:
            return begin + b',"damaged":"' + base64.b64encode(self.stored.removeprefix(KEPT_SEALED)) + b'"}\n'
        return begin + b"," + self.stored[1:] + b"\n"

    @property
    def damaged(self) -> bool:
        try:
            codec.checked(self.partition, self.key, self.stored)
        except CorruptState:
            return True
        return b"\n" in self.stored


class FirstLine(Struct, frozen=True, forbid_unknown_fields=True):
    agent: str
    format: str


class LastLine(Struct, frozen=True, forbid_unknown_fields=True):
    records: int


class _Thread(Struct, frozen=True):
    """What an export has to know of a thread that a program keeps (`threads.stored`)."""

    chunks: BlobRef | None = None


class Exporter:
    """Reads everything and writes nothing."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._inventory = Inventory(records)
        self.tasks = 0

    @property
    def problems(self) -> list[str]:
        """Descriptions of what could not be exported, or only as damaged."""
        return self._inventory.damaged

    async def lines(self, progress: Progress = lambda done, total: None) -> AsyncIterator[bytes]:
        yield codec.encode_json(FirstLine(self._records.agent, FORMAT)) + b"\n"
        records = 0
        async for line in self._record_lines(progress):
            records += 1
            yield line
        yield codec.encode_json(LastLine(records)) + b"\n"

    async def _record_lines(self, progress: Progress) -> AsyncIterator[bytes]:
        owners = await self._inventory.owners()
        for partition in self._inventory.index_partitions():
            async for row in self._rows(partition, ""):
                yield self._line(row)
        for done, owner in enumerate(owners):
            progress(done, len(owners))
            lacking: set[str] = set()  # of one user at a time, so that memory is bounded
            async for found in self._inventory.tasks(owner):
                partition, key, exported = found.partition, keys.task(found.task_id), False
                rows = partial(self._task_rows, partition, found.task_id)
                async for line in self._snapshot(partition, key, found.record, rows):
                    exported = True
                    yield line
                self.tasks += exported
                if exported and found.head is not None:
                    lacking.add(found.head.value.session_id)
            async for line in self._besides(owner, lacking):
                yield line
        partition = keys.threads(self._records.agent)
        async for key, record in self._records.every(partition, keys.THREADS):
            if _has_no_chunks(partition, key, record.value):  # nothing else belongs to it
                yield self._line(Row(partition, key, record.value))
                continue
            rows = partial(self._rows, partition, keys.blobs(keys.last_segment(key)))
            async for line in self._snapshot(partition, key, record, rows):
                yield line
        progress(len(owners), len(owners))

    def _line(self, row: Row) -> bytes:
        if row.damaged:
            self.problems.append(f"{row.partition}: the record {row.key!r} is damaged; exported as it is")
        return row.line()

    async def _rows(self, partition: str, prefix: str) -> AsyncGenerator[Row, None]:
        async for key, record in self._records.every(partition, prefix):
            yield Row(partition, key, record.value)

    async def _besides(self, owner: User, lacking: set[str]) -> AsyncIterator[bytes]:
        """A user's records outside tasks, read after the tasks, so that no new task lacks its session.

        `lacking`: the sessions of the tasks. One that was deleted after its tasks were read is reported.
        """
        partition = self._records.partition(owner)
        for prefix in (keys.MEMORIES, keys.session("")):
            async for row in self._rows(partition, prefix):
                kept = row if prefix == keys.MEMORIES else await self._kept(row)
                if kept is not None:
                    lacking.discard(keys.last_segment(row.key))
                    yield self._line(kept)
        for session_id in sorted(lacking):
            self.problems.append(
                f"{partition}: the session {session_id} is gone, but not its tasks, which were read before; "
                "export when it is idle"
            )

    async def _kept(self, row: Row) -> Row | None:
        """A session's record, restored if a task keeps it from being pruned; None if it is deleted."""
        if not _erased(row.partition, row.key, row.stored, Session):
            return row
        session = codec.unseal(row.partition, row.key, row.stored, Session)
        within = keys.tasks_of_session(session.session_id)
        if not session.if_empty or not await self._records.store.scan(row.partition, within, limit=1):
            return None
        restored = replace(session, erased=False, if_empty=False)
        return Row(row.partition, row.key, codec.seal(row.partition, row.key, restored))

    # --- one task, or thread ----------------------------------------------------------------------

    async def _snapshot(
        self, partition: str, key: str, found: Record, rows: Callable[[], AsyncGenerator[Row, None]]
    ) -> AsyncIterator[bytes]:
        """The lines of a record and of the `rows` that belong to it, which come first, all of one moment.

        None at all if it is gone, or never stopped changing.
        """
        record: Record | None = found
        with _spool() as spool:
            for _ in range(ATTEMPTS):
                if record is None or _erased(partition, key, record.value, Head):
                    return
                before, problems = record, len(self.problems)
                spool.seek(0)
                spool.truncate()
                async with aclosing(rows()) as parts:
                    async for row in parts:
                        spool.write(self._line(row))
                spool.write(self._line(Row(partition, key, before.value)))
                record = await self._at(partition, key)
                if record == before:
                    spool.seek(0)
                    for line in spool:
                        yield line
                    return
                del self.problems[problems:]
        kind, name = key.split("/")
        self.problems.append(
            f"{partition}: the {kind} {name} changed each time it was read, and is left out; "
            "export when it is idle"
        )

    async def _task_rows(self, partition: str, task_id: str) -> AsyncGenerator[Row, None]:
        """A task's records besides its head: those that others may refer to come first."""
        requests, approvals = await self._named(partition, task_id)
        for prefix in (keys.blobs(task_id), keys.logs(task_id)):
            async for row in self._rows(partition, prefix):
                yield row
        for key in [*map(keys.approval, sorted(approvals)), *map(keys.request, sorted(requests))]:
            if (record := await self._at(partition, key)) is not None:
                yield Row(partition, key, record.value)

    async def _at(self, partition: str, key: str) -> Record | None:
        """One record. A scan returns a damaged one as it is stored."""
        page = await self._records.store.scan(partition, key, limit=1)
        return page[0][1] if page and page[0][0] == key else None

    async def _named(self, partition: str, task_id: str) -> tuple[set[str], set[str]]:
        """The ids of the requests and the approvals that a task's log names."""
        requests: set[str] = set()
        approvals: set[str] = set()
        async for row in self._rows(partition, keys.logs(task_id)):
            try:
                log_record = codec.unseal(partition, row.key, row.stored, LogRecord)
            except CorruptState:
                return await self._records.of_task(partition, task_id)
            named = named_in(log_record)
            requests |= named[0]
            approvals |= named[1]
        return requests, approvals


@contextmanager
def _spool() -> Iterator[IO[bytes]]:
    """A temporary file. `NoTemporaryFile` if it cannot be written: the caller's output is another file."""
    try:
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as spool:
            yield cast("IO[bytes]", spool)
    except OSError as error:
        raise NoTemporaryFile(error) from error


def _erased(partition: str, key: str, stored: bytes, kind: type[Head] | type[Session]) -> bool:
    try:
        return codec.unseal(partition, key, stored, kind).erased
    except CorruptState:
        return False


def _has_no_chunks(partition: str, key: str, stored: bytes) -> bool:
    """Whether a thread is stored in its record alone; False for a damaged one, which cannot say so."""
    try:
        return codec.unseal(partition, key, stored, _Thread).chunks is None
    except CorruptState:
        return False
