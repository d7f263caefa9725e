"""A service that is an MCP server, with the offline model behind it."""

from collections.abc import Iterator

import pytest
from mcp_talk import ERAS, Era, serving

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving() as pair:
        yield pair


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    chosen: Era = request.param
    return chosen
