"""The front that protocols call: submit, start, follow, cancel, drain."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct

from tealagents.domain.errors import (
    Interrupted,
    NotFound,
    Overloaded,
    PersistenceUnavailable,
    RequestInProgress,
    TealError,
)
from tealagents.domain.events import Recorded
from tealagents.domain.models import (
    ENDED,
    Caller,
    RequestRecord,
)
from tealagents.engine.admission import Admission, counted
from tealagents.engine.agent import AgentSpec
from tealagents.engine.conversations import TaskConversations
from tealagents.engine.following import Followers
from tealagents.engine.loop import Resumption
from tealagents.engine.observer import Load
from tealagents.engine.run import SET_BACK, Run
from tealagents.engine.toolbox import CallContext
from tealagents.engine.wait_queue import WaitQueues
from tealagents.state import keys
from tealagents.state.endings import CANCELED, INTERRUPTED, SUPERSEDED, Stop
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.queue import QueuedRequest
from tealagents.state.records import RecordStore
from tealagents.state.submission import GivesWay, Replayed, Submission
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import ASKED_SECONDS, Tasks
from tealagents.state.transitions import SERVICE
from tealagents.state.workers import Mailbox, Signal

log = logging.getLogger(__name__)

#: seconds, in total, for storing the ends of requests that are interrupted at the end of a drain
LAST_WRITES_SECONDS = 5.0


class Submitted(Struct, frozen=True):
    """A request that was accepted, or that an earlier use of the same key or decision has started."""

    request: RequestRecord
    partition: str
    #: the key or the decision was used before: `request` is the outcome of its first use
    replayed: bool = False
    #: the id of the event after which the stream of this call begins
    after: int = 0


class Service:
    """One agent's requests in this process."""

    def __init__(self, agent: AgentSpec, tasks: Tasks) -> None:
        self.agent = agent
        self.tasks = tasks
        self.conversations = TaskConversations(agent, tasks)
        self.admission = Admission(
            per_process=agent.limits.max_concurrent_requests,
            per_user=agent.limits.max_requests_per_user,
            largest=agent.limits.max_body_bytes,
        )
        self.submission = Submission(tasks, self.conversations.windows.recheck_keys)
        self._runs: dict[str, Run] = {}
        #: the asyncio tasks in which the runs run
        self._carrying: set[asyncio.Task[None]] = set()
        self._wait_queues = WaitQueues(tasks)
        self.followers = Followers(tasks, self.run_of)
        #: by request id, the requests that wait here for their turn, and the asyncio tasks in which they do
        self._waiting: dict[str, tuple[asyncio.Task[None], QueuedRequest]] = {}

    @property
    def records(self) -> RecordStore:
        return self.tasks.records

    def run_of(self, request_id: str) -> Run | None:
        """The run of a request, if it runs in this process."""
        return self._runs.get(request_id)

    # --- submitting ------------------------------------------------------------------------------

    async def submit(
        self, caller: Caller, message: NewMessage, key: Key | None, *, streamed: bool
    ) -> Submitted:
        """Stores a message and starts its request; follow the answer by the request's id.

        Raises `Overloaded`, `Draining`, `RequestInProgress`, and what `Submission.begin` raises.
        """
        user, share = caller.user.key, counted(message.size)
        try:
            self.admission.enter(user, share)
        except Overloaded:  # a repeated message takes no place
            if key is None or (first := await self.submission.first_use(caller, key)) is None:
                raise
            return _replayed(first)
        try:
            submitted = await self._submit(caller, message, key, share, streamed=streamed)
        except BaseException:
            self.admission.leave(user, share)
            raise
        if submitted.replayed:
            self.admission.leave(user, share)
        return submitted

    async def _submit(
        self, caller: Caller, message: NewMessage, key: Key | None, share: int, *, streamed: bool
    ) -> Submitted:
        while True:
            begun = await self.submission.begin(caller, message, key, streamed=streamed)
            if isinstance(begun, Replayed):
                return _replayed(begun)
            if isinstance(begun, GivesWay):
                await self._give_way(begun, caller.user.key)
                continue
            if isinstance(begun, QueuedRequest):
                self._wait_in_queue(caller, begun, share, streamed=streamed)
                return Submitted(begun.request, begun.partition)
            self.start(caller, begun, share=share, streamed=streamed)
            return Submitted(begun.request, begun.partition)

    async def _give_way(self, running: GivesWay, actor: str) -> None:
        """Ends the running request, here or in another process, in favor of a newer message."""
        run = await self._stopped(running.request_id, Stop(SUPERSEDED, actor))
        if run is None:
            partition, request_id = running.partition, running.request_id
            await self.tasks.cancel(partition, request_id, actor, SUPERSEDED, leave_own=True)
        elif isinstance(run.outcome.exception(), PersistenceUnavailable):
            raise PersistenceUnavailable(
                "The running request could not be ended, because the store is unavailable. Send the message "
                "again.",
                task_id=run.request.task_id,
                session_id=run.request.session_id,
            )

    def start(
        self,
        caller: Caller,
        writer: TaskWriter,
        resumption: Resumption | None = None,
        *,
        share: int = 0,
        streamed: bool,
    ) -> None:
        """Runs a request that has taken its task, or continues a decided one.

        The caller has entered `admission` with `share`; both are given back when the run is over.
        """
        request = writer.request
        context = CallContext(
            **request.ids,
            owner=writer.head.owner,
            actor=caller.user,
            token=caller.token,
            headers=caller.headers if self.agent.forward_headers else None,
            delegation=self.agent.delegation,
            extra_data=dict(request.extra_data or {}),
        )
        run = self._runs[request.request_id] = Run(self.conversations, writer, context, streamed=streamed)
        self.followers.runs_here(request.request_id)
        if (stop := self.tasks.begun.starts(request)) is not None:
            run.stop(stop)
        if run.worker_id != self.tasks.lease.worker_id:  # it was lost while the request began
            run.stop(Stop(None))
        task = asyncio.create_task(
            self._carry(run, caller.user.key, share, resumption), name=f"request {request.request_id}"
        )
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, run: Run, user: str, share: int, resumption: Resumption | None) -> None:
        """Runs a request to its end and cleans up after it."""
        request_id = run.request.request_id
        try:
            await run.run(resumption)
        finally:
            if self._runs.get(request_id) is run:  # otherwise a decision has already started the next run
                del self._runs[request_id]
            if run.outcome.exception() is None:
                self.tasks.begun.over(request_id)
            else:
                self.tasks.begun.abandon(run.partition, request_id)
            self.admission.leave(user, share)

    # --- waiting for a turn ----------------------------------------------------------------------

    def _wait_in_queue(self, caller: Caller, waiting: QueuedRequest, share: int, *, streamed: bool) -> None:
        request_id = waiting.request.request_id
        task = asyncio.create_task(
            self._start_from_queue(caller, waiting, share, streamed=streamed), name=f"queued {request_id}"
        )
        self._waiting[request_id] = (task, waiting)
        task.add_done_callback(lambda _: self._waiting.pop(request_id, None))

    async def _start_from_queue(
        self, caller: Caller, waiting: QueuedRequest, share: int, *, streamed: bool
    ) -> None:
        """Starts a request when its turn comes; gives its place back if it never does."""
        request = waiting.request
        started = False
        try:
            begun = await self._wait_queues.wait(waiting, caller.user.key)
            if isinstance(begun, TaskWriter):
                self.start(caller, begun, share=share, streamed=streamed)
                started = True
        finally:
            if not started:
                self.tasks.begun.abandon(waiting.partition, request.request_id)
                self.admission.leave(caller.user.key, share)

    # --- outcomes --------------------------------------------------------------------------------

    async def outcome(self, sent: Submitted) -> RequestRecord:
        """The request once it has ended or paused. Raises the error if its end could not be stored."""
        if sent.replayed:
            return sent.request
        request_id = sent.request.request_id
        while True:
            run = self._runs.get(request_id)
            if run is not None:
                return await asyncio.shield(run.outcome)
            place = self._waiting.get(request_id)
            if place is not None:
                await asyncio.wait([place[0]])
                continue
            try:
                return (await self.tasks.request(sent.partition, request_id)).value
            except NotFound:
                # `NotFound` if the task was deleted
                await self.tasks.stored_head(sent.partition, sent.request.task_id)
                raise Interrupted(SET_BACK).with_ids(**sent.request.ids) from None

    async def when_begun(self, partition: str, request_id: str) -> RequestRecord | None:
        """A queued request, once it starts or never will; None if it waits in another process."""
        if (place := self._waiting.get(request_id)) is not None:
            await asyncio.wait([place[0]])
        if (run := self._runs.get(request_id)) is not None:
            return run.request
        return (await self.tasks.request(partition, request_id)).value if place is not None else None

    def follow(self, partition: str, request_id: str, after: int) -> AsyncGenerator[Sequence[Recorded]]:
        """The events of a request after `after`, in batches (`Followers.follow`)."""
        return self.followers.follow(partition, request_id, after)

    # --- cancel ----------------------------------------------------------------------------------

    async def cancel(self, partition: str, request_id: str, actor: str) -> RequestRecord:
        """Cancels a running, paused or queued request; returns it once it has ended, however it did.

        Also if its task is deleted as soon as it has ended.
        """
        found: RequestRecord | None = None
        try:
            while True:
                try:
                    found = (await self.tasks.request(partition, request_id)).value
                except PersistenceUnavailable:
                    run = self._runs.get(request_id)
                    if run is not None and run.partition == partition:  # stopping a run needs no store
                        run.stop(Stop(CANCELED, actor))
                    raise
                if found.status in ENDED:
                    return found
                run = None
                if found.status != "Queued":  # its turn may be far off
                    run = await self._stopped(request_id, Stop(CANCELED, actor))
                if run is not None:
                    found = (await self.tasks.request(partition, request_id)).value
                    if found.status in ENDED:
                        return found
                    run.outcome.result()
                await self.tasks.cancel(partition, request_id, actor, leave_own=True)
        except NotFound:
            if found is None:
                raise
            last = await self.records.get(partition, keys.request(request_id), RequestRecord)
            if last is None or last.value.status not in ENDED:
                raise
            return last.value

    async def _stopped(self, request_id: str, stop: Stop) -> Run | None:
        """Stops a request that runs here, or is about to; returns its run, which is over then.

        None if no run is here: the request has to be ended from outside.
        """
        run = self._runs.get(request_id)
        if run is None and (settled := self.tasks.begun.stop_early(request_id, stop)) is not None:
            await asyncio.wait([settled], timeout=ASKED_SECONDS)
            run = self._runs.get(request_id)
        if run is not None:
            run.stop(stop)
            await asyncio.wait([run.outcome])
        return run

    def load(self) -> Load:
        """How busy this process is."""
        return Load(
            in_flight=self.admission.in_flight,
            queued=len(self._waiting),
            followers=self.followers.count,
            lease_used=self.tasks.lease.used,
            leases_lost=self.tasks.lease.losses,
        )

    # --- the process -----------------------------------------------------------------------------

    async def attend(self) -> None:
        """Handles signals from other processes, a lost lease, followed requests and unused histories, as long
        as the service runs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take_signals())
            group.create_task(self._drop_lost())
            group.create_task(self.followers.attend())
            group.create_task(self.conversations.attend())

    async def _take_signals(self) -> None:
        """Reads the signals of other processes as they arrive, unless no request is here to be signaled.

        Only the first of several failures in a row is logged: a store that is away wakes this all the time.
        """
        mailbox, failed = Mailbox(self.records, self.tasks.lease), False
        async for _ in mailbox.wakeups():
            if not self.tasks.begun:
                continue
            try:
                async for signal in mailbox.signals():
                    self._end_as_asked(signal)
                failed = False
            except TealError as error:
                if not failed:
                    log.warning("signals could not be read: %s", error)
                failed = True

    def _end_as_asked(self, signal: Signal) -> None:
        """Stops a request that another process has ended, or asks this one to end."""
        run = self._runs.get(signal.request_id)
        stop = Stop(SUPERSEDED if signal.superseded else CANCELED, signal.actor)
        if run is None:
            self.tasks.begun.stop_early(signal.request_id, stop, signal.pauses)
        elif signal.pauses in (None, len(run.request.approvals)):
            run.stop(stop)

    async def _drop_lost(self) -> None:
        """Stops runs under a lost lease without storing an end: other processes end them."""
        while True:
            worker_id = await self.tasks.lease.lost()
            for run in list(self._runs.values()):
                if run.worker_id == worker_id:
                    run.stop(Stop(None))

    async def drain(self, seconds: float) -> None:
        """Admits nothing new, lets requests end, and after `seconds` interrupts the rest."""
        if self.followers.closed:
            return
        self.admission.draining = True
        log.info("draining: %d requests in flight", len(self._runs))
        clock = self.records.clock
        deadline = clock.monotonic() + seconds
        while self.admission.in_flight and clock.monotonic() < deadline:
            ends = [*self._carrying, *(task for task, _ in self._waiting.values())]
            ends.append(asyncio.create_task(clock.sleep(0.1)))  # requests just admitted are not in `ends` yet
            await asyncio.wait(
                ends, timeout=max(0.0, deadline - clock.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            ends[-1].cancel()
            await asyncio.sleep(0)
        await self._interrupt_rest()
        self.tasks.begun.close()
        self.followers.close()
        for run in list(self._runs.values()):
            run.leave()

    async def _interrupt_rest(self) -> None:
        for run in list(self._runs.values()):
            run.stop(Stop(INTERRUPTED))
        queues: dict[str, list[QueuedRequest]] = {}
        for task, waiting in list(self._waiting.values()):
            task.cancel()
            queues.setdefault(waiting.request.task_id, []).append(waiting)
        ends = [asyncio.create_task(self._interrupt_queue(queue)) for queue in queues.values()]
        if self._carrying or ends:
            await asyncio.wait({*self._carrying, *ends}, timeout=LAST_WRITES_SECONDS)
        for end in ends:  # other processes end the rest once this one is gone
            end.cancel()

    async def _interrupt_queue(self, queue: Sequence[QueuedRequest]) -> None:
        """Ends the requests that wait for one task, one after the other, since each end changes the head."""
        for waiting in queue:
            with contextlib.suppress(TealError):
                await self.tasks.cancel(waiting.partition, waiting.request.request_id, SERVICE, INTERRUPTED)


def _replayed(begun: Replayed) -> Submitted:
    request = begun.request.value
    if request.status in ("Running", "Queued"):
        raise RequestInProgress(
            request_id=request.request_id,
            task_id=request.task_id,
            session_id=request.session_id,
        )
    return Submitted(request, begun.partition, replayed=True)
