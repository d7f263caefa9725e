"""`tealagents serve`: a start that fails is a sentence, and no service."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demos" / "approval"


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("tealagents"))
    served = subprocess.run(
        [program, "serve", str(tmp_path / "config.yaml"), "--offline", "--port", str(port)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert served.returncode == 3, served
    assert told in served.stderr
