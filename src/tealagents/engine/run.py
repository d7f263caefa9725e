"""One request in flight. It belongs to the app, not to the connection that sent it.

`Run.run` takes the request's turn to its end or its pause. Each step is recorded before the next one begins,
and published to followers. The end is one commit; `outcome` is set once that is stored. A run is stopped by
one signal, a `Stop`, which carries the reason.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial

from tealagents.domain import ids
from tealagents.domain.errors import (
    LEARN_THE_OUTCOME,
    CorruptState,
    InternalError,
    Interrupted,
    ModelFailed,
    NotFound,
    PersistenceUnavailable,
    RemoteThreadLost,
    RequestCanceled,
    RequestTimeout,
    TealError,
    ToolRoundsExceeded,
    ends_task,
)
from tealagents.domain.events import Event, Started, TextDelta, ToolCalled, beginning
from tealagents.domain.models import Approval, Failure, Message, Outcome, RequestRecord, Status, ToolOutcome
from tealagents.engine.agent import AgentSpec
from tealagents.engine.conversations import TaskConversation, TaskConversations
from tealagents.engine.loop import HumanNeeded, Resumption
from tealagents.engine.publishing import Publisher
from tealagents.engine.recorder import TaskRecorder
from tealagents.engine.resuming import retried
from tealagents.engine.toolbox import CallContext
from tealagents.engine.turn import Turn, TurnDone, TurnPaused, open_turn
from tealagents.state import keys
from tealagents.state.audit_chain import Draft
from tealagents.state.decisions import digest_of
from tealagents.state.endings import SUPERSEDED, Stop
from tealagents.state.history import in_call_order
from tealagents.state.task_writer import Erased, Fenced, SetBack, TaskWriter
from tealagents.state.tasks import Tasks
from tealagents.state.transitions import SERVICE, completed, paused, stopped, unreturned

log = logging.getLogger(__name__)

#: seconds for which storing the end is tried before callers get `PersistenceUnavailable`
STORE_DEADLINE_SECONDS = 2.0

#: failures that are the operator's to look into, and that nothing else logs; their texts quote no message
_UNLOGGED = (CorruptState, PersistenceUnavailable, RemoteThreadLost, RequestTimeout, ToolRoundsExceeded)

#: the error message for a request whose task is gone
TASK_GONE = "The task was deleted, or has expired, before the request had ended."
#: the error message for a request that the store has lost, but not its task
SET_BACK = (
    "The store has lost the request: a crash or a failover set it back to an earlier state of the task. "
    "Tools may have run. Read the task, then send the message again if it is still needed."
)


class Run:
    """Runs one request from its message, or from a decision, to its end or its next pause."""

    def __init__(
        self, conversations: TaskConversations, writer: TaskWriter, context: CallContext, *, streamed: bool
    ) -> None:
        self._conversations = conversations
        self._writer = writer
        self._context = context
        self._streamed = streamed
        self._recorder = TaskRecorder(writer, conversations.tasks.records.clock)
        self._turn: Turn | None = None
        self._stop: Stop | None = None
        #: the time limit of the turn; `stop` lets it expire at once
        self._scope: asyncio.Timeout | None = None
        #: the turn is over and its end is known, so a stop comes too late
        self._over = False
        #: the record of the end or pause once it is stored, perhaps too late for `outcome`, and whether this
        #: run wrote it, rather than another process or `Tasks.end`
        self._ended: tuple[RequestRecord, bool] | None = None
        #: the events for followers
        self.stream = Publisher(conversations.tasks, writer)
        #: the request's record once it has ended or paused; or the error that kept its end from being stored
        self.outcome: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()

    # --- what others see -------------------------------------------------------------------------

    @property
    def request(self) -> RequestRecord:
        return self._writer.request

    @property
    def message(self) -> Message | None:
        """The user's message that is answered; None if the run continues after a pause."""
        return self._writer.message

    @property
    def partition(self) -> str:
        return self._writer.partition

    @property
    def worker_id(self) -> str | None:
        """The worker under whose lease the request runs; None once its end is stored."""
        running = self._writer.head.running
        return running.worker_id if running else None

    def stop(self, stop: Stop) -> None:
        """Asks the run to end for this reason; `outcome` is set when it has. Has no effect on a run that is
        already ending."""
        if self._stop is None and not self._over and not (self._scope and self._scope.expired()):
            self._stop = stop
            if self._scope is not None:
                self._scope.reschedule(0)

    def leave(self) -> None:
        """Reports that the process ends before the run does, because the store does not answer, for example:
        a stream must not break off without a last event."""
        self._report_error(shutting_down())

    # --- running ---------------------------------------------------------------------------------

    async def run(self, resumption: Resumption | None = None) -> None:
        """Runs to the end, whatever it is; `outcome` is set when this returns."""
        self.stream.publish(beginning(self.request) if resumption is None else Started())
        if resumption is not None:
            self._recorder.intended(resumption.approved)
        try:
            with self._agent.observer.request(self.request) as watch:
                await self._to_the_end(resumption)
                if self._ended is not None:
                    request, here = self._ended
                    watch.ended(request, here=here)
                elif isinstance(fault := self.outcome.exception(), TealError):
                    watch.failed(fault)
        finally:  # an observer may raise: it calls exporters that the host application has set up
            self.stream.stop()
            if not self.outcome.done():
                self._give_up(InternalError(f"Internal error. {LEARN_THE_OUTCOME}"))

    async def _to_the_end(self, resumption: Resumption | None) -> None:
        try:
            await self._take_turn(resumption)
        except Fenced as fenced:
            self._ended_elsewhere(fenced)
        except TealError as error:
            self._give_up(error)
        # model clients and context providers are third-party code, which may raise anything
        except BaseException as error:
            if ends_task(error):
                raise
            log.exception("request %s failed with an internal error", self.request.request_id)
            await self._fail_last(error)

    async def _take_turn(self, resumption: Resumption | None) -> None:
        """Takes the turn and stores its end."""
        try:
            last = await self._turn_in_time(resumption)
        except TimeoutError:
            if self._scope is None or not self._scope.expired():
                raise
            await self._stopped()
        except TealError as failure:
            await self._fail(failure)
        else:
            match last:
                case TurnDone():
                    await self._complete(last)
                case TurnPaused():
                    await self._pause(last)
                case None:
                    await self._stopped()

    async def _turn_in_time(self, resumption: Resumption | None) -> TurnDone | TurnPaused | None:
        """Takes the turn under its time limit; None if the run was stopped before the turn began.

        `TimeoutError` if the limit expires, or the run is stopped later.
        """
        try:
            async with asyncio.timeout(self._time_left() if self._stop is None else 0) as self._scope:
                if resumption is not None:
                    await self.stream.take([*map(ToolCalled, resumption.approved)])
                return await self._converse(resumption) if self._stop is None else None
        finally:
            self._over = True

    def _time_left(self) -> float:
        """Seconds left for this run: all of them after a pause; before, time in the queue counts as well."""
        limit = self._agent.limits.request_timeout_seconds
        if self._writer.message is None:
            return limit
        waited = (self._now() - self.request.created_at).total_seconds()
        return max(0.0, limit - max(0.0, waited))

    async def _converse(self, resumption: Resumption | None) -> TurnDone | TurnPaused:
        """Takes the turn up to its end, which the caller stores, outside the time limit."""
        conversations, writer, recorder = self._conversations, self._writer, self._recorder
        conversation = TaskConversation(conversations, writer)
        if resumption is not None:
            await conversation.recall(recorder)
        elif writer.request.retries is not None:
            resumption = await retried(self._tasks, writer.partition, writer.request.retries, recorder)
        given = conversation.turn_input(recorder, self._context)
        turn = await open_turn(self._agent, conversation, given, recorder, streamed=self._streamed)
        self._turn = turn
        async with aclosing(turn.events(resumption)) as events:
            return await self._shown(events)

    async def _shown(
        self, events: AsyncIterator[tuple[Event, ...] | TurnDone | TurnPaused]
    ) -> TurnDone | TurnPaused:
        """Publishes the turn's events; returns its end.

        If the answer is not streamed, it is only in the end: text is held back, and published only if another
        event follows it, such as a tool call, or the turn fails.
        """
        held: list[str] = []
        try:
            async for happened in events:
                if isinstance(happened, TurnDone):
                    held.clear()
                if not isinstance(happened, tuple):
                    return happened
                if not self._streamed and isinstance(happened[0], TextDelta):
                    held += [each.text for each in happened if isinstance(each, TextDelta)]
                    continue
                self._publish_held(held)
                await self.stream.take(happened)
        finally:
            self._publish_held(held)
        raise RuntimeError("a turn ends with an answer or a pause")

    def _publish_held(self, texts: list[str]) -> None:
        """Publishes text that was held back, if any, and empties the list."""
        if texts:
            self.stream.publish(TextDelta("".join(texts)))
            texts.clear()

    # --- ends ------------------------------------------------------------------------------------

    async def _complete(self, last: TurnDone) -> None:
        rest = await self.stream.flush(self._persist)
        drafts = self._recorder.take()
        done = partial(
            completed,
            outcome=self._produced(),
            last_event=self.stream.last_id + 1,
            remote_id=last.remote_id,
            context=last.context,
            now=self._now(),
        )
        await self._persist(lambda: self._writer.conclude(drafts, done, rest))
        messages, first_seq = in_call_order(self._recorder.messages), self.request.first_seq
        self._conversations.extend(self._writer.head, first_seq, messages, last.context)
        self._report_end(self.request)

    async def _pause(self, last: TurnPaused) -> None:
        rest = await self.stream.flush(self._persist)
        approval = self._approval(last.needed, await self._pause_begins())
        self._recorder.paused(approval)
        await self._persist(lambda: self._announce(approval))
        drafts = self._recorder.take()
        produced, now = self._produced(), approval.created_at
        waits = partial(paused, approval=approval, outcome=produced, remote_id=last.remote_id, now=now)
        await self._persist(lambda: self._writer.conclude(drafts, waits, rest))
        self._report_end(self.request)

    async def _pause_begins(self) -> datetime:
        """The time from which a pause that begins now can be decided.

        The store's clock says when that is over, so it also says when it begins: if this process's clock is
        behind, the pause would otherwise end early. If it is ahead, the pause must not end before it began.
        """
        began: list[float] = []

        async def ask() -> None:
            began.append(await self._tasks.records.store.now())

        await self._persist(ask)
        return max(self._now(), datetime.fromtimestamp(began[-1], UTC))

    def _approval(self, needed: HumanNeeded, began: datetime) -> Approval:
        request = self.request
        return Approval(
            approval_id=ids.random_id(),
            request_id=request.request_id,
            task_id=request.task_id,
            session_id=request.session_id,
            owner=self._writer.head.owner,
            created_at=began,
            expires_at=began + timedelta(seconds=self._agent.limits.approval_expiry_seconds),
            calls=needed.calls,
            brought=needed.brought,
            begun=needed.begun,
            message=needed.message,
            authorizations=tuple(needed.consents.values()),
            digest=digest_of(needed.calls),
            event_id=self.stream.last_id + 1,
            awaits_owner=needed.awaits_owner,
            usage=self._recorder.usage,
            rounds=sum(1 for message in self._recorder.messages if message.tool_calls),
        )

    async def _announce(self, approval: Approval) -> None:
        """Adds the pause to the inbox of its tenant's approvers, who see it only once it is stored, too."""
        records = self._tasks.records
        key = keys.in_inbox(approval.created_at, approval.approval_id)
        await records.commit(
            keys.inbox(records.agent, approval.owner.tid),
            marker=key,
            put={key: approval.owner},
            ttl={key: self._agent.limits.approval_expiry_seconds + keys.INBOX_SECONDS},
        )

    async def _stopped(self) -> None:
        """Stores the end of a turn that ran out of time or was stopped."""
        stop = self._stop
        if stop is None:
            limit = self._agent.limits.request_timeout_seconds
            await self._fail(
                RequestTimeout(
                    f"The request took longer than {limit:g} seconds (`limits.request_timeout_seconds`). Ask "
                    "for less, or raise the limit."
                )
            )
        elif stop.ending is None:
            raise Fenced
        else:
            ending = stop.ending
            failure = Failure(ending.code, ending.detail)
            await self._end(ending.status, failure, stop.actor, RequestCanceled(ending.detail))

    async def _fail(self, error: TealError) -> None:
        if isinstance(error, _UNLOGGED):
            log.warning("%s: %s", error.code, error)
        await self._end("Failed", _stored(error), SERVICE, error)

    async def _end(self, status: Status, failure: Failure, actor: str, error: TealError) -> None:
        """Stores that the request ended without an answer; context providers are given `error`."""
        since = self._recorder.since
        if self._turn is not None:
            self._recorder.noted(await self._turn.failed(error))
        rest = await self.stream.flush(self._persist)
        now, outcome, last_event = self._now(), self._produced(), self.stream.last_id + 1
        drafts = [*self._recorder.take(), *self._unreturned(now)]
        superseded = self._stop is not None and self._stop.ending is SUPERSEDED
        withdrawn = superseded and self._tasks.rules.concurrency == "rollback"

        async def store() -> None:
            ended = partial(
                stopped,
                status=status,
                failure=failure,
                outcome=outcome,
                tools=await self._tools(),
                actor=actor,
                last_event=last_event,
                withdrawn=withdrawn,
                now=now,
                since=since,
            )
            await self._writer.conclude(drafts, ended, rest)

        await self._persist(store)
        if self._turn is not None:
            self._conversations.extend(self._writer.head, self.request.first_seq)
        else:  # other processes may have added messages that were not read
            self._conversations.forget(self.request.task_id)
        self._report_end(self.request)

    def _unreturned(self, now: datetime) -> list[Draft]:
        """Entries for the calls that have not returned; before the turn opened, none was made."""
        if self._turn is None:
            return []
        return [unreturned(self.request.request_id, call, now) for call in self._recorder.running.values()]

    async def _tools(self) -> Sequence[ToolOutcome]:
        """The outcomes of the request's tool calls; read from the log if no turn was opened in this run."""
        head = self._writer.head
        if self._turn is not None or head.running is None:
            return tuple(self._recorder.intents.values())
        produced = await self._tasks.history.produced(self.partition, head)
        unmade = {call.id for call in produced.running if not call.begun}
        return [tool for tool in produced.tools if tool.call_id not in unmade]

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Retries a write of the end while the store is unavailable, for as long as the lease is held.

        After `STORE_DEADLINE_SECONDS` callers get an error; the record shows later how the request ended.
        """
        clock = self._tasks.records.clock
        deadline = clock.monotonic() + STORE_DEADLINE_SECONDS
        pause = 0.05
        while True:
            try:
                await write()
            except PersistenceUnavailable as error:
                if clock.monotonic() > deadline:
                    self._report_error(error)
                if not self._tasks.lease.held:
                    raise
                await clock.sleep(pause)
                pause = min(pause * 2, 1.0)
            else:
                return

    def _ended_elsewhere(self, fenced: Fenced) -> None:
        """Reports the end in the record: another process has ended the request, or the lease was lost.

        It may be this run's own end, if the store's reply was lost and its commit was applied late.
        """
        if isinstance(fenced, Erased):
            self._give_up(NotFound(TASK_GONE))
            return
        if isinstance(fenced, SetBack):
            self._give_up(Interrupted(SET_BACK))
            return
        request = fenced.request
        if request is None or request.status in ("Running", "Queued"):
            self._give_up(Interrupted(f"This process lost its lease on the request. {LEARN_THE_OUTCOME}"))
            return
        self._conversations.forget(self.request.task_id)
        # no other process knows this number
        self._report_end(request, here=request.last_event == self.stream.last_id + 1)

    async def _fail_last(self, error: BaseException) -> None:
        """Ends the request after an internal error, so that it is not left running for ever."""
        fault = InternalError(
            f"Internal error ({type(error).__name__}). Retry the request; if it persists, contact the "
            "operator and quote the request id."
        )
        try:
            await self._fail(fault)
        except (Fenced, TealError) as second:
            self._give_up(second if isinstance(second, TealError) else fault)
        except Exception:
            log.exception("request %s could not be ended either", self.request.request_id)
            self._give_up(fault)

    # --- reporting -------------------------------------------------------------------------------

    def _report_end(self, request: RequestRecord, *, here: bool = True) -> None:
        """Reports an end that is stored: to the observer also where callers were told that it was not."""
        self._ended = (request, here)
        if not self.outcome.done():
            self.stream.end(request)
            self.outcome.set_result(request)

    def _report_error(self, error: TealError) -> None:
        """Reports that the end is not stored, or is not this run's to store."""
        if not self.outcome.done():
            self.outcome.set_exception(error.with_ids(**self.request.ids))
            self.outcome.exception()
            self.stream.close()

    def _give_up(self, error: TealError) -> None:
        log.warning("request %s: %s", self.request.request_id, error)
        self._conversations.forget(self.request.task_id)
        self._report_error(error)

    # --- helpers ---------------------------------------------------------------------------------

    @property
    def _agent(self) -> AgentSpec:
        return self._conversations.agent

    @property
    def _tasks(self) -> Tasks:
        return self._conversations.tasks

    def _now(self) -> datetime:
        return self._tasks.records.clock.now()

    def _produced(self) -> Outcome:
        """What the request has produced so far."""
        recorder = self._recorder
        return Outcome(
            "".join(recorder.output),
            recorder.usage,
            self._context.extra_data,
            recorder.finish_reason,
        )


def shutting_down() -> PersistenceUnavailable:
    """The error for a call that still waits when the process ends.

    It has the code of a store that is away, whose advice holds whatever the call has waited for.
    """
    return PersistenceUnavailable(
        "the process ends, and what this call waits for has not answered",
        what="The service is unavailable: it is shutting down.",
        retry_after=1,
    )


def _stored(error: TealError) -> Failure:
    """The error as the failed request's record keeps it. Advice to retry later would be wrong there."""
    if isinstance(error, PersistenceUnavailable):
        return Failure(
            error.code,
            "The store was unavailable while the request ran, so it failed. Send the message again, under a "
            "new idempotency key or id if you use one.",
        )
    return Failure(error.code, error.detail, too_long=isinstance(error, ModelFailed) and error.too_long)
