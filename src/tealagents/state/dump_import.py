"""Imports an export of all state (`dump`) into a store."""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.models import (
    Approval,
    Head,
    RequestRecord,
    Session,
)
from tealagents.domain.ports import COMMIT_BYTES, COMMIT_RECORDS, NAME, NAME_RULE, SEALED, Commit, Put, Record
from tealagents.state import codec, keys
from tealagents.state.commits import PORTION_BYTES
from tealagents.state.dump import FORMAT, KEPT_SEALED, LAST, FirstLine, LastLine, Row
from tealagents.state.records import RecordStore
from tealagents.state.transitions import kept_key

T = TypeVar("T")

#: how often a commit is sent whose reply is lost
SENDINGS = 5
#: what helps where a file is not as it was exported
_AGAIN: Final = "Export again."


class Refused(Exception):
    """The import is refused. The text names the line or the record."""


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    partition: str
    sha256: str = ""
    value: msgspec.Raw = msgspec.Raw(b"")
    damaged: str | None = None


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
                whole = line.startswith(LAST)
                if not whole:
                    yield self._mine(_parsed(line))
                elif msgspec.json.decode(line, type=LastLine).records != number - 2:
                    raise ValueError("the number of records does not match: some are missing")
            except RecursionError:
                raise Refused(f"line {number}: its value is nested too deeply") from None
            except CorruptState as error:  # whose own text is about a record in the store
                raise Refused(f"line {number}: the record {error.key!r} {error.reason}. {_AGAIN}") from None
            except ValueError as error:
                unreadable = isinstance(error, msgspec.DecodeError | UnicodeDecodeError)
                if unreadable and not line.endswith(b"\n"):
                    said = f"the export is incomplete: it ends within line {number}. {_AGAIN}"
                    raise Refused(said) from None
                raise Refused(f"line {number}: {error}") from None
        if not whole:
            raise Refused(f"the export is incomplete: it ends after line {number}. {_AGAIN}")

    def _check_header(self, line: bytes) -> None:
        try:
            header = msgspec.json.decode(line, type=FirstLine)
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
