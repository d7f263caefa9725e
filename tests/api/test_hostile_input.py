"""Whatever is sent, the answer is a 4xx that names what is wrong, and the service keeps working."""

import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import AfterValidator, BaseModel
from wire import JSON, NOBODYS, Json, problem, text

from tealagents.api import bodies
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.json_limits import MOST_EXTREMES
from tealagents.testing.service import ServiceThread

GOOD = json.dumps(text("hello")).encode()
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(autouse=True)
def _nothing_fails_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test of this module leaves an error, or a warning of the service's own, in the log."""
    with caplog.at_level(logging.INFO):
        yield
    bad = [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info]
    assert not bad, [record.getMessage() for record in bad]


def body(**changed: Any) -> bytes:
    return json.dumps({**text("hello"), **changed}).encode()


def item(**fields: Any) -> bytes:
    return json.dumps({"items": [fields]}).encode()


def metadata(literal: bytes) -> bytes:
    return GOOD[:-1] + b', "metadata": {"a": [' + literal + b"]}}"


#: body → status and field
BODIES: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "body"),
    "blanks": (b"  \n ", 400, "body"),
    "half an object": (b'{"items": [', 400, "body"),
    "two values": (GOOD + GOOD, 400, "body"),
    "single quotes": (b"{'items': []}", 400, "body"),
    "a comment": (b"/* */" + GOOD, 400, "body"),
    "a trailing comma": (GOOD[:-1] + b",}", 400, "body"),
    "no UTF-8": (b'{"items": "\xff\xfe"}', 400, "body"),
    "an overlong NUL": (b'{"items": "\xc0\x80"}', 400, "body"),
    "UTF-16": (GOOD.decode().encode("utf-16"), 400, "body"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, 400, "body"),
    "a raw control character": (b'{"items": [{"content_type": "text", "content": "a\nb"}]}', 400, "body"),
    "NaN": (metadata(b"NaN"), 400, "body"),
    "minus infinity": (metadata(b"-Infinity"), 400, "body"),
    "an infinite number": (metadata(b"1e999"), 400, "body"),
    "a number of 5,000 digits": (metadata(b"9" * 5000), 400, "body"),
    "a number of 30 digits": (metadata(b"9" * 30), 422, "metadata.a.0"),
    "a number below 64 bits": (metadata(b"-9223372036854775809"), 422, "metadata.a.0"),
    "100,000 brackets": (b"[" * 100_000, 422, "body"),
    "100,000 objects": (b'{"a":' * 100_000, 422, "body"),
    "100 levels": (metadata(b"[" * 100 + b"]" * 100), 422, "body"),
    "a list": (b"[" + GOOD + b"]", 422, "body"),
    "a text": (json.dumps(GOOD.decode()).encode(), 422, "body"),
    "null": (b"null", 422, "body"),
    "true": (b"true", 422, "body"),
    "an empty object": (b"{}", 422, "items"),
    "no items": (body(items=[]), 422, "items"),
    "items null": (body(items=None), 422, "items"),
    "items an object": (body(items={"0": {}}), 422, "items"),
    "items a text": (body(items="hello"), 422, "items"),
    "an item null": (body(items=[None]), 422, "items.0"),
    "an item a text": (body(items=["hello"]), 422, "items.0"),
    "10,000 items": (body(items=text("x")["items"] * 10_000), 422, "items"),
    "101 items": (body(items=text("x")["items"] * 101), 422, "items"),
    "a content type left out": (item(content="x"), 422, "items.0.content_type"),
    "an unknown content type": (item(content_type="audio", content="x"), 422, "items.0.content_type"),
    "a content type in capitals": (item(content_type="TEXT", content="x"), 422, "items.0.content_type"),
    "content left out": (item(content_type="text"), 422, "items.0.content"),
    "empty content": (item(content_type="text", content=""), 422, "items.0.content"),
    "content a number": (item(content_type="text", content=7), 422, "items.0.content"),
    "content a list": (item(content_type="text", content=["x"]), 422, "items.0.content"),
    "an unknown field of an item": (
        item(content_type="text", content="x", role="system"),
        422,
        "items.0.role",
    ),
    "the second item wrong": (body(items=[*text("x")["items"], {}]), 422, "items.1.content_type"),
    "an image by URL": (
        item(content_type="image", content="https://host.example/a.png"),
        422,
        "items.0.content",
    ),
    "an image by file": (item(content_type="image", content="file:///etc/passwd"), 422, "items.0.content"),
    "a data URI of text": (
        item(content_type="image", content="data:text/html;base64,eA=="),
        422,
        "items.0.content",
    ),
    "a data URI not base64": (
        item(content_type="image", content="data:image/png,abc"),
        422,
        "items.0.content",
    ),
    "an image without bytes": (
        item(content_type="image", content="data:image/png;base64,"),
        422,
        "items.0.content",
    ),
    "base64 with a star": (item(content_type="image", content=PNG + "*"), 422, "items.0.content"),
    "base64 too short": (item(content_type="image", content=PNG[:-1]), 422, "items.0.content"),
    "base64 with a line break": (item(content_type="image", content=PNG + "\n"), 422, "items.0.content"),
    "base64 in other letters": (item(content_type="image", content=PNG + "ä"), 422, "items.0.content"),
    "chat_history": (body(chat_history=[]), 422, "chat_history"),
    "an unknown field": (body(stream=True), 422, "stream"),
    "an unknown field of 100,000 letters": (body(**{"k" * 100_000: 1}), 422, "k" * 200 + "…"),
    "__proto__": (body(__proto__={}), 422, "__proto__"),
    "the client's own request_id": (body(request_id=NOBODYS), 422, "request_id"),
    "user_context of numbers": (body(user_context={"a": 1}), 422, "user_context.a"),
    "user_context a list": (body(user_context=[]), 422, "user_context"),
    "user_context too large": (body(user_context={"a": "x" * 70_000}), 422, "user_context"),
    "metadata a list": (body(metadata=[]), 422, "metadata"),
    "metadata a text": (body(metadata="x"), 422, "metadata"),
    "metadata too large": (body(metadata={"a": "x" * 70_000}), 422, "metadata"),
    "supersede a text": (body(supersede="yes"), 422, "supersede"),
    "supersede a number": (body(supersede=1), 422, "supersede"),
    "a NUL": (item(content_type="text", content="a\0b"), 422, "items.0.content"),
    "a NUL in a key": (body(metadata={"a": {"b\0": 1}}), 422, "metadata.a"),
    "a lone surrogate": (item(content_type="text", content="\ud800"), 422, "items.0.content"),
    "surrogates the wrong way round": (
        item(content_type="text", content="\udc00\ud800"),
        422,
        "items.0.content",
    ),
    "a lone surrogate in metadata": (body(metadata={"a": ["\udfff"]}), 422, "metadata.a.0"),
    "a lone surrogate in a key": (body(**{"\ud800": 1}), 422, "body"),
}

IDS = {
    "empty": "",
    "a word": "me",
    "a number": 7,
    "a list": [NOBODYS],
    "urn:uuid:": f"urn:uuid:{NOBODYS}",
    "braces": f"{{{NOBODYS}}}",
    "no hyphens": NOBODYS.replace("-", ""),
    "one digit less": NOBODYS[:-1],
    "one digit more": NOBODYS + "0",
    "a line break behind it": NOBODYS + "\n",
    "a blank before it": " " + NOBODYS,
    "other digits": NOBODYS.replace("1", "\u0661"),
    "a path": "../" + NOBODYS,
    "the nil UUID": "00000000-0000-0000-0000-000000000000",
    "a megabyte": "6" * 1_000_000,
}

#: as part of a path
PATH_IDS = {
    **{n: quote(str(v), safe="") for n, v in IDS.items() if 0 < len(str(v)) < 99 and "/" not in str(v)},
    "a NUL": NOBODYS[:-1] + "%00",
    "a lone surrogate": "%ED%A0%80",
    "no UTF-8": "%ff",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_is_refused_by_name(ada: httpx.Client, name: str) -> None:
    """The field is named, as JSON and as a stream, and nothing of it is stored. `chat_history` and unknown
    types of items are among them. covers: MODEL-1, MODEL-2, MODEL-3"""
    content, status, field = BODIES[name]
    for path in ("", "/sse"):
        problem(ada.post(path, content=content, headers=JSON), status, "invalid_request", field)


@pytest.mark.parametrize("field", ["session_id", "task_id"])
@pytest.mark.parametrize("name", IDS)
def test_a_malformed_id_in_a_body_is_refused_by_name(ada: httpx.Client, name: str, field: str) -> None:
    """An id is a UUID in the canonical form and nothing else. covers: MODEL-3"""
    answer = ada.post("", content=body(**{field: IDS[name]}), headers=JSON)
    problem(answer, 422, "invalid_request", field)


ID_PATHS = {
    "session_id": [("GET", "/sessions/{}"), ("DELETE", "/sessions/{}"), ("GET", "/tasks?session_id={}")],
    "task_id": [
        *(
            ("GET", f"/tasks/{{}}{view}")
            for view in ("", "/messages", "/trace", "/checkpoints", "/audit", "/export")
        ),
        *(("POST", f"/tasks/{{}}/{act}") for act in ("rollback", "fork")),
        ("PATCH", "/tasks/{}"),
        ("DELETE", "/tasks/{}"),
    ],
    "request_id": [
        ("GET", "/requests/{}"),
        ("GET", "/requests/{}/events"),
        ("POST", "/requests/{}/cancel"),
        *(("POST", f"/requests/{{}}/resume{way}") for way in ("", "/sse")),
        *(("POST", f"/tealagents/v1alpha1/resume/{{}}{way}") for way in ("", "/sse")),
    ],
    "approval_id": [("POST", f"/requests/{NOBODYS}/resume?approval_id={{}}")],
    "checkpoint_id": [("GET", f"/tasks/{NOBODYS}/messages?checkpoint_id={{}}")],
}


@pytest.mark.parametrize("field", ID_PATHS)
def test_a_malformed_id_in_a_url_is_refused_by_name(ada: httpx.Client, field: str) -> None:
    """On every path, before anything is looked up. covers: MODEL-3"""
    for method, path in ID_PATHS[field]:
        for name, value in PATH_IDS.items():
            sent = {"action": "approve"} if "resume" in path else None
            answer = ada.request(method, path.format(value), json=sent if method != "GET" else None)
            if field == "checkpoint_id":  # the task of that path is looked up first
                assert answer.status_code in (404, 422), name
            else:
                problem(answer, 422, "invalid_request", field)


def test_an_id_in_capitals_is_the_same_id(ada: httpx.Client) -> None:
    """UUIDs are compared without regard to case and returned in lower case (RFC 9562)."""
    session = "ABCDEF12-51F0-4C8E-9D53-0A4B7C1D2E3F"
    first = ada.post("", json=text("hello", session_id=session)).raise_for_status().json()
    assert first["session_id"] == session.lower()
    second = ada.post("", json=text("again", task_id=first["task_id"].upper(), session_id=session))
    assert second.json()["task_id"] == first["task_id"]
    assert ada.get(f"/tasks/{first['task_id'].upper()}").json()["task_id"] == first["task_id"]


COMMANDS: dict[str, tuple[str, Json, str]] = {
    "rollback without a checkpoint": ("/tasks/{task}/rollback", {}, "checkpoint_id"),
    "rollback to a name": ("/tasks/{task}/rollback", {"checkpoint_id": "first"}, "checkpoint_id"),
    "rollback to the nil UUID": (
        "/tasks/{task}/rollback",
        {"checkpoint_id": "00000000-0000-0000-0000-000000000000"},
        "checkpoint_id",
    ),
    "rollback with more": ("/tasks/{task}/rollback", {"checkpoint_id": NOBODYS, "hard": True}, "hard"),
    "fork at both": ("/tasks/{task}/fork", {"checkpoint_id": NOBODYS, "message_id": NOBODYS}, "message_id"),
    "fork at a name": ("/tasks/{task}/fork", {"message_id": "last"}, "message_id"),
    "fork with more": ("/tasks/{task}/fork", {"name": "copy"}, "name"),
    "an unknown action": ("/requests/{request}/resume", {"action": "ignore"}, "action"),
    "a decision without an id": (
        "/requests/{request}/resume",
        {"decisions": [{"action": "approve"}]},
        "decisions.0.id",
    ),
    "a decision with more": (
        "/requests/{request}/resume",
        {"decisions": [{"id": "1", "action": "approve", "force": True}]},
        "decisions.0.force",
    ),
    "arguments as text": (
        "/requests/{request}/resume",
        {"decisions": [{"id": "1", "action": "approve", "arguments": "{}"}]},
        "decisions.0.arguments",
    ),
    "an endless reason": ("/requests/{request}/resume", {"action": "reject", "reason": "x" * 4001}, "reason"),
    "resume with more": ("/requests/{request}/resume", {"action": "approve", "all": True}, "all"),
    "import of nothing": ("/tasks/import", {}, "format"),
    "import of something else": ("/tasks/import", {"format": "zip"}, "format"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_malformed_command_is_refused_by_name(ada: httpx.Client, name: str) -> None:
    """Commands are checked as messages are, also on a task that exists. covers: MODEL-3"""
    known = ada.post("", json=text("hello")).json()
    path, sent, field = COMMANDS[name]
    path = path.format(task=known["task_id"], request=known["request_id"])
    problem(ada.post(path, json=sent), 422, "invalid_request", field)


PATCHES: dict[str, tuple[Json, str]] = {
    "metadata a list": ({"metadata": []}, "metadata"),
    "metadata too large": ({"metadata": {"a": "x" * 70_000}}, "metadata"),
    "a time without an offset": ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    "a date": ({"expires_at": "2030-01-01"}, "expires_at"),
    "a number of seconds": ({"expires_at": 1_900_000_000}, "expires_at"),
    "a number as text": ({"expires_at": "1900000000"}, "expires_at"),
    "the 32nd": ({"expires_at": "2030-01-32T00:00:00Z"}, "expires_at"),
    "beyond the calendar": ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
    "before the calendar": ({"expires_at": "0001-01-01T00:00:00+12:00"}, "expires_at"),
    "the status": ({"status": "Completed"}, "status"),
    "the owner": ({"owner": {"tid": "mock", "oid": "eve"}}, "owner"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_malformed_patch_is_refused_and_changes_nothing(ada: httpx.Client, name: str) -> None:
    """Only metadata and expiry can be changed, and only to what they can be."""
    task = ada.post("", json=text("hello")).json()["task_id"]
    before = ada.get(f"/tasks/{task}").json()
    sent, field = PATCHES[name]
    problem(ada.patch(f"/tasks/{task}", json=sent), 422, "invalid_request", field)
    assert ada.get(f"/tasks/{task}").json() == before


@pytest.mark.parametrize("path", ["/tasks", "/sessions", "/approvals"])
def test_a_parameter_that_is_given_twice_is_refused_by_name(ada: httpx.Client, path: str) -> None:
    """Either could be meant, also where both say the same."""
    for second in ("1", "2"):
        answer = ada.get(path, params={"limit": ["1", second]})
        assert "twice" in problem(answer, 422, "invalid_request", "limit")["detail"]
    found = ada.get("/tasks", params={"status": ["Failed", "Completed"]})
    problem(found, 422, "invalid_request", "status")
    assert ada.get(path, params={"unknown": ["1", "2"]}).status_code == 200


def test_metadata_that_grows_beyond_the_limit_is_refused(ada: httpx.Client) -> None:
    """The limit is on what is kept, not on what one patch brings."""
    task = ada.post("", json=text("hello", metadata={"a": "x" * 40_000})).json()["task_id"]
    answer = ada.patch(f"/tasks/{task}", json={"metadata": {"b": "x" * 40_000}})
    problem(answer, 422, "invalid_request", "metadata")
    ada.patch(f"/tasks/{task}", json={"metadata": {"b": "x" * 40_000, "a": None}}).raise_for_status()


LISTS = ("/tasks", "/sessions", "/approvals")
LIMITS = ("0", "-1", "201", "x", "1.5", "1e2", "１", "9" * 5000)
CURSORS = ("x", "0", "../..", "\0", "9" * 5000, f"inbox/2026-01-01T00:00:00.000000Z/{NOBODYS}")
FILTERS = (("/tasks", "completed"), ("/tasks", ""), ("/approvals", "Paused"))


def test_a_bad_query_is_refused_by_name(ada: httpx.Client) -> None:
    """Limits, cursors and filters of lists."""
    queries = [(path, "limit", value) for path in LISTS for value in LIMITS]
    queries += [(path, "cursor", value) for path in LISTS for value in CURSORS]
    queries += [(path, "status", value) for path, value in FILTERS]
    for path, field, value in queries:
        problem(ada.get(path, params={field: value}), 422, "invalid_request", field)


def test_a_bad_page_of_a_view_is_refused_or_empty(ada: httpx.Client) -> None:
    """A number that no page has given is beyond the end, however large; anything else is refused."""
    task = ada.post("", json=text("hello")).json()["task_id"]
    for view in ("messages", "trace", "audit", "checkpoints"):
        path = f"/tasks/{task}/{view}"
        for cursor in ("x", "-1", "1.0", "%00", "9" * 13, "٣"):
            problem(ada.get(path, params={"cursor": cursor}), 422, "invalid_request", "cursor")
        for limit in ("0", "201", "x"):
            problem(ada.get(path, params={"limit": limit}), 422, "invalid_request", "limit")
        beyond = ada.get(path, params={"cursor": "9" * 12}).raise_for_status().json()
        assert beyond["next_cursor"] is None
        assert beyond["items"] == (ada.get(path).json()["items"] if view == "checkpoints" else [])


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "+1", "1e3", "٣", "0x1"])
def test_a_bad_last_event_id_is_refused_by_name(ada: httpx.Client, value: str) -> None:
    """The id of the last event is an integer, in the header and in the query."""
    known = ada.post("", json=text("hello")).json()
    path = f"/requests/{known['request_id']}/events"
    problem(ada.get(path, params={"after": value}), 422, "invalid_request", "after")
    headers = [(b"last-event-id", value.encode())]
    problem(ada.get(path, headers=headers), 422, "invalid_request", "Last-Event-ID")


def test_an_event_id_beyond_the_end_has_nothing_behind_it(ada: httpx.Client) -> None:
    """However large it is; and the header wins over the query."""
    known = ada.post("", json=text("hello")).json()
    path = f"/requests/{known['request_id']}/events"
    for after in ("2", "3", "9" * 12, "9" * 5000):
        assert ada.get(path, params={"after": after}).status_code == 204
    assert ada.get(path, params={"after": "0"}, headers={"last-event-id": "99"}).status_code == 204
    answer = ada.get(path, params={"after": "x"}, headers={"last-event-id": "99"})
    problem(answer, 422, "invalid_request", "after")
    doubled = [("last-event-id", "1"), ("last-event-id", "2")]
    problem(ada.get(path, headers=doubled), 422, "invalid_request", "Last-Event-ID")


@pytest.mark.parametrize("value", [b"", b"k" * 256, b"a\tb", b"\xc3\xa4", b"\xff"])
def test_a_bad_idempotency_key_is_refused_by_name(ada: httpx.Client, value: bytes) -> None:
    """A key is 1 to 255 printable characters of ASCII, once."""
    headers = [(b"content-type", b"application/json"), (b"idempotency-key", value)]
    problem(ada.post("", content=GOOD, headers=headers), 422, "invalid_request", "Idempotency-Key")


def test_two_idempotency_keys_are_refused(ada: httpx.Client) -> None:
    """Which one counts would be a guess; the longest single one is taken."""
    twice = [*JSON.items(), ("idempotency-key", "a"), ("idempotency-key", "a")]
    problem(ada.post("", content=GOOD, headers=twice), 422, "invalid_request", "Idempotency-Key")
    ada.post("", content=GOOD, headers={**JSON, "idempotency-key": "k" * 255}).raise_for_status()


TYPES = [
    [],
    [("content-type", "")],
    [("content-type", "text/plain")],
    [("content-type", "application/x-www-form-urlencoded")],
    [("content-type", "multipart/form-data; boundary=x")],
    [("content-type", "application/jsonl")],
    [("content-type", "text/json")],
    [("content-type", "application/json, text/plain")],
    [("content-type", "x" * 30_000)],
    [("content-type", "application/json"), ("content-type", "text/plain")],
]


@pytest.mark.parametrize("headers", TYPES, ids=lambda headers: str(headers)[:60])
def test_a_body_of_another_type_is_refused(ada: httpx.Client, headers: list[tuple[str, str]]) -> None:
    """Only JSON is read, and only where it is said to be JSON."""
    for path in ("", "/sse", "/tasks/import", f"/requests/{NOBODYS}/resume"):
        problem(ada.post(path, content=GOOD, headers=headers), 422, "invalid_request", "Content-Type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"]
)
def test_json_by_any_of_its_names_is_taken(ada: httpx.Client, kind: str) -> None:
    """Parameters, case and structured suffixes do not matter."""
    assert ada.post("", content=GOOD, headers={"content-type": kind}).status_code == 200


def test_a_packed_body_is_refused(ada: httpx.Client) -> None:
    """A small packed body could become a huge one."""
    answer = ada.post("", content=GOOD, headers={**JSON, "content-encoding": "gzip"})
    problem(answer, 422, "invalid_request", "Content-Encoding")


def test_a_body_of_50_megabytes_is_refused(ada: httpx.Client) -> None:
    """Announced or not, on every route that takes a body; the client gets to read why."""

    def chunks() -> Iterator[bytes]:
        for _ in range(800):
            yield b"x" * 65_536

    for path in ("", "/tasks/import"):
        problem(ada.post(path, content=b"x" * 50_000_000, headers=JSON), 413, "too_large")
        problem(ada.post(path, content=chunks(), headers=JSON), 413, "too_large")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_body_just_within_the_limit_is_taken(ada: httpx.Client) -> None:
    """A message of 19 MB is a message."""
    answer = ada.post("", json=text("x" * 19_000_000))
    assert answer.status_code == 200, answer.text[:300]


@pytest.mark.parametrize("each", [b"[],", b"{},", b"1,", b'"",', b'"\\\\",', b'{"a":1},'])
def test_a_body_of_endless_small_values_is_refused_before_they_are_made(
    ada: httpx.Client, each: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take a hundred times their size, and all other requests would wait for them."""
    monkeypatch.setattr(bodies, "VALUES", 1000)
    fits = 1000 // 2 - 10
    problem(ada.post("", content=metadata(each * 5000 + b"1"), headers=JSON), 422, "invalid_request", "body")
    taken = ada.post("", content=metadata(each * fits + b"1"), headers=JSON)
    assert taken.status_code == 200, taken.text


@pytest.mark.parametrize("each", [b"1e308,", b"2.5E-301,", b"-1e+0300,"])
def test_a_body_of_numbers_that_take_long_to_read_is_refused_before_they_are(
    ada: httpx.Client, each: bytes
) -> None:
    """Each takes as long as a thousand others; a few may be there, and texts may look like them."""
    few, many = each * (MOST_EXTREMES - 1) + b"1e300", each * MOST_EXTREMES + b"1e300"
    refused = problem(ada.post("", content=metadata(many), headers=JSON), 422, "invalid_request", "body")
    assert "numbers with three-digit exponents" in refused["detail"]
    for taken in (few, b'"' + many + b'"'):
        answer = ada.post("", content=metadata(taken), headers=JSON)
        assert answer.status_code == 200, answer.text


def test_numbers_that_take_long_to_read_do_not_add_up_in_metadata(ada: httpx.Client) -> None:
    """Whether several bodies bring them, or they are written out: each list that has them would stall."""
    task = ada.post("", json=text("hello")).json()["task_id"]
    half = [1e300] * (MOST_EXTREMES // 2 + 1)
    assert ada.patch(f"/tasks/{task}", json={"metadata": {"a": half}}).status_code == 200
    more = ada.patch(f"/tasks/{task}", json={"metadata": {"b": half}})
    problem(more, 422, "invalid_request", "metadata")
    long = metadata(b",".join([b"1" + b"0" * 300 + b".0"] * (MOST_EXTREMES + 1)))
    problem(ada.post("", content=long, headers=JSON), 422, "invalid_request", "metadata")


@pytest.mark.parametrize("sent", [3, 5000])
def test_of_very_many_mistakes_not_each_is_reported(sent: int, ada: httpx.Client) -> None:
    """A small body may hold a million: to describe each of them takes a gigabyte."""
    items = problem(ada.post("", json={"items": [0] * sent}), 422, "invalid_request", "items.0")
    unknown = ada.post("", json=dict.fromkeys(map(str, range(sent)), 0))
    if sent == 3:
        assert items["detail"].endswith("must be an object (and 2 more: items.1, items.2)")
        problem(unknown, 422, "invalid_request", "items")
    else:
        assert items["detail"].endswith("must be an object")
        assert "5,001 mistakes" in problem(unknown, 422, "invalid_request", "body")["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"items": [{}] * 1000}, "items.0.content_type"),
        ({"user_context": {f"n{n}": n for n in range(1001)}}, "user_context.n0"),
        ({"items": [{}], "user_context": {f"n{n}": n for n in range(1000)}}, "items.0.content_type"),
    ],
)
def test_of_more_mistakes_than_are_reported_the_first_is_named(
    body: Json, field: str, ada: httpx.Client
) -> None:
    """Whether they are in one long list, in an object, or in several that are not long."""
    items = [{"content_type": "text", "content": "hi"}]
    refused = problem(ada.post("", json={"items": items, **body}), 422, "invalid_request", field)
    assert len(refused["detail"]) < 300


def test_a_long_list_is_looked_through_once() -> None:
    """All other requests wait meanwhile."""
    looked: list[int] = []

    class Long(BaseModel):
        items: bodies.Several[Annotated[int, AfterValidator(looked.append)]]

    bodies.validated(Long, {"items": [*range(2 * bodies.MISTAKES)]})
    assert len(looked) == 2 * bodies.MISTAKES


@pytest.mark.parametrize("end", [b'"', b"", b"\\"])
def test_commas_and_brackets_in_a_text_are_no_values(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor behind escaped quotes. A text without an end is what is wrong with its body, however long it is."""
    monkeypatch.setattr(bodies, "VALUES", 10)
    named = json.dumps(dict.fromkeys("abcdefgh", ",")).encode()
    assert bodies.parse(named) == json.loads(named)
    body = b'["' + rb"[{,\"" * 100_000 + end + (b"]" if end == b'"' else b"")
    if end == b'"':
        assert bodies.parse(body) == ['[{,"' * 100_000]
    else:
        with pytest.raises(InvalidRequest, match="JSON"):
            bodies.parse(body)


def test_huge_and_many_headers_do_no_harm(ada: httpx.Client) -> None:
    """Unknown headers are ignored, and a token of 20 KB is no token."""
    assert ada.get("/tasks", headers={"x-noise": "n" * 60_000}).status_code == 200
    assert ada.get("/tasks", headers={f"x-{n}": "n" for n in range(500)}).status_code == 200
    answer = ada.get("/tasks", headers={"authorization": "Bearer " + "a" * 20_000})
    problem(answer, 401, "unauthenticated")
    assert len(answer.headers["www-authenticate"]) < 300


@pytest.mark.parametrize("host", ["[", "[::1", "[::::]", "[1.2.3.4]", "a b", "x:y:z", '"', "\xff", ""])
def test_a_hostile_host_header_breaks_nothing(service: ServiceThread, host: str) -> None:
    """What a client says about where it thinks it is does not matter."""
    with service.client("ada") as client:
        headers = [(b"host", host.encode("latin-1")), (b"authorization", b"Bearer ada")]
        assert client.get("/tasks", headers=headers).status_code == 200
        problem(client.get("/nothing", headers=headers), 404, "not_found")
        problem(client.get("/tasks?limit=0", headers=headers), 422, "invalid_request", "limit")
        discovery = f"{service.root}/.well-known/oauth-protected-resource"
        problem(client.get(discovery, headers=headers), 404, "not_found")


def test_a_value_out_of_its_range_is_refused_in_the_words_of_other_refusals(ada: httpx.Client) -> None:
    """A detail says what a field "must" be, wherever it is found that it is not."""
    assert ada.get("/tasks?limit=201").json()["detail"] == "limit: must be less than or equal to 200"
    refused = ada.post("", json={"items": [{"content_type": "audio", "content": "x"}]}).json()
    assert refused["detail"] == "items.0.content_type: must be 'text' or 'image'"


def test_unknown_paths_and_methods_are_refused_as_problems(ada: httpx.Client) -> None:
    """404 and 405 are problem documents, too; a trailing slash is another path."""
    for path in ("/nothing", "/tasks/", "/tasks/x/y/z", "/%2e%2e/x", "/" + "n" * 3000):
        problem(ada.get(path), 404, "not_found")
    for method, path in (
        ("PUT", "/tasks"),
        ("DELETE", "/tasks"),
        ("GET", ""),
        ("TRACE", "/tasks"),
        ("PATCH", ""),
    ):
        answer = ada.request(method, path)
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"]


@pytest.mark.parametrize("limit", ["1_0", "1.0", " 1", "+1", "1e1", "١", ""])
def test_a_limit_is_a_plain_decimal_number(ada: httpx.Client, limit: str) -> None:
    """What only some languages read as a number is refused."""
    problem(ada.get("/tasks", params={"limit": limit}), 422, "invalid_request", "limit")
    assert ada.get("/tasks?limit=10").status_code == 200


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_an_integer_that_just_fits_into_64_bits_is_kept(ada: httpx.Client, number: int) -> None:
    """The next one is refused."""
    beyond = number - 1 if number < 0 else number + 1
    refused = ada.post("", json={**text("hello"), "metadata": {"n": beyond}})
    problem(refused, 422, "invalid_request", "metadata.n")
    sent = ada.post("", json={**text("hello"), "metadata": {"n": number}})
    assert sent.status_code == 200
    assert ada.get(f"/tasks/{sent.json()['task_id']}").json()["metadata"] == {"n": number}


def test_a_look_at_a_stream_promises_no_length(ada: httpx.Client) -> None:
    """HEAD of events has the headers of GET, which knows no length."""
    request_id = ada.post("", json=text("hello")).json()["request_id"]
    looked = ada.head(f"/requests/{request_id}/events")
    assert (looked.status_code, looked.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert "content-length" not in looked.headers


def test_a_bad_query_without_a_token_is_unauthenticated(service: ServiceThread) -> None:
    """A caller without access is not shown what is wrong with a call. covers: AUTH-1"""
    with service.client(None) as stranger:
        problem(stranger.get("/tasks?limit=0"), 401, "unauthenticated")
        problem(stranger.post("", content=b"{", headers=JSON), 401, "unauthenticated")
        problem(stranger.get(f"/tasks/{'x'}"), 401, "unauthenticated")


def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(service: ServiceThread) -> None:
    """Half a body is no message, and no error in the log."""
    head = f"POST {service.prefix} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada\r\n{JSON_LINE}"
    for size in (200, 30_000_000):
        with socket.create_connection(("127.0.0.1", service.port)) as sock:
            sock.sendall(f"{head}content-length: {size}\r\n\r\n{{".encode())
    with service.client("ada") as client:
        assert client.get("/tasks").status_code == 200


JSON_LINE = "content-type: application/json\r\n"

BROKEN_HTTP = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: \xb2\r\n\r\n{}",
    b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    b"GET %b/\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET %b/tasks HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET %b/health HTTP/1.1\r\n\r\n",
    b"GET %b/health HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("sent", BROKEN_HTTP, ids=lambda sent: repr(sent)[:70])
def test_what_is_no_http_is_refused_by_the_server(service: ServiceThread, sent: bytes) -> None:
    """Requests that cannot be read, or be read in two ways, end with a 400 and the connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as sock:
        sock.sendall(sent.replace(b"%b", service.prefix.encode()))
        answer = b""
        with suppress(ConnectionError):
            while piece := sock.recv(65_536):
                answer += piece
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"HTTP/1.1 200" not in answer


def test_http_1_0_needs_no_host(service: ServiceThread) -> None:
    """Probes and old tools send none."""
    sent = f"GET {service.prefix}/health/live HTTP/1.0\r\n\r\n"
    assert answered(service, sent.encode()).startswith(b"HTTP/1.1 200 ")


def test_http_1_0_is_sent_no_chunks(service: ServiceThread) -> None:
    """It has none: their sizes would be read as lines of the stream, which ends with the connection."""
    sent = (
        f"POST {service.prefix}/sse HTTP/1.0\r\nAuthorization: Bearer ada\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(GOOD)}\r\n\r\n"
    )
    head, _, stream = answered(service, sent.encode() + GOOD).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    fields = [line.partition(b": ")[0] for line in stream.splitlines()]
    assert len(fields) > 4
    assert fields == [b"event", b"id", b"data", b""] * (len(fields) // 4)


def test_the_last_of_two_equal_names_counts(ada: httpx.Client) -> None:
    """As with every JSON parser in wide use; what it says is validated all the same."""
    assert ada.post("", content=b'{"items": [], ' + GOOD[1:], headers=JSON).status_code == 200
    problem(
        ada.post("", content=GOOD[:-1] + b', "items": []}', headers=JSON), 422, "invalid_request", "items"
    )


def test_nothing_of_all_this_was_kept(service: ServiceThread) -> None:
    """A refusal changes nothing: a user who only ever sent nonsense has no session and no task."""
    with service.client("nobody") as client:
        for content, _, _ in BODIES.values():
            assert 400 <= client.post("", content=content, headers=JSON).status_code < 500
        assert client.get("/sessions").json() == {"items": [], "next_cursor": None}
        assert client.get("/tasks").json() == {"items": [], "next_cursor": None}


# --- heads ---------------------------------------------------------------------------------------


def answered(service: ServiceThread, *parts: bytes) -> bytes:
    """What comes back on a connection, until it is closed, on which this is sent as far as it is taken."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as sock:
        with suppress(ConnectionError):
            for part in parts:
                sock.sendall(part)
        back = b""
        with suppress(ConnectionError):
            while more := sock.recv(65536):
                back += more
    return back


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"],
        [b"GET /?" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"],
        [b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %d\r\n" % (n, n) for n in range(9_000)) + b"\r\n"],
        [b"GET / HTTP/1.1\r\nx: ", *[b"a" * 10_000] * 200],
        [b"GET /", *[b"a" * 10_000] * 200],
    ],
    ids=["one long header", "a long URL", "many headers", "a header without an end", "a URL without an end"],
)
def test_a_head_that_is_too_large_is_refused_before_it_is_read(
    service: ServiceThread, parts: list[bytes]
) -> None:
    """431 with a problem document, and the connection is closed: no header fills the memory."""
    head, _, document = answered(service, *parts).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(document)["code"] == "too_large"


@pytest.mark.parametrize("cut", [7_777, 85_000, 10**9])
def test_large_bodies_and_many_requests_on_a_connection_are_no_large_head(
    service: ServiceThread, cut: int
) -> None:
    """Heads are counted each on its own, whatever comes between them, and however it is cut."""
    long = b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 60_000 + b"\r\n\r\n"
    posted = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"a" * 200_000
    wire = long * 3 + posted + long
    wire += b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    back = answered(service, *(wire[n : n + cut] for n in range(0, len(wire), cut)))
    assert (back.count(b"HTTP/1.1 200"), back.count(b"HTTP/1.1 405")) == (5, 1)


CHUNKED = b"content-type: application/json\r\ntransfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "trailer", [b"authorization: Bearer eve", b"prefer: respond-async", b"content-type: a/b"]
)
def test_trailers_are_no_headers(service: ServiceThread, trailer: bytes) -> None:
    """They are dropped: a proxy in front removes what it must from headers alone."""
    head = f"POST {service.prefix} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada\r\n".encode() + CHUNKED
    chunks = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(GOOD), GOOD, trailer)
    assert answered(service, head + b"connection: close\r\n\r\n" + chunks).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("trailer", [b"connection: close", b"proxy-connection: close"])
def test_a_connection_that_a_trailer_ends_is_closed_behind_its_answer(
    service: ServiceThread, trailer: bytes
) -> None:
    """The parser reads no further request: another one would wait for its answer for ever."""
    head = f"POST {service.prefix} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada\r\n".encode() + CHUNKED
    chunks = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(GOOD), GOOD, trailer)
    answer = answered(service, head + b"\r\n" + chunks + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    "parts",
    [
        [b"0\r\n", *[b"a: b\r\n" * 10_000] * 40],
        [b"0\r\na: ", *[b"a" * 60_000] * 40],
        [b"1;", *[b"a" * 60_000] * 40],
    ],
    ids=["trailers", "a trailer", "an extension of a chunk"],
)
def test_a_body_that_goes_on_without_content_is_given_up(service: ServiceThread, parts: list[bytes]) -> None:
    """What comes between or behind the contents of a body does not fill the memory either."""
    head = f"POST {service.prefix} HTTP/1.1\r\nhost: x\r\n".encode() + CHUNKED
    assert b"HTTP/1.1 431 " in answered(service, head + b"\r\n1\r\nx\r\n", *parts)


OFFERS_HTTP_2 = "connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAA\r\nupgrade: h2c\r\n"


@pytest.mark.parametrize("together", [True, False])
def test_a_post_that_offers_http_2_is_answered_as_any_other(service: ServiceThread, together: bool) -> None:
    """As Java's clients do at first. Its body is never a request, and the next one is another."""
    head = f"POST {service.prefix} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada\r\n{JSON_LINE}"
    smuggled = f"GET {service.prefix}/me HTTP/1.1\r\nhost: x\r\nauthorization: Bearer eve\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as sock:
        for body, status in ((GOOD, 200), (smuggled, 400), (GOOD, 200)):
            sock.sendall(
                f"{head}{OFFERS_HTTP_2}content-length: {len(body)}\r\n\r\n".encode() + body * together
            )
            if not together:  # it is heard of before the body comes
                with service.client("ada") as client:
                    assert client.get("/me").status_code == 200
                sock.sendall(body)
            answer = HTTPResponse(sock)
            answer.begin()
            assert answer.status == status
            assert b"eve" not in answer.read()


def test_many_requests_that_offer_http_2_at_once(service: ServiceThread) -> None:
    """Each is answered, the last one of the connection included, and however many there are."""
    one = f"GET / HTTP/1.1\r\nhost: x\r\n{OFFERS_HTTP_2}"
    back = answered(service, f"{one}\r\n".encode() * 600 + f"{one}connection: close\r\n\r\n".encode())
    assert back.count(b"HTTP/1.1 200") == 601


WEBSOCKET = (
    b"host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("line", "rest", "status"),
    [
        (b"POST / HTTP/1.1", b"content-length: 1\r\n\r\nx", b"400"),
        (b"GET / HTTP/1.1", b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1", b"x: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1", b"x: a\r\n" * 300 + b"\r\n", b"431"),
        (b"GET /?" + b"a" * 20_000 + b" HTTP/1.1", b"\r\n", b"414"),
    ],
    ids=["a POST", "a chunked body", "one long header", "many headers", "a long URL"],
)
def test_a_handshake_that_cannot_be_read_is_answered_and_closed(
    service: ServiceThread, line: bytes, rest: bytes, status: bytes
) -> None:
    """No timer would end its connection, and anyone could keep as many as the process may have."""
    assert answered(service, line + b"\r\n" + WEBSOCKET + rest).startswith(b"HTTP/1.1 " + status)


def test_a_handshake_behind_a_request_without_an_answer_is_answered_in_its_turn(
    service: ServiceThread,
) -> None:
    """The request before it keeps its answer: it was stored."""
    head = f"POST {service.prefix} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada\r\n{JSON_LINE}"
    message = f"{head}content-length: {len(GOOD)}\r\n\r\n".encode() + GOOD
    last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    back = answered(service, message + b"GET /nowhere HTTP/1.1\r\n" + WEBSOCKET + b"\r\n" + last)
    assert re.findall(rb"HTTP/1.1 (\d+) ", back) == [b"200", b"404", b"200"]
