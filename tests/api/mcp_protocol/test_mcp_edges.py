"""Others' sessions, pages of other origins, what is no call, and deaf clients at the MCP server."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp_talk import ACCEPT, ERAS, Era, asking, headers_of, modern, opened, post, serving
from talk import connections

from tealagents.api import sse
from tealagents.api.mcp import app as sessions
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

Json = dict[str, Any]


def test_a_session_is_its_users(service: ServiceThread) -> None:
    """Another user's call in it finds no session."""
    with service.client() as ada, service.client("eve") as eve:
        session = opened(ada)
        headers = {"accept": ACCEPT, "mcp-session-id": session}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert eve.post("/mcp", json=listing, headers=headers).status_code == 404
        assert eve.get("/mcp", headers=headers).status_code == 404
        assert eve.delete("/mcp", headers=headers).status_code == 404
        assert ada.post("/mcp", json=listing, headers=headers).status_code == 200
        assert ada.delete("/mcp", headers=headers).status_code == 200
        # an id is used once in a session: that of a call which was just answered may still be open
        assert ada.post("/mcp", json={**listing, "id": 3}, headers=headers).status_code == 404


def test_a_user_does_not_use_up_the_sessions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who has too many open is refused; so is everyone where the process has too many, for a while."""
    monkeypatch.setattr(sessions, "MOST_PER_USER", 2)
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    with serving() as (service, _), service.client() as ada, service.client("eve") as eve:
        first, _ = opened(ada), opened(ada)
        refused = _opening(ada)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "too many" in refused.json()["error"]["message"]
        assert "wait 30 minutes" in refused.json()["error"]["message"]
        opened(eve)
        full = _opening(eve)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert ada.delete("/mcp", headers={"accept": ACCEPT, "mcp-session-id": first}).status_code == 200
        opened(ada)


@pytest.mark.parametrize(
    "fields",
    [
        {"clientInfo": {"name": "x" * 20_000, "version": "1"}},
        {"capabilities": {"experimental": {str(n): {} for n in range(400)}}},
        {"capabilities": {"roots": {"unknown": ["x" * 20_000]}}},
        {"_meta": {"about": [1] * 400}},
    ],
)
def test_what_a_session_would_keep_is_small(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    """A large `initialize` is refused before it takes one of the user's sessions, and within one."""
    monkeypatch.setattr(sessions, "MOST_PER_USER", 1)
    with serving() as (service, _), service.client() as ada:
        _refused_as_too_large(_opening(ada, **fields))
        assert _opening(ada, clientInfo={"name": "x" * 10_000, "version": "1"}).status_code == 200
        assert _opening(ada).status_code == 429
    with serving() as (service, _), service.client() as ada:
        ada.headers["mcp-session-id"] = opened(ada)
        _refused_as_too_large(_opening(ada, **fields))


@pytest.mark.parametrize(
    ("headers", "query", "space", "field"),
    [
        ([("x-long", "x" * 17_000)], "", "", "headers"),
        ([("x", "")] * 310, "", "", "headers"),
        ([], "?x=" + "x" * 17_000, "", "headers"),
        ([("x-long", "x" * 9000)], "", " " * 8000, "headers"),
        ([], "", " " * 17_000, "body"),
    ],
)
def test_what_comes_with_an_initialize_is_small_too(
    service: ServiceThread, headers: list[tuple[str, str]], query: str, space: str, field: str
) -> None:
    """Its headers and its query are kept with it, and so is space between its values."""
    about = {"name": "x", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
    body = {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": params}
    sent = [("accept", ACCEPT), ("content-type", "application/json"), *headers]
    with service.client() as client:
        answer = client.post("/mcp" + query, content=space + json.dumps(body), headers=sent)
    assert (answer.status_code, "mcp-session-id" in answer.headers) == (400, False), answer.text
    refused = answer.json()
    assert (refused["id"], refused["error"]["code"]) == (3, types.INVALID_REQUEST)
    assert refused["error"]["message"].startswith(f"{field}: may have at most 16,384 bytes")


def _refused_as_too_large(answer: httpx.Response) -> None:
    assert (answer.status_code, "mcp-session-id" in answer.headers) == (400, False), answer.text
    refused = answer.json()
    assert (refused["id"], refused["error"]["code"]) == (3, types.INVALID_REQUEST)
    assert refused["error"]["message"] == "body: may have at most 16,384 bytes and 300 JSON values"


@pytest.mark.parametrize(
    ("field", "value"),
    [("protocolVersion", 1), ("capabilities", None), ("capabilities", {"roots": 1}), ("clientInfo", {})],
)
def test_an_initialize_that_is_refused_leaves_no_session(
    monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    """A host that sends wrong parameters again and again is not locked out."""
    monkeypatch.setattr(sessions, "MOST_PER_USER", 1)
    with serving() as (service, _), service.client() as ada:
        answer = _opening(ada, **{field: value})
        assert (answer.status_code, "mcp-session-id" in answer.headers) == (400, False), answer.text
        refused = answer.json()
        assert (refused["id"], refused["error"]["code"]) == (3, types.INVALID_PARAMS)
        assert refused["error"]["message"].startswith(f"params.{field}")
        opened(ada)


def test_more_answers_than_there_are_questions_are_not_looked_at(service: ServiceThread) -> None:
    """The model can read why: it is the result of its call."""
    with service.client() as client:
        for answer in ({}, 1, {"action": "accept"}):
            body = asking("hello")
            body["params"] |= {"requestState": "x/y", "inputResponses": {str(n): answer for n in range(1001)}}
            [text, *_] = post(client, body).json()["result"]["content"]
            assert text["text"] == "params.inputResponses: has 1001 items; at most 1000 are accepted"


def _opening(client: httpx.Client, **fields: Any) -> httpx.Response:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
        **fields,
    }
    body = {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": params}
    return client.post("/mcp", json=body, headers={"accept": ACCEPT})


# --- where it comes from -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://127.0.0.1:1"}, 200),
        ({"origin": "http://[::1]"}, 200),
        ({"origin": "https://host.example"}, 200),
        ({"origin": "https://agents.example"}, 200),
        ({"host": "agents.example"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "LOCALHOST:1"}, 200),
        ({"host": "127.0.0.2"}, 200),
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


def test_an_unknown_name_may_be_that_of_a_proxy_which_does_not_pass_on_the_clients() -> None:
    """By default nginx names its upstream there: setting TA_PUBLIC_URL does not help then."""
    env = {"TA_PUBLIC_URL": "https://agents.example"}
    with serving(None, env) as (service, _), service.client() as client:
        answer = post(client, modern("server/discover"), host="upstream")
        assert answer.json()["error"]["message"].endswith("; a proxy must pass on the client's Host.")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]"])
async def test_no_foreign_page_or_name_leads_to_any_loopback_address(
    service: ServiceThread, address: str
) -> None:
    """A server that listens at `::` sees calls to 127.0.0.1 come in at the address mapped into IPv6."""
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{address}:8000") as client:
        for headers, status in (
            *(({}, 401), ({"host": "localhost"}, 401)),
            *(({"origin": "http://evil.example"}, 403), ({"host": "evil.example"}, 421)),
        ):
            assert (await client.post(f"{service.prefix}/mcp", headers=headers)).status_code == status


def test_pages_of_the_public_url_may_call_however_it_is_written() -> None:
    """Browsers send an origin in lower case, and without the port of its scheme."""
    env = {"TA_PUBLIC_URL": "https://Agents.Example:443/x"}
    with serving(None, env) as (service, _), service.client() as client:
        page = {"origin": "https://agents.example", "host": "agents.example"}
        assert post(client, modern("server/discover"), **page).status_code == 200


def test_where_every_origin_is_named_a_page_of_any_may_call() -> None:
    """As over the other protocols; the name under which the service is called is checked as ever."""
    with serving(cors_origins=["*"]) as (service, _), service.client() as client:
        page = {"origin": "https://any.example"}
        assert post(client, modern("server/discover"), **page).status_code == 200
        assert post(client, modern("server/discover"), **page, host="evil.example").status_code == 421


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


# --- what is no call -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("wrong", "headers", "status", "code"),
    [
        ({}, {"mcp-name": "decide"}, 400, types.HEADER_MISMATCH),
        ({}, {"mcp-method": "tools/list"}, 400, types.HEADER_MISMATCH),
        ({}, {"mcp-protocol-version": "2027-01-01"}, 400, types.HEADER_MISMATCH),
        ({}, {"accept": "text/html"}, 406, None),
        ({"jsonrpc": "1.0"}, {}, 400, types.INVALID_REQUEST),
        ({"id": True}, {}, 400, types.INVALID_REQUEST),
        ({"params": {"name": "ask", "arguments": "hello"}}, {}, 400, types.INVALID_PARAMS),
        ({"params": {"name": "erase"}}, {"mcp-name": "erase"}, 400, types.INVALID_PARAMS),
    ],
)
def test_a_call_with_something_wrong_is_an_error_of_the_protocol(
    service: ServiceThread, wrong: Json, headers: dict[str, str], status: int, code: int | None
) -> None:
    """And is not carried out."""
    body = asking("hello")
    params = {**body["params"], **wrong.get("params", {})}
    with service.client("zoe") as zoe:
        refused = post(zoe, {**body, **wrong, "params": params}, **headers)
        assert refused.status_code == status
        assert code is None or refused.json()["error"]["code"] == code
        assert zoe.get("/tasks").json()["items"] == []


@pytest.mark.parametrize("session", [None, "another.1"], ids=["own", "of another process"])
def test_a_stream_of_a_session_opens_wherever_its_client_says_it_was(
    service: ServiceThread, session: str | None
) -> None:
    """No event has an id, so there is nothing to be sent again."""
    with service.client() as client:
        headers = {"accept": ACCEPT, "mcp-session-id": session or opened(client), "last-event-id": "1"}
        with client.stream("GET", "/mcp", headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (r'{"message": "a\u0000b"}', "message: holds a NUL"),
        (r'{"message": "cut \ud83d"}', "message: holds a lone surrogate"),
        (r'{"message": "a", "\u0000": 1}', "params.arguments: holds a NUL"),
        (
            '{"request_id": "x", "decisions": [{"id": "y", "arguments": {"n": 9223372036854775808}}]}',
            "decisions.0",
        ),
        ('{"message": %s}' % ("[" * 200 + "]" * 200), "nested deeper"),
    ],
)
@pytest.mark.parametrize("era", ERAS)
def test_arguments_that_cannot_be_kept_are_an_error_that_the_model_can_read(
    service: ServiceThread, era: Era, arguments: str, where: str
) -> None:
    """A result of the call: a status other than 200 ends the session of some hosts."""
    body = asking("MESSAGE") if era == "2026-07-28" else _older("MESSAGE")
    content = json.dumps(body).replace('{"message": "MESSAGE"}', arguments)
    with service.client() as client:
        headers = {**headers_of(body, era), "content-type": "application/json"}
        if era == "2025-11-25":
            headers["mcp-session-id"] = opened(client)
        answer = client.post("/mcp", content=content, headers=headers)
    assert (answer.status_code, answer.json()["id"]) == (200, body["id"])
    result = answer.json()["result"]
    assert result["isError"]
    assert types.CallToolResult.model_validate(result)
    assert where in result["content"][0]["text"]
    assert result["structuredContent"]["error"]["code"] == "invalid_request"


def _older(message: str) -> Json:
    """A call in a session."""
    params = {"name": "ask", "arguments": {"message": message}}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


def test_a_refused_request_is_refused_under_its_id(service: ServiceThread) -> None:
    """As far as that can be read."""
    body = modern("server/discover", {"x": "a\0b"})
    unfit = {**body, "id": 2**70}
    with service.client() as client:
        answers = [post(client, each) for each in (body, unfit)]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert [answer.json()["id"] for answer in answers] == [body["id"], None]


@pytest.mark.parametrize("wrong", [None, True, 1.5, 1.0, {}, []])
@pytest.mark.parametrize("session", [None, "another.f.1"], ids=["own", "of another process"])
def test_a_call_with_a_wrong_id_is_refused_in_a_session_too(
    service: ServiceThread, session: str | None, wrong: Any
) -> None:
    """It is no notification, which would be accepted and dropped; only a notification may have a null id."""
    with service.client("zoe") as zoe:
        headers = {**headers_of(_older("hello"), "2025-11-25"), "mcp-session-id": session or opened(zoe)}
        refused = zoe.post("/mcp", json={**_older("hello"), "id": wrong}, headers=headers)
        assert (refused.status_code, refused.json()["id"]) == (400, None)
        assert refused.json()["error"]["message"] == "id: must be a string or an integer"
        said = {"jsonrpc": "2.0", "id": None, "method": "notifications/initialized"}
        assert zoe.post("/mcp", json=said, headers=headers).status_code == 202


def test_what_a_host_accepts_may_come_in_several_lines(service: ServiceThread) -> None:
    """They are one list (RFC 9110, section 5.2)."""
    body = asking("hello")
    given = {name: value for name, value in headers_of(body).items() if name != "accept"}
    accepts = [("accept", "application/json"), ("accept", "text/event-stream")]
    with service.client() as client:
        client.headers.pop("accept")
        answer = client.post("/mcp", json=body, headers=[*given.items(), *accepts])
    assert answer.status_code == 200
    assert "Completed" in answer.text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "text/html", ""])
def test_a_host_that_does_not_accept_both_kinds_of_response_learns_which(
    service: ServiceThread, era: Era, accept: str
) -> None:
    """With the id of its call, which is not carried out."""
    body = asking("hello") if era == "2026-07-28" else _older("hello")
    with service.client("yves") as client:
        headers = {**headers_of(body, era), "accept": accept}
        if era == "2025-11-25":
            headers["mcp-session-id"] = opened(client)
        refused = client.post("/mcp", json=body, headers=headers)
        assert refused.status_code == 406
        assert refused.json()["id"] == body["id"]
        error = {
            "code": types.INVALID_REQUEST,
            "message": "Accept: must name application/json and text/event-stream",
        }
        assert refused.json()["error"] == error
        assert client.get("/tasks").json()["items"] == []


@pytest.mark.parametrize(
    "accept", ["*/*", "application/*, text/*", "Application/JSON;q=0.5,TEXT/event-stream"]
)
def test_a_host_may_accept_more_than_both(service: ServiceThread, accept: str) -> None:
    """As most do that say nothing of it."""
    with service.client() as client:
        assert post(client, asking("hello"), accept=accept).status_code == 200


def test_a_call_of_no_method_is_an_error_of_the_protocol(service: ServiceThread) -> None:
    """Where neither the body nor a header names one, they agree; it is refused all the same."""
    body = asking("hello")
    headers = {name: value for name, value in headers_of(body).items() if name != "mcp-method"}
    del body["method"]
    with service.client() as client:
        refused = client.post("/mcp", json=body, headers=headers)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == types.INVALID_REQUEST


# --- clients that read nothing -------------------------------------------------------------------

#: more text than the kernel buffers for a connection that is not read
LOUD = {"rules": [{"when": "shout", "reply": {"pieces": ["loud " * 13_000] * 60}}]}


@pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25"])
def test_a_client_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch, era: Era) -> None:
    """Its connection is closed, and honest hosts are served; in 2026-07-28 it ends its request."""
    body = asking("shout")
    body["params"]["_meta"]["progressToken"] = "p"
    with serving(LOUD) as (service, _), service.client() as ada, service.client("eve") as eve:
        headers = headers_of(body, era)
        if era == "2025-11-25":
            headers["mcp-session-id"] = opened(eve)
        monkeypatch.setattr(sse, "SEND_TIMEOUT", 0.3)
        with _deaf(service, body, headers):
            ended: Json = {}
            while ended.get("status") not in ("Canceled", "Completed"):
                assert post(ada, asking("hello")).status_code == 200
                (ended,) = eve.get("/tasks").json()["items"] or [{}]
            _let_go(service, ada, eve)


def test_a_client_that_takes_nothing_of_a_plain_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is one JSON document, handed to the server whole; the connection is closed all the same."""
    with serving(LOUD) as (service, _), service.client("eve") as eve:
        monkeypatch.setattr(sse, "SEND_TIMEOUT", 0.3)
        body = asking("shout")
        with _deaf(service, body, headers_of(body)):
            until(lambda: [task["status"] for task in eve.get("/tasks").json()["items"]] == ["Completed"])
            _let_go(service, eve)


@contextmanager
def _deaf(service: ServiceThread, body: Json, headers: dict[str, str]) -> Iterator[None]:
    """A client of Eve's that sends a call and reads nothing of the answer."""
    data = json.dumps(body).encode()
    headers = {**headers, "authorization": "Bearer eve", "content-type": "application/json"}
    head = f"POST {service.prefix}/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", service.port))
        link.sendall(head.encode() + b"\r\n" + data)
        yield


def _let_go(service: ServiceThread, *clients: httpx.Client) -> None:
    """Returns when the service has ended the connections of all but these clients, who leave."""
    for client in clients:
        client.close()
    until(lambda: not connections(service))
