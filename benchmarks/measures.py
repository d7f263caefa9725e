"""What is measured of the service beside the floor."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.figures import Figure
from benchmarks.load import Connection, Floor, Model, Service, Target, task_of
from benchmarks.processes import FloorProcess, Measured, ModelProcess, ServiceProcess

TEXT = "hello"
PIECES = 64

Measure = Callable[["Scale"], Awaitable[Sequence[Figure]]]
Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Scale:
    """How much of it: everything, or enough to see that it works."""

    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


# --- taking turns -------------------------------------------------------------------------------


@dataclass
class Spent:
    """What one process has spent on how many requests."""

    server: Measured
    milliseconds: float = 0.0
    requests: int = 0

    async def on(self, requests: int, work: Work) -> None:
        """Does `work`, which makes so many requests."""
        before = self.server.cpu()
        await work()
        self.milliseconds += self.server.cpu() - before
        self.requests += requests

    @property
    def each(self) -> float:
        return self.milliseconds / self.requests


class Bench:
    """The service, the floor and the model service, running, with an open connection to each."""

    def __init__(self, model: ModelProcess, floor: FloorProcess, service: ServiceProcess) -> None:
        self.model, self.floor, self.service = Model(model), Floor(floor), Service(service)

    @classmethod
    @asynccontextmanager
    async def running(cls, requests: int = 1000) -> AsyncIterator["Bench"]:
        """`requests` are those that may be in flight at a time."""
        limits = {"max_concurrent_requests": requests}
        with ExitStack() as stack:
            model = stack.enter_context(ModelProcess())
            floor = stack.enter_context(FloorProcess(model))
            service = stack.enter_context(ServiceProcess(model, spec={"limits": limits}))
            bench = cls(model, floor, service)
            for target in (bench.floor, bench.service):
                await warm(target)
            yield bench


async def warm(target: Target) -> None:
    """The first requests import, connect and fill caches; they are not counted."""
    async with target.connections(4) as connections:
        for _ in range(10):
            await asyncio.gather(*(target.ask(connection, TEXT) for connection in connections))
            await asyncio.gather(*(target.read_stream(c, f"pieces-{PIECES}") for c in connections))


async def repeat(count: int, ask: Work) -> None:
    for _ in range(count):
        await ask()


def rounds(total: int, size: int) -> Iterator[int]:
    """`total` requests in turns of `size`."""
    yield from [size] * (total // size)


# --- turns --------------------------------------------------------------------------------------


async def turns(scale: Scale) -> list[Figure]:
    """CPU of a JSON request: at the first turn, and as one task grows to 200 turns."""
    async with Bench.running() as bench:
        first = await first_turn(
            bench.service, bench.floor, scale, measure="turns", name="JSON request, first turn", bound=0.42
        )
        return [first, *await _growth(bench, scale)]


async def first_turn(
    service: Target, floor: Target, scale: Scale, *, measure: str, name: str, bound: float | None
) -> Figure:
    """CPU of a first turn on the one and on the other, which take turns of twenty."""
    ours, base = Spent(service.server), Spent(floor.server)
    async with service.connections(1) as (to_service,), floor.connections(1) as (to_floor,):
        for size in rounds(scale.of(1000, 100), 20):
            await base.on(size, partial(repeat, size, lambda: floor.ask(to_floor, TEXT)))
            await ours.on(size, partial(repeat, size, lambda: service.ask(to_service, TEXT)))
    return Figure(measure=measure, name=name, unit="ms CPU", ours=ours.each, base=base.each, bound=bound)


#: turns of a task that are looked at, and how many around each
LOOKED_AT, AROUND = (10, 50, 100, 200), 14


async def _growth(bench: Bench, scale: Scale) -> list[Figure]:
    """Tasks of all lengths take turns, and the floor with them: what the machine does meets them alike."""
    ours = {turn: Spent(bench.service.server) for turn in LOOKED_AT}
    floor = Spent(bench.floor.server)
    count = scale.of(12, 2)
    async with bench.service.connections(1) as (to_service,), bench.floor.connections(1) as (to_floor,):

        async def next_turn(tasks: Sequence[str]) -> None:
            for task in tasks:
                await bench.service.ask(to_service, TEXT, task_id=task)

        groups: dict[int, list[str]] = {}
        for turn in LOOKED_AT:
            groups[turn] = [task_of(await bench.service.ask(to_service, TEXT)) for _ in range(count)]
            for _ in range(turn - AROUND // 2 - 1):
                await next_turn(groups[turn])
        order = list(groups.items())
        for _ in range(AROUND):
            order.reverse()
            await floor.on(count, lambda: repeat(count, lambda: bench.floor.ask(to_floor, TEXT)))
            for turn, tasks in order:
                await ours[turn].on(count, lambda tasks=tasks: next_turn(tasks))  # type: ignore[misc]
    figures = [
        Figure(
            measure="turns",
            name=f"JSON request, turn {turn} of one task",
            unit="ms CPU",
            ours=ours[turn].each,
            base=floor.each,
        )
        for turn in LOOKED_AT
    ]
    grown = Figure(
        measure="turns",
        name="turn 200 beside turn 10 (base)",
        unit="ms CPU",
        ours=ours[200].each,
        base=ours[10].each,
        bound=1.1,
    )
    return [*figures, grown]


# --- streams ------------------------------------------------------------------------------------


async def streams(scale: Scale) -> list[Figure]:
    """CPU of a streamed answer of 64 pieces, in a burst and 5 ms apart."""
    async with Bench.running() as bench:
        burst = await _stream_cost(bench, f"pieces-{PIECES}", at_once=1, count=scale.of(400, 40))
        paced = await _stream_cost(bench, f"pieces-{PIECES}@5ms", at_once=4, count=scale.of(160, 40))
    return [
        Figure(
            measure="streams",
            name=f"{PIECES} pieces in a burst",
            unit="ms CPU",
            ours=burst[0],
            base=burst[1],
            bound=0.1,
        ),
        Figure(
            measure="streams",
            name=f"{PIECES} pieces 5 ms apart",
            unit="ms CPU",
            ours=paced[0],
            base=paced[1],
            bound=0.38,
        ),
    ]


async def _stream_cost(bench: Bench, text: str, *, at_once: int, count: int) -> tuple[float, float]:
    ours, floor = Spent(bench.service.server), Spent(bench.floor.server)
    async with (
        bench.service.connections(at_once) as to_service,
        bench.floor.connections(at_once) as to_floor,
    ):
        # ten in a row, as of the JSON turns twenty: what is asked once and then rests finds its caches cold
        for size in rounds(count, 10 * at_once):
            await floor.on(size, lambda: repeat(10, lambda: _read_streams(bench.floor, to_floor, text)))
            await ours.on(size, lambda: repeat(10, lambda: _read_streams(bench.service, to_service, text)))
    return ours.each, floor.each


async def _read_streams(target: Target, connections: Sequence[Connection], text: str) -> None:
    read = await asyncio.gather(*(target.read_stream(connection, text) for connection in connections))
    if any(pieces != PIECES for pieces, _ in read):
        raise RuntimeError(f"{[pieces for pieces, _ in read]} pieces were read, not {PIECES} each")


async def first_piece(scale: Scale) -> list[Figure]:
    """How long until the first piece, over what the model service itself takes."""
    async with Bench.running() as bench:
        targets: list[Target] = [bench.model, bench.floor, bench.service]
        seen: dict[Target, list[float]] = {target: [] for target in targets}
        async with (
            bench.model.connections(1) as (to_model,),
            bench.floor.connections(1) as (to_floor,),
            bench.service.connections(1) as (to_service,),
        ):
            connections = [to_model, to_floor, to_service]
            for _ in range(scale.of(300, 30)):
                for target, connection in zip(targets, connections, strict=True):
                    _, first = await target.read_stream(connection, f"pieces-{PIECES}@1ms")
                    seen[target].append(first)
    own = median(seen[bench.model])
    return [
        Figure(
            measure="first-piece",
            name="first piece, over the model service's own",
            unit="ms",
            ours=median(seen[bench.service]) - own,
            base=median(seen[bench.floor]) - own,
            bound=5,
            of="value",
        )
    ]


# --- throughput ---------------------------------------------------------------------------------


async def throughput(scale: Scale) -> list[Figure]:
    """Requests a second, with the model service and the clients on the same machine."""
    figures = []
    async with Bench.running() as bench:
        for clients in (1, 16, 64):
            ours, floor = Rate(), Rate()
            for _ in range(scale.of(4, 1)):
                await floor.measure(bench.floor, clients, scale.of(5, 1))
                await ours.measure(bench.service, clients, scale.of(5, 1))
            figures += [
                Figure(
                    measure="throughput",
                    name=f"{clients} client{'s' if clients > 1 else ''}",
                    unit="requests/s",
                    ours=ours.rate,
                    base=floor.rate,
                ),
                Figure(
                    measure="throughput",
                    name=f"{clients} client{'s' if clients > 1 else ''}",
                    unit="ms CPU",
                    ours=ours.cpu,
                    base=floor.cpu,
                ),
            ]
    return figures


@dataclass
class Rate:
    """Requests, in how many seconds and with how much CPU of the server."""

    requests: int = 0
    seconds: float = 0.0
    milliseconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu(self) -> float:
        return self.milliseconds / self.requests

    async def measure(self, target: Target, clients: int, seconds: float) -> None:
        async with target.connections(clients) as connections:
            started, before = time.perf_counter(), target.server.cpu()

            async def keep_asking(connection: Connection, user: str) -> int:
                asked = 0
                while time.perf_counter() - started < seconds:
                    await target.ask(connection, TEXT, user=user)
                    asked += 1
                return asked

            asked = await asyncio.gather(*(keep_asking(c, f"user-{n}") for n, c in enumerate(connections)))
            self.requests += sum(asked)
            self.seconds += time.perf_counter() - started
            self.milliseconds += target.server.cpu() - before


# --- memory -------------------------------------------------------------------------------------


async def memory(scale: Scale) -> list[Figure]:
    """Memory of many tasks, and of many streams that wait."""
    streams = [await _memory_of_streams(count) for count in (scale.of(500, 100), scale.of(2000, 200))]
    return [*await _memory_of_tasks(scale), *streams]


async def _memory_of_tasks(scale: Scale) -> list[Figure]:
    async with Bench.running() as bench:
        server, count = bench.service.server, scale.of(2000, 200)
        before = server.memory()
        async with bench.service.connections(1) as (connection,):
            await repeat(count, lambda: bench.service.ask(connection, TEXT))
        after = server.memory()
        floor = bench.floor.server.memory()
    return [
        Figure(
            measure="memory",
            name=f"after {count} tasks of one turn",
            unit="MB",
            ours=after / 1024,
            base=floor / 1024,
        ),
        Figure(measure="memory", name="a task of one turn", unit="KB", ours=(after - before) / count),
    ]


async def _memory_of_streams(count: int) -> Figure:
    async with Bench.running(requests=2 * count) as bench:
        ours = await _waiting(bench.service, count)
        # the floor's client has a thousand connections at most
        floor = await _waiting(bench.floor, min(count, 500))
    return Figure(
        measure="memory",
        name=f"a waiting stream, of {count:,}",
        unit="KB",
        ours=ours,
        base=floor,
        bound=50,
        of="value",
    )


async def _waiting(target: Target, count: int) -> float:
    """Kilobytes that one of `count` streams takes, the first of whose pieces has come."""
    before = target.server.memory()
    async with target.connections(count) as connections:
        streams = [
            connection.stream(
                target.stream_path, f"user-{n % 50}", target.body("pieces-2@600000ms", stream=True)
            )
            for n, connection in enumerate(connections)
        ]
        await asyncio.gather(*(_until_first_piece(target, stream) for stream in streams))
        await asyncio.sleep(2)
        return (target.server.memory() - before) / count


async def _until_first_piece(target: Target, stream: AsyncIterator[bytes]) -> None:
    read = b""
    async for data in stream:
        read += data
        if target.mark in read:
            return


# --- start --------------------------------------------------------------------------------------


async def start(scale: Scale) -> list[Figure]:
    """From the start of the process to the first answer."""
    seconds: dict[type[Measured], list[float]] = {FloorProcess: [], ServiceProcess: []}
    spent: dict[type[Measured], list[float]] = {FloorProcess: [], ServiceProcess: []}
    with ModelProcess() as model:
        for _ in range(scale.of(9, 2)):
            for kind in (FloorProcess, ServiceProcess):
                with kind(model) as process:
                    seconds[kind].append(process.ready_seconds)
                    spent[kind].append(process.cpu() / 1000)
    return [
        Figure(
            measure="start",
            name="from process start to health",
            unit="s",
            ours=median(seconds[ServiceProcess]),
            base=median(seconds[FloorProcess]),
            bound=0.9,
            of="value",
        ),
        Figure(
            measure="start",
            name="CPU until health",
            unit="s CPU",
            ours=median(spent[ServiceProcess]),
            base=median(spent[FloorProcess]),
        ),
    ]
