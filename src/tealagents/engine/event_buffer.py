"""The events of a request in memory, for all its followers in this process."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Final, get_args

from tealagents.domain.events import Recorded, Terminal

#: a set, because `isinstance` is slow to return False for msgspec classes
_TERMINAL: Final = frozenset(get_args(Terminal))
#: events per batch for a follower: encoding a batch blocks all other requests
MOST_AT_ONCE = 1000


class EventBuffer:
    """The numbered events after `base`; each follower reads them at its own pace."""

    def __init__(self, base: int) -> None:
        #: the id of the event before the first one in the buffer
        self.base = base
        #: the id of the last event in the buffer; `base` while it is empty
        self.last_id = base
        self._events: list[Recorded] = []
        #: no more events will come
        self.closed = False
        self._error: Exception | None = None
        self._wakers: list[asyncio.Future[None]] = []

    def extend(self, events: Sequence[Recorded]) -> None:
        if events:
            self._events.extend(events)
            self.last_id = events[-1].id
            self._wake()

    def close(self, error: Exception | None = None) -> None:
        """No more events will come: followers get the remaining ones, then `error` is raised, if any."""
        self.closed = True
        self._error = error
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[Sequence[Recorded]]:
        """The events after `after`, up to `MOST_AT_ONCE` at a time, until one ends the stream.

        Events up to `base`, such as those before a pause, are only in the log.
        """
        seen = 0
        while True:
            if after < self.last_id:
                start = seen
                if self._events[start].id <= after:
                    # by number and not by index: the numbers have gaps where decided pauses were left out
                    start = bisect_right(self._events, after, seen, key=attrgetter("id"))
                fresh = self._events[start : start + MOST_AT_ONCE]
                after, seen = fresh[-1].id, start + len(fresh)
                yield fresh
                if type(fresh[-1].event) in _TERMINAL:
                    return
                if len(fresh) == MOST_AT_ONCE:
                    await asyncio.sleep(0)
            elif self.closed:
                if self._error is not None:
                    raise self._error
                if self._events and type(self._events[-1].event) in _TERMINAL:
                    yield self._events[-1:]  # `after` is beyond the last event
                return
            else:
                waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._wakers.append(waker)
                try:
                    await waker
                finally:
                    if waker in self._wakers:  # canceled before it was woken
                        self._wakers.remove(waker)

    def _wake(self) -> None:
        woken, self._wakers = self._wakers, []
        for waker in woken:
            if not waker.done():
                waker.set_result(None)
