"""Recorded events as the events of one run, and messages as documents.

Ids show the request's, since models use those of calls again and again: `msg_{request}_{n}`, of the nth of
the assistant's messages there, `call_{request}_{call}` and `res_…` of its result, and `int_{pause}_{n}` of an
interrupt. They are the same in streams and snapshots.
"""

from collections.abc import Sequence
from typing import Any

from tealagents.api import items, sse, transcripts
from tealagents.api.ag_ui.inputs import Given
from tealagents.api.decisions import DecisionForm, pause_text
from tealagents.api.folding import EventFold
from tealagents.api.http import timestamp
from tealagents.api.names import made
from tealagents.domain.events import ToolReturned
from tealagents.domain.models import Approval, Failure, Item, Json, Message, Outcome, TokenUsage, ToolCall
from tealagents.engine.resuming import rejection

#: the version of the protocol that is spoken
VERSION = "1.0"
_ANSWER = DecisionForm.model_json_schema()
_FAILED: Json = {"metadata": {"tealagents": {"is_error": True}}}


def frame(kind: str, **fields: Any) -> bytes:
    """One event."""
    return sse.data({"type": kind, **fields})


def started(given: Given, ids: Json, messages: Sequence[Message] | None) -> bytes:
    """A run begins; with the messages that it continues, where the client has others."""
    parent = {"parentRunId": given.body.parent_run_id} if given.body.parent_run_id is not None else {}
    begun = frame("RUN_STARTED", **given.run, protocolVersion=VERSION, **parent, metadata={"tealagents": ids})
    page = given.body.messages
    own = [m.model_dump(by_alias=True, exclude_unset=True) for m in page if m.role in ("system", "developer")]
    documents = (_document(*each) for each in transcripts.as_kept(messages or (), given.kept, _name))
    shown = transcripts.with_own(documents, own, [m.id for m in page])
    return begun + (b"" if messages is None else frame("MESSAGES_SNAPSHOT", messages=shown))


def outcome_of(pause: Approval | None, *, is_old: bool) -> Json:
    """How a run ends that has its answer, or waits: for decisions, or only for the page's own tools."""
    calls = pause.calls if pause else ()
    if pause and (asks := [_interrupt(pause, n) for n, call in enumerate(calls) if not call.by_client]):
        return {"type": "interrupt", "interrupts": asks}
    if pause is None or is_old:  # which refuses the field, and finds the calls by itself
        return {"type": "success"}
    return {"type": "success", "pendingToolCallIds": [made("call", pause.request_id, c.id) for c in calls]}


def _interrupt(pause: Approval, n: int) -> Json:
    """One call that waits for a decision; with links where the user's own consent is needed first."""
    links = list(pause.authorizations)
    return {
        "id": made("int", pause.approval_id, n),
        "reason": "tealagents:authorization" if links else "tool_call",
        "message": pause_text(pause),
        "toolCallId": made("call", pause.request_id, pause.calls[n].id),
        "responseSchema": _ANSWER,
        "expiresAt": timestamp(pause.expires_at),
        **({"metadata": {"tealagents": {"authorizations": links}}} if links else {}),
    }


def _name(message: Message, n: int) -> str:
    if message.role == "tool":
        return made("res", message.request_id, message.tool_call_id)
    return made("msg", message.request_id, n if message.role == "assistant" else message.message_id)


def _document(name: str, message: Message) -> Json:
    """A message of the history."""
    request_id, text = message.request_id, message.text
    said: Json = {"id": name, "role": message.role}
    if message.role == "tool":
        answered = {"toolCallId": made("call", request_id, message.tool_call_id), "content": text}
        return {**said, **answered, **({"error": text, **_FAILED} if message.is_error else {})}
    if message.role == "user":
        plain = len(message.items) < 2 and text
        return {**said, "content": text if plain else list(map(_part, message.items))}
    calls = [items.function_call(made("call", request_id, each.id), each) for each in message.tool_calls]
    return {**said, **({"content": text} if text else {}), **({"toolCalls": calls} if calls else {})}


def _part(item: Item) -> Json:
    if item.content_type == "text":
        return {"type": "text", "text": item.content}
    media_type, value = items.media(item)
    return {"type": "image", "source": {"type": "data", "value": value, "mimeType": media_type}}


class RunFold(EventFold):
    """The events of a stretch, one at a time. It keeps nothing of the input, which may be a long history."""

    def __init__(
        self, given: Given, ids: Json, before: Approval | None, messages: Sequence[Message] | None
    ) -> None:
        super().__init__(started(given, ids, messages))
        self._run, self._is_old, self._request_id = given.run, given.is_old, str(ids["request_id"])
        self._used = before.usage if before else TokenUsage()
        has = [c.id for m in given.body.messages for c in getattr(m, "tool_calls", None) or ()]
        if messages is not None:
            has = [made("call", m.request_id, c.id) for m in messages for c in m.tool_calls]
        #: names of the request's calls that the client has: from the runs before, or from this one
        self._known = {name for name in has if name.startswith(made("call", self._request_id, ""))}
        #: the number of the assistant's message under way
        self._round = before.rounds if before else 0
        #: names of the steps under way, by their calls
        self._steps: dict[str, str] = {}
        for call, decision in zip(before.calls, before.decisions, strict=True) if before else ():
            self._known.add(made("call", self._request_id, call.id))
            if before and decision.action == "reject":
                self._result(call.id, rejection(before, call, decision), is_error=True)

    def text(self, text: str, *, refusal: bool) -> None:
        if not self.said:
            self._emit("TEXT_MESSAGE_START", messageId=self._message(), role="assistant")
        self._emit("TEXT_MESSAGE_CONTENT", messageId=self._message(), delta=text)

    def text_ended(self) -> None:
        self._emit("TEXT_MESSAGE_END", messageId=self._message())

    def called(self, call: ToolCall) -> None:
        self._show(call)
        taken = set(self._steps.values())
        names = [call.tool, *(f"{call.tool} #{n}" for n in range(2, len(taken) + 2))]
        name = self._steps[call.id] = next(each for each in names if each not in taken)
        self._emit("STEP_STARTED", stepName=name)

    def returned(self, event: ToolReturned) -> None:
        self.end_text()
        self._result(event.call_id, event.output, is_error=event.is_error)
        if event.call_id in self._steps:
            self._emit("STEP_FINISHED", stepName=self._steps.pop(event.call_id))

    def paused(self, approval: Approval) -> None:
        if approval.rounds == self._round:  # calls of the same message have run at once
            self.whole = False
        for call in approval.calls:
            self._show(call)
        self._finish(outcome_of(approval, is_old=self._is_old), approval.usage)

    def completed(self, outcome: Outcome) -> None:
        result = {"result": outcome.extra_data} if outcome.extra_data else {}
        self._finish(outcome_of(None, is_old=self._is_old), outcome.usage, **result)

    def ended(self, failure: Failure, *, canceled: bool) -> None:
        self.end_text()  # before an error, too: replays by CopilotKit hold back what follows an open text
        if canceled and not self._is_old:
            self._finish({"type": "cancelled"}, self._used)
        else:
            self._emit("RUN_ERROR", message=failure.detail, code=failure.code)

    def _emit(self, kind: str, **fields: Any) -> None:
        self.frames.append(frame(kind, **fields))

    def _message(self) -> str:
        """The assistant's message of this round; the first thing in it begins it."""
        self._round, self.whole = self._round + self.whole, False
        return made("msg", self._request_id, self._round)

    def _show(self, call: ToolCall) -> None:
        """A call is shown once: not again when it runs, after its approval."""
        if (shown := made("call", self._request_id, call.id)) in self._known:
            return
        self._known.add(shown)
        begun = {"toolCallName": call.tool, "parentMessageId": self._message()}
        self._emit("TOOL_CALL_START", toolCallId=shown, **begun)
        self._emit("TOOL_CALL_ARGS", toolCallId=shown, delta=call.arguments)
        self._emit("TOOL_CALL_END", toolCallId=shown)

    def _result(self, call: str, text: str, *, is_error: bool) -> None:
        answered, shown = made("call", self._request_id, call), made("res", self._request_id, call)
        said = {"role": "tool", "content": text, **(_FAILED if is_error else {})}
        self._emit("TOOL_CALL_RESULT", messageId=shown, toolCallId=answered, **said)

    def _finish(self, outcome: Json, used: TokenUsage, **fields: Any) -> None:
        self.end_text()
        for name in self._steps.values():
            self._emit("STEP_FINISHED", stepName=name)
        spent = used - self._used
        # some services count what was reasoned in the total alone; here it is output
        if total := max(spent.total_tokens, spent.prompt_tokens + spent.completion_tokens):
            shown = {"inputTokens": spent.prompt_tokens, "outputTokens": total - spent.prompt_tokens}
            fields["usage"] = [{**shown, "totalTokens": total}]
        self._emit("RUN_FINISHED", **self._run, outcome=outcome, **fields)
