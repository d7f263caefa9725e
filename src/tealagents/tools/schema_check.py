"""Whether arguments fit the JSON Schema that a tool shows, found in bounded time whatever the schema.

Looked at is what kind of value stands where: types, choices, bounds, required and unknown fields. What a
hostile document could make slow (`pattern`, `uniqueItems`), and what libraries understand differently
(`format`, `not`, conditions), is left to the service.
"""

from collections.abc import Iterator
from reprlib import repr as short
from typing import Any

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.tools.naming import excerpt

#: comparisons in one check, and how deep schemas may be nested
MAX_STEPS, MAX_DEPTH = 100_000, 150
#: choices that an error names
MAX_CHOICES = 20

_TYPES: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "string": str,
    "array": list,
    "object": dict,
    "number": (int, float),
}


def check_against(schema: Json, arguments: Json) -> None:
    """`ToolFailed` that names the first argument which does not fit, or says that all are too large for this.

    `schema` is one that `openapi_schema` made: its keywords have values of their shape.
    """
    fault = next(_Check(schema.get("$defs", {})).faults(arguments, schema, "", 0), None)
    if fault is not None:
        raise ToolFailed(f"The arguments are not valid, nothing was done:\n- {fault}")


class _Check:
    def __init__(self, definitions: Json) -> None:
        self._definitions = definitions
        self._steps = 0

    def faults(self, value: Any, schema: Any, place: str, depth: int) -> Iterator[str]:
        if not isinstance(schema, dict):
            return
        self._steps += 1 + sum(len(schema.get(key, ())) for key in ("type", "enum", "required"))
        if self._steps > MAX_STEPS or depth > MAX_DEPTH:
            raise ToolFailed("The arguments, or their schema, are too large to be checked. Nothing was done.")
        yield from self._own_faults(value, schema, place)
        if isinstance(value, dict):
            yield from self._faults_of_fields(value, schema, place, depth + 1)
        if isinstance(value, list):
            first = schema.get("prefixItems", [])
            for number, item in enumerate(value):
                one = first[number] if number < len(first) else schema.get("items")
                yield from self.faults(item, one, _within(place, number), depth + 1)
        reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        for one in (self._definitions.get(reference), *schema.get("allOf", ())):
            yield from self.faults(value, one, place, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema and not any(self._fits(value, one, depth + 1) for one in schema[key]):
                yield f"{place or 'arguments'}: fits none of the alternatives{_given(value)}"

    def _fits(self, value: Any, schema: Any, depth: int) -> bool:
        return next(self.faults(value, schema, "", depth), None) is None

    def _own_faults(self, value: Any, schema: Json, place: str) -> Iterator[str]:
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(_is_a(value, kind) for kind in kinds):
            yield f"{place or 'arguments'}: has to be {' or '.join(map(str, kinds))}{_given(value)}"
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices is not None and not any(_is_same(value, one) for one in choices):
            shown = ", ".join(short(one) for one in choices[:MAX_CHOICES])
            yield f"{place or 'arguments'}: has to be one of {shown}{_given(value)}"
        if _is_out_of_bounds(value, schema):
            yield f"{place or 'arguments'}: is out of its bounds{_given(value)}"

    def _faults_of_fields(self, value: Json, schema: Json, place: str, depth: int) -> Iterator[str]:
        for name in schema.get("required", ()):
            if isinstance(name, str) and name not in value:
                yield f"{_within(place, name)}: missing"
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, one in value.items():
            if name in fields:
                yield from self.faults(one, fields[name], _within(place, name), depth)
            elif "patternProperties" not in schema:
                if others is False:
                    yield f"{_within(place, name)}: there is no such field"
                yield from self.faults(one, others, _within(place, name), depth)


def _within(place: str, name: object) -> str:
    return excerpt(f"{place}.{name}" if place else str(name))


def _given(value: Any) -> str:
    return f" (given: {short(value)})"


def _is_a(value: Any, kind: Any) -> bool:
    if kind == "integer":
        return (isinstance(value, int) or (isinstance(value, float) and value.is_integer())) and not (
            isinstance(value, bool)
        )
    known = _TYPES.get(kind, object) if isinstance(kind, str) else object
    return isinstance(value, known) and not (kind == "number" and isinstance(value, bool))


def _is_same(value: Any, other: Any) -> bool:
    """As in JSON, where `true` is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _is_out_of_bounds(value: Any, schema: Json) -> bool:
    def limit(key: str, default: float) -> float:
        found = schema.get(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else default

    infinite = float("inf")
    match value:
        case bool():
            return False
        case int() | float():
            least, most = limit("minimum", -infinite), limit("maximum", infinite)
            above, below = limit("exclusiveMinimum", -infinite), limit("exclusiveMaximum", infinite)
            return not (least <= value <= most and above < value < below)
        case str():
            return not limit("minLength", 0) <= len(value) <= limit("maxLength", infinite)
        case list():
            return not limit("minItems", 0) <= len(value) <= limit("maxItems", infinite)
    return False
