"""The pool of system threads that blocking tools run in. (`tealagents.threads` is about conversations.)"""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tealagents.domain.errors import ToolFailed, described

_Result = TypeVar("_Result")

#: a user's tenant and object id
_Owner = tuple[str, str]


class ThreadPool:
    """Runs blocking functions, at most `limit` at once. Further calls wait, without blocking the event loop.

    The threads are daemons, unlike those of `concurrent.futures`: a tool that hangs must not keep the
    process from ending. A canceled caller stops waiting at once; its function runs to its end and counts
    towards the limit until then.

    The next thread goes to the waiting owner with the fewest running calls: one message with a hundred calls
    does not make other users wait for all of them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: Counter[_Owner] = Counter()
        #: waiting calls by owner; among owners, the one that has waited longest since its last turn is first
        self._waiting: dict[_Owner, dict[asyncio.Future[None], None]] = {}

    async def run(self, function: Callable[[], _Result], name: str, owner: _Owner) -> _Result:
        """Runs the function, with the caller's context variables, in a thread whose name contains `name`.

        Returns its result or raises its exception (as in `_carried`). `ToolFailed` if the call is canceled
        before it has a thread, `RuntimeError` if no thread can be started.
        """
        await self._wait_for_turn(owner)
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
            except BaseException as raised:  # noqa: BLE001 - raised in the caller, whatever it is
                error = _carried(raised)
            with suppress(RuntimeError):  # the event loop is closed: no one waits any more
                loop.call_soon_threadsafe(finish, result, error)

        try:
            threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
        except RuntimeError:
            self._release(owner)
            raise
        return await outcome

    async def _wait_for_turn(self, owner: _Owner) -> None:
        """Waits until a thread may be started. `ToolFailed` if canceled meanwhile: nothing was called."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[turn] = None
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(owner, turn)
            else:  # its turn had just come
                self._release(owner)
            raise ToolFailed(
                f"All threads for tools ({self._limit}) are taken by calls that still run. Nothing was done."
            ) from None

    def _release(self, owner: _Owner) -> None:
        self._running -= Counter([owner])  # which also drops an owner whose count is 0
        self._give()

    def _forget(self, owner: _Owner, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(owner, {})
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(owner, None)

    def _give(self) -> None:
        """Lets waiting calls run, up to the limit."""
        while self._waiting and self._running.total() < self._limit:
            owner = min(self._waiting, key=self._running.__getitem__)
            turns = self._waiting.pop(owner)
            turn = next(iter(turns))
            del turns[turn]
            if turns:  # the owner's further calls wait behind those of the others
                self._waiting[owner] = turns
            if not turn.cancelled():
                self._running[owner] += 1
                turn.set_result(None)


def _carried(raised: BaseException) -> Exception:
    """The exception that is raised in the caller: never one that would end the request or the process, or
    that a future does not accept (`StopIteration`)."""
    if isinstance(raised, SystemExit | KeyboardInterrupt | asyncio.CancelledError):
        return ToolFailed(
            f"The tool broke off ({type(raised).__name__}); whether it took effect is unknown.", unknown=True
        )
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(f"it raised {described(raised)}")
