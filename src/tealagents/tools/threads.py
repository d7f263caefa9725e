"""Threads for functions that block."""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tealagents.domain.errors import ToolFailed

_Result = TypeVar("_Result")

#: tenant and id of a user
_Owner = tuple[str, str]


class Threads:
    """Runs blocking functions, at most `limit` at once; more wait their turn without blocking the loop.

    The threads are daemons, unlike those of `concurrent.futures`: a tool that hangs must not keep the
    process from ending. A canceled caller stops waiting at once, its function runs to its end and
    holds its place until then.

    A place that becomes free goes to the waiting owner for whom the fewest run: one message with a hundred
    calls keeps no other user waiting until all of them are made.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: Counter[_Owner] = Counter()
        #: calls that wait, by their owners: first the owner who has been given no place for the longest
        self._waiting: dict[_Owner, dict[asyncio.Future[None], None]] = {}

    async def run(self, function: Callable[[], _Result], name: str, owner: _Owner) -> _Result:
        """The function's result or exception, see `_carried`. It sees the caller's context variables."""
        await self._place(owner)
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_Result] = loop.create_future()
        context = contextvars.copy_context()

        def finish(result: _Result | None, error: Exception | None) -> None:
            self._release(owner)
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
            self._release(owner)
            raise
        return await outcome

    async def _place(self, owner: _Owner) -> None:
        """Waits for a place. `ToolFailed` where that is given up: the function has not been called then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[turn] = None
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(owner, turn)
            else:  # it had its place already
                self._release(owner)
            raise ToolFailed(
                f"All threads for tools ({self._limit}) are taken by calls that still run. Nothing was done."
            ) from None

    def _release(self, owner: _Owner) -> None:
        self._running -= Counter([owner])  # one without a thread is dropped
        self._give()

    def _forget(self, owner: _Owner, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(owner, {})
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(owner, None)

    def _give(self) -> None:
        """Gives the free places to those that wait."""
        while self._waiting and self._running.total() < self._limit:
            owner = min(self._waiting, key=self._running.__getitem__)
            turns = self._waiting.pop(owner)
            turn = next(iter(turns))
            del turns[turn]
            if turns:  # behind the others
                self._waiting[owner] = turns
            if not turn.cancelled():
                self._running[owner] += 1
                turn.set_result(None)


def _carried(raised: BaseException) -> Exception:
    """What the caller is given: nothing that would end its request or the process, or that no future has."""
    if isinstance(raised, SystemExit | KeyboardInterrupt | asyncio.CancelledError):
        return ToolFailed(
            f"The tool broke off ({type(raised).__name__}); whether it took effect is unknown.", unknown=True
        )
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(f"it raised {type(raised).__name__}")
