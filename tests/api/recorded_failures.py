"""What is recorded of failures, and of services of other kinds: stores, authorities, drains, browsers."""

import json

import httpx
from oauth_setup import Provider, protected
from recorded_stage import (
    GOVERNED,
    LONG,
    LOOK,
    NOTHING,
    config,
    environment,
    exchange,
    ids,
    pause,
    scenario,
    text,
)
from recorded_store import TroubledStore
from recorder import Recording

from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import OTHER_TENANT, LocalAuthority
from tealagents.testing.servers import free_port
from tealagents.testing.service import ServiceProcess, ServiceThread
from tealagents.testing.waits import until

#: where clients look for the authority of a service (RFC 9728)
WELL_KNOWN = "/.well-known/oauth-protected-resource"


FAILING = """
rules:
  - {when: refuse, reply: {error: {status: 400, message: no such luck}}}
  - {when: break, reply: {text: one two three, fault: {kind: error, after_pieces: 2, message: it broke}}}
  - {when: decline, reply: {refusal: I would rather not.}}
  - {when: unsafe, reply: {text: What you want is, finish_reason: content_filter}}
  - {when: long, reply: {text: Once upon a time, finish_reason: length}}
  - {when: {text: for ever}, reply: {tool_calls: [{name: Shell-look, arguments: {path: /x}}]}}
  - when: {text: for ever, tool_result: true}
    reply: {tool_calls: [{name: Shell-look, arguments: {path: /x}}]}
  - when: {regex: unknown tool|broken call, tool_result: true}
    reply: {text: No., usage: {prompt_tokens: 1, completion_tokens: 1}}
  - {when: {text: unknown tool}, reply: {tool_calls: [{id: call_1, name: Shell-dance, arguments: {}}]}}
  - {when: {text: broken call}, reply: {tool_calls: [{id: call_1, name: Shell-look, arguments: '{"path": '}]}}
"""


@scenario
def failures() -> str:
    with exchange(FAILING, limits={"max_tool_rounds": 2}) as (at, _):
        task = at.post("", json=text("refuse this")).json()["task_id"]
        at.get(f"/tasks/{task}")
        at.get(f"/tasks/{task}/messages")
        at.get(f"/tasks/{task}/trace")
        at.get(f"/tasks/{task}/audit")
        at.post("", json=text("hello", task_id=task))
        for words in (
            "break",
            "for ever",
            "refuse",
            "decline",
            "unsafe",
            "long",
            "unknown tool",
            "broken call",
        ):
            at.post("", json=text(words))
            at.post("/sse", json=text(words))
        newest = at.quiet("/tasks")["items"]
        failed = next(each["task_id"] for each in newest if each["status"] == "Failed")
        request = at.quiet(f"/tasks/{failed}/messages")["items"][-1]["request_id"]
        at.get(f"/requests/{request}")
        at.get(f"/requests/{request}/events")
        at.get(f"/tasks/{failed}/trace")
        return at.text


HANGING = {
    "rules": [{"when": "hang", "reply": {"pieces": ["one", " two", {"text": " end", "delay_ms": 60_000}]}}]
}


LIMITS = ("piece_timeout_seconds", "model_timeout_seconds", "request_timeout_seconds")


@scenario
def timeouts() -> str:
    parts = []
    for limit in LIMITS:
        # which is the limit of an answer that is not streamed, too
        whole = {"first_piece_timeout_seconds": 30} if limit == "piece_timeout_seconds" else {}
        limits = {**dict.fromkeys(LIMITS, 3000), limit: 30, **whole}
        with exchange(HANGING, wiring={"moved": True}, limits=limits) as (at, model):
            assert isinstance(at.service, ServiceThread)
            at.note(limit)
            waiting = [at.begin("POST", "", json=text("hang"))]
            until(lambda: model.requests)
            waiting.append(at.begin("POST", "/sse", json=text("hang")))
            until(lambda: len(at.quiet("/tasks")["items"]) == 2)
            [message, *_] = at.quiet(f"/tasks/{at.quiet('/tasks')['items'][0]['task_id']}/messages")["items"]
            at.quietly_until(message["request_id"], "3")  # both pieces have come
            for each in waiting:
                while not each.answered(0.01):  # a limit may begin to count after the model was asked
                    at.service.advance(31)
                each.result()
            parts.append(at.text)
    return "\n".join(parts)


@scenario
def remote() -> str:
    port = free_port()
    env = {"TA_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    with exchange(env=env, thread={"kind": "remote"}) as (at, _):
        with OfflineModel(port=port):
            task = at.post("", json=text("My name is Ada.")).json()["task_id"]
            at.post("/sse", json=text("What is my name?", task_id=task))
            at.post("", json=text(LOOK, task_id=task))
            at.post(f"/tasks/{task}/fork")
            at.get(f"/tasks/{task}/trace")
        with OfflineModel(port=port):
            at.post("", json=text("What is my name?", task_id=task))
            at.post("/sse", json=text("What is my name?", task_id=task))
        return at.text


@scenario
def stores() -> str:
    with exchange(persistence="recorded_store:TroubledStore") as (at, _):
        at.note("a store that is away")
        done = at.post("", json=text("hello")).json()
        session, task, request = ids(done)
        with TroubledStore.gone():
            for path in ("/tasks", "/sessions", "/approvals", f"/tasks/{task}", f"/requests/{request}"):
                at.get(path)
            at.post("", json=text("and?", task_id=task))
            at.post("/sse", json=text("hello"))
            at.get("/health", user=None)
            at.get("/health/ready", user=None)
            at.get("/health/live", user=None)
        at.get("/health/ready", user=None, only_head=True)
        at.note("a damaged record")
        with TroubledStore.damaged(task):
            at.get("/tasks")
            at.get(f"/sessions/{session}")
            at.get(f"/tasks/{task}")
            at.post("", json=text("and?", task_id=task))
        with TroubledStore.damaged(session):
            at.get("/sessions")
        with TroubledStore.damaged(request):
            at.get(f"/requests/{request}")
        return at.text


@scenario
def draining() -> str:
    with (
        OfflineModel() as model,
        ServiceProcess(config(limits={"drain_seconds": 600}), environment(model)) as service,
    ):
        at = Recording(service)
        task = at.post("", json=text("hello")).json()["task_id"]
        paused = pause(at)["request_id"]
        first = at.begin("POST", "", json=text(LONG))
        one = at.running()
        second = at.begin("POST", "/sse", json=text(LONG))
        at.calls_tool(one)
        at.calls_tool(at.running(besides=(one,)))
        service.process.terminate()
        until(lambda: at.quiet("/health")["status"] == "draining")
        at.post("", json=text("hello", task_id=task))
        at.post("/sse", json=text("hello"))
        at.post(f"/requests/{paused}/resume", json={"action": "approve"})
        at.get(f"/tasks/{task}")
        at.get("/health/ready", user=None)
        at.get("/health/live", user=None)
        service.process.terminate()  # a second time: it waits no longer
        first.result()
        second.result()
        assert service.process.wait(60) == 0
        at.close()
        return at.text


# --- who may call ---------------------------------------------------------------------------------


@scenario
def authority() -> str:
    with LocalAuthority() as issuer:
        env = issuer.environment(TA_ENTRA_APPROVER_ROLE="Approver", TA_ENTRA_AUDITOR_ROLE="Auditor")
        tokens = {
            "ada": issuer.token("ada"),
            "boss": issuer.token("boss", roles=["Approver"]),
            "eye": issuer.token("eye", roles=["Auditor"]),
            "elsewhere": issuer.token("ada", tid=OTHER_TENANT),
            "unscoped": issuer.token("ada", scopes=["other"]),
            "expired": issuer.token("ada", lifetime=-3600),
            "identity": issuer.id_token("ada"),
            "application": issuer.app_token(),
            "forged": issuer.token("ada")[:-8] + "AAAAAAAA",
        }
        with exchange(env=env) as (at, _):
            for name, token in tokens.items():
                at.masks.hide(token, f"token: {name}")
            for name in (WELL_KNOWN, WELL_KNOWN + at.service.prefix, WELL_KNOWN + "/elsewhere"):
                at.get(name, user=None, at_root=True)
            at.get("/tasks", user=None)
            at.get("/tasks", user="no-token")
            for name in ("elsewhere", "unscoped", "expired", "identity", "application", "forged"):
                at.get("/tasks", user=tokens[name])
            paused = at.post("", json=text(GOVERNED), user=tokens["ada"]).json()
            request, task = paused["request_id"], paused["task_id"]
            at.get(f"/tasks/{task}", user=tokens["boss"])
            at.get(f"/tasks/{task}", user=tokens["eye"])
            at.get("/approvals", user=tokens["boss"])
            at.post(f"/requests/{request}/resume", json={"action": "approve"}, user=tokens["boss"])
            at.get(f"/tasks/{task}/audit", user=tokens["ada"])
            known = at.text
        issuer.behave("down")
        with exchange(env=env) as (at, _):
            at.masks.hide(tokens["ada"], "token: ada")
            at.note("an authority that is down")
            at.get("/tasks", user=tokens["ada"])
            at.post("", json=text("hello"), user=tokens["ada"])
            at.get("/health/live", user=None)
            return known + "\n" + at.text


CONNECTED = """
rules:
  - {when: {result_of: secure-connect}, reply: {text: Done., usage: {prompt_tokens: 1, completion_tokens: 1}}}
  - {when: {result_of: secure-whoami}, reply: {text: Asked., usage: {prompt_tokens: 1, completion_tokens: 1}}}
"""


@scenario
def consent() -> str:
    provider = Provider()
    port = free_port()
    with protected(provider) as url:
        server = {"name": "secure", "url": url, "trust_level": "trusted"}
        env = {"TA_PUBLIC_URL": f"http://127.0.0.1:{port}", "TA_PLUGIN_CATALOG_FILE": ""}
        with exchange(CONNECTED, env, wiring={"port": port}, agent={"mcp_servers": [server]}) as (at, _):
            paused = pause(at, "call secure-connect {}")
            at.get("/approvals")
            (authorization,) = paused["authorizations"]
            provider.user = "Ada"
            back = httpx.URL(httpx.get(authorization["url"]).headers["location"])
            callback = "/oauth/callback?" + back.query.decode()
            at.get(callback, user=None)
            at.get(callback, user=None)
            at.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"})
            at.post("", json=text("call secure-whoami {}", task_id=paused["task_id"]))
            at.note("what leads nowhere")
            at.get("/oauth/callback", user=None)
            at.get("/oauth/callback?error=access_denied&state=forged", user=None)
            at.note("a user who declines")
            paused = at.post("", json=text("call secure-connect {}"), user="eve").json()["content"]
            state = httpx.URL(paused["authorizations"][0]["url"]).params["state"]
            at.get(f"/oauth/callback?error=access_denied&state={state}", user=None)
            return at.text


# --- what describes the service -------------------------------------------------------------------


#: members of the OpenAPI document that may be worded anew
DESCRIPTIONS = ("description", "summary", "detail")


def without_exports(text: str) -> str:
    """The OpenAPI document without the form of an exported task, which is the project's own affair."""
    document = json.loads(text)
    assert json.dumps(document, separators=(",", ":"), ensure_ascii=False) == text
    schemas = document["components"]["schemas"]
    for name in [name for name in schemas if name.startswith("Exported")]:
        del schemas[name]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


@scenario
def discovery() -> str:
    with exchange(cors_origins=["https://app.example.com"]) as (at, _):
        at.get("/", at_root=True, user=None)
        at.get(WELL_KNOWN, at_root=True, user=None)
        for probe in ("", "/live", "/ready"):
            at.get("/health" + probe, user=None)
            at.call("HEAD", "/health" + probe, user=None)
        at.get("/docs", user=None)
        at.get("/docs/swagger-ui.css", user=None, only_head=True)
        at.get("/docs/other.js", user=None)
        at.get("/openapi.json", user=None, sentences=DESCRIPTIONS, edit=without_exports)
        at.note("browsers from elsewhere")
        home = {"origin": "https://app.example.com"}
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        at.call("OPTIONS", "", user=None, headers={**home, **asked})
        at.call("OPTIONS", "", user=None, headers={"origin": "https://else.example.com", **asked})
        at.call("OPTIONS", "/tasks", user=None)
        at.post("", json=text("hello"), headers=home)
        at.post("/sse", json=text("hello"), headers=home)
        at.get("/tasks", user=None, headers=home)
        at.get(f"/tasks/{NOTHING}", headers={"origin": "https://else.example.com"})
        return at.text
