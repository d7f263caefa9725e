"""The clock of a process that no test moves."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Implements the port `Clock` with the machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
