"""Authentication that is off because nothing was chosen: only this machine is answered."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from wire import problem, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread, agent_config

FOREIGN: tuple[dict[str, Any], ...] = (
    {"host": "evil.example"},
    {"host": "evil.example:8000"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "127.evil.example"},
    {"host": "localhost.evil.example"},
    {"host": "localhost@evil.example"},
    {"host": b"\xe9@127.0.0.1"},
    {"host": "10.0.0.1"},
    {"host": ""},
    {"x-forwarded-port": "443"},
    {"x-forwarded-ssl": "on"},
    {"x-forwarded-scheme": "https"},
    {"x-forwarded-server": "proxy.example"},
    {"x-forwarded-prefix": "/agents"},
    {"x-original-forwarded-for": "203.0.113.9"},
    {"x-original-host": "agent.example"},
    {"x-envoy-external-address": "203.0.113.9"},
    {"x-client-ip": "203.0.113.9"},
    {"x-cluster-client-ip": "203.0.113.9"},
    {"true-client-ip": "203.0.113.9"},
    {"cf-connecting-ip": "203.0.113.9"},
    {"x-forwarded-for": "203.0.113.9"},
    {"x-forwarded-host": "agent.example"},
    {"x-forwarded-proto": "https"},
    {"forwarded": "for=203.0.113.9"},
    {"via": "1.1 proxy"},
    {"x-real-ip": "203.0.113.9"},
)


def started(**env: str) -> Iterator[ServiceThread]:
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "offline-key", **env}
        with ServiceThread(agent_config(), env) as running:
            yield running


@pytest.fixture(scope="module")
def unchosen() -> Iterator[ServiceThread]:
    yield from started()


@pytest.fixture(scope="module")
def chosen() -> Iterator[ServiceThread]:
    yield from started(TA_AUTH="mock")


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_or_a_proxy_does_not_reach_a_service_without_authentication(
    unchosen: ServiceThread, headers: dict[str, str]
) -> None:
    """A foreign Host (DNS rebinding) and what a proxy passes on are refused, on every path."""
    with unchosen.client("ada") as ada:
        for answer in (
            ada.post("", json=text("hello"), headers=headers),
            ada.post("/requests/x/resume", json={"action": "approve"}, headers=headers),
            ada.get("/tasks", headers=headers),
            ada.get("/health", headers=headers),
            ada.get(unchosen.root + "/", headers=headers),
        ):
            problem(answer, 400, "invalid_request")
            assert "Set TA_AUTH" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8000", "127.9.9.9:1", "[::1]:8000"])
def test_this_machine_is_answered(unchosen: ServiceThread, host: str) -> None:
    """By every name that it has for itself."""
    with unchosen.client("ada") as ada:
        assert ada.get("/tasks", headers={"host": host}).status_code == 200


async def test_what_comes_in_at_another_address_is_refused(unchosen: ServiceThread) -> None:
    """Whatever its Host says: the server that the application is embedded in may listen to the network."""
    transport = httpx.ASGITransport(app=unchosen.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.2:8000") as client:
        answer = await client.get(f"{unchosen.prefix}/me", headers={"host": "localhost"})
    problem(answer, 400, "invalid_request")
    assert "an address that is not loopback" in answer.json()["detail"]


def test_two_hosts_are_none(unchosen: ServiceThread) -> None:
    """A request that names two hosts could mean either."""
    with socket.create_connection(("127.0.0.1", unchosen.port)) as connection:
        head = f"GET {unchosen.prefix}/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n"
        connection.sendall(f"{head}Authorization: Bearer ada\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_mock_that_was_chosen_is_answered_everywhere(chosen: ServiceThread) -> None:
    """Who says so serves it behind a proxy and under a name, at their own risk."""
    for headers in FOREIGN[:-6]:
        with chosen.client("ada") as ada:
            assert ada.get("/tasks", headers={**headers, "via": "1.1 proxy"}).status_code == 200
