"""`python -m benchmarks [--only MEASURE] [--quick]`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import measures, report
from benchmarks.costs import costs
from benchmarks.figures import Figure
from benchmarks.followers import followers
from benchmarks.long_tasks import long_tasks
from benchmarks.operations import operations
from benchmarks.protocols import protocols
from benchmarks.simulation import simulation
from benchmarks.stateless import stateless
from benchmarks.stores import stores
from benchmarks.tokens import tokens
from benchmarks.workers import workers

MEASURES: Mapping[str, measures.Measure] = {
    "turns": measures.turns,
    "streams": measures.streams,
    "first-piece": measures.first_piece,
    "throughput": measures.throughput,
    "memory": measures.memory,
    "start": measures.start,
    "stores": stores,
    "long-tasks": long_tasks,
    "tokens": tokens,
    "protocols": protocols,
    "operations": operations,
    "costs": costs,
    "followers": followers,
    "workers": workers,
    "stateless": stateless,
    "simulation": simulation,
}


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Just these: {', '.join(MEASURES)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of it: shows that it works.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="The JSON file; by default in benchmarks/results/.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 where a bound is not held.")] = False,
) -> None:
    """Measure what a request costs, beside a bare stateless handler in the same run."""
    console = Console()
    if not console.is_terminal:
        console.width = 110
    for name in only or ():
        if name not in MEASURES:
            raise typer.BadParameter(f"{name} is none of {', '.join(MEASURES)}")
    figures: list[Figure] = []
    for name in only or MEASURES:
        with console.status(f"measuring {name} …"):
            figures += asyncio.run(_measured(MEASURES[name], measures.Scale(quick)))
    report.show(figures, console)
    console.print(f"written to {report.save(figures, output)}")
    if strict and any(figure.held is False for figure in figures):
        raise typer.Exit(1)


async def _measured(measure: measures.Measure, scale: measures.Scale) -> list[Figure]:
    return list(await measure(scale))


command_line = typer.Typer(pretty_exceptions_enable=False)
command_line.command()(main)
command_line()
