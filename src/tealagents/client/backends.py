"""`Backend` and `AsyncBackend`: everything in which the two drivers differ besides `async` and `await`.

Both have the same methods: `sync` is generated from `aio` (`scripts/generate_sync_client.py`), and calls the
same ones.
"""

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import anyio
import httpx

from tealagents.client.wire import DIRECT, LIMITS

T = TypeVar("T")

#: a bearer token, or a function that returns one: it runs before every call, so that a stream can outlive a
#: token
AsyncToken = str | Callable[[], str | Awaitable[str]]
Token = str | Callable[[], str]

AsyncChunks = AsyncGenerator[bytes, None]
Chunks = Generator[bytes, None, None]


class Backend:
    """The caller's token and HTTP client, or an HTTP client of its own; for threads.

    A forked process replaces an HTTP client of its own: on shared connections, each process would read the
    other's answers.
    """

    def __init__(self, token: Token, given: httpx.Client | None) -> None:
        self._token = _checked(token)
        self._owned = given is None
        self._http = given or _http_client()
        self._process = os.getpid()
        #: kept and never closed, because the parent process uses their connections
        self._inherited: list[httpx.Client] = []

    def http(self) -> httpx.Client:
        if self._owned and not self._http.is_closed and self._process != os.getpid():
            self._inherited.append(self._http)
            self._http = _http_client()
            self._process = os.getpid()  # last: other threads take the new client from here on
        return self._http

    def token(self) -> str:
        """A token that is valid now."""
        if isinstance(self._token, str):
            return self._token
        try:
            return self._token()
        except StopIteration as end:  # a flow would end with it, as if the call had been made
            raise RuntimeError("the token function raised StopIteration") from end

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def settle(self, work: T) -> T:
        """The result of `work`, which has run already: no one can cancel a thread."""
        return work

    def release(self, response: httpx.Response, chunks: Chunks) -> None:
        """Closes an open stream, so that its connection is free."""
        with suppress(httpx.RequestError):
            chunks.close()
            response.close()

    def close(self) -> None:
        """Closes the HTTP client, unless the caller passed it in."""
        if self._owned:
            self.http().close()


class AsyncBackend:
    """The caller's token and HTTP client, or an HTTP client of its own; for asyncio and Trio.

    Connections belong to an event loop. When that loop has ended, as in a program that calls `asyncio.run` in
    each job, an HTTP client of its own is replaced by a new one; as it is in a forked process, like that of
    `Backend`.
    """

    def __init__(self, token: AsyncToken, given: httpx.AsyncClient | None) -> None:
        self._token = _checked(token)
        self._owned = given is None
        self._http = given or _async_http_client()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        #: kept and never closed, because the parent process uses their connections
        self._inherited: list[httpx.AsyncClient] = []

    def http(self) -> httpx.AsyncClient:
        """`RuntimeError` while it is in use in another event loop that is still running."""
        if self._owned and not self._http.is_closed and self._process != os.getpid():
            self._inherited.append(self._http)
            self._http, self._loop = _async_http_client(), None
            self._process = os.getpid()
        if (loop := _running_loop()) is None:
            return self._http
        if loop is not self._loop and self._owned and not self._http.is_closed:
            if self._loop is not None:
                if self._loop.is_running():
                    raise RuntimeError(
                        "An AsyncClient can be used in one event loop at a time; this one is used in another."
                        " Make a client for each, or use Client, which serves many threads."
                    )
                self._http = _async_http_client()
            self._loop = loop
        return self._http

    async def token(self) -> str:
        """A token that is valid now."""
        if isinstance(self._token, str):
            return self._token
        try:
            given = self._token()
            return await given if inspect.isawaitable(given) else given
        except StopAsyncIteration as end:  # a list or a stream would end with it, as if it had been read
            raise RuntimeError("the token function raised StopAsyncIteration") from end

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` on a connection. If the caller is canceled, `work` frees the connection first.

        httpx frees it inside anyio's shields, which withstand the cancellation of an anyio scope but not
        `Task.cancel`, which `asyncio.timeout` uses. So `work` runs in a task of its own, canceled by a scope.
        """
        scope = anyio.CancelScope()

        async def scoped() -> T:
            with scope:
                return await work
            raise asyncio.CancelledError  # the caller raises its own

        if (loop := _running_loop()) is None:
            return await work
        task = loop.create_task(scoped())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                while not task.done():
                    with suppress(asyncio.CancelledError):  # a further one; the first is raised below
                        await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # asyncio would log an exception that no one has retrieved
            raise
        return task.result()

    async def release(self, response: httpx.Response, chunks: AsyncChunks) -> None:
        """Closes an open stream, so that its connection is free.

        Also while the caller is being canceled: no connection may return to the pool half read.
        """
        await self.settle(_released(response, chunks))

    async def aclose(self) -> None:
        """Closes the HTTP client, unless the caller passed it in."""
        if self._owned:
            await self.http().aclose()


def _http_client() -> httpx.Client:
    hooks = {"response": [_unlocated]}
    return httpx.Client(limits=LIMITS, mounts=DIRECT, cookies=_no_cookies(), event_hooks=hooks)


def _async_http_client() -> httpx.AsyncClient:
    async def unlocated(response: httpx.Response) -> None:
        _unlocated(response)

    hooks = {"response": [unlocated]}
    return httpx.AsyncClient(limits=LIMITS, mounts=DIRECT, cookies=_no_cookies(), event_hooks=hooks)


def _unlocated(response: httpx.Response) -> None:
    """Removes the target of a redirect: httpx does not follow it, but parses it, with errors of its own."""
    response.headers.pop("location", None)


def _no_cookies() -> CookieJar:
    """A jar that stays empty: with a gateway's cookie that is not ASCII, httpx could send no later call."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


async def _released(response: httpx.Response, chunks: AsyncChunks) -> None:
    with anyio.CancelScope(shield=True), suppress(httpx.RequestError):
        await chunks.aclose()
        await response.aclose()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """None in Trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _checked(token: T) -> T:
    """`TypeError` for what can be no token, while a client is being made."""
    if not (isinstance(token, str) or callable(token)):
        raise TypeError(f"the token is a string, or a function that returns one, not {type(token).__name__}")
    return token
