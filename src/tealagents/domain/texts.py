"""Texts and JSON from models and tools, made such that every store can keep them."""

from typing import Any, Final

from tealagents.domain.errors import InvalidRequest
from tealagents.domain.json_limits import DEEPEST, LARGEST_INTEGER, SMALLEST_INTEGER, too_deep

#: characters of what a tool returns or raises that are passed on; the rest is cut, and the text says so
LIMIT: Final = 200_000
#: characters of what a client sent that a refusal repeats, to say where it is wrong
REPEATED: Final = 200
TOO_DEEP: Final = f"is nested deeper than {DEEPEST} levels"


def storable(text: str) -> str:
    """`text` with U+FFFD in the place of NUL, which not every store keeps, and of lone surrogates, which no
    encoding has."""
    text = text.replace("\0", "\ufffd")
    if text.isascii() or is_encodable(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_encodable(text: str) -> bool:
    """Whether `text` is free of lone surrogates, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_encodable(text: str, field: str) -> None:
    """`InvalidRequest` for what is no text, or one that could be neither kept nor sent."""
    if not isinstance(text, str):
        raise InvalidRequest(field, f"must be text, not {type(text).__name__}")
    if not is_encodable(text):
        raise InvalidRequest(field, "holds a lone surrogate, which is not a character")


def check_user_id(value: object, field: str, *, empty: bool = False) -> None:
    """`InvalidRequest` for a part of a user's id that no record could be kept and read under."""
    if not isinstance(value, str) or storable(value) != value:
        raise InvalidRequest(field, "must be text without NUL and lone surrogates")
    if not (value or empty):
        raise InvalidRequest(field, "must not be empty")


def bounded(text: str, limit: int = LIMIT) -> str:
    """`text` made storable, and cut at `limit` characters with a note of how much is missing."""
    whole = len(text)
    if whole <= limit:
        return storable(text)
    return f"{storable(text[:limit])}\n[Cut here: {limit:,} of {whole:,} characters are shown.]"


def short(text: str) -> str:
    """What a client sent, as far as a refusal repeats it."""
    return text if len(text) <= REPEATED else text[:REPEATED] + "…"


class _Unfit(Exception):
    """A value within JSON that cannot be kept; on its way out it learns where it was."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def within(self, part: object) -> "_Unfit":
        self.path.append(short(str(part)))
        return self


def check_storable(value: Any, around: int = 0) -> None:
    """`InvalidRequest`, naming the field, for JSON that no body may hold, an exported task's neither: NUL,
    lone surrogates, integers beyond 64 bits, endless depth.

    `around` is how many levels are around what can be nested as deeply as in any body.
    """
    try:
        _look_through(value, -around)
    except _Unfit as unfit:
        raise InvalidRequest(".".join(reversed(unfit.path)) or "body", unfit.reason) from None


def _look_through(value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise InvalidRequest("body", TOO_DEEP)
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _Unfit("has a name that is not a string")
            _check_text(key)
            try:
                _look_through(inner, depth + 1)
            except _Unfit as unfit:
                raise unfit.within(key) from None
    elif isinstance(value, list | tuple):
        for n, inner in enumerate(value):
            try:
                _look_through(inner, depth + 1)
            except _Unfit as unfit:
                raise unfit.within(n) from None
    elif isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        raise _Unfit("is an integer beyond 64 bits")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Unfit("holds a NUL character")
    if not text.isascii() and not is_encodable(text):
        raise _Unfit("holds a lone surrogate, which is not a character")


def storable_json(value: Any) -> Any:
    """JSON with its texts made storable. `ValueError` where it is nested too deeply, or an integer has more
    than 64 bits: an exported task could not be imported."""
    if too_deep(value):
        raise ValueError(f"the value is nested deeper than {DEEPEST} levels")
    return _storable(value)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): _storable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_storable(each) for each in value]
    if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        raise ValueError("an integer of the value has more than 64 bits")
    return value
