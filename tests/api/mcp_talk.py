"""What the tests of the agent as an MCP server share: the SDK's client in both eras, and plain requests."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Literal

import httpx
import httpx2
import mcp_types as types
from mcp.client import Client, ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from talk import AGENT, working_service

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import RunningService, ServiceThread

Json = dict[str, Any]
Era = Literal["2026-07-28", "2025-11-25"]
#: what a user is asked, and what they answer
Asked = types.ElicitRequestFormParams | types.ElicitRequestURLParams
User = Callable[[Asked], types.ElicitResult | Awaitable[types.ElicitResult]]

ERAS: tuple[Era, ...] = ("2026-07-28", "2025-11-25")
#: an agent with tools, served as an MCP server
SPEC: Json = {"protocols": ["mcp"], "agent": AGENT}
ACCEPT = "application/json, text/event-stream"


def serving(
    script: Any = None, env: dict[str, str] | None = None, **spec: Any
) -> AbstractContextManager[tuple[ServiceThread, OfflineModel]]:
    """A service that is an MCP server."""
    return working_service(script, env, **{**SPEC, **spec})


@asynccontextmanager
async def host(
    service: RunningService, era: Era, user: str = "ada", human: User | None = None, **options: Any
) -> AsyncIterator[Client]:
    """An MCP host of an era; `human` is its user; without one it cannot ask anyone."""

    async def ask(context: ClientRequestContext, params: Asked) -> types.ElicitResult:
        assert human is not None
        answer = human(params)
        return answer if isinstance(answer, types.ElicitResult) else await answer

    headers = {"authorization": f"Bearer {user}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(f"{service.url}/mcp", http_client=http),
            mode="legacy" if era == "2025-11-25" else "auto",
            elicitation_callback=ask if human is not None else None,
            **options,
        ) as client,
    ):
        assert client.protocol_version == era
        yield client


async def ask(client: Client, message: str, **arguments: Any) -> Json:
    """What `ask` answers, its structured content; the text says the same, and names the conversation."""
    return structured_result(await client.call_tool("ask", {"message": message, **arguments}))


def structured_result(result: types.CallToolResult) -> Json:
    structured: Json = result.structured_content
    assert result.is_error is (structured["status"] in ("Failed", "Canceled", "Refused")), structured
    texts = [content.text for content in result.content if isinstance(content, types.TextContent)]
    said = structured.get("output") or structured.get("error", {}).get("message") or texts[0]
    conversation = structured.get("conversation")
    assert texts == [said, *([f"conversation: {conversation}"] if conversation else [])]
    return structured


def error(structured: Json) -> str:
    """The code of a call that was refused."""
    assert structured["status"] == "Refused", structured
    code: str = structured["error"]["code"]
    return code


def approving(asked: Asked) -> types.ElicitResult:
    return accepted(action="approve") if asked.mode == "form" else accepted()


def accepted(**content: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=content or None)


# --- without a client between --------------------------------------------------------------------


def modern(method: str, params: Json | None = None, *, elicits: bool = False, **meta: Any) -> Json:
    """A request of 2026-07-28."""
    capabilities: Json = {"elicitation": {"form": {}, "url": {}}} if elicits else {}
    about = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        **meta,
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": about}}


def asking(message: str, *, elicits: bool = False, **arguments: Any) -> Json:
    params = {"name": "ask", "arguments": {"message": message, **arguments}}
    return modern("tools/call", params, elicits=elicits)


def headers_of(body: Json, era: Era = "2026-07-28") -> dict[str, str]:
    """The headers that go with a request."""
    headers = {"accept": ACCEPT, "mcp-protocol-version": era, "mcp-method": body.get("method", "")}
    name = body.get("params", {}).get("name")
    return {**headers, "mcp-name": name} if isinstance(name, str) else headers


def post(client: httpx.Client, body: Json, **headers: str) -> httpx.Response:
    return client.post("/mcp", json=body, headers={**headers_of(body), **headers})


def opened(client: httpx.Client, era: Era = "2025-11-25", **capabilities: Any) -> str:
    """The id of a new session."""
    about = {"name": "test", "version": "1"}
    params = {"protocolVersion": era, "capabilities": capabilities, "clientInfo": about}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    answer = client.post("/mcp", json=body, headers={"accept": ACCEPT})
    assert answer.status_code == 200, answer.text
    session: str = answer.headers["mcp-session-id"]
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    headers = {"accept": ACCEPT, "mcp-session-id": session}
    assert client.post("/mcp", json=done, headers=headers).status_code == 202
    return session


class OlderCall:
    """A call of a host of 2025-11-25, in a session that any process may have opened."""

    def __init__(self, session: str, client: httpx.Client, message: str, **arguments: Any) -> None:
        self.headers = {"accept": ACCEPT, "mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        params = {"name": "ask", "arguments": {"message": message, **arguments}}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        self._stream = client.stream("POST", "/mcp", json=body, headers=self.headers)

    def __enter__(self) -> "OlderCall":
        sent = self._stream.__enter__().iter_lines()
        self.events = (json.loads(line[6:]) for line in sent if line.startswith("data: {"))
        return self

    def __exit__(self, *left: Any) -> None:
        self._stream.__exit__(*left)

    def comes(self) -> Any:
        """What comes next: a question, its withdrawal, or the result."""
        return next(self.events)

    def answer(self, client: httpx.Client, question: Any, answer: str, **content: Any) -> int:
        """The status of what the user answers."""
        result = {"action": answer, **({"content": content} if content else {})}
        response = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        return client.post("/mcp", json=response, headers=self.headers).status_code

    def cancel(self, client: httpx.Client) -> int:
        """The status of the notification that gives it up."""
        said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        return client.post("/mcp", json=said, headers=self.headers).status_code
