"""The lease of a process while its store is away."""

import asyncio
import logging

import pytest

from tealagents.domain.clock import SystemClock
from tealagents.domain.models import Worker
from tealagents.domain.ports import Commit
from tealagents.state import keys, workers
from tealagents.state.records import RecordStore
from tealagents.state.workers import RETRY_SECONDS, Lease
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock, advance

SECONDS = 15


class Away(MemoryStore):
    """Refuses every commit for as long as it is said to."""

    away = False

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.away:
            raise self.unavailable("it is away")
        await super().commit(partition, commit)


class Mute(MemoryStore):
    """Never answers the next commit, once it is said to, as a connection that was lost unnoticed."""

    def __init__(self) -> None:
        super().__init__()
        self.mute = False
        self.asked = asyncio.Event()
        self.commits = 0

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.mute:
            self.mute = False
            self.asked.set()
            await asyncio.Event().wait()
        await super().commit(partition, commit)
        self.commits += 1


class Slow(MemoryStore):
    """Takes as long as it is said to for all that a beat asks."""

    seconds = 0.0

    async def commit(self, partition: str, commit: Commit) -> None:
        await asyncio.sleep(self.seconds)
        await super().commit(partition, commit)

    async def now(self) -> float:
        await asyncio.sleep(self.seconds)
        return await super().now()


class LoopClock(SystemClock):
    """Its time is the event loop's, which the deadlines are of."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


async def passes(clock: FakeClock, seconds: float) -> None:
    """Time goes by in small steps, and what wakes in each of them is done."""
    for _ in range(round(seconds / 0.125)):
        clock.advance(0.125)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_an_outage_shorter_than_the_lease_costs_nothing() -> None:
    """The lease is renewed as soon as the store is back. covers: STATE-4"""
    store, clock = Away(), FakeClock()
    lease = Lease(RecordStore(store, "Agent", clock), SECONDS)
    await lease.start()
    worker_id = lease.worker_id
    await passes(clock, 1)
    store.away = True
    await passes(clock, 13)
    assert lease.held
    store.away = False
    await passes(clock, 10)
    assert lease.held
    assert (lease.worker_id, lease.losses) == (worker_id, 0)
    await lease.stop()


async def test_a_longer_outage_loses_the_lease_once(caplog: pytest.LogCaptureFixture) -> None:
    """What ran is dropped, and a new lease is taken when the store is back. The log says when."""
    caplog.set_level(logging.INFO, logger="tealagents.state.workers")
    store, clock = Away(), FakeClock()
    lease = Lease(RecordStore(store, "Agent", clock), SECONDS)
    await lease.start()
    worker_id = lease.worker_id
    store.away = True
    await passes(clock, 40)
    assert not lease.held
    store.away = False
    await passes(clock, SECONDS)
    assert lease.held
    assert lease.worker_id != worker_id
    assert lease.losses == 1
    await lease.stop()
    logged = [(record.levelname, record.message.partition(":")[0]) for record in caplog.records]
    assert logged == [
        ("WARNING", "the lease could not be renewed"),
        ("ERROR", "lease lost"),
        ("WARNING", "no new lease yet"),
        ("INFO", "a new lease is held"),
    ]


async def test_a_lease_is_used_up_only_where_one_was_taken() -> None:
    """A process that is slow to start has none, and one that has stopped has returned it: neither is late."""
    store, clock = Away(), FakeClock()
    lease = Lease(RecordStore(store, "Agent", clock), SECONDS)
    await passes(clock, 40)
    assert lease.used == 0
    await lease.start()
    store.away = True
    await passes(clock, SECONDS / 2)
    assert 0.4 < lease.used < 1
    await passes(clock, 40)
    assert lease.used == 1
    store.away = False
    await passes(clock, SECONDS)
    assert lease.used < 0.5
    await lease.stop()
    assert lease.used == 0


async def test_a_lost_lease_is_marked_dead_before_the_next_one_is_taken() -> None:
    """So that no one waits until it has lapsed to take over what ran under it."""
    store, clock = Away(), FakeClock()
    records = RecordStore(store, "Agent", clock)
    lease = Lease(records, SECONDS)
    await lease.start()
    worker_id = lease.worker_id
    store.away = True
    await passes(clock, 40)
    store.away = False
    await passes(clock, SECONDS)
    assert lease.worker_id != worker_id
    lost = await records.get(keys.workers("Agent"), keys.worker(worker_id), Worker)
    assert lost is not None
    assert lost.value.dead
    await lease.stop()


async def test_a_process_that_ends_does_not_wait_for_a_store_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease lapses instead of being given back."""
    monkeypatch.setattr(workers, "LAST_BEAT_SECONDS", 0.01)
    store = Mute()
    lease = Lease(RecordStore(store, "Agent", FakeClock()), SECONDS)
    await lease.start()
    store.mute = True
    await asyncio.wait_for(lease.stop(), 30)
    assert store.asked.is_set()
    assert "the lease could not be returned" in caplog.text


async def test_a_long_lease_survives_any_number_of_beats_that_fail() -> None:
    """An hour's lease allows for thousands of them in a row. covers: STATE-4"""
    store, clock = Away(), FakeClock()
    lease = Lease(RecordStore(store, "Agent", clock), 3600)
    await lease.start()
    await asyncio.sleep(0)
    store.away = True
    clock.advance(3600 / 3)
    for _ in range(1100):
        clock.advance(RETRY_SECONDS)
        for _ in range(6):
            await asyncio.sleep(0)
    store.away = False
    await passes(clock, 1)
    assert (lease.used < 0.1, lease.losses) == (True, 0)
    await lease.stop()


async def test_a_mistake_in_a_beat_is_logged_and_the_next_one_is_sent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may raise what no store should: the lease is renewed all the same. covers: STATE-4"""
    store, clock = Away(), FakeClock()
    lease = Lease(RecordStore(store, "Agent", clock), SECONDS)
    await lease.start()
    await asyncio.sleep(0)
    with monkeypatch.context() as broken:
        broken.setattr(store, "unavailable", ValueError)
        store.away = True
        await passes(clock, SECONDS / 2)
    store.away = False
    await passes(clock, SECONDS / 3)
    assert (lease.used < 0.5, lease.losses) == (True, 0)
    assert caplog.text.count("ValueError: it is away") == 1
    await lease.stop()


async def test_a_lapsed_lease_is_taken_anew_as_soon_as_the_store_is_back() -> None:
    """And not a third of a lease later."""
    store, clock = Away(), FakeClock()
    lease = Lease(RecordStore(store, "Agent", clock), SECONDS)
    await lease.start()
    store.away = True
    await passes(clock, SECONDS + 1)
    assert not lease.held
    store.away = False
    await passes(clock, 1)
    assert lease.held
    await lease.stop()


async def test_a_beat_that_is_never_answered_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is given up in time to be sent again. covers: STATE-4"""
    store, loop = Mute(), asyncio.get_running_loop()
    lease = Lease(RecordStore(store, "Agent", SystemClock()), SECONDS)
    await lease.start()
    await asyncio.sleep(0)
    store.mute = True
    for seconds in (SECONDS / 3, SECONDS / 5, RETRY_SECONDS):
        advance(loop, seconds)
        for _ in range(20):
            await asyncio.sleep(0)
    assert store.asked.is_set()
    assert (store.commits, lease.losses) == (2, 0)
    assert "no answer in time" in caplog.text
    await lease.stop()


async def test_a_slow_store_costs_no_lease() -> None:
    """A beat that takes longer than one is given at first gets more time. covers: STATE-4"""
    store, loop = Slow(), asyncio.get_running_loop()
    lease = Lease(RecordStore(store, "Agent", LoopClock()), SECONDS)
    await lease.start()
    store.seconds = SECONDS / 8
    for _ in range(SECONDS * 8):
        advance(loop, 0.5)
        for _ in range(20):
            await asyncio.sleep(0)
    assert (lease.held, lease.losses) == (True, 0)
    await lease.stop()


async def test_a_lease_lasts_from_when_its_beat_was_sent() -> None:
    """Others count from then: a process whose beat was answered late writes no longer than that.
    covers: STATE-5"""
    clock = FakeClock()

    class Late(MemoryStore):
        async def commit(self, partition: str, commit: Commit) -> None:
            await super().commit(partition, commit)
            clock.advance(SECONDS - 5)

    lease = Lease(RecordStore(Late(), "Agent", clock), SECONDS)
    await lease.start()
    assert lease.held
    clock.advance(5)
    assert not lease.held
    await lease.stop()
