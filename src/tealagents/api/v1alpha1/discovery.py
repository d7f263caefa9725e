"""What anyone may know: the agent that is served here, and how to be let in."""

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.bearer import WELL_KNOWN
from tealagents.api.http import json_response
from tealagents.api.v1alpha1.context import exchange_of
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain.models import Json

routes = Routes(include_in_schema=False)


@routes.get("/")
async def root(request: Request) -> Response:
    exchange = exchange_of(request)
    others = {name: urls for name, urls in exchange.urls.items() if urls}
    listed: Json = {
        "name": exchange.agent.name,
        "version": exchange.agent.version,
        "description": exchange.settings.description,
        "url": exchange.prefix,
        "docs": f"{exchange.prefix}/docs",
        "openapi": f"{exchange.prefix}/openapi.json",
    }
    if exchange.settings.console is not None:
        listed["console"] = exchange.settings.console
    listed["metadata"] = exchange.settings.metadata
    return json_response({"agents": [listed | ({"protocols": others} if others else {})]})


@routes.get(WELL_KNOWN)
@routes.get(WELL_KNOWN + "/{path:path}")
async def protected_resource(request: Request) -> Response:
    exchange = exchange_of(request)
    path = request.path_params.get("path")
    below = "" if path is None else f"/{path}"
    return json_response(exchange.resource(exchange.prefix).document(request, below))
