"""Responses: created, read, streamed, cancelled, deleted. A response is a stretch of a request."""

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import query, requests, stretches
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.names import made
from tealagents.api.openai import documents, errors, inputs, sending
from tealagents.api.openai.fold import UNSEEN, Fold
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tealagents.domain.models import ENDED, Caller, Json


async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    value = await exchange.body(request)
    body = inputs.create(value)
    stretch = await sending.send(exchange, caller, request, value, body, inputs.read(body.input))
    headers, unstored = headers_of(stretch), stretch.record.client.get("store") is False
    if body.stream:
        return _stream(exchange, stretch, forgets=unstored)
    if body.background and not stretch.view.replayed:
        return json_response(await document(exchange, stretch), headers=headers)
    stretch = await stretches.settled(exchange, stretch, request.receive)
    if stretch.record.error is not None and stretch.status == "Failed":
        answer = errors.respond_failure(stretch.record.error, headers)
    else:
        answer = json_response(await document(exchange, stretch), headers=headers)
    if unstored:
        await requests.forget(exchange, stretch.view)
    return answer


async def retrieve(exchange: Exchange, caller: Caller, request: Request) -> Response:
    stretch = await _named(exchange, caller, request)
    if not query.flag(request, "stream"):
        return json_response(await document(exchange, stretch))
    after = query.number(request, "starting_after", -1, lowest=0, highest=UNSEEN)
    try:
        exchange.replay(stretch.view, after=0)
    except NotFound:
        kept = "is possible for 24 hours after the end. Retrieve the response without it"
        raise InvalidRequest("stream", kept) from None
    return _stream(exchange, stretch, after=after)


async def input_items(exchange: Exchange, caller: Caller, request: Request) -> Response:
    items = await inputs_of(exchange, await _named(exchange, caller, request))
    return json_response(documents.page(items, request))


async def cancel(exchange: Exchange, caller: Caller, request: Request) -> Response:
    stretch = await stretches.canceled(exchange, await _named(exchange, caller, request))
    return json_response(await document(exchange, stretch))


async def delete(exchange: Exchange, caller: Caller, request: Request) -> Response:
    """Erases the conversation of a response that is its only one."""
    record = (await _named(exchange, caller, request)).record
    conversation = made("conv", record.task_id)
    partition, head = await sending.conversation(exchange, caller, conversation)
    if head.tail_seq > record.last_seq > 0 or record.first_seq > 1:
        others = f"The response is part of {conversation}, which holds others. Delete that to erase them all."
        raise AlreadyExists(others)
    await exchange.eraser.delete_task(partition, record.task_id)
    return json_response(documents.deleted(request.path_params["response_id"], "response"))


async def _named(exchange: Exchange, caller: Caller, request: Request) -> Stretch:
    return await sending.response(exchange, caller, request.path_params["response_id"])


def headers_of(stretch: Stretch) -> dict[str, str]:
    """What the SDKs show as a response's request id; and whether it is an earlier outcome."""
    replayed = {"idempotent-replayed": "true"} if stretch.view.replayed else {}
    return {"x-request-id": stretch.record.request_id, **replayed}


def _stream(exchange: Exchange, stretch: Stretch, *, after: int = -1, forgets: bool = False) -> Response:
    fold = Fold(documents.about(stretch, exchange.agent.name), after=after)
    return stretches.stream(exchange, stretch, fold, headers_of(stretch), forgets=forgets)


async def document(exchange: Exchange, stretch: Stretch) -> Json:
    """The response as it stands, made from the history."""
    about = documents.about(stretch, exchange.agent.name)
    fold = Fold(about, after=UNSEEN)
    for event in await stretches.told(exchange, stretch):
        fold.take(event)
    if fold.response is None or stretch.status not in ENDED:
        return about.response("queued" if stretch.status == "Queued" else "in_progress", fold.output)
    if stretch.ended_at is not None and fold.response["status"] == "completed":
        fold.response["completed_at"] = int(stretch.ended_at.timestamp())
    return fold.response


async def inputs_of(exchange: Exchange, stretch: Stretch) -> list[Json]:
    """What a response was made upon: a message, or what was decided of a pause."""
    before = stretch.before
    if before is None:
        asked = await stretches.asked(exchange, stretch)
        return [documents.said(asked)] if asked is not None else []
    decisions = {decision.id: decision for decision in before.decisions}
    shown = [(n, decisions[call.id]) for n, call in enumerate(before.calls) if call.id in decisions]
    return [documents.answer(before, n, decision) for n, decision in shown]
