"""A service that speaks AG-UI, with the offline model behind it."""

from collections.abc import Iterator

import httpx
import pytest
from agui_talk import Page, serving

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving() as pair:
        yield pair


@pytest.fixture
def page(ada: httpx.Client) -> Page:
    """Ada's page, on a thread of its own."""
    return Page(ada)
