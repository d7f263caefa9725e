"""A store that can be away."""

from collections.abc import Sequence
from typing import Any, ClassVar

from tealagents.domain.ports import Commit, Record
from tealagents.stores.memory import MemoryStore


class AwayStore(MemoryStore):
    """State in memory; while `away` is set it cannot be reached, and its clock is so many seconds `ahead`."""

    name = "away"
    away: ClassVar[bool] = False
    ahead: ClassVar[float] = 0.0

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        self._reach()
        return await super().read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        self._reach()
        return await super().scan(partition, prefix, **page)

    async def commit(self, partition: str, commit: Commit) -> None:
        self._reach()
        await super().commit(partition, commit)

    async def now(self) -> float:
        return await super().now() + self.ahead

    async def ping(self) -> None:
        self._reach()

    def _reach(self) -> None:
        if self.away:
            raise self.unavailable("nobody answers")
