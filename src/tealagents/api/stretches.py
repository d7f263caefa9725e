"""A request, cut at its pauses: a stretch runs from the message, or a decision, to the next pause or the end.

For protocols in which a pause ends what was asked for. Its events are in `replay`.
"""

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive

from tealagents.api import bodies, requests, unstored
from tealagents.api.decisions import CallAnswer, of_calls
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain.errors import (
    AlreadyExists,
    ApprovalPending,
    InvalidRequest,
    NotFound,
    TaskBusy,
)
from tealagents.domain.models import (
    ENDED,
    Approval,
    Caller,
    Failure,
    Head,
    Message,
    RequestRecord,
    RequestSetup,
    Status,
    TokenUsage,
)
from tealagents.state import keys
from tealagents.state.history import Round
from tealagents.state.new_message import Key, NewMessage


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
        """Why the stretch ended without an answer."""
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
        """The id of the event after which the stretch begins."""
        return self.before.event_id if self.before else 0

    def spent(self, total: TokenUsage) -> TokenUsage:
        """The stretch's own usage, given the `total` of its request so far."""
        return total - self.before.usage if self.before else total


async def _pause(exchange: Exchange, view: RequestView, approval_id: str) -> Approval:
    """A pause of a request. `CorruptState` where the request names one that is gone."""
    records, key = exchange.records, keys.approval(approval_id)
    return (await records.named(view.partition, view.record.task_id, key, Approval)).value


async def decided_pause(exchange: Exchange, stretch: Stretch) -> Approval:
    """The pause of a stretch that was decided while its events were followed."""
    view = stretch.view
    record = (await exchange.tasks.request(view.partition, view.record.request_id)).value
    return await _pause(exchange, view, record.approvals[stretch.number - 1])


async def cut(exchange: Exchange, view: RequestView, number: int | None = None) -> Stretch:
    """A stretch of a request; None: its last. `NotFound` where it has fewer.

    An imported request is a single stretch, because its pauses are not imported; each of its former numbers
    names that one.
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

    `answers` are by the indexes of its calls: `ApprovalPending` where one is omitted. `setup`, if given,
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
    if view.record.is_unstored:
        await unstored.forget(exchange, view)


@contextmanager
def _forgotten_unanswered(exchange: Exchange, view: RequestView) -> Iterator[None]:
    """A request that was not to be stored is erased, too, where its client does not get the answer."""
    try:
        yield
    except BaseException:
        if view.record.is_unstored:
            exchange.in_background(unstored.forget(exchange, view))
        raise


async def canceled(exchange: Exchange, stretch: Stretch) -> Stretch:
    """The stretch once its request is canceled, where that waits or is under way."""
    pending = stretch.pause is not None and stretch.pause.status == "pending"
    if stretch.status in ENDED and not pending:
        return stretch
    record = await exchange.cancel(stretch.view.caller, stretch.record.request_id)
    return await cut(exchange, replace(stretch.view, record=record), stretch.number)


async def deleted(exchange: Exchange, stretch: Stretch, whole: str) -> None:
    """Erases the task of a stretch, and the resent messages before it.

    `AlreadyExists`, naming the `whole` conversation, if the task holds other requests.
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


async def resent_before(exchange: Exchange, stretch: Stretch) -> Round:
    """The messages right before that of a stretch that its client sent again, or added; it may hold none."""
    record, partition, messages = stretch.record, stretch.view.partition, list[Message]()
    if stretch.before is None:
        found = await exchange.tasks.request_of(partition, record.task_id, record.parent)
        if found is not None and found.resent:
            record = found
            messages = await exchange.history.messages_of(partition, record, record.last_seq)
    return Round(request_id=record.request_id, first_seq=record.first_seq, messages=tuple(messages))


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
    message = await added(exchange, partition, head, message, field)
    if head.idle and head.checkpoint_id == checkpoint and message.expires_at is None:
        with suppress(TaskBusy):
            at_tip = replace(message, at_checkpoint=checkpoint)
            return await exchange.submit(caller, at_tip, key, streamed=streamed)
    return await exchange.branch(caller, record, message, key, streamed=streamed)


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
        async with aclosing(requests.of_task(exchange, partition, head)) as newest_first:
            async for record in newest_first:
                if record.is_unstored:
                    raise InvalidRequest(field, "was not stored: send the earlier messages instead")
    return replace(message, task_id=head.task_id)
