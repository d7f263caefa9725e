"""Tasks and their views: messages, trace, checkpoints, audit; changing, forking, moving, deleting them."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import identifier, index_cursor, number_cursor, place, unless_deleted
from tealagents.api.v1alpha1.paging import Page
from tealagents.api.v1alpha1.parameters import Cursor, Limit, OfCheckpoint, OfSession, Position, TaskId
from tealagents.domain import ids, lifecycle
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.models import Head, Path, RequestRecord
from tealagents.state import keys
from tealagents.state.changes import UNSET

_MADE = {"description": "The task", "links": openapi.links_of_task()}
_READ_CODES = ("invalid_request", "not_owner", "not_found", "corrupt_state")


def _made(exchange: Exchange, head: Head) -> Response:
    """201 with the new task, and where it is."""
    headers = {"location": f"{exchange.prefix}/tasks/{head.task_id}"}
    return json_response(documents.task(head), status=201, headers=headers)


def router(exchange: Exchange) -> APIRouter:
    routes = APIRouter(prefix="/tasks", tags=["tasks"])
    _lists_and_documents(exchange, routes)
    _views(exchange, routes)
    _time_travel(exchange, routes)
    return routes


def _lists_and_documents(exchange: Exchange, routes: APIRouter) -> None:
    # no task is called `import`, so this is not about one
    @routes.api_route("/import", methods=["GET", "PATCH", "DELETE"], include_in_schema=False)
    async def only_posted(request: Request) -> Response:
        raise HTTPException(405)

    @routes.get(
        "",
        operation_id="list_tasks",
        summary="List your tasks",
        description="Newest first; filtered by session and status. A filtered page may be short.",
        response_model=Page[schemas.TaskDocument | schemas.DamagedRecord],
        responses=openapi.problem_responses(*_READ_CODES),
    )
    async def list_tasks(
        request: Request,
        session_id: OfSession = None,
        status: Annotated[schemas.StatusName | None, Query(description="Only those in this status")] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        caller = await exchange.identify(request)
        partition = exchange.service.records.partition(caller.user)
        if session_id is not None:
            session_id = ids.canonical(session_id, "session_id")
            partition = await exchange.locate(caller, keys.session, session_id, reading=True)
            await exchange.catalog.session(partition, session_id)
        page = await exchange.catalog.tasks(
            partition, session_id=session_id, status=status, cursor=index_cursor(cursor), limit=limit
        )
        items = [documents.task(item) for item in page.items]  # type: ignore[arg-type]
        return json_response(documents.page(items, page.cursor))

    @routes.get(
        "/{task_id}",
        operation_id="get_task",
        summary="Read a task",
        description="Its status, times, metadata and current checkpoint.",
        response_model=schemas.TaskDocument,
        responses=openapi.problem_responses(*_READ_CODES),
    )
    async def get_task(request: Request, task_id: TaskId) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id", reading=True)
        return json_response(documents.task((await exchange.tasks.head(partition, name)).value))

    @routes.patch(
        "/{task_id}",
        operation_id="patch_task",
        summary="Change a task's metadata or expiry",
        description="Metadata is merged (RFC 7396). A task past its `expires_at` is not found any more.",
        response_model=schemas.TaskDocument,
        responses=openapi.problem_responses(*_READ_CODES, "too_large"),
        openapi_extra=openapi.json_body(
            schemas.TaskPatch,
            metadata={"metadata": {"title": "Trip to Rome"}},
            expiry={"expires_at": "2030-01-01T00:00:00Z"},
        ),
    )
    async def patch_task(request: Request, task_id: TaskId) -> Response:
        caller = await exchange.identify(request)
        name = identifier(request, "task_id")
        patch = bodies.validated(schemas.TaskPatch, await exchange.body(request))
        partition = await exchange.locate(caller, keys.task, name)
        given = patch.model_fields_set
        metadata = patch.metadata if "metadata" in given else UNSET
        expires_at = patch.expires_at if "expires_at" in given else UNSET
        head = await exchange.changes.patch(
            partition, name, caller.user, metadata=metadata, expires_at=expires_at
        )
        return json_response(documents.task(head))

    @routes.delete(
        "/{task_id}",
        status_code=204,
        operation_id="delete_task",
        summary="Delete a task",
        description="Takes everything along and cannot be undone by the service. Refused while it runs.",
        responses=openapi.problem_responses(*_READ_CODES, "task_busy"),
    )
    async def delete_task(request: Request, task_id: TaskId) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id")
        await exchange.eraser.delete_task(partition, name)
        return Response(status_code=204)


def _views(exchange: Exchange, routes: APIRouter) -> None:
    @routes.get(
        "/{task_id}/messages",
        operation_id="list_messages",
        summary="The interaction history",
        description="Oldest first, on the current path, or on that of `checkpoint_id`.",
        response_model=Page[schemas.MessageDocument],
        responses=openapi.problem_responses(*_READ_CODES),
    )
    async def list_messages(
        request: Request,
        task_id: TaskId,
        checkpoint_id: OfCheckpoint = None,
        limit: Limit = 50,
        cursor: Position = None,
    ) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id", reading=True)
        after = number_cursor(cursor)
        path = await _path(exchange, partition, name, checkpoint_id)
        found, more = await unless_deleted(
            exchange,
            partition,
            name,
            exchange.history.messages(partition, name, path, after=after, limit=limit),
        )
        return json_response(documents.page([documents.message(m) for m in found], more))

    @routes.get(
        "/{task_id}/trace",
        operation_id="list_steps",
        summary="The execution trace",
        description="Every step of every request, oldest first: model calls, tool calls, approvals, errors.",
        response_model=Page[schemas.StepDocument],
        responses=openapi.problem_responses(*_READ_CODES),
    )
    async def list_steps(
        request: Request, task_id: TaskId, limit: Limit = 50, cursor: Position = None
    ) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id", reading=True)
        after = number_cursor(cursor)
        tail = (await exchange.tasks.head(partition, name)).value.tail_seq
        found, more = await unless_deleted(
            exchange, partition, name, exchange.history.steps(partition, name, tail, after=after, limit=limit)
        )
        return json_response(documents.page([documents.step(s) for s in found], more))

    @routes.get(
        "/{task_id}/audit",
        operation_id="list_audit",
        summary="The append-only record",
        description="Who did what, when; each entry holds the hash of the one before. Oldest first.",
        response_model=Page[schemas.AuditEntry],
        responses=openapi.problem_responses(*_READ_CODES),
    )
    async def list_audit(
        request: Request, task_id: TaskId, limit: Limit = 50, cursor: Position = None
    ) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id", reading=True)
        after = number_cursor(cursor)
        tail = (await exchange.tasks.head(partition, name)).value.tail_seq
        found, more = await unless_deleted(
            exchange,
            partition,
            name,
            exchange.history.entries(partition, name, tail, after=after, limit=limit),
        )
        return json_response(documents.page([documents.entry(e) for e in found], more))

    @routes.get(
        "/{task_id}/checkpoints",
        operation_id="list_checkpoints",
        summary="The checkpoints",
        description="Each completed request makes one. Newest first, those off the current path included.",
        response_model=Page[schemas.CheckpointDocument],
        responses=openapi.problem_responses(*_READ_CODES),
    )
    async def list_checkpoints(
        request: Request, task_id: TaskId, limit: Limit = 50, cursor: Position = None
    ) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id", reading=True)
        before = number_cursor(cursor) if cursor is not None else None
        head = (await exchange.tasks.head(partition, name)).value
        below = head.tail_seq + 1 if before is None else min(before, head.tail_seq + 1)
        found, more = await unless_deleted(
            exchange,
            partition,
            name,
            exchange.history.completions(partition, name, head.tail_seq, before=below, limit=limit),
        )
        items = [documents.checkpoint(end, head.checkpoint_id) for end in found]
        return json_response(documents.page(items, more))


async def _path(exchange: Exchange, partition: str, task_id: str, checkpoint_id: str | None) -> Path:
    """The path of a checkpoint, or the current one."""
    head = (await exchange.tasks.head(partition, task_id)).value
    if checkpoint_id is None:
        return lifecycle.current_path(head)
    name = ids.canonical(checkpoint_id, "checkpoint_id")
    found = await exchange.service.records.get(partition, keys.request(name), RequestRecord)
    if found is None or found.value.task_id != task_id or found.value.status != "Completed":
        raise NotFound(f"The task {task_id} has no checkpoint {name}.", task_id=task_id)
    return found.value.path


def _time_travel(exchange: Exchange, routes: APIRouter) -> None:
    @routes.post(
        "/{task_id}/rollback",
        operation_id="rollback_task",
        summary="Make another checkpoint the current one",
        description="Earlier, or later again: nothing is erased.",
        response_model=schemas.TaskDocument,
        responses=openapi.problem_responses(*_READ_CODES, "task_busy", "approval_pending", "too_large"),
        openapi_extra=openapi.json_body(schemas.RollbackCommand),
    )
    async def rollback_task(request: Request, task_id: TaskId) -> Response:
        caller = await exchange.identify(request)
        name = identifier(request, "task_id")
        command = bodies.validated(schemas.RollbackCommand, await exchange.body(request))
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
            "without either, up to the last completed request. Editing a message is forking before it."
        ),
        response_model=schemas.TaskDocument,
        responses={201: _MADE, **openapi.problem_responses(*_READ_CODES, "too_large")},
        openapi_extra=openapi.json_body(schemas.ForkCommand, whole={}),
    )
    async def fork_task(request: Request, task_id: TaskId) -> Response:
        caller = await exchange.identify(request)
        name = identifier(request, "task_id")
        command = bodies.validated(schemas.ForkCommand, await exchange.body(request, empty={}))
        if command.checkpoint_id is not None and command.message_id is not None:
            raise InvalidRequest("message_id", "cannot be given together with checkpoint_id")
        partition = await exchange.locate(caller, keys.task, name)
        head = await exchange.transfer.fork(
            partition,
            name,
            caller.user,
            checkpoint_id=command.checkpoint_id,
            message_id=command.message_id,
        )
        return _made(exchange, head)

    @routes.get(
        "/{task_id}/export",
        operation_id="export_task",
        summary="Export a task",
        description="The whole task as one JSON document; what `POST …/tasks/import` takes.",
        responses={
            200: {
                "description": "The document",
                "content": {"application/json": {"schema": openapi.ref("ExportedTask")}},
            },
            **openapi.problem_responses(*_READ_CODES),
        },
    )
    async def export_task(request: Request, task_id: TaskId) -> Response:
        partition, name = await place(exchange, request, keys.task, "task_id", reading=True)
        return json_response(await exchange.transfer.export(partition, name))

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
        responses={201: _MADE, **openapi.problem_responses(*_READ_CODES, "already_exists", "too_large")},
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": openapi.ref("ExportedTask")}},
            }
        },
    )
    async def import_task(request: Request) -> Response:
        caller = await exchange.identify(request)
        head = await exchange.transfer.import_(caller, await exchange.body(request))
        return _made(exchange, head)
