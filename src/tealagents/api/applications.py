"""The application of one protocol: its routes, errors, protected resource, and responses that take long."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tealagents.api import bodies, sse
from tealagents.api.bearer import refusal_headers
from tealagents.api.exchange import Exchange
from tealagents.api.http import Refuse, WrongMethod, own_path
from tealagents.api.origins import with_cors
from tealagents.api.protocols import Served
from tealagents.domain.errors import NotFound, TealError

#: what an authenticated request to a path is answered with: takes the exchange, the caller, the request, and
#: the parameters of the path by their names
Handler = Callable[..., Awaitable[Response]]


def routes(exchange: Exchange, path: str, table: Iterable[tuple[str, str, Handler]]) -> list[Route]:
    """The routes of a table: method, path below the protocol's, and what answers an authenticated caller."""
    return [
        Route(path + below, _Authenticated(exchange, handler), methods=[method])
        for method, below, handler in table
    ]


def methods_at(path: str, routes: Iterable[BaseRoute]) -> set[str]:
    """All methods of a path that is served: Starlette's own error names those of the first of its routes."""
    there = [
        each
        for each in routes
        if isinstance(each, Route) and each.include_in_schema and each.path_regex.match(path)
    ]
    exact = [each for each in there if each.path == path]
    return {method for each in exact or there for method in each.methods or ()}


def _no_route(path: str, status: int, routes: Sequence[Route], unserved: Sequence[str]) -> TealError:
    """Why no route answers: the path is not there, or does not take the method."""
    if path in unserved:
        return NotFound(f"{bodies.short(path)} is not served here.")
    if status == 405:
        return WrongMethod(", ".join(sorted(methods_at(path, routes))))
    return NotFound(f"There is nothing at {bodies.short(path)}.")


class _Authenticated:
    """A handler as an ASGI application: around a function Starlette would handle errors a second time."""

    def __init__(self, exchange: Exchange, handler: Handler) -> None:
        self._exchange = exchange
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            caller = await self._exchange.identify(request)
            response = await self._handler(self._exchange, caller, request, **request.path_params)
        except asyncio.CancelledError as canceled:
            raise self._exchange.cut_off(canceled) from None
        await response(scope, receive, send)


def application(
    exchange: Exchange,
    path: str,
    routes: Sequence[Route],
    refuse: Refuse,
    *,
    shown: Sequence[str] = (),
    urls: Mapping[str, str],
    unserved: Sequence[str] = (),
) -> Served:
    """A protocol at `path`. What is another user's is reported as not found.

    `shown` are headers of answers that pages of other origins may see, besides those of every protocol.
    `unserved` are paths that its clients know, and that are not there though a route of ids would match them.
    """
    resource = exchange.resource(path)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, TealError)
        shown = exchange.refused(error)
        return refuse(shown, refusal_headers(shown, resource.challenge(request)))

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await refused(request, _no_route(own_path(request.scope), error.status_code, routes, unserved))

    async def fault(_: Request, error: Exception) -> Response:
        return refuse(exchange.faulty(error), {})  # Starlette raises it again, and the server logs it

    app = Starlette(
        routes=routes,
        exception_handlers={TealError: refused, HTTPException: no_route, Exception: fault},
    )
    app.router.redirect_slashes = False
    return Served(
        app=with_cors(app, exchange.settings, *shown), path=path, discovery=[resource.route()], urls=urls
    )


# --- responses that take long ----------------------------------------------------------------------


async def kept_alive(exchange: Exchange, response: Coroutine[Any, Any, Response], refuse: Refuse) -> Response:
    """Waits for a response; if it takes long, streams keepalives, then the response's own events.

    The work continues when the client leaves. Once the stream has begun, an error is sent as an event with
    the body that `refuse` makes of it.
    """
    coming, seconds = asyncio.ensure_future(response), exchange.settings.keepalive_seconds
    await asyncio.wait([coming], timeout=seconds)
    if coming.done():
        return coming.result()
    return sse.EventStreamResponse(
        _coming(exchange, coming, refuse),
        keepalive_seconds=seconds,
        on_disconnect=lambda: exchange.in_background(_left_before(coming)),
    )


async def _coming(
    exchange: Exchange, response: asyncio.Future[Response], refuse: Refuse
) -> AsyncGenerator[bytes, None]:
    yield sse.KEEPALIVE
    try:
        come = await asyncio.shield(response)
        if isinstance(come, sse.EventStreamResponse):
            async with aclosing(come.frames) as frames:
                async for frame in frames:
                    yield frame
        else:
            yield bytes(come.body)
    except Exception as error:  # noqa: BLE001 - nothing above could still answer it, and it is logged
        yield sse.data_of(refuse(exchange.refused(error), {}))


async def _left_before(response: asyncio.Future[Response]) -> None:
    """Awaits the response to a client that has left, and does what its stream does on disconnect."""
    stream = await response
    if isinstance(stream, sse.EventStreamResponse) and stream.on_disconnect is not None:
        stream.on_disconnect()
