"""The OpenAPI document, made when it is first asked for, and the page that shows it."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tealagents.api import pages
from tealagents.api.exchange import Exchange
from tealagents.api.v1alpha1 import openapi
from tealagents.api.v1alpha1.routing import Routes
from tealagents.state.codec import encode_json


def routes(exchange: Exchange, parts: Sequence[Routes]) -> list[BaseRoute]:
    """The routes of the document of these parts, and of the page."""
    written = b""
    writing = asyncio.Lock()

    async def document(_: Request) -> Response:
        nonlocal written
        try:
            async with writing:
                # it takes long enough for streams to stand still, were it written on the event loop
                written = written or encode_json(await asyncio.to_thread(openapi.document, exchange, parts))
        except asyncio.CancelledError as canceled:
            raise exchange.cut_off(canceled) from None
        return Response(written, media_type="application/json")

    agent, prefix = exchange.agent, exchange.prefix
    made = Route(f"{prefix}/openapi.json", document, include_in_schema=False)
    return [made, *pages.pages(prefix, f"{agent.name} {agent.version}")]
