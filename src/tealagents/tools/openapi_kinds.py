"""Describes in words what a discriminator says: JSON Schema, and so a model, does not know the keyword."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from tealagents.domain.models import Json
from tealagents.tools.naming import listed
from tealagents.tools.schema_form import sound, target_of

#: values of a discriminator that are listed
MAX_VALUES = 50
#: derived schemas with which the search for more ends
MAX_DERIVED = 1_000


class Discriminators:
    """The discriminators of a document: which field says of what kind an object is, and with which values."""

    def __init__(self, document: Json) -> None:
        #: identity of a discriminator → the components that have it: several, if it is an alias in YAML
        self._owners: dict[int, list[str]] = {}
        #: component → components whose `allOf` refers to it
        self._derived: dict[str, list[str]] = {}
        try:
            components = target_of(document, "#/components/schemas")
        except LookupError:
            return
        for name, schema in components.items() if isinstance(components, dict) else ():
            if isinstance(schema, dict):
                self._owners.setdefault(id(schema.get("discriminator")), []).append(name)
                for base in _names(sound(schema).get("allOf", ())):
                    self._derived.setdefault(base, []).append(name)

    def described(self, schema: Json) -> Json:
        """A `sound` schema. If it has a discriminator, the descriptions of the field and of alternatives say
        the values: those of the mapping, or else the names of the schemas.

        The values are no `enum`: the specification leaves open whether a schema with a value in the mapping
        may still be called by its name.
        """
        given = schema.get("discriminator")
        if not isinstance(given, dict) or not isinstance(field := given.get("propertyName"), str):
            return schema
        choices = {key: schema[key] for key in ("oneOf", "anyOf") if key in schema}
        kinds = [name for ones in choices.values() for name in _names(ones)] or self._all_derived(given)
        values = _values(given.get("mapping"), kinds)
        for key, ones in choices.items():
            schema = {**schema, key: [_alternative(one, field, values) for one in ones]}
        fields = schema.get("properties", {})
        own = fields.get(field, {})
        is_open = isinstance(own, dict) and own.keys().isdisjoint(("enum", "const"))
        if values and is_open and (field in fields or not choices):
            known = listed([value for each in values.values() for value in each], MAX_VALUES)
            schema = {**schema, "properties": {**fields, field: _with(own, f"Known values: {known}")}}
        return schema

    def _all_derived(self, discriminator: Json) -> list[str]:
        """The components that derive from the one with this discriminator, directly or through others."""
        found: dict[str, None] = {}
        waiting = [*self._owners.get(id(discriminator), ())]
        for name in waiting:  # `waiting` grows during the loop
            if len(found) > MAX_DERIVED:
                break
            more = [one for one in self._derived.get(name, ()) if one not in found]
            found |= dict.fromkeys(more)
            waiting += more
        return list(found)


def _values(mapping: Any, kinds: Sequence[str]) -> dict[str, list[str]]:
    """Name of a schema → the values that stand for it."""
    values: dict[str, list[str]] = {}
    for value, target in mapping.items() if isinstance(mapping, dict) else ():
        values.setdefault(_last(target), []).append(str(value))
    return values | {name: [name] for name in kinds if name not in values}


def _names(schemas: Sequence[Any]) -> list[str]:
    """The names of those that are references."""
    return [_last(one["$ref"]) for one in schemas if isinstance(one, dict) and "$ref" in one]


def _last(reference: Any) -> str:
    return unquote(str(reference)).rpartition("/")[2]


def _alternative(schema: Any, field: str, values: dict[str, list[str]]) -> Any:
    told = [listed(values[name], MAX_VALUES) for name in _names([schema])]
    return _with(schema, f"{field}: {told[0]}") if told else schema


def _with(schema: Json, text: str) -> Json:
    """The schema with a line more in its description."""
    return {**schema, "description": "\n".join(filter(None, (sound(schema).get("description"), text)))}
