"""Records a turn: its messages and steps, the outcomes of its tool calls, its output and token usage."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import asdict, replace

from tealagents.domain import ids
from tealagents.domain.models import (
    Approval,
    Body,
    FinishReason,
    Json,
    Message,
    MessageBody,
    Step,
    StepBody,
    TokenUsage,
    ToolCall,
    ToolOutcome,
)
from tealagents.domain.ports import Clock
from tealagents.engine.loop import Answered
from tealagents.engine.toolbox import ToolOutput
from tealagents.state.audit_chain import Draft, draft
from tealagents.state.decisions import intent, shown_calls
from tealagents.state.history import not_returned
from tealagents.state.task_writer import TaskWriter
from tealagents.state.transitions import SERVICE, unreturned_step
from tealagents.threads.views import Report

#: characters of an output that a step repeats; the message has the whole output
OUTPUT_SHOWN = 16_000


class Recorder:
    """Keeps a request's messages and tool calls in memory. Subclasses store them in `record` and `flush`."""

    def __init__(self, request_id: str, clock: Clock, message: Message | None, usage: TokenUsage) -> None:
        """`message` began the request; None after a pause, when earlier messages are added by `recall`."""
        self.request_id = request_id
        self.clock = clock
        self.usage = usage
        self.messages: list[Message] = [message] if message else []
        #: by id, the request's tool calls and their outcomes as far as known
        self.intents: dict[str, ToolOutcome] = {}
        #: by id, the calls that have not returned
        self.running: dict[str, ToolCall] = {}
        #: the answer so far, and why the model stopped
        self.output: list[str] = []
        self.finish_reason: FinishReason | None = None

    @property
    def response(self) -> list[Message]:
        """The messages after the user's own."""
        return self.messages[1:]

    # --- storing ---------------------------------------------------------------------------------

    def record(self, action: str, body: Body, **details: object) -> None:
        """Adds a log entry, to be stored with the next `flush` or with the request's end."""

    async def flush(self) -> None:
        """Stores the entries added so far, before the turn continues."""

    # --- what happens ----------------------------------------------------------------------------

    def answered(self, event: Answered, model: str, tools: int) -> None:
        """Records a model call.

        `model` is its name if the reply has none; `tools` is the number of tools that it could call.
        """
        done, message = event.done, event.message
        self.usage = self.usage + done.usage
        self.finish_reason = done.finish_reason
        if message.tool_calls:
            self.output.clear()  # text beside tool calls is not part of the answer
        output: Json = {
            "message_id": message.message_id,
            "text": message.text[:OUTPUT_SHOWN],
            "tool_calls": [call.tool for call in message.tool_calls],
            "first_piece_ms": event.first_piece_ms,
            "refusal": event.refusal,
        }
        step = Step(
            step_id=ids.random_id(),
            request_id=self.request_id,
            kind="model",
            name=done.model or model,
            started_at=event.started_at,
            duration_ms=event.duration_ms,
            input={"messages": event.messages_sent, "tools": tools},
            output=output,
            usage=done.usage,
            outcome=done.finish_reason,
        )
        self.record("model.called", StepBody(step))
        if message.tool_calls:
            self.add(message)
        else:  # the request may still fail, and then has no answer: `concluded` records the message
            self.messages.append(message)

    def concluded(self) -> None:
        """The last message is the request's answer."""
        self.record("message.added", MessageBody(self.messages[-1]))

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.record("message.added", MessageBody(message))

    async def intend(self, calls: Sequence[ToolCall]) -> None:
        """Stores that these calls are about to be made."""
        body, named = intent(self.request_id, calls)
        self.record("tool.intent", body, **named)
        await self.flush()
        self.intended(calls)

    def intended(self, calls: Sequence[ToolCall]) -> None:
        """Notes calls whose intent is stored already."""
        for call in calls:
            self.intents[call.id] = not_returned(call)
            self.running[call.id] = call

    def called(self, result: ToolOutput) -> None:
        """A tool has run."""
        call = result.call
        self.intents[call.id] = replace(self.intents[call.id], outcome=result.outcome)
        self.running.pop(call.id, None)
        step = Step(
            step_id=ids.random_id(),
            request_id=self.request_id,
            kind="tool",
            name=call.tool,
            started_at=self.clock.now() - timedelta(milliseconds=result.duration_ms),
            duration_ms=result.duration_ms,
            input={"call_id": call.id, "arguments": call.arguments},
            output={"output": result.output[:OUTPUT_SHOWN]},
            is_error=result.is_error,
            outcome=result.outcome,
        )
        self.record("tool.called", StepBody(step))

    def noted(self, reports: Sequence[Report]) -> None:
        """Records reports as steps; the tokens of model calls that a report needed count as usage."""
        for report in reports:
            self.usage = self.usage + (report.usage or TokenUsage())
            step = Step(step_id=ids.random_id(), request_id=self.request_id, **asdict(report))
            self.record(f"{step.kind}.noted", StepBody(step))

    def paused(self, approval: Approval) -> None:
        """Records a pause. Its calls have not run, except those that began before they needed their owner."""
        for call in (*approval.calls, *(item.call for item in approval.begun)):
            ran = self.running.pop(call.id, None)
            if not call.begun:
                self.intents.pop(call.id, None)
            elif ran is not None:
                unreturned = unreturned_step(self.request_id, call, approval.created_at)
                self.record("tool.unreturned", unreturned)
        step = Step(
            step_id=ids.random_id(),
            request_id=self.request_id,
            kind="approval",
            name="requested",
            started_at=approval.created_at,
            input={"approval_id": approval.approval_id, "tool_calls": shown_calls(approval.calls)},
        )
        self.record(
            "approval.requested",
            StepBody(step),
            approval_id=approval.approval_id,
            payload_sha256=approval.digest,
        )


class TaskRecorder(Recorder):
    """Stores a turn in its task's log."""

    def __init__(self, writer: TaskWriter, clock: Clock) -> None:
        super().__init__(writer.request.request_id, clock, writer.message, writer.request.usage)
        self._writer = writer
        self._drafts: list[Draft] = []
        #: when the last entry was added; the step of a failure starts then
        self.since = clock.now()

    def record(self, action: str, body: Body, **details: object) -> None:
        self.since = self.clock.now()
        self._drafts.append(draft(action, SERVICE, self.request_id, body, **details))

    def take(self) -> list[Draft]:
        """The entries gathered so far, to be committed with something else."""
        drafts, self._drafts = self._drafts, []
        return drafts

    async def flush(self) -> None:
        """Commits the entries gathered so far. If that fails, they go with the next commit."""
        drafts = self.take()
        if not drafts:
            return
        writing = asyncio.ensure_future(self._writer.append(drafts))
        try:
            await asyncio.shield(writing)
        finally:
            # if canceled, even twice, wait for the commit to end: the request's last commit builds on it
            while not writing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([writing])
            if writing.exception() is not None:
                self._drafts = drafts + self._drafts
