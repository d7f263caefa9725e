"""The right to write a task while a request runs on it.

A patch or a queued message may change the task's head meanwhile; the writer then continues from the new head
(`TaskWriter.rebase`).
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import Conflict, PersistenceUnavailable, StoreError
from tealagents.domain.events import Recorded
from tealagents.domain.models import Head, Message, RequestRecord
from tealagents.state import keys
from tealagents.state.audit_chain import Draft
from tealagents.state.head_commits import Written
from tealagents.state.records import check_not_emptied
from tealagents.state.tasks import Tasks
from tealagents.state.transitions import Transition, appended

#: entries in one commit; more are written in several
MOST_ENTRIES = 200


class Fenced(StoreError):
    """The writer has lost its right to write: the request was ended, or the lease was lost.

    `request` is the request's record as read then; None if it was not read.
    """

    def __init__(self, request: RequestRecord | None = None) -> None:
        super().__init__("the request was ended from outside")
        self.request = request


class Erased(Fenced):
    """The task was deleted, and the request with it."""


class SetBack(Fenced):
    """The store has lost the request, not its task: a crash or a failover undid the commit that began it."""


#: makes the last transition from the current head and request, and the entries to append
Conclude = Callable[[Head, RequestRecord, Sequence[Draft]], Transition]


class _Doubt(Struct, frozen=True):
    """A commit in doubt: the store did not report whether it was applied."""

    operation: str
    log_key: str
    drafts: Sequence[Draft]
    #: whether it ends or pauses the request
    concludes: bool


class TaskWriter:
    """The right to write one task while one request runs on it. Methods raise `Fenced` once it is lost."""

    def __init__(self, tasks: Tasks, begun: Written, message: Message | None) -> None:
        """`message` is the one that began the request; None after a pause."""
        if begun.request is None:
            raise ValueError("a writer is for a request")
        self._tasks = tasks
        self.partition = begun.partition
        self.head, self._head_version = begun.head, begun.version
        self.request, self.request_version = begun.request, begun.version
        self.message = message
        #: commits in doubt, all on the same head: at most one of them was applied, or still will be
        self._doubts: list[_Doubt] = []
        #: the drafts of an unfinished write that are in the log already
        self._logged: Sequence[Draft] = ()

    async def append(self, drafts: Sequence[Draft]) -> None:
        """Appends entries while the request runs."""
        await self._write(drafts, None)

    async def conclude(
        self, drafts: Sequence[Draft], conclude: Conclude, events: Sequence[Recorded] = ()
    ) -> None:
        """Appends entries and ends or pauses the request; the last commit also stores `events`."""

        def with_events(head: Head, request: RequestRecord, due: Sequence[Draft]) -> Transition:
            transition = conclude(head, request, due)
            if not events:
                return transition
            key = keys.stream(request.request_id, events[0].id)
            return replace(
                transition,
                put={**transition.put, key: list(events)},
                ttl={**transition.ttl, key: self._tasks.streams.ttl},
            )

        await self._write(drafts, with_events)

    async def _write(self, drafts: Sequence[Draft], conclude: Conclude | None) -> None:
        """Writes all drafts, in several commits if there are many; the last commit concludes.

        If the outcome is in doubt, it may be called again with the same drafts (the same objects): those that
        are in the log already are not written twice.
        """
        while True:
            if not self._tasks.lease.held:
                raise Fenced
            if await self._doubt_concluded():
                return
            known = {id(item) for item in self._logged}
            due = [item for item in drafts if id(item) not in known]
            rest = len(due) > MOST_ENTRIES
            if not due and conclude is None:
                break
            try:
                await self._commit(due[:MOST_ENTRIES], None if rest else conclude)
            except Conflict:
                if await self._applied() is None:
                    await self.rebase()
            else:
                if not rest:
                    break
        self._logged = ()

    async def _commit(self, drafts: Sequence[Draft], conclude: Conclude | None) -> None:
        """Tries one commit on the head as known."""
        tasks, head = self._tasks, self.head
        if conclude is None:
            transition = appended(head, drafts, tasks.records.clock.now())
        else:
            transition = conclude(head, self.request, drafts)
        operation = ids.operation_id()
        try:
            written = await tasks.heads.commit(
                self.partition, transition, version=self._head_version, operation=operation
            )
        except PersistenceUnavailable:
            log_key = keys.log(head.task_id, head.tail_seq + 1)
            doubt = _Doubt(operation, log_key, drafts, conclude is not None)
            self._doubts = [*(each for each in self._doubts if each.log_key == log_key), doubt]
            raise
        self.head, self._head_version = written.head, written.version
        if written.request is not None:
            self.request, self.request_version = written.request, written.version
        self._written(drafts)

    def _written(self, drafts: Sequence[Draft]) -> None:
        self._logged = (*self._logged, *drafts)
        self._doubts = []

    # --- after a commit in doubt, or a conflict --------------------------------------------------

    async def _doubt_concluded(self) -> bool:
        """Whether a commit in doubt was applied and has ended or paused the request."""
        applied = await self._applied()
        if applied is None:
            return False
        if applied.concludes:
            return True
        await self.rebase()
        return False

    async def _applied(self) -> _Doubt | None:
        """The commit in doubt that was applied after all; None if none was, so far."""
        if not self._doubts:
            return None
        version = await self._tasks.records.version(self.partition, self._doubts[0].log_key)
        applied = next((each for each in self._doubts if each.operation == version), None)
        if applied is not None:
            self._written(applied.drafts)
            if applied.concludes:
                await self._read_request()
        return applied

    async def _read_request(self) -> None:
        key = keys.request(self.request.request_id)
        found = await self._tasks.records.get(self.partition, key, RequestRecord)
        if found is None:
            raise await self._without_request()
        self.request, self.request_version = found.value, found.version

    async def _without_request(self) -> Fenced:
        """Why the request's record is missing. A deletion buries the task before it removes the request."""
        found = await self._tasks.records.get(self.partition, keys.task(self.head.task_id), Head)
        if found is None or found.value.erased or found.value.log_id != self.head.log_id:
            return Erased()
        return SetBack()

    async def rebase(self) -> None:
        """Reads the head again, to continue from it.

        `Fenced` if the request no longer holds the task. `CorruptState` if its log was emptied.
        """
        records = self._tasks.records
        found = await records.get(self.partition, keys.task(self.head.task_id), Head)
        if found is None or found.value.erased:
            raise Erased
        check_not_emptied(found.value)
        await self._read_request()
        if not found.value.is_run_by(self._tasks.lease.worker_id, self.request.request_id):
            raise Fenced(self.request)
        self.head, self._head_version = found.value, found.version
