"""Finds tasks and their requests, and ends requests from outside.

Only the process that the head's `running` names may write for that request, as its `TaskWriter`. `Tasks.end`
ends what no process runs: requests that are paused or queued, or whose process has died. Both commit by
`HeadCommits`.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import (
    ApprovalPending,
    Conflict,
    CorruptState,
    NotFound,
    PersistenceUnavailable,
    TaskBusy,
    TealError,
    Vanishing,
)
from tealagents.domain.models import (
    ENDED,
    Approval,
    Concurrency,
    Deleting,
    Failure,
    Head,
    IdempotencyRecord,
    Outcome,
    Pending,
    Queued,
    RequestRecord,
    Running,
)
from tealagents.state import keys
from tealagents.state.begun import BegunRequests
from tealagents.state.endings import CANCELED, EXPIRED, INTERRUPTED, SUPERSEDED, WAITED_TOO_LONG, Ending
from tealagents.state.head_commits import HeadCommits
from tealagents.state.history import History
from tealagents.state.owner_directory import Directory
from tealagents.state.records import RecordStore, Stored, check_not_emptied, no_checkpoint, no_task
from tealagents.state.streams import JUMP, KEPT_SECONDS, SPARE_SECONDS, StreamLog
from tealagents.state.transitions import SERVICE, Transition, left_queue, stopped, unreturned
from tealagents.state.workers import Lease, Peers, Signal

log = logging.getLogger(__name__)

#: the shortest time, in seconds, between two looks at a pause that expires
SOONEST_LOOK_SECONDS = 0.05


class TaskRules(Struct, frozen=True, kw_only=True):
    """The config's rules for tasks."""

    concurrency: Concurrency = "reject"
    max_queued: int = 1000
    request_timeout_seconds: float = 600
    approval_expiry_seconds: float = 86400

    @property
    def event_seconds(self) -> float:
        """Seconds for which an event is stored: more than a day after the latest end of its request."""
        return KEPT_SECONDS + SPARE_SECONDS + self.approval_expiry_seconds + self.request_timeout_seconds


#: seconds that the process that runs a request gets to end it when asked, before it is ended from outside
ASKED_SECONDS = 1.5


def _logged(request: RequestRecord) -> None:
    code = request.error.code if request.error else None
    log.info("request %s ended %s (%s) from outside", request.request_id, request.status, code)


class Tasks:
    """Finds the tasks and requests of one agent, and ends what no process runs."""

    def __init__(
        self,
        records: RecordStore,
        lease: Lease,
        rules: TaskRules,
        source: str,
        report: Callable[[RequestRecord], None] = _logged,
    ) -> None:
        """`report` is called with each request that is ended from outside."""
        self.records = records
        self.lease = lease
        self.peers = Peers(records, lease)
        self.directory = Directory(records)
        self.rules = rules
        #: `name:version`, the `source` of every answer
        self.source = source
        self.history = History(records)
        self.begun = BegunRequests(lease, records.clock, self.request)
        self.heads = HeadCommits(records, self.begun, self.directory, rules.event_seconds)
        self._report = report
        self.streams = StreamLog(records, rules.event_seconds)

    # --- finding ---------------------------------------------------------------------------------

    async def head(self, partition: str, task_id: str, *, reading: bool = False) -> Stored[Head]:
        """A task's head, after what was due on it has ended (`end_due`). `NotFound` if the task is gone."""
        return await self.end_due(partition, await self.stored_head(partition, task_id), reading=reading)

    async def stored_head(self, partition: str, task_id: str) -> Stored[Head]:
        """A task's head as it is stored: nothing is ended. `NotFound` if the task is gone (`present`)."""
        names = [keys.task(task_id), keys.DELETING]
        head, deleting = await self.records.store.read(partition, names)
        found = self.records.open(partition, names[0], head, Head)
        return self.present(found, task_id, self.records.open(partition, names[1], deleting, Deleting))

    def present(
        self, found: Stored[Head] | None, task_id: str, deleting: Stored[Deleting] | None
    ) -> Stored[Head]:
        """The head; `NotFound` if it or its session is deleted, or the task is past its `expires_at`.

        `Vanishing` where the session's deletion may still be refused. `CorruptState` if its log was emptied.
        """
        if found is None or found.value.erased or found.value.is_expired(self.records.clock.now()):
            raise no_task(task_id)
        if deleting is not None and found.value.session_id in deleting.value.sessions:
            raise Vanishing(no_task(task_id).detail, task_id=task_id)
        check_not_emptied(found.value)
        return found

    async def request(
        self, partition: str, request_id: str, *, reading: bool = False
    ) -> Stored[RequestRecord]:
        """A request, after what was due on its task has ended (`end_due`).

        `NotFound` if it, or its task, is gone.
        """
        found = await self._read_request(partition, request_id)
        try:
            before = await self.stored_head(partition, found.value.task_id)
            if found.value.status in ENDED:
                return found
            head = await self.end_due(partition, before, reading=reading)
        except NotFound as error:
            raise error.with_ids(request_id=request_id) from None
        named = head.value.names(request_id)
        if named and head.version == before.version:
            return found
        found = await self._read_request(partition, request_id)
        if named or found.value.status in ENDED:
            return found
        raise CorruptState(
            keys.request(request_id),
            f"says {found.value.status}, of which its task knows nothing",
            task_id=head.value.task_id,
        )

    async def _read_request(self, partition: str, request_id: str) -> Stored[RequestRecord]:
        """A request as it was written. `NotFound` if it is gone."""
        found = await self.records.get(partition, keys.request(request_id), RequestRecord)
        if found is None:
            raise NotFound(f"There is no request {request_id}. Check the id.", request_id=request_id)
        return found

    async def request_of(self, partition: str, task_id: str, request_id: str | None) -> RequestRecord | None:
        """A request of a task, as it was written; None if the task has none with this id."""
        if request_id is None:
            return None
        found = await self.records.get(partition, keys.request(request_id), RequestRecord)
        return found.value if found is not None and found.value.task_id == task_id else None

    async def checkpoint(self, partition: str, task_id: str, checkpoint_id: str) -> RequestRecord:
        """The completed request that made a checkpoint of a task. `NotFound`."""
        found = await self.request_of(partition, task_id, checkpoint_id)
        if found is None or found.status != "Completed":
            raise no_checkpoint(task_id, checkpoint_id)
        return found

    # --- ending what is due ---------------------------------------------------------------------

    async def end_due(self, partition: str, found: Stored[Head], *, reading: bool = False) -> Stored[Head]:
        """Ends requests that cannot continue: their process died, or a pause or the queue took too long.

        While the store accepts no writes, callers that are only `reading` get the head as it is: an end that
        is not stored might still turn out differently.
        """
        while True:
            head = found.value
            try:
                due = await self._due(head)
                if due is None:
                    return found
                request_id, ending = due
                await self.end(partition, found, request_id, ending, SERVICE)
            except PersistenceUnavailable:
                if reading:
                    return found
                raise
            found = await self.stored_head(partition, head.task_id)

    async def _due(self, head: Head) -> tuple[str, Ending] | None:
        running = head.running
        if running is not None and await self.abandoned(running):
            return running.request_id, INTERRUPTED
        if head.pending is not None and await self._is_past(head.pending.expires_at):
            return head.pending.request_id, EXPIRED
        for waiting in head.queue:
            if await self._is_past(waiting.deadline, ours=waiting.worker_id == self.lease.worker_id):
                return waiting.request_id, WAITED_TOO_LONG
            if await self.abandoned(waiting):
                return waiting.request_id, INTERRUPTED
        return None

    async def _is_past(self, deadline: datetime, *, ours: bool = False) -> bool:
        """Whether a deadline has passed for every process, by the store's clock, like leases.

        A process whose own clock is ahead must not end what others still wait for. A deadline that this
        process has set (`ours`) goes by its own clock. The store is asked only once that clock is past it.
        """
        if deadline > self.records.clock.now():
            return False
        return ours or deadline.timestamp() <= await self.records.store.now()

    async def abandoned(self, work: Running | Queued) -> bool:
        """Whether no process works on a request any more. If so, its process cannot write for it again."""
        if work.worker_id == self.lease.worker_id:
            return work.request_id not in self.begun
        return await self.peers.dead(work.worker_id)

    # --- ending from outside ---------------------------------------------------------------------

    async def end(
        self, partition: str, found: Stored[Head], request_id: str, ending: Ending, actor: str
    ) -> bool:
        """Ends a running, paused or queued request from outside. False if the head has changed meanwhile."""
        transition = await self._transition(partition, found.value, request_id, ending, actor)
        try:
            await self.heads.commit(partition, transition, version=found.version)
        except Conflict:
            return False
        request = transition.request
        assert request is not None
        self._report(request)
        return True

    async def _transition(
        self, partition: str, head: Head, request_id: str, ending: Ending, actor: str
    ) -> Transition:
        """The transition that ends a request from outside.

        The answer so far is taken from the request's events, the outcomes of tool calls from the task's log.
        """
        stored = await self.records.request(partition, head.task_id, request_id)
        request, now = stored.value, self.records.clock.now()
        unfinished = await self.streams.unfinished(partition, request)
        last_event = unfinished.last_event + (JUMP if request.status == "Running" else 1)
        failure = Failure(ending.code, ending.detail)
        if not head.is_occupied_by(request_id):
            nothing = Outcome(unfinished.output, request.usage, request.extra_data)
            waiting = left_queue(
                head, request, ending.status, failure, nothing, actor=actor, last_event=last_event, now=now
            )
            return await self.without_reused_key(partition, waiting)
        produced = await self.history.produced(partition, head)
        transition = stopped(
            head,
            request,
            [unreturned(request_id, call, now) for call in produced.running],
            ending.status,
            failure,
            Outcome(unfinished.output, produced.usage, request.extra_data),
            tools=produced.tools,
            actor=actor,
            last_event=last_event,
            withdrawn=self.rules.concurrency == "rollback" and ending is SUPERSEDED,
            now=now,
            ended_at=head.pending.expires_at if head.pending and ending is EXPIRED else None,
        )
        if head.pending is not None:
            closed = await self._closed_approval(partition, head.pending.approval_id, ending)
            transition = replace(transition, put={**transition.put, **closed})
        return await self.without_reused_key(partition, transition)

    async def without_reused_key(self, partition: str, transition: Transition) -> Transition:
        """The transition without the request's idempotency key, if the key now stands for another request.

        That is possible once the key has expired, or if another request had it when this one was imported.
        """
        request = transition.request
        if request is None or request.idempotency is None:
            return transition
        name = keys.idempotency(request.idempotency[0])
        try:
            used = await self.records.get(partition, name, IdempotencyRecord)
        except CorruptState:
            log.error("the record %r is damaged; it is rewritten", name)
            return transition
        if used is not None and used.value.request_id != request.request_id:
            return replace(transition, request=replace(request, idempotency=None))
        return replace(transition, expect={**transition.expect, name: used.version if used else None})

    async def _closed_approval(self, partition: str, approval_id: str, ending: Ending) -> dict[str, object]:
        """The record of a pause that ends undecided, by its key; empty if there is nothing to write."""
        key = keys.approval(approval_id)
        found = await self.records.get(partition, key, Approval)
        if found is None or found.value.status != "pending":
            return {}
        status: Literal["expired", "canceled"] = "expired" if ending is EXPIRED else "canceled"
        return {key: replace(found.value, status=status)}

    # --- cancel ----------------------------------------------------------------------------------

    async def cancel(
        self,
        partition: str,
        request_id: str,
        actor: str,
        ending: Ending = CANCELED,
        *,
        leave_own: bool = False,
    ) -> bool:
        """Ends a request that runs in another process, is paused or queued. False: it had ended already.

        Also False if it should give way to a newer message, but has paused: it stays, since that message has
        to say whether it ends a pause. With `leave_own` also if it has begun to run here in the meantime, so
        that its run has to be stopped.
        """
        # the end that its process writes has all the text that followers were shown
        ask_first = ending in (CANCELED, SUPERSEDED)
        while True:
            request = (await self.request(partition, request_id)).value
            if request.status in ENDED:
                return False
            stored = await self.head(partition, request.task_id)
            head = stored.value
            if not head.names(request_id):
                continue
            here = head.is_run_by(self.lease.worker_id, request_id)
            superseded, pauses = ending is SUPERSEDED, len(request.approvals)
            if (head.pending and superseded) or (leave_own and here and self.begun.carries_on(request_id)):
                return False
            elsewhere = head.running if head.is_occupied_by(request_id) and not here else None
            signal = Signal(request_id=request_id, actor=actor, superseded=superseded, pauses=pauses)
            if elsewhere is not None and ask_first:
                ask_first = False
                await self.peers.signal(elsewhere.worker_id, signal)
                await self._wait_for_end(partition, request_id, ASKED_SECONDS)
                continue
            if await self.end(partition, stored, request_id, ending, actor):
                if elsewhere is not None:  # its process may still run it
                    await self.peers.signal(elsewhere.worker_id, signal)
                return True

    async def _wait_for_end(self, partition: str, request_id: str, seconds: float) -> None:
        """Waits until a request has ended or paused, for `seconds` at most."""
        clock, key = self.records.clock, keys.request(request_id)
        deadline = clock.monotonic() + seconds
        async with self.records.store.watch(partition, key) as watch:
            while (left := deadline - clock.monotonic()) > 0:
                found = await self.records.get(partition, key, RequestRecord)
                if found is None or found.value.status != "Running":
                    return
                await watch.wait(left)


def next_look(expires_at: datetime, now: datetime) -> float:
    """Seconds until the next look whether a pause has expired: until its `expires_at`.

    After that, the intervals grow, since the store's clock, which decides, may be behind the caller's.
    """
    return max(abs((expires_at - now).total_seconds()), SOONEST_LOOK_SECONDS)


def occupied(head: Head, by: Running | Pending) -> TealError:
    """The refusal of what a task cannot take while a request runs on it or waits for a human."""
    if isinstance(by, Running):
        return TaskBusy(request_id=by.request_id, **head.ids)
    where = {"request_id": by.request_id, "approval_id": by.approval_id}
    return ApprovalPending().with_ids(**where, **head.ids)
