"""A body that is right for each route that takes one, with all that there can be in it: to be broken."""

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from agui_talk import WEATHER
from mcp_talk import asking, modern
from wire import NOBODYS, Json

# --- v1alpha1 ----------------------------------------------------------------------------------------

_MESSAGE: Json = {
    "items": [
        {"content_type": "text", "content": "hi"},
        {"content_type": "image", "content": "data:image/png;base64,AA=="},
    ],
    "session_id": NOBODYS,
    "task_id": NOBODYS,
    "user_context": {"a": "b"},
    "metadata": {"a": 1},
    "supersede": True,
}
_NEW: Json = {"items": [{"content_type": "text", "content": "hi"}], "metadata": {"a": [1, None]}}
_RESUME: Json = {
    "action": "approve",
    "reason": "x",
    "decisions": [{"id": "call_1", "action": "approve", "arguments": {"a": "b"}}],
}
#: the export of a task: a message, and one whose tool call was approved
_TASK: Json = json.loads((Path(__file__).parent / "exported_task.json").read_text())
#: those of its ids that may be there once
_TASK_IDS = [
    _TASK["task"]["task_id"],
    _TASK["task"]["session_id"],
    *(each["request_id"] for each in _TASK["requests"]),
]

# --- openai ------------------------------------------------------------------------------------------

_CALL = f"call_{NOBODYS}_0"
_TOOL: Json = {"type": "function", "name": "f", "description": "x", "parameters": {"type": "object"}}
_INPUT: list[Json] = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": _CALL, "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": _CALL, "output": "x"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
]
_APPROVAL: Json = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{NOBODYS}_0"}
_RESPONSES: list[Json] = [
    {
        "model": "Tester",
        "input": _INPUT,
        "tools": [_TOOL],
        "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}},
        "previous_response_id": f"resp_{NOBODYS}_1",
    },
    {"input": [{**_APPROVAL, "approve": True}]},
    {"input": "hi", "conversation": {"id": f"conv_{NOBODYS}"}, "stream": True, "store": True},
    {"input": _INPUT, "instructions": "x", "background": True},
]
_CHAT: Json = {
    "model": "Tester",
    "messages": [
        {"role": "system", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": _CALL, "content": "x"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "stream_options": {"include_usage": True},
}
_ITEMS: Json = {"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}}

# --- a2a ---------------------------------------------------------------------------------------------

_SEND: Json = {
    "message": {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [
            {"text": "hi"},
            {"data": {"action": "approve", "n": 1}},
            {"raw": "AAAA", "mediaType": "image/png"},
            {"url": "http://127.0.0.1:1/"},
        ],
        "contextId": NOBODYS,
        "taskId": NOBODYS,
        "metadata": {"a": 1},
    },
    "configuration": {"historyLength": 1, "returnImmediately": True, "acceptedOutputModes": ["text/plain"]},
    "tenant": "x",
}
_TALK: Json = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
_OF_TASK: Json = {"id": NOBODYS, "taskId": NOBODYS, "historyLength": 1, "tenant": "x"}
_LIST: Json = {
    "contextId": NOBODYS,
    "pageSize": 3,
    "pageToken": "",
    "status": "TASK_STATE_WORKING",
    "statusTimestampAfter": "2999-01-01T00:00:00Z",
}
_OLD: Json = {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}}
_RPC: list[Json] = [
    {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    for method, params in (
        ("SendMessage", _SEND),
        ("SendMessage", _TALK),
        ("SendStreamingMessage", _TALK),
        ("GetTask", _OF_TASK),
        ("ListTasks", _LIST),
        ("CancelTask", _OF_TASK),
        ("SubscribeToTask", _OF_TASK),
        ("CreateTaskPushNotificationConfig", {**_OF_TASK, "url": "http://127.0.0.1:1/"}),
        ("GetExtendedAgentCard", {}),
        ("message/send", _OLD),
        ("message/stream", _OLD),
        ("tasks/get", _OF_TASK),
        ("tasks/cancel", _OF_TASK),
        ("tasks/resubscribe", _OF_TASK),
        (
            "tasks/pushNotificationConfig/set",
            {"taskId": NOBODYS, "pushNotificationConfig": {"url": "http://127.0.0.1:1/"}},
        ),
    )
]

# --- ag-ui and mcp -----------------------------------------------------------------------------------

_RUN: Json = {
    "threadId": NOBODYS,
    "runId": "r",
    "protocolVersion": "1.0",
    "state": {"a": 1},
    "forwardedProps": {},
    "messages": [
        {"id": "s", "role": "system", "content": "x"},
        {"id": "u", "role": "user", "content": "hi"},
        {
            "id": f"msg_{NOBODYS}_1",
            "role": "assistant",
            "content": "x",
            "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"id": "t", "role": "tool", "toolCallId": _CALL, "content": [{"type": "text", "text": "x"}]},
        {
            "id": "v",
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
                {"type": "document", "source": {"type": "url", "value": "http://127.0.0.1:1/"}},
            ],
        },
    ],
    "tools": [WEATHER],
    "context": [{"description": "a", "value": "b"}],
    "resume": [{"interruptId": f"int_{NOBODYS}_0", "status": "resolved", "payload": {"action": "approve"}}],
}
_DECIDE: Json = {"request_id": NOBODYS, "decisions": [{"id": "x"}]}
_ANSWERED: Json = {
    "name": "ask",
    "arguments": {"message": "hi"},
    "requestState": f"{NOBODYS}/{NOBODYS}",
    "inputResponses": {"decision": {"action": "accept", "content": {"action": "approve"}}},
}
_INITIALIZE: Json = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "x", "version": "1"},
}
_MCP: list[Json] = [
    asking("hi", conversation=NOBODYS, idempotency_key="k"),
    modern("tools/call", {"name": "decide", "arguments": _DECIDE}),
    modern("tools/call", _ANSWERED),
    modern("tools/list", {"cursor": "x"}),
    modern("server/discover"),
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _INITIALIZE},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}},
    {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}},
]

#: route → bodies that it takes
RIGHT: Mapping[str, Sequence[Json]] = {
    "POST ": [_NEW, _MESSAGE],
    "POST /": [_NEW, _MESSAGE],
    "POST /sse": [_NEW, _MESSAGE],
    "POST /requests/{request_id}/resume": [_RESUME],
    "POST /requests/{request_id}/resume/sse": [_RESUME],
    "POST /tealagents/v1alpha1/resume/{request_id}": [_RESUME],
    "POST /tealagents/v1alpha1/resume/{request_id}/sse": [_RESUME],
    "POST /requests/{request_id}/cancel": [{}],
    "PATCH /tasks/{task_id}": [{"metadata": {"a": 1}, "expires_at": "2999-01-01T00:00:00Z"}],
    "POST /tasks/{task_id}/rollback": [{"checkpoint_id": NOBODYS}],
    "POST /tasks/{task_id}/fork": [{"checkpoint_id": NOBODYS}, {"message_id": NOBODYS}],
    "POST /tasks/import": [_TASK],
    "PATCH /tasks/import": [_TASK],
    "POST /openai/v1/responses": _RESPONSES,
    "POST /openai/v1/responses/{response_id}/cancel": [{}],
    "POST /openai/v1/conversations": [_ITEMS],
    "POST /openai/v1/conversations/{conversation_id}": [{"metadata": {"a": "b"}}],
    "POST /openai/v1/conversations/{conversation_id}/items": [_ITEMS],
    "POST /openai/v1/chat/completions": [_CHAT, {**_CHAT, "stream": True}],
    "POST /a2a": _RPC,
    "POST /a2a/": _RPC,
    "POST /a2a/message:send": [_SEND, _TALK],
    "POST /a2a/message:stream": [_SEND, _TALK],
    "POST /a2a/tasks/{id}:cancel": [_OF_TASK],
    "POST /a2a/tasks/{id}:subscribe": [_OF_TASK],
    "POST /a2a/tasks/{id}/pushNotificationConfigs": [{**_OF_TASK, "url": "http://127.0.0.1:1/"}],
    "POST /ag-ui": [_RUN, {**_RUN, "resume": []}],
    "POST /ag-ui/": [_RUN],
    "POST /mcp": _MCP,
    "POST /mcp/": _MCP,
}


def fresh(rng: random.Random, body: Json, user: str) -> Json:
    """A right body as a user sends it: what can be there only once has new ids."""
    if "threadId" in body:
        return {**body, "threadId": _new_id(rng), "runId": _new_id(rng)}
    if "entries" in body:
        written = json.dumps({**body, "task": {**body["task"], "owner": {"tid": "mock", "oid": user}}})
        for known in _TASK_IDS:
            written = written.replace(known, _new_id(rng))
        task: Json = json.loads(written)
        return task
    return body


def _new_id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128)))
