"""Requests as A2A tasks, in ProtoJSON's form; and the parts of messages as items."""

from collections.abc import Iterable

from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import ContentTypeNotSupportedError

from tealagents.api.decisions import pause_text, pending
from tealagents.api.http import timestamp
from tealagents.api.items import IMAGES, Inline, decoded, is_text, media
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Approval, Item, Json, Message, RequestRecord
from tealagents.state.codec import encode_json

_STATES = {"Queued": "SUBMITTED", "Running": "WORKING", "Paused": "INPUT_REQUIRED"}
INPUT_MODES = ("text/plain", "application/json", *IMAGES)


def task(record: RequestRecord, messages: Iterable[Message] = ()) -> Json:
    """A request as it stands, with some of its messages."""
    now = status(record, record.status, record.error.detail if record.error else "")
    at = timestamp(record.changed_at, "milliseconds")
    shown = {
        "status": paused(record.pause) if record.pause else {**now, "timestamp": at},
        "artifacts": [artifact(record.output)] if record.output or record.status == "Completed" else [],
        "history": [_said(record, m.message_id, [*map(_part, m.items)], m.role) for m in messages if m.items],
    }
    return {"id": record.request_id, "contextId": record.task_id, **{k: v for k, v in shown.items() if v}}


def status(record: RequestRecord, status: str, text: str = "") -> Json:
    """A status, with what the agent says of it where that is not in the answer."""
    said = {"message": _said(record, f"{record.request_id}/{status}", [{"text": text}])} if text else {}
    return {"state": f"TASK_STATE_{_STATES.get(status, status.upper())}", **said}


def paused(pause: Approval) -> Json:
    """The status of a task that waits: for a decision, or for the user's authorization before it."""
    waits_for: Json = {"data": pending(pause), "mediaType": "application/json"}
    return {
        "state": "TASK_STATE_AUTH_REQUIRED" if pause.authorizations else "TASK_STATE_INPUT_REQUIRED",
        "message": _said(pause, pause.approval_id, [{"text": pause_text(pause)}, waits_for]),
        "timestamp": timestamp(pause.created_at, "milliseconds"),
    }


def artifact(text: str) -> Json:
    """The one artifact of a task: its answer, or a delta of it."""
    return {"artifactId": "answer", "parts": [{"text": text}]}


def _said(of: RequestRecord | Approval, message_id: str, parts: list[Json], role: str = "") -> Json:
    ids = {"messageId": message_id, "taskId": of.request_id, "contextId": of.task_id}
    return {**ids, "role": "ROLE_USER" if role == "user" else "ROLE_AGENT", "parts": parts}


def _part(item: Item) -> Json:
    text = item.content_type == "text"
    return {"text": item.content} if text else dict(zip(("mediaType", "raw"), media(item), strict=True))


def items(message: pb.Message, sent: Json) -> tuple[Item, ...]:
    """The items of a message; `sent` is its JSON: in 0.3 its role is `user`, and bytes are in a `file`."""
    inline = Inline()
    return tuple(_item(part, sent, n, inline) for n, part in enumerate(message.parts))


def _item(part: pb.Part, message: Json, n: int, inline: Inline) -> Item:
    sent, field = message["parts"][n], f"message.parts.{n}"
    kind, media = part.WhichOneof("content"), part.media_type.partition(";")[0].strip().lower()
    if kind is None:
        raise InvalidRequest(field, "has no content: text, data or raw")
    if kind == "raw":  # as it was sent: the libraries skip what is no base64
        raw = decoded(sent["file"]["bytes"] if message["role"] == "user" else sent["raw"], f"{field}.raw")
        if (item := inline.item(raw, media, f"{field}.raw")) is not None:
            return item
    elif kind != "url" and (media in ("", "application/json") or is_text(media)):
        return Item("text", part.text if kind == "text" else encode_json(sent["data"]).decode())
    raise ContentTypeNotSupportedError(f"{field}: must be inline and of mediaType {' or '.join(INPUT_MODES)}")
