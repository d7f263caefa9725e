"""A runbook of `docs/operations.md`, carried out as it stands there."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: stops at the first command that fails; writes down the variables as they are in the end
_KEEPING = "set -eau; trap 'code=$?; env -0 > environment; exit $code' EXIT\n"


def section(title: str) -> str:
    """What stands below a heading of the page."""
    _, found, rest = PAGE.read_text().partition(f"\n### {title}\n")
    assert found, f"there is no runbook {title!r}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def scripts(title: str) -> list[str]:
    """The blocks of commands below a heading of the page, without prompts."""
    return [re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in _BLOCK.findall(section(title))]


class Operator:
    """Carries out the blocks of one runbook, in one shell: what a block exports holds for the next."""

    def __init__(self, title: str, folder: Path, env: Mapping[str, str], commands: Path) -> None:
        """`commands` is the folder of the `tealagents` that the shell finds."""
        self._scripts = scripts(title)
        self.folder = folder
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TA_")}
        self.env = {**kept, **env, "PATH": path, "COLUMNS": "500"}

    def does(self, number: int, *, status: int = 0) -> str:
        """Runs a block, counted from 1; returns what it prints. It ends with this exit status."""
        script = self._scripts[number - 1]
        done = subprocess.run(
            ["/bin/bash", "-c", _KEEPING + script],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, f"{script}\n{done.stdout}{done.stderr}"
        pairs = (self.folder / "environment").read_text().split("\0")
        self.env = dict(pair.split("=", 1) for pair in pairs if pair)
        return done.stdout
