"""The application of A2A: the SDK's routes behind the gate, and the agent card."""

import logging
import re
from functools import partial
from typing import cast, get_args

from a2a.compat.v0_3.types import A2ARequest
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.routes.rest_dispatcher import RestDispatcher
from a2a.types import a2a_pb2 as pb
from a2a.utils import telemetry
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH as CARD
from google.protobuf.json_format import ParseDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tealagents.api import gate, http
from tealagents.api.a2a.documents import INPUT_MODES
from tealagents.api.a2a.errors import respond
from tealagents.api.a2a.handler import Handler
from tealagents.api.exchange import Exchange
from tealagents.api.origins import with_cors
from tealagents.api.protocols import Served
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Json

#: bindings and versions, the preferred one first
_SPOKEN = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"))
# the SDK's spans cost a tenth of a turn, and their wrappers keep each error's frames, and so the message
for _dispatcher in (JsonRpcDispatcher, RestDispatcher):
    for _name, _each in [*vars(_dispatcher).items()]:
        if getattr(_each, "__globals__", None) is vars(telemetry):
            setattr(_dispatcher, _name, _each.__wrapped__)
_UNREADABLE = "cannot be read. Check base64 and its padding, numbers over 32 bits, and nesting over 30 levels"


class _Contexts(ServerCallContextBuilder):
    """Hands the call on, which the gate has authenticated. Its version may come in the query instead."""

    def build(self, request: Request) -> ServerCallContext:
        call: gate.AdmittedCall = request.scope[gate.SCOPE]
        version = request.headers.get("a2a-version") or request.query_params.get("A2A-Version", "")
        # the SDK compares major versions alone, and calls what is wrong with a call of 0.3 an internal error
        if call.is_rpc and "/" in call.rpc_method:
            if not re.fullmatch(r"(0\.3(\.[0-9]+)?)?", version):
                call.refuse(InvalidRequest("A2A-Version", f"must be 0.3, or omitted, for {call.rpc_method}"))
            call.refused = InvalidRequest("params", _UNREADABLE)
        elif not re.fullmatch(r"1\.0(\.[0-9]+)?", version):
            call.refuse(InvalidRequest("A2A-Version", "must be 1.0; a call without it counts as 0.3"))
        return ServerCallContext(state={"call": call, "headers": {"a2a-version": version}})


def build(exchange: Exchange, path: str) -> Served:
    """A2A over an exchange, at `path`."""
    logging.getLogger("a2a").setLevel(logging.CRITICAL)  # it quotes what was sent; refusals are logged here
    handler, contexts, resource = Handler(exchange), _Contexts(), exchange.resource(path)

    async def card(request: Request) -> Response:
        found = _agent_card(exchange, resource.url(request))
        [route] = create_agent_card_routes(found, cache_control="public, max-age=300")
        return cast(Response, await route.endpoint(request))

    rpc = partial(create_jsonrpc_routes, handler, context_builder=contexts, enable_v0_3_compat=True)
    rest = create_rest_routes(handler, contexts, path_prefix=path)
    # JSON-RPC also with a slash, which clients add; no routes for tenants, which there are not
    routes = [*rpc(path), *rpc(path + "/"), *(each for each in rest if isinstance(each, Route))]
    check = gate.bounded("message.parts", get_args(A2ARequest.model_fields["root"].annotation))
    calls = gate.Gate(Router(routes, False, gate.nothing_here), exchange, path, respond, check=check)
    app = with_cors(Router([http.DocumentRoute(path + CARD, card)], False, calls), exchange.settings)
    at_root = [http.DocumentRoute(CARD, card), resource.route()]
    return Served(app=app, path=path, discovery=at_root, urls={"url": path, "card": CARD})


def _agent_card(exchange: Exchange, url: str) -> pb.AgentCard:
    """What the config says of the agent, where it answers (clients see it at `url`), how to authenticate."""
    said = {"name": exchange.agent.name, "description": exchange.settings.description}
    # an agent that names no skill has one, which is to answer
    skill = {**said, "id": exchange.agent.name, "tags": [exchange.agent.name]}
    name, scheme, scopes = _security(exchange.authenticator.resource_metadata(url) or {})
    document: Json = {
        **said,
        "version": exchange.agent.version,
        "documentationUrl": f"{url.rpartition('/')[0]}/docs",
        "supportedInterfaces": [{"url": url, "protocolBinding": b, "protocolVersion": v} for b, v in _SPOKEN],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "securitySchemes": {name: scheme},
        "securityRequirements": [{"schemes": {name: {"list": scopes}}}],
        "defaultInputModes": INPUT_MODES,
        "defaultOutputModes": ["text/plain"],
        "skills": [{**skill, **each} for each in exchange.settings.skills or [{}]],
    }
    return ParseDict(document, pb.AgentCard())


def _security(metadata: Json) -> tuple[str, Json, list[str]]:
    """Whose tokens are taken, by OpenID Connect, and with which scopes; any, where no issuer is named."""
    if not (issuers := metadata.get("authorization_servers")):
        return "bearer", {"httpAuthSecurityScheme": {"scheme": "Bearer"}}, []
    found = {"openIdConnectUrl": f"{issuers[0]}/.well-known/openid-configuration"}
    return "openIdConnect", {"openIdConnectSecurityScheme": found}, metadata.get("scopes_supported") or []
