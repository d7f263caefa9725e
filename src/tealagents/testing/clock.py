"""Time that a test moves: a fake clock, and event loops whose time can be advanced."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from tealagents.domain.clock import SystemClock

__all__ = ["FakeClock", "ShiftedClock", "advance", "overdue"]

T = TypeVar("T")

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Implements the port `Clock` with a time that only `advance` moves.

    A sleeper that `advance` wakes runs in the next iteration of the event loop: ``clock.advance(60)``, then
    ``await clock.sleep(0)``. Only tasks that are already sleeping wake: wait for `sleepers` first.
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
        """The number of tasks that sleep until time is advanced."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Advances the time by `seconds`. Sleepers whose time has come wake in the order of their times.

        Raises `ValueError` if `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError("time does not go back")
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


class ShiftedClock(SystemClock):
    """The machine's clock, with the time of day (`now`) set forward by `shift`."""

    shift = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.shift


def advance(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Sets the time of an event loop forward: asyncio's deadlines and sleeps end in its next iteration.

    Works with asyncio's own loops (not uvloop), from any thread. Raises `ValueError` if it would go back.
    """
    if seconds < 0:
        raise ValueError("time does not go back")
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
    loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may be waiting for a time that has passed


async def overdue(work: Coroutine[Any, Any, T], seconds: float, when: Callable[[], bool]) -> T:
    """The result of `work`, during which time advances by `seconds` at a time whenever `when` returns True.

    So its deadlines pass only once the condition holds, however slow the machine is.
    """
    working = asyncio.ensure_future(work)
    while not working.done():
        if when():
            advance(asyncio.get_running_loop(), seconds)
        await asyncio.wait({working}, timeout=0.01)
    return await working
