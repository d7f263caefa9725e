"""Erases old or expired tasks, or everything of one user, for the operator; the service never does."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from msgspec import Struct

from tealagents.domain.errors import CorruptState, NotFound, PersistenceUnavailable
from tealagents.domain.models import PENDING_CONSENTS, Head, Session, User, Worker
from tealagents.state import keys
from tealagents.state.codec import parse, unseal
from tealagents.state.erasing import Eraser
from tealagents.state.inventory import Inventory, Progress, is_alive
from tealagents.state.records import ERASED_AT_ONCE
from tealagents.state.removal import PendingDeletion
from tealagents.state.session_deletion import PendingSessionDeletion


class Due(Struct, frozen=True):
    """Something to prune: a task, or a session without tasks."""

    what: Literal["task", "session"]
    #: False if it is not erased after all
    erase: Callable[[], Awaitable[bool]]


class Pruning:
    """Finds the tasks and sessions that are due, each with a function that erases it."""

    def __init__(self, eraser: Eraser, *, before: datetime | None = None) -> None:
        """Tasks past their `expires_at` are due; with `before`, also tasks last changed before that time, and
        empty sessions created before it."""
        self._records = records = eraser.tasks.records
        self._eraser = eraser
        self._before = before
        self._inventory = Inventory(records)
        #: users whose tasks were looked at
        self.users = 0
        #: tasks that are due, but in use
        self.spared = 0

    @property
    def damaged(self) -> list[str]:
        """Descriptions of damaged records, which were left alone."""
        return self._inventory.damaged

    async def due(self, progress: Progress = lambda done, total: None) -> AsyncIterator[Due]:
        # the store's clock, since this machine's may differ from those of the serving processes
        now = datetime.fromtimestamp(await self._records.store.now(), UTC)
        owners = await self._inventory.owners()
        self.users = len(owners)
        for done, owner in enumerate(owners):
            progress(done, len(owners))
            going: set[str] = set()
            async for found in self._inventory.tasks(owner):
                if found.head is None:
                    self._note(found.partition, found.damage)
                elif self._is_old(found.head.value, now):
                    if await self._in_use(found.head.value, now):
                        self.spared += 1
                    else:
                        going.add(found.task_id)
                        erase = partial(self._eraser.delete_even_running, found.partition, found.head)
                        yield self._due(found.partition, "task", erase)
            async for empty in self._empty_sessions(owner, going):
                yield empty
        # only to find the damaged ones: no deletion is resumed by them
        erasing = keys.erasing(self._records.agent)
        async for _ in self._inventory.values(erasing, keys.task(""), PendingDeletion):
            pass
        async for _ in self._inventory.values(erasing, keys.SESSIONS, PendingSessionDeletion):
            pass
        progress(len(owners), len(owners))

    def _note(self, partition: str, damage: CorruptState | None) -> None:
        """Adds a damaged record to `damaged`, once: several tasks and sessions may need the same record."""
        text = f"{partition}: {damage}"
        if text not in self.damaged:
            self.damaged.append(text)

    def _due(
        self, partition: str, what: Literal["task", "session"], erase: Callable[[], Awaitable[bool]]
    ) -> Due:
        async def erased() -> bool:
            """False if the session was deleted meanwhile, or if damage prevents it, which is noted."""
            try:
                return await erase()
            except NotFound:
                return False
            except CorruptState as error:
                self._note(partition, error)
                return False

        return Due(what, erased)

    def _is_old(self, head: Head, now: datetime) -> bool:
        old = self._before is not None and head.updated_at < self._before
        return old or head.is_expired(now)

    async def _in_use(self, head: Head, now: datetime) -> bool:
        """Whether a process works on the task, or its pause can still be decided."""
        if head.running is not None and await self._lives(head.running.worker_id):
            return True
        # in an expired task, no queued request can start, and no one can decide a pause
        if head.is_expired(now):
            return False
        for waiting in head.queue:
            if await self._lives(waiting.worker_id):
                return True
        return head.pending is not None and head.pending.expires_at > now

    async def _lives(self, worker_id: str) -> bool:
        partition, key = keys.workers(self._records.agent), keys.worker(worker_id)
        try:
            found = await self._records.get(partition, key, Worker)
        except CorruptState as error:  # a live process overwrites it; the others delete it after a lease
            self._note(partition, error)
            return True
        return found is not None and is_alive(found.value, await self._records.store.now())

    async def _empty_sessions(self, owner: User, going: Collection[str]) -> AsyncIterator[Due]:
        """Old sessions without tasks, or with due ones (`going`) only."""
        if self._before is None:
            return
        partition = self._records.partition(owner)
        async for session in self._inventory.values(partition, keys.session(""), Session):
            if session.created_at < self._before and not await self._holds(partition, session, going):
                erase = partial(self._eraser.delete_empty_session, partition, session.session_id)
                yield self._due(partition, "session", erase)

    async def _holds(self, partition: str, session: Session, going: Collection[str]) -> bool:
        """Whether the session has a task that is not due."""
        async for key, _ in self._records.every(partition, keys.tasks_of_session(session.session_id)):
            if keys.last_segment(key) not in going:
                return True
        return False


class UserErasure:
    """Erases everything of one user: tasks, sessions, memories, secrets, and the entry in the owner index.

    Running requests are fenced off first. May be repeated after a crash, or if the user came back meanwhile.
    """

    def __init__(self, eraser: Eraser, user: User) -> None:
        self._records = records = eraser.tasks.records
        self._eraser = eraser
        self._user = user
        self._partition = records.partition(user)
        self._inventory = Inventory(records)

    async def count(self) -> int:
        """The number of records in the user's partition, plus one if the owner index lists the user."""
        listed = int(await self._eraser.tasks.directory.knows(self._user))
        return listed + sum([1 async for _ in self._records.every(self._partition, "")])

    async def erase(self, report: Callable[[int], None] = lambda records: None) -> int:
        """Erases everything; returns the number of records outside tasks, including expired ones."""
        async for found in self._inventory.tasks(self._user):
            await self._erase_task(found.task_id)
        wiped = 0
        after: str | None = None
        scan = partial(self._records.store.scan, self._partition, "", limit=ERASED_AT_ONCE)
        # each page continues after the last one: a scan from the start would pass all expired records again
        while page := await scan(after=after) or (await scan() if after else []):
            await self._records.delete(self._partition, [key for key, _ in page])
            wiped += len(page)
            report(wiped)
            after = page[-1][0]
        inbox = keys.inbox(self._records.agent, self._user.tid)
        consents = keys.user(self._records.agent, PENDING_CONSENTS)
        workers = keys.workers(self._records.agent)  # signals by the user that no one took
        for partition in (inbox, consents, workers, keys.erasing(self._records.agent)):
            wiped += await self._wipe_mentions(partition)
        wiped += await self._wipe_expired(self._partition)
        for partition in (inbox, consents, workers):
            await self._wipe_expired(partition)  # including those of other users
        return wiped + await self._eraser.tasks.directory.forget(self._user)

    async def _erase_task(self, task_id: str) -> None:
        """Erases a task, however often it changes meanwhile; a damaged one is left to the scan in `erase`."""
        key = keys.task(task_id)
        try:
            while found := await self._records.get(self._partition, key, Head):
                if found.value.erased or await self._eraser.delete_even_running(self._partition, found):
                    return
        except CorruptState:
            return

    async def _wipe_mentions(self, partition: str) -> int:
        """Deletes the records that name the user in a shared partition; returns their number."""
        wiped = 0
        async for key, record in self._records.every(partition, ""):
            if self._names_user(partition, key, record.value):
                await self._records.delete(partition, [key])
                wiped += 1
        return wiped

    async def _wipe_expired(self, partition: str) -> int:
        """Erases expired records, which no scan returns and the store may keep for a while; returns their
        number."""
        wiped, before = 0, None
        while expired := {*await self._records.store.expired(partition)}:
            if expired == before:
                raise PersistenceUnavailable(
                    f"The store still holds expired records in {partition} after they were deleted."
                )
            await self._records.delete(partition, expired)
            wiped, before = wiped + len(expired), expired
        return wiped

    def _names_user(self, partition: str, key: str, stored: bytes) -> bool:
        try:
            value = unseal(partition, key, stored, object)
            if isinstance(value, str):  # a secret: the JSON of a pending authorization
                value = parse(key, value.encode(), object)
        except CorruptState:
            return False
        if not isinstance(value, dict):
            return False
        owner = value.get("owner", value)
        named = {"tid": self._user.tid, "oid": self._user.oid}
        return owner == named or self._user.key in (value.get("user_key"), value.get("actor"))
