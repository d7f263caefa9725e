"""The right to write a task while a request runs on it."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, lifecycle
from tealagents.domain.errors import Conflict, PersistenceUnavailable, StoreError, TealError
from tealagents.domain.events import Recorded
from tealagents.domain.models import (
    Approval,
    Failure,
    Head,
    Json,
    Message,
    Outcome,
    RequestRecord,
    Status,
    ToolOutcome,
    Usage,
)
from tealagents.state import keys
from tealagents.state.audit_chain import Draft
from tealagents.state.streams import KEPT_SECONDS
from tealagents.state.tasks import SERVICE, Tasks

#: entries of one commit: more are written in several
MOST_ENTRIES = 200


class Fenced(StoreError):
    """The writer is over: another process, or the lease, has ended it. `request` is what it became."""

    def __init__(self, request: RequestRecord | None) -> None:
        super().__init__("the request was ended by somebody else")
        self.request = request


class Change(Struct, frozen=True, kw_only=True):
    """What a writer writes in one commit besides its entries."""

    head: Callable[[Head], Head] = lambda head: head
    request: Callable[[RequestRecord, Head], RequestRecord] = lambda request, _: request
    put: Mapping[str, object] = {}
    ttl: Mapping[str, float] = {}


NOTHING = Change()


class Write(Struct, frozen=True):
    """One commit of a writer, and what it leaves if it is applied."""

    operation: str
    log_key: str
    drafts: Sequence[Draft]
    head: Head
    request: RequestRecord


class TaskWriter:
    """The right to write one task while one request runs on it."""

    def __init__(
        self,
        tasks: Tasks,
        partition: str,
        head: Head,
        head_version: str,
        request: RequestRecord,
        request_version: str,
        message: Message | None,
    ) -> None:
        self._tasks = tasks
        self.partition = partition
        self.head = head
        self.head_version = head_version
        self.request = request
        self.request_version = request_version
        #: the message that began the request; None after a resume
        self.message = message
        #: the last write, where the store did not say what became of it
        self._doubt: Write | None = None
        #: drafts of a write that has not succeeded yet, as far as they are in the log
        self._logged: Sequence[Draft] = ()

    async def write(self, drafts: Sequence[Draft], change: Change | None = None) -> None:
        """Appends entries and applies `change`. `Fenced` when the writer is over.

        Where the store does not say what became of it, it may be called again with the same drafts: those
        that are in the log already are not written twice. More entries than one commit holds are written
        in several, the last of which applies the change.
        """
        while True:
            if not self._tasks.lease.held:
                raise Fenced(None)
            if self._doubt is not None and await self._was_applied(self._doubt) and self.head.running is None:
                return  # this was an end, and it is stored
            known = {id(item) for item in self._logged}
            due = [item for item in drafts if id(item) not in known]
            rest = len(due) > MOST_ENTRIES
            if not due and change is None:
                break
            try:
                await self._commit(due[:MOST_ENTRIES], NOTHING if rest or change is None else change)
            except Conflict:
                if self._doubt is None or not await self._was_applied(self._doubt):
                    await self._rebase()
            else:
                if not rest:
                    break
        self._logged = ()

    async def _commit(self, drafts: Sequence[Draft], change: Change) -> None:
        """One try, on the head as it is known."""
        records = self._tasks.records
        head, log_key, batch = await records.append(self.partition, self.head, drafts)
        head = change.head(replace(head, updated_at=records.clock.now()))
        request = change.request(self.request, head)
        put: dict[str, object] = {keys.task(head.task_id): head}
        if request is not self.request:
            put[keys.request(request.request_id)] = request
        put |= {log_key: batch, **change.put}
        write = Write(ids.operation_id(), log_key, drafts, head, request)
        try:
            await records.commit(
                self.partition,
                marker=log_key,
                expect={keys.task(head.task_id): self.head_version, log_key: None},
                put=put,
                ttl=change.ttl,
                operation=write.operation,
            )
        except PersistenceUnavailable:
            self._doubt = write
            raise
        self._adopt(write)

    def _adopt(self, write: "Write") -> None:
        """Goes on from what a write has left."""
        self.head, self.head_version = write.head, write.operation
        if write.request is not self.request:
            self.request, self.request_version = write.request, write.operation
        self._logged = (*self._logged, *write.drafts)
        self._doubt = None

    async def _was_applied(self, write: "Write") -> bool:
        """Whether a write whose fate was not told has been applied; if so it is gone on from."""
        (record,) = await self._tasks.records.store.read(self.partition, [write.log_key])
        if record is None or record.version != write.operation:
            return False
        self._adopt(write)
        return True

    async def _rebase(self) -> None:
        """Reads the head again: still ours, go on from there; else the writer is over."""
        records = self._tasks.records
        request_key = keys.request(self.request.request_id)
        found = await records.get(self.partition, keys.task(self.head.task_id), Head)
        request = await records.get(self.partition, request_key, RequestRecord)
        running = found.value.running if found and not found.value.erased else None
        mine = (
            running is not None
            and running.request_id == self.request.request_id
            and running.worker_id == self._tasks.lease.worker_id
        )
        if found is None or request is None or not mine:
            raise Fenced(request.value if request else None)
        self.head, self.head_version = found.value, found.version
        self.request, self.request_version = request.value, request.version

    def _stream_put(self, events: Sequence[Recorded]) -> dict[str, object]:
        """The last stream events, which are stored with the end itself."""
        return {self._stream_key(events): list(events)} if events else {}

    def _stream_ttl(self, events: Sequence[Recorded]) -> dict[str, float]:
        return {self._stream_key(events): self._tasks.streams.ttl} if events else {}

    def _stream_key(self, events: Sequence[Recorded]) -> str:
        return keys.stream(self.request.request_id, events[0].id)

    async def pause(
        self,
        approval: Approval,
        drafts: Sequence[Draft],
        *,
        usage: Usage,
        last_event: int,
        extra_data: Json | None,
        events: Sequence[Recorded] = (),
        remote_id: str | None = None,
    ) -> None:
        """The request waits for a human. `remote_id` is where its remote conversation goes on."""
        tasks = self._tasks
        now = tasks.records.clock.now()
        key = keys.approval(approval.approval_id)
        await self.write(
            drafts,
            Change(
                head=lambda head: lifecycle.pause(head, approval.approval_id, approval.expires_at, now),
                request=lambda request, _: replace(
                    request,
                    status="Paused",
                    worker_id=None,
                    pause=approval,
                    usage=usage,
                    last_event=last_event,
                    approvals=(*request.approvals, approval.approval_id),
                    extra_data=extra_data or None,
                    remote_id=remote_id,
                ),
                put={
                    key: approval,
                    keys.approval_by_creation(
                        approval.created_at, approval.approval_id
                    ): approval.approval_id,
                    **self._stream_put(events),
                },
                ttl=self._stream_ttl(events),
            ),
        )

    async def complete(
        self,
        drafts: Sequence[Draft],
        *,
        outcome: Outcome,
        last_event: int,
        events: Sequence[Recorded] = (),
        remote_id: str | None = None,
        context: Json | None = None,
    ) -> None:
        """The request has its answer, which becomes the current checkpoint."""
        tasks = self._tasks
        now = tasks.records.clock.now()
        end = tasks.ending_draft(
            self.request.request_id, "Completed", None, self.head, (), SERVICE, now=now, remote_id=remote_id
        )
        await self.write(
            [*drafts, end],
            Change(
                head=lambda head: lifecycle.complete(head, now, remote_id=remote_id),
                request=lambda request, head: replace(
                    lifecycle.ended(request, "Completed", now, last_event=last_event, outcome=outcome),
                    last_seq=head.tail_seq,
                    path=head.path,
                    remote_id=remote_id,
                    context=context,
                ),
                put={**tasks.key_put(self.request), **self._stream_put(events)},
                ttl={**tasks.key_ttl(self.request, KEPT_SECONDS), **self._stream_ttl(events)},
            ),
        )

    async def fail(
        self,
        drafts: Sequence[Draft],
        status: Status,
        error: TealError,
        *,
        outcome: Outcome,
        last_event: int,
        events: Sequence[Recorded] = (),
        tools: Sequence[ToolOutcome],
        actor: str,
        withdrawn: bool = False,
    ) -> None:
        """The request ends without an answer; what there was of one is kept in its content."""
        tasks = self._tasks
        now = tasks.records.clock.now()
        end = tasks.ending_draft(
            self.request.request_id, status, error.code, self.head, tools, actor, now=now
        )
        await self.write(
            [*drafts, end],
            Change(
                head=lambda head: lifecycle.stop(head, status, now, tools=tuple(tools), withdrawn=withdrawn),
                request=lambda request, head: replace(
                    lifecycle.ended(
                        request,
                        status,
                        now,
                        last_event=last_event,
                        outcome=outcome,
                        error=Failure(error.code, error.detail),
                    ),
                    last_seq=head.tail_seq,
                ),
                put={**tasks.key_put(self.request), **self._stream_put(events)},
                ttl={**tasks.key_ttl(self.request, KEPT_SECONDS), **self._stream_ttl(events)},
            ),
        )
