"""The events of a request in memory, for all its followers in this process."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Final, get_args

from tealagents.domain.events import Recorded, Terminal

#: looked up rather than asked with `isinstance`, which is slow to say no of a class of msgspec's
_ENDINGS: Final = frozenset(get_args(Terminal))
#: events that a follower gets at a time: they are encoded at once, and all other requests wait meanwhile
MOST_AT_ONCE = 1000


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
        self._wakers: list[asyncio.Future[None]] = []

    def extend(self, events: Sequence[Recorded]) -> None:
        if events:
            self._events.extend(events)
            self.last_id = events[-1].id
            self._wake()

    def close(self, error: Exception | None = None) -> None:
        """Nothing more comes: followers see what there is, and then `error`."""
        self.closed = True
        self._error = error
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[Sequence[Recorded]]:
        """The events behind `after`, up to `MOST_AT_ONCE` at a time, to the one that ends the stream.

        Those of before a pause, and everything before `base`, are in the log alone.
        """
        seen = 0
        while True:
            if after < self.last_id:
                # by their numbers: those of decided pauses are left out
                start = bisect_right(self._events, after, seen, key=attrgetter("id"))
                fresh = self._events[start : start + MOST_AT_ONCE]
                after, seen = fresh[-1].id, start + len(fresh)
                yield fresh
                if type(fresh[-1].event) in _ENDINGS:
                    return
                if len(fresh) == MOST_AT_ONCE:
                    await asyncio.sleep(0)
            elif self.closed:
                if self._error is not None:
                    raise self._error
                if self._events and type(self._events[-1].event) in _ENDINGS:
                    yield self._events[-1:]  # `after` was behind all there ever was
                return
            else:
                waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._wakers.append(waker)
                try:
                    await waker
                finally:
                    if waker in self._wakers:  # it was not woken
                        self._wakers.remove(waker)

    def _wake(self) -> None:
        woken, self._wakers = self._wakers, []
        for waker in woken:
            if not waker.done():
                waker.set_result(None)
