"""Adjusts calls to what a service refuses. No I/O.

Services with the same API differ in what they accept. When a service refuses a call with a known complaint,
the call is sent again at once with an adjustment. If the service then answers, later calls have the
adjustment from the start.
"""

import re
from collections.abc import Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from tealagents.llm.encoding import to_json
from tealagents.llm.failures import MAX_SEARCHED, Complaint

#: complaints that a system message must come first, or that roles must alternate and begin with a user
_ORDER_COMPLAINT = re.compile(
    r"system (message|prompt|role).*\b(beginning|start|first)\b|first message.*\bsystem\b"
    r"|\b(roles?|messages)\b[^.]{0,40}\balternat|\bunexpected role\b|\bsuccessive (user|system)\b"
    r"|\bimmediately after a user turn\b",
    re.DOTALL,
)
#: complaints about the id of a call, which may come from another service. They may quote the whole id
_CALL_ID_COMPLAINT = re.compile(
    r"\btool call id was\b"
    r"|(\btool_calls\[\d+\]\.id|\b(tool_)?call_id|\btool call ids?|\btool_use\.id|\btool_?use_?id)\b"
    r".*\b(too long|length|pattern|alphanumeric)\b",
    re.DOTALL,
)
#: the complaint that names a call whose output a remote conversation is waiting for
_UNANSWERED_COMPLAINT = re.compile(r"No tool output found for function call (\S+)", re.IGNORECASE)
#: the most tool calls of an answer
MAX_CALLS = 1_000


class Adjustments(Struct, frozen=True):
    """The differences to the usual body of a call, because the service refuses that."""

    #: `stream_options` is omitted
    stream_options: bool = False
    #: all system messages are joined in the first message, neighboring user messages are joined, and the
    #: first other message is a user's
    order: bool = False
    #: ids of calls whose output the remote conversation is waiting for, from a request that ended without it;
    #: for this call only. Finding each takes a request
    unanswered: tuple[str, ...] = ()
    #: reasoning that was encrypted for another account is omitted; for this call only
    unsealed: bool = False
    #: tool calls have other ids; for this call only, since a gateway may route the next one to another
    #: service
    other_ids: bool = False

    def learned(self, said: Complaint) -> "Adjustments":
        """These adjustments and the one for a complaint; unchanged if the complaint is unknown."""
        words = f"{said.param} {said.message[:MAX_SEARCHED]}".lower()
        if said.status in (400, 422) and "stream_options" in words:
            return replace(self, stream_options=True)
        # some services report the failure of a chat template as an internal error
        if said.status in (400, 422, 500) and _ORDER_COMPLAINT.search(words):
            return replace(self, order=True)
        if said.status in (400, 422, 500) and _CALL_ID_COMPLAINT.search(words):
            return replace(self, other_ids=True)
        if said.status == 400 and said.code == "invalid_encrypted_content":
            return replace(self, unsealed=True)
        if said.status == 400 and (open_call := _UNANSWERED_COMPLAINT.search(said.message)):
            call_id = open_call[1].rstrip(".")
            if call_id not in self.unanswered and len(self.unanswered) < MAX_CALLS:
                return replace(self, unanswered=(*self.unanswered, call_id))
        return self

    @property
    def named(self) -> str:
        """What the service refuses, for the log."""
        order = "some orders of roles"
        return " and ".join([*["`stream_options`"] * self.stream_options, *[order] * self.order])

    def __or__(self, other: "Adjustments") -> "Adjustments":
        """The adjustments of either that apply to all calls, not only to one."""
        return Adjustments(self.stream_options or other.stream_options, self.order or other.order)


#: the adjustments until a service refuses something
NO_ADJUSTMENTS = Adjustments()

#: the user message that is inserted if a reducer has cut the history after one. Omitting everything up to the
#: next user message instead could omit a long tool round that the reducer has kept
_OMITTED = "(what came before is not shown)"


def joined(
    prompt: Sequence[bytes], *, system: bytes, user: bytes, text: str, continued: bool = False
) -> list[bytes]:
    """The messages in an order that every service accepts.

    All system messages are joined in the first message, neighboring user messages are joined, and the first
    other message is a user's, unless the prompt is `continued` from a remote conversation. `system` and
    `user` are the bytes of such messages up to the content, their last field. `text` is the type of a text
    part.
    """

    def content(piece: bytes, beginning: bytes) -> Any:
        return orjson.loads(piece[len(beginning) : -1])

    def with_content(beginning: bytes, said: Any) -> bytes:
        return beginning + to_json(said) + b"}"

    standing = [content(piece, system) for piece in prompt if piece.startswith(system)]
    pieces = [with_content(system, "\n\n".join(standing))] if standing else []
    for piece in prompt:
        if piece.startswith(system):
            continue
        if piece.startswith(user) and pieces and pieces[-1].startswith(user):
            both = _together(content(pieces.pop(), user), content(piece, user), text)
            piece = with_content(user, both)
        pieces.append(piece)
    first = 1 if standing else 0
    if not continued and pieces[first:] and not pieces[first].startswith(user):
        pieces.insert(first, with_content(user, _OMITTED))
    return pieces


def _together(first: Any, second: Any, text: str) -> Any:
    """Joins the contents of two messages: to a text, or to a list of parts if one of them is a list."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": text, "text": each}] if isinstance(each, str) else each for each in (first, second)]
    return parts[0] + parts[1]
