"""Waiting in tests for a condition, with a deadline that a busy machine can meet."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: seconds to wait
PATIENCE = 60.0


def until(look: Callable[[], T | None], *, within: float = PATIENCE, every: float = 0.01) -> T:
    """What `look` returns, as soon as that is true.

    Looks every `every` seconds; `AssertionError` with what was seen last, after `within` seconds.
    """
    deadline = time.monotonic() + within
    while not (seen := look()):
        _check_deadline(deadline, within, seen)
        time.sleep(every)
    return seen


async def eventually(look: Callable[[], Any], *, within: float = PATIENCE, every: float = 0.01) -> Any:
    """`until` for coroutines; `look` may return an awaitable.

    The time is that of the machine, whatever a test does to that of its event loop.
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
