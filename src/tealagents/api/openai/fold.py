"""The events of one response, made of what was recorded of it: pure, so that any tail can be made again.

The events are numbered from 0 without a gap. A follower who has seen some of them is sent what the same fold
makes of the same records, without those: `Fold(about, after=n)` gives exactly what `Fold(about)` gives behind
number n.
"""

import msgspec

from tealagents.api.openai import documents, names
from tealagents.api.openai.documents import About
from tealagents.domain.errors import TealError
from tealagents.domain.events import (
    Canceled,
    Completed,
    Event,
    Failed,
    Paused,
    Recorded,
    Started,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from tealagents.domain.models import Approval, Failure, Json, Outcome, ToolCall

DONE = b"data: [DONE]\n\n"
#: finish reasons with which an answer is not whole
_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: an `after` behind every event: nothing is encoded, only `response` and `output` are made
UNSEEN = 2**53

encode = msgspec.json.Encoder().encode


class _Part:
    """The piece of a message that is being written."""

    def __init__(self, place: Json, *, refusal: bool) -> None:
        self.place = place
        self.refusal = refusal
        self.kind = "refusal" if refusal else "output_text"
        self.text: list[str] = []
        self.annotations: list[Json] = []
        name = f"response.{self.kind}.delta"
        constant: Json = {"type": name, **place, **({} if refusal else {"logprobs": []})}
        #: a delta's frame around its number and its text, which are all that differs
        self.frame = b"event: %b\ndata: %b" % (name.encode(), encode(constant)[:-1].replace(b"%", b"%%"))
        self.frame += b',"sequence_number":%d,"delta":%b}\n\n'


class Fold:
    """The fold of one response. `output` and `response` are what has come of it so far."""

    def __init__(self, about: About, *, after: int = -1) -> None:
        self._about = about
        self._after = after
        self._next = 0
        self._frames: list[bytes] = []
        self._queued = False
        self._message: Json | None = None
        self._part: _Part | None = None
        #: the calls under way, by their ids
        self._calls: dict[str, tuple[int, Json]] = {}
        self.output: list[Json] = []
        #: the last document of the response; None before the first event
        self.response: Json | None = None

    def __call__(self, recorded: Recorded) -> bytes:
        """The frames of one event; the marker of the end behind the last."""
        self._frames = []
        self.take(recorded.event)
        return b"".join(self._frames)

    def take(self, event: Event) -> None:
        if isinstance(event, Started):
            self._open(event.status)
            return
        self._open("Running")
        if self._queued:
            self._queued = False
            self._tell("response.in_progress", "in_progress")
        match event:
            case TextDelta(text, refusal):
                self._delta(text, refusal=refusal)
            case ToolCalled(call):
                self._called(call)
            case ToolReturned() if event.call_id in self._calls:
                self._returned(event)
            case Paused(approval) if approval is not None:
                self._paused(approval)
            case Completed(outcome) if outcome is not None:
                self._completed(outcome)
            case Failed(failure):
                self._ended("failed", failure)
            case Canceled():
                self._ended("cancelled")

    def failed(self, error: TealError) -> bytes:
        """The frame of an error that is no part of what was recorded."""
        data = {"type": "error", "code": error.code, "message": error.detail, "param": None}
        return b"event: error\ndata: %b\n\n%b" % (encode({**data, "sequence_number": self._next}), DONE)

    # --- frames ----------------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: object) -> None:
        if self._next > self._after:
            data = encode({"type": kind, "sequence_number": self._next, **fields})
            self._frames.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._next += 1

    def _tell(self, kind: str, status: str, **fields: object) -> None:
        self.response = self._about.response(status, self.output, **fields)  # type: ignore[arg-type]
        self._emit(kind, response=self.response)

    def _open(self, status: str) -> None:
        if self.response is None:
            self._queued = status == "Queued"
            shown = "queued" if self._queued else "in_progress"
            self._tell("response.created", shown)
            self._tell(f"response.{shown}", shown)

    def _add(self, item: Json, **begun: object) -> Json:
        """A new item, shown as it begins; returns where it is."""
        self.output.append(item)
        index = len(self.output) - 1
        self._emit("response.output_item.added", output_index=index, item={**item, **begun})
        return {"output_index": index, "item_id": item["id"]}

    def _done(self, index: int) -> None:
        self._emit("response.output_item.done", output_index=index, item=self.output[index])

    # --- text ------------------------------------------------------------------------------------

    def _delta(self, text: str, *, refusal: bool = False) -> None:
        part = self._part
        if part is None or part.refusal != refusal:
            part = self._open_part(refusal=refusal)
        part.text.append(text)
        if self._next > self._after:
            self._frames.append(part.frame % (self._next, encode(text)))
        self._next += 1

    def _open_part(self, *, refusal: bool) -> _Part:
        self._close_part()
        if self._message is None:
            self._message = documents.message(self._item_id("msg"), "assistant", "in_progress")
            self._add(self._message)
        index, content = len(self.output) - 1, self._message["content"]
        place = {"item_id": self._message["id"], "output_index": index, "content_index": len(content)}
        self._part = _Part(place, refusal=refusal)
        self._emit("response.content_part.added", **place, part=documents.text_part("", refusal=refusal))
        return self._part

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is None or self._message is None:
            return
        text = "".join(part.text)
        shown = documents.text_part(text, refusal=part.refusal, annotations=part.annotations)
        self._message["content"].append(shown)
        for n, annotation in enumerate(part.annotations):
            kind = "response.output_text.annotation.added"
            self._emit(kind, **part.place, annotation_index=n, annotation=annotation)
        whole = {"refusal": text} if part.refusal else {"text": text, "logprobs": []}
        self._emit(f"response.{part.kind}.done", **part.place, **whole)
        self._emit("response.content_part.done", **part.place, part=shown)

    def _close(self, status: str = "completed") -> None:
        """The message is whole, or stays as it is."""
        self._close_part()
        message, self._message = self._message, None
        if message is not None:
            message["status"] = status
            self._done(len(self.output) - 1)

    # --- calls -----------------------------------------------------------------------------------

    def _called(self, call: ToolCall) -> None:
        self._close()
        about, before = self._about, self._about.before
        shown = [each.id for each in before.calls] if before is not None else []
        asked = None
        if before is not None and call.id in shown:
            asked = names.made("mcpr", before.approval_id, shown.index(call.id))
        item = documents.server_call(self._item_id("mcp"), call, about.agent, asked)
        place = self._add(item, arguments="")
        self._calls[call.id] = place["output_index"], item
        self._emit("response.mcp_call.in_progress", **place)
        self._emit("response.mcp_call_arguments.delta", **place, delta=call.arguments)
        self._emit("response.mcp_call_arguments.done", **place, arguments=call.arguments)

    def _returned(self, event: ToolReturned) -> None:
        index, item = self._calls.pop(event.call_id)
        if event.is_error:
            content = [{"type": "text", "text": event.output}]
            item |= {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": content}}
        else:
            item |= {"status": "completed", "output": event.output}
        self._emit(f"response.mcp_call.{item['status']}", output_index=index, item_id=item["id"])
        self._done(index)

    def _give_up_calls(self) -> None:
        for index, item in self._calls.values():
            item["status"] = "incomplete"
            self._done(index)
        self._calls.clear()

    # --- ends ------------------------------------------------------------------------------------

    def _paused(self, approval: Approval) -> None:
        self._close()
        self._give_up_calls()
        if approval.authorizations:
            self._link(approval)
        for n, call in enumerate(approval.calls):
            if call.by_client:
                item = documents.client_call(approval, n)
                place = self._add(item, arguments="", status="in_progress")
                kind = "response.function_call_arguments"
                self._emit(f"{kind}.delta", **place, delta=call.arguments)
                self._emit(f"{kind}.done", **place, arguments=call.arguments)
            else:
                place = self._add(documents.approval_request(approval, n, self._about.agent))
            self._done(place["output_index"])
        if approval.status in ("canceled", "expired"):
            self._finish("response.failed", "cancelled")
        else:
            self._finish("response.completed", "completed", total=approval.usage)

    def _link(self, approval: Approval) -> None:
        """The user's own consent is needed: where it is given stands in the text, and as its citations."""
        part = self._open_part(refusal=False)
        self._delta(approval.message)
        end = len(approval.message)
        for each in approval.authorizations:
            title, url = str(each["server"]), str(each["url"])
            start = end + len(f"\n{title}: ")
            end = start + len(url)
            self._delta(f"\n{title}: {url}")
            cited = {"type": "url_citation", "url": url, "title": title}
            part.annotations.append({**cited, "start_index": start, "end_index": end})
        self._close()

    def _completed(self, outcome: Outcome) -> None:
        if outcome.output and self._part is None:
            self._delta(outcome.output, refusal=outcome.finish_reason == "refusal")
        cut_short = _CUT_SHORT.get(outcome.finish_reason or "")
        status = "incomplete" if cut_short else "completed"
        self._close(status)
        self._give_up_calls()
        self._finish(f"response.{status}", status, total=outcome.usage, cut_short=cut_short)

    def _ended(self, status: str, failure: Failure | None = None) -> None:
        self._close("incomplete")
        self._give_up_calls()
        # there is no event for a response that was cancelled: its status says it
        self._finish("response.failed", status, failure=failure)

    def _finish(self, kind: str, status: str, **fields: object) -> None:
        self._tell(kind, status, **fields)
        self._frames.append(DONE)

    def _item_id(self, kind: str) -> str:
        return names.made(kind, self._about.request_id, self._about.number, len(self.output))
