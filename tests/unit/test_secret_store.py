"""Secrets of users as the store keeps them."""

from engine_setup import ADA, process

from tealagents.state.secret_store import SecretStore


async def test_only_the_secret_that_is_named_is_deleted() -> None:
    """What has taken its place meanwhile stays: a newer token, or another's claim on the server's turn."""
    async with process() as here:
        secrets, user = SecretStore(here.records), ADA.user.key
        await secrets.put(user, "notes", "older")
        await secrets.put(user, "notes", "newer")
        await secrets.delete(user, "notes", "older")
        assert await secrets.get(user, "notes") == "newer"
        await secrets.delete(user, "notes", "newer")
        assert await secrets.get(user, "notes") is None
