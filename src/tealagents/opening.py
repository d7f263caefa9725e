"""Enters and exits third-party context managers, each in a single task of its own, and named in errors."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from tealagents.domain.errors import TealError, ends_task, ungrouped
from tealagents.registry import raised
from tealagents.unwinding import unwound

log = logging.getLogger(__name__)

#: seconds that a context has to close, before it is canceled and left behind: the process has to end
CLOSE_SECONDS = 3.0
#: seconds after which the log names a context that is still being opened: the start waits for it, unlimited
SLOW_SECONDS = 5.0


class Held:
    """A context manager that a single task enters, holds open, and exits.

    The context may hold an anyio task group, as a client of the package `mcp` does, which only the task that
    entered it may exit. An error or a cancellation that ends the body is raised inside the context as well.
    """

    def __init__(
        self,
        context: AbstractAsyncContextManager[Any],
        word: str,
        error: type[Exception],
        *,
        wrapped: object = None,
        vital: bool = False,
        bounded: bool = True,
    ) -> None:
        """`word` is what the context is called in errors, before the name of its class or of the one that it
        has `wrapped`; `error` is the class of the errors.

        `vital`: if it fails while it is open, the task that opened it is canceled, and leaves with its error.
        Not `bounded`: what it opens and closes has limits of its own, and is named by itself.
        """
        self._context = context
        self._kind = type(context if wrapped is None else wrapped)
        self._what = f"The {word} {self._kind.__name__}"
        self._error = error
        self._vital = vital
        self._seconds = CLOSE_SECONDS if bounded else None
        #: the task that was canceled because this failed while it was open
        self._ended: asyncio.Task[Any] | None = None
        self._is_entered = asyncio.Event()
        self._is_left = asyncio.Event()
        #: the exception that ended the body; None if it ended normally
        self._given: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._hold(asyncio.current_task() if self._vital else None))
        entered = asyncio.ensure_future(self._is_entered.wait())
        try:
            await self._until(entered, seconds=None if self._seconds is None else SLOW_SECONDS)
            if not (entered.done() or self._task.done()):
                log.warning("%s is still being opened", self._what)
                await self._until(entered)
        finally:
            entered.cancel()
        if self._task.done() and (error := self._task.result()) is not None:
            raise error
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._given = error
        self._is_left.set()
        await self._until(seconds=self._seconds)
        if not self._task.done():
            log.warning("%s has not closed within %g s, and is canceled", self._what, self._seconds)
            await self._abandon()
            return
        if self._ended is not None:
            self._ended.uncancel()
        if not self._task.cancelled() and (failure := self._task.result()) is not None:
            raise failure

    async def _until(self, *others: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Waits for the task or one of `others`, at most `seconds`. If canceled, cancels the task, too."""
        try:
            await asyncio.wait((self._task, *others), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        """Cancels the task, and waits until it ends; a moment only, unless its context has limits itself."""
        if self._seconds is None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            return
        await unwound((self._task,))
        if not self._task.done():
            log.error("%s does not close; it is left behind", self._what)

    async def _hold(self, opener: asyncio.Task[Any] | None) -> BaseException | None:
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
                if opener is not None:
                    opener.cancel()
                    self._ended = opener
            elif self._seconds is not None:
                log.error("%s failed to close: %s", self._what, raised(error, self._kind.__module__))
            return error if isinstance(error, Exception) else self._named("failed to close", error)
        return None

    def _named(self, said: str, error: BaseException) -> Exception:
        if isinstance(error, (self._error, TealError)):  # which say what is wrong themselves
            return error
        named = self._error(f"{self._what} {said}: {raised(error, self._kind.__module__)}")
        named.__cause__ = error
        return named
