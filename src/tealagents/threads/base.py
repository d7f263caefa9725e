"""The base of all threads: a conversation with checkpoints.

A thread is local or remote from its creation. Each checkpoint includes the thread's `context`, the state kept
besides its messages: a rollback restores it, to earlier and to later checkpoints. Only `delete` erases what a
checkpoint holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Self, TypedDict, cast

import msgspec
from msgspec import Meta, Struct

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound, Refusal, TaskBusy
from tealagents.domain.models import Json, Message
from tealagents.threads.message_stores import MessageStoreFactory

FORMAT = "tealagents/thread/v1"

Moment = Annotated[datetime, Meta(tz=True)]


class ThreadMismatch(Refusal):
    """The thread was used by an agent with a different configuration."""

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


class ThreadContext(TypedDict, total=False):
    """The state that a thread keeps besides its messages."""

    #: the number of the newest round
    turn: int
    #: the state of reducers (any JSON), and that of context providers by their names
    view: Json
    providers: dict[str, Json]


class ThreadCheckpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A state of a thread to roll back to."""

    checkpoint_id: str
    created_at: Moment
    #: the checkpoint before it; None for the first
    parent: str | None = None
    #: local threads: since `parent`, the ids of new messages, and the new text of each edited message by its
    #: id
    messages: tuple[str, ...] = ()
    edits: dict[str, str] = {}
    #: remote threads: the id that the conversation continues from
    remote_id: str | None = None
    #: workflow threads: the checkpoint of each sub-thread by its key, and the execution
    threads: dict[str, str | None] = {}
    execution: Json | None = None
    #: the state of providers and views at this checkpoint
    context: ThreadContext = {}


class Header(Struct, frozen=True):
    """The fields that the document of every thread has."""

    thread_id: Annotated[str, Meta(min_length=1)]
    created_at: Moment
    fingerprint: str | None
    context: ThreadContext
    checkpoints: tuple[ThreadCheckpoint, ...]
    current: str | None
    beginning_state: dict[str, Json] = {}


class AgentThread(ABC):
    """A conversation with an agent."""

    kind: ClassVar[str]

    def __init__(self, *, thread_id: str | None = None) -> None:
        self.thread_id = thread_id or ids.random_id()
        self.created_at = datetime.now(UTC)
        #: fingerprint of the configuration of the agent that uses the thread; None before the first use
        self.fingerprint: str | None = None
        #: the state kept besides the messages, see `ThreadContext`
        self.context: Json = {}
        #: the state of context providers before the first message
        self.beginning_state: dict[str, Json] = {}
        self._checkpoints: dict[str, ThreadCheckpoint] = {}
        self._current: str | None = None
        self._deleted = False
        self._taken = False

    # --- life ------------------------------------------------------------------------------------

    async def create(self) -> None:
        """Brings the thread up to date with its store. Call it before use; repeating it is harmless."""
        self._check_there()

    @abstractmethod
    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        """Adds the messages of a finished round."""

    @property
    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """All messages, oldest first. A remote thread raises `RemoteUnsupported`; `Agent.list_messages` lists
        its own."""

    @abstractmethod
    def fork(self, message_id: str | None = None) -> Self:
        """A new, independent thread with everything up to and including a message; None: with all messages.

        `NotFound` for an unknown message, `InvalidRequest` for one between a tool call and its result.
        """

    @abstractmethod
    def copy(self) -> Self:
        """The same thread under a new id. A change to one does not affect the other."""

    async def delete(self) -> None:
        """Erases the thread and everything stored for it. This cannot be undone.

        `TaskBusy` while a message is being answered. A deletion that failed can be repeated.
        """
        self.check_deletable()
        with self.taken():
            await self._erase()

    def check_deletable(self) -> None:
        """Raises what `delete` would raise; changes nothing."""
        self._check_free()

    async def _erase(self) -> None:
        """Erases everything. The caller is the thread's only user (`taken`)."""
        self._deleted = True
        self._checkpoints.clear()
        self.context, self.beginning_state = {}, {}

    @property
    def deleted(self) -> bool:
        """Whether `delete` has erased the thread."""
        return self._deleted

    @property
    def state(self) -> Mapping[str, Json]:
        """The state of context providers in this thread, by their names."""
        states: Mapping[str, Json] = self.context.get("providers") or {}
        return states

    def adopt_state(self, other: "AgentThread") -> None:
        """Copies the context providers' state of another thread; before the first checkpoint, it also becomes
        the `beginning_state`. The state of views belongs to the other's messages, and is not copied."""
        if other.state:
            self.context["providers"] = deepcopy(dict(other.state))
            if not self._checkpoints:
                self.beginning_state = deepcopy(dict(other.state))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Makes the caller the only writer. `TaskBusy` if there is one already."""
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
    def checkpoints(self) -> Sequence[ThreadCheckpoint]:
        """All checkpoints in order of creation, including those that a rollback has gone back from."""
        return tuple(self._checkpoints.values())

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the current checkpoint; None before the first."""
        return self._current

    def checkpoint(self) -> str:
        """Saves the present state as a checkpoint; returns its id, for `rollback`."""
        self._check_there()
        made = self._marked(
            ThreadCheckpoint(
                checkpoint_id=ids.random_id(),
                created_at=datetime.now(UTC),
                parent=self._current,
                context=cast(ThreadContext, deepcopy(self.context)),
            )
        )
        self._checkpoints[made.checkpoint_id] = made
        self._current = made.checkpoint_id
        return made.checkpoint_id

    def rollback(self, checkpoint_id: str) -> None:
        """Restores an earlier (or later) checkpoint. Only changes since the last checkpoint are lost."""
        self.check_way_back()
        found = self._checkpoints.get(checkpoint_id)
        if found is None:
            raise NotFound(f"The thread {self.thread_id} has no checkpoint {checkpoint_id}.")
        self._go_to(found)

    def rewind(self) -> None:
        """Restores the state from before the first message. Only changes since the last checkpoint are
        lost."""
        self.check_way_back()
        context = cast(ThreadContext, self._beginning_context())
        self._go_to(ThreadCheckpoint(checkpoint_id="", created_at=self.created_at, context=context))

    def check_way_back(self) -> None:
        """Raises what makes any `rollback` or `rewind` impossible now; changes nothing."""
        self._check_free()

    def _go_to(self, checkpoint: ThreadCheckpoint) -> None:
        self._restore(checkpoint)
        self._current = checkpoint.checkpoint_id or None
        self.context = dict(deepcopy(checkpoint.context))

    def _beginning_context(self) -> Json:
        """The `context` from before the first message."""
        return {"providers": deepcopy(self.beginning_state)} if self.beginning_state else {}

    def _lineage(self) -> list[ThreadCheckpoint]:
        """The checkpoints that led to the current one, oldest first."""
        lineage = []
        at = self._current
        while at is not None:
            found = self._checkpoints[at]
            lineage.append(found)
            at = found.parent
        return lineage[::-1]

    @abstractmethod
    def _marked(self, checkpoint: ThreadCheckpoint) -> ThreadCheckpoint:
        """The checkpoint, extended by the state that this kind of thread needs to restore it."""

    @abstractmethod
    def _restore(self, checkpoint: ThreadCheckpoint) -> None:
        """Restores the part of a checkpoint that is specific to this kind of thread."""

    # --- JSON ------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The whole thread as text, for `from_json` or `Agent.open_thread`."""
        return msgspec.json.encode(self.document()).decode()

    def document(self) -> Json:
        """The whole thread as a JSON object."""
        self._check_there()
        return {
            "format": FORMAT,
            "kind": self.kind,
            "thread_id": self.thread_id,
            "created_at": self.created_at,
            "fingerprint": self.fingerprint,
            "context": self.context,
            "beginning_state": self.beginning_state,
            "checkpoints": [msgspec.to_builtins(each) for each in self._checkpoints.values()],
            "current": self._current,
            **self._fields(),
        }

    @classmethod
    def from_json(cls, text: str | bytes, *, stores: MessageStoreFactory | None = None) -> Self:
        """The thread that `to_json` wrote. `InvalidRequest` for anything else, another kind included.

        `stores` makes the message store of a local thread that keeps its messages in one.
        """
        return cls.from_document(decoded(text), stores=stores)

    @classmethod
    def from_document(cls, document: Json, *, stores: MessageStoreFactory | None = None) -> Self:
        """The thread that `document()` described. `InvalidRequest` as for `from_json`."""
        if document.get("kind") != cls.kind:
            raise InvalidRequest("kind", f"must be {cls.kind}, not {document.get('kind')!r}")
        try:
            header = msgspec.convert(document, Header)
            thread = cls._opened(document, stores)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidRequest("", f"this is not a thread: {error}") from None
        thread.thread_id, thread.created_at = header.thread_id, header.created_at
        thread.fingerprint, thread.context = header.fingerprint, dict(header.context)
        thread.beginning_state = header.beginning_state
        thread._checkpoints = _in_order(header)
        thread._current = header.current
        return thread

    @abstractmethod
    def _fields(self) -> Json:
        """The fields that this kind of thread adds to the document."""

    @classmethod
    @abstractmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        """A thread with the fields that `_fields` wrote. `msgspec.ValidationError` if they are malformed."""

    # --- helpers of forks and copies -------------------------------------------------------------

    def _copy_from(self, other: "AgentThread") -> None:
        """Copies fingerprint, context and checkpoints of another thread."""
        self.fingerprint = other.fingerprint
        self.context = deepcopy(other.context)
        self.beginning_state = other.beginning_state
        self._checkpoints = dict(other._checkpoints)
        self._current = other._current

    def _holds(self, message_id: str) -> bool:
        """Whether this thread has a message that `fork` can fork at."""
        return False


def decoded(text: str | bytes) -> Json:
    """The thread document in a JSON text; `InvalidRequest` if it is none."""
    given: object = text
    if not isinstance(given, str | bytes):
        raise InvalidRequest("text", f"must be what `to_json` returned, not {type(given).__name__}")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest("", f"this is not JSON: {error}", malformed=True) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidRequest("format", f"must be {FORMAT}")
    return document


def _in_order(header: Header) -> dict[str, ThreadCheckpoint]:
    """The checkpoints by their ids. `InvalidRequest` unless each parent comes before its children, as
    `document` writes them: that rules out cycles."""
    known: dict[str, ThreadCheckpoint] = {}
    for each in header.checkpoints:
        if not each.checkpoint_id or each.checkpoint_id in known:
            raise InvalidRequest("checkpoints", "must each have an id of their own")
        if each.parent is not None and each.parent not in known:
            raise InvalidRequest("checkpoints", f"lack {each.parent!r} before one that continues it")
        known[each.checkpoint_id] = each
    if header.current is not None and header.current not in known:
        raise InvalidRequest("checkpoints", "lack the current one")
    return known
