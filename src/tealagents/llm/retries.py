"""Whether and when a model call is retried. No I/O.

A call is retried only before its first delta, only if that can help, and only a few times. All calls of the
process share a budget, which grows by a fraction of a retry with each call, so that retries do not overload a
service that is in trouble.
"""

import random
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

#: HTTP statuses after which the same request may soon succeed (529: overloaded)
PASSING = frozenset({408, 429, 500, 502, 503, 504, 529})
#: error codes that do not pass by themselves, although their HTTP status is in `PASSING`
LASTING_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
#: error codes in an answer with status 200 after which the same request may soon succeed
PASSING_CODES = frozenset(
    {
        *("server_error", "internal_error", "service_unavailable_error", "server_is_overloaded"),
        *("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "slow_down"),
    }
)
#: error codes of refusals that pass within seconds, whatever their status → seconds to wait if the service
#: names none
BUSY_CODES = {"conversation_locked": 2.0}


class Retries:
    """Decides whether a failed call is retried, and after how many seconds."""

    def __init__(self, *, limit: int, delay: float, ratio: float, burst: int) -> None:
        """`limit`: retries of one call. `delay`: seconds before the first retry.

        `ratio` and `burst`: the budget of all calls grows by `ratio` retries per call, up to `burst`.
        """
        self._limit = limit
        self._delay = delay
        self._ratio = ratio
        self._burst = burst
        #: retries that are left in the budget of all calls
        self._budget = float(burst)

    def begin(self) -> None:
        """Call it once for each call, before its first attempt."""
        self._budget = min(self._burst, self._budget + self._ratio)

    def pause(self, retry: int, *, asked: float | None, remaining: float) -> float | None:
        """The seconds to wait before retry number `retry` (from 1); None if there is to be no retry.

        `asked`: the seconds that the service asks for (`Retry-After`). `remaining`: the seconds until the
        deadline; there is no retry if the wait would reach it.
        """
        if retry > self._limit:
            return None
        wait = asked if asked is not None else self._delay * 2 ** (retry - 1) * random.uniform(0.75, 1)
        if wait >= remaining or self._budget < 1:
            return None
        self._budget -= 1
        return wait


def can_help(status: int, code: str, advice: str | None) -> bool:
    """Whether a retry can help after this status and error code. `advice` is the header `x-should-retry`."""
    if advice in {"true", "false"}:
        return advice == "true"
    return code in BUSY_CODES or (status in PASSING and code not in LASTING_CODES)


def seconds_of(retry_after_ms: str | None, retry_after: str | None, now: float) -> float | None:
    """The seconds that `retry-after-ms` or `Retry-After` (RFC 9110, 10.2.3: seconds or a date) asks for.

    Never negative; None if neither is usable. `now` is the wall clock, in seconds since the epoch.
    """
    for text, unit in ((retry_after_ms, 1000), (retry_after, 1)):
        seconds = _number(text)
        if seconds is not None:
            return max(0.0, seconds / unit)
    if retry_after is None:
        return None
    try:
        asked = parsedate_to_datetime(retry_after)
        # the oldest of the three forms of a date names no zone
        asked = asked if asked.tzinfo is not None else asked.replace(tzinfo=UTC)
        return max(0.0, asked.timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None
