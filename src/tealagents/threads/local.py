"""Threads whose messages are kept here, and sent with each call."""

from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.models import Item, Json, Message, Origin
from tealagents.threads.base import AgentThread, Checkpoint
from tealagents.threads.message_stores import Editable, MessageStore, MessageStoreFactory
from tealagents.threads.views import Part, parts_of


class LocalThread(AgentThread):
    """A conversation kept in this process, and in a message store where it has one.

    With a store the thread knows the order of its messages and the store has them: read by `create`, which
    whoever uses a thread awaits. What the store has dropped is not in the thread any more; what others
    have added to it is at its end.
    """

    kind: ClassVar = "local"

    def __init__(
        self,
        messages: Sequence[Message] = (),
        *,
        store: MessageStore | None = None,
        stores: MessageStoreFactory | None = None,
        thread_id: str | None = None,
    ) -> None:
        """`messages` are what was said before. `stores` makes the stores of forks and copies; with it alone
        the thread has one, too."""
        super().__init__(thread_id=thread_id)
        self._stores = stores
        self._store = store if store is not None or stores is None else stores()
        self._known = {message.message_id: message for message in messages}
        if len(self._known) != len(messages):
            raise InvalidRequest("messages", "two have the same message_id")
        #: said since the current checkpoint
        self._pending = list(self._known)
        #: not in the store yet
        self._unstored = list(messages)
        #: the store's messages are known
        self._read = store is None

    # --- life ------------------------------------------------------------------------------------

    async def create(self) -> None:
        await super().create()
        if self._store is None:
            return
        if not self._read:
            kept = {message.message_id: message for message in await self._store.list_messages()}
            ours = {name for each in self._checkpoints.values() for name in each.messages}
            self._pending += [name for name in kept if name not in ours and name not in self._pending]
            self._known |= kept
            self._read = True
        if self._unstored:
            unstored, self._unstored = self._unstored, []
            try:
                await self._store.add_messages(unstored)
            except BaseException:
                self._unstored = unstored + self._unstored
                raise

    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        await self.create()
        if self._store is not None:
            await self._store.add_messages(messages)
        for message in messages:
            self._known[message.message_id] = message
            self._pending.append(message.message_id)
        self.context["turn"] = int(self.context.get("turn", 0)) + _rounds(messages)

    async def delete(self) -> None:
        self._check_free()
        if self._store is not None:
            await self._store.clear()
        await super().delete()
        self._known.clear()
        self._pending.clear()
        self._unstored.clear()

    # --- messages --------------------------------------------------------------------------------

    @property
    def messages(self) -> Sequence[Message]:
        self._check_there()
        self._check_read()
        return [self._known[name] for name in self._order() if name in self._known]

    def _order(self) -> list[str]:
        marked = [name for checkpoint in self._line() for name in checkpoint.messages]
        return [*marked, *self._pending]

    def _check_read(self) -> None:
        if not self._read:
            raise InvalidRequest("", "the thread's messages are in its store: await thread.create() first")

    async def edit(self, message_id: str, text: str) -> Message:
        """Replaces what a message says. `NotFound` where there is none; `InvalidRequest` for a store that
        cannot, whose thread is edited by forking before the message."""
        self._check_free()
        await self.create()
        if message_id not in self._order() or message_id not in self._known:
            raise self._unknown(message_id)
        if self._store is not None and not isinstance(self._store, Editable):
            kind = type(self._store).__name__
            raise InvalidRequest("message_id", f"{kind} cannot replace a message; fork the thread before it")
        edited = replace(self._known[message_id], items=(Item("text", text),))
        if isinstance(self._store, Editable):
            await self._store.replace_message(edited)
        self._known[message_id] = edited
        return edited

    def _unknown(self, message_id: str) -> NotFound:
        return NotFound(f"The thread {self.thread_id} has no message {message_id}.")

    def parts(self) -> list[Part]:
        """The messages in parts, oldest first, for a view; the newest round has the number in `context`."""
        rounds: list[list[Message]] = []
        for message in self.messages:
            if not rounds or message.role == "user":
                rounds.append([])
            rounds[-1].append(message)
        newest = int(self.context.get("turn", 0))
        return [
            part
            for n, messages in enumerate(rounds)
            for part in parts_of(messages, newest - len(rounds) + 1 + n)
        ]

    # --- forks and copies ------------------------------------------------------------------------

    def fork(self, message_id: str | None = None) -> Self:
        """The messages of the fork have ids of their own and name their `origin`.

        It is kept where this thread is: in a store of its own, if `stores` makes one, filled on first use.
        """
        kept = self.messages if message_id is None else _up_to(self.messages, message_id)
        if kept is None:
            raise self._unknown(message_id or "")
        copied = {
            each.message_id: replace(
                each, message_id=ids.random_id(), origin=Origin(self.thread_id, each.message_id)
            )
            for each in kept
        }
        fork = type(self)(list(copied.values()), stores=self._stores)
        fork.fingerprint = self.fingerprint
        fork._adopt_line(self, {old: new.message_id for old, new in copied.items()})
        return fork

    def _adopt_line(self, origin: "LocalThread", names: dict[str, str]) -> None:
        """Takes over the checkpoints that lie within the fork, and what they remember."""
        for checkpoint in origin._line():
            if not all(name in names or name not in origin._known for name in checkpoint.messages):
                break
            messages = tuple(names[name] for name in checkpoint.messages if name in names)
            self._checkpoints[checkpoint.checkpoint_id] = replace(checkpoint, messages=messages)
            self._current = checkpoint.checkpoint_id
            self.context = msgspec.to_builtins(checkpoint.context)
        if self._current == origin._current:
            self.context = msgspec.to_builtins(origin.context)
        marked = {name for each in self._checkpoints.values() for name in each.messages}
        self._pending = [name for name in self._pending if name not in marked]
        if self._checkpoints:
            base = int(self._checkpoints[self._current or ""].context.get("turn", 0))
            self.context["turn"] = base + _rounds([self._known[name] for name in self._pending])

    def copy(self) -> Self:
        self._check_there()
        self._check_read()
        copied = type(self)(list(self._known.values()), stores=self._stores)
        copied._like(self)
        copied._pending = list(self._pending)
        return copied

    # --- checkpoints -----------------------------------------------------------------------------

    def _marked(self, checkpoint: Checkpoint) -> Checkpoint:
        pending, self._pending = self._pending, []
        return replace(checkpoint, messages=tuple(pending))

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._pending = []

    # --- JSON ------------------------------------------------------------------------------------

    def _parts(self) -> Json:
        """With a store, what is not in it yet; without, everything."""
        kept = self._known.values() if self._store is None else self._unstored
        return {
            "messages": msgspec.to_builtins(list(kept)),
            "pending": list(self._pending),
            "store": None if self._store is None else self._store.serialize(),
        }

    @classmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        kept = document["store"]
        if kept is not None and stores is None:
            raise InvalidRequest("store", "is needed: give `stores`, which makes the thread's message store")
        thread = cls(msgspec.convert(document["messages"], list[Message]), stores=stores)
        thread._pending = msgspec.convert(document["pending"], list[str])
        if thread._store is not None and kept is not None:
            thread._store.update_from_state(kept)
            thread._read = False
        return thread


def _up_to(messages: Sequence[Message], message_id: str) -> list[Message] | None:
    """The messages up to and including one; None where it is not among them."""
    kept: list[Message] = []
    open_calls: set[str] = set()
    for message in messages:
        kept.append(message)
        if message.role != "tool":
            open_calls = {call.id for call in message.tool_calls}
        open_calls.discard(message.tool_call_id or "")
        if message.message_id == message_id:
            if open_calls:
                raise InvalidRequest(
                    "message_id", "lies between a tool call and its result; fork before or after both"
                )
            return kept
    return None


def _rounds(messages: Sequence[Message]) -> int:
    """How many rounds begin among these."""
    return sum(message.role == "user" for message in messages)
