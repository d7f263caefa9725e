"""A whole task as one document.

Records are converted to plain values one by one, as they are read: converting a long task at once would block
the event loop.
"""

import asyncio

import msgspec
from msgspec.structs import replace

from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Json, MessageBody
from tealagents.state.document_paths import Shortening
from tealagents.state.history import Logged, whole_log
from tealagents.state.task_document import FORMAT, ExportedEntry
from tealagents.state.tasks import Tasks


async def export(tasks: Tasks, partition: str, task_id: str) -> Json:
    """The whole task as one document. `InvalidRequest` while a request runs, waits or is paused."""
    head = (await tasks.head(partition, task_id)).value
    if head.occupant or head.queue:
        raise InvalidRequest(
            "task_id", "has a request that has not ended; wait for it, decide it or cancel it first"
        )
    entries = []
    order: dict[str, None] = {}
    async for logged in tasks.history.forwards(partition, task_id, whole_log(head.tail_seq)):
        entries.append(msgspec.to_builtins(_exported(logged)))
        if logged.entry.request_id:
            order.setdefault(logged.entry.request_id)
    requests = []
    paths = Shortening()
    for request_id in order:
        found = await tasks.records.request(partition, task_id, request_id)
        requests.append(msgspec.to_builtins(paths.shortened(replace(found.value, idempotency=None))))
        await asyncio.sleep(0)  # a read from SQLite does not yield to the event loop
    task = replace(head, tail_hash="", tail_seal="", tail_key=0, log_id="")
    return {
        "format": FORMAT,
        "agent": tasks.records.agent,
        "task": msgspec.to_builtins(task),
        "requests": requests,
        "entries": entries,
    }


def _exported(logged: Logged) -> ExportedEntry:
    entry, body = logged.entry, logged.body
    if isinstance(body, MessageBody) and body.message.native:
        body = MessageBody(replace(body.message, native=""))
    return ExportedEntry(
        seq=entry.seq,
        at=str(entry.details.get("at", entry.at)) if entry.details.get("imported") else entry.at,
        actor=entry.actor,
        action=entry.action,
        request_id=entry.request_id,
        body=body,
    )
