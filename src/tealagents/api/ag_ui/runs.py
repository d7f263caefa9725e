"""Carries an input out: decides a pause, continues the thread, replays a run, or shows what there is."""

import re
from collections.abc import Sequence
from contextlib import aclosing, suppress

from starlette.responses import Response

from tealagents.api import requests, stretches, transcripts
from tealagents.api.ag_ui import fold, threads
from tealagents.api.ag_ui.inputs import Given, Said
from tealagents.api.ag_ui.threads import Thread
from tealagents.api.exchange import Exchange, RequestView, key_of
from tealagents.domain.errors import (
    AlreadyExists,
    ApprovalPending,
    IdempotencyKeyReused,
    InvalidRequest,
    NotFound,
    RequestInProgress,
)
from tealagents.domain.models import ENDED, Approval, Caller
from tealagents.engine.approvals import CallDecision, Command
from tealagents.state import keys
from tealagents.state.submission import Key, NewMessage

#: requests that are looked through for a message, where a client has missed so many
MOST_MISSED = 50
_INTERRUPT = re.compile(r"int_([0-9a-f-]{36})_\d+", re.ASCII)


async def run(exchange: Exchange, caller: Caller, given: Given) -> Response:
    """One run of a thread."""
    thread = await threads.find(exchange, caller, given.thread_id)
    fresh = await _fresh(thread, given)
    pause = await _answered(thread, given)
    if pause is not None and (pause.status == "pending" or not fresh):
        view = await exchange.decide(caller, pause.request_id, _command(pause, given), streamed=True)
        if not fresh:
            return await _stream(thread, given, view, view.record.approvals.index(pause.approval_id) + 2)
        await requests.settled(exchange, view)  # the answers come first, and then what was said besides
        thread = await threads.find(exchange, caller, given.thread_id)
    key = key_of(f"ag-ui\0{given.thread_id}\0{given.run_id}", [said.mark for said in given.last])
    if (first := await _first(thread, given, key)) is not None:
        return await _stream(thread, given, first, 1)
    return await (_send(thread, given, fresh, key) if fresh else _join(thread, given))


async def _fresh(thread: Thread, given: Given) -> Sequence[Said]:
    """The messages that are new; or the last one once more, where its request ended without an answer."""
    head, marks = thread.head, [said.mark for said in given.last]
    if head is None or (len(marks) < 2 and head.status in ENDED and head.checkpoint_id == _seen(given)):
        return given.last
    known: dict[str, bool] = {}
    left = MOST_MISSED
    async with aclosing(requests.of_task(thread.exchange, thread.partition, head)) as newest_first:
        async for record in newest_first:
            left -= 1
            if record.request_id == _seen(given) or known.keys() >= set(marks) or not left:
                break
            unanswered = record.status in ("Failed", "Canceled")
            known = {**dict.fromkeys(record.client.get("messages", ()), unanswered), **known}
    fresh = [said for said in given.last if said.mark not in known]
    return given.last[-1:] if not fresh and marks and known[marks[-1]] else fresh


def _seen(given: Given) -> str | None:
    """The request whose answer the client has seen last."""
    return threads.request_of(given.shown[-1])[0] if given.shown else None


# --- pauses --------------------------------------------------------------------------------------


async def _answered(thread: Thread, given: Given) -> Approval | None:
    """The pause that an input answers: the pending one, or one that it answered before.

    Answers to what this thread never asked are passed over, as the protocol wants it; so is a pause that is
    over, where all of it is canceled.
    """
    named = [found[1] for each in given.resume if (found := _INTERRUPT.fullmatch(each))]
    pending = thread.head.pending if thread.head else None
    for approval_id in [*([pending.approval_id] if pending else ()), *reversed(named)]:
        pause = await thread.pause(approval_id)
        if pause is None:
            continue
        if approval_id in named and (pause.status in ("pending", "decided") or any(given.resume.values())):
            return pause
        if pause.status == "pending" and _outputs(pause, given):
            return pause
    return None


def _outputs(pause: Approval, given: Given) -> list[CallDecision]:
    """What the page's own tools have returned."""
    found = ((call, given.outputs.get(threads.call_id(pause.request_id, call.id))) for call in pause.calls)
    return [
        CallDecision(call.id, output=of[0], is_error=of[1]) for call, of in found if of and call.by_client
    ]


def _command(pause: Approval, given: Given) -> Command:
    """All that a pause waits for, decided; `ApprovalPending` where something is left out."""
    decisions, reasons = _outputs(pause, given), []
    for n, call in enumerate(pause.calls):
        identity = threads.interrupt_id(pause.approval_id, n)
        if not call.by_client and identity in given.resume:
            answer = given.resume[identity]
            action, arguments = (answer.action, answer.arguments) if answer else ("reject", None)
            decisions.append(CallDecision(call.id, action, arguments))
            reasons += [answer.reason] if answer and answer.reason else []
    if len(decisions) < len(pause.calls):
        raise ApprovalPending(approval_id=pause.approval_id, request_id=pause.request_id)
    reason = "; ".join(reasons) or None
    return Command(decisions=tuple(decisions), approval_id=pause.approval_id, reason=reason)


# --- messages ------------------------------------------------------------------------------------


async def _first(thread: Thread, given: Given, key: Key) -> RequestView | None:
    """The request that the same runId began before."""
    view = await requests.under(thread.exchange, thread.caller, key)
    if view is None:
        return None
    if not {said.mark for said in given.last} <= set(view.record.client.get("messages", ())):
        raise IdempotencyKeyReused(**view.record.ids)
    return view


async def _send(thread: Thread, given: Given, fresh: Sequence[Said], key: Key) -> Response:
    """Continues the thread with what is new, or begins it with all that is there."""
    exchange, new = thread.exchange, thread.head is None
    items = tuple(item for said in fresh for item in said.items)
    if not items:
        raise InvalidRequest("messages", "must end in a text or an image of the user")
    message = NewMessage(
        items=items,
        task_id=None if new else thread.task_id,
        new_task_id=thread.task_id if new else None,
        earlier=given.earlier if new else (),
        instructions=given.instructions,
        user_context=given.context,
        client_tools=given.tools,
        client={"messages": [said.mark for said in given.last], "seeded": new and bool(given.earlier)},
    )
    try:
        view = await exchange.submit(thread.caller, message, key, streamed=True)
    except RequestInProgress as error:
        view = await exchange.request(thread.caller, error.ids["request_id"])
    except AlreadyExists:  # another run of the new thread was quicker
        thread = await threads.find(exchange, thread.caller, given.thread_id)
        if thread.head is None:
            raise NotFound("The thread has expired. Begin another.", task_id=thread.task_id) from None
        return await _send(thread, given, fresh, key)
    return await _stream(thread, given, view, 1)


# --- answering -----------------------------------------------------------------------------------


async def _stream(
    thread: Thread, given: Given, view: RequestView, number: int, *, joins: bool = False
) -> Response:
    """The events of a stretch; behind the messages that it goes on from, where the client has others."""
    exchange, record = thread.exchange, view.record
    stretch = await stretches.cut(exchange, view, number)
    ours = [place for owner, place in map(threads.request_of, given.shown) if owner == record.request_id]
    partly = any(not place.isdecimal() or int(place) > stretch.after for place in ours)
    before = record.request_id if number > 1 else None if record.client.get("seeded") else record.parent
    unseen = number == 1 and bool(given.resume or given.outputs)  # what came of the answers
    behind = joins or partly or unseen or _seen(given) != before
    messages = await transcripts.before(exchange, stretch) if behind else None
    folded = fold.Fold(given, record.ids, stretch.before, messages)
    return exchange.stream(view, folded, folded.failed, events=stretches.recorded(exchange, stretch))


async def _join(thread: Thread, given: Given) -> Response:
    """What there is, for a page that has nothing to say: all messages, and the run under way."""
    exchange, head, caller = thread.exchange, thread.head, thread.caller
    if head is None:
        with suppress(NotFound):
            await exchange.locate(caller, keys.task, thread.task_id)
        if given.shown:
            raise InvalidRequest("messages", "must end in a message of the user: the thread is new")
    if head is not None and head.running is not None:
        view = await exchange.request(caller, head.running.request_id)
        return await _stream(thread, given, view, len(view.record.approvals) + 1, joins=True)
    pause = await thread.pause(head.pending.approval_id) if head and head.pending else None
    messages = await transcripts.messages(exchange, thread.partition, head) if head else []
    ids = {"task_id": thread.task_id, **({"session_id": head.session_id} if head else {})}
    body = fold.started(given, ids, messages) + fold.finished(given, fold.outcome_of(pause))
    return Response(body, media_type="text/event-stream", headers={"cache-control": "no-store"})
