"""The lease of a process while its store is away."""

import asyncio

from tealagents.domain.ports import Commit
from tealagents.state.records import RecordStore
from tealagents.state.workers import Lease
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock

SECONDS = 15


class Away(MemoryStore):
    """Refuses every commit for as long as it is said to."""

    away = False

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.away:
            raise self.unavailable("it is away")
        await super().commit(partition, commit)


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


async def test_a_longer_outage_loses_the_lease_once() -> None:
    """What ran is dropped, and a new lease is taken when the store is back."""
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
