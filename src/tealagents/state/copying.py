"""Writes a copied task, for forks and imports.

A copy starts with a tombstone, under which its log is written; finally, its head replaces the tombstone.
Until then no one can see the copy, and whatever a crash leaves behind is erased like a deleted task. Erasing
finds requests by the log, so each request is written after the entries that name it.
"""

from collections.abc import Mapping
from contextlib import suppress

from tealagents.domain.errors import Conflict, PersistenceUnavailable
from tealagents.domain.models import Head, RequestRecord, Session
from tealagents.state import keys
from tealagents.state.audit_chain import Draft
from tealagents.state.new_task import new_session
from tealagents.state.out_of_line import BATCH_BYTES
from tealagents.state.records import Stored
from tealagents.state.removal import bury, drop_note, give_up
from tealagents.state.tasks import Tasks

#: entries in one log record of a copy
BATCH_ENTRIES = 100
#: requests in one commit of a copy
REQUESTS = 4


class Copy:
    """One copied task: entries and requests are added, the head is written at the end."""

    def __init__(
        self, tasks: Tasks, partition: str, head: Head, guard: Mapping[str, str | None] | None = None
    ) -> None:
        """`guard` holds keys and versions of records that must not change meanwhile; the last commit deletes
        them."""
        self._records = tasks.records
        self._directory = tasks.directory
        self._partition = partition
        self._guard = guard or {}
        self.head = head
        self._tombstone: Stored[Head] | None = None
        self._drafts: list[Draft] = []
        self._size = 0
        #: requests whose entries were added, but are not all written yet
        self._requests: list[RequestRecord] = []

    async def begin(self) -> None:
        """Writes the tombstone; must be called first. `Conflict` if the task exists."""
        self._tombstone = await bury(self._records, self._partition, self.head, self._expected, making=True)

    @property
    def _expected(self) -> dict[str, str | None]:
        """What every commit expects: the tombstone and the guard."""
        tombstone = self._tombstone.version if self._tombstone else None
        return {keys.task(self.head.task_id): tombstone, **self._guard}

    @property
    def next_seq(self) -> int:
        return self.head.tail_seq + len(self._drafts) + 1

    async def add(self, entry: Draft) -> None:
        self._drafts.append(entry)
        self._size += len(entry.body)
        if len(self._drafts) >= BATCH_ENTRIES or self._size > BATCH_BYTES // 2:
            await self.flush()

    async def add_request(self, request: RequestRecord) -> None:
        """Adds a request, after its entries."""
        self._requests.append(request)
        if len(self._requests) >= REQUESTS and not self._drafts:
            await self.flush()

    async def flush(self) -> None:
        """Writes the entries gathered so far as one log record, and then the requests gathered so far."""
        drafts, self._drafts, self._size = self._drafts, [], 0
        requests, self._requests = self._requests, []
        if drafts:
            expect = self._expected
            version = expect[keys.task(self.head.task_id)]
            head, key, log_record = await self._records.extended(self._partition, self.head, drafts, version)
            await self._records.commit(
                self._partition, marker=key, expect={key: None, **expect}, put={key: log_record}
            )
            self.head = head
        for start in range(0, len(requests), REQUESTS):
            some = requests[start : start + REQUESTS]
            put = {keys.request(request.request_id): request for request in some}
            await self._records.commit(
                self._partition,
                marker=next(iter(put)),
                expect={**dict.fromkeys(put), **self._expected},
                put=put,
            )

    async def discard(self) -> None:
        """Removes an unfinished copy. A copy whose last commit was applied after all stays."""
        if self._tombstone is not None:
            with suppress(Conflict):
                await give_up(self._records, self._directory, self._partition, self._tombstone)

    async def finish(self, head: Head, session: Stored[Session] | None) -> Head:
        """Makes the copy visible. `Conflict` if its session has changed, its id was taken or it was deleted
        meanwhile."""
        await self.flush()
        task_key, session_key = keys.task(head.task_id), keys.session(head.session_id)
        listed = keys.listings(head)
        put: dict[str, object] = {task_key: head, **dict.fromkeys(listed, head.task_id)}
        if session is None:
            put |= new_session(head.session_id, head.owner, self._records.clock.now())
        await self._records.commit(
            self._partition,
            marker=listed[0],  # not the head, which a message to the task overwrites
            expect={session_key: session.version if session else None, **self._expected},
            put=put,
            delete=list(self._guard),
        )
        with suppress(PersistenceUnavailable):  # the sweep drops an old note
            await drop_note(self._records, self.head, making=True)
        return head
