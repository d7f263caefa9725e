"""A caller's own requests, for protocols that know a request by its id alone."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager

from msgspec.structs import replace
from starlette.types import Receive

from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound, NotOwner
from tealagents.domain.events import Event, Paused, Recorded
from tealagents.domain.models import (
    ENDED,
    Approval,
    Caller,
    Head,
    IdempotencyRecord,
    Message,
    RequestEnd,
    RequestRecord,
)
from tealagents.state import keys, latest
from tealagents.state.history import Logged
from tealagents.state.submission import Key, NewMessage


async def own(exchange: Exchange, caller: Caller, name: str) -> RequestView:
    """The request that a client names. `NotFound` also for what is no id.

    `NotOwner` for another's, also to those who may read it otherwise.
    """
    try:
        request_id = ids.canonical(name, "id")
    except InvalidRequest as error:
        raise NotFound(error.detail) from None
    view = await exchange.request(caller, request_id)
    if view.partition != exchange.service.records.partition(caller.user):
        raise NotOwner(f"The request {request_id} belongs to another user.")
    return view


async def placed(
    exchange: Exchange, caller: Caller, message: NewMessage, name: str, field: str
) -> NewMessage:
    """The message in the task that its client names, which begins with it where it is not there yet.

    `InvalidRequest`, naming `field`, for what is no id; `NotOwner`.
    """
    task_id = ids.canonical(name, field)
    try:
        await exchange.locate(caller, keys.task, task_id)
    except NotFound:
        return replace(message, new_task_id=task_id)
    return replace(message, task_id=task_id)


async def pause(exchange: Exchange, view: RequestView, approval_id: str) -> Approval:
    """One of the pauses of a request. `NotFound`."""
    if approval_id in view.record.approvals:
        key = keys.approval(approval_id)
        found = await exchange.service.records.get(view.partition, key, Approval)
        if found is not None:
            return found.value
    raise NotFound(f"The request {view.record.request_id} has no such pause.")


async def under(exchange: Exchange, caller: Caller, key: Key) -> RequestView | None:
    """The request that began under an idempotency key; None where the key is unused."""
    records, partition = exchange.service.records, exchange.service.records.partition(caller.user)
    used = await records.get(partition, keys.idempotency(key.name), IdempotencyRecord)
    return await exchange.request(caller, used.value.request_id) if used is not None else None


async def of_task(exchange: Exchange, partition: str, head: Head) -> AsyncGenerator[RequestRecord]:
    """The requests of a task, newest first: those that wait, the one under way, and all that have ended."""
    names = [each.request_id for each in reversed(head.queue)]
    names += [each.request_id for each in (head.running, head.pending) if each]
    for name in names:
        yield (await exchange.tasks.request(partition, name)).value
    path = ((1, head.tail_seq),)
    async with aclosing(exchange.history.backwards(partition, head.task_id, path, _start)) as entries:
        async for logged in entries:
            if isinstance(logged.body, RequestEnd):
                yield (await exchange.tasks.request(partition, logged.body.request_id)).value


def _start(logged: Logged) -> int | None:
    return logged.body.first_seq if isinstance(logged.body, RequestEnd) else None


async def settled(exchange: Exchange, view: RequestView, receive: Receive | None = None) -> RequestView:
    """The request once it has ended or paused, as `Exchange.outcome`, wherever it runs."""
    record = await exchange.outcome(view, receive)
    if record.status in ("Running", "Queued"):
        async for _ in exchange.follow(view):
            pass
        record = (await exchange.tasks.request(view.partition, record.request_id)).value
    return replace(view, record=record)


@contextmanager
def canceled_with(exchange: Exchange, view: RequestView) -> Iterator[None]:
    """Cancels a request with the waiting for it, on the connection that sent it; not as the process ends."""
    try:
        yield
    except asyncio.CancelledError:
        if view.sender and not exchange.service.admission.draining:
            exchange.in_background(exchange.cancel(view.caller, view.record.request_id))
        raise


async def to_the_end(exchange: Exchange, view: RequestView) -> AsyncIterator[Sequence[Recorded]]:
    """The events behind `view.after` as `Exchange.follow`, through every pause to the end of the request."""
    last: Event | None = Paused(None)
    while isinstance(last, Paused):
        last = None
        async for batch in exchange.follow(view):
            yield batch
            last, view = batch[-1].event, replace(view, after=batch[-1].id)


async def messages(exchange: Exchange, view: RequestView) -> list[Message]:
    """The messages of a request so far, oldest first."""
    record, tail = view.record, 0
    if record.status not in ENDED:
        tail = (await exchange.tasks.head(view.partition, record.task_id)).value.tail_seq
    return await exchange.history.messages_of(view.partition, record, tail)


async def page(
    exchange: Exchange, caller: Caller, wanted: Callable[[RequestRecord], bool], token: str, limit: int
) -> tuple[list[RequestView], str, int]:
    """A page of the requests that are wanted, those that changed last first.

    With it come the token of the next page, empty where there is none, and how many there are on all.
    `InvalidRequest` for a token that this did not give out.
    """
    behind = latest.Changed.parse(token, "pageToken") if token else None
    partition = exchange.service.records.partition(caller.user)
    found = await latest.page(exchange.tasks, partition, wanted, behind=behind, limit=limit)
    views = [RequestView(record=each, partition=partition, caller=caller, own=True) for each in found.records]
    return views, str(found.last or ""), found.total
