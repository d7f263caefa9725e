"""`tealagents check` and `tealagents schema`."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tealagents.cli.loading import fail, load_or_exit, stderr
from tealagents.config import json_schema, summary
from tealagents.domain.ports import ToolSpec


def check_command(
    config: Annotated[
        Path | None, typer.Argument(help="The config file; by default the one TA_SERVICE_CONFIG names.")
    ] = None,
) -> None:
    """Validate a config file and show what would be served.

    Every mistake is shown with its file, line and key; exit status 2 if there is one. The plugin file and
    OpenAPI documents that are files are loaded, too; no store, no model service and no tool server is asked.
    """
    from tealagents.bootstrap import START_ERRORS, problems_at_start
    from tealagents.cli.serve import build_or_exit
    from tealagents.tooling import offered

    checked = load_or_exit(config)
    build_or_exit(checked)
    if reasons := problems_at_start(checked, "127.0.0.1", workers=1):
        raise fail(*reasons)
    try:
        tools = asyncio.run(offered(checked))
    except START_ERRORS as error:
        raise fail(str(error)) from None
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in summary(checked):
        table.add_row(label, value)
    if tools:
        table.add_row("tools", ", ".join(map(_named, tools)))
    Console(highlight=False).print(table)
    for warning in checked.warnings:
        stderr.print(f"[yellow]![/] {warning}")


def _named(tool: ToolSpec) -> str:
    return f"{tool.name} (asks first)" if tool.governance.requires_hitl else tool.name


def schema_command() -> None:
    """Print the JSON Schema of the config file, for editors."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
