"""Records the received requests, so that tests can count and read them."""

from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

import orjson

#: The most requests, and bytes of their bodies, that are kept; the oldest are dropped first.
_MOST_REQUESTS = 10_000
_MOST_BYTES = 32 * 1024 * 1024

_SECRET = frozenset({b"authorization", b"api-key", b"x-api-key", b"cookie", b"proxy-authorization"})


class Received:
    """One request. It is decoded when it is read, which most never are."""

    __slots__ = ("_decoded", "_headers", "at", "body", "method", "outcome", "path", "query")

    def __init__(self, scope: Mapping[str, Any], body: bytes, at: float) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.body = body
        #: By the monotonic clock, in seconds.
        self.at = at
        #: `answered`, `broken` (by a scripted fault) or `left` (the client disconnected); None while it runs.
        self.outcome: str | None = None
        self._headers = [
            (name, _masked(name, value) if name in _SECRET else value) for name, value in scope["headers"]
        ]
        self._decoded: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        if self._decoded is None:
            self._decoded = {
                "method": self.method,
                "path": self.path,
                "query": dict(parse_qsl(self.query)),
                "body": _decoded(self.body),
                "headers": {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers},
                "at": self.at,
            }
        return {**self._decoded, "outcome": self.outcome}


def _masked(name: bytes, value: bytes) -> bytes:
    scheme, blank, _ = value.partition(b" ")
    return scheme + b" ***" if blank and name.endswith(b"authorization") else b"***"


def _decoded(body: bytes) -> Any:
    """The body as JSON data; as text if it is not JSON; None if it is empty."""
    if not body:
        return None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


class ReceivedRequests:
    """The received requests. It is written by the server, and can be read from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._received: deque[Received] = deque()
        self._bytes = 0
        self._total = 0

    def add(self, received: Received) -> None:
        with self._lock:
            self._received.append(received)
            self._bytes += len(received.body)
            self._total += 1
            while len(self._received) > _MOST_REQUESTS or self._bytes > _MOST_BYTES:
                self._bytes -= len(self._received.popleft().body)

    def clear(self) -> None:
        with self._lock:
            self._received.clear()
            self._bytes = self._total = 0

    @property
    def total(self) -> int:
        """The number of requests since the start or `clear`, including dropped ones."""
        return self._total

    def requests(self) -> list[dict[str, Any]]:
        with self._lock:
            kept = list(self._received)
        return [received.as_dict() for received in kept]
