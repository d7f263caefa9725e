"""`tealagents serve`: a start that fails is a sentence, and no service."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tealagents.testing.servers import free_port

DEMO = Path(__file__).parents[2] / "demos" / "approval"


def serve(folder: Path, *options: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """`tealagents serve` of the config in a folder, until it ends by itself."""
    program = str(Path(sys.executable).with_name("tealagents"))
    return subprocess.run(
        [program, "serve", str(folder / "config.yaml"), "--offline", "--port", str(free_port()), *options],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise SystemExit(0)", "custom_plugins.py, line 1: the plugin file cannot be loaded: SystemExit"),
        (
            "from tealagents.plugins import Plugin, tool\n"
            "class Files(Plugin):\n"
            "    async def __aenter__(self): raise ValueError('no drawer')\n"
            "    async def __aexit__(self, *exc): ...\n"
            "    @tool\n"
            "    def list(self) -> str: 'Lists.'\n",
            "ValueError: no drawer",
        ),
    ],
)
def test_a_start_that_fails_serves_nothing(tmp_path: Path, source: str, told: str) -> None:
    """Whatever a plugin raises: exit status 3 with the reason, and the port stays closed."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    (tmp_path / "custom_plugins.py").write_text(source)
    served = serve(tmp_path)
    assert served.returncode == 3, served
    assert told in served.stderr


def test_workers_that_cannot_start_are_a_start_that_fails(tmp_path: Path) -> None:
    """The parent of several processes exits with 3 as a single one does: whoever looks after it can tell."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    away = {"TA_PERSISTENCE": f"redis://127.0.0.1:{free_port()}"}
    served = serve(tmp_path, "--workers", "2", **away)
    assert served.returncode == 3, served
    assert "redis" in served.stderr
