"""Deletion that survives a crash.

Erasing begins with a tombstone on the head: from then on the task is gone for every reader. What it
held is removed page by page, the head last; the process that finds an old tombstone continues. What is
damaged is erased like everything else.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import (
    Conflict,
    CorruptState,
    NotFound,
    PersistenceUnavailable,
    TaskBusy,
)
from tealagents.domain.models import Deleting, Head, Running, Session, User
from tealagents.state import keys
from tealagents.state.codec import unseal
from tealagents.state.records import Stored
from tealagents.state.removal import PendingDeletion, bury, deletion_key, erase, give_up
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)

#: seconds between two looks for deletions that were cut short, how old those are at least, and for how long a
#: deletion is remembered that never came to its mark
SWEEP_SECONDS, RESUMED_AFTER_SECONDS, FORGOTTEN_AFTER_SECONDS = 15.0, 5.0, 60.0


class PendingSessionDeletion(Struct, frozen=True):
    """`sessions/{created}/{id}` in the same partition: the id alone may be taken again."""

    owner: User
    session_id: str
    begun_at: float


class Eraser:
    """Erases tasks and sessions."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._records = tasks.records

    async def delete_task(self, partition: str, task_id: str) -> None:
        """Erases a task with all it holds, or continues to. `TaskBusy` while it runs."""
        begun = await self._records.get(partition, keys.task(task_id), Head)
        if begun is not None and begun.value.erased and not begun.value.making:
            await self.erase(partition, begun)
            return
        while not await self.delete_as_read(partition, await self.tasks.head(partition, task_id)):
            pass

    async def delete_as_read(self, partition: str, stored: Stored[Head]) -> bool:
        """Erases a task as it was read; False where it has changed since. `TaskBusy` while it runs."""
        if stored.value.running is not None:
            raise TaskBusy(
                "The task is running. It can be deleted once its request has ended.",
                task_id=stored.value.task_id,
                session_id=stored.value.session_id,
                request_id=stored.value.running.request_id,
            )
        return await self.remove(partition, stored)

    async def remove(self, partition: str, stored: Stored[Head]) -> bool:
        """Erases a task as it was read, whatever it does; False where it has changed since."""
        buried = await self._bury(partition, stored)
        if buried is None:
            return False
        await self.erase(partition, buried)
        return True

    async def delete_session(self, partition: str, session_id: str) -> None:
        """Erases a session with its tasks, or continues to. `TaskBusy` while one of them runs."""
        key = keys.session(session_id)
        session = await self._records.get(partition, key, Session)
        if session is None:
            raise NotFound(f"There is no session {session_id}. Check the id.", session_id=session_id)
        if not _is_deleted(session.value):
            await self._refuse_busy(partition, session_id)
            session = await self._mark_deleted(partition, session)
        await self._close(partition, session)
        if not await self.erase_session(partition, session) and await self._is_back(partition, session):
            await self.delete_session(partition, session_id)  # another deletion of it had met a task that ran

    async def delete_empty_session(self, partition: str, session_id: str) -> bool:
        """Erases a session in which there is no task; False where there is one, or no such session."""
        session = await self._records.get(partition, keys.session(session_id), Session)
        if session is None or session.value.erased or await self._tasks_of(partition, session_id):
            return False
        marked = await self._mark_deleted(partition, session, if_empty=True)
        return await self._erase_if_empty(partition, marked)

    async def _erase_if_empty(self, partition: str, session: Stored[Session]) -> bool:
        """Erases a session that is marked so, in which no task begins any more; False where one had begun."""
        tasks = await self._tasks_of(partition, session.value.session_id)
        if tasks and await self._restore(partition, session):
            return False
        return await self.erase_session(partition, session)

    async def _mark_deleted(
        self, partition: str, session: Stored[Session], *, if_empty: bool = False
    ) -> Stored[Session]:
        """From its last commit on the session and all its tasks are gone for every reader."""
        gone = replace(session.value, erased=True, if_empty=if_empty)
        noted = _session_note(gone)
        note = PendingSessionDeletion(gone.owner, gone.session_id, await self._records.store.now())
        await self._records.commit(keys.erasing(self._records.agent), marker=noted, put={noted: note})
        key = keys.session(gone.session_id)
        while True:
            deleting = await self._records.get(partition, keys.DELETING, Deleting)
            names = (*(deleting.value.sessions if deleting else ()), gone.session_id)
            try:
                version = await self._records.commit(
                    partition,
                    marker=key,
                    expect={key: session.version, keys.DELETING: deleting.version if deleting else None},
                    put={key: gone, keys.DELETING: Deleting(tuple(dict.fromkeys(names)))},
                )
            except Conflict:
                again = await self._records.get(partition, key, Session)
                if again is None or _is_deleted(again.value) or _session_note(again.value) != noted:
                    raise NotFound(
                        f"There is no session {gone.session_id}.", session_id=gone.session_id
                    ) from None
                session = again
            else:
                return Stored(gone, version)

    async def _close(self, partition: str, session: Stored[Session]) -> None:
        """From here on no request begins in the session's tasks. `TaskBusy` where one had: the mark goes.

        A message that was read before the mark may yet be committed, on the head as it was: so each head is
        written again. Before all are, none is buried.
        """
        session_id = session.value.session_id
        for task_id in await self._tasks_of(partition, session_id):
            key = keys.task(task_id)
            while (found := await self._records.get(partition, key, Head)) and not found.value.erased:
                running = await self._running(found.value)
                if running is not None and await self._restore(partition, session):
                    raise _busy(session_id, task_id, running.request_id)
                expect = {key: found.version, keys.session(session_id): session.version}
                try:
                    await self._records.commit(partition, marker=key, expect=expect, put={key: found.value})
                    break
                except Conflict:
                    if await self._finished(partition, session):
                        return

    async def _restore(self, partition: str, session: Stored[Session]) -> bool:
        """A session that was marked is there again; False where it is gone for good."""
        kept = replace(session.value, erased=False, if_empty=False)
        if await self._unmark(partition, session, {keys.session(kept.session_id): kept}):
            await self._records.delete(keys.erasing(self._records.agent), [_session_note(kept)])
            return True
        return await self._is_back(partition, session)  # by another deletion of it

    async def _is_back(self, partition: str, session: Stored[Session]) -> bool:
        """Whether a session that was marked is there again, and not another one that took its id."""
        found = await self._records.get(partition, keys.session(session.value.session_id), Session)
        if found is None or found.value.erased:
            return False
        return _session_note(found.value) == _session_note(session.value)

    async def _unmark(self, partition: str, session: Stored[Session], put: Mapping[str, object]) -> bool:
        """From here on the tasks of a session are not hidden; what is `put` is written in the same commit.

        False where they were not, or the session has changed since it was marked.
        """
        name = session.value.session_id
        while deleting := await self._records.get(partition, keys.DELETING, Deleting):
            if name not in deleting.value.sessions or await self._finished(partition, session):
                return False
            left = tuple(other for other in deleting.value.sessions if other != name)
            with suppress(Conflict):
                await self._records.commit(
                    partition,
                    # a mark that goes alone puts nothing: sent again it conflicts, and is seen to be gone
                    marker=next(iter(put), keys.DELETING),
                    expect={keys.DELETING: deleting.version, keys.session(name): session.version},
                    put={**put, **({keys.DELETING: Deleting(left)} if left else {})},
                    delete=() if left else (keys.DELETING,),
                )
                return True
        return False

    async def _refuse_busy(self, partition: str, session_id: str) -> None:
        for task_id in await self._tasks_of(partition, session_id):
            found = await self._records.get(partition, keys.task(task_id), Head)
            running = await self._running(found.value) if found else None
            if running is not None:
                raise _busy(session_id, task_id, running.request_id)

    async def _running(self, head: Head) -> Running | None:
        """What a process works on. A request whose process died goes with its task.

        It may be there yet: a task past its `expires_at` is found by no reader who would end it.
        """
        running = head.running
        return None if running is None or await self.tasks.abandoned(running) else running

    async def erase_session(self, partition: str, session: Stored[Session]) -> bool:
        """Removes the tasks of a session that is marked as erased, then the session.

        False where another process has finished it meanwhile, and the id may be taken again, or has restored
        it: whatever could meet that session expects the mark of this one.
        """
        session_id, key = session.value.session_id, keys.session(session.value.session_id)
        marked = {key: session.version}
        for task_id in await self._tasks_of(partition, session_id):
            while found := await self._records.get(partition, keys.task(task_id), Head):
                buried = found if found.value.erased else await self._bury(partition, found, marked)
                if buried is not None:
                    await self.erase(partition, buried)
                    break
                if await self._finished(partition, session):
                    return False
        await self._unmark(partition, session, {})
        # before the session's record goes: from then on another session may have the id
        finished = partial(self._finished, partition, session)
        await self.tasks.directory.release(keys.session, session_id, session.value.owner, unless=finished)
        note = _session_note(session.value)
        try:
            await self._records.delete(partition, [note, key], expect=marked)
        except Conflict:
            return False
        await self._records.delete(keys.erasing(self._records.agent), [note])
        return True

    async def _finished(self, partition: str, session: Stored[Session]) -> bool:
        """Whether a session that was marked as erased is gone."""
        found = await self._records.get(partition, keys.session(session.value.session_id), Session)
        return found is None or found.version != session.version

    async def _tasks_of(self, partition: str, session_id: str) -> list[str]:
        listed = self._records.every(partition, keys.tasks_of_session(session_id))
        return [keys.last_segment(key) async for key, _ in listed]

    async def _bury(
        self, partition: str, stored: Stored[Head], expect: Mapping[str, str] | None = None
    ) -> Stored[Head] | None:
        """Puts the tombstone. None if the head has changed, or what is expected besides."""
        known = {keys.task(stored.value.task_id): stored.version, **(expect or {})}
        try:
            return await bury(self._records, partition, stored.value, known)
        except Conflict:
            return None

    async def erase(self, partition: str, buried: Stored[Head]) -> None:
        """Removes what a buried task held, and then its head. May be repeated after a crash."""
        await erase(self._records, self.tasks.directory, partition, buried)

    async def sweep(self) -> None:
        """Finishes deletions that a crash or an outage has cut short, for as long as the service runs."""
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
        """Continues one deletion; False where there is nothing to do (yet)."""
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
        if head is None or not head.value.erased or deletion_key(head.value, making=head.value.making) != key:
            return await self._drop(erasing, key, note.begun_at, before, gone=head is None)
        guard = keys.importing(note.task_id)
        (guarded,) = await self._records.store.read(partition, [guard])
        with suppress(Conflict):  # it is made after all, or imported again
            if head.value.making:
                await give_up(self._records, self.tasks.directory, partition, head)
            else:
                await self.erase(partition, head)
            if guarded is not None:
                await self._records.delete(partition, [guard], expect={guard: guarded.version})
        return True

    async def _resume_session(
        self, erasing: str, key: str, note: PendingSessionDeletion, before: float
    ) -> bool:
        if note.begun_at > before:
            return False
        partition = self._records.partition(note.owner)
        session = await self._records.get(partition, keys.session(note.session_id), Session)
        if session is None or not session.value.erased or _session_note(session.value) != key:
            return await self._drop(erasing, key, note.begun_at, before, gone=session is None)
        if session.value.if_empty:
            await self._erase_if_empty(partition, session)
            return True
        with suppress(TaskBusy):  # it is there again
            await self._close(partition, session)
            await self.erase_session(partition, session)
        return True

    async def _drop(self, erasing: str, key: str, begun_at: float, before: float, *, gone: bool) -> bool:
        """Forgets a deletion that is done, or that never came to its mark and no longer will."""
        if gone or begun_at < before - FORGOTTEN_AFTER_SECONDS:
            await self._records.delete(erasing, [key])
        return False


def _session_note(session: Session) -> str:
    """The key under which the session is listed, and the note is found that its deletion has begun."""
    return keys.session_by_creation(session.created_at, session.session_id)


def _is_deleted(session: Session) -> bool:
    """Whether the session is being erased, whatever is in it."""
    return session.erased and not session.if_empty


def _busy(session_id: str, task_id: str, request_id: str) -> TaskBusy:
    return TaskBusy(
        "A task of the session is running. The session can be deleted once the request of that task has "
        "ended.",
        task_id=task_id,
        session_id=session_id,
        request_id=request_id,
    )
