"""What orchestrators read before they call: the descriptions of the routes that take messages."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from openapi_spec_validator import validate
from talk import in_service
from wire import problem

from tealagents.api.v1alpha1 import openapi
from tealagents.testing.service import agent_config, offline_service


def test_routes_that_take_messages_are_described_as_the_agent() -> None:
    """Orchestrators choose an agent by the description of the first path's `post` alone."""
    with offline_service() as (service, _), service.client(None) as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert next(iter(paths)) == service.prefix
    assert [
        path
        for path, operations in paths.items()
        for operation in operations.values()
        if operation.get("description", "").startswith(f"{agent_config()['description']}\n\n")
    ] == [service.prefix, f"{service.prefix}/sse"]


def test_headers_that_a_success_carries_are_described() -> None:
    """Where a new task is, and that an outcome is a replayed one, also over SSE."""
    with offline_service() as (service, _), service.client() as ada:
        paths = ada.get("/openapi.json").json()["paths"]
        message, key = {"items": [{"content_type": "text", "content": "hello"}]}, {"idempotency-key": "1"}
        first = ada.post("/sse", json=message, headers=key)
        replayed = ada.post("/sse", json=message, headers=key)
        task_id = ada.get("/tasks").json()["items"][0]["task_id"]
        forked = ada.post(f"/tasks/{task_id}/fork")
    for path, answer, name in (
        ("/sse", replayed, "Idempotent-Replayed"),
        ("/tasks/{task_id}/fork", forked, "Location"),
        ("/tasks/import", forked, "Location"),
    ):
        assert name in answer.headers
        described = paths[service.prefix + path]["post"]["responses"][str(answer.status_code)]
        assert name in described.get("headers", {}), path
    assert "Idempotent-Replayed" not in first.headers
    assert not paths[service.prefix + "/tasks/{task_id}/fork"]["post"]["requestBody"]["required"]


def test_a_replayed_failure_is_described_where_keys_are_taken() -> None:
    """With the header that it carries; a decision takes no key and describes none."""
    script = {"rules": [{"when": {"text": "break"}, "reply": {"error": {"status": 400, "message": "No."}}}]}
    with offline_service(script) as (service, _), service.client() as ada:
        paths = ada.get("/openapi.json").json()["paths"]
        message, key = {"items": [{"content_type": "text", "content": "break"}]}, {"idempotency-key": "1"}
        first, replayed = (ada.post("", json=message, headers=key) for _ in range(2))
    assert "Idempotent-Replayed" not in first.headers
    assert replayed.headers["Idempotent-Replayed"] == "true"
    described = {
        path.removeprefix(service.prefix): {
            status
            for status, response in path_item["post"]["responses"].items()
            if "Idempotent-Replayed" in response.get("headers", {})
        }
        for path, path_item in paths.items()
        if "post" in path_item
    }
    assert str(replayed.status_code) in described[""]
    assert described.pop("") == described.pop("/sse")
    assert not any(described.values()), described


def test_the_document_is_valid() -> None:
    """Valid OpenAPI 3.1; no schema is just `true` or `false`, which generators of clients do not take."""
    with offline_service() as (service, _), service.client(None) as client:
        document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1.")
    validate(document)
    assert '"items": false' not in json.dumps(document)


def test_turns_continue_while_the_document_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long enough for streams to stand still. It is written once for all concurrent readers."""
    write, answered, begun = openapi.document, Event(), []

    def slowly(*parts: Any, **said: Any) -> dict[str, Any]:
        begun.append(1)
        assert answered.wait(60)
        return write(*parts, **said)

    monkeypatch.setattr(openapi, "document", slowly)
    message = {"items": [{"content_type": "text", "content": "hello"}]}
    with offline_service() as (service, _), service.client() as ada, ThreadPoolExecutor(2) as others:
        reading = [others.submit(ada.get, "/openapi.json") for _ in range(2)]
        while not begun:
            ada.get("/health/live").raise_for_status()
        ada.post("", json=message).raise_for_status()
        answered.set()
        first, second = (each.result() for each in reading)
    assert first.json()["openapi"] == second.json()["openapi"] == "3.1.0"
    assert begun == [1]


def test_a_reader_of_the_document_whom_the_end_of_the_process_meets_is_sent_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like every other call that the server cancels at the end of a drain: it was a 500."""
    begun, ended = Event(), Event()

    def never(*_: Any, **said: Any) -> dict[str, Any]:
        begun.set()
        assert ended.wait(60)
        return {}

    monkeypatch.setattr(openapi, "document", never)
    with ThreadPoolExecutor(1) as other, offline_service() as (service, _), service.client() as ada:
        reading = other.submit(ada.get, "/openapi.json")
        assert begun.wait(60)
        in_service(service, service.app.exchange.service.drain(0))
        assert service._server is not None
        service._server.should_exit = True
        try:
            answer = reading.result(60)
        finally:
            ended.set()
    problem(answer, 503, "persistence_unavailable")
    assert "retry-after" in answer.headers


def test_only_what_is_sent_is_described() -> None:
    """Routes that stream answer with events alone, and every content has a schema that says something."""
    with offline_service() as (service, _), service.client(None) as client:
        paths = client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            for response in operation["responses"].values():
                assert all(content.get("schema") for content in response.get("content", {}).values()), path
    assert list(paths[f"{service.prefix}/sse"]["post"]["responses"]["200"]["content"]) == [
        "text/event-stream"
    ]
