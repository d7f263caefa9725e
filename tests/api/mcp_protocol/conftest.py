"""A service that is an MCP server, with the offline model behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_talk import ERAS, Era, serving

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving() as pair:
        yield pair


@pytest.fixture
def service(running: tuple[ServiceThread, OfflineModel]) -> ServiceThread:
    return running[0]


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    chosen: Era = request.param
    return chosen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What the tools of a test write into."""
    return tmp_path / "written"
