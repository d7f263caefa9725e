"""Context providers' memories of a user, across all sessions: one record per provider, in the user's
partition.

Each memory names the task in which it was added, and is erased with that task. What several tasks taught is
kept once for each of them, and read once.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import Conflict
from tealagents.domain.models import Head, Json
from tealagents.state import keys
from tealagents.state.records import RecordStore

#: the most memories of one provider about one user; the oldest are dropped first
MOST_MEMORIES = 200
#: the most characters of a memory; the rest is cut off
MOST_CHARACTERS = 500


class Remembered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One memory, with the session and the task in which it was added."""

    memory_id: str
    text: str
    at: datetime
    session_id: str
    task_id: str
    #: what the provider keeps with the text: the keywords of `remember`
    data: Json = {}


_Memories = tuple[Remembered, ...]


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
        read_only: bool = False,
    ) -> None:
        """`has_head`: False for a thread of the library, which is not a task and has no head."""
        #: nothing is added or erased, because the request is not to be stored
        self.read_only = read_only
        self._head = keys.task(task_id) if has_head else None
        self._records = records
        self._partition = partition
        self._key = keys.memory(provider)
        self._session_id = session_id
        self._task_id = task_id

    async def recall(self) -> _Memories:
        """All memories, oldest first. Of those with the same text, only the newest."""
        found = await self._records.get(self._partition, self._key, _Memories)
        known = found.value if found else ()
        newest = _newest(known)
        return tuple(each for each in known if each.memory_id in newest)

    async def remember(self, text: str, **data: object) -> Remembered:
        """Adds a memory, which is then the newest. It replaces one of this task with the same text."""
        (added,) = await self.remember_all([text], **data)
        return added

    async def remember_all(self, texts: Sequence[str], **data: object) -> _Memories:
        """Adds texts in one commit, the last `MOST_MEMORIES` of them. Returns the new memories, in order.

        Stores nothing if the task has been deleted in the meantime, nor where this is read-only.
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

        # another task's memory of the same text stays: it must outlive the deletion of this task
        def extended(known: _Memories) -> _Memories:
            kept = (each for each in known if each.text not in latest_first or each.task_id != self._task_id)
            return (*kept, *added)

        await self._change(extended)
        return added

    async def forget(self, memory_ids: Collection[str]) -> None:
        """Erases these memories, and all others with the same texts; unknown ids are ignored."""

        def without(known: _Memories) -> _Memories:
            texts = {each.text for each in known if each.memory_id in memory_ids}
            return tuple(each for each in known if each.text not in texts)

        await self._change(without)

    async def _change(self, change: Callable[[_Memories], _Memories]) -> None:
        if self.read_only:
            return
        await _change(self._records, self._partition, self._key, change, head=self._head)


def _newest(known: _Memories) -> set[str]:
    """The ids of the memories of which no newer one has the same text."""
    return set({each.text: each.memory_id for each in known}.values())


def _bounded(known: _Memories) -> _Memories:
    """The last `MOST_MEMORIES`; those whose text a newer one repeats are dropped first."""
    newest = _newest(known)
    oldest_first = sorted(known, key=lambda each: each.memory_id in newest)
    dropped = {each.memory_id for each in oldest_first[: max(0, len(known) - MOST_MEMORIES)]}
    return tuple(each for each in known if each.memory_id not in dropped)


async def forget_task(records: RecordStore, partition: str, task_id: str) -> None:
    """Erases the memories that were added in a task."""
    for key, known in await records.scan(partition, keys.MEMORIES, _Memories):
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
    change: Callable[[_Memories], _Memories],
    *,
    head: str | None = None,
) -> None:
    """Changes one provider's memories. Does nothing if `head` is the key of a task that was deleted."""
    while True:
        found = await records.get(partition, key, _Memories)
        known = _bounded(change(found.value if found else ()))
        expect = {key: found.version if found else None}
        if head is not None:
            task = await records.get(partition, head, Head)
            if task is None or task.value.erased:
                return
            expect[head] = task.version
        with suppress(Conflict):
            await records.commit(partition, marker=key, expect=expect, put={key: known})
            return
