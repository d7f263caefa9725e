"""Checks whether arguments fit the JSON Schema that a tool shows, in bounded time whatever the schema.

The service itself has to check what a hostile document could make slow (`pattern`, `uniqueItems`), and what
services interpret differently (`format`, `not`, conditions).
"""

from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import create
from referencing import Registry

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.tools.naming import excerpt

#: steps that one check may take (one for each keyword, and for each member of the keyword's value), and
#: keywords that may be nested within each other
MAX_STEPS, MAX_DEPTH = 100_000, 200
#: characters of a fault's text that count as a step: the text quotes the value, however large that is
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
    """`ToolFailed` if an argument does not fit, which the text names, or if the check would take too long.

    The keywords of `schema` must have values of the right types, as `openapi_schema` ensures. A malformed
    schema of another tool raises whatever `jsonschema` raises.
    """
    counted = _Budget().counted
    keywords = {name: counted(Draft202012Validator.VALIDATORS[name]) for name in _CHECKED}
    keywords["additionalProperties"] = counted(_other_fields)
    # with an empty registry, `jsonschema` cannot fetch references to other documents
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
    """Counts the steps and the depth of one check, and raises `_TooLarge` beyond their limits."""

    def __init__(self) -> None:
        self._steps = self._depth = 0

    def counted(self, keyword: Keyword) -> Keyword:
        def check(validator: Any, wanted: Any, value: Any, within: Any) -> Iterator[ValidationError]:
            self._take(1 + (len(wanted) if isinstance(wanted, list | dict) else 0))
            if self._depth > MAX_DEPTH:  # before Python's own limit, which would strike inside the library
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
    """Checks `additionalProperties`. Beside `patternProperties` it is left out: finding the fields that it
    applies to would take matching patterns, which may be slow."""
    if "patternProperties" not in within:
        keyword = Draft202012Validator.VALIDATORS["additionalProperties"]
        yield from keyword(validator, wanted, value, within) or ()
