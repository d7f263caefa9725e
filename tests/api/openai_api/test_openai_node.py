"""OpenAI's SDK for Node on the service."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_talk import serving

from tealagents.llm.offline import OfflineModel
from tealagents.testing.pytest_servers import missing
from tealagents.testing.service import ServiceThread

TOOLS = Path(__file__).parents[3] / ".tools" / "node"
SCRIPT = {"rules": [{"when": {"text": "for ever"}, "reply": {"text": "x", "headers_delay_ms": 600_000}}]}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving(SCRIPT) as pair:
        yield pair


def test_the_sdk_for_node(service: ServiceThread, file: Path) -> None:
    """Create, stream, replay, branch, background, cancel, approve, conversations, chat, errors."""
    if not shutil.which("node") or not (TOOLS / "node_modules" / "openai").exists():
        missing("Node.js with what tests/fixtures/tools/install.sh installs")
    script = Path(__file__).with_name("node_client.cjs")
    arguments = [str(TOOLS), f"{service.url}/openai/v1", "ada", "eve", str(file)]
    done = subprocess.run(
        ["node", str(script), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "one\n"
