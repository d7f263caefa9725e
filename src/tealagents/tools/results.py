"""The text a model is given for what a tool returned.

Whatever comes back becomes one text that can be stored and sent: no lone surrogates, no NUL, at most
`texts.LIMIT` characters.
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

#: bytes that are no text are given as base64 up to this size, beyond it only described
BINARY_LIMIT = 48_000
#: for a tool that promises no result and gives none
DONE = "Done. The tool has no output."

#: the text of an object whose class gives it none; its address says nothing, and is another each time
_WITHOUT_TEXT = re.compile(r"<([^<>]*) at 0x[0-9a-fA-F]+>")


def _text_of(value: Any) -> str:
    text = str(value)
    found = _WITHOUT_TEXT.fullmatch(text)
    return f"<{found[1]}>" if found else text


_to_json = partial(to_json, bytes_mode="base64", inf_nan_mode="strings", fallback=_text_of)
_to_plain = partial(to_jsonable_python, bytes_mode="base64", fallback=_text_of)


def to_text(value: Any, *, nothing: str = "null") -> str:
    """What a careful person would hand the model for `value`; `nothing` stands for None.

    Text as it is, bytes as text where they are UTF-8, everything else as JSON.
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
    # a date, a UUID or a path alone is clearer without the quotes of a JSON string
    if text.startswith('"') and not isinstance(value, str):
        return str(from_json(text))
    return text


def _encoded(value: Any) -> str:
    try:
        return _to_json(value).decode()
    except PydanticSerializationError as error:
        if "utf-8" not in str(error):  # of text that has no UTF-8, or bytes that are none
            raise
    return _to_json(_storable(value)).decode()


def _storable(value: Any) -> Any:
    """What `to_json` takes for `value`, without lone surrogates, as names of files that are no UTF-8 have."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_storable(name) if isinstance(name, str) else name: _storable(value[name]) for name in value}
    if isinstance(value, list | tuple | set | frozenset):
        return [_storable(each) for each in value]
    if isinstance(value, GeneratorType):
        raise ValueError("a generator yields text that is not Unicode")  # and can be read only once
    try:
        plain = _to_plain(value)
    except UnicodeDecodeError:  # as from `model_dump_json`: only its author knows how it is meant
        raise ValueError(
            f"{type(value).__name__} holds bytes that are not UTF-8; set ser_json_bytes='base64' in the "
            "config of the model that declares them"
        ) from None
    return _storable(plain) if isinstance(plain, str | dict | list) else plain


def _binary(data: bytes) -> str:
    try:
        return bounded(data.decode())
    except UnicodeDecodeError:
        return described(data)


def described(data: bytes, media_type: str = "application/octet-stream") -> str:
    """A JSON object that describes bytes that are no text: type, size, and the data while it is small."""
    fields: dict[str, Any] = {"media_type": media_type, "size_bytes": len(data)}
    if len(data) <= BINARY_LIMIT:
        fields["base64"] = base64.b64encode(data).decode()
    else:
        fields["note"] = "too large to be shown"
    return to_json(fields).decode()
