"""Canceled work of others gets a moment to clean up, and no longer: it may ignore that it was canceled."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)

#: seconds that canceled calls get to clean up, before the request continues to its end
UNWIND_SECONDS = 1.0


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
