"""Reads a config for a command; prints errors and warnings."""

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
    """A console for a command: texts are not highlighted, and `:warning:` does not become an emoji."""
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)


#: for everything that is not the command's output
stderr = plain_console(stderr=True)


def load_or_exit(
    path: Path | None, *, overrides: dict[str, str] | None = None, needed: str | None = None
) -> ServiceConfig:
    """The config. Prints every mistake in it and exits with status 2 if there are any.

    If only one key is `needed`, a `${NAME}` in any other key need not be set.
    """
    env = {**os.environ, **(overrides or {})}
    unset: list[ConfigProblem] | None = None if needed is None else []
    try:
        config = load(path, env=env, unset=unset)
        if missing := [each for each in unset or () if each.key == needed]:
            raise ConfigError(missing)
    except ConfigError as error:
        warn(*error.warnings)
        raise fail(*map(str, error.problems)) from None
    import_from(config.source.parent)
    return config


def fail(*reasons: str) -> typer.Exit:
    """Prints why a command cannot continue. Raise what it returns: it ends the command with exit status 2."""
    for reason in reasons:
        stderr.print(f"[red]✗[/] {escape(reason)}")
    return typer.Exit(2)


def warn(*texts: str) -> None:
    """Prints warnings."""
    for text in texts:
        stderr.print(f"[yellow]![/] {escape(text)}")


def absent(store: "BaseStore") -> str:
    """The error for a store that does not exist: a mistyped path must not look like an empty store."""
    return f"There is no store at {store.where}: check TA_PERSISTENCE or spec.persistence."


def warn_of_new(store: "BaseStore") -> None:
    """Warns that a store was created: it may be that the path of another one was mistyped."""
    warn(
        f"There was no store at {store.where}: a new one was created. Check TA_PERSISTENCE or "
        "spec.persistence."
    )


def host_name(host: str) -> str:
    """The callback of `--host`. Refuses invalid names, for which a socket would raise TypeError, and an empty
    one, which would be every address of this machine."""
    if not host:
        raise typer.BadParameter("it is empty: name an address, or leave the option out")
    try:
        host.encode("idna")
    except UnicodeError:
        raise typer.BadParameter(f"{host!r} is not a valid host name") from None
    return host


def unusable(host: str, port: int, error: OSError) -> str:
    """The error for an address that cannot be listened on, with what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another process; stop it, or choose another with --port"
    reason = (error.strerror or type(error).__name__).lower()
    return f"cannot listen on port {port} of {host}: {reason}; choose another with --port or --host"
