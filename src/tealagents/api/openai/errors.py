"""Domain errors in OpenAI's form, so that its SDKs raise their own exception classes."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from tealagents.api.http import RETRY_AFTER, STATUSES, json_response, retry_after, status_of
from tealagents.domain.errors import (
    ApprovalPending,
    IdempotencyKeyReused,
    InsufficientScope,
    InvalidRequest,
    Refusal,
    RequestInProgress,
    TaskBusy,
    TealError,
    Unauthenticated,
)
from tealagents.domain.models import Failure, Json

#: status → OpenAI's type of error; any other 4xx is an `invalid_request_error`, a 5xx a `server_error`
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

#: what to do about an error, where there is a way of this API's own
_ADVICE: Mapping[type[TealError], Callable[[Any], str]] = {
    TaskBusy: lambda _: "Wait for its response, or cancel that.",
    IdempotencyKeyReused: lambda _: "Send a new Idempotency-Key with a new body.",
    RequestInProgress: lambda _: "Retry later for its outcome.",
    ApprovalPending: lambda _: (
        "Answer its calls first, with mcp_approval_response or function_call_output items, or cancel its "
        "response."
    ),
}


def document(error: TealError) -> Json:
    """The body of an error."""
    advice = next((words for kind, words in _ADVICE.items() if isinstance(error, kind)), None)
    message = f"{error.detail} {advice(error)}" if advice else error.detail
    param = error.field if isinstance(error, InvalidRequest) and error.field != "body" else None
    return _body(_status(error), error.code, message, param or None)


def respond(error: TealError, challenge: str) -> Response:
    """The response for an error; `challenge` is the beginning of `WWW-Authenticate`.

    The SDKs repeat what may help to be repeated by themselves; they are told where it does not.
    """
    status = _status(error)
    seconds = retry_after(error)
    repeat = seconds is not None and isinstance(error, Refusal)
    headers = {"x-should-retry": "true" if repeat else "false"}
    if seconds is not None:
        headers["retry-after"] = seconds
    if status in (401, 403):
        headers["www-authenticate"] = _challenge(error, challenge)
    return json_response(document(error), status=status, headers=headers)


def respond_failure(failure: Failure, headers: Mapping[str, str]) -> Response:
    """The response for a request that ended without an answer; not to be repeated, its tools may have run."""
    extra = {"x-should-retry": "false", **headers}
    if failure.code in RETRY_AFTER:
        extra["retry-after"] = str(RETRY_AFTER[failure.code])
    return json_response(of_failure(failure), status=STATUSES[failure.code], headers=extra)


def of_failure(failure: Failure) -> Json:
    """The body of an error that a request ended with."""
    return _body(STATUSES[failure.code], failure.code, failure.detail, None)


def respond_plain(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The response for what is no domain error: a method that a path does not have, a fault of ours."""
    body = _body(status, code, message, None)
    return json_response(body, status=status, headers={"x-should-retry": "false", **(headers or {})})


def _status(error: TealError) -> int:
    return 400 if isinstance(error, InvalidRequest) else status_of(error)


def _body(status: int, code: str, message: str, param: str | None) -> Json:
    default = "server_error" if status >= 500 else "invalid_request_error"
    fields = {"message": message, "type": _TYPES.get(status, default), "param": param, "code": code}
    return {"error": fields}


def _challenge(error: TealError, challenge: str) -> str:
    """RFC 6750, section 3: no error code where no credentials came."""
    separator = ", " if "=" in challenge else " "
    if isinstance(error, InsufficientScope):
        scope = error.required.replace("\\", "").replace('"', "")
        return f'{challenge}{separator}error="insufficient_scope", scope="{scope}"'
    if isinstance(error, Unauthenticated) and error.credentials_given:
        return f'{challenge}{separator}error="invalid_token"'
    return challenge
