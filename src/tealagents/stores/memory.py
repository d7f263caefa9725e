"""The store of one process: sorted keys and bytes, lost at exit.

It copies the bytes that it is given: no live object is shared, and no memory is wasted (a serializer may pass
a small text in a large buffer, which would live as long as the record).
"""

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import ClassVar, Final

from tealagents.domain.errors import Conflict
from tealagents.domain.ports import Commit, Record
from tealagents.stores.base import (
    BaseStore,
    StoreOptions,
    check_commit,
    check_keys,
    check_scan,
    scan_bounds,
)

__all__ = ["MemoryStore"]

#: outdated entries of the expiry heap that are tolerated, in addition to as many as there are current ones
SPARE: Final = 1000


class MemoryStore(BaseStore):
    """State in memory, for development and tests. A commit costs microseconds and never waits."""

    name = "memory"
    shared = False
    durable = False
    pushes = True

    def __init__(
        self, options: StoreOptions | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(options, clock=clock)
        self._partitions: dict[str, _Partition] = {}
        #: a heap of (when, partition, key, version) of records that expire
        self._expiring: list[tuple[float, str, str, str]] = []
        #: the size of the heap at which the entries of overwritten records are dropped
        self._room = SPARE

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        self._forget_expired()
        found = self._partitions.get(partition)
        return [found.read(key) for key in keys] if found else [None] * len(keys)

    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]:
        check_scan(partition, prefix, after, limit)
        self._forget_expired()
        if not (found := self._partitions.get(partition)):
            return []
        low, high = scan_bounds(prefix, after, reverse)
        keys = found.keys.between(low, high, reverse)
        return [(key, Record._make(found.records[key])) for key in islice(keys, limit)]

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        self._forget_expired()
        target = self._partitions.get(partition) or _Partition()
        if differing := [key for key, version in commit.expect.items() if target.version(key) != version]:
            raise Conflict(*differing)
        for key in commit.delete:
            target.delete(key)
        if commit.put:
            self._partitions[partition] = target
        for key, (value, ttl) in commit.put.items():
            target.put(key, bytes(memoryview(value)), commit.operation)
            if ttl is not None:
                heappush(self._expiring, (self.clock() + ttl, partition, key, commit.operation))
        if len(self._expiring) > self._room:
            self._forget_overwritten()
        for topic in commit.notify:
            self._watches.notify((partition, topic))

    async def answer(self) -> None:
        """Memory always answers."""

    def _forget_expired(self) -> None:
        """Removes all expired records, unless they were overwritten since."""
        while self._expiring and self._expiring[0][0] <= self.clock():
            _, partition, key, version = heappop(self._expiring)
            if self._partitions[partition].version(key) == version:
                self._partitions[partition].delete(key)

    def _forget_overwritten(self) -> None:
        """Drops the entries of overwritten records: a lease, for one, is overwritten every few seconds."""
        self._expiring = [due for due in self._expiring if self._partitions[due[1]].version(due[2]) == due[3]]
        heapify(self._expiring)
        self._room = 2 * len(self._expiring) + SPARE


class _Partition:
    __slots__ = ("keys", "records")

    def __init__(self) -> None:
        #: key → value and version; plain tuples, which the garbage collector does not keep tracking
        self.records: dict[str, tuple[bytes, str]] = {}
        self.keys = _SortedKeys()

    def read(self, key: str) -> Record | None:
        found = self.records.get(key)
        return Record._make(found) if found else None

    def version(self, key: str) -> str | None:
        found = self.records.get(key)
        return found[1] if found else None

    def put(self, key: str, value: bytes, version: str) -> None:
        if key not in self.records:
            self.keys.add(key)
        self.records[key] = (value, version)

    def delete(self, key: str) -> None:
        if self.records.pop(key, None):
            self.keys.remove(key)


class _SortedKeys:
    """Texts in order, in blocks, so that adding one moves a block and not a million keys."""

    __slots__ = ("_blocks", "_lasts")

    BLOCK: ClassVar[int] = 1000

    def __init__(self) -> None:
        #: blocks are sorted and never empty, and each begins after the last key of the one before
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []

    def add(self, key: str) -> None:
        """Adds a key, which must be new."""
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        place = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[place]
        insort(block, key)
        if len(block) > self.BLOCK:
            # keys are often appended at the end, as in logs: the last block is left full, not halved
            half = len(block) - 1 if place == len(self._blocks) - 1 else len(block) // 2
            self._blocks.insert(place + 1, block[half:])
            self._lasts.insert(place, block[half - 1])
            del block[half:]
        self._lasts[place] = block[-1]
        self._lasts[-1] = self._blocks[-1][-1]

    def remove(self, key: str) -> None:
        """Removes a key, which must exist."""
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def between(self, low: str, high: str, reverse: bool) -> Iterator[str]:
        """The keys from `low` (inclusive) to `high` (exclusive), in order or in reverse."""
        first = bisect_left(self._lasts, low)
        last = min(bisect_left(self._lasts, high) + 1, len(self._blocks))
        places = range(first, last)
        for place in reversed(places) if reverse else places:
            block = self._blocks[place]
            part = block[bisect_left(block, low) : bisect_left(block, high)]
            yield from reversed(part) if reverse else part
