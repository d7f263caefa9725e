"""An answer of the model, independent of the API, with its delays and faults.

Text is sent in pieces. A token is a word with the whitespace before it, so that you can count tokens in your
head and `max_tokens: 3` gives three words. A piece of a built-in answer is one token.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
FaultKind = Literal["cut", "end", "silence", "error"]

#: The tokens of an image in the prompt, whatever its size: OpenAI's number for low detail.
IMAGE_TOKENS = 85

_WORD = re.compile(r"\s*\S+|\s+\Z")
_ARGUMENT_PIECE = 12


def in_pieces(text: str) -> tuple[str, ...]:
    """The words of a text, each with the whitespace before it. Joined, they are the text.

    >>> in_pieces("Your name is Ada.")
    ('Your', ' name', ' is', ' Ada.')
    """
    return tuple(_WORD.findall(text))


def count_tokens(text: str) -> int:
    """The number of tokens: one for each word.

    >>> count_tokens("Your name is Ada.")
    4
    """
    return len(text.split())


@dataclass(frozen=True, slots=True)
class FunctionCall:
    #: None: the service assigns one.
    id: str | None
    name: str
    #: Sent as it is: JSON text, or invalid text from a script.
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
    """The delays of an answer, in seconds."""

    #: Before the status line.
    headers: float = 0.0
    #: Between the headers and the first piece.
    first: float = 0.0
    #: Before every other piece.
    piece: float = 0.0
    #: Position of a piece → the delay before it, in place of `first` or `piece`.
    own: Mapping[int, float] = field(default_factory=dict)
    #: The body is sent in writes of this many bytes; 0: in whole pieces.
    dribble_bytes: int = 0
    #: Between these writes.
    dribble_delay: float = 0.0

    def before(self, position: int) -> float:
        return self.own.get(position, self.piece if position else self.first)


#: No delays.
AT_ONCE = Pacing()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of an answer.

    `cut`: the connection is closed in the middle. `end`: the body ends properly, but without a finish reason.
    `silence`: nothing more is sent. `error`: the answer contains an error of the service.
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
    #: None: `tool_calls` if there are any, otherwise `stop`.
    finish_reason: FinishReason | None = None
    #: None: the tokens are counted.
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
        """The usage that is reported for a prompt with this many tokens; None if none is."""
        if not self.reports_usage:
            return None
        return self.usage or TokenCounts(prompt_tokens, self._completion_tokens())

    def _completion_tokens(self) -> int:
        said = count_tokens(self.text) + count_tokens(self.refusal or "")
        return said + sum(1 + count_tokens(call.arguments) for call in self.tool_calls)

    def duration(self) -> float:
        """The seconds from the headers to the last piece."""
        if self.pacing == AT_ONCE:
            return 0.0
        calls = sum(1 + len(call.argument_pieces()) for call in self.tool_calls)
        pieces = len(self.pieces) + len(in_pieces(self.refusal or "")) + calls
        return sum(map(self.pacing.before, range(pieces)))

    def within(self, max_tokens: int | None) -> "ModelAnswer":
        """The answer, cut after `max_tokens` tokens of text."""
        if max_tokens is None or count_tokens(self.text) <= max_tokens:
            return self
        kept = tuple(_first_tokens(self.pieces, max_tokens))
        return replace(self, pieces=kept, tool_calls=(), finish_reason="length")


def saying(text: str) -> ModelAnswer:
    """An answer with this text."""
    return ModelAnswer(pieces=in_pieces(text))


def _first_tokens(pieces: Iterable[str], room: int) -> Iterable[str]:
    for piece in pieces:
        words = in_pieces(piece)
        yield "".join(words[:room])
        room -= count_tokens(piece)
        if room <= 0:
            return
