"""Looks at open streams when it is time to, with one timer of the event loop for all of them.

A timer of the loop for each takes 0.8 KB of every open stream, and a microsecond to set and to cancel.
"""

import asyncio
import threading
from contextvars import Context
from math import inf
from typing import Final, Protocol

__all__ = ["Alarms", "alarms"]

#: seconds between two rounds at least: what is due in between is looked at with the second
APART: Final = 0.05


class Watched(Protocol):
    """Something to be looked at, the same only to itself."""

    def look(self) -> None:
        """It is time. Called once, and in the context of no request."""
        ...


class Alarms:
    """The alarms of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        #: when each is to be looked at, on the loop's clock
        self._due: dict[Watched, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rang_at, self._rings_at = -inf, inf

    def set(self, watched: Watched, when: float) -> None:
        """Has it looked at then, and no longer when it was to be before; up to `APART` seconds late."""
        self._due[watched] = when
        self._ring_at(when)

    def unset(self, watched: Watched) -> None:
        self._due.pop(watched, None)

    def _ring_at(self, when: float) -> None:
        when = max(when, self._rang_at + APART)
        if when >= self._rings_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self.loop.call_at(when, self._ring, context=Context())

    def _ring(self) -> None:
        now, following = self.loop.time(), inf
        self._timer, self._rang_at, self._rings_at = None, now, inf
        for watched, when in self._due.items():
            if when <= now:
                self.loop.call_soon(self._look, watched)  # an error of one is none of the others'
            else:
                following = min(following, when)
        self._ring_at(following)

    def _look(self, watched: Watched) -> None:
        if self._due.get(watched, inf) <= self.loop.time():  # neither given up nor put off by now
            del self._due[watched]
            watched.look()


class _OfThread(threading.local):
    alarms: Alarms | None = None


_of_thread = _OfThread()


def alarms() -> Alarms:
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _of_thread.alarms
    if found is None or found.loop is not loop:
        found = _of_thread.alarms = Alarms(loop)
    return found
