"""Routes that FastAPI describes, and that are called without it where it has nothing to resolve."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import request_response
from starlette.types import ASGIApp, Receive, Scope, Send


class DirectRoute(APIRoute):
    """Calls an endpoint that takes the request alone as Starlette would: it is a tenth of a turn less."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        alone = [*signature(endpoint).parameters] == ["request"]
        self._direct: ASGIApp | None = request_response(endpoint) if alone else None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._direct is not None and scope["method"] in (self.methods or ()):
            await self._direct(scope, receive, send)
        else:
            await super().handle(scope, receive, send)
