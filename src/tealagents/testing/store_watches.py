"""The promises of the port `Store` on watches, as tests. `StoreContract` includes them."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count

from tealagents.domain.ports import Store
from tealagents.testing.store_steps import OpenStore, commit, ticks, two_openings, values

__all__ = ["MANY_WATCHES", "MISSING", "WatchContract", "notify"]

#: watches that one process holds at once
MANY_WATCHES = 10_000
#: seconds after which a wake-up counts as missing
MISSING = 30


class WatchContract:
    """Tests that commits wake watches; that wake-ups are latched, coalesced, and freed with the watch."""

    async def test_a_watch_is_woken_by_another_opening(self, open_store: OpenStore, partition: str) -> None:
        """A commit that names the topic wakes the watch, whichever opening makes it, and can be read then."""
        async with two_openings(open_store) as (one, other), one.watch(partition, "events/a") as watch:
            for store in (other, one, other):
                change = commit(put={"record": store.name.encode()}, notify=["events/a"])
                await store.commit(partition, change)
                assert await watch.wait(MISSING)
                [record] = await one.read(partition, ["record"])
                assert record
                assert record.version == change.operation

    async def test_a_wake_up_before_the_wait_is_kept(self, open_store: OpenStore, partition: str) -> None:
        """A commit made while no one waits ends the next wait."""
        async with two_openings(open_store) as (one, other), one.watch(partition, "topic") as watch:
            await notify(other, partition, "topic")
            assert await watch.wait(MISSING)

    async def test_wake_ups_are_coalesced(self, open_store: OpenStore, partition: str) -> None:
        """Many commits between two waits are fewer wake-ups, and the last of them is not missed."""
        async with two_openings(open_store) as (one, other), one.watch(partition, "topic") as watch:
            for n in range(50):
                await other.commit(partition, commit(put={"n": b"%d" % n}, notify=["topic"]))
            assert await watch.wait(MISSING)
            wake_ups = 1
            while await watch.wait(0.2, found=False):
                wake_ups += 1
                assert wake_ups < 50
            assert await values(one, partition, ["n"]) == [b"49"]

    async def test_a_wait_without_a_commit_ends(self, store: Store, partition: str) -> None:
        """A wait with a timeout returns though nothing happens."""
        async with store.watch(partition, "topic") as watch, asyncio.timeout(MISSING):
            await watch.wait(0.01)
            await watch.wait(0)

    async def test_each_watch_of_a_topic_is_woken(self, open_store: OpenStore, partition: str) -> None:
        """Watches of one topic are independent: each is woken, and one that has ended hinders no other."""
        async with (
            two_openings(open_store) as (one, other),
            one.watch(partition, "topic") as first,
            other.watch(partition, "topic") as second,
        ):
            async with one.watch(partition, "topic") as third:
                await notify(other, partition, "topic")
                assert all(
                    await asyncio.gather(first.wait(MISSING), second.wait(MISSING), third.wait(MISSING))
                )
            await notify(one, partition, "topic")
            assert all(await asyncio.gather(first.wait(MISSING), second.wait(MISSING)))

    async def test_a_canceled_wait_loses_no_wake_up(self, open_store: OpenStore, partition: str) -> None:
        """What wakes a watch after its wait was canceled ends the next wait."""
        async with two_openings(open_store) as (one, other), one.watch(partition, "topic") as watch:
            waiting = asyncio.ensure_future(watch.wait())
            await ticks(3)
            waiting.cancel()
            await asyncio.wait([waiting])
            await notify(other, partition, "topic")
            assert await watch.wait(MISSING)

    async def test_a_canceled_commit_wakes(self, open_store: OpenStore, partition: str) -> None:
        """One that is applied although its caller was canceled wakes the watches as any other does."""
        async with two_openings(open_store) as (one, other), one.watch(partition, "topic") as watch:
            for n in count():
                change = commit(put={"n": b"%d" % n}, notify=["topic"])
                committing = asyncio.ensure_future(other.commit(partition, change))
                await (ticks(n) if n < 8 else asyncio.sleep(2 ** (n - 8) / 1000))
                committing.cancel()
                await asyncio.wait([committing])
                await other.commit(partition, commit(put={"behind": b""}))
                if await values(other, partition, ["n"]) == [b"%d" % n]:
                    assert await watch.wait(MISSING)
                    if n >= 8:
                        break

    async def test_one_commit_notifies_several_topics(self, open_store: OpenStore, partition: str) -> None:
        """All topics of a commit are notified, up to eight, and one that is named like a record too."""
        topics = [f"topic/{n}" for n in range(7)] + ["key"]
        async with two_openings(open_store) as (one, other), AsyncExitStack() as opened:
            watches = [await opened.enter_async_context(one.watch(partition, topic)) for topic in topics]
            await other.commit(partition, commit(put={"key": b""}, notify=topics))
            assert all(await asyncio.gather(*(watch.wait(MISSING) for watch in watches)))

    async def test_topics_are_of_their_partition(self, open_store: OpenStore, partition: str) -> None:
        """A store that pushes wakes no watch for a commit to another partition or topic."""
        async with (
            two_openings(open_store) as (one, other),
            one.watch(partition, "topic") as watch,
            AsyncExitStack() as opened,
        ):
            bystanders = [await opened.enter_async_context(one.watch(partition, name)) for name in "abc"]
            strangers = [await opened.enter_async_context(one.watch(partition + n, "topic")) for n in "234"]
            await notify(other, partition, "topic")
            assert await watch.wait(MISSING)
            if one.pushes:  # two may share a slot, where a store has so many
                assert not all([await each.wait(0) for each in bystanders])
                assert not all([await each.wait(0) for each in strangers])

    async def test_a_conflict_notifies_no_one(self, open_store: OpenStore, partition: str) -> None:
        """A commit that is not applied wakes no watch of a store that pushes."""
        async with (
            two_openings(open_store) as (one, other),
            one.watch(partition, "topic") as watch,
            AsyncExitStack() as opened,
        ):
            topics = ["never", "not/once", "not/ever"]
            never = [await opened.enter_async_context(one.watch(partition, topic)) for topic in topics]
            refused = commit(expect={"absent": "0" * 24}, put={"key": b""}, notify=topics)
            [outcome] = await asyncio.gather(other.commit(partition, refused), return_exceptions=True)
            assert isinstance(outcome, Exception)
            await notify(other, partition, "topic")
            assert await watch.wait(MISSING)
            # one may share a slot with the topic, where a store has so many
            assert not (one.pushes and all([await each.wait(0) for each in never]))

    async def test_many_watches(self, open_store: OpenStore, partition: str) -> None:
        """Ten thousand watches are held at once, opened side by side, and each can be woken."""
        topics = [f"topic/{n:05}" for n in range(MANY_WATCHES)]
        async with two_openings(open_store) as (one, other), AsyncExitStack() as opened:
            watches = await asyncio.gather(
                *(opened.enter_async_context(one.watch(partition, topic)) for topic in topics)
            )
            for n in (0, MANY_WATCHES // 2, MANY_WATCHES - 1):
                await notify(other, partition, topics[n])
                assert await watches[n].wait(MISSING)


async def notify(store: Store, partition: str, topic: str) -> None:
    """A commit that names the topic."""
    await store.commit(partition, commit(put={"notified": b""}, notify=[topic]))
