"""The pages on which the API can be read; all they load comes from here.

No coroutines: they run in a thread, since importing FastAPI takes long enough for streams to stand still.
"""

from functools import partial
from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from tealagents.domain.errors import NotFound

#: what the pages load
_DOCS_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js")


def pages(prefix: str, title: str) -> list[BaseRoute]:
    """Their routes; `title` is the agent's name and version."""
    return [
        Route(f"{prefix}/docs", partial(_docs, prefix, title)),
        Route(f"{prefix}/redoc", partial(_redoc, prefix, title)),
        Route(f"{prefix}/docs/{{name}}", _docs_file),
    ]


def _docs(prefix: str, title: str, _: Request) -> Response:
    from fastapi.openapi.docs import get_swagger_ui_html

    return get_swagger_ui_html(
        title=title,
        openapi_url=f"{prefix}/openapi.json",
        swagger_js_url=f"{prefix}/docs/{_DOCS_FILES[0]}",
        swagger_css_url=f"{prefix}/docs/{_DOCS_FILES[1]}",
        swagger_favicon_url="data:,",
    )


def _redoc(prefix: str, title: str, _: Request) -> Response:
    from fastapi.openapi.docs import get_redoc_html

    return get_redoc_html(
        title=title,
        openapi_url=f"{prefix}/openapi.json",
        redoc_js_url=f"{prefix}/docs/{_DOCS_FILES[2]}",
        redoc_favicon_url="data:,",
        with_google_fonts=False,
    )


async def _docs_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _DOCS_FILES:
        raise NotFound("There is no such file of the docs pages.")
    folder = Path(str(files("fastapi_offline"))) / "static"
    return FileResponse(folder / name, headers={"cache-control": "public, max-age=86400"})
