"""Checks tool specs that third-party code supplies, and strips them for storing."""

import re
from typing import Any

from msgspec import Struct, ValidationError, convert, json

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
            json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate raises a ValueError
            return f"{error} - at `$.{field}`"
    return ""


def bare(spec: ToolSpec) -> ToolSpec:
    """The spec as a plain `ToolSpec` with plain `Governance`: fields that subclasses add may not be JSON."""
    governance = Governance(**_fields(spec.governance, Governance))
    return ToolSpec(**{**_fields(spec, ToolSpec), "governance": governance})


def _fields(given: Struct, kind: type[Struct]) -> dict[str, Any]:
    return {name: getattr(given, name) for name in kind.__struct_fields__}
