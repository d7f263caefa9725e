"""What is recorded of pauses: how they are shown, decided, superseded and left."""

from datetime import datetime
from typing import Any

from recorded_stage import (
    BACKGROUND,
    GOVERNED,
    LOOK,
    NOTHING,
    exchange,
    pause,
    scenario,
    text,
)

from tealagents.testing.waits import until

#: a second pause after the first
AGAIN = {
    "rules": [
        {
            "when": {"text": "then again", "tool_result": True, "result_text": "/x"},
            "reply": {
                "tool_calls": [{"id": "again", "name": "Shell-delete", "arguments": {"path": "/again"}}]
            },
        },
        {
            "when": {"text": "then no", "tool_result": True},
            "reply": {"text": "As you wish.", "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
        },
        {
            "when": {"text": "then fail", "tool_result": True},
            "reply": {"error": {"status": 400, "message": "no such luck"}},
        },
    ]
}
PEOPLE = {"provider": "mock", "options": {"approver_users": ["boss"], "auditor_users": ["eye"]}}


@scenario
def approvals() -> str:
    with exchange(AGAIN, auth=PEOPLE) as (at, _):
        at.note("approved")
        paused = pause(at, f"{LOOK} and {GOVERNED}")
        request, task = paused["request_id"], paused["task_id"]
        resume = f"/requests/{request}/resume"
        at.get("/approvals?status=pending")
        at.get(f"/requests/{request}")
        at.get(f"/requests/{request}/events")
        at.post(resume, json={"action": "approve", "reason": "why not"})
        at.post(resume, json={"action": "approve"})
        at.post(resume + "/sse", json={"action": "approve"})
        at.post(resume, json={"action": "reject"})
        at.post(f"{resume}?approval_id={paused['approval_id']}", json={"action": "reject"})
        at.get(f"/requests/{request}")
        at.get(f"/requests/{request}/events")
        at.get(f"/requests/{request}/events?after=4")
        at.get(f"/tasks/{task}/messages")
        at.get(f"/tasks/{task}/trace")
        at.get(f"/tasks/{task}/audit")
        at.get("/approvals")
        at.note("rejected, as a stream, at the older path")
        at.post("/sse", json=text(GOVERNED + " then no", task_id=task))
        request = at.quiet("/approvals?status=pending")["items"][0]["request_id"]
        at.post(
            f"/tealagents/v1alpha1/resume/{request}/sse",
            json={"action": "reject", "reason": "not on a Friday"},
        )
        at.get(f"/tasks/{task}/trace")
        request = pause(at, GOVERNED + " then no")["request_id"]
        at.post(f"/tealagents/v1alpha1/resume/{request}", json={"action": "reject"})
        at.note("edited, in part, in the background, as a stream")
        paused = pause(at, f'{GOVERNED} and call Shell-delete {{"path": "/z"}} then no')
        one, two = (call["id"] for call in paused["tool_calls"])
        edited = {"id": one, "action": "approve", "arguments": {"path": "/edited"}}
        target = f"/requests/{paused['request_id']}/resume"
        at.post(target, json={"decisions": [edited]})
        at.post(
            target, json={"decisions": [edited, {"id": two, "action": "reject"}], "reason": "one will do"}
        )
        request = pause(at)["request_id"]
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, headers=BACKGROUND)
        at.ended(request)
        request = pause(at)["request_id"]
        at.post(f"/requests/{request}/resume/sse", json={"action": "approve"})
        request = pause(at, GOVERNED + " then fail")["request_id"]
        at.post(f"/requests/{request}/resume", json={"action": "approve"})
        return at.text


@scenario
def pauses() -> str:
    with exchange(AGAIN, auth=PEOPLE) as (at, _):
        at.note("decisions that change nothing")
        paused = pause(at)
        request, call = paused["request_id"], paused["tool_calls"][0]["id"]
        resume = f"/requests/{request}/resume"
        decisions: tuple[Any, ...] = (
            {},
            {"action": "maybe"},
            {"action": "approve", "more": 1},
            {"action": "approve", "decisions": [{"id": "call_none", "action": "approve"}]},
            {"decisions": [{"id": call, "action": "approve"}, {"id": call, "action": "approve"}]},
            {"decisions": [{"id": call, "action": "reject", "arguments": {"path": "/"}}]},
            {"decisions": [{"id": call, "action": "approve", "arguments": {"path": 5}}]},
            {"action": "approve", "reason": "x" * 4001},
            [],
        )
        for decision in decisions:
            at.post(resume, json=decision, shown="(a long reason)" if "reason" in decision else None)
        at.post(resume)
        at.post(f"{resume}?approval_id={NOTHING}", json={"action": "approve"})
        at.post(f"{resume}?approval_id=x", json={"action": "approve"})
        at.post(f"/requests/{NOTHING}/resume", json={"action": "approve"})
        at.post("/requests/x/resume/sse", json={"action": "approve"})
        at.note("a task that waits")
        task = paused["task_id"]
        at.post("", json=text("and?", task_id=task))
        at.post("/sse", json=text("and?", task_id=task))
        at.post(f"/tasks/{task}/fork")
        at.post("", json=text("and?", task_id=task, supersede=True))
        at.get(f"/requests/{request}")
        at.post(resume, json={"action": "approve"})
        paused = pause(at, task_id=task)
        at.post(
            f"/tasks/{task}/rollback", json={"checkpoint_id": at.quiet(f"/tasks/{task}")["checkpoint_id"]}
        )
        at.post(f"/requests/{paused['request_id']}/cancel")
        at.post(f"/requests/{paused['request_id']}/cancel")
        at.get(f"/requests/{paused['request_id']}/events")
        at.post(f"/requests/{paused['request_id']}/resume/sse", json={"action": "approve"})
        at.get("/approvals?status=canceled")
        request = at.post("", json=text("hello")).json()["request_id"]
        at.post(f"/requests/{request}/resume", json={"action": "approve"})
        at.note("a second pause")
        first = pause(at, GOVERNED + " then again")
        resume = f"/requests/{first['request_id']}/resume"
        second = at.post(resume, json={"action": "approve"}).json()["content"]
        at.post(resume, json={"action": "approve"})
        at.post(f"{resume}?approval_id={first['approval_id']}", json={"action": "approve"})
        at.post(f"{resume}?approval_id={first['approval_id']}", json={"action": "reject"})
        at.get(f"/requests/{first['request_id']}/events")
        follow = at.begin("GET", f"/requests/{first['request_id']}/events?after=6")
        at.post(f"{resume}/sse?approval_id={second['approval_id']}", json={"action": "approve"})
        follow.result()
        first = pause(at, GOVERNED + " then again")
        resume = f"/requests/{first['request_id']}/resume"
        at.post(resume, json={"action": "approve"})
        at.post(resume, json={"decisions": [{"id": "again", "action": "reject"}]})
        return at.text


@scenario
def insight() -> str:
    with exchange(AGAIN, auth=PEOPLE) as (at, _):
        at.note("what a pause asks for")
        paused = pause(at, f"{LOOK} and {GOVERNED}", user_context={"city": "Oslo"})
        request, task = paused["request_id"], paused["task_id"]
        shown = f"/requests/{request}/approvals/{paused['approval_id']}"
        for user in ("ada", "boss", "eye", "eve"):
            at.get(shown, user=user)
        at.get(f"/requests/{request}/approvals/{NOTHING}")
        at.get(f"/requests/{NOTHING}/approvals/{paused['approval_id']}")
        at.get(f"/requests/{request}/approvals/x")
        at.note("what the model was sent")
        at.post(f"/requests/{request}/resume", json={"action": "approve"})
        first = at.quiet(f"/tasks/{task}/trace")["items"][0]["step_id"]
        at.get(f"/requests/{request}/prompt")
        at.get(f"/requests/{request}/prompt?step_id={first}&limit=1")
        at.get(f"/requests/{request}/prompt?step_id={first}&limit=1&cursor=1", user="eye")
        for query in (f"?step_id={NOTHING}", "?step_id=x", "?cursor=x"):
            at.get(f"/requests/{request}/prompt{query}")
        for user in ("boss", "eve"):
            at.get(f"/requests/{request}/prompt", user=user)
        at.note("the tree of checkpoints")
        at.post("", json=text("and now?", task_id=task))
        at.get(f"/tasks/{task}/checkpoints?parents=true")
        at.get(f"/tasks/{task}/checkpoints?parents=perhaps")
        at.note("who is asking, and the tasks of the tenant")
        for user in ("ada", "boss", "eye"):
            at.get("/me", user=user)
        at.post("", json=text("hello", metadata={"team": "north"}), user="eve")
        at.get("/tenant/tasks", user="eye")
        at.get("/tenant/tasks?metadata=team:north", user="eye")
        at.get("/tenant/tasks?oid=ada&status=Completed", user="eye")
        for query in ("cursor=x", "metadata=team", "status=Done"):
            at.get(f"/tenant/tasks?{query}", user="eye")
        at.get("/tenant/tasks")
        at.get("/tenant/tasks", user="boss")
        return at.text


@scenario
def approvers() -> str:
    with exchange(AGAIN, auth=PEOPLE) as (at, _):
        paused = pause(at)
        request, task = paused["request_id"], paused["task_id"]
        at.note("the approver")
        at.get("/approvals?status=pending", user="boss")
        at.get("/approvals", user="eve")
        for path in (
            f"/requests/{request}",
            f"/requests/{request}/events",
            f"/tasks/{task}",
            f"/tasks/{task}/messages",
        ):
            at.get(path, user="boss")
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, user="eve")
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, user="boss")
        at.get(f"/tasks/{task}/trace")
        request = pause(at)["request_id"]
        at.post(f"/requests/{request}/resume/sse", json={"action": "reject", "reason": "no"}, user="boss")
        request = pause(at)["request_id"]
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, user="boss", headers=BACKGROUND)
        at.ended(request)
        for way in ("", "/sse"):
            request = pause(at, GOVERNED + " then fail")["request_id"]
            at.post(f"/requests/{request}/resume{way}", json={"action": "approve"}, user="boss")
        request = pause(at, GOVERNED + " then again")["request_id"]
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, user="boss")
        page = at.get("/approvals?limit=2", user="boss").json()
        at.get(f"/approvals?limit=2&cursor={page['next_cursor']}", user="boss")
        at.get(f"/approvals?limit=2&cursor={page['next_cursor']}")
        at.note("the auditor reads everything and changes nothing")
        for path in (
            *(
                "/tasks",
                "/sessions",
                "/approvals",
                f"/tasks/{task}",
                f"/tasks/{task}/messages",
                f"/tasks/{task}/audit",
            ),
            *(f"/tasks/{task}/export", f"/requests/{request}", f"/requests/{request}/events"),
            *(f"/sessions/{paused['session_id']}", f"/tasks?session_id={paused['session_id']}"),
        ):
            at.get(path, user="eye", only_head=path.endswith("export"))
        at.call("PATCH", f"/tasks/{task}", json={"metadata": {}}, user="eye")
        at.call("DELETE", f"/tasks/{task}", user="eye")
        at.post(f"/tasks/{task}/fork", user="eye")
        at.post(f"/requests/{request}/cancel", user="eye")
        at.post(f"/requests/{request}/resume", json={"action": "approve"}, user="eye")
        at.post("", json=text("hello", task_id=task), user="eye")
        return at.text


@scenario
def expired_approvals() -> str:
    with exchange(limits={"approval_expiry_seconds": 0.3}) as (at, _):
        paused = pause(at)
        expires = datetime.fromisoformat(paused["expires_at"])
        until(lambda: datetime.now(expires.tzinfo) > expires)
        at.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"})
        at.get(f"/requests/{paused['request_id']}")
        at.get(f"/requests/{paused['request_id']}/events")
        at.get("/approvals")
        at.post("", json=text("go on", task_id=paused["task_id"]))
        return at.text
