"""Leases: losing them, getting them back, and telling the dead from the living."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from engine_setup import Faulty, Process, Scripted, Shared, damage, process, says, waits

from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.ids import operation_id, random_id
from tealagents.domain.ports import Commit
from tealagents.state import commits, keys
from tealagents.state.workers import Mailbox, Signal
from tealagents.stores.files import FileOptions, FileStore
from tealagents.testing.clock import FakeClock


class SharedMemory(Shared):
    """By a clock that can be set."""

    def __init__(self, clock: FakeClock) -> None:
        self.set_by = 0.0
        super().__init__(clock=lambda: clock.now().timestamp() + self.set_by)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def pass_by(clock: FakeClock, seconds: float) -> None:
    """Lets time pass, so that hearts beat."""
    for _ in range(int(seconds)):
        clock.advance(1)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_process_whose_store_was_away_continues_without_a_restart(clock: FakeClock) -> None:
    """What ran is interrupted, and new messages are answered at once when the store is back.

    covers: STATE-4, TASK-5
    """
    store = Faulty(SharedMemory(clock))
    gate = asyncio.Event()
    async with process(store, Scripted(waits(gate), says("hello again")), clock=clock) as here:
        sent = await here.send(streamed=True)
        await pass_by(clock, 1)
        worker = here.lease.worker_id
        store.unreadable, store.fault = True, lambda _, __: "away"
        await pass_by(clock, 25)
        assert not here.lease.held
        with pytest.raises(PersistenceUnavailable):
            await here.send("anybody there?")
        store.unreadable, store.fault = False, lambda _, __: None
        clock.advance(1)
        again = await here.ask("hello", sent.request.task_id)
        assert again.status == "Completed"
        assert here.lease.worker_id != worker
        ended = await here.request(sent.request.request_id)
        assert (ended.status, ended.error and ended.error.code) == ("Failed", "interrupted")
        assert here.service.run_of(ended.request_id) is None


async def test_a_beat_whose_reply_is_lost_does_not_end_what_runs(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is found as it was left, and continues. covers: TASK-5"""
    monkeypatch.setattr(commits, "RESOLVE_SECONDS", 1.0)
    store = Faulty(SharedMemory(clock))
    gate = asyncio.Event()
    async with process(store, Scripted(waits(gate)), clock=clock) as here:
        sent = await here.send()
        worker = here.lease.worker_id

        def strike(partition: str, commit: Commit) -> str | None:
            if partition != keys.workers("Tester"):
                return None
            first, store.unreadable = not store.unreadable, True
            return "lost" if first else "unheard"

        store.fault = strike
        await pass_by(clock, 8)
        store.unreadable, store.fault = False, lambda _, __: None
        await pass_by(clock, 30)
        assert here.lease.held
        assert here.lease.worker_id == worker
        gate.set()
        assert (await here.service.outcome(sent)).status == "Completed"


async def test_dead_processes_are_recognized_even_where_the_clock_was_set_back(clock: FakeClock) -> None:
    """A beat that stays the same for a lease is a dead worker's, whatever its time says. covers: STATE-4"""
    store = SharedMemory(clock)
    async with process(store, Scripted(says("hello")), clock=clock) as here:
        dead = Process(store, Scripted(waits(asyncio.Event())), clock=clock)
        await dead.lease._renew()
        sent = await dead.send()
        store.set_by = -3600
        assert (await here.request(sent.request.request_id)).status == "Running"
        await pass_by(clock, 17)
        assert (await here.request(sent.request.request_id)).status == "Failed"


async def test_of_an_outage_that_keeps_signals_from_being_read_the_beginning_is_logged(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Watches are woken again and again as long as the store is away; each outage is one line."""
    shared = SharedMemory(clock)
    store = Faulty(shared)
    async with process(store, Scripted(waits(asyncio.Event())), clock=clock) as here:
        await here.send()

        async def wake() -> None:
            topic = keys.signals(here.lease.worker_id)
            await shared.commit(keys.workers("Tester"), Commit(operation=operation_id(), notify={topic}))
            await pass_by(clock, 1)

        for outages in (1, 2):
            store.unreadable, store.refused = True, 0
            for tries in range(3):
                await wake()
                assert store.refused > tries
            store.unreadable = False
            await wake()
            assert caplog.text.count("signals could not be read") == outages


class Beating(Faulty):
    """A store that lets a process beat just before another one declares it dead."""

    beat: Callable[[], Awaitable[None]] | None = None

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.beat is not None and any(b'"dead":true' in put.value for put in commit.put.values()):
            beat, self.beat = self.beat, None
            await beat()
        await super().commit(partition, commit)


async def test_a_process_that_beats_while_it_is_looked_at_is_not_dead(clock: FakeClock) -> None:
    """Between the look and the mark: nothing that it runs is ended. covers: STATE-5"""
    store = Beating(SharedMemory(clock))
    async with process(store, clock=clock) as here:
        late = Process(store, Scripted(waits(asyncio.Event())), clock=clock)
        await late.lease._renew()
        sent = await late.send()
        await pass_by(clock, 17)
        store.beat = late.lease._keep
        assert (await here.request(sent.request.request_id)).status == "Running"
        assert store.beat is None


async def test_a_process_whose_lease_is_damaged_is_dead_once_it_stays_so(clock: FakeClock) -> None:
    """Its tasks continue after two leases, as if it had just died. covers: STATE-4, TASK-5"""
    store = SharedMemory(clock)
    async with process(store, Scripted(says("hello")), clock=clock) as here:
        dead = Process(store, Scripted(waits(asyncio.Event())), clock=clock)
        await dead.lease._renew()
        sent = await dead.send()
        await damage(store, keys.workers("Tester"), f"worker/{dead.lease.worker_id}")
        assert (await here.request(sent.request.request_id)).status == "Running"
        await pass_by(clock, 14)
        assert (await here.request(sent.request.request_id)).status == "Running"
        await pass_by(clock, 3)
        assert (await here.request(sent.request.request_id)).status == "Failed"
        assert (await here.ask("hello", sent.request.task_id)).status == "Completed"


async def test_a_damaged_signal_does_not_hide_the_others(clock: FakeClock) -> None:
    """What another process has signaled is done, whatever else lies there. covers: STATE-4"""
    store = SharedMemory(clock)
    gate = asyncio.Event()
    async with process(store, Scripted(waits(gate)), clock=clock) as here:
        sent = await here.send()
        other = Process(store, Scripted(), clock=clock)
        await other.lease._renew()
        partition, mailbox = keys.workers("Tester"), keys.signals(here.lease.worker_id)
        await damage(store, partition, mailbox + random_id())
        canceling = asyncio.create_task(
            other.tasks.cancel(here.partition(), sent.request.request_id, "mock.ada")
        )
        while not canceling.done():
            await pass_by(clock, 1)
        assert (await other.request(sent.request.request_id)).status == "Canceled"
        run = here.service.run_of(sent.request.request_id)
        assert run is None
        assert await store.scan(partition, mailbox) == []


async def test_all_signals_are_taken_however_many_there_are() -> None:
    """Those that came together woke their process once."""
    store = Shared()
    async with process(store) as here, process(store) as there:
        for n in range(150):
            await there.tasks.peers.signal(
                here.lease.worker_id, Signal(request_id=f"r{n:03}", actor="mock.ada")
            )
        assert len([each async for each in Mailbox(here.records, here.lease).signals()]) == 150


async def test_a_signal_wakes_the_process_that_it_is_for_and_no_other() -> None:
    """An idle one asks nothing of the store because others are signaled."""
    store, wakeups = Shared(), 0
    async with process(store) as here, process(store) as there:

        async def count() -> None:
            nonlocal wakeups
            async for _ in Mailbox(there.records, there.lease).wakeups():
                wakeups += 1

        counting = asyncio.create_task(count())
        for signaled, woken in ((here, 1), (there, 2)):
            await asyncio.sleep(0)
            signal = Signal(request_id=random_id(), actor="mock.ada")
            await there.tasks.peers.signal(signaled.lease.worker_id, signal)
            for _ in range(20):
                await asyncio.sleep(0)
            assert wakeups == woken  # the first of all says nothing
        counting.cancel()


async def test_signals_that_no_one_took_are_gone_with_a_later_beat(tmp_path: Path, clock: FakeClock) -> None:
    """Those to a process that died, also in a store that erases only in partitions that are written to."""
    options = FileOptions(path=tmp_path, sweep_seconds=1)
    async with FileStore(options, clock=lambda: clock.now().timestamp()) as store:
        here = Process(store, Scripted(), clock=clock)
        await here.tasks.peers.signal(random_id(), Signal(request_id=random_id(), actor="mock.ada"))
        clock.advance(3601)
        await here.lease._renew()
        assert [path for path in tmp_path.rglob("*") if "signal" in str(path.relative_to(tmp_path))] == []


async def test_a_process_beats_for_all_its_requests_at_once(clock: FakeClock) -> None:
    """With 2,000 requests open the lease is written at most once in five seconds. covers: TASK-5"""
    beats = []

    class Counting(SharedMemory):
        async def commit(self, partition: str, commit: Commit) -> None:
            if partition == keys.workers("Tester"):
                beats.append(clock.monotonic())
            await super().commit(partition, commit)

    gate = asyncio.Event()
    limits = {"max_concurrent_requests": 2000, "max_requests_per_user": 2000}
    async with process(Counting(clock), Scripted(waits(gate)), clock=clock, limits=limits) as here:
        sent = [await here.send() for _ in range(2000)]
        beats.clear()
        await pass_by(clock, 60)
        assert here.service.admission.in_flight == 2000
        pauses = [later - earlier for earlier, later in pairwise(beats)]
        assert len(beats) >= 10
        assert min(pauses) >= 5
        gate.set()
        assert (await here.service.outcome(sent[-1])).status == "Completed"
