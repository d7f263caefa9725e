"""Each route of the service as the HTTP call that reaches it."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from tealagents.client.documents import Approval
from tealagents.client.items import Action, Content, Decision, items_of
from tealagents.client.wire import EVENT_STREAM, Call, printable, segment

IDEMPOTENCY_KEY = "Idempotency-Key"


class MessageOptions(TypedDict, total=False):
    """What goes with a message."""

    #: continue, or begin, this session; the service makes one where none is given
    session_id: str | None
    #: continue this task; a new one begins where none is given
    task_id: str | None
    #: sent to the model in this request only
    user_context: Mapping[str, str] | None
    #: kept with a new task
    metadata: Mapping[str, Any] | None
    #: the same key with the same message is answered with the first one's outcome; made anew if absent
    idempotency_key: str | None
    #: cancel the pause that the task waits in, instead of being refused because of it
    supersede: bool


class DecisionOptions(TypedDict, total=False):
    """What goes with approving or rejecting."""

    #: sent to the model for rejected calls, and kept in the trace
    reason: str | None
    #: for single calls; the others take the action
    decisions: Sequence[Decision] | None
    #: which pause is meant; needed from a request's second one on, unless an `Approval` was given
    approval_id: str | None


class TaskChanges(TypedDict, total=False):
    """What of a task can be changed; what is absent stays as it is."""

    metadata: Mapping[str, Any] | None
    #: aware; None: never
    expires_at: datetime | None


def message(content: Content, options: MessageOptions) -> Call:
    check(options, MessageOptions)
    key = options.get("idempotency_key")
    body = {
        **{name: options.get(name) for name in ("session_id", "task_id", "user_context", "metadata")},
        "items": items_of(content),
        "supersede": options.get("supersede") or None,
    }
    return Call(
        method="POST",
        body=_present(body),
        headers={IDEMPOTENCY_KEY: printable(str(uuid.uuid4()) if key is None else key)},
        timeout="answer",
        repeatable=True,
    )


def resume(of: str | Approval, action: Action, options: DecisionOptions) -> Call:
    check(options, DecisionOptions)
    if not isinstance(of, str | Approval):
        found = "None: nothing waits for a decision" if of is None else f"of the type {type(of).__name__}"
        raise TypeError(f"an approval, or the id of a request, is decided; this one is {found}")
    request_id, approval_id = (of, None) if isinstance(of, str) else (of.request_id, of.approval_id)
    approval_id = options.get("approval_id") or approval_id
    decisions = options.get("decisions")
    body = {
        "action": action,
        "reason": options.get("reason"),
        "decisions": [decision.as_json() for decision in decisions] if decisions else None,
    }
    # a repeated decision is answered with the outcome of the first, so that repeating it is safe
    return Call(
        method="POST",
        path=f"/requests/{segment(request_id)}/resume",
        query=_present({"approval_id": approval_id}),
        body=_present(body),
        timeout="answer",
        repeatable=True,
    )


def as_stream(call: Call) -> Call:
    """The same, answered as a stream of events."""
    headers = {**call.headers, "Accept": EVENT_STREAM}
    return replace(call, path=f"{call.path}/sse", headers=headers, timeout="silence")


def in_background(call: Call) -> Call:
    """The same, answered as soon as it is stored."""
    return replace(call, headers={**call.headers, "Prefer": "respond-async"}, timeout="call")


def follow(request_id: str, after: int) -> Call:
    headers = {"Accept": EVENT_STREAM} | ({"Last-Event-ID": str(after)} if after else {})
    return Call(
        method="GET",
        path=f"/requests/{segment(request_id)}/events",
        headers=headers,
        timeout="silence",
        repeatable=True,
    )


def read(path: str, **query: str | None) -> Call:
    return Call(method="GET", path=path, query=_present(query), repeatable=True)


def change(method: str, path: str, body: Any = None, *, repeatable: bool = True) -> Call:
    """`repeatable` if sending it twice has the effect of once, and cannot undo what others did meanwhile."""
    return Call(method=method, path=path, body=body, repeatable=repeatable)


def check(options: Mapping[str, Any], known: type) -> None:
    """`TypeError` for an unknown option: ignoring a misspelled `task_id` would start a new task."""
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        raise TypeError(f"unknown option {unknown[0]}; the options are {', '.join(known.__annotations__)}")


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
