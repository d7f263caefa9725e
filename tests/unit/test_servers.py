"""The private servers of the tests: they answer, come back, and leave nothing behind."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tealagents.testing import service
from tealagents.testing.pytest_servers import missing, running
from tealagents.testing.servers import (
    PostgresServer,
    RedisCluster,
    RedisServer,
    Server,
    ServerMissing,
    free_port,
)


def alive(pids: list[str]) -> list[str]:
    """Those that run or are stopped; one that is not reaped yet is not alive."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True)
    states = dict(line.split() for line in listed.stdout.splitlines())
    return [pid for pid in pids if not states.get(pid, "Z").startswith("Z")]


@pytest.mark.parametrize("kind", [RedisServer, PostgresServer])
def test_it_comes_back(kind: type[Server]) -> None:
    """Killed and started again it is at the same place; left, its folder is gone."""
    with running(kind) as server:
        url, port, folder = server.url, server.port, server.directory
        server.kill()
        assert not server.running
        server.restart()
        assert server.answers()
        assert (server.url, server.port, server.directory) == (url, port, folder)
        server.stop()
        server.cont()
        assert server.answers()
    assert not server.running
    assert not folder.exists()


def test_a_service_comes_back_to_its_port() -> None:
    """Although a connection to the one before is not closed yet."""
    env = {"TA_API_KEY": "k", "TA_AUTH": "mock"}
    with httpx.Client() as client:
        with service.ServiceThread(service.agent_config(), env) as first:
            client.get(f"{first.url}/health/live").raise_for_status()
        with service.ServiceThread(service.agent_config(), env, port=first.port) as again:
            httpx.get(f"{again.url}/health/live").raise_for_status()


def test_a_service_that_cannot_start_says_why() -> None:
    """Without a wait for an answer that cannot come."""
    config = service.agent_config(agent={"mcp_servers": [{"name": "far", "command": "./none"}]})
    with (
        pytest.raises(RuntimeError, match=r"ended while it started:\nToolsetError: MCP server far: the"),
        service.ServiceThread(config, {"TA_API_KEY": "k", "TA_AUTH": "mock"}),
    ):
        pass


def test_redis_keeps_what_is_durable() -> None:
    """A durable server has its data after it was killed, another one has not."""
    for durable, kept in ((True, "value"), (False, "")):
        with running(lambda durable=durable: RedisServer(durable=durable)) as server:  # type: ignore[misc]
            assert server.ask("SET", "key", "value") == "+OK"
            server.restart()
            assert server.ask("GET", "key") == kept


def test_a_cluster_has_formed_once_its_nodes_know_who_serves_each_slot() -> None:
    """A node's own word that its state is ok is not enough: it has it while it knows of no other's slots."""
    with running(RedisCluster) as cluster:
        node, size = cluster.nodes[0], len(cluster.nodes)
        assert node.joined(size)
        node.expect_ok("CLUSTER", "DELSLOTS", "0")
        assert "cluster_state:ok" in node.ask("CLUSTER", "INFO")
        assert not node.joined(size)


@pytest.mark.parametrize("kind", ["RedisServer", "PostgresServer"])
@pytest.mark.parametrize("still", [False, True], ids=["running", "stopped"])
def test_nothing_is_left_when_the_tests_are_killed(kind: str, still: bool) -> None:
    """A process that is killed with SIGKILL leaves neither its server nor the server's folder behind."""
    program = f"""
import os, signal
from pathlib import PosixPath
from tealagents.testing import servers
servers.PostgresServer.shared = {PostgresServer.shared!r}
server = servers.{kind}().__enter__()
if {still}:
    server.stop()
print(server.directory, *server.processes(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if "ServerMissing" in ended.stderr:
        missing(ended.stderr.splitlines()[-1])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    folder, *pids = ended.stdout.split()
    deadline = time.monotonic() + 30
    while (alive(pids) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pids)
    assert not Path(folder).exists()


def test_a_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program is missing tests are skipped with what to install; where required, they fail."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ServerMissing, match="apt install redis-server"), RedisServer():
        pass
    monkeypatch.delenv("REQUIRE_BACKENDS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt install redis-server"), running(RedisServer):
        pass
    monkeypatch.setenv("REQUIRE_BACKENDS", "1")
    with pytest.raises(pytest.fail.Exception, match="apt install redis-server"), running(RedisServer):
        pass


@pytest.mark.parametrize("kind", [service.ServiceThread, service.ServiceProcess])
def test_a_version_is_served_as_the_file_spells_it(
    tmp_path: Path, kind: type[service.ServiceThread | service.ServiceProcess]
) -> None:
    """A number is none there: 0.10 is another version than 0.1."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(service.agent_config()).replace("version: '0.1'", "version: 0.10"))
    env = {"TA_AUTH": "mock", "TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "any"}
    with kind(path, env) as served, served.client(None) as client:
        assert served.prefix == "/Tester/0.10"
        assert client.get("/health/live").status_code == 200


def test_a_port_that_was_taken_meanwhile_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose port another process took between the look and the start has another one."""
    env = {"TA_AUTH": "mock", "TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "any"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(service, "free_port", lambda: next(ports))
        with service.ServiceProcess(service.agent_config(), env) as served, served.client(None) as client:
            assert served.port != taken.getsockname()[1]
            assert client.get("/health/live").status_code == 200
