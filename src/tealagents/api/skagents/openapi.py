"""The OpenAPI document. Its first path is the call of the agent, described by the agent's own description:
orchestrators choose among agents by that text alone."""

from typing import Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tealagents.domain.models import Json

_MODE: Final = "validation"
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
    sent, typed, components = _schemas(input_type, output_type)
    body = {"required": True, "content": {"application/json": {"schema": sent}}}
    # inline, not a named component: the config's own types could have the same name
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
        "components": {"schemas": components},
    }


def _schemas(input_type: type[BaseModel], output_type: type[BaseModel] | None) -> tuple[Json, Json, Json]:
    """The schemas of the input and the output, and the components that they refer to, by name. They are made
    together, so that different types with the same name get different components."""
    references, made = models_json_schema(
        [(kind, _MODE) for kind in (input_type, output_type) if kind is not None],
        ref_template="#/components/schemas/{model}",
    )
    typed = references[output_type, _MODE] if output_type is not None else {"type": "null"}
    return references[input_type, _MODE], typed, made.get("$defs", {})


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
