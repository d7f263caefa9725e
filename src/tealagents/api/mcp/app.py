"""Puts the SDK's server together, behind the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CallToolRequestParams, ListToolsResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from tealagents.api import gate, sse
from tealagents.api.exchange import Exchange
from tealagents.api.mcp.calls import answer
from tealagents.api.mcp.documents import refused, respond
from tealagents.api.mcp.tools import listed
from tealagents.api.origins import KnownOrigins
from tealagents.api.protocols import Served
from tealagents.domain.errors import NotFound

_SESSION = b"mcp-session-id"


def build(exchange: Exchange, path: str) -> Served:
    """The agent at `path`. Hosts before 2026-07-28 have sessions: they are asked while their call waits."""
    sessions = _Sessions(_server(exchange), exchange.settings.max_body_bytes)
    routes = Router([Route(each, sessions) for each in (path, path + "/")], False, gate.nothing_here)
    admitted = KnownOrigins(gate.Gate(routes, exchange, path, respond), exchange.settings, refused)
    app = gate.with_cors(admitted, exchange, "mcp-session-id")
    known = exchange.resource(path).route()
    return Served(app=app, path=path, discovery=[known], urls={"url": path}, lifespan=sessions.open)


def _server(exchange: Exchange) -> Server:
    agent, about = exchange.agent, exchange.settings.description
    tools = ListToolsResult(tools=listed(agent.name, about))

    async def list_tools(*_: object) -> ListToolsResult:
        return tools

    server = Server(
        agent.name,
        version=agent.version,
        description=about,
        instructions=f"{about} Call `ask` to talk to the agent.",
        # no header stands for an argument, so none is looked for in the schemas with every call
        get_tool_input_schema=lambda _: None,
        on_list_tools=list_tools,
    )
    server.add_request_handler("tools/call", CallToolRequestParams, partial(answer, exchange))
    server.middleware.clear()  # the SDK's own span of a call: each request has one already
    return server


class _Sessions:
    """Hands a request to the SDK's manager that has its session; the session's id shows the process.

    What comes for a session of another process, or of one that has ended, is served without: calls work on
    every replica, and only the answer to what was asked in the middle of a call needs the process that asked.
    A call without a session whose host asks for no progress is `plain`: answered in JSON, without a stream.
    """

    def __init__(self, server: Server, most: int) -> None:
        """`most` are the bytes of the largest body."""
        manager = partial(StreamableHTTPSessionManager, server, max_request_body_size=most)
        self._own, self._others = manager(), manager(stateless=True)
        self._plain = manager(stateless=True, json_response=True)
        self._mark = f"{uuid4().hex}.".encode()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self._own.run(), self._others.run(), self._plain.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: gate.AdmittedCall = scope[gate.SCOPE]
        # space around a header's value is no part of it (RFC 9110, section 5.5), nor is the mark of an id
        headers = [(name, value.strip(b" \t").removeprefix(self._mark)) for name, value in scope["headers"]]
        inner: Scope = {**scope, "headers": headers}
        if _is_plain(call):
            await sse.patiently(self._plain.handle_request, inner, receive, send)
            return
        mine = all(value.startswith(self._mark) for name, value in scope["headers"] if name == _SESSION)
        if not mine and call.body is not None and "method" not in call.body:
            call.refused = NotFound("The session in which this was asked has ended, or is another process's.")
            return
        # a session is its user's, whatever token they have got by now
        inner["user"] = AuthenticatedUser(AccessToken(token="", client_id=call.user.user.key, scopes=[]))
        if sse.HEAD in scope:
            inner["method"] = "HEAD"  # which the SDK refuses; a stream asked for so would never end
        manager = self._own if mine else self._others
        await sse.patiently(manager.handle_request, inner, receive, self._marking(send))

    def _marking(self, send: Send) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)
                return
            headers = [(n, self._mark + v if n == _SESSION else v) for n, v in message["headers"]]
            await send({**message, "headers": headers})
            # the gate holds the start back until something follows
            await send({"type": "http.response.body", "body": b"", "more_body": True})

        return marked


def _is_plain(call: gate.AdmittedCall) -> bool:
    match call.body:
        case {"method": "tools/call", "params": {"_meta": {**meta}}} if "progressToken" not in meta:
            return call.request.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
    return False
