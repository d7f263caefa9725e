"""Serves the model over HTTP: in a thread of this process, or as the only task of a process."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tealagents.llm.offline.app import OfflineApp, ScriptLike, create_app, logger
from tealagents.llm.offline.transmission import CLOSE_EXTENSION

#: Longer than clients keep idle connections, so that none is closed while a client sends a request on it.
_KEEP_ALIVE_SECONDS = 300

_NOT_STARTED = "The offline model has not been started: use it in a `with` statement."


class _Connection(HttpToolsProtocol):
    """Uvicorn's protocol without an access log, and with an extension to close the connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CLOSE_EXTENSION: self.transport.close}  # type: ignore[dict-item]


class _Listener:
    """Serves an app on a bound socket.

    Uvicorn's own server checks every tenth of a second whether to stop, waits for slow answers, and writes to
    the log. This one stops at once.
    """

    def __init__(self, app: OfflineApp, sock: socket.socket) -> None:
        self._config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._socket = sock
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        return self._config.get_loop_factory()

    async def serve(self, on_started: Callable[[], None]) -> None:
        """Serves until `stop` is called."""
        self._config.load()
        self._loop = asyncio.get_running_loop()
        state = ServerState()
        server = await self._loop.create_server(
            lambda: _Connection(self._config, state, {}), sock=self._socket, backlog=self._config.backlog
        )
        try:
            on_started()
            await self._stop.wait()
        finally:
            server.close()
            await _close_connections(state)
            await server.wait_closed()

    def call(self, work: Callable[[], None]) -> None:
        """Runs `work` in the serving event loop, and waits for it. Call it from another thread."""
        assert self._loop is not None

        async def done() -> None:
            work()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result()

    def stop(self) -> None:
        """Stops serving. Call it from any thread, or from a signal handler."""
        if self._loop is None:
            self._stop.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)


async def _close_connections(state: ServerState) -> None:
    """Closes all connections, and waits until the answers on them have ended."""
    while state.connections or state.tasks:
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0.001)


class OfflineModel:
    """An OpenAI-compatible model service on loopback, for tests, demos and work without a key.

        async with OfflineModel() as model:
            client = AsyncOpenAI(base_url=model.base_url, api_key="any")

    It runs in a thread of its own, so that it does not depend on the caller's event loop; `with` works as
    well. `port` 0 means any free port.
    """

    def __init__(self, script: ScriptLike = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app = create_app(script)
        self._host = host
        self._wanted_port = port
        self._port: int | None = None
        self._listener: _Listener | None = None
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`: the endpoint for Azure clients. `RuntimeError` if it is not running."""
        if self._port is None:
            raise RuntimeError(_NOT_STARTED)
        return _url(self._host, self._port)

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`: the base URL for OpenAI clients."""
        return f"{self.url}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The received requests, oldest first: `method`, `path`, `query`, `body`, `headers`, `at` (monotonic
        seconds) and `outcome`. Secrets in headers are masked; only the latest 10,000 are kept, up to 32
        MB."""
        return self._app.received.requests()

    def script(self, script: ScriptLike) -> None:
        """Replaces the script, and starts the new one from its beginning.

        Raises:
            ScriptError: the script is invalid.
            OSError: its file cannot be read.
        """
        self._app.play(script)

    def release(self) -> None:
        """Ends the pauses of current answers, and skips those of later ones, until a script is set.

        So a test can script a pause of an hour, and decide when the answer continues.
        """
        if self._listener is None:
            raise RuntimeError(_NOT_STARTED)
        self._listener.call(self._app.pauses.end)

    def clear(self) -> None:
        """Clears `requests`. The script continues where it is."""
        self._app.received.clear()

    def __enter__(self) -> Self:
        self._start().result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop().result()
        finally:
            self._joined()

    async def __aenter__(self) -> Self:
        await asyncio.wrap_future(self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.wrap_future(self._stop())
        finally:
            self._joined()

    def _start(self) -> "Future[None]":
        """Starts serving. The future is done once connections are accepted. Raises `OSError` if the port is
        taken."""
        if self._thread is not None:
            raise RuntimeError("The offline model is already running.")
        sock = _bound(self._host, self._wanted_port)
        self._port = sock.getsockname()[1]
        started: Future[None] = Future()
        self._ended = Future()
        self._listener = _Listener(self._app, sock)
        self._thread = threading.Thread(
            target=_run, args=(self._listener, started, self._ended), name="offline-model", daemon=True
        )
        self._thread.start()
        return started

    def _stop(self) -> "Future[None]":
        """Stops serving. The future is done once the socket and all connections are closed."""
        if self._listener is not None:
            self._listener.stop()
        return self._ended

    def _joined(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._thread = self._listener = self._port = None


def _run(listener: _Listener, started: "Future[None]", ended: "Future[None]") -> None:
    try:
        with asyncio.Runner(loop_factory=listener.loop_factory()) as runner:
            runner.run(listener.serve(lambda: started.set_result(None)))
    except BaseException as error:  # noqa: BLE001  raised again in the thread that waits for this one
        (ended if started.done() else started).set_exception(error)
    else:
        ended.set_result(None)


def serve(host: str, port: int, script: Path | None, *, log: bool = True) -> None:
    """Serves the model until SIGINT or SIGTERM.

    Raises:
        ScriptError: the script is invalid.
        OSError: the script cannot be read, or the port is taken.
    """
    app = OfflineApp(script, log_requests=log)
    sock = _bound(host, port)
    listener = _Listener(app, sock)
    if log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    url = _url(host, sock.getsockname()[1])
    with _stopped_by_signals(listener.stop), asyncio.Runner(loop_factory=listener.loop_factory()) as runner:
        runner.run(listener.serve(lambda: logger.info("The offline model listens on %s/v1", url)))


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within, SIGINT and SIGTERM only call `stop`."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
