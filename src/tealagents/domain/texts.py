"""Makes texts and JSON of models, tools and clients storable in every store, cuts long ones, lists names."""

from collections.abc import Sequence
from typing import Any, Final

from tealagents.domain.errors import InvalidRequest
from tealagents.domain.json_limits import DEEPEST, LARGEST_INTEGER, SMALLEST_INTEGER, too_deep

#: characters of a tool's output or error that are passed on; the rest is cut, and a note says so
LIMIT: Final = 200_000
#: characters of a client's input that an error message quotes
REPEATED: Final = 200
TOO_DEEP: Final = f"is nested deeper than {DEEPEST} levels"


def storable(text: str) -> str:
    """`text` with U+FFFD in place of NUL, which not every store accepts, and of lone surrogates, which cannot
    be encoded."""
    text = text.replace("\0", "\ufffd")
    if text.isascii() or is_encodable(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_encodable(text: str) -> bool:
    """Whether `text` can be encoded: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_encodable(text: str, field: str) -> None:
    """`InvalidRequest` unless the value is a `str` without lone surrogates."""
    if not isinstance(text, str):
        raise InvalidRequest(field, f"must be text, not {type(text).__name__}")
    if not is_encodable(text):
        raise InvalidRequest(field, "holds a lone surrogate, which is not a character")


def check_user_id(value: object, field: str, *, empty: bool = False) -> None:
    """`InvalidRequest` unless a tenant or object id can be stored as it is. With `empty`, it may be empty."""
    if not isinstance(value, str) or storable(value) != value:
        raise InvalidRequest(field, "must be text without NUL and lone surrogates")
    if not (value or empty):
        raise InvalidRequest(field, "must not be empty")


def bounded(text: str, limit: int = LIMIT, *, more: bool = False) -> str:
    """`text` made storable and cut at `limit` characters, with a note of its full length; with `more`, the
    full text is longer than `text`."""
    whole = len(text)
    if whole <= limit:
        return storable(text)
    of = f"of {'more than ' if more else ''}{whole:,}"
    return f"{storable(text[:limit])}\n[Cut here: {limit:,} {of} characters are shown.]"


def short(text: str) -> str:
    """A client's input as an error message quotes it: at most `REPEATED` characters."""
    return text if len(text) <= REPEATED else text[:REPEATED] + "…"


def enumerated(names: Sequence[str]) -> str:
    """Such as `A, B and C`; of no names, an empty text."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


class _Unfit(Exception):
    """A value within JSON that cannot be stored. `path` is filled in, innermost first, as it propagates."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def within(self, part: object) -> "_Unfit":
        self.path.append(short(str(part)))
        return self


def check_storable(value: Any, around: int = 0) -> None:
    """`InvalidRequest`, naming the field, for JSON that no body may hold, not even that of an imported task:
    NUL, lone surrogates, integers beyond 64 bits, more than `DEEPEST` levels.

    `around` is the number of outer levels that do not count.
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
    """JSON with its texts made storable. `ValueError` if it is nested too deeply, or an integer has more
    than 64 bits: an export of the task could not be imported."""
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
