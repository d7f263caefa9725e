"""The stored responses and conversations of the responses API."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tealagents.llm.offline.errors import invalid, not_found
from tealagents.llm.offline.ids import IdSource
from tealagents.llm.offline.items import Item, input_items

T = TypeVar("T")

#: The most responses and conversations that are kept; the oldest are dropped first. A dropped response stays
#: a part of the responses that continue it.
_MOST_KEPT = 10_000
#: The most items that one request may add to a conversation, as at OpenAI.
_MOST_ADDED = 20


class Shelf(Generic[T]):
    """The latest objects of one kind, by id."""

    def __init__(self) -> None:
        self._things: OrderedDict[str, T] = OrderedDict()

    def put(self, thing_id: str, thing: T) -> None:
        self._things[thing_id] = thing
        if len(self._things) > _MOST_KEPT:
            self._things.popitem(last=False)

    def get(self, thing_id: object) -> T | None:
        return self._things.get(thing_id) if isinstance(thing_id, str) else None

    def remove(self, thing_id: str) -> T | None:
        return self._things.pop(thing_id, None)


@dataclass(slots=True)
class StoredResponse:
    body: dict[str, Any]
    #: The new items of its request.
    items: list[Item]
    previous: "StoredResponse | None"

    def context(self) -> list[Item]:
        """The items that it answered, including those of earlier responses."""
        chain = list(self._ancestors())
        earlier = (item for link in reversed(chain) for item in (*link.items, *link.body["output"]))
        return [*earlier, *self.items]

    def conversation(self) -> list[Item]:
        """The items that the next response continues."""
        return [*self.context(), *self.body["output"]]

    def _ancestors(self) -> Iterator["StoredResponse"]:
        link = self.previous
        while link is not None:
            yield link
            link = link.previous


@dataclass(slots=True)
class StoredConversation:
    body: dict[str, Any]
    items: list[Item]

    def item(self, item_id: str) -> Item:
        for item in self.items:
            if item["id"] == item_id:
                return item
        raise not_found(f"Item with id '{item_id}' not found in conversation with id '{self.body['id']}'.")

    def add(self, given: Any, ids: IdSource) -> list[Item]:
        added = new_items(given, ids)
        self.items.extend(added)
        return added


def new_items(given: Any, ids: IdSource) -> list[Item]:
    """Reads items that are added to a conversation. Raises `ServiceError`."""
    if isinstance(given, list) and len(given) > _MOST_ADDED:
        raise invalid(
            f"Invalid 'items': array too long. Expected an array with maximum length {_MOST_ADDED}, "
            f"but got an array with length {len(given)} instead.",
            "items",
            "array_above_max_length",
        )
    return input_items(given, ids, param="items")


class ResponsesStore:
    def __init__(self) -> None:
        self.responses: Shelf[StoredResponse] = Shelf()
        self.conversations: Shelf[StoredConversation] = Shelf()

    def response(self, response_id: str) -> StoredResponse:
        found = self.responses.get(response_id)
        if found is None:
            raise not_found(f"Response with id '{response_id}' not found.")
        return found

    def previous_response(self, response_id: object) -> StoredResponse:
        found = self.responses.get(response_id)
        if found is None:
            raise invalid(
                f"Previous response with id '{response_id}' not found.",
                "previous_response_id",
                "previous_response_not_found",
            )
        return found

    def conversation(self, conversation_id: object) -> StoredConversation:
        found = self.conversations.get(conversation_id)
        if found is None:
            raise not_found(f"Conversation with id '{conversation_id}' not found.")
        return found
