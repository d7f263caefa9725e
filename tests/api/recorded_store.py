"""A store in trouble, as the recorded exchange needs it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from away import AwayStore

from tealagents.domain.ports import Record


class TroubledStore(AwayStore):
    """State in memory that can be away, and whose records can come back damaged."""

    name = "troubled"
    #: records whose key ends with this come back damaged
    hurt: ClassVar[str | None] = None

    @classmethod
    @contextmanager
    def gone(cls) -> Iterator[None]:
        cls.away = True
        try:
            yield
        finally:
            cls.away = False

    @classmethod
    @contextmanager
    def damaged(cls, identifier: str) -> Iterator[None]:
        cls.hurt = identifier
        try:
            yield
        finally:
            cls.hurt = None

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        found = await super().read(partition, keys)
        return [self._as_stored(partition, key, record) for key, record in zip(keys, found, strict=True)]

    def _as_stored(self, partition: str, key: str, record: Record | None) -> Record | None:
        hit = (
            record is not None and self.hurt is not None and "/user/" in partition and key.endswith(self.hurt)
        )
        return Record(b"damaged", record.version) if hit and record is not None else record
