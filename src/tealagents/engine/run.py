"""One request in flight. It belongs to the app, not to the connection that sent it.

A run drives `loop.converse`: it stores what an event says before it asks for the next one, numbers
the stream events, shows them to the followers on this process at once, and writes them to the log
behind their back in small batches.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import (
    Conflict,
    Interrupted,
    PersistenceUnavailable,
    RequestCanceled,
    RequestTimeout,
    TealError,
)
from tealagents.domain.events import TERMINAL, EventName, Piece, Refused, StreamEvent
from tealagents.domain.models import (
    Approval,
    Json,
    Message,
    MessageBody,
    RequestRecord,
    Status,
    Step,
    StepBody,
    ToolCall,
    ToolOutcome,
    Usage,
)
from tealagents.engine.agent import Agent
from tealagents.engine.loop import (
    Answered,
    Called,
    Calling,
    Finished,
    HumanNeeded,
    Noted,
    Resumption,
    RoundDone,
    Talk,
    converse,
)
from tealagents.engine.toolbox import CallContext, Deferred, ToolResult
from tealagents.engine.turns import Turn, Turns, remote_id_of, steps_of
from tealagents.state import keys
from tealagents.state.chain import Draft, draft
from tealagents.state.decisions import digest_of, intent_draft, shown_calls
from tealagents.state.history import ARGUMENTS_SHOWN
from tealagents.state.streams import BATCH_EVENTS, portion
from tealagents.state.tasks import CANCELED, SERVICE, SUPERSEDED, Ending, Tasks
from tealagents.state.tenure import Fenced, Tenure
from tealagents.threads.views import Report

log = logging.getLogger(__name__)

#: seconds for which events are gathered before they are written to the log
GATHER_SECONDS = 0.05
#: events that may be unwritten before the model is made to wait for the store
MOST_UNWRITTEN = 1000
#: seconds for which the end is tried before whoever waits is told that the store is away
PATIENCE_SECONDS = 2.0
#: characters of an output that a step repeats; the message holds all of it
OUTPUT_SHOWN = 16_000

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
        tenure: Tenure,
        context: CallContext,
        *,
        streamed: bool,
        actor: str,
    ) -> None:
        self._agent = agent
        self._tasks = tasks
        self._turns = turns
        self._turn: Turn | None = None
        self._tenure = tenure
        self._context = context
        self._actor = actor
        self._streamed = streamed
        self._drafts: list[Draft] = []
        self._messages: list[Message] = [tenure.message] if tenure.message else []
        self._output: list[str] = []
        self._usage = tenure.request.usage
        self._intents: dict[str, ToolOutcome] = {}
        self._ending: tuple[Ending, str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._wakers: set[asyncio.Future[None]] = set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._writing: asyncio.Future[None] | None = None
        self._closing = False
        self._driven = False
        self._remote_id: str | None = None
        self._dropped = False
        self._told: Callable[[], None] = lambda: None
        begins = tenure.message is not None
        #: the id of the last event before this stretch of the request
        self.base = 0 if begins else tenure.request.last_event
        self._events: list[StreamEvent] = []
        #: the id of the last event that is in the log; the very first is made from the record instead
        self._written = 1 if begins else self.base
        #: the record as it was left: ended, paused, or ended by somebody else
        self.done: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()

    # --- what others see -------------------------------------------------------------------------

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What runs; it may go on writing the end when `done` has told that the store is away."""
        return self._task

    @property
    def request(self) -> RequestRecord:
        return self._tenure.request

    @property
    def request_id(self) -> str:
        return self._tenure.request.request_id

    @property
    def partition(self) -> str:
        return self._tenure.partition

    @property
    def last_event(self) -> int:
        return self.base + len(self._events)

    @property
    def output(self) -> str:
        """What there is of the answer so far."""
        return "".join(self._output)

    async def events(self, after: int) -> AsyncIterator[Sequence[StreamEvent]]:
        """The events of this run behind `after`, all that there are at a time, to the one that ends it.

        Those of before a pause, and everything before this run, are the log's to tell.
        """
        position = max(0, after - self.base)
        while True:
            if position < len(self._events):
                fresh = self._events[position:]
                position = len(self._events)
                yield fresh
                if fresh[-1].name in TERMINAL:
                    return
            elif self.done.done():
                if self._events[-1].name in TERMINAL:  # `after` was behind all there ever was
                    yield self._events[-1:]
                return
            else:
                await self._next_event()

    async def _next_event(self) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers.add(waker)
        try:
            await waker
        finally:
            self._wakers.discard(waker)

    # --- driving ---------------------------------------------------------------------------------

    def start(
        self, opening: OpenTurn, resumption: Resumption | None = None, recall: Recall | None = None
    ) -> None:
        """Begins to run, in a task of its own. `opening` finds out what the model is sent.

        After a pause `recall` is asked before it: whatever goes wrong with it ends the request, too.
        """
        self._publish("request", {"status": "Running"})
        for call in resumption.approved if resumption else ():
            self._note_intent(call)
            self._publish_call(call)
        self._task = asyncio.create_task(
            self._drive(opening, resumption, recall), name=f"request {self.request_id}"
        )

    async def _remember(self, recall: Recall) -> None:
        past = await recall()
        self._messages.extend(past.messages)
        self._intents = {tool.call_id: tool for tool in past.tools} | self._intents

    @property
    def messages(self) -> Sequence[Message]:
        """This request's messages so far, those before a pause included."""
        return self._messages

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
        deadline = asyncio.timeout(self._agent.limits.request_timeout_seconds)
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
            if self._writer is not None:
                self._writer.cancel()
            if not self.done.done():
                self._give_up(Interrupted("The service failed inside. Read the request to learn its fate."))
            self._wake()
            self._told()

    async def _converse(self, turn: Turn, resumption: Resumption | None) -> "HumanNeeded | Complete":
        """Everything up to the last event, which is left to be stored without a deadline."""
        self._note(turn.reports)
        talk = Talk(
            model=self._agent.model,
            toolbox=turn.toolbox,
            call_tool=self._call_tool,
            observer=self._agent.observer,
            clock=self._tasks.ledger.clock,
            request_id=self.request_id,
            prompt=turn.prompt,
            stream=self._streamed,
            max_rounds=self._agent.limits.max_tool_rounds,
            headers={"x-request-id": self.request_id},
            remote=self._agent.thread_kind == "remote",
            remote_id=remote_id_of(self._tenure),
            rounds=sum(1 for message in self._messages if message.tool_calls),
            call_ids={call.id for message in self._messages for call in message.tool_calls},
        )
        async with aclosing(converse(talk, resumption)) as events:
            async for event in events:
                if isinstance(event, Piece | Refused):
                    self._output.append(event.text)
                    if self._streamed:
                        await self._room()
                        self._publish("partial-response", event.text)
                elif isinstance(event, HumanNeeded):
                    self._remote_id = talk.remote_id if talk.remote else None
                    return event
                elif isinstance(event, Finished):
                    context, reports = await turn.completed(self._response)
                    self._note(reports)
                    return Complete(talk.remote_id if talk.remote else None, context)
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
                self._note(event.reports)
            case Answered():
                self._answered(event)
            case Calling():
                await self._calling(event)
            case Called():
                await self._called(event)
            case RoundDone():
                for message in event.messages:
                    self._add_message(message)
            case _:
                assert_never(event)

    def _answered(self, event: Answered) -> None:
        done, message = event.done, event.message
        self._usage = self._usage + done.usage
        step = Step(
            step_id=ids.random_id(),
            request_id=self.request_id,
            kind="model",
            name=done.model or self._agent.model.name,
            started_at=event.started_at,
            duration_ms=event.duration_ms,
            input={"messages": event.messages_sent, "tools": len(self._turn.toolbox if self._turn else ())},
            output={
                "message_id": message.message_id,
                "text": message.text[:OUTPUT_SHOWN],
                "tool_calls": [call.tool for call in message.tool_calls],
                "first_piece_ms": event.first_piece_ms,
                "refusal": event.refusal,
            },
            usage=done.usage,
            outcome=done.finish_reason,
        )
        self._add_step("model.called", step)
        self._add_message(message)
        if message.tool_calls:
            # text that comes with tool calls is no part of the answer
            self._output.clear()
        if done.finish_reason in ("length", "content_filter", "refusal"):
            self._context.extra_data["finish_reason"] = done.finish_reason

    async def _calling(self, event: Calling) -> None:
        for call in event.calls:
            await self._room()
            self._publish_call(call)
        self._drafts.append(intent_draft(self.request_id, event.calls, SERVICE))
        await self._flush()
        for call in event.calls:
            self._note_intent(call)

    def _note_intent(self, call: ToolCall) -> None:
        self._intents[call.id] = ToolOutcome(call.id, call.tool, call.arguments[:ARGUMENTS_SHOWN], "unknown")

    def _publish_call(self, call: ToolCall) -> None:
        self._publish("tool-call", {"call_id": call.id, "tool": call.tool, "arguments": call.arguments})

    async def _called(self, event: Called) -> None:
        now = self._tasks.ledger.clock.now()
        for result in event.results:
            known = self._intents[result.call.id]
            self._intents[result.call.id] = replace(known, outcome=result.outcome)
            step = Step(
                step_id=ids.random_id(),
                request_id=self.request_id,
                kind="tool",
                name=result.call.tool,
                started_at=now - timedelta(milliseconds=result.duration_ms),
                duration_ms=result.duration_ms,
                input={"call_id": result.call.id, "arguments": result.call.arguments},
                output={"output": result.output[:OUTPUT_SHOWN]},
                is_error=result.is_error,
                outcome=result.outcome,
            )
            self._add_step("tool.called", step)
            await self._room()
            self._publish(
                "tool-result",
                {
                    "call_id": result.call.id,
                    "tool": result.call.tool,
                    "output": result.output,
                    "is_error": result.is_error,
                    "duration_ms": result.duration_ms,
                },
            )
        await self._flush()

    def _note(self, reports: Sequence[Report]) -> None:
        """What was done to what the model is sent; calls of the model that it took are part of the usage."""
        for step in steps_of(reports, self.request_id):
            self._usage = self._usage + (step.usage or Usage())
            self._add_step(f"{step.kind}.noted", step)

    @property
    def _response(self) -> list[Message]:
        """What has been said in answer to the user's message."""
        return self._messages[1:]

    def _add_step(self, action: str, step: Step) -> None:
        self._drafts.append(draft(action, SERVICE, self.request_id, StepBody(step)))

    def _add_message(self, message: Message) -> None:
        self._messages.append(message)
        self._drafts.append(draft("message.added", SERVICE, self.request_id, MessageBody(message)))

    async def _flush(self) -> None:
        """Commits the entries gathered so far. Those that were not written go with the next commit."""
        drafts, self._drafts = self._drafts, []
        if not drafts:
            return
        writing = asyncio.ensure_future(self._tenure.write(drafts))
        try:
            await asyncio.shield(writing)
        finally:
            # canceled in the middle, even twice, it is seen to its end: what ends the request builds on it
            while not writing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([writing])
            if writing.exception() is not None:
                self._drafts = drafts + self._drafts

    # --- ends ------------------------------------------------------------------------------------

    async def _complete(self, last: "Complete") -> None:
        rest = await self._settle_log()
        drafts, self._drafts = self._drafts, []
        await self._persist(
            lambda: self._tenure.complete(
                drafts,
                output=self.output,
                usage=self._usage,
                extra_data=self._context.extra_data,
                last_event=self.last_event + 1,
                remote_id=last.remote_id,
                context=last.context,
                events=rest,
            )
        )
        self._turns.extend(self._tenure.head, self.request.first_seq, self._messages, last.context)
        self._finish()

    async def _pause(self, event: HumanNeeded) -> None:
        rest = await self._settle_log()
        now = self._tasks.ledger.clock.now()
        request = self.request
        approval = Approval(
            approval_id=ids.random_id(),
            request_id=request.request_id,
            task_id=request.task_id,
            session_id=request.session_id,
            owner=self._tenure.head.owner,
            created_at=now,
            expires_at=now + timedelta(seconds=self._agent.limits.approval_expiry_seconds),
            calls=event.calls,
            message=_pause_message(event),
            authorizations=event.authorizations,
            digest=digest_of(event.calls),
            number=len(request.approvals) + 1,
            event_id=self.last_event + 1,
            awaits_owner=event.awaits_owner,
        )
        content = self._approval_content(approval)
        step = Step(
            step_id=ids.random_id(),
            request_id=request.request_id,
            kind="approval",
            name="requested",
            started_at=now,
            input={"approval_id": approval.approval_id, "tool_calls": content["tool_calls"]},
        )
        for call in event.calls:
            self._intents.pop(call.id, None)
        self._drafts.append(
            draft(
                "approval.requested",
                SERVICE,
                request.request_id,
                StepBody(step),
                approval_id=approval.approval_id,
                payload_sha256=approval.digest,
            )
        )
        await self._persist(lambda: self._announce(approval))
        drafts, self._drafts = self._drafts, []
        await self._persist(
            lambda: self._tenure.pause(
                approval,
                content,
                drafts,
                usage=self._usage,
                extra_data=self._context.extra_data,
                last_event=self.last_event + 1,
                events=rest,
                remote_id=self._remote_id,
            )
        )
        self._finish()

    async def _announce(self, approval: Approval) -> None:
        """Puts the pause into the tenant's inbox, where approvers look; believed only if it is there."""
        ledger = self._tasks.ledger
        key = f"inbox/{keys.created(approval.created_at)}/{approval.approval_id}"
        await ledger.commit(
            keys.inbox(ledger.agent, approval.owner.tid),
            witness=key,
            put={key: approval.owner},
            ttl={key: self._agent.limits.approval_expiry_seconds + 7 * 86400},
        )

    def _approval_content(self, approval: Approval) -> Json:
        url = (
            f"/{self._agent.name}/{self._agent.version}/requests/{approval.request_id}/resume"
            f"?approval_id={approval.approval_id}"
        )
        return {
            "session_id": approval.session_id,
            "task_id": approval.task_id,
            "request_id": approval.request_id,
            "approval_id": approval.approval_id,
            "message": approval.message,
            "approval_url": url,
            "rejection_url": url,
            "expires_at": msgspec.to_builtins(approval.expires_at),
            "authorizations": list(approval.authorizations),
            "tool_calls": shown_calls(approval.calls),
        }

    async def _fail(self, failure: TealError) -> None:
        await self._stop("Failed", failure, SERVICE)

    async def _end_canceled(self) -> None:
        """The run was canceled: by a user, by a newer message, or because the process stops."""
        (status, code, detail), actor = self._ending or (CANCELED, SERVICE)
        error: TealError = Interrupted(detail) if code == "interrupted" else RequestCanceled(detail)
        await self._stop(status, error, actor)

    async def _stop(self, status: Status, error: TealError, actor: str) -> None:
        self._closing = True
        if self._turn is not None:
            self._note(await self._turn.failed(self._response, error))
        rest = await self._settle_log()
        self._drafts.append(
            draft(
                "error",
                SERVICE,
                self.request_id,
                StepBody(
                    Step(
                        step_id=ids.random_id(),
                        request_id=self.request_id,
                        kind="error",
                        name=error.code,
                        started_at=self._tasks.ledger.clock.now(),
                        output={"detail": error.detail},
                        is_error=True,
                    )
                ),
            )
        )
        drafts, self._drafts = self._drafts, []
        rollback = self._tasks.rules.concurrency == "rollback"
        withdrawn = rollback and self._ending is not None and self._ending[0] is SUPERSEDED
        await self._persist(
            lambda: self._tenure.fail(
                drafts,
                status,
                error,
                output=self.output,
                usage=self._usage,
                extra_data=self._context.extra_data,
                last_event=self.last_event + 1,
                tools=tuple(self._intents.values()),
                actor=actor,
                withdrawn=withdrawn,
                events=rest,
            )
        )
        if self._turn is not None:
            self._turns.extend(self._tenure.head, self.request.first_seq)
        else:  # what others have added was not read
            self._turns.forget(self.request.task_id)
        self._finish()

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Writes an end, however long the store is away, as long as the lease is held.

        Whoever waits is told after a moment; the request's fate is then in its record.
        """
        clock = self._tasks.ledger.clock
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
            self._wake()

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

    async def _fail_last(self, error: Exception) -> None:
        """A fault of ours must not leave a request running for ever."""
        fault = Interrupted(f"The service failed inside ({type(error).__name__}). The log has the details.")
        try:
            await self._stop("Failed", fault, SERVICE)
        except (Fenced, TealError) as second:
            self._give_up(second if isinstance(second, TealError) else fault)

    def _finish(self) -> None:
        """The end is stored: tell everybody."""
        self._tell(self.request)

    def _tell(self, request: RequestRecord) -> None:
        if not self.done.done():
            event_id = max(request.last_event, self.last_event + 1)
            self._events.append(StreamEvent(event_id, terminal_name(request.status), request))
            self.done.set_result(request)
        self._wake()

    def _ids(self) -> dict[str, str]:
        request = self.request
        return {
            "session_id": request.session_id,
            "task_id": request.task_id,
            "request_id": request.request_id,
        }

    # --- publishing ------------------------------------------------------------------------------

    def _publish(self, name: EventName, data: object) -> None:
        """Numbers an event and shows it to the followers here; the log is written behind it."""
        event_id = self.last_event + 1
        self._events.append(StreamEvent(event_id, name, data))
        self._wake()
        if event_id > 1:
            self._drained.clear()
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._write_behind())

    async def _room(self) -> None:
        """Waits while as many events are unwritten as the `error` of a dead producer can jump over."""
        if self.last_event - self._written >= MOST_UNWRITTEN:
            await self._drained.wait()

    def _wake(self) -> None:
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)

    def _unwritten(self) -> list[StreamEvent]:
        """What is to be written to the log next."""
        start = self._written - self.base
        return self._events[start : start + BATCH_EVENTS]

    async def _write_behind(self) -> None:
        """Writes events to the log in batches until there are none left."""
        pause = GATHER_SECONDS
        while self.last_event > self._written:
            await self._tasks.ledger.clock.sleep(pause)
            self._writing = asyncio.ensure_future(self._write_batch())
            try:
                await asyncio.shield(self._writing)
            except PersistenceUnavailable:
                pause = min(pause * 2, 1.0)
            except Conflict:
                break  # the request has changed hands; its next commit finds out
            else:
                pause = GATHER_SECONDS
                if self.last_event - self._written < MOST_UNWRITTEN:
                    self._drained.set()
        self._drained.set()

    async def _write_batch(self) -> None:
        batch = self._unwritten()
        if batch:
            self._written = await self._tasks.streams.write(
                self.partition, self.request_id, self._tenure.request_version, batch
            )

    async def _settle_log(self) -> list[StreamEvent]:
        """Stops writing behind, and returns the last few events, which go with the end's own commit."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        while unwritten := self._unwritten():
            batch, fits = portion(unwritten)
            if fits and batch[-1].id == self.last_event:
                return batch
            try:
                await self._persist(self._write_batch)
            except Conflict:
                break  # as above
        return []


class Complete(Struct, frozen=True):
    """The model has answered."""

    #: where a remote conversation goes on
    remote_id: str | None
    #: what the conversation remembers
    context: Json | None


def terminal_name(status: Status) -> EventName:
    """The event that ends the stream of a request with this status."""
    return {"Completed": "final-response", "Paused": "approval-required"}.get(status, "error")  # type: ignore[return-value]


def _pause_message(event: HumanNeeded) -> str:
    names = ", ".join(call.tool for call in event.calls)
    if event.authorizations:
        return f"Your authorization is needed before {names} can run: visit the listed URLs, then approve."
    if event.awaits_owner:
        return f"{names} is approved and waits for the owner of the task to resume it."
    return f"Approval is needed before {names} can run."
