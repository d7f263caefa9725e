"""Errors as problem documents (RFC 9457), and the one table from codes to statuses."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tealagents.domain.errors import (
    InsufficientScope,
    InvalidRequest,
    Overloaded,
    TealError,
    Unauthenticated,
)
from tealagents.domain.models import Json, RequestRecord

MEDIA_TYPE = "application/problem+json"

#: code → status, title
STATUSES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (422, "The request is not valid"),
    "idempotency_key_reused": (422, "The idempotency key was used with another body"),
    "unauthenticated": (401, "Authentication is required"),
    "not_owner": (401, "Not the owner"),
    "insufficient_scope": (403, "The token lacks a scope or role"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "The method is not allowed here"),
    "task_busy": (409, "The task is busy"),
    "approval_pending": (409, "An approval is pending"),
    "already_decided": (409, "Already decided otherwise"),
    "approval_expired": (409, "The approval has expired"),
    "request_canceled": (409, "The request was canceled"),
    "request_in_progress": (409, "The request is in progress"),
    "already_exists": (409, "Already exists"),
    "session_mismatch": (409, "Task and session do not belong together"),
    "too_large": (413, "Too large"),
    "overloaded": (503, "Overloaded"),
    "draining": (503, "Shutting down"),
    "corrupt_state": (500, "Stored state is damaged"),
    "internal_error": (500, "The service has a fault"),
    "model_error": (502, "The model service failed"),
    "tool_rounds_exceeded": (502, "Too many tool rounds"),
    "remote_thread_lost": (502, "The remote conversation is lost"),
    "persistence_unavailable": (503, "The store is unavailable"),
    "auth_unavailable": (503, "The identity provider is unavailable"),
    "interrupted": (503, "Interrupted"),
    "model_timeout": (504, "The model service was too slow"),
    "request_timeout": (504, "The request took too long"),
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

#: each code is explained in the reference of errors (`docs/http.md`)
TYPE_PREFIX = "urn:tealagents:problem:"


def status_of(error: TealError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, InvalidRequest) and error.malformed:
        return 400
    if isinstance(error, Overloaded) and error.per_user:
        return 429
    return STATUSES[error.code][0]


def document(error: TealError) -> Json:
    """The problem document of an error."""
    fields: Json = {**error.ids}
    if isinstance(error, InvalidRequest) and error.field:
        fields["field"] = error.field
    return problem(error.code, error.detail, status=status_of(error), **fields)


def problem(code: str, detail: str, *, status: int | None = None, **fields: Any) -> Json:
    usual, title = STATUSES[code]
    return {
        "type": TYPE_PREFIX + code,
        "title": title,
        "status": status or usual,
        "detail": detail,
        "code": code,
        **fields,
    }


def of_request(request: RequestRecord) -> Json | None:
    """The problem a request ended with, or None."""
    if request.error is None:
        return None
    return problem(
        request.error["code"],
        request.error["detail"],
        session_id=request.session_id,
        task_id=request.task_id,
        request_id=request.request_id,
    )


def respond(error: TealError, *, challenge: str = "Bearer", retry: bool = True) -> Response:
    """The response for an error. `challenge` is the beginning of `WWW-Authenticate` for this service."""
    body = document(error)
    headers = {}
    if body["status"] in (401, 403):
        headers["www-authenticate"] = _challenge(error, challenge)
    seconds = error.retry_after if error.retry_after is not None else RETRY_AFTER.get(error.code)
    if retry and seconds is not None and error.code in RETRY_AFTER:
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    return json_response(body, status=body["status"], headers=headers, media_type=MEDIA_TYPE)


def _challenge(error: TealError, challenge: str) -> str:
    """RFC 6750, section 3: no error code where no credentials came, or where they are not to blame."""
    parts = [challenge]
    separator = ", " if "=" in challenge else " "
    if isinstance(error, InsufficientScope):
        parts.append(f'error="insufficient_scope", scope="{_quoted(error.required)}"')
    elif isinstance(error, Unauthenticated) and error.credentials_given:
        parts.append('error="invalid_token", error_description="The access token is not valid here"')
    return separator.join(parts)


def _quoted(text: str) -> str:
    return text.replace("\\", "").replace('"', "")


_encode = msgspec.json.Encoder().encode


def json_response(
    body: object,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """A JSON response; the body is encoded as it is."""
    return Response(_encode(body), status_code=status, headers=dict(headers or {}), media_type=media_type)


def wants_problem(request: Request) -> str:
    """The path, for a problem about a route that does not exist."""
    return request.url.path
