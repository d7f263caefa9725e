"""Items of messages, as clients send them: text, and images as data URIs; and calls as messages hold them."""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tealagents.api import bodies
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.images import image_problem, lowered
from tealagents.domain.models import Item, Json, ToolCall
from tealagents.domain.texts import check_storable
from tealagents.state.codec import encode_json

#: the types of images that models see
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: the parts of messages that are used, and where an image may come from
_PARTS, _SOURCES = ("text", "image"), ("data", "url", "file")
_STANDARD = str.maketrans("-_", "+/")


def image(uri: object, field: str) -> Item:
    """An image that is sent along: nothing is fetched that a client names. `InvalidRequest`."""
    given = uri if isinstance(uri, str) else ""
    if problem := image_problem(given):
        raise InvalidRequest(field, problem)
    return Item("image", lowered(given))


def usable_image(uri: str) -> Item | None:
    """An image that is sent along; None for any other, where that is no mistake of the client's."""
    return None if image_problem(uri) else Item("image", lowered(uri))


def decoded(encoded: object, field: str) -> bytes:
    """The bytes of a text in base64, of the standard alphabet or that of URLs, padded or not.

    `InvalidRequest`, also for what is no text.
    """
    text = encoded.translate(_STANDARD) if isinstance(encoded, str) else "?"
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise InvalidRequest(field, "is not valid base64") from None


def is_text(media_type: str) -> bool:
    """Whether it is one of the types of text, in whatever form a client has written it."""
    return media_type.strip().lower().startswith("text/")


class Inline:
    """The items that bytes in one message are."""

    def __init__(self) -> None:
        self._json = bodies.Documents()

    def item(self, raw: bytes, media_type: str, field: str) -> Item | None:
        """The item that bytes of a media type are: an image, JSON, or text in UTF-8. None for any other type.

        `InvalidRequest`, for JSON of the field `body`.
        """
        if raw and media_type in IMAGES:
            return Item("image", f"data:{media_type};base64,{base64.b64encode(raw).decode()}")
        if media_type == "application/json":
            return Item("text", encode_json(self._json.parse(raw)).decode())
        return Item("text", _text(raw, field)) if is_text(media_type) else None


def _text(raw: bytes, field: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(field, "is not UTF-8, as text must be") from None
    check_storable(text)
    return text


def media(item: Item) -> tuple[str, str]:
    """The media type of an image, and its bytes in base64."""
    head, _, encoded = item.content.partition(",")
    return head[len("data:") : -len(";base64")], encoded


def read(content: Any, field: str, part: Callable[[Any, str], Item | None]) -> tuple[Item, ...]:
    """The items of a text, or of parts, each read by `part`; empty ones are left out. `InvalidRequest`."""
    if isinstance(content, str):
        return (Item("text", content),) if content else ()
    if not isinstance(content, list):
        raise InvalidRequest(field, "must be a string or an array of parts")
    parts = [part(each, f"{field}.{n}") for n, each in enumerate(content)]
    return tuple(each for each in parts if each is not None and each.content)


def referred(item: Any) -> str:
    """The id that an `item_reference` names, in lower case; empty for any other item.

    Its type may be omitted: then it has nothing but the id.
    """
    if not isinstance(item, dict):
        return ""
    bare = isinstance(item.get("id"), str) and all(item[name] is None for name in item if name != "id")
    return str(item.get("id")).lower() if bare or item.get("type") == "item_reference" else ""


def resolved(given: Iterable[Any], found: Mapping[str, Any]) -> list[Any]:
    """Items with those that were found, by their ids, where they are first referred to."""
    left = dict(found)
    return [left.pop(referred(each), each) for each in given]


def known(body: Any, roles: tuple[str, ...]) -> Any:
    """A body with only the messages of these roles, and in them only texts and images from known sources.

    Everything else is unchanged, including messages and parts whose role or type is not a string.
    """
    given = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(given, list):
        return body
    return {**body, "messages": [_with_parts(each) for each in given if _is_of(each, "role", roles)]}


def _with_parts(message: Any) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return message
    usable = [part for part in parts if not isinstance(part, dict) or part.get("type") in _PARTS]
    return {**message, "content": [part for part in usable if _is_from_known(part)]}


def _is_from_known(part: Any) -> bool:
    return not isinstance(part, dict) or _is_of(part.get("source"), "type", _SOURCES)


def _is_of(given: Any, name: str, known: tuple[str, ...]) -> bool:
    """Whether a field of an object is one of these; also where there is no such text."""
    value = given.get(name) if isinstance(given, dict) else None
    return not isinstance(value, str) or value in known


def text(of: tuple[Item, ...], field: str, problem: str) -> str:
    """The text of items that must all be text, joined. Otherwise `InvalidRequest` with `problem`."""
    if any(each.content_type != "text" for each in of):
        raise InvalidRequest(field, problem)
    return "".join(each.content for each in of)


def function_call(identifier: str, call: ToolCall) -> Json:
    """A call within a message of the assistant, in the form that Chat Completions gave to all."""
    function = {"name": call.tool, "arguments": call.arguments}
    return {"id": identifier, "type": "function", "function": function}
