"""The OpenAPI document, with what FastAPI does not generate of it: bodies, events, problems, links."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tealagents.api.exchange import Exchange
from tealagents.api.http import PROBLEM_JSON, RETRY_AFTER, STATUSES
from tealagents.api.settings import ApiSettings
from tealagents.api.v1alpha1 import inputs, problems, schemas
from tealagents.domain import ids
from tealagents.domain.models import ENDED, Json
from tealagents.state.task_document import STAMP, ExportedTask

if TYPE_CHECKING:
    from tealagents.api.v1alpha1.routing import Routes

#: problem codes that every call with a token may return
EVERYWHERE = (
    "unauthenticated",
    "insufficient_scope",
    "internal_error",
    "auth_unavailable",
    "persistence_unavailable",
)

#: models of request bodies and events, which are not in the signatures that FastAPI reads
_UNDECLARED: tuple[type[BaseModel], ...] = (
    inputs.UserMessage,
    inputs.ResumeCommand,
    inputs.TaskPatch,
    inputs.RollbackCommand,
    inputs.ForkCommand,
    schemas.Problem,
    schemas.RequestEvent,
    schemas.PieceEvent,
    schemas.ToolCallEvent,
    schemas.ToolResultEvent,
)
#: event name → the model of its `data`
EVENTS: dict[str, type[BaseModel]] = {
    "request": schemas.RequestEvent,
    "partial-response": schemas.PieceEvent,
    "tool-call": schemas.ToolCallEvent,
    "tool-result": schemas.ToolResultEvent,
    "approval-required": schemas.Answer,
    "final-response": schemas.Answer,
    "error": schemas.Problem,
}

#: codes with which a request can end: a repeated Idempotency-Key returns these as a replayed outcome
_OUTCOMES = frozenset(
    {
        "approval_expired",
        "request_canceled",
        "corrupt_state",
        "internal_error",
        "model_error",
        "tool_rounds_exceeded",
        "remote_thread_lost",
        "persistence_unavailable",
        "interrupted",
        "model_timeout",
        "request_timeout",
    }
)

_COMPONENTS = "#/components/schemas/"


def ref(name: str) -> Json:
    return {"$ref": _COMPONENTS + name}


# --- problems ------------------------------------------------------------------------------------


def problem_responses(*codes: str, keyed: bool = False) -> dict[int | str, dict[str, Any]]:
    """The error responses of an operation, by status, each with an example.

    `keyed`: the operation accepts idempotency keys.
    """
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *EVERYWHERE):
        statuses = {STATUSES[code]}
        if code == "invalid_request":
            statuses = {400, 422}
        elif code == "overloaded":
            statuses = {429, 503}
        for status in statuses:
            if code not in by_status.setdefault(status, []):
                by_status[status].append(code)
    return {status: _response(status, codes, keyed) for status, codes in sorted(by_status.items())}


def _response(status: int, codes: list[str], keyed: bool) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": ", ".join(f"`{code}`" for code in codes),
        "content": {
            PROBLEM_JSON: {
                "schema": ref("Problem"),
                "examples": {
                    code: {"value": problems.problem(code, "What went wrong, and what to do.", status=status)}
                    for code in codes
                },
            }
        },
    }
    headers = {}
    if status in (401, 403):
        headers["WWW-Authenticate"] = header("How to authenticate (RFC 6750)")
    if any(code in RETRY_AFTER for code in codes):
        headers["Retry-After"] = header("Seconds to wait before retrying")
    if keyed and not _OUTCOMES.isdisjoint(codes):
        headers |= REPLAYED
    if headers:
        response["headers"] = headers
    return response


def header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


REPLAYED = {
    "Idempotent-Replayed": header(
        "`true` if this is the outcome of an earlier request with this Idempotency-Key"
    )
}


# --- bodies and streams --------------------------------------------------------------------------


def json_body(model: type[BaseModel], *, required: bool = True, **examples: Any) -> dict[str, Any]:
    """The `requestBody` of an operation whose handler reads the body itself."""
    content: dict[str, Any] = {"schema": ref(model.__name__)}
    if examples:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": required, "content": {"application/json": content}}}


def event_stream(description: str) -> dict[str, Any]:
    """A response that is a stream of events."""
    return {"description": description, "content": {"text/event-stream": event_content()}}


def event_content() -> dict[str, Any]:
    """The content of a stream, described by one event: OpenAPI 3.1 cannot describe a sequence of events."""
    return {"schema": ref("Event")}


def _event(name: str, model: str) -> Json:
    return {
        "type": "object",
        "title": name,
        "required": ["event", "data"],
        "properties": {
            "event": {"const": name},
            "id": {"type": "string", "pattern": "^[0-9]+$"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": ref(model)},
        },
    }


# --- links ---------------------------------------------------------------------------------------


def links_of_answer() -> dict[str, Any]:
    """Links from the ids in an answer."""
    return {
        "request": _link("get_request", "The request's record", "request_id"),
        "events": _link("follow_request", "The events of the request, from the first", "request_id"),
        "resume": _link("resume_request", "The decision, if the status is `Paused`", "request_id"),
        "cancel": _link("cancel_request", "Cancels a request that has not ended", "request_id"),
        **links_of_task(),
        "session": _link("get_session", "The session with its tasks", "session_id"),
    }


def links_of_task() -> dict[str, Any]:
    """Links from a task's id."""
    return {
        "task": _link("get_task", "The task", "task_id"),
        "messages": _link("list_messages", "The interaction history", "task_id"),
        "trace": _link("list_steps", "The execution trace", "task_id"),
        "checkpoints": _link("list_checkpoints", "The checkpoints", "task_id"),
        "audit": _link("list_audit", "The audit", "task_id"),
    }


def _link(operation: str, description: str, identifier: str) -> Json:
    return {
        "operationId": operation,
        "description": description,
        "parameters": {identifier: f"$response.body#/{identifier}"},
    }


# --- the whole document --------------------------------------------------------------------------


def document(exchange: Exchange, parts: Iterable["Routes"]) -> dict[str, Any]:
    """The OpenAPI document of an agent's API. Imports FastAPI, which nothing else needs."""
    from fastapi import FastAPI
    from fastapi.openapi.utils import get_openapi

    app = FastAPI()
    for part in parts:
        app.include_router(part.described(), prefix=exchange.prefix)
    agent, about = exchange.agent, exchange.settings.description
    made = get_openapi(title=agent.name, version=agent.version, description=about, routes=app.routes)
    return _completed(made, exchange.settings)


def _completed(document: dict[str, Any], settings: ApiSettings) -> dict[str, Any]:
    """Adds what FastAPI does not generate: schemas of bodies, events and problems; the security scheme; tags.

    The description of each operation that takes messages begins with the agent's own: orchestrators choose
    among agents by that text alone.
    """
    for path in document["paths"].values():
        for operation in path.values():
            if operation["operationId"] in _TAKING_MESSAGES:
                operation["description"] = f"{settings.description}\n\n{operation['description']}"
    components = document.setdefault("components", {})
    schemas_of = components.setdefault("schemas", {})
    schemas_of.update(_schemas_of_undeclared())
    schemas_of.update(_schemas_of_export(), JsonValue=inputs.JSON_VALUE, JsonObject=inputs.JSON_OBJECT)
    schemas_of["Event"] = {
        "description": "A server-sent event; `event` says which JSON document its `data` is",
        "oneOf": [_event(name, model.__name__) for name, model in EVENTS.items()],
    }
    schemas_of["UserMessage"]["properties"]["items"]["maxItems"] = settings.max_items
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas_of.pop(unused, None)
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "An access token; with the mock provider, the user's id",
        }
    }
    document["security"] = [{"bearer": []}]
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]
    return document


#: the operations that an orchestrator sends messages to
_TAKING_MESSAGES = frozenset({"send_message", "stream_message"})

_TAGS = {
    "messages": "Send messages, and decide pauses",
    "sessions": "Continuous conversations, each with its tasks",
    "tasks": "Stateful jobs: their history, trace, checkpoints and audit; roll back, fork, export, delete",
    "requests": "Single invocations: read, follow, cancel",
    "approvals": "Pauses that are waiting for a decision",
    "tenant": "Who the caller is, and the tasks of the tenant, for auditors",
    "health": "Probes, which need no token",
}


def _schemas_of_undeclared() -> Json:
    """The schemas of `_UNDECLARED` and all that they refer to."""
    _, definitions = models_json_schema(
        [(model, "validation") for model in _UNDECLARED], ref_template=_COMPONENTS + "{model}"
    )
    made: Json = _with_references(definitions["$defs"])
    return made


def _with_references(schema: Any) -> Any:
    """Replaces each placeholder with the title `JsonObject`, a schema of our own, by a reference to it."""
    if isinstance(schema, dict):
        kept = {name: _with_references(value) for name, value in schema.items()}
        if schema.get("title") == "JsonObject":
            del kept["title"]
            kept |= ref("JsonObject")
        return kept
    return [_with_references(item) for item in schema] if isinstance(schema, list) else schema


_ID: Json = {"format": "uuid", "pattern": ids.CANONICAL}
_TIME: Json = {"format": "date-time"}
_STATUS: Json = {"enum": sorted(ENDED)}
#: ids, times and statuses that an import checks, by record: msgspec describes only their types
_CHECKED: dict[str, dict[str, Json]] = {
    "Head": {
        **dict.fromkeys(("task_id", "session_id", "checkpoint_id"), _ID),
        **dict.fromkeys(("created_at", "updated_at", "expires_at"), _TIME),
        "status": _STATUS,
    },
    "RequestRecord": {
        **dict.fromkeys(("task_id", "session_id", "request_id", "parent", "retries"), _ID),
        **dict.fromkeys(("created_at", "started_at", "resumed_at", "ended_at"), _TIME),
        "status": _STATUS,
    },
    "ExportedEntry": {"request_id": _ID, "at": {"pattern": f"^{STAMP}$"}},
    "RequestEnd": {"request_id": _ID, "ended_at": _TIME},
    "ToolIntent": {"request_id": _ID},
    "Step": {"step_id": _ID, "request_id": _ID, "started_at": _TIME},
    "Message": {"message_id": _ID, "request_id": _ID, "created_at": _TIME},
}


def _schemas_of_export() -> dict[str, Any]:
    """The schemas of an exported task, with `Exported` before each name: documents share some of them."""
    _, components = msgspec.json.schema_components(
        (ExportedTask,), ref_template=_COMPONENTS + "Exported{name}"
    )
    for name, fields in _CHECKED.items():
        for field, accepted in fields.items():
            schema = components[name]["properties"][field]
            schema.get("anyOf", [schema])[0].update(accepted)  # the other one is null
    named = {f"Exported{name}": schema for name, schema in components.items()}
    written = json.dumps(named).replace("ExportedExported", "Exported")
    made: dict[str, Any] = _with_limits(json.loads(written))
    return made


def _with_limits(schema: Any) -> Any:
    """Adds limits to every value: no NUL in texts and keys, and numbers from 0 to 2**53."""
    if isinstance(schema, list):
        return [_with_limits(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value if name in _LITERAL else _with_limits(value) for name, value in schema.items()}
    # of a tuple, whose maximum length says the same; client generators do not understand `false`
    if kept.get("items") is False:
        del kept["items"]
    match schema.get("type"):
        case "integer" | "number":
            kept |= {"minimum": 0, "maximum": 2**53}
        case "string" if not schema.keys() & {"enum", "const", "format", "pattern"}:
            kept["pattern"] = inputs.NO_NUL
        case "object" if schema.keys() & {"properties", "additionalProperties"}:
            kept["propertyNames"] = {"pattern": inputs.NO_NUL}
            kept.setdefault("additionalProperties", ref("JsonValue"))
        case "object":
            kept = ref("JsonObject") | ({"default": schema["default"]} if "default" in schema else {})
    return kept


#: keywords whose values are not schemas
_LITERAL = frozenset({"default", "enum", "const", "required", "mapping"})
