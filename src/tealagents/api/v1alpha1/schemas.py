"""The documents of `tealagents/v1alpha1` as its OpenAPI document describes them.

Answers are made from our own records and are not validated again; a test holds them against these models
instead. What comes in is validated by `inputs`.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest

T = TypeVar("T")

StatusName = Literal["Queued", "Running", "Paused", "Completed", "Failed", "Canceled"]

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


class Schema(BaseModel):
    """A model that is built when it is first used: most of them are only described."""

    model_config = ConfigDict(defer_build=True)


class Accepted(Schema):
    """What comes in: no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Page(Schema, Generic[T]):
    """Some items of a list; `next_cursor` is null on the last page. A filtered page may be short."""

    model_config = ConfigDict(json_schema_extra={"description": "A page of a list"})

    items: list[T]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page")


class Usage(Schema):
    """Tokens over all model calls of the request, as the model service counts them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class OfRequest(Schema):
    """What belongs to a request."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid


class Content(OfRequest):
    """The answer of a completed request, or what there was of one."""

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

    description: str | None = Field(description="The tool's description; null if it is not known")
    parameters: dict[str, Any] | None = Field(
        description="JSON Schema of the arguments; null if the tool has changed, or is not known"
    )


class ApprovalContent(OfRequest):
    """What a paused request shows."""

    approval_id: Uuid
    message: str
    approval_url: str
    rejection_url: str
    expires_at: datetime
    authorizations: list[dict[str, Any]] = Field(description="`{server, url, scopes}` to visit first")
    tool_calls: list[ShownCall]


class Answer(OfRequest):
    """What a message or a decision is answered with."""

    status: StatusName
    content: Content | ApprovalContent | None


class AcceptedAnswer(OfRequest):
    """What a background request is answered with."""

    status: Literal["Queued", "Running"]


class RequestEvent(OfRequest):
    """`request`: always first."""

    status: Literal["Queued", "Running"]


class PieceEvent(OfRequest):
    """`partial-response`: a piece of the answer, as the model service sent it."""

    source: str
    output_partial: str


class ToolCallEvent(OfRequest):
    """`tool-call`: a tool is about to run."""

    call_id: str
    tool: str = Field(examples=["Shell-look"])
    arguments: str = Field(description="JSON text")


class ToolResultEvent(OfRequest):
    """`tool-result`: its result."""

    call_id: str
    tool: str
    output: str
    is_error: bool
    duration_ms: float


class RequestDocument(OfRequest):
    """One invocation: its status, its answer or what there was of one, and its error."""

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
    owner: dict[str, str] = Field(description="`{tid, oid}` of the user who created it")
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
        None, description="The checkpoint that it continued; null for the first one. With `parents` only"
    )


class ApprovalDocument(OfRequest):
    """A pause, and what was decided of it."""

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
    altered: bool = Field(description="It was sent in a different form from the one stored and shown")
    withheld: bool = Field(description="Its text is not shown: the system prompt, without the console")


class SentPrompt(Schema):
    """What a model call was sent, reconstructed from what is stored. A page of it."""

    request_id: Uuid
    step_id: Uuid = Field(description="The step of the trace that is the call")
    model: str
    parts_sent: int = Field(description="How many parts were sent, as the trace has recorded it")
    gaps: list[Literal["altered", "agent", "path", "count"]] = Field(
        description="Known differences between these parts and what was sent; empty if there are none"
    )
    items: list[SentPartDocument]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page")


class UserDocument(Schema):
    """A user, by the ids of the tenant and of the user in it."""

    tid: str
    oid: str


class Me(Schema):
    """Who the caller is to the service."""

    user: UserDocument
    roles: list[Literal["approver", "auditor"]] = Field(
        description="In this service: an approver decides for other users of the tenant, an auditor reads"
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
    field: str | None = Field(None, description="Which input was wrong")


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
