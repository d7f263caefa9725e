"""`tealagents doctor`: finds what keeps a service from working, and says what to do about it.

It checks the config, the store, the authority, the model service, the tools, the context providers, the
collector and the clocks as `serve` would use them, and a running service from outside. To do so, it writes
one record to the store (or one file where the store will be created) and deletes it, asks each agent's model
for one word, sends the collector an empty export, and starts the MCP servers that are commands.

===========  ===================================================================================
`store`      the store, and the keys that its content was stored with
`servers`    the model service, tools, context providers, authority and collector; a running service
`diagnosis`  what was found, and what to do about it
===========  ===================================================================================
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tealagents.cli.doctor.diagnosis import Diagnosis
from tealagents.cli.doctor.servers import (
    check_authority,
    check_collector,
    check_model,
    check_providers,
    check_service,
    check_tools,
)
from tealagents.cli.doctor.store import check_store
from tealagents.cli.findings import find, unusable_metrics
from tealagents.cli.help import Config
from tealagents.cli.loading import plain_console, unusable, warn
from tealagents.config import ServiceConfig
from tealagents.config.environment import read_environment
from tealagents.mistakes import file_reason

__all__ = ["doctor_command"]


def doctor_command(
    url: Annotated[
        str | None, typer.Argument(help="A running service to examine, or one of its agents.")
    ] = None,
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Also check that this port is free.")
    ] = None,
) -> None:
    """Find problems with a service, and say how to fix them. Exit status 1 if there are any.

    It examines the config, the store, the authority, the model service, the tools, the context providers, the
    collector and the clocks, and with a URL also the running service. With a URL and no config, it examines
    only that service.
    """
    with _logged_as_warnings():
        found = asyncio.run(_examine(url, config, port))
    out = plain_console()
    for diagnosis in found:
        out.print(f"[red]✗[/] {escape(diagnosis.what)}")
        if diagnosis.remedy:
            out.print(f"  → {escape(diagnosis.remedy)}")
    if found:
        raise typer.Exit(1)
    out.print("[green]✓[/] no problems found")


class _Warnings(logging.Handler):
    """Prints what is logged as a command's warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        # the model client logs the errors that are found as well
        if not record.name.startswith("tealagents.llm"):
            warn(record.getMessage())


@contextmanager
def _logged_as_warnings() -> Iterator[None]:
    log, handler = logging.getLogger("tealagents"), _Warnings(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


async def _examine(url: str | None, path: Path | None, port: int | None) -> list[Diagnosis]:
    from tealagents.app import wiring

    found = list[Diagnosis]()
    config: ServiceConfig | None = None
    #: the config, unless something in it is wrong or not set
    whole: ServiceConfig | None = None
    named = path or read_environment(os.environ, Path(".env"), []).get("TA_SERVICE_CONFIG")
    if url is None or named:
        # outside of this event loop, as `check` does: `find` runs a loop of its own
        said = await asyncio.to_thread(find, path)
        config = said.config
        found += [Diagnosis(each) for each in (*said.wrong, *(need.problem for need in said.needed))]
        warn(*said.warnings)
        if config is not None:
            whole = None if said.wrong or config.document.unset else config
    if whole is not None and not whole.stateless:
        found += [each async for each in check_store(whole)]
    if port is not None:
        found += _check_port(port)
        if config is not None and (metrics := unusable_metrics(config, port)):
            found.append(Diagnosis(metrics))
    if no_certificates := [*_check_certificates()]:
        return found + no_certificates  # no server can be called
    if whole is not None:
        for key, agent in () if said.needed else wiring(whole).agents(whole):
            # a problem of a model service that several agents share is reported once
            found += [each async for each in check_model(agent, key) if each not in found]
            found += [each async for each in check_tools(agent, key)]
            found += [each async for each in check_providers(agent)]
        found += [each async for each in check_authority(whole)]
        found += [each async for each in check_collector(whole)]
    if url is not None:
        found += [each async for each in check_service(url, config)]
    return found


def _check_certificates() -> Iterator[Diagnosis]:
    file = os.environ.get("SSL_CERT_FILE")
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        yield Diagnosis(
            f"SSL_CERT_FILE: {file}: no certificates can be read: {file_reason(error)}",
            "Name a file with the certificates of all authorities that are needed, in PEM, or unset the "
            "variable.",
        )


def _check_port(port: int) -> Iterator[Diagnosis]:
    """Tries the default of `serve --host`, and warns where all addresses cannot be listened on together."""
    if said := _unbindable("127.0.0.1", port):
        yield Diagnosis(said)
    elif said := _unbindable("0.0.0.0", port):  # noqa: S104 - bound for a moment only
        warn(f"{said}. Only `serve --host 0.0.0.0` needs it")


def _unbindable(host: str, port: int) -> str | None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            return unusable(host, port, error)
    return None
