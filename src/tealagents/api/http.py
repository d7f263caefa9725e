"""What HTTP says of an error, whatever the protocol: its status and `Retry-After`; JSON responses, and times.

The one table from the codes of domain errors to statuses. What a client reads is worded by the protocol that
answers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tealagents.domain.errors import (
    InternalError,
    InvalidRequest,
    NotFound,
    NotOwner,
    Overloaded,
    Refusal,
    TealError,
)
from tealagents.domain.models import Json
from tealagents.state.codec import encode_json

#: the media type of problem documents
PROBLEM_JSON = "application/problem+json"

#: code → status
STATUSES: Mapping[str, int] = {
    "invalid_request": 422,
    "idempotency_key_reused": 422,
    "unauthenticated": 401,
    "not_owner": 401,
    "insufficient_scope": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "task_busy": 409,
    "approval_pending": 409,
    "already_decided": 409,
    "approval_expired": 409,
    "request_canceled": 409,
    "request_in_progress": 409,
    "already_exists": 409,
    "session_mismatch": 409,
    "too_large": 413,
    "overloaded": 503,
    "draining": 503,
    "corrupt_state": 500,
    "internal_error": 500,
    "model_error": 502,
    "tool_rounds_exceeded": 502,
    "remote_thread_lost": 502,
    "persistence_unavailable": 503,
    "auth_unavailable": 503,
    "interrupted": 503,
    "model_timeout": 504,
    "request_timeout": 504,
}

#: codes that come with `Retry-After`, and how many seconds where the error does not say
RETRY_AFTER: Mapping[str, int] = {
    "task_busy": 1,
    "request_in_progress": 1,
    "overloaded": 1,
    "draining": 1,
    "persistence_unavailable": 2,
    "auth_unavailable": 5,
    "interrupted": 1,
}

#: what is said of an error that is no domain error
FAULT = "Internal error. Retry the request; if it persists, contact the operator."

#: the response for an error; the headers say when to come back, and with which token
Refuse = Callable[[TealError, Mapping[str, str]], Response]
#: of a response, as ASGI has them
Headers = Iterable[tuple[bytes, bytes]]

#: statuses that proxies and generic clients act upon, which are shown also where errors come with 200
OF_TRANSPORT = frozenset({401, 403, 405, 413, 415, 429, 500, 503})


class WrongMethod(Refusal):
    """The path is served, for the methods `allow`."""

    code = "method_not_allowed"

    def __init__(self, allow: str) -> None:
        super().__init__(f"The method is not allowed here: use {allow}.")
        self.allow = allow


def reported(error: Exception) -> TealError:
    """An error as clients see it: another user's record is not found, and a fault shows no details."""
    if isinstance(error, NotOwner):
        return NotFound("There is nothing with this id. Check it; it may have been deleted.")
    return error if isinstance(error, TealError) else InternalError(FAULT)


def status_of(error: TealError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, InvalidRequest) and error.malformed:
        return 400
    if isinstance(error, Overloaded) and error.per_user:
        return 429
    return STATUSES[error.code]


def retry_after(error: TealError) -> str | None:
    """The value of `Retry-After`; None for an error that retrying does not help."""
    if error.code not in RETRY_AFTER:
        return None
    seconds = RETRY_AFTER[error.code] if error.retry_after is None else error.retry_after
    return str(max(1, math.ceil(seconds)))


def worded(error: TealError, advice: Mapping[str, str]) -> str:
    """What happened, and what to do about it where the protocol has a way of its own: code → advice."""
    return " ".join(filter(None, (error.detail, advice.get(error.code))))


def problem_document(code: str, title: str, detail: str, status: int, **fields: object) -> Json:
    """An error as a problem document (RFC 9457); each code is explained in `docs/http.md`."""
    kind = f"urn:tealagents:problem:{code}"
    return {"type": kind, "title": title, "status": status, "detail": detail, "code": code, **fields}


def problem_response(document: Json, *, headers: Mapping[str, str] | None = None) -> Response:
    return json_response(document, status=document["status"], headers=headers, media_type=PROBLEM_JSON)


class DocumentRoute(Route):
    """A document that anyone may read. No protocol's error handler is around it."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = self.methods or set()
        if scope["method"] in allowed:
            await super().handle(scope, receive, send)
            return
        error = WrongMethod(", ".join(sorted(allowed)))
        title, status = "The method is not allowed here", STATUSES[error.code]
        document = problem_document(error.code, title, error.detail, status)
        await problem_response(document, headers={"allow": error.allow})(scope, receive, send)


def with_headers(send: Send, change: Callable[[Headers], Headers]) -> Send:
    """Sends a response with its headers changed."""

    async def changed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": change(message.get("headers", ()))}
        await send(message)

    return changed


def in_one_line(headers: Headers, name: bytes, *, without: bytes) -> Headers:
    """Headers for a library that reads only the first line of each name: the lines of `name` are joined.

    Space around a value is no part of it (RFC 9110, sections 5.2 and 5.5). `without` is left out.
    """
    bare = [(each, value.strip(b" \t")) for each, value in headers]
    lines = b", ".join(value for each, value in bare if each == name)
    return [(name, lines), *(line for line in bare if line[0] not in (name, without))]


async def nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """No route, for a WebSocket as for any request; Starlette's own closes it with an empty 403."""
    raise HTTPException(404)


async def left(receive: Receive) -> None:
    """Returns once the client has disconnected; discards what it still sends."""
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


def own_path(scope: Scope) -> str:
    """The path as the service's own routes have it, also within another application."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def ending_connection(send: Send) -> Send:
    """Sends a response as the last one of its connection: another process gets its client's next request."""
    return with_headers(send, lambda headers: [*headers, (b"connection", b"close")])


def timestamp(at: datetime, precision: str = "auto") -> str:
    """A time in UTC, as JSON documents have it (RFC 3339); `precision` as `timespec` of `isoformat`."""
    return at.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def rpc_response(
    rpc_id: str | int | None, *, status: int = 200, headers: Mapping[str, str] | None = None, **said: object
) -> Response:
    """A response of JSON-RPC: its `result`, or its `error`."""
    return json_response({"jsonrpc": "2.0", "id": rpc_id, **said}, status=status, headers=headers)


def rpc_refused(status: int, why: str) -> Response:
    """The response for a request that may not come in: JSON-RPC's invalid request."""
    return rpc_response(None, status=status, error={"code": -32600, "message": why})


def json_response(
    body: object,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """A JSON response; the body is encoded as it is."""
    return Response(encode_json(body), status_code=status, headers=dict(headers or {}), media_type=media_type)
