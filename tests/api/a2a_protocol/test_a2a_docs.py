"""The table of requirements in docs/a2a.md names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_each_requirement_names_a_test_that_there_is() -> None:
    """And each requirement is named once."""
    page = (HERE.parents[2] / "docs" / "a2a.md").read_text()
    _, _, table = page.partition("## What the specification requires")
    files = (*HERE.glob("test_*.py"), *HERE.parent.glob("test_*.py"))
    tests = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = re.findall(r"`(test_\w+)`", table)
    assert len(named) > 30
    assert set(named) <= tests
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(set(rows))
