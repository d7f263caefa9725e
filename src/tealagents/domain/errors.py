"""Every error of the project, as values.

::

    TealError
    ├── Refusal                      nothing has happened; answered at once
    │   ├── InvalidRequest           ├── IdempotencyKeyReused
    │   ├── Unauthenticated          ├── NotOwner               ├── InsufficientScope
    │   ├── NotFound                 ├── TooLarge
    │   ├── TaskBusy                 ├── ApprovalPending        ├── AlreadyDecided
    │   │   └── CheckpointMoved
    │   ├── ApprovalExpired          ├── RequestCanceled        ├── RequestInProgress
    │   ├── AlreadyExists            ├── SessionMismatch
    │   ├── Overloaded               ├── Draining               └── AuthUnavailable
    ├── RunFailure                   ends a request `Failed` with its code
    │   ├── ModelFailed              ├── ModelTimeout           ├── ToolRoundsExceeded
    │   ├── RemoteThreadLost         ├── RequestTimeout         ├── Interrupted
    │   ├── InternalError            ├── ContextProviderFailed   └── ViewFailed
    ├── CorruptState                 stored data that is not what was written
    └── PersistenceUnavailable       the store does not answer

    StoreError                       not a `TealError`: from a store to `state`; never reaches a user
    ├── Conflict                     └── Unknown

    ToolFailed, NeedsAuthorization, NeedsOwner: what tools raise

Clients receive the `code`, which `api/http.py` maps to a status. `detail` says what to do.
"""

import asyncio
import copyreg
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

#: what to do where the outcome of a request is not known; not every protocol can read a request
LEARN_THE_OUTCOME = (
    "Read the request, or send the message again under the same idempotency key or id, to learn its outcome."
)


class _Copied(Exception):
    """An exception that can be copied, and pickled for another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Restores the attributes without calling `__init__`, whose parameters are not `args`."""
        return copyreg.__newobj__, (type(self), *self.args), {**vars(self), "args": self.args}  # type: ignore[attr-defined]


class TealError(_Copied):
    """Base of all. `ids` holds session_id, task_id, request_id and approval_id, as far as they are known."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, detail: str, /, *, retry_after: float | None = None, **ids: str | None) -> None:
        super().__init__(detail)
        self.detail = detail
        #: seconds after which to retry, if this error knows them: otherwise its code decides (`api/http.py`)
        self.retry_after = retry_after
        self.ids: dict[str, str] = {name: value for name, value in ids.items() if value is not None}

    def with_ids(self, **ids: str | None) -> "TealError":
        """Adds ids to this error and returns it; ids that it already has are kept."""
        for name, value in ids.items():
            if value is not None:
                self.ids.setdefault(name, value)
        return self


# --- refusals: nothing has happened ---------------------------------------------------------------


class Refusal(TealError):
    """Nothing was changed and nothing was started."""


class InvalidRequest(Refusal):
    """Malformed or invalid input. `field` is its path (`items.0.content`), `reason` says what is wrong."""

    code = "invalid_request"

    def __init__(self, field: str, reason: str, *, malformed: bool = False, **ids: str | None) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.with_ids(**ids)
        self.field = field
        self.reason = reason
        #: True if the bytes cannot be parsed as the format that they claim (400 rather than 422)
        self.malformed = malformed


class IdempotencyKeyReused(Refusal):
    """The key was used before, with another body."""

    code = "idempotency_key_reused"

    def __init__(self, **ids: str) -> None:
        super().__init__("The idempotency key was used with another body.")
        self.with_ids(**ids)


class Unauthenticated(Refusal):
    """Credentials are missing (`credentials_given=False`) or invalid. The text never quotes a token."""

    code = "unauthenticated"

    def __init__(self, detail: str, *, credentials_given: bool = True) -> None:
        super().__init__(detail)
        self.credentials_given = credentials_given


class NotOwner(Refusal):
    """The named session, task, request or approval belongs to another user."""

    code = "not_owner"


class InsufficientScope(Refusal):
    """The token is valid, but lacks the scope or role `required`.

    `scope` is the scope to request from the authority: by default `required`; empty if no scope would help.
    """

    code = "insufficient_scope"

    def __init__(self, detail: str, *, required: str, scope: str | None = None) -> None:
        super().__init__(detail)
        self.required = required
        self.scope = required if scope is None else scope


class NotFound(Refusal):
    code = "not_found"


class Vanishing(NotFound):
    """The task's session is marked for deletion; if that meets a running request, the task is back."""


class TooLarge(Refusal):
    code = "too_large"


class TaskBusy(Refusal):
    """Another request, `request_id`, is running on the task: a task has one writer."""

    code = "task_busy"

    def __init__(self, detail: str = "The task is answering another message.", /, **ids: str) -> None:
        super().__init__(detail)
        self.with_ids(**ids)


class CheckpointMoved(TaskBusy):
    """The task has moved past the checkpoint that the message was to continue."""


class ApprovalPending(Refusal):
    """The task waits for a human to decide the pause `approval_id` of `request_id`.

    `again`: the request was decided before and has paused once more.
    """

    code = "approval_pending"

    def __init__(self, *, again: bool = False, **ids: str) -> None:
        paused = "The request has paused again." if again else "The task waits for a decision."
        super().__init__(paused)
        self.with_ids(**ids)
        self.again = again


class AlreadyDecided(Refusal):
    code = "already_decided"


class ApprovalExpired(Refusal):
    code = "approval_expired"


class RequestCanceled(Refusal):
    """The request ended `Canceled` before it had an answer."""

    code = "request_canceled"


class RequestInProgress(Refusal):
    """The first request under this idempotency key still runs."""

    code = "request_in_progress"

    def __init__(self, **ids: str) -> None:
        super().__init__("The first request under this idempotency key still runs.")
        self.with_ids(**ids)


class AlreadyExists(Refusal):
    code = "already_exists"


class SessionMismatch(Refusal):
    code = "session_mismatch"


class Overloaded(Refusal):
    """A limit is reached: the caller's own (`per_user`, 429), or the process's (503)."""

    code = "overloaded"

    def __init__(self, detail: str, *, per_user: bool = False, **ids: str | None) -> None:
        super().__init__(detail)
        self.with_ids(**ids)
        self.per_user = per_user


class Draining(Refusal):
    code = "draining"

    def __init__(self, action: str = "Send the message again") -> None:
        super().__init__(f"This process is shutting down. {action}: another process will take it.")


class AuthUnavailable(Refusal):
    """No token can be checked, because the authority's keys cannot be fetched."""

    code = "auth_unavailable"


# --- failures of a run: the request ends with this code -----------------------------------------


class RunFailure(TealError):
    """Ends a request `Failed`; the task can be continued."""


class ModelFailed(RunFailure):
    """The model service refused, broke off or sent an unusable reply; the detail quotes it."""

    code = "model_error"

    def __init__(
        self,
        detail: str,
        /,
        *,
        retry_after: float | None = None,
        http_status: int | None = None,
        too_long: bool = False,
    ) -> None:
        super().__init__(detail, retry_after=retry_after)
        #: the status with which the model service refused; None if it did not
        self.http_status = http_status
        #: True if the service says that the messages are longer than its model can read
        self.too_long = too_long


class ModelTimeout(RunFailure):
    code = "model_timeout"


class RequestTimeout(RunFailure):
    code = "request_timeout"


class ToolRoundsExceeded(RunFailure):
    code = "tool_rounds_exceeded"


class RemoteThreadLost(RunFailure):
    """The model service no longer has the conversation whose id we keep."""

    code = "remote_thread_lost"


class Interrupted(RunFailure):
    """The process that ran the request died, was stopped, or lost its lease."""

    code = "interrupted"


class InternalError(RunFailure):
    """A fault of the service itself."""

    code = "internal_error"


class ContextProviderFailed(RunFailure):
    """A context provider marked `required` raised."""

    code = "model_error"


class ViewFailed(RunFailure):
    """The view could not select the messages for the model: a reducer broke its contract."""

    code = "model_error"


# --- state ---------------------------------------------------------------------------------------


class CorruptState(TealError):
    """Stored data that does not parse, does not match its checksum or contradicts itself.

    `key` is the record's key, `reason` says what is wrong with the record, which is left as it was found.
    `place` says for logs and operators where it is: `str()` includes it, `detail` (for clients) does not.
    """

    code = "corrupt_state"

    def __init__(self, key: str, reason: str, *, place: str = "", **ids: str | None) -> None:
        left = "It was left as it was found; restore it from a backup."
        super().__init__(f"Stored record {key!r} {reason}. {left}")
        self.args = (f"Stored record {key!r}{place and ' ' + place} {reason}. {left}",)
        self.with_ids(**ids)
        self.key = key
        self.reason = reason


class PersistenceUnavailable(TealError):
    """The store cannot be reached or refuses to work.

    `str()` says why, for logs and operators: it may name a host or a path, but never a password. `detail`,
    for clients, names neither host nor path.
    """

    code = "persistence_unavailable"

    def __init__(
        self,
        cause: str,
        /,
        *,
        what: str = "The store is unavailable.",
        advice: str = "Retry later; the request, or the idempotency key, shows how it ended.",
        retry_after: float | None = None,
        **ids: str | None,
    ) -> None:
        """`what` is unavailable, if not the store; `advice` is what the client can do."""
        super().__init__(f"{what} {advice}", retry_after=retry_after, **ids)
        self.args = (cause,)


class StoreError(Exception):
    """Raised by stores and handled in `state`."""


class Conflict(StoreError):
    """An expectation of a commit did not hold; nothing was written. `keys` are those known to differ."""

    def __init__(self, *keys: str) -> None:
        super().__init__(", ".join(keys))
        self.keys = keys


class Unknown(StoreError):
    """Whether the commit was applied is unknown (a reply was lost). Read to find out."""


# --- tools ---------------------------------------------------------------------------------------


class ToolFailed(Exception):
    """Raised by a tool, or by its adapter, to report to the model that the call failed, and why.

    `unknown`: the call may have taken effect all the same, for example when no reply arrived.
    """

    def __init__(self, *args: object, unknown: bool = False) -> None:
        super().__init__(*args)
        self.unknown = unknown


class NeedsAuthorization(_Copied):
    """Raised by a tool that needs the user's own consent before it can be called.

    The user grants consent at `url`, which is shown in the pause's `authorizations`. `begun`: the tool's own
    code had started to run.
    """

    def __init__(self, server: str, url: str, scopes: tuple[str, ...] = (), *, begun: bool = False) -> None:
        super().__init__(f"{server} needs the user's authorization")
        self.server = server
        self.url = url
        self.scopes = scopes
        self.begun = begun


class NeedsOwner(_Copied):
    """Raised by a tool that needs the owner's token while another user's request is running it.

    `begun` as in `NeedsAuthorization`.
    """

    def __init__(self, *args: object, begun: bool = False) -> None:
        super().__init__(*args)
        self.begun = begun


# --- errors raised by third-party code ------------------------------------------------------------


def described(error: BaseException) -> str:
    """`Type: text` of an error raised by a tool, a provider or a reducer, for clients and the model."""
    try:
        text = str(error.detail if isinstance(error, TealError) else error)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    except (Exception, SystemExit):  # noqa: BLE001 — `__str__` is a plugin's code, too
        return type(error).__name__


def ends_task(error: BaseException) -> bool:
    """Whether an error from a tool, a provider or a model client must end the asyncio task that runs it:
    that task was canceled, or the process interrupted.

    Anything else is a failure of the third-party code alone, whatever its class: `SystemExit`, the
    cancellation of something that it awaited, a panic of an extension.
    """
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        task = _current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs: a closed one's leftovers are collected with `GeneratorExit`
        return None


def let_go_of_frames(error: BaseException) -> None:
    """Drops the tracebacks of an error that has been answered, and of the errors that led to it.

    Their frames hold the message that was sent, and often what holds the error: without this, 20 MB may stay
    until the garbage collector runs.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        BaseException.with_traceback(cause, None)  # a class of a third party may refuse assignments
        cause = cause.__cause__ or cause.__context__


@contextmanager
def ungrouped() -> Iterator[None]:
    """Unwraps an exception group raised in the block, such as one from `asyncio.TaskGroup`.

    Raises its `KeyboardInterrupt`, its `NeedsAuthorization` or `NeedsOwner`, or else its `ToolFailed`, if
    there is one, or its only exception. A group of several others is raised as it is.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        meant = _meant(group)
        led_to_it = meant.__context__
        try:
            raise meant
        finally:
            if len([*_leaves(group)]) == 1:  # otherwise the context stays the group, which shows the others
                meant.__context__ = led_to_it


def _meant(group: BaseExceptionGroup[Any]) -> BaseException:
    # the interrupt first: were it taken for a failure of the tool, the process would not end
    for kind in (KeyboardInterrupt, (NeedsAuthorization, NeedsOwner), ToolFailed):
        answers = group.subgroup(kind)
        if answers is not None:
            return next(_leaves(answers))
    leaves = [*_leaves(group)]
    return leaves[0] if len(leaves) == 1 else group


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
