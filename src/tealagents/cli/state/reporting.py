"""What several commands show: progress, counts, and what is damaged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tealagents.cli.loading import stderr, warn
from tealagents.config import ServiceConfig

#: the most problems that are listed
MOST_SHOWN = 20

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")]


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, on a terminal. Call what it yields with the count done and the total."""
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def warn_if_none(config: ServiceConfig, found: int, problems: Sequence[object], what: str = "tasks") -> None:
    """Where nothing was found: another agent's store, or a mistyped name, looks sound and empty."""
    if not (found or problems):
        warn(
            f"This store has no {what} of an agent {config.name!r}. Check the agent's name, and "
            "TA_PERSISTENCE or spec.persistence."
        )


def show_problems(problems: list[str], what: str) -> None:
    warn(*problems[:MOST_SHOWN])
    if len(problems) > MOST_SHOWN:
        warn(f"… and {len(problems) - MOST_SHOWN} more {what}")


def count_text(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
