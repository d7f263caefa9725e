"""Records the decision on a pause, and takes the task to carry it out."""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import AlreadyDecided, ApprovalExpired, RequestCanceled, TealError
from tealagents.domain.models import (
    Action,
    Approval,
    Body,
    Decision,
    Head,
    Json,
    RequestSetup,
    Step,
    StepBody,
    ToolCall,
    ToolIntent,
    User,
)
from tealagents.state import keys
from tealagents.state.audit_chain import Draft, canonical, draft
from tealagents.state.endings import EXPIRED
from tealagents.state.records import Stored
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks
from tealagents.state.transitions import SERVICE, Transition, resumed

#: calls of one round that an entry's envelope names; its body names all
CALLS_NAMED = 100
#: the error message for a decision on a canceled request
REQUEST_GONE = (
    "The request was canceled, so there is nothing to decide. If it is still wanted, send its message again, "
    "under a new idempotency key or id if you use one."
)


def decision_drafts(decided: Approval, actor: User, now: datetime) -> list[Draft]:
    """The log entries of a decision: who decided what, and the intent to run the approved calls."""
    step = decision_step(decided, decided.decisions, decided.reason, actor, now)
    details: Json = {
        "approval_id": decided.approval_id,
        "payload_sha256": decided.digest,
        "decisions": {decision.id: decision.action for decision in decided.decisions[:CALLS_NAMED]},
        "count": len(decided.decisions),
    }
    drafts = [draft("approval.decided", actor.key, decided.request_id, StepBody(step), **details)]
    if approved := approved_calls(decided):
        body, named = intent(decided.request_id, approved)
        drafts.append(draft("tool.intent", actor.key, decided.request_id, body, **named))
    return drafts


def decision_step(
    approval: Approval, decisions: Sequence[Decision], reason: str | None, actor: User, now: datetime
) -> Step:
    """The step that shows a decision in the trace."""
    return Step(
        step_id=ids.random_id(),
        request_id=approval.request_id,
        kind="approval",
        name="decided",
        started_at=now,
        input={"approval_id": approval.approval_id, "tool_calls": shown_calls(approval.calls)},
        output={
            "decided_by": {"tid": actor.tid, "oid": actor.oid},
            "decisions": [msgspec.to_builtins(decision) for decision in decisions],
            "reason": reason,
        },
    )


def is_decision(body: Body) -> bool:
    """Whether an entry's body is a step from `decision_step`."""
    return isinstance(body, StepBody) and (body.step.kind, body.step.name) == ("approval", "decided")


def approved_calls(decided: Approval) -> tuple[ToolCall, ...]:
    """The calls for the service to run: exactly those shown, with the arguments shown or edited."""
    by_id = {decision.id: decision for decision in decided.decisions}
    return tuple(
        call if by_id[call.id].arguments is None else replace(call, arguments=by_id[call.id].arguments or "")
        for call in decided.calls
        if by_id[call.id].action == "approve" and not call.by_client
    )


def intent(request_id: str, calls: Sequence[ToolCall]) -> tuple[ToolIntent, Json]:
    """The body and the details of the entry that is written before tools run, to survive a crash."""
    named = {call.id: call.tool for call in calls[:CALLS_NAMED]}
    return ToolIntent(request_id=request_id, calls=tuple(calls)), {"calls": named, "count": len(calls)}


def digest_of(calls: Iterable[ToolCall]) -> str:
    """SHA-256 of calls, with their tools' names split into plugin and function: only these may run."""
    named = [_named(call, call.plugin_name, call.function_name) for call in calls]
    return hashlib.sha256(canonical({"calls": named})).hexdigest()


def shown_calls(calls: Iterable[ToolCall]) -> list[Json]:
    """Calls as a pause shows them; a client's tool has no plugin."""
    return [
        _named(call, "", call.tool) if call.by_client else _named(call, call.plugin_name, call.function_name)
        for call in calls
    ]


def _named(call: ToolCall, plugin: str, function: str) -> Json:
    return {"id": call.id, "plugin_name": plugin, "function_name": function, "arguments": call.arguments}


def with_decisions(
    approval: Approval,
    now: datetime,
    actor: User,
    default: Action | None,
    reason: str | None,
    decisions: Sequence[Decision],
) -> Approval:
    """The approval as decided. A call without a decision of its own gets `default`, or else is rejected."""
    by_id = {decision.id: decision for decision in decisions}
    action = default or "reject"
    return replace(
        approval,
        status="decided",
        decided_at=now,
        decided_by=actor,
        reason=reason,
        decisions=tuple(by_id.get(call.id) or Decision(id=call.id, action=action) for call in approval.calls),
    )


def check_same_decision(approval: Approval, wanted: Approval) -> None:
    """Raises unless a later decision is the same as the first (reasons may differ).

    `ApprovalExpired`, `RequestCanceled`, `AlreadyDecided`.
    """
    refusal: TealError | None = None
    if approval.status == "expired":
        refusal = ApprovalExpired(EXPIRED.detail)
    elif approval.status == "canceled":
        refusal = RequestCanceled(REQUEST_GONE)
    elif _without_reasons(approval) != _without_reasons(wanted):
        refusal = AlreadyDecided(
            "This pause was already decided differently. Read the request to see its outcome."
        )
    if refusal is not None:
        raise refusal.with_ids(
            request_id=approval.request_id,
            approval_id=approval.approval_id,
            task_id=approval.task_id,
            session_id=approval.session_id,
        )


def _without_reasons(approval: Approval) -> list[Decision]:
    return [replace(decision, reason=None) for decision in approval.decisions]


async def resume(
    tasks: Tasks,
    partition: str,
    approval: Stored[Approval],
    decided: Approval,
    actor: User,
    setup: RequestSetup | None = None,
) -> TaskWriter | None:
    """Stores a decision and takes the task for it: of a hundred concurrent decisions one gets the writer.

    None if another decision was quicker, or this one is too late; read the approval again to learn which.
    `setup`, if given, replaces the request's setup from here on.
    """
    key = keys.approval(decided.approval_id)

    async def decide(found: Stored[Head]) -> Transition | None:
        await tasks.lease.ensure()
        pending = found.value.pending
        if pending is None or pending.approval_id != decided.approval_id:
            return None
        if pending.expires_at.timestamp() <= await tasks.records.store.now():  # this process's may be behind
            await tasks.end(partition, found, pending.request_id, EXPIRED, SERVICE)
            return None
        if await tasks.records.version(partition, key) != approval.version:
            return None
        record = await tasks.records.request(partition, decided.task_id, decided.request_id)
        now = tasks.records.clock.now()
        entries = decision_drafts(decided, actor, now)
        request = replace(record.value, source=tasks.source)
        transition = resumed(found.value, request, setup, entries, tasks.lease.worker_id, now)
        kept = replace(decided, setup=record.value.setup)
        transition = replace(transition, put={key: kept}, expect={key: approval.version})
        return await tasks.without_reused_key(partition, transition)

    written = await tasks.heads.transact(partition, partial(tasks.head, partition, decided.task_id), decide)
    return TaskWriter(tasks, written, None) if written is not None else None
