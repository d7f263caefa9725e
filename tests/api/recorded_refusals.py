"""What is recorded of refusals, and of what a message meets that is not alone."""

from typing import Any

from recorded_stage import (
    BACKGROUND,
    LONG,
    NOTHING,
    cancel,
    exchange,
    ids,
    pause,
    scenario,
    text,
)
from recorder import Recording

from tealagents.testing.waits import until

#: where clients look for the authority of a service (RFC 9728)
WELL_KNOWN = "/.well-known/oauth-protected-resource"


@scenario
def refusals() -> str:
    with exchange(limits={"max_body_bytes": 2000, "max_items": 2}) as (at, _):
        at.note("who is asking")
        at.get("/tasks", user=None)
        for given in ("Basic YTpi", "Bearer", "Bearer a b", "Bearer " + "x" * 201):
            at.get("/tasks", user=None, headers={"authorization": given})
        at.get("/tasks", user="ada", headers={"authorization": "Bearer eve"})
        at.post("", user=None, json={})
        at.get("/tasks?limit=x", user=None)
        at.note("what is not there")
        at.get("/nowhere")
        at.get("/nowhere", user=None)
        at.get("/tasks/")
        at.get("/", at_root=True, user=None)
        at.get("/Recorded/0.1/tasks", at_root=True)
        for path in ("tasks", "sessions", "requests"):
            at.get(f"/{path}/{NOTHING}")
            at.get(f"/{path}/{NOTHING.upper()}")
            at.get(f"/{path}/x")
            at.call("PUT", f"/{path}/{NOTHING}")
        at.call("DELETE", "")
        at.call("PUT", "/tasks")
        at.call("GET", f"/requests/{NOTHING}/resume")
        at.note("queries")
        for query in ("limit=0", "limit=201", "limit=x", "cursor=x", "status=Done", "session_id=x"):
            at.get(f"/tasks?{query}")
        at.get(f"/tasks?session_id={NOTHING}")
        at.get("/approvals?status=x")
        at.note("bodies")
        for body in BODIES:
            at.post("", json=body)
        for sent in (
            b"{",
            b"",
            b"[]",
            b'"text"',
            b'{"items": "\xff"}',
            b'{"items": NaN}',
            b"[" * 70 + b"]" * 70,
        ):
            at.post("", content=sent, headers={"content-type": "application/json"})
        deep = b"[" * 70 + b"]" * 70
        at.post("", content=deep, headers={"content-type": "application/json"}, shown="(70 nested arrays)")
        hello = b'{"items":[{"content_type":"text","content":"hello"}]}'
        at.post("", content=hello, headers={"content-type": "application/vnd.me+json; charset=utf-8"})
        at.post("", content=hello, headers={"content-type": "text/plain"})
        at.post("", content=hello)
        at.post("", content=hello, headers={"content-type": "application/json", "content-encoding": "gzip"})
        at.post("", json=text("x" * 2000), shown="(2,000 characters of text)")
        at.post("/sse", json=text("x" * 2000), shown="(2,000 characters of text)")
        huge = b"GET " + at.service.prefix.encode() + b"/tasks HTTP/1.1\r\nhost: x\r\nx: "
        at.raw(huge + b"x" * 70_000 + b"\r\n\r\n", "a header of 70,000 bytes")
        at.raw(b"HELLO\r\n\r\n", "HELLO")
        return at.text


#: bodies of a message that are refused, and why they might have been sent
BODIES: tuple[Any, ...] = (
    {},
    {"items": []},
    {"items": "hello"},
    {"items": [{"content_type": "audio", "content": "x"}]},
    {"items": [{"content_type": "text"}]},
    {"items": [{"content_type": "text", "content": ""}]},
    {"items": [{"content_type": "image", "content": "https://example.net/x.png"}]},
    {"items": [{"content_type": "image", "content": "data:image/png;base64,?"}]},
    {"items": text("a")["items"] * 3},
    text("a", chat_history=[]),
    text("a", session_id="x", task_id=5),
    text("a", session_id="00000000-0000-0000-0000-000000000000"),
    text("a", user_context={"a": 1}),
    text("a", metadata=[]),
    text("a", metadata={"n": 2**70}),
    text("a\0"),
    text("a", supersede="yes"),
    text("a", task_id=NOTHING),
)


@scenario
def ownership() -> str:
    with exchange() as (at, _):
        session, task, request = ids(at.post("", json=text("hello")).json())
        document = at.quiet(f"/tasks/{task}/export")
        mine = at.post("", json=text("hello"), user="eve").json()
        at.note("everything of another user")
        at.post("", json=text("and?", task_id=task), user="eve")
        at.post("/sse", json=text("and?", task_id=task), user="eve")
        at.post("", json=text("and?", session_id=session), user="eve")
        for path in (
            *(f"/sessions/{session}", f"/tasks?session_id={session}", f"/tasks/{task}"),
            *(f"/tasks/{task}/{view}" for view in ("messages", "trace", "checkpoints", "audit", "export")),
            *(f"/requests/{request}", f"/requests/{request}/events"),
        ):
            at.get(path, user="eve")
        at.call("PATCH", f"/tasks/{task}", json={"metadata": {}}, user="eve")
        at.call("DELETE", f"/tasks/{task}", user="eve")
        at.call("DELETE", f"/sessions/{session}", user="eve")
        at.post(f"/tasks/{task}/rollback", json={"checkpoint_id": request}, user="eve")
        at.post(f"/tasks/{task}/fork", user="eve")
        at.post(f"/requests/{request}/cancel", user="eve")
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, user="eve")
        at.post(f"/requests/{request}/resume/sse", json={"action": "approve"}, user="eve")
        at.post("/tasks/import", json=document, shown="(the exported document)", user="eve")
        at.note("session and task that do not belong together")
        at.post("", json=text("x", session_id=mine["session_id"], task_id=mine["request_id"]), user="eve")
        other = at.quiet("/tasks", "eve")["items"][0]["task_id"]
        at.post("", json=text("x", session_id=NOTHING, task_id=other), user="eve")
        return at.text


@scenario
def limits() -> str:
    with exchange(limits={"max_requests_per_user": 1, "max_concurrent_requests": 2}) as (at, _):
        at.note("of one user")
        paused = pause(at)["request_id"]
        ada = at.post("", json=text(LONG), headers=BACKGROUND).json()
        at.post("", json=text("hello"))
        at.post("/sse", json=text("hello"))
        at.post(f"/requests/{paused}/resume", json={"action": "approve"})
        at.note("of the process")
        eve = at.post("", json=text(LONG), headers=BACKGROUND, user="eve").json()
        at.post("", json=text("hello"), user="zoe")
        at.post("", json=text("hello"), user="zoe", headers=BACKGROUND)
        at.get("/tasks", user="zoe")
        for user, request in (("ada", ada), ("eve", eve)):
            cancel(at, request["request_id"], user)
        at.post("", json=text("hello"), user="zoe")
        return at.text


# --- one writer per task --------------------------------------------------------------------------


def long_request(at: Recording, task: str) -> str:
    """A request that runs, and has called its tool."""
    request: str = at.post("", json=text(LONG, task_id=task), headers=BACKGROUND).json()["request_id"]
    at.calls_tool(request)
    return request


@scenario
def busy() -> str:
    with exchange(CALM) as (at, _):
        session, task, one = ids(at.post("", json=text("hello")).json())
        request = long_request(at, task)
        at.post("", json=text("and?", task_id=task))
        at.post("/sse", json=text("and?", task_id=task))
        at.post("", json=text("and?", task_id=task), headers=BACKGROUND)
        at.post(f"/tasks/{task}/rollback", json={"checkpoint_id": one})
        at.call("DELETE", f"/tasks/{task}")
        at.call("DELETE", f"/sessions/{session}")
        at.get(f"/tasks/{task}")
        at.get(f"/requests/{request}")
        at.get(f"/tasks/{task}/export")
        following = at.begin("GET", f"/requests/{request}/events")
        at.post(f"/requests/{request}/cancel")
        following.result()
        at.post(f"/requests/{request}/cancel")
        at.get(f"/tasks/{task}/messages")
        at.get(f"/tasks/{task}/trace")
        at.post("", json=text("what now?", task_id=task))
        at.note("canceled while its sender waits")
        for way in ("", "/sse"):
            waiting = at.begin("POST", way, json=text(LONG))
            request = at.running()
            at.calls_tool(request)
            cancel(at, request)
            waiting.result()
        return at.text


@scenario
def queued() -> str:
    limits = {"max_queued_requests": 2, "keepalive_seconds": 0.2, "max_concurrent_requests": 9}
    with exchange(concurrency="enqueue", limits=limits) as (at, _):
        task = at.post("", json=text("hello")).json()["task_id"]
        request = long_request(at, task)
        second = at.post("", json=text("second", task_id=task), headers=BACKGROUND).json()["request_id"]
        third = at.begin("POST", "/sse", json=text("third", task_id=task))
        until(lambda: len(at.quiet(f"/tasks/{task}")["queued"]) == 2)
        at.get(f"/tasks/{task}")
        at.get(f"/requests/{second}")
        at.post("", json=text("fourth", task_id=task))
        following = at.begin("GET", f"/requests/{second}/events")
        at.post(f"/requests/{second}/cancel")
        following.result()
        at.kept_alive(third)
        cancel(at, request)
        third.result()
        at.get(f"/tasks/{task}/messages")
        at.get(f"/requests/{second}")
        return at.text


#: answers whose pieces and counts do not depend on what the service itself sends to the model
CALM = {
    "rules": [
        {
            "when": "what now",
            "reply": {"text": "Now this.", "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        }
    ]
}


def replaced(concurrency: str) -> str:
    with exchange(CALM, concurrency=concurrency) as (at, _):
        task = at.post("", json=text("hello")).json()["task_id"]
        for way in ("", "/sse"):
            waiting = at.begin("POST", way, json=text(LONG, task_id=task))
            request = at.running()
            at.calls_tool(request)
            at.post("", json=text("what now?", task_id=task))
            waiting.result()
            at.get(f"/requests/{request}")
        at.get(f"/tasks/{task}/messages")
        at.get(f"/tasks/{task}/checkpoints")
        at.get(f"/tasks/{task}/audit")
        return at.text


@scenario
def interrupt() -> str:
    return replaced("interrupt")


@scenario
def rollback() -> str:
    return replaced("rollback")
