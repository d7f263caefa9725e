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

_encode = msgspec.json.Encoder().encode


class _Part:
    """The piece of a message that is being written."""

    def __init__(self, item_id: str, output_index: int, content_index: int, *, refusal: bool) -> None:
        self.place: Json = {
            "item_id": item_id,
            "output_index": output_index,
            "content_index": content_index,
        }
        self.refusal = refusal
        self.kind = "refusal" if refusal else "output_text"
        self.text: list[str] = []
        self.annotations: list[Json] = []
        logprobs = b"" if refusal else b',"logprobs":[]'
        name = b"response.%b.delta" % self.kind.encode()
        #: a delta's frame around its number and its text, which are all that differs
        self.frame = (
            b'event: %b\ndata: {"type":"%b",%b%b,"sequence_number":'
            % (name, name, _encode(self.place)[1:-1], logprobs)
            + b'%d,"delta":%b}\n\n'
        )


class Fold:
    """The fold of one response. `output` and `response` are what has come of it so far."""

    def __init__(self, about: About, *, after: int = -1) -> None:
        self._about = about
        self._after = after
        self._next = 0
        self._frames: list[bytes] = []
        self._opened = self._queued = False
        self._message: Json | None = None
        self._part: _Part | None = None
        #: the places of the calls under way, by call
        self._calls: dict[str, int] = {}
        self.output: list[Json] = []
        #: the last document of the response; None before the first event
        self.response: Json | None = None

    def __call__(self, recorded: Recorded) -> bytes:
        """The frames of one event; the marker of the end behind the last."""
        self._frames = []
        self.take(recorded.event)
        return b"".join(self._frames)

    def take(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._begin()
            self._delta(event.text, refusal=event.refusal)
            return
        match event:
            case Started(status):
                self._open(status)
            case ToolCalled(call):
                self._begin()
                self._called(call)
            case ToolReturned():
                self._begin()
                self._returned(event)
            case Paused(approval):
                self._begin()
                self._paused(approval)
            case Completed(outcome):
                self._begin()
                self._completed(outcome)
            case Failed(failure):
                self._ended("failed", failure)
            case Canceled():
                self._ended("cancelled", None)

    def failed(self, error: TealError) -> bytes:
        """The frame of an error that is no part of what was recorded."""
        code, message = error.code, error.detail
        data = {"type": "error", "code": code, "message": message, "param": None}
        return b"event: error\ndata: %b\n\n%b" % (_encode({**data, "sequence_number": self._next}), DONE)

    # --- frames ----------------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: object) -> None:
        if self._next > self._after:
            data = _encode({"type": kind, "sequence_number": self._next, **fields})
            self._frames.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._next += 1

    def _tell(self, name: str, response: Json) -> None:
        self.response = response
        self._emit(name, response=response)

    # --- beginning -------------------------------------------------------------------------------

    def _open(self, status: str) -> None:
        if self._opened:
            return
        self._opened, self._queued = True, status == "Queued"
        shown = self._about.response("queued" if self._queued else "in_progress")
        self._tell("response.created", shown)
        self._tell("response.queued" if self._queued else "response.in_progress", shown)

    def _begin(self) -> None:
        """The response is in progress from its first event on."""
        self._open("Running")
        if self._queued:
            self._queued = False
            self._tell("response.in_progress", self._about.response("in_progress"))

    # --- text ------------------------------------------------------------------------------------

    def _delta(self, text: str, *, refusal: bool = False) -> None:
        part = self._part
        if part is None or part.refusal != refusal:
            part = self._open_part(refusal=refusal)
        part.text.append(text)
        if self._next > self._after:
            self._frames.append(part.frame % (self._next, _encode(text)))
        self._next += 1

    def _open_part(self, *, refusal: bool) -> _Part:
        self._close_part()
        if self._message is None:
            self._message = documents.message(self._item_id("msg"))
            self.output.append(self._message)
            self._emit("response.output_item.added", output_index=self._last, item=self._message)
        content = self._message["content"]
        part = self._part = _Part(self._message["id"], self._last, len(content), refusal=refusal)
        shown = documents.text_part("", refusal=refusal)
        self._emit("response.content_part.added", **part.place, part=shown)
        return part

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is None or self._message is None:
            return
        text = "".join(part.text)
        shown = documents.text_part(text, refusal=part.refusal, annotations=part.annotations)
        self._message["content"].append(shown)
        whole = {"refusal": text} if part.refusal else {"text": text, "logprobs": []}
        for n, annotation in enumerate(part.annotations):
            self._emit(
                "response.output_text.annotation.added",
                **part.place,
                annotation_index=n,
                annotation=annotation,
            )
        self._emit(f"response.{part.kind}.done", **part.place, **whole)
        self._emit("response.content_part.done", **part.place, part=shown)

    def _close_message(self, status: str = "completed") -> None:
        self._close_part()
        message, self._message = self._message, None
        if message is not None:
            message["status"] = status
            self._emit("response.output_item.done", output_index=self._last, item=message)

    # --- calls -----------------------------------------------------------------------------------

    def _called(self, call: ToolCall) -> None:
        self._close_message()
        item = documents.server_call(
            self._item_id("mcp"), call, self._about.agent, self._approval_request(call)
        )
        self.output.append(item)
        place: Json = {"output_index": self._last, "item_id": item["id"]}
        self._calls[call.id] = self._last
        self._emit("response.output_item.added", output_index=self._last, item={**item, "arguments": ""})
        self._emit("response.mcp_call.in_progress", **place)
        self._emit("response.mcp_call_arguments.delta", **place, delta=call.arguments)
        self._emit("response.mcp_call_arguments.done", **place, arguments=call.arguments)

    def _approval_request(self, call: ToolCall) -> str | None:
        """The request for approval that a call was made upon."""
        before = self._about.before
        shown = [each.id for each in before.calls] if before is not None else []
        if before is None or call.id not in shown:
            return None
        return names.item("mcpr", before.approval_id, shown.index(call.id))

    def _returned(self, event: ToolReturned) -> None:
        if event.call_id in self._calls:
            changes = documents.returned(event.output, is_error=event.is_error)
            self._close_call(event.call_id, changes, "failed" if event.is_error else "completed")

    def _close_call(self, call_id: str, changes: Json, how: str | None = None) -> None:
        index = self._calls.pop(call_id)
        item = self.output[index]
        item.update(changes)
        if how is not None:
            self._emit(f"response.mcp_call.{how}", output_index=index, item_id=item["id"])
        self._emit("response.output_item.done", output_index=index, item=item)

    # --- ends ------------------------------------------------------------------------------------

    def _paused(self, approval: Approval | None) -> None:
        self._close("incomplete")
        if approval is None:
            raise ValueError("a pause is shown to the owner of its request alone")
        if approval.authorizations:
            self._link(approval)
        for n, call in enumerate(approval.calls):
            if call.by_client:
                self._client_call(approval, n)
            else:
                self._add(documents.approval_request(approval, n, self._about.agent))
        if approval.status in ("canceled", "expired"):
            self._finish("response.failed", self._about.response("cancelled", self.output))
        else:
            spent = self._about.spent(approval.usage)
            response = self._about.response("completed", self.output, spent=spent)
            self._finish("response.completed", response)

    def _link(self, approval: Approval) -> None:
        """The user's own consent is needed: where it is given stands in the text, and as its citations."""
        self._delta(approval.message)
        if self._part is None:
            return
        end = len(approval.message)
        for each in approval.authorizations:
            text, url = f"\n{each['server']}: ", str(each["url"])
            start, end = end + len(text), end + len(text) + len(url)
            self._delta(text + url)
            self._part.annotations.append(
                {
                    "type": "url_citation",
                    "url": url,
                    "title": str(each["server"]),
                    "start_index": start,
                    "end_index": end,
                }
            )
        self._close_message()

    def _client_call(self, approval: Approval, n: int) -> None:
        item = documents.client_call(approval, n)
        self.output.append(item)
        place: Json = {"output_index": self._last, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        self._emit("response.output_item.added", output_index=self._last, item=begun)
        arguments = item["arguments"]
        self._emit("response.function_call_arguments.delta", **place, delta=arguments)
        self._emit("response.function_call_arguments.done", **place, arguments=arguments)
        self._emit("response.output_item.done", output_index=self._last, item=item)

    def _add(self, item: Json) -> None:
        self.output.append(item)
        for name in ("response.output_item.added", "response.output_item.done"):
            self._emit(name, output_index=self._last, item=item)

    def _completed(self, outcome: Outcome | None) -> None:
        if outcome is None:
            raise ValueError("an answer is shown to the owner of its request alone")
        refused = outcome.finish_reason == "refusal"
        if outcome.output and self._part is None:
            self._delta(outcome.output, refusal=refused)
        cut_short = _CUT_SHORT.get(outcome.finish_reason or "")
        self._close("incomplete", message="incomplete" if cut_short else "completed")
        status = "incomplete" if cut_short else "completed"
        response = self._about.response(
            status, self.output, spent=self._about.spent(outcome.usage), cut_short=cut_short
        )
        self._finish(f"response.{status}", response)

    def _ended(self, status: str, failure: Failure | None) -> None:
        self._begin()
        self._close("incomplete", message="incomplete")
        # there is no event for a response that was cancelled: its status says it
        self._finish("response.failed", self._about.response(status, self.output, failure=failure))

    def _close(self, calls: str, *, message: str = "completed") -> None:
        self._close_message(message)
        for call_id in list(self._calls):
            self._close_call(call_id, {"status": calls})

    def _finish(self, name: str, response: Json) -> None:
        self._tell(name, response)
        self._frames.append(DONE)

    # --- places ----------------------------------------------------------------------------------

    @property
    def _last(self) -> int:
        """The place of the last item."""
        return len(self.output) - 1

    def _item_id(self, kind: str) -> str:
        about = self._about
        return names.item(kind, about.request_id, about.number, len(self.output))
