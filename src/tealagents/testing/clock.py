"""A clock that moves only when a test moves it."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count

__all__ = ["FakeClock"]

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Fills the port `Clock`. `advance` moves both clocks, and wakes who has slept long enough.

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
