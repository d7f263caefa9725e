"""What `tealagents/v1alpha1` accepts, and is validated with."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from tealagents.api.bodies import Entries, Several
from tealagents.api.v1alpha1.schemas import Accepted, Uuid
from tealagents.domain.images import image_problem, lowered
from tealagents.domain.json_limits import LARGEST_INTEGER, SMALLEST_INTEGER
from tealagents.domain.models import Action

_IMAGE_PATTERN = (
    "^[Dd][Aa][Tt][Aa]:[Ii][Mm][Aa][Gg][Ee]/[A-Za-z0-9.+-]+;[Bb][Aa][Ss][Ee]64,([A-Za-z0-9+/]{4})*"
    "([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$"
)
#: any text that can be kept
NO_NUL = r"^[^\x00]*$"
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None


def _only_text(value: Any) -> Any:
    """Refuses numbers, also in strings: their unit and epoch would be a guess."""
    if not isinstance(value, str) or not _DATE.match(value):
        raise ValueError("must be a time as text (RFC 3339), such as 2030-01-01T00:00:00Z")
    return value


#: a moment, as text with an offset
Moment = Annotated[
    AwareDatetime,
    Field(strict=False, examples=["2030-01-01T00:00:00Z"]),
    BeforeValidator(_only_text),
    AfterValidator(_in_utc),
]


def _an_item(schema: dict[str, Any]) -> None:
    """Says for each kind of content what it is made of."""
    described = dict(schema["properties"])
    schema.clear()
    schema["title"] = "Item"
    schema["description"] = "One item of a message."
    schema["oneOf"] = [
        {
            "type": "object",
            "title": title,
            "properties": {
                "content_type": {"const": kind, "type": "string"},
                "content": {**described["content"], "pattern": pattern, "examples": [example]},
            },
            "required": ["content_type", "content"],
            "additionalProperties": False,
        }
        for title, kind, pattern, example in (
            ("Text", "text", NO_NUL, "hello"),
            ("Image", "image", _IMAGE_PATTERN, "data:image/png;base64,iVBORw0KGgo="),
        )
    ]


class ItemIn(Accepted):
    """One item of a message."""

    model_config = ConfigDict(json_schema_extra=_an_item)

    content_type: Literal["text", "image"] = Field(description="`text`, or `image` with a data URI")
    content: str = Field(
        min_length=1, description="The text, or the image as `data:image/png;base64,…`", examples=["hello"]
    )

    @field_validator("content")
    @classmethod
    def _image_is_a_data_uri(cls, content: str, other: ValidationInfo) -> str:
        if other.data.get("content_type") != "image":
            return content
        if problem := image_problem(content):
            raise ValueError(problem)
        return lowered(content)


#: text as it comes; a NUL in it is refused before it gets here
Text = Annotated[str, Field(json_schema_extra={"pattern": NO_NUL})]
#: what a member of a JSON object may be: any JSON without NUL and without integers beyond 64 bits
JSON_VALUE: dict[str, Any] = {
    "description": "Any JSON; an integer that is written without exponent must fit into 64 bits",
    "anyOf": [
        {"type": ["null", "boolean"]},
        {"type": "integer", "minimum": SMALLEST_INTEGER, "maximum": LARGEST_INTEGER},
        {"type": "number", "not": {"type": "integer"}},
        {"type": "string", "pattern": NO_NUL},
        {"type": "array", "items": {"$ref": "#/components/schemas/JsonValue"}},
        {"$ref": "#/components/schemas/JsonObject"},
    ],
}
JSON_OBJECT: dict[str, Any] = {
    "description": "Any JSON object",
    "type": "object",
    "propertyNames": {"pattern": NO_NUL},
    "additionalProperties": {"$ref": "#/components/schemas/JsonValue"},
}
JsonObject = Annotated[dict[str, Any], WithJsonSchema({"title": "JsonObject"})]


class UserMessage(Accepted):
    """A message to the agent. A task's history lives in the service; there is no `chat_history`."""

    session_id: Uuid | None = Field(None, description="The session; a new one if omitted or unknown")
    task_id: Uuid | None = Field(None, description="The task to continue; a new one if omitted")
    items: Several[ItemIn] = Field(min_length=1, description="The message as a list of items")
    user_context: Entries[str, Text] | None = Field(
        None,
        description="Sent to the model in this request only; up to 64 KB of JSON",
        examples=[{"timezone": "UTC"}],
        json_schema_extra={"propertyNames": {"pattern": NO_NUL}},
    )
    metadata: JsonObject | None = Field(
        None,
        description="Kept with a new task; up to 64 KB of JSON. PATCH changes that of an existing task",
        examples=[{"channel": "web"}],
    )
    supersede: bool | None = Field(
        False, description="Cancel the pause this task waits in, and continue with this message"
    )


def _only_what_runs_is_edited(schema: dict[str, Any]) -> None:
    edited = {"action": {"const": "reject"}, "arguments": {"type": "object"}}
    schema["not"] = {"required": ["action", "arguments"], "properties": edited}


class CallDecisionIn(Accepted):
    """The decision on one call."""

    model_config = ConfigDict(json_schema_extra=_only_what_runs_is_edited)

    id: Text = Field(description="The call's id, as the pause shows it", examples=["call_1"])
    action: Action | None = Field(None, description="If omitted, the default `action`")
    arguments: JsonObject | None = Field(None, description="Run with these instead of those shown")


def _something_is_decided(schema: dict[str, Any]) -> None:
    acting = {"required": ["action"], "properties": {"action": {"type": "string"}}}
    each = {"type": "array", "minItems": 1, "items": acting}
    schema["anyOf"] = [acting, {"required": ["decisions"], "properties": {"decisions": each}}]


class ResumeCommand(Accepted):
    """A decision on a pause: by the default `action`, by call, or both."""

    model_config = ConfigDict(json_schema_extra=_something_is_decided)

    action: Action | None = Field(
        None, description="The default for calls that `decisions` omits", examples=["approve"]
    )
    reason: Text | None = Field(None, max_length=4000, description="Sent to the model, kept in the trace")
    decisions: Several[CallDecisionIn] | None = Field(None, description="Per call")


class TaskPatch(Accepted):
    """A change of a task."""

    metadata: JsonObject | None = Field(
        None, description="Merged into the task's metadata (RFC 7396: null removes a key, or all of it)"
    )
    expires_at: Moment | None = Field(None, description="When the task becomes unreachable; null for never")


class RollbackCommand(Accepted):
    """Where to go back, or forward again."""

    checkpoint_id: Uuid = Field(description="The checkpoint to make current")


def _not_both(schema: dict[str, Any]) -> None:
    points = ("checkpoint_id", "message_id")
    schema["not"] = {"required": list(points), "properties": {name: {"type": "string"} for name in points}}


class ForkCommand(Accepted):
    """Where to fork: a checkpoint or a message, not both; without either, the last completed request."""

    model_config = ConfigDict(json_schema_extra=_not_both)

    checkpoint_id: Uuid | None = Field(None, description="Up to this completed request")
    message_id: Uuid | None = Field(None, description="Up to and including this message")
