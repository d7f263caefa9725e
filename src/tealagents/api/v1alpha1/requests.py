"""Reading, following and canceling requests."""

import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import READ_CODES, exchange_of, identifier
from tealagents.api.v1alpha1.messages import stream
from tealagents.api.v1alpha1.parameters import RequestId
from tealagents.domain.errors import InvalidRequest

routes = APIRouter(prefix="/requests", tags=["requests"])

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
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    view = await exchange.request(caller, identifier(request, "request_id"))
    return json_response(documents.request(view.record, exchange.prefix))


@routes.get(
    "/{request_id}/events",
    operation_id="follow_request",
    summary="Replay and follow the events of a request",
    description=(
        "Every event behind `Last-Event-ID` (or `?after=`), then those to come, to the one that ends the "
        "stream. Kept for 24 hours after the request's end; 204 when there is nothing left to send."
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
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    name = identifier(request, "request_id")
    view = exchange.replay(await exchange.request(caller, name), after=_position(request))
    return stream(exchange, view, {}) if view is not None else Response(status_code=204)


@routes.post(
    "/{request_id}/cancel",
    operation_id="cancel_request",
    summary="Cancel a request",
    description=(
        "Ends a running, paused or waiting request `Canceled`; it is when this returns. One that has "
        "ended stays as it is."
    ),
    response_model=schemas.RequestDocument,
    responses=openapi.problem_responses(*READ_CODES),
)
async def cancel_request(request: Request, request_id: RequestId) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    name = identifier(request, "request_id")
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
        raise InvalidRequest(field, "must be an integer, the id of an event")
    return int(given[0]) if len(given[0]) < len(str(_LAST_EVENT)) else _LAST_EVENT
