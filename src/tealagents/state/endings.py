"""How requests end without an answer, and why."""

from msgspec import Struct

from tealagents.domain.models import Status
from tealagents.state.transitions import SERVICE


class Ending(Struct, frozen=True):
    """How a request is ended from outside: its status, and the code and text of its failure."""

    status: Status
    code: str
    detail: str


INTERRUPTED = Ending(
    "Failed",
    "interrupted",
    "The process that ran this request stopped before it had an answer. Send the message again, under a new "
    "idempotency key or id if you use one; tools that ran are named to the model, so that they are not "
    "repeated.",
)
CANCELED = Ending("Canceled", "request_canceled", "The request was canceled.")
SUPERSEDED = Ending("Canceled", "request_canceled", "The request was canceled by a newer message.")
EXPIRED = Ending(
    "Canceled",
    "approval_expired",
    "No one decided in time, so the request was canceled. Send the message again to ask again, under a new "
    "idempotency key or id if you use one.",
)
WAITED_TOO_LONG = Ending(
    "Failed",
    "request_timeout",
    "The request waited for its turn longer than the request timeout. Send it again when the task is idle, "
    "under a new idempotency key or id if you use one.",
)


class Stop(Struct, frozen=True):
    """Why a request has to end without an answer (canceled, superseded, interrupted), and who asked."""

    #: None: the lease is lost, and another process writes the end
    ending: Ending | None
    actor: str = SERVICE
