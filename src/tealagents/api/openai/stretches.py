"""A request, cut at its pauses: each stretch of it is one response.

What is sent live, and replayed for a day, are the recorded events. What is read later is made from the
history by the same fold, and never expires.
"""

from collections.abc import AsyncIterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.openai import names
from tealagents.api.openai.documents import About, answer, user_message
from tealagents.api.openai.fold import UNSEEN, Fold
from tealagents.domain.errors import CorruptState, NotFound, NotOwner
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
    Json,
    Message,
    MessageBody,
    RequestRecord,
    StepBody,
    ToolIntent,
)
from tealagents.state import keys


class Stretch(Struct, frozen=True, kw_only=True):
    """One response: a request from its message, or from a decision, to its next pause or its end."""

    view: RequestView
    number: int
    #: the decided pause that it begins with
    before: Approval | None
    #: the pause that it ends with, if it has come to it
    pause: Approval | None

    @property
    def record(self) -> RequestRecord:
        return self.view.record

    @property
    def response_id(self) -> str:
        return names.response(self.record.request_id, self.number)

    @property
    def status(self) -> str:
        """The status of the response, in this API's words."""
        if self.pause is not None:
            return "cancelled" if self.pause.status in ("canceled", "expired") else "completed"
        return _STATUSES[self.record.status]

    def about(self, exchange: Exchange) -> About:
        record, before = self.record, self.before
        kept, previous = record.client, None
        if before is not None:
            previous = names.response(record.request_id, self.number - 1)
        return About(
            response_id=self.response_id,
            request_id=record.request_id,
            task_id=record.task_id,
            number=self.number,
            agent=exchange.agent.name,
            created_at=(before.decided_at if before else None) or record.created_at,
            before=before,
            previous=previous or kept.get("previous"),
            instructions=record.instructions,
            client_tools=record.client_tools,
            metadata=kept.get("metadata") or {},
            background=kept.get("background", False),
            store=kept.get("store", True),
        )


_OVER = ("completed", "failed", "cancelled")
_STATUSES = {
    "Queued": "queued",
    "Running": "in_progress",
    "Paused": "in_progress",
    "Completed": "completed",
    "Failed": "failed",
    "Canceled": "cancelled",
}


async def pause(exchange: Exchange, partition: str, approval_id: str) -> Approval:
    """A pause of a request. `CorruptState` where a request names one that is gone."""
    key = keys.approval(approval_id)
    found = await exchange.service.records.get(partition, key, Approval)
    if found is None:
        raise CorruptState(key, "is missing")
    return found.value


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
        raise names.unknown("response", names.response(view.record.request_id, wanted))
    return Stretch(view=view, number=wanted, before=before, pause=after)


async def find(exchange: Exchange, caller: Caller, identifier: str) -> Stretch:
    """The response with this id. `NotFound`, also where it is another user's."""
    named = names.read_response(identifier)
    try:
        return await cut(exchange, await exchange.request(caller, named.uuid), named.number)
    except (NotFound, NotOwner):
        raise names.unknown("response", identifier) from None


# --- what was recorded ---------------------------------------------------------------------------


async def recorded(exchange: Exchange, stretch: Stretch) -> AsyncIterator[Sequence[Recorded]]:
    """The recorded events of a stretch, to the one that ends it.

    A pause that was decided is not among them any more; it is put where it was.
    """
    first, end = stretch.before.event_id if stretch.before else 0, stretch.pause
    async for batch in exchange.follow(replace(stretch.view, after=first)):
        kept: list[Recorded] = []
        for each in batch:
            beyond = end is not None and each.id >= end.event_id
            if beyond or (isinstance(each.event, Started) and each.id > first + 1):
                end = end or await _decided(exchange, stretch)
                yield [*kept, Recorded(end.event_id, Paused(end))]
                return
            kept.append(each)
            if end is not None and each.id == end.event_id - 1:
                yield [*kept, Recorded(end.event_id, Paused(end))]
                return
        yield kept


async def _decided(exchange: Exchange, stretch: Stretch) -> Approval:
    """The pause of a stretch that was decided while its events were followed."""
    view = stretch.view
    record = (await exchange.tasks.request(view.partition, view.record.request_id)).value
    return await pause(exchange, view.partition, record.approvals[stretch.number - 1])


# --- what the history says -----------------------------------------------------------------------


async def document(exchange: Exchange, stretch: Stretch) -> Json:
    """The response as it stands, made from the history."""
    record, about = stretch.record, stretch.about(exchange)
    fold = Fold(about, after=UNSEEN)
    for event in await told(exchange, stretch):
        fold.take(event)
    if fold.response is None or stretch.status not in _OVER:
        return about.response(stretch.status, fold.output)
    ended_at = stretch.pause.created_at if stretch.pause else record.ended_at
    completed = ended_at is not None and fold.response["status"] == "completed"
    return {**fold.response, "completed_at": int(ended_at.timestamp()) if ended_at and completed else None}


async def told(exchange: Exchange, stretch: Stretch) -> list[Event]:
    """The events of a stretch as far as the history tells them: text comes in one piece."""
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


async def inputs(exchange: Exchange, stretch: Stretch) -> list[Json]:
    """What a response was made upon: a message, or what was decided of a pause."""
    record, before = stretch.record, stretch.before
    if before is not None:
        decisions = {decision.id: decision for decision in before.decisions}
        shown = [(n, decisions[call.id]) for n, call in enumerate(before.calls) if call.id in decisions]
        return [answer(before, n, decision) for n, decision in shown]
    if not record.first_seq:
        return []
    path = ((record.first_seq, record.last_seq or record.first_seq),)
    async for logged in exchange.history.forwards(stretch.view.partition, record.task_id, path):
        if isinstance(logged.body, MessageBody) and logged.body.message.role == "user":
            return [user_message(logged.body.message)]
    return []
