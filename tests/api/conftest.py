"""A running service with the offline model behind it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread, offline_service


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with offline_service() as pair:
        yield pair


@pytest.fixture
def service(running: tuple[ServiceThread, OfflineModel]) -> ServiceThread:
    return running[0]


@pytest.fixture
def model(running: tuple[ServiceThread, OfflineModel]) -> OfflineModel:
    running[1].clear()
    return running[1]


@pytest.fixture
def ada(service: ServiceThread) -> Iterator[httpx.Client]:
    with service.client("ada") as client:
        yield client


@pytest.fixture
def eve(service: ServiceThread) -> Iterator[httpx.Client]:
    with service.client("eve") as client:
        yield client


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What the tools of a test write into."""
    return tmp_path / "written"
