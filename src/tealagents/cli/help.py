"""How `--help` shows the arguments and options of a command."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tealagents.cli.loading import host_name

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The config file; by default the one that TA_SERVICE_CONFIG names.",
    ),
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", callback=host_name, help="The address to listen on.")]


class _Help:
    """Shows arguments as `NAME` or `[NAME]`, like the documentation, and flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if each.param_type_name == "argument":
                each.metavar = each.metavar or each.name.upper()
            elif each.is_flag:
                each.metavar = ""  # typer would show `<bool>`, as if the flag took a value
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.strip("{}") for piece in pieces]


class CommandWithHelp(_Help, TyperCommand):
    """A command."""


class GroupWithHelp(_Help, TyperGroup):
    """A group of commands."""
