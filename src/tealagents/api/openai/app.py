"""Puts the routes and the handlers of errors together."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tealagents.api import bodies
from tealagents.api.bearer import WELL_KNOWN
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.openai import chat, documents, errors, names
from tealagents.api.openai.conversations import Conversations
from tealagents.api.openai.responses import Responses
from tealagents.api.protocols import Served
from tealagents.domain.errors import NotFound, NotOwner, TealError

#: headers of answers that pages of other origins may see
_GIVEN_HEADERS = (
    *("idempotent-replayed", "retry-after", "www-authenticate", "x-conversation-id", "x-request-id"),
    "x-should-retry",
)


def build(exchange: Exchange, path: str) -> Served:
    """OpenAI's API over an exchange, at `path`, which is what its clients take as `base_url`."""
    resource = exchange.resource(path)

    async def protected_resource(request: Request) -> Response:
        return json_response(resource.document(request, path))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, TealError)
        exchange.refused(error)
        if isinstance(error, NotOwner):
            error = NotFound("There is nothing with this id. Check it; it may have been deleted.")
        return errors.respond(error, resource.challenge(request))

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = bodies.short(request.url.path)
        if error.status_code == 405:
            message = f"{request.method} is not possible at {where}."
            return errors.respond_plain(405, "method_not_allowed", message, error.headers)
        return await refused(request, NotFound(f"There is nothing at {where}."))

    routes = [
        *_models(exchange, path),
        *Responses(exchange, path).routes(),
        *Conversations(exchange, path).routes(),
        *chat.routes(exchange, path),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={TealError: refused, HTTPException: no_route, Exception: _fault},
        middleware=_middleware(exchange),
    )
    app.router.redirect_slashes = False
    discovery = [Route(WELL_KNOWN + path, protected_resource, methods=["GET"])]
    return Served(app=app, path=path, discovery=discovery, urls={"base_url": path})


def _middleware(exchange: Exchange) -> list[Middleware]:
    origins = exchange.settings.cors_origins
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            # the SDK sends a dozen of its own, which say what it runs on
            allow_headers=["*"],
            expose_headers=_GIVEN_HEADERS,
        )
    ]


async def _fault(_: Request, error: Exception) -> Response:
    detail = "Internal error. Retry the request; if it persists, contact the operator."
    return errors.respond_plain(500, "internal_error", detail)


def _models(exchange: Exchange, path: str) -> list[Route]:
    """The agent is the one model there is."""
    name = exchange.agent.name

    async def listed(request: Request) -> Response:
        await exchange.identify(request)
        return json_response({"object": "list", "data": [documents.model(name)]})

    async def one(request: Request) -> Response:
        await exchange.identify(request)
        wanted = request.path_params["model"]
        if wanted != name:
            raise names.unknown("model", wanted)
        return json_response(documents.model(name))

    return [
        Route(f"{path}/models", listed, methods=["GET"]),
        Route(f"{path}/models/{{model}}", one, methods=["GET"]),
    ]
