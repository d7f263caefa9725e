"""How deeply JSON from outside may be nested, and how many values and which numbers it may hold.

The parsers' own limits differ between versions of Python.
"""

import re
from itertools import islice
from typing import Any, Final

#: levels of objects and lists within each other
DEEPEST: Final = 64
#: integers beyond these lose digits in other people's JSON
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1
#: a value of two bytes takes eighty in memory, and all other requests wait while they are read
MOST_VALUES: Final = 100_000
#: numbers with exponents of three digits: near the bounds of a float, reading one takes as long as reading a
#: thousand others
MOST_EXTREMES: Final = 100
#: a text within JSON. One that does not end is taken to the end: to look for each quote anew takes hours
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_EXTREME = re.compile(rb"\d[eE][+-]?0*[1-9]\d\d")
#: why JSON is not read
TOO_SLOW: Final = "holds too many numbers with three-digit exponents, such as 1e300"
#: quotes up to which JSON is cut at all of them at once: faster than the pattern, and into more memory
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
    """Whether JSON, which has not been read yet, holds more of the numbers that take long to read."""
    if data.count(b",") < most:
        return False
    found = islice(_EXTREME.finditer(_without_texts(data)), most + 1)
    return len(list(found)) > most


def too_many(data: bytes, most: int) -> bool:
    """Whether JSON, which has not been read yet, holds more values. Commas and brackets in texts are none."""
    if _places(data) <= most:
        return False
    strings_at_most = 2 * most  # each value may have a name
    outside, strings = _STRING.subn(b"", data, strings_at_most)
    return strings == strings_at_most or _places(outside) > most


def _without_texts(data: bytes) -> bytes:
    quoted = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    if quoted.count(b'"') > _QUOTES:
        return _STRING.sub(b"", data)
    return b"".join(quoted.split(b'"')[::2])


def _places(data: bytes) -> int:
    """How many values can be in JSON at most."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") + 1


def _within(outer: Any) -> Any:
    return outer.values() if isinstance(outer, dict) else outer
