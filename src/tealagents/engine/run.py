"""One request in flight. It belongs to the app, not to the connection that sent it.

A run drives `loop.converse`: what an event says is written into the journal before the next one is asked for,
and published to whoever follows. Its end, or its pause, is one commit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import assert_never

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import (
    Interrupted,
    PersistenceUnavailable,
    RequestCanceled,
    RequestTimeout,
    TealError,
)
from tealagents.domain.events import Started, TextDelta, ToolCalled, ToolReturned
from tealagents.domain.models import (
    Approval,
    Failure,
    FinishReason,
    Head,
    Json,
    Message,
    Outcome,
    RequestRecord,
    Status,
    ToolCall,
    ToolOutcome,
)
from tealagents.engine.agent import Agent
from tealagents.engine.loop import (
    Answered,
    Called,
    Calling,
    Finished,
    HumanNeeded,
    LoopState,
    Noted,
    Resumption,
    RoundDone,
    converse,
)
from tealagents.engine.publishing import Publisher
from tealagents.engine.recorder import TurnRecorder
from tealagents.engine.toolbox import CallContext, Deferred, ToolResult
from tealagents.engine.turns import Turn, Turns, remote_id_of
from tealagents.state import keys
from tealagents.state.audit_chain import Draft
from tealagents.state.decisions import digest_of
from tealagents.state.task_writer import Fenced, TaskWriter
from tealagents.state.tasks import CANCELED, SUPERSEDED, Ending, Tasks
from tealagents.state.transitions import SERVICE, Transition, completed, paused, stopped

log = logging.getLogger(__name__)

#: seconds for which the end is tried before whoever waits is told that the store is away
PATIENCE_SECONDS = 2.0

#: opens the request's turn in its conversation
OpenTurn = Callable[[], Awaitable[Turn]]


class Past(Struct, frozen=True):
    """What a request said and did before its pause."""

    messages: Sequence[Message]
    #: its tool calls, the approved ones among them
    tools: Sequence[ToolOutcome]


#: reads what a request said and did before its pause
Recall = Callable[[], Awaitable[Past]]


class Run:
    """One request from its message, or from a decision, to its end or its next pause."""

    def __init__(
        self,
        agent: Agent,
        tasks: Tasks,
        turns: Turns,
        writer: TaskWriter,
        context: CallContext,
        *,
        streamed: bool,
    ) -> None:
        self._agent = agent
        self._tasks = tasks
        self._turns = turns
        self._turn: Turn | None = None
        self._writer = writer
        self._context = context
        self._streamed = streamed
        self._output: list[str] = []
        self._ending: tuple[Ending, str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._driven = False
        self._remote_id: str | None = None
        self._finish_reason: FinishReason | None = None
        self._dropped = False
        #: what was said and done before a pause is in the journal
        self._recalled = writer.message is not None
        self._told: Callable[[], None] | None = None
        self._recorder = TurnRecorder(writer, tasks.records.clock)
        #: what the followers see
        self.stream = Publisher(tasks, writer)
        #: the record as it was left: ended, paused, or ended by somebody else
        self.done: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()

    # --- what others see -------------------------------------------------------------------------

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What runs; it may go on writing the end when `done` has told that the store is away."""
        return self._task

    @property
    def request(self) -> RequestRecord:
        return self._writer.request

    @property
    def request_id(self) -> str:
        return self._writer.request.request_id

    @property
    def partition(self) -> str:
        return self._writer.partition

    @property
    def output(self) -> str:
        """What there is of the answer so far."""
        return "".join(self._output)

    # --- driving ---------------------------------------------------------------------------------

    def start(
        self, opening: OpenTurn, resumption: Resumption | None = None, recall: Recall | None = None
    ) -> None:
        """Begins to run, in a task of its own. `opening` finds out what the model is sent.

        After a pause `recall` is asked before it: whatever goes wrong with it ends the request, too.
        """
        self.stream.publish(Started())
        for call in resumption.approved if resumption else ():
            self._recorder.intended(call)
            self.stream.publish(ToolCalled(call))
        self._task = asyncio.create_task(
            self._drive(opening, resumption, recall), name=f"request {self.request_id}"
        )

    async def _remember(self, recall: Recall) -> None:
        past = await recall()
        self._recalled = True
        recorder = self._recorder
        recorder.messages.extend(past.messages)
        recorder.intents = {tool.call_id: tool for tool in past.tools} | recorder.intents

    @property
    def messages(self) -> Sequence[Message]:
        """This request's messages so far, those before a pause included."""
        return self._recorder.messages

    def on_end(self, told: Callable[[], None]) -> None:
        """`told` is called once, when the run is over: ended, paused, or dropped."""
        self._told = told

    def drop(self) -> None:
        """The lease is lost: stop at once and write nothing more."""
        self._dropped = True
        self._interrupt()

    def cancel(self, ending: Ending, actor: str) -> None:
        """Asks the run to end so; `done` tells when it has. One that is about to end, ends as it was."""
        if self._ending is None and not self._closing:
            self._ending = (ending, actor)
            self._interrupt()

    def _interrupt(self) -> None:
        # a task canceled before its first step would never run, and nobody would learn of the end
        if self._task is not None and self._driven:
            self._task.cancel()

    async def _drive(self, opening: OpenTurn, resumption: Resumption | None, recall: Recall | None) -> None:
        """Runs to the end, whatever the end is, and tells whoever watches."""
        self._driven = True
        with self._agent.observer.request(self.request) as watch:
            await self._run_to_end(opening, resumption, recall)
            fault = self.done.exception() if self.done.done() else None
            if fault is None and self.done.done():
                watch.ended(self.done.result())
            elif isinstance(fault, TealError):
                watch.failed(fault)

    async def _run_to_end(
        self, opening: OpenTurn, resumption: Resumption | None, recall: Recall | None
    ) -> None:
        deadline = asyncio.timeout(self._time_left())
        try:
            try:
                if self._ending is not None or self._dropped:
                    raise asyncio.CancelledError
                async with deadline:
                    if recall is not None:
                        await self._remember(recall)
                    turn = self._turn = await opening()
                    last = await self._converse(turn, resumption)
                self._closing = True
                await self._end(last)
            except TimeoutError:
                if not deadline.expired():
                    raise
                await self._fail(
                    RequestTimeout(
                        f"The request took longer than {self._agent.limits.request_timeout_seconds:g} "
                        "seconds (`limits.request_timeout_seconds`). Ask for less, or raise the limit."
                    )
                )
            except TealError as failure:
                self._closing = True
                await self._fail(failure)
            except asyncio.CancelledError:
                if self._dropped:
                    raise Fenced(None) from None
                await self._end_canceled()
        except Fenced as fenced:
            await self._ended_elsewhere(fenced)
        except TealError as error:
            self._give_up(error)
        except Exception as error:
            log.exception("request %s failed inside the service", self.request_id)
            await self._fail_last(error)
        finally:
            self.stream.stop()
            if not self.done.done():
                self._give_up(Interrupted("The service failed inside. Read the request to learn its fate."))
            # who is told knows this run: not let go of, the answer would stay until a full collection
            told, self._told = self._told, None
            if told is not None:
                told()

    def _time_left(self) -> float:
        """Seconds to run: waiting for its turn counts, waiting for a human does not."""
        limit = self._agent.limits.request_timeout_seconds
        if self._writer.message is None:
            return limit
        waited = (self._tasks.records.clock.now() - self.request.created_at).total_seconds()
        return max(0.0, limit - max(0.0, waited))

    async def _converse(self, turn: Turn, resumption: Resumption | None) -> "HumanNeeded | Complete":
        """Everything up to the last event, which is left to be stored without a deadline."""
        self._recorder.noted(turn.reports)
        messages = self._recorder.messages
        state = LoopState(
            model=self._agent.model,
            toolbox=turn.toolbox,
            call_tool=self._call_tool,
            observer=self._agent.observer,
            clock=self._tasks.records.clock,
            request_id=self.request_id,
            prompt=turn.prompt,
            stream=self._streamed,
            max_rounds=self._agent.limits.max_tool_rounds,
            headers={"x-request-id": self.request_id},
            remote=self._agent.thread_kind == "remote",
            remote_id=remote_id_of(self._writer),
            rounds=sum(1 for message in messages if message.tool_calls),
            call_ids={call.id for message in messages for call in message.tool_calls},
        )
        async with aclosing(converse(state, resumption)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    self._output.append(event.text)
                    if self._streamed:
                        await self.stream.room()
                        self.stream.publish(event)
                elif isinstance(event, HumanNeeded):
                    self._remote_id = state.remote_id if state.remote else None
                    return event
                elif isinstance(event, Finished):
                    context, reports = await turn.completed(self._recorder.response)
                    self._recorder.noted(reports)
                    return Complete(state.remote_id if state.remote else None, context)
                else:
                    await self._store(event)
        raise RuntimeError("a conversation ends with an answer or a pause")

    async def _end(self, last: "HumanNeeded | Complete") -> None:
        if isinstance(last, HumanNeeded):
            await self._pause(last)
        else:
            await self._complete(last)

    async def _call_tool(self, call: ToolCall) -> ToolResult | Deferred:
        with self._agent.observer.tool_call(call) as watch:
            toolbox = self._turn.toolbox if self._turn else self._agent.toolbox
            outcome = await toolbox.call(call, self._context)
            if isinstance(outcome, Deferred):
                watch.deferred()
            else:
                watch.done(outcome.output, is_error=outcome.is_error)
        return outcome

    # --- events of the loop ----------------------------------------------------------------------

    async def _store(self, event: Noted | Answered | Calling | Called | RoundDone) -> None:
        """Writes down what an event says, before anything follows from it."""
        match event:
            case Noted():
                self._recorder.noted(event.reports)
            case Answered():
                self._answered(event)
            case Calling():
                await self._calling(event)
            case Called():
                await self._called(event)
            case RoundDone():
                for message in event.messages:
                    self._recorder.add(message)
            case _:
                assert_never(event)

    def _answered(self, event: Answered) -> None:
        done = event.done
        tools = len(self._turn.toolbox) if self._turn else 0
        self._recorder.answered(event, model=self._agent.model.name, tools=tools)
        if event.message.tool_calls:
            # text that comes with tool calls is no part of the answer
            self._output.clear()
        self._finish_reason = done.finish_reason

    async def _calling(self, event: Calling) -> None:
        for call in event.calls:
            await self.stream.room()
            self.stream.publish(ToolCalled(call))
        await self._recorder.intend(event.calls)

    async def _called(self, event: Called) -> None:
        for result in event.results:
            self._recorder.called(result)
            await self.stream.room()
            call = result.call
            self.stream.publish(
                ToolReturned(call.id, call.tool, result.output, result.is_error, result.duration_ms)
            )
        await self._recorder.flush()

    # --- ends ------------------------------------------------------------------------------------

    async def _complete(self, last: "Complete") -> None:
        rest = await self.stream.settle(self._persist)
        drafts = self._recorder.take()
        now, outcome, last_event = self._now(), self._outcome(), self.stream.last_event + 1

        def done(head: Head, request: RequestRecord, due: Sequence[Draft]) -> Transition:
            return completed(
                head,
                request,
                due,
                outcome,
                last_event=last_event,
                remote_id=last.remote_id,
                context=last.context,
                now=now,
            )

        await self._persist(lambda: self._writer.conclude(drafts, done, rest))
        self._turns.extend(self._writer.head, self.request.first_seq, self._recorder.messages, last.context)
        self._finish()

    async def _pause(self, event: HumanNeeded) -> None:
        rest = await self.stream.settle(self._persist)
        now = self._now()
        request = self.request
        approval = Approval(
            approval_id=ids.random_id(),
            request_id=request.request_id,
            task_id=request.task_id,
            session_id=request.session_id,
            owner=self._writer.head.owner,
            created_at=now,
            expires_at=now + timedelta(seconds=self._agent.limits.approval_expiry_seconds),
            calls=event.calls,
            message=_pause_message(event),
            authorizations=event.authorizations,
            digest=digest_of(event.calls),
            number=len(request.approvals) + 1,
            event_id=self.stream.last_event + 1,
            awaits_owner=event.awaits_owner,
            usage=self._recorder.usage,
        )
        self._recorder.asked(approval)
        await self._persist(lambda: self._announce(approval))
        drafts = self._recorder.take()
        outcome = self._outcome()

        def waits(head: Head, request: RequestRecord, due: Sequence[Draft]) -> Transition:
            return paused(head, request, due, approval, outcome, remote_id=self._remote_id, now=now)

        await self._persist(lambda: self._writer.conclude(drafts, waits, rest))
        self._finish()

    async def _announce(self, approval: Approval) -> None:
        """Puts the pause into the tenant's inbox, where approvers look; believed only if it is there."""
        records = self._tasks.records
        key = f"inbox/{keys.created(approval.created_at)}/{approval.approval_id}"
        await records.commit(
            keys.inbox(records.agent, approval.owner.tid),
            marker=key,
            put={key: approval.owner},
            ttl={key: self._agent.limits.approval_expiry_seconds + 7 * 86400},
        )

    def _now(self) -> datetime:
        return self._tasks.records.clock.now()

    def _outcome(self) -> Outcome:
        """What the request has produced so far."""
        return Outcome(
            self.output,
            self._recorder.usage,
            self._context.extra_data,
            self._finish_reason,
            self._agent.source,
        )

    async def _fail(self, failure: TealError) -> None:
        await self._stop("Failed", Failure(failure.code, failure.detail), SERVICE, failure)

    async def _end_canceled(self) -> None:
        """The run was canceled: by a user, by a newer message, or because the process stops."""
        ending, actor = self._ending or (CANCELED, SERVICE)
        await self._stop(ending.status, Failure(ending.code, ending.detail), actor)

    async def _stop(
        self, status: Status, failure: Failure, actor: str, error: TealError | None = None
    ) -> None:
        self._closing = True
        if self._turn is not None:
            raised = error or RequestCanceled(failure.detail)
            self._recorder.noted(await self._turn.failed(self._recorder.response, raised))
        rest = await self.stream.settle(self._persist)
        drafts = self._recorder.take()
        rollback = self._tasks.rules.concurrency == "rollback"
        withdrawn = rollback and self._ending is not None and self._ending[0] is SUPERSEDED

        now, outcome, last_event = self._now(), self._outcome(), self.stream.last_event + 1

        async def store() -> None:
            tools = await self._tools()

            def ended(head: Head, request: RequestRecord, due: Sequence[Draft]) -> Transition:
                return stopped(
                    head,
                    request,
                    due,
                    status,
                    failure,
                    outcome,
                    tools=tools,
                    actor=actor,
                    last_event=last_event,
                    withdrawn=withdrawn,
                    now=now,
                )

            await self._writer.conclude(drafts, ended, rest)

        await self._persist(store)
        if self._turn is not None:
            self._turns.extend(self._writer.head, self.request.first_seq)
        else:  # what others have added was not read
            self._turns.forget(self.request.task_id)
        self._finish()

    async def _tools(self) -> Sequence[ToolOutcome]:
        """What the request's tools did: by the log where the run ended before it was recalled."""
        running = self._writer.head.running
        if self._recalled or running is None:
            return tuple(self._recorder.intents.values())
        head = self._writer.head
        return await self._tasks.history.tool_outcomes(
            self.partition, head.task_id, running.first_seq, head.tail_seq
        )

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Writes an end, however long the store is away, as long as the lease is held.

        Whoever waits is told after a moment; the request's fate is then in its record.
        """
        clock = self._tasks.records.clock
        impatient = clock.monotonic() + PATIENCE_SECONDS
        pause = 0.05
        while True:
            try:
                await asyncio.shield(asyncio.ensure_future(write()))
            except PersistenceUnavailable as error:
                if clock.monotonic() > impatient:
                    self._tell_unavailable(error)
                if not self._tasks.lease.held:
                    raise
                await clock.sleep(pause)
                pause = min(pause * 2, 1.0)
            else:
                return

    def _tell_unavailable(self, error: TealError) -> None:
        if not self.done.done():
            self.done.set_exception(error.with_ids(**self._ids()))
            self.done.exception()
            self.stream.close()

    async def _ended_elsewhere(self, fenced: Fenced) -> None:
        """Somebody else has ended this request, or the lease was lost: say what the record says.

        An end of our own is found here too, where the store lost its reply and then took a while.
        """
        self._turns.forget(self.request.task_id)
        request = fenced.request
        if request is None or request.status in ("Running", "Queued"):
            self._give_up(
                Interrupted("This process lost its lease on the request. Read the request to learn its fate.")
            )
            return
        self._tell(request)

    def _give_up(self, error: TealError) -> None:
        log.warning("request %s: %s", self.request_id, error)
        self._turns.forget(self.request.task_id)
        if not self.done.done():
            self.done.set_exception(error.with_ids(**self._ids()))
            self.done.exception()
            self.stream.close()

    async def _fail_last(self, error: Exception) -> None:
        """A fault of ours must not leave a request running for ever."""
        fault = Interrupted(f"The service failed inside ({type(error).__name__}). The log has the details.")
        try:
            await self._fail(fault)
        except (Fenced, TealError) as second:
            self._give_up(second if isinstance(second, TealError) else fault)
        except Exception:
            log.exception("request %s could not be ended either", self.request_id)
            self._give_up(fault)

    def _finish(self) -> None:
        """The end is stored: tell everybody."""
        self._tell(self.request)

    def _tell(self, request: RequestRecord) -> None:
        if not self.done.done():
            self.stream.end(request)
            self.done.set_result(request)

    def _ids(self) -> dict[str, str]:
        request = self.request
        return {
            "session_id": request.session_id,
            "task_id": request.task_id,
            "request_id": request.request_id,
        }


class Complete(Struct, frozen=True):
    """The model has answered."""

    #: where a remote conversation goes on
    remote_id: str | None
    #: what the conversation remembers
    context: Json | None


def _pause_message(event: HumanNeeded) -> str:
    names = ", ".join(call.tool for call in event.calls)
    if event.authorizations:
        return f"Your authorization is needed before {names} can run: visit the listed URLs, then approve."
    if event.awaits_owner:
        return f"{names} is approved and waits for the owner of the task to resume it."
    return f"Approval is needed before {names} can run."
