"""The deletion of a session with its tasks (`erasing`), in stages, since one commit cannot erase them all.

- `mark`: writes the note. Then one commit marks the session and adds it to the list of sessions being deleted
  (`Deleting`): from here on the session and its tasks are gone for every reader, and no task begins in it
- `close`: rewrites each task's head unchanged, so that no message that was read before the mark can be
  committed on it. If one was committed earlier and its request runs, the mark is taken back
- `erase`: removes the tasks. Then the session leaves the list, and its record and the note are deleted

Each commit expects the session as it was marked, so a late one changes nothing.
"""

from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import Conflict, TaskBusy
from tealagents.domain.models import Deleting, Head, Session, User
from tealagents.state import keys
from tealagents.state.records import Stored, no_session
from tealagents.state.removal import bury_unchanged, erase
from tealagents.state.tasks import Tasks


class PendingSessionDeletion(Struct, frozen=True):
    """The note `sessions/{created}/{id}` on a pending deletion; `created`, as an id may be used again."""

    owner: User
    session_id: str
    #: seconds since the epoch, by the store's clock
    begun_at: float


class SessionDeletion:
    """The deletion of one session, continued from any stage."""

    def __init__(self, tasks: Tasks, partition: str, session: Stored[Session]) -> None:
        self._tasks = tasks
        self._records = tasks.records
        self._partition = partition
        #: the session as read; from `mark` on, as marked
        self._session = session

    @property
    def marked(self) -> bool:
        """Whether the session is marked, and not only on condition that it is empty."""
        return _is_deleted(self._session.value)

    async def tasks(self) -> list[str]:
        """The ids of the session's tasks, deleted ones too."""
        listed = self._records.every(self._partition, keys.tasks_of_session(self._id))
        return [keys.last_segment(key) async for key, _ in listed]

    # --- stages ----------------------------------------------------------------------------------

    async def mark(self, *, if_empty: bool = False) -> None:
        """Marks the session: from the last commit on, it and all its tasks are gone for every reader.

        `TaskBusy` while one of its tasks runs. With `if_empty`, it is to be deleted only if it has no tasks.
        """
        if not if_empty:
            for task_id in await self.tasks():
                if (busy := await self._busy(await self._head(task_id))) is not None:
                    raise busy
        session, key = self._session, keys.session(self._id)
        gone = replace(session.value, erased=True, if_empty=if_empty)
        note = PendingSessionDeletion(gone.owner, gone.session_id, await self._records.store.now())
        await self._records.commit(
            keys.erasing(self._records.agent), marker=self._note, put={self._note: note}
        )
        while True:
            deleting = await self._records.get(self._partition, keys.DELETING, Deleting)
            names = (*(deleting.value.sessions if deleting else ()), self._id)
            with suppress(Conflict):
                version = await self._records.commit(
                    self._partition,
                    marker=key,
                    expect={key: session.version, keys.DELETING: deleting.version if deleting else None},
                    put={key: gone, keys.DELETING: Deleting(tuple(dict.fromkeys(names)))},
                )
                self._session = Stored(gone, version)
                return
            again = await self._read()
            if again is None or _is_deleted(again.value) or session_note(again.value) != self._note:
                raise no_session(self._id)
            session = again

    async def close(self) -> None:
        """Rewrites all heads, so that no request begins in the session's tasks any more.

        `TaskBusy` if one has begun: the session is restored. No task is buried before that is ruled out.
        """
        for task_id in await self.tasks():
            key = keys.task(task_id)
            while (found := await self._head(task_id)) and not found.value.erased:
                busy = await self._busy(found)
                if busy is not None and await self._restore():
                    raise busy
                expect = {key: found.version, **self._mark}
                try:
                    await self._records.commit(
                        self._partition, marker=key, expect=expect, put={key: found.value}
                    )
                    break
                except Conflict:
                    if await self._finished():
                        return

    async def erase(self) -> bool:
        """Removes the tasks of the marked session, then the session.

        False if another process has finished the deletion, so that the id may be in use again, or has
        restored the session. Every commit expects this deletion's mark, so neither is harmed.
        """
        for task_id in await self.tasks():
            while found := await self._head(task_id):
                buried = found if found.value.erased else await self._bury(found)
                if buried is not None:
                    await erase(self._records, self._tasks.directory, self._partition, buried)
                    break
                if await self._finished():
                    return False
        await self._unmark({})
        owner = self._session.value.owner
        # before the session's record goes: from then on another session may have the id
        await self._tasks.directory.release(keys.session, self._id, owner, unless=self._finished)
        try:
            await self._records.delete(
                self._partition, [self._note, keys.session(self._id)], expect=self._mark
            )
        except Conflict:
            return False
        await self._drop_note()
        return True

    async def erase_if_empty(self) -> bool:
        """Removes a session marked with `if_empty`; False, and the session is restored, if it has tasks."""
        if await self.tasks() and await self._restore():
            return False
        return await self.erase()

    # --- restoring -------------------------------------------------------------------------------

    async def is_back(self) -> bool:
        """Whether the marked session was restored, and not replaced by another one with its id."""
        found = await self._read()
        return found is not None and not found.value.erased and session_note(found.value) == self._note

    async def _restore(self) -> bool:
        """Restores the marked session; False if it is gone for good."""
        kept = replace(self._session.value, erased=False, if_empty=False)
        if await self._unmark({keys.session(self._id): kept}):
            await self._drop_note()
            return True
        return await self.is_back()  # another process carrying out the deletion may have restored it

    async def _unmark(self, put: Mapping[str, object]) -> bool:
        """Takes the session off the list of those being deleted, and writes `put` in the same commit.

        False if it is not on the list, or has changed since it was marked.
        """
        while deleting := await self._records.get(self._partition, keys.DELETING, Deleting):
            if self._id not in deleting.value.sessions or await self._finished():
                return False
            left = tuple(other for other in deleting.value.sessions if other != self._id)
            with suppress(Conflict):
                await self._records.commit(
                    self._partition,
                    # a commit that only deletes conflicts when repeated; the loop then finds the mark gone
                    marker=next(iter(put), keys.DELETING),
                    expect={keys.DELETING: deleting.version, **self._mark},
                    put={**put, **({keys.DELETING: Deleting(left)} if left else {})},
                    delete=() if left else (keys.DELETING,),
                )
                return True
        return False

    # --- reading ---------------------------------------------------------------------------------

    async def _busy(self, task: Stored[Head] | None) -> TaskBusy | None:
        """The refusal if a live process works on a request of the task.

        A request whose process died may still be there, since no reader ends it in an expired task; it is
        erased with its task.
        """
        running = task.value.running if task is not None else None
        if task is None or running is None or await self._tasks.abandoned(running):
            return None
        return TaskBusy(
            "A task of the session is running. The session can be deleted once the request of that task has "
            "ended.",
            **task.value.ids,
            request_id=running.request_id,
        )

    async def _finished(self) -> bool:
        """Whether the marked session is gone or has changed."""
        found = await self._read()
        return found is None or found.version != self._session.version

    async def _read(self) -> Stored[Session] | None:
        return await self._records.get(self._partition, keys.session(self._id), Session)

    async def _head(self, task_id: str) -> Stored[Head] | None:
        return await self._records.get(self._partition, keys.task(task_id), Head)

    async def _bury(self, task: Stored[Head]) -> Stored[Head] | None:
        return await bury_unchanged(self._records, self._partition, task, self._mark)

    async def _drop_note(self) -> None:
        await self._records.delete(keys.erasing(self._records.agent), [self._note])

    @property
    def _id(self) -> str:
        return self._session.value.session_id

    @property
    def _note(self) -> str:
        return session_note(self._session.value)

    @property
    def _mark(self) -> Mapping[str, str]:
        """What each commit expects: the session as marked."""
        return {keys.session(self._id): self._session.version}


def session_note(session: Session) -> str:
    """The key of the note on a session's deletion, which is also that of the session in the list."""
    return keys.session_by_creation(session.created_at, session.session_id)


def _is_deleted(session: Session) -> bool:
    """Whether the session is marked for deletion, even if it has tasks."""
    return session.erased and not session.if_empty
