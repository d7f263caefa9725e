"""The newest rounds of tasks, as far back as they are needed.

A window is what a process keeps of a task between two turns: its newest rounds, in parts for a view, or
encoded if the model is sent the whole history. Turns in this process extend it; what a view does not read is
dropped from it. If a turn needs older rounds, they are read from the log, backwards. So a turn costs what it
shows, however long the task is, and a whole history is encoded only once.

A window belongs to one log (`Head.log_id`). If the head's path continues the window's, only what other
processes have added is read; on any other path, the window starts empty. The last log records are read
again with every turn, so that the window does not hide damage to the log.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from msgspec import Struct

from tealagents.domain.models import Head, Json, Message, Path
from tealagents.domain.paths import extend as extended
from tealagents.domain.paths import split
from tealagents.domain.ports import Model
from tealagents.state.history import History, Round, in_rounds
from tealagents.state.records import RecordStore
from tealagents.threads.views import Part, parts_of

#: bytes, as estimated, of all windows in one `Windows`
KEPT_BYTES = 64 * 1024 * 1024
#: seconds for which a window is kept after its last turn: what was erased, by this process or another, stays
#: in memory for no longer
UNUSED_SECONDS = 600.0
#: how many of the last log records are read again with every turn
RECHECK_KEYS = 4
#: rounds of other processes that are added to a window. If there are more of them, and more than it has
#: itself, it starts empty instead
CAUGHT_UP = 16
#: estimated bytes of a message besides its text; of an encoded one; of a round; of an empty window
OVERHEAD, ENCODED_OVERHEAD, ROUND_OVERHEAD, WINDOW_OVERHEAD = 400, 80, 240, 650

T = TypeVar("T")


class KnownRound(Struct, Generic[T]):
    """What is kept of one completed request: of its round, or of the rounds that a client brought with it."""

    #: the number of its first entry in the log
    first_seq: int
    #: oldest first
    parts: list[T]
    #: in bytes, as estimated
    size: int
    #: how many rounds of the conversation it is; set if it has parts
    rounds: int = 1


class Window(Generic[T]):
    """The newest rounds of one path, and the context of its checkpoint. There is one for each recent task."""

    __slots__ = (
        "_all",
        "_reached",
        "checkpoint_id",
        "complete",
        "context",
        "log_id",
        "path",
        "recheck_keys",
        "rounds",
        "size",
        "task_id",
        "used_at",
    )

    def __init__(self, head: Head) -> None:
        self.task_id = head.task_id
        self.log_id = head.log_id
        self.path = head.path
        self.checkpoint_id = head.checkpoint_id
        #: what providers and reducers remember at the checkpoint; None where that is nothing
        self.context: Json | None = None
        #: the numbers of the log records that a turn reads again
        self.recheck_keys: tuple[int, ...] = (head.tail_key,) if head.tail_key else ()
        #: oldest first; a list, since an empty deque has room for 64 and most tasks are short
        self.rounds: list[KnownRound[T]] = []
        #: whether there is nothing older than the first round
        self.complete = not head.path
        self.size = WINDOW_OVERHEAD
        #: when a turn last loaded it, by the clock's `monotonic`
        self.used_at = 0.0
        #: how many rounds, counted from the newest, have been read since the last `shrink`
        self._reached = 0
        #: the result of `all`, once it has been asked for and there is more than one round
        self._all: list[T] | None = None

    def add(self, known: KnownRound[T], *, newest: bool) -> None:
        """Adds a round after the newest one, or before the oldest."""
        self.rounds.insert(len(self.rounds) if newest else 0, known)
        self.size += known.size
        if newest and self._all is not None:
            self._all += known.parts
        else:
            self._all = None

    def all(self) -> list[T]:
        """The parts of all rounds, oldest first. The caller must not change the list."""
        if len(self.rounds) < 2:  # so are those of most tasks
            return self.rounds[0].parts if self.rounds else []
        if self._all is None:
            self._all = [part for known in self.rounds for part in known.parts]
        return self._all

    def shrink(self) -> None:
        """Drops the rounds that have not been read since the last `shrink`."""
        unread = self.rounds[: max(0, len(self.rounds) - self._reached)]
        if unread:
            del self.rounds[: len(unread)]
            self.size -= sum(known.size for known in unread)
            self.complete, self._all = False, None
        self._reached = 0

    def reach(self, rounds: int) -> None:
        """Marks the newest `rounds` rounds as read."""
        self._reached = max(self._reached, rounds)

    @property
    def below(self) -> int:
        """The sequence number of the oldest entry in the window."""
        return self.rounds[0].first_seq if self.rounds else self.path[-1][1] + 1


class Windows(Generic[T]):
    """The windows of the tasks used last, within `KEPT_BYTES`.

    `known` makes what is kept of a round. `remembers`: whether checkpoints have a context to be read.
    """

    def __init__(
        self,
        history: History,
        records: RecordStore,
        known: Callable[[Round], KnownRound[T]],
        *,
        remembers: bool,
    ) -> None:
        self._history = history
        self._records = records
        self._known = known
        self._remembers = remembers
        self._kept: OrderedDict[str, Window[T]] = OrderedDict()
        self._size = 0

    async def load(self, partition: str, head: Head) -> Window[T]:
        """The window for the head's path. If one is kept, only what other processes have added is read."""
        kept = self._kept.get(head.task_id)
        if kept is not None and kept.log_id != head.log_id:
            kept = None
        if kept is not None and kept.path == head.path and kept.checkpoint_id == head.checkpoint_id:
            self._kept.move_to_end(head.task_id)
            kept.used_at = self._records.clock.monotonic()
            return kept
        window: Window[T] = Window(head)
        if kept is not None and continues(kept.path, head.path):
            # a copy, because the kept window may grow during the reading
            known, floor, complete = tuple(kept.rounds), kept.path[-1][1], kept.complete
            await self._catch_up(partition, window, known, floor, complete=complete)
        if self._remembers:
            window.context = await self._records.context_of(partition, head)
        self._keep(window)
        return window

    async def rounds(self, partition: str, window: Window[T]) -> AsyncGenerator[KnownRound[T]]:
        """The rounds of the window's path, newest first. Those older than the window are read on demand."""
        older = self._older(partition, window)
        n = 0
        async with aclosing(older):
            while True:
                known = window.rounds[-1 - n] if n < len(window.rounds) else await anext(older, None)
                if known is None:
                    return
                n += 1
                window.reach(n)
                yield known

    async def whole(self, partition: str, window: Window[T]) -> list[T]:
        """The parts of all rounds on the window's path, oldest first. The caller must not change the list."""
        if not window.complete:
            async with aclosing(self._older(partition, window)) as older:
                async for _ in older:
                    pass
        return window.all()

    async def _older(self, partition: str, window: Window[T]) -> AsyncGenerator[KnownRound[T]]:
        """Rounds older than the window, each added to it as it is read."""
        if window.complete:
            return
        path, _ = split(window.path, window.below - 1)
        async with aclosing(self._history.rounds(partition, window.task_id, path)) as rounds:
            async for completed in rounds:
                known = self._known(completed)
                if known.first_seq < window.below:  # else another reader of this window has added it
                    self._grow(window, known, newest=False)
                yield known
        window.complete = True

    async def _catch_up(
        self, partition: str, window: Window[T], known: Sequence[KnownRound[T]], floor: int, *, complete: bool
    ) -> None:
        """Fills the window with the known rounds, which reach up to the entry `floor`, and the rounds after
        them. If these are too many, the window stays empty."""
        newer: list[KnownRound[T]] = []
        _, path = split(window.path, floor)
        async with aclosing(self._history.rounds(partition, window.task_id, path)) as rounds:
            async for completed in rounds:
                newer.append(self._known(completed))
                if len(newer) > max(CAUGHT_UP, len(known)):
                    return
        for each in (*known, *reversed(newer)):
            window.add(each, newest=True)
        window.complete = complete

    def extend(self, head: Head, first_seq: int, messages: Sequence[Message], context: Json | None) -> None:
        """Adds a request that has ended to its task's window, so that it need not be read from the log. Its
        entries begin at `first_seq`; `head` is the head that it left.

        Without messages, it changes only the path. If the window has the request already, because it was read
        since the commit, nothing is done; if it lacks more than this request, it is dropped.
        """
        window = self._kept.get(head.task_id)
        if window is None or (window.log_id == head.log_id and window.path == head.path):
            return
        if window.log_id != head.log_id or extended(window.path, first_seq, head.tail_seq) != head.path:
            self.forget(head.task_id)
            return
        if messages:
            known = window.recheck_keys
            window.recheck_keys = _rechecked(known, window.path, first_seq, head.tail_key)
        window.path = head.path
        window.checkpoint_id = head.checkpoint_id
        if messages:
            added = Round(request_id="", first_seq=first_seq, messages=tuple(messages))
            self._grow(window, self._known(added), newest=True)
            window.context = context
        self._shrink()

    def recheck_keys(self, task_id: str) -> tuple[str, tuple[int, ...]]:
        """The id of a window's log, and the numbers of the log records that a turn reads again. Both are
        empty if no window is kept."""
        kept = self._kept.get(task_id)
        return (kept.log_id, kept.recheck_keys) if kept is not None else ("", ())

    def shrink(self, window: Window[T]) -> None:
        """Drops the rounds that the view of a turn has not read."""
        before = window.size
        window.shrink()
        if self._kept.get(window.task_id) is window:
            self._size -= before - window.size

    def forget(self, task_id: str) -> None:
        """Drops a task's window, if one is kept."""
        kept = self._kept.pop(task_id, None)
        if kept is not None:
            self._size -= kept.size

    def drop_unused(self) -> None:
        """Drops the windows that no turn has loaded for `UNUSED_SECONDS`."""
        before = self._records.clock.monotonic() - UNUSED_SECONDS
        while self._kept and (oldest := next(iter(self._kept.values()))).used_at <= before:
            self.forget(oldest.task_id)

    def _keep(self, window: Window[T]) -> None:
        self.forget(window.task_id)
        window.used_at = self._records.clock.monotonic()
        self._kept[window.task_id] = window
        self._size += window.size
        self._shrink()

    def _grow(self, window: Window[T], known: KnownRound[T], *, newest: bool) -> None:
        window.add(known, newest=newest)
        if self._kept.get(window.task_id) is window:
            self._size += known.size

    def _shrink(self) -> None:
        while self._size > KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size


def in_parts(completed: Round) -> KnownRound[Part]:
    """A request's messages in parts, as views need them. A client may have brought several rounds at once."""
    size = ROUND_OVERHEAD + sum(_size(message) for message in completed.messages)
    rounds = in_rounds(completed.messages)
    parts = [part for messages in rounds for part in parts_of(messages)]
    return KnownRound(completed.first_seq, parts, size, len(rounds))


def encoded_by(model: Model) -> Callable[[Round], KnownRound[bytes]]:
    """A function that encodes a round's messages as this model is sent them."""

    def encoded(completed: Round) -> KnownRound[bytes]:
        parts = [model.encode(message) for message in completed.messages]
        size = ROUND_OVERHEAD + sum(len(part) + ENCODED_OVERHEAD for part in parts)
        return KnownRound(completed.first_seq, parts, size)

    return encoded


def _size(message: Message) -> int:
    texts = sum(len(item.content) for item in message.items)
    return (
        OVERHEAD
        + 3 * texts
        + len(message.native)
        + sum(2 * len(call.arguments) for call in message.tool_calls)
    )


def _rechecked(known: tuple[int, ...], before: Path, first_seq: int, tail_key: int) -> tuple[int, ...]:
    """The numbers of the log records to be read again, after a request has been added to the path `before`.

    A task that was created with earlier messages has these and its first request's in one.
    """
    together = known == (1,) and before == ((1, first_seq - 1),)
    return (*known, *(() if together else (first_seq,)), tail_key)[-RECHECK_KEYS:]


def continues(old: Path, new: Path) -> bool:
    """Whether `new` is `old` with entries added at its end."""
    if not old or len(new) < len(old) or new[: len(old) - 1] != old[:-1]:
        return False
    first, last = new[len(old) - 1]
    return first == old[-1][0] and last >= old[-1][1]
