"""What comes before A2A's operations: who calls, and bodies that are none; and clients that leave."""

import json
import socket
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any, cast

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from a2a_talk import BINDINGS, REST, RPC, VERSION, Wire, message, state
from google.protobuf.json_format import ParseDict
from starlette.requests import Request
from talk import connections, working_service

from tealagents.api import sse
from tealagents.api.a2a.handler import Handler
from tealagents.api.exchange import Exchange
from tealagents.api.gate import AdmittedCall, Replied
from tealagents.domain.errors import InvalidRequest
from tealagents.testing.authority import SCOPE, LocalAuthority
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.testing.waits import until

# --- who calls ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServiceThread]:
    """A service over A2A that trusts a local authority."""
    with LocalAuthority() as authority:
        env = authority.environment(TA_API_KEY="none")
        with ServiceThread(agent_config(protocols=["a2a"]), env) as service:
            yield service


def test_without_a_token_a_client_learns_where_to_get_one(guarded: ServiceThread) -> None:
    """The challenge leads to the metadata of this protocol, and the card says the same without a token."""
    with guarded.client(None) as client:
        refused = client.post(
            "/a2a", json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}, headers=VERSION
        )
        assert refused.status_code == 401
        (url,) = refused.headers["www-authenticate"].split('"')[1:2]
        metadata = client.get(url).raise_for_status().json()
        assert metadata["resource"] == f"{guarded.url}/a2a"
        card = client.get(f"{guarded.root}/.well-known/agent-card.json").raise_for_status().json()
    scheme = card["securitySchemes"]["openIdConnect"]["openIdConnectSecurityScheme"]
    (issuer,) = metadata["authorization_servers"]
    assert scheme["openIdConnectUrl"] == f"{issuer}/.well-known/openid-configuration"
    required = card["securityRequirements"][0]["schemes"]["openIdConnect"]["list"]
    assert required == metadata["scopes_supported"]
    assert required[0].endswith(f"/{SCOPE}")


@pytest.mark.parametrize(
    ("metadata", "scheme", "scopes"),
    [
        ({"authorization_servers": ["https://a.example", "https://b.example"]}, "openIdConnect", []),
        ({"authorization_servers": ["https://a.example"], "scopes_supported": ["x"]}, "openIdConnect", ["x"]),
        ({"authorization_servers": []}, "bearer", []),
        ({"scopes_supported": ["x"]}, "bearer", []),
    ],
)
def test_the_card_is_made_of_whatever_a_provider_says_of_tokens(
    guarded: ServiceThread,
    monkeypatch: pytest.MonkeyPatch,
    metadata: dict[str, list[str]],
    scheme: str,
    scopes: list[str],
) -> None:
    """The first of several authorities, any bearer token where there is none; RFC 9728 requires neither."""
    provider = guarded.app.exchange.authenticator
    monkeypatch.setattr(provider, "resource_metadata", lambda url: {"resource": url, **metadata})
    with guarded.client(None) as client:
        card = client.get("/a2a/.well-known/agent-card.json").raise_for_status().json()
    (named,) = card["securitySchemes"]
    assert named == scheme
    if scheme == "openIdConnect":
        found = card["securitySchemes"][named]["openIdConnectSecurityScheme"]["openIdConnectUrl"]
        assert found == "https://a.example/.well-known/openid-configuration"
    assert card["securityRequirements"][0]["schemes"][named].get("list", []) == scopes


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
                assert "message.parts: has 4 items" in wire.call("SendMessage", many).text


@pytest.mark.parametrize("binding", BINDINGS)
def test_parts_are_counted_before_any_is_read(service: ServiceThread, binding: str) -> None:
    """So many that are no parts at all are too many, in each version."""
    with Wire(service, binding) as wire:
        for parts in ([5] * 101, [{"data": {}, "raw": "?"}] * 101, {str(n): n for n in range(101)}):
            many = {"message": message(parts=parts)}
            answered = [wire.call("SendMessage", many), wire.call("SendStreamingMessage", many)]
            if wire.rpc:
                body = {"jsonrpc": "2.0", "id": 7, "method": "message/send", "params": many}
                answered.append(wire.client.post("/a2a", json=body))
            for refused in answered:
                assert wire.refusal(refused)[1] == "INVALID_PARAMS"
                said = refused.json()["error"]["message"]
                assert said == "message.parts: has 101 items; at most 100 are accepted"


@pytest.mark.parametrize("method", ["SendMessage", "CancelTask"])
async def test_what_is_required_is_not_looked_for_in_data(method: str) -> None:
    """The protocol's library has a check that visits each value, which takes seconds."""
    values = {"values": [1] * 5000}
    sent = message(parts=[{"data": values}], metadata=values, role="ROLE_AGENT")
    if method == "SendMessage":
        given: Any = {"message": sent, "metadata": values, "configuration": {"acceptedOutputModes": ["x"]}}
        params: Any = ParseDict(given, pb.SendMessageRequest())
        work: Any = Handler.on_message_send
    else:
        given = {"id": "", "metadata": values}
        params, work = ParseDict(given, pb.CancelTaskRequest()), Handler.on_cancel_task
    request = Request({"type": "http", "path": "/a2a"})
    admitted = AdmittedCall(request, "/a2a", body={"method": method, "params": given})
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with pytest.raises(Replied):
            await work(Handler(cast(Exchange, None)), params, ServerCallContext(state={"call": admitted}))
    finally:
        sys.setprofile(None)
    assert isinstance(admitted.refused, InvalidRequest)
    assert calls < 500


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
            until(lambda: [state(task) for task in wire.result("ListTasks")["tasks"]] == ["COMPLETED"])
        until(lambda: not connections(service))
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
                check_a_sender_who_waits(service, wire, binding)


def check_a_sender_who_waits(service: ServiceThread, wire: Wire, binding: str) -> None:
    """For a document that is not there yet."""
    params = {"message": message("for ever")}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    path, body = ("/a2a", rpc) if binding == RPC else ("/a2a/message:send", params)
    leaver = HTTPConnection("127.0.0.1", service.port)
    headers = {"authorization": "Bearer ada", "content-type": "application/json", **VERSION}
    leaver.request("POST", service.prefix + path, json.dumps(body), headers)
    [running] = until(lambda: wire.result("ListTasks", {"status": "TASK_STATE_WORKING"})["tasks"])
    leaver.close()
    until(lambda: state(wire.get(running["id"])) == "CANCELED")


def test_a_path_that_is_not_there_says_so(service: ServiceThread) -> None:
    """In the form of HTTP+JSON."""
    with Wire(service, REST) as rest:
        assert rest.client.get("/a2a/nothing").json()["error"]["code"] == 404
        assert rest.client.get("/a2a/acme/tasks").status_code == 404
        assert httpx.get(f"{service.url}/a2a/.well-known/agent-card.json").status_code == 200


@pytest.mark.parametrize(
    ("binding", "method", "path", "allowed"),
    [(REST, "PUT", "/a2a/tasks", {"GET", "HEAD"}), (RPC, "GET", "/a2a", {"POST"})],
)
def test_a_method_that_is_not_served_is_reported_as_one(
    service: ServiceThread, binding: str, method: str, path: str, allowed: set[str]
) -> None:
    """As an error of the binding, with the methods that are."""
    with Wire(service, binding) as wire:
        refused = wire.client.request(method, path)
        assert wire.refusal(refused) == (-32000 if wire.rpc else 405, "METHOD_NOT_ALLOWED")
    assert refused.status_code == 405
    assert set(refused.headers["allow"].split(", ")) == allowed
