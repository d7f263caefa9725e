"""The records of the state model, as immutable values.

All are `msgspec.Struct`s: built once, never changed, replaced with `msgspec.structs.replace`.
Times are aware `datetime`s in UTC. Sequence numbers count the entries of one task's log from 1.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

#: what a tool call's `tool` is made of: plugin, hyphen, function
TOOL_SEPARATOR = "-"

Role = Literal["user", "assistant", "tool"]
Status = Literal["Queued", "Running", "Paused", "Completed", "Failed", "Canceled"]
Action = Literal["approve", "reject"]
ENDED: frozenset[Status] = frozenset({"Completed", "Failed", "Canceled"})

#: characters of `Message.native`; what is longer is not kept
LONGEST_NATIVE = 512 * 1024

#: any JSON object
Json = dict[str, Any]

#: the entries of a task's log that make one history: pairs of first and last number, oldest first
Path = tuple[tuple[int, int], ...]


#: among the owners of secrets: authorizations that wait for their users to come back, of all users
PENDING_CONSENTS = "oauth-pending"


class User(Struct, frozen=True):
    """Who is asking: the object id in its tenant (Entra's `oid` and `tid`)."""

    tid: str
    oid: str

    @property
    def key(self) -> str:
        """One text for the pair, different for each; owns sessions, tasks and requests."""
        tenant = self.tid.replace("~", "~0").replace(".", "~1")
        return f"{tenant}.{self.oid}"

    @classmethod
    def of(cls, key: str) -> "User":
        """The user of a `key`. `ValueError` where it is none."""
        tenant, _, oid = key.partition(".")
        user = cls(tenant.replace("~1", ".").replace("~0", "~"), oid)
        if not oid or user.key != key:
            raise ValueError(f"{key!r} is not a tenant and an object id joined by a dot")
        return user


class Caller(Struct, frozen=True):
    """A user together with what their credentials allow in this call."""

    user: User
    #: may decide pauses of others in the tenant
    approver: bool = False
    #: may read everything in the tenant, and change nothing
    auditor: bool = False
    #: the bearer token as it came; for on-behalf-of only, never stored, never logged
    token: str = ""
    #: the caller's headers that the config lets tools see
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Caller(user={self.user!r}, approver={self.approver}, auditor={self.auditor})"


class TokenUsage(Struct, frozen=True):
    """Tokens, as the model service counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
        )

    def __sub__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.total_tokens - other.total_tokens,
        )


class Item(Struct, frozen=True):
    """One item of a message: text, or an image as a data URI."""

    content_type: Literal["text", "image"]
    content: str


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A call as the model asked for it. `arguments` is the JSON text the model wrote, perhaps broken."""

    #: unique within its request
    id: str
    tool: str
    arguments: str
    #: the plugin, OpenAPI plugin or MCP server, where that is not what stands before the first hyphen
    plugin: str = ""
    #: run by the client that declared the tool: its decision is an output
    by_client: bool = False
    #: in a pause: digest of the tool as it stood when the call was shown; empty where it was not listed
    pinned: str = ""
    #: the id that the model service gave it and is sent back, where that is another
    native_id: str = ""
    #: in a pause: the tool's own code has run already, up to where it needed the user
    begun: bool = False

    @property
    def plugin_name(self) -> str:
        first, separator, _ = self.tool.partition(TOOL_SEPARATOR)
        return self.plugin or (first if separator else "")

    @property
    def function_name(self) -> str:
        return self.tool.removeprefix(self.plugin_name + TOOL_SEPARATOR)


class Deferred(Struct, frozen=True):
    """A call that could not be made yet, or not to its end: it needs the owner's consent, or the owner's own
    token, or its tool is another one than was approved."""

    call: ToolCall
    #: `{server, url, scopes}` to visit, or None where it is not consent that is awaited
    authorization: Json | None
    #: the tool has changed since the call was shown
    changed: bool = False


class Governance(Struct, frozen=True, kw_only=True):
    requires_hitl: bool = False
    cost: Literal["low", "medium", "high"] = "low"
    data_sensitivity: Literal["public", "proprietary", "confidential", "sensitive"] = "public"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """What the model is sent of a tool, and how it is governed."""

    #: `Plugin-function`; matches ``[A-Za-z0-9_-]{1,64}``
    name: str
    description: str
    #: JSON Schema (an object) of the arguments
    parameters: Json
    governance: Governance
    #: where the tool needs the user's own authorization
    auth: Json | None = None
    #: seconds after which a call is given up; None: the config's `tool_timeout_seconds`
    timeout: float | None = None
    #: seconds that a call may take besides, before anything is sent: for a session, or the user's token
    waits: float = 0
    #: what `name` begins with, before a hyphen; empty: the part before the first hyphen
    plugin: str = ""


class ClientTool(Struct, frozen=True):
    """A tool that the client of one request runs by itself."""

    name: str
    description: str
    #: JSON Schema (an object) of the arguments
    parameters: Json


class Origin(Struct, frozen=True):
    """Where a copied message came from."""

    task_id: str
    message_id: str


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation.

    A `tool` message answers the call `tool_call_id` of the assistant message before it; the model service
    knows that call as `native_call_id`, where that is set.
    """

    message_id: str
    request_id: str
    role: Role
    created_at: datetime
    items: tuple[Item, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    native_call_id: str = ""
    tool: str | None = None
    is_error: bool = False
    origin: Origin | None = None
    #: of an assistant that calls tools: what the model service wants back with the calls, for a client of its
    #: kind to read; neither shown nor exported
    native: str = ""

    @property
    def text(self) -> str:
        return "".join(item.content for item in self.items if item.content_type == "text")


StepKind = Literal["model", "tool", "approval", "reduction", "context", "error"]


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the execution trace."""

    step_id: str
    request_id: str
    kind: StepKind
    name: str
    started_at: datetime
    duration_ms: float = 0
    #: model: the numbers of `messages` and `tools`; tool: `{call_id, arguments}`; approval: what was shown
    input: Json | None = None
    #: model: `{message_id, text, tool_calls, …}`; tool: `{output}`; approval: who decided what
    output: Json | None = None
    usage: TokenUsage | None = None
    is_error: bool = False
    #: how a tool call ended (`done`, `failed`, `unknown`), or a model call (its finish reason)
    outcome: str | None = None
    imported: bool = False


class ToolOutcome(Struct, frozen=True):
    """What is known of one tool call of a request that did not complete."""

    call_id: str
    tool: str
    arguments: str
    outcome: Literal["done", "failed", "unknown"]


class RequestEnd(Struct, frozen=True, kw_only=True, tag="end", omit_defaults=True):
    """The body of the entry with which a request ends; met first when history is read backwards."""

    request_id: str
    status: Status
    #: sequence number of the request's first entry, so that one that did not complete is passed over whole
    first_seq: int
    ended_at: datetime
    code: str | None = None
    #: what tools of a request that did not complete have done, or may have
    tools: tuple[ToolOutcome, ...] = ()
    #: this request's response at the model service (remote threads)
    remote_id: str | None = None
    #: why the model stopped, if it was not at the end of its answer
    finish_reason: "FinishReason | None" = None


class MessageBody(Struct, frozen=True, tag="message", omit_defaults=True):
    message: Message
    #: of the calls that a copied message asks for, those that were made, with the arguments they were made
    #: with: a fork copies no intents
    made: tuple[ToolCall, ...] = ()


class StepBody(Struct, frozen=True, tag="step"):
    step: Step


class ToolIntent(Struct, frozen=True, kw_only=True, tag="intent"):
    """Written before a tool runs. An intent without a result means: the outcome is unknown."""

    request_id: str
    calls: tuple[ToolCall, ...]


class Note(Struct, frozen=True, tag="note"):
    """An entry that only the audit needs: a rollback, a patch, a fork, an import."""

    text: str
    data: Json = {}


Body = MessageBody | StepBody | RequestEnd | ToolIntent | Note


class Entry(Struct, frozen=True, kw_only=True):
    """The audit envelope of one log entry: what `GET …/audit` returns, and nothing more.

    `hash` is taken over the canonical JSON (keys sorted, no spaces) of everything but itself:
    SHA-256, or HMAC-SHA-256 where an audit key is set. `details.sha256` is the body's digest.
    """

    seq: int
    at: str
    actor: str
    action: str
    request_id: str | None
    details: Json
    prev_hash: str
    hash: str


class Batch(Struct, frozen=True, kw_only=True):
    """One commit's entries: `log/{task}/{first seq}`. `bodies[i]` belongs to `entries[i]`.

    A body over 256 KB, or one that the batch has no room for, is stored out of line and stands here as
    `{"blob": sha256, "pieces": n}`.
    """

    entries: tuple[Entry, ...]
    bodies: tuple[msgspec.Raw, ...]


# --- heads ---------------------------------------------------------------------------------------


class Running(Struct, frozen=True):
    """The fence: only the process named here may write for this request."""

    request_id: str
    worker_id: str
    #: sequence number of the request's first entry
    first_seq: int


class Pending(Struct, frozen=True):
    """The pause that a task waits in."""

    request_id: str
    approval_id: str
    expires_at: datetime
    first_seq: int


class Queued(Struct, frozen=True):
    request_id: str
    worker_id: str
    deadline: datetime


class Effects(Struct, frozen=True, omit_defaults=True):
    """What the tools of a request that did not complete have done, or may have."""

    #: they count while this entry is on the current path: the request's first, unless that is not there
    first_seq: int
    tools: tuple[ToolOutcome, ...]
    #: where there was no room for calls before these: the first entry of the earliest request that made some
    cut: int = 0


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`task/{task_id}`: all that a turn must know of a task before it begins."""

    task_id: str
    session_id: str
    owner: User
    status: Status
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    metadata: Json = {}
    running: Running | None = None
    pending: Pending | None = None
    queue: tuple[Queued, ...] = ()
    #: the current checkpoint: the request whose completion it is; None before the first
    checkpoint_id: str | None = None
    #: the current path; the request now running is not yet on it
    path: Path = ()
    #: sent to the model while it is on the path, so that no side effect is forgotten and repeated
    effects: tuple[Effects, ...] = ()
    #: the last entry's sequence number and hash
    tail_seq: int = 0
    tail_hash: str = ""
    #: where an audit key is set: that this is the end of this task's log, so that none can be cut short
    tail_seal: str = ""
    #: the number in the key of the last batch, which the next turn reads again to see that it is whole
    tail_key: int = 0
    #: the remote conversation (`kind: remote`): the last response id or the conversation id
    remote_id: str | None = None
    origin: Json | None = None
    #: where the id was brought along, named or imported: distinguishes the log from an earlier one of that id
    log_id: str = ""
    #: being erased: nothing but the eraser may touch it
    erased: bool = False

    @property
    def making(self) -> bool:
        """Whether the task is not there yet: it is erased unless its making comes to an end."""
        return self.erased and self.tail_seq == 0

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the task and its session, by name."""
        return {"task_id": self.task_id, "session_id": self.session_id}

    @property
    def occupant(self) -> Running | Pending | None:
        """The request that runs, or waits for a human."""
        return self.running or self.pending

    @property
    def idle(self) -> bool:
        """Whether nothing runs, is paused or waits its turn."""
        return self.running is None and self.pending is None and not self.queue


FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "refusal"]


class Outcome(Struct, frozen=True):
    """What a request has produced: its answer, or what there was of one when it ended without."""

    output: str
    usage: TokenUsage
    #: what tools added to the answer
    extra_data: Json | None = None
    #: why the model stopped; None where it never did
    finish_reason: FinishReason | None = None
    #: `name:version` of the agent that answered
    source: str = ""
    #: None until then
    ended_at: datetime | None = None


class Failure(Struct, frozen=True):
    """Why a request ended without an answer: the code of an error and its text."""

    code: str
    detail: str

    def redacted(self, status: Status) -> "Failure":
        """What an approver who is not the owner sees of it."""
        return Failure(self.code, f"The request ended {status}. Its owner can read why.")


class ResponseFormat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape that an answer is to have: structured output."""

    #: 1 to 64 of ``A-Za-z0-9_-``
    name: str = ""
    #: JSON Schema (an object) of the answer; empty: any JSON object
    schema: Json = {}
    description: str = ""
    #: the service may hold the model to the schema: its objects are closed and all their keys required
    strict: bool = True


class ToolChoice(Struct, frozen=True, omit_defaults=True):
    """What the model is to call, where that is not left to it."""

    mode: Literal["none", "required"]
    #: `required`: the tool that it has to call; empty: any
    name: str = ""


class RequestSetup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client sets for its request alone."""

    #: added to what the model is sent
    instructions: str = ""
    #: what the application says of its user and itself: a message of the user's
    user_context: dict[str, str] = {}
    #: tools that the client runs by itself
    client_tools: tuple[ClientTool, ...] = ()
    #: None: as the agent's config wants it
    response_format: ResponseFormat | None = None
    #: None: the model chooses
    tool_choice: ToolChoice | None = None


#: where a client has set nothing
AS_CONFIGURED = RequestSetup()


class PerRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a message says for its own request: the request's record keeps it, and a retry repeats it."""

    #: what holds now; what held before a pause was decided is kept with the pause
    setup: RequestSetup = AS_CONFIGURED
    #: a request of the same user that failed, whose rounds of tools are repeated behind the message
    retries: str | None = None
    #: kept for the protocol that the message came over, which alone understands it
    client: Json = {}

    @property
    def per_request(self) -> dict[str, Any]:
        """These fields alone, by name."""
        return {name: getattr(self, name) for name in PerRequest.__struct_fields__}


class RequestRecord(PerRequest, frozen=True, kw_only=True, omit_defaults=True):
    """`request/{request_id}`."""

    request_id: str
    task_id: str
    session_id: str
    status: Status
    created_at: datetime
    started_at: datetime | None = None
    #: when its last pause was decided, until it ends
    resumed_at: datetime | None = None
    #: when its events last began to expire anew: with that decision
    events_kept_at: datetime | None = None
    ended_at: datetime | None = None
    worker_id: str | None = None
    #: the checkpoint this request continues
    parent: str | None = None
    first_seq: int = 0
    last_seq: int = 0
    #: the path up to and including this request, once it completed
    path: Path = ()
    usage: TokenUsage = TokenUsage()
    #: the answer, or what there was of one when the request ended without
    output: str = ""
    finish_reason: FinishReason | None = None
    #: what tools added to the answer
    extra_data: Json | None = None
    #: `name:version` of the agent that runs it, or ran it last
    source: str = ""
    #: why it ended without an answer
    error: Failure | None = None
    #: the pause it waits in, while it is `Paused`
    pause: "Approval | None" = None
    #: the id of its last event, once it has ended or paused
    last_event: int = 0
    #: a request that waits its turn: its message, or a reference to where it is stored
    waiting: Json | None = None
    #: its idempotency key's record and the digest it came with, to renew the expiry at the end
    idempotency: tuple[str, str] | None = None
    #: its pauses so far, oldest first; the first can be decided by a bare action
    approvals: tuple[str, ...] = ()
    #: the response at the model service this request ended with
    remote_id: str | None = None
    #: a checkpoint's: what context providers and views remember of the conversation so far
    context: Json | None = None
    #: it is a fork's copy: its events were never recorded, whatever its tools did
    copied: bool = False
    imported: bool = False
    #: it holds messages from elsewhere, which the task began with or was given: no one asked this agent
    resent: bool = False
    #: how many pauses were decided before the task was imported
    imported_pauses: int = 0

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the session, the task and the request, by name."""
        return {"session_id": self.session_id, "task_id": self.task_id, "request_id": self.request_id}

    def entries(self, tail: int) -> Path:
        """Its entries in its task's log, whose end is `tail`; none while it waits its turn."""
        return ((self.first_seq, self.last_seq or tail),) if self.first_seq else ()

    @property
    def changed_at(self) -> datetime:
        """When the request came into the status that it has."""
        if self.pause is not None:
            return self.pause.created_at
        return self.ended_at or self.resumed_at or self.started_at or self.created_at

    @property
    def outcome(self) -> "Outcome":
        """What the request has produced."""
        done = (self.output, self.usage, self.extra_data, self.finish_reason, self.source)
        return Outcome(*done, self.ended_at)


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`session/{session_id}`."""

    session_id: str
    owner: User
    created_at: datetime
    #: being erased together with its tasks
    erased: bool = False
    #: with `erased`: only if no task is in it; a task that began before the mark restores the session
    if_empty: bool = False


class Deleting(Struct, frozen=True):
    """`deleting` of an owner: sessions that are deleted while the records of their tasks are still erased.

    It is read with every task, so that the tasks of a deleted session are gone for every reader at once.
    """

    sessions: tuple[str, ...]


class IdempotencyRecord(Struct, frozen=True):
    """`key/{hash}`: which request a key stands for, and the digest of the body it came with."""

    request_id: str
    task_id: str
    session_id: str
    digest: str


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was decided of one call. `arguments` replaces those shown, if edited."""

    id: str
    action: Action
    arguments: str | None = None
    #: of a call that the client ran: what the model is sent
    output: str | None = None
    is_error: bool = False
    #: why, where the calls of a pause were given reasons of their own
    reason: str | None = None


class Approval(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`approval/{approval_id}`: one pause, its calls, and who decided what."""

    approval_id: str
    request_id: str
    task_id: str
    session_id: str
    owner: User
    created_at: datetime
    expires_at: datetime
    status: Literal["pending", "decided", "expired", "canceled"] = "pending"
    calls: tuple[ToolCall, ...]
    #: the calls' tools that came with the request, as they were shown: the agent itself does not know them
    brought: tuple[ToolSpec, ...] = ()
    message: str = ""
    #: one for each call that waits for its owner's consent
    authorizations: tuple[Json, ...] = ()
    #: SHA-256 of the calls as they were shown; what runs is checked against it
    digest: str = ""
    #: the id of the stream event that announced it
    event_id: int = 0
    decided_at: datetime | None = None
    decided_by: User | None = None
    decisions: tuple[Decision, ...] = ()
    reason: str | None = None
    #: of a decided pause: what its client had set for the request until then
    setup: RequestSetup | None = None
    #: decided by another user, waiting for the owner's own token
    awaits_owner: bool = False
    #: what the request had used when it paused
    usage: TokenUsage = TokenUsage()
    #: rounds of calls that the request had come to; these calls are of the last
    rounds: int = 0
    #: calls of that round that had begun before they needed their owner: the next pause is for them
    begun: tuple[Deferred, ...] = ()

    @property
    def consent_only(self) -> bool:
        """Whether its calls wait for their owner's consent alone: no one else has to approve any of them."""
        return len(self.authorizations) == len(self.calls) > 0

    def shown_to(self, user: User) -> "Approval":
        """The pause as this user may read it: where to give consent is the owner's to know."""
        return self if user == self.owner else msgspec.structs.replace(self, authorizations=())

    def awaits_another(self, user: User) -> bool:
        """Whether it is decided as far as `user` is concerned, and waits for its owner alone."""
        return self.awaits_owner and self.status == "pending" and user != self.owner

    def is_closed_to(self, user: User) -> bool:
        """Whether another user's client is to run its calls: no one is asked to approve them."""
        return user != self.owner and any(call.by_client for call in self.calls)


class Worker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`worker/{worker_id}`: one process's lease; dead when marked so, or a lease after its last beat."""

    worker_id: str
    #: seconds since the epoch, by the store's clock
    beat_at: float
    lease_seconds: float
    dead: bool = False
    host: str = ""
