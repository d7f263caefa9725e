"""Checks tool specs that third-party code supplies, and strips them for storing."""

import json
import re
from sys import float_info
from typing import Any

import msgspec
from msgspec import Struct, ValidationError, convert

from tealagents.domain.models import Governance, ToolSpec

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
#: the error message for a name that does not match
NAME_RULE = "cannot be sent to a model: letters, digits, _ and - only, at most 64 together"


def flaw(spec: ToolSpec) -> str:
    """Which field of the spec cannot be sent to a model, and why; empty if all can. The characters of its
    name are checked separately, against `VALID_NAME`."""
    given = _fields(spec, ToolSpec)
    if isinstance(spec.governance, Governance):
        given["governance"] = _fields(spec.governance, Governance)
    try:
        convert(given, ToolSpec)
    except ValidationError as error:
        return str(error)
    for field, value in given.items():
        try:
            msgspec.json.encode(value)
            if field == "parameters":
                _check_json(value)
        except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate raises a ValueError
            return f"{error} - at `$.{field}`"
    kind = spec.parameters.get("type", "object")
    return "" if kind == "object" else f"Expected a schema of type 'object', got {kind!r} - at `$.parameters`"


def _check_json(value: Any) -> None:
    """`TypeError` or `ValueError` for what a model client's encoder may refuse, which msgspec would write as
    text: sets, numbers of other types, bytes, names that are not text; and for what a model service cannot
    read: integers beyond the largest float."""
    json.dumps(value, allow_nan=False)
    _check_within(value)


def _check_within(value: Any) -> None:
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("Expected names that are text")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            _check_within(inner)
    elif isinstance(value, int) and abs(value) > float_info.max:
        raise ValueError("Expected smaller numbers")


def bare(spec: ToolSpec) -> ToolSpec:
    """The spec as a plain `ToolSpec` with plain `Governance`: fields that subclasses add may not be JSON."""
    governance = Governance(**_fields(spec.governance, Governance))
    return ToolSpec(**{**_fields(spec, ToolSpec), "governance": governance})


def _fields(given: Struct, kind: type[Struct]) -> dict[str, Any]:
    return {name: getattr(given, name) for name in kind.__struct_fields__}
