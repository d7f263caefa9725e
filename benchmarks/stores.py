"""What a turn costs on each store, beside the same turn in memory, and how many bytes it writes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.load import Connection, Service, task_of
from benchmarks.measures import TEXT, Scale, Spent, warm
from benchmarks.processes import ModelProcess, ServiceProcess
from tealagents.testing.servers import PostgresServer, RedisServer, ServerMissing

#: turns around which is measured
AROUND = {10: (6, 15), 200: (191, 210)}


@dataclass(frozen=True)
class StoreUnderLoad:
    """A service on a store, and how many bytes that store has written so far."""

    name: str
    service: ServiceProcess
    written: Callable[[], int]
    #: true where `written` is what the process passed to `write`, HTTP and all: that in memory is subtracted
    with_traffic: bool
    bound: float | None


async def stores(scale: Scale) -> list[Figure]:
    """CPU of the service a turn, at turn 10 and at turn 200, and bytes written."""
    figures: list[Figure] = []
    for name in ("sqlite", "files", "postgres", "redis"):
        try:
            figures += await _measure(name, scale)
        except ServerMissing as missing:
            print(f"{name} is left out. {missing}")
    return figures


async def _measure(name: str, scale: Scale) -> list[Figure]:
    with ExitStack() as stack:
        model = stack.enter_context(ModelProcess())
        memory = stack.enter_context(ServiceProcess(model))
        store = stack.enter_context(_service_on(name, model))
        plain = Growth(memory, lambda: memory.written())
        stored = Growth(store.service, store.written)
        for growth in (plain, stored):
            await warm(growth.target)
        await _grow(plain, stored, scale.of(10, 3))
    figures = []
    for turn in AROUND:
        bytes_each = stored.bytes_each(turn) - (plain.bytes_each(turn) if store.with_traffic else 0)
        figures += [
            Figure(
                measure="stores",
                name=f"{name}, turn {turn}, floor: in memory",
                unit="ms CPU",
                ours=stored.spent[turn].each,
                base=plain.spent[turn].each,
                bound=store.bound,
            ),
            Figure(
                measure="stores", name=f"{name}, written at turn {turn}", unit="bytes a turn", ours=bytes_each
            ),
        ]
    return figures


class Growth:
    """Some tasks on one service that grow in step, and what the looked-at turns have cost."""

    def __init__(self, service: ServiceProcess, written: Callable[[], int]) -> None:
        self.target = Service(service)
        self.spent = {turn: Spent(service) for turn in AROUND}
        self._bytes = dict.fromkeys(AROUND, 0)
        self._written = written
        self._tasks: list[str] = []

    async def begin(self, connection: Connection, count: int) -> None:
        self._tasks = [task_of(await self.target.ask(connection, TEXT)) for _ in range(count)]

    async def take_turn(self, connection: Connection, looked_at: int | None) -> None:
        if looked_at is None:
            await self._turn(connection)
            return
        before = self._written()
        await self.spent[looked_at].on(len(self._tasks), lambda: self._turn(connection))
        self._bytes[looked_at] += self._written() - before

    async def _turn(self, connection: Connection) -> None:
        for task in self._tasks:
            await self.target.ask(connection, TEXT, task_id=task)

    def bytes_each(self, turn: int) -> float:
        return self._bytes[turn] / self.spent[turn].requests


async def _grow(plain: Growth, stored: Growth, count: int) -> None:
    async with plain.target.connections(1) as (to_plain,), stored.target.connections(1) as (to_stored,):
        pairs: Sequence[tuple[Growth, Connection]] = [(plain, to_plain), (stored, to_stored)]
        for growth, connection in pairs:
            await growth.begin(connection, count)
        for number in range(2, 211):
            looked_at = next((turn for turn, (a, b) in AROUND.items() if a <= number <= b), None)
            for growth, connection in pairs:
                await growth.take_turn(connection, looked_at)


# --- each store ---------------------------------------------------------------------------------


@contextmanager
def _service_on(name: str, model: ModelProcess) -> Iterator[StoreUnderLoad]:
    with ExitStack() as stack:
        if name == "postgres":
            postgres = stack.enter_context(PostgresServer(durable=True))
            service = stack.enter_context(ServiceProcess(model, postgres.url))
            yield StoreUnderLoad(name, service, lambda: _logged(postgres), with_traffic=False, bound=2)
        elif name == "redis":
            redis = stack.enter_context(RedisServer(durable=True))
            service = stack.enter_context(ServiceProcess(model, redis.url))
            yield StoreUnderLoad(name, service, lambda: _appended(redis), with_traffic=False, bound=2)
        else:
            url = "sqlite:///state.db" if name == "sqlite" else "file:///state"
            local = stack.enter_context(ServiceProcess(model, url))
            bound = 1.5 if name == "sqlite" else None
            yield StoreUnderLoad(name, local, local.written, with_traffic=True, bound=bound)


def _logged(server: PostgresServer) -> int:
    """Bytes of write-ahead log so far."""
    import asyncio
    import threading

    import asyncpg

    found: list[int] = []

    async def ask() -> None:
        connection = await asyncpg.connect(server.url)
        try:
            found.append(int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")))
        finally:
            await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join()
    return found[0]


def _appended(server: RedisServer) -> int:
    """Bytes of append-only file so far."""
    lines = server.ask("INFO", "persistence").splitlines()
    return int(next(line for line in lines if line.startswith("aof_current_size:")).partition(":")[2])
