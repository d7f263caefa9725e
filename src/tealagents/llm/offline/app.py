"""The ASGI application: HTTP for the service, the received requests, and the paths that control it.

It uses no framework: in benchmarks it runs next to the measured service, and must use little CPU.
"""

import logging
import time
from pathlib import Path
from typing import Any

import orjson

from tealagents.llm.offline.delivery import Delivery, whole
from tealagents.llm.offline.errors import ServiceError, invalid, not_found
from tealagents.llm.offline.received import Received, ReceivedRequests
from tealagents.llm.offline.script import Script, ScriptError
from tealagents.llm.offline.service import OfflineService
from tealagents.llm.offline.transmission import Pauses, Receive, Scope, Send, transmit

logger = logging.getLogger("tealagents.offline")

ScriptLike = Script | dict[str, Any] | Path | str | None

_CONTROL = "/_offline/"


class OfflineApp:
    """The model service as an ASGI application, for one event loop."""

    def __init__(self, script: ScriptLike = None, *, log_requests: bool = False) -> None:
        self.received = ReceivedRequests()
        self.pauses = Pauses()
        self._service = OfflineService(Script.of(script))
        self._log_requests = log_requests

    def play(self, script: ScriptLike) -> Script:
        """Replaces the script, and starts the new one from its beginning. Raises as `Script.of`."""
        played = Script.of(script)
        self._service.play(played)
        self.pauses.resume()
        return played

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _serve_lifespan(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return
        if scope["path"].startswith(_CONTROL):
            controlled = self._control_delivery(scope["method"], scope["path"], body)
            await transmit(controlled, scope, receive, send, self.pauses)
            return
        received = Received(scope, body, time.monotonic())
        self.received.add(received)
        delivery = self._delivery(received)
        delivery.headers = [*delivery.headers, (b"x-request-id", self._service.ids.new("req_").encode())]
        received.outcome = await transmit(delivery, scope, receive, send, self.pauses)
        if self._log_requests:
            _log(received, delivery)

    def _delivery(self, received: Received) -> Delivery:
        try:
            return self._service.answer(received.method, received.path, received.query, received.body)
        except ServiceError as error:
            return whole(error.encoded(), status=error.status)

    def _control_delivery(self, method: str, path: str, body: bytes) -> Delivery:
        try:
            return self._control(method, path.removeprefix(_CONTROL), body)
        except ServiceError as error:
            return whole(error.encoded(), status=error.status)

    def _control(self, method: str, asked: str, body: bytes) -> Delivery:
        match method, asked:
            case "GET", "requests":
                listed = {"total": self.received.total, "requests": self.received.requests()}
                return whole(orjson.dumps(listed))
            case "DELETE", "requests":
                self.received.clear()
                return whole(orjson.dumps({"total": 0, "requests": []}))
            case "POST", "script":
                return whole(orjson.dumps({"rules": len(self._posted_script(body).rules)}))
        raise not_found(f"There is no {method} {_CONTROL}{asked}.", code="unknown_url")

    def _posted_script(self, body: bytes) -> Script:
        try:
            return self.play(Script.from_text(body.decode("utf-8")))
        except (ScriptError, UnicodeDecodeError) as error:
            raise invalid(str(error), "script") from error


def create_app(script: ScriptLike = None) -> OfflineApp:
    """The ASGI application, for another server. Raises `ScriptError` or `OSError`."""
    return OfflineApp(script)


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if the client disconnected before it was complete."""
    message = await receive()
    parts: list[bytes] = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
        message = await receive()
    return None


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _log(received: Received, delivery: Delivery) -> None:
    took = (time.monotonic() - received.at) * 1000
    logger.info(
        "%s %s %d %s, %.0f ms", received.method, received.path, delivery.status, received.outcome, took
    )
