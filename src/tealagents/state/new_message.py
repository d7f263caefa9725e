"""A client's message, the earlier messages that it may bring, and its idempotency key."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct, field

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item, Json, Message, PerRequest, Role

#: how many earlier messages a new task can begin with
MOST_EARLIER = 500


class Earlier(Struct, frozen=True):
    """A message from before a task began here, sent by clients that keep the history themselves."""

    role: Literal["user", "assistant"]
    items: tuple[Item, ...]

    @property
    def size(self) -> int:
        """Characters of all its items."""
        return sum(len(item.content) for item in self.items)


class NewMessage(PerRequest, frozen=True, kw_only=True):
    """A client's message. The inherited fields are settings of its request; those here say where it goes."""

    items: tuple[Item, ...]
    session_id: str | None = None
    #: the task to continue; None: a new one
    task_id: str | None = None
    #: end the pause that the task waits in, if any
    supersede: bool = False
    #: the checkpoint that must be the task's current one, with no request running, queued or paused after it;
    #: otherwise `CheckpointMoved`, whatever `concurrency` says
    at_checkpoint: str | None = None
    #: the `Head.end` that the task must still have; otherwise `CheckpointMoved`
    at_end: str | None = None
    # the following are for a new task only
    metadata: Json = field(default_factory=dict)
    #: earlier messages, stored with this one; at most `MOST_EARLIER`
    earlier: tuple[Earlier, ...] = ()
    #: an id that the client has chosen, claimed for its owner as session ids are; None: a fresh one
    new_task_id: str | None = None
    expires_at: datetime | None = None

    @property
    def size(self) -> int:
        """Characters of all its items, and of the earlier messages."""
        return sum(len(item.content) for item in self.items) + sum(each.size for each in self.earlier)


class Key(Struct, frozen=True):
    """An idempotency key: the digest that names its record, and the digest of the request's body."""

    name: str
    digest: str


def message_of(request_id: str, role: Role, items: tuple[Item, ...], at: datetime) -> Message:
    """A message of a request, under an id of its own."""
    message_id = ids.message_id_of(request_id)
    return Message(message_id=message_id, request_id=request_id, role=role, created_at=at, items=items)


def check_earlier(said: Sequence[Earlier]) -> None:
    if len(said) > MOST_EARLIER:
        raise InvalidRequest("earlier", f"has {len(said)} messages; at most {MOST_EARLIER} are accepted")
