"""AG-UI's own client, unmodified, on the service. It verifies the order of all events by itself."""

import shutil
import subprocess
from pathlib import Path

import pytest
from agui_talk import serving

from tealagents.testing.pytest_servers import missing

TOOLS = Path(__file__).parents[3] / ".tools" / "node"
DRIPPING = {"when": {"text": "dripping"}, "reply": {"text": ("drip " * 40).strip(), "piece_delay_ms": 30}}
BROKEN = {"when": {"text": "broken"}, "reply": {"error": {"status": 400, "message": "too hot"}}}


@pytest.fixture(scope="module")
def _installed() -> None:
    if not shutil.which("node") or not (TOOLS / "node_modules" / "@ag-ui" / "client").exists():
        missing("Node.js with what tests/fixtures/tools/install.sh installs")


def scenes(url: str, file: Path, expiry: str) -> list[str]:
    """Runs the scenes of the script; the names of those that went well."""
    script = Path(__file__).with_name("http_agent.cjs")
    command = ["node", str(script), str(TOOLS), url, str(file), expiry]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


@pytest.mark.usefixtures("_installed")
def test_the_client(file: Path) -> None:
    """Tools, interrupts, refusal without resume, frontend tools, reloaded pages, resent history and more."""
    with serving({"rules": [DRIPPING, BROKEN]}) as (service, _):
        assert scenes(f"{service.url}/ag-ui", file, "long") == [
            "text_and_tools",
            "interrupt_and_resume",
            "reject_and_cancel",
            "refusal_without_resume",
            "frontend_tools",
            "reloaded_page",
            "resent_history",
            "reattach",
            "strangers",
        ]


@pytest.mark.usefixtures("_installed")
def test_the_client_with_an_interrupt_that_expired(file: Path) -> None:
    """It cannot be answered, neither by the client's own rules nor by the service's; canceled it can be."""
    with serving(limits={"approval_expiry_seconds": 2}) as (service, _):
        assert scenes(f"{service.url}/ag-ui", file, "short") == ["expired_interrupt"]
