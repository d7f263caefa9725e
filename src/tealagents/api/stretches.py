"""A request, cut at its pauses: a stretch runs from the message, or a decision, to the next pause or the end.

For protocols in which a pause ends what was asked for. What is sent live, and replayed for a day, are the
recorded events; what is read later is made of the history as events of the same kinds, and never expires.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from tealagents.api import requests
from tealagents.api.decisions import CallAnswer, of_calls
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain.errors import ApprovalPending, CorruptState, NotFound, TealError
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
    Approval,
    Caller,
    Message,
    MessageBody,
    RequestRecord,
    StepBody,
    ToolIntent,
)
from tealagents.state import keys


class Stretch(Struct, frozen=True, kw_only=True):
    """A part of a request between two pauses."""

    view: RequestView
    #: which of the request's stretches it is, from 1
    number: int
    #: the decided pause that it begins with
    before: Approval | None
    #: the pause that it ends with, if it has come to it
    pause: Approval | None

    @property
    def record(self) -> RequestRecord:
        return self.view.record

    @property
    def after(self) -> int:
        """The event that it begins behind."""
        return self.before.event_id if self.before else 0


async def pause(exchange: Exchange, partition: str, approval_id: str) -> Approval:
    """A pause of a request. `CorruptState` where a request names one that is gone."""
    found = await requests.find_pause(exchange, partition, approval_id)
    if found is None:
        raise CorruptState(keys.approval(approval_id), "is missing")
    return found


async def cut(exchange: Exchange, view: RequestView, number: int | None = None) -> Stretch:
    """A stretch of a request; None: its last. `NotFound` where it has fewer."""
    approvals = view.record.approvals
    wanted = len(approvals) + 1 if number is None else number
    around = [
        await pause(exchange, view.partition, approvals[n]) if 0 <= n < len(approvals) else None
        for n in (wanted - 2, wanted - 1)
    ]
    before, after = around
    if wanted > 1 and (before is None or before.status != "decided"):
        if number is None:
            return await cut(exchange, view, len(approvals))
        raise NotFound(f"The request {view.record.request_id} has no part {wanted}.")
    return Stretch(view=view, number=wanted, before=before, pause=after)


async def decided(
    exchange: Exchange,
    caller: Caller,
    pause: Approval,
    answers: Mapping[int, CallAnswer],
    *,
    streamed: bool,
) -> Stretch:
    """Carries out what was decided of a pause, once; the stretch that begins with it.

    `answers` are by the places of its calls: `ApprovalPending` where one is left out.
    """
    if len(answers) < len(pause.calls):
        raise ApprovalPending(approval_id=pause.approval_id, request_id=pause.request_id)
    command = of_calls(pause, answers)
    view = await exchange.decide(caller, pause.request_id, command, streamed=streamed)
    return await cut(exchange, view, view.record.approvals.index(pause.approval_id) + 2)


# --- what was recorded ---------------------------------------------------------------------------


async def recorded(exchange: Exchange, stretch: Stretch) -> AsyncIterator[Sequence[Recorded]]:
    """The recorded events of a stretch, to the one that ends it.

    A pause that was decided is not among them any more; it is put where it was.
    """
    last, end = stretch.after, stretch.pause
    async for batch in exchange.follow(replace(stretch.view, after=last)):
        kept: list[Recorded] = []
        for each in batch:
            beyond = end is not None and each.id >= end.event_id
            # a request that waited its turn starts twice, too, but without an event between
            if beyond or (isinstance(each.event, Started) and each.id > last + 1):
                end = end or await _decided(exchange, stretch)
                yield [*kept, Recorded(end.event_id, Paused(end))]
                return
            kept.append(each)
            last = each.id
            if end is not None and each.id == end.event_id - 1:
                yield [*kept, Recorded(end.event_id, Paused(end))]
                return
        yield kept


class StretchFold(Protocol):
    """What a protocol makes of the events of a stretch."""

    def __call__(self, recorded: Recorded) -> bytes: ...

    def failed(self, error: TealError) -> bytes:
        """The end, where what happened cannot be reported."""


def stream(
    exchange: Exchange, stretch: Stretch, fold: StretchFold, headers: Mapping[str, str] | None = None
) -> Response:
    """The events of a stretch as server-sent events."""
    events = recorded(exchange, stretch)
    return exchange.stream(stretch.view, fold, fold.failed, headers=headers, events=events)


async def _decided(exchange: Exchange, stretch: Stretch) -> Approval:
    """The pause of a stretch that was decided while its events were followed."""
    view = stretch.view
    record = (await exchange.tasks.request(view.partition, view.record.request_id)).value
    return await pause(exchange, view.partition, record.approvals[stretch.number - 1])


async def told(exchange: Exchange, stretch: Stretch) -> list[Event]:
    """The events of a stretch as far as the history holds them: text comes in one piece."""
    record = stretch.record
    if record.status == "Queued":
        return [Started("Queued")]
    events: list[Event] = [Started()]
    # without an event between the first and the last there was no tool call, and the record says it all
    if record.status != "Completed" or record.approvals or record.last_event > 2:
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
    last = record.last_seq or (await exchange.tasks.head(partition, record.task_id)).value.tail_seq
    number, made = 1, set[str]()
    path = ((record.first_seq, last),)
    async for logged in exchange.history.forwards(partition, record.task_id, path):
        body = logged.body
        if isinstance(body, StepBody) and body.step.kind == "approval" and body.step.name == "decided":
            number += 1
        elif number != stretch.number:
            continue
        elif isinstance(body, ToolIntent):
            for call in body.calls:
                made.add(call.id)
                yield ToolCalled(call)
        elif isinstance(body, MessageBody) and (event := _said(body.message, made, record)) is not None:
            yield event


def _said(message: Message, made: set[str], record: RequestRecord) -> Event | None:
    if message.request_id != record.request_id:
        return None
    if message.role == "assistant" and message.text:
        return TextDelta(message.text, record.finish_reason == "refusal" and not message.tool_calls)
    if message.role == "tool" and message.tool_call_id in made:
        call_id, tool = message.tool_call_id or "", message.tool or ""
        return ToolReturned(call_id, tool, message.text, message.is_error, 0)
    return None
