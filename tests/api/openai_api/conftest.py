"""A service that speaks OpenAI's API, with the offline model behind it."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from openai_talk import raw, sdk, serving

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving() as pair:
        yield pair


@pytest.fixture
def ada(service: ServiceThread) -> Iterator[OpenAI]:
    with sdk(service) as client:
        yield client


@pytest.fixture
def eve(service: ServiceThread) -> Iterator[OpenAI]:
    with sdk(service, "eve") as client:
        yield client


@pytest.fixture
def wire(service: ServiceThread) -> Iterator[httpx.Client]:
    """Ada, without the SDK between."""
    with raw(service) as client:
        yield client
