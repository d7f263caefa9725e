"""Deletes tasks and sessions. A deletion that a crash interrupts is resumed by any process.

1. **Noted.** A note records that the deletion has begun.
2. **Gone.** One commit hides the task or the session, with its tasks, from every reader: a tombstone replaces
   the head of the task (`removal`), or the session is marked (`session_deletion`).
3. **Closed.** Only of a session: no request can begin in its tasks any more. If one has begun before, the
   session is restored, and the deletion refused.
4. **Removed.** A task's records go page by page, the head last; of a session, the tasks go one after the
   other, as in 2 and 4, then its own record.
5. The note is deleted.

Several processes may carry out one deletion at once, and each step may be repeated: every commit expects the
tombstone or the mark. A process that finds an old note resumes the deletion; whether it stopped before or
after step 2 shows in the head or the session. Damaged records are erased like all others.
"""

import logging
from contextlib import suppress

from tealagents.domain.errors import (
    Conflict,
    CorruptState,
    PersistenceUnavailable,
    TaskBusy,
)
from tealagents.domain.models import Head, Session
from tealagents.state import keys
from tealagents.state.codec import unseal
from tealagents.state.records import Stored, no_session
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
        self._notes = keys.erasing(tasks.records.agent)

    # --- tasks -----------------------------------------------------------------------------------

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
        _refuse_running(stored.value)
        return await self.delete_even_running(partition, stored)

    async def delete_even_running(self, partition: str, stored: Stored[Head]) -> bool:
        """Erases a task, even if it runs, unless it has changed since it was read (False)."""
        buried = await bury_unchanged(self._records, partition, stored)
        if buried is not None:
            await self.erase(partition, buried)
        return buried is not None

    async def bury(self, partition: str, stored: Stored[Head]) -> Stored[Head] | None:
        """Begins to erase a task, unless it has changed since it was read (None). `TaskBusy` while it runs.

        No one finds the task any more. `erase` removes its records, or a sweep if the process ends before.
        """
        _refuse_running(stored.value)
        return await bury_unchanged(self._records, partition, stored)

    async def erase(self, partition: str, buried: Stored[Head]) -> None:
        """Removes a buried task's records, its head last. May be repeated after a crash."""
        await erase(self._records, self.tasks.directory, partition, buried)

    # --- sessions --------------------------------------------------------------------------------

    async def delete_session(self, partition: str, session_id: str) -> None:
        """Erases a session with its tasks, or resumes erasing it. `TaskBusy` while one of them runs."""
        session = await self._records.get(partition, keys.session(session_id), Session)
        if session is None:
            raise no_session(session_id)
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

    # --- interrupted deletions -------------------------------------------------------------------

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
        before = await self._records.store.now() - older_than_seconds
        resumed = 0
        async for key, record in self._records.every(self._notes, ""):
            try:
                resumed += await self._resume(key, record.value, before)
            except CorruptState as error:
                log.error("a pending deletion cannot be resumed: %s", error)
        return resumed

    async def _resume(self, key: str, stored: bytes, before: float) -> bool:
        """Resumes the deletion of one note; False if there is nothing to do, or not yet."""
        kind: type[PendingDeletion] | type[PendingSessionDeletion]
        kind = PendingDeletion if key.startswith(keys.task("")) else PendingSessionDeletion
        note = unseal(self._notes, key, stored, kind)
        if note.begun_at > before:
            return False
        partition = self._records.partition(note.owner)
        found: Stored[Head] | Stored[Session] | None
        if isinstance(note, PendingDeletion):
            found = await self._records.get(partition, keys.task(note.task_id), Head)
            if found and found.value.erased and deletion_note(found.value, making=found.value.making) == key:
                await self._resume_task(partition, found)
                return True
        else:
            found = await self._records.get(partition, keys.session(note.session_id), Session)
            if found and found.value.erased and session_note(found.value) == key:
                await self._resume_session(partition, found)
                return True
        # the deletion is finished, or stopped before its tombstone or mark
        if found is None or note.begun_at < before - FORGOTTEN_AFTER_SECONDS:
            await self._records.delete(self._notes, [key])
        return False

    async def _resume_task(self, partition: str, buried: Stored[Head]) -> None:
        guard = keys.importing(buried.value.task_id)
        guarded = await self._records.version(partition, guard)
        with suppress(Conflict):  # the task was finished after all, or imported again
            if buried.value.making:
                await give_up(self._records, self.tasks.directory, partition, buried)
            else:
                await self.erase(partition, buried)
            if guarded is not None:
                await self._records.delete(partition, [guard], expect={guard: guarded})

    async def _resume_session(self, partition: str, session: Stored[Session]) -> None:
        deletion = SessionDeletion(self.tasks, partition, session)
        if not deletion.marked:
            await deletion.erase_if_empty()
            return
        with suppress(TaskBusy):  # the session was restored
            await deletion.close()
            await deletion.erase()


def _refuse_running(head: Head) -> None:
    if head.running is not None:
        raise TaskBusy(
            "The task is running. It can be deleted once its request has ended.",
            **head.ids,
            request_id=head.running.request_id,
        )
