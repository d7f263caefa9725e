"""The application of A2A: the SDK's routes behind the gate, and the agent card."""

import logging
from functools import partial
from typing import cast

from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH as CARD
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tealagents.api import gate
from tealagents.api.a2a.card import agent_card
from tealagents.api.a2a.errors import respond
from tealagents.api.a2a.handler import Handler
from tealagents.api.exchange import Exchange
from tealagents.api.protocols import Served


class _Contexts(ServerCallContextBuilder):
    """Hands the call on, which the gate has authenticated."""

    def build(self, request: Request) -> ServerCallContext:
        return ServerCallContext(state={"call": request.scope[gate.SCOPE], "headers": dict(request.headers)})


def build(exchange: Exchange, path: str) -> Served:
    """A2A over an exchange, at `path`."""
    logging.getLogger("a2a").setLevel(logging.CRITICAL)  # it quotes what was sent; refusals are logged here
    handler, contexts, resource = Handler(exchange), _Contexts(), exchange.resource(path)

    async def card(request: Request) -> Response:
        found = agent_card(exchange, resource.url(request))
        [route] = create_agent_card_routes(found, cache_control="public, max-age=300")
        return cast(Response, await route.endpoint(request))

    rpc = partial(create_jsonrpc_routes, handler, context_builder=contexts, enable_v0_3_compat=True)
    rest = create_rest_routes(handler, contexts, path_prefix=path)
    # JSON-RPC also with a slash, which clients add; no routes for tenants, which there are not
    routes = [*rpc(path), *rpc(path + "/"), *(each for each in rest if isinstance(each, Route))]
    calls = gate.Gate(Router(routes, False, gate.nothing_here), exchange, path, respond)
    app = gate.with_cors(Router([Route(path + CARD, card)], False, calls), exchange)
    at_root = [Route(CARD, card), resource.route()]
    return Served(app=app, path=path, discovery=at_root, urls={"url": path, "card": CARD})
