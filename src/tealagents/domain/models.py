"""The records of the state model, as immutable values.

All are `msgspec.Struct`s: built once, never changed, replaced with `msgspec.structs.replace`.
Times are aware `datetime`s in UTC. Sequence numbers count the entries of one task's log from 1.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

#: between plugin and function in a tool's name
TOOL_SEPARATOR = "-"

Role = Literal["user", "assistant", "tool"]
Status = Literal["Queued", "Running", "Paused", "Completed", "Failed", "Canceled"]
Action = Literal["approve", "reject"]
#: what a task does with a message while a request runs on it
Concurrency = Literal["reject", "enqueue", "interrupt", "rollback"]
#: ratings of tools, for those who decide on their calls
Cost = Literal["low", "medium", "high"]
Sensitivity = Literal["public", "proprietary", "confidential", "sensitive"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "refusal"]
ENDED: frozenset[Status] = frozenset({"Completed", "Failed", "Canceled"})

#: the longest `Message.native` that is kept, in characters
LONGEST_NATIVE = 512 * 1024

#: any JSON object
Json = dict[str, Any]

#: the entries of a task's log that make up a history: pairs of first and last sequence number, oldest first
Path = tuple[tuple[int, int], ...]


class User(Struct, frozen=True):
    """A user: tenant and object id (Entra's `tid` and `oid`)."""

    tid: str
    oid: str

    @property
    def key(self) -> str:
        """The pair as one unambiguous text: the owner's key of sessions, tasks and requests."""
        tenant = self.tid.replace("~", "~0").replace(".", "~1")
        return f"{tenant}.{self.oid}"

    @classmethod
    def of(cls, key: str) -> "User":
        """The user with this `key`. `ValueError` if it is not one."""
        tenant, _, oid = key.partition(".")
        user = cls(tenant.replace("~1", ".").replace("~0", "~"), oid)
        if not oid or user.key != key:
            raise ValueError(f"{key!r} is not a tenant and an object id joined by a dot")
        return user


#: in place of a `User.key`, and never one: the owner under which the secret store keeps every user's OAuth
#: authorizations until the user returns
PENDING_CONSENTS = "oauth-pending"


class Caller(Struct, frozen=True):
    """A user, and what their credentials allow in this call."""

    user: User
    #: may decide pauses of other users in the tenant
    approver: bool = False
    #: may read everything in the tenant, and change nothing
    auditor: bool = False
    #: the bearer token as received; for on-behalf-of only, never stored, never logged
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
    """A call that the model asked for. `arguments` is the model's JSON text, which may be invalid."""

    #: unique within its request
    id: str
    tool: str
    arguments: str
    #: the plugin, OpenAPI plugin or MCP server; empty: the part of `tool` before the first hyphen
    plugin: str = ""
    #: run by the client that declared the tool: a decision on it carries an output
    by_client: bool = False
    #: in a pause: digest of the tool's spec when the call was shown; empty if the tool was not listed
    pinned: str = ""
    #: the model service's own id of the call, sent back to it; empty: it is `id`. Calls may have the same
    native_id: str = ""
    #: in a pause: the tool's own code has already run, up to the point where it needed the user
    begun: bool = False

    @property
    def plugin_name(self) -> str:
        first, separator, _ = self.tool.partition(TOOL_SEPARATOR)
        return self.plugin or (first if separator else "")

    @property
    def function_name(self) -> str:
        return self.tool.removeprefix(self.plugin_name + TOOL_SEPARATOR)


class Deferred(Struct, frozen=True):
    """A call that cannot be made, or finished, yet: it needs the owner's consent or the owner's own token, or
    its tool has changed since it was approved."""

    call: ToolCall
    #: `{server, url, scopes}` of the page where the owner consents; None: it does not wait for consent
    authorization: Json | None
    #: the tool has changed since the call was shown
    changed: bool = False


class Governance(Struct, frozen=True, kw_only=True):
    requires_hitl: bool = False
    cost: Cost = "low"
    data_sensitivity: Sensitivity = "public"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as described to the model, and how it is governed."""

    #: `Plugin-function`; matches ``[A-Za-z0-9_-]{1,64}``
    name: str
    description: str
    #: JSON Schema (an object) of the arguments
    parameters: Json
    governance: Governance
    #: the user's own authorization that the tool needs
    auth: Json | None = None
    #: seconds after which a call is given up; None: the config's `tool_timeout_seconds`
    timeout: float | None = None
    #: seconds that a call may take in addition, before anything is sent: to get a session or the user's token
    waits: float = 0
    #: the prefix of `name` that names the plugin; empty: the part before the first hyphen
    plugin: str = ""
    #: the server's own name of the tool, from which `name` is made; empty: there is none
    function: str = ""


class ClientTool(Struct, frozen=True):
    """A tool of one request, run by its client."""

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

    A `tool` message holds the result of the call `tool_call_id` of the preceding assistant message. If
    `native_call_id` is set, it is the model service's id of that call.
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
    #: of an assistant message with tool calls: data that the model service expects back with them, in the
    #: model client's own format; neither shown nor exported
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


#: how a tool call ended; `unknown`: whether it took effect is not known
ToolEnd = Literal["done", "failed", "unknown"]


class ToolOutcome(Struct, frozen=True):
    """The known outcome of one tool call of a request that did not complete."""

    call_id: str
    tool: str
    arguments: str
    outcome: ToolEnd


class RequestEnd(Struct, frozen=True, kw_only=True, tag="end", omit_defaults=True):
    """The body of a request's last entry, which is read first, since history is read backwards."""

    request_id: str
    status: Status
    #: sequence number of the request's first entry, so that readers can skip a request that did not complete
    first_seq: int
    ended_at: datetime
    code: str | None = None
    #: the tool calls of a request that did not complete: they have, or may have, taken effect
    tools: tuple[ToolOutcome, ...] = ()
    #: this request's response at the model service (remote threads)
    remote_id: str | None = None
    #: of a completed request: why the model stopped; None if it finished its answer
    finish_reason: FinishReason | None = None


class MessageBody(Struct, frozen=True, tag="message", omit_defaults=True):
    message: Message
    #: of a copied message: its tool calls that were made, with the arguments that were used. A fork does not
    #: copy the intents that would say so
    made: tuple[ToolCall, ...] = ()


class StepBody(Struct, frozen=True, tag="step"):
    step: Step


class ToolIntent(Struct, frozen=True, kw_only=True, tag="intent"):
    """Written before a tool runs. If no result follows, the outcome is unknown."""

    request_id: str
    calls: tuple[ToolCall, ...]


class Note(Struct, frozen=True, tag="note"):
    """An entry that only the audit needs: a rollback, a patch, a fork, an import."""

    text: str
    data: Json = {}


Body = MessageBody | StepBody | RequestEnd | ToolIntent | Note


class Entry(Struct, frozen=True, kw_only=True):
    """The audit envelope of one log entry: exactly what `GET …/audit` returns.

    `hash` covers the canonical JSON (keys sorted, no spaces) of all other fields: SHA-256, or HMAC-SHA-256
    if an audit key is set. `details.sha256` is the body's digest.
    """

    seq: int
    at: str
    actor: str
    action: str
    request_id: str | None
    details: Json
    prev_hash: str
    hash: str


class LogRecord(Struct, frozen=True, kw_only=True):
    """The entries of one commit: `log/{task}/{first seq}`. `bodies[i]` belongs to `entries[i]`.

    A body over 256 KB, or one that does not fit into the record, is stored out of line in `n` chunks; its
    place in `bodies` is taken by `{"blob": sha256, "pieces": n}`.
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
    """The tool calls of a request that did not complete: they have, or may have, taken effect."""

    #: they count while this entry is on the current path: the request's first, unless that is not there
    first_seq: int
    tools: tuple[ToolOutcome, ...]
    #: if earlier calls were dropped for lack of room: the first entry of the earliest request that made some
    cut: int = 0


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`task/{task_id}`: everything that a turn must know of a task before it begins."""

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
    #: the current checkpoint: the id of the request that completed with it; None before the first
    checkpoint_id: str | None = None
    #: the current path; the request now running is not yet on it
    path: Path = ()
    #: named to the model while they are on the path, so that it does not repeat side effects
    effects: tuple[Effects, ...] = ()
    #: the last entry's sequence number and hash
    tail_seq: int = 0
    tail_hash: str = ""
    #: if an audit key is set: seals the tail as the end of this task's log, so that truncation is noticed
    tail_seal: str = ""
    #: the number in the key of the last log record, which the next turn reads again to see that it is intact
    tail_key: int = 0
    #: the remote conversation (`kind: remote`): the last response id or the conversation id
    remote_id: str | None = None
    origin: Json | None = None
    #: if the task's id was given by a client or an import: tells this log from an earlier one of the same id
    log_id: str = ""
    #: a tombstone: the task is being erased or, if `making`, created; no reader finds it
    erased: bool = False

    @property
    def making(self) -> bool:
        """Whether the task is still being created: if that is not finished in time, it is erased."""
        return self.erased and self.tail_seq == 0

    def is_expired(self, now: datetime) -> bool:
        """Whether the task is past its `expires_at`, so that readers do not find it."""
        return self.expires_at is not None and self.expires_at <= now

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the task and its session, by name."""
        return {"task_id": self.task_id, "session_id": self.session_id}

    @property
    def occupant(self) -> Running | Pending | None:
        """The request that runs or waits for a human."""
        return self.running or self.pending

    @property
    def end(self) -> str:
        """What a new message would follow: the requests that have not ended, or else the last entry."""
        under_way = [each.request_id for each in (self.occupant, *self.queue) if each is not None]
        return " ".join(under_way) or self.tail_hash

    def is_occupied_by(self, request_id: str) -> bool:
        """Whether this is the request that runs or waits for a human."""
        return self.occupant is not None and self.occupant.request_id == request_id

    def is_run_by(self, worker_id: str, request_id: str) -> bool:
        """Whether this worker runs this request."""
        running = self.running
        return running is not None and (running.worker_id, running.request_id) == (worker_id, request_id)

    def names(self, request_id: str) -> bool:
        """Whether the request runs, is paused or waits in the queue."""
        return self.is_occupied_by(request_id) or any(each.request_id == request_id for each in self.queue)

    @property
    def idle(self) -> bool:
        """Whether no request runs, is paused or waits in the queue."""
        return self.running is None and self.pending is None and not self.queue


class Outcome(Struct, frozen=True):
    """What a request has produced: its answer, or the partial answer of one that has not completed."""

    output: str
    usage: TokenUsage
    #: what tools added to the answer
    extra_data: Json | None = None
    #: why the model stopped; None if no call has ended
    finish_reason: FinishReason | None = None
    #: `name:version` of the agent that answered
    source: str = ""
    #: None while the request has not ended
    ended_at: datetime | None = None


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why a request ended without an answer: the code of an error and its text."""

    code: str
    detail: str
    #: the messages were longer than the model can read
    too_long: bool = False

    def redacted(self, status: Status) -> "Failure":
        """The failure as an approver who is not the owner may see it."""
        return Failure(self.code, f"The request ended {status}. Its owner can read why.")


class ResponseFormat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The required shape of an answer: structured output."""

    #: 1 to 64 of ``A-Za-z0-9_-``
    name: str = ""
    #: JSON Schema (an object) of the answer; empty: any JSON object
    schema: Json = {}
    description: str = ""
    #: the model service may enforce the schema, whose objects are closed and have only required keys
    strict: bool = True


class ToolChoice(Struct, frozen=True, omit_defaults=True):
    """Which tools the model must or must not call, if the choice is not left to it."""

    mode: Literal["none", "required"]
    #: with `required`: the tool that it must call; empty: any
    name: str = ""


class RequestSetup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that a client makes for one request."""

    #: added to the prompt
    instructions: str = ""
    #: facts from the application about its user and itself, sent to the model as a message of the user
    user_context: dict[str, str] = {}
    #: tools that the client runs
    client_tools: tuple[ClientTool, ...] = ()
    #: None: the one in the agent's config
    response_format: ResponseFormat | None = None
    #: None: the model chooses
    tool_choice: ToolChoice | None = None


#: if the client has set nothing
AS_CONFIGURED = RequestSetup()


class PerRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that a message sets for its own request: its record keeps them, and a retry repeats them."""

    #: the current setup; the one from before a decided pause is kept with the pause
    setup: RequestSetup = AS_CONFIGURED
    #: id of a failed request of the same user, whose tool rounds are replayed after the message
    retries: str | None = None
    #: kept for the protocol that the message arrived over; only `api` and `is_unstored` read it
    client: Json = {}

    @property
    def per_request(self) -> dict[str, Any]:
        """The fields of `PerRequest`, by name."""
        return {name: getattr(self, name) for name in PerRequest.__struct_fields__}


class RequestRecord(PerRequest, frozen=True, kw_only=True, omit_defaults=True):
    """`request/{request_id}`."""

    request_id: str
    task_id: str
    session_id: str
    status: Status
    created_at: datetime
    started_at: datetime | None = None
    #: when its last pause was decided; None once it has ended
    resumed_at: datetime | None = None
    #: when the expiry of its events was last renewed, which happens with a decision
    events_kept_at: datetime | None = None
    ended_at: datetime | None = None
    worker_id: str | None = None
    #: the checkpoint this request continues
    parent: str | None = None
    first_seq: int = 0
    last_seq: int = 0
    #: the path up to and including this request, once it has completed
    path: Path = ()
    usage: TokenUsage = TokenUsage()
    #: the answer, or the partial answer of a request that ended without one
    output: str = ""
    finish_reason: FinishReason | None = None
    #: what tools added to the answer
    extra_data: Json | None = None
    #: `name:version` of the agent that runs it, or ran it last
    source: str = ""
    #: why it ended without an answer
    error: Failure | None = None
    #: the pause that it waits in, while it is `Paused`
    pause: "Approval | None" = None
    #: the id of its last event, once it has ended or paused
    last_event: int = 0
    #: while it is `Queued`: its message, or a reference to the blob that holds it
    waiting: Json | None = None
    #: the key of its idempotency record and the digest of its body, to renew the record's expiry at the end
    idempotency: tuple[str, str] | None = None
    #: ids of its pauses so far, oldest first; the first can be decided by a bare action
    approvals: tuple[str, ...] = ()
    #: this request's last response at the model service (remote threads)
    remote_id: str | None = None
    #: of a checkpoint: what context providers and views remember of the conversation so far
    context: Json | None = None
    #: a fork's copy: its events were never recorded, whatever its tools did
    copied: bool = False
    imported: bool = False
    #: it holds earlier messages that a client supplied, at the task's start or later; no one asked this agent
    resent: bool = False
    #: how many pauses were decided before the task was imported
    imported_pauses: int = 0

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the session, the task and the request, by name."""
        return {"session_id": self.session_id, "task_id": self.task_id, "request_id": self.request_id}

    @property
    def is_unstored(self) -> bool:
        """Whether it was not to be stored, and its task with it."""
        return self.client.get("store") is False

    def entries(self, tail: int) -> Path:
        """Its entries in its task's log, whose last entry is `tail`; none while it is queued."""
        return ((self.first_seq, self.last_seq or tail),) if self.first_seq else ()

    @property
    def changed_at(self) -> datetime:
        """When the request reached its current status."""
        if self.pause is not None:
            return self.pause.created_at
        return self.ended_at or self.resumed_at or self.started_at or self.created_at

    @property
    def outcome(self) -> Outcome:
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
    #: with `erased`: only if it has no tasks; a task that began before the mark restores the session
    if_empty: bool = False


class Deleting(Struct, frozen=True):
    """`deleting`, one record per owner: deleted sessions whose tasks' records are still being erased.

    It is read with every task, so that the tasks of a deleted session vanish for all readers at once.
    """

    sessions: tuple[str, ...]


class IdempotencyRecord(Struct, frozen=True):
    """`key/{hash}`: the request that an idempotency key stands for, and the digest of its body."""

    request_id: str
    task_id: str
    session_id: str
    digest: str


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The decision on one call. `arguments`, if edited, replaces those that were shown."""

    id: str
    action: Action
    arguments: str | None = None
    #: of a call that the client ran: the result for the model
    output: str | None = None
    is_error: bool = False
    #: the reason given for this call alone
    reason: str | None = None


class Approval(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`approval/{approval_id}`: one pause, its calls, and the decisions on them."""

    approval_id: str
    request_id: str
    task_id: str
    session_id: str
    owner: User
    created_at: datetime
    expires_at: datetime
    status: Literal["pending", "decided", "expired", "canceled"] = "pending"
    calls: tuple[ToolCall, ...]
    #: specs, as shown, of the calls' tools that came with the request: the agent itself does not have them
    brought: tuple[ToolSpec, ...] = ()
    message: str = ""
    #: `{server, url, scopes}` of each call that waits for its owner's consent
    authorizations: tuple[Json, ...] = ()
    #: SHA-256 of the calls as they were shown; checked before they run
    digest: str = ""
    #: the id of the stream event that announced it
    event_id: int = 0
    decided_at: datetime | None = None
    decided_by: User | None = None
    decisions: tuple[Decision, ...] = ()
    reason: str | None = None
    #: of a decided pause: the request's setup until then
    setup: RequestSetup | None = None
    #: already approved by another user; waits for the owner's own token
    awaits_owner: bool = False
    #: the tokens that the request had used when it paused
    usage: TokenUsage = TokenUsage()
    #: the request's tool rounds so far; these calls belong to the last one
    rounds: int = 0
    #: calls of that round that had begun before they needed their owner: the next pause is for them
    begun: tuple[Deferred, ...] = ()

    @property
    def consent_only(self) -> bool:
        """Whether all its calls wait only for their owner's consent, and none for an approver."""
        return len(self.authorizations) == len(self.calls) > 0

    def shown_to(self, user: User) -> "Approval":
        """The pause as this user may read it: only the owner sees where to give consent."""
        return self if user == self.owner else msgspec.structs.replace(self, authorizations=())

    def awaits_another(self, user: User) -> bool:
        """Whether it waits for its owner alone, so that `user`, who is another, has nothing to decide."""
        return self.awaits_owner and self.status == "pending" and user != self.owner

    def is_closed_to(self, user: User) -> bool:
        """Whether it has calls for the client of another user to run: `user` cannot decide them."""
        return user != self.owner and any(call.by_client for call in self.calls)


class Worker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`worker/{worker_id}`: one process's lease.

    The worker is dead once it is marked `dead`, or `lease_seconds` after its last beat.
    """

    worker_id: str
    #: seconds since the epoch, by the store's clock
    beat_at: float
    lease_seconds: float
    dead: bool = False
    host: str = ""
