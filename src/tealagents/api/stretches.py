"""A request, cut at its pauses: a stretch runs from the message, or a decision, to the next pause or the end.

For protocols in which a pause ends what was asked for. What is sent live, and replayed for a day, are the
recorded events; what is read later is made of the history as events of the same kinds, and never expires.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive

from tealagents.api import bodies, requests
from tealagents.api.decisions import CallAnswer, of_calls
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.folding import EventFold
from tealagents.domain.errors import (
    AlreadyExists,
    ApprovalPending,
    InvalidRequest,
    NotFound,
    TaskBusy,
)
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
    Body,
    Caller,
    Failure,
    MessageBody,
    RequestRecord,
    RequestSetup,
    Status,
    StepBody,
    TokenUsage,
    ToolIntent,
)
from tealagents.state import keys
from tealagents.state.decisions import is_decision
from tealagents.state.new_message import Key, NewMessage

F = TypeVar("F", bound=EventFold)


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
    def status(self) -> Status:
        """How it stands. A pause is its end and counts as an answer, unless it can no longer be decided."""
        if self.pause is None:
            return self.record.status
        return "Canceled" if self.pause.status in ("canceled", "expired") else "Completed"

    @property
    def failure(self) -> Failure | None:
        """Why it has ended without an answer."""
        return self.record.error if self.status in ("Failed", "Canceled") else None

    @property
    def setup(self) -> RequestSetup:
        """What its client had set for it: a decision may bring something else for the next one."""
        return (self.pause.setup if self.pause else None) or self.record.setup

    @property
    def typed(self) -> bool:
        """Whether its answer has a format: clients parse all text as that type, and raise where it is not."""
        return self.setup.response_format is not None

    @property
    def created_at(self) -> datetime:
        return (self.before.decided_at if self.before else None) or self.record.created_at

    @property
    def after(self) -> int:
        """The event that it begins behind."""
        return self.before.event_id if self.before else 0

    def spent(self, total: TokenUsage) -> TokenUsage:
        """What it has used, of all that its request has."""
        return total - self.before.usage if self.before else total


async def _pause(exchange: Exchange, view: RequestView, approval_id: str) -> Approval:
    """A pause of a request. `CorruptState` where the request names one that is gone."""
    records, key = exchange.records, keys.approval(approval_id)
    return (await records.named(view.partition, view.record.task_id, key, Approval)).value


async def cut(exchange: Exchange, view: RequestView, number: int | None = None) -> Stretch:
    """A stretch of a request; None: its last. `NotFound` where it has fewer.

    A request that was imported is one, under the numbers of all that it had: its pauses stayed behind.
    """
    approvals = view.record.approvals
    wanted = len(approvals) + 1 if number is None else number
    if 1 < wanted <= view.record.imported_pauses + 1:
        wanted = 1
    around = [
        await _pause(exchange, view, approvals[n]) if 0 <= n < len(approvals) else None
        for n in (wanted - 2, wanted - 1)
    ]
    before, after = around
    if wanted != 1 and (before is None or before.status != "decided"):
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
    setup: RequestSetup | None = None,
    streamed: bool,
) -> Stretch:
    """Carries out what was decided of a pause, once; the stretch that begins with it.

    `answers` are by the places of its calls: `ApprovalPending` where one is omitted. `setup`, if given,
    holds for the request from here on. `InvalidRequest` names the fields of the answers as they were sent.
    """
    if pause.status == "pending" and len(answers) < len(pause.calls):
        raise ApprovalPending(approval_id=pause.approval_id, request_id=pause.request_id)
    command = replace(of_calls(pause, answers), setup=setup)
    sent = {f"decisions.{n}": each.field for n, each in enumerate(answers.values()) if each.field}
    async with bodies.fields_as(**sent):
        view = await exchange.decide(caller, pause.request_id, command, streamed=streamed)
    with _forgotten_unanswered(exchange, view):
        return await cut(exchange, view, view.record.approvals.index(pause.approval_id) + 2)


@asynccontextmanager
async def settled(exchange: Exchange, stretch: Stretch, receive: Receive) -> AsyncIterator[Stretch]:
    """The stretch as it ended, as `requests.settled`; then it is erased if it was not to be stored."""
    with _forgotten_unanswered(exchange, stretch.view):
        view = await requests.settled(exchange, stretch.view, receive)
        yield await cut(exchange, view, stretch.number)
    if requests.is_unstored(view.record):
        await requests.forget(exchange, view)


@contextmanager
def _forgotten_unanswered(exchange: Exchange, view: RequestView) -> Iterator[None]:
    """A request that was not to be stored is erased, too, where its client does not get the answer."""
    try:
        yield
    except BaseException:
        if requests.is_unstored(view.record):
            exchange.in_background(requests.forget(exchange, view))
        raise


async def canceled(exchange: Exchange, stretch: Stretch) -> Stretch:
    """The stretch once its request is canceled, where that waits or is under way."""
    pending = stretch.pause is not None and stretch.pause.status == "pending"
    if stretch.status in ENDED and not pending:
        return stretch
    record = await exchange.cancel(stretch.view.caller, stretch.record.request_id)
    return await cut(exchange, replace(stretch.view, record=record), stretch.number)


async def deleted(exchange: Exchange, stretch: Stretch, whole: str) -> None:
    """Erases the task of a stretch, with what was said in it before. `AlreadyExists` where it holds more.

    That error names the `whole`.
    """
    record, partition, erased = stretch.record, stretch.view.partition, False
    while not erased:
        stored = await exchange.tasks.head(partition, record.task_id)
        async with aclosing(requests.of_task(exchange, partition, stored.value, sys.maxsize)) as newest_first:
            async for each in newest_first:
                before = each.resent and each.first_seq < record.first_seq
                if each.request_id != record.request_id and not before:
                    raise AlreadyExists(
                        f"It is part of {whole}, which holds others, or items that were added behind it. "
                        "Delete that to erase them all."
                    )
        erased = await exchange.eraser.delete_as_read(partition, stored)


async def continued(
    exchange: Exchange, stretch: Stretch, message: NewMessage, key: Key | None, *, field: str, streamed: bool
) -> RequestView:
    """Continues a stretch: in its task where that is the last and idle, else in a branch of it.

    A request that failed has added nothing: what follows it continues the one before. `ApprovalPending`,
    `TaskBusy`, and `InvalidRequest`, which names `field`, where it is not to be continued.
    """
    record, pause, caller = stretch.record, stretch.pause, stretch.view.caller
    if pause is not None and pause.status == "pending":
        raise ApprovalPending(approval_id=pause.approval_id).with_ids(**record.ids)
    if pause is not None and pause.status == "decided":
        raise InvalidRequest(
            field, "ended in calls that were answered: continue from the response to the answers"
        )
    if record.status not in ENDED:
        raise TaskBusy("The response is in progress.", **record.ids)
    checkpoint = record.request_id if record.status == "Completed" else record.parent
    partition = stretch.view.partition
    head = (await exchange.tasks.head(partition, record.task_id)).value
    message = await requests.added(exchange, partition, head, message, field)
    if head.idle and head.checkpoint_id == checkpoint and message.expires_at is None:
        with suppress(TaskBusy):
            at_tip = replace(message, at_checkpoint=checkpoint)
            return await exchange.submit(caller, at_tip, key, streamed=streamed)
    return await exchange.branch(caller, record, message, key, streamed=streamed)


# --- what was recorded ---------------------------------------------------------------------------


async def recorded(exchange: Exchange, stretch: Stretch) -> AsyncGenerator[Sequence[Recorded]]:
    """The recorded events of a stretch, to the one that ends it.

    A pause that was decided is not among them any more; it is put where it was. Of what was imported or
    copied nothing was recorded here: its events are made of the history.
    """
    if stretch.record.imported or stretch.record.copied:
        yield [Recorded(n, event) for n, event in enumerate(await _events(exchange, stretch), 1)]
        return
    last, end = stretch.after, stretch.pause
    async with aclosing(exchange.follow(replace(stretch.view, after=last))) as events:
        async for batch in events:
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


def check_kept(exchange: Exchange, stretch: Stretch, field: str) -> None:
    """`InvalidRequest`, naming `field`, where the recorded events of a stretch are no longer there."""
    try:
        exchange.replay(stretch.view, after=0)
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
    forgets = forgets and requests.is_unstored(stretch.record)
    # not by the events themselves: a generator that its client did not wait for never starts, nor ends
    on_end = (lambda: exchange.in_background(requests.forget(exchange, view))) if forgets else None
    return exchange.stream(view, fold, headers=headers, events=events, on_end=on_end)


async def _decided(exchange: Exchange, stretch: Stretch) -> Approval:
    """The pause of a stretch that was decided while its events were followed."""
    view = stretch.view
    record = (await exchange.tasks.request(view.partition, view.record.request_id)).value
    return await _pause(exchange, view, record.approvals[stretch.number - 1])


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
    repeats = record.retries is not None  # what a request does again, it does not say again
    async for logged in exchange.history.forwards(partition, record.task_id, record.entries(tail)):
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
        elif isinstance(body, MessageBody) and body.message.request_id == record.request_id:
            for event in _said(body, made, record):
                yield event


def _is_new(body: Body) -> bool:
    """Whether a request repeats nothing from here on: it called the model or, in a fork's copy, tools."""
    if isinstance(body, MessageBody):
        return bool(body.made)
    return isinstance(body, StepBody) and body.step.kind == "model"


def _said(body: MessageBody, made: set[str], record: RequestRecord) -> Iterator[Event]:
    message = body.message
    if message.role == "assistant" and message.text:
        yield TextDelta(message.text, record.finish_reason == "refusal" and not message.tool_calls)
    for call in body.made:
        made.add(call.id)
        yield ToolCalled(call)
    if message.role == "tool" and message.tool_call_id in made:
        call_id, tool = message.tool_call_id or "", message.tool or ""
        yield ToolReturned(call_id, tool, message.text, message.is_error, 0)
