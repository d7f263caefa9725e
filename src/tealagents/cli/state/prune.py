"""`tealagents state prune`: erases what is expired or old."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from tealagents.cli.help import Config
from tealagents.cli.state.opening import OpenedState, load_checked, run_on
from tealagents.cli.state.reporting import DryRun, count_text, progress, show_problems, warn_if_none
from tealagents.state.pruning import Pruning

#: no `m`: with `6m` for six months, all but the last six minutes would be erased
_UNITS = {"s": 1, "h": 3600, "d": 86400, "w": 7 * 86400}


def prune_command(
    config: Config = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Also erase tasks that have not changed for this long, and old sessions without tasks: 30d, "
            "12h, 4w.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Erase tasks that are past their `expires_at`, or old; finish deletions that a crash interrupted.

    Nothing is pruned automatically. Tasks that a process works on, or whose pause can still be decided, are
    kept. Exit status 1 if something is damaged, which is left as it was.
    """
    before = _ago(older_than) if older_than is not None else None

    async def work(opened: OpenedState) -> tuple[dict[str, int], Pruning, int]:
        counts = {"task": 0, "session": 0}
        pruning = Pruning(opened.eraser, before=before)
        resumed = 0 if dry_run else await opened.eraser.resume_all()
        with progress("users") as report:
            async for due in pruning.due(report):
                counts[due.what] += dry_run or await due.erase()
        return counts, pruning, resumed

    checked = load_checked(config)
    counts, pruning, resumed = run_on(checked, work)
    verb = "would be erased" if dry_run else "erased"
    print(f"{count_text(counts['task'], 'task')} and {count_text(counts['session'], 'session')} {verb}")
    if pruning.spared:
        print(f"due, but kept while in use: {count_text(pruning.spared, 'task')}")
    if resumed:
        print(f"finished: {count_text(resumed, 'interrupted deletion')}")
    warn_if_none(checked, pruning.users, pruning.damaged, "users")
    if pruning.damaged:
        show_problems(pruning.damaged, "damaged records, left as they were")
        raise typer.Exit(1)


def _ago(duration: str) -> datetime:
    """The time that lies `duration` in the past."""
    number, unit = duration[:-1], duration[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise typer.BadParameter(
            f"{duration!r} is not a duration; write a number and one of {', '.join(_UNITS)} (seconds, hours, "
            "days, weeks)"
        )
    try:
        return datetime.now(UTC) - timedelta(seconds=int(number) * _UNITS[unit])
    except (OverflowError, ValueError):  # ValueError: more digits than Python converts
        raise typer.BadParameter(f"{duration!r} is too long") from None
