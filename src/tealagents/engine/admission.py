"""How many requests at once, of how many bytes, and draining. Reads, followers and health never count."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from tealagents.domain.errors import Draining, Overloaded

#: of the largest size, bodies and messages that may be in memory at once, of one user and in the process
LARGEST_PER_USER, LARGEST_PER_PROCESS = 4, 16
#: bytes of each that are not counted
FREE = 64 * 1024


def counted(size: int) -> int:
    """How many of so many bytes take a share of a `ByteBudget`."""
    return max(size - FREE, 0)


class ByteBudget:
    """Bytes that a process holds of what it was sent, in all and by user.

    Each counts beyond its first `FREE` bytes, so that short messages come through whatever others hold.
    """

    def __init__(self, largest: int, *, per_user: bool = True) -> None:
        """`largest`: bytes that one body may have. Unless `per_user`, the process alone bounds them."""
        self._per_user = LARGEST_PER_USER * largest if per_user else inf
        self._per_process = LARGEST_PER_PROCESS * largest
        self._by_user: Counter[str] = Counter()
        self._held = 0

    def check(self, user: str, size: int) -> None:
        """`Overloaded` where it would be too much."""
        if self._by_user[user] + size > self._per_user:
            raise Overloaded("You are sending too much at once. Wait for some to finish.", per_user=True)
        if self._held + size > self._per_process:
            raise Overloaded("Too much is being sent to this process at once. Try again shortly.")

    def take(self, user: str, size: int) -> None:
        """Refuses as `check` does."""
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
        """Around work on so many bytes. `Overloaded`."""
        share = counted(size)
        self.take(user, share)
        try:
            yield
        finally:
            self.give_back(user, share)


class Admission:
    """Counts the requests in flight in this process, in all and by user."""

    def __init__(self, *, per_process: int, per_user: int, largest: int, bytes_per_user: bool = True) -> None:
        """`largest`: bytes that one body may have. Unless `bytes_per_user`, the process alone bounds them."""
        self._per_process = per_process
        self._per_user = per_user
        #: of the bodies on their way. Apart from what is answered: a repeat, or a decision, must come through
        self.receiving = ByteBudget(largest, per_user=bytes_per_user)
        #: of what the requests in flight, and imports, were sent
        self.answering = ByteBudget(largest, per_user=bytes_per_user)
        self._by_user: Counter[str] = Counter()
        self.in_flight = 0
        self.draining = False

    def check(self, user: str, share: int = 0) -> None:
        """Refuses what would be one too many."""
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
        if share:
            self.answering.check(user, share)

    @contextmanager
    def admitted(self, user: str, share: int) -> Iterator[None]:
        """Holds one place, and a share of the budget."""
        self.enter(user, share)
        try:
            yield
        finally:
            self.leave(user, share)

    def enter(self, user: str, share: int = 0) -> None:
        """Takes one place and a share of the budget, until `leave`; refuses as `check` does."""
        self.check(user)
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
