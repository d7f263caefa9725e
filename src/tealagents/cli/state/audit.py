"""`tealagents state verify-audit`: whether the audits are as they were written."""

from functools import partial
from typing import Annotated

import typer

from tealagents.cli.help import Config
from tealagents.cli.loading import fail
from tealagents.cli.state.opening import OpenedState, load_checked, run_on
from tealagents.cli.state.reporting import count_text, progress, show_problems, warn_if_none
from tealagents.state.audit import BadEntry, verify
from tealagents.state.inventory import Inventory


def verify_command(
    task: Annotated[str | None, typer.Argument(help="One task; by default all.")] = None,
    config: Config = None,
) -> None:
    """Verify audits entry by entry, and name the first bad one of each task. Exit status 1 if there is one.

    With the TA_AUDIT_KEY that they were written with, it finds any entry that was changed, dropped, moved or
    recomputed; without one, only accidental damage.
    """

    checked = load_checked(config)
    tasks, entries, faults, damaged, keyed = run_on(checked, partial(_verify_all, only=task))
    for fault in faults:
        print(fault)
    if task is not None and not tasks:
        show_problems(damaged, "damaged records")
        raise fail(f"there is no task {task}{' in the records that can be read' if damaged else ''}")
    print(
        f"{count_text(tasks, 'task')}, {count_text(entries, 'good entry', 'good entries')}, "
        f"{count_text(len(faults), 'task')} with a bad one"
    )
    warn_if_none(checked, tasks, damaged)
    if faults and not keyed:
        print("TA_AUDIT_KEY is not set: an audit that was written with one does not verify without it")
    if faults and keyed and not entries:
        print(
            "no entry verifies: TA_AUDIT_KEY may not be the one that they were written with, or they were "
            "written without one"
        )
    show_problems(damaged, "damaged records")
    if faults or damaged:
        raise typer.Exit(1)


async def _verify_all(
    opened: OpenedState, only: str | None
) -> tuple[int, int, list[BadEntry], list[str], bool]:
    """The number of tasks and good entries, the bad entries, the damaged records, whether a key is set."""
    tasks, entries, faults = 0, 0, list[BadEntry]()
    inventory = Inventory(opened.records)
    owners = await inventory.owners()
    with progress("users") as report:
        for done, owner in enumerate(owners):
            report(done, len(owners))
            async for found in inventory.tasks(owner):
                if only is not None and found.task_id != only.lower():
                    continue
                verified = await verify(opened.records, found.partition, found.task_id)
                if verified is None:
                    continue
                tasks, entries = tasks + 1, entries + verified.entries
                faults += [verified.fault] if verified.fault else []
    return tasks, entries, faults, inventory.damaged, opened.records.chain.keyed
