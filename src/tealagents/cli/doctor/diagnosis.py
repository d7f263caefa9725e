"""What was found, and what to do about it."""

import time
from email.utils import parsedate_to_datetime
from typing import NamedTuple

#: the most seconds by which two clocks may differ; by default, tokens are checked with as much leeway
MOST_SKEW = 60.0


class Diagnosis(NamedTuple):
    """A problem, and what to do about it."""

    what: str
    remedy: str = ""


def clock_skew(whose: str, timestamp: float) -> Diagnosis | None:
    """The finding for another's clock, which shows `timestamp`; None if it is about right."""
    seconds = abs(timestamp - time.time())
    if seconds <= MOST_SKEW:
        return None
    return Diagnosis(
        f"the clocks of this machine and of {whose} differ by {seconds:.0f} s",
        "Synchronize both with NTP: tokens, leases and expiries depend on it.",
    )


def date_skew(whose: str, date: str) -> Diagnosis | None:
    """The same for the date of an HTTP answer; None also if that is no date."""
    try:
        timestamp = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return clock_skew(whose, timestamp)
