"""A task's life: begin, write, pause, resume, end; cancel, queue and takeover.

Whoever is named in the head's `running` may write the task, nobody else: that is a `TaskWriter`. Every
write is a compare-and-set on the head. When it fails the head is read again; if the writer still
stands the write is made anew on top of what was read, else it is over (`Fenced`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, lifecycle
from tealagents.domain.errors import (
    Conflict,
    CorruptState,
    NotFound,
    TealError,
)
from tealagents.domain.models import (
    ENDED,
    Approval,
    Failure,
    Head,
    IdempotencyRecord,
    Note,
    Outcome,
    RequestEnd,
    RequestRecord,
    Status,
    Step,
    StepBody,
    ToolOutcome,
)
from tealagents.state import keys
from tealagents.state.audit_chain import Draft, draft
from tealagents.state.history import History
from tealagents.state.owner_directory import Directory
from tealagents.state.records import RecordStore, Stored
from tealagents.state.streams import JUMP, KEPT_SECONDS, StreamLog
from tealagents.state.workers import Lease, Word

log = logging.getLogger(__name__)

T = TypeVar("T")

Concurrency = Literal["reject", "enqueue", "interrupt", "rollback"]

#: how often a request is looked for whose begin was not acknowledged, and how far apart
LOOKS = 20
LOOK_SECONDS = 0.5

#: the actor of what the service does by itself
SERVICE = "service"


class Rules(Struct, frozen=True, kw_only=True):
    """What the config says of the life of tasks."""

    concurrency: Concurrency = "reject"
    max_queued: int = 1000
    request_timeout_seconds: float = 600
    approval_expiry_seconds: float = 86400


#: what a request ends with: its status, code and text for the one who asks
Ending = tuple[Status, str, str]

INTERRUPTED: Ending = (
    "Failed",
    "interrupted",
    "The process that ran this request stopped before it had an answer. Send the message again; tools "
    "that ran are named to the model, so that they are not repeated.",
)
CANCELED: Ending = ("Canceled", "request_canceled", "The request was canceled.")
SUPERSEDED: Ending = ("Canceled", "request_canceled", "The request was canceled by a newer message.")
EXPIRED: Ending = (
    "Canceled",
    "approval_expired",
    "Nobody decided in time, so the request was canceled. Send the message again to ask anew.",
)
WAITED_TOO_LONG: Ending = (
    "Failed",
    "request_timeout",
    "The request waited its turn past the request timeout. Send it again when the task is idle.",
)


#: seconds that the process which runs a request gets to end it, before it is ended from outside; and between
#: two looks whether it has
ASKED_SECONDS, ASKED_LOOK_SECONDS = 1.5, 0.05


class Tasks:
    """Begins, finds and ends the requests of one agent."""

    def __init__(
        self, records: RecordStore, lease: Lease, directory: Directory, rules: Rules, source: str
    ) -> None:
        self.records = records
        self.lease = lease
        self.directory = directory
        self.rules = rules
        #: `name:version`, the `source` of every answer
        self.source = source
        self.history = History(records)
        #: requests begun in this process and not yet over; one that the store says runs here and that is
        #: not among them was begun by a commit whose reply never came
        self.begun_here: Counter[str] = Counter()
        #: of these, what was ended before its run could be told
        self.ended_early: set[str] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        lifetime = KEPT_SECONDS + rules.approval_expiry_seconds + rules.request_timeout_seconds
        #: how long the key of a request is kept that has not ended
        self.key_seconds = lifetime
        self.streams = StreamLog(records, lifetime)

    # --- finding ---------------------------------------------------------------------------------

    async def head(self, partition: str, task_id: str) -> Stored[Head]:
        """A task's head as it stands, after what is due of it was done (`settle`). `NotFound` if erased."""
        found = await self.records.get(partition, keys.task(task_id), Head)
        return await self.settle(partition, self.present(found, task_id))

    def present(self, found: Stored[Head] | None, task_id: str) -> Stored[Head]:
        """The head, unless it is erased or past its `expires_at`."""
        if found is None or found.value.erased or self.expired(found.value):
            raise NotFound(
                f"There is no task {task_id}. Check the id; it may have been deleted or expired.",
                task_id=task_id,
            )
        return found

    def expired(self, head: Head) -> bool:
        return head.expires_at is not None and head.expires_at <= self.records.clock.now()

    async def request(self, partition: str, request_id: str) -> Stored[RequestRecord]:
        """A request as it stands; one whose process died is ended first. `NotFound` with its task."""
        key = keys.request(request_id)
        found = await self.records.get(partition, key, RequestRecord)
        if found is None:
            raise NotFound(f"There is no request {request_id}. Check the id.", request_id=request_id)
        before = await self.records.get(partition, keys.task(found.value.task_id), Head)
        try:
            head = await self.settle(partition, self.present(before, found.value.task_id))
        except NotFound as error:
            raise error.with_ids(request_id=request_id) from None
        ended = found.value.status in ENDED
        if before is None or head.version != before.version or not (ended or _knows(head.value, request_id)):
            found = await self.records.get(partition, key, RequestRecord)
            if found is None:
                raise NotFound(f"There is no request {request_id}. Check the id.", request_id=request_id)
            if found.value.status not in ENDED and not _knows(head.value, request_id):
                raise CorruptState(
                    key,
                    f"says {found.value.status}, of which its task knows nothing",
                    task_id=head.value.task_id,
                )
        return found

    # --- what is due -----------------------------------------------------------------------------

    async def settle(self, partition: str, found: Stored[Head]) -> Stored[Head]:
        """Ends what nobody can carry on: a request whose process died, a pause nobody decided in time."""
        while True:
            head = found.value
            due = await self._due(head)
            if due is None:
                return found
            request_id, ending = due
            await self.end(partition, found, request_id, ending, SERVICE)
            again = await self.records.get(partition, keys.task(head.task_id), Head)
            found = self.present(again, head.task_id)

    async def _due(self, head: Head) -> tuple[str, Ending] | None:
        running = head.running
        if running is not None and await self._abandoned(running.worker_id, running.request_id):
            return running.request_id, INTERRUPTED
        now = self.records.clock.now()
        if head.pending is not None and head.pending.expires_at <= now:
            return head.pending.request_id, EXPIRED
        for waiting in head.queue:
            if waiting.deadline <= now:
                return waiting.request_id, WAITED_TOO_LONG
            if await self._abandoned(waiting.worker_id, waiting.request_id):
                return waiting.request_id, INTERRUPTED
        return None

    async def _abandoned(self, worker_id: str, request_id: str) -> bool:
        """Whether nobody works on a request any more."""
        if worker_id == self.lease.worker_id:
            return not self.begun_here[request_id]
        return await self.lease.dead(worker_id)

    @contextmanager
    def beginning(self, partition: str, request_id: str) -> Iterator[None]:
        """Around the commit that gives this process a request; what raises has not got it."""
        self.begun_here[request_id] += 1
        try:
            yield
        except Conflict:
            self.over(request_id)
            raise
        except BaseException:  # the commit may have been applied, or still be
            self.over(request_id)
            self.leave(partition, request_id)
            raise

    def over(self, request_id: str) -> None:
        """This process has done with a request, or with one attempt to get it."""
        self.begun_here[request_id] -= 1
        if self.begun_here[request_id] <= 0:
            del self.begun_here[request_id]
            self.ended_early.discard(request_id)

    def stop(self) -> None:
        """The process ends: what it has left behind is for others, once its lease has lapsed."""
        for task in self._leaving:
            task.cancel()

    def leave(self, partition: str, request_id: str) -> None:
        """Nobody here carries the request on: ends it, if it is there, as other processes cannot tell."""
        task = asyncio.create_task(self._see_ended(partition, request_id, self.lease.worker_id))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _see_ended(self, partition: str, request_id: str, worker_id: str) -> None:
        looks = 0
        while looks < LOOKS and worker_id == self.lease.worker_id:
            try:
                looks += 1
                if (await self.request(partition, request_id)).value.status in ENDED:
                    return
            except NotFound:
                pass  # not there, or not yet
            except TealError:
                looks -= 1  # the store is away
            except Exception:
                log.exception("request %s cannot be ended yet", request_id)
            await self.records.clock.sleep(LOOK_SECONDS)

    async def end(
        self, partition: str, found: Stored[Head], request_id: str, ending: Ending, actor: str
    ) -> bool:
        """Ends a request from outside: running elsewhere, paused or queued. False if the head has moved on.

        What it had produced is taken from its stream's log, what its tools did from the task's.
        """
        head = found.value
        stored = await self.records.get(partition, keys.request(request_id), RequestRecord)
        if stored is None:
            raise CorruptState(keys.request(request_id), "is missing", task_id=head.task_id)
        request = stored.value
        status, code, detail = ending
        occupies = _occupies(head, request_id)
        unfinished = await self.streams.unfinished(partition, request)
        tools: tuple[ToolOutcome, ...] = ()
        usage = request.usage
        now = self.records.clock.now()
        drafts: list[Draft] = []
        if occupies:
            first = (head.running or head.pending).first_seq  # type: ignore[union-attr]
            tools, usage = await self.history.produced(partition, head.task_id, first, head.tail_seq)
            drafts.append(error_draft(request_id, code, detail, now))
        drafts.append(
            self.ending_draft(request_id, status, code, head, tools, actor, queued=not occupies, now=now)
        )
        grown, log_key, batch = await self.records.append(partition, head, drafts)
        if occupies:
            withdrawn = self.rules.concurrency == "rollback" and ending is SUPERSEDED
            grown = lifecycle.stop(grown, status, now, tools=tools, withdrawn=withdrawn)
        else:
            grown = lifecycle.leave_queue(lifecycle.noted(head, grown), request_id, now)
        last = unfinished.last_event + (JUMP if request.status == "Running" else 1)
        outcome = Outcome(unfinished.output, usage, request.extra_data, source=self.source)
        record = lifecycle.ended(
            request, status, now, last_event=last, outcome=outcome, error=Failure(code, detail)
        )
        record = replace(record, last_seq=grown.tail_seq)
        put: dict[str, object] = {
            keys.task(head.task_id): grown,
            keys.request(request_id): record,
            log_key: batch,
        }
        expect: dict[str, str | None] = {keys.task(head.task_id): found.version, log_key: None}
        ttl: dict[str, float] = {}
        if record.idempotency is not None:
            name = keys.idempotency(record.idempotency[0])
            used = await self.records.get(partition, name, IdempotencyRecord)
            if used is None or used.value.request_id == request_id:
                put, ttl = put | self.key_put(record), self.key_ttl(record, KEPT_SECONDS)
                expect[name] = used.version if used else None
        if head.pending is not None and head.pending.request_id == request_id:
            put.update(await self._close_approval(partition, head.pending.approval_id, code))
        try:
            await self.records.commit(
                partition,
                marker=log_key,
                expect=expect,
                put=put,
                ttl=ttl,
            )
        except Conflict:
            return False
        if self.begun_here[request_id]:
            self.ended_early.add(request_id)
        log.info("request %s ended %s (%s) from outside", request_id, status, code)
        return True

    async def _close_approval(self, partition: str, approval_id: str, code: str) -> dict[str, object]:
        key = keys.approval(approval_id)
        found = await self.records.get(partition, key, Approval)
        if found is None or found.value.status != "pending":
            return {}
        status: Literal["expired", "canceled"] = "expired" if code == "approval_expired" else "canceled"
        return {key: replace(found.value, status=status)}

    def ending_draft(
        self,
        request_id: str,
        status: Status,
        code: str | None,
        head: Head,
        tools: Iterable[ToolOutcome],
        actor: str,
        *,
        now: datetime,
        queued: bool = False,
        remote_id: str | None = None,
    ) -> Draft:
        """The entry with which a request ends."""
        if queued:
            note = Note("ended while it waited its turn", {"request_id": request_id, "status": status})
            return draft(f"request.{status.lower()}", actor, request_id, note, code=code)
        occupant = head.running or head.pending
        if occupant is None:
            raise ValueError("only a request that holds its task ends with an entry of its own")
        end = RequestEnd(
            request_id=request_id,
            status=status,
            first_seq=occupant.first_seq,
            ended_at=now,
            code=code,
            tools=tuple(tools) if status != "Completed" else (),
            remote_id=remote_id,
        )
        details = {"code": code} if code else {}
        return draft(f"request.{status.lower()}", actor, request_id, end, **details)

    # --- idempotency keys ------------------------------------------------------------------------

    def key_put(self, request: RequestRecord) -> dict[str, object]:
        """The key's record, written again with the request's end so that its day counts from there."""
        if request.idempotency is None:
            return {}
        name, digest = request.idempotency
        record = IdempotencyRecord(request.request_id, request.task_id, request.session_id, digest)
        return {keys.idempotency(name): record}

    def key_ttl(self, request: RequestRecord, seconds: float | None = None) -> dict[str, float]:
        if request.idempotency is None:
            return {}
        return {keys.idempotency(request.idempotency[0]): seconds or self.key_seconds}

    # --- cancel ----------------------------------------------------------------------------------

    async def cancel(self, partition: str, request_id: str, actor: str, ending: Ending = CANCELED) -> bool:
        """Ends a request that runs on another replica, is paused or waits. False: it had ended already.

        Whoever runs it is asked first: the end that it writes holds all that was shown so far.
        """
        word = Word(request_id=request_id, actor=actor, superseded=ending is SUPERSEDED)
        asked = ending not in (CANCELED, SUPERSEDED)
        while True:
            request = (await self.request(partition, request_id)).value
            if request.status in ENDED:
                return False
            stored = await self.head(partition, request.task_id)
            head = stored.value
            if not _knows(head, request_id):
                continue
            worker = head.running.worker_id if _occupies(head, request_id) and head.running else None
            elsewhere = worker if worker != self.lease.worker_id else None
            if elsewhere is not None and not asked:
                asked = True
                await self.lease.signal(elsewhere, word)
                await self._ends(partition, request_id, ASKED_SECONDS)
                continue
            if await self.end(partition, stored, request_id, ending, actor):
                if elsewhere is not None:
                    await self.lease.signal(elsewhere, word)
                return True

    async def _ends(self, partition: str, request_id: str, seconds: float) -> None:
        """Waits until a request has ended, and no longer than that."""
        clock = self.records.clock
        deadline = clock.monotonic() + seconds
        while clock.monotonic() < deadline:
            await clock.sleep(ASKED_LOOK_SECONDS)
            found = await self.records.get(partition, keys.request(request_id), RequestRecord)
            if found is None or found.value.status in ENDED:
                return


def error_draft(request_id: str, code: str, detail: str, now: datetime) -> Draft:
    """The step that a request without an answer ends with."""
    step = Step(
        step_id=ids.random_id(),
        request_id=request_id,
        kind="error",
        name=code,
        started_at=now,
        output={"detail": detail},
        is_error=True,
    )
    return draft("error", SERVICE, request_id, StepBody(step))


def _occupies(head: Head, request_id: str) -> bool:
    occupant = head.running or head.pending
    return occupant is not None and occupant.request_id == request_id


def _knows(head: Head, request_id: str) -> bool:
    """Whether a request runs, waits for a human or waits its turn."""
    return _occupies(head, request_id) or any(waiting.request_id == request_id for waiting in head.queue)
