"""What a run has to write down: the messages and steps of its request, and what its tools may have done."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.models import (
    Approval,
    Json,
    Message,
    MessageBody,
    Step,
    StepBody,
    ToolCall,
    ToolOutcome,
    Usage,
)
from tealagents.domain.ports import Clock
from tealagents.engine.loop import Answered
from tealagents.engine.toolbox import ToolResult
from tealagents.engine.turns import steps_of
from tealagents.state.audit_chain import Draft, draft
from tealagents.state.decisions import intent_draft, shown_calls
from tealagents.state.history import ARGUMENTS_SHOWN
from tealagents.state.task_writer import TaskWriter
from tealagents.state.transitions import SERVICE
from tealagents.threads.views import Report

#: characters of an output that a step repeats; the message holds all of it
OUTPUT_SHOWN = 16_000


class TurnRecorder:
    """The entries of one request that are not written yet, and what they sum up to."""

    def __init__(self, writer: TaskWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._drafts: list[Draft] = []
        self.usage = writer.request.usage
        #: the request's messages so far, those before a pause included once they are recalled
        self.messages: list[Message] = [writer.message] if writer.message else []
        #: the request's tool calls by id, and what is known of them
        self.intents: dict[str, ToolOutcome] = {}

    @property
    def response(self) -> list[Message]:
        """What has been said in answer to the user's message."""
        return self.messages[1:]

    # --- writing ---------------------------------------------------------------------------------

    def take(self) -> list[Draft]:
        """The entries gathered so far, for whoever commits them."""
        drafts, self._drafts = self._drafts, []
        return drafts

    async def flush(self) -> None:
        """Commits the entries gathered so far. Those that were not written go with the next commit."""
        drafts = self.take()
        if not drafts:
            return
        writing = asyncio.ensure_future(self._writer.append(drafts))
        try:
            await asyncio.shield(writing)
        finally:
            # canceled in the middle, even twice, it is seen to its end: what ends the request builds on it
            while not writing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([writing])
            if writing.exception() is not None:
                self._drafts = drafts + self._drafts

    # --- entries ---------------------------------------------------------------------------------

    def answered(self, event: Answered, *, model: str, tools: int) -> None:
        """The model has answered: `model`, unless it gives its name, which could call so many `tools`."""
        done, message = event.done, event.message
        self.usage = self.usage + done.usage
        output: Json = {
            "message_id": message.message_id,
            "text": message.text[:OUTPUT_SHOWN],
            "tool_calls": [call.tool for call in message.tool_calls],
            "first_piece_ms": event.first_piece_ms,
            "refusal": event.refusal,
        }
        self._step(
            "model.called",
            Step(
                step_id=ids.random_id(),
                request_id=self._request_id,
                kind="model",
                name=done.model or model,
                started_at=event.started_at,
                duration_ms=event.duration_ms,
                input={"messages": event.messages_sent, "tools": tools},
                output=output,
                usage=done.usage,
                outcome=done.finish_reason,
            ),
        )
        self.add(message)

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._drafts.append(draft("message.added", SERVICE, self._request_id, MessageBody(message)))

    async def intend(self, calls: Sequence[ToolCall]) -> None:
        """Tools are about to run: that is stored before they do."""
        self._drafts.append(intent_draft(self._request_id, calls, SERVICE))
        await self.flush()
        for call in calls:
            self.intended(call)

    def intended(self, call: ToolCall) -> None:
        """A call whose intent is stored already."""
        shown = call.arguments[:ARGUMENTS_SHOWN]
        self.intents[call.id] = ToolOutcome(call.id, call.tool, shown, "unknown")

    def called(self, result: ToolResult) -> None:
        """A tool has run."""
        call = result.call
        self.intents[call.id] = replace(self.intents[call.id], outcome=result.outcome)
        self._step(
            "tool.called",
            Step(
                step_id=ids.random_id(),
                request_id=self._request_id,
                kind="tool",
                name=call.tool,
                started_at=self._clock.now() - timedelta(milliseconds=result.duration_ms),
                duration_ms=result.duration_ms,
                input={"call_id": call.id, "arguments": call.arguments},
                output={"output": result.output[:OUTPUT_SHOWN]},
                is_error=result.is_error,
                outcome=result.outcome,
            ),
        )

    def noted(self, reports: Sequence[Report]) -> None:
        """What was done to what the model is sent; calls of the model that it took are part of the usage."""
        for step in steps_of(reports, self._request_id):
            self.usage = self.usage + (step.usage or Usage())
            self._step(f"{step.kind}.noted", step)

    def asked(self, approval: Approval) -> None:
        """Calls wait for a human; they have not run."""
        for call in approval.calls:
            self.intents.pop(call.id, None)
        step = Step(
            step_id=ids.random_id(),
            request_id=self._request_id,
            kind="approval",
            name="requested",
            started_at=approval.created_at,
            input={"approval_id": approval.approval_id, "tool_calls": shown_calls(approval.calls)},
        )
        self._drafts.append(
            draft(
                "approval.requested",
                SERVICE,
                self._request_id,
                StepBody(step),
                approval_id=approval.approval_id,
                payload_sha256=approval.digest,
            )
        )

    @property
    def _request_id(self) -> str:
        return self._writer.request.request_id

    def _step(self, action: str, step: Step) -> None:
        self._drafts.append(draft(action, SERVICE, self._request_id, StepBody(step)))
