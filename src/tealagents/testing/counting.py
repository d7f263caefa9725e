"""Stores for measurements: one that counts the operations on another store, one that can drop partitions.

::

    TA_PERSISTENCE=tealagents.testing.counting:CountingStore?url=sqlite%3A%2F%2F%2Fstate.db

A turn makes the same operations on every store, so counting them on one store is enough. What an operation
costs depends on the store.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar
from urllib.parse import urlencode

from msgspec import Struct

from tealagents.domain.ports import Commit, Record, Watch, WrappedStore
from tealagents.stores import plain_store
from tealagents.stores.base import BaseStore, StoreOptions
from tealagents.stores.memory import MemoryStore

__all__ = ["CountingStore", "Footprint", "ForgettingStore", "StoreOperation", "counting_url"]

#: prefixes of the keys of records with a ttl, which expire a day after the end of their request
_FORGOTTEN = ("events/", "event-parts/", "key/")


def counting_url(url: str) -> str:
    """The URL of a `CountingStore` over the store at `url`."""
    return f"{__name__}:CountingStore?{urlencode({'url': url})}"


class StoreOperation(Struct, frozen=True):
    """A kind of operation: `read`, `scan`, `commit` or `now`, and the kind of its partition (`user`, …)."""

    name: str
    partition: str


class CountingOptions(StoreOptions):
    #: the URL of the store underneath
    url: str = "memory://"


class CountingStore(WrappedStore, BaseStore):
    """Wraps any store and counts the operations on it."""

    options_type: ClassVar[type[StoreOptions]] = CountingOptions
    options: CountingOptions

    def __init__(self, options: CountingOptions) -> None:
        BaseStore.__init__(self, options)
        WrappedStore.__init__(self, plain_store(options.url))
        #: the number of operations of each kind
        self.operations: Counter[StoreOperation] = Counter()
        #: the total size of the values that were put, in bytes
        self.bytes_put = 0

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        self._count("read", partition)
        return await self.store.read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        self._count("scan", partition)
        return await self.store.scan(partition, prefix, **page)

    async def commit(self, partition: str, commit: Commit) -> None:
        self._count("commit", partition)
        self.bytes_put += sum(len(put.value) for put in commit.put.values())
        await self.store.commit(partition, commit)

    async def now(self) -> float:
        self.operations[StoreOperation("now", "")] += 1
        return await self.store.now()

    def _count(self, name: str, partition: str) -> None:
        self.operations[StoreOperation(name, partition.split("/")[1])] += 1


class Footprint(Struct, frozen=True):
    """The size of a partition."""

    records: int = 0
    #: the total size of their values
    bytes: int = 0
    #: those of the records that expire a day after their request's end: stream events, idempotency keys
    day_records: int = 0
    day_bytes: int = 0

    def __add__(self, other: "Footprint") -> "Footprint":
        return Footprint(
            self.records + other.records,
            self.bytes + other.bytes,
            self.day_records + other.day_records,
            self.day_bytes + other.day_bytes,
        )


class ForgettingStore(BaseStore):
    """A store in memory whose partitions can be dropped, for simulations that create millions of tasks.

    Each partition is a `MemoryStore` of its own.
    """

    name = "forgetting"
    shared = False
    durable = False
    pushes = True

    def __init__(self, options: StoreOptions | None = None) -> None:
        super().__init__(options)
        self._partitions: dict[str, MemoryStore] = {}

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        return await self._of(partition).read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        return await self._of(partition).scan(partition, prefix, **page)

    async def commit(self, partition: str, commit: Commit) -> None:
        await self._of(partition).commit(partition, commit)

    def watch(self, partition: str, topic: str) -> AbstractAsyncContextManager[Watch]:
        return self._of(partition).watch(partition, topic)

    async def answer(self) -> None:
        """Memory always answers."""

    async def forget(self, partition: str) -> Footprint:
        """Drops a partition and returns its size."""
        records = await self._of(partition).scan(partition, "", limit=10_000_000)
        del self._partitions[partition]
        day = [len(record.value) for key, record in records if key.startswith(_FORGOTTEN)]
        total = sum(len(record.value) for _, record in records)
        return Footprint(len(records) - len(day), total - sum(day), len(day), sum(day))

    def _of(self, partition: str) -> MemoryStore:
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = MemoryStore(clock=self.clock)
        return found
