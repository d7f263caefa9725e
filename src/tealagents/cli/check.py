"""`tealagents check` and `tealagents schema`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tealagents.cli.findings import find
from tealagents.cli.loading import fail, plain_console, warn
from tealagents.config import ServiceConfig, json_schema, summary
from tealagents.domain.ports import ToolSpec


def check_command(
    config: Annotated[
        Path | None, typer.Argument(help="The config file; by default the one that TA_SERVICE_CONFIG names.")
    ] = None,
) -> None:
    """Validate a config file and show what would be served.

    Every mistake is shown with its file, line and key; the exit status is then 2. Mistakes in the file itself
    come first; once it has none, those of its providers, store, tools and agent. Secrets that are not set are
    listed as what `serve` will need, so that a file can be checked without them. The plugin file and local
    OpenAPI documents are loaded as well; the store, the model service and tool servers are not contacted.
    """
    found = find(config)
    warn(*(f"serve will need: {each.what}" for each in found.needed))
    if found.wrong or found.config is None:
        warn(*found.warnings)
        raise fail(*found.wrong)
    _show(found.config, found.tools)
    warn(*found.warnings)


def _show(checked: ServiceConfig, tools: Sequence[ToolSpec]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in summary(checked):
        table.add_row(label, Text(value))
    if tools:
        table.add_row("tools", Text(", ".join(map(_tool_label, tools))))
    plain_console(soft_wrap=False).print(table)


def _tool_label(tool: ToolSpec) -> str:
    return f"{tool.name} (needs approval)" if tool.governance.requires_hitl else tool.name


def schema_command() -> None:
    """Print the JSON Schema of the config file, for editors."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
