"""The items of the responses API (messages, function calls and their outputs): reads, lists and converts them
to chat messages."""

from collections.abc import Iterable, Sequence
from typing import Any

from tealagents.llm.offline.errors import invalid, not_found
from tealagents.llm.offline.ids import IdSource
from tealagents.llm.offline.prompt import Message
from tealagents.llm.offline.reading import missing, one_of, optional, required, text_or_parts

Item = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}
_MOST_LISTED = 100


def input_items(given: Any, ids: IdSource, *, param: str = "input") -> list[Item]:
    """The items that a client sends, in the form in which they are listed: with ids, and content as parts."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = required(given, list, param)
    return [_item(item, ids, f"{param}[{position}]") for position, item in enumerate(items)]


def _item(value: Any, ids: IdSource, param: str) -> Item:
    given = required(value, dict, param)
    kind = optional(given.get("type"), str, f"{param}.type") or ("message" if "role" in given else None)
    if kind is None:
        raise missing(f"{param}.type")
    item_id = optional(given.get("id"), str, f"{param}.id") or ids.new(_PREFIXES.get(kind, "item_"))
    item = {**given, "id": item_id, "type": kind}
    if kind in _PREFIXES:
        item["status"] = given.get("status") or "completed"
    if kind == "message":
        item["content"] = _content(given, param)
    for text in _REQUIRED_TEXTS.get(kind, ()):
        required(given.get(text), str, f"{param}.{text}")
    if kind == "function_call_output":
        text_or_parts(given.get("output"), f"{param}.output")
    return item


#: Kind of item → its required texts.
_REQUIRED_TEXTS: dict[str, Sequence[str]] = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
}


def _content(message: Item, param: str) -> list[Item]:
    role = one_of(message.get("role"), _ROLES, f"{param}.role")
    content = text_or_parts(message.get("content"), f"{param}.content")
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    return [_with_defaults(part) for part in content]


def _with_defaults(part: Item) -> Item:
    """The part with the fields that a list always has and that clients may omit."""
    return {**_DEFAULT_FIELDS.get(str(part.get("type")), {}), **part}


_DEFAULT_FIELDS: dict[str, Item] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
}


def check_calls(items: Iterable[Item]) -> None:
    """Checks that every function call has an output, and every output a call. Raises `ServiceError`."""
    open_calls: dict[str, None] = {}
    for item in items:
        if item["type"] == "function_call":
            open_calls[item["call_id"]] = None
        elif item["type"] == "function_call_output":
            if item["call_id"] not in open_calls:
                raise invalid(
                    f"No tool call found for function call output with call_id {item['call_id']}.", "input"
                )
            del open_calls[item["call_id"]]
    for call_id in open_calls:
        raise invalid(f"No tool output found for function call {call_id}.", "input")


def as_messages(items: Iterable[Item]) -> list[Message]:
    """The items as chat messages. Consecutive function calls become one message, as in chat completions."""
    messages: list[Message] = []
    for item in items:
        kind = item["type"]
        if kind == "message":
            messages.append({"role": item["role"], "content": item["content"]})
        elif kind == "function_call":
            _with_call(messages, item)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return messages


def _with_call(messages: list[Message], item: Item) -> None:
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        last = {"role": "assistant", "content": None}
        messages.append(last)
    function = {"name": item["name"], "arguments": item["arguments"]}
    last.setdefault("tool_calls", []).append(
        {"id": item["call_id"], "type": "function", "function": function}
    )


def listing(items: Sequence[Item], query: dict[str, str]) -> dict[str, Any]:
    """A page of items: `order` (newest first unless `asc`), `after` an id, `limit` (20, at most 100)."""
    ordered = list(items) if query.get("order") == "asc" else list(reversed(items))
    start = _position_after(ordered, query.get("after"))
    limit = _limit(query.get("limit", "20"))
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": start + limit < len(ordered),
    }


def _position_after(items: Sequence[Item], after: str | None) -> int:
    if not after:
        return 0
    for position, item in enumerate(items):
        if item["id"] == after:
            return position + 1
    raise not_found(f"Item with id '{after}' not found.", "after")


def _limit(given: str) -> int:
    if not given.isdecimal() or not 1 <= int(given) <= _MOST_LISTED:
        raise invalid(
            f"Invalid 'limit': expected an integer from 1 to {_MOST_LISTED}, but got {given!r}.", "limit"
        )
    return int(given)
