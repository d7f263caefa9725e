"""JSON for a model service, written once to be kept, and JSON from it. No I/O."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import Meta

from tealagents.domain.json_limits import TOO_SLOW, too_slow
from tealagents.domain.models import Json, Message, ResponseFormat, TokenUsage, ToolCall

Shape = TypeVar("Shape")

#: characters of a name, and those that services do not take in one
MAX_NAME = 64
_FORBIDDEN_IN_NAME = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
#: half a character that does not wait for its other half at an end of its text
_HALF_WITHIN = re.compile("(?!\\A[\udc00-\udfff]|[\ud800-\udbff]\\Z)[\ud800-\udfff]")
#: sent in place of an answer without words
_NO_ANSWER = "(no answer)"
_Count = Annotated[int, Meta(ge=0, lt=2**53)]
#: parts of an answer that is read a second time, more slowly and into more memory
MAX_PARTS = 100_000
#: numbers that take long to read in one event or answer, which may show the schemas of tools: 20 ms of them
MAX_EXTREMES = 1000


def reader(shape: type[Shape], continued: Collection[str] = ()) -> Callable[[bytes], Shape]:
    """A function that reads JSON into `shape`; `ValueError` for what is no JSON, has another shape or would
    take long to read.

    A text under a name in `continued` may begin and end with half a character, of which the other half is in
    the events around it.
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
        # services that cut text by UTF-16 units send half characters, which only the standard library reads
        try:
            whole = _throughout(json.loads(data), _whole_characters, continued)
            return msgspec.convert(whole, shape, strict=False)
        except RecursionError:
            raise ValueError("is nested too deeply") from None

    return read


#: what a service says, of whatever shape
parsed: Callable[[bytes], Any] = reader(Any)


def compact(encoded: bytes) -> bytes:
    """The same bytes in as much memory as they need: `orjson` over-allocates, 8 KB for half of one."""
    return bytes(memoryview(encoded))


def to_json(value: Any) -> bytes:
    """The value as JSON. Half characters (lone surrogates), which JSON in UTF-8 cannot hold, become `?`."""
    try:
        return orjson.dumps(value)
    except TypeError:  # for those, and for integers beyond 64 bits
        return orjson.dumps(_throughout(value, _writable))


def _throughout(value: Any, change: Callable[[Any], Any], continued: Collection[str] = ()) -> Any:
    """The value with all keys and leaves changed; of texts that are `continued` all but their ends."""
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
    whole = leaf.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # halves that meet
    return whole.encode("utf-8", "replace").decode()


def _writable(leaf: Any) -> Any:
    if isinstance(leaf, int) and not -(2**63) <= leaf < 2**64:
        return orjson.Fragment(str(leaf))
    return _whole_characters(leaf)


def user_text(message: Message) -> str | None:
    """A message of texts alone as one text, a line for each item; None where an image is among them."""
    if any(item.content_type != "text" for item in message.items):
        return None
    return "\n".join(item.content for item in message.items)


def format_fields(wanted: ResponseFormat) -> Json | None:
    """The schema of structured output, as services are sent it; None if any JSON object will do."""
    if not wanted.schema:
        return None
    described = {"description": wanted.description} if wanted.description else {}
    return {"name": wanted.name, **described, "schema": wanted.schema, "strict": wanted.strict}


def answer_text(message: Message) -> str:
    """The text of an assistant's message without calls.

    Many a service refuses one without words, and would refuse the conversation for ever.
    """
    return message.text if message.text.strip() else _NO_ANSWER


def valid_name(name: str) -> str:
    """The name of a tool or a type as services take it.

    What a model makes up (`multi_tool_use.parallel`) need be no name to the service, which would refuse the
    conversation for ever.
    """
    return _FORBIDDEN_IN_NAME.sub("_", name)[:MAX_NAME] or "_"


def call_id(result: Message) -> str | None:
    """The id of the call that a `tool` message answers, as the service gave it."""
    return result.native_call_id or result.tool_call_id


def other_id(given: str) -> str:
    """An id of a call in place of another, for services that refuse that one: always the same.

    Nine letters and digits, as Mistral's must have; all services take them.
    """
    return base64.b32encode(hashlib.sha256(given.encode()).digest()).decode()[:9]


def arguments(call: ToolCall) -> str:
    """A call's arguments as services take them back: a JSON object.

    Many a service parses them and would refuse the conversation for ever after one call that the model wrote
    wrongly; what it wrote is kept under `invalid_json`, so that it can see its mistake.
    """
    if not call.arguments.strip():
        return "{}"
    if is_object(call.arguments):
        return call.arguments
    wrapped: Json = {"invalid_json": call.arguments}
    return to_json(wrapped).decode()


def argument_text(written: Any) -> str:
    """A call's arguments as text, from services that send them as an object, too."""
    return written if isinstance(written, str) else to_json(written).decode()


def token_usage(counted: Any, prompt_name: str, completion_name: str) -> TokenUsage:
    """What a service counted; 0 for what is no number of tokens, for which no answer is given up."""
    said = counted if isinstance(counted, dict) else {}
    prompt, completion = _count(said.get(prompt_name)), _count(said.get(completion_name))
    return TokenUsage(prompt, completion, _count(said.get("total_tokens")) or prompt + completion)


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value < 2**53:  # nearly always: others cost a look
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
