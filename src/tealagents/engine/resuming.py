"""What a request continues from: the decision on its pause, or the tool rounds of a failed request."""

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


def tool_messages(decided: Approval, now: datetime) -> tuple[Message, ...]:
    """The tool messages of calls that the service does not run: rejections, and outputs from the client."""
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
    """The result of a rejected call, for the model."""
    reason = decision.reason or decided.reason
    because = f" The reason given: {reason}" if reason else ""
    return f"The user rejected this call; {not_to_its_end(call)}{because}"


def not_to_its_end(call: ToolCall) -> str:
    """The end of a sentence about a call that waited and will not be made."""
    return "it had begun, and its outcome is unknown." if call.begun else "it was not made."


async def retried(tasks: Tasks, partition: str, failed: str, recorder: Recorder) -> Resumption | None:
    """Copies the tool rounds of a failed request into its retry, so that their calls are not made again.

    `recorder` is the retry's. Returns None if there are no rounds to continue from. A last round without all
    of its results is left out: a note tells the model what its calls may have done.
    """
    rounds: list[list[Message]] = []
    before: str | None = failed
    passed = set[str]()  # the `retries` of imported requests may form a cycle
    # a retry that failed at once has not copied the rounds; the request that it retried has them
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
    for message in again:  # all of them, before anything can fail: a retry of this retry continues from them
        recorder.add(message)
    return Resumption()


async def _tool_rounds(tasks: Tasks, partition: str, of: RequestRecord) -> list[list[Message]]:
    """The tool rounds of a request: an assistant message, then all its results, including the client's."""
    said = await tasks.history.messages_of(partition, of, of.last_seq)
    known = {message.tool_call_id for message in said}
    for approval_id in of.approvals[-1:]:
        found = await tasks.records.get(partition, keys.approval(approval_id), Approval)
        if found is not None and found.value.status == "decided":
            sent = tool_messages(found.value, of.created_at)
            said += [message for message in sent if message.tool_call_id not in known]
    rounds = [each for each in grouped(in_call_order(said)) if each[0].tool_calls]
    if rounds and len(rounds[-1]) <= len(rounds[-1][0].tool_calls):
        rounds.pop()
    return rounds
