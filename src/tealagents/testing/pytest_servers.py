"""pytest fixtures for private servers, started once per session, that is once per worker of pytest-xdist.

Name this module in `pytest_plugins`. `redis_server`, `redis_cluster`, `postgres_server` and `dynamodb_server`
are the servers. `redis_url`, `redis_cluster_url`, `postgres_url` and `dynamodb_url` are URLs of a new, empty
state for each test. If a server is not installed, its tests are skipped with what to install; with
``REQUIRE_BACKENDS=1`` in the environment they fail instead. `missing` does the same for anything else.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from tealagents.testing.servers import (
    DynamoServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    ServerMissing,
)

S = TypeVar("S", bound=AbstractContextManager[object])

_SHARED = pytest.StashKey[Path]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before pytest-xdist starts a worker: the workers share one new PostgreSQL cluster to copy."""
    stash = node.config.stash
    if _SHARED not in stash:
        stash[_SHARED] = Path(tempfile.mkdtemp(prefix="tealagents-postgres-fresh-"))
        node.config.add_cleanup(lambda: shutil.rmtree(stash[_SHARED]))
    node.workerinput["postgres"] = str(stash[_SHARED])


def pytest_configure(config: pytest.Config) -> None:
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        PostgresServer.shared = Path(worker["postgres"])


def missing(what: str) -> NoReturn:
    """Skips a test that needs `what`, which is not installed. With `REQUIRE_BACKENDS=1`, it fails instead."""
    if os.environ.get("REQUIRE_BACKENDS") == "1":
        pytest.fail(f"REQUIRE_BACKENDS=1, but something is missing: {what}", pytrace=False)
    pytest.skip(f"needs {what}")


@contextmanager
def running(make: Callable[[], S]) -> Generator[S]:
    """Runs a server. If its program is missing, skips the test, as `missing` does."""
    server = make()
    try:
        server.__enter__()
    except ServerMissing as what:
        missing(str(what))
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with running(RedisServer) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with running(RedisCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running(PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[DynamoServer]:
    with running(DynamoServer) as server, pytest.MonkeyPatch.context() as environment:
        # moto accepts any credentials; tests must not look for real ones, on the network or elsewhere
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        environment.delenv("AWS_PROFILE", raising=False)
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return f"{redis_server.url}?prefix={_fresh()}:"


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    return f"{redis_cluster.url}?prefix={_fresh()}:"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    return f"{postgres_server.url}?schema={_fresh()}"


@pytest.fixture
def dynamodb_url(dynamodb_server: DynamoServer) -> str:
    return dynamodb_server.url_of(_fresh())


def _fresh() -> str:
    return f"t{uuid.uuid4().hex[:16]}"
