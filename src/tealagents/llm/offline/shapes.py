"""Structured output: a value of the JSON Schema that was asked for, with the answer in its texts."""

from typing import Any

#: how deep types that hold themselves are filled in
_DEEPEST = 6
_PREFIX = "#/$defs/"
_FORMATS = {"date": "2026-01-01", "date-time": "2026-01-01T00:00:00Z", "time": "00:00:00Z"}
_FORMATS |= {"uuid": "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f", "uri": "https://example.com"}


#: where any object will do
ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}}


def fitting(schema: dict[str, Any], text: str) -> Any:
    """The value: texts are `text`, numbers 1, lists of one item, choices the first of them.

    >>> fitting({"type": "object", "properties": {"sum": {"type": "integer"}}}, "hello")
    {'sum': 1}
    """
    return _Filling(schema.get("$defs") or {}, text).value(schema, 0)


class _Filling:
    def __init__(self, named: dict[str, Any], text: str) -> None:
        self._named = named
        self._text = text

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict):
            return None
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self._named.get(reference.removeprefix(_PREFIX)), depth + 1)
        for key in ("enum", "examples"):
            if schema.get(key):
                return schema[key][0]
        if "const" in schema:
            return schema["const"]
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self._choice(schema[key], depth)
        return self._typed(schema, depth)

    def _choice(self, choices: list[Any], depth: int) -> Any:
        """The first; where types hold themselves too deeply, the one that ends it."""
        if depth > _DEEPEST and {"type": "null"} in choices:
            return None
        return self.value(choices[0], depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        match kind[0] if isinstance(kind, list) and kind else kind:
            case "string":
                return _FORMATS.get(schema.get("format", ""), self._text)
            case "integer" | "number":
                return max(1, schema.get("minimum", 1))
            case "boolean":
                return True
            case "array":
                return [] if depth > _DEEPEST else [self.value(schema.get("items"), depth + 1)]
            case "object":
                fields = schema.get("properties") or {}
                return {name: self.value(field, depth + 1) for name, field in fields.items()}
        return None
