"""The answer the model gives, before it is written in the words of one API, and how it is paced or broken.

Text comes in pieces. One token is one word with the whitespace before it, so that counts can be done in the
head, `max_tokens: 3` gives three words, and a piece of the built-in answers is one token.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
FaultKind = Literal["cut", "end", "silence", "error"]

#: What one image counts in the prompt, whatever its size: the real service's figure for low detail.
IMAGE_TOKENS = 85

_WORD = re.compile(r"\s*\S+|\s+\Z")
_ARGUMENT_PIECE = 12


def in_pieces(text: str) -> tuple[str, ...]:
    """Words, each with the whitespace before it; joined they are the text again.

    >>> in_pieces("Your name is Ada.")
    ('Your', ' name', ' is', ' Ada.')
    """
    return tuple(_WORD.findall(text))


def count_tokens(text: str) -> int:
    """One token a word.

    >>> count_tokens("Your name is Ada.")
    4
    """
    return len(text.split())


@dataclass(frozen=True, slots=True)
class FunctionCall:
    #: None: the service makes one.
    id: str | None
    name: str
    #: As sent: JSON text, or what a script passes off as it.
    arguments: str

    def argument_pieces(self) -> list[str]:
        text = self.arguments
        return [text[start : start + _ARGUMENT_PIECE] for start in range(0, len(text), _ARGUMENT_PIECE)]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Pacing:
    """When things are sent, in seconds."""

    #: Before the status line.
    headers: float = 0.0
    #: Between the headers and the first piece.
    first: float = 0.0
    #: Before every other piece.
    piece: float = 0.0
    #: Before single pieces, by position; wins over `first` and `piece`.
    own: Mapping[int, float] = field(default_factory=dict)
    #: The body leaves in writes of so many bytes; 0: as it comes.
    dribble_bytes: int = 0
    dribble_delay: float = 0.0

    def before(self, position: int) -> float:
        return self.own.get(position, self.piece if position else self.first)


#: Everything at once.
AT_ONCE = Pacing()


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong on the way.

    `cut`: the connection ends in the middle. `end`: the body ends properly, but says no finish. `silence`:
    nothing more comes. `error`: the service says, in its answer, that it failed.
    """

    kind: FaultKind
    after_pieces: int | None = None
    after_bytes: int | None = None
    message: str = "The server had an error while processing your request. Sorry about that!"
    code: str = "server_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    pieces: tuple[str, ...] = ()
    tool_calls: tuple[FunctionCall, ...] = ()
    refusal: str | None = None
    #: None: what follows from the rest.
    finish_reason: FinishReason | None = None
    #: None: counted.
    usage: TokenCounts | None = None
    reports_usage: bool = True
    pacing: Pacing = AT_ONCE
    fault: Fault | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finish(self) -> FinishReason:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    def usage_after(self, prompt_tokens: int) -> TokenCounts | None:
        """What is reported, for a prompt of that size."""
        if not self.reports_usage:
            return None
        return self.usage or TokenCounts(prompt_tokens, self._completion_tokens())

    def _completion_tokens(self) -> int:
        said = count_tokens(self.text) + count_tokens(self.refusal or "")
        return said + sum(1 + count_tokens(call.arguments) for call in self.tool_calls)

    def duration(self) -> float:
        """Seconds from the headers to the last piece."""
        if self.pacing == AT_ONCE:
            return 0.0
        calls = sum(1 + len(call.argument_pieces()) for call in self.tool_calls)
        pieces = len(self.pieces) + len(in_pieces(self.refusal or "")) + calls
        return sum(map(self.pacing.before, range(pieces)))

    def within(self, max_tokens: int | None) -> "ModelAnswer":
        """The same answer, broken off at that many tokens of text."""
        if max_tokens is None or count_tokens(self.text) <= max_tokens:
            return self
        kept = tuple(_first_tokens(self.pieces, max_tokens))
        return replace(self, pieces=kept, tool_calls=(), finish_reason="length")


def saying(text: str) -> ModelAnswer:
    return ModelAnswer(pieces=in_pieces(text))


def _first_tokens(pieces: Iterable[str], room: int) -> Iterable[str]:
    for piece in pieces:
        words = in_pieces(piece)
        yield "".join(words[:room])
        room -= count_tokens(piece)
        if room <= 0:
            return
