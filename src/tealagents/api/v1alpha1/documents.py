"""Records as the documents of `tealagents/v1alpha1`. Built by hand: nothing is validated again."""

from typing import Any

import msgspec

from tealagents.api import problems
from tealagents.domain.models import (
    Approval,
    Entry,
    Head,
    Json,
    Message,
    RequestEnd,
    RequestRecord,
    Session,
    Step,
    Usage,
    User,
)
from tealagents.state.catalog import Damaged
from tealagents.state.decisions import shown_calls


def ids(request: RequestRecord) -> dict[str, str]:
    return {
        "session_id": request.session_id,
        "task_id": request.task_id,
        "request_id": request.request_id,
    }


def answer(request: RequestRecord, prefix: str, *, with_content: bool = True) -> Json:
    """What the JSON way returns for a request that did not fail."""
    shown = with_content and request.status in ("Completed", "Paused")
    return {**ids(request), "status": request.status, "content": _content(request, prefix) if shown else None}


def _content(record: RequestRecord, prefix: str) -> Json | None:
    """What a request has to say; a pause is decided under the version that is served now."""
    if record.status != "Paused" or record.content is None:
        return record.content
    where = _decided_at(prefix, record.request_id, record.content["approval_id"])
    shown: Json = {}
    for name, value in record.content.items():
        shown[name] = value
        if name == "message":
            shown |= where
    return shown | where


def _decided_at(prefix: str, request_id: str, approval_id: str) -> Json:
    url = f"{prefix}/requests/{request_id}/resume?approval_id={approval_id}"
    return {"approval_url": url, "rejection_url": url}


def request(record: RequestRecord, prefix: str) -> Json:
    return {
        **ids(record),
        "status": record.status,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "token_usage": usage(record.usage),
        "content": _content(record, prefix),
        "error": problems.of_request(record),
    }


def usage(of: Usage) -> Json:
    return {
        "prompt_tokens": of.prompt_tokens,
        "completion_tokens": of.completion_tokens,
        "total_tokens": of.total_tokens,
    }


def user(of: User) -> Json:
    return {"tid": of.tid, "oid": of.oid}


def task(head: Head | Damaged) -> Json:
    if isinstance(head, Damaged):
        return {"task_id": head.identifier, "error": problems.document(head.error)}
    occupant = head.running or head.pending
    return {
        "task_id": head.task_id,
        "session_id": head.session_id,
        "status": head.status,
        "created_at": head.created_at,
        "last_updated": head.updated_at,
        "expires_at": head.expires_at,
        "metadata": head.metadata,
        "owner": user(head.owner),
        "checkpoint_id": head.checkpoint_id,
        "request_id": occupant.request_id if occupant else None,
        "approval_id": head.pending.approval_id if head.pending else None,
        "queued": [waiting.request_id for waiting in head.queue],
        "origin": head.origin,
    }


def session(record: Session | Damaged, tasks: list[Json] | None = None) -> Json:
    if isinstance(record, Damaged):
        return {"session_id": record.identifier, "error": problems.document(record.error)}
    document: Json = {
        "session_id": record.session_id,
        "created_at": record.created_at,
        "owner": user(record.owner),
    }
    if tasks is not None:
        document["tasks"] = tasks
    return document


def message(record: Message) -> Json:
    return {
        "message_id": record.message_id,
        "request_id": record.request_id,
        "role": record.role,
        "items": [{"content_type": i.content_type, "content": i.content} for i in record.items],
        "tool_calls": [
            {"id": call.id, "tool": call.tool, "arguments": call.arguments} for call in record.tool_calls
        ],
        "tool_call_id": record.tool_call_id,
        "tool": record.tool,
        "is_error": record.is_error,
        "created_at": record.created_at,
        "origin": msgspec.to_builtins(record.origin),
    }


def step(record: Step) -> Json:
    return {
        "step_id": record.step_id,
        "request_id": record.request_id,
        "kind": record.kind,
        "name": record.name,
        "started_at": record.started_at,
        "duration_ms": record.duration_ms,
        "input": record.input,
        "output": record.output,
        "usage": usage(record.usage) if record.usage else None,
        "is_error": record.is_error,
        "outcome": record.outcome,
        "imported": record.imported,
    }


def checkpoint(end: RequestEnd, current: str | None) -> Json:
    return {
        "checkpoint_id": end.request_id,
        "request_id": end.request_id,
        "created_at": end.ended_at,
        "current": end.request_id == current,
    }


def approval(record: Approval | Damaged, prefix: str, reader: User) -> Json:
    """A pause in the inbox of `reader`; where to give consent is the owner's to know."""
    if isinstance(record, Damaged):
        return {"approval_id": record.identifier, "error": problems.document(record.error)}
    return {
        "session_id": record.session_id,
        "task_id": record.task_id,
        "request_id": record.request_id,
        "approval_id": record.approval_id,
        "status": record.status,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "message": record.message,
        **_decided_at(prefix, record.request_id, record.approval_id),
        "authorizations": list(record.authorizations) if reader == record.owner else [],
        "tool_calls": shown_calls(record.calls),
        "decided_at": record.decided_at,
        "decided_by": user(record.decided_by) if record.decided_by else None,
    }


def entry(record: Entry) -> Json:
    return msgspec.structs.asdict(record)


def page(items: list[Any], cursor: str | int | None) -> Json:
    return {"items": items, "next_cursor": None if cursor is None else str(cursor)}
