"""A task in the making, for forks and imports.

A copy is written from its beginning to its end, and its head last: until then no one can see it, and what a
crash leaves behind is harmless.
"""

from collections.abc import Mapping

from tealagents.domain.errors import Conflict
from tealagents.domain.models import Head, RequestRecord, Session
from tealagents.state import keys
from tealagents.state.audit_chain import Draft
from tealagents.state.records import BATCH_BYTES, RecordStore, Stored

#: entries of one batch of a copy
BATCH_ENTRIES = 100
#: requests written in one commit of a copy
REQUESTS = 4


class Copy:
    """A task in the making: entries and requests are added, the head is written at the end."""

    def __init__(
        self, records: RecordStore, partition: str, head: Head, guard: Mapping[str, str | None] | None = None
    ) -> None:
        """`guard` are records that must stay as they are meanwhile; they go when the copy is finished."""
        self._records = records
        self._partition = partition
        self._guard = guard or {}
        self.head = head
        self._drafts: list[Draft] = []
        self._size = 0
        self._requests: list[RequestRecord] = []
        #: the last batch that is written
        self._tail: dict[str, str] = {}
        #: the requests that are written
        self._written: list[str] = []
        #: the last commit was sent: what is copied may be visible
        self._finished = False

    @property
    def next_seq(self) -> int:
        return self.head.tail_seq + len(self._drafts) + 1

    async def add(self, entry: Draft) -> None:
        self._drafts.append(entry)
        self._size += len(entry.body)
        if len(self._drafts) >= BATCH_ENTRIES or self._size > BATCH_BYTES // 2:
            await self.flush()

    async def add_request(self, request: RequestRecord) -> None:
        self._requests.append(request)
        if len(self._requests) >= REQUESTS:
            await self._flush_requests()

    async def flush(self) -> None:
        """Writes the entries gathered so far as one batch."""
        drafts, self._drafts, self._size = self._drafts, [], 0
        if drafts:
            head, key, batch = await self._records.append(self._partition, self.head, drafts)
            version = await self._records.commit(
                self._partition, marker=key, expect={key: None, **self._guard}, put={key: batch}
            )
            self.head, self._tail = head, {key: version}

    async def _flush_requests(self) -> None:
        requests, self._requests = self._requests, []
        if requests:
            self._written += [keys.request(request.request_id) for request in requests]
            put = {keys.request(request.request_id): request for request in requests}
            first = next(iter(put))
            await self._records.commit(
                self._partition, marker=first, expect={**dict.fromkeys(put), **self._guard}, put=put
            )

    async def discard(self) -> None:
        """Removes what was written of a copy that was not finished: no one else would. One that may be there
        after all stays."""
        if self._finished:
            return
        await self._records.erase_log(self._partition, self.head.task_id)
        await self._records.delete(self._partition, self._written)

    async def finish(self, head: Head, session: Stored[Session] | None) -> Head:
        """Makes the copy visible. `Conflict` where its session has changed, its id was taken or it was
        deleted meanwhile."""
        await self.flush()
        await self._flush_requests()
        task_key, session_key = keys.task(head.task_id), keys.session(head.session_id)
        listed = keys.listings(head)
        put: dict[str, object] = {task_key: head, **dict.fromkeys(listed, head.task_id)}
        if session is None:
            now = self._records.clock.now()
            put[session_key] = Session(session_id=head.session_id, owner=head.owner, created_at=now)
            put[keys.session_by_creation(now, head.session_id)] = head.session_id
        self._finished = True
        expect = {task_key: None, session_key: session.version if session else None, **self._guard}
        try:
            await self._records.commit(
                self._partition,
                # a message to the task overwrites its head, and its deletion erases its log
                marker=listed[0],
                expect={**expect, **self._tail},
                put=put,
                delete=list(self._guard),
            )
        except Conflict:
            self._finished = False
            raise
        return head
