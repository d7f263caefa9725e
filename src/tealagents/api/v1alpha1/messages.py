"""Sending a message and deciding a pause: JSON, SSE, background."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, problems, sse
from tealagents.api.v1alpha1 import documents, openapi, schemas
from tealagents.api.v1alpha1.context import Api, identifier
from tealagents.api.v1alpha1.parameters import UUID, RequestId
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, TealError
from tealagents.domain.events import TERMINAL, StreamEvent
from tealagents.domain.models import Caller, Item, Json, RequestRecord
from tealagents.engine.approvals import CallDecision, Command
from tealagents.engine.service import Sent
from tealagents.state.audit_chain import canonical
from tealagents.state.changes import MOST_METADATA, check_metadata
from tealagents.state.codec import encode_json
from tealagents.state.submission import Key, NewMessage

Way = Literal["json", "sse", "background"]

#: characters of the longest idempotency key
LONGEST_KEY = 255
_IDEMPOTENCY_KEY = re.compile(rf"[!-~](?:[ -~]{{0,{LONGEST_KEY - 2}}}[!-~])?", re.ASCII)
_RESPOND_ASYNC = re.compile(r"(?:^|[,;\s])respond-async(?:$|[,;\s])", re.IGNORECASE)

SEND = """Sends a message to the agent and returns its answer.

Leave `task_id` out to begin a new task; send it to follow up: the history lives in the service, send
only what is new. Every invocation gets a `request_id` of its own.

Three ways to take the answer: JSON (the default), server-sent events (`…/sse`, or
`Accept: text/event-stream`), or in the background (`Prefer: respond-async`, answered with 202 and the
`Location` of the request).

Send an `Idempotency-Key` to be able to send again safely when the network fails: the same key with
the same body is answered with the first request's outcome.

A tool call that needs approval is answered with status `Paused`; decide it at `approval_url`.
"""

RESUME = """Decides the pause of a request and returns what came of it.

Approving runs exactly the calls that were shown, with exactly the arguments shown or edited here, once,
however often this is sent. Rejecting tells the model, with the reason, and the model answers.
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
            {"content_type": "text", "content": "What is on this picture?"},
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


def router(api: Api) -> APIRouter:
    routes = APIRouter(tags=["messages"])
    links = openapi.links_of_answer()
    answers: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The answer, or the pause",
            "content": {"text/event-stream": openapi.event_content()},
            "headers": {
                "Idempotent-Replayed": openapi.header("`true`: the first outcome under this Idempotency-Key")
            },
            "links": links,
        },
        202: {
            "description": "Taken; the answer is made in the background",
            "model": schemas.AcceptedAnswer,
            "headers": {
                "Location": openapi.header("The request"),
                "Preference-Applied": openapi.header("`respond-async`"),
            },
            "links": {"request": links["request"], "events": links["events"]},
        },
    }

    # the same with a slash behind it: clients that join a base URL and an empty path put one there
    @routes.post("/", include_in_schema=False)
    @routes.post(
        "",
        operation_id="send_message",
        summary="Send a message",
        description=SEND,
        response_model=schemas.Answer,
        responses={**answers, **openapi.problem_responses(*_SEND_CODES)},
        openapi_extra={
            **openapi.json_body(schemas.UserMessage, **_MESSAGE_EXAMPLES),
            "parameters": [_KEY_PARAMETER, _PREFER_PARAMETER],
        },
    )
    async def send_message(request: Request) -> Response:
        return await send(api, request, way_of(request))

    @routes.post(
        "/sse",
        operation_id="stream_message",
        summary="Send a message and take the answer as a stream",
        description=SEND,
        responses={
            200: openapi.event_stream("Events; the last is final-response, approval-required or error"),
            **openapi.problem_responses(*_SEND_CODES),
        },
        openapi_extra={
            **openapi.json_body(schemas.UserMessage, **_MESSAGE_EXAMPLES),
            "parameters": [_KEY_PARAMETER],
        },
    )
    async def stream_message(request: Request) -> Response:
        return await send(api, request, "sse")

    _resume_routes(api, routes, "/requests/{request_id}/resume", "", answers)
    _resume_routes(api, routes, "/tealagents/v1alpha1/resume/{request_id}", "_older", answers)
    return routes


def _resume_routes(
    api: Api, routes: APIRouter, path: str, suffix: str, answers: dict[int | str, dict[str, Any]]
) -> None:
    body = openapi.json_body(
        schemas.ResumeCommand,
        approve={"action": "approve"},
        reject={"action": "reject", "reason": "not on a Friday"},
        edited={"decisions": [{"id": "call_1", "action": "approve", "arguments": {"path": "/data/x"}}]},
    )
    ids_in_query = {
        "parameters": [
            {
                "name": "approval_id",
                "in": "query",
                "required": False,
                "schema": {"type": "string", **UUID},
                "description": "Which pause; needed from a request's second pause on",
            }
        ]
    }

    @routes.post(
        path,
        operation_id=f"resume_request{suffix}",
        summary="Decide a pause",
        description=RESUME,
        response_model=schemas.Answer,
        responses={**answers, **openapi.problem_responses(*_RESUME_CODES)},
        openapi_extra={**body, "parameters": [*ids_in_query["parameters"], _PREFER_PARAMETER]},
        deprecated=bool(suffix),
    )
    async def resume_request(request: Request, request_id: RequestId) -> Response:
        return await resume(api, request, way_of(request))

    @routes.post(
        path + "/sse",
        operation_id=f"resume_request_stream{suffix}",
        summary="Decide a pause and take the answer as a stream",
        description=RESUME,
        responses={
            200: openapi.event_stream("Events from the decision on"),
            **openapi.problem_responses(*_RESUME_CODES),
        },
        openapi_extra={**body, **ids_in_query},
        deprecated=bool(suffix),
    )
    async def resume_request_stream(request: Request, request_id: RequestId) -> Response:
        return await resume(api, request, "sse")


# --- reading the request -------------------------------------------------------------------------


def way_of(request: Request) -> Way:
    """How the client wants the answer, from `Accept` and `Prefer`."""
    accept = ",".join(request.headers.getlist("accept"))
    if "text/event-stream" in accept.lower() and _prefers_events(accept):
        return "sse"
    prefer = ",".join(request.headers.getlist("prefer"))
    if _RESPOND_ASYNC.search(prefer):
        return "background"
    return "json"


def _prefers_events(accept: str) -> bool:
    """Whether `text/event-stream` is named at least as high as JSON."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, parameters = part.partition(";")
        weights[name.strip()] = _weight(parameters)
    events = weights.get("text/event-stream", 0.0)
    plain = next(
        (weights[name] for name in ("application/json", "application/*", "*/*") if name in weights), 0.0
    )
    return events > 0 and events >= plain


def _weight(parameters: str) -> float:
    match = re.search(r"(?:^|;)\s*q\s*=\s*([0-9.]+)", parameters)
    try:
        return float(match[1]) if match else 1.0
    except ValueError:
        return 0.0


async def _message(api: Api, request: Request) -> tuple[NewMessage, Any]:
    """The message, and the body's JSON value."""
    value = await api.body(request)
    sent = bodies.validated(schemas.UserMessage, value)
    if len(sent.items) > api.surface.max_items:
        raise InvalidRequest(
            "items", f"has {len(sent.items)} items; at most {api.surface.max_items} are taken"
        )
    check_metadata(sent.metadata or {})
    if sent.user_context and len(encode_json(sent.user_context)) > MOST_METADATA:
        raise InvalidRequest("user_context", f"is larger than {MOST_METADATA} bytes of JSON")
    message = NewMessage(
        items=tuple(Item(item.content_type, item.content) for item in sent.items),
        session_id=sent.session_id,
        task_id=sent.task_id,
        user_context=sent.user_context or {},
        metadata=sent.metadata or {},
        supersede=sent.supersede,
    )
    return message, value


def _key(request: Request, value: Any) -> Key | None:
    """The idempotency key of a request with this body, or None."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _IDEMPOTENCY_KEY.fullmatch(given[0]):
        raise InvalidRequest(
            "Idempotency-Key", f"must be one text of 1 to {LONGEST_KEY} printable ASCII characters"
        )
    name = hashlib.sha256(given[0].encode()).hexdigest()
    return Key(name, hashlib.sha256(canonical(_by_value(value))).hexdigest())


def _by_value(value: Any) -> Any:
    """The value with each number in one way: in JSON 1.0 and 1e0 are 1."""
    if isinstance(value, dict):
        return {name: _by_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_by_value(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- answering -----------------------------------------------------------------------------------


async def send(api: Api, request: Request, way: Way) -> Response:
    caller = await api.caller(request)
    message, value = await _message(api, request)
    sent = await api.service.send(caller, message, _key(request, value), streamed=way != "json")
    return await _answer(api, request, caller, sent, way, after=0)


def _only(name: str, given: list[str]) -> str | None:
    if len(given) > 1:
        raise InvalidRequest(name, "is given twice")
    return given[0] if given else None


async def resume(api: Api, request: Request, way: Way) -> Response:
    caller = await api.caller(request)
    request_id = identifier(request, "request_id")
    decided = bodies.validated(schemas.ResumeCommand, await api.body(request))
    approval_id = _only("approval_id", request.query_params.getlist("approval_id"))
    command = Command(
        action=decided.action,
        reason=decided.reason,
        decisions=tuple(CallDecision(d.id, d.action, d.arguments) for d in decided.decisions or ()),
        approval_id=ids.canonical(approval_id, "approval_id") if approval_id is not None else None,
    )
    sent = await api.approvals.resume(caller, request_id, command, streamed=way != "json")
    return await _answer(api, request, caller, sent, way, after=sent.after)


async def _answer(
    api: Api, request: Request, caller: Caller, sent: Sent, way: Way, *, after: int
) -> Response:
    headers = {"idempotent-replayed": "true"} if sent.replayed and after == 0 else {}
    own = sent.partition == api.service.records.partition(caller.user)
    if way == "sse":
        return stream(
            api,
            sent.request,
            sent.partition,
            after,
            headers=headers,
            with_content=own,
            cancel_as=caller.user.key if own and not sent.replayed else None,
        )
    if way == "background" and not sent.replayed:
        return accepted(api, sent.request, readable=own)
    outcome = await _outcome(api, request, caller, sent)
    return answered(api, outcome, headers=headers, with_content=own)


async def _outcome(api: Api, request: Request, caller: Caller, sent: Sent) -> RequestRecord:
    """The request's end; with `on_disconnect: cancel`, a client that leaves ends it."""
    own = sent.partition == api.service.records.partition(caller.user)
    if api.service.agent.on_disconnect != "cancel" or sent.replayed or not own:
        return await api.service.outcome(sent)
    waiting = asyncio.ensure_future(api.service.outcome(sent))
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await api.service.cancel(sent.partition, sent.request.request_id, caller.user.key)
        return await waiting
    finally:
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answered(
    api: Api, record: RequestRecord, *, headers: Mapping[str, str], with_content: bool = True
) -> Response:
    """The JSON answer for a request as it stands, or the problem it ended with."""
    problem = _problem(record, with_content=with_content)
    if problem is not None:
        extra = dict(headers)
        seconds = problems.RETRY_AFTER.get(problem["code"])
        if seconds is not None and not headers:
            extra["retry-after"] = str(seconds)
        return problems.json_response(
            problem, status=problem["status"], headers=extra, media_type=problems.MEDIA_TYPE
        )
    body = documents.answer(record, api.prefix, with_content=with_content)
    return problems.json_response(body, headers=headers)


def accepted(api: Api, record: RequestRecord, *, readable: bool) -> Response:
    """202: the answer is made in the background; where it can be read, to those who may read it."""
    headers = {"preference-applied": "respond-async"}
    if readable:
        headers["location"] = f"{api.prefix}/requests/{record.request_id}"
    return problems.json_response(
        {**documents.ids(record), "status": record.status}, status=202, headers=headers
    )


# --- streams -------------------------------------------------------------------------------------


def stream(
    api: Api,
    record: RequestRecord,
    partition: str,
    after: int,
    *,
    headers: Mapping[str, str],
    with_content: bool = True,
    cancel_as: str | None = None,
) -> Response:
    """The events of a request behind `after`, to the one that ends the stream.

    `cancel_as` is the sender: with `on_disconnect: cancel` their leaving ends the request.
    """
    cancels = cancel_as is not None and api.service.agent.on_disconnect == "cancel"

    def leave() -> None:
        if cancel_as is not None:
            _background(api.service.cancel(partition, record.request_id, cancel_as))

    return sse.EventStream(
        _frames(api, record, partition, after, with_content=with_content),
        keepalive_seconds=api.surface.keepalive_seconds,
        headers=headers,
        on_disconnect=leave if cancels else None,
    )


_tasks: set[asyncio.Task[Any]] = set()


def _background(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _frames(
    api: Api, record: RequestRecord, partition: str, after: int, *, with_content: bool
) -> AsyncGenerator[bytes, None]:
    identity = documents.ids(record)
    pieces = sse.PieceFrames(identity, api.service.agent.source)
    try:
        async for events in api.service.events(partition, record.request_id, after):
            yield b"".join(_encoded(api, events, identity, pieces, with_content=with_content))
    except TealError as error:
        yield sse.frame(None, "error", problems.document(error.with_ids(**identity)))


def _encoded(
    api: Api,
    events: Sequence[StreamEvent],
    identity: dict[str, str],
    pieces: sse.PieceFrames,
    *,
    with_content: bool,
) -> Iterator[bytes]:
    for event in events:
        if event.name == "partial-response":
            if with_content:
                yield pieces.frame(event.id, event.data)
        elif event.name in TERMINAL:
            record = event.data
            document = _problem(record, with_content=with_content)
            if document is None:
                document = documents.answer(record, api.prefix, with_content=with_content)
            yield sse.frame(event.id, event.name, document)
        elif with_content or event.name == "request":
            yield sse.frame(event.id, event.name, {**identity, **event.data})


def _problem(record: RequestRecord, *, with_content: bool) -> Json | None:
    """The problem a request ended with. Its detail may quote the model service: it is for the owner alone."""
    problem = problems.of_request(record)
    if problem is not None and not with_content:
        problem["detail"] = f"The request ended {record.status}. Its owner can read why."
    return problem
