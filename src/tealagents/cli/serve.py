"""`tealagents serve`."""

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tealagents.cli.application import (
    HOST_VARIABLE,
    OFFLINE_VARIABLE,
    build_or_exit,
    with_console_on_loopback,
    without_identity,
)
from tealagents.cli.help import Host
from tealagents.cli.listening import announced, bound
from tealagents.cli.loading import fail, load_or_exit, plain_console, warn
from tealagents.config import ServiceConfig, TelemetryOptions
from tealagents.mistakes import file_reason
from tealagents.serving import STOPPING

if TYPE_CHECKING:
    from uvicorn import Server

    from tealagents.llm.offline import OfflineModel

#: seconds that open connections get after the requests have been drained
GRACE_SECONDS = 3

_WORKER_APP = "tealagents.cli.application:worker_app"
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
    gc.disable()  # until the service has started: it took 8 % of the start
    with _offline_model(offline) as model:
        overrides = {"TA_BASE_URL": model.base_url, "TA_API_KEY": _OFFLINE_KEY} if model else {}
        checked = load_or_exit(config, overrides=overrides)
        if model:
            checked = without_identity(checked)
            _load_script(model, checked.offline_script)
        _check_start(checked, host, port, workers)
        checked = with_console_on_loopback(checked, host)
        os.environ.update(overrides, **{HOST_VARIABLE: host, OFFLINE_VARIABLE: "1" if model else ""})
        if config is not None:
            os.environ["TA_SERVICE_CONFIG"] = str(config.absolute())
        with bound(host, port) as listener:
            stopped = _collected_stops()
            with announced(listener, lambda: _announce(checked, host, port, offline=offline)):
                _run(checked, listener, workers, model, stopped, reload=reload)


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
    from tealagents.server import server_options
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
