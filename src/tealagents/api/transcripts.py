"""The messages of a task, for pages that show a conversation as it stands, or as a stretch finds it."""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from heapq import merge

from msgspec import Struct
from msgspec.structs import replace

from tealagents.api import names, query, requests, stretches
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.stretches import Stretch
from tealagents.domain import ids, paths
from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.models import (
    Approval,
    Caller,
    Head,
    Item,
    Json,
    Message,
    MessageBody,
    Path,
    RequestRecord,
    Role,
)
from tealagents.engine.resuming import tool_messages
from tealagents.state.decisions import is_decision
from tealagents.state.history import Round

#: messages that are read of one task: the newest, and what else belongs to the request of the oldest of them
MOST_MESSAGES = 1000
#: stands for a message without items; no message that is searched for contains it
_NOTHING = chr(0)


class Kept(Struct, frozen=True):
    """A message that a page holds, under the page's id or the service's. Results of calls have no items."""

    name: str
    role: Role
    items: tuple[Item, ...]


async def messages(exchange: Exchange, partition: str, head: Head) -> list[Message]:
    """The messages of a task, those of a paused request included, oldest first."""
    own = ((head.pending.first_seq, head.tail_seq),) if head.pending else ()
    said = await _newest(exchange, partition, head.task_id, (*head.path, *own))
    return await _once(exchange, partition, said)


async def before(exchange: Exchange, stretch: Stretch, *, needed: bool) -> list[Message] | None:
    """The messages that a stretch continues, the user's own and outputs of the client's tools included.

    None, unless they are needed, while the store is unavailable: the stretch itself comes from memory.
    """
    try:
        return await _before(exchange, stretch)
    except PersistenceUnavailable:
        if needed:
            raise
        return None


async def _before(exchange: Exchange, stretch: Stretch) -> list[Message]:
    record, partition = stretch.record, stretch.view.partition
    head = (await exchange.tasks.head(partition, record.task_id, reading=True)).value
    if not record.first_seq:  # it waits its turn
        return await messages(exchange, partition, head)
    first, own, decided = record.first_seq, list[Message](), 1
    entries = record.entries(head.tail_seq)
    async for logged in exchange.history.forwards(partition, record.task_id, entries):
        body = logged.body
        if isinstance(body, MessageBody) and (stretch.number > 1 or body.message.role == "user"):
            own.append(body.message)
        elif is_decision(body):
            decided += 1
        if decided == stretch.number and (stretch.number > 1 or own):
            break
    if stretch.before is not None:
        own += _outputs(stretch.before)
    path, _ = paths.split(record.path or await _path(exchange, partition, record, head), first - 1)
    earlier = await _newest(exchange, partition, record.task_id, path)
    return await _once(exchange, partition, [*earlier, *own])


async def _path(exchange: Exchange, partition: str, record: RequestRecord, head: Head) -> Path:
    """The path on which a request began. One that has ended, perhaps after it was read, may have been left by
    a rollback, together with what it continued: then this is the path of its checkpoint."""
    if record.parent is None or head.is_occupied_by(record.request_id):
        return head.path
    found = await exchange.tasks.request_of(partition, record.task_id, record.parent)
    if found is None or paths.split(head.path, found.last_seq)[0] == found.path:
        return head.path
    return found.path


def continues(stretch: Stretch, seen: str | None) -> bool:
    """Whether a stretch comes right behind the answer that a page has seen last.

    It does not where a message that was not answered stands between them, which the page may lack, or where
    the page shows only the beginning of the answer. Known from what `client` says of the task when the
    message came, `Named.answered_to`: nothing is read, which could delay or fail what is carried out already.
    """
    record = stretch.record
    if stretch.number > 1 or record.client.get("seeded"):
        return seen == (record.request_id if stretch.number > 1 else None)
    if seen is None:
        return record.parent is None and record.first_seq == 1
    behind = requests.kept(record, "behind", int)
    return seen == record.parent and behind is not None and record.first_seq == behind + 1


async def _once(exchange: Exchange, partition: str, messages: Sequence[Message]) -> list[Message]:
    """The messages without those of the user that only repeat the one before, which was not answered."""
    found, last = list[Message](), None
    for message in messages:
        if message.role == "user":
            again = last is not None and last.items[-len(message.items) :] == message.items
            if again:  # or the user has said the same anew; in a fork the id is that of the source's request
                record = (await exchange.tasks.request(partition, message.request_id, reading=True)).value
                again = requests.kept(record, "repeats", str) is not None
            last = message
            if again:
                continue
        elif message.role == "assistant" and not message.tool_calls:
            last = None
        found.append(message)
    return found


def _outputs(decided: Approval) -> list[Message]:
    """What the client's own tools returned, which no event of the stretch after the pause holds."""
    ran = {decision.id for decision in decided.decisions if decision.output is not None}
    said = tool_messages(decided, decided.decided_at or decided.created_at)
    return [message for message in said if message.tool_call_id in ran]


def items(
    exchange: Exchange,
    caller: Caller,
    partition: str,
    head: Head,
    shown: Callable[[Round | Stretch], Awaitable[Sequence[Json]]],
) -> query.Listed:
    """A task on its current path, and what runs or waits, as the items that `shown` makes of each part.

    A list that begins with the request of an item does not read what lies before it.
    """

    async def listed(item: str | None, oldest_first: bool) -> AsyncGenerator[Json]:
        at = await _request_of(exchange, partition, head, item) if item is not None else None
        async with aclosing(_parts(exchange, caller, partition, head, at, oldest_first)) as parts:
            async for part in parts:
                found = await shown(part)
                for each in found if oldest_first else reversed(found):
                    yield each

    return listed


async def _parts(
    exchange: Exchange,
    caller: Caller,
    partition: str,
    head: Head,
    at: RequestRecord | None,
    oldest_first: bool,
) -> AsyncGenerator[Round | Stretch]:
    """The parts of a task: requests that only spoke, to the end of their answers, as rounds, the others as
    their stretches. They begin with the request `at`, if that is among them.
    """
    path, occupant = head.path, head.occupant.request_id if head.occupant else None
    if at is not None and at.request_id == occupant:
        path = () if oldest_first else path
    elif at is not None and paths.holds(path, at.first_seq):
        older, _ = paths.split(path, at.last_seq)
        _, newer = paths.split(path, at.first_seq - 1)
        path, occupant = (newer, occupant) if oldest_first else (older, None)

    async def cut(request_id: str | None) -> Sequence[Stretch]:
        found = await _stretches(exchange, caller, partition, request_id) if request_id is not None else []
        return found[::-1] if oldest_first else found

    for stretch in await cut(None if oldest_first else occupant):
        yield stretch
    history = exchange.history
    rounds = history.rounds_forwards if oldest_first else history.rounds
    async with aclosing(rounds(partition, head.task_id, path)) as completed:
        async for each in completed:
            did = any(message.tool_calls or message.role == "tool" for message in each.messages)
            if each.messages and each.finish_reason is None and not did:
                yield each
                continue
            for stretch in await cut(each.request_id):
                yield stretch
    for stretch in await cut(occupant if oldest_first else None):
        yield stretch


async def _request_of(exchange: Exchange, partition: str, head: Head, item: str) -> RequestRecord | None:
    """The request of this task that an item's id shows: its own, that of the message, or of the pause."""
    name, _ = names.parsed(item, "msg", "mcp", "mcpr", "mcpa", "fc", "fco")
    if name is None:
        return None
    if names.is_message(item):
        name = ids.request_id_of(head.owner.key, name)
    elif not names.is_of_answer(item):
        pause = await requests.find_pause(exchange, partition, name)
        name = pause.request_id if pause is not None else name
    return await exchange.tasks.request_of(partition, head.task_id, name)


async def _stretches(exchange: Exchange, caller: Caller, partition: str, request_id: str) -> list[Stretch]:
    """The stretches of a request, the last one first."""
    record = (await exchange.tasks.request(partition, request_id, reading=True)).value
    view = RequestView(record=record, partition=partition, caller=caller, own=True)
    last = await stretches.cut(exchange, view)
    return [last, *[await stretches.cut(exchange, view, n) for n in range(last.number - 1, 0, -1)]]


async def _newest(exchange: Exchange, partition: str, task_id: str, path: Path) -> list[Message]:
    found: list[Message] = []
    async with aclosing(exchange.history.backwards(partition, task_id, path)) as entries:
        async for logged in entries:
            if isinstance(logged.body, MessageBody):
                message = logged.body.message
                if len(found) >= MOST_MESSAGES and message.request_id != found[-1].request_id:
                    break
                found.append(message)
    return found[::-1]


def as_kept(
    messages: Sequence[Message], kept: Sequence[Kept], name: Callable[[Message, int], str]
) -> Iterator[tuple[str, Message]]:
    """Messages under the names that a page has for them, and the others under ours.

    `name` makes the service's id of a message, given how many messages the assistant has sent in that request
    so far. Messages that the page sent together, and that are stored as one, are yielded separately. A page
    keeps known messages in place and appends the others, so after the first message that it lacks, none gets
    an id that it knows.
    """
    places, page, said = {each.name: n for n, each in enumerate(kept)}, _Said(kept), Counter[str]()
    start, missed = 0, False
    for message in messages:
        said[message.request_id] += message.role == "assistant"
        ours = name(message, said[message.request_id])
        if missed:
            found = range(0)
        elif (place := places.get(ours)) is not None:
            found = range(place, place + 1) if place >= start or message.role == "tool" else range(0)
        else:
            found = page.alike(message, start)
        missed, start = not found, max(start, found.stop)
        for n in found:
            yield kept[n].name, message if len(found) == 1 else replace(message, items=kept[n].items)
        if not found:
            while ours in places:
                ours += "-"
            yield ours, message


def with_own(documents: Iterable[Json], own: Iterable[Json], page: Sequence[str]) -> list[Json]:
    """The documents of messages, together with what is only the page's `own`, such as its instructions.

    A page drops what a snapshot lacks. The own ones keep their places among the ids of the `page`, and come
    before the first message that it lacks, as they do on a page that appends those.
    """
    places = {name: n for n, name in enumerate(page)}
    return list(merge(own, documents, key=lambda each: places.get(each["id"], len(places))))


class _Said:
    """The messages of a page as one string, in which each distinct (role, item) is a character.

    Searching the string avoids comparing all items of a message at every position of the page.
    """

    def __init__(self, kept: Sequence[Kept]) -> None:
        self._letters: dict[tuple[Role, Item], str] = {}
        #: where in the text each message begins, and the reverse; the last is the end
        self._begins, self._messages, words, size = list[int](), dict[int, int](), list[str](), 0
        for n, each in enumerate(kept):
            self._begins.append(size)
            self._messages[size] = n
            words.append("".join(self._letter(each.role, item) for item in each.items) or _NOTHING)
            size += len(words[-1])
        self._begins.append(size)
        self._messages[size] = len(kept)
        self._text = "".join(words)

    def _letter(self, role: Role, item: Item) -> str:
        return self._letters.setdefault((role, item), chr(len(self._letters) + 1))

    def alike(self, message: Message, start: int) -> range:
        """The places of the next messages that say together what one says; none where there are no such."""
        wanted = "".join(self._letters.get((message.role, item), _NOTHING) for item in message.items)
        at = -1 if not wanted or _NOTHING in wanted else self._text.find(wanted, self._begins[start])
        while at >= 0:
            first, behind = self._messages.get(at), self._messages.get(at + len(wanted))
            if first is not None and behind is not None:
                return range(first, behind)
            at = self._text.find(wanted, at + 1)
        return range(0)
