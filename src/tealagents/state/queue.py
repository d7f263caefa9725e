"""Requests that wait in a task's queue: how their messages are stored, and when they take the task."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import Conflict, CorruptState
from tealagents.domain.models import Head, Json, Message, RequestRecord
from tealagents.state import keys
from tealagents.state.codec import decoder, encode_json
from tealagents.state.head_commits import Written
from tealagents.state.out_of_line import BlobRef, blob_ref
from tealagents.state.records import Stored
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks
from tealagents.state.transitions import Transition, chunks_waiting, received

#: the largest waiting message that is kept in its request's record, in bytes; others are stored out of line
MOST_INLINE = 64 * 1024


class QueuedRequest(Struct, frozen=True):
    """A request that waits in a task's queue."""

    partition: str
    request: RequestRecord
    deadline: datetime


async def try_start(tasks: Tasks, actor: str, waiting: QueuedRequest) -> TaskWriter | RequestRecord | None:
    """Takes the task for a waiting request if its turn has come; None: not yet.

    Returns the request's record if it has ended meanwhile (it was canceled, or its time is up).
    """
    partition, request = waiting.partition, waiting.request
    message: Message | None = None

    async def decide(found: Stored[Head]) -> Transition | TaskWriter | RequestRecord | None:
        nonlocal message
        await tasks.lease.ensure()
        head = found.value
        if not any(queued.request_id == request.request_id for queued in head.queue):
            return await _begun_before(tasks, waiting, found)
        if head.occupant or head.queue[0].request_id != request.request_id:
            return None
        now = tasks.records.clock.now()
        message = await waiting_message(tasks, partition, request)
        if message is None:  # the request has ended since the head was read
            raise Conflict(keys.request(request.request_id))
        started = replace(
            request,
            status="Running",
            started_at=now,
            worker_id=tasks.lease.worker_id,
            parent=head.checkpoint_id,
            first_seq=head.tail_seq + 1,
            waiting=None,
        )
        # `takes` is off because the request has been this process's since it was queued
        transition = received(head, started, message, actor, now)
        return replace(transition, takes=False, drops=chunks_waiting(request))

    begun = await tasks.heads.transact(partition, partial(tasks.head, partition, request.task_id), decide)
    return TaskWriter(tasks, begun, message) if isinstance(begun, Written) else begun


async def _begun_before(
    tasks: Tasks, waiting: QueuedRequest, found: Stored[Head]
) -> TaskWriter | RequestRecord:
    """A request that has left the queue: it has ended, or was begun here by a commit whose reply was lost."""
    partition, request_id = waiting.partition, waiting.request.request_id
    request = await tasks.request(partition, request_id)
    runs_here = found.value.is_run_by(tasks.lease.worker_id, request_id)
    if not runs_here or request.value.status != "Running":
        return request.value
    message = await waiting_message(tasks, partition, waiting.request)
    if message is None:  # its chunks are damaged: only this process erases them, and it has not
        return request.value
    begun = Written(partition=partition, head=found.value, version=found.version, request=request.value)
    writer = TaskWriter(tasks, begun, message)
    writer.request_version = request.version  # the head may have been written since
    return writer


def keep_waiting(message: Message) -> tuple[Json, Sequence[bytes]]:
    """The `waiting` field for a message: the message or a reference; and the bytes to store out of line."""
    if len(body := encode_json(message)) > MOST_INLINE:
        return dict(msgspec.to_builtins(blob_ref(body))), [body]
    return dict(msgspec.to_builtins(message)), []


async def waiting_message(tasks: Tasks, partition: str, request: RequestRecord) -> Message | None:
    """The message of a queued request; None if the request has left the queue and the message was erased."""
    stored = request.waiting or {}
    if "blob" not in stored:
        return msgspec.convert(stored, Message)
    ref = msgspec.convert(stored, BlobRef)
    try:
        data = await tasks.records.get_blob(partition, request.task_id, ref)
    except CorruptState:
        now = await tasks.records.request(partition, request.task_id, request.request_id)
        if now.value.waiting is not None:
            raise
        return None
    return decoder(Message).decode(data)
