"""What a client can do, each operation as a flow: its calls, and how the rules treat them.

The two drivers have a method of the same name for each.
"""

import math
from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from tealagents.client import calls
from tealagents.client.calls import DecisionOptions, MessageOptions, TaskChanges
from tealagents.client.documents import (
    Accepted,
    Answer,
    Approval,
    AuditEntry,
    Checkpoint,
    Json,
    Me,
    Message,
    PromptPart,
    RequestDocument,
    Session,
    Step,
    Task,
)
from tealagents.client.errors import ClientError
from tealagents.client.events import StreamEvent
from tealagents.client.items import Action, Content
from tealagents.client.rules import Position, Rules
from tealagents.client.wire import Call, Flow, Stream, segment

T = TypeVar("T")
Y = TypeVar("Y")


class Operations(Rules):
    """Rules, applied to each route; `request` and `health` are rules themselves."""

    # --- messages and requests ------------------------------------------------------------------------

    def send(self, content: Content, options: MessageOptions) -> Flow[Answer]:
        call = calls.message(content, options)
        return _keyed(call, self.answer(call))

    def stream(
        self, content: Content, options: MessageOptions, position: Position
    ) -> Stream[StreamEvent, None]:
        call = calls.as_stream(calls.message(content, options))
        position.idempotency_key = call.headers[calls.IDEMPOTENCY_KEY]
        return _keyed(call, self.followed(call, position))

    def background(self, content: Content, options: MessageOptions) -> Flow[Accepted]:
        call = calls.in_background(calls.message(content, options))
        return _keyed(call, self.accepted(call))

    def wait(self, request_id: str, timeout: float | None) -> Flow[Answer]:
        return self.waited(request_id, math.inf if timeout is None else timeout)

    def follow(self, request_id: str, position: Position) -> Stream[StreamEvent, None]:
        return self.followed(calls.follow(request_id, position.last_event_id), position)

    def resume(self, of: str | Approval, action: Action, options: DecisionOptions) -> Flow[Answer]:
        return self.answer(calls.resume(of, action, options))

    def resume_stream(
        self, of: str | Approval, action: Action, options: DecisionOptions, position: Position
    ) -> Stream[StreamEvent, None]:
        return self.followed(calls.as_stream(calls.resume(of, action, options)), position)

    def cancel(self, request_id: str) -> Flow[RequestDocument]:
        call = calls.change("POST", f"{_request(request_id)}/cancel")
        return self.document(call, RequestDocument.parse)

    def prompt(self, request_id: str, step_id: str | None) -> Stream[PromptPart, None]:
        return self.listed(f"{_request(request_id)}/prompt", PromptPart.parse, step_id=step_id)

    # --- sessions and tasks ---------------------------------------------------------------------------

    def sessions(self) -> Stream[Session, None]:
        return self.listed("/sessions", Session.parse)

    def session(self, session_id: str) -> Flow[Session]:
        return self.named("session_id", calls.read(f"/sessions/{segment(session_id)}"), Session.parse)

    def delete_session(self, session_id: str) -> Flow[None]:
        call = calls.change("DELETE", f"/sessions/{segment(session_id)}", repeatable=False)
        return self.erased(call)

    def tasks(self, session_id: str | None, status: str | None) -> Stream[Task, None]:
        return self.listed("/tasks", Task.parse, session_id=session_id, status=status)

    def task(self, task_id: str) -> Flow[Task]:
        return self.named("task_id", calls.read(_task(task_id)), Task.parse)

    def patch_task(self, task_id: str, changes: TaskChanges) -> Flow[Task]:
        call = calls.change("PATCH", _task(task_id), _changed(changes))
        return self.named("task_id", call, Task.parse)

    def delete_task(self, task_id: str) -> Flow[None]:
        return self.erased(calls.change("DELETE", _task(task_id)))

    def messages(self, task_id: str, checkpoint_id: str | None) -> Stream[Message, None]:
        return self.listed(_task(task_id, "/messages"), Message.parse, checkpoint_id=checkpoint_id)

    def trace(self, task_id: str) -> Stream[Step, None]:
        return self.listed(_task(task_id, "/trace"), Step.parse)

    def checkpoints(self, task_id: str, parents: bool) -> Stream[Checkpoint, None]:
        asked = "true" if parents else None
        return self.listed(_task(task_id, "/checkpoints"), Checkpoint.parse, parents=asked)

    def audit(self, task_id: str) -> Stream[AuditEntry, None]:
        return self.listed(_task(task_id, "/audit"), AuditEntry.parse)

    def rollback(self, task_id: str, checkpoint_id: str) -> Flow[Task]:
        body = {"checkpoint_id": checkpoint_id}
        call = calls.change("POST", _task(task_id, "/rollback"), body, repeatable=False)
        return self.named("task_id", call, Task.parse)

    def fork(self, task_id: str, checkpoint_id: str | None, message_id: str | None) -> Flow[Task]:
        point = {"checkpoint_id": checkpoint_id, "message_id": message_id}
        body = {name: id for name, id in point.items() if id is not None}
        call = calls.change("POST", _task(task_id, "/fork"), body, repeatable=False)
        return self.named("task_id", call, Task.parse)

    def export_task(self, task_id: str) -> Flow[Json]:
        return self.document(calls.read(_task(task_id, "/export")), lambda document: document)

    def import_task(self, document: Json) -> Flow[Task]:
        if not isinstance(document, Mapping):
            raise TypeError(
                "a task is imported from what export_task returned; json.loads reads that from text"
            )
        call = calls.change("POST", "/tasks/import", dict(document), repeatable=False)
        return self.named("task_id", call, Task.parse)

    # --- the rest -------------------------------------------------------------------------------------

    def approvals(self, status: str | None) -> Stream[Approval, None]:
        return self.listed("/approvals", Approval.parse, status=status)

    def approval(self, request_id: str, approval_id: str) -> Flow[Approval]:
        call = calls.read(f"{_request(request_id)}/approvals/{segment(approval_id)}")
        return self.named("approval_id", call, Approval.parse)

    def me(self) -> Flow[Me]:
        return self.document(calls.read("/me"), Me.parse)

    def tenant_tasks(self, oid: str | None, status: str | None, metadata: str | None) -> Stream[Task, None]:
        return self.listed("/tenant/tasks", Task.parse, oid=oid, status=status, metadata=metadata)


def _keyed(message: Call, flow: Generator[Y, Any, T]) -> Generator[Y, Any, T]:
    """The flow of a message: what it raises knows the key that the message was sent with."""
    try:
        return (yield from flow)
    except ClientError as error:
        error.idempotency_key = error.idempotency_key or message.headers[calls.IDEMPOTENCY_KEY]
        raise


def _request(request_id: str) -> str:
    return f"/requests/{segment(request_id)}"


def _task(task_id: str, below: str = "") -> str:
    return f"/tasks/{segment(task_id)}{below}"


def _changed(changes: TaskChanges) -> Mapping[str, Any]:
    calls.check(changes, TaskChanges)
    body: dict[str, Any] = dict(changes)
    if isinstance(expires_at := body.get("expires_at"), datetime):
        if expires_at.utcoffset() is None:
            raise ValueError(f"expires_at has no time zone: {expires_at.isoformat()}")
        body["expires_at"] = expires_at.isoformat()
    return body
