"""Secrets of users that must outlive the process; kept only where the store is encrypted."""

from tealagents.state import keys
from tealagents.state.ledger import Ledger


class Vault:
    """One text for each user and server, in the user's partition. Fills `tools.oauth.TokenVault`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def get(self, user_key: str, server: str) -> str | None:
        found = await self._ledger.get(self._partition(user_key), _key(server), str)
        return found.value if found else None

    async def put(self, user_key: str, server: str, secret: str, *, ttl: float | None = None) -> None:
        key = _key(server)
        await self._ledger.commit(
            self._partition(user_key), witness=key, put={key: secret}, ttl={key: ttl} if ttl else None
        )

    async def delete(self, user_key: str, server: str) -> None:
        await self._ledger.delete(self._partition(user_key), (_key(server),))

    def _partition(self, user_key: str) -> str:
        return keys.user(self._ledger.agent, user_key)


def _key(server: str) -> str:
    return f"vault/{keys.plain(server)}"
