"""How many requests at once, and draining. Reads, followers and health are never counted."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tealagents.domain.errors import Draining, Overloaded


class Admission:
    """Counts the requests in flight in this process, in all and by user."""

    def __init__(self, *, per_process: int, per_user: int) -> None:
        self._per_process = per_process
        self._per_user = per_user
        self._by_user: Counter[str] = Counter()
        self.in_flight = 0
        self.draining = False

    def check(self, user: str) -> None:
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

    @contextmanager
    def admitted(self, user: str) -> Iterator[None]:
        """Holds one place."""
        self.enter(user)
        try:
            yield
        finally:
            self.leave(user)

    def enter(self, user: str) -> None:
        """Takes one place, until `leave`; refuses as `check` does."""
        self.check(user)
        self.in_flight += 1
        self._by_user[user] += 1

    def leave(self, user: str) -> None:
        self.in_flight -= 1
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
