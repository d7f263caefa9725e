"""Waits in tests for a condition, with a deadline that even a busy machine meets."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: seconds that tests wait by default
WAIT_SECONDS = 60.0


def until(look: Callable[[], T | None], *, within: float = WAIT_SECONDS, every: float = 0.01) -> T:
    """Calls `look` every `every` seconds until it returns a true value, and returns that value.

    Raises `AssertionError`, with the value that was returned last, after `within` seconds.
    """
    deadline = time.monotonic() + within
    while not (seen := look()):
        _check_deadline(deadline, within, seen)
        time.sleep(every)
    return seen


async def eventually(look: Callable[[], Any], *, within: float = WAIT_SECONDS, every: float = 0.01) -> Any:
    """As `until`, without blocking the event loop. `look` may return an awaitable.

    The time is the machine's, even if a test advances the time of its event loop.
    """
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        _check_deadline(deadline, within, seen)
        await asyncio.sleep(every)


def _check_deadline(deadline: float, within: float, seen: object) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"waited {within:g} seconds in vain, and saw {seen!r:.500} last")
