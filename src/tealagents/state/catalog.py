"""Lists of sessions, tasks and approvals, newest by creation first.

The order is that of immutable index keys, so pages stay stable while tasks change. A record that is
damaged is listed as such and never fails the list.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial

from msgspec import Struct

from tealagents.domain.errors import CorruptState, NotFound
from tealagents.domain.models import Approval, Deleting, Head, RequestRecord, Session, User
from tealagents.domain.ports import Record
from tealagents.state import batches, keys
from tealagents.state.codec import unseal
from tealagents.state.records import Stored, no_session
from tealagents.state.tasks import Tasks


class Damaged(Struct, frozen=True):
    """Listed in place of a record that cannot be read."""

    identifier: str
    error: CorruptState


class CatalogPage(Struct, frozen=True):
    """A page of items, and the cursor of the next page (None: no more)."""

    items: Sequence[object]
    cursor: str | None


#: a record as read, or why it cannot be read
Found = Record | CorruptState | None


class Catalog:
    """Reads the lists of one owner."""

    def __init__(self, tasks: Tasks) -> None:
        self._records = tasks.records
        self._tasks = tasks

    async def tasks(
        self, partition: str, *, session_id: str | None, status: str | None, cursor: str | None, limit: int
    ) -> CatalogPage:
        """Heads (or `Damaged`). With `status` a page may be short, even empty, and still have a cursor."""
        prefix = keys.tasks_of_session(session_id) if session_id else "tasks/"
        names, after = await self._index(partition, prefix, cursor, limit)
        found: list[object] = []
        for head in await self.heads(partition, names):
            if head is not None and (status is None or (isinstance(head, Head) and head.status == status)):
                found.append(head)
        return CatalogPage(found, after)

    async def heads(self, partition: str, names: Sequence[str]) -> list[Head | Damaged | None]:
        """The tasks with these ids, as they stand; None for those that are gone.

        They are read together, so that either all tasks of a session that is being deleted are seen, or none.
        """
        read = await self._read(partition, [keys.DELETING, *map(keys.task, names)])
        deleting = self._records.open(partition, keys.DELETING, _readable(read[0]), Deleting)
        there = {
            name: self._there(partition, name, record, deleting)
            for name, record in zip(names, read[1:], strict=True)
        }
        busy = {
            name: head for name, head in there.items() if isinstance(head, Stored) and not head.value.idle
        }
        there.update(
            zip(busy, await batches.each(partial(self._current, partition), [*busy.values()]), strict=True)
        )
        found = [there[name] for name in names]
        return [head.value if isinstance(head, Stored) else head for head in found]

    def _there(
        self, partition: str, task_id: str, record: Found, deleting: Stored[Deleting] | None
    ) -> Stored[Head] | Damaged | None:
        """A task as it was read; None if it is gone."""
        try:
            opened = self._records.open(partition, keys.task(task_id), _readable(record), Head)
            return self._tasks.present(opened, task_id, deleting)
        except NotFound:
            return None
        except CorruptState as error:
            return Damaged(task_id, error)

    async def _current(self, partition: str, found: Stored[Head]) -> Stored[Head] | Damaged | None:
        """A task after what was due on it has ended; None if it is gone."""
        try:
            return await self._tasks.end_due(partition, found, reading=True)
        except NotFound:
            return None
        except CorruptState as error:
            return Damaged(found.value.task_id, error)

    async def sessions(self, partition: str, *, cursor: str | None, limit: int) -> CatalogPage:
        """Sessions (or `Damaged`)."""
        names, after = await self._index(partition, keys.SESSIONS, cursor, limit)
        found: list[object] = []
        read = await self._read(partition, [*map(keys.session, names)])
        for name, record in zip(names, read, strict=True):
            try:
                session = self._records.open(partition, keys.session(name), _readable(record), Session)
            except CorruptState as error:
                found.append(Damaged(name, error))
            else:
                if session is not None and not session.value.erased:
                    found.append(session.value)
        return CatalogPage(found, after)

    async def session(self, partition: str, session_id: str) -> Stored[Session]:
        found = await self._records.get(partition, keys.session(session_id), Session)
        if found is None or found.value.erased:
            raise no_session(session_id)
        return found

    async def parents(self, partition: str, task_id: str, names: Sequence[str]) -> dict[str, str | None]:
        """The checkpoint that each of these completed requests of a task continued; None for a first one."""
        found: dict[str, str | None] = {}
        read = await self._read(partition, [*map(keys.request, names)])
        for name, record in zip(names, read, strict=True):
            key = keys.request(name)
            stored = await self._records.whole(partition, key, _readable(record), RequestRecord)
            if stored is None:
                gap = CorruptState(key, "is missing", task_id=task_id)
                raise await self._records.unless_deleted(partition, task_id, gap)
            found[name] = stored.value.parent
        return found

    async def approvals(
        self, partition: str, *, status: str | None, cursor: str | None, limit: int
    ) -> CatalogPage:
        """The pauses of one owner's requests."""
        names, after = await self._index(partition, "approvals/", cursor, limit)
        return CatalogPage([*(await self._approvals(partition, names, status)).values()], after)

    async def inbox(self, tid: str, *, status: str | None, cursor: str | None, limit: int) -> CatalogPage:
        """The pauses of a whole tenant, for its approvers."""
        box = keys.inbox(self._records.agent, tid)
        found = await self._records.store.scan(box, "inbox/", after=cursor, limit=limit + 1, reverse=True)
        listed: dict[str, object] = {}
        names: dict[str, list[str]] = defaultdict(list)
        for key, record in found[:limit]:
            name = keys.last_segment(key)
            listed[name] = None
            try:
                owner = unseal(box, key, record.value, User)
            except CorruptState as error:
                listed[name] = Damaged(name, error)
            else:
                names[self._records.partition(owner)].append(name)
        for theirs in await batches.each(lambda of: self._approvals(*of, status), [*names.items()]):
            listed.update(theirs)
        pauses = [pause for pause in listed.values() if pause is not None]
        return CatalogPage(pauses, found[limit - 1][0] if len(found) > limit else None)

    async def approval(self, partition: str, request_id: str, approval_id: str) -> Approval:
        """One pause of a request, as it stands."""
        found = (await self._approvals(partition, [approval_id], None)).get(approval_id)
        if isinstance(found, Damaged):
            raise found.error
        if found is None or found.request_id != request_id:
            raise NotFound(
                f"The request {request_id} has no pause {approval_id}. Check the ids.", request_id=request_id
            )
        return found

    async def _approvals(
        self, partition: str, names: Sequence[str], status: str | None
    ) -> dict[str, Approval | Damaged]:
        """The pauses with these ids that have the status (None: any), in this order, by id.

        They are given as they stand: one whose time is up is not pending, and one whose task is gone is left
        out. Most pauses of an inbox were decided long ago; they are filtered out before tasks are read.
        """
        found = await self._pauses(partition, names, {"pending", status} if status else None)
        pauses = {name: each for name, each in found.items() if isinstance(each, Approval)}
        tasks = [*{pause.task_id: None for pause in pauses.values()}]
        heads = dict(zip(tasks, await self.heads(partition, tasks) if tasks else (), strict=True))
        settled = []
        for name, pause in pauses.items():
            head = heads[pause.task_id]
            if head is None:
                del found[name]
            elif isinstance(head, Damaged):
                found[name] = Damaged(name, head.error)
            elif pause.status == "pending" and (head.pending is None or head.pending.approval_id != name):
                settled.append(name)  # its end was stored after it was read
        again = await self._pauses(partition, settled, {status} if status else None)
        listed = {name: again.get(name) if name in settled else each for name, each in found.items()}
        return {
            name: each
            for name, each in listed.items()
            if isinstance(each, Damaged) or (each is not None and status in (None, each.status))
        }

    async def _pauses(
        self, partition: str, names: Sequence[str], statuses: Collection[str] | None
    ) -> dict[str, Approval | Damaged]:
        """The stored pauses with these ids and one of the statuses (None: any)."""
        found: dict[str, Approval | Damaged] = {}
        read = await self._read(partition, [*map(keys.approval, names)])
        for name, record in zip(names, read, strict=True):
            try:
                stored = await self._records.whole(
                    partition, keys.approval(name), _readable(record), Approval
                )
            except CorruptState as error:
                found[name] = Damaged(name, error)
            else:
                if stored is not None and (statuses is None or stored.value.status in statuses):
                    found[name] = stored.value
        return found

    async def _index(
        self, partition: str, prefix: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        """A page of the ids in an index after `cursor`, and the cursor after this page (None: no more)."""
        after = prefix + cursor if cursor else None
        found = await self._records.store.scan(partition, prefix, after=after, limit=limit + 1, reverse=True)
        names = [keys.last_segment(key) for key, _ in found[:limit]]
        more = len(found) > limit
        return names, found[limit - 1][0].removeprefix(prefix) if more else None

    async def _read(self, partition: str, names: Sequence[str]) -> Sequence[Found]:
        """The records of `names`. If a damaged one makes the read of all fail, each is read alone."""
        try:
            return await self._records.store.read(partition, names) if names else []
        except CorruptState:
            return [await self._read_one(partition, name) for name in names]

    async def _read_one(self, partition: str, key: str) -> Found:
        try:
            (record,) = await self._records.store.read(partition, [key])
        except CorruptState as error:
            return error
        return record


def _readable(found: Found) -> Record | None:
    if isinstance(found, CorruptState):
        raise found
    return found
