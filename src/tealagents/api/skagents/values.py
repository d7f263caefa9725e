"""What was sent, as templates see it: plain data, of which they also reach what Python knows besides.

The earlier platform hands its templates Python objects. Here every value is written as JSON has it. By name a
template reaches the parts of dates, times, UUIDs and enums, and the properties of the config's own types. The
result of a property is plain data again, so that no object is reached through it. What else the object would
have is an error rather than an empty text.
"""

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

log = logging.getLogger(__name__)

#: a name that a value has nothing by
MISSING: Final = object()

_DATE, _TIME = ("year", "month", "day"), ("hour", "minute", "second", "microsecond")
#: what is reached of values that JSON has only as a text or a number
_PARTS: Mapping[type, tuple[str, ...]] = {
    datetime: (*_DATE, *_TIME),
    date: _DATE,
    time: _TIME,
    timedelta: ("days", "seconds", "microseconds"),
    UUID: ("hex", "version"),
    Enum: ("name", "value"),
}


class Typed:
    """Plain data that knows the object it was made of; the underscore keeps templates from that."""

    _of: Any = None


class _Record(Typed, dict[str, Any]):
    pass


class _Text(Typed, str):
    pass


class _Whole(Typed, int):
    pass


class _Real(Typed, float):
    pass


_KINDS: Mapping[type, type[Any]] = {dict: _Record, str: _Text, int: _Whole, float: _Real}


def seen(value: Any, plain: Any) -> Any:
    """What a template sees of a value; `plain` is what it was dumped to."""
    if value is None or type(value) in (str, int, float):
        return plain
    if isinstance(plain, list):
        alike = isinstance(value, list | tuple | set | frozenset) and len(value) == len(plain)
        return list(map(seen, value, plain)) if alike else plain
    if isinstance(plain, dict):
        if isinstance(value, dict):
            return dict(zip(plain, map(seen, value.values(), plain.values()), strict=False))
        fields = getattr(value, "__dict__", {})
        plain = {name: seen(fields.get(name), each) for name, each in plain.items()}
    kind = _KINDS.get(type(plain))
    if kind is None:
        return plain
    typed = kind(plain)
    typed._of = value
    return typed


def part(typed: Typed, name: str) -> Any:
    """What a value has by a name, which may have been sent: no code of the config's types runs.

    `LookupError` where the value is an object that has more by it.
    """
    if isinstance(typed, dict) and name in typed:
        return typed[name]
    value = typed._of
    if any(isinstance(value, kind) and name in names for kind, names in _PARTS.items()):
        return _plain(getattr(value, name))
    if name.startswith("_") or hasattr(typed, name) or not _has(value, name):
        return MISSING
    raise LookupError(f"{name} of {type(value).__name__} cannot be reached here")


def attribute(typed: Typed, name: str) -> Any:
    """What a value has by a name that the template writes: a part, or a property of the config's own type."""
    value = typed._of
    if isinstance(typed, dict) and name in typed:
        return typed[name]
    if not name.startswith("_") and _is_property(value, name):
        try:
            return _plain(getattr(value, name))
        except Exception as error:  # whatever the code of a config's own type raises
            log.exception("the property %s of the type %s raised", name, type(value).__name__)
            raise LookupError(f"{name} of {type(value).__name__} raised {type(error).__name__}") from None
    return part(typed, name)


def _has(value: Any, name: str) -> bool:
    return inspect.getattr_static(value, name, MISSING) is not MISSING


def _is_property(value: Any, name: str) -> bool:
    own = isinstance(value, BaseModel | Enum) or dataclasses.is_dataclass(value)
    return own and isinstance(inspect.getattr_static(type(value), name, None), property | cached_property)


def _plain(value: Any) -> Any:
    return seen(value, to_jsonable_python(value, by_alias=False))
