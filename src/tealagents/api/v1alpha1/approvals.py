"""The inbox: pauses the caller may decide."""

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import exchange_of, index_cursor
from tealagents.api.v1alpha1.parameters import InboxCursor, Limit
from tealagents.api.v1alpha1.routing import RouteParameter, Routes
from tealagents.domain.models import Approval

routes = Routes(prefix="/approvals", tags=["approvals"])


@routes.get(
    "",
    operation_id="list_approvals",
    summary="List the pauses you may decide",
    description="Your own, newest first; with the approver role those of the whole tenant.",
    response_model=schemas.Page[schemas.ApprovalDocument | schemas.DamagedRecord],
    responses=openapi.problem_responses("invalid_request"),
)
async def list_approvals(
    request: Request,
    status: Annotated[schemas.ApprovalStatus | None, RouteParameter("Only those in this status")] = None,
    limit: Limit = 50,
    cursor: InboxCursor = None,
) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    checked = index_cursor(cursor, inbox=caller.approver)
    if caller.approver:
        page = await exchange.catalog.inbox(caller.user.tid, status=status, cursor=checked, limit=limit)
    else:
        partition = exchange.partition(caller)
        page = await exchange.catalog.approvals(partition, status=status, cursor=checked, limit=limit)
    user = caller.user
    items = [
        documents.approval(item, exchange.prefix, user)  # type: ignore[arg-type]
        for item in page.items
        if not (isinstance(item, Approval) and (item.awaits_another(user) or item.is_closed_to(user)))
    ]
    return json_response(documents.page(items, page.cursor))
