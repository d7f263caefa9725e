"""Responses: created, read, streamed, cancelled, deleted. A response is a stretch of a request."""

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import query, stretches
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.openai import documents, errors, inputs, names, sending
from tealagents.api.openai.fold import UNSEEN, Fold
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tealagents.domain.events import Recorded
from tealagents.domain.models import Caller, Failure, Json, MessageBody

_STATUSES = {
    "Queued": "queued",
    "Running": "in_progress",
    "Paused": "in_progress",
    "Completed": "completed",
    "Failed": "failed",
    "Canceled": "cancelled",
}


async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    value = await exchange.body(request)
    body = inputs.create(value)
    begun = await sending.send(exchange, caller, request, value, body, inputs.read(body.input))
    headers = begun.headers
    if body.stream:
        return _stream(exchange, begun.stretch, begun if begun.unstored else None)
    if body.background and not begun.view.replayed:
        return json_response(await document(exchange, begun.stretch), headers=headers)
    stretch = await begun.ended(exchange, request)
    if (failure := failure_of(stretch)) is not None:
        answer = errors.respond_failure(failure, headers)
    else:
        answer = json_response(await document(exchange, stretch), headers=headers)
    if begun.unstored:
        await sending.forget(exchange, begun)
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
    stretch = await _named(exchange, caller, request)
    waits = stretch.pause is not None and stretch.pause.status == "pending"
    if waits or status_of(stretch) in ("queued", "in_progress"):
        record = await exchange.cancel(caller, stretch.record.request_id)
        stretch = await stretches.cut(exchange, replace(stretch.view, record=record), stretch.number)
    return json_response(await document(exchange, stretch))


async def delete(exchange: Exchange, caller: Caller, request: Request) -> Response:
    """Erases the conversation of a response that is its only one."""
    stretch = await _named(exchange, caller, request)
    record, partition = stretch.record, stretch.view.partition
    await sending.owned(exchange, caller, record.task_id)
    head = (await exchange.tasks.head(partition, record.task_id)).value
    if head.tail_seq > record.last_seq > 0 or record.first_seq > 1:
        conversation = names.made("conv", record.task_id)
        others = f"The response is part of {conversation}, which holds others. Delete that to erase them all."
        raise AlreadyExists(others)
    await exchange.eraser.delete_task(partition, record.task_id)
    return json_response(documents.deleted(request.path_params["response_id"], "response"))


async def _named(exchange: Exchange, caller: Caller, request: Request) -> Stretch:
    return await sending.find(exchange, caller, request.path_params["response_id"])


# --- streams -------------------------------------------------------------------------------------


def _stream(
    exchange: Exchange, stretch: Stretch, forgotten: sending.Begun | None = None, *, after: int = -1
) -> Response:
    fold = Fold(documents.about(stretch, exchange.agent.name), after=after)
    events = stretches.recorded(exchange, stretch)
    if forgotten is not None:
        events = _then_forgotten(exchange, events, forgotten)
    headers = sending.headers_of(stretch)
    return exchange.stream(stretch.view, fold, fold.failed, events=events, headers=headers)


async def _then_forgotten(
    exchange: Exchange, events: AsyncIterator[Sequence[Recorded]], begun: sending.Begun
) -> AsyncIterator[Sequence[Recorded]]:
    try:
        async for batch in events:
            yield batch
    finally:
        exchange.in_background(sending.forget(exchange, begun))


# --- documents -----------------------------------------------------------------------------------


def status_of(stretch: Stretch) -> str:
    if stretch.pause is not None:
        return "cancelled" if stretch.pause.status in ("canceled", "expired") else "completed"
    return _STATUSES[stretch.record.status]


def failure_of(stretch: Stretch) -> Failure | None:
    """Why a response failed; None where it did not."""
    return stretch.record.error if status_of(stretch) == "failed" else None


async def document(exchange: Exchange, stretch: Stretch) -> Json:
    """The response as it stands, made from the history."""
    about, status = documents.about(stretch, exchange.agent.name), status_of(stretch)
    fold = Fold(about, after=UNSEEN)
    for event in await stretches.told(exchange, stretch):
        fold.take(event)
    if fold.response is None or status in ("queued", "in_progress"):
        return about.response(status, fold.output)
    ended_at = stretch.pause.created_at if stretch.pause else stretch.record.ended_at
    if ended_at is not None and fold.response["status"] == "completed":
        fold.response["completed_at"] = int(ended_at.timestamp())
    return fold.response


async def inputs_of(exchange: Exchange, stretch: Stretch) -> list[Json]:
    """What a response was made upon: a message, or what was decided of a pause."""
    record, before = stretch.record, stretch.before
    if before is not None:
        decisions = {decision.id: decision for decision in before.decisions}
        shown = [(n, decisions[call.id]) for n, call in enumerate(before.calls) if call.id in decisions]
        return [documents.answer(before, n, decision) for n, decision in shown]
    path = ((record.first_seq, record.last_seq or record.first_seq),) if record.first_seq else ()
    async for logged in exchange.history.forwards(stretch.view.partition, record.task_id, path):
        if isinstance(logged.body, MessageBody) and logged.body.message.role == "user":
            return [documents.said(logged.body.message)]
    return []
