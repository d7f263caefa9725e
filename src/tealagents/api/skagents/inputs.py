"""What was sent: a value of the config's input type, as messages, as values for templates, and its images."""

import logging
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from pydantic import BaseModel

from tealagents.api import bodies
from tealagents.api.items import image
from tealagents.api.skagents import values
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item, Json
from tealagents.engine.prompt import context_note

log = logging.getLogger(__name__)

_HISTORY = "chat_history"
#: characters of a session_id, which each event of a stream, line of the log and span repeats
_LONGEST_ID = 1000


class Said(Struct, frozen=True):
    """A message of the conversation that was sent."""

    role: Literal["user", "assistant"]
    items: tuple[Item, ...]


class Input(Struct, frozen=True, kw_only=True):
    """What one call brings."""

    session_id: str | None
    #: the fields of the input type, as templates see them
    values: Json
    said: tuple[Said, ...]
    #: what the application knows of the user, as a message
    context: Said | None
    images: tuple[Item, ...]


def read(kind: type[BaseModel], body: Any, most_items: int) -> Input:
    """The input in a body, or `InvalidRequest` that names the first field that is wrong."""
    plain, seen, images = _validated(kind, body)
    session_id = plain.get("session_id", body.get("session_id"))
    if session_id is not None and not isinstance(session_id, str):
        raise InvalidRequest("session_id", "must be a string")
    if session_id is not None and len(session_id) > _LONGEST_ID:
        raise InvalidRequest("session_id", f"may have at most {_LONGEST_ID:,} characters")
    context = plain.get("user_context")
    return Input(
        session_id=session_id or None,
        values=seen,
        said=tuple(_said(plain.get(_HISTORY) or [], most_items)),
        context=_context_message(context) if context and isinstance(context, dict) else None,
        images=images,
    )


def _validated(kind: type[BaseModel], body: Any) -> tuple[Json, Json, tuple[Item, ...]]:
    """The value of the input type as plain data and as templates see it, and its images."""
    try:
        value = bodies.validated(kind, body)
        plain = value.model_dump(mode="json", by_alias=False)
        return plain, values.seen(value, plain), tuple(_images(value))
    except InvalidRequest:
        raise
    except Exception as error:  # whatever the code of a config's own type raises, the input does not fit it
        log.exception("the type %s raised", kind.__name__)
        raise InvalidRequest("body", f"is refused by {kind.__name__}: {type(error).__name__}") from None


def _context_message(context: Json) -> Said:
    return Said("user", (Item("text", context_note({name: str(each) for name, each in context.items()})),))


def _said(history: Any, most_items: int) -> Iterator[Said]:
    """The conversation; types of the config's own may leave any shape to us."""
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
        yield Said(role, tuple(_item(each, f"{field}.items.{i}", role) for i, each in enumerate(items)))


def _item(item: Any, field: str, role: str) -> Item:
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, str):
        raise InvalidRequest(field, "must have a content, which is a string")
    if item.get("content_type", "text") == "text":
        return Item("text", content)
    if role != "user":  # model services take no image in an answer
        raise InvalidRequest(field, "is an image, which only a user can send")
    return image(content, field)


def _images(value: BaseModel) -> Iterator[Item]:
    """Embedded images in the fields, alone or in lists: values of any class named `EmbeddedImage`, and of the
    field `embedded_image`."""
    for name in type(value).model_fields:
        field = getattr(value, name)
        for each in field if isinstance(field, list) else [field]:
            if isinstance(each, BaseModel) and (name == "embedded_image" or _is_image(type(each))):
                given = each.model_dump(mode="json", by_alias=False)
                kind = str(given.get("format"))
                media = kind if "/" in kind else f"image/{kind}"
                yield image(f"data:{media};base64,{given.get('data')}", name)


def _is_image(kind: type[BaseModel]) -> bool:
    return any(base.__name__ == "EmbeddedImage" for base in kind.__mro__)
