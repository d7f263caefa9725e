"""The OpenAPI document, and a page on which the API can be read and tried.

All that the page needs comes from here: many a network has no way out, and a script from elsewhere would see
what is typed. Both are made when they are first asked for.
"""

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from tealagents.api.exchange import Exchange
from tealagents.api.v1alpha1 import openapi
from tealagents.api.v1alpha1.context import exchange_of
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain.errors import NotFound
from tealagents.state.codec import encode_json

#: what the page loads
_SCRIPT, _STYLE = "swagger-ui-bundle.js", "swagger-ui.css"


def pages(exchange: Exchange, parts: Sequence[Routes]) -> list[BaseRoute]:
    """The routes of the document of these parts, and of the page."""
    written = b""
    writing = asyncio.Lock()

    async def document(_: Request) -> Response:
        nonlocal written
        async with writing:
            # it takes long enough for streams to stand still, were it written on the event loop
            written = written or encode_json(await asyncio.to_thread(openapi.document, exchange, parts))
        return Response(written, media_type="application/json")

    served = {"openapi.json": document, "docs": _page, "docs/{name}": _file}
    return [Route(f"{exchange.prefix}/{at}", page, include_in_schema=False) for at, page in served.items()]


def _page(request: Request) -> Response:  # no coroutine, so it runs in a thread: see `document`
    from fastapi.openapi.docs import get_swagger_ui_html

    agent = exchange_of(request).agent
    return get_swagger_ui_html(
        title=f"{agent.name} {agent.version}",
        openapi_url="openapi.json",
        swagger_js_url=f"docs/{_SCRIPT}",
        swagger_css_url=f"docs/{_STYLE}",
        swagger_favicon_url="data:,",
    )


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in (_SCRIPT, _STYLE):
        raise NotFound(f"There is no file {name} of the docs page.")
    folder = Path(str(files("fastapi_offline"))) / "static"
    return FileResponse(folder / name, headers={"cache-control": "public, max-age=86400"})
