"""Reads an OpenAPI document (3.0 and 3.1, JSON and YAML) as a list of operations that can be tools.

Only what a call needs is read, so that a flaw elsewhere in a document does no harm. The libraries that
read documents were tried and found wanting for this: they refuse whole documents for such flaws (and
`openapi-pydantic` also valid 3.1 ones, with boolean schemas), or replace references by copies, which a
recursive schema does not survive.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tealagents.domain.models import Json
from tealagents.mistakes import explained
from tealagents.outbound.reading import essence
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import listed, suggestion
from tealagents.tools.openapi_schema import OMITTED, Fields, Schemas, resolved

#: most characters of the schema of one tool's arguments; arguments beyond them become "any value"
MAX_SCHEMA = 100_000
#: most operations of a document that become tools
MAX_OPERATIONS = 2_000

Location = Literal["path", "query", "header", "cookie"]

_METHODS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")
#: headers that are the client's own business (OpenAPI 3.1, section 4.8.12.2.1, and HTTP's)
_OWN_HEADERS = frozenset(
    {"accept", "authorization", "connection", "content-length", "content-type", "cookie", "host", "te"}
    | {"proxy-authorization", "trailer", "transfer-encoding", "upgrade"}
)
#: the type or the subtype of a media type
TYPE_NAME = r"[\w!#$&^.+-]+"
#: one media type, with its parameters, as a header takes it
MEDIA_TYPE = re.compile(rf"{TYPE_NAME}/{TYPE_NAME}(?:;[^,\x00-\x1f\x7f]*)?", re.ASCII)
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_VALID_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_FORBIDDEN_IN_ARGUMENT = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_DEFAULT_STYLE: dict[Location, str] = {
    "path": "simple",
    "query": "form",
    "header": "simple",
    "cookie": "form",
}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter outside the body, and how its value is written."""

    #: the tool's argument
    argument: str
    name: str
    location: Location
    required: bool = False
    style: str
    explode: bool
    #: whether the value is written as JSON, whatever the style
    as_json: bool = False
    #: with `as_json`: whether a text is written as it is
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class RequestBody:
    """The request body: one argument, or one for each field."""

    #: as the document writes it
    media_type: str
    required: bool
    #: the argument that is the whole body; None: `fields` are
    argument: str | None = None
    #: argument → field
    fields: Mapping[str, str] = field(default_factory=dict)
    #: fields that may be null in JSON, or the argument of a required body that may; else null means absent
    nullable: frozenset[str] = frozenset()
    #: fields that are files, or lists of files; or the argument of a body that is a file
    binary: frozenset[str] = frozenset()
    #: field → style and explode, for forms; they override its media type
    encoding: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    #: field → media type of its parts, or of its value in a form
    types: Mapping[str, str] = field(default_factory=dict)
    #: whether arguments that are no parameters are sent as fields as well
    open: bool = False


@dataclass(frozen=True, kw_only=True)
class ApiOperation:
    #: the operationId, or made of method and path
    function: str
    #: upper case
    method: str
    path: str
    description: str
    parameters: Sequence[Parameter]
    body: RequestBody | None
    #: JSON Schema of the tool's arguments
    schema: Json
    #: URLs of servers that the document names for it or its path, none of which is the document's
    servers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class _DocumentPart(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, data: Any) -> Any:
        """YAML reads a key without a value as null."""
        data = {} if data is None else data
        return {key: one for key, one in data.items() if one is not None} if isinstance(data, dict) else data


_Part = TypeVar("_Part", bound=_DocumentPart)


class _Variable(_DocumentPart):
    default: Any = ""


class _Server(_DocumentPart):
    url: str = ""
    variables: dict[str, _Variable] | None = None


class _Servers(_DocumentPart):
    servers: list[_Server] | None = None


class _Paths(_DocumentPart):
    paths: dict[str, Any] | None = None


class _PathItem(_DocumentPart):
    parameters: list[Json] = []


class _Media(_DocumentPart):
    schema_: Any = Field(default=True, alias="schema")
    encoding: dict[str, Json] = {}


class _DocumentParameter(_DocumentPart):
    name: str
    location: Location = Field(alias="in")
    description: str | None = None
    required: bool = False
    style: str | None = None
    explode: bool | None = None
    schema_: Any = Field(default=True, alias="schema")
    content: dict[str, _Media] | None = None


class _Body(_DocumentPart):
    description: str | None = None
    required: bool = False
    content: dict[str, _Media] = {}


class _Operation(_DocumentPart):
    operation_id: str | None = Field(default=None, alias="operationId")
    summary: str | None = None
    description: str | None = None
    parameters: list[Json] = []
    body: Json | None = Field(default=None, alias="requestBody")


# --- the document --------------------------------------------------------------------------------


def server_of(document: Json, where: str) -> str | None:
    """The document's first server, its variables set to their defaults; None if it is no absolute URL."""
    url, *_ = _urls(_checked(_Servers, document, where)) or ("",)
    return url if url.startswith(("http://", "https://")) else None


def _urls(part: _Servers) -> tuple[str, ...]:
    """The URLs of servers, their variables set to their defaults."""
    urls = []
    for server in part.servers or ():
        url = server.url
        for name, variable in (server.variables or {}).items():
            url = url.replace("{" + name + "}", str(variable.default))
        urls.append(url)
    return tuple(urls)


def cookie_names(cookies: str) -> set[str]:
    """The names, decoded, of the cookies in a `Cookie` header."""
    return {unquote(cookie.partition("=")[0].strip()) for cookie in cookies.split(";")}


class _Place(NamedTuple):
    """The place of an operation in the document."""

    function: str
    method: str
    path: str
    #: the path item that contains the operation
    item: Json

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


def operations(
    document: Json, where: str, wanted: Sequence[str] | None = None, headers: Mapping[str, str] | None = None
) -> list[ApiOperation]:
    """The wanted operations in this order, or all in the document's. `headers` are those that are sent with
    each request: they, and the cookies in them, are no arguments.

    `ToolsetError` names an operation that cannot be read, is missing or is ambiguous. Others may be flawed.
    """
    schemas = Schemas(document, where)
    chosen = _chosen(_places(document, where, lenient=wanted is not None), wanted, where)
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    fixed = {("header", name) for name in (*_OWN_HEADERS, *sent)}
    fixed |= {("cookie", name) for name in cookie_names(sent.get("cookie", ""))}
    return [_operation(document, schemas, place, f"{where}: {place}", fixed) for place in chosen]


def _places(document: Json, where: str, *, lenient: bool) -> list[_Place]:
    """The operations' places. With `lenient`, entries that lead to no path item are skipped."""
    found = []
    for path, part in (_checked(_Paths, document, where).paths or {}).items():
        if path.startswith("x-") or part is None:  # an extension of the specification, whatever it is
            continue
        try:
            item = resolved(document, part, f"{where}: {path}")
        except ToolsetError:
            if lenient:
                continue
            raise
        for method in _METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                name = operation.get("operationId")
                function = name if name and isinstance(name, str) else _named(method, path)
                found.append(_Place(function, method, path, item))
    return found


def _chosen(found: list[_Place], wanted: Sequence[str] | None, where: str) -> list[_Place]:
    there: dict[str, list[_Place]] = {}
    for one in found:
        there.setdefault(one.function, []).append(one)
    chosen = []
    for name in there if wanted is None else wanted:
        if name not in there:
            raise ToolsetError(
                f"{where} has no operation {name!r}; found: {listed(sorted(there))}."
                f"{suggestion(name, list(there))}"
            )
        first, *others = there[name]
        if others:
            raise ToolsetError(
                f"{where} has two operations {name!r}: {first} and {others[0]}. Give each an operationId of "
                "its own, or choose others with `operations`."
            )
        chosen.append(first)
    if not chosen:
        raise ToolsetError(f"{where} has no operation.")
    if len(chosen) > MAX_OPERATIONS:
        raise ToolsetError(f"{where} has more than {MAX_OPERATIONS:,} operations. Choose with `operations`.")
    return chosen


def _checked(part: type[_Part], document: Any, where: str) -> _Part:
    try:
        return part.model_validate(document)
    except ValidationError as error:
        raise ToolsetError(f"{where}: {explained(error, part, document)}") from error


def _check_path(path: str, where: str) -> None:
    """A path is appended to the server's URL: it must not change whose URL that is, nor leave its base."""
    if not path.startswith("/") or not path.isprintable() or leaves_base(path):
        raise ToolsetError(
            f"{where}: a path must begin with / and have no segment that leaves the server's URL."
        )


def leaves_base(path: str) -> bool:
    """Whether a server could read the path as one of another base: it has `.` or `..` for a step."""
    plain = unquote(re.split(r"[?#]", path, maxsplit=1)[0])
    steps = (step.partition(";")[0].strip() for step in re.split(r"[/\\]", plain))
    return any(step in (".", "..") for step in steps)


def _operation(
    document: Json, schemas: Schemas, place: _Place, where: str, fixed: Collection[tuple[str, str]]
) -> ApiOperation:
    _check_path(place.path, where)
    operation = _checked(_Operation, place.item[place.method], where)
    declared = [*_checked(_PathItem, place.item, where).parameters, *operation.parameters]
    parameters = [_checked(_DocumentParameter, resolved(document, one, where), where) for one in declared]
    body = operation.body and _checked(_Body, resolved(document, operation.body, where), where)
    arguments = _ArgumentList(schemas)
    parameters += _undeclared(place.path, parameters)
    # an operation's parameter replaces its path's
    for parameter in {(one.name, one.location): one for one in parameters}.values():
        name = parameter.name.lower() if parameter.location == "header" else parameter.name
        if (parameter.location, name) not in fixed:
            arguments.add_parameter(parameter, place.path)
    if body and body.content:
        arguments.add_body(body)
    return ApiOperation(
        function=place.function,
        method=place.method.upper(),
        path=place.path,
        description=_description(operation),
        parameters=tuple(arguments.parameters),
        body=arguments.body,
        schema=arguments.schema(),
        servers=_own_servers(document, place),
    )


def _own_servers(document: Json, place: _Place) -> tuple[str, ...]:
    try:
        own = _urls(_Servers.model_validate(place.item[place.method]))
        own = own or _urls(_Servers.model_validate(place.item))
        shared = _urls(_Servers.model_validate(document))
    except ValidationError:  # they are not called, so a flaw in them does no harm
        return ()
    return () if set(own) & set(shared) else own


def _undeclared(path: str, parameters: Sequence[_DocumentParameter]) -> list[_DocumentParameter]:
    """Text parameters for the parts of the path that the document declares no parameter for: the braces must
    not be sent literally."""
    declared = {one.name for one in parameters if one.location == "path"}
    names = [name for name in re.findall(r"\{([^{}]+)\}", path) if name not in declared]
    described = {"in": "path", "schema": {"type": "string"}}
    return [_DocumentParameter.model_validate({"name": name, **described}) for name in names]


def _named(method: str, path: str) -> str:
    return f"{method}_{_FORBIDDEN_IN_ARGUMENT.sub('_', path).strip('_') or 'root'}"


def _description(operation: _Operation) -> str:
    parts = [part.strip() for part in (operation.summary, operation.description) if part and part.strip()]
    return "\n\n".join(dict.fromkeys(parts))


# --- arguments -----------------------------------------------------------------------------------


class _ArgumentList:
    """The tool's arguments as they are collected from parameters and body."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._properties: Json = {}
        self._required: list[str] = []
        self._size = 0
        #: how many arguments have been renamed because another has their name
        self._taken: Counter[tuple[str, str]] = Counter()
        self.parameters: list[Parameter] = []
        self.body: RequestBody | None = None

    def schema(self) -> Json:
        schema: Json = {"type": "object", "properties": self._properties}
        if self._required:
            schema["required"] = self._required
        if not (self.body and self.body.open):
            schema["additionalProperties"] = False
        definitions = self._schemas.definitions(schema)
        return {**schema, "$defs": definitions} if definitions else schema

    def add_parameter(self, parameter: _DocumentParameter, path: str) -> None:
        in_path = parameter.location == "path"
        if in_path and "{" + parameter.name + "}" not in path:
            return
        media_type, media = next(iter((parameter.content or {}).items()), ("", None))
        style = parameter.style or _DEFAULT_STYLE[parameter.location]
        argument = self._free(parameter.name, parameter.location)
        self.parameters.append(
            Parameter(
                argument=argument,
                name=parameter.name,
                location=parameter.location,
                required=parameter.required or in_path,
                style=style,
                explode=style in ("form", "deepObject") if parameter.explode is None else parameter.explode,
                as_json=media is not None,
                plain=not is_json(media_type),
            )
        )
        schema = self._schemas.converted(media.schema_ if media else parameter.schema_)
        self._add(argument, schema, parameter.required or in_path, parameter.description)

    def add_body(self, body: _Body) -> None:
        media_type = self._preferred(body.content)
        media = body.content[media_type]
        made = RequestBody(
            media_type=media_type, required=body.required, encoding=_encoding(media), types=_types(media)
        )
        has_fields = is_json(media_type) or essence(media_type) in (FORM, MULTIPART)
        fields = self._schemas.object_fields(media.schema_) if has_fields else None
        if fields and not any(_argument_name(name) in self._properties for name in fields.properties):
            self._add_fields(made, fields)
            return
        argument = "body" if "body" not in self._properties else "request_body"
        null = body.required and is_json(media_type) and self._schemas.allows_null(media.schema_)
        parts = fields.properties if fields else {} if has_fields else {argument: media.schema_}
        self.body = made = replace(
            made,
            argument=argument,
            nullable=frozenset([argument] if null else ()),
            binary=frozenset(self._files(parts)),
        )
        schema = self._schemas.converted(media.schema_)
        if not has_fields:
            more = "; bytes as a data: URI" if takes_bytes(made) else ""
            schema = {"type": "string", "description": f"the body, {media_type}{more}"}
        self._add(argument, schema, body.required, body.description)

    def _add_fields(self, body: RequestBody, fields: Fields) -> None:
        arguments: dict[str, str] = {}
        files = self._files(fields.properties) if essence(body.media_type) == MULTIPART else {}
        shown = {
            name: files[name] if name in files else self._schemas.converted(schema)
            for name, schema in fields.properties.items()
        }
        for name, schema in shown.items():
            argument = self._free(name, "body")
            arguments[argument] = name
            self._add(argument, schema, body.required and name in fields.required, None)
        candidates = fields.properties.items() if is_json(body.media_type) else ()
        nullable = (name for name, schema in candidates if self._schemas.allows_null(schema))
        self.body = replace(
            body,
            fields=arguments,
            nullable=frozenset(nullable),
            binary=frozenset(files),
            open=fields.open,
        )

    def _preferred(self, content: Mapping[str, _Media]) -> str:
        preferred = min(content, key=_rank)
        if essence(preferred) == FORM:  # which cannot carry the bytes of a file
            for media_type, media in content.items():
                fields = essence(media_type) == MULTIPART and self._schemas.object_fields(media.schema_)
                if fields and self._files(fields.properties):
                    return media_type
        return preferred

    def _files(self, fields: Json) -> Json:
        shown = {name: self._schemas.file(schema) for name, schema in fields.items()}
        return {name: schema for name, schema in shown.items() if schema is not None}

    def _add(self, argument: str, schema: Any, required: bool, description: str | None) -> None:
        self._size += len(json.dumps(schema, default=str)) + len(description or "")
        if self._size > MAX_SCHEMA:
            schema, description = dict(OMITTED), None
        if description and isinstance(schema, dict) and "description" not in schema:
            schema = {**schema, "description": description}
        self._properties[argument] = schema
        if required:
            self._required.append(argument)

    def _free(self, name: str, location: str) -> str:
        """The argument for a name; if it is taken, its location is added as a suffix."""
        plain = argument = _argument_name(name)
        while argument in self._properties:
            self._taken[plain, location] += 1
            number = self._taken[plain, location]
            argument = f"{plain}_{location}" + (str(number) if number > 1 else "")
        return argument


def _argument_name(name: str) -> str:
    if _VALID_ARGUMENT.fullmatch(name):
        return name
    return (_FORBIDDEN_IN_ARGUMENT.sub("_", name).strip("_") or "argument")[:64]


def is_json(media_type: str) -> bool:
    plain = essence(media_type)
    return plain == "application/json" or plain.endswith("+json") or plain == "*/*"


def takes_bytes(body: RequestBody) -> bool:
    """Whether a body that is neither JSON nor a form can be bytes, as a data URI: all can but text that is no
    file."""
    is_text = essence(body.media_type).startswith("text/") and "*" not in body.media_type
    return not is_text or body.argument in body.binary


def _rank(media_type: str) -> int:
    plain = essence(media_type)
    if is_json(plain):
        # JSON patch and the like only where nothing plainer is offered
        return 0 if plain == "application/json" else 1
    return {FORM: 2, MULTIPART: 3}.get(plain, 4 if plain.startswith("text/") else 5)


def _encoding(media: _Media) -> dict[str, tuple[str, bool]]:
    """Of the fields that have a style: by any of these keys (OpenAPI 3.1, section 4.8.15.1)."""
    styles = {}
    for name, encoding in media.encoding.items():
        if not encoding.keys().isdisjoint(("style", "explode", "allowReserved")):
            style = str(encoding.get("style", "form"))
            styles[name] = (style, bool(encoding.get("explode", style == "form")))
    return styles


def _types(media: _Media) -> dict[str, str]:
    """The media types that are named for fields; of several, and of `image/*`, none is chosen."""
    named = {name: str(encoding.get("contentType", "")) for name, encoding in media.encoding.items()}
    return {name: one for name, one in named.items() if MEDIA_TYPE.fullmatch(one)}
