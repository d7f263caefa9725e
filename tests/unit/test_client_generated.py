"""The synchronous client is generated from the asynchronous one."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/generate_sync_client.py"


def generate(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True)


def test_the_synchronous_client_is_current() -> None:
    """A change of `aio` is one of `sync`, by the script."""
    assert generate(SCRIPT, "--check").stderr == ""


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("class AsyncThing:\n    async def aclose(self) -> None: ...\n", "sync.py is not current"),
        ("import asyncio\n", "no rule for asyncio"),
    ],
)
def test_what_is_not_current_is_noticed(tmp_path: Path, code: str, complaint: str) -> None:
    """And what is asynchronous and has no synchronous counterpart, too."""
    client = tmp_path / "src/tealagents/client"
    client.mkdir(parents=True)
    (client / "aio.py").write_text(code)
    (client / "sync.py").write_text("")
    script = tmp_path / "scripts" / SCRIPT.name
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text())
    checked = generate(script, "--check")
    assert checked.returncode == 1
    assert complaint in checked.stderr
    assert (client / "sync.py").read_text() == ""
    if "AsyncThing" in code:
        assert generate(script).returncode == 0
        assert "class Thing:\n    def close(self) -> None: ...\n" in (client / "sync.py").read_text()
        assert generate(script, "--check").returncode == 0
