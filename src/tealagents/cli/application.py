"""The application that a process of `tealagents serve` runs, from its start to its end."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from tealagents.cli.listening import address_lost
from tealagents.cli.loading import fail, load_or_exit
from tealagents.config import ServiceConfig
from tealagents.domain.errors import ungrouped
from tealagents.serving import STOPPING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: seconds that work which is still running gets after the service has ended
LEFTOVER_SECONDS = 2.0
#: seconds that a startup ended by a signal gets to clean up: the lease and the telemetry take up to two each
UNDO_SECONDS = 5.0
#: new objects after which the garbage collector runs
YOUNG_OBJECTS = 10_000
#: the environment variable that passes `--host` on to worker processes
HOST_VARIABLE = "TEALAGENTS_HOST"
#: the environment variable that passes `--offline` on to worker processes; empty: without it
OFFLINE_VARIABLE = "TEALAGENTS_OFFLINE"

log = logging.getLogger(__name__)


def with_console_on_loopback(config: ServiceConfig, host: str) -> ServiceConfig:
    """The config with `console.enabled` set: by default, it is True only for a loopback address."""
    from tealagents.outbound.addresses import is_loopback_host

    if config.console.enabled is None:
        console = config.console.model_copy(update={"enabled": is_loopback_host(host)})
        config = dataclasses.replace(config, console=console)
    return config


def without_identity(config: ServiceConfig) -> ServiceConfig:
    """The config without an identity of Azure, which would request tokens for the offline model.

    `.env` may set the variable, and no other value of it means that there is none.
    """
    environment = {name: value for name, value in config.environment.items() if name != "TA_AZURE_CREDENTIAL"}
    return dataclasses.replace(config, environment=environment)


def worker_app() -> "ASGIApp":
    """The application of a worker process, whose config TA_SERVICE_CONFIG names.

    If it cannot be built, the process ends with the status of a failed start. After any other status the
    parent would start the next worker at once, in an endless loop.
    """
    from uvicorn.config import STARTUP_FAILURE

    from tealagents.parts import START_ERRORS
    from tealagents.server import server_options

    gc.disable()  # until `_settled`
    # the terminal sends Ctrl-C to all processes, and the supervisor passes it on: it would count twice here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _leave_to_others, server)
    started = threading.Event()
    threading.Thread(target=_stop_with_supervisor, args=(started,), name="supervisor", daemon=True).start()
    try:
        config = with_console_on_loopback(load_or_exit(None), os.environ[HOST_VARIABLE])
        if os.environ[OFFLINE_VARIABLE]:
            config = without_identity(config)
        if server is not None:  # the parent has set these once, for the config as it was at its own start
            vars(server.config).update(server_options(config.limits))
        return _application(config, started)
    except typer.Exit:  # the reason has been printed
        pass
    except START_ERRORS as error:
        fail(str(error))
    except (Exception, SystemExit):
        log.exception("the start failed")
    raise SystemExit(STARTUP_FAILURE)


def _leave_to_others(server: Any) -> None:
    """Stops accepting, and closes idle connections: this worker drains, but others of the service do not.

    One whose client has not asked for anything yet stays open: the client's first request may be on its way.
    """
    for listener in getattr(server, "servers", ()):  # it has none before it has started
        listener.close()
    for connection in list(server.server_state.connections):
        cycle = getattr(connection, "cycle", None)
        if cycle is not None and cycle.response_complete:
            connection.shutdown()
    log.info("new connections are left to the other workers")


def _stop_with_supervisor(started: threading.Event) -> None:
    """Drains this worker when its supervisor has died: no other process would replace or stop it."""
    import multiprocessing  # only workers need it

    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
        log.error("the supervisor has died; this worker stops")
        if not started.is_set():  # while a plugin blocks the main thread, Python does not handle the signal
            _end_soon("startup was ended: the supervisor has died", UNDO_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


def build_or_exit(config: ServiceConfig) -> "ASGIApp":
    """The application. If it cannot be built, prints all mistakes and exits with status 2."""
    from tealagents.cli.findings import Findings, examine
    from tealagents.parts import START_ERRORS

    try:
        return _application(config, threading.Event())
    except START_ERRORS as error:
        found = Findings()
        examine(found, config)
        needed = [f"{each.problem}{' Or try it with --offline.' * each.by_model}" for each in found.needed]
        raise fail(*([*found.wrong, *needed] or [str(error)])) from None


def _application(config: ServiceConfig, started: threading.Event) -> "ASGIApp":
    """The application. A failed start is logged as one sentence; a successful one sets `started`."""
    from tealagents.api.sse import remember_connection
    from tealagents.app import create_app
    from tealagents.telemetry.requests import RequestLog

    with _ended_by_signals(started):
        app = RequestLog(create_app(config), probes=f"{config.prefix}/health")

    def plainly(scope: "Scope", receive: "Receive", send: "Send") -> Awaitable[None]:
        if scope["type"] == "lifespan":
            return _Lifespan(app, started, receive, send).run(scope)
        remember_connection(scope, send)  # the log hides the server's own `send`
        return app(scope, receive, send)

    return plainly


class _Lifespan:
    """An application from its start to its shutdown. What fails is logged, and reported to uvicorn."""

    def __init__(self, app: "ASGIApp", started: threading.Event, receive: "Receive", send: "Send") -> None:
        self._app = app
        self._started = started
        #: whether the server has asked for the shutdown
        self._asked = False
        self._receive = receive
        self._send = send

    async def run(self, scope: "Scope") -> None:
        from tealagents.parts import START_ERRORS

        came: Sequence[int] = ()
        try:
            with _ended_by_signals(self._started, asyncio.current_task()) as came, ungrouped():
                await self._app(scope, self._received, self._sent)
        except asyncio.CancelledError as error:
            if not (self._started.is_set() or came):  # an extension let it out
                log.exception("the start failed")
                await self._fail(type(error).__name__)
                return
            _end_soon()
            if self._started.is_set():
                raise
            log.info("startup was ended by a signal")
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # to it, this is a failure
            await self._send({"type": "lifespan.startup.failed"})
        except START_ERRORS as error:
            if self._started.is_set() and not self._asked:
                log.exception("what the service needs has failed")
            await self._fail(str(error))
        except (Exception, SystemExit) as error:
            why = "shutdown" if self._asked else "service" if self._started.is_set() else "start"
            log.exception("the %s failed", why)
            await self._fail(f"{type(error).__name__}: {error}")

    async def _received(self) -> "Message":
        message = await self._receive()
        self._asked = self._asked or message["type"] == "lifespan.shutdown"
        return message

    async def _sent(self, message: "Message") -> None:
        if message["type"] == "lifespan.startup.complete":
            self._started.set()
            _settled()
        if message["type"] == "lifespan.shutdown.complete":
            _end_soon()
        if not message["type"].endswith(".failed"):
            await self._send(message)

    async def _fail(self, why: str) -> None:
        """Reports to uvicorn why the start or the shutdown failed; the process ends with uvicorn's status.

        If the server did not ask for a shutdown, something that the service needs failed while it was
        serving. The process then ends with status 1.
        """
        from uvicorn.config import STARTUP_FAILURE

        if self._started.is_set() and not self._asked:
            _end_soon("the process ends, because what the service needs has failed", status=1)
        else:
            _end_soon(status=0 if self._started.is_set() else STARTUP_FAILURE)
        stage = "shutdown" if self._started.is_set() else "startup"
        await self._send({"type": f"lifespan.{stage}.failed", "message": why})


@contextlib.contextmanager
def _ended_by_signals(
    started: threading.Event, task: "asyncio.Task[Any] | None" = None
) -> Iterator[Sequence[int]]:
    """Until `started` is set, a signal to stop ends the process: a start may wait for a tool server. Yields
    the signals that have come.

    The server itself only records the signal, and checks it once everything has started. Here, the first
    signal cancels `task`, or ends the process after `UNDO_SECONDS` if a plugin blocks the thread. A second
    signal ends the process at once.
    """
    servers = {number: signal.getsignal(number) for number in STOPPING}
    noted = [getattr(getattr(server, "__self__", None), "should_exit", False) for server in servers.values()]
    came = list[int]()

    def end(number: int) -> None:
        timer = _end_soon("startup was ended by a signal", 0 if came else UNDO_SECONDS)
        if task is not None and not came:
            loop = task.get_loop()
            # if the loop runs these, no plugin blocks it, and the task may take its time to clean up
            loop.call_soon_threadsafe(timer.cancel)
            loop.call_soon_threadsafe(task.cancel)
        came.append(number)

    def signaled(number: int, frame: FrameType | None) -> None:
        if callable(server := servers[signal.Signals(number)]):
            server(number, frame)
        if not started.is_set():
            end(number)

    heard = [number for number, server in servers.items() if server is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, signaled)
    if any(noted):  # a signal came before
        end(signal.SIGTERM)
    try:
        yield came
    finally:
        for number in heard:
            signal.signal(number, servers[number])


def _end_soon(
    said: str = "ending the process although some work ignores its cancellation",
    seconds: float = LEFTOVER_SECONDS,
    status: int = 0,
) -> threading.Timer:
    """Ends the process after `seconds`, even if a tool ignores its cancellation or blocks a thread."""

    def end() -> None:
        log.warning(said)
        logging.shutdown()
        os._exit(2 if address_lost.is_set() else status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def _settled() -> None:
    """Starts the garbage collector, for objects that are created from now on.

    The objects of the startup live until the end: traversing them again and again took 4 % of a turn's CPU.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    gc.enable()
    # asyncio registers each asynchronous generator, to close those that are open when the loop ends. Here the
    # process ends with it, and the registry took 1 KB per open stream and 1 % of a turn's CPU. Generators
    # that are dropped earlier are still closed: that is the other hook.
    sys.set_asyncgen_hooks(firstiter=None)
