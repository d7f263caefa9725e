"""The OpenAPI document. Its first path is the call of the agent, whose description is the agent's own:
orchestrators choose among agents by nothing else."""

from typing import Any

from pydantic import BaseModel

from tealagents.domain.models import Json

_COMPONENTS = "#/components/schemas/"
_STRING = {"type": "string"}
_EVENTS: Json = {
    "description": "`intermediate-task-response`, `partial-response`, then `final-response` or `error`",
    "content": {"text/event-stream": {"schema": _STRING}},
}


def document(
    *,
    name: str,
    version: str,
    prefix: str,
    description: str,
    input_type: type[BaseModel],
    output_type: type[BaseModel] | None,
) -> Json:
    """The document of one agent."""
    schemas: dict[str, Any] = {}
    typed = _schema(output_type, schemas) if output_type is not None else {"type": "null"}
    body = {"required": True, "content": {"application/json": {"schema": _schema(input_type, schemas)}}}
    # described in its place: a name of ours could be that of one of the config's types
    answer = {"application/json": {"schema": _answer(typed)}}
    errors: Json = {"4XX": {"description": "Refused"}, "5XX": {"description": "Failed"}}

    def call(summary: str, operation: str, answered: Json) -> Json:
        return {
            "post": {
                "summary": summary,
                "description": description,
                "operationId": operation,
                "requestBody": body,
                "responses": {"200": answered, **errors},
            }
        }

    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version, "description": description},
        "paths": {
            prefix: call(name, "invoke", {"description": "The answer", "content": answer}),
            f"{prefix}/sse": call(f"{name}, as server-sent events", "invoke_sse", _EVENTS),
        },
        "components": {"schemas": schemas},
    }


def _schema(kind: type[BaseModel], schemas: dict[str, Any]) -> Json:
    """Refers to the schema of a type, which is added to `schemas` with all it needs."""
    made = kind.model_json_schema(ref_template=_COMPONENTS + "{model}")
    schemas.update(made.pop("$defs", {}))
    if "$ref" in made:  # a type that holds its own kind is one of those
        return made
    schemas[kind.__name__] = made
    return {"$ref": _COMPONENTS + kind.__name__}


def _answer(typed: Json) -> Json:
    count = {"type": "integer"}
    items = {"type": "array", "items": {"type": "object", "properties": {"key": _STRING, "value": {}}}}
    return {
        "type": "object",
        "properties": {
            "session_id": _STRING,
            "source": _STRING,
            "request_id": _STRING,
            "token_usage": {
                "type": "object",
                "properties": {
                    "completion_tokens": count,
                    "prompt_tokens": count,
                    "total_tokens": count,
                },
            },
            "extra_data": {"anyOf": [{"type": "object", "properties": {"items": items}}, {"type": "null"}]},
            "output_raw": _STRING,
            "output_pydantic": typed,
        },
    }
