"""Reads a call's body, a value of the config's `input_type`, into messages, template values and images."""

import logging
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tealagents.api import bodies
from tealagents.api.items import image
from tealagents.api.skagents import values
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item, Json
from tealagents.engine.prompt import context_note

log = logging.getLogger(__name__)

_HISTORY = "chat_history"
#: the most characters of a session_id, which is repeated in each event, log line and span
_LONGEST_ID = 1000


class SentMessage(Struct, frozen=True):
    """A message that came with the call."""

    role: Literal["user", "assistant"]
    items: tuple[Item, ...]


class Input(Struct, frozen=True, kw_only=True):
    """The input of one call."""

    session_id: str | None
    #: the fields of the input type, as templates see them
    values: Json
    #: `chat_history`, oldest first
    messages: tuple[SentMessage, ...]
    #: `user_context`, as a message
    context: SentMessage | None
    #: those embedded in the other fields
    images: tuple[Item, ...]


def read(kind: type[BaseModel], body: Any, most_items: int) -> Input:
    """The input in a body. Raises `InvalidRequest`, which names the first field that is wrong."""
    plain, readable, images = _read_value(kind, body, most_items)
    session_id = plain.get("session_id", body.get("session_id"))
    if session_id is not None and not isinstance(session_id, str):
        raise InvalidRequest("session_id", "must be a string")
    if session_id is not None and len(session_id) > _LONGEST_ID:
        raise InvalidRequest("session_id", f"may have at most {_LONGEST_ID:,} characters")
    context = plain.get("user_context")
    return Input(
        session_id=session_id or None,
        values=readable,
        messages=tuple(_sent_messages(plain.get(_HISTORY) or [], most_items)),
        context=_context_message(context) if context and isinstance(context, dict) else None,
        images=images,
    )


def _read_value(kind: type[BaseModel], body: Any, most_items: int) -> tuple[Json, Json, tuple[Item, ...]]:
    """The body as plain data, as the data that templates read (`values`), and its images."""
    try:
        value = bodies.validated(kind, body)
        plain = _plain(value)
        return plain, values.template_value(value, plain), tuple(_images(value, most_items))
    except InvalidRequest:
        raise
    except Exception as error:  # the config's own types may raise anything
        log.exception("the type %s raised", kind.__name__)
        raise InvalidRequest("body", f"is refused by {kind.__name__}: {type(error).__name__}") from None


def _plain(value: BaseModel) -> Json:
    """The fields as plain data, also those that are excluded from the type's JSON. Raises `TypeError` for a
    type whose JSON is no object."""
    written = value.model_dump(mode="json", by_alias=False)
    if not isinstance(written, dict):
        raise TypeError("the type does not serialize to an object")
    excluded = {
        name: to_jsonable_python(getattr(value, name), by_alias=False)
        for name in values.excluded(type(value))
    }
    return excluded | written


def _context_message(context: Json) -> SentMessage:
    return SentMessage(
        "user", (Item("text", context_note({name: str(each) for name, each in context.items()})),)
    )


def _sent_messages(history: Any, most_items: int) -> Iterator[SentMessage]:
    """The messages of `chat_history`, which has any shape if the config's own type does not declare it."""
    for n, message in enumerate(history if isinstance(history, list) else [history]):
        field = f"{_HISTORY}.{n}"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise InvalidRequest(field, "must be a message with the role user or assistant")
        items = message.get("items")
        if items is None:
            items = [{"content": message.get("content")}]
        if not isinstance(items, list) or len(items) > most_items:
            raise InvalidRequest(f"{field}.items", f"must be a list of at most {most_items} items")
        role = message["role"]
        yield SentMessage(
            role, tuple(_item(each, f"{field}.items.{i}", role) for i, each in enumerate(items))
        )


def _item(item: Any, field: str, role: str) -> Item:
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, str):
        raise InvalidRequest(field, "must have a content, which is a string")
    if item.get("content_type", "text") == "text":
        return Item("text", content)
    if role != "user":  # model services accept no images in assistant messages
        raise InvalidRequest(field, "is an image, which only a user can send")
    return image(content, field)


def _images(value: BaseModel, most_items: int) -> Iterator[Item]:
    """The images in the fields, single or in lists: values of any class named `EmbeddedImage`, and those of
    the field `embedded_image`."""
    room = most_items - 1  # they are sent in one message with the text of the first task
    for name in type(value).model_fields:
        field = getattr(value, name)
        for each in field if isinstance(field, list) else [field]:
            if isinstance(each, BaseModel) and (name == "embedded_image" or _is_image(type(each))):
                if (room := room - 1) < 0:
                    raise InvalidRequest(
                        name, f"has too many images: at most {most_items - 1} are accepted in all fields"
                    )
                given = each.model_dump(mode="json", by_alias=False)
                kind = str(given.get("format"))
                media = kind if "/" in kind else f"image/{kind}"
                yield image(f"data:{media};base64,{given.get('data')}", name)


def _is_image(kind: type[BaseModel]) -> bool:
    return any(base.__name__ == "EmbeddedImage" for base in kind.__mro__)
