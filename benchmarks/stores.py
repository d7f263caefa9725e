"""What a turn costs on each store, beside the floor and the same turn in memory, and how much it writes.

Old tasks and young ones, on the store and in memory, take turns: what else the machine does strikes all four.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.load import Connection, Floor, Service, task_of
from benchmarks.measures import TEXT, Scale, Spent, first_turn, warm
from benchmarks.processes import FloorProcess, ModelProcess, ServiceProcess
from benchmarks.servers import SERVED, on_each, store_server

#: the turns in question, each with how many a task has before it is looked at
TURNS = {10: 5, 200: 190}
#: tasks that grow together, and turns that are looked at of each before the young ones give way to others
TASKS, LOOKS = 10, 10
#: the most that a first turn on a store may cost, beside the floor's
PROMISED = {"sqlite": 0.62, "postgres": 0.9, "redis": 0.8}


@dataclass(frozen=True)
class StoreUnderLoad:
    """A service on a store, and how many bytes that store has written so far."""

    service: ServiceProcess
    written: Callable[[], int]
    #: true where `written` is what the process passed to `write`, HTTP and all: that in memory is subtracted
    with_traffic: bool
    bound: float | None


async def stores(scale: Scale) -> list[Figure]:
    """CPU of the service a turn, at turn 10 and at turn 200, and bytes written."""

    async def measured(name: str) -> list[Figure]:
        return [await _beside_the_floor(name, scale), *await _measure(name, scale)]

    return await on_each(("sqlite", "files", *SERVED), measured)


async def _beside_the_floor(name: str, scale: Scale) -> Figure:
    """CPU of a first turn."""
    with ExitStack() as stack:
        model = stack.enter_context(ModelProcess())
        floor = Floor(stack.enter_context(FloorProcess(model)))
        service = Service(stack.enter_context(_service_on(name, model)).service)
        for target in (floor, service):
            await warm(target)
        first, bound = f"{name}, first turn", PROMISED.get(name)
        return await first_turn(service, floor, scale, measure="stores", name=first, bound=bound)


async def _measure(name: str, scale: Scale) -> list[Figure]:
    with ExitStack() as stack:
        model = stack.enter_context(ModelProcess())
        memory = stack.enter_context(ServiceProcess(model))
        store = stack.enter_context(_service_on(name, model))
        plain = Side(memory, lambda: memory.written())
        stored = Side(store.service, store.written)
        async with plain.connected(), stored.connected():
            await _take_turns(plain, stored, scale)
    figures = []
    for turn in TURNS:
        ours, floor = stored.at[turn], plain.at[turn]
        bytes_each = ours.bytes_each - (floor.bytes_each if store.with_traffic else 0)
        figures += [
            Figure(
                measure="stores",
                name=f"{name}, turn {turn}, floor: in memory",
                unit="ms CPU",
                ours=ours.spent.each,
                base=floor.spent.each,
                bound=store.bound,
            ),
            Figure(
                measure="stores", name=f"{name}, written at turn {turn}", unit="bytes a turn", ours=bytes_each
            ),
        ]
    return figures


async def _take_turns(plain: "Side", stored: "Side", scale: Scale) -> None:
    """Tasks grow old; then some young ones after others grow beside them, and all are looked at."""
    sides = (plain, stored)
    await _grow(sides, 200, scale.of(TURNS[200], 20))
    for _ in range(scale.of(4, 1)):
        await _grow(sides, 10, TURNS[10])
        for _ in range(LOOKS):
            for turn in TURNS:
                for side in sides:
                    await side.look_at(turn)


async def _grow(sides: Sequence["Side"], turn: int, before: int) -> None:
    for side in sides:
        await side.begin(turn)
    for _ in range(before - 1):
        for side in sides:
            await side.grow(turn)


class Cost:
    """What the turns that were looked at have cost."""

    def __init__(self, service: ServiceProcess) -> None:
        self.spent = Spent(service)
        self.bytes = 0

    @property
    def bytes_each(self) -> float:
        return self.bytes / self.spent.requests


class Side:
    """One of the services, its tasks around turn 10 and around turn 200, and what these cost."""

    def __init__(self, service: ServiceProcess, written: Callable[[], int]) -> None:
        self.at = {turn: Cost(service) for turn in TURNS}
        self._target = Service(service)
        self._written = written
        self._tasks: dict[int, list[str]] = {}
        self._connection: Connection

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        await warm(self._target)
        async with self._target.connections(1) as (self._connection,):
            yield

    async def begin(self, turn: int) -> None:
        """Begins the tasks that grow towards `turn`, in the place of any before."""
        self._tasks[turn] = [task_of(await self._target.ask(self._connection, TEXT)) for _ in range(TASKS)]

    async def grow(self, turn: int) -> None:
        for task in self._tasks[turn]:
            await self._target.ask(self._connection, TEXT, task_id=task)

    async def look_at(self, turn: int) -> None:
        cost, before = self.at[turn], self._written()
        await cost.spent.on(TASKS, lambda: self.grow(turn))
        cost.bytes += self._written() - before


# --- each store ---------------------------------------------------------------------------------


@contextmanager
def _service_on(name: str, model: ModelProcess) -> Iterator[StoreUnderLoad]:
    with ExitStack() as stack:
        if name in SERVED:
            server = stack.enter_context(store_server(name))
            service = stack.enter_context(ServiceProcess(model, server.url))
            yield StoreUnderLoad(service, server.written, with_traffic=False, bound=2)
        else:
            url = "sqlite:///state.db" if name == "sqlite" else "file:///state"
            local = stack.enter_context(ServiceProcess(model, url))
            bound = 1.5 if name == "sqlite" else None
            yield StoreUnderLoad(local, local.written, with_traffic=True, bound=bound)
