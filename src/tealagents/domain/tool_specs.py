"""Whether a tool that code of others describes can be sent to a model."""

import re

from msgspec import ValidationError, convert, json
from msgspec.structs import asdict

from tealagents.domain.models import Governance, ToolSpec

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
#: what is wrong with another one
NAME_RULE = "cannot be sent to a model: letters, digits, _ and - only, at most 64 together"


def flaw(spec: ToolSpec) -> str:
    """Which of its fields is none that could be sent, and why; empty where all can. The name's letters are
    another question: see `VALID_NAME`."""
    given = asdict(spec)
    if isinstance(spec.governance, Governance):  # of a class of its own, too
        given["governance"] = {name: getattr(spec.governance, name) for name in Governance.__struct_fields__}
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
