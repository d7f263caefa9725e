"""Domain errors in OpenAI's form, so that its SDKs raise their own exception classes."""

from collections.abc import Mapping

from starlette.responses import Response

from tealagents.api.http import RETRY_AFTER, STATUSES, json_response, status_of, worded
from tealagents.domain.errors import InvalidRequest, Refusal, TealError
from tealagents.domain.models import Failure, Json

#: status → OpenAI's type of error; any other 4xx is an `invalid_request_error`, a 5xx a `server_error`
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
#: what to do about an error, where this API has a way of its own
_ADVICE: Mapping[str, str] = {
    "task_busy": "Wait for the running response, or cancel it.",
    "idempotency_key_reused": "Send a new Idempotency-Key with a new body.",
    "request_in_progress": "Retry later for its outcome.",
    "already_decided": "Send the answers as they were sent first, or add a user message.",
    "approval_pending": "Answer its function calls. Over Responses, send mcp_approval_response or cancel it.",
}


def of_failure(failure: Failure) -> Json:
    """The body of the error that a request ended with."""
    if failure.too_long:  # by this code, clients know that they have to send less
        return _body(400, "context_length_exceeded", failure.detail)
    return _body(STATUSES[failure.code], failure.code, failure.detail)


def respond(error: TealError, headers: Mapping[str, str]) -> Response:
    """The response for an error. The SDKs may repeat what was refused for the moment, and nothing else."""
    status, param = status_of(error), None
    if isinstance(error, InvalidRequest):
        status, param = 400, error.field if error.field != "body" else None
    headers = {**headers, **({"x-request-id": error.ids["request_id"]} if "request_id" in error.ids else {})}
    again = "true" if "retry-after" in headers and isinstance(error, Refusal) else "false"
    body = _body(status, error.code, worded(error, _ADVICE), param or None)
    return json_response(body, status=status, headers={"x-should-retry": again, **headers})


def respond_failure(failure: Failure, headers: Mapping[str, str]) -> Response:
    """The response for a request that ended without an answer; not to be repeated, its tools may have run."""
    after = {"retry-after": str(RETRY_AFTER[failure.code])} if failure.code in RETRY_AFTER else {}
    status = 400 if failure.too_long else STATUSES[failure.code]
    shown = {"x-should-retry": "false", **headers, **after}
    return json_response(of_failure(failure), status=status, headers=shown)


def _body(status: int, code: str, message: str, param: str | None = None) -> Json:
    kind = _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
