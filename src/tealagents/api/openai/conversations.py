"""Conversations: tasks, and what was said and done in them as items."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, query, transcripts
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.names import made
from tealagents.api.openai import documents, inputs, responses
from tealagents.domain.models import Caller, Head


@bodies.fields_as(earlier="items")
async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    body = bodies.validated(inputs.NewConversation, await exchange.body(request, empty={}))
    head = await exchange.open(caller, dict(body.metadata or {}), inputs.messages(body.items or []))
    return json_response(documents.conversation(head))


async def retrieve(exchange: Exchange, caller: Caller, request: Request, conversation_id: str) -> Response:
    _, head = await responses.conversation(exchange, caller, conversation_id)
    return json_response(documents.conversation(head))


async def update(exchange: Exchange, caller: Caller, request: Request, conversation_id: str) -> Response:
    partition, head = await responses.conversation(exchange, caller, conversation_id)
    body = bodies.validated(inputs.ChangedConversation, await exchange.body(request))
    change = exchange.changes.patch
    head = await change(partition, head.task_id, caller.user, metadata=body.metadata, merges=False)
    return json_response(documents.conversation(head))


async def delete(exchange: Exchange, caller: Caller, request: Request, conversation_id: str) -> Response:
    partition, head = await responses.conversation(exchange, caller, conversation_id)
    await exchange.eraser.delete_task(partition, head.task_id)
    return json_response(documents.deleted(made("conv", head.task_id), "conversation.deleted"))


async def list_items(exchange: Exchange, caller: Caller, request: Request, conversation_id: str) -> Response:
    items = _items(exchange, caller, *await responses.conversation(exchange, caller, conversation_id))
    return json_response(await documents.page(items, request))


async def retrieve_item(
    exchange: Exchange, caller: Caller, _: Request, conversation_id: str, item_id: str
) -> Response:
    found = await responses.conversation(exchange, caller, conversation_id)
    return json_response(await query.named(item_id, _items(exchange, caller, *found)))


@bodies.fields_as(earlier="items")
async def add_items(exchange: Exchange, caller: Caller, request: Request, conversation_id: str) -> Response:
    partition, head = await responses.conversation(exchange, caller, conversation_id)
    said = inputs.messages(bodies.validated(inputs.MoreItems, await exchange.body(request)).items)
    head = await exchange.add(caller, partition, head, said)
    added = await query.newest(len(said), _items(exchange, caller, partition, head))
    return json_response(documents.listed(added[::-1]))


def _items(exchange: Exchange, caller: Caller, partition: str, head: Head) -> query.Listed:
    return transcripts.items(exchange, caller, partition, head, partial(responses.items_of, exchange))
