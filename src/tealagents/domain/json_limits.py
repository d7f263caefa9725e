"""Limits on JSON from outside: its depth, the number of its values, and the size of its numbers.

They are fixed here because the parsers' own limits differ between versions of Python.
"""

import re
from itertools import islice
from typing import Any, Final

#: levels of nested objects and lists
DEEPEST: Final = 64
#: beyond 64 bits, integers lose digits in other JSON parsers
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1
#: values in a document: a value of two bytes takes eighty in memory, and parsing blocks all other requests
MOST_VALUES: Final = 100_000
#: numbers with three-digit exponents: near the bounds of a float, one takes as long to parse as a thousand
#: others
MOST_EXTREMES: Final = 100
#: a string in JSON. An unterminated one extends to the end of the data: retrying at each quote takes hours
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_EXTREME = re.compile(rb"\d[eE][+-]?0*[1-9]\d\d")
#: why JSON is refused
TOO_SLOW: Final = "holds too many numbers with three-digit exponents, such as 1e300"
#: with up to this many quotes, JSON is split at them: faster than `_STRING`, but it takes more memory
_QUOTES = 20_000


def too_deep(value: Any) -> bool:
    """Whether parsed JSON is nested deeper than `DEEPEST` levels."""
    level, depth = [value], 0
    while level := [inner for outer in level if isinstance(outer, dict | list) for inner in _within(outer)]:
        depth += 1
        if depth > DEEPEST:
            return True
    return False


def too_slow(data: bytes, most: int = MOST_EXTREMES) -> bool:
    """Whether unparsed JSON holds more than `most` numbers with three-digit exponents."""
    if data.count(b",") < most:
        return False
    found = islice(_EXTREME.finditer(_without_texts(data)), most + 1)
    return len(list(found)) > most


def too_many(data: bytes, most: int) -> bool:
    """Whether unparsed JSON may hold more than `most` values. Commas and brackets in strings do not count."""
    if places(data) <= most:
        return False
    strings_at_most = 2 * most  # each value may have a key
    outside, strings = _STRING.subn(b"", data, strings_at_most)
    return strings == strings_at_most or places(outside) > most


def measured(data: bytes) -> tuple[int, int]:
    """How many values unparsed JSON may hold, and how many numbers with three-digit exponents."""
    outside = _without_texts(data)
    return places(outside), sum(1 for _ in _EXTREME.finditer(outside))


def _without_texts(data: bytes) -> bytes:
    quoted = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    if quoted.count(b'"') > _QUOTES:
        return _STRING.sub(b"", data)
    return b"".join(quoted.split(b'"')[::2])


def places(data: bytes) -> int:
    """An upper bound of the number of values in JSON."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") + 1


def _within(outer: Any) -> Any:
    return outer.values() if isinstance(outer, dict) else outer
