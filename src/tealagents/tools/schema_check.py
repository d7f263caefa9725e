"""Whether arguments fit the JSON Schema that a tool shows, found in bounded time whatever the schema.

What a hostile document could make slow (`pattern`, `uniqueItems`), and what services understand differently
(`format`, `not`, conditions), is left to the service.
"""

from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import create
from referencing import Registry

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.tools.naming import excerpt

#: keywords, and choices of them, that are looked at in one check, and how many at once within each other
MAX_STEPS, MAX_DEPTH = 100_000, 200
#: characters of a fault that count as a step: it repeats the value, however large that is
FAULT_CHARACTERS = 64
_CHECKED = (
    *("$ref", "allOf", "anyOf", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "items", "maxItems"),
    *("maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "oneOf"),
    *("prefixItems", "properties", "required", "type"),
)


class _TooLarge(Exception):
    """The check would take too long."""


Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


def check_against(schema: Json, arguments: Json) -> None:
    """`ToolFailed` that names an argument which does not fit, or says that all are too large for this.

    The keywords of `schema` have values of their shape, as `openapi_schema` makes them; one of a tool of
    one's own that is malformed raises whatever it raises.
    """
    counted = _Budget().counted
    keywords = {name: counted(Draft202012Validator.VALIDATORS[name]) for name in _CHECKED}
    keywords["additionalProperties"] = counted(_other_fields)
    # nothing is fetched: a registry of one's own does not know how
    validator = create({}, keywords)(schema, registry=Registry())
    try:
        fault = next(validator.iter_errors(arguments), None)
    except _TooLarge:
        raise ToolFailed(
            "The arguments, or their schema, are too large to be checked. Nothing was done."
        ) from None
    if fault is not None:
        place = ".".join(map(str, fault.absolute_path)) or "arguments"
        raise ToolFailed(
            f"The arguments are not valid, nothing was done:\n- {excerpt(place)}: {excerpt(fault.message)}"
        )


class _Budget:
    """What one check may still take."""

    def __init__(self) -> None:
        self._steps = self._depth = 0

    def counted(self, keyword: Keyword) -> Keyword:
        def check(validator: Any, wanted: Any, value: Any, within: Any) -> Iterator[ValidationError]:
            self._take(1 + (len(wanted) if isinstance(wanted, list | dict) else 0))
            if self._depth > MAX_DEPTH:  # Python's own limit would meet the library where it cannot bear it
                raise _TooLarge
            self._depth += 1
            try:
                for fault in keyword(validator, wanted, value, within) or ():
                    self._take(len(fault.message) // FAULT_CHARACTERS)
                    yield fault
            finally:
                self._depth -= 1

        return check

    def _take(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooLarge


def _other_fields(validator: Any, wanted: Any, value: Any, within: Any) -> Iterator[ValidationError]:
    """Fields that are not named: with `patternProperties` they would be by patterns, which may be slow."""
    if "patternProperties" not in within:
        keyword = Draft202012Validator.VALIDATORS["additionalProperties"]
        yield from keyword(validator, wanted, value, within) or ()
