"""Secrets of users as the store keeps them."""

from typing import Any

import pytest
from engine_setup import ADA, Shared, process

from tealagents.state.secret_store import SecretStore
from tealagents.testing.clock import FakeClock


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


async def test_only_the_secret_that_is_named_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has taken its place stays, also where that happens between the look and the write."""
    async with process() as here:
        secrets, user, get = SecretStore(here.records), ADA.user.key, here.records.get
        assert not await secrets.replace(user, "notes", "first", "second")
        await secrets.put(user, "notes", "first")
        assert await secrets.replace(user, "notes", "first", "second")
        assert not await secrets.replace(user, "notes", "first", "third")
        newer = ["newer", "second"]

        async def then_changed(partition: str, key: str, kind: type[Any]) -> Any:
            found = await get(partition, key, kind)
            if newer:
                await secrets.put(user, "notes", newer.pop())
            return found

        monkeypatch.setattr(here.records, "get", then_changed)
        assert not await secrets.replace(user, "notes", "second", "third")
        assert await secrets.get(user, "notes") == "newer"


async def test_a_claim_that_its_process_never_gave_back_is_taken_over_after_its_time() -> None:
    """A replica that died while it renewed a token keeps the others from that only so long."""
    clock = FakeClock()
    async with process(Shared(clock=lambda: clock.now().timestamp()), clock=clock) as here:
        secrets, user = SecretStore(here.records), ADA.user.key
        assert await secrets.claim(user, "renewal", "dead", ttl=25)
        clock.advance(24)
        assert not await secrets.claim(user, "renewal", "alive", ttl=25)
        clock.advance(1)
        assert await secrets.claim(user, "renewal", "alive", ttl=25)
        assert await secrets.get(user, "renewal") == "alive"
