"""The events of a request in memory, for all its followers in this process."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter

from tealagents.domain.events import Recorded, Terminal


class EventBuffer:
    """Numbered events behind `base`, each follower at its own place among them."""

    def __init__(self, base: int) -> None:
        #: the id of the last event before the first of these
        self.base = base
        #: the id of the last event
        self.last_id = base
        self._events: list[Recorded] = []
        #: nothing more comes
        self.closed = False
        self._error: Exception | None = None
        self._wakers: set[asyncio.Future[None]] = set()

    def extend(self, events: Sequence[Recorded]) -> None:
        self._events.extend(events)
        self.last_id = self._events[-1].id if self._events else self.base
        if self._wakers:
            self._wake()

    def slice(self, after: int, limit: int) -> list[Recorded]:
        """At most `limit` events behind the one numbered `after`; the numbers rise by one."""
        start = after - self.base
        return self._events[start : start + limit]

    def close(self, error: Exception | None = None) -> None:
        """Nothing more comes: followers see what there is, and then `error`."""
        self.closed = True
        self._error = error
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[Sequence[Recorded]]:
        """The events behind `after`, all that there are at a time, to the one that ends the stream.

        Those of before a pause, and everything before `base`, are in the log alone.
        """
        while True:
            if after < self.last_id:
                # by their numbers: those of decided pauses are left out
                fresh = self._events[bisect_right(self._events, after, key=attrgetter("id")) :]
                after = fresh[-1].id
                yield fresh
                if isinstance(fresh[-1].event, Terminal):
                    return
            elif self.closed:
                if self._error is not None:
                    raise self._error
                if self._events and isinstance(self._events[-1].event, Terminal):
                    yield self._events[-1:]  # `after` was behind all there ever was
                return
            else:
                await self._next()

    async def _next(self) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers.add(waker)
        try:
            await waker
        finally:
            self._wakers.discard(waker)

    def _wake(self) -> None:
        woken, self._wakers = self._wakers, set()
        for waker in woken:
            if not waker.done():
                waker.set_result(None)
