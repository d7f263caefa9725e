"""Strangers, hostile tokens, pages of other origins, broken bodies and deaf clients at the MCP server."""

import asyncio
import copy
import http.client
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_tokens import HOSTILE, Forge
from mcp_talk import (
    ACCEPT,
    PLUGINS,
    SPEC,
    ask,
    asking,
    call,
    error,
    headers_of,
    host,
    modern,
    opened,
    post,
    serving,
    told,
)
from wire import NOBODYS, records, store_of

from tealagents.api import sse
from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

Json = dict[str, Any]
SENDABLE = [hostile for hostile in HOSTILE if hostile.sendable]
SECRET = "the blue heron"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[ServiceThread, Forge]]:
    """A service with real tokens, and an approver and an auditor among its users."""
    with LocalAuthority() as authority, OfflineModel() as model:
        env = authority.environment(
            TA_BASE_URL=model.base_url,
            TA_API_KEY="offline-key",
            TA_PLUGIN_MODULE=str(PLUGINS),
            TA_ENTRA_APPROVER_ROLE="Approver",
            TA_ENTRA_AUDITOR_ROLE="Auditor",
        )
        with ServiceThread(agent_config(**SPEC), env) as service:
            yield service, Forge(authority)


# --- who is asking -------------------------------------------------------------------------------


async def test_what_is_anothers_is_not_found(guarded: tuple[ServiceThread, Forge], file: Path) -> None:
    """To a stranger, and to those who may decide and read it over the own API; not a byte of it changes."""
    service, forge = guarded
    token = forge.authority.token
    async with host(service, "2026-07-28", token("alice")) as alice:
        first = await ask(alice, f"Remember that {SECRET} is shy.")
        paused = await ask(alice, call("Work-write", file=str(file), line=SECRET))
    partition = f"Tester/user/{TENANT}.{object_id('alice')}"
    before = await asyncio.to_thread(records, store_of(service), partition)
    assert before
    strangers = [token("mallory"), token("carol", roles=["Approver"]), token("dave", roles=["Auditor"])]
    for stranger in strangers:
        async with host(service, "2025-11-25", stranger) as client:
            tried = [await client.call_tool("ask", {"message": "hi", "conversation": first["conversation"]})]
            for action in ("approve", "reject"):
                decision = {
                    "request_id": paused["request_id"],
                    "approval_id": paused["approval"]["approval_id"],
                    "action": action,
                }
                tried.append(await client.call_tool("decide", decision))
            unknown = await client.call_tool("ask", {"message": "hi", "conversation": NOBODYS})
            for result in tried:
                assert error(told(result)) == "not_found"
                assert result.content == unknown.content
    assert await asyncio.to_thread(records, store_of(service), partition) == before
    assert not file.exists()


def test_a_session_is_its_users(service: ServiceThread) -> None:
    """Another user's call in it finds no session."""
    with service.client() as ada, service.client("eve") as eve:
        session = opened(ada)
        headers = {"accept": ACCEPT, "mcp-session-id": session}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert eve.post("/mcp", json=listing, headers=headers).status_code == 404
        assert eve.delete("/mcp", headers=headers).status_code == 404
        assert ada.post("/mcp", json=listing, headers=headers).status_code == 200
        assert ada.delete("/mcp", headers=headers).status_code == 200
        assert ada.post("/mcp", json=listing, headers=headers).status_code == 404


def test_every_hostile_token_is_refused(guarded: tuple[ServiceThread, Forge]) -> None:
    """With every method, and a challenge that names this path's own metadata (RFC 9728)."""
    service, forge = guarded
    metadata = f"{service.root}/.well-known/oauth-protected-resource{service.prefix}/mcp"
    document = httpx.get(metadata).json()
    assert document["resource"] == f"{service.url}/mcp"
    assert document["authorization_servers"]
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    body = json.dumps(asking("hello"))
    for hostile in SENDABLE:
        token = hostile.make(forge)
        for method in ("POST", "GET", "DELETE"):
            headers: dict[str, Any] = {
                **headers_of(asking("hello")),
                "authorization": b"Bearer " + token.encode(),
                "content-type": "application/json",
            }
            connection.request(method, f"{service.prefix}/mcp", body if method == "POST" else None, headers)
            answer = connection.getresponse()
            said = json.loads(answer.read())
            assert answer.status == (401 if not token.strip() else hostile.status), (method, hostile)
            assert answer.headers["www-authenticate"].startswith(f'Bearer resource_metadata="{metadata}"')
            assert said["error"]["message"]
    connection.close()
    with service.client(None) as nobody:
        bare = post(nobody, asking("hello"))
        assert (bare.status_code, bare.headers["www-authenticate"]) == (
            401,
            f'Bearer resource_metadata="{metadata}"',
        )


# --- where it comes from -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://127.0.0.1:1"}, 200),
        ({"origin": "https://host.example"}, 200),
        ({"origin": "https://agents.example"}, 200),
        ({"host": "agents.example"}, 200),
        ({"host": "localhost"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://host.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
        ({"origin": "http://[x"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example:80"}, 421),
        ({"host": ""}, 421),
    ],
)
def test_only_known_pages_and_names_lead_here(headers: dict[str, str], status: int) -> None:
    """Loopback, the public URL, and the origins that the config names; whatever token is sent along."""
    with (
        serving(
            None, {"TA_PUBLIC_URL": "https://agents.example/x"}, cors_origins=["https://host.example"]
        ) as (
            service,
            _,
        ),
        service.client() as client,
    ):
        answer = post(client, modern("server/discover"), **headers)
        assert answer.status_code == status
        if status != 200:
            assert answer.json()["error"]["message"]


def test_a_page_of_a_named_origin_may_see_what_it_needs() -> None:
    """Preflights are answered; the session and the challenge can be read."""
    with serving(cors_origins=["https://host.example"]) as (service, _), service.client(None) as client:
        asked = {
            "origin": "https://host.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, mcp-protocol-version",
        }
        preflight = client.options("/mcp", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://host.example"
        refused = post(client, modern("server/discover"), origin="https://host.example")
        assert refused.status_code == 401
        shown = refused.headers["access-control-expose-headers"].split(", ")
        assert {"mcp-session-id", "www-authenticate"} <= set(shown)


# --- broken bodies -------------------------------------------------------------------------------

RIGHT: list[Json] = [
    asking("hi", conversation=NOBODYS, idempotency_key="k"),
    modern(
        "tools/call", {"name": "decide", "arguments": {"request_id": NOBODYS, "decisions": [{"id": "x"}]}}
    ),
    modern(
        "tools/call",
        {
            "name": "ask",
            "arguments": {"message": "hi"},
            "requestState": f"{NOBODYS}/{NOBODYS}",
            "inputResponses": {"decision": {"action": "accept", "content": {"action": "approve"}}},
        },
    ),
    modern("tools/list", {"cursor": "x"}),
    modern("server/discover"),
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "x", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}},
    {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}},
]
JUNK: list[Any] = [
    *(None, True, 0, -1, 1e308, 2**63, "", "x", "\0", "\ud800", [], {}, [[]], {"a": []}, "é" * 300),
    *(
        "tools/call",
        "ask",
        "decide",
        "initialize",
        "ping",
        "2025-11-25",
        "2026-07-28",
        "1999-01-01",
        "tasks/get",
    ),
]


def broken(rng: random.Random) -> tuple[dict[str, str], bytes]:
    """A right request with some of its body or its headers replaced, removed, doubled; or no JSON at all."""
    right = rng.choice(RIGHT)
    body = copy.deepcopy(right)
    for _ in range(rng.randint(1, 3)):
        mutate(rng, body)
    written = json.dumps(body).encode()
    match rng.randrange(14):
        case 0:
            written = written[: rng.randrange(len(written))]
        case 1:
            position = rng.randrange(len(written))
            written = written[:position] + bytes([rng.randrange(256)]) + written[position + 1 :]
        case 2:
            written = rng.choice([b"", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'"x"', b"{}"])
        case 3:
            written = b"[" + written + b"]"
    headers = {**headers_of(right), "content-type": "application/json"}
    if rng.random() < 0.4:
        name = rng.choice([*headers, "mcp-session-id", "mcp-param-x", "last-event-id", "content-encoding"])
        headers[name] = rng.choice(["", "x", "2025-11-25", "2026-07-28", "tools/list", "*/*", "=?base64?x?="])
    if rng.random() < 0.2:
        headers.pop(rng.choice(list(headers)))
    return headers, written


def mutate(rng: random.Random, value: Any) -> None:
    """Changes one place within an object or an array."""
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    place = rng.choice(places)
    inner = value[place]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
        mutate(rng, inner)
    elif rng.random() < 0.2:
        del value[place]
    elif rng.random() < 0.2 and isinstance(value, list):
        value.append(copy.deepcopy(inner))
    else:
        value[place] = copy.deepcopy(rng.choice(JUNK))


def fuzz(service: ServiceThread, count: int) -> None:
    rng = random.Random(count)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    for n in range(count):
        headers, body = broken(rng)
        # the model may be called: each time by another user, so that none has too many sessions or requests
        headers["authorization"] = f"Bearer fuzz{n % 100}"
        connection.request("POST", f"{service.prefix}/mcp", body=body, headers=headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status < 500, (headers, body, said)
        assert b"-32603" not in said, (headers, body, said)
        assert len(said) < 8000, (headers, body, said)
        if answer.status >= 400 and answer.headers.get("content-type") == "application/json":
            assert json.loads(said)["error"]["message"], (headers, body)
    connection.close()


def test_no_body_is_our_fault(service: ServiceThread, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever comes gets an error that says why, never a 5xx, and nothing is logged as ours."""
    caplog.clear()
    fuzz(service, 600)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.soak
def test_no_body_of_ten_thousand_is_our_fault(service: ServiceThread) -> None:
    fuzz(service, 10_000)


def test_a_body_that_is_too_large_is_refused() -> None:
    """Before it is read whole."""
    with serving(limits={"max_body_bytes": 20_000}) as (service, _), service.client() as client:
        large = post(client, asking("x" * 30_000))
        assert large.status_code == 413
        assert "max_body_bytes" in large.json()["error"]["message"]
        assert post(client, asking("x" * 100)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/mcp", 405),
        ("PATCH", "/mcp", 405),
        ("HEAD", "/mcp", 405),
        ("GET", "/mcp/tools", 404),
        ("POST", "/mcp/", 200),
        ("POST", "/mcp//", 404),
    ],
)
def test_other_methods_and_paths(service: ServiceThread, method: str, path: str, status: int) -> None:
    """There is one endpoint, with or without a slash."""
    body = modern("server/discover")
    with service.client() as client:
        answer = client.request(method, path, json=body, headers=headers_of(body))
        assert answer.status_code == status, answer.text


# --- clients that read nothing -------------------------------------------------------------------

#: more text than the kernel keeps for a connection nobody reads
LOUD = {"rules": [{"when": "shout", "reply": {"pieces": ["loud " * 13_000] * 60}}]}


@pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25"])
def test_a_client_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch, era: Any) -> None:
    """Its connection is closed, and honest hosts are served; in 2026-07-28 it ends its request."""
    body = asking("shout")
    body["params"]["_meta"]["progressToken"] = "p"
    with serving(LOUD) as (service, _), service.client() as ada:
        data = json.dumps(body).encode()
        headers = {**headers_of(body, era), "authorization": "Bearer eve", "content-type": "application/json"}
        with service.client("eve") as eve:
            if era == "2025-11-25":
                headers["mcp-session-id"] = opened(eve)
        head = f"POST {service.prefix}/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        monkeypatch.setattr(sse, "SEND_TIMEOUT", 0.3)
        with socket.socket() as deaf, service.client("eve") as own:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", service.port))
            deaf.sendall(head.encode() + b"\r\n" + data)
            ended: Json = {}
            while ended.get("status") not in ("Canceled", "Completed"):
                assert post(ada, asking("hello")).status_code == 200
                (ended,) = own.get("/tasks").json()["items"] or [{}]
            _closed(deaf)


def _closed(link: socket.socket) -> None:
    """Returns when the other side has ended the connection."""
    link.settimeout(20)
    try:
        while link.recv(2**16):
            pass
    except ConnectionResetError:
        pass
