"""Recorded events as the events of one run. Pure: the same events give the same bytes, live and replayed."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tealagents.api.ag_ui.inputs import Given
from tealagents.api.ag_ui.threads import call_id, documents, interrupt_id, message_id, result_id
from tealagents.api.decisions import Answer, asked, until
from tealagents.domain import events
from tealagents.domain.errors import TealError
from tealagents.domain.models import Approval, Json, Message, ToolCall, Usage
from tealagents.engine.approvals import rejection

#: the version of the protocol that is spoken
VERSION = "1.0"
_ANSWER = Answer.model_json_schema()
_encode = msgspec.json.Encoder().encode


def frame(kind: str, **fields: Any) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encode({"type": kind, **fields})


def started(given: Given, ids: Json, messages: Sequence[Message] | None) -> bytes:
    """A run begins; with the messages that it goes on from, where the client has others."""
    run = {"threadId": given.thread_id, "runId": given.run_id, "protocolVersion": VERSION}
    parent = {"parentRunId": given.parent_run_id} if given.parent_run_id is not None else {}
    begun = frame("RUN_STARTED", **run, **parent, metadata={"tealagents": ids})
    return begun if messages is None else begun + frame("MESSAGES_SNAPSHOT", messages=documents(messages))


def finished(given: Given, outcome: Json, **fields: Any) -> bytes:
    """A run ends without an error."""
    return frame("RUN_FINISHED", threadId=given.thread_id, runId=given.run_id, outcome=outcome, **fields)


def outcome_of(pause: Approval | None) -> Json:
    """How a run ends that has its answer, or waits: for decisions, or only for the page's own tools."""
    if pause is None:
        return {"type": "success"}
    if interrupts := [_interrupt(pause, n) for n, call in enumerate(pause.calls) if not call.by_client]:
        return {"type": "interrupt", "interrupts": interrupts}
    calls = [call_id(pause.request_id, call.id) for call in pause.calls]
    return {"type": "success", "pendingToolCallIds": calls}


def _interrupt(pause: Approval, n: int) -> Json:
    """One call that waits for a decision; with links where the user's own consent is needed first."""
    links = list(pause.authorizations)
    return {
        "id": interrupt_id(pause.approval_id, n),
        "reason": "tealagents:authorization" if links else "tool_call",
        "message": asked(pause),
        "toolCallId": call_id(pause.request_id, pause.calls[n].id),
        "responseSchema": _ANSWER,
        "expiresAt": until(pause),
        **({"metadata": {"tealagents": {"authorizations": links}}} if links else {}),
    }


class Fold:
    """The events of a stretch, one at a time."""

    def __init__(
        self, given: Given, ids: Json, before: Approval | None, messages: Sequence[Message] | None
    ) -> None:
        self._given = given
        self._request_id: str = ids["request_id"]
        self._used = before.usage if before else Usage()
        self._frames = [started(given, ids, messages)]
        #: calls that the client knows: from the run before, or from this one
        self._known: set[str] = set()
        #: the text under way, and the assistant's message of the round under way
        self._text: str | None = None
        self._round: str | None = None
        self._steps: dict[str, str] = {}
        for call in before.calls if before else ():
            self._known.add(call.id)
        for decision in before.decisions if before else ():
            if before and decision.action == "reject":
                self._result(decision.id, rejection(before.reason), is_error=True)

    def __call__(self, recorded: events.Recorded) -> bytes:
        match recorded.event:
            case events.TextDelta(text):
                self._said(recorded.id, text)
            case events.ToolCalled(call):
                self._call(recorded.id, call)
                self._begin_step(call)
            case events.ToolReturned(call, _, output, is_error):
                self._round = None
                self._result(call, output, is_error=is_error)
                self._end_step(call)
            case events.Paused(approval) if approval is not None:
                for waiting in approval.calls:
                    self._call(recorded.id, waiting)
                self._finish(outcome_of(approval), approval.usage)
            case events.Completed(outcome) if outcome is not None:
                if outcome.output and self._text is None:
                    self._said(recorded.id, outcome.output)
                result = {"result": outcome.extra_data} if outcome.extra_data else {}
                self._finish(outcome_of(None), outcome.usage, **result)
            case events.Canceled():
                self._finish({"type": "cancelled"}, self._used)
            case events.Failed(error):
                self._error(error.code, error.detail)
        frames, self._frames = b"".join(self._frames), []
        return frames

    def failed(self, error: TealError) -> bytes:
        """The end where what happened cannot be reported."""
        self._error(error.code, error.detail)
        return b"".join(self._frames)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._frames.append(frame(kind, **fields))

    def _said(self, event_id: int, text: str) -> None:
        if self._text is None:
            self._text = self._message(event_id)
            self._emit("TEXT_MESSAGE_START", messageId=self._text, role="assistant")
        self._emit("TEXT_MESSAGE_CONTENT", messageId=self._text, delta=text)

    def _message(self, event_id: int) -> str:
        """The assistant's message of this round; it begins with its first event."""
        self._round = self._round or message_id(self._request_id, event_id)
        return self._round

    def _end_text(self) -> None:
        if self._text is not None:
            self._emit("TEXT_MESSAGE_END", messageId=self._text)
            self._text = None

    def _call(self, event_id: int, call: ToolCall) -> None:
        """A call is shown once: not again when it runs, after its approval."""
        self._end_text()
        if call.id in self._known:
            return
        self._known.add(call.id)
        shown = call_id(self._request_id, call.id)
        parent = self._message(event_id)
        self._emit("TOOL_CALL_START", toolCallId=shown, toolCallName=call.tool, parentMessageId=parent)
        self._emit("TOOL_CALL_ARGS", toolCallId=shown, delta=call.arguments)
        self._emit("TOOL_CALL_END", toolCallId=shown)

    def _result(self, call: str, text: str, *, is_error: bool) -> None:
        ids = {"messageId": result_id(self._request_id, call), "toolCallId": call_id(self._request_id, call)}
        failed = {"metadata": {"tealagents": {"is_error": True}}} if is_error else {}
        self._emit("TOOL_CALL_RESULT", **ids, role="tool", content=text, **failed)

    def _begin_step(self, call: ToolCall) -> None:
        name, n = call.tool, 1
        while name in self._steps.values():
            n += 1
            name = f"{call.tool} #{n}"
        self._steps[call.id] = name
        self._emit("STEP_STARTED", stepName=name)

    def _end_step(self, call: str) -> None:
        if (name := self._steps.pop(call, None)) is not None:
            self._emit("STEP_FINISHED", stepName=name)

    def _finish(self, outcome: Json, used: Usage, **fields: Any) -> None:
        self._end_text()
        for call in list(self._steps):
            self._end_step(call)
        spent = used - self._used
        if total := spent.total_tokens:
            shown = {"inputTokens": spent.prompt_tokens, "outputTokens": spent.completion_tokens}
            fields["usage"] = [{**shown, "totalTokens": total}]
        self._frames.append(finished(self._given, outcome, **fields))

    def _error(self, code: str, message: str) -> None:
        self._emit("RUN_ERROR", message=message, code=code)
