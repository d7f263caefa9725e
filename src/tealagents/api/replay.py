"""The events of a stretch, as they were sent and as they are read later.

Recorded events are sent live and can be replayed for a day. After that, events of the same kinds are rebuilt
from the history, which does not expire.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from msgspec.structs import replace
from starlette.responses import Response

from tealagents.api import unstored
from tealagents.api.exchange import Exchange
from tealagents.api.folding import EventFold
from tealagents.api.stretches import Stretch, decided_pause
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.events import (
    Event,
    Paused,
    Recorded,
    Started,
    TextDelta,
    ToolCalled,
    ToolReturned,
    ending,
)
from tealagents.domain.models import (
    ENDED,
    Body,
    MessageBody,
    RequestRecord,
    Step,
    StepBody,
    ToolIntent,
)
from tealagents.engine import following
from tealagents.state.decisions import is_decision

F = TypeVar("F", bound=EventFold)


async def recorded(exchange: Exchange, stretch: Stretch) -> AsyncGenerator[Sequence[Recorded]]:
    """The recorded events of a stretch, to the one that ends it.

    A decided pause is no longer recorded, so it is inserted where it was. Nothing was recorded for imported
    or copied requests; their events are rebuilt from the history.
    """
    if stretch.record.imported or stretch.record.copied:
        yield [Recorded(n, event) for n, event in enumerate(await _events(exchange, stretch), 1)]
        return
    last, end = stretch.after, stretch.pause
    async with aclosing(exchange.follow_unbroken(replace(stretch.view, after=last))) as events:
        async for batch in events:
            kept: list[Recorded] = []
            for each in batch:
                beyond = end is not None and each.id >= end.event_id
                # a request that waited its turn starts twice, too, but without an event between
                if beyond or (isinstance(each.event, Started) and each.id > last + 1):
                    end = end or await decided_pause(exchange, stretch)
                    yield [*kept, Recorded(end.event_id, Paused(end))]
                    return
                kept.append(each)
                last = each.id
                if end is not None and each.id == end.event_id - 1:
                    yield [*kept, Recorded(end.event_id, Paused(end))]
                    return
            yield kept


def check_kept(exchange: Exchange, stretch: Stretch, field: str) -> None:
    """`InvalidRequest`, naming `field`, where the recorded events of a stretch are no longer there."""
    try:
        following.check_kept(exchange.tasks, stretch.record)
    except NotFound:
        kept = "is possible for 24 hours after the end; the outcome can still be read"
        raise InvalidRequest(field, kept) from None


def stream(
    exchange: Exchange,
    stretch: Stretch,
    fold: EventFold,
    headers: Mapping[str, str] | None = None,
    *,
    forgets: bool = False,
) -> Response:
    """The events of a stretch as server-sent events; `forgets`: it is erased if it was not to be stored."""
    view, events = stretch.view, recorded(exchange, stretch)
    forgets = forgets and stretch.record.is_unstored
    # not in the generator: if the client leaves early, it never starts, so its `finally` would not run
    on_end = (lambda: exchange.in_background(unstored.forget(exchange, view))) if forgets else None
    return exchange.stream(view, fold, headers=headers, events=events, on_end=on_end)


async def folded(exchange: Exchange, stretch: Stretch, fold: F) -> F:
    """The fold of a stretch as far as the history holds it: text comes in one delta."""
    for event in await _events(exchange, stretch):
        fold.take(event)
    return fold


async def _events(exchange: Exchange, stretch: Stretch) -> list[Event]:
    record = stretch.record
    if record.status == "Queued":
        return [Started("Queued")]
    events: list[Event] = [Started()]
    # without an event between the first and the last there was no tool call, and the record says it all,
    # unless nothing was recorded
    unrecorded = record.copied or record.resent
    if record.status != "Completed" or record.approvals or record.last_event > 2 or unrecorded:
        events += [event async for event in _logged(exchange, stretch)]
    if stretch.pause is not None:
        return [*events, Paused(stretch.pause)]
    if record.status not in ENDED:
        return events
    if record.output and record.status != "Completed" and not isinstance(events[-1], TextDelta):
        events.append(TextDelta(record.output))
    return [*events, ending(record)]


async def _logged(exchange: Exchange, stretch: Stretch) -> AsyncIterator[Event]:
    record, partition = stretch.record, stretch.view.partition
    tail = record.last_seq or (await exchange.tasks.head(partition, record.task_id)).value.tail_seq
    number, made = 1, set[str]()
    repeats = record.retries is not None  # a retry repeats earlier calls, whose events are not sent again
    returned = dict[str, ToolReturned]()  # of the round under way, whose messages are logged at its end
    async for logged in exchange.history.forwards(partition, record.task_id, record.entries(tail)):
        if logged.entry.request_id != record.request_id:  # it ended after it was read, and others followed
            continue
        body = logged.body
        repeats = repeats and not _is_new(body)
        if is_decision(body):
            number += bool(record.approvals)  # none: it was imported, and is one stretch
        elif number != stretch.number or repeats:
            continue
        elif isinstance(body, ToolIntent):
            for call in body.calls:
                made.add(call.id)
                yield ToolCalled(call)
        elif isinstance(body, StepBody):
            if body.step.outcome in ("done", "failed"):
                result = _returned(body.step)
                returned[result.call_id] = result
        elif isinstance(body, MessageBody):
            returned.pop(body.message.tool_call_id or "", None)
            for event in _said(body, made, record):
                yield event
    for result in returned.values():
        if result.call_id in made:
            yield result


def _is_new(body: Body) -> bool:
    """Whether a request repeats nothing from here on: it called the model or, in a fork's copy, tools."""
    if isinstance(body, MessageBody):
        return bool(body.made)
    return isinstance(body, StepBody) and body.step.kind == "model"


def _returned(step: Step) -> ToolReturned:
    """What a tool has returned, according to its step, which has only the beginning of a long output."""
    call_id, output = (step.input or {}).get("call_id", ""), (step.output or {}).get("output", "")
    return ToolReturned(str(call_id), step.name, str(output), step.is_error, 0)


def _said(body: MessageBody, made: set[str], record: RequestRecord) -> Iterator[Event]:
    message = body.message
    if message.role == "assistant" and message.text:
        yield Paused(None)  # ends what was said before: an imported or copied request keeps no other pause
        yield TextDelta(message.text, record.finish_reason == "refusal" and not message.tool_calls)
    for call in body.made:
        made.add(call.id)
        yield ToolCalled(call)
    if message.role == "tool" and message.tool_call_id in made:
        call_id, tool = message.tool_call_id or "", message.tool or ""
        yield ToolReturned(call_id, tool, message.text, message.is_error, 0)
