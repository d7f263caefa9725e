"""The documents of `tealagents/v1alpha1`, as the OpenAPI document describes them.

The service does not validate its own answers with these models; a test compares the two. Request bodies are
validated with the models in `inputs`.
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
from tealagents.domain.models import Role, Status
from tealagents.engine.reconstruction import Gap, PartOrigin

T = TypeVar("T")

ApprovalStatus = Literal["pending", "decided", "expired", "canceled"]

_NOT_A_UUID = "must be a UUID in the canonical form"


def _canonical(value: str) -> str:
    try:
        return ids.canonical(value, "")
    except InvalidRequest:
        raise ValueError(f"{_NOT_A_UUID}, such as {ids.EXAMPLE}") from None


#: an id. Answers have it in canonical form, in lower case; requests may use either case
Uuid = Annotated[
    str,
    AfterValidator(_canonical),
    WithJsonSchema({"type": "string", "format": "uuid", "pattern": ids.PATTERN, "examples": [ids.EXAMPLE]}),
]


class Schema(BaseModel):
    """The base of all models. Each is built at its first use: most only describe an answer."""

    model_config = ConfigDict(defer_build=True)


class Accepted(Schema):
    """The base of request bodies: unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Page(Schema, Generic[T]):
    """A page of a list. A filtered page may be short, or empty, and still have a next page."""

    model_config = ConfigDict(json_schema_extra={"description": "A page of a list"})

    items: list[T]
    next_cursor: str | None = Field(
        description="Send it as `cursor` to get the next page; null on the last page"
    )


class Usage(Schema):
    """Tokens, summed over all model calls of a request, as the model service counts them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class OfRequest(Schema):
    """The three ids of everything that belongs to a request."""

    session_id: Uuid
    task_id: Uuid
    request_id: Uuid


class Content(OfRequest):
    """The answer of a completed request, or as much of it as a failed or canceled one had produced."""

    output: str = Field(description="The text of the answer")
    source: str = Field(
        description="The agent that answered, as `name:version`", examples=["WikipediaAgent:0.1"]
    )
    token_usage: Usage
    extra_data: dict[str, Any] | None = Field(description="Data that tools added to the answer")


class ShownCall(Schema):
    """A tool call that is waiting for a decision."""

    id: str
    plugin_name: str
    function_name: str
    arguments: str = Field(description="The arguments as JSON text, exactly as the call would run")


class ShownCallWithTool(ShownCall):
    """A tool call that is waiting for a decision, with its tool as it was when the call was shown."""

    description: str | None = Field(description="The tool's description; null if it is unknown")
    parameters: dict[str, Any] | None = Field(
        description="JSON Schema of the arguments; null if the tool has changed or is unknown"
    )


class ApprovalContent(OfRequest):
    """The content of a paused request: what to decide, and where."""

    approval_id: Uuid
    message: str
    approval_url: str
    rejection_url: str
    expires_at: datetime
    authorizations: list[dict[str, Any]] = Field(
        description="Pages that the user must visit first: `{server, url, scopes}`"
    )
    tool_calls: list[ShownCall]


class Answer(OfRequest):
    """The answer to a message or a decision."""

    status: Status
    content: Content | ApprovalContent | None


class AcceptedAnswer(OfRequest):
    """The acknowledgment of a request that runs in the background."""

    status: Literal["Queued", "Running"]


class RequestEvent(OfRequest):
    """`request`: always the first event."""

    status: Literal["Queued", "Running"]


class PieceEvent(OfRequest):
    """`partial-response`: a text delta of the answer."""

    source: str
    output_partial: str


class ToolCallEvent(OfRequest):
    """`tool-call`: a tool is about to run."""

    call_id: str
    tool: str = Field(examples=["Shell-look"])
    arguments: str = Field(description="The arguments as JSON text")


class ToolResultEvent(OfRequest):
    """`tool-result`: a tool has returned or failed."""

    call_id: str
    tool: str
    output: str
    is_error: bool
    duration_ms: float


class RequestDocument(OfRequest):
    """A request: its status, its answer (as much of it as there is) or its pause, and its error."""

    status: Status
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    token_usage: Usage
    content: Content | ApprovalContent | None
    error: "Problem | None"


class TaskDocument(Schema):
    """A task in its current state."""

    task_id: Uuid
    session_id: Uuid
    status: Status
    created_at: datetime
    last_updated: datetime
    expires_at: datetime | None
    metadata: dict[str, Any]
    owner: dict[str, str] = Field(description="`{tid, oid}` of the user who created it")
    checkpoint_id: Uuid | None = Field(description="The current checkpoint")
    request_id: Uuid | None = Field(description="The request that is running, or waiting for a decision")
    approval_id: Uuid | None = Field(description="The pending approval of a paused task")
    queued: list[Uuid] = Field(description="Requests that are waiting for their turn, in order")
    origin: dict[str, Any] | None = Field(description="Where a forked or imported task came from")


class SessionDocument(Schema):
    """A session: a user's continuous conversation, which groups tasks."""

    session_id: Uuid
    created_at: datetime
    owner: dict[str, str]
    tasks: "list[TaskDocument | DamagedRecord] | None" = Field(
        None, description="The newest tasks, up to 200. Only in `GET …/sessions/{session_id}`"
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
    role: Role
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
        None, description="The checkpoint that it continued; null for the first one. Only with `parents`"
    )


class ApprovalDocument(OfRequest):
    """A pause, and its decision."""

    approval_id: Uuid
    status: ApprovalStatus
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
    """A part of a model call's prompt: a stored message, or a text that is not one."""

    origin: PartOrigin = Field(description="Where it comes from")
    role: Literal["system", "user", "assistant", "tool"]
    message_id: Uuid | None = Field(description="The stored message; null for a text")
    request_id: Uuid | None = Field(description="The request that the message belongs to")
    items: list[dict[str, str]]
    tool_calls: list[ToolCallDocument]
    tool_call_id: str | None
    tool: str | None
    altered: bool = Field(
        description="True if the message was sent in another form than the stored one, which is shown"
    )
    withheld: bool = Field(
        description="True if the text is not shown: the system prompt, if the service has no console"
    )


class SentPrompt(Schema):
    """A page of the prompt of a model call, reconstructed from what is stored."""

    request_id: Uuid
    step_id: Uuid = Field(description="The step of the trace that records the call")
    model: str
    parts_sent: int = Field(description="How many parts were sent, according to the trace")
    gaps: list[Gap] = Field(
        description="Known differences between these parts and what was sent; empty if there are none"
    )
    items: list[SentPartDocument]
    next_cursor: str | None = Field(
        description="Send it as `cursor` to get the next page; null on the last page"
    )


class UserDocument(Schema):
    """A user: the tenant's id, and the user's object id in that tenant."""

    tid: str
    oid: str


class Me(Schema):
    """The caller, as the service identifies it."""

    user: UserDocument
    roles: list[Literal["approver", "auditor"]] = Field(
        description="An approver decides for other users of the tenant; an auditor reads their state"
    )


class AuditEntry(Schema):
    """One entry of a task's audit, which is append-only and hash-chained."""

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
    detail: str = Field(description="What went wrong, and what to do")
    code: str
    session_id: Uuid | None = None
    task_id: Uuid | None = None
    request_id: Uuid | None = None
    approval_id: Uuid | None = None
    field: str | None = Field(None, description="The input that is invalid")


class DamagedRecord(Schema):
    """What a list contains in place of a record that cannot be read: its id, and what is wrong with it."""

    task_id: Uuid | None = None
    session_id: Uuid | None = None
    approval_id: Uuid | None = None
    error: Problem


class Health(Schema):
    """The state of the process and of its dependencies."""

    status: Literal["ok", "degraded", "draining"]
    version: str
    uptime: float = Field(description="Seconds since the process started")
    dependencies: dict[str, dict[str, Any]]
