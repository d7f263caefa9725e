"""What a request continues from: what was decided of its pause, or what a request that failed has done."""

from datetime import datetime

from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.models import Approval, Decision, Message, RequestRecord, ToolCall
from tealagents.domain.texts import storable
from tealagents.engine.loop import Resumption, tool_message
from tealagents.engine.recorder import Recorder
from tealagents.state import keys
from tealagents.state.history import grouped, in_call_order
from tealagents.state.tasks import Tasks


def answers(decided: Approval, now: datetime) -> tuple[Message, ...]:
    """What the model is sent of the calls that the service does not run: rejections, and clients' outputs."""
    by_id = {decision.id: decision for decision in decided.decisions}
    said = []
    for call in decided.calls:
        decision = by_id[call.id]
        if decision.action == "reject":
            text, is_error = rejection(decided, call, decision), True
        elif decision.output is not None:
            text, is_error = storable(decision.output), decision.is_error
        else:
            continue
        said.append(tool_message(decided.request_id, call, text, now, is_error=is_error))
    return tuple(said)


def rejection(decided: Approval, call: ToolCall, decision: Decision) -> str:
    """What the model is sent of a call that was rejected."""
    reason = decision.reason or decided.reason
    because = f" The reason given: {reason}" if reason else ""
    return f"The user rejected this call; {not_to_its_end(call)}{because}"


def not_to_its_end(call: ToolCall) -> str:
    """What there is to say of a call that waited, and will not be made now."""
    return "it had begun, and its outcome is unknown." if call.begun else "it was not made."


async def retried(tasks: Tasks, partition: str, failed: str, recorder: Recorder) -> Resumption | None:
    """Repeats the rounds of tools of a request that failed, so that none of their calls is made again.

    `recorder` is that of the request in its place, which continues from the last round; None where there is
    none. A last round that lacks some is left out: a note tells the model what its calls may have done.
    """
    rounds: list[list[Message]] = []
    before: str | None = failed
    passed = set[str]()  # an imported request may stand for any
    # one that failed at once has not repeated them itself
    while not rounds and before is not None and before not in passed:
        passed.add(before)
        record = (await tasks.request(partition, before)).value
        rounds, before = await _tool_rounds(tasks, partition, record), record.retries
    if not rounds:
        return None
    again = [
        replace(message, message_id=ids.random_id(), request_id=recorder.request_id)
        for each in rounds
        for message in each
    ]
    for message in again:  # all of them before anything can fail: another attempt continues from these
        recorder.add(message)
    return Resumption((), ())


async def _tool_rounds(tasks: Tasks, partition: str, of: RequestRecord) -> list[list[Message]]:
    """The rounds of a request, each the calls and all their results, also those that its client sent."""
    said = await tasks.history.messages_of(partition, of, of.last_seq)
    known = {message.tool_call_id for message in said}
    for approval_id in of.approvals[-1:]:
        found = await tasks.records.get(partition, keys.approval(approval_id), Approval)
        if found is not None and found.value.status == "decided":
            sent = answers(found.value, of.created_at)
            said += [message for message in sent if message.tool_call_id not in known]
    rounds = [each for each in grouped(in_call_order(said)) if each[0].tool_calls]
    if rounds and len(rounds[-1]) <= len(rounds[-1][0].tool_calls):
        rounds.pop()
    return rounds
