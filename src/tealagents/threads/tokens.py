"""Counts tokens, and knows the windows of models. Nothing is ever downloaded.

The tokenizers of OpenAI's models come with the package `rs-bpe` (extra `tokens`), tables included. If that is
not installed, or if the config says so, `estimate` counts by simple rules, which give more for most texts.
Other vendors' tokenizers differ by some percent: leave a reserve, or name a function as `module:function`.
"""

import re
from collections.abc import Callable, Mapping
from numbers import Real

from msgspec import Struct

from tealagents.domain.models import Message
from tealagents.registry import Registry, raised

#: how many tokens a text has
Count = Callable[[str], int]

#: tokens that a service adds around one message, and around one tool call
MESSAGE_TOKENS = 4
CALL_TOKENS = 8
#: characters of a message's text that are counted; the rest is taken to be like them. All of 20 MB would take
#: seconds, in which every other request of the process waits
COUNTED = 1_000_000


class Counter(Struct, frozen=True):
    """A tokenizer: its name, and the function that counts."""

    name: str
    count: Count


class TokensUnknown(ValueError):
    """An unknown tokenizer, or a model whose window is unknown. The text says what to do."""


_REGISTRY = Registry(word="tokenizer", error=TokensUnknown)


# --- tokenizers -----------------------------------------------------------------------------------

#: beginnings of the names of models that use `cl100k_base`, and exceptions from them. All other models are
#: counted with `o200k_base`
_CL100K = ("gpt-4", "gpt-3.5", "gpt-35", "text-embedding")
_O200K = ("gpt-4o", "gpt-4.1", "gpt-4.5")

_TABLES = ("o200k_base", "cl100k_base")


def counter_for(model: str, tokenizer: str | None = None) -> Counter:
    """The counter called `tokenizer`: `o200k_base`, `cl100k_base`, `estimate` or `module:function`.

    None stands for the model's own, or for the estimate if `rs-bpe` is not installed. `TokensUnknown` if a
    tokenizer that was named does not exist or is not installed.
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
        except UnicodeEncodeError:  # lone surrogates, which models are not sent either
            return count(text.encode("utf-8", "replace").decode())

    counted("")  # so that the tables are unpacked now, and not during a request
    return Counter(name, counted)


def _own(reference: str) -> Count:
    """A function of the operator's, tried once, so that a mistake in it is reported at start."""
    count: Count = _REGISTRY.find(reference)
    if not callable(count):
        raise TokensUnknown(f"The tokenizer {reference!r} is not a function.")
    try:
        tokens = count("")
    except KeyboardInterrupt:
        raise
    except BaseException as wrong:
        reason = raised(wrong, reference.partition(":")[0])
        raise TokensUnknown(f"The tokenizer {reference!r} failed with an empty text: {reason}") from wrong
    if not isinstance(tokens, Real):
        kind = type(tokens).__name__
        raise TokensUnknown(f"The tokenizer {reference!r} must return a number of tokens, not {kind}.")
    return count


#: a run of letters, up to three digits, a run of line ends, or any other character that is not whitespace
_PIECES = re.compile(r"[A-Za-z]+|\d{1,3}|\n+|[^\sA-Za-z\d]")


def estimate(text: str) -> int:
    """An estimate of the tokens of a text, without a tokenizer. It is the same on every machine.

    A word counts one token for every four letters, rounded up; line ends in a row likewise; a number one for
    every three digits; any other character one, or two beyond the basic plane (emoji). Whitespace counts
    nothing. This overestimates English prose by about a third, but is no upper bound: random letters take
    more tokens.
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
        tokens += image_tokens if item.content_type == "image" else _text_tokens(item.content, count)
    if message.native:
        tokens += count(message.native)
    for call in message.tool_calls:
        tokens += CALL_TOKENS + count(call.tool) + count(call.arguments)
    return tokens


def _text_tokens(text: str, count: Count) -> int:
    return count(text) if len(text) <= COUNTED else count(text[:COUNTED]) * len(text) // COUNTED


# --- windows --------------------------------------------------------------------------------------

#: a model's name without its version → tokens of prompt and answer together. Names are compared as a whole,
#: since some begin alike and have different windows: `gpt-4` and `gpt-4-1106-preview`, `gpt-5.1` and
#: `gpt-5.1-chat-latest`
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
#: what vendors add to a model's name for a version: `-2024-08-06`, `-20241022`, `-0613`, `-latest`
_VERSION = re.compile(r"[-@](\d{4}-\d\d-\d\d|\d{8}|\d{3,4}|latest)$")


def window_of(model: str, own: Mapping[str, int]) -> int:
    """The model's window, in tokens: that of the longest name in `own` with which the model's name begins, or
    else that in `WINDOWS`.

    A vendor's prefix (`openai/gpt-4o`) may be left out in `own`. `TokensUnknown` if the model is in neither.
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
