"""The JavaScript client: its types, and its own tests against the service."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tealagents.testing.pytest_servers import missing

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "js"
TESTS = sorted(path.name for path in (PACKAGE / "test").glob("*.test.js"))
#: seconds for one file of tests
PATIENCE = 300


@pytest.fixture(scope="module")
def _installed() -> None:
    if not shutil.which("node") or not (PACKAGE / "node_modules" / ".bin" / "tsc").exists():
        missing(
            "the client's packages: install Node.js 20 or newer with npm, "
            "and run tests/fixtures/tools/install.sh"
        )


def run(*command: str) -> None:
    """Runs a command in the package; what it printed is shown where it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TA_")}
    environment["TEALAGENTS"] = str(Path(sys.executable).with_name("tealagents"))
    with subprocess.Popen(
        command,
        cwd=PACKAGE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the services that it has started
    assert process.returncode == 0, printed


@pytest.mark.usefixtures("_installed")
def test_types() -> None:
    """The compiler finds the modules to be what their types say, without a build step."""
    run("node_modules/.bin/tsc")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("name", TESTS)
def test_client(name: str) -> None:
    """The client does what its own tests say, against the real service."""
    run("node", "--test", f"test/{name}")
