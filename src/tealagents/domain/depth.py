"""How deeply JSON from outside may be nested, and how large its integers may be.

The parsers' own limits differ between versions of Python.
"""

from typing import Any, Final

#: levels of objects and lists within each other
DEEPEST: Final = 64
#: integers beyond these lose digits in other people's JSON
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1


def too_deep(value: Any) -> bool:
    """Whether parsed JSON is nested deeper than `DEEPEST` levels."""
    level, depth = [value], 0
    while level := [inner for outer in level if isinstance(outer, dict | list) for inner in _within(outer)]:
        depth += 1
        if depth > DEEPEST:
            return True
    return False


def _within(outer: Any) -> Any:
    return outer.values() if isinstance(outer, dict) else outer
