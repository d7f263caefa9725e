"""What is recorded of messages and of what is kept of them: every way to an answer, every view."""

from recorded_stage import (
    BACKGROUND,
    EVENTS,
    GOVERNED,
    LONG,
    LOOK,
    NOTHING,
    PIXEL,
    cancel,
    exchange,
    ids,
    key,
    scenario,
    text,
)


@scenario
def messages() -> str:
    with exchange() as (at, _):
        at.note("JSON")
        own = {"session_id": "0b6c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"}
        context = {
            "user_context": {"timezone": "UTC"},
            "metadata": {"channel": "web", "tags": ["a", 1, 2.5, None]},
        }
        first = at.post("", json=text("My name is Ada.", **own, **context)).json()
        session, task, _ = ids(first)
        at.post("", json=text("What is my name?", task_id=task, session_id=session.upper()))
        at.post("/", json=text('Grüße, 日本 "quoted" \\ \u2028 ✓', task_id=task))
        at.post(
            "", json={"items": [*text("What is this?")["items"], {"content_type": "image", "content": PIXEL}]}
        )
        at.post("", json=text(LOOK))
        at.note("streams")
        at.post("/sse", json=text("pieces-3", task_id=task))
        at.post("", json=text(LOOK, task_id=task), headers=EVENTS)
        at.post("", json=text('call Shell-look {"path": "/nowhere"}'), headers=EVENTS)
        at.post("", json=text("hello"), headers={"accept": "application/json, text/event-stream;q=0.9"})
        at.post("", json=text("hello"), headers={"accept": "application/json;q=0.9, text/event-stream"})
        at.post("", json=text("hello"), headers={"accept": "*/*, text/event-stream"})
        at.post("/sse", json=text("hello"), headers=BACKGROUND)
        at.note("background")
        request = at.post("", json=text("hello", task_id=task), headers=BACKGROUND).json()["request_id"]
        at.ended(request)
        at.get(f"/requests/{request}")
        at.get(f"/requests/{request}/events")
        request = at.post("", json=text("hello"), headers={"prefer": "wait=5, respond-async"}).json()[
            "request_id"
        ]
        at.ended(request)
        return at.text


@scenario
def idempotency() -> str:
    script = {"rules": [{"when": "fail", "reply": {"error": {"status": 400, "message": "no such luck"}}}]}
    with exchange(script) as (at, _):
        body = text("hello", metadata={"n": 1})
        task = at.post("", json=body, headers=key("one")).json()["task_id"]
        at.post("", json={"metadata": {"n": 1.0}, "items": body["items"]}, headers=key("one"))
        at.post("", json=body, headers={**key("one"), **EVENTS})
        at.post("/sse", json=body, headers=key("one"))
        at.post("", json=body, headers={**key("one"), **BACKGROUND})
        at.post("", json=text("other"), headers=key("one"))
        at.post("", json=body, headers=key("one"), user="eve")
        at.note("outcomes other than completed")
        at.post("", json=text("fail"), headers=key("failed"))
        at.post("", json=text("fail"), headers=key("failed"))
        at.post("/sse", json=text("fail"), headers=key("failed"))
        request = at.post("", json=text(GOVERNED), headers=key("paused")).json()["request_id"]
        at.post("", json=text(GOVERNED), headers=key("paused"))
        at.post(f"/requests/{request}/resume", json={"action": "approve"})
        at.post("", json=text(GOVERNED), headers=key("paused"))
        at.note("while the first runs")
        request = at.post("", json=text(LONG), headers={**key("long"), **BACKGROUND}).json()["request_id"]
        at.post("", json=text(LONG), headers=key("long"))
        at.post("/sse", json=text(LONG), headers=key("long"))
        at.post("", json=text(LONG), headers={**key("long"), **BACKGROUND})
        at.post("", json=text("other"), headers=key("long"))
        cancel(at, request)
        at.post("", json=text(LONG), headers=key("long"))
        at.note("refusals use no key up; deleted tasks keep theirs")
        at.post("", json=text("hello", task_id=NOTHING), headers=key("two"))
        at.post("", json=text("hello"), headers=key("two"))
        at.call("DELETE", f"/tasks/{task}")
        at.post("", json=body, headers=key("one"))
        at.post("", json=body, headers=key("x" * 256))
        at.post("", json=body, headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
        return at.text


@scenario
def reading() -> str:
    with exchange() as (at, _):
        first = at.post("", json=text("My name is Ada.", metadata={"a": 1})).json()
        session, task, one = ids(first)
        two = at.post("", json=text(LOOK, task_id=task)).json()["request_id"]
        second = at.post("", json=text("hello", session_id=session)).json()["task_id"]
        other = at.post("", json=text(GOVERNED)).json()
        at.note("lists and documents")
        at.get("/sessions")
        page = at.get("/sessions?limit=1").json()
        at.get(f"/sessions?limit=1&cursor={page['next_cursor']}")
        at.get(f"/sessions/{session}")
        at.get("/tasks")
        page = at.get("/tasks?limit=2").json()
        at.get(f"/tasks?limit=2&cursor={page['next_cursor']}")
        at.get(f"/tasks?session_id={session}&status=Completed&unknown=1")
        at.get("/tasks?status=Paused")
        at.get("/tasks?status=Failed")
        at.get(f"/tasks/{task}")
        at.get(f"/tasks/{other['task_id']}")
        at.get(f"/requests/{two}")
        at.get(f"/requests/{other['request_id']}")
        at.note("views of a task")
        at.get(f"/tasks/{task}/messages")
        page = at.get(f"/tasks/{task}/messages?limit=3").json()
        at.get(f"/tasks/{task}/messages?limit=3&cursor={page['next_cursor']}")
        at.get(f"/tasks/{task}/messages?checkpoint_id={one}")
        for view in ("trace", "checkpoints", "audit"):
            at.get(f"/tasks/{task}/{view}")
            page = at.get(f"/tasks/{task}/{view}?limit=1").json()
            at.get(f"/tasks/{task}/{view}?limit=200&cursor={page['next_cursor']}")
        at.note("events")
        events = f"/requests/{two}/events"
        at.get(events)
        at.get(f"{events}?after=2")
        at.get(f"{events}?after=1", headers={"last-event-id": "4"})
        at.get(f"{events}?after=99999999999999999999")
        at.get(events, headers={"last-event-id": "last"})
        at.get(f"{events}?after=-1")
        at.get(f"/requests/{other['request_id']}/events")
        at.note("changing")
        at.call("PATCH", f"/tasks/{task}", json={"metadata": {"a": None, "b": {"c": 1}}})
        at.call(
            "PATCH",
            f"/tasks/{task}",
            json={"metadata": {"b": {"d": 2}}, "expires_at": "2090-01-01T00:00:00+01:00"},
        )
        at.call("PATCH", f"/tasks/{task}", json={"metadata": None, "expires_at": None})
        at.call("PATCH", f"/tasks/{task}", json={})
        at.call("PATCH", f"/tasks/{task}", json={"expires_at": 5, "status": "Failed"})
        at.call("PATCH", f"/tasks/{second}", json={"expires_at": "2020-01-01T00:00:00Z"})
        at.get(f"/tasks/{second}")
        at.get(f"/tasks?session_id={session}")
        at.note("deleting")
        at.call("DELETE", f"/tasks/{task}")
        at.get(f"/tasks/{task}")
        at.get(f"/requests/{one}")
        at.get(f"/requests/{one}/events")
        at.call("DELETE", f"/tasks/{task}")
        at.call("DELETE", f"/sessions/{other['session_id']}")
        at.get(f"/sessions/{other['session_id']}")
        at.get(f"/tasks/{other['task_id']}")
        at.get("/sessions")
        return at.text


@scenario
def time_travel() -> str:
    with exchange() as (at, _):
        first = at.post("", json=text("My name is Ada.", metadata={"a": 1})).json()
        _, task, one = ids(first)
        two = at.post("", json=text("My name is Bea.", task_id=task)).json()["request_id"]
        tool = at.post("", json=text(LOOK, task_id=task)).json()["request_id"]
        at.note("rollback")
        back = f"/tasks/{task}/rollback"
        at.post(back, json={"checkpoint_id": one})
        at.post("", json=text("What is my name?", task_id=task))
        at.get(f"/tasks/{task}/checkpoints")
        at.get(f"/tasks/{task}/messages")
        at.get(f"/tasks/{task}/messages?checkpoint_id={two}")
        at.post(back, json={"checkpoint_id": tool})
        at.post(back, json={"checkpoint_id": NOTHING})
        at.post(back, json={})
        at.post(f"/tasks/{NOTHING}/rollback", json={"checkpoint_id": one})
        at.note("fork")
        fork = f"/tasks/{task}/fork"
        shown = at.get(f"/tasks/{task}/messages").json()["items"]
        whole = at.post(fork).json()["task_id"]
        at.get(f"/tasks/{whole}/messages")
        at.get(f"/tasks/{whole}/trace")
        at.get(f"/tasks/{whole}/audit")
        at.post(fork, json={})
        at.post(fork, json={"checkpoint_id": one})
        at.post(fork, json={"message_id": shown[2]["message_id"]})
        call = next(message for message in shown if message["tool_calls"])
        at.post(fork, json={"message_id": call["message_id"]})
        at.post(fork, json={"message_id": shown[0]["message_id"], "checkpoint_id": one})
        at.post(fork, json={"message_id": NOTHING})
        at.post("", json=text("What is my name?", task_id=whole))
        at.note("export and import")
        document = at.get(f"/tasks/{task}/export", only_head=True).json()
        shown_document = "(the exported document)"
        at.post("/tasks/import", json=document, shown=shown_document)
        at.post("/tasks/import", json=document, shown=shown_document, user="eve")
        at.call("DELETE", f"/tasks/{task}")
        at.post("/tasks/import", json=document, shown=shown_document, user="eve")
        at.post("/tasks/import", json=document, shown=shown_document)
        at.get(f"/tasks/{task}/messages")
        at.get(f"/tasks/{task}/trace")
        at.get(f"/tasks/{task}/audit")
        at.get(f"/requests/{tool}")
        at.post("", json=text("What is my name?", task_id=task))
        at.post("/tasks/import", json={})
        at.get("/tasks/import")
        paused = at.post("", json=text(GOVERNED)).json()["task_id"]
        at.get(f"/tasks/{paused}/export")
        return at.text
