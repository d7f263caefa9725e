"""`tealagents state stats`: how much there is."""

import json
from typing import Annotated

import typer
from rich.table import Table

from tealagents.cli.help import Config
from tealagents.cli.loading import plain_console
from tealagents.cli.state.opening import load_checked, run_on
from tealagents.cli.state.reporting import show_problems, warn_if_none
from tealagents.state.inventory import Inventory


def stats_command(
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count users, sessions, tasks and log entries. Reads every task's head.

    Exit status 1 if something is damaged.
    """
    checked = load_checked(config)
    found = run_on(checked, lambda opened: Inventory(opened.records).count())
    counted = {
        "users": found.users,
        "sessions": found.sessions,
        "tasks": dict(sorted(found.tasks.items())),
        "expired_tasks": found.expired,
        "queued_requests": found.queued,
        "log_entries": found.entries,
        "pending_deletions": found.deletions,
        "live_processes": found.workers_alive,
        "damaged_records": len(found.damaged),
    }
    if as_json:
        print(json.dumps(counted))
    else:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for label, value in counted.items():
            shown = (
                ", ".join(f"{n} {name}" for name, n in value.items()) if isinstance(value, dict) else value
            )
            table.add_row(label.replace("_", " "), str(shown or 0))
        plain_console(soft_wrap=False).print(table)
    warn_if_none(checked, sum(found.tasks.values()), found.damaged)
    if found.damaged:
        show_problems(found.damaged, "damaged records")
        raise typer.Exit(1)
