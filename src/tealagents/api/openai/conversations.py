"""Conversations: tasks, and what was said and done in them as items."""

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, stretches
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.http import json_response
from tealagents.api.openai import documents, inputs, names, responses, sending
from tealagents.domain.models import Caller, Head, Json
from tealagents.state.history import Round


async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    body = bodies.validated(inputs.NewConversation, await exchange.body(request, empty={}))
    head = await exchange.open(caller, dict(body.metadata or {}), inputs.messages(body.items or []))
    return json_response(documents.conversation(head))


async def retrieve(exchange: Exchange, caller: Caller, request: Request) -> Response:
    _, head = await _named(exchange, caller, request)
    return json_response(documents.conversation(head))


async def update(exchange: Exchange, caller: Caller, request: Request) -> Response:
    partition, head = await _named(exchange, caller, request)
    body = bodies.validated(inputs.ChangedConversation, await exchange.body(request))
    patch: Json = {**dict.fromkeys(head.metadata), **(body.metadata or {})}
    head = await exchange.changes.patch(partition, head.task_id, caller.user, metadata=patch)
    return json_response(documents.conversation(head))


async def delete(exchange: Exchange, caller: Caller, request: Request) -> Response:
    partition, head = await _named(exchange, caller, request)
    await exchange.eraser.delete_task(partition, head.task_id)
    return json_response(documents.deleted(names.made("conv", head.task_id), "conversation.deleted"))


async def list_items(exchange: Exchange, caller: Caller, request: Request) -> Response:
    items = await _items(exchange, caller, *await _named(exchange, caller, request))
    return json_response(documents.page(items, request))


async def retrieve_item(exchange: Exchange, caller: Caller, request: Request) -> Response:
    wanted = request.path_params["item_id"]
    for item in await _items(exchange, caller, *await _named(exchange, caller, request)):
        if item["id"] == wanted:
            return json_response(item)
    raise names.unknown("item", wanted)


async def add_items(exchange: Exchange, caller: Caller, request: Request) -> Response:
    partition, head = await _named(exchange, caller, request)
    said = inputs.messages(bodies.validated(inputs.MoreItems, await exchange.body(request)).items)
    head = await exchange.changes.add(partition, head.task_id, caller.user, said)
    items = await _items(exchange, caller, partition, head)
    return json_response(documents.listed(items[len(items) - len(said) :]))


async def _named(exchange: Exchange, caller: Caller, request: Request) -> tuple[str, Head]:
    """The conversation that the path names, and its partition."""
    identifier = request.path_params["conversation_id"]
    task_id, _ = names.read("conversation", identifier, "conv", numbered=False)
    partition = await sending.owned(exchange, caller, task_id)
    return partition, (await exchange.tasks.head(partition, task_id)).value


async def _items(exchange: Exchange, caller: Caller, partition: str, head: Head) -> list[Json]:
    """What a conversation holds: on its current path, and what runs or waits."""
    found: list[list[Json]] = []
    async with aclosing(exchange.history.rounds(partition, head.task_id, head.path)) as rounds:
        async for each in rounds:
            found.append(_spoken(each) or await _of_request(exchange, caller, partition, each.request_id))
    items = [item for group in reversed(found) for item in group]
    if (occupant := head.running or head.pending) is not None:
        items += await _of_request(exchange, caller, partition, occupant.request_id)
    return items


async def _of_request(exchange: Exchange, caller: Caller, partition: str, request_id: str) -> list[Json]:
    """The input and the output of all responses of a request."""
    record = (await exchange.tasks.request(partition, request_id)).value
    view = RequestView(record=record, partition=partition, caller=caller, own=True)
    last = await stretches.cut(exchange, view)
    items: list[Json] = []
    for number in range(1, last.number + 1):
        stretch = await stretches.cut(exchange, view, number)
        items += await responses.inputs_of(exchange, stretch)
        items += (await responses.document(exchange, stretch))["output"]
    return items


def _spoken(of: Round) -> list[Json]:
    """The items of a request that only spoke; none where tools were called."""
    if any(message.tool_calls or message.role == "tool" for message in of.messages):
        return []
    items = [documents.said(message) for message in of.messages]
    if [message.role for message in of.messages] == ["user", "assistant"]:
        items[1]["id"] = names.made("msg", of.request_id, 1, 0)
    return items
