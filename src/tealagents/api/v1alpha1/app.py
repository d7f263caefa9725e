"""AppV3: the application of `tealagents/v1alpha1`."""

import contextlib
import logging
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tealagents.api import bodies
from tealagents.api.exchange import Exchange
from tealagents.api.protocols import Served
from tealagents.api.v1alpha1 import (
    approvals,
    discovery,
    health,
    messages,
    oauth,
    openapi,
    problems,
    requests,
    sessions,
    task_views,
    tasks,
    tenant,
    time_travel,
)
from tealagents.domain import ids
from tealagents.domain.errors import InsufficientScope, InvalidRequest, NotFound, TealError, Unauthenticated

log = logging.getLogger(__name__)


def build(exchange: Exchange, path: str) -> Served:
    """This API over an exchange, at the agent's own prefix."""
    return Served(app=AppV3(exchange).build(), path=path)


class AppV3:
    """Builds the ASGI application for one agent."""

    api_version = "tealagents/v1alpha1"

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def build(self) -> FastAPI:
        exchange, prefix = self._exchange, self._exchange.prefix
        agent, settings = exchange.agent, exchange.settings
        app = FastAPI(
            title=agent.name,
            version=agent.version,
            description=settings.description,
            openapi_url=f"{prefix}/openapi.json",
            docs_url=None,  # FastAPI's own page loads its scripts from another host
            redoc_url=None,
            redirect_slashes=False,
            # the host observes requests, whatever the protocol
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        )
        app.state.exchange = exchange
        for module in (
            messages,
            sessions,
            tasks,
            task_views,
            time_travel,
            requests,
            approvals,
            tenant,
            health,
            oauth,
        ):
            app.include_router(module.routes, prefix=prefix)
        app.include_router(discovery.routes)
        self._add_docs(app)
        self._add_error_handlers(app)
        if settings.cors_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["*"],
                allow_headers=_TAKEN_HEADERS,
                expose_headers=_GIVEN_HEADERS,
            )
        self._describe(app)
        return app

    def _describe(self, app: FastAPI) -> None:
        def document() -> dict[str, Any]:
            if app.openapi_schema is None:
                made = get_openapi(
                    title=app.title, version=app.version, description=app.description, routes=app.routes
                )
                app.openapi_schema = openapi.complete(
                    made,
                    max_items=self._exchange.settings.max_items,
                    description=app.description,
                )
            return app.openapi_schema

        app.openapi = document  # type: ignore[method-assign]

    def _add_docs(self, app: FastAPI) -> None:
        """The page on which the API can be read and tried. All it needs comes from here: many a network has
        no way out, and a script from elsewhere would see what is typed."""
        page = get_swagger_ui_html(
            title=f"{app.title} {app.version}",
            openapi_url="openapi.json",
            swagger_js_url=f"docs/{_DOCS_FILES[0]}",
            swagger_css_url=f"docs/{_DOCS_FILES[1]}",
            swagger_favicon_url="data:,",
        )

        @app.get(f"{self._exchange.prefix}/docs", include_in_schema=False)
        async def docs() -> Response:
            return page

        @app.get(f"{self._exchange.prefix}/docs/{{name}}", include_in_schema=False)
        async def docs_file(name: str) -> Response:
            if name not in _DOCS_FILES:
                raise NotFound(f"There is no file {name} of the docs page.")
            folder = Path(str(files("fastapi_offline"))) / "static"
            return FileResponse(folder / name, headers={"cache-control": "public, max-age=86400"})

    def _add_error_handlers(self, app: FastAPI) -> None:
        exchange = self._exchange
        resource = exchange.resource(exchange.prefix)

        def refused(request: Request, error: TealError) -> Response:
            exchange.refused(error)
            lacking = isinstance(error, Unauthenticated | InsufficientScope)
            return problems.respond(error, challenge=resource.challenge(request) if lacking else "Bearer")

        async def teal_error(request: Request, error: Exception) -> Response:
            assert isinstance(error, TealError)
            return refused(request, error.with_ids(**_ids_of(request)))

        async def invalid(request: Request, error: Exception) -> Response:
            """What is wrong with a query is reported only to those who may call at all."""
            assert isinstance(error, RequestValidationError)
            try:
                await exchange.identify(request)
            except TealError as refusal:
                return refused(request, refusal)
            return refused(request, bodies.refusal(_shortened(error)))

        async def http(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            return _no_route(request, error, app.openapi()["paths"], f"{exchange.prefix}/docs")

        async def fault(_: Request, error: Exception) -> Response:
            detail = "Internal error. Retry the request; if it persists, contact the operator."
            return problems.problem_response(problems.problem("internal_error", detail))

        app.add_exception_handler(TealError, teal_error)
        app.add_exception_handler(RequestValidationError, invalid)
        app.add_exception_handler(HTTPException, http)
        app.add_exception_handler(Exception, fault)


#: what the docs page loads, in the order of its arguments
_DOCS_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")

#: headers that browsers may send from elsewhere, and those they may see
_TAKEN_HEADERS = (
    *("authorization", "content-type", "idempotency-key", "last-event-id", "prefer"),
    *("traceparent", "tracestate"),
)
_GIVEN_HEADERS = (
    *("idempotent-replayed", "location", "preference-applied", "retry-after", "www-authenticate"),
)
#: what a path may name that an error names as well
_IDS = ("session_id", "task_id", "request_id")


def _shortened(error: RequestValidationError) -> Any:
    """FastAPI's errors without `query` and `path` in front of the field."""
    return [{**e, "loc": tuple(e["loc"])[1:] or e["loc"]} for e in error.errors()]


def _ids_of(request: Request) -> dict[str, str]:
    """The ids that the path of a request names."""
    named = {}
    for name in _IDS:
        with contextlib.suppress(KeyError, InvalidRequest):
            named[name] = ids.canonical(request.path_params[name], name)
    return named


def _no_route(request: Request, error: HTTPException, paths: Mapping[str, Any], docs: str) -> Response:
    path = request.scope["path"]
    if error.status_code == 404:
        where = bodies.short(path)
        return problems.respond(NotFound(f"There is nothing at {where}. {docs} lists what there is."))
    if error.status_code == 405:
        headers = dict(error.headers or {})
        if methods := _methods_at(path, paths):
            headers["Allow"] = ", ".join(sorted(methods))
        allowed = headers.get("Allow") or headers.get("allow") or "another method"
        detail = f"{request.method} is not possible here: use {allowed}."
        return problems.problem_response(problems.problem("method_not_allowed", detail), headers=headers)
    return problems.respond(InvalidRequest("", str(error.detail), malformed=True))


def _methods_at(path: str, paths: Mapping[str, Any]) -> set[str]:
    """All methods of a path: FastAPI's own error names those of the first of its routes only."""
    if path in paths:
        return {method.upper() for method in paths[path]}
    parts = path.split("/")
    return {
        method.upper()
        for template, operations in paths.items()
        if len(segments := template.split("/")) == len(parts)
        and all(wanted[:1] == "{" or wanted == part for wanted, part in zip(segments, parts, strict=True))
        for method in operations
    }
