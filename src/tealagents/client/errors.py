"""What can go wrong, as a caller sees it.

::

    ClientError
    ├── ConnectionLost              the network failed, and the retries are used up
    ├── StillRunning                the time for waiting is over; the request continues
    ├── UnexpectedAnswer            the answer is not one that this service gives
    └── ProblemError                the service said no, or the request failed: status, code, detail, ids
        ├── InvalidRequest          ├── IdempotencyKeyReused    ├── TooLarge
        ├── Unauthenticated         ├── NotOwner                ├── InsufficientScope
        ├── NotFound                ├── AlreadyExists           ├── SessionMismatch
        ├── TaskBusy                ├── ApprovalPending         ├── AlreadyDecided
        ├── ApprovalExpired         ├── RequestCanceled         ├── RequestInProgress
        ├── Overloaded              ├── Draining                ├── AuthUnavailable
        ├── ModelError              ├── ModelTimeout            ├── ToolRoundsExceeded
        ├── RemoteThreadLost        ├── RequestTimeout          ├── Interrupted
        ├── CorruptState            ├── PersistenceUnavailable  ├── MethodNotAllowed
        └── InternalError

An unknown code is a plain `ProblemError`. So is an error of a gateway in between, which has none of these.
"""

import copyreg
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")


class ClientError(Exception):
    """Base of all errors that come from the network or the service."""

    #: the key of the message that failed: sent again with it, the message is still executed only once
    idempotency_key: str | None = None
    #: of a fork, an import, a rollback or the deletion of a session after which the connection broke, or a
    #: gateway answered 502, 503 or 504: the service may have carried it out, so it is not repeated
    in_doubt: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes copying and pickling work: `__init__` does not take `args`, so it cannot be called again."""
        return copyreg.__newobj__, (type(self), *self.args), {**vars(self), "args": self.args}  # type: ignore[attr-defined]


class ConnectionLost(ClientError):
    """No answer after as many attempts as the `Retry` allows.

    To continue later: `request_id` and `last_event_id` are for `follow`; `idempotency_key` is for sending the
    same message again.
    """

    def __init__(
        self,
        detail: str,
        *,
        in_doubt: bool = False,
        request_id: str | None = None,
        last_event_id: int = 0,
        idempotency_key: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.in_doubt = in_doubt
        self.request_id = request_id
        self.last_event_id = last_event_id
        self.idempotency_key = idempotency_key


class StillRunning(ClientError, TimeoutError):
    """The request has not ended in the time to wait. It is not canceled."""

    def __init__(self, request_id: str, seconds: float) -> None:
        super().__init__(f"request {request_id} still runs after {seconds:g} seconds of waiting")
        self.request_id = request_id


class UnexpectedAnswer(ClientError):
    """An answer outside of the contract: from another service, or a proxy."""


class ProblemError(ClientError):
    """A problem document (RFC 9457), or an error answer without one; then `code` is None."""

    #: the code of the class; None for any
    stands_for: ClassVar[str | None] = None

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        code: str | None = None,
        title: str | None = None,
        retry_after: float | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        request_id: str | None = None,
        approval_id: str | None = None,
        replayed: bool = False,
        raw: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code
        self.title = title
        #: seconds after which a repetition can succeed, or None
        self.retry_after = retry_after
        self.session_id = session_id
        self.task_id = task_id
        #: `task_busy`: the running request; `approval_pending`: the one to decide; else the failed one
        self.request_id = request_id
        self.approval_id = approval_id
        #: the recorded outcome of an earlier request under the same idempotency key
        self.replayed = replayed
        self.raw: Mapping[str, Any] = raw or {}

    def __str__(self) -> str:
        return f"{self.detail} ({self.code or 'no code'}, HTTP {self.status})"


class InvalidRequest(ProblemError):
    stands_for = "invalid_request"


class IdempotencyKeyReused(ProblemError):
    stands_for = "idempotency_key_reused"


class TooLarge(ProblemError):
    stands_for = "too_large"


class Unauthenticated(ProblemError):
    stands_for = "unauthenticated"


class NotOwner(ProblemError):
    stands_for = "not_owner"


class InsufficientScope(ProblemError):
    stands_for = "insufficient_scope"


class NotFound(ProblemError):
    stands_for = "not_found"


class AlreadyExists(ProblemError):
    stands_for = "already_exists"


class SessionMismatch(ProblemError):
    stands_for = "session_mismatch"


class TaskBusy(ProblemError):
    stands_for = "task_busy"


class ApprovalPending(ProblemError):
    stands_for = "approval_pending"


class AlreadyDecided(ProblemError):
    stands_for = "already_decided"


class ApprovalExpired(ProblemError):
    stands_for = "approval_expired"


class RequestCanceled(ProblemError):
    stands_for = "request_canceled"


class RequestInProgress(ProblemError):
    stands_for = "request_in_progress"


class Overloaded(ProblemError):
    stands_for = "overloaded"


class Draining(ProblemError):
    stands_for = "draining"


class AuthUnavailable(ProblemError):
    stands_for = "auth_unavailable"


class ModelError(ProblemError):
    stands_for = "model_error"


class ModelTimeout(ProblemError):
    stands_for = "model_timeout"


class ToolRoundsExceeded(ProblemError):
    stands_for = "tool_rounds_exceeded"


class RemoteThreadLost(ProblemError):
    stands_for = "remote_thread_lost"


class RequestTimeout(ProblemError):
    stands_for = "request_timeout"


class Interrupted(ProblemError):
    stands_for = "interrupted"


class CorruptState(ProblemError):
    stands_for = "corrupt_state"


class PersistenceUnavailable(ProblemError):
    stands_for = "persistence_unavailable"


class MethodNotAllowed(ProblemError):
    stands_for = "method_not_allowed"


class InternalError(ProblemError):
    stands_for = "internal_error"


_BY_CODE: dict[str | None, type[ProblemError]] = {
    kind.stands_for: kind for kind in ProblemError.__subclasses__()
}


def problem_from_document(
    document: Mapping[str, Any],
    *,
    status: int | None = None,
    retry_after: float | None = None,
    replayed: bool = False,
    otherwise: str | None = None,
) -> ProblemError:
    """The error of a problem document. `status` is that of the HTTP answer, if there was one; `otherwise` is
    the detail where the document has none."""
    stated = document.get("status")
    status = status or (stated if isinstance(stated, int) else 500)
    code = _text(document, "code")
    title = _text(document, "title")
    return _BY_CODE.get(code, ProblemError)(
        _text(document, "detail") or title or otherwise or f"the service answered with HTTP {status}",
        status=status,
        code=code,
        title=title,
        retry_after=retry_after,
        session_id=_id(document, "session_id"),
        task_id=_id(document, "task_id"),
        request_id=_id(document, "request_id"),
        approval_id=_id(document, "approval_id"),
        replayed=replayed,
        raw=document,
    )


def problem_from_body(
    body: bytes, *, status: int, retry_after: float | None = None, replayed: bool = False
) -> ProblemError:
    """The error of a 3xx, 4xx or 5xx answer, with any body."""
    try:
        document = decoded(body)
    except ValueError:
        document = None
    excerpt = " ".join(body[:400].decode("utf-8", "replace").split())[:200]
    said = f" without a problem document, {f'body: {excerpt}' if excerpt else 'no body'}"
    if 300 <= status < 400:
        said = ": the address redirects elsewhere; use the address it redirects to"
    return problem_from_document(
        document if isinstance(document, dict) else {},
        status=status,
        retry_after=retry_after,
        replayed=replayed,
        otherwise=f"HTTP {status}{said}",
    )


def decoded(text: str | bytes) -> Any:
    """What JSON says. `ValueError` where it is none, or nested more deeply than Python can read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def is_id(text: str) -> bool:
    """Whether it can be an id of the service, and so one segment of a path."""
    return _ID.fullmatch(text) is not None


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) else None


def _id(document: Mapping[str, Any], name: str) -> str | None:
    value = _text(document, name)
    return value if value is not None and is_id(value) else None
