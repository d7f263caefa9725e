"""Makes JSON Schema that model services accept: one tool's schema that they refuse fails every request."""

from collections.abc import Callable
from functools import partial
from sys import float_info
from typing import Any
from urllib.parse import unquote

from tealagents.domain.models import Json

#: keywords whose value is a list of schemas, an object with a schema for each name, or one schema
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")
SINGLE = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_DEFINITIONS = ("$defs", "definitions")
_NAMED = (*MAPS, *_DEFINITIONS)
_COMPOSITIONS = ("allOf", "anyOf", "oneOf")
#: keywords that model services refuse at the root of a tool's schema
_REFUSED = frozenset({*_COMPOSITIONS, "enum", "const", "not", "if", "then", "else", "$schema"})
#: keywords whose value is text
_TEXTS = (
    *("$ref", "$id", "$comment", "title", "description", "pattern", "format"),
    *("contentEncoding", "contentMediaType"),
)
#: keywords whose value is true or false
_FLAGS = ("uniqueItems", "deprecated", "readOnly", "writeOnly")
#: keyword → the inclusive bound beside which earlier drafts write it as a flag
_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
#: keywords whose value is a number of characters, items or fields
_COUNTS = tuple(
    f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")
)
#: keyword → types of its value; a value of another type means nothing, and model services refuse it
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*LISTS, "enum", "required", "examples"), (list,)),
    **dict.fromkeys((*_NAMED, "dependencies", "dependentRequired"), (dict,)),
    **dict.fromkeys(SINGLE, (dict, bool)),
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_FLAGS, (bool,)),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys((*_EXCLUSIVE.values(), "multipleOf"), (int, float)),
    **dict.fromkeys(_EXCLUSIVE, (int, float, bool)),
    "type": (str, list),
}
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
#: keywords that may have the value null
_NULLABLE = ("const", "default")
#: keywords that name a schema or say how to read it; without them, the same values are valid
_NAMES = frozenset(
    {"$schema", "$vocabulary", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "additionalItems"}
)
#: keywords that are dropped: `_NAMES`, and references that are not a path within the document
_DROPPED = _NAMES | {"$dynamicRef", "$recursiveRef"}
#: keywords that refuse more values when the schemas within or beside them allow more (`not` refuses what its
#: schema allows), and the keywords that only have a meaning beside them
_OPPOSING = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
#: subschemas of a root that are searched for fields, and different schemas that are kept for one field
_MOST_PARTS, _MOST_DESCRIPTIONS = 100, 32


def as_parameters(schema: Json) -> Json:
    """The schema of an MCP tool as an object with properties. It allows all that the original allows, and
    sometimes more: the server has the last word.

    - The fields of alternatives at the root become optional fields. A field that the alternatives describe
      differently may match any of the descriptions.
    - What is not valid JSON Schema is left out, such as references that lead nowhere, and nulls, which some
      servers write for absent keywords.
    - If anything was left out, keywords that would refuse more values because of that are left out as well.
    """
    lost: set[str] = set()
    own = {key: value for key, value in schema.items() if key != "$id"}
    valid = _throughout(own, partial(_valid, lost=lost))
    valid = _throughout(valid, partial(_from_the_root, lost=lost))
    made: Json = _with_all_fields(valid)
    made = _throughout(made, partial(_without_dangling, root=made, lost=lost))
    if lost:
        made = _throughout(made, _loosened)
        made = _throughout(made, partial(_without_dangling, root=made, lost=lost))
    return made


def _with_all_fields(schema: Json) -> Json:
    """The schema as an object, with the fields of all schemas that are combined at its root."""
    described: dict[str, list[Any]] = {}
    needed: dict[str, None] = {}
    parts = [(schema, True)]
    for part, whole in parts:  # `parts` grows during the loop
        for name, one in _object(part.get("properties")).items():
            ones = described.setdefault(name, [])
            if len(ones) <= _MOST_DESCRIPTIONS and one not in ones:
                ones.append(one)
        if whole:
            needed |= dict.fromkeys(_texts(_as_list(part.get("required"))))
        for key in (*_COMPOSITIONS, "then", "else"):
            for branch in _as_list(part.get(key)) or [part.get(key)]:
                if len(parts) == _MOST_PARTS:
                    break
                if found := _object(_target(schema, branch)):
                    # `allOf` always applies, so what it requires is required; another branch may not apply
                    parts.append((found, whole and key == "allOf"))
    fields = {name: _either(ones) for name, ones in described.items()} | _object(schema.get("properties"))
    kept = {key: value for key, value in schema.items() if key not in _REFUSED}
    required = {"required": list(needed)} if needed else {}
    return kept | {"type": "object", "properties": fields} | required


def _either(ones: list[Any]) -> Any:
    """A schema that allows what any of these allows; anything, if they are too many."""
    if len(ones) > _MOST_DESCRIPTIONS:
        return {}
    return ones[0] if len(ones) == 1 else {"anyOf": ones}


def with_items(schema: Json) -> Json:
    """The schema, with `items: {}` added if it is an array that does not describe its items: model services
    refuse an array without `items`."""
    kinds = schema.get("type")
    is_array = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
    return {**schema, "items": {}} if is_array and not {"items", "prefixItems"} & schema.keys() else schema


def sound(schema: Json) -> Json:
    """The schema without keywords whose value has a wrong type."""
    kept = {key: value for key, value in schema.items() if key not in _KINDS or type(value) in _KINDS[key]}
    if isinstance(kinds := kept.get("type"), list):
        # YAML reads an unquoted `null` as None
        kept["type"] = ["null" if kind is None else kind for kind in kinds]
    return kept


def cleaned(schema: Json) -> Json:
    """A `sound` schema without the invalid parts of its values; a keyword of which nothing is left is
    dropped."""
    written = {key: value for key, value in schema.items() if _can_be_written(value)}
    kept = {key: _CLEANED[key](value) if key in _CLEANED else value for key, value in written.items()}
    return {key: value for key, value in kept.items() if value is not None or key in _NULLABLE}


def without_booleans(schema: Json) -> Json:
    """The schema with exclusive bounds as numbers. Earlier drafts write `minimum: 1, exclusiveMinimum: true`
    for what is now `exclusiveMinimum: 1`."""
    for exclusive, bound in _EXCLUSIVE.items():
        if isinstance(schema.get(exclusive), bool):
            kept = {key: value for key, value in schema.items() if key != exclusive}
            if schema[exclusive] and bound in kept:
                kept[exclusive] = kept.pop(bound)
            schema = kept
    return schema


def target_of(document: Any, reference: str) -> Any:
    """What a reference within a document refers to (RFC 6901). `LookupError` if it leads nowhere, or out of
    the document."""
    place, *parts = reference.split("/")
    if place != "#":
        raise LookupError(reference)
    for part in parts:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(key)] if isinstance(document, list) else document[key]
        except (ValueError, TypeError) as error:
            raise LookupError(reference) from error
    return document


def _throughout(schema: Any, change: Callable[[Json], Json]) -> Any:
    """The schema with `change` applied to it, and then to all schemas within the result, and so on."""
    if not isinstance(schema, dict):
        return schema
    return {key: _member(key, value, change) for key, value in change(schema).items()}


def _member(key: str, value: Any, change: Callable[[Json], Json]) -> Any:
    if key in LISTS:
        return [_throughout(one, change) for one in value]
    if key in _NAMED:
        return {name: _throughout(one, change) for name, one in value.items()}
    return _throughout(value, change) if key in SINGLE else value


def _valid(schema: Json, lost: set[str]) -> Json:
    """The valid part of a schema as JSON Schema (2020-12), into which forms of earlier drafts are translated.

    `lost` collects the keywords that lose something by which a value could be refused.
    """
    if isinstance(several := schema.get("items"), list):
        schema = {**schema, "prefixItems": several, "items": schema.get("additionalItems", {})}
    kept = cleaned(without_booleans(sound(schema)))
    if kept != schema:
        said = without_booleans(schema).items()
        lost.update(
            key for key, one in said if one is not None and key not in _NAMES and kept.get(key) != one
        )
    return with_items(kept)


def _from_the_root(schema: Json, lost: set[str]) -> Json:
    """The schema; if it has an `$id`, without the references within it, which start there instead of at the
    root."""
    return _throughout(schema, partial(_without_references, lost=lost)) if "$id" in schema else schema


def _without_references(schema: Json, lost: set[str]) -> Json:
    lost |= schema.keys() & {"$ref"}
    return {key: value for key, value in schema.items() if key not in ("$id", "$ref")}


def _loosened(schema: Json) -> Json:
    """The schema without the keywords that would refuse a value because other schemas now allow it; `oneOf`,
    which refuses what two of its schemas allow, becomes `anyOf`."""
    kept = {key: value for key, value in schema.items() if key not in _OPPOSING and key != "oneOf"}
    return {"anyOf": schema["oneOf"], **kept} if "oneOf" in schema else kept


def _can_be_written(value: Any) -> bool:
    """Whether a value is not a number such as `1e400`, `Infinity` or `NaN`, which Python's parser accepts but
    JSON cannot express, or an integer of that size, which other parsers refuse."""
    return not isinstance(value, int | float) or abs(value) <= float_info.max


def _schemas(value: list[Any]) -> list[Any] | None:
    """The schemas, each in its position; what is no schema is replaced by one that allows everything. None if
    the list is empty."""
    return [one if isinstance(one, dict | bool) else {} for one in value] or None


def _named_schemas(value: Json) -> Json:
    return {
        name: one if isinstance(one, dict | bool) else {} for name, one in value.items() if one is not None
    }


def _dependent(value: Json) -> Json:
    return {name: _texts(one) for name, one in value.items() if isinstance(one, list)}


def _types(value: Any) -> Any:
    if isinstance(value, str):
        return value if value in _TYPES else None
    return [kind for kind in _texts(value) if kind in _TYPES] or None


def _without_dangling(schema: Json, root: Json, lost: set[str]) -> Json:
    """The schema without a `$ref` that leads to no schema in `root`."""
    if "$ref" not in schema:
        return schema
    try:
        leads = isinstance(target_of(root, schema["$ref"]), dict | bool)
    except LookupError:
        leads = False
    if not leads or schema["$ref"] == "#":  # the root allows more than it did: it has lost `_REFUSED`
        lost.add("$ref")
    return schema if leads else {key: value for key, value in schema.items() if key != "$ref"}


def _target(schema: Json, branch: Any) -> Any:
    """The branch, or the definition of the schema that it refers to."""
    reference = str(_object(branch).get("$ref", ""))
    for key in _DEFINITIONS:
        name = reference.removeprefix(f"#/{key}/")
        if name in _object(schema.get(key)):
            return schema[key][name]
    return branch


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _texts(value: list[Any]) -> list[str]:
    return list(dict.fromkeys(one for one in value if isinstance(one, str)))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


#: keyword → function that returns the valid part of its value; None if nothing is valid
_CLEANED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(LISTS, _schemas),
    **dict.fromkeys(_NAMED, _named_schemas),
    **dict.fromkeys(("dependencies", "dependentRequired"), _dependent),
    **dict.fromkeys(_COUNTS, lambda value: value if value >= 0 else None),
    **dict.fromkeys(_DROPPED, lambda _: None),
    "multipleOf": lambda value: value if value > 0 else None,
    # all or nothing: an enum without one of its values would refuse more
    "enum": lambda value: value if value and all(map(_can_be_written, value)) else None,
    "required": _texts,
    "type": _types,
}
