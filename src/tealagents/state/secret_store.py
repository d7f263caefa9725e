"""Secrets of users that must outlive the process; kept only where the store is encrypted."""

from contextlib import suppress

from tealagents.domain.errors import Conflict
from tealagents.state import keys
from tealagents.state.records import RecordStore


class SecretStore:
    """One text per user and server, in the user's partition. Implements `tools.oauth_pending.Secrets`."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def get(self, user_key: str, server: str) -> str | None:
        found = await self._records.get(self._partition(user_key), _key(server), str)
        return found.value if found else None

    async def put(self, user_key: str, server: str, secret: str, *, ttl: float | None = None) -> None:
        key = _key(server)
        await self._records.commit(
            self._partition(user_key), marker=key, put={key: secret}, ttl={key: ttl} if ttl else None
        )

    async def replace(self, user_key: str, server: str, old: str, secret: str) -> bool:
        partition, key = self._partition(user_key), _key(server)
        found = await self._records.get(partition, key, str)
        if found is None or found.value != old:
            return False
        try:
            await self._records.commit(partition, marker=key, expect={key: found.version}, put={key: secret})
        except Conflict:  # another was quicker, perhaps with the same text
            return await self.replace(user_key, server, old, secret)
        return True

    async def claim(self, user_key: str, server: str, secret: str, *, ttl: float) -> bool:
        partition, key = self._partition(user_key), _key(server)
        try:
            await self._records.commit(
                partition, marker=key, expect={key: None}, put={key: secret}, ttl={key: ttl}
            )
        except Conflict:
            return False
        return True

    async def take(self, user_key: str, server: str) -> str | None:
        partition, key = self._partition(user_key), _key(server)
        found = await self._records.get(partition, key, str)
        if found is None:
            return None
        try:
            await self._records.commit(partition, marker=key, expect={key: found.version}, delete=(key,))
        except Conflict:
            return None  # another was quicker
        return found.value

    async def delete(self, user_key: str, server: str, secret: str) -> None:
        partition, key = self._partition(user_key), _key(server)
        found = await self._records.get(partition, key, str)
        if found is not None and found.value == secret:
            with suppress(Conflict):
                await self._records.delete(partition, (key,), expect={key: found.version})

    def _partition(self, user_key: str) -> str:
        return keys.user(self._records.agent, user_key)


def _key(server: str) -> str:
    return f"secrets/{keys.plain(server)}"
