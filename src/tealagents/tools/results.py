"""Turns what a tool returned into the text that the model is given.

Every result becomes one text that can be stored and sent: no lone surrogates, no NUL, cut at `texts.LIMIT`
characters.
"""

import base64
import re
from enum import Enum
from functools import partial
from types import GeneratorType
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from tealagents.domain.errors import ToolFailed
from tealagents.domain.texts import bounded, storable

#: most bytes of binary data that are shown, as base64; larger data is only described
BINARY_LIMIT = 48_000
#: the text for None if the tool is declared to return nothing, and for an MCP tool's empty result
DONE = "Done. The tool has no output."

#: Python's default text of an object: the address means nothing to a model, and differs each time
_WITHOUT_TEXT = re.compile(r"<([^<>]*) at 0x[0-9a-fA-F]+>")


def _text_of(value: Any) -> str:
    text = str(value)
    found = _WITHOUT_TEXT.fullmatch(text)
    return f"<{found[1]}>" if found else text


_to_json = partial(to_json, bytes_mode="base64", inf_nan_mode="strings", fallback=_text_of)
_to_plain = partial(to_jsonable_python, bytes_mode="base64", fallback=_text_of)


def to_text(value: Any, *, nothing: str = "null") -> str:
    """The text for a result: text as it is, UTF-8 bytes as text, other bytes as in `described_bytes`, None
    as `nothing`, everything else as JSON.

    `ToolFailed` if the value cannot be written as JSON.
    """
    if value is None:
        return nothing
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _binary(bytes(value))
    return bounded(_json(value))


def _json(value: Any) -> str:
    try:
        text = _encoded(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolFailed(f"The tool ran, but its result cannot be shown: {error}") from error
    # a date, a UUID or a path that is the whole result is clearer without a JSON string's quotes
    if text.startswith('"') and not isinstance(value, str):
        return str(from_json(text))
    return text


def _encoded(value: Any) -> str:
    try:
        return _to_json(value).decode()
    except PydanticSerializationError as error:
        if "utf-8" not in str(error):  # lone surrogates and bytes that are not UTF-8 are handled below
            raise
    return _to_json(_storable(value)).decode()


def _storable(value: Any) -> Any:
    """`value` in a form that `to_json` accepts, without lone surrogates, which for example the names of files
    have that are not UTF-8."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_storable(name) if isinstance(name, str) else name: _storable(value[name]) for name in value}
    if isinstance(value, list | tuple | set | frozenset):
        return [_storable(each) for each in value]
    if isinstance(value, GeneratorType):
        raise ValueError("a generator yields text that is not Unicode")  # it has been consumed by now
    try:
        plain = _to_plain(value)
    except UnicodeDecodeError:  # `model_dump_json` raises, too: only the model's author knows what is meant
        raise ValueError(
            f"{type(value).__name__} holds bytes that are not UTF-8; set ser_json_bytes='base64' in the "
            "config of the model that declares them"
        ) from None
    return _storable(plain) if isinstance(plain, str | dict | list) else plain


def _binary(data: bytes) -> str:
    try:
        return bounded(data.decode())
    except UnicodeDecodeError:
        return described_bytes(data)


def described_bytes(data: bytes, media_type: str = "application/octet-stream", *, more: bool = False) -> str:
    """A JSON object that describes binary data: media type, size, and base64 if within `BINARY_LIMIT`. With
    `more`, `data` is only its beginning."""
    fields: dict[str, Any] = {"media_type": media_type, "size_bytes": len(data)}
    if more:
        del fields["size_bytes"]
        fields["note"] = f"too large to be shown: more than {len(data):,} bytes"
    elif len(data) <= BINARY_LIMIT:
        fields["base64"] = base64.b64encode(data).decode()
    else:
        fields["note"] = "too large to be shown"
    return to_json(fields).decode()
