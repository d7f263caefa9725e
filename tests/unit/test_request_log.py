"""One line in the log for each request, in both forms of the log."""

import json
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tealagents.api.bearer import WELL_KNOWN
from tealagents.domain.models import Failure, RequestRecord
from tealagents.engine.observer import current_ids
from tealagents.telemetry.logs import JsonLines, Readable
from tealagents.telemetry.requests import LoggedRequests, route_of
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port

CONFIG = """\
apiVersion: tealagents/v1alpha1
name: Logged
version: 1
spec:
  agent: {model: offline, system_prompt: Be brief.}
"""
ADA = {"Authorization": "Bearer ada"}
SECRET = "canary-of-a-message"


class Logged:
    """A service whose log is collected."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        (folder / "config.yaml").write_text(CONFIG)
        port = free_port()
        self._process = subprocess.Popen(
            [nursery.program, "serve", str(folder / "config.yaml"), "--offline", "--port", str(port)],
            env={**os.environ, "TA_AUTH": "mock"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is served
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}/Logged/1", headers=ADA, trust_env=False, timeout=30
        )

    def lines(self) -> list[dict[str, Any]]:
        """Stops it, and gives what it logged of requests."""
        self.client.close()
        self._process.send_signal(signal.SIGTERM)
        _, text = self._process.communicate(timeout=300)
        assert SECRET not in text
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["logger"] == "tealagents.telemetry.requests"]


@pytest.fixture
def service(nursery: Nursery, tmp_path: Path) -> Iterator[Logged]:
    service = Logged(nursery, tmp_path)
    try:
        yield service
    finally:
        service._process.terminate()
        service._process.wait(60)


def message(text: str = SECRET) -> dict[str, Any]:
    return {"items": [{"content_type": "text", "content": text}]}


def test_each_request_is_one_line(service: Logged) -> None:
    """With ids, route, status, code, duration and tokens: a message, a stream, and any other call."""
    answer = service.client.post("", json=message()).json()
    streamed = service.client.post("/sse", json=message())
    service.client.get(f"/tasks/{answer['task_id']}").raise_for_status()
    service.client.get(f"/tasks/{answer['task_id']}", headers={"Authorization": "Bearer bob"})
    service.client.post("", json={"items": [SECRET]})
    service.client.get(f"/no-route/{SECRET}")
    service.client.get("/health")
    service.client.get(str(service.client.base_url.join("/")))
    assert streamed.status_code == 200
    sent, stream, read, foreign, wrong, lost, root = service.lines()
    assert (sent["route"], sent["status"]) == ("POST /Logged/1", "Completed")
    assert {name: sent[name] for name in ("session_id", "task_id", "request_id")} == {
        name: answer[name] for name in ("session_id", "task_id", "request_id")
    }
    assert sent["duration"] >= 0
    assert min(sent["prompt_tokens"], sent["completion_tokens"]) > 0
    assert "code" not in sent
    assert (stream["route"], stream["status"]) == ("POST /Logged/1/sse", "Completed")
    assert (read["route"], read["status"]) == ("GET /Logged/1/tasks/{task_id}", 200)
    assert read["task_id"] == answer["task_id"]
    assert (foreign["status"], foreign["code"], foreign["task_id"]) == (401, "not_owner", read["task_id"])
    assert (wrong["route"], wrong["status"], wrong["code"]) == ("POST /Logged/1", 422, "invalid_request")
    assert (lost["route"], lost["status"]) == ("GET (no route)", 404)
    assert (root["route"], root["status"]) == ("GET /", 200)


def test_a_refused_decision_is_logged_with_its_request(service: Logged) -> None:
    """The operator sees which one an approver asked for."""
    request_id = service.client.post("", json=message()).json()["request_id"]
    paths = [f"/requests/{request_id}/resume", f"/requests/{request_id}/approvals/{request_id}"]
    service.client.post(paths[0], json={"action": "approve"})
    service.client.get(paths[1])
    _, *refused = service.lines()
    assert [(line["status"], line.get("request_id")) for line in refused] == [(404, request_id)] * 2


def test_a_request_in_the_background_is_logged_when_it_ends(service: Logged) -> None:
    """Its acceptance is a call of its own."""
    accepted = service.client.post("", json=message(), headers={"Prefer": "respond-async"})
    assert accepted.status_code == 202
    events = service.client.get(f"/requests/{accepted.json()['request_id']}/events")
    assert "final-response" in events.text
    logged = service.lines()
    [ended] = [line for line in logged if line["status"] == "Completed"]
    assert ended["request_id"] == accepted.json()["request_id"]
    assert ended["completion_tokens"] > 0
    assert [line["status"] for line in logged if line is not ended] == [202, 200]


def test_a_message_that_begins_nothing_is_logged_with_its_ids(service: Logged) -> None:
    """Its acceptance, where it is answered later, and the earlier outcome under its key."""
    key = {"Idempotency-Key": "1"}
    accepted = service.client.post("", json=message(), headers={"Prefer": "respond-async", **key}).json()
    service.client.get(f"/requests/{accepted['request_id']}/events").raise_for_status()
    replayed = service.client.post("", json=message(), headers=key)
    assert replayed.headers["idempotent-replayed"] == "true"
    ids = {name: accepted[name] for name in ("session_id", "task_id", "request_id")}
    sent = [line for line in service.lines() if line["route"] == "POST /Logged/1"]
    assert sorted(str(line["status"]) for line in sent) == ["200", "202", "Completed"]
    for line in sent:
        assert line.items() >= ids.items()


def test_a_request_that_is_ended_without_a_run_is_a_line_as_well() -> None:
    """Its process had died, or it waited: with its ids, how it ended, and how long that took."""
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines(content=False).format(record)))

    began = datetime(2026, 1, 1, tzinfo=UTC)
    request = RequestRecord(
        session_id="s",
        task_id="t",
        request_id="r",
        status="Failed",
        error=Failure("interrupted", "The process ended."),
        created_at=began,
        ended_at=began + timedelta(seconds=90),
    )
    log, handler = logging.getLogger("tealagents.telemetry.requests"), Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        LoggedRequests().ended_outside(request)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    [line] = lines
    assert line.items() >= {**request.ids, "status": "Failed", "code": "interrupted"}.items()
    assert line["duration"] == pytest.approx(90, abs=1)


def test_both_forms_of_the_log_have_it() -> None:
    """Readable for a person, fields for a machine."""
    facts = {"route": "POST /A/1", "status": "Failed", "code": "model_error", "duration": 0.5}
    record = logging.LogRecord("requests", logging.INFO, __file__, 1, "%s %s", ("POST /A/1", "Failed"), None)
    record.__dict__.update(facts=facts)
    token = current_ids.set({"request_id": "r"})
    line = Readable(content=False).format(record)
    current_ids.reset(token)
    assert line.endswith("INFO    POST /A/1 Failed code=model_error duration=0.5  [r]")
    fields = json.loads(JsonLines(content=False).format(record))
    assert {name: fields[name] for name in facts} == facts


def test_a_line_holds_what_is_no_text() -> None:
    """A name with half a surrogate pair, as of a file, and a value that JSON does not know."""
    record = logging.LogRecord("files", logging.INFO, __file__, 1, "opened %s", ("a\udc80b",), None)
    record.__dict__.update(facts={"route": Path("/x")})
    fields = json.loads(JsonLines(content=False).format(record))
    assert (fields["message"], fields["route"]) == ("opened a\udc80b", "/x")


@pytest.mark.parametrize(
    ("path", "given", "route"),
    [
        ("/tasks/t/messages", {"task_id": "t"}, "/tasks/{task_id}/messages"),
        ("/tasks/t:cancel", {"id": "t"}, "/tasks/{id}:cancel"),
        ("/files/a/b.js", {"path": "a/b.js"}, "/files/{path}"),
        ("/filesfoo", {"path": "foo"}, None),
    ],
)
def test_no_route_holds_what_a_client_wrote(path: str, given: dict[str, str], route: str | None) -> None:
    """Where a parameter is no whole part of the path there is no route that could be named."""
    assert route_of({"endpoint": None, "path": path, "path_params": given}) == route


def test_discovery_has_one_route_whatever_is_asked_for(service: Logged) -> None:
    """No token is needed to ask: each path would be a series of metrics for the life of the process."""
    root = service.client.base_url.join("/")
    for path in ("foo", "/bar/baz"):
        assert httpx.get(root.join(WELL_KNOWN + path), trust_env=False).status_code == 404
    assert [line["route"] for line in service.lines()] == ["GET (no route)", f"GET {WELL_KNOWN}/{{path}}"]
