"""Puts the SDK's server together, behind the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tealagents.api import gate, sse
from tealagents.api.exchange import Exchange
from tealagents.api.mcp.calls import Calls
from tealagents.api.mcp.documents import refused, respond
from tealagents.api.origins import KnownOrigins
from tealagents.api.protocols import Served
from tealagents.domain.errors import NotFound

_SESSION = b"mcp-session-id"


def build(exchange: Exchange, path: str) -> Served:
    """The agent at `path`. Hosts before 2026-07-28 have sessions: they are asked while their call waits."""
    server = _server(exchange)
    most = exchange.settings.max_body_bytes
    manager = partial(StreamableHTTPSessionManager, server, max_request_body_size=most)
    with_sessions, without = manager(), manager(stateless=True)
    plain = manager(stateless=True, json_response=True)
    sessions = _Sessions(*map(StreamableHTTPASGIApp, (with_sessions, without, plain)))
    routes = Router([Route(each, sessions) for each in (path, path + "/")], False, gate.nothing_here)
    admitted = KnownOrigins(gate.Gate(routes, exchange, path, respond), exchange.settings, refused)
    app = gate.with_cors(admitted, exchange, "mcp-session-id")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with with_sessions.run(), without.run(), plain.run():
            yield

    known = exchange.resource(path).route()
    return Served(app=app, path=path, discovery=[known], urls={"url": path}, lifespan=lifespan)


def _server(exchange: Exchange) -> Server:
    agent, about, calls = exchange.agent, exchange.settings.description, Calls(exchange)
    server = Server(
        agent.name,
        version=agent.version,
        description=about,
        instructions=f"{about} Call `ask` to talk to the agent.",
        # no header stands for an argument, so none is looked for in the schemas with every call
        get_tool_input_schema=lambda _: None,
        on_list_tools=calls.listed,
        on_call_tool=calls.call,
    )
    server.middleware.clear()  # the SDK's own span of a call: each request has one already
    return server


class _Sessions:
    """Hands a request to the SDK's application that has its session; the session's id shows the process.

    What comes for a session of another process, or of one that has ended, is served without: calls work on
    every replica, and only the answer to what was asked in the middle of a call needs the process that asked.
    A call without a session whose host asks for no progress is `plain`: answered in JSON, without a stream.
    """

    def __init__(self, own: ASGIApp, others: ASGIApp, plain: ASGIApp) -> None:
        self._own = own
        self._others = others
        self._plain = plain
        self._mark = f"{uuid4().hex}.".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: gate.AdmittedCall = scope[gate.SCOPE]
        named = [value for name, value in scope["headers"] if name == _SESSION]
        mine = all(value.startswith(self._mark) for value in named)
        if not mine and call.body is not None and "method" not in call.body:
            call.refused = NotFound("The session in which this was asked has ended, or is another process's.")
            return
        inner: Scope = {**scope, "headers": [self._bare(header) for header in scope["headers"]]}
        async with sse.patient(scope, send) as patient:
            if _is_plain(call):
                await self._plain(inner, receive, patient)
                return
            # a session is its user's, whatever token they have got by now
            inner["user"] = AuthenticatedUser(AccessToken(token="", client_id=call.user.user.key, scopes=[]))
            if sse.HEAD in scope:
                inner["method"] = "HEAD"  # which the SDK refuses; a stream asked for so would never end
            await (self._own if mine else self._others)(inner, receive, self._marking(patient))

    def _bare(self, header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """A header as the SDK shall see it; space around a value is no part of it (RFC 9110, section 5.5)."""
        name, value = header[0], header[1].strip(b" \t")
        return name, value.removeprefix(self._mark) if name == _SESSION else value

    def _marking(self, send: Send) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(n, self._mark + v if n == _SESSION else v) for n, v in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)
            if message["type"] == "http.response.start":  # which the gate holds back until something follows
                await send({"type": "http.response.body", "body": b"", "more_body": True})

        return marked


def _is_plain(call: gate.AdmittedCall) -> bool:
    match call.body:
        case {"method": "tools/call", "params": {"_meta": {"progressToken": _}}}:
            return False
        case {"method": "tools/call"}:
            return call.request.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
    return False
