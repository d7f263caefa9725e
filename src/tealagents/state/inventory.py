"""The state of all users in an agent's store, for the operator's commands.

Heads are read as they are stored: what is due is not ended, and only `claim` writes. Damaged records are
reported, and never keep the others from being read.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct, field

from tealagents.domain.errors import Conflict, CorruptState
from tealagents.domain.models import Deleting, Head, Session, User, Worker
from tealagents.domain.ports import SEALED, Record
from tealagents.state import batches, keys
from tealagents.state.codec import unseal
from tealagents.state.owner_directory import Owners
from tealagents.state.records import RecordStore, Stored

T = TypeVar("T")

#: called with the number of users done, and the number of all users
Progress = Callable[[int, int], None]

#: records per partition that are read to check the encryption key
LOOKED_AT = 10


class Found(Struct, frozen=True):
    """A task in the store: its head, or why the head cannot be read."""

    owner: User
    partition: str
    task_id: str
    record: Record
    head: Stored[Head] | None
    damage: CorruptState | None = None


class Statistics(Struct, kw_only=True):
    """Counts of all records, by kind."""

    users: int = 0
    sessions: int = 0
    #: by status, as stored
    tasks: Counter[str] = field(default_factory=Counter)
    #: tasks past their `expires_at`: no longer listed, but stored until they are pruned
    expired: int = 0
    #: requests that wait in queues
    queued: int = 0
    #: entries of all logs
    entries: int = 0
    #: pending deletions
    deletions: int = 0
    workers_alive: int = 0
    #: records that cannot be read
    damaged: list[str] = []


class Inventory:
    """Reads the state of all users."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        #: descriptions of the records that could not be read so far
        self.damaged: list[str] = []

    async def check_key(self, *, keyed: bool) -> None:
        """`CorruptState`, saying what to do, if the records were stored with another encryption key.

        `keyed`: a key is set. Then it is enough if one of the records read opens: the others may be damaged.
        Threads are read only if there is nothing else, because a program may have saved them with its own
        key; the record that `claim` writes, only if nothing at all is stored.
        """
        agent, found = self._records.agent, False
        groups = (
            (self.index_partitions(), ""),
            ([keys.threads(agent)], ""),
            ([keys.workers(agent)], keys.KEY_CHECK),
        )
        for places, prefix in groups:
            if found and (keyed or prefix):
                return
            opened, refused = await self._looked_at(places, prefix)
            if refused is not None and not (keyed and opened):
                await self._records.get(*refused, object)
            found = found or opened

    async def claim(self, *, keyed: bool) -> None:
        """Like `check_key`, for a service: an empty store takes its key.

        If several services start on an empty store, one writes the record, and all check that it opens.
        """
        partition, name = keys.workers(self._records.agent), keys.KEY_CHECK
        written = [record for _, record in await self._records.store.scan(partition, name, limit=1)]
        await self.check_key(keyed=keyed)  # after the read, to check records written meanwhile, too
        if written and not written[0].value.startswith(SEALED):
            return
        # the check has passed, so a record that does not open is left from an earlier key, and is replaced
        expected = {name: written[0].version if written else None}
        with suppress(Conflict):
            await self._records.commit(partition, marker=name, expect=expected, put={name: {}})
        await self.check_key(keyed=keyed)

    async def _looked_at(self, places: list[str], prefix: str) -> tuple[bool, tuple[str, str] | None]:
        """Whether any record of these partitions opens; and the partition and key of one that does not."""

        async def look(partition: str) -> tuple[bool, tuple[str, str] | None]:
            page = await self._records.store.scan(partition, prefix, limit=LOOKED_AT)
            sealed = [key for key, record in page if record.value.startswith(SEALED)]
            return len(sealed) < len(page), (partition, sealed[-1]) if sealed else None

        looked = await batches.each(look, places)
        opened = any(opens for opens, _ in looked)
        return opened, next((refused for _, refused in reversed(looked) if refused), None)

    async def owners(self) -> list[User]:
        """All users with records in this store, in the order of their partitions."""
        found: dict[str, User] = {}
        for partition in self.index_partitions():
            async for owners in self.values(partition, keys.owner(""), Owners):
                found |= {self._records.partition(user): user for user in owners.users}
        return [found[partition] for partition in sorted(found)]

    async def has_users(self) -> bool:
        """Whether there is any, without reading them all."""
        for partition in self.index_partitions():
            if await self._records.store.scan(partition, keys.owner(""), limit=1):
                return True
        return False

    def index_partitions(self) -> list[str]:
        """The partitions of the owner index and of the locators."""
        agent = self._records.agent
        return sorted(place(agent, digit) for place in (keys.owners, keys.locators) for digit in keys.DIGITS)

    async def tasks(self, owner: User) -> AsyncGenerator[Found, None]:
        """A user's tasks by id, without those that are being deleted, alone or with their session."""
        partition = self._records.partition(owner)
        deleting = await self._deleting(partition)
        async for key, record in self._records.every(partition, keys.task("")):
            task_id = keys.last_segment(key)
            try:
                head = Stored(unseal(partition, key, record.value, Head), record.version)
            except CorruptState as error:
                damage = await self._records.damage(partition, key, error)
                yield Found(owner, partition, task_id, record, None, damage)
                continue
            if not head.value.erased and head.value.session_id not in deleting:
                yield Found(owner, partition, task_id, record, head)

    async def _deleting(self, partition: str) -> Collection[str]:
        """The deleted sessions whose tasks' records are still being erased."""
        try:
            found = await self._records.get(partition, keys.DELETING, Deleting)
        except CorruptState as error:
            self.damaged.append(f"{partition}: {error}")
            return ()
        names = found.value.sessions if found else ()
        return [name for name in names if not await self._may_stay(partition, name)]

    async def _may_stay(self, partition: str, session_id: str) -> bool:
        """Whether the session is deleted only if it is empty, so that its tasks are not deleted."""
        try:
            session = await self._records.get(partition, keys.session(session_id), Session)
        except CorruptState:
            return False
        return session is not None and session.value.if_empty

    async def values(self, partition: str, prefix: str, kind: type[T]) -> AsyncIterator[T]:
        """The records under a prefix, parsed; those that cannot be read are added to `damaged`."""
        async for key, record in self._records.every(partition, prefix):
            try:
                value = unseal(partition, key, record.value, kind)
            except CorruptState as error:
                self.damaged.append(f"{partition}: {await self._records.damage(partition, key, error)}")
            else:
                yield value

    # --- counting --------------------------------------------------------------------------------

    async def count(self) -> Statistics:
        found = Statistics()
        for owner in await self.owners():
            found.users += 1
            async for _ in self._records.every(self._records.partition(owner), keys.SESSIONS):
                found.sessions += 1
            async for task in self.tasks(owner):
                if task.head is None:
                    self.damaged.append(f"{task.partition}: {task.damage}")
                    continue
                head = task.head.value
                found.tasks[head.status] += 1
                found.queued += len(head.queue)
                found.entries += head.tail_seq
                found.expired += head.is_expired(self._records.clock.now())
        async for _ in self._records.every(keys.erasing(self._records.agent), ""):
            found.deletions += 1
        found.workers_alive = await self._workers_alive()
        found.damaged = self.damaged
        return found

    async def _workers_alive(self) -> int:
        partition, alive = keys.workers(self._records.agent), 0
        now = await self._records.store.now()
        async for worker in self.values(partition, keys.worker(""), Worker):
            alive += is_alive(worker, now)
        return alive


def is_alive(worker: Worker, now: float) -> bool:
    """Whether a process still holds its lease. Unlike `Peers.dead`, writes nothing."""
    return not worker.dead and now - worker.beat_at <= worker.lease_seconds
