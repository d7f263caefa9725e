"""Connections of a store that speaks to a server, lent one at a time.

The drivers' own pools cost more than the queries themselves (a reset query on return, locks, metrics), and
raise the same "connection lost" before a command was sent as after it. Here, a failure to borrow means that
nothing was sent; later failures are for the borrower to judge.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["Pool"]

C = TypeVar("C")

#: seconds after which an idle connection is no longer lent: firewalls drop connections that are idle for some
#: minutes, and tell neither end
IDLE_SECONDS = 60.0
#: seconds for which the pool has one place less after the server refused another connection
SECONDS_WITHOUT = 30.0
#: the same while the pool has no connection at all: processes that start together may soon all be admitted
SECONDS_AT_FIRST = 1.0
#: seconds of use after which a dropped connection is assumed to have stopped answering
MUTE_SECONDS = 1.0


class Pool(Generic[C]):
    """Up to `size` connections. The one that came back last is lent first, so that few are kept busy."""

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[C]],
        usable: Callable[[C], Awaitable[bool]],
        discard: Callable[[C], Awaitable[None]],
        full: Callable[[BaseException], bool] = lambda _: False,
        size: int,
        timeout: float,
    ) -> None:
        """`full` says whether the server refused a connection because it takes no more of them."""
        self._connect = connect
        self._usable = usable
        self._discard = discard
        self._full = full
        self._timeout = timeout
        #: idle connections, each with the time since when, by the event loop's clock; the oldest first
        self._idle: list[tuple[C, float]] = []
        #: lent connections, each with the time since when
        self._lent: dict[C, float] = {}
        #: when it was last cleared
        self._cleared = -math.inf
        #: how many borrowers have a place, but no connection yet
        self._seeking = 0
        self._places = asyncio.Semaphore(size)

    async def borrow(self) -> C:
        """An idle connection or a new one; the borrower must call `give_back` or `drop`.

        If the server takes no more connections, waits for one of the existing ones. Raises `TimeoutError` if
        none becomes free in time, or what connecting raises.
        """
        until = _now() + self._timeout
        while (connection := await self._borrowed(until)) is None:
            pass
        self._lent[connection] = _now()
        return connection

    async def _borrowed(self, until: float) -> C | None:
        """A connection; None if the server takes no more, so that the pool has one place less for a while."""
        if self._places.locked():
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        else:
            await self._places.acquire()  # at once
        self._seeking += 1
        try:
            while self._idle and _now() - self._idle[0][1] >= IDLE_SECONDS:  # the oldest is the first
                await self._discard(self._idle.pop(0)[0])
            while self._idle:
                connection, _ = self._idle.pop()
                if await self._usable(connection):
                    return connection
                await self._discard(connection)
            async with asyncio.timeout(self._timeout):
                return await self._connect()
        except BaseException as error:
            there_are = self._lent or self._idle
            if (there_are or self._seeking > 1) and self._full(error) and _now() < until:
                later = SECONDS_WITHOUT if there_are else SECONDS_AT_FIRST
                asyncio.get_running_loop().call_later(later, self._places.release)
                return None
            self._places.release()
            raise
        finally:
            self._seeking -= 1

    def give_back(self, connection: C) -> None:
        """Returns a connection that has nothing under way."""
        if self._lent.pop(connection) > self._cleared:
            self._idle.append((connection, _now()))
        else:  # the next borrower discards it
            self._idle.insert(0, (connection, -math.inf))
        self._places.release()

    async def drop(self, connection: C, *, mute: bool = False) -> None:
        """Discards a connection whose state is uncertain.

        If it is `mute` (does not answer), or was in use for a while, the connections that were idle before it
        was lent are discarded, too: they probably do not answer either, and each would cost a timeout.
        """
        lent = self._lent.pop(connection)
        try:
            if mute or _now() - lent > MUTE_SECONDS:
                older = [each for each, since in self._idle if since <= lent]
                self._idle = [(each, since) for each, since in self._idle if since > lent]
                for each in older:
                    await self._discard(each)
            await self._discard(connection)
        finally:
            self._places.release()

    async def clear(self) -> None:
        """Discards all connections, lent ones when they are back: the server is gone, or was replaced."""
        self._cleared = _now()
        while self._idle:
            await self._discard(self._idle.pop()[0])


def _now() -> float:
    return asyncio.get_running_loop().time()
