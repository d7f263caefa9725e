"""The documents that the service returns, as frozen dataclasses.

They work with other versions of the service: a field that this client does not know is in `raw`, and one that
the service does not send is None or empty. Times have a timezone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from tealagents.client.errors import ProblemError, UnexpectedAnswer, is_id, problem_from_document

#: a JSON object
Json = Mapping[str, Any]
T = TypeVar("T")

ENDED = frozenset({"Completed", "Failed", "Canceled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, summed over all model calls of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def parse(cls, document: Json) -> "Usage":
        return cls(
            prompt_tokens=_number(document, "prompt_tokens"),
            completion_tokens=_number(document, "completion_tokens"),
            total_tokens=_number(document, "total_tokens"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """An authorization that a tool needs from the user, and the page that grants it (`url`)."""

    server: str
    url: str
    scopes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, document: Json) -> "Authorization":
        scopes = document.get("scopes")
        return cls(
            server=text(document, "server"),
            url=text(document, "url"),
            scopes=tuple(map(str, scopes)) if isinstance(scopes, list) else tuple(str(scopes or "").split()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A tool call that is waiting for a decision. `arguments` is the JSON text that the model wrote."""

    id: str
    plugin_name: str
    function_name: str
    arguments: str
    #: the tool's description; empty unless a single approval was read
    description: str = ""
    #: JSON Schema of the tool's arguments; None unless a single approval was read
    parameters: Json | None = None

    @property
    def tool(self) -> str:
        """The tool's name, as the model, the catalogue and the events have it."""
        return f"{self.plugin_name}-{self.function_name}" if self.plugin_name else self.function_name

    @classmethod
    def parse(cls, document: Json) -> "PendingCall":
        return cls(
            id=text(document, "id"),
            plugin_name=text(document, "plugin_name"),
            function_name=text(document, "function_name"),
            arguments=json_text(document.get("arguments")),
            description=text(document, "description"),
            parameters=_object(document, "parameters") or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A pause: its tool calls, and whether they were decided."""

    approval_id: str
    request_id: str
    task_id: str
    session_id: str
    #: `pending`, `decided`, `expired` or `canceled`
    status: str
    #: the text to show to the user who decides
    message: str = ""
    tool_calls: tuple[PendingCall, ...] = ()
    authorizations: tuple[Authorization, ...] = ()
    expires_at: datetime | None = None
    #: set for a damaged record in a list, which then has nothing else except possibly its id
    error: ProblemError | None = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json, status: str = "") -> "Approval":
        """`status` is used if the document has none, like the pause in an answer, which is pending."""
        return cls(
            approval_id=text(document, "approval_id"),
            request_id=text(document, "request_id"),
            task_id=text(document, "task_id"),
            session_id=text(document, "session_id"),
            status=text(document, "status") or status,
            message=text(document, "message"),
            tool_calls=each(document, "tool_calls", PendingCall.parse),
            authorizations=each(document, "authorizations", Authorization.parse),
            expires_at=instant(document, "expires_at"),
            error=_error_of_record(document),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a message or a decision: the model's `output`, or the `approval` that is needed first."""

    session_id: str
    task_id: str
    request_id: str
    #: `Completed` or `Paused`
    status: str
    #: None if the request is paused, or if the caller may not see the content
    output: str | None
    usage: Usage
    approval: Approval | None = None
    #: the agent that answered, as `name:version`
    source: str | None = None
    #: a JSON object with data that tools added, or None
    extra_data: Any = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @property
    def paused(self) -> bool:
        """True if the request is waiting for a decision on `approval`."""
        return self.approval is not None

    @classmethod
    def parse(cls, document: Json) -> "Answer":
        content = _object(document, "content")
        output = content.get("output")
        return cls(
            **_required_ids(document),
            status=text(document, "status"),
            output=output if isinstance(output, str) else None,
            usage=Usage.parse(_object(content, "token_usage")),
            approval=Approval.parse(content, "pending") if content.get("approval_id") else None,
            source=content.get("source"),
            extra_data=content.get("extra_data"),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request that runs in the background. Pass its `request_id` to `wait` or `follow`."""

    session_id: str
    task_id: str
    request_id: str
    status: str

    @classmethod
    def parse(cls, document: Json) -> "Accepted":
        return cls(**_required_ids(document), status=text(document, "status") or "Running")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDocument:
    """A request in its current state."""

    session_id: str
    task_id: str
    request_id: str
    status: str
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    usage: Usage = Usage()
    #: the answer's content, the pause, or the incomplete answer of a failure
    content: Json | None = None
    #: why it failed or was canceled
    error: ProblemError | None = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if the status is `Completed`, `Failed` or `Canceled`."""
        return self.status in ENDED

    @property
    def output(self) -> str | None:
        """The text of the answer; incomplete if the request failed or was canceled. None if there is none."""
        output = (self.content or {}).get("output")
        return output if isinstance(output, str) else None

    def answer(self) -> Answer:
        """The answer to the message.

        Raises:
            ProblemError: the request failed or was canceled.
        """
        if self.error is not None:
            raise self.error
        return Answer.parse(self.raw)

    @classmethod
    def parse(cls, document: Json) -> "RequestDocument":
        status = text(document, "status")
        error = _object(document, "error") or None
        if error is None and status in ENDED - {"Completed"}:
            error = _error_of_status(status)
        ids = _required_ids(document)
        content = _object(document, "content")
        return cls(
            **ids,
            status=status,
            created_at=instant(document, "created_at"),
            started_at=instant(document, "started_at"),
            ended_at=instant(document, "ended_at"),
            usage=Usage.parse(_object(document, "token_usage")),
            content=content or None,
            error=problem_from_document({**ids, **error}) if error is not None else None,
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One stateful job."""

    task_id: str
    session_id: str
    status: str
    #: the object id (`oid`) of the user it belongs to
    owner: str = ""
    created_at: datetime | None = None
    last_updated: datetime | None = None
    expires_at: datetime | None = None
    metadata: Json = field(default_factory=dict)
    #: set for a damaged record in a list, which then has nothing else except possibly its id
    error: ProblemError | None = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "Task":
        return cls(
            task_id=text(document, "task_id"),
            session_id=text(document, "session_id"),
            status=text(document, "status"),
            owner=text(_object(document, "owner"), "oid"),
            created_at=instant(document, "created_at"),
            last_updated=instant(document, "last_updated"),
            expires_at=instant(document, "expires_at"),
            metadata=_object(document, "metadata"),
            error=_error_of_record(document),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation: a group of tasks."""

    session_id: str
    created_at: datetime | None = None
    tasks: tuple[Task, ...] = ()
    #: set for a damaged record in a list, which then has nothing else except possibly its id
    error: ProblemError | None = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "Session":
        return cls(
            session_id=text(document, "session_id"),
            created_at=instant(document, "created_at"),
            tasks=each(document, "tasks", Task.parse),
            error=_error_of_record(document),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCall:
    """A tool call that a message of the assistant made."""

    id: str
    tool: str
    arguments: str

    @classmethod
    def parse(cls, document: Json) -> "MessageCall":
        return cls(
            id=text(document, "id"),
            tool=text(document, "tool"),
            arguments=json_text(document.get("arguments")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a task's interaction history."""

    message_id: str
    request_id: str
    #: `user`, `assistant` or `tool`
    role: str
    #: the text items, joined
    text: str
    #: all items, `{content_type, content}`: texts, and images as data URIs
    items: tuple[Json, ...] = ()
    tool_calls: tuple[MessageCall, ...] = ()
    created_at: datetime | None = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "Message":
        items = each(document, "items", lambda item: item)
        return cls(
            message_id=text(document, "message_id"),
            request_id=text(document, "request_id"),
            role=text(document, "role"),
            text=_text_of(items),
            items=items,
            tool_calls=each(document, "tool_calls", MessageCall.parse),
            created_at=instant(document, "created_at"),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One entry of the execution trace: a model call, a tool call, an approval, a reduction, an error."""

    request_id: str
    kind: str
    name: str = ""
    started_at: datetime | None = None
    duration_ms: float | None = None
    usage: Usage | None = None
    input: Any = None
    output: Any = None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "Step":
        usage, duration = _object(document, "usage"), document.get("duration_ms")
        return cls(
            request_id=text(document, "request_id"),
            kind=text(document, "kind"),
            name=text(document, "name"),
            started_at=instant(document, "started_at"),
            duration_ms=duration if isinstance(duration, int | float) else None,
            usage=Usage.parse(usage) if usage else None,
            input=document.get("input"),
            output=document.get("output"),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """A part of a model call's prompt: a stored message, or a text that is not one."""

    #: `system_prompt`, `summary`, `note`, `context`, `history` or `request`
    origin: str
    role: str
    #: the text items, joined
    text: str
    tool_calls: tuple[MessageCall, ...] = ()
    #: the stored message; None for a text that is not one
    message_id: str | None = None
    #: True if the message was sent in another form than the stored one, which is shown
    altered: bool = False
    #: True if the text is not shown: the system prompt, if the service has no console
    withheld: bool = False
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "PromptPart":
        items = each(document, "items", lambda item: item)
        return cls(
            origin=text(document, "origin"),
            role=text(document, "role"),
            text=_text_of(items),
            tool_calls=each(document, "tool_calls", MessageCall.parse),
            message_id=text(document, "message_id") or None,
            altered=document.get("altered") is True,
            withheld=document.get("withheld") is True,
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a task after a completed request."""

    checkpoint_id: str
    request_id: str
    #: the checkpoint that it continued; None for the first one, and unless parents were asked for
    parent_id: str | None = None
    created_at: datetime | None = None
    current: bool = False
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "Checkpoint":
        return cls(
            checkpoint_id=text(document, "checkpoint_id"),
            request_id=text(document, "request_id"),
            parent_id=text(document, "parent_id") or None,
            created_at=instant(document, "created_at"),
            current=document.get("current") is True,
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of a task's audit. `raw` has everything that `hash` covers, and the hash."""

    seq: int
    at: datetime | None
    actor: str
    action: str
    request_id: str | None
    details: Json
    prev_hash: str
    hash: str
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "AuditEntry":
        return cls(
            seq=_number(document, "seq"),
            at=instant(document, "at"),
            actor=text(document, "actor"),
            action=text(document, "action"),
            request_id=text(document, "request_id") or None,
            details=_object(document, "details"),
            prev_hash=text(document, "prev_hash"),
            hash=text(document, "hash"),
            raw=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """The caller, as the service identifies it."""

    #: the tenant's id; may be empty
    tid: str
    #: the user's object id in the tenant
    oid: str
    #: `approver` and `auditor`, as far as the caller has them
    roles: tuple[str, ...] = ()

    @classmethod
    def parse(cls, document: Json) -> "Me":
        user, roles = _object(document, "user"), document.get("roles")
        return cls(
            tid=text(user, "tid"),
            oid=required(user, "oid"),
            roles=tuple(map(str, roles)) if isinstance(roles, list) else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of the service and of its dependencies."""

    #: `ok`, `degraded` or `draining`
    status: str
    version: str = ""
    dependencies: Json = field(default_factory=dict)
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def parse(cls, document: Json) -> "Health":
        return cls(
            status=text(document, "status"),
            version=text(document, "version"),
            dependencies=_object(document, "dependencies"),
            raw=document,
        )


def three_ids(document: Json) -> dict[str, str]:
    """The session, task and request id in a document; empty for a value that cannot be an id."""
    ids = {name: text(document, name) for name in ("session_id", "task_id", "request_id")}
    return {name: id if is_id(id) else "" for name, id in ids.items()}


def text(document: Json, name: str) -> str:
    """The text under `name`; empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def instant(document: Json, name: str) -> datetime | None:
    """The time under `name`; None if there is none."""
    try:
        return datetime.fromisoformat(text(document, name))
    except ValueError:
        return None


def each(document: Json, name: str, parse: Callable[[Json], T]) -> tuple[T, ...]:
    """The parsed objects of the list under `name`; empty if there is no list."""
    value = document.get(name)
    return (
        tuple(parse(item) for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()
    )


def json_text(value: Any) -> str:
    """`value` if it is text, an empty text for None, otherwise its JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _required_ids(document: Json) -> dict[str, str]:
    """The three ids. Raises `UnexpectedAnswer` if one is missing: an agent always sends them."""
    ids = three_ids(document)
    if not all(ids.values()):
        raise UnexpectedAnswer(
            "an answer without the three ids: is this the URL of an agent? "
            "Agents of the earlier platform do not send them"
        )
    return ids


def required(document: Json, name: str) -> str:
    """The id under `name`. Raises `UnexpectedAnswer` if it is missing: an agent always sends it."""
    if not (id := text(document, name)):
        raise UnexpectedAnswer(f"an answer without `{name}`: is this the URL of an agent?")
    return id


def _text_of(items: tuple[Json, ...]) -> str:
    return "".join(text(item, "content") for item in items if item.get("content_type") == "text")


def _number(document: Json, name: str) -> int:
    value = document.get(name)
    return value if isinstance(value, int) else 0


def _object(document: Json, name: str) -> Json:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _error_of_record(document: Json) -> ProblemError | None:
    error = _object(document, "error")
    return problem_from_document(error) if error else None


def _error_of_status(status: str) -> Json:
    if status == "Canceled":
        return {"code": "request_canceled", "status": 409, "detail": "The request was canceled."}
    return {"status": 500, "detail": "The request failed; the service gave no reason."}
