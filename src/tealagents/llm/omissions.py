"""What a service refuses, and is asked again without. No I/O.

Services that speak the same API differ in what they take of it. What one refuses is seen by its complaint,
and remembered for the process once it has answered the same call without.
"""

import re
from collections.abc import Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from tealagents.llm.encoding import to_json
from tealagents.llm.failures import Complaint

#: how templates and services say that a system message comes first, and that roles alternate
_ORDER = re.compile(
    r"system (message|prompt|role).*\b(beginning|start|first)\b|first message.*\bsystem\b"
    r"|\balternat|\bunexpected role\b|\bsuccessive (user|system)\b",
    re.DOTALL,
)


class Omissions(Struct, frozen=True):
    """What a service is asked without, since it refuses it."""

    #: `stream_options`
    stream_options: bool = False
    #: system messages behind the first message, or several user messages in a row
    order: bool = False

    def learned(self, said: Complaint) -> "Omissions":
        """This, and what a refusal complains of; itself where that is nothing which can be left out."""
        words = f"{said.param} {said.message}".lower()
        if said.status in (400, 422) and "stream_options" in words:
            return replace(self, stream_options=True)
        # a failing template is an internal error at some services
        if said.status in (400, 422, 500) and _ORDER.search(words):
            return replace(self, order=True)
        return self

    @property
    def named(self) -> str:
        """What it is, in words."""
        order = "system messages behind the first message"
        return " and ".join([*["`stream_options`"] * self.stream_options, *[order] * self.order])

    def __or__(self, other: "Omissions") -> "Omissions":
        return Omissions(self.stream_options or other.stream_options, self.order or other.order)


#: until a service refuses something
NOTHING = Omissions()


def joined(prompt: Sequence[bytes], *, system: bytes, user: bytes, text: str) -> list[bytes]:
    """The messages with what all system messages say in the first one, and neighbouring user messages in one.

    `system` and `user` is how such a message begins, up to its content, which is its last field; `text` is
    the type of a part of text.
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
    return pieces


def _together(first: Any, second: Any, text: str) -> Any:
    """The contents of two messages as that of one: a text, or parts where one of them has parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": text, "text": each}] if isinstance(each, str) else each for each in (first, second)]
    return parts[0] + parts[1]
