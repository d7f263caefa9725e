"""What is said of responses, items, conversations and models, as plain JSON. Nothing is validated again."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from starlette.requests import Request

from tealagents.api import query
from tealagents.api.openai import names
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import (
    Approval,
    ClientTool,
    Decision,
    Failure,
    Head,
    Json,
    Message,
    ToolCall,
    Usage,
)

#: what the agent's config decides, and this API can neither show nor change
_CONSTANT: Json = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "temperature": 1,
    "top_p": 1,
    "top_logprobs": 0,
    **dict.fromkeys(("max_output_tokens", "max_tool_calls", "prompt_cache_key", "reasoning", "user")),
    "parallel_tool_calls": True,
    "safety_identifier": None,
    "service_tier": "default",
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "truncation": "disabled",
}


class About(Struct, frozen=True, kw_only=True):
    """What every document of one response says alike."""

    request_id: str
    task_id: str
    #: which of the request's responses it is, from 1
    number: int
    agent: str
    created_at: datetime
    #: the decided pause that it begins with
    before: Approval | None = None
    instructions: str = ""
    client_tools: tuple[ClientTool, ...] = ()
    #: what this API keeps with a request: `metadata`, `previous`, `background`, `store`
    kept: Mapping[str, object] = {}

    def spent(self, total: Usage) -> Usage:
        """What this response has used, of all that its request has."""
        return total - self.before.usage if self.before is not None else total

    def response(
        self,
        status: str,
        output: Sequence[Json] = (),
        *,
        total: Usage | None = None,
        failure: Failure | None = None,
        cut_short: str | None = None,
    ) -> Json:
        """The response as it stands; `total` is what its request has used so far."""
        previous = self.kept.get("previous")
        if self.before is not None:
            previous = names.made("resp", self.request_id, self.number - 1)
        error = failure and {"code": "server_error", "message": failure.detail, "type": failure.code}
        return {
            "id": names.made("resp", self.request_id, self.number),
            "object": "response",
            "created_at": int(self.created_at.timestamp()),
            "completed_at": None,
            "status": status,
            "background": self.kept.get("background", False),
            "conversation": {"id": names.made("conv", self.task_id)},
            "error": error,
            "incomplete_details": {"reason": cut_short} if cut_short else None,
            "instructions": self.instructions or None,
            "metadata": self.kept.get("metadata", {}),
            "model": self.agent,
            "output": list(output),
            "previous_response_id": previous,
            "store": self.kept.get("store", True),
            "tools": [_tool(each) for each in self.client_tools],
            "usage": _usage(self.spent(total)) if total is not None else None,
            **_CONSTANT,
        }


def about(stretch: Stretch, agent: str) -> About:
    record, before = stretch.record, stretch.before
    return About(
        request_id=record.request_id,
        task_id=record.task_id,
        number=stretch.number,
        agent=agent,
        created_at=(before.decided_at if before else None) or record.created_at,
        before=before,
        instructions=record.instructions,
        client_tools=record.client_tools,
        kept=record.client,
    )


def _usage(of: Usage) -> Json:
    return {
        "input_tokens": of.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": of.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": of.total_tokens,
    }


def _tool(of: ClientTool) -> Json:
    shown = {"name": of.name, "description": of.description or None, "parameters": of.parameters}
    return {"type": "function", **shown, "strict": False}


# --- items ---------------------------------------------------------------------------------------


def message(identifier: str, role: str, status: str, content: Sequence[Json] = ()) -> Json:
    return {"id": identifier, "type": "message", "role": role, "status": status, "content": list(content)}


def text_part(text: str, *, refusal: bool = False, annotations: Sequence[Json] = ()) -> Json:
    if refusal:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def server_call(identifier: str, call: ToolCall, agent: str, approval_request_id: str | None) -> Json:
    """A call that the service makes."""
    return {
        **_call(identifier, "mcp_call", call, agent),
        "status": "in_progress",
        "approval_request_id": approval_request_id,
        "output": None,
        "error": None,
    }


def approval_request(approval: Approval, n: int, agent: str) -> Json:
    identifier = names.made("mcpr", approval.approval_id, n)
    return _call(identifier, "mcp_approval_request", approval.calls[n], agent)


def _call(identifier: str, kind: str, call: ToolCall, agent: str) -> Json:
    where = {"server_label": call.plugin_name or agent, "name": call.function_name}
    return {"id": identifier, "type": kind, **where, "arguments": call.arguments}


def client_call(approval: Approval, n: int) -> Json:
    """A call that the client makes."""
    call = approval.calls[n]
    return {
        "id": names.made("fc", approval.approval_id, n),
        "type": "function_call",
        "call_id": names.made("call", approval.approval_id, n),
        "name": call.tool,
        "arguments": call.arguments,
        "status": "completed",
    }


def said(of: Message) -> Json:
    """A message of the history, as an item of its own."""
    if of.role == "assistant":
        return message(names.made("msg", of.message_id), "assistant", "completed", [text_part(of.text)])
    content: list[Json] = [
        {"type": "input_image", "image_url": item.content, "detail": "auto", "file_id": None}
        if item.content_type == "image"
        else {"type": "input_text", "text": item.content}
        for item in of.items
    ]
    return message(names.made("msg", of.message_id), of.role, "completed", content)


def answer(approval: Approval, n: int, decision: Decision) -> Json:
    """What was decided of a call, or what came of it at the client, as an item of the input."""
    if approval.calls[n].by_client:
        return {
            "id": names.made("fco", approval.approval_id, n),
            "type": "function_call_output",
            "call_id": names.made("call", approval.approval_id, n),
            "output": decision.output or "",
            "status": "completed",
        }
    return {
        "id": names.made("mcpa", approval.approval_id, n),
        "type": "mcp_approval_response",
        "approval_request_id": names.made("mcpr", approval.approval_id, n),
        "approve": decision.action == "approve",
        "reason": approval.reason,
    }


# --- the rest ------------------------------------------------------------------------------------


def conversation(head: Head) -> Json:
    created_at = int(head.created_at.timestamp())
    shown = {"created_at": created_at, "metadata": head.metadata}
    return {"id": names.made("conv", head.task_id), "object": "conversation", **shown}


def deleted(identifier: str, kind: str) -> Json:
    return {"id": identifier, "object": kind, "deleted": True}


def listed(items: Sequence[Json], *, has_more: bool = False) -> Json:
    ends = (
        {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": "", "last_id": ""}
    )
    return {"object": "list", "data": list(items), **ends, "has_more": has_more}


def page(items: Sequence[Json], request: Request) -> Json:
    """The part of a list that the query asks for; the newest first, unless it says otherwise."""
    limit = query.number(request, "limit", 20, lowest=1, highest=100)
    after, order = query.once(request, "after"), query.once(request, "order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        start = 1 + next((n for n, each in enumerate(ordered) if each["id"] == after), -1)
        if not start:
            raise names.unknown("item", after)
    return listed(ordered[start : start + limit], has_more=start + limit < len(ordered))
