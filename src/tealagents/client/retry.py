"""How often, and how soon, to repeat."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Bounds of repetition. With the defaults a call to an absent service is repeated for half a minute."""

    #: failures in a row, without progress between them, after which to give up
    attempts: int = 10
    #: seconds before the first repetition; the delay doubles with each further one
    first_delay: float = 0.2
    longest_delay: float = 8.0
    #: a `Retry-After` beyond it is not waited for
    longest_wait: float = 60.0


#: every failure is raised
NO_RETRY = Retry(attempts=0)


class Budget:
    """What one call, or one stream, has left of its `Retry`."""

    def __init__(self, retry: Retry, jitter: Callable[[], float], *, until: float = math.inf) -> None:
        self._retry = retry
        self._jitter = jitter
        self._failures = 0
        #: an attempt failed that may have been executed all the same
        self.in_doubt = False
        #: the time, by the clock of the rules, after which nothing is repeated
        self.until = until

    def renew(self) -> None:
        """There was progress: earlier failures no longer count."""
        self._failures = 0

    def delay(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait before the next attempt; None when it is time to give up.

        Between half and all of a ceiling that doubles, so that clients that failed together do not come back
        together; added to the service's `Retry-After`, if there was one.
        """
        ceiling = min(self._retry.longest_delay, self._retry.first_delay * 2.0 ** min(self._failures, 64))
        self._failures += 1
        if self._failures > self._retry.attempts or (retry_after or 0) > self._retry.longest_wait:
            return None
        return (retry_after or 0) + ceiling * (0.5 + 0.5 * self._jitter())
