"""Opening and closing what others have written: all at once, each in one task of its own."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from tealagents.domain.errors import ends_task, ungrouped
from tealagents.registry import raised
from tealagents.tools.errors import ToolsetError

log = logging.getLogger(__name__)


class Held:
    """A context that one task enters, waits in, and exits.

    It may hold an anyio task group, as a client of the package `mcp` does: only the task that entered one
    may exit it. What ends the body, an error or a cancellation, reaches the context as well.
    """

    def __init__(self, context: AbstractAsyncContextManager[Any], what: str) -> None:
        """`what` it is called in an error."""
        self._context = context
        self._what = what
        self._is_entered = asyncio.Event()
        self._is_left = asyncio.Event()
        #: what the body ended with
        self._given: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._hold())
        entered = asyncio.ensure_future(self._is_entered.wait())
        try:
            await self._until(entered)
        finally:
            entered.cancel()
        if self._task.done() and (error := self._task.result()) is not None:
            raise error
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._given = error
        self._is_left.set()
        await self._until()
        if not self._task.cancelled() and (failure := self._task.result()) is not None:
            raise failure

    async def _until(self, *others: asyncio.Future[Any]) -> None:
        """Waits for the task or one of the others. A cancellation is passed on, and its end awaited."""
        try:
            await asyncio.wait((self._task, *others), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,))
            raise

    async def _hold(self) -> BaseException | None:
        """What the context raises, unless that is what the body ended with, which a task group wraps.

        It is returned: a task that raises `SystemExit` stops the event loop.
        """
        try:
            with ungrouped():
                async with self._context:
                    self._is_entered.set()
                    await self._is_left.wait()
                    if self._given is not None:
                        raise self._given
        except BaseException as error:
            if error is self._given:
                return None
            if ends_task(error):
                raise
            if not self._is_entered.is_set():
                return self._named("cannot be opened", error)
            if not self._is_left.is_set():
                log.exception("%s failed while it was open, and is closed", self._what)
            return error if isinstance(error, Exception) else self._named("failed to close", error)
        return None

    def _named(self, said: str, error: BaseException) -> ToolsetError:
        if isinstance(error, ToolsetError):
            return error
        named = ToolsetError(f"{self._what} {said}: {raised(error, type(self._context).__module__)}")
        named.__cause__ = error
        return named
