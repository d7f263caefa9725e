"""The pages on which the API can be read; all they load comes from here."""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from tealagents.domain.errors import NotFound

#: what the pages load
_DOCS_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js")


def pages(prefix: str, title: str) -> list[BaseRoute]:
    """Their routes; `title` is the agent's name and version."""
    docs = get_swagger_ui_html(
        title=title,
        openapi_url=f"{prefix}/openapi.json",
        swagger_js_url=f"{prefix}/docs/{_DOCS_FILES[0]}",
        swagger_css_url=f"{prefix}/docs/{_DOCS_FILES[1]}",
        swagger_favicon_url="data:,",
    )
    redoc = get_redoc_html(
        title=title,
        openapi_url=f"{prefix}/openapi.json",
        redoc_js_url=f"{prefix}/docs/{_DOCS_FILES[2]}",
        redoc_favicon_url="data:,",
        with_google_fonts=False,
    )
    return [
        Route(f"{prefix}/docs", _always(docs)),
        Route(f"{prefix}/redoc", _always(redoc)),
        Route(f"{prefix}/docs/{{name}}", _docs_file),
    ]


def _always(page: Response) -> Callable[[Request], Awaitable[Response]]:
    async def shown(_: Request) -> Response:
        return page

    return shown


async def _docs_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _DOCS_FILES:
        raise NotFound("There is no such file of the docs pages.")
    folder = Path(str(files("fastapi_offline"))) / "static"
    return FileResponse(folder / name, headers={"cache-control": "public, max-age=86400"})
