"""Ready says whether messages are taken: not while the store takes no writes, and again once it does."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from refusing_store import Refuses, refusing

from tealagents import bootstrap
from tealagents.domain.ports import Commit
from tealagents.llm.offline import OfflineModel
from tealagents.testing.faults import full_disk
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import RedisServer
from tealagents.testing.service import ServiceThread, agent_config, offline_service
from tealagents.testing.waits import until


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceThread]:
    monkeypatch.setattr(bootstrap, "PROBE_SECONDS", 60)  # a busy disk takes its time
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "k", "TA_AUTH": "mock"}
        config = agent_config(persistence=f"sqlite:///{tmp_path}/state.db")
        with ServiceThread(config, env) as service:
            yield service


@pytest.fixture
def ada(service: ServiceThread) -> Iterator[httpx.Client]:
    with service.client("ada") as client:
        yield client


def say(ada: httpx.Client, words: str) -> int:
    return ada.post("", json={"items": [{"content_type": "text", "content": words}]}).status_code


def test_a_disk_that_is_full(ada: httpx.Client, tmp_path: Path) -> None:
    """While messages are refused for want of room the process is not ready, and later it is.

    covers: STATE-4
    """
    assert say(ada, "hello") == 200
    with full_disk(max(each.stat().st_size for each in tmp_path.glob("state.db*"))):
        while say(ada, "word " * 2_000) == 200:
            pass
        assert ada.get("/health/ready").status_code == 503
        assert ada.get("/health/live").status_code == 200
    assert ada.get("/health/ready").status_code == 200
    assert say(ada, "hello") == 200


@pytest.mark.parametrize("replaced", [False, True])
def test_a_state_file_that_was_deleted(ada: httpx.Client, tmp_path: Path, replaced: bool) -> None:
    """No message is answered into a file that no name leads to any more, and the process is not ready."""
    assert say(ada, "hello") == 200
    (tmp_path / "state.db").unlink()
    if replaced:
        (tmp_path / "state.db").touch()
    assert say(ada, "hello") == 503
    assert ada.get("/health/ready").status_code == 503


def leases(partition: str, commit: Commit) -> bool:
    return partition.endswith("/workers")


def everything(partition: str, commit: Commit) -> bool:
    return True


@pytest.mark.parametrize(
    ("refused", "logged"), [(leases, "could not renew its lease"), (everything, "postgres.internal")]
)
def test_a_store_that_refuses_writes_and_answers_reads(
    refused: Refuses, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the lease cannot be renewed no message is taken, and the process is not ready; nor where nothing
    can be written. Both are over when the store takes writes again. The log, and no answer, says
    which store it is. covers: STATE-4"""
    store = "refusing_store:RefusingStore"
    with (
        offline_service(persistence=store, limits={"lease_seconds": 0.3}) as (service, _),
        service.client("ada") as ada,
    ):
        with refusing(refused):
            until(lambda: ada.get("/health/ready").status_code == 503)
            assert say(ada, "hello") == 503
            assert ada.get("/health/ready").status_code == 503
            assert ada.get("/health/live").status_code == 200
            health = ada.get("/health")
            assert health.json()["status"] == "degraded"
            assert "postgres.internal" not in health.text
        until(lambda: ada.get("/health/ready").status_code == 200)
        until(lambda: say(ada, "hello") == 200)
    probed = [each.getMessage() for each in caplog.records if each.name == "tealagents.api.v1alpha1.health"]
    assert any(logged in each for each in probed)


def test_a_store_that_stands_still(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A probe is answered while it does, before who probes gives up. covers: STATE-4"""
    monkeypatch.setattr(bootstrap, "PROBE_SECONDS", 0.2)
    with running(RedisServer) as server, OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "k", "TA_AUTH": "mock"}
        with (
            ServiceThread(agent_config(persistence=f"{server.url}?command_timeout=60"), env) as service,
            service.client("ada") as ada,
        ):
            server.stop()
            for _ in range(2):
                assert ada.get("/health/ready").status_code == 503
            assert ada.get("/health").json()["status"] == "degraded"
            assert caplog.text.count("The store has not answered for 0.2 seconds.") == 3
            server.cont()
            until(lambda: ada.get("/health/ready").status_code == 200)
