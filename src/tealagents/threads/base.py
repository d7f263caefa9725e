"""What every thread is: a conversation with a place to go back to.

A thread is local or remote from its making; there is none that is neither. What it remembers besides its
messages (`context`) goes with its checkpoints, as everywhere in this project: rolled back, it is as it
was; forward again, as it became. Nothing is erased but by `delete`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound, Refusal, TaskBusy
from tealagents.domain.models import Json, Message
from tealagents.threads.message_stores import MessageStoreFactory

FORMAT = "tealagents/thread/v1"


class ThreadMismatch(Refusal):
    """The thread was used by an agent of another configuration."""

    code = "thread_mismatch"


class ThreadDeleted(Refusal):
    """The thread was deleted; nothing of it is left."""

    code = "not_found"


class NotForkable(Refusal):
    """The model service cannot fork this conversation."""

    code = "not_forkable"


class RemoteUnsupported(Refusal):
    """The model client keeps no conversations, or the thread has no client yet."""

    code = "remote_unsupported"


class Checkpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A state of a thread to go back to."""

    checkpoint_id: str
    created_at: datetime
    #: the checkpoint before it; None for the first
    parent: str | None = None
    #: local threads: the ids of the messages since `parent`
    messages: tuple[str, ...] = ()
    #: remote threads: what the conversation went on from
    remote_id: str | None = None
    #: workflow threads: the checkpoints of the sub-threads, and the execution
    threads: dict[str, str | None] = {}
    execution: Json | None = None
    #: what providers and views remembered
    context: Json = {}


class AgentThread(ABC):
    """A conversation with an agent."""

    kind: ClassVar[str]

    def __init__(self, *, thread_id: str | None = None) -> None:
        self.thread_id = thread_id or ids.random_id()
        self.created_at = datetime.now(UTC)
        #: digest of the configuration of the agent that uses it; None before the first has
        self.fingerprint: str | None = None
        #: what is remembered besides the messages: `turn`, `view`, `providers`
        self.context: Json = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._current: str | None = None
        self._deleted = False
        self._taken = False

    # --- life ------------------------------------------------------------------------------------

    async def create(self) -> None:
        """Makes it be where it is kept; called before its first use, and any number of times."""
        self._check_there()

    @abstractmethod
    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        """These were said: all of a round, when it is over."""

    @property
    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """What was said, oldest first. `Agent.list_messages` lists those of any thread."""

    @abstractmethod
    def fork(self, message_id: str | None = None) -> Self:
        """A new, independent thread with everything up to and including a message; without one, with all.

        `NotFound` for an unknown message, `InvalidRequest` for one between a tool call and its result.
        """

    @abstractmethod
    def copy(self) -> Self:
        """The same thread once more, under an id of its own; what is done to one is not done to the other."""

    async def delete(self) -> None:
        """Erases it, wherever it is kept. This cannot be undone. `TaskBusy` while a message is answered."""
        self._check_free()
        self._deleted = True
        self._checkpoints.clear()
        self.context = {}

    @property
    def state(self) -> Mapping[str, Json]:
        """What context providers keep here, by their names."""
        states: Mapping[str, Json] = self.context.get("providers") or {}
        return states

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One writer: within it nobody else can take it. `TaskBusy` where somebody has."""
        self._check_free()
        self._taken = True
        try:
            yield
        finally:
            self._taken = False

    def _check_free(self) -> None:
        self._check_there()
        if self._taken:
            raise TaskBusy("A message is being answered on this thread. Wait for it, or use another thread.")

    def _check_there(self) -> None:
        if self._deleted:
            raise ThreadDeleted(f"The thread {self.thread_id} was deleted.")

    # --- checkpoints -----------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All there are, oldest first, those that were rolled back from included."""
        return tuple(self._checkpoints.values())

    @property
    def checkpoint_id(self) -> str | None:
        """The current one; None before the first."""
        return self._current

    def checkpoint(self) -> str:
        """Marks the present state; returns the id to roll back to."""
        self._check_there()
        made = self._marked(
            Checkpoint(
                checkpoint_id=ids.random_id(),
                created_at=datetime.now(UTC),
                parent=self._current,
                context=deepcopy(self.context),
            )
        )
        self._checkpoints[made.checkpoint_id] = made
        self._current = made.checkpoint_id
        return made.checkpoint_id

    def rollback(self, checkpoint_id: str) -> None:
        """Makes an earlier (or later) checkpoint the present state. Nothing is erased but what was not
        marked."""
        self.check_way_back()
        found = self._checkpoints.get(checkpoint_id)
        if found is None:
            raise NotFound(f"The thread {self.thread_id} has no checkpoint {checkpoint_id}.")
        self._restore(found)
        self._current = checkpoint_id
        self.context = deepcopy(found.context)

    def rewind(self) -> None:
        """Goes back to before the first checkpoint. Nothing that was marked is erased."""
        self.check_way_back()
        self._restore(Checkpoint(checkpoint_id="", created_at=self.created_at))
        self._current = None
        self.context = {}

    def check_way_back(self) -> None:
        """Raises where `rollback` and `rewind` would; changes nothing."""
        self._check_free()

    def _line(self) -> list[Checkpoint]:
        """The checkpoints that led to the current one, oldest first."""
        line = []
        at = self._current
        while at is not None:
            found = self._checkpoints[at]
            line.append(found)
            at = found.parent
        return line[::-1]

    @abstractmethod
    def _marked(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint, with what this kind of thread must know to come back to it."""

    @abstractmethod
    def _restore(self, checkpoint: Checkpoint) -> None:
        """Comes back to a checkpoint."""

    # --- JSON ------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """All of it as text, for `from_json` or `Agent.open_thread`."""
        return msgspec.json.encode(self.document()).decode()

    def document(self) -> Json:
        """All of it as a JSON object."""
        self._check_there()
        return {
            "format": FORMAT,
            "kind": self.kind,
            "thread_id": self.thread_id,
            "created_at": self.created_at,
            "fingerprint": self.fingerprint,
            "context": self.context,
            "checkpoints": [msgspec.to_builtins(each) for each in self._checkpoints.values()],
            "current": self._current,
            **self._parts(),
        }

    @classmethod
    def from_json(cls, text: str | bytes, *, stores: MessageStoreFactory | None = None) -> Self:
        """The thread that `to_json` wrote. `InvalidRequest` for anything else, another kind included.

        `stores` makes the message store of a local thread that has its messages in one.
        """
        return cls.from_document(_decoded(text), stores=stores)

    @classmethod
    def from_document(cls, document: Json, *, stores: MessageStoreFactory | None = None) -> Self:
        if document.get("kind") != cls.kind:
            raise InvalidRequest("kind", f"must be {cls.kind}, not {document.get('kind')!r}")
        try:
            thread = cls._opened(document, stores)
            thread.thread_id = str(document["thread_id"])
            thread.created_at = msgspec.convert(document["created_at"], datetime)
            thread.fingerprint = document["fingerprint"]
            thread.context = msgspec.convert(document["context"], dict[str, Any])
            checkpoints = msgspec.convert(document["checkpoints"], list[Checkpoint])
        except KeyError as missing:
            raise InvalidRequest(str(missing.args[0]), "is missing") from None
        except msgspec.ValidationError as error:
            raise InvalidRequest("", f"this is no thread: {error}") from None
        thread._checkpoints = {each.checkpoint_id: each for each in checkpoints}
        thread._current = document.get("current")
        thread._check_line()
        return thread

    def _check_line(self) -> None:
        known = {None, *self._checkpoints}
        wanted = {self._current, *(each.parent for each in self._checkpoints.values())}
        if wanted - known:
            raise InvalidRequest("checkpoints", "lack one that others continue")

    @abstractmethod
    def _parts(self) -> Json:
        """What this kind of thread adds to the document."""

    @classmethod
    @abstractmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        """A thread with what `_parts` wrote."""

    # --- helpers of forks and copies -------------------------------------------------------------

    def _like(self, other: "AgentThread") -> None:
        """Takes over what another thread remembers, as of now."""
        self.fingerprint = other.fingerprint
        self.context = deepcopy(other.context)
        self._checkpoints = dict(other._checkpoints)
        self._current = other._current


def _decoded(text: str | bytes) -> Json:
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest("", f"this is no JSON: {error}", malformed=True) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidRequest("format", f"must be {FORMAT}")
    return document


def kind_of(text: str | bytes) -> tuple[str, Json]:
    """The kind of thread that a text holds, and its document."""
    document = _decoded(text)
    return str(document.get("kind")), document
