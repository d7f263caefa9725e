"""Export and import of all state: what is large comes back with all that leads to it."""

import json
import re
from datetime import timedelta
from operator import attrgetter
from typing import Any

import pytest
from engine_setup import ADA, Process, Scripted, calls, names, noting, process, says
from threads_setup import said

from tealagents.domain.errors import CorruptState
from tealagents.domain.ids import operation_id
from tealagents.domain.models import ToolCall
from tealagents.domain.ports import Commit, Put, Record, Store, WrappedStore
from tealagents.engine.approvals import Command
from tealagents.state import codec, keys
from tealagents.state.dump import ATTEMPTS, FORMAT, Exporter
from tealagents.state.dump_import import Importer, Refused
from tealagents.state.inventory import Inventory
from tealagents.state.new_message import Key
from tealagents.stores import sealed
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import ShiftedClock
from tealagents.threads import LocalThread, ThreadStore

#: bytes of a record that is stored out of line: in chunks that fit into one commit, and that do not
LARGE, LARGER = 80_000, 800_000
KEY = Key("a" * 64, "b" * 64)
DELETE = ToolCall("c1", "Shell-delete", "{}")


async def exported(here: Process) -> list[bytes]:
    return [line async for line in Exporter(here.records).lines()]


async def imported(lines: list[bytes], there: Process) -> Importer:
    importer = Importer(there.records, key_seconds=1000)
    await importer.write(lines)
    return importer


@pytest.mark.parametrize("size", [LARGE, LARGER])
async def test_the_idempotency_key_of_a_large_request_is_moved(size: int) -> None:
    """A retry at the new store is answered, not run again. covers: STATE-4"""
    async with process(None, Scripted(says("z" * size))) as here:
        request = await here.ask("hello", key=KEY)
        lines = await exported(here)
    async with process() as there:
        await imported(lines, there)
        assert await there.request(request.request_id) == request
        replayed = await there.ask("hello", key=KEY)
        assert (replayed.request_id, there.model.calls) == (request.request_id, [])


@pytest.mark.parametrize("size", [1, LARGE])
async def test_an_import_leaves_the_idempotency_key_of_a_newer_request_alone(size: int) -> None:
    """Its retry is answered with its own outcome, and all records of the import are there. covers: STATE-4"""
    async with process(None, Scripted(says("z" * size))) as here:
        older = await here.ask("hello", key=KEY)
        lines = await exported(here)
    async with process() as there:
        newer = await there.ask("hello", key=KEY)
        dry = Importer(there.records, key_seconds=1000)
        await dry.compare(lines)
        for written in (dry.written, 0):
            assert (await imported(lines, there)).written == written
            assert await there.request(older.request_id) == older
            assert (await there.ask("hello", key=KEY)).request_id == newer.request_id
        assert set(lines[1:-1]) <= {*await exported(there)}


async def test_a_key_that_two_requests_of_an_export_have_is_the_newer_ones() -> None:
    """Whichever of them is read first. The store had imported the older one. covers: STATE-4"""
    async with process(None, Scripted(says("old"))) as first:
        await first.ask(key=KEY)
        lines = await exported(first)
    async with process(None, Scripted(says("new"))) as here:
        newer = await here.ask(key=KEY)
        await imported(lines, here)
        head, *records, last = await exported(here)
    for either_way in (records, records[::-1]):
        async with process() as there:
            await imported([head, *either_way, last], there)
            assert (await there.ask(key=KEY)).request_id == newer.request_id


@pytest.mark.parametrize(("passed", "status"), [(500, "Paused"), (2000, "Completed")])
async def test_the_idempotency_key_of_a_pause_lapses_at_the_new_store_as_at_the_old_one(
    passed: int, status: str
) -> None:
    """By then it may be a newer request's, which a retry is answered with. covers: STATE-4"""
    clock = ShiftedClock()
    async with process(None, Scripted(calls(DELETE)), noting([], governed=True)) as here:
        assert (await here.ask(key=KEY)).status == "Paused"
        lines = await exported(here)
    clock.shift = timedelta(seconds=passed)
    async with process(None, Scripted(says("new")), clock=clock) as there:
        await imported(lines, there)
        assert (await there.ask(key=KEY)).status == status


async def test_an_imported_request_that_is_approved_leaves_the_key_of_a_newer_one_alone() -> None:
    """Though it had come with the same key, which a request renews while it runs. covers: STATE-4"""
    async with process(None, Scripted(calls(DELETE)), noting([], governed=True)) as here:
        paused = await here.ask(key=KEY)
        lines = await exported(here)
    async with process(None, Scripted(says("new"), says("done")), noting([], governed=True)) as there:
        newer = await there.ask(key=KEY)
        await imported(lines, there)
        sent = await there.approvals.resume(ADA, paused.request_id, Command(action="approve"), streamed=False)
        assert (await there.service.outcome(sent)).status == "Completed"
        assert (await there.ask(key=KEY)).request_id == newer.request_id


@pytest.mark.parametrize("size", [LARGE, LARGER])
async def test_a_large_pause_is_moved_with_its_listing_and_its_place_in_the_inbox(size: int) -> None:
    """The approver finds it at the new store as at the old one. covers: STATE-4"""
    call = ToolCall("c1", "Shell-delete", json.dumps({"x": "y" * size}))
    inbox = keys.inbox("Tester", "mock")
    async with process(None, Scripted(calls(call)), noting([], governed=True)) as here:
        assert (await here.ask()).status == "Paused"
        lines, noted = await exported(here), await names(here.store, inbox)
        listed = await here.catalog.approvals(here.partition(), status="pending", cursor=None, limit=9)
    async with process() as there:
        await imported(lines, there)
        assert len(noted) == 1
        assert await names(there.store, inbox) == noted
        found = await there.catalog.approvals(there.partition(), status="pending", cursor=None, limit=9)
        assert found.items == listed.items


async def test_a_large_record_that_lacks_a_chunk_is_moved_as_it_was_found() -> None:
    """Only what would be derived from its content is not made. covers: STATE-4"""
    async with process(None, Scripted(says("z" * LARGE))) as here:
        request = await here.ask("hello", key=KEY)
        await here.records.delete(here.partition(), (await names(here.store, here.partition(), "blob/"))[:1])
        lines = await exported(here)
    async with process() as there:
        importer = await imported(lines, there)
        assert importer.written == len(lines) - 2
        (moved,) = await there.store.read(there.partition(), [keys.request(request.request_id)])
        assert moved is not None
        assert await exported(there) == lines


@pytest.mark.parametrize("key", [None, "another-staple"])
async def test_a_damaged_record_of_a_sealed_store_does_not_lock_the_one_it_is_moved_to(
    key: str | None,
) -> None:
    """That opens with its own key, and the import can be repeated, there and where it came from.

    covers: STATE-4
    """
    plain = MemoryStore()
    async with process(sealed(plain, "correct-horse-battery")) as here:
        await here.ask("hello")
        ((partition, owner),) = [
            (place, name)
            for place in Inventory(here.records).index_partitions()
            for name in await names(plain, place)
        ]
        ((_, record),) = await plain.scan(partition, owner)
        bits = record.value[:-1] + bytes([record.value[-1] ^ 1])
        await plain.commit(partition, Commit(operation=operation_id(), put={owner: Put(bits)}))
        lines = await exported(here)
        assert (await imported(lines, here)).written == 0
    async with process(sealed(MemoryStore(), key)) as there:
        for written in (len(lines) - 2, 0):
            assert (await imported(lines, there)).written == written
            assert await exported(there) == lines
        await there.ask("hello")
        await Inventory(there.records).check_key(keyed=key is not None)


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "line",
    [
        b'{"key":"","partition":"Tester/user/a","damaged":"AAAA"}',
        b'{"key":"task/\\u0000","partition":"Tester/user/a","damaged":"AAAA"}',
        b'{"key":"%b","partition":"Tester/user/a","damaged":"AAAA"}' % (b"k" * 256),
        b'{"key":"k","partition":"Tester/a b","damaged":"AAAA"}',
        b'{"key":"k","partition":"Tester/%b","damaged":"AAAA"}' % (b"p" * 256),
        b'{"key":"k","partition":"Tester/user/a","damaged":"%b"}' % (b"AAAA" * 350_000),
        b'{"key":"k","partition":"Tester/user/a","sha256":"","value":%b}' % NESTED,
    ],
    ids=[
        "no key",
        "NUL in the key",
        "long key",
        "space in the partition",
        "long partition",
        "large",
        "nested",
    ],
)
async def test_a_record_that_no_store_can_hold_is_refused_by_the_check(line: bytes) -> None:
    """With the number of its line: nothing has been written by then. covers: STATE-4"""
    lines = [codec.encode_json({"agent": "Tester", "format": FORMAT}), line, b'{"records":1}']
    async with process() as there:
        with pytest.raises(Refused, match=r"^line 2: "):
            await Importer(there.records, key_seconds=1000).compare(lines)


def test_a_record_that_is_nested_too_deeply_to_be_read_is_damaged() -> None:
    """As any other that cannot be read: it is reported, and the rest is read."""
    with pytest.raises(CorruptState):
        codec.parse("k", NESTED, object)


class Leaving(WrappedStore):
    """Another process does something, once, when the sessions are about to be read."""

    armed = True

    async def other(self) -> None:
        raise NotImplementedError

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        if prefix == keys.session("") and self.armed:
            self.armed = False
            await self.other()
        return await super().scan(partition, prefix, **page)


async def test_a_session_that_is_deleted_after_its_tasks_were_exported_is_reported() -> None:
    """An import would have tasks without it; other sessions are whole."""
    async with Leaving(MemoryStore()) as store, process(store, Scripted(says("a"), says("b"))) as here:
        gone, kept = await here.ask(), await here.ask()
        store.other = lambda: here.eraser.delete_session(here.partition(), gone.session_id)  # type: ignore[method-assign]
        exporter = Exporter(here.records)
        lines = b"".join([line async for line in exporter.lines()]).decode()
        assert keys.task(gone.task_id) in lines
        assert keys.session(gone.session_id) not in lines
        assert keys.session(kept.session_id) in lines
        [problem] = exporter.problems
        assert re.search(f"the session {gone.session_id} is gone", problem)


class Between(WrappedStore):
    """Another process does something when the chunks of a thread have been read, the first so many times."""

    def __init__(self, store: Store, thread: LocalThread, times: int = 1) -> None:
        super().__init__(store)
        self.thread, self.times = thread, times

    async def other(self) -> None:
        raise NotImplementedError

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        found = await super().scan(partition, prefix, **page)
        chunks = any(key.startswith(keys.blobs(self.thread.thread_id)) for key, _ in found)
        if chunks and page.get("after") is None and self.times:
            self.times -= 1
            await self.other()
        return found


def large_threads() -> list[LocalThread]:
    """More than a page of records, by their ids."""
    threads = [LocalThread([said("user", "word " * 60_000)]) for _ in range(40)]
    return sorted(threads, key=attrgetter("thread_id"))


@pytest.mark.parametrize("times", [1, ATTEMPTS])
async def test_a_large_thread_that_is_saved_while_it_is_exported_is_exported_as_a_whole(times: int) -> None:
    """What is out of line is of one save, and its record of the next: it is read again, or left out."""
    first, *others = large_threads()
    async with Between(MemoryStore(), first, times) as store, process(store) as here, process() as there:
        threads, moved = ThreadStore(store.store, "Tester"), ThreadStore(there.store, "Tester")
        for thread in (first, *others):
            await threads.save(thread)
        store.other = lambda: threads.save(first)  # type: ignore[method-assign]
        exporter = Exporter(here.records)
        await imported([line async for line in exporter.lines()], there)
        expected = [first, *others] if times == 1 else others
        assert [name async for name in moved.list()] == [thread.thread_id for thread in expected]
        for thread in expected:
            assert (await moved.load(thread.thread_id)).to_json() == thread.to_json()
        assert [f"the thread {first.thread_id} changed" in each for each in exporter.problems] == (
            [] if times == 1 else [True]
        )


async def test_a_large_thread_that_is_deleted_while_it_is_exported_is_left_out() -> None:
    """With all that was out of line: nothing could erase it where it is imported."""
    first, *others = large_threads()
    async with Between(MemoryStore(), first) as store, process(store) as here:
        threads = ThreadStore(store.store, "Tester")
        for thread in (first, *others):
            await threads.save(thread)
        store.other = lambda: threads.delete(first)  # type: ignore[method-assign]
        assert not any(first.thread_id in line.decode() for line in await exported(here))


class Counting(WrappedStore):
    """Notes which reads there are of the threads that programs keep."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.scanned: list[str] = []

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        if partition == keys.threads("Tester"):
            self.scanned.append(prefix)
        return await super().scan(partition, prefix, **page)


async def test_small_threads_are_exported_without_a_read_for_each() -> None:
    """Their records are whole; only one whose chunks belong together with its record is read again."""
    large, *_ = large_threads()
    small = [LocalThread([said("user", "hello")]) for _ in range(50)]
    async with Counting(MemoryStore()) as store, process(store) as here, process() as there:
        threads, moved = ThreadStore(store.store, "Tester"), ThreadStore(there.store, "Tester")
        for thread in (large, *small):
            await threads.save(thread)
        await imported(await exported(here), there)
        of_large = (keys.blobs(large.thread_id), keys.THREADS + large.thread_id)
        assert {*store.scanned} == {keys.THREADS, *of_large}
        for thread in (large, *small):
            assert (await moved.load(thread.thread_id)).to_json() == thread.to_json()


async def test_a_damaged_thread_is_exported_with_its_chunks() -> None:
    """Its record cannot say which they are."""
    large, *_ = large_threads()
    async with process(MemoryStore()) as here:
        await ThreadStore(here.store, "Tester").save(large)
        partition, key = keys.threads("Tester"), keys.THREADS + large.thread_id
        await here.store.commit(partition, Commit(operation=operation_id(), put={key: Put(b"damaged")}))
        chunks = await names(here.store, partition, keys.BLOBS)
        lines = await exported(here)
        assert chunks
        assert [json.loads(line)["key"] for line in lines if b"/threads" in line] == [*chunks, key]
