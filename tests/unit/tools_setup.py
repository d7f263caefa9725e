"""What the tests of tools have in common: a call's context, and servers on free ports of loopback."""

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tealagents.domain.errors import NeedsOwner
from tealagents.domain.ports import Tool, Toolset

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tools"
INSTALLED = Path(__file__).parents[2] / ".tools" / "node" / "node_modules" / ".bin"


class Context:
    """A call's context as the engine makes it, with tokens that name what they were requested for."""

    def __init__(
        self,
        user_id: str = "alice",
        *,
        tenant_id: str = "contoso",
        request_id: str = "request",
        headers: Mapping[str, str] | None = None,
        owner_is_here: bool = True,
    ) -> None:
        self.session_id = "session"
        self.task_id = "task"
        self.request_id = request_id
        self.user_id = user_id
        self.tenant_id = tenant_id
        self._headers = headers or {}
        self.extra: dict[str, Any] = {}
        self.asked: list[tuple[str, ...]] = []
        self._owner_is_here = owner_is_here

    def add_extra_data(self, key: str, value: Any) -> None:
        self.extra[key] = value

    def require_owner(self) -> None:
        if not self._owner_is_here:
            raise NeedsOwner

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers:
            self.require_owner()
        return self._headers

    async def user_token(self, scopes: Sequence[str] = ()) -> str:
        self.asked.append(tuple(scopes))
        self.require_owner()
        return f"token-of-{self.user_id}-for-{'+'.join(scopes) or 'us'}"


def by_name(toolset: Toolset) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in toolset.tools()}


@contextmanager
def served(app: Any, port: int = 0, certificate: Path | None = None) -> Iterator[str]:
    """The base URL of an ASGI application, served until the end of the block; over TLS with a certificate."""
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, ssl_certfile=certificate)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def mcp_route(
    tool: str, own: Callable[[Request, dict[str, Any]], Awaitable[Response | None]], session: str = "a"
) -> Route:
    """`/mcp` of a server of 2025-06-18 with one tool, which returns its name. What `own` answers to a request
    and its message, which is empty where it has none, stands in place of that."""
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"},
        },
        "tools/list": {"tools": [{"name": tool, "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": tool}]},
    }

    async def answer(request: Request) -> Response:
        message = await request.json() if request.method == "POST" else {}
        answered = await own(request, message)
        if answered is not None:
            return answered
        if not message:
            return Response(status_code=405 if request.method == "GET" else 204)
        if message.get("method") not in results:
            return Response(status_code=202 if "id" not in message else 400)
        result = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        return JSONResponse(result, headers={"mcp-session-id": session})

    return Route("/mcp", answer, methods=["POST", "GET", "DELETE"])
