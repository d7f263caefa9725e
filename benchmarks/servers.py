"""The servers of stores, and what they report of themselves: CPU, bytes, operations, connections."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.figures import Figure
from tealagents.testing.servers import PostgresServer, RedisServer, Server, ServerMissing

#: the stores that have one
SERVED = ("postgres", "redis")
#: seconds after which a server has counted all: PostgreSQL's idle processes report their counts after ten
SETTLE_SECONDS = 12.0


class StoreServer(ABC):
    """A server, and what it says of itself."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    def cpu(self) -> float:
        """Milliseconds of CPU that its processes have used so far."""
        return sum(1000 * time.clock_gettime((~pid << 3) | 2) for pid in self.server.processes())

    @abstractmethod
    def written(self) -> int:
        """Bytes that it has written to its log so far."""

    @abstractmethod
    def stored(self) -> int:
        """Bytes that its state takes: on disk, or in memory where it is kept there."""

    @abstractmethod
    def operations(self) -> int:
        """Transactions or commands that it has carried out so far, this question included."""

    @abstractmethod
    def connections(self) -> int:
        """Those that others hold to it."""


class Postgres(StoreServer):
    """PostgreSQL. An operation is a transaction."""

    def written(self) -> int:
        return self._ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    def stored(self) -> int:
        return self._ask("SELECT pg_database_size(current_database())")

    def operations(self) -> int:
        return self._ask(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )

    def connections(self) -> int:
        return self._ask(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )

    def _ask(self, query: str) -> int:
        """Asked on a thread, since the caller's event loop is running."""
        import asyncpg

        found: list[Any] = []

        async def ask() -> None:
            connection = await asyncpg.connect(self.url)
            try:
                found.append(await connection.fetchval(query))
            finally:
                await connection.close()

        thread = threading.Thread(target=lambda: asyncio.run(ask()))
        thread.start()
        thread.join()
        return int(found[0])


class Redis(StoreServer):
    """Redis. An operation is a command; a commit is a script of several."""

    server: RedisServer

    def written(self) -> int:
        return self._info("persistence", "aof_current_size")

    def stored(self) -> int:
        return self._info("memory", "used_memory")

    def operations(self) -> int:
        return self._info("stats", "total_commands_processed")

    def connections(self) -> int:
        return self._info("clients", "connected_clients") - 1

    def _info(self, section: str, name: str) -> int:
        lines = self.server.ask("INFO", section).splitlines()
        return int(next(line for line in lines if line.startswith(f"{name}:")).partition(":")[2])


@contextmanager
def store_server(name: str, *, durable: bool = True) -> Iterator[StoreServer]:
    """A fresh server; durable: it syncs what it acknowledges. `ServerMissing` where it is not installed."""
    if name == "postgres":
        with PostgresServer(durable=durable) as postgres:
            yield Postgres(postgres)
    else:
        with RedisServer(durable=durable) as redis:
            yield Redis(redis)


async def on_each(
    names: Sequence[str], measure: Callable[[str], Awaitable[Sequence[Figure]]]
) -> list[Figure]:
    """What is measured on each of these stores, but for those whose server is not installed."""
    figures: list[Figure] = []
    for name in names:
        try:
            figures += await measure(name)
        except ServerMissing as missing:
            print(f"{name} is left out. {missing}")
    return figures
