"""AppV3: the application of `tealagents/v1alpha1`."""

import contextlib
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from tealagents.api import bodies
from tealagents.api.applications import methods_at
from tealagents.api.exchange import Exchange
from tealagents.api.http import FAULT, WrongMethod, nowhere, own_path, problem_response
from tealagents.api.origins import with_cors
from tealagents.api.protocols import Served
from tealagents.api.v1alpha1 import (
    approvals,
    discovery,
    docs,
    health,
    messages,
    oauth,
    problems,
    requests,
    sessions,
    task_views,
    tasks,
    tenant,
    time_travel,
)
from tealagents.api.v1alpha1.routing import InvalidQuery
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound, TealError


def build(exchange: Exchange, path: str) -> Served:
    """This API over an exchange, at the agent's own prefix."""
    app = AppV3(exchange)
    taken = (*_TAKEN_HEADERS, *exchange.agent.forward_headers)
    shown = with_cors(app, exchange.settings, *_GIVEN_HEADERS, allowed=taken)
    return Served(app=shown, path=path)


#: the parts of the API, in the order of the document
_PARTS = (
    messages.routes,
    sessions.routes,
    tasks.routes,
    task_views.routes,
    time_travel.routes,
    requests.routes,
    approvals.routes,
    tenant.routes,
    health.routes,
    oauth.routes,
)


class AppV3(Starlette):
    """The ASGI application for one agent."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(
            routes=[
                *(route for part in _PARTS for route in part.served(exchange.prefix)),
                *discovery.routes.served(""),
                *docs.routes(exchange, _PARTS),
            ]
        )
        self.router.redirect_slashes = False
        self.router.default = nowhere
        self.state.exchange = exchange
        self._add_error_handlers(exchange)

    def _add_error_handlers(self, exchange: Exchange) -> None:
        resource = exchange.resource(exchange.prefix)

        def refused(request: Request, error: TealError) -> Response:
            exchange.refused(error)
            return problems.respond(error, resource.challenge(request))

        async def teal_error(request: Request, error: Exception) -> Response:
            assert isinstance(error, TealError)
            return refused(request, error.with_ids(**_ids_of(request)))

        async def invalid(request: Request, error: Exception) -> Response:
            """What is wrong with a query is reported only to those who may call at all."""
            assert isinstance(error, InvalidQuery)
            try:
                await exchange.identify(request)
            except TealError as refusal:
                return refused(request, refusal)
            return refused(request, bodies.refusal(error.wrong))

        async def http(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            return refused(request, _no_route(request, error, self.routes, f"{exchange.prefix}/docs"))

        async def fault(_: Request, error: Exception) -> Response:
            exchange.faulty(error)  # Starlette raises it again, and the server logs it
            return problem_response(problems.problem("internal_error", FAULT))

        self.add_exception_handler(TealError, teal_error)
        self.add_exception_handler(InvalidQuery, invalid)
        self.add_exception_handler(HTTPException, http)
        self.add_exception_handler(Exception, fault)


#: headers that browsers may send from elsewhere besides those that tools may read, and those they may see
#: beside those of every protocol
_TAKEN_HEADERS = (
    *("authorization", "content-type", "idempotency-key", "last-event-id", "prefer"),
    *("traceparent", "tracestate"),
)
_GIVEN_HEADERS = ("idempotent-replayed", "location", "preference-applied")
#: what a path may name that an error names as well
_IDS = ("session_id", "task_id", "request_id")


def _ids_of(request: Request) -> dict[str, str]:
    """The ids that the path of a request names."""
    named = {}
    for name in _IDS:
        with contextlib.suppress(KeyError, InvalidRequest):
            named[name] = ids.canonical(request.path_params[name], name)
    return named


def _no_route(request: Request, error: HTTPException, routes: Sequence[BaseRoute], docs: str) -> TealError:
    path = own_path(request.scope)
    if error.status_code == 404:
        where = bodies.short(path)
        if request.scope["type"] == "websocket":
            return NotFound(f"There is no WebSocket at {where}: stream over HTTP. {docs} lists how.")
        return NotFound(f"There is nothing at {where}. {docs} lists what there is.")
    if error.status_code == 405:
        named = (error.headers or {}).get("Allow", "GET").split(", ")
        return WrongMethod(", ".join(sorted(methods_at(path, routes) or named)))
    return InvalidRequest("", str(error.detail), malformed=True)
