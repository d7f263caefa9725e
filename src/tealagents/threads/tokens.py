"""Counting tokens, and how many a model can be sent. Nothing is ever fetched.

The tokenizers of OpenAI's models come with the package `rs-bpe` (extra `tokens`), tables included. Where
it is not installed, or where a config chooses it, `estimate` counts by rules that overestimate. Other
vendors' tokenizers differ by some percent: leave a reserve, or name a function as `module:function`.
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module

from msgspec import Struct

from tealagents.domain.models import Message

#: how many tokens a text has
Count = Callable[[str], int]

#: what a service adds around one message, and around one tool call
MESSAGE_TOKENS = 4
CALL_TOKENS = 8


class Counter(Struct, frozen=True):
    """A tokenizer by its name."""

    name: str
    count: Count


class TokensUnknown(ValueError):
    """An unknown tokenizer, or a model whose window is unknown. The text says what to do."""


# --- tokenizers -----------------------------------------------------------------------------------

#: models, by the beginning of their names, that read `cl100k_base`; all others are counted as `o200k_base`
_CL100K = ("gpt-4", "gpt-3.5", "gpt-35", "text-embedding")
_O200K = ("gpt-4o", "gpt-4.1", "gpt-4.5")

_TABLES = ("o200k_base", "cl100k_base")


def counter_for(model: str, tokenizer: str | None = None) -> Counter:
    """The counter `tokenizer` (`o200k_base`, `cl100k_base`, `estimate`, `module:function`), or the model's.

    Without a choice it is the estimate where `rs-bpe` is not installed.
    """
    if tokenizer is None:
        plain = model.rpartition("/")[2]
        table = _TABLES[plain.startswith(_CL100K) and not plain.startswith(_O200K)]
        return _table(table) or ESTIMATE
    if tokenizer == ESTIMATE.name:
        return ESTIMATE
    if tokenizer in _TABLES:
        found = _table(tokenizer)
        if found is None:
            raise TokensUnknown(
                f"The tokenizer {tokenizer} needs rs-bpe: pip install 'tealagents[tokens]', or set "
                "tokenizer: estimate."
            )
        return found
    if ":" in tokenizer:
        return Counter(tokenizer, _own(tokenizer))
    raise TokensUnknown(
        f"Unknown tokenizer {tokenizer!r}. Known: {', '.join(_TABLES)}, estimate; or name a function as "
        "module:function."
    )


def _table(name: str) -> Counter | None:
    try:
        from rs_bpe.bpe import openai
    except ImportError:
        return None
    count: Count = getattr(openai, name)().count

    def counted(text: str) -> int:
        try:
            return count(text)
        except UnicodeEncodeError:  # half characters, which no model is sent either
            return count(text.encode("utf-8", "replace").decode())

    counted("")  # the tables are unpacked now, not within a request
    return Counter(name, counted)


def _own(reference: str) -> Count:
    module, _, name = reference.partition(":")
    try:
        count: Count = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TokensUnknown(f"The tokenizer {reference!r} cannot be imported: {error}.") from error
    return count


#: letters, up to three digits, line ends, anything else that is no blank, one character at a time
_PIECES = re.compile(r"[A-Za-z]+|\d{1,3}|\n+|[^\sA-Za-z\d]")


def estimate(text: str) -> int:
    """An estimate of the tokens of a text, without a tokenizer. It is the same on every machine.

    One for every four letters of a word or part of four, one for up to three digits, one for every four line
    ends in a row, one for any other character, and two for one beyond the basic plane (emoji). It
    overestimates English prose by about a third, but is no upper bound: random letters have more.
    """
    return sum(
        (len(piece) + 3) // 4 if piece.isascii() else 1 + (piece > "\uffff")
        for piece in _PIECES.findall(text)
    )


ESTIMATE = Counter("estimate", estimate)


def message_tokens(message: Message, count: Count, image_tokens: int) -> int:
    """The tokens of a message, including those that the service adds around it."""
    tokens = MESSAGE_TOKENS
    for item in message.items:
        tokens += image_tokens if item.content_type == "image" else count(item.content)
    if message.native:
        tokens += count(message.native)
    for call in message.tool_calls:
        tokens += CALL_TOKENS + count(call.tool) + count(call.arguments)
    return tokens


# --- windows --------------------------------------------------------------------------------------

#: tokens of prompt and answer together, by the beginning of the model's name; the longest match counts
WINDOWS: Mapping[str, int] = {
    "gpt-5": 400_000,
    "gpt-5-chat": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    "gpt-3.5-turbo": 16_385,
    "gpt-35-turbo": 16_385,
    "gpt-oss": 131_072,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    "claude-3": 200_000,
    "claude-sonnet-4": 200_000,
    "claude-opus-4": 200_000,
    "gemini-1.5-pro": 2_097_152,
    "gemini-1.5-flash": 1_048_576,
    "gemini-2.0-flash": 1_048_576,
    "gemini-2.5": 1_048_576,
}


def window_of(model: str, own: Mapping[str, int]) -> int:
    """The model's window: the operator's entries come first, then the longest name that it begins with.

    `TokensUnknown` for a model that neither names. A name that a vendor prefixes (`openai/gpt-4o`) is found
    by what follows the last slash.
    """
    for table in (own, WINDOWS):
        for name in (model, model.rpartition("/")[2]):
            matches = [known for known in table if name.startswith(known)]
            if matches:
                return table[max(matches, key=len)]
    raise TokensUnknown(
        f"The context window of the model {model!r} is not known. Give the reducer max_tokens, or the "
        f"model's window: windows: {{{model}: 128000}}."
    )
