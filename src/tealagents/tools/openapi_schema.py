"""Converts the schemas of an OpenAPI document to JSON Schema for a model, bounded in size.

References stay references, to definitions that come with the schema.
"""

import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from tealagents.domain.models import Json
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import listed
from tealagents.tools.schema_form import (
    LISTS,
    MAPS,
    SINGLE,
    cleaned,
    sound,
    target_of,
    with_items,
    without_booleans,
)

#: characters of all definitions that come with one tool's schema; further definitions become "any value"
MAX_DEFINITIONS = 60_000
#: subschemas that are looked at to answer one question about a schema, each as often as it is referred to
MAX_PARTS = 1_000
#: references that are followed one after the other
MAX_REFERENCES = 32
#: characters of the longest example that is shown
MAX_EXAMPLE = 200
#: values of a discriminator that are listed
MAX_VALUES = 50

_DROPPED = frozenset(
    {"xml", "externalDocs", "discriminator", "example", "nullable", "readOnly", "writeOnly", "$schema", "$id"}
)
#: keywords beside a `$ref` (OpenAPI 3.1) that add to the fields of what it refers to
_OF_FIELDS = frozenset(
    {"properties", "required", "allOf", "anyOf", "oneOf"}
    | {"additionalProperties", "patternProperties", "unevaluatedProperties"}
)
_FORBIDDEN_IN_NAME = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
OMITTED = {"description": "any value; its schema is too large to be shown"}
FILE = {"type": "string", "description": "a file: its text, or its bytes as a data: URI"}


class Fields(NamedTuple):
    """The fields of a schema that can only be an object."""

    #: field → its schema, as the document has it
    properties: Json
    required: list[str]
    #: whether the schema says that there may be other fields
    open: bool
    #: field that is a discriminator → value → the schema it stands for
    mappings: dict[str, Json]


class LeftOut(NamedTuple):
    """Fields of an object that only the server sets."""

    #: those that are not shown
    hidden: frozenset[str] = frozenset()
    #: those that are not required: the hidden ones, and those that only the server sets in some alternative
    optional: frozenset[str] = frozenset()


_NOTHING = LeftOut()


def resolved(document: Json, part: Any, where: str) -> Json:
    """`part`, or what its `$ref` refers to. `ToolsetError`, beginning with `where`, if that is no object or
    cannot be found."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(part, dict):
            raise ToolsetError(f"{where}: an object is expected in place of {part!r:.80}.")
        if "$ref" not in part:
            return part
        part = pointed_at(document, str(part["$ref"]), where)
    raise ToolsetError(f"{where}: a $ref leads back to itself.")


def pointed_at(document: Json, reference: str, where: str) -> Any:
    """What a reference within the document refers to (RFC 6901). `ToolsetError` for any other reference."""
    if not reference.startswith("#"):
        raise ToolsetError(
            f"{where}: the reference {reference!r} leads out of the document. Bundle it into one document."
        )
    try:
        return target_of(document, reference)
    except LookupError as error:
        raise ToolsetError(f"{where}: the reference {reference!r} leads nowhere.") from error


class Schemas:
    """Converts the document's schemas. References stay references, so that recursion stays finite."""

    def __init__(self, document: Json, where: str) -> None:
        self._document = document
        self._where = where
        #: reference, and what is left out of its schema → its name among `$defs`, and back
        self._names: dict[tuple[str, LeftOut], str] = {}
        self._references: dict[str, tuple[str, LeftOut]] = {}
        #: reference → the fields that its schema, or an alternative in it, requires
        self._required_by: dict[str, frozenset[str]] = {}
        #: reference → the schema that it refers to; none if it leads nowhere
        self._targets: dict[str, list[Json]] = {}
        #: reference → whether its schema allows null
        self._allowing_null: dict[str, bool] = {}
        #: name → how many references got another because it was taken
        self._alike: Counter[str] = Counter()
        #: name → the converted definition
        self._converted: dict[str, Any] = {}
        #: subschemas looked at for the current question, up to `MAX_PARTS`
        self._looks = 0

    def converted(self, schema: Any, left_out: LeftOut = _NOTHING) -> Any:
        """JSON Schema for a schema of OpenAPI 3.0 or 3.1. Fields that only the server may set are left out,
        and so are those of `left_out`.

        `ToolsetError` if it is no schema.
        """
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if schema is None:  # left empty in YAML
            return {}
        if not isinstance(schema, dict):
            raise ToolsetError(f"{self._where}: {schema!r:.80} is not a schema.")
        schema = self._described(sound(schema))
        left_out = self._left_out(schema, left_out)
        result: Json = {}
        for key, value in schema.items():
            if key in _DROPPED or key.startswith("x-"):
                continue
            result[key] = self._member(key, value, left_out)
        result = with_items(cleaned(without_booleans(result)))
        example = json.dumps(schema["example"], default=str) if "example" in schema else ""
        if 0 < len(example) <= MAX_EXAMPLE:
            result["examples"] = [schema["example"]]
        return _nullable(result) if schema.get("nullable") is True else result

    def _member(self, key: str, value: Any, left_out: LeftOut) -> Any:
        if key == "$ref":
            return f"#/$defs/{self._name(str(value), left_out)}"
        if key == "properties":
            return {name: self.converted(one) for name, one in value.items() if name not in left_out.hidden}
        if key == "required":
            return [name for name in value if str(name) not in left_out.optional]
        if key == "allOf":
            return [self.converted(one, left_out) for one in value]
        if key in ("anyOf", "oneOf"):
            return [self._alternative(one, LeftOut(left_out.hidden, left_out.hidden)) for one in value]
        if key in LISTS:
            return [self.converted(one) for one in value]
        if key in MAPS:
            return {name: self.converted(one) for name, one in value.items()}
        if key in SINGLE:
            return value if isinstance(value, bool) else self.converted(value)
        return value

    def _alternative(self, schema: Any, left_out: LeftOut) -> Any:
        made = self.converted(schema, left_out)
        # one that asks for nothing else would fit whatever fits another of a `oneOf`
        asks_nothing = not made.get("required") and made.keys() <= {"type", "required"}
        return self.converted(schema) if asks_nothing else made

    def _left_out(self, schema: Json, given: LeftOut) -> LeftOut:
        """The fields to leave out of a schema, or of a part of an `allOf`, for which these are `given`."""
        if schema.keys().isdisjoint(("properties", "required", "allOf")):
            return given
        parts = self._composed(schema, "allOf")
        hidden = given.hidden | self._read_only(parts)
        optional = given.optional | hidden
        if required := _all_required(parts) - optional:
            optional |= self._read_only(self._composed(schema, "allOf", "anyOf", "oneOf"), required)
        return LeftOut(hidden, optional)

    def _composed(self, schema: Json, *keys: str) -> list[Json]:
        """The schema and those that it is put together of, by these keywords and references; at most
        `MAX_PARTS`."""
        parts, seen = [schema], set()
        for part in parts:  # `parts` grows during the loop
            if len(parts) == MAX_PARTS:
                break
            more = [one for key in keys for one in part.get(key, ())]
            reference = part.get("$ref")
            more = [sound(one) for one in more if isinstance(one, dict)]
            if reference is not None and reference not in seen:
                seen.add(reference)
                more += self._target(reference)
            parts += more[: MAX_PARTS - len(parts)]
        return parts

    def _target(self, reference: str) -> list[Json]:
        """The `sound` schema that a reference refers to, if there is one."""
        if reference not in self._targets:
            targets = islice(self._followed({"$ref": reference}), 1, 2)
            self._targets[reference] = [sound(one) for one in targets]
        return self._targets[reference]

    def _read_only(self, parts: Sequence[Json], names: Set[str] | None = None) -> frozenset[str]:
        """The fields, of these `names` if given, that a part marks as read-only."""
        declared = [part["properties"] for part in parts if "properties" in part]
        fields = [
            (name, each[name])
            for each in declared
            for name in (each if names is None else each.keys() & names)
        ]
        return frozenset(name for name, schema in fields if self._is_read_only(schema))

    def _required(self, reference: str) -> frozenset[str]:
        """The fields that a schema, a part of its `allOf` or an alternative requires."""
        if reference not in self._required_by:
            schema = {"$ref": reference}
            named = _all_required(self._composed(schema, "allOf", "anyOf", "oneOf"))
            hidden = self._read_only(self._composed(schema, "allOf"), named) if named else frozenset()
            self._required_by[reference] = named - hidden
        return self._required_by[reference]

    def _described(self, schema: Json) -> Json:
        """A `sound` schema. If its discriminator has a mapping, the descriptions of the field and of
        alternatives say the values: JSON Schema, and so a model, does not know the keyword.

        The values are no `enum`: the specification leaves open whether a schema with a value in the mapping
        may still be called by its name.
        """
        for field, mapping in _mappings(schema).items():
            for key in schema.keys() & {"oneOf", "anyOf"}:
                schema = {**schema, key: _with_values(schema[key], field, mapping)}
            if field in (fields := schema.get("properties", {})):
                schema = {**schema, "properties": {**fields, field: self._known(fields[field], mapping)}}
        return schema

    def _known(self, schema: Any, mapping: Json) -> Any:
        """The schema of a discriminator's field, with the values in its description, unless it lists its
        own."""
        if not isinstance(schema, dict):
            return schema
        parts = self._composed(sound(schema), "allOf")
        if not all(part.keys().isdisjoint(("enum", "const")) for part in parts):
            return schema
        return _with_line(schema, f"Known values: {listed(list(mapping), MAX_VALUES)}")

    def definitions(self, schema: Any) -> Json:
        """Name → definition, for all that a converted schema refers to, directly or through others.

        The nearest come first; those beyond `MAX_DEFINITIONS` become "any value".
        """
        found: Json = {}
        size = 0
        waiting = deque(_references(schema))
        while waiting:
            name = waiting.popleft()
            # a `$ref` within an example is not a reference of the schema
            if name in found or name not in self._references:
                continue
            found[name] = dict(OMITTED)
            if size <= MAX_DEFINITIONS:
                definition = self._definition(name)
                size += len(json.dumps(definition, default=str))
                if size <= MAX_DEFINITIONS:
                    found[name] = definition
                    waiting += _references(definition)
        return found

    def object_fields(self, schema: Any) -> Fields | None:
        """The fields of a schema that is an object with known fields and without alternatives; else None."""
        self._looks = 0
        fields = self._fields(schema, ())
        if fields is None or not fields.properties:
            return None
        shown = {name: one for name, one in fields.properties.items() if not self._is_read_only(one)}
        for name in shown.keys() & fields.mappings.keys():
            shown[name] = self._known(shown[name], fields.mappings[name])
        required = dict.fromkeys(name for name in fields.required if isinstance(name, str) and name in shown)
        fields = fields._replace(properties=shown, required=list(required))
        named = {key: value for one in self._followed(schema) for key, value in one.items()}
        # a discriminator means that other schemas extend this one with fields of their own
        derived = "discriminator" in named and named.get("additionalProperties") is not False
        return fields._replace(open=fields.open or derived)

    def allows_null(self, schema: Any) -> bool:
        """Whether a schema allows null. False if finding out would take too many steps."""
        self._looks = 0
        if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
            return self._allows_null(schema, ())
        reference = str(schema["$ref"])
        if reference not in self._allowing_null:
            self._allowing_null[reference] = self._allows_null(schema, ())
        return self._allowing_null[reference]

    def _allows_null(self, schema: Any, seen: Sequence[str]) -> bool:
        self._looks += 1
        if schema is None or schema is True:  # any value
            return True
        if not isinstance(schema, dict) or self._looks > MAX_PARTS or len(seen) > MAX_REFERENCES:
            return False
        schema = sound(schema)
        # without a type, a schema with fields or items is meant as an object or a list
        implied = [kind for key, kind in (("properties", "object"), ("items", "array")) if key in schema]
        kinds = schema.get("type", implied)
        nullable = schema.get("nullable") is True
        if nullable and not isinstance(kinds, str):  # then it adds null to the whole schema
            return True
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not nullable and ((kinds and "null" not in kinds) or None not in schema.get("enum", [None])):
            return False
        if schema.get("const") is not None:
            return False
        if "$ref" in schema:
            reference = schema["$ref"]
            target = pointed_at(self._document, reference, self._where)
            if reference in seen or not self._allows_null(target, (*seen, reference)):
                return False
        return all(self._allows_null(one, seen) for one in schema.get("allOf", ())) and all(
            any(self._allows_null(one, seen) for one in schema[key])
            for key in ("anyOf", "oneOf")
            if key in schema
        )

    def file(self, schema: Any) -> Json | None:
        """The schema to show for a multipart field that is a file or a list of files; None for others."""
        self._looks = 0
        return self._file(schema, ())

    def _file(self, schema: Any, seen: Sequence[str]) -> Json | None:
        self._looks += 1
        if not isinstance(schema, dict) or self._looks > MAX_PARTS or len(seen) > MAX_REFERENCES:
            return None
        if "$ref" in schema:
            reference = str(schema["$ref"])
            return self._file(pointed_at(self._document, reference, self._where), (*seen, reference))
        if schema.get("format") == "binary" or "contentMediaType" in schema:
            return dict(FILE)
        schema = sound(schema)
        item = self._file(schema.get("items"), seen)
        if item is not None:
            return {"type": "array", "items": item}
        parts = [one for key in ("allOf", "anyOf", "oneOf") for one in schema.get(key, ())]
        return next((found for one in parts if (found := self._file(one, seen)) is not None), None)

    def _fields(self, schema: Any, seen: Sequence[str]) -> Fields | None:
        self._looks += 1
        if not isinstance(schema, dict) or self._looks > MAX_PARTS:
            return None
        if "$ref" in schema:
            reference = str(schema["$ref"])
            more = sound({key: value for key, value in schema.items() if key != "$ref"})
            if not _OF_FIELDS.isdisjoint(more):
                parts = [{"$ref": reference}, *more.get("allOf", [])]
                return self._fields({**more, "allOf": parts}, seen)
            if reference in seen:
                return None
            target = pointed_at(self._document, reference, self._where)
            return self._fields(target, (*seen, reference))
        schema = sound(schema)
        kind = schema.get("type", "object")
        if any(key in schema for key in ("oneOf", "anyOf", "not", "if")) or "object" not in (
            [kind] if isinstance(kind, str) else kind
        ):
            return None
        properties, required = dict(schema.get("properties", {})), list(schema.get("required", []))
        others = [schema.get(key, False) for key in ("additionalProperties", "unevaluatedProperties")]
        is_open = bool(schema.get("patternProperties")) or any(one is not False for one in others)
        mappings: dict[str, Json] = {}
        for part in schema.get("allOf", []):
            fields = self._fields(part, seen)
            if fields is None:
                return None
            for name, one in fields.properties.items():
                properties[name] = self._both(properties[name], one) if name in properties else one
            required, is_open = [*required, *fields.required], is_open or fields.open
            mappings |= fields.mappings
        return Fields(properties, required, is_open, mappings | _mappings(schema))

    def _both(self, former: Any, latter: Any) -> Any:
        """A schema for what has to fit two of them. The latter says whether only the server sets it."""
        if not isinstance(former, dict) or not isinstance(latter, dict):
            return former if isinstance(former, dict) else latter
        former = {key: value for key, value in former.items() if key != "readOnly"}
        if "$ref" not in former and all(latter.get(key, value) == value for key, value in former.items()):
            return {**former, **latter}
        hidden = {"readOnly": True} if self._is_read_only(latter) else {}
        return {"allOf": [former, latter], **hidden}

    def _is_read_only(self, schema: Any) -> bool:
        """Whether the schema, or one that it refers to, is marked as read-only."""
        return any(one.get("readOnly") is True for one in self._followed(schema))

    def _followed(self, schema: Any) -> Iterator[Json]:
        """The schema, the one that it refers to, the one that this refers to, and so on."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, dict):
                return
            yield schema
            try:
                schema = target_of(self._document, str(schema.get("$ref")))
            except LookupError:
                return

    def _name(self, reference: str, left_out: LeftOut) -> str:
        """The reference's name among `$defs`: the last part of its path, with a number if that is taken. A
        schema that requires fields which are `left_out` has another name without them."""
        names = left_out.optional and left_out.optional & self._required(reference)
        target = (reference, LeftOut(left_out.hidden & names, names))
        if target not in self._names:
            plain = name = _FORBIDDEN_IN_NAME.sub("_", unquote(reference).rpartition("/")[2]) or "schema"
            while name in self._references:
                self._alike[plain] += 1
                name = f"{plain}_{self._alike[plain] + 1}"
            self._names[target] = name
            self._references[name] = target
        return self._names[target]

    def _definition(self, name: str) -> Any:
        if name not in self._converted:
            reference, left_out = self._references[name]
            self._converted[name] = self.converted(
                pointed_at(self._document, reference, self._where), left_out
            )
        return self._converted[name]


def _references(schema: Any) -> list[str]:
    """The names of the definitions that a converted schema refers to."""
    if isinstance(schema, dict):
        own = schema.get("$ref")
        here = [own.removeprefix("#/$defs/")] if isinstance(own, str) else []
        return here + [name for value in schema.values() for name in _references(value)]
    if isinstance(schema, list):
        return [name for value in schema for name in _references(value)]
    return []


def _nullable(schema: Json) -> Json:
    if isinstance(schema.get("type"), str):
        result = {**schema, "type": [schema["type"], "null"]}
        if "enum" in schema and None not in schema["enum"]:
            result["enum"] = [*schema["enum"], None]
        return result
    return {"anyOf": [schema, {"type": "null"}]}


def _all_required(parts: Sequence[Json]) -> frozenset[str]:
    return frozenset(str(name) for part in parts for name in part.get("required", ()))


def _mappings(schema: Json) -> dict[str, Json]:
    """Field → the mapping of the schema's discriminator, which is this field; empty without a mapping."""
    given = schema.get("discriminator")
    field, mapping = (
        (given.get("propertyName"), given.get("mapping")) if isinstance(given, dict) else (None, None)
    )
    return {field: mapping} if isinstance(field, str) and isinstance(mapping, dict) and mapping else {}


def _with_values(alternatives: Sequence[Any], field: str, mapping: Json) -> list[Any]:
    """Alternatives. The descriptions of references say which values of a discriminator stand for them."""
    values: dict[str, list[str]] = {}
    for value, target in mapping.items():  # to a reference, or to a name alone
        values.setdefault(_last(target), []).append(value)
    return [
        _with_line(one, f"{field}: {listed(values[name], MAX_VALUES)}")
        if isinstance(one, dict) and (name := _last(one.get("$ref", ""))) in values
        else one
        for one in alternatives
    ]


def _last(reference: Any) -> str:
    return unquote(str(reference)).rpartition("/")[2]


def _with_line(schema: Json, text: str) -> Json:
    """The schema with a line more in its description."""
    return {**schema, "description": "\n".join(filter(None, (sound(schema).get("description"), text)))}
