"""JSON Schema as model services take it: one tool's schema that they refuse fails every request."""

from typing import Any

from tealagents.domain.models import Json

#: keywords whose values are lists of schemas, schemas by name, and schemas
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")
SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DEFINITIONS = ("$defs", "definitions")
_COMPOSITIONS = ("allOf", "anyOf", "oneOf")
#: what the root of a tool's schema must not have
_REFUSED = frozenset({*_COMPOSITIONS, "enum", "const", "not", "if", "then", "else", "$schema"})
#: parts of a schema that are searched for fields, and different descriptions that are kept of one field
_MOST_PARTS, _MOST_DESCRIPTIONS = 100, 32


def as_parameters(schema: Json) -> Json:
    """The schema of an MCP tool as an object with properties, which lets more through than the server does.

    The fields of what may be chosen at the root become optional ones; one that the choices describe in
    different ways may be any of these. Nulls, which some servers write for what they leave out, are left out.
    """
    described: dict[str, list[Any]] = {}
    needed: dict[str, None] = {}
    parts = [(schema, True)]
    for part, whole in parts:  # which grow meanwhile
        for name, one in _object(part.get("properties")).items():
            ones = described.setdefault(name, [])
            if len(ones) <= _MOST_DESCRIPTIONS and one not in ones:
                ones.append(one)
        if whole:
            needed |= {name: None for name in _listed(part.get("required")) if isinstance(name, str)}
        for key in (*_COMPOSITIONS, "then", "else"):
            for branch in _listed(part.get(key)) or [part.get(key)]:
                if len(parts) == _MOST_PARTS:
                    break
                if found := _object(_target(schema, branch)):
                    # what all of them require is required; what is chosen may be another
                    parts.append((found, whole and key == "allOf"))
    fields = {name: _either(ones) for name, ones in described.items()} | _object(schema.get("properties"))
    kept = {key: value for key, value in schema.items() if key not in _REFUSED and value is not None}
    required = {"required": list(needed)} if needed else {}
    parameters: Json = _with_items_throughout(kept | {"type": "object", "properties": fields} | required)
    return parameters


def _either(ones: list[Any]) -> Any:
    if len(ones) > _MOST_DESCRIPTIONS:
        return {}
    return ones[0] if len(ones) == 1 else {"anyOf": ones}


def with_items(schema: Json) -> Json:
    """An array whose items are not described has any, and says so."""
    kinds = schema.get("type")
    is_array = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
    return {**schema, "items": {}} if is_array and not {"items", "prefixItems"} & schema.keys() else schema


def _with_items_throughout(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return with_items({key: _member(key, value) for key, value in schema.items()})


def _member(key: str, value: Any) -> Any:
    if key in LISTS and isinstance(value, list):
        return [_with_items_throughout(one) for one in value]
    if key in (*MAPS, *_DEFINITIONS) and isinstance(value, dict):
        return {name: _with_items_throughout(one) for name, one in value.items()}
    return _with_items_throughout(value) if key in SINGLE else value


def _target(schema: Json, branch: Any) -> Any:
    """The branch, or the definition that it refers to."""
    reference = str(_object(branch).get("$ref", ""))
    for key in _DEFINITIONS:
        name = reference.removeprefix(f"#/{key}/")
        if name in _object(schema.get(key)):
            return schema[key][name]
    return branch


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
