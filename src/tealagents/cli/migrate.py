"""`tealagents migrate`: brings the tables of a store up to date."""

import asyncio
from collections.abc import Awaitable, Callable

from tealagents.cli.help import Config
from tealagents.cli.loading import fail, load_or_exit, warn_of_new
from tealagents.domain.errors import CorruptState, PersistenceUnavailable
from tealagents.stores import StoreConfigError, plain_store
from tealagents.stores.base import BaseStore


def migrate_command(config: Config = None) -> None:
    """Update the store's tables to what this version needs.

    An empty store needs no migration. Stop the service, make a backup, migrate, and start the new version.
    If there is no store yet, one is created, with a warning.
    """
    url = load_or_exit(config, needed="spec.persistence").persistence
    try:
        store = plain_store(url)
        migrate = getattr(store, "migrate", None)
        if migrate is None:
            print(f"{store.name} has no tables; there is nothing to migrate")
            return
        existed, applied = asyncio.run(_migrate(store, migrate))
    except (PersistenceUnavailable, StoreConfigError, CorruptState, OSError) as error:
        raise fail(str(error)) from None
    if not existed:
        warn_of_new(store)
    for name in applied:
        print(f"applied {name}")
    print(f"{store.name} is up to date")


async def _migrate(store: BaseStore, migrate: Callable[[], Awaitable[list[str]]]) -> tuple[bool, list[str]]:
    """Whether the store existed before, and the names of the applied migrations."""
    return await store.exists(), await migrate()
