"""What orchestrators read before they call: the descriptions of the routes that take messages."""

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
