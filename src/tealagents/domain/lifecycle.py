"""Pure transitions of a task's head and of a request. No I/O, no clock, no ids made.

::

                  ┌────────── start ◄─────────┐
    (new) ──► Running ──► Completed ──────────┤
      │          │ ├────► Failed ─────────────┤      a task takes the status of its latest request
      ▼          │ └────► Canceled ───────────┘      that has started; each of the three ended ones
    Queued ──►   ▼           ▲                       accepts a follow-on
               Paused ───────┘
                 └──► Running (resume)

Every function takes the head as it was read and returns the head to write; `state` commits it only
if it still is what was read.
"""

from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec.structs import replace

from tealagents.domain.models import (
    Effects,
    Failure,
    Head,
    Json,
    Outcome,
    Path,
    Pending,
    Queued,
    RequestRecord,
    Running,
    Status,
    ToolOutcome,
)

#: requests without an answer whose tool calls a head remembers; older ones are in the log alone
MAX_EFFECTS = 100
#: bytes of such calls that a head holds: it is written with every turn
MAX_EFFECTS_BYTES = 96 * 1024
#: characters of a call's arguments that are remembered where there is no room for more
FEW_CHARACTERS = 40


def start(head: Head, request_id: str, worker_id: str, now: datetime) -> Head:
    """The request takes the task; its first entry is the one appended next."""
    return replace(
        head,
        status="Running",
        running=Running(request_id, worker_id, head.tail_seq + 1),
        pending=None,
        queue=tuple(waiting for waiting in head.queue if waiting.request_id != request_id),
        updated_at=now,
    )


def enqueue(head: Head, request_id: str, worker_id: str, deadline: datetime, now: datetime) -> Head:
    """The request waits behind those that wait already."""
    return replace(head, queue=(*head.queue, Queued(request_id, worker_id, deadline)), updated_at=now)


def leave_queue(head: Head, request_id: str, now: datetime) -> Head:
    kept = tuple(waiting for waiting in head.queue if waiting.request_id != request_id)
    return replace(head, queue=kept, updated_at=now)


def pause(head: Head, approval_id: str, expires_at: datetime, now: datetime) -> Head:
    """The running request waits for a human; no request holds the fence meanwhile."""
    running = held(head)
    return replace(
        head,
        status="Paused",
        running=None,
        pending=Pending(running.request_id, approval_id, expires_at, running.first_seq),
        updated_at=now,
    )


def resume(head: Head, worker_id: str, now: datetime) -> Head:
    """The decided request takes the task again; its entries still count from where it began."""
    if head.pending is None:
        raise ValueError("only a paused task is resumed")
    running = Running(head.pending.request_id, worker_id, head.pending.first_seq)
    return replace(head, status="Running", running=running, pending=None, updated_at=now)


def complete(head: Head, last_seq: int, now: datetime, *, remote_id: str | None = None) -> Head:
    """The running request, whose last entry is `last_seq`, becomes the current checkpoint.

    A remote conversation continues only where this request was part of it.
    """
    running = held(head)
    return replace(
        head,
        status="Completed",
        running=None,
        checkpoint_id=running.request_id,
        path=extend(head.path, running.first_seq, last_seq),
        remote_id=remote_id,
        updated_at=now,
    )


def stop(
    head: Head,
    status: Status,
    last_seq: int,
    now: datetime,
    *,
    tools: tuple[ToolOutcome, ...] = (),
    withdrawn: bool = False,
) -> Head:
    """The running or paused request, whose last entry is `last_seq`, ends without an answer.

    The checkpoint stays. Its entries stay on the path, where reading backwards passes over them, unless it is
    `withdrawn`. What its tools did is kept in the head.
    """
    occupant = head.running or head.pending
    if occupant is None:
        raise ValueError("only a running or paused task is stopped")
    # of a withdrawn request the end alone stays on the path: its messages leave, what its tools did does not
    first = last_seq if withdrawn else occupant.first_seq
    path = head.path if withdrawn and not tools else extend(head.path, first, last_seq)
    return replace(
        head,
        status=status,
        running=None,
        pending=None,
        path=path,
        effects=remembering(head.effects, Effects(first, tools)) if tools else head.effects,
        updated_at=now,
    )


def remembering(known: tuple[Effects, ...], latest: Effects) -> tuple[Effects, ...]:
    """What a head remembers of tools, with the latest: as much as there is room for, the newest first."""
    kept: list[Effects] = []
    room = MAX_EFFECTS_BYTES
    every = (*known, latest)
    for effects in reversed(every[-MAX_EFFECTS:]):
        tools, size = effects.tools, sum(map(_size, effects.tools))
        if size > room:
            tools = _newest(tools, room)
            size = sum(map(_size, tools))
        if tools or not kept:
            kept.append(replace(effects, tools=tools))
        room -= size
        if len(tools) < len(effects.tools):
            break
    oldest = every[0]
    if oldest.cut or _count(kept) < _count(every):
        kept[-1] = replace(kept[-1], cut=oldest.cut or oldest.first_seq)
    return tuple(reversed(kept))


def _count(remembered: Iterable[Effects]) -> int:
    return sum(len(effects.tools) for effects in remembered)


def _newest(tools: tuple[ToolOutcome, ...], room: int) -> tuple[ToolOutcome, ...]:
    """The last calls that there is room for, each with few of its arguments."""
    kept: list[ToolOutcome] = []
    for tool in reversed(tools):
        shortened = replace(tool, arguments=tool.arguments[:FEW_CHARACTERS])
        room -= _size(shortened)
        if room < 0:
            break
        kept.append(shortened)
    return tuple(reversed(kept))


def _size(tool: ToolOutcome) -> int:
    return len(msgspec.json.encode(tool))


def effects_on_path(head: Head) -> tuple[ToolOutcome, ...]:
    """What tools of requests without an answer did, as far as they are part of the current history."""
    return tuple(
        tool
        for effects in head.effects
        if any(first <= effects.first_seq <= last for first, last in head.path)
        for tool in effects.tools
    )


def effects_cut(head: Head) -> bool:
    """Whether there may be more of these, which there was no room for."""
    return any(
        first <= effects.first_seq and effects.cut <= last
        for effects in head.effects
        if effects.cut
        for first, last in head.path
    )


def go_to(head: Head, checkpoint_id: str, path: Path, remote_id: str | None, now: datetime) -> Head:
    """Another checkpoint becomes the current one. Nothing is erased."""
    return replace(head, checkpoint_id=checkpoint_id, path=path, remote_id=remote_id, updated_at=now)


def noted(head: Head, last_seq: int) -> Head:
    """The head, about to grow by entries of no request: a path that ends at the tail goes along."""
    if head.running is None and head.pending is None and head.path:
        first, last = head.path[-1]
        if last == head.tail_seq:
            return replace(head, path=(*head.path[:-1], (first, last_seq)))
    return head


def count_round(context: Json | None) -> Json | None:
    """A checkpoint's context with one more round counted that the agent did not answer: added messages, or a
    part of a round. A summary names the last round in it by its number."""
    return context and {**context, "turn": context.get("turn", 0) + 1}


def extend(path: Path, first: int, last: int) -> Path:
    """A path with the entries from `first` to `last` behind it; neighbours melt into one pair."""
    if path and path[-1][1] + 1 == first:
        return (*path[:-1], (path[-1][0], last))
    return (*path, (first, last))


def current_path(head: Head) -> Path:
    """What the task's history is now, the request that runs or waits for a human included."""
    occupant = head.running or head.pending
    if occupant is None or head.tail_seq < occupant.first_seq:
        return head.path
    return extend(head.path, occupant.first_seq, head.tail_seq)


def held(head: Head) -> Running:
    """Who holds the fence; ValueError where no request does."""
    if head.running is None:
        raise ValueError("no request holds this task")
    return head.running


def ended(
    request: RequestRecord,
    status: Status,
    now: datetime,
    *,
    last_event: int,
    outcome: Outcome,
    error: Failure | None = None,
) -> RequestRecord:
    """The request with its end."""
    return replace(
        request,
        status=status,
        resumed_at=None,
        ended_at=now,
        worker_id=None,
        last_event=last_event,
        output=outcome.output,
        usage=outcome.usage,
        extra_data=outcome.extra_data or None,
        finish_reason=outcome.finish_reason,
        source=request.source or outcome.source,
        pause=None,
        error=error,
        waiting=None,
    )
