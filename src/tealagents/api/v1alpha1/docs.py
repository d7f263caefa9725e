"""The OpenAPI document, and a page on which the API can be read and tried.

All that the page needs comes from here: many a network has no way out, and a script from elsewhere would see
what is typed. Both are made when they are first asked for.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tealagents.api.exchange import Exchange
from tealagents.api.v1alpha1 import openapi
from tealagents.api.v1alpha1.context import exchange_of
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain.errors import NotFound

_routes = Routes(include_in_schema=False)

#: what the page loads
_SCRIPT, _STYLE = "swagger-ui-bundle.js", "swagger-ui.css"


def pages(exchange: Exchange, parts: Sequence[Routes]) -> list[BaseRoute]:
    """The routes of the document of these parts, and of the page."""
    agent, settings = exchange.agent, exchange.settings

    @cache
    def described() -> dict[str, Any]:
        return openapi.document(
            parts,
            exchange.prefix,
            title=agent.name,
            version=agent.version,
            description=settings.description,
            max_items=settings.max_items,
        )

    async def document(_: Request) -> Response:
        return JSONResponse(described())

    at = f"{exchange.prefix}/openapi.json"
    return [Route(at, document, include_in_schema=False), *_routes.served(exchange.prefix)]


@_routes.get("/docs")
async def page(request: Request) -> Response:
    from fastapi.openapi.docs import get_swagger_ui_html

    agent = exchange_of(request).agent
    return get_swagger_ui_html(
        title=f"{agent.name} {agent.version}",
        openapi_url="openapi.json",
        swagger_js_url=f"docs/{_SCRIPT}",
        swagger_css_url=f"docs/{_STYLE}",
        swagger_favicon_url="data:,",
    )


@_routes.get("/docs/{name}")
async def file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in (_SCRIPT, _STYLE):
        raise NotFound(f"There is no file {name} of the docs page.")
    folder = Path(str(files("fastapi_offline"))) / "static"
    return FileResponse(folder / name, headers={"cache-control": "public, max-age=86400"})
