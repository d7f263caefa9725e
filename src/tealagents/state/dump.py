"""Exports all state of one agent as lines of JSON, and imports it into another store.

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

import asyncio
import base64
import binascii
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import IO, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.models import (
    Approval,
    Head,
    LogRecord,
    RequestRecord,
    Session,
    User,
)
from tealagents.domain.ports import COMMIT_BYTES, COMMIT_RECORDS, NAME, NAME_RULE, SEALED, Commit, Put, Record
from tealagents.state import codec, keys
from tealagents.state.commits import PORTION_BYTES
from tealagents.state.inventory import Inventory, Progress
from tealagents.state.out_of_line import BlobRef
from tealagents.state.records import RecordStore, named_in
from tealagents.state.transitions import kept_key

T = TypeVar("T")

FORMAT = "tealagents/state/v1"
#: the beginning of the last line
_LAST = b'{"records":'
#: prefix of an imported value that is damaged and still sealed: without it, the new store would seem to be
#: encrypted with another key than its own
KEPT_SEALED = b"damaged "
#: how often a task is read, as long as it changes meanwhile
ATTEMPTS = 5
#: bytes of one task that are held in memory; more go to a temporary file
IN_MEMORY = 8 * 1024 * 1024
#: how often a commit is sent whose reply is lost
SENDINGS = 5


class Refused(Exception):
    """The import is refused. The text names the line or the record."""


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


class _Header(Struct, frozen=True, forbid_unknown_fields=True):
    agent: str
    format: str


class _End(Struct, frozen=True, forbid_unknown_fields=True):
    records: int


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    partition: str
    sha256: str = ""
    value: msgspec.Raw = msgspec.Raw(b"")
    damaged: str | None = None


class _Thread(Struct, frozen=True):
    """What an export has to know of a thread that a program keeps (`threads.stored`)."""

    chunks: BlobRef | None = None


# --- export -----------------------------------------------------------------------------------------


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
        yield codec.encode_json(_Header(self._records.agent, FORMAT)) + b"\n"
        records = 0
        async for line in self._record_lines(progress):
            records += 1
            yield line
        yield codec.encode_json(_End(records)) + b"\n"

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


# --- import -----------------------------------------------------------------------------------------


class Importer:
    """Writes an export into a store, without overwriting anything."""

    def __init__(self, records: RecordStore, *, key_seconds: float) -> None:
        """`key_seconds`: how long the idempotency key of a request that has not ended is kept."""
        self._records = records
        self._key_seconds = key_seconds
        self.written = 0
        #: records that the store had already, byte for byte
        self.same = 0
        #: idempotency keys of the partition that is being written, and when their requests were created
        self._keys: dict[str, tuple[datetime, Put]] = {}

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """The records of an export, each checked. Raises `Refused`."""
        numbered = enumerate(lines, 1)
        self._check_header(next(numbered, (1, b""))[1])
        whole, number = False, 1
        for number, line in numbered:
            try:
                if whole:
                    raise ValueError("it comes after the last line")
                whole = line.startswith(_LAST)
                if not whole:
                    yield self._mine(_parsed(line))
                elif msgspec.json.decode(line, type=_End).records != number - 2:
                    raise ValueError("the number of records does not match: some are missing")
            except RecursionError:
                raise Refused(f"line {number}: its value is nested too deeply") from None
            except (ValueError, CorruptState) as error:
                raise Refused(f"line {number}: {error}") from None
        if not whole:
            raise Refused(f"the export is incomplete: it ends after line {number}. Export again.")

    def _check_header(self, line: bytes) -> None:
        try:
            header = msgspec.json.decode(line, type=_Header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Refused("line 1: this is not an export of an agent's state") from None
        if header.format != FORMAT:
            raise Refused(f"line 1: the format is {header.format!r}; this version reads {FORMAT!r}")
        if header.agent != self._records.agent:
            raise Refused(
                f"line 1: this is the state of {header.agent!r}, and the config's agent is called "
                f"{self._records.agent!r}. State belongs to an agent's name; import it with that name."
            )

    def _mine(self, row: Row) -> Row:
        if not row.partition.startswith(keys.plain(self._records.agent) + "/"):
            raise ValueError(f"the partition {row.partition!r} is not this agent's")
        if not (NAME.fullmatch(row.partition) and NAME.fullmatch(row.key)):
            raise ValueError(f"partitions and keys have {NAME_RULE}")
        if len(row.stored) > COMMIT_BYTES:
            raise ValueError(f"the record has {len(row.stored)} bytes; at most {COMMIT_BYTES}")
        return replace(row, stored=KEPT_SEALED + row.stored) if row.stored.startswith(SEALED) else row

    async def write(self, lines: Iterable[bytes], report: Callable[[Row], None] = lambda row: None) -> None:
        """Writes all missing records. May be repeated after a crash. `Refused` if a record differs."""
        for partition, rows in groupby(self.rows(lines), lambda row: row.partition):
            await self._write_partition(rows, report)
            await self._write_keys(partition, {key: put for key, (_, put) in self._keys.items()})
            self._keys.clear()

    async def _write_partition(self, rows: Iterable[Row], report: Callable[[Row], None]) -> None:
        waiting: list[tuple[Row, dict[str, Put]]] = []
        records = size = 0
        for row in rows:
            if _may_refer(row) and any(each.key.startswith(keys.BLOBS) for each, _ in waiting):
                await self._commit(waiting)
                waiting, records, size = [], 0, 0
            derived = await self._derived(row)
            more, bytes_more = 1 + len(derived), len(row.stored) + sum(len(p.value) for p in derived.values())
            if waiting and (records + more > COMMIT_RECORDS or size + bytes_more > PORTION_BYTES):
                await self._commit(waiting)
                waiting, records, size = [], 0, 0
            waiting.append((row, derived))
            records, size = records + more, size + bytes_more
            report(row)
        if waiting:
            await self._commit(waiting)

    async def compare(self, lines: Iterable[bytes], report: Callable[[Row], None] = lambda row: None) -> None:
        """Checks and counts like `write`, without writing."""
        for row in self.rows(lines):
            await self._compare(row)
            report(row)

    async def _compare(self, row: Row) -> bool:
        """Whether the store has the record; `Refused` if it has a different one under the key."""
        found = await self._records.store.scan(row.partition, row.key, limit=1)
        if not found or found[0][0] != row.key:
            self.written += 1
            return False
        if found[0][1].value not in (row.stored, row.stored.removeprefix(KEPT_SEALED)):
            raise Refused(
                f"the record {row.key!r} of {row.partition} already exists with a different value. Nothing "
                "is overwritten: import into an empty store."
            )
        self.same += 1
        return True

    async def _commit(self, waiting: list[tuple[Row, dict[str, Put]]]) -> None:
        """Writes records of one partition together, or one by one if the store has some of them already."""
        row = waiting[0][0]
        put = {each.key: Put(each.stored) for each, _ in waiting}
        expect: dict[str, str | None] = dict.fromkeys(put)
        for _, more in waiting:
            put |= more
        try:
            await self._send(row.partition, Commit(operation=ids.operation_id(), expect=expect, put=put))
        except Conflict:
            if len(waiting) > 1:
                for each in waiting:
                    await self._commit([each])
            elif not await self._compare(row):
                raise Refused(f"the record {row.key!r} comes and goes; is it in use?") from None
        else:
            self.written += len(waiting)

    async def _write_keys(self, partition: str, put: dict[str, Put]) -> None:
        """Writes idempotency keys, except those that the store has already."""
        names = list(put)
        for start in range(0, len(names), COMMIT_RECORDS):
            some = {name: put[name] for name in names[start : start + COMMIT_RECORDS]}
            commit = Commit(operation=ids.operation_id(), expect=dict.fromkeys(some), put=some)
            try:
                await self._send(partition, commit)
            except Conflict:
                if len(some) > 1:
                    for name in some:
                        await self._write_keys(partition, {name: some[name]})

    async def _send(self, partition: str, commit: Commit) -> None:
        """Sends a commit until a reply comes. If its first reply was lost, the repeated commit may raise
        `Conflict`."""
        for attempt in range(SENDINGS):
            try:
                return await self._records.store.commit(partition, commit)
            except Unknown:
                await asyncio.sleep(0.1 * 2**attempt)
        raise PersistenceUnavailable("The store did not say whether a write was applied. Import again.")

    # --- what an export leaves out ---------------------------------------------------------------

    async def _derived(self, row: Row) -> dict[str, Put]:
        """The index entries of a record, in its own partition."""
        try:
            return await self._made_of(row)
        except CorruptState:
            return {}

    async def _made_of(self, row: Row) -> dict[str, Put]:
        partition, key = row.partition, row.key
        made: dict[str, object] = {}
        if not partition.startswith(keys.users(self._records.agent)):
            return {}
        if key.startswith(keys.task("")):
            head = codec.unseal(partition, key, row.stored, Head)
            made |= dict.fromkeys(keys.listings(head), head.task_id)
        elif key.startswith(keys.session("")):
            session = codec.unseal(partition, key, row.stored, Session)
            made[keys.session_by_creation(session.created_at, session.session_id)] = session.session_id
        elif key.startswith(keys.approval("")):
            approval = await self._whole(row, Approval)
            made[keys.approval_by_creation(approval.created_at, approval.approval_id)] = approval.approval_id
            await self._announce(approval)
        elif key.startswith(keys.request("")):
            self._note_key(partition, await self._whole(row, RequestRecord))
        return {name: Put(codec.seal(partition, name, value)) for name, value in made.items()}

    async def _whole(self, row: Row, kind: type[T]) -> T:
        found = await self._records.whole(row.partition, row.key, Record(row.stored, ""), kind)
        if found is None:  # `whole` has read the record again, which the target does not have yet
            raise CorruptState(row.key, "lacks some of its chunks")
        return found.value

    def _note_key(self, partition: str, request: RequestRecord) -> None:
        """Remembers a request's idempotency key if it is still valid. The newer of two requests keeps it."""
        if (kept := kept_key(request, self._key_seconds)) is None:
            return
        key, record, seconds = kept
        # the key was renewed with each change of the request's status
        seconds -= (self._records.clock.now() - request.changed_at).total_seconds()
        if seconds <= 0:
            return
        dated = (request.created_at, Put(codec.seal(partition, key, record), seconds))
        self._keys[key] = max(self._keys.get(key, dated), dated, key=itemgetter(0))

    async def _announce(self, approval: Approval) -> None:
        """Adds a pause that can still be decided to its tenant's inbox."""
        left = (approval.expires_at - self._records.clock.now()).total_seconds()
        if approval.status != "pending" or left <= 0:
            return
        partition = keys.inbox(self._records.agent, approval.owner.tid)
        key = keys.in_inbox(approval.created_at, approval.approval_id)
        value = codec.seal(partition, key, approval.owner)
        put = {key: Put(value, left + keys.INBOX_SECONDS)}
        await self._send(partition, Commit(operation=ids.operation_id(), put=put))


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


def _may_refer(row: Row) -> bool:
    """Whether the record is of a kind whose content may be stored out of line."""
    return row.key.startswith((keys.approval(""), keys.request("")))


def _parsed(line: bytes) -> Row:
    """The record on one line. Raises `ValueError`, `CorruptState`."""
    parsed = msgspec.json.decode(line, type=_Line)
    if parsed.damaged is not None:
        try:
            return Row(parsed.partition, parsed.key, base64.b64decode(parsed.damaged, validate=True))
        except binascii.Error as error:
            raise ValueError(f"`damaged` is not base64 ({error})") from None
    stored = codec.joined(parsed.sha256.encode(), bytes(parsed.value))
    codec.checked(parsed.partition, parsed.key, stored)
    return Row(parsed.partition, parsed.key, stored)
