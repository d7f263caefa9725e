"""The events of one response, made of what was recorded of it: pure, so that any tail can be made again.

The events are numbered from 0 without a gap. A follower who has seen some of them is sent what the same fold
makes of the same records, without those: `ResponseFold(about, after=n)` gives exactly what
`ResponseFold(about)` gives behind number n.
"""

import msgspec

from tealagents.api import sse
from tealagents.api.decisions import asked
from tealagents.api.folding import EventFold
from tealagents.api.names import made
from tealagents.api.openai import documents
from tealagents.api.openai.documents import About
from tealagents.domain.errors import TealError
from tealagents.domain.events import Event, Started, ToolReturned
from tealagents.domain.models import Approval, Failure, Json, Outcome, ToolCall

DONE = b"data: [DONE]\n\n"
#: finish reasons with which an answer is not whole
_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: an `after` behind every event: nothing is encoded, only `response` is of interest
UNSEEN = 2**53

_encode = msgspec.json.Encoder().encode


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
        self.frame = b"event: %b\ndata: %b" % (name.encode(), _encode(constant)[:-1].replace(b"%", b"%%"))
        self.frame += b',"sequence_number":%d,"delta":%b}\n\n'


class ResponseFold(EventFold):
    """The fold of one response."""

    def __init__(self, about: About, *, after: int = -1) -> None:
        super().__init__()
        self._about = about
        self._after = after
        self._next = 0
        #: what is being written of the message that is the last item
        self._part: _Part | None = None
        #: where the calls under way are, by their ids
        self._calls: dict[str, Json] = {}
        self._output: list[Json] = []
        #: how the response stands, empty before the first event, and what comes with its end
        self._status = ""
        self._outcome: Json = {}

    @property
    def response(self) -> Json:
        """The document of the response so far."""
        return self._about.response(self._status, self._output, **self._outcome)

    def take(self, event: Event) -> None:
        if self._status in ("", "queued"):
            self._begin(event)
        super().take(event)

    def failed(self, error: TealError) -> bytes:
        """The frame of an error that is no part of what was recorded."""
        data = {"type": "error", "code": error.code, "message": error.detail, "param": None}
        return sse.frame(None, "error", {**data, "sequence_number": self._next}) + DONE

    # --- frames ----------------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: object) -> None:
        if self._next > self._after:
            data = {"type": kind, "sequence_number": self._next, **fields}
            self.frames.append(sse.frame(None, kind, data))
        self._next += 1

    def _show(self, kind: str, status: str, **outcome: object) -> None:
        self._status, self._outcome = status, outcome
        # a document costs more than all else here: it is made where it is sent
        shown = {"response": self.response} if self._next > self._after else {}
        self._emit(kind, **shown)

    def _begin(self, event: Event) -> None:
        """The response is there with its first event, and under way with the first that is no start."""
        if not self._status:
            queued = isinstance(event, Started) and event.status == "Queued"
            shown = "queued" if queued else "in_progress"
            self._show("response.created", shown)
            self._show(f"response.{shown}", shown)
        elif not isinstance(event, Started):
            self._show("response.in_progress", "in_progress")

    def _add(self, item: Json, **begun: object) -> Json:
        """A new item, shown as it begins; returns where it is."""
        self._output.append(item)
        index = len(self._output) - 1
        self._emit("response.output_item.added", output_index=index, item={**item, **begun})
        return {"output_index": index, "item_id": item["id"]}

    def _done(self, place: Json) -> None:
        index = place["output_index"]
        self._emit("response.output_item.done", output_index=index, item=self._output[index])

    def _item_id(self, kind: str) -> str:
        return made(kind, self._about.request_id, self._about.number, len(self._output))

    # --- text ------------------------------------------------------------------------------------

    def text(self, text: str, *, refusal: bool = False) -> None:
        part = self._part
        if part is None or part.refusal != refusal:
            part = self._open_part(refusal=refusal)
        part.text.append(text)
        if self._next > self._after:
            self.frames.append(part.frame % (self._next, _encode(text)))
        self._next += 1

    def text_ended(self) -> None:
        self._close("completed")

    def _open_part(self, *, refusal: bool) -> _Part:
        if self._part is None:
            self._add(documents.message(self._item_id("msg"), "assistant", "in_progress"))
        else:
            self._close_part(self._part)
        index, message = len(self._output) - 1, self._output[-1]
        place = {"item_id": message["id"], "output_index": index, "content_index": len(message["content"])}
        self._part = _Part(place, refusal=refusal)
        self._emit("response.content_part.added", **place, part=documents.text_part("", refusal=refusal))
        return self._part

    def _close_part(self, part: _Part) -> None:
        text = "".join(part.text)
        shown = documents.text_part(text, refusal=part.refusal, annotations=part.annotations)
        self._output[-1]["content"].append(shown)
        for n, annotation in enumerate(part.annotations):
            kind = "response.output_text.annotation.added"
            self._emit(kind, **part.place, annotation_index=n, annotation=annotation)
        whole = {"refusal": text} if part.refusal else {"text": text, "logprobs": []}
        self._emit(f"response.{part.kind}.done", **part.place, **whole)
        self._emit("response.content_part.done", **part.place, part=shown)

    def _close(self, status: str) -> None:
        """The message is whole, or stays as it is."""
        if self._part is not None:
            self._close_part(self._part)
            self._output[-1]["status"] = status
            self._done(self._part.place)
            self._part = None

    # --- calls -----------------------------------------------------------------------------------

    def called(self, call: ToolCall) -> None:
        before = self._about.before
        places = {each.id: n for n, each in enumerate(before.calls)} if before else {}
        approved = made("mcpr", before.approval_id, places[call.id]) if before and call.id in places else None
        item = documents.server_call(self._item_id("mcp"), call, self._about.agent, approved)
        self._calls[call.id] = place = self._add(item, arguments="")
        self._emit("response.mcp_call.in_progress", **place)
        self._arguments("response.mcp_call_arguments", place, call)

    def _arguments(self, kind: str, place: Json, call: ToolCall) -> None:
        self._emit(f"{kind}.delta", **place, delta=call.arguments)
        self._emit(f"{kind}.done", **place, arguments=call.arguments)

    def returned(self, event: ToolReturned) -> None:
        place = self._calls.pop(event.call_id, None)
        if place is None:
            return
        item = self._output[place["output_index"]]
        if event.is_error:
            content = [{"type": "text", "text": event.output}]
            item |= {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": content}}
        else:
            item |= {"status": "completed", "output": event.output}
        self._emit(f"response.mcp_call.{item['status']}", **place)
        self._done(place)

    def _give_up_calls(self) -> None:
        for place in self._calls.values():
            self._output[place["output_index"]]["status"] = "incomplete"
            self._done(place)
        self._calls.clear()

    # --- ends ------------------------------------------------------------------------------------

    def paused(self, approval: Approval) -> None:
        self._give_up_calls()
        if approval.authorizations:
            self._link(approval)
        for n, call in enumerate(approval.calls):
            item = documents.waiting(approval, n, self._about.agent)
            begun = {"arguments": "", "status": "in_progress"} if call.by_client else {}
            place = self._add(item, **begun)
            if call.by_client:
                self._arguments("response.function_call_arguments", place, call)
            self._done(place)
        if approval.status in ("canceled", "expired"):
            self._finish("failed", "cancelled")
        else:
            self._finish("completed", "completed", total=approval.usage)

    def _link(self, approval: Approval) -> None:
        """The user's own consent is needed: where it is given stands in the text, and as its citations."""
        part, text, end = self._open_part(refusal=False), asked(approval), len(approval.message)
        self.text(text)
        for each in approval.authorizations:
            url = str(each["url"])
            start = text.index(url, end)
            end = start + len(url)
            cited = {"type": "url_citation", "url": url, "title": str(each["server"])}
            part.annotations.append({**cited, "start_index": start, "end_index": end})
        self._close("completed")

    def completed(self, outcome: Outcome) -> None:
        cut_short = _CUT_SHORT.get(outcome.finish_reason or "")
        status = "incomplete" if cut_short else "completed"
        self._finish(status, status, total=outcome.usage, cut_short=cut_short)

    def ended(self, failure: Failure, *, canceled: bool) -> None:
        # there is no event for a response that was cancelled: its status says it
        if canceled:
            self._finish("failed", "cancelled")
        else:
            self._finish("failed", "failed", failure=failure)

    def _finish(self, event: str, status: str, **outcome: object) -> None:
        self._close("completed" if status == "completed" else "incomplete")
        self._give_up_calls()
        self._show(f"response.{event}", status, **outcome)
        self.frames.append(DONE)
