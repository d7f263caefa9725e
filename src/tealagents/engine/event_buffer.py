"""The events of a request in memory, for all its followers in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tealagents.domain.events import Recorded, Terminal


class EventBuffer:
    """Numbered events behind `base`, each follower at its own place among them."""

    def __init__(self, base: int) -> None:
        #: the id of the last event before the first of these
        self.base = base
        self._events: list[Recorded] = []
        self._closed = False
        self._error: Exception | None = None
        self._wakers: set[asyncio.Future[None]] = set()

    @property
    def last_id(self) -> int:
        return self._events[-1].id if self._events else self.base

    def extend(self, events: Sequence[Recorded]) -> None:
        self._events.extend(events)
        self._wake()

    def slice(self, after: int, limit: int) -> list[Recorded]:
        """At most `limit` events behind the one numbered `after`; the numbers rise by one."""
        start = after - self.base
        return self._events[start : start + limit]

    def close(self, error: Exception | None = None) -> None:
        """Nothing more comes: followers see what there is, and then `error`."""
        self._closed = True
        self._error = error
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[Sequence[Recorded]]:
        """The events behind `after`, all that there are at a time, to the one that ends the stream.

        Those of before a pause, and everything before `base`, are in the log alone.
        """
        position = max(0, after - self.base)
        while True:
            if position < len(self._events):
                fresh = self._events[position:]
                position = len(self._events)
                yield fresh
                if isinstance(fresh[-1].event, Terminal):
                    return
            elif self._closed:
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
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)
