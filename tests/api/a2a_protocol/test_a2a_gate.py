"""What comes before A2A's operations: who calls, whose a task is, and bodies that are none."""

import http.client
import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a_talk import BINDINGS, REST, RPC, VERSION, Json, Wire, decision, message, state
from hostile_tokens import HOSTILE, Forge
from talk import PLUGINS, call, connections, lines, working_service
from wire import records, store_of

from tealagents.api import sse
from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import OTHER_TENANT, SCOPE, TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

NOBODYS = "00000000-0000-4000-8000-000000000001"
#: method and path below /a2a of each route
ROUTES = (
    ("POST", ""),
    ("POST", "/"),
    ("POST", "/message:send"),
    ("POST", "/message:stream"),
    ("GET", "/tasks"),
    ("GET", f"/tasks/{NOBODYS}"),
    ("POST", f"/tasks/{NOBODYS}:cancel"),
    ("POST", f"/tasks/{NOBODYS}:subscribe"),
    ("GET", f"/tasks/{NOBODYS}:subscribe"),
    ("POST", f"/tasks/{NOBODYS}/pushNotificationConfigs"),
    ("GET", f"/tasks/{NOBODYS}/pushNotificationConfigs"),
    ("GET", f"/tasks/{NOBODYS}/pushNotificationConfigs/x"),
    ("DELETE", f"/tasks/{NOBODYS}/pushNotificationConfigs/x"),
    ("GET", "/extendedAgentCard"),
    ("GET", "/nothing/here"),
)


# --- who calls ---------------------------------------------------------------------------------------


class Guarded:
    """A service over A2A that trusts a local authority."""

    def __init__(self, service: ServiceThread, forge: Forge, clients: ExitStack) -> None:
        self.service = service
        self.forge = forge
        self._clients = clients

    def wire(self, binding: str, user: str, **claims: Any) -> Wire:
        token = self.forge.authority.token(user, **claims)
        return self._clients.enter_context(Wire(self.service, binding, token))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """Of one tenant."""
    with guarding() as found:
        yield found


@pytest.fixture(scope="module")
def town() -> Iterator[Guarded]:
    """Of two tenants, with people of every role."""
    with guarding(
        TA_ENTRA_TENANT_ID="organizations",
        TA_ENTRA_ALLOWED_TENANTS=f"{TENANT} {OTHER_TENANT}",
        TA_ENTRA_APPROVER_ROLE="Approver",
        TA_ENTRA_AUDITOR_ROLE="Auditor",
    ) as found:
        yield found


@contextmanager
def guarding(**variables: str) -> Iterator[Guarded]:
    with LocalAuthority() as authority, OfflineModel() as model, ExitStack() as clients:
        env = authority.environment(
            **variables,
            TA_BASE_URL=model.base_url,
            TA_API_KEY="offline-key",
            TA_PLUGIN_MODULE=str(PLUGINS),
        )
        config = agent_config(agent={"plugins": ["Work"]}, protocols=["a2a"])
        with ServiceThread(config, env) as service:
            yield Guarded(service, Forge(authority), clients)


def test_every_hostile_token_is_refused_on_every_route(guarded: Guarded) -> None:
    """With the status, the challenge and an error of the binding. [AUTH-SERVER-002]"""
    service = guarded.service
    place = f"{service.root}/.well-known/oauth-protected-resource{service.prefix}/a2a"
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    tokens = [(hostile, hostile.make(guarded.forge)) for hostile in HOSTILE if hostile.sendable]
    for method, path in ROUTES:
        for hostile, token in tokens:
            headers = {"authorization": b"Bearer " + token.encode()}
            connection.request(method, f"{service.prefix}/a2a{path}", headers=headers)
            answered = connection.getresponse()
            said = json.loads(answered.read())
            wanted = 401 if not token.strip() else hostile.status
            assert answered.status == wanted, (method, path, hostile, said)
            challenge = answered.headers["www-authenticate"]
            assert challenge.startswith(f'Bearer resource_metadata="{place}"'), challenge
            assert ("insufficient_scope" in challenge) == (wanted == 403)
            details = said["error"]["data" if path in ("", "/") else "details"]
            assert details[0]["reason"] == ("UNAUTHENTICATED" if wanted == 401 else "INSUFFICIENT_SCOPE")
    connection.close()


def test_without_a_token_a_client_learns_where_to_get_one(guarded: Guarded) -> None:
    """The challenge leads to the metadata of this protocol, and the card says the same without a token."""
    service = guarded.service
    with service.client(None) as client:
        refused = client.post(
            "/a2a", json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}, headers=VERSION
        )
        assert refused.status_code == 401
        (url,) = refused.headers["www-authenticate"].split('"')[1:2]
        metadata = client.get(url).raise_for_status().json()
        assert metadata["resource"] == f"{service.url}/a2a"
        card = client.get(f"{service.root}/.well-known/agent-card.json").raise_for_status().json()
    scheme = card["securitySchemes"]["openIdConnect"]["openIdConnectSecurityScheme"]
    (issuer,) = metadata["authorization_servers"]
    assert scheme["openIdConnectUrl"] == f"{issuer}/.well-known/openid-configuration"
    required = card["securityRequirements"][0]["schemes"]["openIdConnect"]["list"]
    assert required == metadata["scopes_supported"]
    assert required[0].endswith(f"/{SCOPE}")


# --- whose it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
def test_what_belongs_to_another_is_not_found(town: Guarded, binding: str, tmp_path: Path) -> None:
    """Whatever their roles: what auditors and approvers may is for v1alpha1. [CORE-GET-002]"""
    file = tmp_path / "written"
    alice = town.wire(binding, "alice")
    paused, done = alice.send(call("Work-write", file=str(file), line="one")), alice.send()
    agent = town.service.prefix.split("/")[1]
    partition = f"{agent}/user/{TENANT}.{object_id('alice')}"
    before = records(store_of(town.service), partition)
    strangers = [
        town.wire(binding, "mallory"),
        town.wire(binding, "alice", tid=OTHER_TENANT),
        town.wire(binding, "carol", roles=["Approver"]),
        town.wire(binding, "dave", roles=["Auditor"]),
    ]
    for stranger in strangers:
        for task in (paused, done):
            for method in ("GetTask", "CancelTask", "SubscribeToTask"):
                refused = stranger.call(method, {"id": task["id"]})
                assert stranger.refusal(refused)[1] == "TASK_NOT_FOUND", (method, refused.text)
                unknown = stranger.call(method, {"id": NOBODYS})
                assert refused.json() == unknown.json()
            for sent in (
                message("hello", contextId=task["contextId"]),
                message("hello", taskId=task["id"]),
                decision(task),
            ):
                for method in ("SendMessage", "SendStreamingMessage"):
                    assert stranger.error(method, {"message": sent})[1] == "TASK_NOT_FOUND"
        assert stranger.result("ListTasks")["tasks"] == []
    assert records(store_of(town.service), partition) == before
    assert not lines(file)
    assert state(alice.get(paused["id"])) == "INPUT_REQUIRED"
    assert {task["id"] for task in alice.result("ListTasks")["tasks"]} >= {paused["id"], done["id"]}


# --- bodies ------------------------------------------------------------------------------------------


def test_a_wrong_content_type_is_named(service: ServiceThread) -> None:
    """415, and A2A's own error in the form of the binding; its own media type is as good as JSON."""
    body = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "ListTasks"}).encode()
    sent = json.dumps({"message": message()}).encode()
    with Wire(service, RPC) as rpc, Wire(service, REST) as rest:
        for kind in ("text/plain", "application/xml", ""):
            headers = {"content-type": kind}
            refused = rpc.client.post("/a2a", content=body, headers=headers)
            assert refused.status_code == 415
            assert rpc.refusal(refused) == (-32005, "CONTENT_TYPE_NOT_SUPPORTED")
            refused = rest.client.post("/a2a/message:send", content=sent, headers=headers)
            assert rest.refusal(refused) == (415, "CONTENT_TYPE_NOT_SUPPORTED")
        headers = {"content-type": "application/a2a+json"}
        answered = rest.client.post("/a2a/message:send", content=sent, headers=headers)
        assert answered.status_code == 200
        assert answered.headers["content-type"] == "application/a2a+json"


def test_bodies_that_are_no_json_are_refused_before_the_library(service: ServiceThread) -> None:
    """Bytes that are no text, endless depth, numbers that nothing can keep. [CORE-ERR-002]"""
    headers = {**VERSION, "content-type": "application/json"}
    nested = b'{"message":' + b"[" * 200 + b"]" * 200 + b"}"
    with service.client(headers=headers) as client:
        for body in (b"\xff\xfe", b"{", b"", b"nul\x00", b'{"a": NaN}', b'"\\ud800"', nested, b"9" * 400):
            rpc = client.post("/a2a", content=body)
            assert rpc.status_code in (200, 415), body
            assert rpc.json()["error"]["code"] in (-32700, -32600, -32005), (body, rpc.text)
            rest = client.post("/a2a/message:send", content=body)
            assert 400 <= rest.status_code < 500, (body, rest.text)
            assert rest.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the config's own limits, of bytes and of parts."""
    limits = {"max_body_bytes": 5000, "max_items": 3}
    with working_service(protocols=["a2a"], limits=limits) as (service, _):
        for binding in BINDINGS:
            with Wire(service, binding) as wire:
                large = wire.call("SendMessage", {"message": message("x" * 6000)})
                assert large.status_code == 413
                assert wire.refusal(large)[1] == "TOO_LARGE"
                many = {"message": message(parts=[{"text": "x"}] * 4)}
                assert wire.error("SendMessage", many)[1] == "INVALID_PARAMS"


def test_overload_says_when_to_come_back() -> None:
    """429 with `Retry-After` in both bindings, and nothing is stored."""
    limits = {"max_requests_per_user": 1}
    script = {"rules": [{"when": "for ever", "reply": {"text": "x", "headers_delay_ms": 600_000}}]}
    with working_service(script, protocols=["a2a"], limits=limits) as (service, _):
        for binding in BINDINGS:
            with Wire(service, binding) as wire:
                at_once = {"message": message("for ever"), "configuration": {"returnImmediately": True}}
                task = wire.result("SendMessage", at_once)["task"]
                refused = wire.call("SendMessage", {"message": message()})
                assert (refused.status_code, wire.refusal(refused)[1]) == (429, "OVERLOADED")
                assert refused.headers["retry-after"] == "1"
                wire.result("CancelTask", {"id": task["id"]})


# --- clients that read nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/a2a", "/a2a/message:stream"])
def test_a_client_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Its connection is closed, its task is answered to the end."""
    loud = {"rules": [{"when": "shout", "reply": {"pieces": ["loud " * 13_000] * 60}}]}
    with working_service(loud, protocols=["a2a"]) as (service, _), monkeypatch.context() as patched:
        patched.setattr(sse, "SEND_TIMEOUT", 0.3)
        params = {"message": message("shout")}
        sent = params if path != "/a2a" else {
            "jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params
        }  # fmt: skip
        body = json.dumps(sent).encode()
        head = (
            f"POST {service.prefix}{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada\r\n"
            f"a2a-version: 1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", service.port))
        deaf.sendall(head.encode() + body)
        with Wire(service, RPC) as wire:
            while not (tasks := wire.result("ListTasks")["tasks"]) or state(tasks[0]) != "COMPLETED":
                time.sleep(0.02)
        while connections(service):
            time.sleep(0.02)
        deaf.close()


def test_leaving_cancels_where_the_config_says_so() -> None:
    """A sender who leaves, blocking or streaming, ends the task; a follower does not."""
    script = {"rules": [{"when": "for ever", "reply": {"text": "x", "headers_delay_ms": 600_000}}]}
    with working_service(script, protocols=["a2a"], on_disconnect="cancel") as (service, _):
        for binding in BINDINGS:
            with Wire(service, binding) as wire, Wire(service, binding) as leaver:
                stream = leaver.stream("SendStreamingMessage", {"message": message("for ever")})
                task = next(stream)["task"]
                follower = wire.stream("SubscribeToTask", {"id": task["id"]})
                next(follower)
                stream.close()
                *_, last = follower
                assert state(last["statusUpdate"]) == "CANCELED"


# --- broken bodies, thousands of them ----------------------------------------------------------------

_METHODS = (
    *("SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask"),
    *(
        "CreateTaskPushNotificationConfig",
        "GetExtendedAgentCard",
        "message/send",
        "message/stream",
        "tasks/get",
    ),
    *("tasks/cancel", "tasks/resubscribe", "tasks/pushNotificationConfig/set", "Nothing", "", "x/y"),
)
_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        2**31,
        2**53 + 1,
        2**63 - 1,
        1.5,
        1e300,
        "",
        "x",
        "\u2028",
        "é" * 50,
        "null",
        [],
        {},
    ),
    *([[]], [{}], {"": ""}, {"a": {"b": [None]}}, NOBODYS, "ROLE_USER", "TASK_STATE_WORKING", 99, "a" * 3000),
    *({"@type": "x"}, {"fields": {}}, {"nullValue": None}, ["x"] * 150, "2999-01-01T00:00:00Z", "Infinity"),
)


def _whole(chance: random.Random) -> Json:
    """The parameters of some operation, as they should be."""
    part: Json = chance.choice(
        [
            {"text": "hi"},
            {"data": {"action": "approve", "n": 1}},
            {"raw": "AAAA", "mediaType": "image/png"},
            {"url": "http://127.0.0.1:1/"},
            {"kind": "text", "text": "hi"},
        ]
    )
    sent = message(parts=[part] * chance.randint(0, 2), contextId=NOBODYS, metadata={"a": 1})
    return {
        "message": sent,
        "configuration": {
            "historyLength": 1,
            "returnImmediately": True,
            "acceptedOutputModes": ["text/plain"],
        },
        "id": NOBODYS,
        "taskId": NOBODYS,
        "contextId": NOBODYS,
        "pageSize": 3,
        "pageToken": "x",
        "status": "TASK_STATE_WORKING",
        "statusTimestampAfter": "2999-01-01T00:00:00Z",
        "tenant": "x",
    }


def _broken(chance: random.Random, value: Any) -> Any:
    """A value with something odd in it, somewhere."""
    if chance.random() < 0.15:
        return chance.choice(_ODD)
    if isinstance(value, dict) and value:
        key = chance.choice(list(value))
        changed = dict(value)
        match chance.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(["", "extra", "kind", key.upper(), "role", "parts"])] = chance.choice(
                    _ODD
                )
            case _:
                changed[key] = _broken(chance, value[key])
        return changed
    if isinstance(value, list) and value:
        index = chance.randrange(len(value))
        return [*value[:index], _broken(chance, value[index]), *value[index + 1 :]]
    return chance.choice(_ODD)


def _scrambled(chance: random.Random, body: bytes) -> bytes:
    """Bytes with some of them lost, doubled or changed."""
    data = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                del data[at : at + chance.randint(1, 20)]
            case 1:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
            case 2:
                data[at:at] = data[: chance.randint(0, 40)]
    return bytes(data)


def _attack(service: ServiceThread, count: int, seed: int) -> None:
    chance = random.Random(seed)
    with service.client(headers={**VERSION, "content-type": "application/json"}) as client:
        for n in range(count):
            params = _whole(chance)
            for _ in range(chance.randint(0, 3)):
                params = _broken(chance, params)
            version = {"a2a-version": chance.choice(["1.0", "1.0", "1.0", "0.3", "", "2"])}
            if chance.random() < 0.6:
                method = chance.choice(_METHODS)
                rpc: Any = {"jsonrpc": "2.0", "id": n, "method": method, "params": params}
                verb, path, body = "POST", "/a2a", json.dumps(_broken(chance, rpc) if n % 3 == 0 else rpc)
            else:
                verb, path = chance.choice([(v, p) for v, p in ROUTES if p not in ("", "/")])
                body = json.dumps(params)
            query = {"pageSize": str(chance.choice(_ODD)), "status": str(chance.choice(_ODD))}
            content = _scrambled(chance, body.encode()) if chance.random() < 0.3 else body.encode()
            answered = client.request(
                verb,
                f"/a2a{path.removeprefix('/a2a')}",
                content=content if verb == "POST" else None,
                params=query if verb == "GET" and chance.random() < 0.7 else None,
                headers=version,
            )
            assert answered.status_code < 500, (seed, n, verb, path, content[:2000], answered.text)
            if answered.headers["content-type"].startswith("application/json"):
                error = answered.json().get("error", {})
                # 0.3 has no code for a wrong version
                fault = error.get("code") in (-32603, 500) and "is not supported" not in error["message"]
                assert not fault, (seed, n, content[:2000], answered.text)


def test_broken_bodies_get_an_error_of_the_protocol(service: ServiceThread) -> None:
    """Some hundreds, the same each time: no 5xx, no internal error, and the service goes on."""
    _attack(service, 400, seed=1)
    with Wire(service, RPC) as wire:
        assert state(wire.send()) == "COMPLETED"


@pytest.mark.soak
def test_ten_thousand_broken_bodies(service: ServiceThread) -> None:
    """As above, ten thousand of them."""
    for seed in range(25):
        _attack(service, 400, seed=100 + seed)


def test_a_path_that_is_not_there_says_so(service: ServiceThread) -> None:
    """In the form of HTTP+JSON; a wrong method is told as one."""
    with Wire(service, REST) as rest:
        assert rest.client.get("/a2a/nothing").json()["error"]["code"] == 404
        assert rest.client.get("/a2a/acme/tasks").status_code == 404
        assert rest.client.put("/a2a/tasks").status_code == 405
        assert httpx.get(f"{service.url}/a2a/.well-known/agent-card.json").status_code == 200
