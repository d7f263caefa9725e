"""How deeply JSON from outside may be nested.

The parsers' own limits differ between versions of Python.
"""

from typing import Any, Final

#: levels of objects and lists within each other
DEEPEST: Final = 64


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
