"""Recorded events as the updates of an A2A stream."""

from collections.abc import Callable

from a2a.compat.v0_3 import conversions, types
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from msgspec.structs import replace

from tealagents.api import sse
from tealagents.api.a2a import documents
from tealagents.api.a2a.errors import document
from tealagents.api.folding import EventFold
from tealagents.api.gate import AdmittedCall
from tealagents.domain.errors import TealError
from tealagents.domain.models import ENDED, Approval, Failure, Json, Message, Outcome, RequestRecord
from tealagents.state.codec import encode_json


def envelope(call: AdmittedCall) -> Callable[[Json], bytes]:
    """How a call's documents are sent: as they are, as JSON-RPC results, or as A2A 0.3 had them."""
    if not call.is_rpc:
        return encode_json
    if "/" in call.rpc_method:  # only the methods of 0.3 have a slash
        return lambda said: _legacy(said, call)
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % encode_json(call.rpc_id)
    return lambda said: b"%b%b}" % (head, encode_json(said))


def _legacy(said: Json, call: AdmittedCall) -> bytes:
    converted = conversions.to_compat_stream_response(ParseDict(said, pb.StreamResponse()), call.rpc_id)
    update = converted.result
    if isinstance(update, types.TaskStatusUpdateEvent) and update.status.state.endswith("-required"):
        update.final = call.rpc_method == "message/stream"  # a subscription continues behind a pause
    return converted.model_dump_json(by_alias=True, exclude_none=True).encode()


class Updates(EventFold):
    """One request's events, behind its task as it was. Text beside tool calls is replaced by what follows."""

    def __init__(self, record: RequestRecord, call: AdmittedCall, message: Message | None = None) -> None:
        self._record, self._call, self._wrap = record, call, envelope(call)
        self._ids = {"taskId": record.request_id, "contextId": record.task_id}
        if record.status in ENDED:  # sent again: as it was before its updates, since an end closes a stream
            record = replace(record, status="Running", output="", error=None, ended_at=None)
        super().__init__(self._frame({"task": documents.task(record, [message] if message else ())}))
        # the bytes before and after a delta's text, for the first and for later ones: a frame cut at `""`
        self._around = [self._answer("", append=more).rpartition(b'""') for more in (False, True)]

    def failed(self, error: TealError) -> bytes:
        return sse.frame(None, "error", document(error, self._call))

    def started(self, status: str = "Running") -> None:
        self._status(documents.status(self._record, status))

    begun = started

    def text(self, text: str, *, refusal: bool) -> None:
        before, _, after = self._around[self.said]
        self.frames.append(b"%b%b%b" % (before, encode_json(text), after))

    def say(self, text: str, *, refusal: bool = False) -> None:
        """Sends nothing: `completed` sends the whole answer anyway."""

    def paused(self, approval: Approval) -> None:
        self._status(documents.paused(approval))

    def completed(self, outcome: Outcome) -> None:
        # the artifact is closed by all of its text, since some clients keep nothing of what came before
        self.frames.append(self._answer(outcome.output, append=False, lastChunk=True))
        self._status(documents.status(self._record, "Completed"))

    def ended(self, failure: Failure, *, canceled: bool) -> None:
        self._status(documents.status(self._record, "Canceled" if canceled else "Failed", failure.detail))

    def _answer(self, text: str, **how: bool) -> bytes:
        return self._frame({"artifactUpdate": {**self._ids, "artifact": documents.artifact(text), **how}})

    def _status(self, status: Json) -> None:
        self.frames.append(self._frame({"statusUpdate": {**self._ids, "status": status}}))

    def _frame(self, said: Json) -> bytes:
        return b"data: %b\n\n" % self._wrap(said)
