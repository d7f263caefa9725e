"""Messages, trace, checkpoints and audit: views of one log.

A *path* names the entries that make up a history. Reading backwards meets a request's end before its
messages, so a request that did not complete is skipped without being read.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import CorruptState, InvalidRequest, TealError
from tealagents.domain.models import (
    Body,
    Entry,
    FinishReason,
    Head,
    LogRecord,
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

#: log records read at a time
PAGE = 50
#: bytes of bodies on a page of messages or steps; the first item always fits
PAGE_BYTES = 32_000_000
#: ended requests that are read for a page of completed ones: as many as the largest page has
PAGE_ENDS = 200
#: characters of a call's arguments that the model is shown in a note
ARGUMENTS_SHOWN = 500


class Round(Struct, frozen=True, kw_only=True):
    """One completed request of a history."""

    request_id: str
    first_seq: int
    messages: tuple[Message, ...] = ()
    #: as in the `RequestEnd`
    finish_reason: FinishReason | None = None


class Produced(Struct, frozen=True):
    """What a request has produced so far, according to the log."""

    #: the outcomes of its tool calls
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
        """The entries of a path after number `after`, oldest first. Raises `CorruptState` for a gap in the
        log, or `NotFound` if the task is deleted meanwhile."""
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
        """The entries of a path, newest first. `skip` may return the number of an earlier entry: reading then
        continues below it."""
        reader = _Reader(self._records, partition, task_id, reverse=True)
        for first, due in reversed(path):
            while due >= first:
                logged = await reader.entry(due)
                below = skip(logged)
                due = below - 1 if below is not None else due - 1
                yield logged

    # --- views -----------------------------------------------------------------------------------

    async def rounds(self, partition: str, task_id: str, path: Path) -> AsyncGenerator[Round]:
        """The completed requests of a path, newest first. Others are skipped."""

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
                    yield _round(end, messages[::-1])
                    end, messages = None, []

    async def rounds_forwards(self, partition: str, task_id: str, path: Path) -> AsyncGenerator[Round]:
        """As `rounds`, oldest first. The entries of requests that did not complete are read as well."""
        messages: list[tuple[int, Message]] = []
        async for logged in self.forwards(partition, task_id, path):
            body = logged.body
            if isinstance(body, MessageBody):
                messages.append((logged.seq, body.message))
            elif isinstance(body, RequestEnd):
                if body.status == "Completed":
                    yield _round(body, [message for seq, message in messages if seq >= body.first_seq])
                messages = []

    async def messages(
        self, partition: str, task_id: str, path: Path, *, after: int = 0, limit: int
    ) -> tuple[list[Message], int | None]:
        """A page of the messages of a path, oldest first, and the number to continue after (None: no more).

        A page may be short: it ends before a round of tools, and not within it, and it holds no more than
        `PAGE_BYTES`. A round that is larger than a page comes in the order of the log, on several.
        """
        found: list[Message] = []
        seqs: list[int] = []
        size = 0
        async for logged in self.forwards(partition, task_id, path, after):
            if isinstance(logged.body, MessageBody):
                size += logged.size
                if len(found) == limit or (found and size > PAGE_BYTES):
                    page = _page_of(found, logged.body.message)
                    return page, seqs[len(page) - 1]
                found.append(logged.body.message)
                seqs.append(logged.seq)
        return in_call_order(found), None

    async def messages_of(self, partition: str, record: RequestRecord, tail: int) -> list[Message]:
        """The messages of one request, oldest first. `tail` is the end of its task's log."""
        logged = await self.entries_of(partition, record, tail)
        return [each.body.message for each in logged if isinstance(each.body, MessageBody)]

    async def entries_of(self, partition: str, record: RequestRecord, tail: int) -> list[Logged]:
        """All entries of one request, oldest first; none while it is queued. `tail` is the log's end."""
        entries = self.forwards(partition, record.task_id, record.entries(tail))
        return [logged async for logged in entries if logged.entry.request_id == record.request_id]

    async def steps(
        self, partition: str, task_id: str, tail: int, *, after: int = 0, limit: int
    ) -> tuple[list[Step], int | None]:
        """A page of the whole task's steps, oldest first, as `messages` makes pages."""
        found: list[Step] = []
        last = size = 0
        async for logged in self.forwards(partition, task_id, whole_log(tail), after):
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
        async for logged in self.forwards(partition, task_id, whole_log(tail), after):
            if len(found) == limit:
                return found, found[-1].seq
            found.append(logged.entry)
        return found, None

    async def completions(
        self, partition: str, task_id: str, tail: int, *, limit: int
    ) -> tuple[list[RequestEnd], int | None]:
        """A page of the requests completed by entry `tail`, newest first, and the number to continue before.

        It may be short, even empty: it looks at no more than `PAGE_ENDS` requests, completed or not.
        """
        found: list[RequestEnd] = []
        last = looked = 0
        async for logged in self.backwards(partition, task_id, whole_log(tail), request_start):
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
        """What the running or paused request has produced so far."""
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
                # no call runs in a pause: one that has not returned was not made, and waits for its owner or
                # for the client's output
                for call_id in running:
                    del calls[call_id]
                running.clear()
        return Produced(tuple(calls.values()), usage, tuple(running.values()))


class _Reader:
    """Reads the entries of a log by number, in one direction, and keeps the last records that it has read."""

    def __init__(
        self, records: RecordStore, partition: str, task_id: str, *, up_to: int = 0, reverse: bool = False
    ) -> None:
        """`up_to`: reading forwards, the last number that will be requested; nothing after it is read."""
        self._records = records
        self._partition = partition
        self._task_id = task_id
        self._up_to = up_to
        self._reverse = reverse
        self._log_records: list[LogRecord] = []
        #: the entries of the record with the last requested entry
        self._opened: Sequence[Logged] = ()

    async def entry(self, seq: int) -> Logged:
        """The entry with this number. Raises as `History.forwards`."""
        if not self._opened or not self._opened[0].seq <= seq <= self._opened[-1].seq:
            self._opened = await self._open(seq)
        place = seq - self._opened[0].seq if self._opened else 0
        if place >= len(self._opened) or self._opened[place].seq != seq:
            raise await self._damaged(CorruptState(self._key(seq), "is missing", task_id=self._task_id))
        return self._opened[place]

    async def _open(self, seq: int) -> Sequence[Logged]:
        """The entries of the log record that holds this one; empty if there is none."""
        log_record = _holding(self._log_records, seq)
        if log_record is None:
            self._log_records = await self._page(seq)
            log_record = _holding(self._log_records, seq)
        if log_record is None:
            return ()
        try:
            opened = await self._records.opened(self._partition, self._task_id, log_record)
        except CorruptState as damage:
            raise await self._damaged(damage) from None
        return [Logged(entry, body, size) for entry, body, size in opened]

    async def _page(self, seq: int) -> list[LogRecord]:
        """The log record that can hold the entry, and some of those that follow in the reading direction."""
        if self._reverse:
            return await self._scan(seq + 1, limit=8, reverse=True)
        found: list[LogRecord] = []
        if not self._log_records or self._log_records[-1].entries[-1].seq + 1 != seq:
            found = await self._scan(seq + 1, limit=1, reverse=True)
            seq = found[0].entries[-1].seq + 1 if found else seq
        if seq > self._up_to:
            return found
        return [*found, *await self._scan(seq - 1, limit=min(PAGE, self._up_to - seq + 1))]

    async def _scan(self, after: int, *, limit: int, reverse: bool = False) -> list[LogRecord]:
        prefix = keys.logs(self._task_id)
        found = await self._records.scan(
            self._partition, prefix, LogRecord, after=self._key(after), limit=limit, reverse=reverse
        )
        for key, log_record in found:
            if not log_record.entries or self._key(log_record.entries[0].seq) != key:
                raise CorruptState(key, "does not hold the entries its key names", task_id=self._task_id)
        return [log_record for _, log_record in found]

    def _key(self, seq: int) -> str:
        return keys.log(self._task_id, seq)

    async def _damaged(self, damage: CorruptState) -> TealError:
        return await self._records.unless_deleted(self._partition, self._task_id, damage)


def _round(end: RequestEnd, messages: Sequence[Message]) -> Round:
    return Round(
        request_id=end.request_id,
        first_seq=end.first_seq,
        messages=tuple(in_call_order(messages)),
        finish_reason=end.finish_reason,
    )


def _holding(log_records: Sequence[LogRecord], seq: int) -> LogRecord | None:
    return next((each for each in log_records if each.entries[0].seq <= seq <= each.entries[-1].seq), None)


def not_returned(call: ToolCall) -> ToolOutcome:
    """The outcome of a call that has begun and not returned: unknown."""
    return ToolOutcome(call.id, call.tool, call.arguments[:ARGUMENTS_SHOWN], "unknown")


def request_start(logged: Logged) -> int | None:
    """For a request's end, the number of its first entry: `backwards` then skips the rest of the request."""
    return logged.body.first_seq if isinstance(logged.body, RequestEnd) else None


def whole_log(tail: int) -> Path:
    """The path over all entries of a log whose last number is `tail`."""
    return ((1, tail),) if tail else ()


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the results of each round in the order of its calls.

    The log has results in the order in which they arrived: after a pause, those of approved calls come last.
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


def _page_of(found: Sequence[Message], following: Message) -> list[Message]:
    """Those of the messages that make a page: a tool round that continues after them is left to the next.

    If there is nothing before that round, its beginning is the page, in the order of the log: sorted without
    the rest, its results would be in an order that depends on the size of the page.
    """
    if following.role == "tool":
        begins = max(len(before_open_tool_round(found)) - 1, 0)
        if found[begins].tool_calls:
            return in_call_order(found[:begins]) or list(found)
    return in_call_order(found)


def in_rounds(messages: Iterable[Message]) -> list[list[Message]]:
    """The messages in rounds, oldest first: the first message begins one, and so does each of a user."""
    rounds: list[list[Message]] = []
    for message in messages:
        if not rounds or message.role == "user":
            rounds.append([])
        rounds[-1].append(message)
    return rounds


def grouped(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages in groups: a tool round (the calls and all their results) is one, others stand alone."""
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
    """The messages up to and including one; None if it is not among them.

    `InvalidRequest` if calls before it have no result yet, which a fork there would lack.
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
    """The calls of the tool round that the messages end with, in order, and its results so far."""
    before = before_open_tool_round(messages)
    if len(before) == 0 or not before[-1].tool_calls:
        return (), []
    return before[-1].tool_calls, list(messages[len(before) :])


def before_open_tool_round(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without the trailing tool results, which the model is sent once the round is complete."""
    last = len(messages)
    while last and messages[last - 1].role == "tool":
        last -= 1
    return messages[:last]
