"""Time that a test moves: a clock that stands still otherwise, and event loops that it sets forward."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from tealagents.state.records import SystemClock

__all__ = ["FakeClock", "ShiftedClock", "advance", "overdue"]

T = TypeVar("T")

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Implements the port `Clock`. `advance` moves both clocks, and wakes who has slept long enough.

    A woken sleeper runs when the event loop next turns: ``clock.advance(60); await clock.sleep(0)``. Who
    has yet to fall asleep is not woken: wait until `sleepers` says that they have.
    """

    def __init__(self, start: datetime = _START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """How many sleep until time is moved."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Moves time by `seconds`; sleepers wake in the order in which their times come."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


class ShiftedClock(SystemClock):
    """The machine's clock, set forward by `shift` as far as the time of day goes."""

    shift = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.shift


def advance(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Sets the time of an event loop forward: deadlines of `asyncio` pass and sleepers wake as it turns next.

    For asyncio's own loops, from any thread. An hour passes at once, and not before a test has seen what was
    to happen in it.
    """
    if seconds < 0:
        raise ValueError("time does not go back")
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
    loop.call_soon_threadsafe(lambda: None)  # it may be waiting for a time that has come


async def overdue(work: Coroutine[Any, Any, T], seconds: float, when: Callable[[], bool]) -> T:
    """The result of work whose deadlines all pass, `seconds` at a time, once a condition holds: not before,
    however slow the machine is."""
    working = asyncio.ensure_future(work)
    while not working.done():
        if when():
            advance(asyncio.get_running_loop(), seconds)
        await asyncio.wait({working}, timeout=0.01)
    return await working
