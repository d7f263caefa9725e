"""Carries an input out: decides a pause, continues the thread, replays a run, or shows what there is."""

from collections.abc import Sequence

from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive

from tealagents.api import bodies, replay, requests, setups, sse, stretches, task_names, transcripts
from tealagents.api.ag_ui import fold
from tealagents.api.ag_ui.inputs import Given
from tealagents.api.decisions import GONE, TOO_LATE, CallAnswer
from tealagents.api.exchange import Exchange, RequestView, key_of
from tealagents.api.names import made, parsed
from tealagents.api.stretches import Stretch
from tealagents.api.task_names import Named
from tealagents.domain.errors import AlreadyExists, CheckpointMoved, IdempotencyKeyReused, InvalidRequest
from tealagents.domain.models import Approval, Caller
from tealagents.state.new_message import Key


@bodies.fields_as(items="messages", earlier="messages", user_context="context")
async def carried_out(exchange: Exchange, caller: Caller, given: Given, receive: Receive) -> Response:
    """The answer to an input."""
    thread = now = await task_names.named(exchange, caller, given.body.thread_id)
    fresh, of = await thread.fresh(given.last, given.issued, given.seen)
    given, pause = await _answered(thread, given)
    answered = {parsed(name, "call")[0] for name in given.outputs} | {pause.request_id if pause else None}
    if pause is not None:
        held = (await exchange.request(caller, pause.request_id)).record.setup
        setup, answers = setups.renewed(held, given.message.setup), _answers(pause, given)
        try:
            stretch = await stretches.decided(exchange, caller, pause, answers, setup=setup, streamed=True)
        except TOO_LATE as late:  # as without the answers, where they only cancel or were taken
            if any(given.resume.values()) or (isinstance(late, GONE) and given.outputs and not given.last):
                raise
        else:
            given = replace(given, message=replace(given.message, setup=setup))
            if not given.last or (of and (pause.status == "pending" or of == pause.request_id)):
                return await _stream(exchange, given, stretch)
            view = stretch.view if of else await requests.settled(exchange, stretch.view, receive)
            if view.record.status == "Canceled" and pause.status == "pending":  # else what was said besides
                return await _stream(exchange, given, await stretches.cut(exchange, view, stretch.number))
        now = await task_names.named(exchange, caller, given.body.thread_id)
    if fresh:  # the same may have come before, and its answers may be on their way
        now = await now.settled(answered)
    if now is not thread:
        thread, (fresh, of) = now, await now.fresh(given.last, given.issued, given.seen)
    key = key_of(caller, f"ag-ui\0{thread.task_id}\0{given.body.run_id}", list(given.last))
    if (first := await requests.under(exchange, caller, key)) is None:
        pending = thread.head.pending if thread.head else None
        if not fresh or (pending and pending.request_id in answered):  # which led to another pause
            return await _join(thread, given)
        try:
            first = await _send(thread, given, fresh, of, key)
        except (AlreadyExists, CheckpointMoved) as refusal:  # another run was quicker
            await thread.check_taken(refusal)
            return await carried_out(exchange, caller, given, receive)
    elif of != first.record.request_id and not await thread.is_of(first, key, given.last, given.issued):
        raise IdempotencyKeyReused(**first.record.ids)
    first = await requests.begun(exchange, first, receive)  # until then others may add to the thread
    return await _stream(exchange, given, await stretches.cut(exchange, first, 1))


async def _answered(thread: Named, given: Given) -> tuple[Given, Approval | None]:
    """The input without what tools of the service returned; and the pause that it answers."""
    given = replace(given, outputs=await thread.of_client(given.outputs))
    interrupts = [parsed(each, "int") for each in given.resume]
    named = [found for found, part in reversed(interrupts) if found is not None and part.isdecimal()]
    pending = [thread.head.pending.approval_id] if thread.head and thread.head.pending else []
    called, lost = await thread.last_pauses(parsed(next(iter(given.outputs), ""), "call")[0])
    for name in dict.fromkeys((*pending, *named, *called)):  # a decided one if it is named, or led nowhere
        pause = await thread.pause(name)
        if pause and (name in named or ((lost or pause.status != "decided") and _answers(pause, given))):
            return given, pause
    return given, None


def _answers(pause: Approval, given: Given) -> dict[int, CallAnswer]:
    """What answers the calls of a pause: outputs of the page's own tools, and decisions of the others."""
    found: dict[int, CallAnswer] = {}
    for n, call in enumerate(pause.calls):
        if call.by_client and (output := given.outputs.get(made("call", pause.request_id, call.id))):
            found[n] = output
        elif not call.by_client and (name := made("int", pause.approval_id, n)) in given.resume:
            found[n] = given.resume[name] or CallAnswer(action="reject")
    return found


async def _send(thread: Named, given: Given, fresh: Sequence[str], of: str | None, key: Key) -> RequestView:
    """Continues the thread with what is new, or begins it with all that is there."""
    items = tuple(item for mark in fresh for item in given.last[mark])
    if not items:
        raise InvalidRequest("messages", "must end with a text or an image from the user")
    message = thread.at_tip(given.message)
    behind = await thread.answered_to(given.answer) if len(fresh) == len(given.last) else None
    # `fresh` alone: a request that also counted those before it would pass for theirs if it failed
    client = {"messages": list(fresh), "seeded": bool(message.earlier), "repeats": of, "behind": behind}
    message = replace(message, items=items, client=client)
    return await requests.submitted(thread.exchange, thread.caller, message, key, streamed=True)


async def _stream(exchange: Exchange, given: Given, stretch: Stretch, *, joins: bool = False) -> Response:
    """The events of a stretch; behind the messages that it continues, where the client has others."""
    record, first, pause = stretch.record, stretch.number == 1, stretch.before
    known = {each.name for each in given.kept}
    ours = [part for owner, part in given.shown if owner == record.request_id]
    partly = any(not part.isdecimal() or int(part[:9]) > (pause.rounds if pause else 0) for part in ours)
    for call in pause.calls if pause else ():  # only outputs of the page's own tools come before it
        partly = partly or (made("res", record.request_id, call.id) in known) is not call.by_client
    unseen = first and bool(given.resume or given.outputs)  # what came of the answers
    behind = joins or partly or unseen or not transcripts.continues(stretch, given.seen)
    messages = await transcripts.before(exchange, stretch, needed=joins or partly) if behind else None
    return replay.stream(exchange, stretch, fold.RunFold(given, record.ids, stretch.before, messages))


async def _join(thread: Named, given: Given) -> Response:
    """What there is, for a page that has nothing to say: all messages, and the run under way."""
    exchange, head, caller = thread.exchange, thread.head, thread.caller
    if head is None and given.shown:
        raise InvalidRequest("messages", "must end with a user message: the thread is new, or was deleted")
    if head is not None and head.running is not None:
        view = await exchange.request(caller, head.running.request_id)
        return await _stream(exchange, given, await stretches.cut(exchange, view), joins=True)
    pause = await thread.pause(head.pending.approval_id) if head and head.pending else None
    messages = await transcripts.messages(exchange, thread.partition, head) if head else []
    ended = fold.frame("RUN_FINISHED", **given.run, outcome=fold.outcome_of(pause, is_old=given.is_old))
    return sse.events_response(fold.started(given, thread.ids, messages) + ended)
