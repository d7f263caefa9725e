"""`tealagents new`: an agent of one's own whose every next command works."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

from tealagents.cli.main import command_line
from tealagents.cli.new import new_command
from tealagents.config import load
from tealagents.testing.faults import full_disk
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port

BIN = Path(sys.executable).parent


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """What a command ends with that is found where `python` and the installed `tealagents` are."""
    env = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


class Created(NamedTuple):
    folder: Path
    commands: list[list[str]]  #: those that come next


@pytest.fixture(scope="module")
def created(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Created:
    folder = tmp_path_factory.mktemp("new")
    made = run(folder, nursery.program, "new", "Summer")
    assert made.returncode == 0, made
    return Created(
        folder / "Summer", [line.split() for line in made.stdout.splitlines() if line.startswith("  ")]
    )


def test_it_says_what_comes_next(created: Created) -> None:
    """Three commands: go there, test, serve."""
    assert [command[0] for command in created.commands] == ["cd", "python", "tealagents"]
    assert created.commands[0][1] == "Summer"


@pytest.mark.parametrize("name", ["on", "null", "Yes"])
def test_a_name_that_yaml_has_a_meaning_for_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    new_command(name)
    assert load(tmp_path / name / "config.yaml", env={"TA_API_KEY": "k"}).name == name


def test_its_test_passes(created: Created) -> None:
    """Without a key: the tool, and the agent that uses it."""
    tested = run(created.folder, *created.commands[1])
    assert tested.returncode == 0, tested.stderr
    assert "Ran 2 tests" in tested.stderr


def test_it_can_be_served(created: Created, tmp_path: Path) -> None:
    """And takes a message; the log says that the built-in model answers it, and not OpenAI."""
    port, log = free_port(), tmp_path / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [str(BIN / created.commands[2][0]), *created.commands[2][1:], "--port", str(port)],
            cwd=created.folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as service,
    ):
        try:
            assert service.stdout is not None
            url = service.stdout.readline().split()[-1]
            body = {"items": [{"content_type": "text", "content": "My name is Ada."}]}
            headers = {"Authorization": "Bearer ada"}
            answer = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False).json()
        finally:
            service.send_signal(signal.SIGTERM)
    assert answer["status"] == "Completed"
    assert "serving /Summer/0.1: model gpt-4o-mini at http://127.0.0.1:" in log.read_text()


def test_its_config_is_right(nursery: Nursery, created: Created) -> None:
    """Checked without a key: what `serve` will need is said, and the tool is found."""
    checked = run(created.folder, nursery.program, "check", "config.yaml")
    assert checked.returncode == 0, checked
    assert "Calculator-add" in checked.stdout
    assert "serve will need: TA_API_KEY" in checked.stderr
    shown = (created.folder / ".env.example").read_text()
    assert "TA_API_KEY" in shown
    ignored = (created.folder / ".gitignore").read_text().splitlines()
    assert {".env", "*.db", "*.db-notify"} <= {*ignored}


@pytest.mark.parametrize(("name", "said"), [("Taken", "it exists already"), ("../up", "use letters")])
def test_nothing_is_overwritten(nursery: Nursery, tmp_path: Path, name: str, said: str) -> None:
    """A folder that is there stays as it is, and a name that can be none is refused."""
    (tmp_path / "Taken").mkdir()
    refused = run(tmp_path, nursery.program, "new", name)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert list((tmp_path / "Taken").iterdir()) == []


def test_without_room_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the command can be repeated; what is wrong is said in one line."""
    monkeypatch.chdir(tmp_path)
    with full_disk(0):
        refused = CliRunner().invoke(command_line("new"), ["new", "Summer"])
    assert refused.exit_code == 2
    assert "the folder Summer cannot be written: File too large" in refused.stderr
    assert list(tmp_path.iterdir()) == []
