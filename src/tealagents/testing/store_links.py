"""Tests of watches while a store's link to its server is disturbed.

    class TestMyLink(LinkContract):
        @pytest.fixture
        def server(self) -> tuple[FaultProxy, OpenStore, OpenStore]: ...

`server` is a running proxy, a function that opens a store through it, and one that opens a store on the same
state without it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Store, Watch
from tealagents.stores.watches import LONGEST_PAUSE
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.store_steps import OpenStore
from tealagents.testing.store_watches import MISSING, notify
from tealagents.testing.waits import eventually

__all__ = ["SILENCE", "LinkContract", "Linked", "until_pushed"]

#: seconds without a wake-up after which a watch is certainly not waiting by a timer
SILENCE = LONGEST_PAUSE + 0.2


class Linked(NamedTuple):
    """A store with a link that can be disturbed, and one on the same state with an undisturbed link."""

    proxy: FaultProxy
    store: Store
    other: Store


class LinkContract:
    """Subclass it with a fixture `server`."""

    @pytest.fixture
    def partition(self) -> str:
        """A partition that no other test uses."""
        return f"link/{operation_id()}"

    @pytest.fixture
    async def linked(self, server: tuple[FaultProxy, OpenStore, OpenStore]) -> AsyncGenerator[Linked]:
        proxy, through, past = server
        async with through() as store, past() as other:
            yield Linked(proxy, store, other)

    async def test_one_connection(self, linked: Linked, partition: str) -> None:
        """A thousand watches share one connection, which the first watch opens."""
        before = len(linked.proxy.connections)
        async with AsyncExitStack() as opened:
            for n in range(1000):
                await opened.enter_async_context(linked.store.watch(partition, f"topic/{n}"))
            # on a busy machine the first attempt may take longer than it has
            await eventually(lambda: len(linked.proxy.connections) == before + 1)

    async def test_a_reset_wakes_all(self, linked: Linked, partition: str) -> None:
        """A notification while the link is broken is not missed; afterwards, commits wake watches again."""
        async with (
            linked.store.watch(partition, "a") as one,
            linked.store.watch(partition, "b") as two,
        ):
            linked.proxy.faults = Faults(refuse=True)
            linked.proxy.reset_all()
            await notify(linked.other, partition, "a")
            assert all(await asyncio.gather(one.wait(MISSING), two.wait(MISSING)))
            linked.proxy.calm()
            await until_pushed(linked.other, one, partition, "a")
            await until_pushed(linked.other, two, partition, "b")

    @pytest.mark.parametrize("fault", [Faults(blackhole=True), Faults(drop_replies=True)], ids=["all", "in"])
    async def test_a_mute_link_is_lost(self, linked: Linked, partition: str, fault: Faults) -> None:
        """A link that stays open but delivers nothing is noticed: the watch is woken anyway."""
        async with linked.store.watch(partition, "a") as watch:
            linked.proxy.faults = fault
            await notify(linked.other, partition, "a")
            assert await watch.wait(MISSING)
            linked.proxy.calm()
            linked.proxy.reset_all()
            await until_pushed(linked.other, watch, partition, "a")

    async def test_watches_begin_without_a_link(self, linked: Linked, partition: str) -> None:
        """Opening a watch while the server is unreachable raises nothing, and the watch is woken."""
        linked.proxy.faults = Faults(refuse=True)
        async with linked.store.watch(partition, "a") as watch:
            await notify(linked.other, partition, "a")
            assert await watch.wait(MISSING)
            linked.proxy.calm()
            await until_pushed(linked.other, watch, partition, "a")

    async def test_watches_that_end_are_let_go(self, linked: Linked, partition: str) -> None:
        """A topic can be watched again after its watch has ended."""
        for _ in range(20):
            async with linked.store.watch(partition, "a"):
                pass
            async with linked.store.watch(partition, "a") as again:
                await notify(linked.other, partition, "a")
                assert await again.wait(MISSING)


async def until_pushed(other: Store, watch: Watch, partition: str, topic: str) -> None:
    """Waits until only commits, such as those of another store, wake the watch."""
    async with asyncio.timeout(MISSING):
        while await watch.wait(SILENCE, found=False):
            pass  # woken by the timer: the link is not back yet
    await notify(other, partition, topic)
    assert await watch.wait(MISSING)
