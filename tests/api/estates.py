"""What a user owns, and every call that names some of it: on each route of each protocol."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self

import httpx
from a2a_talk import VERSION, decision, message
from agui_talk import run_input, user
from mcp_talk import headers_of, modern
from openai_talk import WEATHER
from wire import Json, text

#: said by the owner, asked of tools, answered by tools: never readable by anyone else
SECRET = "the blue heron"
APPROVE = {"action": "approve"}


@dataclass
class Call:
    """One call, and how its target is brought back when the call itself has removed it."""

    method: str
    path: str
    json: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    restore: Callable[[httpx.Client], None] | None = None
    #: whether it succeeds again
    again: bool = True
    #: the answer is a stream that continues as long as a client listens
    endless: bool = False

    def by(self, client: httpx.Client) -> httpx.Response:
        request = client.build_request(
            self.method, self.path, json=self.json, params=self.query, headers=self.headers
        )
        answer = client.send(request, stream=True)
        if self.endless and answer.status_code == 200 and "event-stream" in answer.headers["content-type"]:
            answer.close()
        else:
            answer.read()
        return answer


@dataclass
class Estate:
    """What an owner has: a session with a task of two completed requests, one of one, and two that wait."""

    session: str
    task: str
    first: str
    last: str
    message: str
    #: a task whose only request has completed
    alone_task: str
    alone: str
    #: one that waits for a decision
    paused_task: str
    paused: str
    approval: str
    #: one that waits for the client's own tool
    asked_task: str
    asked: str
    asked_approval: str
    asked_call: str
    #: the documents of the task and of the one that is alone
    document: Json
    alone_document: Json

    @classmethod
    def of(cls, owner: httpx.Client) -> Self:
        first = _sent(owner, f"Remember that {SECRET} is shy.")
        last = _sent(owner, "And now?", task_id=first["task_id"])
        alone = _sent(owner, f"Alone with {SECRET}.")
        paused = _sent(owner, f'call Shell-delete {{"path": "/{SECRET}"}}')["content"]
        body = {"input": f'call get_weather {{"place": "{SECRET}"}}', "tools": [WEATHER]}
        asked = owner.post("/openai/v1/responses", json=body).raise_for_status().json()
        task, request = first["task_id"], asked["id"].split("_")[1]
        waiting = owner.get(f"/requests/{request}").json()["content"]
        return cls(
            session=first["session_id"],
            task=task,
            first=first["request_id"],
            last=last["request_id"],
            message=owner.get(f"/tasks/{task}/messages").json()["items"][0]["message_id"],
            alone_task=alone["task_id"],
            alone=alone["request_id"],
            paused_task=paused["task_id"],
            paused=paused["request_id"],
            approval=paused["approval_id"],
            asked_task=waiting["task_id"],
            asked=request,
            asked_approval=waiting["approval_id"],
            asked_call=waiting["tool_calls"][0]["id"],
            document=owner.get(f"/tasks/{task}/export").json(),
            alone_document=owner.get(f"/tasks/{alone['task_id']}/export").json(),
        )

    @classmethod
    def nowhere(cls, identifier: str) -> Self:
        """One in which there is nothing: every id is this one."""
        nothing: Json = {each.name: identifier if each.type is str else {} for each in fields(cls)}
        return cls(**nothing)

    def put_back(self, owner: httpx.Client) -> None:
        """The deleted task, with all its ids."""
        owner.post("/tasks/import", json=self.document).raise_for_status()

    def put_alone_back(self, owner: httpx.Client) -> None:
        owner.post("/tasks/import", json=self.alone_document).raise_for_status()

    def moved(self) -> Json:
        """The task's document under other ids."""
        written = json.dumps(self.document)
        for known in (self.session, self.task, self.first, self.last):
            written = written.replace(known, str(uuid.uuid4()))
        moved: Json = json.loads(written)
        return moved


def _sent(owner: httpx.Client, words: str, **more: str) -> Json:
    answer: Json = owner.post("", json=text(words, **more)).raise_for_status().json()
    return answer


Recipe = Callable[[Estate], Call]

# --- v1alpha1 ----------------------------------------------------------------------------------------

_SEND: list[Callable[[Estate], Json]] = [
    lambda e: text("hi", task_id=e.task),
    lambda e: text("hi", session_id=e.session),
    lambda e: text("hi", session_id=e.session, task_id=e.task),
    lambda e: text("hi", task_id=e.paused_task, supersede=True),
]


def _with(method: str, path: str, body: Callable[[Estate], Json], **more: Any) -> Recipe:
    return lambda e: Call(method, path, body(e), **more)


def _get(path: Callable[[Estate], str], **query: str) -> Recipe:
    return lambda e: Call("GET", path(e), query=query)


def _post(path: Callable[[Estate], str], body: Json | None = None) -> Recipe:
    return lambda e: Call("POST", path(e), body)


OWN: dict[str, list[Recipe]] = {
    "POST ": [_with("POST", "", body) for body in _SEND],
    "POST /": [_with("POST", "/", _SEND[0])],
    "POST /sse": [_with("POST", "/sse", body) for body in _SEND[:2]],
    "POST /requests/{request_id}/resume": [_post(lambda e: f"/requests/{e.paused}/resume", APPROVE)],
    "POST /requests/{request_id}/resume/sse": [_post(lambda e: f"/requests/{e.paused}/resume/sse", APPROVE)],
    "POST /tealagents/v1alpha1/resume/{request_id}": [
        _post(lambda e: f"/tealagents/v1alpha1/resume/{e.paused}", APPROVE)
    ],
    "POST /tealagents/v1alpha1/resume/{request_id}/sse": [
        _post(lambda e: f"/tealagents/v1alpha1/resume/{e.paused}/sse", {"action": "reject"})
    ],
    "GET /sessions/{session_id}": [_get(lambda e: f"/sessions/{e.session}")],
    "DELETE /sessions/{session_id}": [lambda e: Call("DELETE", f"/sessions/{e.session}", restore=e.put_back)],
    "GET /tasks": [lambda e: Call("GET", "/tasks", query={"session_id": e.session})],
    "GET /tasks/{task_id}": [_get(lambda e: f"/tasks/{e.task}"), _get(lambda e: f"/tasks/{e.paused_task}")],
    "PATCH /tasks/{task_id}": [lambda e: Call("PATCH", f"/tasks/{e.task}", {"metadata": {"seen": True}})],
    "DELETE /tasks/{task_id}": [lambda e: Call("DELETE", f"/tasks/{e.task}", restore=e.put_back)],
    "GET /tasks/{task_id}/messages": [
        _get(lambda e: f"/tasks/{e.task}/messages"),
        lambda e: Call("GET", f"/tasks/{e.task}/messages", query={"checkpoint_id": e.first}),
    ],
    "GET /tasks/{task_id}/trace": [_get(lambda e: f"/tasks/{e.task}/trace")],
    "GET /tasks/{task_id}/audit": [_get(lambda e: f"/tasks/{e.task}/audit")],
    "GET /tasks/{task_id}/checkpoints": [
        _get(lambda e: f"/tasks/{e.task}/checkpoints"),
        _get(lambda e: f"/tasks/{e.task}/checkpoints", parents="true"),
    ],
    "POST /tasks/{task_id}/rollback": [
        lambda e: Call("POST", f"/tasks/{e.task}/rollback", {"checkpoint_id": e.first})
    ],
    "POST /tasks/{task_id}/fork": [
        lambda e: Call("POST", f"/tasks/{e.task}/fork", {}),
        lambda e: Call("POST", f"/tasks/{e.task}/fork", {"checkpoint_id": e.first}),
        lambda e: Call("POST", f"/tasks/{e.task}/fork", {"message_id": e.message}),
    ],
    "GET /tasks/{task_id}/export": [_get(lambda e: f"/tasks/{e.task}/export")],
    "POST /tasks/import": [lambda e: Call("POST", "/tasks/import", e.moved(), again=False)],
    "GET /requests/{request_id}": [
        _get(lambda e: f"/requests/{e.last}"),
        _get(lambda e: f"/requests/{e.paused}"),
    ],
    "GET /requests/{request_id}/prompt": [
        _get(lambda e: f"/requests/{e.last}/prompt"),
        _get(lambda e: f"/requests/{e.paused}/prompt", limit="1"),
    ],
    "GET /requests/{request_id}/approvals/{approval_id}": [
        _get(lambda e: f"/requests/{e.paused}/approvals/{e.approval}"),
        _get(lambda e: f"/requests/{e.asked}/approvals/{e.asked_approval}"),
    ],
    "GET /requests/{request_id}/events": [
        _get(lambda e: f"/requests/{e.last}/events"),
        _get(lambda e: f"/requests/{e.paused}/events", after="1"),
    ],
    "POST /requests/{request_id}/cancel": [
        _post(lambda e: f"/requests/{e.paused}/cancel"),
        _post(lambda e: f"/requests/{e.last}/cancel"),
    ],
}

# --- openai ------------------------------------------------------------------------------------------

_V1 = "/openai/v1"


def _approval(e: Estate) -> Json:
    answer = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{e.approval}_0", "approve": True}
    return {"input": [answer]}


def _output(e: Estate) -> Json:
    answer = {"type": "function_call_output", "call_id": f"call_{e.asked_approval}_0", "output": "x"}
    return {"input": [answer]}


def _with_reference(kind: str, e: Estate) -> Json:
    """A history that names what was said, or a call that waits, by its id alone."""
    asked: Json = {"type": "function_call_output", "call_id": f"call_{e.asked_approval}_0", "output": "x"}
    known = {"msg": (f"msg_{e.last}_1_0", []), "fc": (f"fc_{e.asked_approval}_0", [asked])}
    name, behind = known[kind]
    return {"input": [_ITEM, {"type": "item_reference", "id": name}, *behind, _ITEM]}


_RESPONSE = f"{_V1}/responses/{{response_id}}"
_CONVERSATION = f"{_V1}/conversations/{{conversation_id}}"
_CHAT = f"{_V1}/chat/completions"
_ITEM: Json = {"role": "user", "content": "hi"}


def _response(e: Estate) -> str:
    return f"{_V1}/responses/resp_{e.last}_1"


def _conversation(e: Estate) -> str:
    return f"{_V1}/conversations/conv_{e.task}"


OPENAI: dict[str, list[Recipe]] = {
    f"POST {_V1}/responses": [
        _with("POST", f"{_V1}/responses", body)
        for body in (
            lambda e: {"input": "hi", "previous_response_id": f"resp_{e.last}_1"},
            lambda e: {"input": "hi", "previous_response_id": f"resp_{e.first}_1", "stream": True},
            lambda e: {"input": "hi", "conversation": f"conv_{e.task}"},
            _approval,
            _output,
            partial(_with_reference, "msg"),
            partial(_with_reference, "fc"),
        )
    ],
    f"GET {_RESPONSE}": [_get(_response), _get(_response, stream="true")],
    f"DELETE {_RESPONSE}": [
        lambda e: Call("DELETE", f"{_V1}/responses/resp_{e.alone}_1", restore=e.put_alone_back, again=False)
    ],
    f"POST {_RESPONSE}/cancel": [_post(lambda e: f"{_V1}/responses/resp_{e.paused}_1/cancel")],
    f"GET {_RESPONSE}/input_items": [_get(lambda e: f"{_response(e)}/input_items")],
    f"GET {_CONVERSATION}": [_get(_conversation)],
    f"POST {_CONVERSATION}": [_post(_conversation, {"metadata": {"seen": "yes"}})],
    f"DELETE {_CONVERSATION}": [lambda e: Call("DELETE", _conversation(e), restore=e.put_back)],
    f"GET {_CONVERSATION}/items": [_get(lambda e: f"{_conversation(e)}/items")],
    f"POST {_CONVERSATION}/items": [_post(lambda e: f"{_conversation(e)}/items", {"items": [_ITEM]})],
    f"GET {_CONVERSATION}/items/{{item_id}}": [_get(lambda e: f"{_conversation(e)}/items/msg_{e.last}_1_0")],
    f"POST {_CHAT}": [
        lambda e: Call("POST", _CHAT, {"messages": [_ITEM]}, headers={"x-conversation-id": f"conv_{e.task}"}),
        _with(
            "POST",
            _CHAT,
            lambda e: {
                "messages": [{"role": "tool", "tool_call_id": f"call_{e.asked_approval}_0", "content": "x"}]
            },
        ),
    ],
}

# --- a2a ---------------------------------------------------------------------------------------------

_MESSAGES: list[Callable[[Estate], Json]] = [
    lambda e: message("hi", contextId=e.task),
    lambda e: decision({"id": e.paused}),
]
_METHODS: list[tuple[str, Callable[[Estate], Json], bool]] = [
    *(("SendMessage", lambda e, sent=sent: {"message": sent(e)}, False) for sent in _MESSAGES),
    *(("SendStreamingMessage", lambda e, sent=sent: {"message": sent(e)}, False) for sent in _MESSAGES),
    ("GetTask", lambda e: {"id": e.last}, False),
    ("CancelTask", lambda e: {"id": e.paused}, False),
    ("SubscribeToTask", lambda e: {"id": e.asked}, True),
]


def _rpc(path: str, method: str, params: Callable[[Estate], Json], endless: bool) -> Recipe:
    body: Json = {"jsonrpc": "2.0", "id": 1, "method": method}
    more: Json = {"headers": VERSION, "endless": endless, "again": method != "CancelTask"}
    return lambda e: Call("POST", path, {**body, "params": params(e)}, **more)


def _rest(method: str, path: Callable[[Estate], str], body: Callable[[Estate], Json] | None = None) -> Recipe:
    def made(e: Estate) -> Call:
        where = path(e)
        return Call(
            method,
            f"/a2a{where}",
            body(e) if body else None,
            headers=VERSION,
            endless=where.endswith(":subscribe"),
            again=not where.endswith(":cancel"),
        )

    return made


def _sent_to(path: str) -> list[Recipe]:
    return [
        _rest("POST", lambda _: path, partial(lambda sent, e: {"message": sent(e)}, sent))
        for sent in _MESSAGES
    ]


A2A: dict[str, list[Recipe]] = {
    **{f"POST {path}": [_rpc(path, *each) for each in _METHODS] for path in ("/a2a", "/a2a/")},
    "POST /a2a/message:send": _sent_to("/message:send"),
    "POST /a2a/message:stream": _sent_to("/message:stream"),
    "GET /a2a/tasks/{id}": [_rest("GET", lambda e: f"/tasks/{e.last}")],
    "POST /a2a/tasks/{id}:cancel": [_rest("POST", lambda e: f"/tasks/{e.paused}:cancel")],
    "POST /a2a/tasks/{id}:subscribe": [_rest("POST", lambda e: f"/tasks/{e.asked}:subscribe")],
    "GET /a2a/tasks/{id}:subscribe": [_rest("GET", lambda e: f"/tasks/{e.asked}:subscribe")],
}

# --- ag-ui and mcp -----------------------------------------------------------------------------------


def _resumed(e: Estate) -> Json:
    answer = {"interruptId": f"int_{e.approval}_0", "status": "resolved", "payload": APPROVE}
    return run_input(e.paused_task, resume=[answer])


def _returned(e: Estate) -> Json:
    shown = f"call_{e.asked}_{e.asked_call}"
    return run_input(e.asked_task, {"id": "t", "role": "tool", "toolCallId": shown, "content": "x"})


_RUNS: list[Callable[[Estate], Json]] = [
    lambda e: run_input(e.task),
    lambda e: run_input(e.task, user("and?")),
    _resumed,
    _returned,
]
AG_UI: dict[str, list[Recipe]] = {
    f"POST {path}": [_with("POST", path, body) for body in _RUNS] for path in ("/ag-ui", "/ag-ui/")
}


def _tool(path: str, name: str, arguments: Callable[[Estate], Json]) -> Recipe:
    def made(e: Estate) -> Call:
        body = modern("tools/call", {"name": name, "arguments": arguments(e)})
        return Call("POST", path, body, headers=headers_of(body))

    return made


def _decided(e: Estate) -> Json:
    return {"request_id": e.paused, "approval_id": e.approval, **APPROVE}


def _again(path: str, **answers: Json) -> Recipe:
    """The call that was asked about a decision, sent again: with these answers, or to be asked again."""

    def made(e: Estate) -> Call:
        sent = {"name": "ask", "arguments": {"message": "hi"}, "requestState": f"{e.paused}/{e.approval}"}
        body = modern("tools/call", sent | ({"inputResponses": answers} if answers else {}), elicits=True)
        return Call("POST", path, body, headers=headers_of(body))

    return made


MCP: dict[str, list[Recipe]] = {
    f"POST {path}": [
        _tool(path, "ask", lambda e: {"message": "hi", "conversation": e.task}),
        _tool(path, "decide", _decided),
        _again(path),
        _again(path, decision={"action": "accept", "content": APPROVE}),
        _again(path, decision={"action": "cancel"}),
    ]
    for path in ("/mcp", "/mcp/")
}

#: route → the calls of it that name something of the owner's
RECIPES = {**OWN, **OPENAI, **A2A, **AG_UI, **MCP}
