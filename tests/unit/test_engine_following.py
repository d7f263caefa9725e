"""Requests that run in another process, followed from this one."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from engine_setup import Process, Scripted, process, waits
from msgspec.structs import replace

from tealagents.domain.events import Failed, Recorded, TextDelta
from tealagents.domain.ports import Commit, Record
from tealagents.engine.event_buffer import EventBuffer
from tealagents.engine.following import CHECK_SECONDS
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock
from tealagents.testing.counting import CountingOptions, CountingStore, StoreOperation


class Silent(MemoryStore):
    """Memory that several processes of a test share, and whose notifications are all lost."""

    shared = True

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, replace(commit, notify=()))


class Remote(CountingStore):
    """Counts, and does not answer at once."""

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        await asyncio.sleep(0)
        return await super().read(partition, keys)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def pass_by(clock: FakeClock, seconds: float) -> None:
    """Lets time pass, and what was due happen."""
    clock.advance(seconds)
    for _ in range(100):
        await asyncio.sleep(0)


async def test_silent_requests_cost_one_look_at_the_process_that_runs_them(clock: FakeClock) -> None:
    """However many requests of it are followed, and by how many: nothing else is asked of the store."""
    store = Remote(CountingOptions())
    model = Scripted(waits(asyncio.Event()))
    async with (
        process(store, model, clock=clock, lease_seconds=3000) as here,
        process(store, clock=clock, lease_seconds=3000) as there,
    ):
        sent = [await here.send(streamed=True) for _ in range(20)]
        following = [
            asyncio.ensure_future(there.followed(each.request.request_id)) for each in sent for _ in range(5)
        ]
        await pass_by(clock, 0)
        await pass_by(clock, CHECK_SECONDS)
        store.operations.clear()
        for _ in range(3):
            await pass_by(clock, CHECK_SECONDS)
        assert store.operations == Counter(
            {StoreOperation("read", "workers"): 3, StoreOperation("now", ""): 3}
        )
        for each in following:
            each.cancel()


async def test_followers_learn_that_the_process_has_died(clock: FakeClock) -> None:
    """All requests of a dead process end, and their followers see it though no notification came.

    covers: STATE-4
    """
    store = Silent(clock=lambda: clock.now().timestamp())
    async with process(store, clock=clock) as there:
        dead = Process(store, Scripted(waits(asyncio.Event())), clock=clock)
        await dead.lease._renew()
        sent = [await dead.send(streamed=True) for _ in range(3)]
        following = [asyncio.ensure_future(there.followed(each.request.request_id)) for each in sent]
        await pass_by(clock, 1)
        assert not any(each.done() for each in following)
        await pass_by(clock, 15 + CHECK_SECONDS)
        for events in await asyncio.gather(*following):
            assert isinstance(events[-1].event, Failed)
            assert events[-1].event.error.code == "interrupted"


async def test_who_joins_behind_a_decided_pause_misses_nothing() -> None:
    """The number of a pause that was decided before it was seen is passed over."""
    buffer = EventBuffer(5)
    buffer.extend([Recorded(n, TextDelta("x")) for n in (6, 7, 9, 10)])
    async with aclosing(buffer.follow(8)) as following:  # type: ignore[type-var]
        assert [each.id for each in await anext(following)] == [9, 10]
