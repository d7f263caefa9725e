"""Small promises of the wire that clients trip over where they are not kept."""

import asyncio
import json
import logging
import re
import select
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_routes import PATHS, PROTOCOLS, places
from talk import call, connections, paused, send, working_service
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from wire import NOBODYS, Json, events, problem, streamed, text

from tealagents.bootstrap import once_at_a_time
from tealagents.testing.service import ServiceThread, offline_service
from tealagents.testing.waits import until


def limited() -> Iterator[ServiceThread]:
    with offline_service(limits={"max_body_bytes": 1000}) as (service, _):
        yield service


small_bodies = pytest.fixture(scope="module")(limited)


@pytest.mark.parametrize("size", [1001, 1500, 200_000])
def test_a_body_of_unknown_length_that_is_too_large_is_answered(
    small_bodies: ServiceThread, size: int
) -> None:
    """Sent in chunks, the last of which crosses the limit: 413 at once, as with a length. covers: APP-6"""
    with small_bodies.client() as ada:

        def pieces() -> Iterator[bytes]:
            yield b"x" * size

        answer = ada.post("", content=pieces(), headers={"content-type": "application/json"})
        problem(answer, 413, "too_large")
        assert ada.post("", json=text("hello")).status_code == 200


def test_a_chunked_body_is_taken(small_bodies: ServiceThread) -> None:
    """However it is cut."""
    body = json.dumps(text("hello")).encode()
    with small_bodies.client() as ada:
        cut = iter([body[:7], body[7:9], b"", body[9:]])
        answer = ada.post("", content=cut, headers={"content-type": "application/json"})
        assert answer.json()["status"] == "Completed"


def test_half_a_chunked_body_is_forgotten(
    small_bodies: ServiceThread, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that leaves in the middle is no error."""
    head = (
        f"POST {small_bodies.prefix} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer leaver\r\n"
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    )
    with socket.create_connection(("127.0.0.1", small_bodies.port)) as sock:
        sock.sendall(head.encode())
        until(lambda: connections(small_bodies))
    until(lambda: not connections(small_bodies))
    with small_bodies.client("leaver") as client:
        assert client.get("/tasks").raise_for_status().json()["items"] == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_pause_is_decided_under_the_version_that_is_served_now(tmp_path: Path) -> None:
    """Version 0.2 of an agent continues the tasks of 0.1, their pauses too. covers: HITL-1, STATE-3"""
    env = {"TA_PERSISTENCE": f"sqlite:///{tmp_path}/state.db"}
    with working_service(env=env) as (old, _), old.client() as ada:
        pause = paused(ada, call("Work-write", file=str(tmp_path / "f"), line="one"))
        assert pause["approval_url"].startswith(old.prefix)
    name = f"/requests/{pause['request_id']}"
    with working_service(env=env, version="0.2") as (new, _), new.client() as ada:
        assert new.prefix != old.prefix
        shown = ada.get(name).json()["content"]
        (replayed,) = [e for e in events(ada.get(f"{name}/events").text) if e.name == "approval-required"]
        for content in (shown, replayed.data["content"]):
            assert content["approval_url"] == content["rejection_url"]
            assert content["approval_url"].startswith(f"{new.prefix}/requests/")
        decided = httpx.post(
            new.root + shown["approval_url"],
            json={"action": "approve"},
            headers={"authorization": "Bearer ada"},
        )
        assert decided.json()["status"] == "Completed"


def test_pieces_of_an_answer_name_the_version_that_gave_it(tmp_path: Path) -> None:
    """As its end does, whichever version they are read from: the data of one event id stay what they were."""
    env = {"TA_PERSISTENCE": f"sqlite:///{tmp_path}/state.db"}
    with working_service(env=env) as (old, _), old.client() as ada:
        found = streamed(ada, "/sse", text("hello"))
    with working_service(env=env, version="0.2") as (new, _), new.client() as ada:
        read = events(ada.get(f"/requests/{found[0].data['request_id']}/events").text)
        assert [(event.number, event.data) for event in read] == [(e.number, e.data) for e in found]
        assert found[1].data["source"] == found[-1].data["content"]["source"] == "Tester:0.1"


def test_who_only_decides_is_not_sent_where_they_may_not_read(tmp_path: Path) -> None:
    """An approver's 202 names no address; the owner's does. covers: HITL-1"""
    auth = {"provider": "mock", "options": {"approver_users": ["boss"]}}
    background = {"prefer": "respond-async"}
    with working_service(auth=auth) as (service, _), service.client() as ada, service.client("boss") as boss:
        for decides, shown in ((boss, False), (ada, True)):
            pause = paused(ada, call("Work-write", file=str(tmp_path / "f"), line="one"))
            url = f"/requests/{pause['request_id']}/resume"
            answer = decides.post(url, json={"action": "approve"}, headers=background)
            assert (answer.status_code, "location" in answer.headers) == (202, shown)


def test_errors_contain_the_ids_that_a_path_names(small_bodies: ServiceThread) -> None:
    """Also where nothing of that id exists, or it is another's. covers: APP-6"""
    with small_bodies.client() as ada, small_bodies.client("eve") as eve:
        found = send(ada, "hello")
        for kind in ("session", "task", "request"):
            missing = problem(ada.get(f"/{kind}s/{NOBODYS}"), 404, "not_found")
            assert missing[f"{kind}_id"] == NOBODYS
            refused = problem(eve.get(f"/{kind}s/{found[f'{kind}_id']}"), 401, "not_owner")
            assert refused[f"{kind}_id"] == found[f"{kind}_id"]


def test_where_to_go_is_shown(small_bodies: ServiceThread) -> None:
    """No route, no such method, nothing in the body: the text says what to do. covers: APP-6"""
    with small_bodies.client() as ada:
        assert f"{small_bodies.prefix}/docs" in problem(ada.get("/nope"), 404, "not_found")["detail"]
        assert (
            "use DELETE, GET, PATCH"
            in problem(ada.put(f"/tasks/{NOBODYS}"), 405, "method_not_allowed")["detail"]
        )
        assert "is missing" in problem(ada.post(""), 422, "invalid_request")["detail"]


def test_a_fork_needs_no_body_and_says_where_it_is(small_bodies: ServiceThread) -> None:
    """201 with `Location`, for a fork and for an import. covers: THREAD-5"""
    with small_bodies.client() as ada:
        task_id = send(ada, "hello")["task_id"]
        forked = ada.post(f"/tasks/{task_id}/fork")
        assert forked.status_code == 201
        assert forked.headers["location"] == f"{small_bodies.prefix}/tasks/{forked.json()['task_id']}"
        found = httpx.get(
            small_bodies.root + forked.headers["location"], headers={"authorization": "Bearer ada"}
        )
        assert found.json() == forked.json()


def test_null_is_as_good_as_left_out(small_bodies: ServiceThread) -> None:
    """Clients that write out what they have not, as many generated ones do, are understood."""
    nothing: dict[str, Any] = dict.fromkeys(("session_id", "task_id", "user_context", "metadata"))
    with small_bodies.client() as ada:
        task_id = send(ada, "hello", **nothing)["task_id"]
        ada.patch(f"/tasks/{task_id}", json={"metadata": {"a": 1, "b": {"c": 2}}}).raise_for_status()
        cleared = ada.patch(f"/tasks/{task_id}", json={"metadata": None}).json()
        assert cleared["metadata"] == {}


def test_browsers_may_send_and_see_what_they_need() -> None:
    """Trace context and what tools may read may come along; what was preferred may be seen. covers: APP-5"""
    with (
        offline_service(
            env={"TA_FORWARD_HEADERS": "X-Team"}, cors_origins=["https://app.example"], protocols=[*PROTOCOLS]
        ) as (service, _),
        service.client() as ada,
    ):
        wanted = "authorization,content-type,traceparent,tracestate,x-team"
        for path in PATHS:
            asked = ada.options(
                path,
                headers={
                    "origin": "https://app.example",
                    "access-control-request-method": "POST",
                    "access-control-request-headers": wanted,
                },
            )
            assert asked.status_code == 200, path
        answer = ada.post(
            "", json=text("hi"), headers={"origin": "https://app.example", "prefer": "respond-async"}
        )
        assert "preference-applied" in answer.headers["access-control-expose-headers"]


def test_a_page_can_read_an_internal_error() -> None:
    """As it can any other: without a word about its origin the browser hides even the status."""
    origin = "https://app.example"
    with offline_service(cors_origins=[origin]) as (service, _), service.client() as ada:

        async def fails(*_: object, **__: object) -> None:
            raise RuntimeError("of our own making")

        service.app.exchange.catalog.tasks = fails
        answer = ada.get("/tasks", headers={"origin": origin})
        problem(answer, 500, "internal_error")
        assert answer.headers["access-control-allow-origin"] == origin


async def test_probes_at_once_ask_the_store_once() -> None:
    """Who may ask without a token does not take the connections of users."""
    with offline_service() as (service, _):
        exchange = service.app.exchange
        probe = exchange.settings.dependencies["store"]
        asked, pinged, all_asked = [], [], asyncio.Event()

        async def ask() -> Json:
            asked.append(1)
            if len(asked) == 20:
                all_asked.set()
            return dict(await probe())

        async def ping() -> None:
            pinged.append(1)
            await all_asked.wait()

        exchange.settings.dependencies["store"] = ask
        exchange.service.records.store.ping = ping
        async with service.async_client(None) as anonymous:
            answers = await asyncio.gather(*(anonymous.get("/health/ready") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            assert len(pinged) == 1
            assert (await anonymous.get("/health/ready")).status_code == 200
        assert len(pinged) == 2


async def test_a_probe_is_answered_with_its_own_look_although_the_next_has_begun() -> None:
    """Two load balancers that ask at nearly the same time: the first one's answer was a 500."""
    begun: list[asyncio.Task[Json]] = []

    async def look() -> Json:
        number = len(begun)
        if number == 1:  # runs when this look is over, and before the one who waits for it continues
            asyncio.get_running_loop().call_soon(lambda: begun.append(asyncio.create_task(asks())))
        else:
            await asyncio.sleep(0.01)
        return {"look": number}

    asks = once_at_a_time(look)
    begun.append(asyncio.create_task(asks()))
    assert await begun[0] == {"look": 1}
    assert await begun[1] == {"look": 2}


def test_a_health_check_shows_no_address(tmp_path: Path) -> None:
    """Who may ask without a token does not learn where the store is."""
    with offline_service() as (service, _), service.client(None) as anonymous:
        store = service.app.exchange.service.records.store

        async def away() -> None:
            raise store.unavailable("ConnectionError: db.internal:5432 refused")

        store.ping = away
        health = anonymous.get("/health")
        assert "db.internal" not in health.text
        assert health.json()["dependencies"]["store"]["status"] == "unavailable"


def test_a_comment_is_a_line_and_no_event() -> None:
    """Between events no blank line comes that some clients would take for an empty event. covers: FLOW-2"""
    script = {"rules": [{"when": "wait", "reply": {"text": "at last", "headers_delay_ms": 10**9}}]}
    limits = {"keepalive_seconds": 0.05}
    with offline_service(script, limits=limits) as (service, model), service.client() as ada:
        received = ""
        with ada.stream("POST", "/sse", json=text("wait")) as stream:
            for piece in stream.iter_text():
                received += piece
                if received.count(": keepalive\n") > 2:
                    model.release()
        assert received.count(": keepalive\n") > 2
        assert ": keepalive\n\n" not in received
        assert [event.name for event in events(received)][-1] == "final-response"


def test_a_connection_stays_open_for_longer_than_a_proxy_keeps_it() -> None:
    """A proxy that keeps it for the usual minute never sends into one that is being closed."""
    with offline_service(moved=True) as (service, _):
        kept = HTTPConnection("127.0.0.1", service.port)
        for _ in range(3):
            kept.request("GET", f"{service.prefix}/health/live")
            answer = kept.getresponse()
            assert (answer.status, answer.read()[:1]) == (200, b"{")
            service.advance(61)

        def is_closed() -> bool:
            service.advance(76)
            return bool(select.select([kept.sock], [], [], 0.1)[0])

        until(is_closed)
        assert kept.sock.recv(1) == b""
        kept.close()


def test_what_is_sent_ahead_is_answered_in_order(small_bodies: ServiceThread) -> None:
    """Three requests in one write; the answers come in their order."""
    prefix = small_bodies.prefix
    paths = (f"{prefix}/health/live", f"{prefix}/nothing", f"{prefix}/openapi.json")
    asked = [f"GET {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode() for path in paths]
    with socket.create_connection(("127.0.0.1", small_bodies.port), timeout=60) as connection:
        connection.sendall(b"".join(asked[:-1]) + asked[-1][:-2] + b"connection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) == [b"200", b"404", b"200"]
    assert answers.index(b'{"status":"ok"}') < answers.index(b"not_found") < answers.index(b'"openapi"')


def test_no_path_takes_a_websocket() -> None:
    """Of no protocol, with a token as without: a problem document says what to do. covers: APP-4"""
    with offline_service(protocols=list(PROTOCOLS)) as (service, _):
        paths = {place.path for place in places(service)}
        assert len(paths) > 50
        for path in sorted(paths):
            for headers in ({}, {"authorization": "Bearer ada"}):
                with pytest.raises(InvalidStatus) as refused:
                    connect(service.url.replace("http", "ws", 1) + path, additional_headers=headers)
                response = refused.value.response
                assert response.headers["content-type"] == "application/problem+json"
                document = json.loads(response.body)
                assert (response.status_code, document["status"], document["code"]) == (404, 404, "not_found")
                assert "There is no WebSocket at" in document["detail"]
                assert "stream over HTTP" in document["detail"]


def test_documents_for_discovery_refuse_other_methods_as_problems() -> None:
    """Over every protocol, without a token. covers: APP-6"""
    with offline_service(protocols=list(PROTOCOLS)) as (service, _):
        known = f"{service.root}/.well-known"
        metadata = [f"{known}/oauth-protected-resource{service.prefix}{path}" for path in PATHS]
        cards = [f"{at}/agent-card.json" for at in (known, f"{service.url}/a2a/.well-known")]
        for url in (*metadata, *cards):
            for method in ("PUT", "POST", "DELETE", "OPTIONS"):
                answer = httpx.request(method, url)
                assert "GET" in problem(answer, 405, "method_not_allowed")["detail"], url
                assert "GET" in answer.headers["allow"], url


def test_head_is_there_where_get_is(small_bodies: ServiceThread) -> None:
    """As `wget --spider` and `curl -I` ask; of a stream only the head is sent."""
    with small_bodies.client(None) as anonymous:
        for path in ("/health", "/health/live", "/health/ready"):
            assert (anonymous.head(path).status_code, anonymous.head(path).content) == (200, b"")
        assert anonymous.head("/tasks").status_code == 401
    with small_bodies.client() as ada:
        assert (ada.head("/tasks").status_code, ada.head("/tasks").content) == (200, b"")
        request_id = send(ada, "hello")["request_id"]
        events = ada.head(f"/requests/{request_id}/events")
        assert (events.status_code, events.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert ada.head("/sse").status_code == 405


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tasks/{task_id}/messages"),
        ("GET", "/tasks/{task_id}/trace"),
        ("GET", "/tasks/{task_id}/audit"),
        ("GET", "/tasks/{task_id}/checkpoints"),
        ("GET", "/tasks/{task_id}/export"),
        ("GET", "/requests/{request_id}/prompt"),
        ("POST", "/tasks/{task_id}/fork"),
    ],
)
def test_a_task_that_is_deleted_while_it_is_read_is_not_found(method: str, path: str, tmp_path: Path) -> None:
    """A client that reads meanwhile learns that it is gone, not that it is damaged. covers: TASK-3"""
    env = {"TA_PERSISTENCE": f"sqlite:///{tmp_path}/state.db"}
    with offline_service(env=env) as (service, _), service.client() as ada:
        first = send(ada, "hello")
    with offline_service(env=env) as (service, _), service.client() as ada:  # and with no history at hand
        api = service.app.exchange
        scan = api.service.records.scan

        async def deleted_first(partition: str, prefix: str, *args: Any, **options: Any) -> Any:
            if prefix.startswith("log/"):
                api.service.records.scan = scan
                await api.eraser.delete_task(partition, first["task_id"])
            return await scan(partition, prefix, *args, **options)

        api.service.records.scan = deleted_first
        problem(ada.request(method, path.format(**first)), 404, "not_found")
