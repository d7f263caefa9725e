"""Turns a call's arguments into an HTTP request, as the OpenAPI document describes it.

A value in the path cannot lead to another path: it is percent-encoded as a whole, and refused if a server
could read it as a step upwards.
"""

import base64
import json
import re
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.outbound.reading import CHARSET, charset_of, essence
from tealagents.tools.naming import excerpt, suggestion
from tealagents.tools.openapi_document import (
    FORM,
    MEDIA_TYPE,
    MULTIPART,
    TYPE_NAME,
    ApiOperation,
    Parameter,
    RequestBody,
    is_json,
    takes_bytes,
)

_JSON = "application/json"
_OCTETS, _PLAIN = "application/octet-stream", "text/plain; charset=utf-8"
_NO_PARTS = "multipart/form-data; boundary=none"
_STEPS = re.compile(r"[/\\]")
_PRINTABLE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: A data URI (RFC 2397) up to its data: media type, parameters, `;base64`. Nothing else that begins with
#: `data:` is one, such as YAML with a key of that name. A line may be wrapped within the media type, as in
#: mail; a blank may follow a semicolon. On one line before `;base64`, anything may stand: a file's name may
#: have spaces.
_DATA_URI = re.compile(
    r"data:([^,\r\n]*(?=; ?base64,)|"
    rf"(?:{TYPE_NAME}(?:\r\n{TYPE_NAME})*/{TYPE_NAME})?(?:;(?:[^;,\s]+| [^;,=\s]+=[^;,\s]*))*?)"
    r"(; ?base64)?,",
    re.ASCII,
)

Pairs = list[tuple[str, str]]


class ApiRequest(NamedTuple):
    """What the HTTP client is given besides method and server."""

    #: path and query, percent-encoded
    target: str
    headers: dict[str, str]
    #: the client's keyword argument `content` or `files`; empty: no body
    body: dict[str, Any]


def request_of(operation: ApiOperation, arguments: Json) -> ApiRequest:
    """The request of a call. Raises `ToolFailed` for an argument that is missing, unknown or cannot be sent;
    its text names the argument for the model."""
    values = _by_parameter(operation, arguments)
    headers, query, cookies = {}, Pairs(), Pairs()
    path, *_ = operation.path.split("#")  # a fragment is never sent, and a query after it would not be either
    for parameter in operation.parameters:
        if parameter.argument not in values:
            continue
        value = values[parameter.argument]
        match parameter.location:
            case "path":
                path = path.replace("{" + parameter.name + "}", _path_text(parameter, value))
            case "query":
                query += _form_pairs(parameter, value)
            case "header":
                name = _sendable(parameter.name, "A header's name")
                headers[name] = _header_text(parameter, value)
            case "cookie":
                cookies += _form_pairs(parameter, value)
    if cookies:
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
    pairs = "&".join(f"{name}={value}" for name, value in query)
    target = path + (("&" if "?" in path else "?") + pairs if pairs else "")
    media_type, body = _body(operation.body, _body_value(operation, arguments))
    if media_type:
        headers["Content-Type"] = _sendable(media_type, "The body's media type")
    return ApiRequest(target, headers, body)


def _by_parameter(operation: ApiOperation, arguments: Json) -> Json:
    """The values of the parameters, by argument. `ToolFailed` for an argument, whether parameter or part of
    the body, that is unknown, and for a required parameter that is missing."""
    known = [parameter.argument for parameter in operation.parameters]
    body = operation.body
    in_body = [body.argument] if body and body.argument else list(body.fields) if body else []
    for name in arguments:
        if name not in known and name not in in_body and not (body and body.open):
            takes = ", ".join([*known, *in_body]) or "no arguments"
            raise ToolFailed(
                f"There is no argument {excerpt(name)!r}; the tool takes {takes}."
                f"{suggestion(name, [*known, *in_body])} Nothing was done."
            )
    # models send null for an option that they do not use
    values = {name: arguments[name] for name in known if arguments.get(name) is not None}
    missing = [one.argument for one in operation.parameters if one.required and one.argument not in values]
    if missing:
        raise ToolFailed(f"Missing: {', '.join(missing)}. Nothing was done.")
    return values


# --- styles --------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _json(parameter: Parameter, value: Any) -> str:
    """The value as JSON; a text as it is, if the parameter's media type is not JSON."""
    return _text(value) if parameter.plain else json.dumps(value, ensure_ascii=False)


def _encoded(value: Any) -> str:
    return quote(_text(value).encode("utf-8", "replace"), safe="")


def _present(value: Any) -> Any:
    """A list or an object without its nulls: outside JSON, null means absent."""
    if isinstance(value, dict):
        return {key: one for key, one in value.items() if one is not None}
    return [one for one in value if one is not None] if isinstance(value, list) else value


def _path_text(parameter: Parameter, value: Any) -> str:
    value = value if parameter.as_json else _present(value)
    _refuse_steps(parameter, value)
    if parameter.as_json:
        return _encoded(_json(parameter, value))
    name = quote(parameter.name, safe="")
    prefix, separator = {"label": (".", "."), "matrix": (f";{name}=", f";{name}=")}.get(
        parameter.style, ("", ",")
    )
    if not parameter.explode:
        separator = ","
    if isinstance(value, dict):
        joined = "=" if parameter.explode else ","
        pairs = [f"{_encoded(key)}{joined}{_encoded(one)}" for key, one in value.items()]
        if parameter.style == "matrix" and parameter.explode:
            prefix, separator = ";", ";"
        return prefix + separator.join(pairs)
    values = value if isinstance(value, list) else [value]
    return prefix + separator.join(_encoded(one) for one in values)


def _refuse_steps(parameter: Parameter, value: Any) -> None:
    """`ToolFailed` for a value that is empty or has `.` or `..` as a step: some servers would read another
    path."""
    values = value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
    texts = [_text(one) for one in values]
    steps = [step for text in texts for step in _STEPS.split(text)]
    if not any(steps) or any(step in (".", "..") for step in steps):
        raise ToolFailed(
            f"{parameter.argument} cannot be {excerpt(_text(value))!r} in a path. Nothing was done."
        )


def _form_pairs(parameter: Parameter, value: Any) -> Pairs:
    """A parameter's names and values for a query, a cookie or a form, both percent-encoded."""
    name = _encoded(parameter.name)
    if parameter.as_json:
        return [(name, _encoded(_json(parameter, value)))]
    if parameter.style == "deepObject":
        return _deep_pairs(parameter.name, value)
    value = _present(value)
    separator = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}.get(parameter.style, ",")
    if isinstance(value, list):
        values = [_encoded(one) for one in value]
        return [(name, one) for one in values] if parameter.explode else [(name, separator.join(values))]
    if isinstance(value, dict):
        pairs = [(_encoded(key), _encoded(one)) for key, one in value.items()]
        return (
            pairs if parameter.explode else [(name, separator.join(part for pair in pairs for part in pair))]
        )
    return [(name, _encoded(value))]


def _deep_pairs(name: str, value: Any) -> Pairs:
    """Pairs such as `name[key]=value`. The specification does not define deeper levels; they are written as
    most servers read them, `name[key][inner]` and `name[key][0]`."""
    value = _present(value)
    if isinstance(value, dict):
        return [pair for key, one in value.items() for pair in _deep_pairs(f"{name}[{key}]", one)]
    if isinstance(value, list):
        return [pair for number, one in enumerate(value) for pair in _deep_pairs(f"{name}[{number}]", one)]
    return [(quote(name, safe="[]"), _encoded(value))]


def _header_text(parameter: Parameter, value: Any) -> str:
    value = value if parameter.as_json else _present(value)
    if parameter.as_json:
        text = value if parameter.plain and isinstance(value, str) else json.dumps(value)
    elif isinstance(value, dict):
        joined = "=" if parameter.explode else ","
        text = ",".join(f"{_text(key)}{joined}{_text(one)}" for key, one in value.items())
    else:
        text = ",".join(_text(one) for one in (value if isinstance(value, list) else [value]))
    # spaces around a header's value mean nothing, and the HTTP client refuses them
    return _sendable(text, parameter.argument).strip(" \t")


def _sendable(text: str, what: str) -> str:
    """`text`. `ToolFailed`, naming `what`, if it has characters that a header cannot have."""
    if not _PRINTABLE.fullmatch(text):
        raise ToolFailed(f"{what} cannot be sent as a header: {excerpt(text)!r}. Nothing was done.")
    return text


# --- body ----------------------------------------------------------------------------------------


def _body_value(operation: ApiOperation, arguments: Json) -> Any:
    """The body's value, before it is encoded; None if it is null, or if no body is sent."""
    body = operation.body
    if body is None:
        return None
    if body.argument is not None:
        value = arguments.get(body.argument)
        given = value is not None or (body.argument in arguments and body.argument in body.nullable)
        if body.required and not given:
            raise ToolFailed(f"Missing: {body.argument}. Nothing was done.")
        return value
    fields = {
        field: arguments[argument]
        for argument, field in body.fields.items()
        if argument in arguments and (arguments[argument] is not None or field in body.nullable)
    }
    if body.open:
        parameters = {parameter.argument for parameter in operation.parameters}
        others = {name: one for name, one in arguments.items() if name not in parameters}
        fields.update({name: one for name, one in others.items() if name not in body.fields})
    return fields if fields or body.required else None


def _body(body: RequestBody | None, value: Any) -> tuple[str | None, dict[str, Any]]:
    """The content type (None: the HTTP client sets it, or there is no body), and the client's keyword
    argument for the body."""
    if body is None or (value is None and body.argument not in body.nullable):
        return None, {}
    media_type = essence(body.media_type)
    if media_type == FORM and isinstance(value, dict):
        return FORM, {"content": _form(body, _present(value))}
    if media_type == MULTIPART and isinstance(value, dict):
        parts = _parts(body, _present(value))
        # of no parts, the client would send neither a body nor its type
        return (None, {"files": parts}) if parts else (_NO_PARTS, {"content": b"--none--\r\n"})
    if is_json(media_type):
        content_type = _JSON if "*" in media_type else body.media_type
        return content_type, {"content": json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")}
    is_range = "*" in media_type  # which is not a type that a request can have
    declared = (_PLAIN if media_type == "text/*" else _OCTETS) if is_range else body.media_type
    text = _text(value)
    if takes_bytes(body) and (uri := _data(text)):
        given, content = uri
        return given if given and is_range else declared, {"content": content}
    declared, content = _encoded_as(declared, text)
    return declared, {"content": content}


def _form(body: RequestBody, value: Json) -> bytes:
    pairs = Pairs()
    for name, one in value.items():
        if name not in body.encoding and is_json(body.types.get(name, "")):
            # a text counts as JSON already, as in `_parts`
            pairs.append((_encoded(name), _encoded(one)))
            continue
        style, explode = body.encoding.get(name, ("deepObject" if _is_nested(one) else "form", True))
        field = Parameter(argument=name, name=name, location="query", style=style, explode=explode)
        pairs += _form_pairs(field, one)
    return "&".join(f"{name}={text}" for name, text in pairs).encode()


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(one, dict | list) for one in value)
    )


def _parts(body: RequestBody, value: Json) -> list[tuple[str, tuple[str | None, bytes, str]]]:
    parts: list[tuple[str, tuple[str | None, bytes, str]]] = []
    for name, field in value.items():
        named = body.types.get(name)
        for one in _present(field) if isinstance(field, list) and not _is_nested(field) else [field]:
            is_file, text = name in body.binary, _text(one)
            usual = _OCTETS if is_file else _JSON if isinstance(one, dict | list) else _PLAIN
            uri = _data(text) if is_file else None
            given, content = uri or _encoded_as(named or usual, text)
            parts.append((name, (name if is_file else None, content, given or named or usual)))
    return parts


def _encoded_as(media_type: str, text: str) -> tuple[str, bytes]:
    """The text in the charset of a media type. If Python does not know it, or it lacks a character, the
    charset is UTF-8, and the media type says so."""
    charset = charset_of(media_type)
    try:
        if charset:
            return media_type, text.encode(charset)
    except UnicodeError:
        pass
    return CHARSET.sub("; charset=utf-8", media_type), text.encode("utf-8", "replace")


def _data(text: str) -> tuple[str | None, bytes] | None:
    """The media type that a data URI names, if any, and its bytes; None for other text.

    `ToolFailed` for a data URI that is not base64, although it says so.
    """
    uri = _DATA_URI.match(text)
    if not uri:
        return None
    given, data = uri[1], text[uri.end() :]
    try:
        content = base64.b64decode(data, validate=True) if uri[2] else unquote_to_bytes(data)
    except ValueError as error:
        raise ToolFailed(f"A data: URI is not base64: {error}. Nothing was done.") from error
    return given if MEDIA_TYPE.fullmatch(given) else None, content
