"""Threads for functions that block."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tealagents.domain.errors import ToolFailed

_Result = TypeVar("_Result")


class Threads:
    """Runs blocking functions, at most `limit` at once; more wait their turn without blocking the loop.

    The threads are daemons, unlike those of `concurrent.futures`: a tool that hangs must not keep the
    process from ending. A canceled caller stops waiting at once, its function runs to its end and
    holds its place until then.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], _Result], name: str) -> _Result:
        """The function's result or exception, see `_carried`. It sees the caller's context variables."""
        await self._place()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_Result] = loop.create_future()
        context = contextvars.copy_context()

        def finish(result: _Result | None, error: Exception | None) -> None:
            self._places.release()
            if outcome.cancelled():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result: _Result | None = None
            error: Exception | None = None
            try:
                result = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - carried to the caller, whatever it is
                error = _carried(raised)
            with suppress(RuntimeError):  # the loop is closed: no one waits any more
                loop.call_soon_threadsafe(finish, result, error)

        try:
            threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
        except RuntimeError:
            self._places.release()
            raise
        return await outcome

    async def _place(self) -> None:
        """Waits for a place. `ToolFailed` where that is given up: the function has not been called then."""
        try:
            await self._places.acquire()
        except asyncio.CancelledError:
            raise ToolFailed(
                f"All threads for tools ({self._limit}) are taken by calls that still run. Nothing was done."
            ) from None


def _carried(raised: BaseException) -> Exception:
    """What the caller is given: nothing that would end its request or the process, or that no future has."""
    if isinstance(raised, SystemExit | KeyboardInterrupt | asyncio.CancelledError):
        return ToolFailed(
            f"The tool broke off ({type(raised).__name__}); whether it took effect is unknown.", unknown=True
        )
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(f"it raised {type(raised).__name__}")
