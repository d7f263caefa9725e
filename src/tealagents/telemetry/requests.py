"""One line in the log for each request: its route, how it ended, how long it took. Never content.

A call that starts a run of a request is logged when the run ends or pauses, with the request's status and
tokens, even if it runs in the background or its client has left. So is a run of a request that was queued.
Every other call is logged when it is answered, with the HTTP status. Calls of probes are logged at DEBUG.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tealagents.domain.errors import InsufficientScope, TealError, Unauthenticated
from tealagents.domain.models import RequestRecord
from tealagents.engine.observer import Observer, RequestWatch

log = logging.getLogger(__name__)

_ACCEPTED = 202


class _Call:
    """One HTTP request."""

    __slots__ = ("began", "code", "ids", "reason", "request_id", "scope", "status", "within")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.began = time.perf_counter()
        #: the HTTP status; 0 until it is answered
        self.status = 0
        #: the code of the error that it was answered with
        self.code: str | None = None
        #: why its token was refused
        self.reason: str | None = None
        #: the request that it started or resumed
        self.request_id: str | None = None
        #: the ids that it is about (`Observer.named`)
        self.ids: dict[str, str] = {}
        #: makes the call's span, if there is one, the current one
        self.within: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def route(self) -> str:
        return f"{method_of(self.scope)} {route_of(self.scope) or '(no route)'}"


def method_of(scope: Scope) -> str:
    """The HTTP method; a WebSocket begins as a GET."""
    return str(scope.get("method", "GET"))


def status_in(message: Message) -> int:
    """The HTTP status in an ASGI message; 0 if the message does not begin an answer.

    A WebSocket that is closed before it was accepted is answered with 403 by the server.
    """
    match message["type"]:
        case "http.response.start" | "websocket.http.response.start":
            return int(message["status"])
        case "websocket.accept":
            return 101
        case "websocket.close":
            return 403
    return 0


def route_of(scope: Scope) -> str | None:
    """The request's path with the names of its parameters in place of their values.

    None if no route matched, or if a parameter is not a whole segment of the path: the client could have made
    up the rest of the segment as well.
    """
    if "endpoint" not in scope:
        return None
    path: str | None = scope["path"]
    for name, given in reversed(scope.get("path_params", {}).items()):
        if path is not None and (value := str(given)):
            path = _named(path, value if value[0] == "/" else f"/{value}", name)
    return path and (path.rstrip("/") or "/")


def _named(path: str, value: str, name: str) -> str | None:
    """The path with `{name}` in place of `value`, which begins with a slash and must end with a segment. None
    if it is not there. If it is there twice, the last is replaced: an id may equal a segment before it."""
    at = path.rfind(value)
    while at >= 0:
        rest = path[at + len(value) :]
        if rest[:1] in ("", "/", ":"):  # not merely the beginning of a segment
            return f"{path[:at]}/{{{name}}}{rest}"
        at = path.rfind(value, 0, at + len(value) - 1)
    return None


_call: ContextVar[_Call | None] = ContextVar("call", default=None)


def logged_within(span: Callable[[], AbstractContextManager[object]]) -> None:
    """Has the current call's line written within its span, so that it gets the span's ids. `span` makes the
    span the current one again, since it has ended by then."""
    if (call := _call.get()) is not None:
        call.within = span


class LoggedRequests(Observer):
    """Logs requests as they end or pause."""

    def request(self, request: RequestRecord) -> RequestWatch:
        call = _call.get()
        if call is None or call.request_id is not None:
            return _Watch(request, None)  # a queued request, which is started at the end of another
        call.request_id = request.request_id
        return _Watch(request, call.route)

    def ended_outside(self, request: RequestRecord) -> None:
        began = time.perf_counter() - _seconds(request)
        with RequestWatch(request):
            _Watch(request, None, began).ended(request)

    def named(self, **ids: str) -> Mapping[str, str]:
        if (call := _call.get()) is None:
            return ids
        call.ids |= ids
        return call.ids

    def refused(self, error: TealError) -> None:
        if (call := _call.get()) is not None:
            call.code = error.code
            if isinstance(error, Unauthenticated | InsufficientScope):  # whose texts quote no token
                call.reason = error.detail


def _seconds(request: RequestRecord) -> float:
    """Seconds from the creation of a request to its end; 0 if it has not ended."""
    return (request.ended_at - request.created_at).total_seconds() if request.ended_at else 0.0


class _Watch(RequestWatch):
    def __init__(self, request: RequestRecord, route: str | None, began: float | None = None) -> None:
        super().__init__(request)
        self._route = route
        self._began = time.perf_counter() if began is None else began

    def ended(self, request: RequestRecord, *, here: bool = True) -> None:
        usage = request.usage
        self._log(
            request.status,
            request.error.code if request.error else None,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )

    def failed(self, error: TealError) -> None:
        self._log("Unknown", error.code)

    def _log(self, status: str, code: str | None, **tokens: int) -> None:
        _write(logging.INFO, self._route, status, code, self._began, **tokens)


class RequestLog:
    """ASGI middleware: logs the calls that start no run, or are answered before it ends (202). For the others
    it provides the route, which `LoggedRequests` logs."""

    def __init__(self, app: ASGIApp, probes: str) -> None:
        self._app = app
        #: what the paths of probes begin with
        self._probes = probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        call = _Call(scope)
        token = _call.set(call)

        def noting(message: Message) -> Any:
            call.status = call.status or status_in(message)
            return send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            _call.reset(token)
            if call.request_id is None or call.status == _ACCEPTED:
                level = logging.DEBUG if scope["path"].startswith(self._probes) else logging.INFO
                with call.within():
                    more = call.ids if call.reason is None else {**call.ids, "reason": call.reason}
                    _write(level, call.route, call.status or 500, call.code, call.began, **more)


def _write(
    level: int, route: str | None, status: str | int, code: str | None, began: float, **more: str | int
) -> None:
    if not log.isEnabledFor(level):
        return
    facts: dict[str, Any] = {"route": route, "status": status, "code": code}
    facts |= {"duration": round(time.perf_counter() - began, 4), **more}
    given = {name: value for name, value in facts.items() if value is not None}
    text = f"{route or 'request'} {status}"
    # `log.log` would look up the calling line of code, which is not shown
    log.handle(log.makeRecord(log.name, level, "", 0, text, (), None, extra={"facts": given}))
