"""The documents of `tealagents/v1alpha1`: what is accepted, and what the OpenAPI document says of answers.

Only what comes in is validated with these models. Answers are made from our own records and are not
validated again; a test holds them against these models instead.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from tealagents.api.items import image_problem
from tealagents.domain import ids
from tealagents.domain.depth import LARGEST_INTEGER, SMALLEST_INTEGER
from tealagents.domain.errors import InvalidRequest

StatusName = Literal["Queued", "Running", "Paused", "Completed", "Failed", "Canceled"]

_IMAGE_PATTERN = (
    "^data:image/[A-Za-z0-9.+-]+;base64,([A-Za-z0-9+/]{4})*"
    "([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$"
)
#: any text that can be kept
NO_NUL = r"^[^\x00]*$"
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NOT_A_UUID = "must be a UUID in the canonical form"


def _canonical(value: str) -> str:
    try:
        return ids.canonical(value, "")
    except InvalidRequest:
        raise ValueError(f"{_NOT_A_UUID}, such as {ids.EXAMPLE}") from None


#: an id: in canonical form when it is sent, in either case when it comes
Uuid = Annotated[
    str,
    AfterValidator(_canonical),
    WithJsonSchema({"type": "string", "format": "uuid", "pattern": ids.PATTERN, "examples": [ids.EXAMPLE]}),
]


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("lies outside the calendar") from None


def _only_text(value: Any) -> Any:
    """Refuses numbers, and texts that are numbers: what they count from would be a guess."""
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


class Schema(BaseModel):
    """A model that is built when it is first used: most of them are only described."""

    model_config = ConfigDict(defer_build=True)


class Accepted(Schema):
    """What comes in: no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _an_item(schema: dict[str, Any]) -> None:
    """Says for each kind of content what it is made of."""
    described = dict(schema["properties"])
    schema.clear()
    schema["title"] = "Item"
    schema["description"] = "One piece of a message."
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
    """One piece of a message."""

    model_config = ConfigDict(json_schema_extra=_an_item)

    content_type: Literal["text", "image"] = Field(description="`text`, or `image` with a data URI")
    content: str = Field(
        min_length=1, description="The text, or the image as `data:image/png;base64,…`", examples=["hello"]
    )

    @field_validator("content")
    @classmethod
    def _image_is_a_data_uri(cls, content: str, other: ValidationInfo) -> str:
        if other.data.get("content_type") == "image":
            problem = image_problem(content)
            if problem is not None:
                raise ValueError(problem)
        return content


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

    session_id: Uuid | None = Field(None, description="The session; new when left out or not known yet")
    task_id: Uuid | None = Field(None, description="The task to continue; a new one when left out")
    items: list[ItemIn] = Field(min_length=1, description="The message as a list of items")
    user_context: dict[str, Text] | None = Field(
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
    action: Literal["approve", "reject"] | None = Field(None, description="Left out: the default `action`")
    arguments: JsonObject | None = Field(None, description="Run with these instead of those shown")


def _something_is_decided(schema: dict[str, Any]) -> None:
    acting = {"required": ["action"], "properties": {"action": {"type": "string"}}}
    each = {"type": "array", "minItems": 1, "items": acting}
    schema["anyOf"] = [acting, {"required": ["decisions"], "properties": {"decisions": each}}]


class ResumeCommand(Accepted):
    """A decision on a pause: by the default `action`, by call, or both."""

    model_config = ConfigDict(json_schema_extra=_something_is_decided)

    action: Literal["approve", "reject"] | None = Field(
        None, description="The default for calls that `decisions` omits", examples=["approve"]
    )
    reason: Text | None = Field(None, max_length=4000, description="Sent to the model, kept in the trace")
    decisions: list[CallDecisionIn] | None = Field(None, description="Per call")


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


# --- answers -------------------------------------------------------------------------------------


class Usage(Schema):
    """Tokens over all model calls of the request, as the model service counts them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Content(Schema):
    """The answer of a completed request, or what there was of one."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    output: str = Field(description="The answer")
    source: str = Field(description="Who answered", examples=["WikipediaAgent:0.1"])
    token_usage: Usage
    extra_data: dict[str, Any] | None = Field(description="What tools added to the answer")


class ShownCall(Schema):
    """A tool call that waits for a decision."""

    id: str
    plugin_name: str
    function_name: str
    arguments: str = Field(description="JSON text, exactly as it would run")


class ShownCallWithTool(ShownCall):
    """A call that waits, with its tool as it was when the call was shown."""

    description: str | None = Field(description="What the tool says of itself; null where it is not known")
    parameters: dict[str, Any] | None = Field(
        description="JSON Schema of the arguments; null where the tool is another by now, or not known"
    )


class ApprovalContent(Schema):
    """What a paused request shows."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    approval_id: Uuid
    message: str
    approval_url: str
    rejection_url: str
    expires_at: datetime
    authorizations: list[dict[str, Any]] = Field(description="`{server, url, scopes}` to visit first")
    tool_calls: list[ShownCall]


class Answer(Schema):
    """What a message or a decision is answered with."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    status: StatusName
    content: Content | ApprovalContent | None


class AcceptedAnswer(Schema):
    """What a background request is answered with."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    status: Literal["Queued", "Running"]


class RequestEvent(Schema):
    """`request`: always first."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    status: Literal["Queued", "Running"]


class PieceEvent(Schema):
    """`partial-response`: a piece of the answer, as the model service sent it."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    source: str
    output_partial: str


class ToolCallEvent(Schema):
    """`tool-call`: a tool is about to run."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    call_id: str
    tool: str = Field(examples=["Shell-look"])
    arguments: str = Field(description="JSON text")


class ToolResultEvent(Schema):
    """`tool-result`: its result."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    call_id: str
    tool: str
    output: str
    is_error: bool
    duration_ms: float


class RequestDocument(Schema):
    """One invocation: its status, its answer or what there was of one, and its error."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    status: StatusName
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    token_usage: Usage
    content: Content | ApprovalContent | None
    error: "Problem | None"


class TaskDocument(Schema):
    """A task as it stands."""

    task_id: Uuid
    session_id: Uuid
    status: StatusName
    created_at: datetime
    last_updated: datetime
    expires_at: datetime | None
    metadata: dict[str, Any]
    owner: dict[str, str] = Field(description="`{tid, oid}` of the user who made it")
    checkpoint_id: Uuid | None = Field(description="The current checkpoint")
    request_id: Uuid | None = Field(description="The request that runs or waits for a decision")
    approval_id: Uuid | None = Field(description="The pending approval of a paused task")
    queued: list[Uuid] = Field(description="Requests that wait their turn, in order")
    origin: dict[str, Any] | None = Field(description="Where a forked or imported task came from")


class SessionDocument(Schema):
    """A session."""

    session_id: Uuid
    created_at: datetime
    owner: dict[str, str]
    tasks: "list[TaskDocument | DamagedRecord] | None" = Field(
        None, description="Only when one session is read"
    )


class ToolCallDocument(Schema):
    """A tool call as the model asked for it."""

    id: str
    tool: str
    arguments: str


class MessageDocument(Schema):
    """One message of the interaction history."""

    message_id: Uuid
    request_id: Uuid
    role: Literal["user", "assistant", "tool"]
    items: list[dict[str, str]]
    tool_calls: list[ToolCallDocument]
    tool_call_id: str | None
    tool: str | None
    is_error: bool
    created_at: datetime
    origin: dict[str, str] | None


class StepDocument(Schema):
    """One entry of the execution trace."""

    step_id: Uuid
    request_id: Uuid
    kind: str
    name: str
    started_at: datetime
    duration_ms: float
    input: dict[str, Any] | None
    output: dict[str, Any] | None
    usage: Usage | None
    is_error: bool
    outcome: str | None
    imported: bool


class CheckpointDocument(Schema):
    """The state of a task after a completed request."""

    checkpoint_id: Uuid
    request_id: Uuid
    created_at: datetime
    current: bool
    parent_id: Uuid | None = Field(
        None, description="The checkpoint that it continued; null for a first one. With `parents` only"
    )


class ApprovalDocument(Schema):
    """A pause, and what was decided of it."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid
    approval_id: Uuid
    status: Literal["pending", "decided", "expired", "canceled"]
    created_at: datetime
    expires_at: datetime
    message: str
    approval_url: str
    rejection_url: str
    authorizations: list[dict[str, Any]]
    tool_calls: list[ShownCall]
    decided_at: datetime | None
    decided_by: dict[str, str] | None


class ApprovalWithTools(ApprovalDocument):
    """A pause, with the tools of its calls."""

    tool_calls: list[ShownCallWithTool]  # type: ignore[assignment]


class SentPartDocument(Schema):
    """A part of what the model was sent: a message, or a text in the place of one."""

    origin: Literal["system_prompt", "summary", "note", "context", "history", "request"] = Field(
        description="Where it comes from"
    )
    role: Literal["system", "user", "assistant", "tool"]
    message_id: Uuid | None = Field(description="The stored message; null for a text")
    request_id: Uuid | None = Field(description="The request that the message belongs to")
    items: list[dict[str, str]]
    tool_calls: list[ToolCallDocument]
    tool_call_id: str | None
    tool: str | None
    altered: bool = Field(description="It was sent in another form than it is stored and shown in")
    withheld: bool = Field(description="Its text is not shown: the system prompt, without the console")


class SentPrompt(Schema):
    """What a call of the model was sent, put together again from what is stored. A page of it."""

    request_id: Uuid
    step_id: Uuid = Field(description="The step of the trace that is the call")
    model: str
    parts_sent: int = Field(description="How many parts were sent, as the trace has recorded it")
    gaps: list[Literal["altered", "agent", "path", "count"]] = Field(
        description="In what the parts are known to differ from what was sent; empty where they are not"
    )
    items: list[SentPartDocument]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page")


class UserDocument(Schema):
    """A user, by the ids of the tenant and of the user in it."""

    tid: str
    oid: str


class Me(Schema):
    """Who the service takes the caller for."""

    user: UserDocument
    roles: list[Literal["approver", "auditor"]] = Field(
        description="Of this service: an approver decides for others of the tenant, an auditor reads"
    )


class AuditEntry(Schema):
    """One entry of the append-only record."""

    seq: int
    at: datetime
    actor: str
    action: str
    request_id: Uuid | None
    details: dict[str, Any]
    prev_hash: str
    hash: str


class Problem(Schema):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str = Field(description="A sentence that says what to do")
    code: str
    session_id: Uuid | None = None
    task_id: Uuid | None = None
    request_id: Uuid | None = None
    approval_id: Uuid | None = None
    field: str | None = Field(None, description="Where input was wrong")


class DamagedRecord(Schema):
    """What stands in a list for a record that cannot be read: its id, and what is wrong with it."""

    task_id: Uuid | None = None
    session_id: Uuid | None = None
    approval_id: Uuid | None = None
    error: Problem


class Health(Schema):
    """How the process and what it depends on are."""

    status: Literal["ok", "degraded", "draining"]
    version: str
    uptime: float = Field(description="Seconds since the start")
    dependencies: dict[str, dict[str, Any]]
