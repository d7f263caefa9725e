"""Errors as problem documents (RFC 9457), in the words of this API."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tealagents.api.bearer import refusal_headers
from tealagents.api.http import RETRY_AFTER, STATUSES, problem_document, problem_response, status_of, worded
from tealagents.domain.errors import ApprovalPending, InsufficientScope, InvalidRequest, NotOwner, TealError
from tealagents.domain.models import Failure, Json
from tealagents.state.endings import CANCELED, SUPERSEDED

TITLES: Mapping[str, str] = {
    "invalid_request": "The request is not valid",
    "idempotency_key_reused": "The idempotency key was used with another body",
    "unauthenticated": "Authentication is required",
    "not_owner": "Not the owner",
    "insufficient_scope": "The token lacks a scope or role",
    "not_found": "Not found",
    "method_not_allowed": "The method is not allowed here",
    "task_busy": "The task is busy",
    "approval_pending": "An approval is pending",
    "already_decided": "Already decided differently",
    "approval_expired": "The approval has expired",
    "request_canceled": "The request was canceled",
    "request_in_progress": "The request is in progress",
    "already_exists": "Already exists",
    "session_mismatch": "Task and session do not belong together",
    "too_large": "Too large",
    "overloaded": "Overloaded",
    "draining": "Shutting down",
    "corrupt_state": "Stored state is damaged",
    "internal_error": "Internal error",
    "model_error": "The model service failed",
    "tool_rounds_exceeded": "Too many tool rounds",
    "remote_thread_lost": "The remote conversation is lost",
    "persistence_unavailable": "The store is unavailable",
    "auth_unavailable": "The authority is unavailable",
    "interrupted": "Interrupted",
    "model_timeout": "The model service was too slow",
    "request_timeout": "The request took too long",
}

#: what to do about an error, where this API has a way of its own; the error itself says what happened
_ADVICE: Mapping[str, str] = {
    "task_busy": "Wait for it, or cancel it.",
    "idempotency_key_reused": "Send a new Idempotency-Key with a new message.",
    "request_in_progress": "Follow it by its id, or retry later.",
    "approval_pending": "Approve or reject it first, or cancel it; "
    'a message with "supersede": true cancels the pause.',
}
#: the same for a decision that was of an earlier pause
_ADVICE_AGAIN: Mapping[str, str] = {
    "approval_pending": "Decide this pause by its approval_id (in the query), "
    "or by decisions that name its calls.",
}

_SEND_AGAIN = "To get an answer, send the message again, under a new Idempotency-Key if you use one."
#: the same for how a request ended, by the stored detail: an approver is shown another one, without advice
_ADVICE_AFTER: Mapping[str, str] = {CANCELED.detail: _SEND_AGAIN, SUPERSEDED.detail: _SEND_AGAIN}


def document(error: TealError) -> Json:
    """The problem document of an error."""
    fields: Json = {**error.ids}
    if isinstance(error, InvalidRequest) and error.field:
        fields["field"] = error.field
    advice = _ADVICE_AGAIN if isinstance(error, ApprovalPending) and error.again else _ADVICE
    return problem(error.code, worded(error, advice), status=status_of(error), **fields)


def problem(code: str, detail: str, *, status: int | None = None, **fields: Any) -> Json:
    return problem_document(code, TITLES[code], detail, status or STATUSES[code], **fields)


def of_failure(failure: Failure, ids: Mapping[str, str]) -> Json:
    """The problem that a request ended with."""
    detail = " ".join(filter(None, (failure.detail, _ADVICE_AFTER.get(failure.detail))))
    return {**problem(failure.code, detail), **ids}


def respond(error: TealError, challenge: str) -> Response:
    """The response for an error. `challenge` is the beginning of `WWW-Authenticate` for this service."""
    named = error
    if isinstance(error, InsufficientScope):  # this wire names scopes and roles alike, as they are configured
        named = InsufficientScope(error.detail, required=error.required)
    headers = refusal_headers(named, challenge)
    if isinstance(error, NotOwner):  # no other token of the caller's would do
        headers["www-authenticate"] = "Bearer"
    return problem_response(document(error), headers=headers)


def respond_failure(
    failure: Failure, ids: Mapping[str, str], headers: Mapping[str, str], *, repeatable: bool
) -> Response:
    """The response for a request that ended without an answer; `repeatable`: the same call begins another."""
    extra = dict(headers)
    if repeatable and failure.code in RETRY_AFTER:
        extra["retry-after"] = str(RETRY_AFTER[failure.code])
    return problem_response(of_failure(failure, ids), headers=extra)
