"""Canceled work of others gets a moment to clean up, and no longer: it may ignore that it was canceled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from tealagents.domain.errors import ungrouped

log = logging.getLogger(__name__)

T = TypeVar("T")

#: seconds that canceled calls get to clean up, before the request continues to its end
UNWIND_SECONDS = 1.0


class Overdue(TimeoutError):
    """The work took longer than it may."""


async def within(
    seconds: float, work: Callable[[], Awaitable[T]], answers: tuple[type[Exception], ...] = ()
) -> T:
    """What the work returns or raises, in a task group too: see `ungrouped`. `Overdue` where it takes longer;
    it is canceled then, and left behind where it ignores that. What it raises as it is canceled counts only
    where it is one of its `answers`."""
    task = asyncio.ensure_future(_contained(work))
    try:
        ended, _ = await asyncio.wait((task,), timeout=seconds)
    finally:
        await unwound((task,))
    if not ended:
        error = task.exception() if task.done() and not task.cancelled() else None
        if not task.done() or task.cancelled() or (error is not None and not isinstance(error, answers)):
            raise Overdue from error
    try:
        result = task.result()
    finally:  # an error refers to this frame by its traceback, and to the call's arguments
        del task, ended
    if isinstance(result, SystemExit):
        raise result
    return result


async def _contained(work: Callable[[], Awaitable[T]]) -> T | SystemExit:
    try:
        with ungrouped():
            return await work()
    except SystemExit as error:  # a task that raises it stops the event loop
        return error


async def unwound(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks that are not over, and waits until they are, `UNWIND_SECONDS` at most."""
    running = []
    for task in tasks:
        task.add_done_callback(_log_failure)
        if task.cancel():
            running.append(task)
    if running:
        await asyncio.wait(running, timeout=UNWIND_SECONDS)


def _log_failure(task: asyncio.Future[Any]) -> None:
    """What failed of its own has been reported; this is what happens while canceled work cleans up."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("canceled work failed", exc_info=error)
