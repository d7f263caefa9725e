"""The audit's chain: whatever is done to a log, verifying names the first entry that is not as it was."""

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import CorruptState
from tealagents.domain.models import Entry, Head, LogRecord, Note, RequestRecord, User
from tealagents.domain.ports import Commit, Put, Record
from tealagents.state import audit, codec, keys
from tealagents.state.audit import Verified, verify
from tealagents.state.audit_chain import GENESIS, AuditChain, draft
from tealagents.state.records import RecordStore
from tealagents.stores.encrypted import EncryptedStore
from tealagents.stores.memory import MemoryStore

ADA = User("tenant", "ada")
TASK = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"
OTHER = "7f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"
#: entries of each log record of a log; the second log record holds one that is stored out of line
BATCHES = (2, 1, 3)
LARGE = "x" * 300_000
KEY = "correct horse battery staple, and a few words more"


class Log:
    """A task's log in a store that anyone can write to."""

    def __init__(self, records: RecordStore, task_id: str = TASK) -> None:
        self.records = records
        self.task_id = task_id
        self.partition = records.partition(ADA)

    async def write(self, log_id: str = "") -> None:
        now = datetime.now(UTC)
        head = Head(
            task_id=self.task_id,
            session_id=OTHER,
            owner=ADA,
            status="Completed",
            created_at=now,
            updated_at=now,
            log_id=log_id,
        )
        await self.put(keys.task(self.task_id), head)
        (written,) = await self.records.store.read(self.partition, [keys.task(self.task_id)])
        assert written is not None
        for size in BATCHES:
            drafts = [
                draft("message.added", "service", OTHER, Note(LARGE if size == 1 else f"{n}"))
                for n in range(size)
            ]
            head, key, log_record = await self.records.extended(self.partition, head, drafts, written.version)
            await self.put(key, log_record)
        await self.put(keys.task(self.task_id), head)

    async def verified(self) -> Verified:
        found = await verify(self.records, self.partition, self.task_id)
        assert found is not None
        return found

    # --- what an intruder with access to the store does -------------------------------------------

    async def put(self, key: str, record: object) -> None:
        value = codec.seal(self.partition, key, record)
        await self.records.store.commit(
            self.partition, Commit(operation=ids.operation_id(), put={key: Put(value)})
        )

    async def log_records(self) -> list[tuple[str, LogRecord]]:
        return await self.records.scan(self.partition, keys.logs(self.task_id), LogRecord)

    async def head(self) -> Head:
        found = await self.records.get(self.partition, keys.task(self.task_id), Head)
        assert found is not None
        return found.value

    async def rewrite(self, entries: Sequence[tuple[Entry, msgspec.Raw]]) -> None:
        """The same entries and bodies as one log record, in place of all log records."""
        for key, _ in await self.log_records():
            await self.records.delete(self.partition, [key])
        log_record = LogRecord(entries=tuple(e for e, _ in entries), bodies=tuple(b for _, b in entries))
        await self.put(keys.log(self.task_id, 1), log_record)

    async def entries(self) -> list[tuple[Entry, msgspec.Raw]]:
        return [
            pair
            for _, log_record in await self.log_records()
            for pair in zip(log_record.entries, log_record.bodies, strict=True)
        ]

    async def forge(self, entries: Sequence[tuple[Entry, msgspec.Raw]], chain: AuditChain) -> None:
        """A log that is consistent in itself, its head too, as made with `chain`."""
        before, made = GENESIS, []
        for seq, (entry, body) in enumerate(entries, 1):
            digest = hashlib.sha256(bytes(body)).hexdigest()
            if not bytes(body).startswith(b'{"blob":'):
                entry = replace(entry, details={**entry.details, "sha256": digest})
            fields = msgspec.structs.asdict(replace(entry, seq=seq, prev_hash=before))
            del fields["hash"]
            before = chain.hash(fields)
            made.append((replace(entry, seq=seq, prev_hash=fields["prev_hash"], hash=before), body))
        await self.rewrite(made)
        head = await self.head()
        seal = chain.seal(self.task_id, len(made), before)
        head = replace(head, tail_seq=len(made), tail_hash=before, tail_seal=seal)
        await self.put(keys.task(self.task_id), head)


@asynccontextmanager
async def log(key: bytes) -> AsyncIterator[Log]:
    async with MemoryStore() as store:
        written = Log(RecordStore(store, "Tester", SystemClock(), audit_key=key))
        await written.write()
        yield written


Tamper = Callable[[Log], "object"]


@pytest.fixture(params=[b"", b"an audit key"], ids=["without a key", "with a key"])
async def written(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    async with log(request.param) as made:
        yield made


async def test_a_log_as_it_was_written_verifies(written: Log) -> None:
    """All entries are good, those whose body is stored out of line too. covers: TASK-8"""
    assert await written.verified() == Verified(TASK, 6)


async def test_a_task_that_is_gone_is_not_judged(written: Log) -> None:
    """There is nothing to say of it."""
    await written.records.delete(written.partition, [keys.task(TASK)])
    assert await verify(written.records, written.partition, TASK) is None


async def test_a_task_that_is_deleted_and_imported_again_meanwhile_is_judged_anew(
    written: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its new log does not continue what was read of the old one, and no one has changed it."""
    monkeypatch.setattr(audit, "PAGE", 1)
    scan, scans = written.records.store.scan, list[str]()

    async def then_replaced(partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        scans.append(prefix)
        found = await scan(partition, prefix, **page)
        if len(scans) == 1:
            await written.records.delete(written.partition, [key for key, _ in await written.log_records()])
            await written.write(log_id="imported")
        return found

    monkeypatch.setattr(written.records.store, "scan", then_replaced)
    assert await written.verified() == Verified(TASK, 6)


@pytest.mark.parametrize("seq", range(1, 7))
@pytest.mark.parametrize("field", ["actor", "action", "at", "request_id", "details"])
async def test_a_changed_entry_is_named(written: Log, seq: int, field: str) -> None:
    """Any field of any entry, its checksum made to fit. covers: TASK-8"""
    entries = await written.entries()
    entry, body = entries[seq - 1]
    changed = {**entry.details, "more": 1} if field == "details" else "changed"
    entries[seq - 1] = (replace(entry, **{field: changed}), body)
    await written.rewrite(entries)
    fault = (await written.verified()).fault
    assert fault is not None
    assert (fault.seq, fault.reason) == (seq, "does not match its hash")


@pytest.mark.parametrize(
    ("field", "reason"),
    [("prev_hash", "does not continue the entry before it"), ("hash", "does not match its hash")],
)
async def test_a_hash_of_any_characters_is_compared(written: Log, field: str, reason: str) -> None:
    """A forger is not bound to hexadecimal digits. covers: TASK-8"""
    entries = await written.entries()
    entry, body = entries[1]
    entries[1] = (replace(entry, **{field: "\N{LATIN SMALL LETTER E WITH ACUTE}" * 64}), body)
    await written.rewrite(entries)
    fault = (await written.verified()).fault
    assert fault is not None
    assert (fault.seq, fault.reason) == (2, reason)


@pytest.mark.parametrize("seq", [1, 2, 5, 6])
async def test_a_changed_body_is_named(written: Log, seq: int) -> None:
    """What was said is bound to the entry that records it."""
    entries = await written.entries()
    entry, _ = entries[seq - 1]
    entries[seq - 1] = (entry, msgspec.Raw(codec.encode_json(Note("never said"))))
    await written.rewrite(entries)
    fault = (await written.verified()).fault
    assert fault is not None
    assert (fault.seq, fault.reason) == (seq, "does not have the body that it was written with")


async def test_a_body_stored_apart_that_is_changed_is_named(written: Log) -> None:
    """Its pieces are named by its digest, and must have it."""
    [(key, _), *_] = await written.records.scan(written.partition, keys.blobs(TASK), str)
    await written.put(key, "y" * 131_072)
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == 3
    assert "does not match its digest" in fault.reason


@pytest.mark.parametrize(
    "reference",
    [{"blob": 1}, {"blob": "x y", "pieces": 1}, {"blob": "0" * 64, "pieces": 10**12}, {"blob": "0" * 64}],
    ids=["no digest", "no key", "too many chunks", "half of it"],
)
async def test_a_forged_reference_to_a_body_is_named(written: Log, reference: dict[str, object]) -> None:
    """Whatever it holds, it is damage: readers and the verification report it as such. covers: STATE-4"""
    key, log_record = (await written.log_records())[0]
    bodies = (msgspec.Raw(msgspec.json.encode(reference)), *log_record.bodies[1:])
    await written.put(key, replace(log_record, bodies=bodies))
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == 1
    assert key in fault.reason


@pytest.mark.parametrize("task_id", [TASK, "x y"])
async def test_a_forged_reference_in_place_of_a_request_is_damage(written: Log, task_id: str) -> None:
    """As in place of a body: its parts name the keys that are read. covers: STATE-4"""
    blob = "0" * 64 if task_id == "x y" else "x y"
    key = keys.request(OTHER)
    await written.put(key, {"apart": blob, "pieces": 1, "task_id": task_id})
    with pytest.raises(CorruptState) as caught:
        await written.records.get(written.partition, key, RequestRecord)
    assert caught.value.key == key


@pytest.mark.parametrize("seq", range(1, 7))
async def test_a_dropped_entry_is_named(written: Log, seq: int) -> None:
    """From the beginning, the middle and the end. covers: TASK-8"""
    entries = await written.entries()
    del entries[seq - 1]
    await written.rewrite(entries)
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == seq


@pytest.mark.parametrize("number", range(3))
async def test_a_dropped_batch_is_named(written: Log, number: int) -> None:
    """A whole record that is missing, the last one too."""
    log_records = await written.log_records()
    await written.records.delete(written.partition, [log_records[number][0]])
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == log_records[number][1].entries[0].seq
    assert "is missing" in fault.reason


@pytest.mark.parametrize("first", range(5))
async def test_entries_in_another_order_are_named(written: Log, first: int) -> None:
    """Two neighbours have changed places."""
    entries = await written.entries()
    entries[first], entries[first + 1] = entries[first + 1], entries[first]
    await written.rewrite(entries)
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == first + 1
    assert "dropped or moved" in fault.reason


async def test_an_entry_behind_the_end_is_named(written: Log) -> None:
    """An intruder has added one to the log, but not to the task."""
    head = await written.head()
    _, key, log_record = await written.records.extended(
        written.partition, head, [draft("a", "b", None, Note(""))]
    )
    await written.put(key, log_record)
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == 7


async def test_a_record_that_does_not_match_its_checksum_is_named(written: Log) -> None:
    """Damage by accident."""
    key, _ = (await written.log_records())[1]
    [record] = await written.records.store.read(written.partition, [key])
    assert record is not None
    broken = Put(record.value.replace(b"message.added", b"message.eaten"))
    await written.records.store.commit(
        written.partition, Commit(operation=ids.operation_id(), put={key: broken})
    )
    fault = (await written.verified()).fault
    assert fault is not None
    assert fault.seq == 3
    assert "checksum" in fault.reason


@pytest.mark.parametrize(
    ("otherwise_sealed", "said"),
    [
        (False, "does not open: it was changed, or moved from another record"),
        (True, "sealed with the key .*, which is none of those given .*TA_ENCRYPTION_OLD_KEYS"),
    ],
    ids=["changed", "sealed with another key"],
)
async def test_a_record_that_does_not_open_is_named_with_the_reason(
    otherwise_sealed: bool, said: str
) -> None:
    """Which is not that no key is set, and what to do."""
    async with MemoryStore() as plain:
        written = Log(RecordStore(EncryptedStore(plain, KEY), "Tester", SystemClock()))
        await written.write()
        key, log_record = (await written.log_records())[1]
        if otherwise_sealed:
            other = EncryptedStore(plain, KEY[::-1])
            await Log(RecordStore(other, "Tester", SystemClock())).put(key, log_record)
        else:
            [record] = await plain.read(written.partition, [key])
            assert record is not None
            broken = Put(record.value[:-1] + bytes([record.value[-1] ^ 1]))
            await plain.commit(written.partition, Commit(operation=ids.operation_id(), put={key: broken}))
        fault = (await written.verified()).fault
        assert fault is not None
        assert fault.seq == 3
        assert re.search(f"{key}.* {said}.*; restore it from a backup", fault.reason)
        assert "set TA_ENCRYPTION_KEY" not in fault.reason


# --- a forger without the key -----------------------------------------------------------------------


@pytest.mark.parametrize("seq", range(1, 7))
async def test_a_recomputed_log_is_found_by_its_key(seq: int) -> None:
    """From the changed entry on every hash fits, the head too; only the key is missing. covers: TASK-8"""
    async with log(b"an audit key") as written:
        entries = await written.entries()
        entry, body = entries[seq - 1]
        entries[seq - 1] = (replace(entry, actor="somebody else"), body)
        await written.forge(entries, AuditChain())
        fault = (await written.verified()).fault
        assert fault is not None
        assert (fault.seq, fault.reason) == (1, "does not match its hash")


async def test_without_a_key_a_recomputed_log_verifies() -> None:
    """Which is why there is one: without it only accidents are found."""
    async with log(b"") as written:
        entries = await written.entries()
        entries[0] = (replace(entries[0][0], actor="somebody else"), entries[0][1])
        await written.forge(entries, AuditChain())
        assert (await written.verified()).fault is None


@pytest.mark.parametrize("kept", [1, 3, 5])
async def test_a_log_cut_short_with_its_head_is_found_by_its_key(kept: int) -> None:
    """The hash of an earlier entry is no secret; that the log ended there, only the key's holder can say."""
    async with log(b"an audit key") as written:
        entries = (await written.entries())[:kept]
        await written.rewrite(entries)
        head = replace(await written.head(), tail_seq=kept, tail_hash=entries[-1][0].hash)
        await written.put(keys.task(TASK), head)
        fault = (await written.verified()).fault
        assert fault is not None
        assert fault.seq == kept
        assert "later ones may have been dropped" in fault.reason


@pytest.mark.parametrize("seal", ["", "0" * 64], ids=["none", "made up"])
async def test_a_log_cut_short_does_not_verify_again_by_being_continued(seal: str) -> None:
    """A later write seals its end only if it found the end sealed; however many follow. covers: TASK-8"""
    async with log(b"an audit key") as written:
        entries = (await written.entries())[:3]
        await written.rewrite(entries)
        cut = {"tail_seq": 3, "tail_hash": entries[-1][0].hash, "tail_seal": seal, "tail_key": 1}
        await written.put(keys.task(TASK), replace(await written.head(), **cut))
        for seq in (4, 5):
            drafts = [draft("message.added", "service", OTHER, Note("more"))]
            head, key, log_record = await written.records.extended(
                written.partition, await written.head(), drafts
            )
            await written.put(key, log_record)
            await written.put(keys.task(TASK), head)
            found = await written.verified()
            assert found.entries == seq
            assert found.fault is not None
            assert "entries before it may have been dropped" in found.fault.reason


async def test_a_log_that_was_emptied_with_its_head_is_found_by_its_key() -> None:
    """No task was ever without entries: its end is sealed from the first one on."""
    async with log(b"an audit key") as written:
        for key, _ in await written.log_records():
            await written.records.delete(written.partition, [key])
        head = replace(await written.head(), tail_seq=0, tail_hash="", tail_seal="", tail_key=0)
        await written.put(keys.task(TASK), head)
        fault = (await written.verified()).fault
        assert fault is not None
        assert "later ones may have been dropped" in fault.reason


async def test_the_log_of_another_task_is_found_by_its_key() -> None:
    """Copied over whole, with its end."""
    async with log(b"an audit key") as written:
        other = Log(written.records, OTHER)
        await other.write()
        for key, log_record in await written.log_records():
            await other.put(key.replace(TASK, OTHER), log_record)
        for key, piece in await written.records.scan(written.partition, keys.blobs(TASK), str):
            await other.put(key.replace(TASK, OTHER), piece)
        await other.put(keys.task(OTHER), replace(await written.head(), task_id=OTHER))
        fault = (await other.verified()).fault
        assert fault is not None
        assert fault.seq == 6


@pytest.mark.parametrize(
    ("key", "said"),
    [(b"an audit key", False), (b"another", True), (b"", True)],
    ids=["same", "other", "none"],
)
async def test_a_log_that_is_continued_with_another_key_is_reported(
    caplog: pytest.LogCaptureFixture, key: bytes, said: bool
) -> None:
    """At once: what is written from then on will never verify."""
    async with log(b"an audit key") as written:
        records = RecordStore(written.records.store, "Tester", SystemClock(), audit_key=key)
        await records.extended(written.partition, await written.head(), [draft("a", "b", None, Note(""))])
        assert (TASK in caplog.text and "TA_AUDIT_KEY" in caplog.text) is said


async def test_a_log_is_given_a_key_without_complaint(caplog: pytest.LogCaptureFixture) -> None:
    """One that was begun without any."""
    async with log(b"") as written:
        records = RecordStore(written.records.store, "Tester", SystemClock(), audit_key=b"an audit key")
        await records.extended(written.partition, await written.head(), [draft("a", "b", None, Note(""))])
        assert caplog.text == ""


async def test_another_key_verifies_nothing() -> None:
    """A log that was written under one key is not good under another."""
    async with log(b"an audit key") as written:
        records = RecordStore(written.records.store, "Tester", SystemClock(), audit_key=b"another")
        found = await verify(records, written.partition, TASK)
        assert found is not None
        assert found.fault is not None
        assert found.fault.seq == 1
