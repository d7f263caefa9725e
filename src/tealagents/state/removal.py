"""Tombstones, and what a task under one held: removed page by page, its head last.

Another process may finish it meanwhile, and the same task be imported again, so every commit expects the
tombstone. A task that takes more than one commit to make begins under one as well (`MAKING_SECONDS`): so no
crash leaves anything that no head speaks of.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import Conflict, CorruptState
from tealagents.domain.models import Approval, Batch, Head, RequestRecord, User
from tealagents.domain.ports import Record
from tealagents.state import keys, memories
from tealagents.state.codec import unseal
from tealagents.state.owner_directory import Directory, Kind
from tealagents.state.records import ERASED_AT_ONCE, RecordStore, Stored, named_in

log = logging.getLogger(__name__)

#: for which a task may be in the making: a fork, an import, a large first message. What is not finished by
#: then is erased like what was deleted
MAKING_SECONDS = 3600.0


class PendingDeletion(Struct, frozen=True):
    """`task/{id}/{log_id}` in the partition of deletions that have begun: a task may be imported again."""

    owner: User
    task_id: str
    #: seconds since the epoch, by the store's clock; of a task in the making: when it is given up
    begun_at: float


def deletion_key(head: Head, *, making: bool) -> str:
    """The key of the note that a task's deletion has begun, or its making."""
    return f"{keys.task(head.task_id)}/{head.log_id}{'/making' if making else ''}"


async def bury(
    records: RecordStore,
    partition: str,
    head: Head,
    expect: Mapping[str, str | None],
    *,
    making: bool = False,
) -> Stored[Head]:
    """Puts the tombstone, first where it is found again after a crash. `Conflict`.

    With `making` it is that of a task which begins.
    """
    erasing, key = keys.erasing(records.agent), keys.task(head.task_id)
    noted, now = deletion_key(head, making=making), await records.store.now()
    note = PendingDeletion(head.owner, head.task_id, now + MAKING_SECONDS if making else now)
    await records.commit(erasing, marker=noted, put={noted: note})
    buried = replace(head, erased=True, running=None, pending=None, queue=(), metadata={})
    version = await records.commit(
        partition, marker=key, expect=expect, put={key: buried}, delete=keys.listings(head)
    )
    return Stored(buried, version)


async def bury_unchanged(
    records: RecordStore, partition: str, stored: Stored[Head], expect: Mapping[str, str] | None = None
) -> Stored[Head] | None:
    """Puts the tombstone on a task as it was read. None if it has changed, or what is expected besides."""
    known = {keys.task(stored.value.task_id): stored.version, **(expect or {})}
    try:
        return await bury(records, partition, stored.value, known)
    except Conflict:
        return None


async def erase(records: RecordStore, directory: Directory, partition: str, buried: Stored[Head]) -> None:
    """Removes what a buried task held, and then its head. May be repeated after a crash."""
    try:
        await Removal(records, directory, partition, buried).run()
    except Conflict:  # another process continues or has finished it, and deletes the note
        return
    await forget(records, buried.value, making=False)


async def forget(records: RecordStore, head: Head, *, making: bool) -> None:
    """Deletes the note of a task that is gone, or made."""
    await records.delete(keys.erasing(records.agent), [deletion_key(head, making=making)])


async def give_up(records: RecordStore, directory: Directory, partition: str, making: Stored[Head]) -> None:
    """Erases what there is of a task in the making. `Conflict` where that was finished.

    The tombstone is put anew, as that of a task that was there: what may still be on its way to the store
    comes too late, and no other message or import takes its place before all is gone.
    """
    was = replace(making.value, tail_seq=1)
    again = await bury(records, partition, was, {keys.task(was.task_id): making.version})
    await erase(records, directory, partition, again)
    await forget(records, was, making=True)


class Removal:
    """Removes one task."""

    def __init__(
        self, records: RecordStore, directory: Directory, partition: str, buried: Stored[Head]
    ) -> None:
        self._records = records
        self._directory = directory
        self._partition = partition
        self._head = buried.value
        self._tombstone = {keys.task(buried.value.task_id): buried.version}

    async def run(self) -> None:
        """Removes all there is; `Conflict` where the tombstone is gone. May be repeated after a crash."""
        head, task_id = self._head, self._head.task_id
        while found := await self._listed(keys.logs(task_id)):
            for request_id in await self._requests_of(found):
                await self._request(request_id)
            await self._delete([key for key, _ in found])
        await self._delete_under(keys.blobs(task_id))
        await self._forget()
        await self._release(keys.task, task_id)
        await self._delete([*keys.listings(head), keys.task(task_id)])

    async def _delete(self, names: Collection[str], *, notify: Collection[str] = ()) -> None:
        await self._records.delete(self._partition, names, expect=self._tombstone, notify=notify)

    async def _listed(self, prefix: str) -> list[tuple[str, Record]]:
        return await self._records.store.scan(self._partition, prefix, limit=ERASED_AT_ONCE)

    async def _delete_under(self, prefix: str) -> None:
        while found := await self._listed(prefix):
            await self._delete([key for key, _ in found])

    async def _release(self, kind: Kind, identifier: str) -> None:
        await self._directory.release(kind, identifier, self._head.owner, unless=self._finished)

    async def _finished(self) -> bool:
        ((key, version),) = self._tombstone.items()
        (record,) = await self._records.store.read(self._partition, [key])
        return record is None or record.version != version

    async def _forget(self) -> None:
        try:
            await memories.forget_task(self._records, self._partition, self._head.task_id)
        except CorruptState as error:
            log.error("what was learned in task %s may still be remembered: %s", self._head.task_id, error)

    async def _requests_of(self, page: Sequence[tuple[str, Record]]) -> set[str]:
        """The requests that some batches speak of, whose pauses are removed.

        A damaged batch may be all that named them, as the one batch of a fork: so they are searched for.
        """
        found: list[tuple[set[str], set[str]]] = []
        damaged = False
        for key, record in page:
            try:
                found.append(named_in(unseal(self._partition, key, record.value, Batch)))
            except CorruptState:
                damaged = True
        if damaged:
            found.append(await self._records.of_task(self._partition, self._head.task_id))
        for approval_id in {each for _, approvals in found for each in approvals}:
            await self._approval(approval_id)
        return {each for requests, _ in found for each in requests}

    async def _request(self, request_id: str) -> None:
        key = keys.request(request_id)
        try:
            found = await self._records.get(self._partition, key, RequestRecord)
        except CorruptState:
            found = None
        if found is not None and found.value.task_id != self._head.task_id:
            return  # an import that lost a race for it
        for approval_id in found.value.approvals if found else ():
            await self._approval(approval_id)
        # first the record, which the writer of a stream expects: nothing is added to what is removed then.
        # Followers learn that the request is gone
        await self._delete([key], notify=[key])
        await self._delete_under(keys.streams(request_id))
        await self._delete_under(keys.stream_parts(request_id))
        await self._release(keys.request, request_id)

    async def _approval(self, approval_id: str) -> None:
        key = keys.approval(approval_id)
        names = [key]
        try:
            found = await self._records.get(self._partition, key, Approval)
        except CorruptState:
            found = None
        if found is not None:
            at, inbox = found.value.created_at, keys.inbox(self._records.agent, self._head.owner.tid)
            # before the pause itself, by which a repetition finds it
            await self._records.delete(inbox, [keys.in_inbox(at, approval_id)])
            names.append(keys.approval_by_creation(at, approval_id))
        await self._delete(names)
