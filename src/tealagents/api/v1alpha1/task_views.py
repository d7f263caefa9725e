"""What a task holds, page by page: messages, trace, audit, checkpoints."""

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import READ_CODES, number_cursor, place
from tealagents.api.v1alpha1.parameters import Limit, OfCheckpoint, Position, TaskId, WithParents
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain import ids, paths
from tealagents.domain.models import Path
from tealagents.state import keys

routes = Routes(prefix="/tasks", tags=["tasks"])


@routes.get(
    "/{task_id}/messages",
    operation_id="list_messages",
    summary="The interaction history",
    description="Oldest first, on the current path, or on that of `checkpoint_id`.",
    response_model=schemas.Page[schemas.MessageDocument],
    responses=openapi.problem_responses(*READ_CODES),
)
async def list_messages(
    request: Request,
    task_id: TaskId,
    checkpoint_id: OfCheckpoint = None,
    limit: Limit = 50,
    cursor: Position = None,
) -> Response:
    exchange, partition, name = await place(request, keys.task, reading=True)
    after = number_cursor(cursor)
    path = await _path(exchange, partition, name, checkpoint_id)
    found, more = await exchange.history.messages(partition, name, path, after=after, limit=limit)
    return json_response(documents.page([documents.message(m) for m in found], more))


@routes.get(
    "/{task_id}/trace",
    operation_id="list_steps",
    summary="The execution trace",
    description="Every step of every request, oldest first: model calls, tool calls, approvals, errors.",
    response_model=schemas.Page[schemas.StepDocument],
    responses=openapi.problem_responses(*READ_CODES),
)
async def list_steps(
    request: Request, task_id: TaskId, limit: Limit = 50, cursor: Position = None
) -> Response:
    exchange, partition, name = await place(request, keys.task, reading=True)
    after = number_cursor(cursor)
    tail = (await exchange.tasks.head(partition, name, reading=True)).value.tail_seq
    found, more = await exchange.history.steps(partition, name, tail, after=after, limit=limit)
    return json_response(documents.page([documents.step(s) for s in found], more))


@routes.get(
    "/{task_id}/audit",
    operation_id="list_audit",
    summary="The append-only record",
    description="Who did what, when; each entry holds the hash of the one before. Oldest first.",
    response_model=schemas.Page[schemas.AuditEntry],
    responses=openapi.problem_responses(*READ_CODES),
)
async def list_audit(
    request: Request, task_id: TaskId, limit: Limit = 50, cursor: Position = None
) -> Response:
    exchange, partition, name = await place(request, keys.task, reading=True)
    after = number_cursor(cursor)
    tail = (await exchange.tasks.head(partition, name, reading=True)).value.tail_seq
    found, more = await exchange.history.entries(partition, name, tail, after=after, limit=limit)
    return json_response(documents.page([documents.entry(e) for e in found], more))


@routes.get(
    "/{task_id}/checkpoints",
    operation_id="list_checkpoints",
    summary="The checkpoints",
    description=(
        "Each completed request makes one. Newest first, those off the current path included; with `parents` "
        "each names the one that it continued, so that they make a tree."
    ),
    response_model=schemas.Page[schemas.CheckpointDocument],
    responses=openapi.problem_responses(*READ_CODES),
)
async def list_checkpoints(
    request: Request,
    task_id: TaskId,
    parents: WithParents = False,
    limit: Limit = 50,
    cursor: Position = None,
) -> Response:
    exchange, partition, name = await place(request, keys.task, reading=True)
    before = number_cursor(cursor) if cursor is not None else None
    head = (await exchange.tasks.head(partition, name, reading=True)).value
    tail = head.tail_seq if before is None else min(before - 1, head.tail_seq)
    found, more = await exchange.history.completions(partition, name, tail, limit=limit)
    items = [documents.checkpoint(end, head.checkpoint_id) for end in found]
    if parents:
        known = await exchange.catalog.parents(partition, name, [end.request_id for end in found])
        items = [{**item, "parent_id": known[item["checkpoint_id"]]} for item in items]
    return json_response(documents.page(items, more))


async def _path(exchange: Exchange, partition: str, task_id: str, checkpoint_id: str | None) -> Path:
    """The path of a checkpoint, or the current one."""
    head = (await exchange.tasks.head(partition, task_id, reading=True)).value
    if checkpoint_id is None:
        return paths.current_path(head)
    name = ids.canonical(checkpoint_id, "checkpoint_id")
    return (await exchange.tasks.checkpoint(partition, task_id, name)).path
