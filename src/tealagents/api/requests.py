"""A caller's own requests, for protocols that know a request by its id alone."""

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive

from tealagents.api import names
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain import ids
from tealagents.domain.errors import (
    AlreadyExists,
    CheckpointMoved,
    InvalidRequest,
    NotFound,
    NotOwner,
    RequestInProgress,
    TaskBusy,
)
from tealagents.domain.events import Event, Paused, Recorded
from tealagents.domain.models import (
    ENDED,
    Approval,
    Caller,
    Head,
    IdempotencyRecord,
    Item,
    Message,
    MessageBody,
    RequestEnd,
    RequestRecord,
)
from tealagents.domain.paths import holds
from tealagents.state import keys, latest
from tealagents.state.history import request_start
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.queue import waiting_message
from tealagents.state.tasks import is_expired

K = TypeVar("K")

#: the most requests of one task that are searched
MOST_REQUESTS = 50
#: how long a task that was not to be stored may be there at most
UNSTORED_KEPT = timedelta(days=1)
#: more than its expiry can be later than that because of rounding
_ROUNDED = timedelta(seconds=1)


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


async def task(exchange: Exchange, caller: Caller, task_id: str) -> tuple[str, Head]:
    """A task that the caller may change, as its partition and its head. `NotFound`, `NotOwner`."""
    partition = await exchange.locate(caller, keys.task, task_id)
    return partition, (await exchange.tasks.head(partition, task_id)).value


async def placed(
    exchange: Exchange, caller: Caller, message: NewMessage, name: str, field: str
) -> NewMessage:
    """The message, addressed to the task that its client names, which it creates if there is none.

    Without a name the task is new. `InvalidRequest`, naming `field`, if the name is not an id; `NotOwner`.
    `NotFound` for an id that the service made: its task was deleted, and would otherwise start again without
    its history. For an id that a client chose, nothing is kept that could tell these cases apart.
    """
    if not name:
        return message
    task_id = ids.canonical(name, field)
    try:
        await exchange.locate(caller, keys.task, task_id)
    except NotFound:
        if ids.is_made_for(caller.user.key, task_id):
            raise
        return replace(message, new_task_id=task_id)
    return replace(message, task_id=task_id)


class Named(Struct, frozen=True):
    """A task under the name that its owner's client gave it; `head` is None before its first request."""

    exchange: Exchange
    caller: Caller
    task_id: str
    partition: str
    head: Head | None = None

    async def answered_to(self, shown: str) -> int | None:
        """The last entry of its log, where the last message was answered and nothing has come since.

        None as well where `shown`, the text that a client has of the answer, is only its beginning.
        """
        head = self.head
        if head is None or head.checkpoint_id is None or not head.idle or head.status != "Completed":
            return None
        records, key = self.exchange.records, keys.request(head.checkpoint_id)
        found = await records.get(self.partition, key, RequestRecord)
        answer = found.value.output.rstrip() if found else ""  # some pages leave out spaces at the end
        return None if len(shown) < len(answer) and answer.startswith(shown) else head.tail_seq

    async def pause(self, approval_id: str) -> Approval | None:
        """A pause of this task."""
        found = await find_pause(self.exchange, self.partition, approval_id)
        return found if found is not None and found.task_id == self.task_id else None

    def at_tip(self, message: NewMessage) -> NewMessage:
        """The message for the task as it stands: the first with what was said before, others without.

        Where nothing is under way, `CheckpointMoved` refuses it once another one was quicker.
        """
        if self.head is None:
            return replace(message, new_task_id=self.task_id)
        at = self.head.checkpoint_id if self.head.idle else None
        return replace(message, task_id=self.task_id, at_checkpoint=at, earlier=())

    async def check_taken(self, refusal: AlreadyExists | CheckpointMoved) -> None:
        """Returns if another request created the task first. Otherwise raises: `refusal` if the task is being
        imported or was deleted, `NotFound` if it has expired."""
        if (await named(self.exchange, self.caller, self.task_id)).head is not None:
            return
        if await self.exchange.tasks.records.get(self.partition, keys.task(self.task_id), Head) is None:
            raise refusal
        raise _expired(self.task_id)

    async def fresh(
        self, sent: Mapping[str, tuple[Item, ...]], issued: Mapping[str | None, str], seen: str | None
    ) -> tuple[Sequence[str], str | None]:
        """Those of a client's messages that are new; or the last one once more, where it was not answered.

        Without new ones comes the request of the last: it is repeated only if it is the newest. `sent` are
        the messages since the answer of the request `seen`, by marks: those that began a request are kept in
        `client` there, and which one it repeats. `issued` are the marks of messages whose names are of a
        request.
        """
        head, marks = self.head, list(sent)
        if head is None or (len(marks) < 2 and head.status == "Completed" and head.checkpoint_id == seen):
            return marks, None
        # as far back as what the client has, which nothing says of a single message under a name of its own
        far = len(marks) > 1 or any([await self._request(each) for each in {seen, *issued}])
        most = sys.maxsize if far else MOST_REQUESTS
        # the last request with each of the marks, None where a rollback has taken its answer away; and of
        # each request that was repeated, the last that repeats it
        known, latest, newest = dict[str, str | None](), dict[str, str](), None
        async with aclosing(of_task(self.exchange, self.partition, head, most)) as newest_first:
            async for record in newest_first:
                newest = newest or record
                if record.request_id == seen or known.keys() >= set(marks):
                    break
                last = latest.get(record.request_id, record.request_id)
                if (repeated := kept(record, "repeats", str)) is not None:
                    latest[repeated] = last
                theirs = await self._begun_by(record, sent, issued.get(record.request_id))
                known = {**dict.fromkeys(theirs, None if _is_left(record, head) else last), **known}
        fresh = [mark for mark in marks if known.get(mark) is None]
        if fresh or not marks:
            return fresh, None
        again = newest and newest.request_id == known[marks[-1]] and newest.status in ("Failed", "Canceled")
        return marks[-1:] if again else (), known[marks[-1]]

    async def _begun_by(
        self, record: RequestRecord, sent: Mapping[str, tuple[Item, ...]], issued: str | None
    ) -> list[str]:
        """The marks of those of the messages that a request began with; one is `issued` for its message."""
        theirs = [mark for mark in kept(record, "messages", list) or () if isinstance(mark, str)]
        if issued is not None:
            said = await asked(self.exchange, self.partition, record)
            if said is not None and said.items == sent[issued]:
                theirs.append(issued)
        return [mark for mark in theirs if mark in sent]

    async def last_pauses(self, request_id: str | None) -> Sequence[str]:
        """The last pause of this task's newest request, as all that there is; none where that is another."""
        if self.head is None or request_id is None:
            return ()
        async with aclosing(of_task(self.exchange, self.partition, self.head, 1)) as newest_first:
            newest = await anext(newest_first, None)
        return newest.approvals[-1:] if newest is not None and newest.request_id == request_id else ()

    async def _request(self, request_id: str | None) -> RequestRecord | None:
        """One of this task's requests."""
        if request_id is None:
            return None
        key = keys.request(request_id)
        found = await self.exchange.records.get(self.partition, key, RequestRecord)
        return found.value if found is not None and found.value.task_id == self.task_id else None

    async def settled(self, request_ids: Set[str | None]) -> "Named":
        """The task once its running request has ended or paused, where that is one of these."""
        running = self.head.running if self.head else None
        if running is None or running.request_id not in request_ids:
            return self
        view = await self.exchange.request(self.caller, running.request_id)
        for approval_id in view.record.approvals[-1:]:  # behind which it runs
            if (decided := await self.pause(approval_id)) is not None:
                view = replace(view, after=decided.event_id)
        await settled(self.exchange, view)
        return await named(self.exchange, self.caller, self.task_id)


async def named(exchange: Exchange, caller: Caller, name: str) -> Named:
    """The caller's task of this name as it stands: a UUID is its id, any other text stands for one.

    `NotOwner` where it is another user's, `NotFound` once it has expired.
    """
    try:
        task_id, shared = ids.canonical(name, "name"), True
    except InvalidRequest:
        task_id, shared = ids.named_id(caller.user.key, name), False
    tasks, partition = exchange.tasks, exchange.partition(caller)
    found = Named(exchange, caller, task_id, partition)
    with suppress(NotFound):
        return replace(found, head=(await tasks.head(partition, task_id)).value)
    gone = await tasks.records.get(partition, keys.task(task_id), Head)
    if gone is not None and is_expired(gone.value, tasks.records.clock.now()):
        raise _expired(task_id)
    with suppress(NotFound):
        if shared:  # another user can have the same
            await exchange.locate(caller, keys.task, task_id)
    return found


def _expired(task_id: str) -> NotFound:
    return NotFound("The thread has expired. Start a new one.", task_id=task_id)


async def added(
    exchange: Exchange, partition: str, head: Head, message: NewMessage, field: str
) -> NewMessage:
    """The message for a task that is there. `InvalidRequest` where it brings a history of its own.

    Also, naming `field`, where the task was not to be stored: its expiry would take what is added.
    """
    if message.earlier:
        raise InvalidRequest("input", "contains assistant messages; the conversation has its own")
    # without an expiry its owner has decided to keep it
    if head.expires_at is not None:
        async with aclosing(of_task(exchange, partition, head)) as newest_first:
            async for record in newest_first:
                if is_unstored(record):
                    raise InvalidRequest(field, "was not stored: send the earlier messages instead")
    return replace(message, task_id=head.task_id)


async def find_pause(exchange: Exchange, partition: str, approval_id: str) -> Approval | None:
    """A pause of any request of the partition."""
    found = await exchange.records.get(partition, keys.approval(approval_id), Approval)
    return found.value if found is not None else None


async def find_call(
    exchange: Exchange, caller: Caller, what: str, name: str, *kinds: str
) -> tuple[Approval, int]:
    """The pause of a call that the caller names by an id of these kinds, and the call's place in it.

    `NotFound`, also where it is another user's: no `what` has that id.
    """
    with names.unknown_as(what, name):
        approval_id, place = names.read(what, name, *kinds)
        partition = await exchange.locate(caller, keys.approval, approval_id)
        pause = await find_pause(exchange, partition, approval_id)
        if pause is None or place >= len(pause.calls):
            raise NotFound("It has fewer calls.")
        await exchange.tasks.here(partition, pause.task_id)  # what has expired is not shown
        return pause, place


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
    names = _current(head)
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


def _current(head: Head) -> list[str]:
    """The requests of a task that had not ended, newest first."""
    waiting = [each.request_id for each in reversed(head.queue)]
    return waiting + [each.request_id for each in (head.running, head.pending) if each]


def _is_left(record: RequestRecord, head: Head) -> bool:
    """Whether a rollback took the answer away. One that came after `head` was read is not on its path."""
    ended = record.status == "Completed" and record.request_id not in _current(head)
    return ended and not holds(head.path, record.first_seq)


async def settled(exchange: Exchange, view: RequestView, receive: Receive | None = None) -> RequestView:
    """The request once it has ended or paused, as `Exchange.outcome`, wherever it runs."""
    record = await exchange.outcome(view, receive)
    if record.status in ("Running", "Queued"):
        async for _ in exchange.follow(view):
            pass
        record = (await exchange.tasks.request(view.partition, record.request_id)).value
    return replace(view, record=record)


async def begun(exchange: Exchange, view: RequestView, receive: Receive) -> RequestView:
    """The request once its turn has come, or never will. `receive` as for `Exchange.outcome`."""
    if view.record.status != "Queued":
        return view
    partition, request_id = view.partition, view.record.request_id
    with exchange.ended_by_leaving(view, receive):
        if (record := await exchange.service.when_begun(partition, request_id)) is None:
            async with aclosing(exchange.follow(replace(view, after=1))) as events:
                await anext(events, None)  # elsewhere no event says that it has begun
            record = (await exchange.tasks.request(partition, request_id)).value
    return replace(view, record=record)


async def to_the_end(exchange: Exchange, view: RequestView) -> AsyncGenerator[Sequence[Recorded]]:
    """The events behind `view.after` as `Exchange.follow`, through every pause to the end of the request."""
    last: Event | None = Paused(None)
    while isinstance(last, Paused):
        last = None
        async with aclosing(exchange.follow(view)) as events:
            async for batch in events:
                yield batch
                last, view = batch[-1].event, replace(view, after=batch[-1].id)


async def messages(exchange: Exchange, view: RequestView, most: int | None = None) -> list[Message]:
    """What the user and the agent have said in a request so far, oldest first: the last `most` messages."""
    record, tail = view.record, 0
    if most == 0:
        return []
    if record.status == "Queued":
        waits = await asked(exchange, view.partition, record)
        return [waits] if waits is not None else []
    if record.status not in ENDED:
        head = await exchange.tasks.head(view.partition, record.task_id, reading=True)
        tail = head.value.tail_seq
    found = await exchange.history.messages_of(view.partition, record, tail)
    said = [each for each in found if each.items and each.role != "tool"]
    return said if most is None else said[-most:]


async def asked(exchange: Exchange, partition: str, record: RequestRecord) -> Message | None:
    """The user's message that a request began with, or waits with; None where there is none."""
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
    exchange: Exchange, caller: Caller, wanted: Callable[[RequestRecord], bool], token: str, limit: int
) -> tuple[list[RequestView], str, int]:
    """A page of the requests that are wanted, those that changed last first.

    With it come the token of the next page, empty where there is none, and how many there are on all.
    `InvalidRequest` for a token that this did not give out.
    """
    behind = latest.Changed.parse(token, "pageToken") if token else None
    partition = exchange.partition(caller)
    found = await latest.page(exchange.tasks, partition, wanted, behind=behind, limit=limit)
    views = [RequestView(record=each, partition=partition, caller=caller, own=True) for each in found.records]
    return views, str(found.last or ""), found.total


def kept(record: RequestRecord, name: str, kind: type[K]) -> K | None:
    """What a protocol keeps with a request; None also where it is of another kind, as it may be imported."""
    value = record.client.get(name)
    return value if isinstance(value, kind) else None


def unstored_until(exchange: Exchange) -> datetime:
    """When an unstored task expires, in case the process dies before it can erase the task."""
    return exchange.tasks.records.clock.now() + UNSTORED_KEPT


def is_unstored(record: RequestRecord) -> bool:
    """Whether a request was not to be stored, and its task with it."""
    return record.client.get("store") is False


async def forget(exchange: Exchange, view: RequestView) -> None:
    """Erases the task of a request that was not to be stored, once the request has ended.

    Not a task that its owner has decided to keep for longer.
    """
    with suppress(NotFound, TaskBusy):  # erased by another, or left to its expiry by what else runs there
        record, eraser = (await settled(exchange, view)).record, exchange.eraser
        while record.status in ENDED:
            stored = await exchange.tasks.head(view.partition, record.task_id)
            expires_at = stored.value.expires_at
            kept = expires_at is None or expires_at > record.created_at + UNSTORED_KEPT + _ROUNDED
            if kept or await eraser.delete_as_read(view.partition, stored):
                return
