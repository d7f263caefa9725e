"""The OpenAPI document. Its first path is the call of the agent, described by the agent's own description:
orchestrators choose among agents by that text alone."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from tealagents.domain.models import Json

#: the input is described as it is sent, the output as it is written (`turns`)
_INPUT: Final = "validation"
_OUTPUT: Final = "serialization"
_REF: Final = "#/components/schemas/{model}"
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
    kinds: list[tuple[type[BaseModel], JsonSchemaMode]] = [(input_type, _INPUT)]
    if output_type is not None:
        kinds.append((output_type, _mode_of(output_type)))
    references, made = models_json_schema(kinds, ref_template=_REF)
    typed = references[kinds[1]] if output_type is not None else {"type": "null"}
    components: Json = made.get("$defs", {})
    # a type of both gets two components if they differ; that of the input keeps the type's name
    names = {name: name.removesuffix("-Input") for name in components}
    refs = {_REF.format(model=name): _REF.format(model=kept) for name, kept in names.items()}
    renamed = {names[name]: _renamed(each, refs) for name, each in components.items()}
    return _renamed(references[input_type, _INPUT], refs), typed, renamed


def _mode_of(output_type: type[BaseModel]) -> JsonSchemaMode:
    """How an output is described: as it is written, unless a serializer does not say what it writes."""
    try:
        output_type.model_json_schema(mode=_OUTPUT)
    except (PydanticInvalidForJsonSchema, PydanticUserError):
        return _INPUT
    return _OUTPUT


def _renamed(node: Any, refs: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _renamed(each, refs) for key, each in node.items()}
    if isinstance(node, list):
        return [_renamed(each, refs) for each in node]
    return refs.get(node, node) if isinstance(node, str) else node


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
