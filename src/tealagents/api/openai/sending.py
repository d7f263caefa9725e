"""Carrying out what was sent: a message to a new or a known conversation, or the answers to a pause."""

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from tealagents.api.exchange import Exchange, RequestView, key_of
from tealagents.api.openai import names, stretches
from tealagents.api.openai.inputs import Answer, ConversationRef, CreateResponse, Input
from tealagents.domain.errors import (
    ApprovalPending,
    InvalidRequest,
    NotFound,
    NotOwner,
    TaskBusy,
    TealError,
)
from tealagents.domain.models import ENDED, Approval, Caller
from tealagents.engine.approvals import CallDecision, Command
from tealagents.state import keys
from tealagents.state.submission import Key, NewMessage

#: what was not to be stored is gone by then, even if the process dies before it can erase it
UNSTORED_KEPT = timedelta(days=1)
_IDEMPOTENCY_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?", re.ASCII)


class Way(Struct, frozen=True, kw_only=True):
    """How an answer is made: followed or left to be, and under which key."""

    streamed: bool
    key: Key | None = None


def key(request: Request, value: Any) -> Key | None:
    """The idempotency key of a request with this body, or None."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _IDEMPOTENCY_KEY.fullmatch(given[0]):
        raise InvalidRequest("Idempotency-Key", "must be one text of 1 to 255 printable ASCII characters")
    return key_of(given[0], value)


class Begun(Struct, frozen=True):
    """What was sent, under way: a request, and which of its responses this is."""

    view: RequestView
    number: int

    @property
    def unstored(self) -> bool:
        """The client asked for its conversation to be erased after the end."""
        return self.view.record.client.get("store") is False


async def send(exchange: Exchange, caller: Caller, body: CreateResponse, given: Input, way: Way) -> Begun:
    """Stores what was sent and begins to answer it."""
    if given.approval_id:
        return await _decide(exchange, caller, given, way)
    message = _message(exchange, body, given)
    if body.previous_response_id is not None:
        return Begun(await _continue(exchange, caller, message, body.previous_response_id, way), 1)
    if body.conversation is not None:
        task_id, _ = await task_of(exchange, caller, _id_of(body.conversation))
        message = _added(message, task_id)
    return Begun(await exchange.submit(caller, message, way.key, streamed=way.streamed), 1)


def _message(exchange: Exchange, body: CreateResponse, given: Input) -> NewMessage:
    """The message; what this API alone knows of it is kept with its request."""
    kept = {
        "metadata": body.metadata,
        "previous": body.previous_response_id,
        "background": body.background or None,
        "store": False if body.store is False else None,
    }
    now = exchange.tasks.records.clock.now()
    return NewMessage(
        items=given.items,
        earlier=given.earlier,
        instructions="\n\n".join(filter(None, (body.instructions, *given.instructions))),
        client_tools=tuple(tool.declared() for tool in body.tools or ()),
        metadata=dict(body.metadata or {}),
        client={name: value for name, value in kept.items() if value is not None},
        expires_at=now + UNSTORED_KEPT if body.store is False else None,
    )


def _added(message: NewMessage, task_id: str) -> NewMessage:
    """The message for a conversation that is there."""
    if message.earlier:
        raise InvalidRequest("input", "brings messages of the assistant; the conversation has its own")
    return replace(message, task_id=task_id)


def _id_of(conversation: str | ConversationRef) -> str:
    return conversation if isinstance(conversation, str) else conversation.id


async def task_of(exchange: Exchange, caller: Caller, conversation: str) -> tuple[str, str]:
    """The task that a conversation stands for, and its partition. `NotFound`, also where it is another's."""
    task_id = names.read_conversation(conversation)
    try:
        partition = await exchange.locate(caller, keys.task, task_id)
        await exchange.tasks.head(partition, task_id)
    except (NotFound, NotOwner):
        raise names.unknown("conversation", conversation) from None
    return task_id, partition


async def _continue(
    exchange: Exchange, caller: Caller, message: NewMessage, previous: str, way: Way
) -> RequestView:
    """Goes on from a response: in its conversation where that is the last and idle, else in a branch of it.

    A response that failed has added nothing: what follows it continues the one before.
    """
    stretch = await stretches.find(exchange, caller, previous)
    record, partition = stretch.record, stretch.view.partition
    if stretch.pause is not None and stretch.pause.status != "canceled":
        raise _paused(stretch)
    if record.status not in ENDED:
        raise TaskBusy("The response is in progress.", **record.ids)
    checkpoint = record.request_id if record.status == "Completed" else record.parent
    message = replace(_added(message, record.task_id), at_checkpoint=checkpoint)
    head = (await exchange.tasks.head(partition, record.task_id)).value
    idle = head.running is None and head.pending is None and not head.queue
    unstored = message.expires_at is not None
    if idle and head.checkpoint_id == checkpoint and not unstored:
        with suppress(TaskBusy):
            return await exchange.submit(caller, message, way.key, streamed=way.streamed)
    if checkpoint is None:
        raise InvalidRequest("previous_response_id", "failed at once, and there is nothing to branch from")
    message = replace(message, at_checkpoint=None)
    return await exchange.branch(
        caller, record.task_id, message, way.key, checkpoint_id=checkpoint, streamed=way.streamed
    )


def _paused(stretch: stretches.Stretch) -> TealError:
    """Why a message cannot follow a response that ended in a pause."""
    pause = stretch.pause
    if pause is not None and pause.status == "pending":
        error = ApprovalPending(approval_id=pause.approval_id)
        return error.with_ids(**stretch.record.ids)
    return InvalidRequest(
        "previous_response_id", "ended in calls that were answered: continue from the response to the answers"
    )


async def _decide(exchange: Exchange, caller: Caller, given: Input, way: Way) -> Begun:
    """Answers the calls of a pause; answered the same before, it is what came of it."""
    try:
        partition = await exchange.locate(caller, keys.approval, given.approval_id)
        pause = await stretches.pause(exchange, partition, given.approval_id)
    except (NotFound, NotOwner):
        raise names.unknown("call", given.approval_id) from None
    command = Command(
        decisions=tuple(_decision(pause, n, answer) for n, answer in given.answers.items()),
        approval_id=pause.approval_id,
        reason="; ".join(answer.reason for answer in given.answers.values() if answer.reason) or None,
    )
    missing = [
        names.item("mcpr", pause.approval_id, n) for n in range(len(pause.calls)) if n not in given.answers
    ]
    if missing:
        raise InvalidRequest("input", f"answers only some of the calls that wait: {missing[0]} waits, too")
    view = await exchange.decide(caller, pause.request_id, command, streamed=way.streamed)
    return Begun(view, view.record.approvals.index(pause.approval_id) + 2)


def _decision(pause: Approval, n: int, answer: Answer) -> CallDecision:
    if n >= len(pause.calls):
        raise names.unknown("call", names.item("call", pause.approval_id, n))
    call = pause.calls[n]
    if call.by_client and answer.output is None:
        raise InvalidRequest("input", f"must hold the function_call_output of {call.tool}")
    if not call.by_client and answer.approve is None:
        raise InvalidRequest("input", f"must hold an mcp_approval_response for {call.tool}")
    if answer.output is not None:
        return CallDecision(call.id, output=answer.output)
    return CallDecision(call.id, "approve" if answer.approve else "reject")


async def forget(exchange: Exchange, begun: Begun) -> None:
    """Erases a conversation that was not to be stored, once its request has ended."""
    record = await exchange.outcome(begun.view)
    if record.status in ENDED:
        await exchange.eraser.delete_task(begun.view.partition, record.task_id)
