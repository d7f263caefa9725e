"""When a call of the model is tried again. No I/O.

Only before the first delta, only where it can help, at most a few times for one call, and never so
often by all calls together that a service in trouble is hit harder for it: the budget of the process
grows by a fraction of a retry with each call.
"""

import random
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

#: HTTP statuses after which the same request can succeed a moment later (529: overloaded)
PASSING = frozenset({408, 429, 500, 502, 503, 504, 529})
#: error codes that come with such a status and last all the same
LASTING_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
#: error codes inside of an answer that was begun with 200
PASSING_CODES = frozenset(
    {
        *("server_error", "internal_error", "service_unavailable_error", "server_is_overloaded"),
        *("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "slow_down"),
    }
)
#: error codes of refusals that pass within seconds, whatever their status → seconds to wait where the service
#: names none
BUSY_CODES = {"conversation_locked": 2.0}


class Retries:
    """Decides whether a call that failed is tried again, and after how long."""

    def __init__(self, *, limit: int, delay: float, ratio: float, burst: int) -> None:
        """`limit` retries for one call; for all calls together `ratio` retries a call, `burst` at once."""
        self._limit = limit
        self._delay = delay
        self._ratio = ratio
        self._burst = burst
        #: retries that are left in the budget of all calls
        self._budget = float(burst)

    def begin(self) -> None:
        """To be called once for each call, before its first attempt."""
        self._budget = min(self._burst, self._budget + self._ratio)

    def pause(self, retry: int, *, asked: float | None, remaining: float) -> float | None:
        """Seconds to wait before the `retry`-th retry (from 1), or None where there shall be none.

        `asked` is what the service asks for (`Retry-After`), `remaining` what the deadline leaves: a wait
        that would use it up is not begun.
        """
        if retry > self._limit:
            return None
        wait = asked if asked is not None else self._delay * 2 ** (retry - 1) * random.uniform(0.75, 1)
        if wait >= remaining or self._budget < 1:
            return None
        self._budget -= 1
        return wait


def can_help(status: int, code: str, advice: str | None) -> bool:
    """Whether a refusal with this status and error code passes by itself; `advice` is `x-should-retry`."""
    if advice in {"true", "false"}:
        return advice == "true"
    return code in BUSY_CODES or (status in PASSING and code not in LASTING_CODES)


def seconds_of(retry_after_ms: str | None, retry_after: str | None, now: float) -> float | None:
    """What `retry-after-ms` or `Retry-After` (RFC 9110, 10.2.3: seconds or a date) asks for.

    None where nothing usable is said; never negative. `now` is the wall clock.
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
