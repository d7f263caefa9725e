"""The forked command stands for the installed one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tealagents.testing.forking import Nursery
from tealagents.testing.service import agent_config

INSTALLED = str(Path(sys.executable).with_name("tealagents"))
PROVIDER = """
import os, sys
from tealagents.threads import ContextProvider

{statement}

class Quiet(ContextProvider):
    async def invoking(self, invocation): ...
"""


def written(folder: Path, statement: str) -> Path:
    """A config that names a module of its folder, which does something when it is imported."""
    (folder / "provider.py").write_text(PROVIDER.format(statement=statement))
    config = agent_config(thread={"context_providers": ["provider:Quiet"]})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def test_it_says_and_ends_as_the_installed_one(nursery: Nursery, tmp_path: Path) -> None:
    """With the arguments, folder, variables and streams of its caller, and nothing else."""
    shown = (
        "os.getcwd(), sorted(os.environ.items()), sys.argv[1:]",
        "[os.path.realpath(each) for each in sys.path]",
        "sys.stdin.read(), sys.stdin.encoding, sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors",
    )
    config = written(tmp_path, f"print({', '.join(shown)})\nsys.exit('the end')")
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    env = {**kept, "PWD": str(tmp_path), "PYTHONIOENCODING": "latin-1", "TA_API_KEY": "any", "MARK": "é"}
    said = [
        subprocess.run(
            [program, "check", config.name],
            cwd=tmp_path,
            env=env,
            input="some wörds",
            encoding="latin-1",
            capture_output=True,
            timeout=60,
        )
        for program in (nursery.program, INSTALLED)
    ]
    forked, installed = [(each.returncode, each.stdout, each.stderr) for each in said]
    assert forked == installed
    assert "some wörds" in forked[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_command_that_is_killed_looks_killed(
    nursery: Nursery, tmp_path: Path, number: signal.Signals
) -> None:
    """Whichever signal it was: no exit status says that all is well."""
    config = written(tmp_path, f"os.kill(os.getpid(), {number})")
    env = {**os.environ, "TA_API_KEY": "any"}
    killed = subprocess.run([nursery.program, "check", str(config)], env=env, timeout=60)
    assert killed.returncode == -signal.SIGKILL


def test_a_command_that_ends_at_once_has_its_status(nursery: Nursery, tmp_path: Path) -> None:
    """As a start does that a plugin blocks when a signal ends it."""
    config = written(tmp_path, "os._exit(7)")
    env = {**os.environ, "TA_API_KEY": "any"}
    assert subprocess.run([nursery.program, "check", str(config)], env=env, timeout=60).returncode == 7


def test_a_signal_to_the_program_reaches_what_is_forked(nursery: Nursery, tmp_path: Path) -> None:
    """It is the one process that its caller knows."""
    config = written(tmp_path, "print('started', flush=True); import time; time.sleep(1000)")
    env = {**os.environ, "TA_API_KEY": "any"}
    with subprocess.Popen(
        [nursery.program, "check", str(config)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == b"started\n"
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 128 + signal.SIGINT
        finally:
            running.kill()
