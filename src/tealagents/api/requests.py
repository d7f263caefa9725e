"""A caller's own requests, for protocols that know one by its id alone: found, awaited, followed, read."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from msgspec.structs import replace
from starlette.types import Receive

from tealagents.api import names
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound, NotOwner, RequestInProgress
from tealagents.domain.events import Event, Paused, Recorded
from tealagents.domain.models import (
    ENDED,
    Approval,
    Caller,
    Head,
    IdempotencyRecord,
    Json,
    Message,
    MessageBody,
    RequestEnd,
    RequestRecord,
)
from tealagents.domain.paths import holds
from tealagents.state import keys, latest
from tealagents.state.codec import encode_json
from tealagents.state.history import PAGE_BYTES, request_start
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.queue import waiting_message

K = TypeVar("K")

#: the most requests of one task that are searched
MOST_REQUESTS = 50


async def own(exchange: Exchange, caller: Caller, name: str) -> RequestView:
    """The request that a client names. `NotFound` also for what is no id.

    `NotOwner` for another's, also to those who may read it otherwise.
    """
    try:
        request_id = ids.canonical(name, "id")
    except InvalidRequest as error:
        raise NotFound(error.detail) from None
    view = await exchange.request(caller, request_id)
    if view.partition != exchange.partition(caller):
        raise NotOwner(f"The request {request_id} belongs to another user.")
    return view


async def find_pause(exchange: Exchange, partition: str, approval_id: str) -> Approval | None:
    """A pause of any request of the partition."""
    found = await exchange.records.get(partition, keys.approval(approval_id), Approval)
    return found.value if found is not None else None


async def find_call(
    exchange: Exchange, caller: Caller, what: str, name: str, *kinds: str
) -> tuple[Approval, int]:
    """The pause of a call that the caller names by an id of these kinds, and the call's index in it.

    `NotFound`, also where it is another user's: no `what` has that id.
    """
    with names.unknown_as(what, name):
        approval_id, index = names.read(what, name, *kinds)
        partition = await exchange.locate(caller, keys.approval, approval_id)
        pause = await find_pause(exchange, partition, approval_id)
        if pause is None or index >= len(pause.calls):
            raise NotFound("It has fewer calls.")
        await exchange.tasks.stored_head(partition, pause.task_id)  # what has expired is not shown
        return pause, index


async def submitted(
    exchange: Exchange, caller: Caller, message: NewMessage, key: Key | None, *, streamed: bool
) -> RequestView:
    """The request of a message, as `Exchange.submit`; sent again while it runs, it is the same request."""
    try:
        return await exchange.submit(caller, message, key, streamed=streamed)
    except RequestInProgress as error:
        return await own(exchange, caller, error.ids["request_id"])


async def under(exchange: Exchange, caller: Caller, key: Key) -> RequestView | None:
    """The request that began under an idempotency key; None where the key is unused."""
    used = await _use(exchange, caller, key)
    return await exchange.request(caller, used.request_id) if used is not None else None


async def is_repeated(exchange: Exchange, caller: Caller, key: Key | None) -> bool:
    """Whether a message with the same body came under its key before: it gets the outcome of that one."""
    if key is None:
        return False
    used = await _use(exchange, caller, key)
    return used is not None and used.digest == key.digest


async def _use(exchange: Exchange, caller: Caller, key: Key) -> IdempotencyRecord | None:
    name = keys.idempotency(key.name)
    found = await exchange.records.get(exchange.partition(caller), name, IdempotencyRecord)
    return found.value if found is not None else None


async def of_task(
    exchange: Exchange, partition: str, head: Head, most: int = MOST_REQUESTS
) -> AsyncGenerator[RequestRecord]:
    """The last requests of a task, newest first: those that wait, the one under way, and those that ended."""
    names = current(head)
    for name in names[:most]:
        yield (await exchange.tasks.request(partition, name)).value
    left, path = most - len(names), ((1, head.tail_seq),)
    entries = exchange.history.backwards(partition, head.task_id, path, request_start)
    async with aclosing(entries):
        async for logged in entries:
            if left <= 0:
                return
            if isinstance(logged.body, RequestEnd):
                left -= 1
                yield (await exchange.tasks.request(partition, logged.body.request_id)).value


def current(head: Head) -> list[str]:
    """The requests of a task that had not ended, newest first."""
    waiting = [each.request_id for each in reversed(head.queue)]
    return waiting + [each.request_id for each in (head.running, head.pending) if each]


def is_left(record: RequestRecord, head: Head) -> bool:
    """Whether a rollback took the answer away. One that came after `head` was read is not on its path."""
    ended = record.status == "Completed" and record.request_id not in current(head)
    return ended and not holds(head.path, record.first_seq)


async def settled(exchange: Exchange, view: RequestView, receive: Receive | None = None) -> RequestView:
    """The request once it has ended or paused, as `Exchange.outcome`, wherever it runs. `Draining`."""
    record = await exchange.outcome(view, receive)
    while record.status in ("Running", "Queued"):  # a pause may have been decided before this reads it
        async for _ in exchange.follow_unbroken(view):
            pass
        # without its task, which may be gone by now (`unstored`)
        record = (await exchange.records.request(view.partition, record.task_id, record.request_id)).value
    return replace(view, record=record)


async def begun(exchange: Exchange, view: RequestView, receive: Receive) -> RequestView:
    """The request once its turn has come, or never will. `receive` as for `Exchange.outcome`."""
    if view.record.status != "Queued":
        return view
    partition, request_id = view.partition, view.record.request_id
    with exchange.ended_by_leaving(view, receive):
        if (record := await exchange.service.when_begun(partition, request_id)) is None:
            async with aclosing(exchange.follow_unbroken(replace(view, after=1))) as events:
                await anext(events, None)  # elsewhere no event says that it has begun
            record = (await exchange.tasks.request(partition, request_id)).value
    return replace(view, record=record)


async def to_the_end(exchange: Exchange, view: RequestView) -> AsyncGenerator[Sequence[Recorded]]:
    """The events behind `view.after` as `Exchange.follow`, through every pause to the end of the request."""
    last: Event | None = Paused(None)
    while isinstance(last, Paused):
        last = None
        async with aclosing(exchange.follow_unbroken(view)) as events:
            async for batch in events:
                yield batch
                last, view = batch[-1].event, replace(view, after=batch[-1].id)


async def messages(exchange: Exchange, view: RequestView, most: int | None = None) -> list[Message]:
    """What the user and the agent have said in a request so far, oldest first: the last `most` messages."""
    record, tail = view.record, 0
    if most == 0:
        return []
    if record.status == "Queued":
        waits = await user_message(exchange, view.partition, record)
        return [waits] if waits is not None else []
    if record.status not in ENDED:
        head = await exchange.tasks.head(view.partition, record.task_id, reading=True)
        tail = head.value.tail_seq
    found = await exchange.history.messages_of(view.partition, record, tail)
    said = [each for each in found if each.items and each.role != "tool"]
    return said if most is None else said[-most:]


async def user_message(exchange: Exchange, partition: str, record: RequestRecord) -> Message | None:
    """The user's message that a request began with, or waits with; None where there is none.

    It is read from the store unless it is being answered in this process.
    """
    run = exchange.service.run_of(record.request_id)
    if run is not None and run.message is not None:
        return run.message
    if not record.first_seq and record.waiting is not None:
        if (message := await waiting_message(exchange.tasks, partition, record)) is not None:
            return message
        stored = await exchange.records.request(partition, record.task_id, record.request_id)
        record = stored.value  # as it began, or ended, meanwhile
    path = record.entries(record.first_seq)
    async for logged in exchange.history.forwards(partition, record.task_id, path):
        if isinstance(logged.body, MessageBody) and logged.body.message.role == "user":
            return logged.body.message
    return None


async def page(
    exchange: Exchange,
    caller: Caller,
    wanted: Callable[[RequestRecord], bool],
    shown: Callable[[RequestView], Awaitable[Json]],
    token: str,
    limit: int,
) -> tuple[list[Json], str, int]:
    """A page of the requests that are wanted, those that changed last first, as `shown` makes them.

    If they are large, it ends before `limit`, at `PAGE_BYTES`. With it come the token of the next page, empty
    where there is none, and how many there are on all. Requests that are deleted meanwhile are left out.
    `InvalidRequest` for a token that this did not give out.
    """
    behind = latest.Changed.parse(token, "pageToken") if token else None
    partition = exchange.partition(caller)
    found = await latest.page(exchange.tasks, partition, wanted, behind=behind, limit=limit)
    documents, size = list[Json](), 0
    places, last = list[latest.Changed](), found.last
    for record in found.records:
        with suppress(NotFound):
            document = await shown(RequestView(record=record, partition=partition, caller=caller, own=True))
            size += len(encode_json(document))
            if documents and size > PAGE_BYTES:
                last = min(places)  # one that has changed since it was found has moved to the front
                break
            documents.append(document)
            places.append(latest.Changed(record.changed_at, record.request_id))
    return documents, str(last or ""), found.total


def kept(record: RequestRecord, name: str, kind: type[K]) -> K | None:
    """What a protocol keeps with a request; None also where it is of another kind, as it may be imported."""
    value = record.client.get(name)
    return value if isinstance(value, kind) else None
