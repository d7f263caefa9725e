"""A store whose operations are measured: how long each took, and how it failed."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import metrics

from tealagents.domain.ports import Commit, Record, Store, WrappedStore

#: seconds; a store on the same machine answers in less than a millisecond
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class MeasuredStore(WrappedStore):
    """Any store; the duration of each operation is recorded as `db.client.operation.duration`."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._duration = metrics.get_meter("tealagents").create_histogram(
            "db.client.operation.duration",
            "s",
            "Operations of the store.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        with self._measured("read"):
            return await self.store.read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        with self._measured("scan"):
            return await self.store.scan(partition, prefix, **page)

    async def commit(self, partition: str, commit: Commit) -> None:
        with self._measured("commit"):
            await self.store.commit(partition, commit)

    async def now(self) -> float:
        with self._measured("now"):
            return await self.store.now()

    async def ping(self) -> None:
        with self._measured("ping"):
            await self.store.ping()

    @contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        """Measures one operation. A canceled operation is not recorded: it did not fail."""
        attributes = {"db.operation.name": operation, "db.system.name": self.name}
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            failed = {**attributes, "error.type": type(error).__name__}
            self._duration.record(time.perf_counter() - began, failed)
            raise
        else:
            self._duration.record(time.perf_counter() - began, attributes)
