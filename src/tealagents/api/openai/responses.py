"""Responses: created, read, streamed, cancelled, deleted. A response is a stretch of a request."""

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import query, requests, stretches
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.names import made
from tealagents.api.openai import documents, errors, inputs, sending
from tealagents.api.openai.fold import UNSEEN, ResponseFold
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tealagents.domain.models import Caller, Json


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


async def retrieve(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    stretch = await sending.response(exchange, caller, response_id)
    if not query.flag(request, "stream"):
        return json_response(await document(exchange, stretch))
    after = query.number(request, "starting_after", -1, lowest=0, highest=UNSEEN)
    try:
        exchange.replay(stretch.view, after=0)
    except NotFound:
        kept = "is possible for 24 hours after the end. Retrieve the response without it"
        raise InvalidRequest("stream", kept) from None
    return _stream(exchange, stretch, after=after)


async def input_items(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    stretch = await sending.response(exchange, caller, response_id)
    return json_response(documents.page(await inputs_of(exchange, stretch), request))


async def cancel(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    stretch = await stretches.canceled(exchange, await sending.response(exchange, caller, response_id))
    return json_response(await document(exchange, stretch))


async def delete(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    """Erases the conversation of a response that is its only one."""
    stretch = await sending.response(exchange, caller, response_id)
    record, partition = stretch.record, stretch.view.partition
    head = (await exchange.tasks.head(partition, record.task_id)).value
    if head.tail_seq > record.last_seq > 0 or record.first_seq > 1:
        whole = made("conv", record.task_id)
        raise AlreadyExists(
            f"The response is part of {whole}, which holds others. Delete that to erase them all."
        )
    await exchange.eraser.delete_task(partition, record.task_id)
    return json_response(documents.deleted(response_id, "response"))


def headers_of(stretch: Stretch) -> dict[str, str]:
    """What the SDKs show as a response's request id; and whether it is an earlier outcome."""
    replayed = {"idempotent-replayed": "true"} if stretch.view.replayed else {}
    return {"x-request-id": stretch.record.request_id, **replayed}


def _stream(exchange: Exchange, stretch: Stretch, *, after: int = -1, forgets: bool = False) -> Response:
    fold = ResponseFold(documents.about(stretch, exchange.agent.name), after=after)
    return stretches.stream(exchange, stretch, fold, headers_of(stretch), forgets=forgets)


async def document(exchange: Exchange, stretch: Stretch) -> Json:
    """The response as it stands, made from the history."""
    fold = ResponseFold(documents.about(stretch, exchange.agent.name), after=UNSEEN)
    response = (await stretches.folded(exchange, stretch, fold)).response
    if stretch.ended_at is not None and response["status"] == "completed":
        response["completed_at"] = int(stretch.ended_at.timestamp())
    return response


async def inputs_of(exchange: Exchange, stretch: Stretch) -> list[Json]:
    """What a response was made upon: a message, or what was decided of a pause."""
    before = stretch.before
    if before is None:
        asked = await stretches.asked(exchange, stretch)
        return [documents.said(asked)] if asked is not None else []
    decisions = {decision.id: decision for decision in before.decisions}
    answered = [n for n, call in enumerate(before.calls) if call.id in decisions]
    return [documents.answer(before, n, decisions[before.calls[n].id]) for n in answered]
