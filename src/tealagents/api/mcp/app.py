"""Puts the SDK's server together, behind the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.routing import Route, Router

from tealagents.api.exchange import Exchange
from tealagents.api.gate import Gate, nothing_here, with_cors
from tealagents.api.mcp.calls import Calls
from tealagents.api.mcp.documents import misplaced, respond
from tealagents.api.mcp.sessions import Sessions
from tealagents.api.origins import KnownOrigins
from tealagents.api.protocols import Served


def build(exchange: Exchange, path: str) -> Served:
    """The agent as an MCP server over streamable HTTP, at `path`.

    Hosts of 2026-07-28 have no sessions. Older ones do: they are asked about pauses while their call waits.
    """
    server, settings = _server(exchange), exchange.settings
    with_sessions, without = (
        StreamableHTTPSessionManager(
            server, stateless=stateless, max_request_body_size=settings.max_body_bytes
        )
        for stateless in (False, True)
    )
    sessions = Sessions(StreamableHTTPASGIApp(with_sessions), StreamableHTTPASGIApp(without))
    routes = Router([Route(each, sessions) for each in (path, path + "/")], False, nothing_here)
    gate = Gate(routes, exchange, path, respond)
    app = with_cors(KnownOrigins(gate, settings, misplaced), exchange, "mcp-session-id")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with with_sessions.run(), without.run():
            yield

    discovery = [exchange.resource(path).route()]
    return Served(app=app, path=path, discovery=discovery, urls={"url": path}, lifespan=lifespan)


def _server(exchange: Exchange) -> Server:
    agent, about, calls = exchange.agent, exchange.settings.description, Calls(exchange)
    return Server(
        agent.name,
        version=agent.version,
        description=about,
        instructions=f"{about} Call `ask` to talk to the agent.",
        get_tool_input_schema=calls.schemas.get,
        on_list_tools=calls.listed,
        on_call_tool=calls.call,
    )
