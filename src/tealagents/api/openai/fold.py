"""The events of one response, made of what was recorded of it: pure, so that any tail can be made again.

The events are numbered from 0 on. A follower who has seen some of them is sent the others of the same fold:
`ResponseFold(…, after=n)` gives exactly what `ResponseFold(…)` gives behind number n.
"""

from datetime import datetime

from tealagents.api import sse
from tealagents.api.decisions import pause_text
from tealagents.api.folding import EventFold
from tealagents.api.names import made
from tealagents.api.openai import documents, errors
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import TealError
from tealagents.domain.events import Event, Started, ToolReturned
from tealagents.domain.models import Approval, Failure, Json, Outcome, TokenUsage, ToolCall

DONE = b"data: [DONE]\n\n"
#: finish reasons with which an answer is not whole
_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: an `after` behind every event: nothing is encoded, only `response` is of interest
UNSEEN = 2**53


class ResponseFold(EventFold):
    """The fold of one response."""

    def __init__(self, stretch: Stretch, agent: str, *, after: int = -1) -> None:
        super().__init__(after=stretch.after)
        self._stretch = stretch
        self._agent = agent
        self._after = after
        self._next = 0
        #: the content of the message that is being written, its text so far, and where it is
        self._part: Json = {}
        self._text: list[str] = []
        self._place: Json = {}
        #: where the calls under way are, by their ids
        self._calls: dict[str, Json] = {}
        self._output: list[Json] = []
        #: how the response stands, empty before the first event, and what comes with its end
        self._status = ""
        self._outcome: Json = {}

    @property
    def response(self) -> Json:
        """The document of the response so far."""
        now = {"status": self._status, "output": self._output, **self._outcome}
        return documents.response(self._stretch, self._agent, **now)

    def take(self, event: Event) -> None:
        """The response is there with its first event."""
        if not self._status:
            self._show("created", "queued" if event == Started("Queued") else "in_progress")
            self._show(self._status, self._status)
        super().take(event)

    def missed(self, events: int) -> None:
        self._next += 10 * events  # more than they can have made, so that no follower has seen these numbers

    def begun(self) -> None:
        self._show("in_progress", "in_progress")

    def failed(self, error: TealError) -> bytes:
        """The frame of an error that is not recorded, with the number behind which its client continues."""
        number, raised = max(self._next - 1, self._after, 0), _raised(Failure(error.code, error.detail))
        return sse.frame(None, "error", {"type": "error", "sequence_number": number, **raised}) + DONE

    def _emit(self, kind: str, **fields: object) -> None:
        if self._next > self._after:
            kind = kind if kind == "error" else f"response.{kind}"
            self.frames.append(sse.frame(None, kind, {"type": kind, "sequence_number": self._next, **fields}))
        self._next += 1

    def _show(self, kind: str, status: str, **outcome: object) -> None:
        self._status, self._outcome = status, outcome
        # a document costs more than all else here: it is made where it is sent
        self._emit(kind, **({"response": self.response} if self._next > self._after else {}))

    def _add(self, item: Json, **begun: object) -> Json:
        """A new item, shown as it begins; returns where it is."""
        self._output.append(item)
        index = len(self._output) - 1
        self._emit("output_item.added", output_index=index, item={**item, **begun})
        return {"output_index": index, "item_id": item["id"]}

    def _done(self, place: Json) -> None:
        index = place["output_index"]
        self._emit("output_item.done", output_index=index, item=self._output[index])

    def _item_id(self, kind: str) -> str:
        return made(kind, self._stretch.record.request_id, self._stretch.number, len(self._output))

    def text(self, text: str, *, refusal: bool = False, **of_message: str) -> None:
        kind = "refusal" if refusal else "output_text"
        if self._part.get("type") != kind:
            self.text_ended()
            self._part = documents.text_part("", refusal=refusal)
            message = documents.message(self._item_id("msg"), "assistant", "in_progress")
            self._place = {**self._add({**message, **of_message}), "content_index": 0}
            self._emit("content_part.added", **self._place, part=self._part)
        self._text.append(text)
        self._emit(f"{kind}.delta", **self._place, delta=text, **({} if refusal else {"logprobs": []}))

    def text_ended(self, status: str = "completed") -> None:
        """The message is whole, or stays as it is (`incomplete`)."""
        part, place, text = self._part, self._place, "".join(self._text)
        if not part:
            return
        self._part, self._text = {}, []
        part["refusal" if part["type"] == "refusal" else "text"] = text
        for n, annotation in enumerate(part.get("annotations", ())):
            self._emit("output_text.annotation.added", **place, annotation_index=n, annotation=annotation)
        whole = {name: part[name] for name in ("refusal", "text", "logprobs") if name in part}
        self._emit(f"{part['type']}.done", **place, **whole)
        self._emit("content_part.done", **place, part=part)
        self._output[-1] |= {"status": status, "content": [part]}
        self._done(place)

    def called(self, call: ToolCall) -> None:
        before = self._stretch.before
        places = {each.id: n for n, each in enumerate(before.calls)} if before else {}
        approved = made("mcpr", before.approval_id, places[call.id]) if before and call.id in places else None
        item = documents.server_call(self._item_id("mcp"), call, self._agent, approved)
        self._calls[call.id] = place = self._add(item, arguments="")
        self._emit("mcp_call.in_progress", **place)
        self._arguments("mcp_call_arguments", place, call)

    def _arguments(self, kind: str, place: Json, call: ToolCall, **named: str) -> None:
        self._emit(f"{kind}.delta", **place, delta=call.arguments)
        self._emit(f"{kind}.done", **place, arguments=call.arguments, **named)

    def returned(self, event: ToolReturned) -> None:
        if (place := self._calls.pop(event.call_id, None)) is None:
            return
        item = self._output[place["output_index"]]
        if event.is_error:
            content = [{"type": "text", "text": event.output}]
            item |= {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": content}}
        else:
            item |= {"status": "completed", "output": event.output}
        self._emit(f"mcp_call.{item['status']}", **place)
        self._done(place)

    def paused(self, approval: Approval) -> None:
        worded = approval.authorizations or not self._stretch.typed
        if worded and not all(call.by_client for call in approval.calls):
            self._ask(approval)
        for n, call in enumerate(approval.calls):
            item = documents.waiting(approval, n, self._agent)
            place = self._add(item, **({"arguments": "", "status": "in_progress"} if call.by_client else {}))
            if call.by_client:
                self._arguments("function_call_arguments", place, call, name=call.tool)
            self._done(place)
        gone = approval.status in ("canceled", "expired")
        self._finish("cancelled" if gone else "completed", approval.usage, approval.created_at)

    def _ask(self, approval: Approval) -> None:
        """Many clients show text alone. Where consent is given stands in it, and as its citations."""
        text, end = pause_text(approval), len(approval.message)
        self.text(text, phase="commentary")  # which the SDKs do not parse
        for each in approval.authorizations:
            url = str(each["url"])
            start = text.index(url, end)
            end = start + len(url)
            cited = {"type": "url_citation", "url": url, "title": str(each["server"])}
            self._part["annotations"].append({**cited, "start_index": start, "end_index": end})
        self.text_ended()

    def completed(self, outcome: Outcome) -> None:
        if not self.said:  # clients take an answer without a message for none, and ask again
            self.text("")
        cause = _CUT_SHORT.get(outcome.finish_reason or "")
        status = "incomplete" if cause else "completed"
        self._finish(status, outcome.usage, outcome.ended_at, incomplete_details=cause and {"reason": cause})

    def ended(self, failure: Failure, *, canceled: bool) -> None:
        raised = _raised(failure)
        error = {"code": "server_error", "message": failure.detail, "type": raised["code"]}
        if not canceled:
            self._emit("error", **raised)
        self._finish("cancelled" if canceled else "failed", None, None, error=None if canceled else error)

    def _finish(self, status: str, total: TokenUsage | None, at: datetime | None, **outcome: object) -> None:
        """`total` is what the request has used so far, `at` when this ended."""
        if at is not None and status == "completed":
            outcome["completed_at"] = int(at.timestamp())
        self.text_ended("completed" if status == "completed" else "incomplete")
        for place in self._calls.values():
            self._output[place["output_index"]]["status"] = "incomplete"
            self._done(place)
        if total is not None:
            outcome["usage"] = documents.usage(self._stretch.spent(total))
        # there is no event for a response that was cancelled: its status says it
        self._show("failed" if status == "cancelled" else status, status, **outcome)
        self.frames.append(DONE)


def _raised(failure: Failure) -> Json:
    """The fields of an event that clients raise: for what it holds as `error`, which OpenAI sends as well."""
    error = errors.of_failure(failure)["error"]
    return {**{name: error[name] for name in ("code", "message", "param")}, "error": error}
