"""What is said of responses, items and conversations, as plain JSON. Nothing is validated again."""

from collections.abc import Sequence

from starlette.requests import Request

from tealagents.api import query, setups
from tealagents.api.names import made
from tealagents.api.openai.inputs import KEPT
from tealagents.api.stretches import Stretch
from tealagents.domain.models import Approval, ClientTool, Decision, Head, Json, Message, TokenUsage, ToolCall
from tealagents.engine.resuming import rejection

#: what a response says where nothing else is known of it; most of it is decided by the agent's config, and
#: this API can neither show nor change it
_DEFAULTS: Json = {
    **dict.fromkeys(("completed_at", "error", "incomplete_details", "max_output_tokens", "max_tool_calls")),
    **dict.fromkeys(("previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier")),
    **dict.fromkeys(("usage", "user", "access_programs")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), 0),
    **dict.fromkeys(("temperature", "top_p"), 1),
    "background": False,
    "metadata": {},
    **dict.fromkeys(("parallel_tool_calls", "store"), True),
    "service_tier": "default",
    "truncation": "disabled",
}


def response(stretch: Stretch, agent: str, **now: object) -> Json:
    """A response; `now` is how it stands."""
    record, setup = stretch.record, stretch.setup
    asked = {"instructions": setup.instructions or None}
    if stretch.before is not None:
        asked["previous_response_id"] = made("resp", record.request_id, stretch.number - 1)
    return {
        "id": made("resp", record.request_id, stretch.number),
        "object": "response",
        "created_at": int(stretch.created_at.timestamp()),
        "conversation": {"id": made("conv", record.task_id)},
        "model": agent,
        "tools": list(map(_tool, setup.client_tools)),
        "text": {"format": setups.shown_format(setup.response_format)},
        "tool_choice": setups.shown_choice(setup.tool_choice),
        **_DEFAULTS,
        **{name: value for name, value in record.client.items() if name in KEPT},
        **asked,
        **now,
    }


def usage(of: TokenUsage) -> Json:
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


def message(identifier: str, role: str, status: str, content: Sequence[Json] = ()) -> Json:
    return {"id": identifier, "type": "message", "role": role, "status": status, "content": list(content)}


def text_part(text: str, *, refusal: bool = False) -> Json:
    spoken: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "refusal", "refusal": text} if refusal else spoken


def server_call(identifier: str, call: ToolCall, agent: str, asked: str | None) -> Json:
    """A call that the service makes; `asked` is the request to approve it."""
    begun = {"status": "in_progress", "approval_request_id": asked, "output": None, "error": None}
    return {"id": identifier, "type": "mcp_call", **_of_service(call, agent), **begun}


def waiting(approval: Approval, n: int, agent: str) -> Json:
    """A call of a pause: one for the client to make, or one that waits for approval."""
    call, pause = approval.calls[n], approval.approval_id
    if not call.by_client:
        return {"id": made("mcpr", pause, n), "type": "mcp_approval_request", **_of_service(call, agent)}
    asked = {"name": call.tool, "arguments": call.arguments, "status": "completed"}
    return {"id": made("fc", pause, n), "type": "function_call", "call_id": made("call", pause, n), **asked}


def _of_service(call: ToolCall, agent: str) -> Json:
    label = call.plugin_name or agent
    return {"server_label": label, "name": call.function_name, "arguments": call.arguments}


def answer(approval: Approval, n: int, decision: Decision) -> Json:
    """The decision on a call, or the output of the client's tool, as an item of the input."""
    call, pause, output = approval.calls[n], approval.approval_id, decision.output
    if call.by_client:
        output = rejection(approval, call, decision) if output is None else output
        done = {"call_id": made("call", pause, n), "output": output, "status": "completed"}
        return {"id": made("fco", pause, n), "type": "function_call_output", **done}
    decided = {"approve": decision.action == "approve", "reason": decision.reason or approval.reason}
    asked = {"approval_request_id": made("mcpr", pause, n)}
    return {"id": made("mcpa", pause, n), "type": "mcp_approval_response", **asked, **decided}


def said(of: Message) -> Json:
    """A message of the history, as an item of its own."""
    content = [text_part(of.text)]
    if of.role != "assistant":
        content = [
            {"type": "input_image", "image_url": each.content, "detail": "auto", "file_id": None}
            if each.content_type == "image"
            else {"type": "input_text", "text": each.content}
            for each in of.items
        ]
    return message(made("msg", of.message_id), of.role, "completed", content)


def conversation(head: Head) -> Json:
    created_at, identifier = int(head.created_at.timestamp()), made("conv", head.task_id)
    return {"id": identifier, "object": "conversation", "created_at": created_at, "metadata": head.metadata}


def deleted(identifier: str, kind: str) -> Json:
    return {"id": identifier, "object": kind, "deleted": True}


def listed(items: Sequence[Json], *, has_more: bool = False) -> Json:
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": has_more}


async def page(items: query.Listed, request: Request) -> Json:
    """The part of a list that the query asks for."""
    found, more = await query.window(request, items)
    return listed(found, has_more=more)
