"""Writes JSON for a model service, and reads its JSON. No I/O."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import Meta

from tealagents.domain.ids import shown_call_id
from tealagents.domain.json_limits import TOO_SLOW, too_slow
from tealagents.domain.models import Json, Message, ResponseFormat, TokenUsage, ToolCall

Shape = TypeVar("Shape")

#: the most characters of a name, and the characters that services refuse in one
MAX_NAME = 64
_FORBIDDEN_IN_NAME = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
#: half a character (a lone surrogate) whose other half cannot be in the text before or after
_HALF_WITHIN = re.compile("(?!\\A[\udc00-\udfff]|[\ud800-\udbff]\\Z)[\ud800-\udfff]")
#: sent in place of a blank answer
_NO_ANSWER = "(no answer)"
_Count = Annotated[int, Meta(ge=0, lt=2**53)]
#: the most values of an answer that is parsed again by the slower standard library
MAX_PARTS = 100_000
#: the most numbers in one event or answer that are slow to parse (20 ms in all); schemas of tools contain
#: some
MAX_EXTREMES = 1000


def reader(shape: type[Shape], continued: Collection[str] = ()) -> Callable[[bytes], Shape]:
    """A function that reads JSON into `shape`. It raises `ValueError` for invalid JSON, for another shape,
    and for JSON that would take long to parse.

    A text under a name in `continued` may begin or end with half a character, whose other half is in the
    event before or after.
    """
    decode = msgspec.json.Decoder(shape, strict=False).decode

    def read(data: bytes) -> Shape:
        if too_slow(data, MAX_EXTREMES):
            raise ValueError(TOO_SLOW)
        try:
            return decode(data)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        except msgspec.DecodeError:
            if data.count(b",") > MAX_PARTS:
                raise
        # services that cut text at UTF-16 units send half characters, which only the standard library parses
        try:
            whole = _throughout(json.loads(data), _whole_characters, continued)
            return msgspec.convert(whole, shape, strict=False)
        except RecursionError:
            raise ValueError("is nested too deeply") from None

    return read


#: reads JSON of any shape
parsed: Callable[[bytes], Any] = reader(Any)


def compact(encoded: bytes) -> bytes:
    """The same bytes in a buffer of their size: `orjson` allocates more, such as 8 KB for half a kilobyte."""
    return bytes(memoryview(encoded))


def to_json(value: Any) -> bytes:
    """The value as JSON. Half characters (lone surrogates), which UTF-8 cannot encode, become `?`."""
    try:
        return orjson.dumps(value)
    except TypeError:  # half characters, or integers beyond 64 bits
        return orjson.dumps(_throughout(value, _writable))


def _throughout(value: Any, change: Callable[[Any], Any], continued: Collection[str] = ()) -> Any:
    """The value with all keys and leaves changed; of texts that are `continued`, all but their ends."""
    match value:
        case dict():
            return {
                change(key): _HALF_WITHIN.sub("?", item)
                if key in continued and isinstance(item, str)
                else _throughout(item, change, continued)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_throughout(item, change, continued) for item in value]
        case _:
            return change(value)


def _whole_characters(leaf: Any) -> Any:
    if not isinstance(leaf, str):
        return leaf
    whole = leaf.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins halves that meet
    return whole.encode("utf-8", "replace").decode()


def _writable(leaf: Any) -> Any:
    if isinstance(leaf, int) and not -(2**63) <= leaf < 2**64:
        return orjson.Fragment(str(leaf))
    return _whole_characters(leaf)


def user_text(message: Message) -> str | None:
    """The text items of a message, joined by newlines; None if it contains an image."""
    if any(item.content_type != "text" for item in message.items):
        return None
    return "\n".join(item.content for item in message.items)


def format_fields(wanted: ResponseFormat) -> Json | None:
    """The fields that describe structured output to a service; None if any JSON object is accepted."""
    if not wanted.schema:
        return None
    described = {"description": wanted.description} if wanted.description else {}
    return {"name": wanted.name, **described, "schema": wanted.schema, "strict": wanted.strict}


def answer_text(message: Message) -> str:
    """The text of an assistant message without tool calls; never blank.

    Some services refuse blank messages, and would then refuse every later call of the conversation.
    """
    return message.text if message.text.strip() else _NO_ANSWER


def valid_name(name: str) -> str:
    """The name of a tool or a type with only the characters that services accept.

    A name that a model made up (`multi_tool_use.parallel`) may be invalid to its service, which would then
    refuse every later call of the conversation.
    """
    return _FORBIDDEN_IN_NAME.sub("_", name)[:MAX_NAME] or "_"


def call_id(own: str | None, native: str) -> str | None:
    """The id of a call as the service is sent it: the one that it assigned, except to a repetition.

    A service that is sent one id for two calls of a message refuses every later call of the conversation.
    """
    return native if native and shown_call_id(native) == own else own


def other_id(given: str) -> str:
    """Replaces the id of a call for services that refuse it. The result is always the same for the same id.

    It has nine letters and digits, as Mistral requires and all services accept.
    """
    return base64.b32encode(hashlib.sha256(given.encode()).digest()).decode()[:9]


def arguments(call: ToolCall) -> str:
    """A call's arguments in a form that services accept: always a JSON object.

    Some services parse them, and would refuse every later call of the conversation after one with invalid
    JSON. Such arguments are sent under `invalid_json`, so that the model sees its mistake.
    """
    if not call.arguments.strip():
        return "{}"
    if is_object(call.arguments):
        return call.arguments
    wrapped: Json = {"invalid_json": call.arguments}
    return to_json(wrapped).decode()


def argument_text(written: Any) -> str:
    """A call's arguments as text; some services send an object."""
    return written if isinstance(written, str) else to_json(written).decode()


def token_usage(counted: Any, prompt_name: str, completion_name: str) -> TokenUsage:
    """The usage that a service reports. Invalid numbers count as 0, so that they fail no answer."""
    said = counted if isinstance(counted, dict) else {}
    prompt, completion = _count(said.get(prompt_name)), _count(said.get(completion_name))
    return TokenUsage(prompt, completion, _count(said.get("total_tokens")) or prompt + completion)


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value < 2**53:  # the usual case, without a conversion
        return value
    try:
        return msgspec.convert(value, _Count, strict=False)
    except msgspec.ValidationError:
        return 0


def is_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
