"""The changes of a task, decided purely, ids apart: what to append, and how head and request change.

::

                  ┌────────── received ◄──────┐
    (new) ──► Running ──► Completed ──────────┤
      │          │ ├────► Failed ─────────────┤      a task takes the status of its latest request
      ▼          │ └────► Canceled ───────────┘      that has started; each of the three ended ones
    Queued ──►   ▼           ▲                       accepts a follow-up
               Paused ───────┘
                 └──► Running (resumed)

A decider takes the head (and the request) as they were read and returns a `Transition`;
`HeadCommits.commit` is the one place where a transition is written. No I/O, no clock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, paths
from tealagents.domain.models import (
    Approval,
    Effects,
    Failure,
    FinishReason,
    Head,
    IdempotencyRecord,
    Json,
    Message,
    MessageBody,
    Note,
    Outcome,
    Pending,
    Queued,
    RequestEnd,
    RequestRecord,
    RequestSetup,
    Running,
    Status,
    Step,
    StepBody,
    ToolCall,
    ToolOutcome,
)
from tealagents.state import keys
from tealagents.state.audit_chain import Draft, draft
from tealagents.state.out_of_line import BlobRef
from tealagents.state.streams import KEPT_SECONDS, SPARE_SECONDS

#: the actor of what the service does by itself
SERVICE = "service"


class Transition(Struct, frozen=True, kw_only=True):
    """The changes that one commit makes to a task."""

    #: the head to write, except for its tail, which the entries move
    head: Head
    entries: Sequence[Draft] = ()
    request: RequestRecord | None = None
    #: further records of the same partition
    put: Mapping[str, object] = {}
    #: versions that further records must have; None: the record must be absent
    expect: Mapping[str, str | None] = {}
    #: seconds after which a record expires
    ttl: Mapping[str, float] = {}
    #: this commit gives the process a request to run or to queue
    takes: bool = False
    #: no one is sent an acknowledgment before a later commit (`Commit.unsynced`)
    unsynced: bool = False
    #: bytes that records refer to, to be stored out of line before the commit
    parts: Sequence[bytes] = ()
    #: all contents are new: if the commit conflicts, what was stored out of line can be erased
    fresh: bool = False
    #: keys of records that are unreferenced once this is written
    drops: Collection[str] = ()


# --- beginning -----------------------------------------------------------------------------------


def received(head: Head, request: RequestRecord, message: Message, actor: str, now: datetime) -> Transition:
    """The request takes the task, which is new or free; if the request was queued, it is the first."""
    entry = draft("message.received", actor, request.request_id, MessageBody(message))
    started = replace(
        head,
        status="Running",
        running=Running(request.request_id, request.worker_id or "", head.tail_seq + 1),
        pending=None,
        queue=_others(head, request),
        updated_at=now,
    )
    return Transition(head=started, entries=[entry], request=request, takes=True)


def _others(head: Head, request: RequestRecord) -> tuple[Queued, ...]:
    """The queue without this request."""
    return tuple(waiting for waiting in head.queue if waiting.request_id != request.request_id)


def queued(head: Head, request: RequestRecord, deadline: datetime, actor: str, now: datetime) -> Transition:
    """The request is added to the end of the queue."""
    note = Note("waits its turn", {"place": len(head.queue) + 1})
    entry = draft("request.queued", actor, request.request_id, note)
    waiting = Queued(request.request_id, request.worker_id or "", deadline)
    grown = replace(paths.extended_by_note(head), queue=(*head.queue, waiting), updated_at=now)
    return Transition(head=grown, entries=[entry], request=request)


def resumed(
    head: Head,
    request: RequestRecord,
    setup: RequestSetup | None,
    entries: Sequence[Draft],
    worker_id: str,
    now: datetime,
) -> Transition:
    """The decided request takes the task again. `setup`, if given, replaces its setup from here on.

    If not, the old setup stays, without its `tool_choice`: a required call has been made, and must not be
    required again.
    """
    held = request.setup if setup is None else setup
    if setup is None and held.tool_choice is not None:
        held = replace(held, tool_choice=None)
    kept = request.events_kept_at or request.created_at
    # its first entry stays the same
    running = Running(request.request_id, worker_id, _occupant(head).first_seq)
    return Transition(
        head=replace(head, status="Running", running=running, pending=None, updated_at=now),
        entries=entries,
        request=replace(
            request,
            status="Running",
            worker_id=worker_id,
            resumed_at=now,
            events_kept_at=now if now - kept > timedelta(seconds=SPARE_SECONDS) else request.events_kept_at,
            pause=None,
            setup=held,
        ),
        takes=True,
    )


# --- while it runs -------------------------------------------------------------------------------


def appended(head: Head, entries: Sequence[Draft], now: datetime) -> Transition:
    """Entries are appended while the request runs, which must be stored before it continues."""
    return Transition(head=replace(head, updated_at=now), entries=entries)


def paused(
    head: Head,
    request: RequestRecord,
    entries: Sequence[Draft],
    approval: Approval,
    outcome: Outcome,
    *,
    remote_id: str | None,
    now: datetime,
) -> Transition:
    """The running request waits for decisions; no process holds the fence meanwhile. `remote_id` is the id
    from which its remote conversation continues."""
    identifier = approval.approval_id
    pending = Pending(request.request_id, identifier, approval.expires_at, _occupant(head).first_seq)
    return Transition(
        head=replace(head, status="Paused", running=None, pending=pending, updated_at=now),
        entries=entries,
        request=replace(
            request,
            status="Paused",
            worker_id=None,
            pause=approval,
            usage=outcome.usage,
            extra_data=outcome.extra_data or None,
            last_event=approval.event_id,
            approvals=(*request.approvals, identifier),
            remote_id=remote_id,
        ),
        put={
            keys.approval(identifier): approval,
            keys.approval_by_creation(approval.created_at, identifier): identifier,
        },
    )


# --- ending --------------------------------------------------------------------------------------


def completed(
    head: Head,
    request: RequestRecord,
    entries: Sequence[Draft],
    outcome: Outcome,
    *,
    last_event: int,
    remote_id: str | None,
    context: Json | None,
    now: datetime,
) -> Transition:
    """The running request has its answer, and becomes the current checkpoint.

    `remote_id` replaces the head's: None if this request was not part of a remote conversation.
    """
    odd = outcome.finish_reason if outcome.finish_reason != "stop" else None
    end = _end(_occupant(head), "Completed", SERVICE, now, remote_id=remote_id, finish_reason=odd)
    last = head.tail_seq + len(entries) + 1
    done = replace(
        head,
        status="Completed",
        running=None,
        checkpoint_id=request.request_id,
        path=paths.extend(head.path, _occupant(head).first_seq, last),
        remote_id=remote_id,
        updated_at=now,
    )
    record = _ended(request, "Completed", last, now, last_event=last_event, outcome=outcome)
    record = replace(record, path=done.path, remote_id=remote_id, context=context)
    return Transition(head=done, entries=[*entries, end], request=record)


def stopped(
    head: Head,
    request: RequestRecord,
    entries: Sequence[Draft],
    status: Status,
    failure: Failure,
    outcome: Outcome,
    *,
    tools: Iterable[ToolOutcome],
    actor: str,
    last_event: int,
    withdrawn: bool,
    now: datetime,
    since: datetime | None = None,
    ended_at: datetime | None = None,
) -> Transition:
    """The running or paused request ends without an answer; a partial answer is kept.

    The error's step begins at `since`, if that is known: what failed has no step of its own. `ended_at` is
    given if the end is written later than it happened.

    The checkpoint stays the same. The request's entries stay on the path, where reading backwards skips them,
    unless it is `withdrawn`. The outcomes of its tool calls are kept in the head.
    """
    known, occupant, ended_at = tuple(tools), _occupant(head), ended_at or now
    error = error_draft(request.request_id, failure, since or ended_at, ended_at)
    end = _end(occupant, status, actor, ended_at, code=failure.code, tools=known)
    last = head.tail_seq + len(entries) + 2
    # of a withdrawn request, only the end stays on the path, and only if it made tool calls
    first = last if withdrawn else occupant.first_seq
    path = head.path if withdrawn and not known else paths.extend(head.path, first, last)
    effects = paths.remembering(head.effects, Effects(first, known)) if known else head.effects
    record = _ended(request, status, last, ended_at, last_event=last_event, outcome=outcome, error=failure)
    return Transition(
        head=replace(
            head, status=status, running=None, pending=None, path=path, effects=effects, updated_at=now
        ),
        entries=[*entries, error, end],
        request=record,
    )


def left_queue(
    head: Head,
    request: RequestRecord,
    status: Status,
    failure: Failure,
    outcome: Outcome,
    *,
    actor: str,
    last_event: int,
    now: datetime,
) -> Transition:
    """A request ends while it is queued."""
    note = Note("ended while it waited its turn", {"request_id": request.request_id, "status": status})
    entry = draft(f"request.{status.lower()}", actor, request.request_id, note, code=failure.code)
    last = head.tail_seq + 1
    return Transition(
        head=replace(paths.extended_by_note(head), queue=_others(head, request), updated_at=now),
        entries=[entry],
        request=_ended(request, status, last, now, last_event=last_event, outcome=outcome, error=failure),
        drops=chunks_waiting(request),
    )


def chunks_waiting(request: RequestRecord) -> list[str]:
    """The keys of a queued request's message, if it is stored out of line."""
    waiting = request.waiting or {}
    return msgspec.convert(waiting, BlobRef).keys(request.task_id) if "blob" in waiting else []


def _occupant(head: Head) -> Running | Pending:
    """The running or paused request; `ValueError` if there is none."""
    if head.occupant is None:
        raise ValueError("no request holds this task")
    return head.occupant


def _ended(
    request: RequestRecord,
    status: Status,
    last_seq: int,
    now: datetime,
    *,
    last_event: int,
    outcome: Outcome,
    error: Failure | None = None,
) -> RequestRecord:
    """The record of the ended request."""
    return replace(
        request,
        status=status,
        resumed_at=None,
        ended_at=now,
        worker_id=None,
        last_seq=last_seq,
        last_event=last_event,
        output=outcome.output,
        usage=outcome.usage,
        extra_data=outcome.extra_data or None,
        finish_reason=outcome.finish_reason,
        pause=None,
        error=error,
        waiting=None,
    )


def _end(
    occupant: Running | Pending,
    status: Status,
    actor: str,
    now: datetime,
    *,
    code: str | None = None,
    tools: tuple[ToolOutcome, ...] = (),
    remote_id: str | None = None,
    finish_reason: FinishReason | None = None,
) -> Draft:
    """The last entry of a running or paused request."""
    end = RequestEnd(
        request_id=occupant.request_id,
        status=status,
        first_seq=occupant.first_seq,
        ended_at=now,
        code=code,
        tools=tools,
        remote_id=remote_id,
        finish_reason=finish_reason,
    )
    details = {"code": code} if code else {}
    return draft(f"request.{status.lower()}", actor, occupant.request_id, end, **details)


def unreturned(request_id: str, call: ToolCall, now: datetime) -> Draft:
    """The entry for a call that has begun and not returned."""
    return draft("tool.unreturned", SERVICE, request_id, unreturned_step(request_id, call, now))


def unreturned_step(request_id: str, call: ToolCall, now: datetime) -> StepBody:
    """The step of a call that has begun and not returned: whether it took effect is unknown."""
    step = Step(
        step_id=ids.random_id(),
        request_id=request_id,
        kind="tool",
        name=call.tool,
        started_at=now,
        input={"call_id": call.id, "arguments": call.arguments},
        is_error=True,
        outcome="unknown",
    )
    return StepBody(step)


def error_draft(request_id: str, failure: Failure, since: datetime, now: datetime) -> Draft:
    """The entry with the last step of a request that ends without an answer."""
    step = Step(
        step_id=ids.random_id(),
        request_id=request_id,
        kind="error",
        name=failure.code,
        started_at=since,
        duration_ms=(now - since).total_seconds() * 1000,
        output={"detail": failure.detail},
        is_error=True,
    )
    return draft("error", SERVICE, request_id, StepBody(step))


# --- changes by the owner ------------------------------------------------------------------------


def changed(head: Head, actor: str, action: str, note: Note, now: datetime) -> Transition:
    """The task was changed, other than by a message; `head` is the changed head."""
    entry = draft(action, actor, None, note, **note.data)
    return Transition(head=replace(paths.extended_by_note(head), updated_at=now), entries=[entry])


# --- idempotency keys ----------------------------------------------------------------------------


def with_key(transition: Transition, running_seconds: float) -> Transition:
    """The transition with its request's idempotency key, which is kept for a day from the request's end."""
    request = transition.request
    if request is None or (kept := kept_key(request, running_seconds)) is None:
        return transition
    key, record, seconds = kept
    if request.ended_at is not None:
        seconds -= (transition.head.updated_at - request.ended_at).total_seconds()
    if seconds <= 0:  # its end was found more than a day late
        return transition
    return replace(transition, put={**transition.put, key: record}, ttl={**transition.ttl, key: seconds})


def kept_key(request: RequestRecord, running_seconds: float) -> tuple[str, IdempotencyRecord, float] | None:
    """The key, value and ttl in seconds of a request's idempotency record; None if it has none."""
    if request.idempotency is None:
        return None
    name, digest = request.idempotency
    record = IdempotencyRecord(request.request_id, request.task_id, request.session_id, digest)
    seconds = running_seconds if request.ended_at is None else KEPT_SECONDS
    return keys.idempotency(name), record, seconds
