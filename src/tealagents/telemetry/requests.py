"""One line in the log for each request: what was asked, how it ended, how long it took. Never content.

A message is logged when its request ends or pauses, with the request's status and tokens, wherever it runs:
in the background, after its client has left, or after a wait for its turn. Every other call is logged when it
is answered, with the HTTP status. Calls of probes are logged at DEBUG.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, TealError
from tealagents.domain.models import RequestRecord
from tealagents.engine.observer import Observer, RequestWatch

log = logging.getLogger(__name__)

_IDS = ("session_id", "task_id", "request_id", "approval_id")
_ACCEPTED = 202


class _Call:
    """One HTTP request."""

    __slots__ = ("began", "code", "request_id", "scope", "status")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.began = time.perf_counter()
        self.status = 500
        self.code: str | None = None
        #: the request that it began or resumed
        self.request_id: str | None = None

    @property
    def route(self) -> str:
        """Method and path, with names for what the client wrote into the path."""
        path: str = self.scope["path"].rstrip("/") if "endpoint" in self.scope else "(no route)"
        for name, value in self.scope.get("path_params", {}).items():
            path = path.replace(f"/{value}", f"/{{{name}}}", 1)
        return f"{self.scope['method']} {path}"

    @property
    def ids(self) -> dict[str, str]:
        """The ids that its path names, as far as they can be ids."""
        found = {}
        for name, value in self.scope.get("path_params", {}).items():
            if name in _IDS:
                try:
                    found[name] = ids.canonical(value, name)
                except InvalidRequest:
                    continue
        return found


_call: ContextVar[_Call | None] = ContextVar("call", default=None)


class LoggedRequests(Observer):
    """Logs requests as they end or pause."""

    @contextmanager
    def request(self, request: RequestRecord) -> Iterator[RequestWatch]:
        call = _call.get()
        if call is None or call.request_id is not None:
            call = None  # a request that waited is begun by the end of another
        else:
            call.request_id = request.request_id
        with super().request(request):
            yield _Watch(call.route if call else None)

    def refused(self, error: TealError) -> None:
        if (call := _call.get()) is not None:
            call.code = error.code


class _Watch(RequestWatch):
    def __init__(self, route: str | None) -> None:
        self._route = route
        self._began = time.perf_counter()

    def ended(self, request: RequestRecord) -> None:
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
    """ASGI middleware: logs the calls that begin no request, and lets those that do know their route."""

    def __init__(self, app: ASGIApp, probes: str) -> None:
        self._app = app
        #: the beginning of the paths that are asked again and again
        self._probes = probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = _Call(scope)
        token = _call.set(call)

        def noting(message: Message) -> Any:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            return send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            _call.reset(token)
            if call.request_id is None or call.status == _ACCEPTED:
                level = logging.DEBUG if scope["path"].startswith(self._probes) else logging.INFO
                _write(level, call.route, call.status, call.code, call.began, **call.ids)


def _write(
    level: int, route: str | None, status: str | int, code: str | None, began: float, **more: str | int
) -> None:
    if not log.isEnabledFor(level):
        return
    seconds = round(time.perf_counter() - began, 4)
    facts: dict[str, Any] = {"route": route, "status": status, "code": code, "duration": seconds, **more}
    given = {name: value for name, value in facts.items() if value is not None}
    text = " ".join(f"{name}={value}" for name, value in given.items() if name not in ("route", "status"))
    log.log(level, "%s %s %s", route or "request", status, text, extra={"facts": given})
