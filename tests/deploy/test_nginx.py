"""Two replicas behind nginx, configured as `docs/operations.md` says."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from monitored import message
from nginx_server import NginxServer

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.pytest_servers import running
from tealagents.testing.service import agent_config
from tealagents.testing.waits import until

MCP_PAGE = Path(__file__).parents[2] / "docs" / "mcp-server.md"

SCRIPT = "rules: [{when: think, reply: {pieces: [begun, {text: ' and ended', delay_ms: 3600000}]}}]"
SPEC: dict[str, Any] = {
    "protocols": ["openai", "a2a", "ag-ui", "mcp"],
    "limits": {"piece_timeout_seconds": 3600},
}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SAID = {"role": "user", "content": "think"}
#: of each protocol, a call that is answered with a stream: its path, its body, its headers
STREAMS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "v1alpha1": ("/sse", dict(message("think")), {}),
    "chat completions": (
        "/openai/v1/chat/completions",
        {"model": "Tester", "stream": True, "messages": [SAID]},
        {},
    ),
    "responses": ("/openai/v1/responses", {"model": "Tester", "stream": True, "input": "think"}, {}),
    "a2a": (
        "/a2a/message:stream",
        {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "think"}]}},
        {"a2a-version": "1.0"},
    ),
    "ag-ui": (
        "/ag-ui",
        {
            "threadId": "thread",
            "runId": "run",
            "messages": [{"id": "1", **SAID}],
            "tools": [],
            "context": [],
            "state": {},
            "forwardedProps": {},
        },
        {"accept": "text/event-stream"},
    ),
    "mcp": (
        "/mcp",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": "ask",
                "arguments": {"message": "think"},
                "_meta": {"progressToken": "1", **MODERN},
            },
        },
        {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "ask",
        },
    ),
}


class Site:
    """Two replicas and the nginx in front of them."""

    def __init__(self, model: OfflineModel, replicas: tuple[ForkedService, ForkedService], url: str) -> None:
        self.model = model
        self.replicas = replicas
        self.url = url

    def client(self, **options: Any) -> httpx.Client:
        """A client of the agent through nginx, which never tries again."""
        return self.replicas[0].client(base_url=self.url + self.replicas[0].prefix, **options)


@contextmanager
def site_of(nursery: Nursery, tmp_path: Path, routing: str = "") -> Iterator[Site]:
    with OfflineModel(SCRIPT) as model:
        env = {
            "TA_AUTH": "mock",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_PERSISTENCE": f"sqlite:///{tmp_path / 'state.db'}",
        }
        with (
            nursery.service(agent_config(**SPEC), env) as first,
            nursery.service(agent_config(**SPEC), env) as second,
            running(lambda: NginxServer(first.port, second.port, routing=routing)) as nginx,
        ):
            yield Site(model, (first, second), nginx.url)


@pytest.fixture
def site(nursery: Nursery, tmp_path: Path) -> Iterator[Site]:
    with site_of(nursery, tmp_path) as made:
        yield made


def session(client: httpx.Client) -> dict[str, str]:
    """The headers of a new session of MCP 2025-11-25."""
    headers = {"accept": "application/json, text/event-stream"}
    about = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "host", "version": "1"},
    }
    opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}
    opened = client.post("/mcp", json=opening, headers=headers)
    return {**headers, "mcp-session-id": opened.headers["mcp-session-id"]}


def answered(client: httpx.Client) -> list[int]:
    """The statuses of a few messages, more than there are replicas."""
    return [client.post("", json=message("hello")).status_code for _ in range(4)]


def test_replicas_are_restarted_one_after_the_other_without_a_failed_call(site: Site) -> None:
    """One that was away is called again as soon as it is back, when the other one may already be away."""
    with site.client() as ada:
        for replica in site.replicas:
            assert replica.terminate() == 0
            assert answered(ada) == [200] * 4
            replica.start()
        assert answered(ada) == [200] * 4


@pytest.mark.parametrize("protocol", STREAMS)
def test_a_stream_arrives_as_it_is_sent(site: Site, protocol: str) -> None:
    """Although nginx buffers what does not say otherwise."""
    path, body, headers = STREAMS[protocol]
    with site.client() as ada, ada.stream("POST", path, json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        assert any("begun" in line for line in lines)
        site.model.release()
        assert any("and ended" in line for line in lines)


def test_a_stream_that_is_cut_off_does_not_seem_complete(site: Site) -> None:
    """A client that knows no final event of its protocol sees that the connection broke."""
    with site.client() as ada, ada.stream("POST", "/sse", json=message("think")) as stream:
        lines = stream.iter_lines()
        assert any("begun" in line for line in lines)
        for replica in site.replicas:
            replica.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)


def test_links_are_those_of_the_address_that_the_client_called(site: Site) -> None:
    """Over https, and under the name that it called, whatever it says of itself."""
    named = {"host": "agents.example.com", "x-forwarded-proto": "http"}
    with site.client(headers=named) as anyone:
        card = anyone.get("/a2a/.well-known/agent-card.json").json()
    assert {each["url"] for each in card["supportedInterfaces"]} == {
        f"https://agents.example.com{site.replicas[0].prefix}/a2a"
    }


def test_long_tokens_and_large_messages_reach_the_service(site: Site) -> None:
    """What is beyond its limits, it refuses itself."""
    with site.client(headers={"authorization": "Bearer " + "x" * 16_000}) as anyone:
        assert "With mock authentication" in anyone.get("/me").json()["detail"]
    with site.client() as ada:
        assert ada.post("", json=message("x" * 2_000_000)).status_code == 200
        assert ada.post("", json=message("x" * 20_000_000)).json()["code"] == "too_large"


def test_a_host_with_a_session_cancels_its_calls_on_whichever_replica_they_run(
    nursery: Nursery, tmp_path: Path
) -> None:
    """By the routing that the page on MCP prints; what has no session goes to both as before."""
    routing = re.findall(r"`(hash [^`]+;)`", MCP_PAGE.read_text())
    canceled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    with (
        site_of(nursery, tmp_path, *routing) as site,
        site.client() as ada,
        ThreadPoolExecutor() as pool,
        ExitStack() as finally_,
    ):
        finally_.callback(site.model.release)  # a call that is not canceled ends nevertheless
        for _ in range(4):
            site.model.clear()
            opened = session(ada)
            call = pool.submit(ada.post, "/mcp", json=STREAMS["mcp"][1], headers=opened)
            until(lambda: site.model.requests)
            assert ada.post("/mcp", json=canceled, headers=opened).status_code == 202
            until(lambda: ada.get("/tasks?limit=1").json()["items"][0]["status"] == "Canceled")
            assert call.result().status_code == 200
