"""Messages, trace, checkpoints and audit: views of one log.

A *path* names the entries that make one history. Read backwards, a request's end is met before its
messages, so a request that did not complete is passed over without being read.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import CorruptState, InvalidRequest, TealError
from tealagents.domain.models import (
    Batch,
    Body,
    Entry,
    FinishReason,
    Head,
    Message,
    MessageBody,
    Path,
    RequestEnd,
    RequestRecord,
    Step,
    StepBody,
    TokenUsage,
    ToolCall,
    ToolIntent,
    ToolOutcome,
)
from tealagents.state import keys
from tealagents.state.records import RecordStore

#: batches read at a time
PAGE = 50
#: bytes of bodies on a page of messages or steps, but for those of its first
PAGE_BYTES = 32_000_000
#: ended requests that are looked at for a page of the completed ones: as many as the largest page has
PAGE_ENDS = 200
#: characters of a call's arguments that a note on it repeats
ARGUMENTS_SHOWN = 500


class Round(Struct, frozen=True, kw_only=True):
    """One completed request of a history."""

    request_id: str
    first_seq: int
    messages: tuple[Message, ...] = ()
    #: as in the `RequestEnd`
    finish_reason: FinishReason | None = None


class Produced(Struct, frozen=True):
    """What a request has produced so far, by the log."""

    #: what its tools have done, or may have
    tools: tuple[ToolOutcome, ...]
    #: of all its model calls
    usage: TokenUsage
    #: calls that were begun and have not returned
    running: tuple[ToolCall, ...]


class Logged(Struct, frozen=True):
    """An entry with its body."""

    entry: Entry
    body: Body
    #: bytes of the body as it is stored
    size: int

    @property
    def seq(self) -> int:
        return self.entry.seq


class History:
    """Reads the log of a task."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def forwards(
        self, partition: str, task_id: str, path: Path, after: int = 0
    ) -> AsyncIterator[Logged]:
        """The entries of a path behind number `after`, oldest first. A gap in the log is `CorruptState`, or
        `NotFound` where the task is deleted meanwhile."""
        reader = _Reader(self._records, partition, task_id, up_to=path[-1][1] if path else 0)
        for first, last in path:
            for seq in range(max(first, after + 1), last + 1):
                yield await reader.entry(seq)

    async def backwards(
        self,
        partition: str,
        task_id: str,
        path: Path,
        skip: "Callable[[Logged], int | None]" = lambda _: None,
    ) -> AsyncGenerator[Logged]:
        """The entries of a path, newest first. `skip` may name an earlier number to continue below."""
        reader = _Reader(self._records, partition, task_id, reverse=True)
        for first, due in reversed(path):
            while due >= first:
                logged = await reader.entry(due)
                below = skip(logged)
                due = below - 1 if below is not None else due - 1
                yield logged

    # --- views -----------------------------------------------------------------------------------

    async def rounds(self, partition: str, task_id: str, path: Path) -> AsyncGenerator[Round]:
        """The requests of a path, newest first, each whole. What did not complete is not read."""

        def passed_over(logged: Logged) -> int | None:
            body = logged.body
            if isinstance(body, RequestEnd) and body.status != "Completed":
                return body.first_seq
            return None

        end: RequestEnd | None = None
        messages: list[Message] = []
        async with aclosing(self.backwards(partition, task_id, path, passed_over)) as entries:
            async for logged in entries:
                body = logged.body
                if isinstance(body, RequestEnd):
                    if body.status == "Completed":
                        end, messages = body, []
                elif isinstance(body, MessageBody):
                    messages.append(body.message)
                if end is not None and logged.seq == end.first_seq:
                    yield Round(
                        request_id=end.request_id,
                        first_seq=end.first_seq,
                        messages=tuple(in_call_order(messages[::-1])),
                        finish_reason=end.finish_reason,
                    )
                    end, messages = None, []

    async def messages(
        self, partition: str, task_id: str, path: Path, *, after: int = 0, limit: int
    ) -> tuple[list[Message], int | None]:
        """A page of the messages of a path, oldest first, and the number to continue after (None: no more).

        A page may be short: it ends before a round of tools, and not within it, and it holds no more than
        `PAGE_BYTES`.
        """
        found: list[Message] = []
        seqs: list[int] = []
        size = 0
        async for logged in self.forwards(partition, task_id, path, after):
            if isinstance(logged.body, MessageBody):
                size += logged.size
                if len(found) == limit or (found and size > PAGE_BYTES):
                    end = _page_end(found, logged.body.message)
                    return in_call_order(found[:end]), seqs[end - 1]
                found.append(logged.body.message)
                seqs.append(logged.seq)
        return in_call_order(found), None

    async def messages_of(self, partition: str, record: RequestRecord, tail: int) -> list[Message]:
        """The messages of one request, oldest first. `tail` is the end of its task's log."""
        logged = await self.entries_of(partition, record, tail)
        return [each.body.message for each in logged if isinstance(each.body, MessageBody)]

    async def entries_of(self, partition: str, record: RequestRecord, tail: int) -> list[Logged]:
        """All entries of one request, oldest first; none while it waits its turn."""
        entries = self.forwards(partition, record.task_id, record.entries(tail))
        return [logged async for logged in entries if logged.entry.request_id == record.request_id]

    async def steps(
        self, partition: str, task_id: str, tail: int, *, after: int = 0, limit: int
    ) -> tuple[list[Step], int | None]:
        """A page of the whole task's steps, oldest first; it may be short, as of messages."""
        found: list[Step] = []
        last = size = 0
        async for logged in self.forwards(partition, task_id, whole(tail), after):
            if isinstance(logged.body, StepBody):
                size += logged.size
                if len(found) == limit or (found and size > PAGE_BYTES):
                    return found, last
                found.append(logged.body.step)
                last = logged.seq
        return found, None

    async def entries(
        self, partition: str, task_id: str, tail: int, *, after: int = 0, limit: int
    ) -> tuple[list[Entry], int | None]:
        """A page of the audit, oldest first."""
        found: list[Entry] = []
        async for logged in self.forwards(partition, task_id, whole(tail), after):
            if len(found) == limit:
                return found, found[-1].seq
            found.append(logged.entry)
        return found, None

    async def completions(
        self, partition: str, task_id: str, tail: int, *, before: int | None = None, limit: int
    ) -> tuple[list[RequestEnd], int | None]:
        """A page of the completed requests, newest first, and the number to continue before.

        It may be short, even empty: it looks at no more than `PAGE_ENDS` requests, completed or not.
        """
        found: list[RequestEnd] = []
        last = looked = 0
        path = whole(tail if before is None else before - 1)
        async for logged in self.backwards(partition, task_id, path, request_start):
            if not isinstance(logged.body, RequestEnd):
                continue
            completed = logged.body.status == "Completed"
            if looked == PAGE_ENDS or (completed and len(found) == limit):
                return found, last
            if completed:
                found.append(logged.body)
            looked += 1
            last = logged.body.first_seq
        return found, None

    async def produced(self, partition: str, head: Head) -> Produced:
        """What the request that runs, or waits for a human, has produced so far."""
        calls: dict[str, ToolOutcome] = {}
        running: dict[str, ToolCall] = {}
        usage = TokenUsage()
        if head.occupant is None or head.occupant.first_seq > head.tail_seq:
            return Produced((), usage, ())
        path = ((head.occupant.first_seq, head.tail_seq),)
        async for logged in self.forwards(partition, head.task_id, path):
            if isinstance(logged.body, ToolIntent):
                for call in logged.body.calls:
                    running[call.id] = call
                    calls[call.id] = not_returned(call)
            if not isinstance(logged.body, StepBody):
                continue
            step = logged.body.step
            usage = usage + (step.usage or TokenUsage())
            if step.kind == "tool":
                call_id = str((step.input or {}).get("call_id", ""))
                running.pop(call_id, None)
                if call_id in calls and step.outcome in ("done", "failed"):
                    calls[call_id] = replace(calls[call_id], outcome=step.outcome)
            elif (step.kind, step.name) == ("approval", "requested"):
                # nothing runs in a pause: what has not returned waits for its owner, for consent, or for the
                # client's outputs, and was not made
                for call_id in running:
                    del calls[call_id]
                running.clear()
        return Produced(tuple(calls.values()), usage, tuple(running.values()))


class _Reader:
    """Reads the entries of a log by number, in one direction; the batches at hand are not read again."""

    def __init__(
        self, records: RecordStore, partition: str, task_id: str, *, up_to: int = 0, reverse: bool = False
    ) -> None:
        """`up_to`: the last number that is asked for when reading forwards. What is behind it is not read."""
        self._records = records
        self._partition = partition
        self._task_id = task_id
        self._up_to = up_to
        self._reverse = reverse
        self._batches: list[Batch] = []
        #: the entries of the batch that was asked for last
        self._opened: Sequence[Logged] = ()

    async def entry(self, seq: int) -> Logged:
        """The entry of this number. Raises as `History.forwards`."""
        if not self._opened or not self._opened[0].seq <= seq <= self._opened[-1].seq:
            self._opened = await self._open(seq)
        place = seq - self._opened[0].seq if self._opened else 0
        if place >= len(self._opened) or self._opened[place].seq != seq:
            raise await self._damaged(CorruptState(self._key(seq), "is missing", task_id=self._task_id))
        return self._opened[place]

    async def _open(self, seq: int) -> Sequence[Logged]:
        """The entries of the batch that holds this one; none where none does."""
        batch = _holding(self._batches, seq)
        if batch is None:
            self._batches = await self._page(seq)
            batch = _holding(self._batches, seq)
        if batch is None:
            return ()
        try:
            opened = await self._records.opened(self._partition, self._task_id, batch)
        except CorruptState as damage:
            raise await self._damaged(damage) from None
        return [Logged(entry, body, size) for entry, body, size in opened]

    async def _page(self, seq: int) -> list[Batch]:
        """The batches from that one on which can hold the entry."""
        if self._reverse:
            return await self._scan(seq + 1, limit=8, reverse=True)
        found: list[Batch] = []
        if not self._batches or self._batches[-1].entries[-1].seq + 1 != seq:
            found = await self._scan(seq + 1, limit=1, reverse=True)
            seq = found[0].entries[-1].seq + 1 if found else seq
        if seq > self._up_to:
            return found
        return [*found, *await self._scan(seq - 1, limit=min(PAGE, self._up_to - seq + 1))]

    async def _scan(self, after: int, *, limit: int, reverse: bool = False) -> list[Batch]:
        prefix = keys.logs(self._task_id)
        found = await self._records.scan(
            self._partition, prefix, Batch, after=self._key(after), limit=limit, reverse=reverse
        )
        for key, batch in found:
            if not batch.entries or self._key(batch.entries[0].seq) != key:
                raise CorruptState(key, "does not hold the entries its key names", task_id=self._task_id)
        return [batch for _, batch in found]

    def _key(self, seq: int) -> str:
        return keys.log(self._task_id, seq)

    async def _damaged(self, damage: CorruptState) -> TealError:
        return await self._records.unless_deleted(self._partition, self._task_id, damage)


def _holding(batches: Sequence[Batch], seq: int) -> Batch | None:
    return next((each for each in batches if each.entries[0].seq <= seq <= each.entries[-1].seq), None)


def not_returned(call: ToolCall) -> ToolOutcome:
    """What is known of a call that has begun."""
    return ToolOutcome(call.id, call.tool, call.arguments[:ARGUMENTS_SHOWN], "unknown")


def request_start(logged: Logged) -> int | None:
    """Where the request began whose end this is: what is between the two is passed over."""
    return logged.body.first_seq if isinstance(logged.body, RequestEnd) else None


def whole(tail: int) -> Path:
    """All entries of a log that ends with this one."""
    return ((1, tail),) if tail else ()


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the results of each round in the order of its calls.

    In the log they stand as they came: where a round was paused, those of approved calls come last.
    """
    ordered: list[Message] = []
    for group in grouped(messages):
        if group[0].tool_calls:
            place = {call.id: n for n, call in enumerate(group[0].tool_calls)}
            ordered += [
                group[0],
                *sorted(group[1:], key=lambda result: place.get(result.tool_call_id or "", 0)),
            ]
        else:
            ordered += group
    return ordered


def _page_end(found: Sequence[Message], following: Message) -> int:
    """How many of the messages make a page: a round that continues behind them is left to the next."""
    if following.role != "tool":
        return len(found)
    before = before_open_tool_round(found)
    begins = len(before) - 1 if before and before[-1].tool_calls else 0
    return begins or len(found)


def grouped(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Each message by itself, but for a round of tools: the calls and all their results are one group."""
    group: list[Message] = []
    for message in messages:
        if group and group[0].tool_calls and message.role == "tool":
            group.append(message)
            continue
        if group:
            yield group
        group = [message]
    if group:
        yield group


def up_to(messages: Iterable[Message], message_id: str) -> list[Message] | None:
    """The messages up to and including one; None where it is not among them.

    `InvalidRequest` where a fork there would lack the results of calls.
    """
    kept: list[Message] = []
    open_calls: set[str] = set()
    for message in messages:
        kept.append(message)
        if message.role != "tool":
            open_calls = {call.id for call in message.tool_calls}
        open_calls.discard(message.tool_call_id or "")
        if message.message_id == message_id:
            if open_calls:
                text = "lies between a tool call and its result; fork before or after both"
                raise InvalidRequest("message_id", text)
            return kept
    return None


def open_tool_round(messages: Sequence[Message]) -> tuple[tuple[ToolCall, ...], list[Message]]:
    """The calls of a round that was paused, in order, and those of its results that are there."""
    before = before_open_tool_round(messages)
    if len(before) == 0 or not before[-1].tool_calls:
        return (), []
    return before[-1].tool_calls, list(messages[len(before) :])


def before_open_tool_round(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without the results behind the last calls, which the model is sent with the others."""
    last = len(messages)
    while last and messages[last - 1].role == "tool":
        last -= 1
    return messages[:last]
