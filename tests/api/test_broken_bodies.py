"""Broken bodies and headers on every route that takes a body, of every protocol: never a fault of ours."""

import http.client
import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from a2a_talk import VERSION
from broken_bodies import broken
from mcp_talk import headers_of
from right_bodies import RIGHT, fresh
from served_routes import PATHS, PROTOCOLS, Place, places
from talk import working_service
from wire import NOBODYS, Json

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread

#: bodies of each protocol
FEW, MANY = 300, 10_000
#: the largest answer that says what is wrong
LONGEST = 8000
#: the codes by which each protocol says that it does not understand a body
MALFORMED = re.compile(r'"(?:code|reason)": ?"?(?:invalid_request"|INVALID_|-3260\d|-32700)')
#: the path of each protocol, and texts that mean something somewhere in its bodies
WORDS: Mapping[str, list[Any]] = {
    "": ["image", "reject", NOBODYS, "2999-01-01T00:00:00Z"],
    "/openai/v1": [
        *("message", "mcp_call", "reasoning", "item_reference", "function_call", "input_file", "tool"),
        *(f"conv_{NOBODYS}", f"resp_{NOBODYS}_2"),
    ],
    "/a2a": [
        *(NOBODYS, "ROLE_USER", "ROLE_AGENT", "TASK_STATE_WORKING", "SendMessage", "ListTasks", "tasks/get"),
        *("x/y", "null", "Infinity", 99, 1.5, 2**31, 2**53 + 1, {"@type": "x"}, {"fields": {}}, ["x"] * 150),
        *({"nullValue": None}, [{}], {"": ""}, "\u2028", "a" * 3000),
    ],
    "/ag-ui": [
        *("user", "assistant", "tool", "reasoning", "activity", "image", "cancelled", "0.9"),
        f"msg_{NOBODYS}_9",
    ],
    "/mcp": [
        *("tools/call", "ask", "decide", "initialize", "ping", "2025-11-25", "2026-07-28", "1999-01-01"),
        "tasks/get",
    ],
}
HEADERS = ("mcp-session-id", "mcp-param-x", "last-event-id", "content-encoding", "a2a-version", "accept")
VALUES = ("", "x", "2025-11-25", "2026-07-28", "tools/list", "*/*", "=?base64?x?=", "0.3", "gzip")
OWN_HEADERS = ("idempotency-key", "prefer", "x-conversation-id", "content-type")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(protocols=list(PROTOCOLS)) as pair:
        yield pair


def taking(service: ServiceThread, protocol: str) -> list[Place]:
    """The routes of a protocol that take a body."""
    found = [place for place in places(service) if place.method in ("POST", "PATCH")]
    return [place for place in found if place.protocol == protocol]


def test_every_route_that_takes_a_body_has_right_ones(service: ServiceThread) -> None:
    """A new one cannot be forgotten."""
    found = [place.name for protocol in PATHS for place in taking(service, protocol)]
    assert sorted(found) == sorted(RIGHT)


def headers(protocol: str, right: Json) -> dict[str, str]:
    """The headers that go with a right body."""
    special: dict[str, str] = {}
    if protocol == "/a2a":
        special = {"a2a-version": "0.3"} if "/" in right.get("method", "") else VERSION
    elif protocol == "/mcp":
        special = headers_of(right, "2025-11-25" if right.get("method") == "initialize" else "2026-07-28")
        if "method" not in right:  # an answer goes to the session in which it was asked for
            special["mcp-session-id"] = NOBODYS
    return {"content-type": "application/json", **special}


@pytest.mark.parametrize("protocol", PATHS)
def test_right_bodies_are_understood(service: ServiceThread, protocol: str) -> None:
    """They are refused at most because nothing has their ids: what is broken of them is all that is wrong."""
    rng = random.Random(protocol)
    for place in taking(service, protocol):
        for n, right in enumerate(RIGHT[place.name]):
            user = f"{place.name} {n}".replace(" ", "_")
            with service.client(user) as client:
                sent, body = headers(protocol, right), fresh(rng, right, user)
                answer = client.request(place.method, place.path, json=body, headers=sent)
            assert answer.status_code == 404 or not MALFORMED.search(answer.text), (right, answer.text)
            if place.name == "POST /tasks/import":
                assert answer.status_code == 201, answer.text


def send_broken(service: ServiceThread, protocol: str, count: int) -> None:
    rng = random.Random(f"{protocol} {count}")
    where = taking(service, protocol)
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)) as connection:
        for n in range(count):
            place = where[n % len(where)]
            # the model may be called: each time for another user, so that none has too many requests
            user = f"fuzz{n % 100}"
            right = fresh(rng, rng.choice(RIGHT[place.name]), user)
            sent = headers(protocol, right)
            if rng.random() < 0.3:
                sent[rng.choice([*sent, *HEADERS, *OWN_HEADERS])] = rng.choice(VALUES)
            if rng.random() < 0.1:
                sent.pop(rng.choice(list(sent)))
            sent["authorization"] = f"Bearer {user}"
            body = broken(rng, right, WORDS.get(protocol, ()))
            connection.request(place.method, service.prefix + place.path, body, sent)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status < 500, (place, sent, body, said)
            judge(protocol, answer.status, answer.headers.get_content_type(), said, (place, sent, body))


def judge(protocol: str, status: int, kind: str, said: bytes, sent: Any) -> None:
    """An error has the form of its protocol, says what is wrong, and is no fault of ours."""
    assert b'"internal_error"' not in said, (sent, said)
    # A2A 0.3 has no code for a version
    assert b"-32603" not in said or b"is not supported" in said, (sent, said)
    if status < 400:
        return
    assert len(said) < LONGEST, (sent, said)
    if protocol == "/mcp" and kind != "application/json":
        return
    document = json.loads(said)
    if protocol == "":
        assert (kind, document["status"]) == ("application/problem+json", status), (sent, said)
        assert document["detail"], sent
    elif protocol == "/ag-ui":
        assert document["type"] == "RUN_ERROR", (sent, said)
    else:
        assert document["error"]["message"], (sent, said)
    if protocol == "/openai/v1":
        assert document["error"]["type"] == "invalid_request_error", (sent, said)


@pytest.mark.parametrize("protocol", PATHS)
def test_no_body_is_our_fault(
    service: ServiceThread, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever comes gets an error that says why, never a 5xx, and nothing is logged as ours."""
    caplog.clear()
    send_broken(service, protocol, FEW)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PATHS)
def test_no_body_of_ten_thousand_is_our_fault(service: ServiceThread, protocol: str) -> None:
    send_broken(service, protocol, MANY)
