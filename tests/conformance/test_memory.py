"""The contract suite on the in-memory store, and what is particular about it."""

import asyncio
import random
from typing import cast

import pytest

from tealagents.stores import plain_store
from tealagents.stores.memory import MemoryStore
from tealagents.testing.store_steps import OpenStore, batches, commit, put, put_all, ticks, values
from tealagents.testing.stores import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return lambda: plain_store("memory://")


async def test_no_live_object_is_kept() -> None:
    """What the caller does to a buffer after the commit does not change what is stored."""
    async with MemoryStore() as store:
        buffer = bytearray(b"before")
        await store.commit("p", commit(put={"key": cast("bytes", buffer)}))
        buffer[:] = b"behind"
        assert await values(store, "p", ["key"]) == [b"before"]


async def test_a_long_log_in_one_partition() -> None:
    """Keys stay in order when tens of thousands come at the end, in between, and go again."""
    keys = [f"log/{n:06}" for n in range(12_000)]
    shuffled = random.Random(1).sample(keys, len(keys))
    async with MemoryStore() as store:
        await put_all(store, "p", dict.fromkeys(keys[:4_000], b""))
        await put_all(store, "p", dict.fromkeys(shuffled, b""))
        assert [key for key, _ in await store.scan("p", "log/", limit=20_000)] == keys
        for some in batches(shuffled[:9_000]):
            await store.commit("p", commit(delete=some))
        left = sorted(shuffled[9_000:])
        assert [key for key, _ in await store.scan("p", "log/", limit=20_000)] == left
        last = await store.scan("p", "log/", after=left[-10], limit=3, reverse=True)
        assert [key for key, _ in last] == left[-13:-10][::-1]


async def test_time_can_be_passed_in() -> None:
    """The store's clock decides what has expired, and can be moved by a test."""
    now = 1_000_000.0
    async with MemoryStore(clock=lambda: now) as store:
        assert await store.now() == now
        await put(store, "p", {"short": b"1"}, ttl=60)
        await put(store, "p", {"long": b"2"}, ttl=3600)
        now += 61
        assert await values(store, "p", ["short", "long"]) == [None, b"2"]
        now += 3600
        assert await store.scan("p", "") == []


async def test_a_record_written_again_and_again_takes_the_room_of_one() -> None:
    """What was to expire of the earlier ones is forgotten long before, and all else expires in time."""
    now = 1_000_000.0
    async with MemoryStore(clock=lambda: now) as store:
        await put(store, "p", {"other": b""}, ttl=9000)
        for _ in range(5000):
            await put(store, "p", {"lease": b""}, ttl=7 * 86400)
        assert len(store._expiring) < 2000
        now += 9000
        assert await values(store, "p", ["other", "lease"]) == [None, b""]
        now += 7 * 86400
        assert await store.scan("p", "") == []


async def test_a_watch_wakes_at_once() -> None:
    """A watch is woken within the commit, and what no commit notified wakes it never."""
    async with plain_store("memory://") as store, store.watch("p", "a") as watch:
        assert not await watch.wait(0)
        waiting = asyncio.ensure_future(watch.wait())
        await ticks(3)
        await store.commit("p", commit(put={"record": b""}, notify=["a"]))
        await ticks(3)
        assert waiting.done()
        assert waiting.result()
