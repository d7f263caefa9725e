"""Puts the SDK's server together, behind the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.runner import modern_error_data, modern_on_request
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared import inbound
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp_types import CallToolRequestParams, InitializeRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tealagents.api import bodies, gate, questions, sse
from tealagents.api.exchange import Exchange
from tealagents.api.http import in_one_line, rpc_response, with_headers
from tealagents.api.mcp.calls import answer, named
from tealagents.api.mcp.documents import how_of, respond
from tealagents.api.mcp.tools import listed
from tealagents.api.open_calls import OpenCalls
from tealagents.api.origins import KnownOrigins, with_cors
from tealagents.api.protocols import Served
from tealagents.api.settings import ApiSettings
from tealagents.domain.errors import Overloaded
from tealagents.domain.models import Json

_SESSION, _OLDER = b"mcp-session-id", (None, *HANDSHAKE_PROTOCOL_VERSIONS)
#: sessions that may be open at once, of one user and in the process; one that is idle for 30 minutes ends
MOST_PER_USER, MOST_SESSIONS = 1000, 10_000


def build(exchange: Exchange, path: str) -> Served:
    """The agent at `path`. Hosts before 2026-07-28 have sessions: they are asked while their call waits."""
    agent, settings, calls = exchange.agent, exchange.settings, OpenCalls(exchange)
    about, name, known = settings.description, agent.name, exchange.resource(path).route()
    said: Json = {"description": about, "instructions": f"{about} Call `ask` to talk to the agent."}
    server = Server(name, version=agent.version, **said, on_list_tools=partial(listed, name, about))
    server.add_request_handler("tools/call", CallToolRequestParams, partial(answer, calls))
    server.middleware.clear()  # the SDK's own span of a call: each request has one already
    sessions = _Sessions(server, settings, calls)
    routes = Router([Route(each, sessions) for each in (path, path + "/")], False, gate.nothing_here)
    gated = gate.Gate(routes, exchange, path, respond, check=_check, holds=False)
    app = with_cors(KnownOrigins(gated, settings), settings, "mcp-session-id")
    return Served(app=app, path=path, discovery=[known], urls={"url": path}, lifespan=sessions.open)


def _check(call: gate.AdmittedCall, _: int) -> None:
    """Refuses what would keep a session, or be kept in one; wrong ids, `Accept`, and too many answers."""
    call.check_id()
    call.check_accept("application/json", "text/event-stream")
    if call.rpc_method == "initialize" and call.request.headers.get("mcp-protocol-version") in _OLDER:
        bodies.check_kept(call.body, call.size, call.request.scope)
        bodies.validated(InitializeRequest, call.body, by_name=False)  # the SDK refuses it in a session
    bodies.check_count(call.rpc_params.get("inputResponses"), bodies.MISTAKES, "params.inputResponses")


class _Manager(StreamableHTTPSessionManager):
    """The SDK's manager, in which no user has all the sessions."""

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport:
        if sum(owner == requestor for owner in self._session_owners.values()) >= MOST_PER_USER:
            raise Overloaded("You have too many open sessions: end some, or wait 30 minutes.", per_user=True)
        if (admitted := super()._admit_session(requestor)) is None:
            raise Overloaded("Too many sessions are open in this process. Try again shortly.")
        return admitted


class _Sessions:
    """Hands a request to the SDK's manager that has its session; its id shows the process, and `how_of`.

    What comes for a session of another process, or of one that has ended, is served without: calls and
    answers to their questions work on every replica. What cancels a call or ends a session needs its process.
    """

    def __init__(self, server: Server, settings: ApiSettings, calls: OpenCalls) -> None:
        self._calls, self._keepalive, most = calls, settings.keepalive_seconds, settings.max_body_bytes
        manager = partial(_Manager, server, max_request_body_size=most, max_sessions=MOST_SESSIONS)
        self._own, self._others = manager(), manager(stateless=True)
        self._serve = modern_on_request(server, None)
        self._mark = f"{uuid4().hex}.".encode()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self._own.run(), self._others.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: gate.AdmittedCall = scope[gate.SCOPE]
        if (response := self._by_kernel(call)) is not None:
            await response(scope, receive, send)
            return
        if call.rpc_method == "notifications/cancelled":
            self._calls.give_up(named(call, cancelled_request_id_from_params(call.rpc_params)))
        mine = all(value.startswith(self._mark) for name, value in scope["headers"] if name == _SESSION)
        if await questions.taken(self._calls.exchange, call, all_of_them=not mine):
            return
        # events have no ids, so nothing can be replayed; to a Last-Event-ID the SDK would not respond at all
        headers = in_one_line(scope["headers"], b"accept", without=b"last-event-id")
        headers = [(name, v.rpartition(b".")[2] if name == _SESSION else v) for name, v in headers]
        # a session is its user's, whatever token they have got by now
        user = AuthenticatedUser(AccessToken(token="", client_id=call.caller.user.key, scopes=[]))
        inner: Scope = {**scope, "headers": headers, "user": user}
        mark = b"%b%b." % (self._mark, how_of(call).encode())
        marked = with_headers(send, lambda said: [(n, mark + v if n == _SESSION else v) for n, v in said])
        name = named(call, call.rpc_id) if _SESSION in dict(headers) and call.awaits_response else None
        # in its session, an open call of the same id, whose client may have left, would send its result here
        manager = self._own if mine and name not in self._calls else self._others
        with self._calls.known(name), call.refusing():
            await sse.patiently(manager.handle_request, inner, receive, marked, self._keepalive)

    def _by_kernel(self, call: gate.AdmittedCall) -> ASGIApp | None:
        """Answers a call of 2026-07-28 by the SDK's kernel alone, at half the cost; None for all else."""
        request, body = call.request, call.body or {}
        route = inbound.classify_inbound_request(body, headers=request.headers)
        if (
            isinstance(route, inbound.InboundLadderRejection)
            or inbound.find_duplicated_routing_header(request.headers.items())
            or (request.method, body.get("jsonrpc"), body.get("method")) != ("POST", "2.0", "tools/call")
            or call.rpc_id is None
        ):
            return None
        params, events = body["params"], sse.Announcements()

        async def progress(number: float, _: object, text: str) -> None:
            said = {"progressToken": params["_meta"]["progressToken"], "progress": number, "message": text}
            await events.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": said})

        # all that is asked of the context of a call in which the host is not asked anything
        about = ServerMessageMetadata(request_context=request)
        context: Any = SimpleNamespace(request_id=call.rpc_id, message_metadata=about, progress=progress)
        return partial(events.before, self._answered(context, params), self._keepalive)

    async def _answered(self, context: Any, params: Json) -> Response:
        try:
            return rpc_response(context.request_id, result=await self._serve(context, "tools/call", params))
        except Exception as error:  # noqa: BLE001 — the SDK words it, and logs a fault
            wrong = modern_error_data(error)
            status = inbound.ERROR_CODE_HTTP_STATUS.get(wrong.code, 200)
            return rpc_response(context.request_id, status=status, error=wrong.model_dump(exclude_none=True))
