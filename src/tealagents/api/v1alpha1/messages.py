"""Sending a message and deciding a pause: JSON, SSE, background."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, query
from tealagents.api.exchange import LONGEST_KEY, Exchange, RequestView, key_in
from tealagents.api.http import json_response
from tealagents.api.v1alpha1 import documents, inputs, openapi, problems, schemas
from tealagents.api.v1alpha1.context import exchange_of, identified
from tealagents.api.v1alpha1.fold import Frames
from tealagents.api.v1alpha1.parameters import UUID, RequestId
from tealagents.api.v1alpha1.preferences import Way, way_of
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain import ids
from tealagents.domain.models import AS_CONFIGURED, Item, RequestSetup
from tealagents.engine.approvals import CallDecision, Command
from tealagents.state.new_message import NewMessage

SEND = """Sends a message to the agent and returns its answer.

Omit `task_id` to start a new task; send it to continue one. The service keeps the history: send
only what is new. Every invocation gets a `request_id` of its own.

Three ways to receive the answer: JSON (the default), server-sent events (`…/sse`, or
`Accept: text/event-stream`), or in the background (`Prefer: respond-async`, answered with 202 and the
`Location` of the request).

Send an `Idempotency-Key` so that you can retry safely when the network fails: the same key with
the same body returns the first request's outcome.

If a tool call needs approval, the answer has the status `Paused`; decide it at `approval_url`.
"""

RESUME = """Decides the pause of a request and returns the outcome.

Approving runs exactly the calls that were shown, with exactly the arguments shown or edited here, once,
however often the decision is sent. Rejecting reports the decision and its reason to the model, and the model
answers.
"""

_SEND_CODES = (
    "invalid_request",
    "idempotency_key_reused",
    "not_owner",
    "not_found",
    "task_busy",
    "approval_pending",
    "approval_expired",
    "request_canceled",
    "request_in_progress",
    "session_mismatch",
    "too_large",
    "overloaded",
    "draining",
    "corrupt_state",
    "model_error",
    "tool_rounds_exceeded",
    "remote_thread_lost",
    "interrupted",
    "model_timeout",
    "request_timeout",
)
_RESUME_CODES = (*_SEND_CODES, "already_decided")

_MESSAGE_EXAMPLES: dict[str, Any] = {
    "new": {"items": [{"content_type": "text", "content": "My name is Ada."}]},
    "image": {
        "items": [
            {"content_type": "text", "content": "What is in this picture?"},
            {
                "content_type": "image",
                "content": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR4"
                "2mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC",
            },
        ]
    },
}

_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "description": "The same key with the same body is answered with the first request's outcome, for 24 h",
}
_PREFER_PARAMETER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "`respond-async`: answer 202 at once; other preferences are ignored (RFC 7240)",
    "example": "respond-async",
}
_LINKS = openapi.links_of_answer()
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, or the pause",
        "content": {"text/event-stream": openapi.event_content()},
        "links": _LINKS,
    },
    202: {
        "description": "Accepted; the request runs in the background",
        "model": schemas.AcceptedAnswer,
        "headers": {
            "Location": openapi.header("The request"),
            "Preference-Applied": openapi.header("`respond-async`"),
        },
        "links": {"request": _LINKS["request"], "events": _LINKS["events"]},
    },
}
_REPLAYABLE_ANSWERS = {**_ANSWERS, 200: {**_ANSWERS[200], "headers": openapi.REPLAYED}}
_RESUME_BODY = openapi.json_body(
    inputs.ResumeCommand,
    approve={"action": "approve"},
    reject={"action": "reject", "reason": "not on a Friday"},
    edited={"decisions": [{"id": "call_1", "action": "approve", "arguments": {"path": "/data/x"}}]},
)
_APPROVAL_PARAMETER = {
    "name": "approval_id",
    "in": "query",
    "required": False,
    "schema": {"type": "string", **UUID},
    "description": "Which pause; needed from a request's second pause on",
}

routes = Routes(tags=["messages"])


# the same with a slash behind it: clients that join a base URL and an empty path put one there
@routes.post("/", include_in_schema=False)
@routes.post(
    "",
    operation_id="send_message",
    summary="Send a message",
    description=SEND,
    response_model=schemas.Answer,
    responses={**_REPLAYABLE_ANSWERS, **openapi.problem_responses(*_SEND_CODES, keyed=True)},
    openapi_extra={
        **openapi.json_body(inputs.UserMessage, **_MESSAGE_EXAMPLES),
        "parameters": [_KEY_PARAMETER, _PREFER_PARAMETER],
    },
)
async def send_message(request: Request) -> Response:
    return await _sent(request, way_of(request))


@routes.post(
    "/sse",
    operation_id="stream_message",
    summary="Send a message and take the answer as a stream",
    response_class=Response,
    description=SEND,
    responses={
        200: {
            **openapi.event_stream("Events; the last is final-response, approval-required or error"),
            "headers": openapi.REPLAYED,
        },
        **openapi.problem_responses(*_SEND_CODES, keyed=True),
    },
    openapi_extra={
        **openapi.json_body(inputs.UserMessage, **_MESSAGE_EXAMPLES),
        "parameters": [_KEY_PARAMETER],
    },
)
async def stream_message(request: Request) -> Response:
    return await _sent(request, "sse")


async def resume_request(request: Request, request_id: RequestId) -> Response:
    return await _resumed(request, way_of(request))


async def resume_request_stream(request: Request, request_id: RequestId) -> Response:
    return await _resumed(request, "sse")


def _resume_at(path: str, suffix: str = "") -> None:
    """The routes that decide a pause, at a path."""
    routes.post(
        path,
        operation_id=f"resume_request{suffix}",
        summary="Decide a pause",
        description=RESUME,
        response_model=schemas.Answer,
        responses={**_ANSWERS, **openapi.problem_responses(*_RESUME_CODES)},
        openapi_extra={**_RESUME_BODY, "parameters": [_APPROVAL_PARAMETER, _PREFER_PARAMETER]},
        deprecated=bool(suffix),
    )(resume_request)
    routes.post(
        path + "/sse",
        operation_id=f"resume_request_stream{suffix}",
        summary="Decide a pause and take the answer as a stream",
        response_class=Response,
        description=RESUME,
        responses={
            200: openapi.event_stream("Events from the decision on"),
            **openapi.problem_responses(*_RESUME_CODES),
        },
        openapi_extra={**_RESUME_BODY, "parameters": [_APPROVAL_PARAMETER]},
        deprecated=bool(suffix),
    )(resume_request_stream)


_resume_at("/requests/{request_id}/resume")
_resume_at("/tealagents/v1alpha1/resume/{request_id}", "_older")


# --- reading the request -------------------------------------------------------------------------


def _message(value: Any) -> NewMessage:
    sent = bodies.validated(inputs.UserMessage, value)
    return NewMessage(
        items=tuple(Item(item.content_type, item.content) for item in sent.items),
        session_id=sent.session_id,
        task_id=sent.task_id,
        setup=RequestSetup(user_context=sent.user_context) if sent.user_context else AS_CONFIGURED,
        metadata=sent.metadata or {},
        supersede=bool(sent.supersede),
    )


# --- answering -----------------------------------------------------------------------------------


async def _sent(request: Request, way: Way) -> Response:
    exchange = exchange_of(request)
    caller = await exchange.identify(request)
    value = await exchange.body(request)
    message = _message(value)
    view = await exchange.submit(caller, message, key_in(caller, request, value), streamed=way != "json")
    headers = {"idempotent-replayed": "true"} if view.replayed else {}
    return await _answer(exchange, request, view, way, headers)


async def _resumed(request: Request, way: Way) -> Response:
    exchange, caller, request_id = await identified(request, "request_id")
    decided = bodies.validated(inputs.ResumeCommand, await exchange.body(request))
    approval_id = query.once(request, "approval_id")
    command = Command(
        action=decided.action,
        reason=decided.reason,
        decisions=tuple(CallDecision(d.id, d.action, d.arguments) for d in decided.decisions or ()),
        approval_id=ids.canonical(approval_id, "approval_id") if approval_id is not None else None,
    )
    view = await exchange.decide(caller, request_id, command, streamed=way != "json")
    # only the connection that sent the message ends it by leaving: here an approved tool may be running; and
    # what it ended with stays, however often it is decided
    view = replace(view, sender=False)
    return await _answer(exchange, request, view, way, {})


async def _answer(
    exchange: Exchange, request: Request, view: RequestView, way: Way, headers: Mapping[str, str]
) -> Response:
    if way == "sse":
        return stream(exchange, view, headers)
    if way == "background" and not view.replayed:
        return _accepted(exchange, view)
    view = replace(view, record=await exchange.outcome(view, request.receive))
    record = view.record
    if view.failure is not None:
        return problems.respond_failure(view.failure, record.ids, headers, repeatable=view.sender)
    shown = view.own and record.status in ("Completed", "Paused")
    content = documents.content_of(record, exchange.prefix) if shown else None
    return json_response(documents.answer(record.ids, record.status, content), headers=headers)


def _accepted(exchange: Exchange, view: RequestView) -> Response:
    """202: the answer is made in the background; where it can be read, to those who may read it."""
    headers = {"preference-applied": "respond-async"}
    if view.own:
        headers["location"] = f"{exchange.prefix}/requests/{view.record.request_id}"
    body = {**view.record.ids, "status": view.record.status}
    return json_response(body, status=202, headers=headers)


def stream(exchange: Exchange, view: RequestView, headers: Mapping[str, str]) -> Response:
    """The events of a request to the one that ends them; without it, the client continues elsewhere."""
    source = view.record.source or exchange.agent.source
    frames = Frames(view.record.ids, source, exchange.prefix)
    return exchange.stream(view, frames, headers=headers, events=exchange.follow(view))
