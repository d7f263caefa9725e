"""pytest fixtures for services on any durable store: `place`, a store; and `nursery`, which forks services.

Name this module and `pytest_servers` in `pytest_plugins`, and parametrize a test with the stores::

    @pytest.mark.parametrize("place", DURABLE, indirect=True)
    def test_it(place: Place, nursery: Nursery) -> None: ...

The workers of pytest-xdist share one nursery.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tealagents.testing.faults import FaultProxy
from tealagents.testing.forking import Nursery

__all__ = ["DURABLE", "LOCAL", "Place", "nursery", "place"]

#: all durable stores; the durable stores that need no server
DURABLE = ("files", "sqlite", "postgres", "redis", "dynamodb")
LOCAL = ("files", "sqlite")

_DRIVERS = ("tealagents.stores.postgres", "tealagents.stores.redis", "tealagents.stores.dynamodb")
_PROTOCOLS = tuple(f"tealagents.api.{name}.app" for name in ("a2a", "ag_ui", "mcp", "openai", "skagents"))
_MODELS = ("tealagents.testing.digest_model", "tealagents.testing.killing")

_SHARED = pytest.StashKey[Nursery]()


class Place:
    """A durable store with an empty state, and the proxy in front of its server if it has one."""

    def __init__(self, name: str, url: str, proxy: FaultProxy | None = None) -> None:
        self.name = name
        self.url = url
        self.proxy = proxy
        #: the environment variables for a service on this store
        self.env = {
            "TA_PERSISTENCE": url,
            "TA_AUTH": "mock",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before pytest-xdist starts a worker: the workers share one nursery, which imports everything. One for
    each worker would cost more time than it saves."""
    if _SHARED not in node.config.stash:
        node.config.stash[_SHARED] = _nursery().__enter__()
        node.config.add_cleanup(lambda: node.config.stash[_SHARED].__exit__())
    node.workerinput["nursery"] = str(node.config.stash[_SHARED].folder)


@pytest.fixture(scope="session")
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    worker: dict[str, str] | None = getattr(request.config, "workerinput", None)
    if worker is not None:
        yield Nursery.at(Path(worker["nursery"]))
        return
    with _nursery() as running:
        yield running


def _nursery() -> Nursery:
    return Nursery(*_DRIVERS, *_PROTOCOLS, *_MODELS)


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
