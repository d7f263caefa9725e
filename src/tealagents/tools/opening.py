"""Enters and exits third-party context managers, each in a single task of its own."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from tealagents.domain.errors import ends_task, ungrouped
from tealagents.registry import raised
from tealagents.tools.errors import ToolsetError

log = logging.getLogger(__name__)


class Held:
    """A context manager that a single task enters, holds open, and exits.

    The context may hold an anyio task group, as a client of the package `mcp` does, which only the task that
    entered it may exit. An error or a cancellation that ends the body is raised inside the context as well.
    """

    def __init__(self, context: AbstractAsyncContextManager[Any], what: str) -> None:
        """`what`: the name of the context in errors."""
        self._context = context
        self._what = what
        self._is_entered = asyncio.Event()
        self._is_left = asyncio.Event()
        #: the exception that ended the body; None if it ended normally
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
        """Waits for the task or one of `others`. If canceled, cancels the task and waits until it ends."""
        try:
            await asyncio.wait((self._task, *others), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,))
            raise

    async def _hold(self) -> BaseException | None:
        """Returns the exception that the context raised; None for the one that ended the body (`ungrouped`,
        since a task group wraps it).

        The exception is returned, not raised, because a task that raises `SystemExit` stops the event loop.
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
