"""What a Python function takes from a model: its JSON schema, and a check of what the model sent.

Both come from one pydantic model made of the function's type hints, with the descriptions of
`Annotated[…]`, of `Field(…)`, or of the docstring (Google, numpy and Sphinx style).
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from reprlib import Repr
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from docstring_parser import Docstring, ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.domain.ports import ToolContext
from tealagents.tools.errors import ToolsetError, blamed, in_short
from tealagents.tools.naming import excerpt, suggestion

#: errors of one call that the model is sent
MAX_ERRORS = 20
#: arguments of one call
MAX_ARGUMENTS = 1_000
#: kinds of parameters that cannot be given by name
_NAMELESS = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY)


class _ToolSchema(GenerateJsonSchema):
    """Without the titles that pydantic makes of field names: the model pays for every token."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


@dataclass(frozen=True)
class _Parameter:
    """One parameter of the function. `attribute` is its place in the model: any name will do there."""

    name: str
    attribute: str
    annotation: Any
    default: Any
    #: the default is a `Field(…)`, which means nothing to the function itself
    is_field: bool = False


class Signature:
    """The arguments of one function.

    `where` begins the text of each error: the file, the class and the method. Parameters named in
    `hidden` are left to the function's defaults and never shown to the model. `texts` are descriptions
    known from elsewhere, by parameter. `lenient` leaves out what has no name instead of refusing it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        where: str,
        *,
        hidden: Collection[str] = (),
        lenient: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        self._where = where
        hints = self._hints(function)
        documented = _docstring(function)
        self.description = _description(documented)
        self.returns_nothing = hints.get("return", NoneType) is NoneType
        #: the name of the parameter that takes the `ToolContext`
        self.context_parameter: str | None = None
        self._parameters: list[_Parameter] = []
        for parameter in self._given(function):
            hint = hints.get(parameter.name, Any)
            if parameter.name in hidden:
                continue
            if _is_context(parameter, hint):
                self.context_parameter = parameter.name
            elif parameter.kind in _NAMELESS:
                if not lenient:
                    raise ToolsetError(f"{where}: {parameter} has no name that a model could give it by.")
            else:
                text = (texts or {}).get(parameter.name) or _documented_text(documented, parameter.name)
                with blamed(f"{where}: {_schemaless(parameter.name)}"):
                    self._parameters.append(_described(parameter, hint, text, len(self._parameters)))
        self._model = self._arguments_model()
        self.schema: Json = self._json_schema()

    def check(self, arguments: Json) -> dict[str, Any]:
        """The arguments as the function's own types. `ToolFailed` says what is wrong with them."""
        if len(arguments) > MAX_ARGUMENTS:
            raise ToolFailed(f"There are more than {MAX_ARGUMENTS} arguments. Nothing was done.")
        try:
            checked = self._model.model_validate(arguments)
        except ValidationError as error:
            raise ToolFailed(self._explained(error)) from error
        given = checked.model_fields_set
        return {
            parameter.name: getattr(checked, parameter.attribute)
            for parameter in self._parameters
            if parameter.attribute in given or parameter.is_field
        }

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        with blamed(f"{self._where}: a type hint cannot be resolved"):
            return get_type_hints(function, include_extras=True)

    def _given(self, function: Callable[..., Any]) -> Collection[Parameter]:
        try:
            return inspect.signature(function).parameters.values()
        except ValueError as error:
            raise ToolsetError(f"{self._where}: {error}: the first parameter of a method is self.") from error

    def _arguments_model(self) -> type[_Arguments]:
        fields: Any = {one.attribute: (one.annotation, one.default) for one in self._parameters}
        try:
            model = create_model("Arguments", __base__=_Arguments, **fields)
        except Exception as error:  # a type may have code of its own
            raise ToolsetError(f"{self._where}: {self._culprit()}: {in_short(error)}") from error
        if _has_generator(model.__pydantic_core_schema__):
            raise ToolsetError(
                f"{self._where}: what its parameters hold would be checked only while the tool reads it: use "
                "list instead of Generator, and instead of Iterable within other types."
            )
        return model

    def _culprit(self) -> str:
        """The parameter whose type pydantic does not know, found by trying each alone."""
        for one in self._parameters:
            field: Any = {one.attribute: (one.annotation, one.default)}
            try:
                create_model("Arguments", __base__=_Arguments, **field)
            except Exception:  # noqa: BLE001 — what it is has been raised for all of them
                return _schemaless(one.name)
        return "the arguments have no JSON schema"

    def _json_schema(self) -> Json:
        with blamed(f"{self._where}: the types of its parameters have no JSON schema"):
            schema = self._model.model_json_schema(schema_generator=_ToolSchema)
        schema.pop("title", None)
        schema.pop("description", None)
        schema.setdefault("properties", {})
        return schema

    def _explained(self, error: ValidationError) -> str:
        known = [parameter.name for parameter in self._parameters]
        details = error.errors(include_url=False, include_context=False)
        lines = [_explained(detail, known) for detail in details[:MAX_ERRORS]]
        if len(details) > MAX_ERRORS:
            lines.append(f"- and {len(details) - MAX_ERRORS} more")
        return "The arguments are not valid, nothing was done:\n" + "\n".join(lines)


def _schemaless(name: str) -> str:
    return f"the type of {name!r} has no JSON schema"


def _is_context(parameter: Parameter, hint: Any) -> bool:
    """By annotation (`ToolContext`, also optional), or by name where there is none."""
    if parameter.annotation is parameter.empty:
        return parameter.name == "context"
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint is ToolContext or ToolContext in get_args(hint)


def _described(parameter: Parameter, hint: Any, text: str | None, number: int) -> _Parameter:
    default = ... if parameter.default is parameter.empty else parameter.default
    if default is None and not _takes_none(hint):
        # `limit: int = None` is common, and means what it says at the call
        hint = hint | None
    hint = _listed(hint)
    description = _annotated_text(hint) or text
    # an attribute of its own, because `schema`, `json` or `_x` are fine as parameters but not as fields
    extra = Field(alias=parameter.name, description=description or None)
    return _Parameter(
        name=parameter.name,
        attribute=f"argument_{number}",
        annotation=Annotated[hint, extra],
        default=default,
        is_field=isinstance(default, FieldInfo),
    )


def _listed(hint: Any) -> Any:
    """The type with an `Iterable` as a list: pydantic checks the items of one only while it is read."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_listed, inner))]  # noqa: UP007 - made of a tuple
    if get_origin(hint) is Annotated:
        return Annotated[(_listed(inner[0]), *inner[1:])]
    if (get_origin(hint) or hint) is Iterable:
        return list[inner[0] if inner else Any]  # type: ignore[misc]
    return hint


#: parts of pydantic's schemas that hold values of the plugin
_GIVEN = frozenset(("default", "expected", "metadata", "serialization"))


def _has_generator(schema: Any) -> bool:
    """Whether pydantic checks any part of a value only while it is read."""
    if isinstance(schema, dict):
        inner = (each for key, each in schema.items() if key not in _GIVEN)
        return schema.get("type") == "generator" or any(map(_has_generator, inner))
    return isinstance(schema, list | tuple) and any(map(_has_generator, schema))


def _takes_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint is Any or hint is None or hint is NoneType or NoneType in get_args(hint)


def _annotated_text(hint: Any) -> str | None:
    """The description in `Annotated[str, "…"]`, also beside None; that of a `Field` or a dictionary, too."""
    if get_origin(hint) in (Union, UnionType):
        described = [one for one in get_args(hint) if one is not NoneType]
        return _annotated_text(described[0]) if len(described) == 1 else None
    if get_origin(hint) is not Annotated:
        return None
    for extra in get_args(hint)[1:]:
        text = extra.get("description") if isinstance(extra, dict) else getattr(extra, "description", extra)
        text = getattr(extra, "documentation", text)
        if isinstance(text, str):
            return text
    return _annotated_text(get_args(hint)[0])


def _documented_text(documented: Docstring, name: str) -> str | None:
    return next((one.description for one in documented.params if one.arg_name == name), None)


def _docstring(function: Callable[..., Any]) -> Docstring:
    text = inspect.getdoc(function) or ""
    try:
        return parse(text)
    except ParseError:
        plain = Docstring()
        plain.short_description = text
        return plain


def _description(documented: Docstring) -> str:
    parts = (documented.short_description, documented.long_description)
    return "\n\n".join(part.strip() for part in parts if part)


def _explained(detail: ErrorDetails, known: list[str]) -> str:
    place = excerpt(".".join(excerpt(str(part)) for part in detail["loc"]) or "arguments")
    if detail["type"] == "missing":
        return f"- {place}: missing"
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        takes = "takes " + ", ".join(known) if known else "takes no arguments"
        return f"- {place}: there is no such argument; the tool {takes}.{suggestion(place, known)}"
    return f"- {place}: {excerpt(detail['msg'], 500)} (given: {excerpt(_SHORT.repr(detail['input']))})"


#: of a value of any size
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200
