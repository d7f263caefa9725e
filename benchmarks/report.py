"""The figures as a table for people, and as JSON for machines."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure

RESULTS = Path(__file__).parent / "results"


def show(figures: Sequence[Figure], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for name in ("ours", "floor", "ratio", "promised"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    last = ""
    for figure in figures:
        if figure.measure != last:
            table.add_section()
            table.add_row(f"[bold]{figure.measure}[/]")
        table.add_row(*_cells(figure))
        last = figure.measure
    console.print(table)


def _cells(figure: Figure) -> list[str]:
    promised = "" if figure.bound is None else f"≤ {figure.bound:.3g}"
    if figure.bound is not None and figure.of == "ratio":
        promised += " ×"
    return [
        "  " + figure.name,
        figure.unit,
        _number(figure.ours),
        "" if figure.base is None else _number(figure.base),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        promised,
        {True: "[green]held[/]", False: "[red]beyond[/]", None: ""}[figure.held],
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def save(figures: Sequence[Figure], path: Path | None = None) -> Path:
    """Writes the figures and what they were measured on; returns where."""
    now = datetime.now(UTC)
    path = path or RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "at": now.isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0], "system": platform.platform()},
        "python": platform.python_version(),
        "commit": _commit(),
        "figures": [{**asdict(figure), "ratio": figure.ratio, "held": figure.held} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def _commit() -> str | None:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip() or None
