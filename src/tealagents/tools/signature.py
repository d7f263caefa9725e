"""The arguments that a Python function takes from a model: their JSON schema, and a check of what was sent.

Both come from one pydantic model that is made from the function's type hints. Descriptions come from
`Annotated[…]`, from `Field(…)`, or from the docstring (Google, numpy and Sphinx style).
"""

import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from operator import is_
from reprlib import Repr
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from docstring_parser import Docstring, ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.domain.ports import ToolContext
from tealagents.tools.errors import ToolsetError, blamed, in_short
from tealagents.tools.naming import excerpt, suggestion
from tealagents.tools.results import DONE

logger = logging.getLogger(__name__)

#: most errors that the model is shown after one call
MAX_ERRORS = 20
#: most arguments of one call
MAX_ARGUMENTS = 1_000
#: kinds of parameters that cannot be given by name
_NAMELESS = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY)


class _ToolSchema(GenerateJsonSchema):
    """Leaves out the titles that pydantic derives from field names: each of them would cost tokens."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _LenientArguments(_Arguments):
    model_config = ConfigDict(coerce_numbers_to_str=True)


@dataclass(frozen=True)
class _Parameter:
    """One parameter of the function. `attribute` is the name of its field in the pydantic model."""

    name: str
    attribute: str
    annotation: Any
    default: Any
    #: whether the default is a `Field(…)`: the function cannot use it, so a value is always passed
    is_field: bool = False


class Signature:
    """The arguments of one function. `ToolsetError` if its parameters or type hints cannot be offered.

    - `where`: the file, the class and the method, with which the text of each error begins
    - `hidden`: parameters that keep their defaults and are never shown to the model
    - `lenient`: whether parameters that cannot be given by name (`*args`), or that have a default and a type
      without a JSON schema, are left out, others without a schema take any value, and texts take numbers;
      else these are errors
    - `texts`: parameter → a description known from elsewhere
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
        #: the text for None as a result
        self.nothing = DONE if hints.get("return", NoneType) is NoneType else "null"
        #: the name of the parameter that takes the `ToolContext`
        self.context_parameter: str | None = None
        self._parameters: list[_Parameter] = []
        for parameter in self._given(function):
            hint = hints.get(parameter.name, Any)
            if parameter.name in hidden:
                continue
            if not lenient and _is_context(parameter, hint):
                if self.context_parameter is not None or parameter.kind in _NAMELESS:
                    raise ToolsetError(f"{where}: {parameter} must be its only context, and have a name.")
                self.context_parameter = parameter.name
            elif parameter.kind in _NAMELESS:
                if not lenient:
                    raise ToolsetError(f"{where}: {parameter} has no name that a model could give it by.")
            else:
                text = (texts or {}).get(parameter.name) or _documented_text(documented, parameter.name)
                if lenient and (hint := _with_schema(parameter, hint)) is None:
                    if parameter.default is not parameter.empty:
                        continue
                    logger.warning("%s: %s, so it takes any value", where, _schemaless(parameter.name))
                    hint = Any
                with blamed(f"{where}: {_schemaless(parameter.name)}"):
                    self._parameters.append(_described(parameter, hint, text, len(self._parameters)))
        self._model = self._arguments_model(_LenientArguments if lenient else _Arguments)
        self.schema: Json = self._json_schema()

    def check(self, arguments: Json) -> dict[str, Any]:
        """The arguments, converted to the function's types; those not given are left to its defaults.

        `ToolFailed` says what is wrong with them, for the model.
        """
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

    def _arguments_model(self, base: type[_Arguments]) -> type[_Arguments]:
        try:
            model = _model_of(self._parameters, base)
        except Exception as error:  # a type's own code may raise anything
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
            try:
                _model_of([one])
            except Exception:  # noqa: BLE001 — `_arguments_model` reports the error itself
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
        known = list(self.schema["properties"])  # a `Field(…)` may give a parameter another name
        details = error.errors(include_url=False, include_context=False)
        lines = [_explained(detail, known) for detail in details[:MAX_ERRORS]]
        if len(details) > MAX_ERRORS:
            lines.append(f"- and {len(details) - MAX_ERRORS} more")
        return "The arguments are not valid, nothing was done:\n" + "\n".join(lines)


def _model_of(parameters: Iterable[_Parameter], base: type[_Arguments] = _Arguments) -> type[_Arguments]:
    fields: Any = {one.attribute: (one.annotation, one.default) for one in parameters}
    return create_model("Arguments", __base__=base, **fields)


def _with_schema(parameter: Parameter, hint: Any) -> Any:
    """The type of a parameter as pydantic takes it; None if it has no JSON schema."""
    try:
        with blamed(parameter.name):
            hint = _understood(hint)
            alone = _described(parameter, hint, None, 0)
            _model_of([alone]).model_json_schema(schema_generator=_ToolSchema)
    except ToolsetError:
        return None
    return hint


def _schemaless(name: str) -> str:
    return f"the type of {name!r} has no JSON schema"


def _is_context(parameter: Parameter, hint: Any) -> bool:
    """Whether the parameter takes the `ToolContext`: it has that type (or `ToolContext | None`), or has no
    annotation and is named `context`."""
    if parameter.annotation is parameter.empty:
        return parameter.name == "context"
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint is ToolContext or ToolContext in get_args(hint)


def _described(parameter: Parameter, hint: Any, text: str | None, number: int) -> _Parameter:
    default = ... if parameter.default is parameter.empty else parameter.default
    if _is_none(default) and not _takes_none(hint):
        # `limit: int = None` is common, also as `Field(None, …)`, and means `int | None`
        hint = hint | None
    hint = _with_lists(hint)
    description = _annotated_text(hint) or text
    # the field has another name, because `schema`, `json` or `_x` are valid as parameters but not as fields
    extra = Field(alias=parameter.name, description=description or None)
    return _Parameter(
        name=parameter.name,
        attribute=f"argument_{number}",
        annotation=Annotated[hint, extra],
        default=default,
        is_field=isinstance(default, FieldInfo),
    )


def _is_none(default: Any) -> bool:
    return (default.default if isinstance(default, FieldInfo) else default) is None


def _with_lists(hint: Any) -> Any:
    """The type with `list` in place of `Iterable`, whose items pydantic checks only while they are read."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_with_lists, inner))]  # noqa: UP007 - made of a tuple
    if get_origin(hint) is Annotated:
        return Annotated[(_with_lists(inner[0]), *inner[1:])]
    if (get_origin(hint) or hint) is Iterable:
        return list[inner[0] if inner else Any]  # type: ignore[misc]
    return hint


def _understood(hint: Any) -> Any:
    """The type with `Any` in place of the function `any`, which plugins name by mistake, and with TypedDicts
    of `typing` as pydantic takes them before Python 3.12."""
    if hint is any:
        return Any
    if is_typeddict(hint) and sys.version_info < (3, 12):
        hints = {name: _understood(each) for name, each in get_type_hints(hint).items()}
        required = hint.__required_keys__
        keys = {name: (Required if name in required else NotRequired)[each] for name, each in hints.items()}
        return TypedDict(hint.__name__, keys)  # type: ignore[operator]
    inner = get_args(hint)
    known = tuple(map(_understood, inner))
    if all(map(is_, inner, known)):
        return hint
    return Union[known] if get_origin(hint) is UnionType else get_origin(hint)[known]  # noqa: UP007


#: keys of pydantic's core schemas that hold a plugin's own values, not schemas
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
    """The description in an `Annotated[…]`, also in `Annotated[…] | None`: a text, a `Doc`'s, a `Field`'s, or
    a dictionary's under `description`."""
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


#: shortens the text of a value, whatever the value's size
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200
