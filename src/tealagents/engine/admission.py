"""How many requests at once, and draining. Reads, followers and health are never counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tealagents.domain.errors import Draining, Overloaded

#: seconds that messages still get to arrive once the drain is over: a client that is sending may not hear an
#: answer. The server cancels after three.
LAST_ARRIVALS_SECONDS = 2.0


class Admission:
    """Counts the requests in flight in this process, in all and by user."""

    def __init__(self, *, per_process: int, per_user: int) -> None:
        self._per_process = per_process
        self._per_user = per_user
        self._by_user: Counter[str] = Counter()
        self.in_flight = 0
        self.draining = False
        #: of each message that is still arriving
        self._deadlines = set[asyncio.Timeout]()

    def check(self, user: str) -> None:
        """Refuses what would be one too many."""
        if self.draining:
            raise _draining()
        if self._by_user[user] >= self._per_user:
            raise Overloaded(
                f"You already have {self._per_user} requests in flight. Wait for some to finish.",
                per_user=True,
            )
        if self.in_flight >= self._per_process:
            raise Overloaded(f"{self._per_process} requests are in flight. Try again shortly.")

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

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Around a message that arrives: `Draining` where it does not before the process ends."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                try:
                    yield
                finally:
                    self._deadlines.discard(deadline)
        except TimeoutError:
            if deadline.expired():
                raise _draining() from None
            raise

    def receive_no_more(self) -> None:
        """The drain is over: what has not arrived soon is refused, before the server cancels it."""
        until = asyncio.get_running_loop().time() + LAST_ARRIVALS_SECONDS
        while self._deadlines:
            self._deadlines.pop().reschedule(until)


def _draining() -> Draining:
    return Draining(
        "This process is shutting down. Send the message again; another one takes it.", retry_after=1
    )
