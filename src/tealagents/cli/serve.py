"""`tealagents serve`."""

import asyncio
import contextlib
import dataclasses
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tealagents.cli.help import Host
from tealagents.cli.loading import fail, load_or_exit, plain_console, unusable, warn
from tealagents.config import ServiceConfig, TelemetryOptions
from tealagents.domain.errors import ungrouped
from tealagents.mistakes import file_reason
from tealagents.serving import STOPPING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn import Server

    from tealagents.llm.offline import OfflineModel

#: seconds that open connections get after the requests have been drained
GRACE_SECONDS = 3
#: seconds that work which is still running gets after the service has ended
LEFTOVER_SECONDS = 2.0
#: seconds that a startup ended by a signal gets to clean up: the lease and the telemetry take up to two each
UNDO_SECONDS = 5.0
#: new objects after which the garbage collector runs
YOUNG_OBJECTS = 10_000
#: seconds between two checks whether connections are accepted
_POLL_SECONDS = 0.02
#: set once another process accepts connections at this process's address
_address_lost = threading.Event()

log = logging.getLogger(__name__)

_WORKER_APP = "tealagents.cli.serve:worker_app"
#: the environment variable that passes `--host` on to worker processes
_HOST_VARIABLE = "TEALAGENTS_HOST"
#: the environment variable that passes `--offline` on to worker processes; empty: without it
_OFFLINE_VARIABLE = "TEALAGENTS_OFFLINE"
_OFFLINE_KEY = "offline"
_AUTHORIZATION = "-H 'Authorization: Bearer ada'"

Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port to listen on.")]
Workers = Annotated[
    int,
    typer.Option(metavar="NUMBER", min=1, help="Number of processes; more than one needs a shared store."),
]


def serve_command(
    config: Annotated[
        Path | None, typer.Argument(help="The config file; by default the one that TA_SERVICE_CONFIG names.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Workers = 1,
    offline: Annotated[bool, typer.Option("--offline", help="Use the built-in model; needs no key.")] = False,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Restart when code, YAML or .env changes in the folder of the config, of the plugin file or "
            "of the types, or when the catalogue does. A .env elsewhere is not watched.",
        ),
    ] = False,
) -> None:
    """Serve the agent of a config file over HTTP.

    SIGTERM drains: new messages are refused, running ones get `limits.drain_seconds`, the exit status is 0.
    """
    if reload and workers > 1:
        raise fail("--reload serves with one process; leave out --reload or --workers")
    gc.disable()  # until `_settled`: it took 8 % of the start
    with _offline_model(offline) as model:
        overrides = {"TA_BASE_URL": model.base_url, "TA_API_KEY": _OFFLINE_KEY} if model else {}
        checked = load_or_exit(config, overrides=overrides)
        if model:
            checked = without_identity(checked)
            _load_script(model, checked.offline_script)
        _check_start(checked, host, port, workers)
        checked = with_console_on_loopback(checked, host)
        os.environ.update(overrides, **{_HOST_VARIABLE: host, _OFFLINE_VARIABLE: "1" if model else ""})
        if config is not None:
            os.environ["TA_SERVICE_CONFIG"] = str(config.absolute())
        with bound(host, port) as listener:
            stopped = _collected_stops()
            with _ready(listener, lambda: _announce(checked, host, port, offline=offline)):
                _run(checked, listener, workers, model, stopped, reload=reload)


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """The socket to serve on. Exits with status 2 if the address cannot be used."""
    try:
        listener = _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
    except OSError as error:
        raise fail(unusable(host, port, error)) from None
    with listener:
        listener.set_inheritable(True)
        yield listener


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _ready(listener: socket.socket, announce: Callable[[], None]) -> Iterator[None]:
    """Within, calls `announce` once connections are accepted, by this process or by its first worker.

    Several processes can bind sockets to one port until one of them listens, and uvloop reports no error to
    the others. If another process listens first, this one is stopped with exit status 2.
    """
    family, address = listener.family, listener.getsockname()
    _address_lost.clear()

    def accepts() -> bool:
        return listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0

    def wait() -> None:
        while not accepts():
            try:
                _bound(family, address).close()
            except OSError as error:
                if error.errno == errno.EADDRINUSE and not accepts():
                    _address_lost.set()
                    try:
                        fail(unusable(address[0], address[1], error))
                    finally:
                        os.kill(os.getpid(), signal.SIGTERM)
                    return
            time.sleep(_POLL_SECONDS)
        announce()

    def waiting() -> None:
        with contextlib.suppress(OSError):  # the socket is closed; or `OutputLost`, which ends no service
            wait()

    threading.Thread(target=waiting, name="announce", daemon=True).start()
    yield
    if _address_lost.is_set():
        raise typer.Exit(2)


def _offline_model(offline: bool) -> "contextlib.AbstractContextManager[OfflineModel | None]":
    """The offline model, or None without `--offline`."""
    if not offline:
        return contextlib.nullcontext()
    from tealagents.llm.offline import OfflineModel

    return OfflineModel()


def _load_script(model: "OfflineModel", script: Path | None) -> None:
    """Loads a script into the offline model. Exits with status 2 if there is a mistake in it."""
    from tealagents.llm.offline import ScriptError

    try:
        model.script(script)
    except ScriptError as error:
        raise fail(f"TA_OFFLINE_SCRIPT: {error}") from None
    except OSError as error:
        raise fail(f"TA_OFFLINE_SCRIPT: {script}: {file_reason(error)}") from None


def _reload_script(model: "OfflineModel | None", script: Path | None) -> None:
    """Loads the script again. After a mistake, which is printed, the model keeps the previous script."""
    if model is not None:
        with contextlib.suppress(typer.Exit):
            _load_script(model, script)


def _check_start(config: ServiceConfig, host: str, port: int, workers: int) -> None:
    from tealagents.app import wiring
    from tealagents.cli.findings import unusable_metrics

    if reason := unusable_metrics(config, port):
        raise fail(reason)
    if reasons := wiring(config).problems_at_start(config, host, workers):
        raise fail(*reasons)
    if warning := _unknown_address(config, host):
        warn(warning)


def _unknown_address(config: ServiceConfig, host: str) -> str | None:
    """A warning if the service may tell clients, which send tokens, an http:// address behind a TLS proxy."""
    from tealagents.outbound.addresses import is_loopback_host

    if config.auth.entra is None or config.stateless or config.public_url or is_loopback_host(host):
        return None
    return (
        "TA_PUBLIC_URL is not set: cards and challenges name the address that was called, with http:// "
        "behind a proxy that terminates TLS. Set it to the https address that clients see"
    )


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


def _announce(config: ServiceConfig, host: str, port: int, *, offline: bool) -> None:
    """Prints the service's addresses, and commands to paste."""
    from tealagents.api.protocols import path_of

    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}{config.prefix}"
    out = plain_console()
    out.print(f"[bold]{config.name}[/] {config.version}  {escape(url)}")
    if config.console.enabled:
        out.print(f"[bold]console[/]  {escape(url)}/console/")
    for name in config.protocols:
        out.print(f"[bold]{name}[/]  {escape(url)}{path_of(name)}")
    out.print(f"[bold]docs[/]  {escape(url)}/docs\n")
    if config.auth.provider == "mock" and not config.stateless:
        out.print("Paste a first message:\n")
        out.print(_curl(url, "My name is Ada."), markup=False)
        out.print("\nand one that follows up on the newest task, to see that it remembers:\n")
        out.print(_newest_task(url), markup=False)
        out.print(_curl(url, "What is my name?", task="$TASK"), markup=False)
        out.print(f"\nor talk to it: tealagents chat {url}\n", markup=False)
    if offline:
        out.print("[dim]The built-in offline model answers. Ctrl-C stops.[/]\n")


def _curl(url: str, text: str, task: str | None = None) -> str:
    body = f'{{"items": [{{"content_type": "text", "content": "{text}"}}]}}'
    quoted = f"'{body}'"
    if task is not None:
        quoted = f"'{{\"task_id\": \"'{task}'\", {body[1:]}'"
    return f"  curl -sw '\\n' {url} {_AUTHORIZATION} \\\n    -H 'Content-Type: application/json' -d {quoted}"


def _newest_task(url: str) -> str:
    found = r"""sed 's/.*"task_id":"\([^"]*\)".*/\1/'"""
    return f"  TASK=$(curl -s '{url}/tasks?limit=1' {_AUTHORIZATION} | {found})"


def _collected_stops() -> list[int]:
    """A list that collects the signals to stop that arrive from now on.

    After draining, the server raises the signal that stopped it again. It must end here, so that the exit
    status is 0.
    """
    stopped = list[int]()
    for number in STOPPING:
        signal.signal(number, lambda number, _: stopped.append(number))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # a closed terminal sends it. `nohup` ignores it, --workers replaces workers on it
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    return stopped


def _run(
    config: ServiceConfig,
    listener: socket.socket,
    workers: int,
    model: "OfflineModel | None",
    stopped: list[int],
    *,
    reload: bool,
) -> None:
    from tealagents.cli.protocol import server_options
    from tealagents.telemetry.logs import configure_logs

    options: dict[str, Any] = {
        **server_options(config.limits),
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "server_header": False,
    }
    if reload or workers > 1:  # a single process does this when the service starts
        configure_logs(config.telemetry.log_level, content=config.telemetry.log_content)
    if reload:
        follow = partial(_reload_script, model, config.offline_script)
        _run_reloading(_watched_files(config), listener, options, stopped, follow)
    elif workers > 1:
        _run_workers(config.telemetry, workers, listener, options, stopped)
    else:
        _run_here(config, listener, options, stopped)


def _run_here(
    config: ServiceConfig, listener: socket.socket, options: dict[str, Any], stopped: list[int]
) -> None:
    """Serves in this process, unless a signal has `stopped` it before. A failed start exits with status 3."""
    from uvicorn import Config, Server
    from uvicorn.config import STARTUP_FAILURE

    class Noting(Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            stopped.append(sig)
            super().handle_exit(sig, frame)

    server = Noting(Config(build_or_exit(config), **options))
    for number in STOPPING:  # the server installs its own handlers a moment later
        signal.signal(number, server.handle_exit)
    if stopped:
        return
    try:
        server.run(sockets=[listener])
    except SystemExit:  # the start failed, or a signal ended it
        if server.started:
            raise
    if not server.started and not stopped:
        raise SystemExit(STARTUP_FAILURE)


def _watched_files(config: ServiceConfig) -> list[Path]:
    """The config file, and the files it names that only a new process reads again."""
    types = getattr(config, "types_module", None)  # only files of the earlier platform have one
    named = (config.plugin_module, types, config.plugin_catalog_file, config.remote_plugin_path)
    return [config.source, *(file for file in named if file is not None)]


def _run_reloading(
    files: Sequence[Path],
    listener: socket.socket,
    options: dict[str, Any],
    stopped: Sequence[int],
    follow: Callable[[], None],
) -> None:
    """Serves in a child process, which is replaced when code, YAML, `.env` or one of `files` changes in their
    folders. Serves nothing if `stopped` holds a signal.

    `follow` is called in this process before each replacement.
    """
    from uvicorn import Config, Server

    from tealagents.cli.supervisor import LOOK_SECONDS, Reloader

    config = Config(
        _WORKER_APP,
        factory=True,
        reload=True,
        reload_dirs=[str(file.parent) for file in files],
        reload_delay=LOOK_SECONDS,
        reload_includes=["*.yaml", "*.yml", "*.py", ".env", *(file.name for file in files)],
        **options,
    )
    reloader = Reloader(config, target=partial(_serve_or_wait, Server(config)), sockets=[listener])
    reloader.follow = follow
    for number in STOPPING:  # the reloader installs its own handlers a moment later
        signal.signal(number, reloader.signal_handler)
    if not stopped:
        reloader.run()


def _serve_or_wait(server: "Server", sockets: list[socket.socket]) -> None:
    """Serves in a child process of the reloader, which starts the next one only when a file changes."""
    try:
        server.run(sockets=sockets)
    except SystemExit:
        if not server.config.loaded:  # the application could not be built; why has been printed
            warn("not serving: waiting for a file to change")
        raise


def _run_workers(
    telemetry: TelemetryOptions,
    workers: int,
    listener: socket.socket,
    options: dict[str, Any],
    stopped: Sequence[int],
) -> None:
    """Serves with worker processes under a `Supervisor`. Exits with status 3 if no worker could start.

    Starts no worker if `stopped` holds a signal.
    """
    from uvicorn import Config
    from uvicorn.config import STARTUP_FAILURE

    from tealagents.cli.supervisor import Supervisor

    supervisor = Supervisor(Config(_WORKER_APP, factory=True, workers=workers, **options), sockets=[listener])
    if stopped:  # before the supervisor installed its signal handlers
        return
    with contextlib.ExitStack() as stack:
        if telemetry.metrics_port is not None:
            from tealagents.telemetry.scraping import gathered

            host, port = telemetry.metrics_host, telemetry.metrics_port
            try:
                metrics = gathered(host, port, lambda: supervisor.processes_num, supervisor.serves)
                stack.enter_context(metrics)
            except OSError as error:
                raise fail(str(error)) from None
        supervisor.run()
    if supervisor.served or supervisor.stopped:
        return
    if any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes):
        raise SystemExit(STARTUP_FAILURE)


def worker_app() -> "ASGIApp":
    """The application of a worker process, whose config TA_SERVICE_CONFIG names.

    If it cannot be built, the process ends with the status of a failed start. After any other status the
    parent would start the next worker at once, in an endless loop.
    """
    from uvicorn.config import STARTUP_FAILURE

    from tealagents.bootstrap import START_ERRORS
    from tealagents.cli.protocol import server_options

    gc.disable()  # until `_settled`
    # the terminal sends Ctrl-C to all processes, and the supervisor passes it on: it would count twice here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _leave_to_others, server)
    started = threading.Event()
    threading.Thread(target=_stop_with_supervisor, args=(started,), name="supervisor", daemon=True).start()
    try:
        config = with_console_on_loopback(load_or_exit(None), os.environ[_HOST_VARIABLE])
        if os.environ[_OFFLINE_VARIABLE]:
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
    from tealagents.bootstrap import START_ERRORS
    from tealagents.cli.findings import Findings, examine

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
        from tealagents.bootstrap import START_ERRORS

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
        os._exit(2 if _address_lost.is_set() else status)

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
