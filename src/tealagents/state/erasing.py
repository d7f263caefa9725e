"""Deletion that survives a crash.

Erasing begins with a tombstone on the head (`removal`), or with a mark on the session (`session_deletion`):
from then on the task, or all tasks of the session, are gone for every reader. A note records that it has
begun; a process that finds an old note resumes the deletion. Damaged records are erased like all others.
"""

import logging
from contextlib import suppress

from tealagents.domain.errors import (
    Conflict,
    CorruptState,
    NotFound,
    PersistenceUnavailable,
    TaskBusy,
)
from tealagents.domain.models import Head, Session
from tealagents.state import keys
from tealagents.state.codec import unseal
from tealagents.state.records import Stored
from tealagents.state.removal import PendingDeletion, bury_unchanged, deletion_note, erase, give_up
from tealagents.state.session_deletion import PendingSessionDeletion, SessionDeletion, session_note
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)

#: seconds between two sweeps for interrupted deletions; the least age of a note that a sweep resumes; and the
#: age beyond that at which a note without its tombstone or mark is dropped
SWEEP_SECONDS, RESUMED_AFTER_SECONDS, FORGOTTEN_AFTER_SECONDS = 15.0, 5.0, 60.0


class Eraser:
    """Erases tasks and sessions."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._records = tasks.records

    async def delete_task(self, partition: str, task_id: str) -> None:
        """Erases a task with all its records, or resumes erasing it. `TaskBusy` while it runs."""
        begun = await self._records.get(partition, keys.task(task_id), Head)
        if begun is not None and begun.value.erased and not begun.value.making:
            await self.erase(partition, begun)
            return
        while not await self.delete_as_read(partition, await self.tasks.head(partition, task_id)):
            pass

    async def delete_as_read(self, partition: str, stored: Stored[Head]) -> bool:
        """Erases a task unless it has changed since it was read (False). `TaskBusy` while it runs."""
        return await self._erased(partition, await self.bury(partition, stored))

    async def bury(self, partition: str, stored: Stored[Head]) -> Stored[Head] | None:
        """Begins to erase a task, unless it has changed since it was read (None). `TaskBusy` while it runs.

        No one finds the task any more. `erase` removes its records, or a sweep if the process ends before.
        """
        if stored.value.running is not None:
            raise TaskBusy(
                "The task is running. It can be deleted once its request has ended.",
                task_id=stored.value.task_id,
                session_id=stored.value.session_id,
                request_id=stored.value.running.request_id,
            )
        return await bury_unchanged(self._records, partition, stored)

    async def remove(self, partition: str, stored: Stored[Head]) -> bool:
        """Erases a task, even if it runs, unless it has changed since it was read (False)."""
        return await self._erased(partition, await bury_unchanged(self._records, partition, stored))

    async def _erased(self, partition: str, buried: Stored[Head] | None) -> bool:
        if buried is not None:
            await self.erase(partition, buried)
        return buried is not None

    async def delete_session(self, partition: str, session_id: str) -> None:
        """Erases a session with its tasks, or resumes erasing it. `TaskBusy` while one of them runs."""
        session = await self._records.get(partition, keys.session(session_id), Session)
        if session is None:
            raise NotFound(f"There is no session {session_id}. Check the id.", session_id=session_id)
        deletion = SessionDeletion(self.tasks, partition, session)
        if not deletion.marked:
            await deletion.mark()
        await deletion.close()
        if not await deletion.erase() and await deletion.is_back():
            await self.delete_session(partition, session_id)  # another deletion met a running task: restored

    async def delete_empty_session(self, partition: str, session_id: str) -> bool:
        """Erases a session without tasks; False if it has tasks or does not exist."""
        session = await self._records.get(partition, keys.session(session_id), Session)
        if session is None or session.value.erased:
            return False
        deletion = SessionDeletion(self.tasks, partition, session)
        if await deletion.tasks():
            return False
        await deletion.mark(if_empty=True)
        return await deletion.erase_if_empty()

    async def erase(self, partition: str, buried: Stored[Head]) -> None:
        """Removes a buried task's records, its head last. May be repeated after a crash."""
        await erase(self._records, self.tasks.directory, partition, buried)

    async def sweep(self) -> None:
        """Finishes deletions that a crash or an outage has interrupted, as long as the service runs."""
        while True:
            try:
                if resumed := await self.resume_all():
                    log.info("resumed %d pending deletions", resumed)
            except PersistenceUnavailable as error:
                log.warning("pending deletions resume later: %s", error)
            await self._records.clock.sleep(SWEEP_SECONDS)

    async def resume_all(self, older_than_seconds: float = RESUMED_AFTER_SECONDS) -> int:
        """Resumes pending deletions; returns how many. Damaged notes are left alone."""
        erasing = keys.erasing(self._records.agent)
        before = await self._records.store.now() - older_than_seconds
        resumed = 0
        async for key, record in self._records.every(erasing, ""):
            try:
                resumed += await self._resume(erasing, key, record.value, before)
            except CorruptState as error:
                log.error("a pending deletion cannot be resumed: %s", error)
        return resumed

    async def _resume(self, erasing: str, key: str, stored: bytes, before: float) -> bool:
        """Resumes one deletion; False if there is nothing to do, or not yet."""
        if key.startswith(keys.task("")):
            return await self._resume_task(
                erasing, key, unseal(erasing, key, stored, PendingDeletion), before
            )
        return await self._resume_session(
            erasing, key, unseal(erasing, key, stored, PendingSessionDeletion), before
        )

    async def _resume_task(self, erasing: str, key: str, note: PendingDeletion, before: float) -> bool:
        if note.begun_at > before:
            return False
        partition = self._records.partition(note.owner)
        head = await self._records.get(partition, keys.task(note.task_id), Head)
        if (
            head is None
            or not head.value.erased
            or deletion_note(head.value, making=head.value.making) != key
        ):
            return await self._drop(erasing, key, note.begun_at, before, gone=head is None)
        guard = keys.importing(note.task_id)
        guarded = await self._records.version(partition, guard)
        with suppress(Conflict):  # the task was finished after all, or imported again
            if head.value.making:
                await give_up(self._records, self.tasks.directory, partition, head)
            else:
                await self.erase(partition, head)
            if guarded is not None:
                await self._records.delete(partition, [guard], expect={guard: guarded})
        return True

    async def _resume_session(
        self, erasing: str, key: str, note: PendingSessionDeletion, before: float
    ) -> bool:
        if note.begun_at > before:
            return False
        partition = self._records.partition(note.owner)
        session = await self._records.get(partition, keys.session(note.session_id), Session)
        if session is None or not session.value.erased or session_note(session.value) != key:
            return await self._drop(erasing, key, note.begun_at, before, gone=session is None)
        deletion = SessionDeletion(self.tasks, partition, session)
        if not deletion.marked:
            await deletion.erase_if_empty()
            return True
        with suppress(TaskBusy):  # the session was restored
            await deletion.close()
            await deletion.erase()
        return True

    async def _drop(self, erasing: str, key: str, begun_at: float, before: float, *, gone: bool) -> bool:
        """Drops the note of a deletion that is finished, or that stopped before its tombstone or mark."""
        if gone or begun_at < before - FORGOTTEN_AFTER_SECONDS:
            await self._records.delete(erasing, [key])
        return False
