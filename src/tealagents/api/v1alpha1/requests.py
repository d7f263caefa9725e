"""Reading, following and canceling requests; and what the model was sent in them."""

import re

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import READ_CODES, identified, identifier, number_cursor
from tealagents.api.v1alpha1.messages import stream
from tealagents.api.v1alpha1.parameters import ApprovalId, Limit, OfStep, Position, RequestId
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest
from tealagents.engine.reconstruction import Reconstruction

routes = Routes(prefix="/requests", tags=["requests"])

_INTEGER = re.compile(r"\d+", re.ASCII)
#: behind every event there can be
_LAST_EVENT = 10**12 - 1


@routes.get(
    "/{request_id}",
    operation_id="get_request",
    summary="Read a request",
    description="The request's status, its content once it has ended or paused, or its error.",
    response_model=schemas.RequestDocument,
    responses=openapi.problem_responses(*READ_CODES),
)
async def get_request(request: Request, request_id: RequestId) -> Response:
    exchange, caller, name = await identified(request, "request_id")
    view = await exchange.request(caller, name)
    return json_response(documents.request(view.record, exchange.prefix))


@routes.get(
    "/{request_id}/events",
    operation_id="follow_request",
    summary="Replay and follow the events of a request",
    response_class=Response,
    description=(
        "Every event after `Last-Event-ID` (or `?after=`), then new ones as they come, up to the one that "
        "ends the stream. Kept for 24 hours after the request's end; 204 when there is nothing left to send."
    ),
    responses={
        200: openapi.event_stream("The events"),
        204: {"description": "The request has ended and has no later event"},
        **openapi.problem_responses(*READ_CODES),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 0},
                "description": "The id of the last event seen; wins over `after`",
            },
            {
                "name": "after",
                "in": "query",
                "required": False,
                "schema": {"type": "integer", "minimum": 0},
                "description": "The id of the last event seen",
            },
        ]
    },
)
async def follow_request(request: Request, request_id: RequestId) -> Response:
    exchange, caller, name = await identified(request, "request_id")
    view = exchange.rest(await exchange.request(caller, name), after=_position(request))
    return stream(exchange, view, {}) if view is not None else Response(status_code=204)


@routes.get(
    "/{request_id}/prompt",
    operation_id="get_prompt",
    summary="What the model was sent",
    description=(
        "The parts of one model call's prompt, oldest first, reconstructed from what is stored; `gaps` lists "
        "known differences from what was sent. The system prompt is that of the agent as it is configured "
        "now; its text is withheld if the console is not served. Tool definitions are not included."
    ),
    response_model=schemas.SentPrompt,
    responses=openapi.problem_responses(*READ_CODES),
)
async def get_prompt(
    request: Request,
    request_id: RequestId,
    step_id: OfStep = None,
    limit: Limit = 50,
    cursor: Position = None,
) -> Response:
    exchange, caller, name = await identified(request, "request_id")
    step = ids.canonical(step_id, "step_id") if step_id is not None else None
    first = number_cursor(cursor)
    view = await exchange.request(caller, name)
    sent = Reconstruction(exchange.agent, exchange.tasks)
    prompt = await sent.prompt(view.partition, view.record, step)
    shown = prompt.parts[first : first + limit]
    hidden = exchange.settings.console is None
    items = [documents.sent_part(part, withheld=hidden and part.origin == "system_prompt") for part in shown]
    after = first + limit
    return json_response(documents.sent(prompt, items, after if after < len(prompt.parts) else None))


@routes.get(
    "/{request_id}/approvals/{approval_id}",
    operation_id="get_approval",
    summary="Read a pause with the tools of its calls",
    description=(
        "Your own or, with the approver or auditor role, any in the tenant. Each call has the description "
        "and the JSON Schema of its tool as they were when it was shown; null if the tool has changed since."
    ),
    response_model=schemas.ApprovalWithTools,
    responses=openapi.problem_responses(*READ_CODES),
)
async def get_approval(request: Request, request_id: RequestId, approval_id: ApprovalId) -> Response:
    exchange, caller, name = await identified(request, "request_id")
    shown = await exchange.approval(caller, name, identifier(request, "approval_id"))
    return json_response(documents.approval_with_tools(shown, exchange.prefix, caller.user))


@routes.post(
    "/{request_id}/cancel",
    operation_id="cancel_request",
    summary="Cancel a request",
    description=(
        "Ends a running, paused or waiting request `Canceled`, before this returns. One that has "
        "ended stays as it is."
    ),
    response_model=schemas.RequestDocument,
    responses=openapi.problem_responses(*READ_CODES),
)
async def cancel_request(request: Request, request_id: RequestId) -> Response:
    exchange, caller, name = await identified(request, "request_id")
    record = await exchange.cancel(caller, name)
    return json_response(documents.request(record, exchange.prefix))


def _position(request: Request) -> int:
    """The id of the last event the client has seen, 0 for none."""
    header = _number("Last-Event-ID", request.headers.getlist("last-event-id"))
    after = _number("after", request.query_params.getlist("after"))
    return header if header is not None else after or 0


def _number(field: str, given: list[str]) -> int | None:
    if not given:
        return None
    if len(given) > 1 or not _INTEGER.fullmatch(given[0]):
        raise InvalidRequest(field, "must be an integer from 0, the id of an event")
    return int(given[0]) if len(given[0]) < len(str(_LAST_EVENT)) else _LAST_EVENT
