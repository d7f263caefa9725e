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

#: tokens of prompt and answer together, by the model's name without a date. Names that only begin alike have
#: other windows: `gpt-4` and `gpt-4-1106-preview`, `gpt-5.1` and `gpt-5.1-chat-latest`
WINDOWS: Mapping[str, int] = {
    **dict.fromkeys(("gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5-pro", "gpt-5-codex"), 400_000),
    **dict.fromkeys(("gpt-5.1", "gpt-5.1-codex", "gpt-5.1-codex-mini", "gpt-5.2"), 400_000),
    **dict.fromkeys(("gpt-5-chat", "gpt-5.1-chat", "gpt-5.2-chat"), 128_000),
    **dict.fromkeys(("gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"), 1_047_576),
    **dict.fromkeys(("gpt-4.5-preview", "gpt-4o", "gpt-4o-mini", "chatgpt-4o"), 128_000),
    **dict.fromkeys(("gpt-4-turbo", "gpt-4-turbo-preview", "gpt-4-vision-preview"), 128_000),
    **dict.fromkeys(("gpt-4-1106-preview", "gpt-4-0125-preview"), 128_000),
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    **dict.fromkeys(("gpt-3.5-turbo", "gpt-35-turbo", "gpt-3.5-turbo-16k", "gpt-35-turbo-16k"), 16_385),
    **dict.fromkeys(("gpt-3.5-turbo-0301", "gpt-3.5-turbo-0613"), 4_096),
    **dict.fromkeys(("gpt-oss-20b", "gpt-oss-120b"), 131_072),
    **dict.fromkeys(("o1", "o1-pro", "o3", "o3-mini", "o3-pro", "o4-mini"), 200_000),
    **dict.fromkeys(("o1-mini", "o1-preview"), 128_000),
    **dict.fromkeys(("claude-3-opus", "claude-3-sonnet", "claude-3-haiku"), 200_000),
    **dict.fromkeys(("claude-3-5-sonnet", "claude-3-5-haiku", "claude-3-7-sonnet"), 200_000),
    **dict.fromkeys(("claude-sonnet-4", "claude-sonnet-4-0", "claude-opus-4", "claude-opus-4-0"), 200_000),
    **dict.fromkeys(("claude-opus-4-1", "claude-sonnet-4-5", "claude-haiku-4-5"), 200_000),
    "gemini-1.5-pro": 2_097_152,
    **dict.fromkeys(("gemini-1.5-flash", "gemini-1.5-flash-8b"), 1_048_576),
    **dict.fromkeys(("gemini-2.0-flash", "gemini-2.0-flash-lite"), 1_048_576),
    **dict.fromkeys(("gemini-2.5-pro", "gemini-2.5-flash", "gemini-2.5-flash-lite"), 1_048_576),
}
#: what a vendor adds to a model's name for one version of it: `-2024-08-06`, `-20241022`, `-0613`, `-latest`
_VERSION = re.compile(r"[-@](\d{4}-\d\d-\d\d|\d{8}|\d{3,4}|latest)$")


def window_of(model: str, own: Mapping[str, int]) -> int:
    """The model's window: by the longest of the operator's names that it begins with, or else the known one.

    `TokensUnknown` for a model that neither names. A name that a vendor prefixes (`openai/gpt-4o`) is found
    by what follows the last slash.
    """
    plain = model.rpartition("/")[2]
    for name in (model, plain):
        if matches := [begins for begins in own if name.startswith(begins)]:
            return own[max(matches, key=len)]
    for name in (plain, _VERSION.sub("", plain)):
        if name in WINDOWS:
            return WINDOWS[name]
    raise TokensUnknown(
        f"The context window of the model {model!r} is not known. Give the reducer max_tokens, or the "
        f"model's window: windows: {{{model}: 128000}}."
    )
