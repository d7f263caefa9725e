"""Carrying out what was sent: a message to a new or a known conversation, or the answers to a pause."""

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from tealagents.api import requests, stretches
from tealagents.api.exchange import Exchange, RequestView, key_of
from tealagents.api.openai import names
from tealagents.api.openai.inputs import CallAnswer, CreateResponse, Input
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import ApprovalPending, InvalidRequest, NotFound, NotOwner, TaskBusy
from tealagents.domain.models import ENDED, Approval, Caller
from tealagents.engine.approvals import CallDecision, Command
from tealagents.state import keys
from tealagents.state.submission import Key, NewMessage

#: what was not to be stored is gone by then, even if the process dies before it can erase it
UNSTORED_KEPT = timedelta(days=1)
_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?", re.ASCII)


class Begun(Struct, frozen=True):
    """What was sent, under way: the stretch of a request that answers it."""

    stretch: Stretch

    @property
    def view(self) -> RequestView:
        return self.stretch.view

    @property
    def unstored(self) -> bool:
        """The client asked for its conversation to be erased after the end."""
        return self.view.record.client.get("store") is False

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self.stretch)

    async def ended(self, exchange: Exchange, request: Request) -> Stretch:
        """The stretch as it ended."""
        view = await requests.settled(exchange, self.view, request.receive)
        return await stretches.cut(exchange, view, self.stretch.number)


def headers_of(stretch: Stretch) -> dict[str, str]:
    """What the SDKs show as a response's request id; and whether it is an earlier outcome."""
    replayed = {"idempotent-replayed": "true"} if stretch.view.replayed else {}
    return {"x-request-id": stretch.record.request_id, **replayed}


async def forget(exchange: Exchange, begun: Begun) -> None:
    """Erases a conversation that was not to be stored, once its request has ended."""
    record = await exchange.outcome(begun.view)
    if record.status in ENDED:
        await exchange.eraser.delete_task(begun.view.partition, record.task_id)


# --- what ids name -------------------------------------------------------------------------------


async def find(exchange: Exchange, caller: Caller, identifier: str) -> Stretch:
    """The response with this id. `NotFound`, also where it is another user's."""
    request_id, number = names.read("response", identifier, "resp")
    try:
        return await stretches.cut(exchange, await requests.own(exchange, caller, request_id), number)
    except (NotFound, NotOwner):
        raise names.unknown("response", identifier) from None


async def owned(exchange: Exchange, caller: Caller, task_id: str) -> str:
    """The partition of a task that the caller may change. `NotFound`, also where it is another user's."""
    try:
        partition = await exchange.locate(caller, keys.task, task_id)
        await exchange.tasks.head(partition, task_id)
    except (NotFound, NotOwner):
        raise names.unknown("conversation", names.made("conv", task_id)) from None
    return partition


# --- sending -------------------------------------------------------------------------------------


async def send(
    exchange: Exchange, caller: Caller, request: Request, value: Any, body: CreateResponse, given: Input
) -> Begun:
    """Stores what was sent and begins to answer it. `value` is what an idempotency key stands for."""
    streamed = bool(body.stream or body.background)
    if given.approval_id:
        return Begun(await _decide(exchange, caller, given, streamed=streamed))
    message, key = _message(exchange, body, given), _key(request, value)
    if body.previous_response_id is not None:
        view = await _continue(exchange, caller, message, body.previous_response_id, key, streamed=streamed)
    else:
        if (conversation := body.conversation_id) is not None:
            task_id, _ = names.read("conversation", conversation, "conv", numbered=False)
            await owned(exchange, caller, task_id)
            message = _added(message, task_id)
        view = await exchange.submit(caller, message, key, streamed=streamed)
    return Begun(await stretches.cut(exchange, view, 1))


def _key(request: Request, value: Any) -> Key | None:
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise InvalidRequest("Idempotency-Key", "must be one text of 1 to 255 printable ASCII characters")
    return key_of(given[0], value)


def _message(exchange: Exchange, body: CreateResponse, given: Input) -> NewMessage:
    """The message; what this API alone knows of it is kept with its request."""
    kept = {"metadata": body.metadata, "previous": body.previous_response_id}
    flags = {"background": body.background or None, "store": False if body.store is False else None}
    now = exchange.tasks.records.clock.now()
    return NewMessage(
        items=given.items,
        earlier=given.earlier,
        instructions="\n\n".join(filter(None, (body.instructions, *given.instructions))),
        client_tools=tuple(tool.declared() for tool in body.tools or ()),
        metadata=dict(body.metadata or {}),
        client={name: value for name, value in {**kept, **flags}.items() if value is not None},
        expires_at=now + UNSTORED_KEPT if body.store is False else None,
    )


def _added(message: NewMessage, task_id: str) -> NewMessage:
    """The message for a conversation that is there."""
    if message.earlier:
        raise InvalidRequest("input", "brings messages of the assistant; the conversation has its own")
    return replace(message, task_id=task_id)


async def _continue(
    exchange: Exchange, caller: Caller, message: NewMessage, previous: str, key: Key | None, *, streamed: bool
) -> RequestView:
    """Goes on from a response: in its conversation where that is the last and idle, else in a branch of it.

    A response that failed has added nothing: what follows it continues the one before.
    """
    stretch = await find(exchange, caller, previous)
    record, pause = stretch.record, stretch.pause
    if pause is not None and pause.status == "pending":
        raise ApprovalPending(approval_id=pause.approval_id).with_ids(**record.ids)
    if pause is not None and pause.status == "decided":
        answered = "ended in calls that were answered: continue from the response to the answers"
        raise InvalidRequest("previous_response_id", answered)
    if record.status not in ENDED:
        raise TaskBusy("The response is in progress.", **record.ids)
    checkpoint = record.request_id if record.status == "Completed" else record.parent
    message = replace(_added(message, record.task_id), at_checkpoint=checkpoint)
    head = (await exchange.tasks.head(stretch.view.partition, record.task_id)).value
    idle = head.running is None and head.pending is None and not head.queue
    if idle and head.checkpoint_id == checkpoint and message.expires_at is None:
        with suppress(TaskBusy):
            return await exchange.submit(caller, message, key, streamed=streamed)
    if checkpoint is None:
        raise InvalidRequest("previous_response_id", "failed at once, and there is nothing to branch from")
    message = replace(message, at_checkpoint=None)
    task_id = record.task_id
    return await exchange.branch(caller, task_id, message, key, checkpoint_id=checkpoint, streamed=streamed)


# --- answering a pause ---------------------------------------------------------------------------


async def _decide(exchange: Exchange, caller: Caller, given: Input, *, streamed: bool) -> Stretch:
    """Answers the calls of a pause; answered the same before, it is what came of it."""
    try:
        partition = await exchange.locate(caller, keys.approval, given.approval_id)
        pause = await stretches.pause(exchange, partition, given.approval_id)
    except (NotFound, NotOwner):
        raise names.unknown("call", given.approval_id) from None
    decisions = tuple(_decision(pause, n, answer) for n, answer in given.answers.items())
    for n in range(len(pause.calls)):
        if n not in given.answers:
            missing = f"answers only some of the calls that wait: {pause.calls[n].tool} waits, too"
            raise InvalidRequest("input", missing)
    reasons = [answer.reason for answer in given.answers.values() if answer.reason]
    command = Command(decisions=decisions, approval_id=pause.approval_id, reason="; ".join(reasons) or None)
    view = await exchange.decide(caller, pause.request_id, command, streamed=streamed)
    return await stretches.cut(exchange, view, view.record.approvals.index(pause.approval_id) + 2)


def _decision(pause: Approval, n: int, answer: CallAnswer) -> CallDecision:
    if n >= len(pause.calls):
        raise names.unknown("call", names.made("call", pause.approval_id, n))
    call = pause.calls[n]
    if call.by_client is not (answer.output is not None):
        kind = "a function_call_output" if call.by_client else "an mcp_approval_response"
        raise InvalidRequest("input", f"must answer {call.tool} with {kind}")
    if answer.output is not None:
        return CallDecision(call.id, output=answer.output)
    return CallDecision(call.id, "approve" if answer.approve else "reject")
