"""Threads whose messages are kept on this side, and sent with each call of the model."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import takewhile
from typing import ClassVar, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, InvalidRequest, NotFound
from tealagents.domain.models import Item, Json, Message, Origin
from tealagents.domain.texts import check_encodable
from tealagents.state.history import in_rounds, up_to
from tealagents.threads.base import AgentThread, ThreadCheckpoint
from tealagents.threads.message_stores import (
    MessageStore,
    MessageStoreFactory,
    SealedMessages,
    checked_store,
    serialized,
)
from tealagents.threads.views import Part, parts_of


class LocalFields(Struct, frozen=True):
    """The fields of a local thread's document besides its header."""

    #: all messages; with a message store, only those that are not stored yet
    messages: tuple[Message, ...]
    #: since the current checkpoint: ids of new messages, and the new text of each edited message by its id
    pending: tuple[str, ...]
    edits: dict[str, str]
    #: ids of messages that are not in the thread, although the store may have them
    dropped: tuple[str, ...]
    #: the message store's `serialize()`; None without a store
    store: Json | None
    #: ids of the messages that the thread was created with
    beginning: tuple[str, ...] = ()


class StoredMessages:
    """One thread's use of its message store, one access at a time."""

    def __init__(self, store: MessageStore, unstored: Iterable[Message]) -> None:
        self.store = store
        #: messages that are not in the store yet
        self.unstored = list(unstored)
        #: ids of messages that are not in the thread. None is ever forgotten: the store cannot erase single
        #: messages, and what a failed or canceled write has sent may still arrive after the next read
        self.dropped: set[str] = set()
        #: whether the thread has read the messages in the store
        self.is_read = True
        self._access = asyncio.Lock()

    async def sync(self) -> list[Message]:
        """Stores the messages that are not stored yet; returns all messages of the thread, oldest first."""
        async with self._access:
            kept = await self.store.list_messages()
            known = {message.message_id for message in kept}
            missing = [message for message in self.unstored if message.message_id not in known]
            if missing:
                await self.store.add_messages(missing)
                kept = await self.store.list_messages()
            self.unstored.clear()
            return self._shown(kept)

    async def add(self, messages: Sequence[Message]) -> list[Message]:
        """Adds new messages; returns all that the store has now, including those that other writers added.

        If it raises, the new messages are not part of the thread, even if the store has them.
        """
        new = {message.message_id for message in messages}
        async with self._access:
            self.dropped |= new
            await self.store.add_messages(messages)
            kept = await self.store.list_messages()
            self.dropped -= new
            return self._shown(kept)

    def drop(self, message_ids: Collection[str]) -> None:
        """Removes these messages from the thread; the store may keep them."""
        self.unstored = [each for each in self.unstored if each.message_id not in message_ids]
        self.dropped.update(message_ids)

    def _shown(self, kept: Sequence[Message]) -> list[Message]:
        self.is_read = True
        return [message for message in kept if message.message_id not in self.dropped]


class LocalThread(AgentThread):
    """A conversation kept in this process, and in a message store where it has one.

    With a store, the thread keeps the order of its messages, and the store their content: `create` reads
    them. A message that the store has dropped is no longer in the thread; messages that other writers added
    come last.
    """

    kind: ClassVar = "local"

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        store: MessageStore | None = None,
        stores: MessageStoreFactory | None = None,
        thread_id: str | None = None,
    ) -> None:
        """`messages`: earlier messages, which `rewind` keeps; a repeated id is replaced by a new one.
        `stores`: makes the stores of forks and copies, and of this thread if no `store` is given."""
        super().__init__(thread_id=thread_id)
        self._stores = stores
        #: the messages without edits, by their ids
        self._messages = {each.message_id: each for each in _distinct(messages, ())}
        #: ids of the messages that the thread was created with, which are in no checkpoint
        self._beginning = tuple(self._messages)
        #: since the current checkpoint: the ids of new messages, and the new text of each edited message by
        #: its id
        self._pending: list[str] = []
        self._edits: dict[str, str] = {}
        self._stored: StoredMessages | None = None
        if store is not None:
            self._stored = StoredMessages(checked_store(store), self._messages.values())
            self._stored.is_read = False
        elif stores is not None:
            self._stored = StoredMessages(checked_store(stores()), self._messages.values())

    # --- life ------------------------------------------------------------------------------------

    async def create(self) -> None:
        await super().create()
        if self._stored is not None:
            self._take_in(await self._stored.sync())

    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        stored = self._stored
        if stored is None:
            await self.create()
            new = _distinct(messages, self._messages)
            self._messages.update((message.message_id, message) for message in new)
            self._pend(new)
        else:
            if stored.unstored or not stored.is_read:
                await self.create()
            self._check_there()
            messages = _distinct(messages, self._messages.keys() | stored.dropped)
            self._take_in(await stored.add(messages))

    def _take_in(self, kept: Sequence[Message]) -> None:
        """Replaces the known messages by `kept`; unknown ones count as new, in their order.

        Rounds that other writers added raise the round number, too: summaries refer to it.
        """
        self._messages = {message.message_id: message for message in kept}
        known = self._marked_ids().union(self._pending)
        self._pending = [message_id for message_id in self._pending if message_id in self._messages]
        self._pend([message for message in kept if message.message_id not in known])

    def _pend(self, new: Sequence[Message]) -> None:
        """Adds messages to those since the current checkpoint, and counts the rounds that begin with them."""
        rounds = sum(each.role == "user" for each in new) if self._pending else _rounds(new)
        self._pending += [message.message_id for message in new]
        if rounds:
            self.context["turn"] = int(self.context.get("turn", 0)) + rounds

    def _marked_ids(self) -> set[str]:
        """Ids of the messages in checkpoints, and of those that the thread was created with."""
        in_checkpoints = {message_id for each in self._checkpoints.values() for message_id in each.messages}
        return in_checkpoints.union(self._beginning)

    def _known(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._messages[message_id] for message_id in message_ids if message_id in self._messages]

    async def _erase(self) -> None:
        if self._stored is not None:
            await self._stored.store.clear()
        await super()._erase()
        self._messages.clear()
        self._beginning = ()
        self._pending.clear()
        self._edits.clear()

    # --- messages --------------------------------------------------------------------------------

    @property
    def messages(self) -> Sequence[Message]:
        self._check_there()
        self._check_read()
        return [message for section in self._sections() for message in section]

    def _sections(self) -> list[list[Message]]:
        """The messages that the thread was created with, those of each checkpoint, and those since."""
        lineage = self._lineage()
        edits = _edits_of(lineage) | self._edits
        sections = (self._beginning, *(checkpoint.messages for checkpoint in lineage), self._pending)
        return [[_edited(message, edits) for message in self._known(section)] for section in sections]

    def _check_read(self) -> None:
        if self._stored is not None and not self._stored.is_read:
            raise InvalidRequest("", "the thread's messages are in its store: await thread.create() first")

    async def edit(self, message_id: str, text: str) -> Message:
        """Replaces the text of a message from now on; its images stay. Earlier checkpoints and the message
        store keep the original. `NotFound` if there is no such message."""
        check_encodable(text, "text")
        self._check_free()
        await self.create()
        if not self._holds(message_id):
            raise self._unknown(message_id)
        self._edits[message_id] = text
        self.context.pop("view", None)  # it may hold a summary of the old content
        return _edited(self._messages[message_id], self._edits)

    def _holds(self, message_id: str) -> bool:
        return any(message.message_id == message_id for message in self.messages)

    def _unknown(self, message_id: str) -> NotFound:
        return NotFound(f"The thread {self.thread_id} has no message {message_id}.")

    def parts(self) -> list[Part]:
        """The messages in parts, oldest first, for a view; the newest round has the number
        `context["turn"]`.

        What is added after a checkpoint begins a round, even without a user's message: a summary that the
        checkpoint has does not include it.
        """
        self._check_there()
        self._check_read()
        rounds: list[list[Message]] = []
        for messages in (each for section in self._sections() for each in in_rounds(section)):
            if rounds and _continues(messages):
                rounds[-1] += messages
            else:
                rounds.append(messages)
        oldest = int(self.context.get("turn", 0)) - len(rounds) + 1
        return [part for n, messages in enumerate(rounds, oldest) for part in parts_of(messages, n)]

    # --- forks and copies ------------------------------------------------------------------------

    def fork(self, message_id: str | None = None) -> Self:
        """The messages of the fork have ids of their own and name their `origin`.

        If `stores` is given, the fork gets a message store of its own, which is filled on first use.
        """
        kept = self.messages if message_id is None else up_to(self.messages, message_id)
        if kept is None:
            raise self._unknown(message_id or "")
        new_ids = {each.message_id: ids.random_id() for each in kept}
        copies = [
            replace(self._messages[old], message_id=new, origin=Origin(self.thread_id, old))
            for old, new in new_ids.items()
        ]
        fork = type(self)(copies, stores=self._stores)
        fork.fingerprint = self.fingerprint
        fork._adopt_lineage(self, new_ids)
        return fork

    def _adopt_lineage(self, origin: "LocalThread", new_ids: Mapping[str, str]) -> None:
        """Copies the initial messages and every checkpoint that lies within the fork, with its saved state.

        `new_ids`: the id of each of the fork's messages in `origin` → its id in the fork.
        """

        def within(message_ids: Iterable[str]) -> bool:
            return all(each in new_ids or each not in origin._messages for each in message_ids)

        lineage = origin._lineage()
        whole = within(origin._beginning)
        adopted = list(takewhile(lambda each: whole and within(each.messages), lineage))
        for each in adopted:
            messages = tuple(new_ids[message_id] for message_id in each.messages if message_id in new_ids)
            self._checkpoints[each.checkpoint_id] = replace(
                each, messages=messages, edits=_with_new_ids(each.edits, new_ids)
            )
            self._current = each.checkpoint_id
        later = lineage[len(adopted) :]
        self._edits = _with_new_ids(_edits_of(later) | origin._edits, new_ids)
        self._beginning = tuple(
            new_ids[message_id] for message_id in origin._beginning if message_id in new_ids
        )
        known = self._marked_ids()
        self._pending = [message_id for message_id in self._messages if message_id not in known]
        self.beginning_state = origin.beginning_state
        context: Json = dict(adopted[-1].context) if adopted else self._beginning_context()
        self.context = deepcopy(context if later else origin.context)
        if self._edits:
            self.context.pop("view", None)
        self.context["turn"] = int(context.get("turn", 0)) + _rounds(
            [self._messages[message_id] for message_id in self._pending]
        )

    def copy(self) -> Self:
        self._check_there()
        self._check_read()
        copied = type(self)(self._messages.values(), stores=self._stores)
        copied._copy_from(self)
        copied._beginning = self._beginning
        copied._pending, copied._edits = list(self._pending), dict(self._edits)
        return copied

    # --- checkpoints -----------------------------------------------------------------------------

    def _marked(self, checkpoint: ThreadCheckpoint) -> ThreadCheckpoint:
        marked = replace(checkpoint, messages=tuple(self._pending), edits=self._edits)
        self._pending, self._edits = [], {}
        return marked

    def _restore(self, checkpoint: ThreadCheckpoint) -> None:
        """Discards messages and edits since the current checkpoint."""
        if self._stored is not None:
            self._stored.drop(self._pending)
        for message_id in self._pending:
            self._messages.pop(message_id, None)
        self._pending, self._edits = [], {}

    # --- JSON ------------------------------------------------------------------------------------

    def _fields(self) -> Json:
        stored = self._stored
        return {
            "messages": msgspec.to_builtins(
                list(self._messages.values() if stored is None else stored.unstored)
            ),
            "beginning": self._beginning,
            "pending": list(self._pending),
            "edits": dict(self._edits),
            "dropped": [] if stored is None else sorted(stored.dropped),
            "store": None if stored is None else serialized(stored.store),
        }

    @classmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        fields = msgspec.convert(document, LocalFields)
        message_ids = [message.message_id for message in fields.messages]
        new = (*fields.beginning, *fields.pending)
        if len({*message_ids}) < len(message_ids) or len({*new}) < len(new):
            raise InvalidRequest("messages", "two have the same message_id")
        if fields.store is not None and stores is None:
            raise InvalidRequest("store", "is needed: give `stores`, which makes the thread's message store")
        thread = cls(fields.messages, stores=stores)
        thread._beginning = fields.beginning
        thread._pending, thread._edits = list(fields.pending), fields.edits
        if thread._stored is not None and fields.store is not None:
            if fields.store.pop("sealed", False) and not isinstance(thread._stored.store, SealedMessages):
                raise InvalidRequest("store", "is sealed: give its agent's `message_stores` as `stores`")
            try:
                thread._stored.store.update_from_state(fields.store)
            except (KeyError, CorruptState):
                raise InvalidRequest("store", "is not what a message store wrote") from None
            thread._stored.dropped = set(fields.dropped)
            thread._stored.is_read = False
        return thread


def _distinct(messages: Iterable[Message], taken: Collection[str]) -> list[Message]:
    """The messages, each with a new id if another one, or `taken`, has its id already."""
    known = set(taken)
    distinct = []
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidRequest("messages", f"must be a list of Message, not of {type(message).__name__}")
        if message.message_id in known:
            message = replace(message, message_id=ids.random_id())
        known.add(message.message_id)
        distinct.append(message)
    return distinct


def _edits_of(checkpoints: Iterable[ThreadCheckpoint]) -> dict[str, str]:
    """The text of the latest edit of each edited message, by its id."""
    return {message_id: text for each in checkpoints for message_id, text in each.edits.items()}


def _edited(message: Message, edits: Mapping[str, str]) -> Message:
    """The message with the text of its edit, if it has one, before its images."""
    text = edits.get(message.message_id)
    if text is None:
        return message
    images = (item for item in message.items if item.content_type == "image")
    return replace(message, items=(Item("text", text), *images))


def _with_new_ids(edits: Mapping[str, str], new_ids: Mapping[str, str]) -> dict[str, str]:
    return {new_ids[message_id]: text for message_id, text in edits.items() if message_id in new_ids}


def _rounds(messages: Sequence[Message]) -> int:
    """The number of rounds that begin with one of these messages, which were added after a checkpoint."""
    return sum(not _continues(each) for each in in_rounds(messages))


def _continues(messages: Sequence[Message]) -> bool:
    """Whether messages belong to the round before them: they are results of its tool calls."""
    return messages[0].role == "tool"
