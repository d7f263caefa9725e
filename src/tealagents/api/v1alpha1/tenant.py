"""Who the caller is, and what an auditor sees of the tenant."""

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, problems, schemas
from tealagents.api.v1alpha1.context import exchange_of
from tealagents.api.v1alpha1.parameters import Limit
from tealagents.api.v1alpha1.routing import RouteParameter, Routes
from tealagents.domain.errors import InsufficientScope, InvalidRequest
from tealagents.domain.models import Caller, Head, Json, Status
from tealagents.state.catalog import Damaged
from tealagents.state.tenants import CURSOR, TaskFilter, TenantTasks

routes = Routes(tags=["tenant"])


@routes.get(
    "/me",
    operation_id="get_me",
    summary="Who you are",
    description="The user that the token identifies, and the roles that it grants here.",
    response_model=schemas.Me,
    responses=openapi.problem_responses(),
)
async def get_me(request: Request) -> Response:
    caller = await exchange_of(request).identify(request)
    return json_response({"user": documents.user(caller.user), "roles": _roles(caller)})


def _roles(caller: Caller) -> list[str]:
    held = {"approver": caller.approver, "auditor": caller.auditor}
    return [name for name, has in held.items() if has]


@routes.get(
    "/tenant/tasks",
    operation_id="list_tenant_tasks",
    summary="List the tasks of the tenant",
    description=(
        "For the auditor role. Owner by owner, each owner's newest first; filtered by owner, status and "
        "metadata. A page may be short, even empty, and still have a `next_cursor`."
    ),
    response_model=schemas.Page[schemas.TaskDocument | schemas.DamagedRecord],
    responses=openapi.problem_responses("invalid_request"),
)
async def list_tenant_tasks(
    request: Request,
    oid: Annotated[str | None, RouteParameter("Only those of this user", longest=500)] = None,
    status: Annotated[Status | None, RouteParameter("Only those in this status")] = None,
    metadata: Annotated[
        str | None,
        RouteParameter(
            "Only those with this value in their metadata",
            schema={"pattern": "^[^:]+:"},
            examples=["team:north"],
        ),
    ] = None,
    limit: Limit = 50,
    cursor: Annotated[
        str | None,
        RouteParameter("The `next_cursor` of the previous page", schema={"pattern": CURSOR}),
    ] = None,
) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    if not caller.auditor:
        raise InsufficientScope(
            "The tasks of others are listed for auditors only. Ask the operator for the auditor role.",
            required=exchange.settings.auditor_role,
        )
    which = TaskFilter(oid=oid, status=status, metadata=_pair(metadata))
    listed = TenantTasks(exchange.records, exchange.catalog)
    page = await listed.page(caller.user.tid, which, cursor=cursor, limit=limit)
    return json_response(documents.page([_listed(item) for item in page.items], page.cursor))


def _pair(metadata: str | None) -> tuple[str, str] | None:
    if metadata is None:
        return None
    name, colon, value = metadata.partition(":")
    if not colon or not name:
        raise InvalidRequest("metadata", "must be a key and its value, such as team:north")
    return name, value


def _listed(item: object) -> Json:
    """A task; where the record of an owner cannot be read, there is no id to name."""
    assert isinstance(item, Head | Damaged)
    if isinstance(item, Damaged) and not item.identifier:
        return {"error": problems.document(item.error)}
    return documents.task(item)
