"""The routes: JSON, server-sent events, a WebSocket, health, the OpenAPI document and its pages."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from tealagents import __version__
from tealagents.api import bodies, local, sse
from tealagents.api.http import FAULT, WrongMethod, ending_connection, json_response, left, nowhere, status_of
from tealagents.api.origins import with_cors
from tealagents.api.pages import pages
from tealagents.api.settings import ApiSettings
from tealagents.api.skagents import documents, inputs, openapi
from tealagents.api.skagents.identity import Identity, check_origin
from tealagents.api.skagents.turns import CallDone, StepDelta, StepDone, Turns
from tealagents.domain.errors import (
    Draining,
    InternalError,
    Interrupted,
    InvalidRequest,
    NotFound,
    Overloaded,
    Refusal,
    TealError,
    TooLarge,
)
from tealagents.domain.models import Caller, Json
from tealagents.engine.admission import counted
from tealagents.engine.observer import Observer

log = logging.getLogger(__name__)

T = TypeVar("T")
Lifespan = Callable[[object], AbstractAsyncContextManager[None]]

#: request headers that web pages of other origins may send, besides those that tools may read
_CORS_HEADERS = ("authorization", "content-type", "taagwkey", "traceparent", "tracestate")
#: close codes of a WebSocket (RFC 6455): the call failed, or can be repeated later
_CLOSE_FAILED, _CLOSE_TRY_AGAIN = 1011, 1013
#: the close code after `idle_connection_seconds`: "policy violation"; RFC 6455 has no code for a timeout
_CLOSE_IDLE = 1008
#: the most bytes of a close reason that are sent; a close frame holds 123
_CLOSE_REASON_BYTES = 120
#: the status of a call whose client has disconnected; no one reads it
_CLIENT_CLOSED = 499


class ServedConfig(Struct, frozen=True, kw_only=True):
    """One config, with everything that its routes need."""

    name: str
    version: str
    settings: ApiSettings
    input_type: type[BaseModel]
    output_type: type[BaseModel] | None
    turns: Turns
    identity: Identity
    #: the scheme that `WWW-Authenticate` names
    challenge: str
    #: lower-case names of the request headers that tools may read
    forward_headers: frozenset[str]
    observer: Observer


class StatelessApp:
    """The application of one config of the earlier platform."""

    def __init__(
        self, front: ServedConfig, lifespan: Lifespan, observed: Callable[[ASGIApp], ASGIApp]
    ) -> None:
        """`observed` wraps the ASGI application with telemetry."""
        self._front = front
        self._prefix = front.settings.prefix
        self._started_at = time.monotonic()
        self._origins = frozenset(front.settings.cors_origins)
        self._document = openapi.document(
            name=front.name,
            version=front.version,
            prefix=self._prefix,
            description=front.settings.description,
            input_type=front.input_type,
            output_type=front.output_type,
        )
        app = Starlette(
            routes=self._routes(),
            exception_handlers={
                TealError: self._refused,
                HTTPException: self._no_route,
                Exception: self._fault,
            },
            lifespan=lifespan,
        )
        app.router.redirect_slashes = False
        app.router.default = nowhere
        taken = (*_CORS_HEADERS, *front.forward_headers)
        self._app = observed(partial(sse.answer, with_cors(app, front.settings, allowed=taken)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._front.settings.local_only and (reason := local.refusal(scope)):
                await local.refuse(reason, scope, receive, send)
                return
            sse.remember_connection(scope, send)
            if self._front.turns.admission.draining:
                send = ending_connection(send)
        await self._app(scope, receive, send)

    def _routes(self) -> list[BaseRoute]:
        prefix = self._prefix
        return [
            Route(prefix, self._invoke, methods=["POST"]),
            Route(f"{prefix}/sse", self._invoke_sse, methods=["POST"]),
            WebSocketRoute(f"{prefix}/stream", self._invoke_stream),
            Route(f"{prefix}/health", self._health),
            Route(f"{prefix}/health/live", self._live),
            Route(f"{prefix}/health/ready", self._ready),
            Route(f"{prefix}/openapi.json", self._openapi),
            Route("/", self._root),
            *pages(prefix, f"{self._front.name} {self._front.version}", redoc=True),
        ]

    # --- calls -----------------------------------------------------------------------------------

    async def _invoke(self, request: Request) -> Response:
        caller, given, size = await self._read_call(request)
        answered = await _unless_disconnected(self._answer(caller, given, size, request), request.receive)
        return Response(status_code=_CLIENT_CLOSED) if answered is None else json_response(answered)

    async def _answer(self, caller: Caller, given: inputs.Input, size: int, request: Request) -> Json:
        answered: Json | None = None
        with self._admitted(caller, size):
            async with aclosing(self._events(caller, given, request, streamed=False)) as events:
                async for event in events:  # all of them: leaving the loop early would cancel the call
                    if isinstance(event, CallDone):
                        answered = event.response
        if answered is None:
            raise InternalError(FAULT)
        return answered

    async def _invoke_sse(self, request: Request) -> Response:
        caller, given, size = await self._read_call(request)
        admitted = ExitStack()
        admitted.enter_context(self._admitted(caller, size))  # a refusal still has an HTTP status here
        return sse.EventStreamResponse(
            self._frames(caller, given, request),
            keepalive_seconds=self._front.settings.keepalive_seconds,
            on_end=admitted.close,
        )

    async def _frames(
        self, caller: Caller, given: inputs.Input, request: Request
    ) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._events(caller, given, request, streamed=True)) as events:
                async for event in events:
                    match event:
                        case StepDelta(call, text):
                            yield documents.partial_response(call, text)
                        case StepDone(task_no, name, response):
                            yield documents.intermediate_response(task_no, name, response)
                        case CallDone(response):
                            yield documents.final_response(response)
        except TealError as error:
            self._report(error)
            yield documents.error_event(error)
        except Exception:
            self._front.observer.refused(InternalError(FAULT))  # the server logs it
            raise

    async def _invoke_stream(self, socket: WebSocket) -> None:
        """Receives one JSON message and sends the answer's deltas as text messages, without ids or events."""
        if self._front.settings.local_only and (reason := local.refusal(socket.scope)):
            await socket.send_denial_response(documents.refusal(InvalidRequest("", reason), ""))
            return
        try:
            caller = await self._identify(socket)
        except TealError as error:
            self._report(error)
            await socket.send_denial_response(documents.refusal(error, self._front.challenge))
            return
        body = bodies.IncomingBody(self._front.turns.admission.receiving, caller.user.key)
        try:
            await self._answer_message(socket, caller, await self._first_message(socket, body))
        except TealError as error:
            self._report(error)
            code = (
                _CLOSE_TRY_AGAIN if isinstance(error, Overloaded | Draining | Interrupted) else _CLOSE_FAILED
            )
            with suppress(WebSocketDisconnect):
                await socket.close(code, error.detail.encode()[:_CLOSE_REASON_BYTES].decode(errors="ignore"))
        except WebSocketDisconnect:
            pass
        except Exception:
            self._front.observer.refused(InternalError(FAULT))  # the server logs it
            raise
        finally:
            body.resize(0)
            if body.refused is not None:
                self._report(body.refused)

    async def _first_message(self, socket: WebSocket, body: bodies.IncomingBody) -> Message:
        """The first message of a WebSocket. Closes it when no byte arrives for `idle_connection_seconds`."""
        seconds, loop, most = self._front.settings.idle_connection_seconds, asyncio.get_running_loop(), 0

        def resize(size: int) -> None:
            nonlocal most
            body.resize(size)
            if size > most and not waiting.expired():
                most = size
                waiting.reschedule(loop.time() + seconds)

        try:
            async with asyncio.timeout(seconds) as waiting:
                bodies.count_message(socket.scope, resize)
                await socket.accept()
                return await socket.receive()
        except TimeoutError:
            await socket.close(
                _CLOSE_IDLE, f"Nothing more arrived for {seconds:g} s (`limits.idle_connection_seconds`)."
            )
            raise WebSocketDisconnect(_CLOSE_IDLE) from None
        finally:
            bodies.count_message(socket.scope, body.resize)

    async def _answer_message(self, socket: WebSocket, caller: Caller, message: Message) -> None:
        if message["type"] != "websocket.receive":
            return
        body = message.get("bytes") or (message.get("text") or "").encode()
        if len(body) > self._front.settings.max_body_bytes:
            raise TooLarge(f"The message is larger than {self._front.settings.max_body_bytes} bytes.")
        await _unless_disconnected(self._stream_text(socket, caller, body), socket.receive)

    async def _stream_text(self, socket: WebSocket, caller: Caller, body: bytes) -> None:
        admission = self._front.turns.admission
        given = self._input(await bodies.in_turn(body, caller.user.key, admission, bodies.parse))
        # without a size: `IncomingBody` counts the bytes until the socket closes
        with self._admitted(caller):
            async with aclosing(self._events(caller, given, socket, streamed=True)) as events:
                async for event in events:
                    if isinstance(event, StepDelta):
                        await socket.send_text(event.text)
            await socket.close()

    def _admitted(self, caller: Caller, size: int = 0) -> AbstractContextManager[None]:
        """Holds a place for a call and counts its `size` bytes. Raises `Overloaded` or `Draining`."""
        return self._front.turns.admission.admitted(caller.user.key, counted(size))

    def _events(
        self, caller: Caller, given: inputs.Input, connection: HTTPConnection, *, streamed: bool
    ) -> AsyncGenerator[StepDelta | StepDone | CallDone, None]:
        kept = {"authorization", *self._front.forward_headers}
        headers = {name: value for name, value in connection.headers.items() if name in kept}
        return self._front.turns.events(caller, given, headers, streamed=streamed)

    async def _read_call(self, request: Request) -> tuple[Caller, inputs.Input, int]:
        """The caller, the input, the body's size in bytes. A body without a Content-Type is read as JSON."""
        caller = await self._identify(request)
        if "content-type" in request.headers:
            bodies.require_json(request)
        most, admission = self._front.settings.max_body_bytes, self._front.turns.admission

        def parse(body: bytes) -> tuple[Any, int]:
            return bodies.parse(body), len(body)

        value, size = await bodies.read(request, most, caller.user.key, admission, parse)
        return caller, self._input(value), size

    def _input(self, body: Any) -> inputs.Input:
        return inputs.read(self._front.input_type, body, self._front.settings.max_items)

    async def _identify(self, connection: HTTPConnection) -> Caller:
        check_origin(connection, self._front.identity, self._origins)
        return await self._front.identity.caller(connection)

    # --- errors ----------------------------------------------------------------------------------

    def _report(self, error: TealError) -> None:
        """Counts an error, and logs a refusal with a 5xx status, which is the operator's to fix.

        Calls that started are logged by the observer, with their ids: their errors may quote a message.
        """
        if isinstance(error, Refusal) and status_of(error) >= 500:
            log.warning("%s: %s", error.code, error.detail)
        self._front.observer.refused(error)

    async def _refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, TealError)
        self._report(error)
        return documents.refusal(error, self._front.challenge)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return await self._refused(request, WrongMethod((error.headers or {}).get("Allow", "")))
        where = bodies.short(request.scope["path"])
        return await self._refused(request, NotFound(f"There is nothing at {where}."))

    async def _fault(self, _: Request, error: Exception) -> Response:
        fault = InternalError(FAULT)
        self._front.observer.refused(fault)  # Starlette raises it again, and the server logs it
        return documents.refusal(fault, self._front.challenge)

    # --- what can be read ------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        return json_response(self._status_document())

    async def _live(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        return json_response(
            self._status_document(), status=503 if self._front.turns.admission.draining else 200
        )

    def _status_document(self) -> Json:
        status = "draining" if self._front.turns.admission.draining else "ok"
        uptime = round(time.monotonic() - self._started_at, 3)
        return {"status": status, "version": __version__, "uptime": uptime, "dependencies": {}}

    async def _openapi(self, _: Request) -> Response:
        return json_response(self._document)

    async def _root(self, _: Request) -> Response:
        front, prefix = self._front, self._prefix
        agent = {
            "name": front.name,
            "version": front.version,
            "description": front.settings.description,
            "url": prefix,
            "docs": f"{prefix}/docs",
            "openapi": f"{prefix}/openapi.json",
        }
        return json_response({"agents": [agent]})


async def _unless_disconnected(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """The result of `work`, or None if the client disconnected first, which cancels it.

    Returns only once the work has ended: it keeps its place (`_admitted`) until it has cleaned up.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        working.cancel()
    await asyncio.wait({working})
    return None if working.cancelled() else working.result()
