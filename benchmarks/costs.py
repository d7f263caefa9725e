"""What a turn, a delta, a waiting stream and a stored task cost on a store: the input of `docs/scale.md`.

CPU of the service and of the store's server, bytes that the server writes and keeps, connections. What is
asked of the store is counted by `operations`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.figures import Figure
from benchmarks.load import Service, task_of
from benchmarks.measures import TEXT, Scale, repeat, warm
from benchmarks.processes import ModelProcess, ServiceProcess
from benchmarks.servers import SERVED, SETTLE_SECONDS, StoreServer, on_each, store_server

#: a streamed answer: so many deltas, so far apart
DELTAS, APART_MS = 64, 20
#: streams at once, which is as many connections to the store as a process ever wants
AT_ONCE = 64
#: how often all is measured
ROUNDS = 6
#: seconds for which streams wait while the store's operations are counted
WAIT_SECONDS = 15.0


@dataclass(frozen=True)
class Spent:
    """What one of a kind has cost."""

    #: milliseconds of CPU, of the service and of the store's server
    service: float
    server: float
    #: bytes
    written: float

    @classmethod
    def least(cls, rounds: Sequence["Spent"]) -> "Spent":
        """The least CPU of any round: what else the machine does adds to it and never takes away."""
        return cls(
            min(each.service for each in rounds),
            min(each.server for each in rounds),
            median(each.written for each in rounds),
        )

    def part(self, parts: int, less: "Spent") -> "Spent":
        """One of so many parts, without what is spent besides."""
        return Spent(
            (self.service - less.service) / parts,
            (self.server - less.server) / parts,
            (self.written - less.written) / parts,
        )


class Costs:
    """A service on a store's server, and what is measured there."""

    def __init__(self, name: str, service: ServiceProcess, server: StoreServer, scale: Scale) -> None:
        self.name = name
        self._service = service
        self._server = server
        self._target = Service(service)
        self._scale = scale

    async def figures(self) -> list[Figure]:
        await warm(self._target)
        turn = await self._least(self._turns, self._scale.of(200, 20))
        streamed = await self._least(self._streams, self._scale.of(16, 4))
        return [
            *self._named("a turn", turn),
            *self._named(f"a delta, {APART_MS} ms apart", streamed.part(DELTAS, turn)),
            self._figure("a stored task of one turn", "bytes", await self._stored()),
            *await self._waiting(),
        ]

    def _named(self, name: str, spent: Spent) -> list[Figure]:
        return [
            self._figure(f"{name}, service", "ms CPU", spent.service),
            self._figure(f"{name}, server", "ms CPU", spent.server),
            self._figure(f"{name}, written", "bytes", spent.written),
        ]

    def _figure(self, name: str, unit: str, value: float) -> Figure:
        return Figure(measure="costs", name=f"{self.name}: {name}", unit=unit, ours=value)

    async def _least(self, work: Callable[[int], Awaitable[None]], count: int) -> Spent:
        """What one of `count` costs that `work` does, in the cheapest of some rounds."""
        return Spent.least([await self._round(work, count) for _ in range(self._scale.of(ROUNDS, 1))])

    async def _round(self, work: Callable[[int], Awaitable[None]], count: int) -> Spent:
        before = (self._service.cpu(), self._server.cpu(), self._server.written())
        await work(count)
        return Spent(
            (self._service.cpu() - before[0]) / count,
            (self._server.cpu() - before[1]) / count,
            (self._server.written() - before[2]) / count,
        )

    async def _turns(self, count: int) -> None:
        """Follow-up turns of one task."""
        async with self._target.connections(1) as (connection,):
            task = task_of(await self._target.ask(connection, TEXT))
            await repeat(count - 1, lambda: self._target.ask(connection, TEXT, task_id=task))

    async def _streams(self, count: int) -> None:
        text = f"pieces-{DELTAS}@{APART_MS}ms"
        async with self._target.connections(4) as connections:
            for _ in range(count // 4):
                await asyncio.gather(*(self._target.read_stream(each, text) for each in connections))

    async def _stored(self) -> float:
        """Bytes that the server's state grows by with a new task of one turn, in a session of its own."""
        count, before = self._scale.of(5000, 500), self._server.stored()
        async with self._target.connections(1) as (connection,):
            await repeat(count, lambda: self._target.ask(connection, TEXT))
        return (self._server.stored() - before) / count

    async def _waiting(self) -> list[Figure]:
        """Connections to the store, and its operations a second, while streams wait for their model."""
        body = self._target.body("pieces-2@600000ms", stream=True)
        async with AsyncExitStack() as stack:
            connections = await stack.enter_async_context(self._target.connections(AT_ONCE))
            streams = [
                connection.stream(self._target.stream_path, f"user-{n}", body)
                for n, connection in enumerate(connections)
            ]
            await asyncio.gather(*(_first(stream) for stream in streams))
            await asyncio.sleep(SETTLE_SECONDS)
            before = self._server.operations()
            await asyncio.sleep(WAIT_SECONDS)
            rate = (self._server.operations() - before) / WAIT_SECONDS
            return [
                self._figure(f"{AT_ONCE} waiting streams", "operations/s", rate),
                self._figure(f"{AT_ONCE} streams begun at once", "connections", self._server.connections()),
            ]


async def _first(stream: AsyncIterator[bytes]) -> None:
    await anext(stream)


async def costs(scale: Scale) -> list[Figure]:
    """What everything costs, on PostgreSQL and on Redis."""

    async def measured(name: str) -> list[Figure]:
        with (
            ModelProcess() as model,
            store_server(name) as server,
            ServiceProcess(model, server.url) as service,
        ):
            return await Costs(name, service, server, scale).figures()

    return await on_each(SERVED, measured)
