"""The pages on which an API can be read and tried; all they load comes from here.

Many networks have no internet access, and a script from elsewhere could read what is typed. The page
functions are not coroutines, so they run in a thread: importing FastAPI would block the event loop
noticeably.
"""

from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from tealagents.domain.errors import NotFound

#: what the pages load
_SCRIPT, _STYLE, _REDOC = "swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js"


def pages(prefix: str, title: str, *, redoc: bool = False) -> list[BaseRoute]:
    """The routes of `docs`, and if wanted of `redoc`, which show the `openapi.json` beside them."""

    def docs(_: Request) -> Response:
        from fastapi.openapi.docs import get_swagger_ui_html

        return get_swagger_ui_html(
            title=title,
            openapi_url="openapi.json",
            swagger_js_url=f"docs/{_SCRIPT}",
            swagger_css_url=f"docs/{_STYLE}",
            swagger_favicon_url="data:,",
        )

    def in_redoc(_: Request) -> Response:
        from fastapi.openapi.docs import get_redoc_html

        return get_redoc_html(
            title=title,
            openapi_url="openapi.json",
            redoc_js_url=f"docs/{_REDOC}",
            redoc_favicon_url="data:,",
            with_google_fonts=False,
        )

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in (_SCRIPT, _STYLE) and not (redoc and name == _REDOC):
            raise NotFound(f"There is no file {name} of the docs page.")
        folder = Path(str(files("fastapi_offline"))) / "static"
        return FileResponse(folder / name, headers={"cache-control": "public, max-age=86400"})

    served = {"docs": docs, "docs/{name}": file, **({"redoc": in_redoc} if redoc else {})}
    return [Route(f"{prefix}/{at}", page, include_in_schema=False) for at, page in served.items()]
