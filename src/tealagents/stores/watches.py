"""The watches of one opened store, by topic; they wait by a timer while no commit can wake them."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

__all__ = ["LONGEST_PAUSE", "Topic", "Watches"]

#: the longest pause, in seconds, of a watch that waits by a timer
LONGEST_PAUSE: Final = 0.9
#: the factor by which each pause grows while looks find nothing
GROWTH: Final = 1.5

#: a partition, and a topic of it
Topic = tuple[str, str]


class Watches:
    """All watches of one opened store.

    `live` says whether the store's notifications arrive; while they do, watches need no timer. `recheck` is
    for stores whose notifications are lost if the committing process dies: the seconds after which a watch
    looks anyway.
    """

    def __init__(self, seconds: float, *, live: bool, recheck: float | None = None) -> None:
        self.seconds = seconds
        self.live = live
        self.recheck = recheck
        self._watches: dict[Topic, set[_OpenWatch]] = {}

    @property
    def topics(self) -> Collection[Topic]:
        """The topics that are watched now."""
        return self._watches.keys()

    @asynccontextmanager
    async def watch(self, partition: str, topic: str) -> AsyncIterator["_OpenWatch"]:
        """See `Store.watch`."""
        watched, watch = (partition, topic), _OpenWatch(self)
        self._watches.setdefault(watched, set()).add(watch)
        try:
            await self.subscribe(watched)
            yield watch
        finally:
            others = self._watches[watched]
            others.discard(watch)
            if not others:
                del self._watches[watched]
                self.unsubscribe(watched)

    async def subscribe(self, topic: Topic) -> None:
        """Called for each new watch. After it, the topic's notifications arrive, or `live` is False."""

    def unsubscribe(self, topic: Topic) -> None:
        """Called when the last watch of a topic has ended."""

    def notify(self, topic: Topic) -> None:
        """Wakes the watches of a topic."""
        for watch in self._watches.get(topic, ()):
            watch.wake()

    def wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()


class _OpenWatch:
    """One watch. Implements `tealagents.domain.ports.Watch`."""

    __slots__ = ("_pause", "_waiter", "_watches", "_woken")

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self._pause = watches.seconds
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._woken = True
        if self._waiter is not None:
            _settle(self._waiter)

    async def wait(self, timeout: float | None = None, *, found: bool = True) -> bool:
        """See `Watch.wait`."""
        self._pause = self._watches.seconds if found else min(self._pause * GROWTH, LONGEST_PAUSE)
        pause = self._watches.recheck if self._watches.live else self._pause
        if not self._woken:
            await self._sleep(min((s for s in (timeout, pause) if s is not None), default=None))
            if pause is not None and (timeout is None or pause <= timeout):
                self._woken = True
        woken, self._woken = self._woken, False
        return woken

    async def _sleep(self, seconds: float | None) -> None:
        """Returns when the watch is woken, or after `seconds`."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _settle, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


def _settle(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
