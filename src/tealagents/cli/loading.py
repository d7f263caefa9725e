"""Reading a config for a command: its mistakes are printed, and end the command."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from tealagents.config import ConfigError, ConfigProblem, ServiceConfig, load
from tealagents.registry import import_from

if TYPE_CHECKING:
    from tealagents.stores.base import BaseStore


def plain_console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """What a command prints on: a text is shown as it is, and `:warning:` in one is no emoji."""
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)


#: for what is not the command's output
stderr = plain_console(stderr=True)


def load_or_exit(
    path: Path | None, *, overrides: dict[str, str] | None = None, needed: str | None = None
) -> ServiceConfig:
    """The config, or exit status 2 with every mistake in it.

    Where only one key is `needed`, a `${NAME}` in any other need not be set.
    """
    env = {**os.environ, **(overrides or {})}
    unset: list[ConfigProblem] | None = None if needed is None else []
    try:
        config = load(path, env=env, unset=unset)
        if missing := [each for each in unset or () if each.key == needed]:
            raise ConfigError(missing)
    except ConfigError as error:
        raise fail(*map(str, error.problems)) from None
    import_from(config.source.parent)
    return config


def fail(*reasons: str) -> typer.Exit:
    """Prints why a command cannot continue; raise what it returns."""
    for reason in reasons:
        stderr.print(f"[red]✗[/] {escape(reason)}")
    return typer.Exit(2)


def warn(*texts: str) -> None:
    """Prints what is worth knowing and ends nothing."""
    for text in texts:
        stderr.print(f"[yellow]![/] {escape(text)}")


def absent(store: "BaseStore") -> str:
    """What is said of a store that was never made: a mistyped path or name is not an empty store."""
    return f"There is no store at {store.where}: check TA_PERSISTENCE or spec.persistence."


def host_name(host: str) -> str:
    """The callback of a `--host`: what can be no name is refused here, as a socket raises a TypeError."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise typer.BadParameter(f"{host!r} is not a valid host name") from None
    return host


def unusable(host: str, port: int, error: OSError) -> str:
    """Why an address cannot be listened on, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another process; stop it, or choose another with --port"
    reason = (error.strerror or type(error).__name__).lower()
    return f"cannot listen on port {port} of {host}: {reason}; choose another with --port or --host"
