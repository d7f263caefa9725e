"""pytest fixtures for services on any durable store: `place`, and `nursery` to fork services from.

Name this module in `pytest_plugins`, beside `pytest_servers`, and parametrize a test with the stores::

    @pytest.mark.parametrize("place", DURABLE, indirect=True)
    def test_it(place: Place, nursery: Nursery) -> None: ...
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tealagents.testing.faults import FaultProxy
from tealagents.testing.forking import Nursery

__all__ = ["DURABLE", "LOCAL", "Place", "nursery", "place"]

#: every durable store, and those of one machine, which need no server
DURABLE = ("files", "sqlite", "postgres", "redis", "dynamodb")
LOCAL = ("files", "sqlite")

_DRIVERS = ("tealagents.stores.postgres", "tealagents.stores.redis", "tealagents.stores.dynamodb")
_MODELS = ("tealagents.testing.digest_model", "tealagents.testing.killing")


class Place:
    """A durable store with an empty state, and the proxy before its server where it has one."""

    def __init__(self, name: str, url: str, proxy: FaultProxy | None = None) -> None:
        self.name = name
        self.url = url
        self.proxy = proxy
        #: the variables that point a service to it
        self.env = {
            "TA_PERSISTENCE": url,
            "TA_AUTH": "mock",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery(*_DRIVERS, *_MODELS) as running:
        yield running


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The store whose name the test is parametrized with."""
    name: str = request.param
    if name in LOCAL:
        url = f"file://{tmp_path}/state" if name == "files" else f"sqlite:///{tmp_path}/state.db"
        yield Place(name, url)
        return
    port = request.getfixturevalue(f"{name}_server").port
    url = request.getfixturevalue(f"{name}_url")
    with FaultProxy("127.0.0.1", port) as proxy:
        yield Place(name, proxy.url_for(url), proxy)
