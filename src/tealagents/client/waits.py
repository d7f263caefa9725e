"""How the two drivers wait: all that differs between them besides `async` and `await`.

`sync` is generated from `aio` (`scripts/generate_sync_client.py`), and calls `sleep` where that calls
`async_sleep`.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import httpx

from tealagents.client.wire import DIRECT, LIMITS

T = TypeVar("T")

#: a bearer token, or what gives one; it is asked before every call, so that a stream outlives a token
AsyncToken = str | Callable[[], str | Awaitable[str]]
Token = str | Callable[[], str]

AsyncChunks = AsyncGenerator[bytes, None]
Chunks = Generator[bytes, None, None]

sleep = time.sleep
async_sleep = anyio.sleep


def running_loop() -> asyncio.AbstractEventLoop | None:
    """None in Trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Connections:
    """The HTTP client that calls are made with: one that was given, or its own."""

    def __init__(self, given: httpx.Client | None) -> None:
        self._owned = given is None
        self._http = given or httpx.Client(limits=LIMITS, mounts=DIRECT)

    def client(self) -> httpx.Client:
        return self._http

    def close(self) -> None:
        """What was given is left open."""
        if self._owned:
            self._http.close()


class AsyncConnections:
    """The HTTP client that calls are made with: one that was given, or its own.

    Connections belong to an event loop. Where that has ended, as in a program that calls `asyncio.run` for
    each job, the client's own are made anew.
    """

    def __init__(self, given: httpx.AsyncClient | None) -> None:
        self._owned = given is None
        self._http = given or httpx.AsyncClient(limits=LIMITS, mounts=DIRECT)
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self) -> httpx.AsyncClient:
        """`RuntimeError` where it is in use in another event loop that still runs."""
        if (loop := running_loop()) is None:
            return self._http
        if loop is not self._loop and self._owned and not self._http.is_closed:
            if self._loop is not None:
                if self._loop.is_running():
                    raise RuntimeError(
                        "An AsyncClient can be used in one event loop at a time; this one is used in another."
                        " Make a client for each, or use Client, which serves many threads."
                    )
                self._http = httpx.AsyncClient(limits=LIMITS, mounts=DIRECT)
            self._loop = loop
        return self._http

    async def aclose(self) -> None:
        """What was given is left open."""
        if self._owned:
            await self.client().aclose()


def usable(token: T) -> T:
    """`TypeError` where it is no token, for a client that is being made."""
    if not (isinstance(token, str) or callable(token)):
        raise TypeError(f"the token is a string, or a function that returns one, not {type(token).__name__}")
    return token


def bearer(token: Token) -> str:
    """A token that is valid now."""
    if isinstance(token, str):
        return token
    try:
        return token()
    except StopIteration as end:  # a call would take it for its own end, as if it had been made
        raise RuntimeError("the token function raised StopIteration") from end


async def async_bearer(token: AsyncToken) -> str:
    """A token that is valid now."""
    if isinstance(token, str):
        return token
    given = token()
    return await given if inspect.isawaitable(given) else given


def release(response: httpx.Response, chunks: Chunks) -> None:
    """Gives an open stream's connection back."""
    with suppress(httpx.RequestError):
        chunks.close()
        response.close()


async def async_release(response: httpx.Response, chunks: AsyncChunks) -> None:
    """Gives an open stream's connection back, also where the caller is being canceled: it must not return to
    the pool half read."""
    await async_cleanly(_async_released(response, chunks))


async def _async_released(response: httpx.Response, chunks: AsyncChunks) -> None:
    with anyio.CancelScope(shield=True), suppress(httpx.RequestError):
        await chunks.aclose()
        await response.aclose()


def cleanly(outcome: T) -> T:
    """A thread is not canceled."""
    return outcome


async def async_cleanly(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work` on a connection, which is given back also where the caller is canceled.

    httpx gives it back within shields of anyio. They hold against a cancel scope of anyio, and not against
    `Task.cancel`, which `asyncio.timeout` is made of: `work` is a task of its own, canceled by a scope.
    """
    scope = anyio.CancelScope()

    async def scoped() -> T:
        with scope:
            return await work
        raise asyncio.CancelledError  # the caller raises its own

    if (loop := running_loop()) is None:
        return await work
    task = loop.create_task(scoped())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            while not task.done():
                with suppress(asyncio.CancelledError):  # again: the first is raised below
                    await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # asyncio logs those that were not looked at
        raise
    return task.result()
