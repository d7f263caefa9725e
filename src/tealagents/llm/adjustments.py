"""How calls are adjusted to what a service refuses. No I/O.

Services that speak the same API differ in what they take of it. What one refuses is seen by its complaint:
the same call is put otherwise at once, and later ones are from the first, once the service has answered.
"""

import re
from collections.abc import Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from tealagents.llm.encoding import to_json
from tealagents.llm.failures import MAX_SEARCHED, Complaint

#: how templates and services say that a system message comes first, and that roles alternate from a user's on
_ORDER = re.compile(
    r"system (message|prompt|role).*\b(beginning|start|first)\b|first message.*\bsystem\b"
    r"|\b(roles?|messages)\b[^.]{0,40}\balternat|\bunexpected role\b|\bsuccessive (user|system)\b"
    r"|\bimmediately after a user turn\b",
    re.DOTALL,
)
#: how they say that the id of a call, such as another service gave, is none to them. It may be quoted whole
_CALL_ID = re.compile(
    r"\btool call id was\b"
    r"|(\btool_calls\[\d+\]\.id|\b(tool_)?call_id|\btool call ids?|\btool_use\.id|\btool_?use_?id)\b"
    r".*\b(too long|length|pattern|alphanumeric)\b",
    re.DOTALL,
)
#: the id of a call that a conversation at the service waits for
_UNANSWERED = re.compile(r"No tool output found for function call (\S+)", re.IGNORECASE)
#: such calls of one conversation; each costs a request to find
_MOST_UNANSWERED = 20


class Adjustments(Struct, frozen=True):
    """What is otherwise in a body, since the service refuses it as it would be."""

    #: `stream_options` is left out
    stream_options: bool = False
    #: system messages are in the first one, neighbouring user messages in one, and one precedes all others
    order: bool = False
    #: calls that the conversation waits for, of a request that ended without answering them: only here
    unanswered: tuple[str, ...] = ()
    #: reasoning that was sealed for another account is left out: only here
    unsealed: bool = False
    #: calls have other ids: only here, since a gateway may pass other calls to a service that needs its own
    other_ids: bool = False

    def learned(self, said: Complaint) -> "Adjustments":
        """This, and what a refusal calls for; itself where that is nothing."""
        words = f"{said.param} {said.message[:MAX_SEARCHED]}".lower()
        if said.status in (400, 422) and "stream_options" in words:
            return replace(self, stream_options=True)
        # a failing template is an internal error at some services
        if said.status in (400, 422, 500) and _ORDER.search(words):
            return replace(self, order=True)
        if said.status in (400, 422, 500) and _CALL_ID.search(words):
            return replace(self, other_ids=True)
        if said.status == 400 and said.code == "invalid_encrypted_content":
            return replace(self, unsealed=True)
        if said.status == 400 and (open_call := _UNANSWERED.search(said.message)):
            call_id = open_call[1].rstrip(".")
            if call_id not in self.unanswered and len(self.unanswered) < _MOST_UNANSWERED:
                return replace(self, unanswered=(*self.unanswered, call_id))
        return self

    @property
    def named(self) -> str:
        """What the service refuses, in words."""
        order = "some orders of roles"
        return " and ".join([*["`stream_options`"] * self.stream_options, *[order] * self.order])

    def __or__(self, other: "Adjustments") -> "Adjustments":
        """What holds for every conversation."""
        return Adjustments(self.stream_options or other.stream_options, self.order or other.order)


#: until a service refuses something
NO_ADJUSTMENTS = Adjustments()

#: stands for the user's message where a reducer has cut the history behind it. Leaving out what follows
#: instead, up to the next message of the user, could take a long round of calls that the reducer shows
_NOT_SHOWN = "(what came before is not shown)"


def joined(
    prompt: Sequence[bytes], *, system: bytes, user: bytes, text: str, continued: bool = False
) -> list[bytes]:
    """The messages with what all system messages say in the first one, and neighbouring user messages in one.

    The first of the others is a user's, except where they continue what the service keeps. `system` and
    `user` is how such a message begins, up to its content, which is its last field; `text` is the type of a
    part of text.
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
        pieces.insert(first, with_content(user, _NOT_SHOWN))
    return pieces


def _together(first: Any, second: Any, text: str) -> Any:
    """The contents of two messages as that of one: a text, or parts where one of them has parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": text, "text": each}] if isinstance(each, str) else each for each in (first, second)]
    return parts[0] + parts[1]
