"""Recorded events as the updates of an A2A stream."""

from collections.abc import Callable

import msgspec
from a2a.compat.v0_3.conversions import to_compat_stream_response
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from tealagents.api.a2a import documents
from tealagents.api.a2a.errors import document, is_rpc
from tealagents.api.gate import Call
from tealagents.domain import events
from tealagents.domain.errors import TealError
from tealagents.domain.models import Json, RequestRecord

_encode = msgspec.json.Encoder().encode


def envelope(call: Call) -> Callable[[Json], bytes]:
    """How the call's stream sends a document: as it is, as a JSON-RPC result, or as A2A 0.3 had it."""
    if not is_rpc(call):
        return lambda said: b"data: %b\n\n" % _encode(said)
    if "/" in str((call.body or {}).get("method")):  # only the methods of 0.3 have a slash
        return lambda said: b"data: %b\n\n" % _legacy(said, call.rpc_id)
    head = b'data: {"jsonrpc":"2.0","id":%b,"result":' % _encode(call.rpc_id)
    return lambda said: b"%b%b}\n\n" % (head, _encode(said))


def _legacy(said: Json, identity: str | int | None) -> bytes:
    converted = to_compat_stream_response(ParseDict(said, pb.StreamResponse()), identity)
    return converted.model_dump_json(by_alias=True, exclude_none=True).encode()


def failed(call: Call, error: TealError) -> bytes:
    """An error that is no part of the task."""
    return b"event: error\ndata: %b\n\n" % _encode(document(error, call))


class Updates:
    """The fold of one request's events, which begins with the task as it was."""

    def __init__(self, record: RequestRecord, wrap: Callable[[Json], bytes]) -> None:
        self._record = record
        self._ids = {"taskId": record.request_id, "contextId": record.task_id}
        self._wrap = wrap
        self._opening = wrap({"task": documents.task(record)})
        #: whether the answer has begun; text that comes with tool calls is replaced by what follows
        self._begun = False

    def __call__(self, recorded: events.Recorded) -> bytes:
        opening, self._opening = self._opening, b""
        return opening + self._update(recorded)

    def _update(self, recorded: events.Recorded) -> bytes:
        match recorded.event:
            case events.TextDelta(text):
                return self._text(text)
            case events.ToolCalled():
                self._begun = False
            case events.Started(status):
                return self._status(documents.status(self._record, status))
            case events.Paused(approval) if approval is not None:
                self._begun = False
                return self._status(documents.paused(approval))
            case events.Completed(outcome) if outcome is not None:
                answer = b"" if self._begun else self._text(outcome.output)
                return answer + self._status(documents.status(self._record, "Completed"))
            case events.Failed(error) | events.Canceled(error) as end:
                return self._status(documents.status(self._record, type(end).__name__, error.detail))
        return b""

    def _text(self, text: str) -> bytes:
        append, self._begun = self._begun, True
        piece = {"artifact": documents.artifact(text), "append": append}
        return self._wrap({"artifactUpdate": self._ids | piece})

    def _status(self, status: Json) -> bytes:
        return self._wrap({"statusUpdate": {**self._ids, "status": status}})
