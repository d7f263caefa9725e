"""The deletion of a task (`erasing`): its note, its tombstone, and the removal of its records.

Another process may finish a removal meanwhile, and the same task may be imported again, so every commit
expects the tombstone. A task that takes several commits to create begins with a note and a tombstone, too
(`making`), so that a crash never leaves records without a head: one that is not finished is erased.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import Conflict, CorruptState
from tealagents.domain.models import Approval, Head, LogRecord, RequestRecord, User
from tealagents.domain.ports import Record
from tealagents.state import keys, memories
from tealagents.state.codec import unseal
from tealagents.state.owner_directory import Directory, Kind
from tealagents.state.records import ERASED_AT_ONCE, RecordStore, Stored, named_in

log = logging.getLogger(__name__)

#: seconds that creating a task may take: a fork, an import, a large first message. An unfinished task is then
#: erased like a deleted one
MAKING_SECONDS = 3600.0


class PendingDeletion(Struct, frozen=True):
    """The note `task/{id}/{log_id}` on a pending deletion; `log_id` because a task may be imported again."""

    owner: User
    task_id: str
    #: seconds since the epoch, by the store's clock; of a task being created: when it is given up
    begun_at: float


def deletion_note(head: Head, *, making: bool) -> str:
    """The key of the note on a task's deletion or, with `making`, its creation."""
    return f"{keys.task(head.task_id)}/{head.log_id}{'/making' if making else ''}"


async def bury(
    records: RecordStore,
    partition: str,
    head: Head,
    expect: Mapping[str, str | None],
    *,
    making: bool = False,
) -> Stored[Head]:
    """Writes the note, then the tombstone in place of the head. Raises `Conflict`.

    With `making`, they are those of a task being created.
    """
    key, noted, now = keys.task(head.task_id), deletion_note(head, making=making), await records.store.now()
    note = PendingDeletion(head.owner, head.task_id, now + MAKING_SECONDS if making else now)
    await records.commit(keys.erasing(records.agent), marker=noted, put={noted: note})
    buried = replace(head, erased=True, running=None, pending=None, queue=(), metadata={})
    version = await records.commit(
        partition, marker=key, expect=expect, put={key: buried}, delete=keys.listings(head)
    )
    return Stored(buried, version)


async def bury_unchanged(
    records: RecordStore, partition: str, stored: Stored[Head], expect: Mapping[str, str] | None = None
) -> Stored[Head] | None:
    """Writes the tombstone unless the task, or a record in `expect`, has changed (None)."""
    known = {keys.task(stored.value.task_id): stored.version, **(expect or {})}
    try:
        return await bury(records, partition, stored.value, known)
    except Conflict:
        return None


async def erase(records: RecordStore, directory: Directory, partition: str, buried: Stored[Head]) -> None:
    """Removes a buried task's records, its head last, and the note. May be repeated after a crash."""
    with suppress(Conflict):  # another process continues or has finished it, and deletes the note
        await _Removal(records, directory, partition, buried).run()
        await drop_note(records, buried.value, making=False)


async def drop_note(records: RecordStore, head: Head, *, making: bool) -> None:
    """Deletes the note on a task that is erased or, with `making`, created."""
    await records.delete(keys.erasing(records.agent), [deletion_note(head, making=making)])


async def give_up(records: RecordStore, directory: Directory, partition: str, making: Stored[Head]) -> None:
    """Erases an unfinished task. `Conflict` if it was finished after all.

    The tombstone is written again, as that of an existing task: commits still under way then fail, and no
    other message or import can take the id before everything is erased.
    """
    was = replace(making.value, tail_seq=1)
    again = await bury(records, partition, was, {keys.task(was.task_id): making.version})
    await erase(records, directory, partition, again)
    await drop_note(records, was, making=True)


class _Removal:
    """The removal of one task's records."""

    def __init__(
        self, records: RecordStore, directory: Directory, partition: str, buried: Stored[Head]
    ) -> None:
        self._records = records
        self._directory = directory
        self._partition = partition
        self._head = buried.value
        self._tombstone = {keys.task(buried.value.task_id): buried.version}

    async def run(self) -> None:
        """Removes all records; `Conflict` if the tombstone is gone. May be repeated after a crash."""
        head, task_id = self._head, self._head.task_id
        while found := await self._listed(keys.logs(task_id)):
            requests, approvals = await self._named_in(found)
            for approval_id in approvals:
                await self._remove_approval(approval_id)
            for request_id in requests:
                await self._remove_request(request_id)
            await self._delete([key for key, _ in found])
        await self._delete_under(keys.blobs(task_id))
        await self._forget_learned()
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
        return await self._records.version(self._partition, key) != version

    async def _forget_learned(self) -> None:
        try:
            await memories.forget_task(self._records, self._partition, self._head.task_id)
        except CorruptState as error:
            log.error("what was learned in task %s may still be remembered: %s", self._head.task_id, error)

    async def _named_in(self, page: Sequence[tuple[str, Record]]) -> tuple[set[str], set[str]]:
        """The ids of the requests, and those of the pauses, that some log records name.

        Only a damaged log record may have named a request, like the only one of a fork. Then all requests of
        the user are searched for those of the task.
        """
        found: list[tuple[set[str], set[str]]] = []
        damaged = False
        for key, record in page:
            try:
                found.append(named_in(unseal(self._partition, key, record.value, LogRecord)))
            except CorruptState:
                damaged = True
        if damaged:
            found.append(await self._records.of_task(self._partition, self._head.task_id))
        requests, approvals = zip(*found, strict=True)
        return set[str]().union(*requests), set[str]().union(*approvals)

    async def _remove_request(self, request_id: str) -> None:
        key = keys.request(request_id)
        try:
            found = await self._records.get(self._partition, key, RequestRecord)
        except CorruptState:
            found = None
        if found is not None and found.value.task_id != self._head.task_id:
            return  # this task is an import that lost a race for the request's id
        for approval_id in found.value.approvals if found else ():
            await self._remove_approval(approval_id)
        # the record first: a writer of stream events expects it, so no events are added after this. The
        # notification tells followers that the request is gone
        await self._delete([key], notify=[key])
        await self._delete_under(keys.streams(request_id))
        await self._delete_under(keys.stream_parts(request_id))
        await self._release(keys.request, request_id)

    async def _remove_approval(self, approval_id: str) -> None:
        key = keys.approval(approval_id)
        names = [key]
        try:
            found = await self._records.get(self._partition, key, Approval)
        except CorruptState:
            found = None
        if found is not None:
            at, inbox = found.value.created_at, keys.inbox(self._records.agent, self._head.owner.tid)
            # before the pause itself, so that a repeated removal finds the inbox entry by it
            await self._records.delete(inbox, [keys.in_inbox(at, approval_id)])
            names.append(keys.approval_by_creation(at, approval_id))
        await self._delete(names)
        # after the pause, which the writer of an answer expects
        await self._delete_under(keys.answers(approval_id))
