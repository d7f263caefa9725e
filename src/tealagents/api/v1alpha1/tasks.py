"""Tasks: listed, read, changed, deleted."""

from typing import Annotated

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies
from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, inputs, openapi, schemas
from tealagents.api.v1alpha1.context import READ_CODES, exchange_of, identified, index_cursor, place
from tealagents.api.v1alpha1.parameters import Cursor, Limit, OfSession, TaskId
from tealagents.api.v1alpha1.routing import RouteParameter, Routes
from tealagents.domain import ids
from tealagents.domain.models import Status
from tealagents.state import keys
from tealagents.state.changes import UNSET

routes = Routes(prefix="/tasks", tags=["tasks"])


# no task is called `import`, so this is not about one
@routes.add("/import", "GET", "PATCH", "DELETE", include_in_schema=False)
async def only_posted(request: Request) -> Response:
    raise HTTPException(405)


@routes.get(
    "",
    operation_id="list_tasks",
    summary="List your tasks",
    description="Newest first; filtered by session and status. A filtered page may be short.",
    response_model=schemas.Page[schemas.TaskDocument | schemas.DamagedRecord],
    responses=openapi.problem_responses(*READ_CODES),
)
async def list_tasks(
    request: Request,
    session_id: OfSession = None,
    status: Annotated[Status | None, RouteParameter("Only those in this status")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    partition = exchange.partition(caller)
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
    responses=openapi.problem_responses(*READ_CODES),
)
async def get_task(request: Request, task_id: TaskId) -> Response:
    exchange, partition, name = await place(request, keys.task, reading=True)
    return json_response(documents.task((await exchange.tasks.head(partition, name, reading=True)).value))


@routes.patch(
    "/{task_id}",
    operation_id="patch_task",
    summary="Change a task's metadata or expiry",
    description="Metadata is merged (RFC 7396). A task past its `expires_at` is no longer found.",
    response_model=schemas.TaskDocument,
    responses=openapi.problem_responses(*READ_CODES, "too_large"),
    openapi_extra=openapi.json_body(
        inputs.TaskPatch,
        metadata={"metadata": {"title": "Trip to Rome"}},
        expiry={"expires_at": "2030-01-01T00:00:00Z"},
    ),
)
async def patch_task(request: Request, task_id: TaskId) -> Response:
    exchange, caller, name = await identified(request, "task_id")
    patch = bodies.validated(inputs.TaskPatch, await exchange.body(request))
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
    description=(
        "Deletes everything the task holds and cannot be undone by the service. Refused while a request runs."
    ),
    responses=openapi.problem_responses(*READ_CODES, "task_busy"),
)
async def delete_task(request: Request, task_id: TaskId) -> Response:
    exchange, partition, name = await place(request, keys.task)
    await exchange.eraser.delete_task(partition, name)
    return Response(status_code=204)
