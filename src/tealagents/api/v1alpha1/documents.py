"""Records as the documents of `tealagents/v1alpha1`. Built by hand: nothing is validated again."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tealagents.api.exchange import ShownApproval
from tealagents.api.v1alpha1 import problems
from tealagents.domain.models import (
    ENDED,
    Approval,
    Entry,
    Head,
    Json,
    Message,
    Outcome,
    RequestEnd,
    RequestRecord,
    Session,
    Status,
    Step,
    TokenUsage,
    User,
)
from tealagents.domain.ports import ToolSpec
from tealagents.engine.reconstruction import ReconstructedPrompt, SentPart
from tealagents.state.catalog import Damaged
from tealagents.state.decisions import shown_calls

#: finish reasons that a client has to know of: the answer is not what it could have been
_CUT_SHORT = ("length", "content_filter", "refusal")


def answer(ids: Mapping[str, str], status: Status, content: Json | None) -> Json:
    """What the JSON way returns for a request that did not fail, and the event that ends its stream."""
    return {**ids, "status": status, "content": content}


def content(outcome: Outcome, ids: Mapping[str, str]) -> Json:
    """What a request has produced: its answer, or what there was of one."""
    extra = dict(outcome.extra_data or {})
    if outcome.finish_reason in _CUT_SHORT:
        extra["finish_reason"] = outcome.finish_reason
    return {
        **ids,
        "output": outcome.output,
        "source": outcome.source,
        "token_usage": usage(outcome.usage),
        "extra_data": extra or None,
    }


def pause(record: Approval, prefix: str) -> Json:
    """A pause; it is decided under the version that is served now."""
    return {
        "session_id": record.session_id,
        "task_id": record.task_id,
        "request_id": record.request_id,
        "approval_id": record.approval_id,
        "message": record.message,
        **_decided_at(prefix, record.request_id, record.approval_id),
        "expires_at": record.expires_at,
        "authorizations": list(record.authorizations),
        "tool_calls": shown_calls(record.calls),
    }


def content_of(record: RequestRecord, prefix: str) -> Json | None:
    """What a request has to say as it stands; None while it runs or waits its turn."""
    if record.status in ENDED:
        return content(record.outcome, record.ids)
    return pause(record.pause, prefix) if record.pause is not None else None


def _decided_at(prefix: str, request_id: str, approval_id: str) -> Json:
    url = f"{prefix}/requests/{request_id}/resume?approval_id={approval_id}"
    return {"approval_url": url, "rejection_url": url}


def request(record: RequestRecord, prefix: str) -> Json:
    return {
        **record.ids,
        "status": record.status,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "token_usage": usage(record.usage),
        "content": content_of(record, prefix),
        "error": problems.of_failure(record.error, record.ids) if record.error is not None else None,
    }


def usage(of: TokenUsage) -> Json:
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
    occupant = head.occupant
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


def sent(prompt: ReconstructedPrompt, items: list[Json], cursor: int | None) -> Json:
    """A page of what a model call was sent."""
    step = prompt.step
    return {
        "request_id": step.request_id,
        "step_id": step.step_id,
        "model": step.name,
        "parts_sent": prompt.parts_sent,
        "gaps": list(prompt.gaps),
        **page(items, cursor),
    }


def sent_part(part: SentPart, *, withheld: bool) -> Json:
    of = message(part.message) if part.message is not None else {}
    text = [] if withheld or not part.text else [{"content_type": "text", "content": part.text}]
    return {
        "origin": part.origin,
        "role": part.role,
        "message_id": of.get("message_id"),
        "request_id": of.get("request_id"),
        "items": of.get("items", text),
        "tool_calls": of.get("tool_calls", []),
        "tool_call_id": of.get("tool_call_id"),
        "tool": of.get("tool"),
        "altered": part.altered,
        "withheld": withheld,
    }


def approval(record: Approval | Damaged, prefix: str, reader: User) -> Json:
    """A pause in the inbox of `reader`."""
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
        "authorizations": list(record.shown_to(reader).authorizations),
        "tool_calls": shown_calls(record.calls),
        "decided_at": record.decided_at,
        "decided_by": user(record.decided_by) if record.decided_by else None,
    }


def approval_with_tools(shown: ShownApproval, prefix: str, reader: User) -> Json:
    """One pause; of each call what its tool says of itself, so that its arguments can be edited."""
    document = approval(shown.approval, prefix, reader)
    calls = [{**call, **_tool(shown.tools[call["id"]])} for call in document["tool_calls"]]
    return {**document, "tool_calls": calls}


def _tool(spec: ToolSpec | None) -> Json:
    return {
        "description": spec.description if spec is not None else None,
        "parameters": spec.parameters if spec is not None else None,
    }


def entry(record: Entry) -> Json:
    return msgspec.structs.asdict(record)


def page(items: list[Any], cursor: str | int | None) -> Json:
    return {"items": items, "next_cursor": None if cursor is None else str(cursor)}
