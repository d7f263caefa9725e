"""Sessions: listed, read with their tasks, deleted with their tasks."""

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import READ_CODES, exchange_of, index_cursor, place
from tealagents.api.v1alpha1.parameters import Cursor, Limit, SessionId
from tealagents.api.v1alpha1.routing import Routes
from tealagents.state import keys

routes = Routes(prefix="/sessions", tags=["sessions"])

#: tasks shown with one session; the others are listed by `GET …/tasks?session_id=`
TASKS_SHOWN = 200


@routes.get(
    "",
    operation_id="list_sessions",
    summary="List your sessions",
    description="Newest first.",
    response_model=schemas.Page[schemas.SessionDocument | schemas.DamagedRecord],
    responses=openapi.problem_responses("invalid_request"),
)
async def list_sessions(request: Request, limit: Limit = 50, cursor: Cursor = None) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    page = await exchange.catalog.sessions(
        exchange.partition(caller), cursor=index_cursor(cursor), limit=limit
    )
    items = [documents.session(item) for item in page.items]  # type: ignore[arg-type]
    return json_response(documents.page(items, page.cursor))


@routes.get(
    "/{session_id}",
    operation_id="get_session",
    summary="Read a session with its tasks",
    description=f"The session and its newest tasks, up to {TASKS_SHOWN}.",
    response_model=schemas.SessionDocument,
    responses=openapi.problem_responses(*READ_CODES),
)
async def get_session(request: Request, session_id: SessionId) -> Response:
    exchange, partition, name = await place(request, keys.session, reading=True)
    tasks = await exchange.catalog.tasks(
        partition, session_id=name, status=None, cursor=None, limit=TASKS_SHOWN
    )
    # read last: a session that is deleted meanwhile is gone, and never one without tasks
    session = await exchange.catalog.session(partition, name)
    shown = [documents.task(item) for item in tasks.items]  # type: ignore[arg-type]
    return json_response(documents.session(session.value, shown))


@routes.delete(
    "/{session_id}",
    status_code=204,
    operation_id="delete_session",
    summary="Delete a session with its tasks",
    description="Cannot be undone by the service. Refused while one of its tasks runs.",
    responses=openapi.problem_responses(*READ_CODES, "task_busy"),
)
async def delete_session(request: Request, session_id: SessionId) -> Response:
    exchange, partition, name = await place(request, keys.session)
    await exchange.eraser.delete_session(partition, name)
    return Response(status_code=204)
