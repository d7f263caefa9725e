"""Canceled work of others gets a moment to clean up, and no longer: it may ignore that it was canceled."""

import asyncio
from collections.abc import Iterable
from typing import Any

#: seconds that canceled calls get to clean up, before the request continues to its end
UNWIND_SECONDS = 1.0


async def unwound(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks that are not over, and waits until they are, `UNWIND_SECONDS` at most."""
    running = [task for task in tasks if task.cancel()]
    if running:
        await asyncio.wait(running, timeout=UNWIND_SECONDS)
