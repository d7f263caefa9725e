"""The help of the commands."""

import re

import pytest
from typer.testing import CliRunner

from tealagents.cli.main import COMMANDS, command_line
from tealagents.cli.state import state

HELP = [
    ["--help"],
    *([name, "--help"] for name in COMMANDS),
    *(["state", str(each.name), "--help"] for each in state.registered_commands),
]


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_shows_what_to_type(words: list[str]) -> None:
    """An argument as the documentation writes it, a word for each value, and none beside a switch."""
    shown = CliRunner().invoke(command_line(*COMMANDS), words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    [usage] = re.findall(r"Usage: .*", shown.output)
    assert re.search(r"[{}]|\b[a-z-]+\]", usage) is None, usage
    assert "<bool>" not in shown.output
    options = [line for line in shown.output.splitlines() if re.match(r"\W*--", line)]
    assert options
    assert [line for line in options if re.search(r"<(?:str|path|int)", line)] == []
