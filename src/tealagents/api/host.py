"""The application: every protocol under its own path, over one exchange."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from tealagents.api import local, sse
from tealagents.api.exchange import Exchange
from tealagents.api.http import ending_connection, json_response, own_path
from tealagents.api.origins import with_cors
from tealagents.api.protocols import Served
from tealagents.domain.errors import NotFound

Lifespan = Callable[[object], AbstractAsyncContextManager[None]]
#: a middleware
Wrap = Callable[[ASGIApp], ASGIApp]


class Host:
    """Hands each request to the protocol that owns its path; the first of them answers what none owns."""

    def __init__(
        self, exchange: Exchange, protocols: Sequence[Served], lifespan: Lifespan, observed: Wrap
    ) -> None:
        """`observed` is put around what answers, whatever the protocol."""
        #: for tests, and for callers that add routes of their own
        self.exchange = exchange
        self.base = protocols[0]
        #: the longest path first, so that one below another is found
        self._others = sorted(protocols[1:], key=lambda served: -len(served.path))
        self._documents = [route for served in self._others for route in served.discovery]
        discovery = Starlette(routes=self._documents, exception_handlers={NotFound: _no_document})
        self._discovery = with_cors(discovery, exchange.settings)
        self._service = lifespan
        self._starlette = Starlette(lifespan=self.lifespan)
        self._has_started = False
        self._app = observed(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._starlette(scope, receive, send)
            return
        if not self._has_started:  # nothing that a message needs is open
            raise RuntimeError(
                "The service has not been started: its lifespan has not run. An application that it is "
                "mounted in must enter it in its own, as Starlette(lifespan=service.lifespan) does."
            )
        if self.exchange.settings.local_only and (reason := local.refusal(scope)):
            await local.refuse(reason, scope, receive, send)
            return
        sse.remember_connection(scope, send)
        if self.exchange.service.admission.draining:
            send = ending_connection(send)
        await self._app(scope, receive, send)

    def _answer(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            return self._answer_head(scope, receive, send)
        return sse.answer(self._owner(scope), scope, receive, send)

    async def _answer_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Where GET is there HEAD is; the server, whose own scope says HEAD, leaves out the body."""
        get = {**scope, "method": "GET", sse.HEAD: True}
        try:
            await self._owner(get)(get, receive, send)
        finally:
            scope.update({**get, "method": "HEAD"})  # what observes the call names its route

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """The service around its protocols: an error of its start is not wrapped in a group of theirs.

        An application that this one is mounted in enters it in its own: a server knows only that one.
        """
        if self._has_started:  # it would refuse each message, as it did when it was stopped
            raise RuntimeError("The service has been started before. Create an application for each start.")
        async with self._service(app), AsyncExitStack() as stack:
            for served in self._others:
                if served.lifespan is not None:
                    await stack.enter_async_context(served.lifespan())
            self._has_started = True
            yield

    def _owner(self, scope: Scope) -> ASGIApp:
        if not self._others or scope["type"] == "websocket":  # the others take none, and would fail on it
            return self.base.app
        path = own_path(scope)
        for served in self._others:
            if path == served.path or path.startswith(served.path + "/"):
                return served.app
        if any(route.matches(scope)[0] is not Match.NONE for route in self._documents):
            return self._discovery
        return self.base.app


async def _no_document(_: Request, error: Exception) -> Response:
    return json_response({"error": str(error)}, status=404)
