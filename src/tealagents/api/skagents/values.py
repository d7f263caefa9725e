"""The values that templates read: plain JSON data that also knows some attributes of the Python object it is.

The earlier platform gave its templates Python objects. Here every value renders as its JSON. By name, a
template can also read the parts of dates, times, UUIDs and enums, the fields of named tuples, the `root` of
root models, and the properties of the config's own types. The result of a property is plain data again, so a
template never gets hold of an object. Any other attribute that the object has is an error, not an empty text.
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

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

log = logging.getLogger(__name__)

#: returned for a name that a value does not have
MISSING: Final = object()

_DATE, _TIME = ("year", "month", "day"), ("hour", "minute", "second", "microsecond")
#: type → the attributes that templates can read of its values, which JSON writes as a text or a number
_PARTS: Mapping[type, tuple[str, ...]] = {
    datetime: (*_DATE, *_TIME),
    date: _DATE,
    time: _TIME,
    timedelta: ("days", "seconds", "microseconds"),
    UUID: ("hex", "version"),
    Enum: ("name", "value"),
}


class Typed:
    """Plain data with the object that it was made from. Templates cannot read names with an underscore."""

    _of: Any = None


class _Record(Typed, dict[str, Any]):
    pass


class _Text(Typed, str):
    pass


class _List(Typed, list[Any]):
    pass


class _Whole(Typed, int):
    pass


class _Real(Typed, float):
    pass


_KINDS: Mapping[type, type[Any]] = {dict: _Record, str: _Text, list: _List, int: _Whole, float: _Real}


def template_value(value: Any, plain: Any) -> Any:
    """A value for templates; `plain` is the JSON data of `value`."""
    if value is None or type(value) in (str, int, float):
        return plain
    if isinstance(value, RootModel):
        plain = _root_value(value, plain)
    elif isinstance(plain, list):
        same_items = isinstance(value, list | tuple | set | frozenset) and len(value) == len(plain)
        plain = list(map(template_value, value, plain)) if same_items else plain
        if type(value) is list:
            return plain
    elif isinstance(plain, dict):
        if isinstance(value, dict):
            return dict(zip(plain, map(template_value, value.values(), plain.values()), strict=False))
        fields = getattr(value, "__dict__", {})
        plain = {name: template_value(fields.get(name), each) for name, each in plain.items()}
    kind: type[Any] | None = type(plain) if isinstance(plain, Typed) else _KINDS.get(type(plain))
    if kind is None:
        return plain
    typed = kind(plain)
    typed._of = value
    return typed


def _root_value(value: RootModel[Any], plain: Any) -> Any:
    """The root of a model for templates: a serializer may have put something else into its JSON."""
    own = to_jsonable_python(value.root, by_alias=False)
    same = own == plain and not (isinstance(own, dict) and list(own) != list(plain))
    return template_value(value.root, plain) if same else plain


def excluded(kind: type[Any]) -> frozenset[str]:
    """The fields of a type that are not in its JSON (`Field(exclude=True)`)."""
    fields = kind.model_fields if issubclass(kind, BaseModel) else {}
    return frozenset(name for name, field in fields.items() if field.exclude)


def part(typed: Typed, name: str) -> Any:
    """The item or part of a value with this name, or `MISSING`.

    The name may come from the input, so no code of the config's types runs. Raises `LookupError` for any
    other attribute that the object has.
    """
    if isinstance(typed, dict) and name in typed:
        return typed[name]
    value = typed._of
    if any(isinstance(value, kind) and name in names for kind, names in _PARTS.items()):
        return _plain(getattr(value, name))
    if name == "root" and isinstance(value, RootModel):
        return _root_value(value, typed)
    names = _names_of_items(value)
    if name in names and isinstance(typed, list) and len(typed) == len(names):
        return typed[names.index(name)]
    if name.startswith("_") or hasattr(typed, name) or not _has(value, name):
        return MISSING
    raise LookupError(f"{name} of {type(value).__name__} cannot be read in templates")


def attribute(typed: Typed, name: str) -> Any:
    """As `part`, for a name that the template itself contains: also properties of the config's own types, and
    fields that are not in their JSON.

    Raises `LookupError`, also if the property raises.
    """
    value = typed._of
    if isinstance(typed, dict) and name in typed:
        return typed[name]
    if not name.startswith("_") and (_is_property(value, name) or name in excluded(type(value))):
        try:
            return _plain(getattr(value, name))
        except Exception as error:  # the config's own types may raise anything
            log.exception("the property %s of the type %s raised", name, type(value).__name__)
            raise LookupError(f"{name} of {type(value).__name__} raised {type(error).__name__}") from None
    return part(typed, name)


def _names_of_items(value: Any) -> tuple[str, ...]:
    """The names of a named tuple's items; none for anything else."""
    names: tuple[str, ...] = getattr(type(value), "_fields", ()) if isinstance(value, tuple) else ()
    return names


def _has(value: Any, name: str) -> bool:
    return inspect.getattr_static(value, name, MISSING) is not MISSING


def _is_property(value: Any, name: str) -> bool:
    own = isinstance(value, BaseModel | Enum) or dataclasses.is_dataclass(value)
    own = own or bool(_names_of_items(value))
    return own and isinstance(inspect.getattr_static(type(value), name, None), property | cached_property)


def _plain(value: Any) -> Any:
    return template_value(value, to_jsonable_python(value, by_alias=False))
