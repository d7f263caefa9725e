"""Whether a tool that code of others describes can be sent to a model, and what is stored of it."""

import re
from typing import Any

from msgspec import Struct, ValidationError, convert, json

from tealagents.domain.models import Governance, ToolSpec

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
#: what is wrong with another one
NAME_RULE = "cannot be sent to a model: letters, digits, _ and - only, at most 64 together"


def flaw(spec: ToolSpec) -> str:
    """Which of its fields is none that could be sent, and why; empty where all can. The name's letters are
    another question: see `VALID_NAME`."""
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
        except (TypeError, ValueError, RecursionError) as error:  # half a character is a ValueError
            return f"{error} - at `$.{field}`"
    return ""


def bare(spec: ToolSpec) -> ToolSpec:
    """The same without the fields of a class of its own, or of its governance: they may be no JSON."""
    governance = Governance(**_fields(spec.governance, Governance))
    return ToolSpec(**{**_fields(spec, ToolSpec), "governance": governance})


def _fields(given: Struct, kind: type[Struct]) -> dict[str, Any]:
    return {name: getattr(given, name) for name in kind.__struct_fields__}
