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
