"""Limits on requests and bytes in flight, and draining. Reads, followers and health checks never count."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from time import monotonic
from weakref import WeakValueDictionary

from tealagents.domain.errors import Draining, Overloaded

#: how many bodies or messages of the largest size may be in memory at once, per user and per process
LARGEST_PER_USER, LARGEST_PER_PROCESS = 4, 16
#: the first bytes of each body or message, which do not count
FREE = 64 * 1024
#: seconds of parsing after which the next large body waits, for so many times as long: what is parsed is
#: validated, too
NOTICEABLE_SECONDS, REST = 0.01, 2


def counted(size: int) -> int:
    """How many of `size` bytes count towards a `ByteBudget`: those beyond the first `FREE`."""
    return max(size - FREE, 0)


class ByteBudget:
    """Counts the received bytes that a process holds in memory, in total and by user.

    Only what `counted` returns counts, so that short messages are admitted whatever others hold.
    """

    def __init__(self, largest: int, *, per_user: bool) -> None:
        """`largest`: the largest allowed body, in bytes. Without `per_user`, only the process is limited."""
        self._per_user = LARGEST_PER_USER * largest if per_user else inf
        self._per_process = LARGEST_PER_PROCESS * largest
        self._by_user: Counter[str] = Counter()
        self._held = 0

    def check(self, user: str, size: int) -> None:
        """Raises `Overloaded` if `size` more bytes would exceed a limit."""
        if self._by_user[user] + size > self._per_user:
            raise Overloaded("You are sending too much at once. Wait for some to finish.", per_user=True)
        if self._held + size > self._per_process:
            raise Overloaded("Too much is being sent to this process at once. Try again shortly.")

    def take(self, user: str, size: int) -> None:
        """Takes `size` bytes until `give_back`; raises what `check` raises."""
        self.check(user, size)
        self._by_user[user] += size
        self._held += size

    def give_back(self, user: str, size: int) -> None:
        self._held -= size
        self._by_user[user] -= size
        if not self._by_user[user]:
            del self._by_user[user]

    @contextmanager
    def taken(self, user: str, size: int) -> Iterator[None]:
        """Holds the share of `size` bytes for as long as the block lasts. Raises `Overloaded`."""
        share = counted(size)
        self.take(user, share)
        try:
            yield
        finally:
            self.give_back(user, share)


class LargeBodies:
    """Has large bodies parsed one after another, with pauses in which everything else continues.

    A user waits for their own first: anyone else's body is next after at most one of theirs.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._of_user: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        #: when the next one may be parsed, on the clock `monotonic`
        self._next_at = 0.0

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Waits for the turn of one body of the user; what the block does must be synchronous."""
        async with self._of_user.setdefault(user, asyncio.Lock()), self._lock:
            await asyncio.sleep(self._next_at - monotonic())
            began = monotonic()
            try:
                yield
            finally:
                now = monotonic()
                spent = now - began
                self._next_at = now + (REST * spent if spent > NOTICEABLE_SECONDS else 0)


class Admission:
    """Counts the requests in flight in this process, in total and by user."""

    def __init__(self, *, per_process: int, per_user: int, largest: int, bytes_per_user: bool = True) -> None:
        """`largest` and `bytes_per_user` are those of the byte budgets (`ByteBudget`)."""
        self._per_process = per_process
        self._per_user = per_user
        #: for bodies being received. It is separate so that a repeat or a decision gets in while answers run
        self.receiving = ByteBudget(largest, per_user=bytes_per_user)
        #: for the messages of requests in flight, and for imports
        self.answering = ByteBudget(largest, per_user=bytes_per_user)
        self.large_bodies = LargeBodies()
        self._by_user: Counter[str] = Counter()
        self.in_flight = 0
        self.draining = False

    def _check(self, user: str) -> None:
        """Raises `Draining`, or `Overloaded` if one more request exceeds a limit."""
        if self.draining:
            raise Draining
        if self._by_user[user] >= self._per_user:
            raise Overloaded(
                f"Too many of your requests are in flight (at most {self._per_user}). Wait for one to end.",
                per_user=True,
            )
        if self.in_flight >= self._per_process:
            raise Overloaded(
                f"Too many requests are in flight (at most {self._per_process}). Try again shortly."
            )

    @contextmanager
    def admitted(self, user: str, share: int) -> Iterator[None]:
        """Holds one place and `share` bytes of the budget for as long as the block lasts."""
        self.enter(user, share)
        try:
            yield
        finally:
            self.leave(user, share)

    def enter(self, user: str, share: int = 0) -> None:
        """Takes one place and `share` bytes of the budget, until `leave`. Raises `Draining`, `Overloaded`."""
        self._check(user)
        if share:
            self.answering.take(user, share)
        self.in_flight += 1
        self._by_user[user] += 1

    def leave(self, user: str, share: int = 0) -> None:
        if share:
            self.answering.give_back(user, share)
        self.in_flight -= 1
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
