"""How deeply JSON from outside may be nested, and which numbers it may hold.

The parsers' own limits differ between versions of Python.
"""

import re
from itertools import islice
from typing import Any, Final

#: levels of objects and lists within each other
DEEPEST: Final = 64
#: integers beyond these lose digits in other people's JSON
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1
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


def _within(outer: Any) -> Any:
    return outer.values() if isinstance(outer, dict) else outer
