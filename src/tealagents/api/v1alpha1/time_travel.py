"""Tasks at another point, or in another place: rollback, fork, export, import."""

import asyncio
import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, inputs, openapi, schemas
from tealagents.api.v1alpha1.context import READ_CODES, exchange_of, identified, place
from tealagents.api.v1alpha1.parameters import TaskId
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Head
from tealagents.state import keys
from tealagents.state.exporting import export

routes = Routes(prefix="/tasks", tags=["tasks"])

_MADE = {
    "description": "The task",
    "headers": {"Location": openapi.header("The task")},
    "links": openapi.links_of_task(),
}
#: levels of nesting that the export adds around a value from a client or a tool
AROUND = 8
_DOCUMENT = {"application/json": {"schema": openapi.ref("ExportedTask")}}


@routes.post(
    "/{task_id}/rollback",
    operation_id="rollback_task",
    summary="Make another checkpoint the current one",
    description="Earlier, or later again: nothing is erased.",
    response_model=schemas.TaskDocument,
    responses=openapi.problem_responses(*READ_CODES, "task_busy", "approval_pending", "too_large"),
    openapi_extra=openapi.json_body(inputs.RollbackCommand),
)
async def rollback_task(request: Request, task_id: TaskId) -> Response:
    exchange, caller, name = await identified(request, "task_id")
    command = bodies.validated(inputs.RollbackCommand, await exchange.body(request))
    partition = await exchange.locate(caller, keys.task, name)
    head = await exchange.changes.rollback(partition, name, caller.user, command.checkpoint_id)
    return json_response(documents.task(head))


@routes.post(
    "/{task_id}/fork",
    status_code=201,
    operation_id="fork_task",
    summary="Fork a task",
    description=(
        "A new, independent task holding the history up to and including a checkpoint or a message; "
        "without either, up to the last completed request. To edit a message, fork before it and send "
        "another one."
    ),
    response_model=schemas.TaskDocument,
    responses={201: _MADE, **openapi.problem_responses(*READ_CODES, "too_large")},
    openapi_extra=openapi.json_body(inputs.ForkCommand, required=False, whole={}),
)
async def fork_task(request: Request, task_id: TaskId) -> Response:
    exchange, caller, name = await identified(request, "task_id")
    command = bodies.validated(inputs.ForkCommand, await exchange.body(request, empty={}))
    if command.checkpoint_id is not None and command.message_id is not None:
        raise InvalidRequest("message_id", "cannot be given together with checkpoint_id")
    partition = await exchange.locate(caller, keys.task, name)
    head = await exchange.fork(
        caller, partition, name, checkpoint_id=command.checkpoint_id, message_id=command.message_id
    )
    return _made(exchange, head)


@routes.get(
    "/{task_id}/export",
    operation_id="export_task",
    summary="Export a task",
    description="The whole task as one JSON document; what `POST …/tasks/import` takes.",
    responses={
        200: {"description": "The document", "content": _DOCUMENT},
        **openapi.problem_responses(*READ_CODES),
    },
)
async def export_task(request: Request, task_id: TaskId) -> Response:
    exchange, partition, name = await place(request, keys.task, reading=True)
    return json_response(await export(exchange.tasks, partition, name))


@routes.post(
    "/import",
    status_code=201,
    operation_id="import_task",
    summary="Import a task",
    description=(
        "Takes what `GET …/tasks/{id}/export` gave. Ids, messages and times are kept; trace and "
        "decisions are marked `imported`; the audit starts anew with the document's digest."
    ),
    response_model=schemas.TaskDocument,
    responses={201: _MADE, **openapi.problem_responses(*READ_CODES, "already_exists", "too_large")},
    openapi_extra={"requestBody": {"required": True, "content": _DOCUMENT}},
)
async def import_task(request: Request) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    bodies.require_json(request)
    sent = await exchange.read(request, bytes)
    with exchange.holding(caller, len(sent)):
        # in a thread: only the decoding, which holds the interpreter's lock, still delays other callers
        digest, document = await asyncio.to_thread(_read, sent)
        del sent
        return _made(exchange, await exchange.importer.import_(caller, document, digest))


def _read(sent: bytes) -> tuple[str, Any]:
    return hashlib.sha256(sent).hexdigest(), bodies.parse(sent, around=AROUND)


def _made(exchange: Exchange, head: Head) -> Response:
    """201 with the new task, and where it is."""
    headers = {"location": f"{exchange.prefix}/tasks/{head.task_id}"}
    return json_response(documents.task(head), status=201, headers=headers)
