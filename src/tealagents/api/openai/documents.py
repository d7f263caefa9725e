"""What is said of responses, items, conversations and models, as plain JSON. Nothing is validated again."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from tealagents.api.openai import names
from tealagents.domain.models import (
    Approval,
    ClientTool,
    Decision,
    Failure,
    Head,
    Item,
    Json,
    Message,
    ToolCall,
    Usage,
)


class About(Struct, frozen=True, kw_only=True):
    """What every document of one response says alike."""

    response_id: str
    request_id: str
    task_id: str
    #: which of the request's responses it is, from 1
    number: int
    agent: str
    created_at: datetime
    #: the decided pause that it begins with
    before: Approval | None = None
    previous: str | None = None
    instructions: str = ""
    client_tools: tuple[ClientTool, ...] = ()
    metadata: Mapping[str, str] = {}
    background: bool = False
    store: bool = True

    def spent(self, total: Usage) -> Usage:
        """What this response has used, of all that its request has."""
        before = self.before.usage if self.before is not None else Usage()
        return Usage(
            total.prompt_tokens - before.prompt_tokens,
            total.completion_tokens - before.completion_tokens,
            total.total_tokens - before.total_tokens,
        )

    def response(
        self,
        status: str,
        output: Sequence[Json] = (),
        *,
        spent: Usage | None = None,
        failure: Failure | None = None,
        cut_short: str | None = None,
        completed_at: datetime | None = None,
    ) -> Json:
        """The response as it stands."""
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": int(self.created_at.timestamp()),
            "completed_at": int(completed_at.timestamp()) if completed_at else None,
            "status": status,
            "background": self.background,
            "conversation": {"id": names.conversation(self.task_id)},
            "error": error(failure) if failure is not None else None,
            "incomplete_details": {"reason": cut_short} if cut_short else None,
            "instructions": self.instructions or None,
            "metadata": dict(self.metadata),
            "model": self.agent,
            "output": list(output),
            "previous_response_id": self.previous,
            "store": self.store,
            "tools": [tool(each) for each in self.client_tools],
            "usage": usage(spent) if spent is not None else None,
            **_CONSTANT,
        }


#: what the agent's config decides, and this API cannot tell or change
_CONSTANT: Json = {
    "frequency_penalty": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1,
    "truncation": "disabled",
    "user": None,
}


def usage(of: Usage) -> Json:
    return {
        "input_tokens": of.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": of.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": of.total_tokens,
    }


def error(failure: Failure) -> Json:
    """Why a response failed; OpenAI's codes are few, so the type tells ours."""
    return {"code": "server_error", "message": failure.detail, "type": failure.code}


def tool(of: ClientTool) -> Json:
    return {
        "type": "function",
        "name": of.name,
        "description": of.description or None,
        "parameters": of.parameters,
        "strict": False,
    }


# --- items ---------------------------------------------------------------------------------------


def message(identifier: str, status: str = "in_progress") -> Json:
    """An assistant's message without its content yet."""
    return {"id": identifier, "type": "message", "role": "assistant", "status": status, "content": []}


def text_part(text: str, *, refusal: bool, annotations: Sequence[Json] = ()) -> Json:
    if refusal:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def server_call(identifier: str, call: ToolCall, agent: str, approval_request_id: str | None) -> Json:
    """A call that the service makes."""
    return {
        "id": identifier,
        "type": "mcp_call",
        "status": "in_progress",
        "approval_request_id": approval_request_id,
        "server_label": call.plugin_name or agent,
        "name": call.function_name,
        "arguments": call.arguments,
        "output": None,
        "error": None,
    }


def returned(output: str, *, is_error: bool) -> Json:
    """How a call of the service ended: what changes in its item."""
    if is_error:
        content = [{"type": "text", "text": output}]
        return {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": content}}
    return {"status": "completed", "output": output}


def approval_request(approval: Approval, n: int, agent: str) -> Json:
    call = approval.calls[n]
    return {
        "id": names.item("mcpr", approval.approval_id, n),
        "type": "mcp_approval_request",
        "server_label": call.plugin_name or agent,
        "name": call.function_name,
        "arguments": call.arguments,
    }


def client_call(approval: Approval, n: int, status: str = "completed") -> Json:
    """A call that the client makes."""
    call = approval.calls[n]
    return {
        "id": names.item("fc", approval.approval_id, n),
        "type": "function_call",
        "call_id": names.item("call", approval.approval_id, n),
        "name": call.tool,
        "arguments": call.arguments,
        "status": status,
    }


def user_message(of: Message) -> Json:
    """A message of the history, as an item of the input."""
    given = [_input_part(each) for each in of.items]
    if of.role == "assistant":
        given = [text_part(of.text, refusal=False)]
    identifier = names.item("msg", of.message_id)
    return {"id": identifier, "type": "message", "role": of.role, "status": "completed", "content": given}


def _input_part(of: Item) -> Json:
    if of.content_type == "image":
        return {"type": "input_image", "image_url": of.content, "detail": "auto", "file_id": None}
    return {"type": "input_text", "text": of.content}


def answer(approval: Approval, n: int, decision: Decision) -> Json:
    """What was decided of a call, or what came of it at the client, as an item of the input."""
    if approval.calls[n].by_client:
        return {
            "id": names.item("fco", approval.approval_id, n),
            "type": "function_call_output",
            "call_id": names.item("call", approval.approval_id, n),
            "output": decision.output or "",
            "status": "completed",
        }
    return {
        "id": names.item("mcpa", approval.approval_id, n),
        "type": "mcp_approval_response",
        "approval_request_id": names.item("mcpr", approval.approval_id, n),
        "approve": decision.action == "approve",
        "reason": approval.reason,
    }


# --- the rest ------------------------------------------------------------------------------------


def conversation(head: Head) -> Json:
    return {
        "id": names.conversation(head.task_id),
        "object": "conversation",
        "created_at": int(head.created_at.timestamp()),
        "metadata": head.metadata,
    }


def deleted(identifier: str, kind: str) -> Json:
    return {"id": identifier, "object": kind, "deleted": True}


def model(identifier: str) -> Json:
    return {"id": identifier, "object": "model", "created": 0, "owned_by": "tealagents"}


def listed(items: Sequence[Json], *, has_more: bool = False) -> Json:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else "",
        "last_id": items[-1]["id"] if items else "",
        "has_more": has_more,
    }


def page(items: Sequence[Json], query: "Page") -> Json:
    """The part of a list that was asked for. `NotFound` for an item to go on after that is not in it."""
    ordered = list(items) if query.order == "asc" else list(reversed(items))
    start = 0
    if query.after is not None:
        positions = [n for n, each in enumerate(ordered) if each["id"] == query.after]
        if not positions:
            raise names.unknown("item", query.after)
        start = positions[0] + 1
    found = ordered[start : start + query.limit]
    return listed(found, has_more=start + query.limit < len(ordered))


class Page(Struct, frozen=True):
    """What part of a list is asked for."""

    limit: int = 20
    order: str = "desc"
    after: str | None = None
