"""Context providers' memories of a user, across all sessions: one record per provider, in the user's
partition.

Each memory names the task that it was learned in, and is erased with that task.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import Conflict
from tealagents.domain.models import Head, Json
from tealagents.state import keys
from tealagents.state.records import RecordStore

#: memories of one provider about one user; the oldest are dropped first
MOST_MEMORIES = 200
#: characters of one memory
MOST_CHARACTERS = 500


class Remembered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One memory."""

    memory_id: str
    text: str
    at: datetime
    session_id: str
    task_id: str
    data: Json = {}


Learned = tuple[Remembered, ...]


class Memory:
    """One provider's memories of one user, as seen from one task."""

    def __init__(
        self,
        records: RecordStore,
        partition: str,
        provider: str,
        session_id: str,
        task_id: str,
        *,
        has_head: bool = True,
    ) -> None:
        """`has_head`: whether the task is one of the service, not a thread of the library."""
        self._head = keys.task(task_id) if has_head else None
        self._records = records
        self._partition = partition
        self._key = keys.memory(provider)
        self._session_id = session_id
        self._task_id = task_id

    async def recall(self) -> Learned:
        """All memories, oldest first."""
        found = await self._records.get(self._partition, self._key, Learned)
        return found.value if found else ()

    async def remember(self, text: str, **data: object) -> Remembered:
        """Adds a memory. It replaces one with the same text, and counts as new."""
        (added,) = await self.remember_all([text], **data)
        return added

    async def remember_all(self, texts: Sequence[str], **data: object) -> Learned:
        """Adds the last of these texts, as many as can be kept, in one commit. Returns the new memories.

        Adds nothing if the task is deleted meanwhile.
        """
        latest_first = dict.fromkeys(text[:MOST_CHARACTERS] for text in reversed(texts))
        if not latest_first:
            return ()
        now = self._records.clock.now()
        added = tuple(
            Remembered(
                memory_id=ids.random_id(),
                text=text,
                at=now,
                session_id=self._session_id,
                task_id=self._task_id,
                data=data,
            )
            for text in [*latest_first][:MOST_MEMORIES][::-1]
        )
        await self._change(lambda known: (*(each for each in known if each.text not in latest_first), *added))
        return added

    async def forget(self, memory_ids: Collection[str]) -> None:
        await self._change(lambda known: tuple(each for each in known if each.memory_id not in memory_ids))

    async def _change(self, change: Callable[[Learned], Learned]) -> None:
        await _change(self._records, self._partition, self._key, change, head=self._head)


async def forget_task(records: RecordStore, partition: str, task_id: str) -> None:
    """Erases the memories that were learned in a task."""
    for key, known in await records.scan(partition, keys.MEMORIES, Learned):
        if any(each.task_id == task_id for each in known):
            await _change(
                records,
                partition,
                key,
                lambda known: tuple(each for each in known if each.task_id != task_id),
            )


async def _change(
    records: RecordStore,
    partition: str,
    key: str,
    change: Callable[[Learned], Learned],
    *,
    head: str | None = None,
) -> None:
    """Changes one provider's memories. Does nothing if `head` is the key of a task that is gone."""
    while True:
        found = await records.get(partition, key, Learned)
        known = change(found.value if found else ())[-MOST_MEMORIES:]
        expect = {key: found.version if found else None}
        if head is not None:
            task = await records.get(partition, head, Head)
            if task is None or task.value.erased:
                return
            expect[head] = task.version
        try:
            await records.commit(partition, marker=key, expect=expect, put={key: known})
        except Conflict:
            continue
        return
