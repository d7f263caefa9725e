"""Data that a service sends with tool calls and needs back with them, such as reasoning and signatures. No
I/O.

It is stored as `Message.native`. It is sent back only by the same kind of client, to the same model of the
same service, and only if the message still has the same number of calls.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import Any

import orjson

from tealagents.domain.models import LONGEST_NATIVE, Json, Message
from tealagents.llm.encoding import to_json
from tealagents.llm.options import OpenAIOptions

#: the kinds of `reasoning_details` whose text is streamed in parts, and the fields that contain it
_STREAMED = frozenset({"reasoning.text", "reasoning.summary"})
_TEXTS = ("text", "summary")


def source_of(kind: str, options: OpenAIOptions) -> str:
    """The source of a client's native data: its kind, its model, and its service, which alone can read it."""
    return f"{kind} {options.model} {hashlib.sha256(options.base_url.encode()).hexdigest()[:12]}"


def kept(source: str, calls: int, value: Json) -> str:
    """A `Message.native` from `source` for a message with so many calls; empty if it cannot be stored."""
    try:
        return to_json({"source": source, "calls": calls, **value}).decode()
    except (TypeError, RecursionError):  # nested too deeply to be sent
        return ""


def returned(message: Message, source: str) -> Json:
    """The value that was given to `kept`; empty if it has another source or another number of calls."""
    if not message.native:
        return {}
    try:
        value = orjson.loads(message.native)
    except orjson.JSONDecodeError:
        return {}
    made = isinstance(value, dict) and (value.get("source"), value.get("calls"))
    return value if made == (source, len(message.tool_calls)) else {}


class ChatReasoning:
    """Collects the reasoning of a chat completion, from a whole message or from the parts of a stream."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._details: list[Json] = []
        self._streamed = False
        self._size = 0

    def take(self, content: Any, details: Any, *, streamed: bool) -> None:
        """Adds `reasoning_content` and `reasoning_details` of a message, or of a chunk if `streamed`."""
        self._streamed = streamed
        if isinstance(content, str):
            self._size += len(content)
            self._content.append(content)
        for detail in details if isinstance(details, list) else ():
            if isinstance(detail, dict):
                self._size += sum(len(value) for value in detail.values() if isinstance(value, str))
                self._details.append(detail)
        if self._size > LONGEST_NATIVE:
            self._content, self._details = [], []

    def fields(self) -> Json:
        """The fields to send back; none if they are too large."""
        if self._size > LONGEST_NATIVE:
            return {}
        found: Json = {"reasoning_content": "".join(self._content)} if self._content else {}
        if self._details:
            found["reasoning_details"] = list(_joined(self._details)) if self._streamed else self._details
        return found


def _joined(pieces: Sequence[Json]) -> Iterator[Json]:
    """Joins the parts of a stream to whole details. The parts of one text are neighbors."""
    single = count()

    def text_of(piece: Json) -> object:
        kind = piece.get("type")
        return (kind, piece.get("index")) if kind in _STREAMED else next(single)

    for _, group in groupby(pieces, text_of):
        first, *more = group
        if not more:
            yield first
            continue
        whole: Json = {}
        for piece in (first, *more):
            for name, value in piece.items():
                if whole.get(name) is None:
                    whole[name] = value
        for name in _TEXTS:
            if name in whole:
                whole[name] = "".join(str(piece.get(name) or "") for piece in (first, *more))
        yield whole
