"""Structured output: a value that matches a JSON Schema, with the answer as its texts."""

from typing import Any, TypeVar

from tealagents.llm.offline.errors import invalid
from tealagents.llm.offline.reading import optional

T = TypeVar("T")

#: The depth from which recursive types are ended where the schema allows it, and the greatest depth.
_DEEPEST, _TOO_DEEP = 6, 50
_PREFIX = "#/$defs/"
_FORMATS = {"date": "2026-01-01", "date-time": "2026-01-01T00:00:00Z", "time": "00:00:00Z"}
_FORMATS |= {"uuid": "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f", "uri": "https://example.com"}


#: The schema for any JSON object.
ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}}


def fitting(schema: dict[str, Any], text: str) -> Any:
    """A value for a schema: texts are `text`, numbers 1, lists have one item, and the first choice is taken.

    >>> fitting({"type": "object", "properties": {"sum": {"type": "integer"}}}, "hello")
    {'sum': 1}

    Raises `ServiceError` if it is not a valid schema.
    """
    return _Filling(_part(schema, "$defs", dict) or {}, text).value(schema, 0)


def _part(schema: dict[str, Any], name: str, kind: type[T]) -> T | None:
    return optional(schema.get(name), kind, f"schema.{name}")


class _Filling:
    def __init__(self, named: dict[str, Any], text: str) -> None:
        self._named = named
        self._text = text

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict):
            return None
        if depth > _TOO_DEEP:
            raise invalid("Invalid schema: it is nested too deeply, or recursive without end.", "schema")
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self._named.get(reference.removeprefix(_PREFIX)), depth + 1)
        for key in ("enum", "examples"):
            if examples := _part(schema, key, list):
                return examples[0]
        if "const" in schema:
            return schema["const"]
        for key in ("anyOf", "oneOf", "allOf"):
            if choices := _part(schema, key, list):
                return self._choice(choices, depth)
        return self._typed(schema, depth)

    def _choice(self, choices: list[Any], depth: int) -> Any:
        """The first choice; null, if it is one, in a recursive type that is too deep."""
        if depth > _DEEPEST and {"type": "null"} in choices:
            return None
        return self.value(choices[0], depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        match kind[0] if isinstance(kind, list) and kind else kind:
            case "string":
                return _FORMATS.get(_part(schema, "format", str) or "", self._text)
            case "integer" | "number":
                least = schema.get("minimum")
                return max(1, least) if isinstance(least, int | float) else 1
            case "boolean":
                return True
            case "array":
                return [] if depth > _DEEPEST else [self.value(schema.get("items"), depth + 1)]
            case "object":
                fields = _part(schema, "properties", dict) or {}
                return {name: self.value(field, depth + 1) for name, field in fields.items()}
        return None
