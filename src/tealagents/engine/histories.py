"""The histories of tasks as the model is sent them, whole.

A task's history is encoded once and kept, so that turn 200 costs what turn 2 costs. What is kept is
believed only as long as the head's path is the one it was made from; another replica's turns are
read and added. The last records are read again with every turn, so that damage is not covered up.
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from tealagents.domain.lifecycle import extend as extended
from tealagents.domain.models import Head, Message, Path
from tealagents.domain.ports import Model
from tealagents.state.history import History
from tealagents.threads.windows import continues, witnesses

#: bytes of encoded history one process keeps
KEPT_BYTES = 64 * 1024 * 1024
#: what a kept entry costs besides its bytes
OVERHEAD = 80


class Encoded(Struct):
    """One task's history as the model is sent it."""

    path: Path
    parts: list[bytes]
    size: int
    #: the first numbers of the last batches
    batches: tuple[int, ...]
    #: whose log they are of
    log_id: str


class Histories:
    """The encoded histories of the tasks last used, in a bounded space."""

    def __init__(self, history: History, model: Model) -> None:
        self._history = history
        self._model = model
        self._kept: OrderedDict[str, Encoded] = OrderedDict()
        self._size = 0

    async def load(self, partition: str, head: Head) -> list[bytes]:
        """The completed messages of the head's path, encoded, oldest first. Do not change the list."""
        kept = self._kept.get(head.task_id)
        if kept is not None and kept.log_id != head.log_id:
            kept = None
        if kept is not None and kept.path == head.path:
            self._kept.move_to_end(head.task_id)
            return kept.parts
        # what is kept may grow while this reads: it goes on from what it is now
        parts: list[bytes] = []
        floor = 0
        if kept is not None and continues(kept.path, head.path):
            parts, floor = list(kept.parts), kept.path[-1][1]
        newer: list[list[bytes]] = []
        async for completed in self._history.rounds(partition, head.task_id, head.path):
            if completed.last_seq <= floor:
                break
            newer.append([self._model.encode(message) for message in completed.messages])
        for messages in reversed(newer):
            parts += messages
        self._keep(head, parts)
        return parts

    def extend(self, head: Head, first_seq: int, messages: Sequence[Message]) -> None:
        """The request whose entries begin at `first_seq` has ended and left `head`; it need not be read.

        Without `messages` it had none. What is kept grows only where it lacks just this request: whoever
        came between its commit and this call has read it already.
        """
        kept = self._kept.get(head.task_id)
        if kept is None:
            if messages and head.path == ((first_seq, head.tail_seq),):
                self._keep(head, [self._model.encode(m) for m in messages])
                self._kept[head.task_id].batches = (first_seq, head.tail_key)
            return
        if kept.log_id == head.log_id and kept.path == head.path:
            return
        if kept.log_id != head.log_id or extended(kept.path, first_seq, head.tail_seq) != head.path:
            self.forget(head.task_id)
            return
        added = [self._model.encode(message) for message in messages]
        kept.parts.extend(added)
        if messages:
            kept.batches = witnesses(kept.batches, kept.path, first_seq, head.tail_key)
        kept.path = head.path
        grown = sum(map(len, added)) + OVERHEAD * len(added)
        kept.size += grown
        self._size += grown
        self._shrink()

    def recheck_keys(self, task_id: str) -> tuple[str, tuple[int, ...]]:
        """The batches whose records a turn that builds on a kept history reads again, and of whose log."""
        kept = self._kept.get(task_id)
        return (kept.log_id, kept.batches) if kept is not None else ("", ())

    def forget(self, task_id: str) -> None:
        kept = self._kept.pop(task_id, None)
        if kept is not None:
            self._size -= kept.size

    def _keep(self, head: Head, parts: list[bytes]) -> None:
        self.forget(head.task_id)
        size = sum(map(len, parts)) + OVERHEAD * (len(parts) + 4)
        self._kept[head.task_id] = Encoded(
            head.path, parts, size, (head.tail_key,) if head.tail_key else (), head.log_id
        )
        self._size += size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size
