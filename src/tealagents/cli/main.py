"""The table of commands, and the entry point."""

import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated

import typer

from tealagents import __version__
from tealagents.cli.help import CommandWithHelp, GroupWithHelp
from tealagents.cli.output import checked_output

#: name → `module:function`, or `module:group` for a group of commands; in the order of `--help`
COMMANDS: Mapping[str, str] = {
    "new": "tealagents.cli.new:new_command",
    "serve": "tealagents.cli.serve:serve_command",
    "check": "tealagents.cli.check:check_command",
    "upgrade": "tealagents.cli.upgrade:upgrade_command",
    "doctor": "tealagents.cli.doctor:doctor_command",
    "schema": "tealagents.cli.check:schema_command",
    "chat": "tealagents.cli.chat:chat_command",
    "state": "tealagents.cli.state:state",
    "migrate": "tealagents.cli.migrate:migrate_command",
    "offline-model": "tealagents.cli.offline:offline_model_command",
    "authority": "tealagents.cli.token:authority_command",
    "token": "tealagents.cli.token:token_command",
}


def command_line(*names: str) -> typer.Typer:
    """The command line with these commands.

    A process runs one command, and importing what the others need would double its start time. So `main` asks
    only for the command that is called, and for none to show the version.
    """
    cli = typer.Typer(
        name="tealagents",
        cls=GroupWithHelp,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    cli.callback()(common)
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        found = getattr(import_module(module), function)
        if isinstance(found, typer.Typer):
            cli.add_typer(found, name=name)
        else:
            cli.command(name, cls=CommandWithHelp)(found)
    return cli


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"tealagents {__version__}")
        raise typer.Exit


def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Serve one stateful AI agent from one config file, and talk to it."""


def _occupy_standard_streams() -> None:
    """Opens those of the descriptors 0 to 2 that are closed, for this process and those that it starts.

    The event loop would get one of them for itself, and libuv aborts the process when it closes such a
    descriptor. `sys.stdin`, `sys.stdout` and `sys.stderr` stay None.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


def main() -> None:
    """The entry point."""
    _occupy_standard_streams()
    if os.getpid() == 1:  # in a container: such a process gets only signals that it handles, as `serve` does
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    called = [name for name in sys.argv[1:2] if name in COMMANDS]
    shown = () if sys.argv[1:] == ["--version"] else COMMANDS
    try:
        with checked_output():
            command_line(*(called or shown))()
    except KeyboardInterrupt:  # while the command is being imported
        raise SystemExit(128 + signal.SIGINT) from None
