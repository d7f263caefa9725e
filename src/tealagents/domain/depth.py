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
STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_EXTREME = re.compile(rb"\d[eE][+-]?0*[1-9]\d\d")
#: why JSON is not read
TOO_SLOW: Final = f"holds more than {MOST_EXTREMES} numbers with exponents of three digits"


def too_deep(value: Any) -> bool:
    """Whether parsed JSON is nested deeper than `DEEPEST` levels."""
    level, depth = [value], 0
    while level := [inner for outer in level if isinstance(outer, dict | list) for inner in _within(outer)]:
        depth += 1
        if depth > DEEPEST:
            return True
    return False


def too_slow(data: bytes) -> bool:
    """Whether JSON, which has not been read yet, holds more numbers than `MOST_EXTREMES` allows."""
    if data.count(b",") < MOST_EXTREMES:
        return False
    most = MOST_EXTREMES + 1
    found = islice(_EXTREME.finditer(data), most)  # those in texts are none
    return len(list(found)) == most and len(_EXTREME.findall(STRING.sub(b"", data))) >= most


def too_many(data: bytes, most: int) -> bool:
    """Whether JSON, which has not been read yet, holds more values. Commas and brackets in texts are none."""
    if _places(data) <= most:
        return False
    strings_at_most = 2 * most  # each value may have a name
    outside, strings = STRING.subn(b"", data, strings_at_most)
    return strings == strings_at_most or _places(outside) > most


def _places(data: bytes) -> int:
    """How many values can be in JSON at most."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") + 1


def _within(outer: Any) -> Any:
    return outer.values() if isinstance(outer, dict) else outer
