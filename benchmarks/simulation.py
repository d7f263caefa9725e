"""A million tasks over the real code of engine and state, on a store that counts: does a turn's cost stay?

Owners come one after the other, each with its tasks; one of them, an application that sends all under its own
identity, owns a fiftieth of all tasks. An owner who is through is dropped from the store, which says what was
left behind, so that memory is needed for the largest owner alone. What all owners share (who there is) stays.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from msgspec import Struct

from benchmarks.figures import Figure
from benchmarks.measures import Scale
from benchmarks.operations import Asked, InProcess, in_process
from tealagents.domain.models import User
from tealagents.testing.counting import Footprint, ForgettingStore, StoreOperation

STORE = "tealagents.testing.counting:ForgettingStore"
#: of how many turns one is looked at by itself
SAMPLE = 1000
#: tasks of an owner, and of how many tasks one has a second turn
TASKS_EACH, SECOND_TURN = 20, 5
#: kinds of turns, by their names in `benchmarks.operations`
FIRST, NEXT, FOLLOW_UP = "a user's first message", "first turn of a task", "follow-up turn"
#: of all tasks, the part that one owner has
HOT_PART = 50


class Owner(Struct, frozen=True):
    user: User
    tasks: int


class Simulated(Struct, frozen=True, kw_only=True):
    """What came of it."""

    tasks: int
    #: turns by their kind
    turns: Counter[str]
    seconds: float
    #: by all turns together
    asked: Asked
    #: what each kind of turn asked for, in samples, and how often just that
    seen: dict[str, Counter[Asked]]
    left: Footprint
    bytes_put: int

    @property
    def per_turn(self) -> float:
        return self.asked.total / self.turns.total()


def owners(tasks: int) -> Iterator[Owner]:
    """Those who own so many tasks together; the one who owns the most comes last."""
    hot = tasks // HOT_PART
    for n in range((tasks - hot) // TASKS_EACH):
        yield Owner(User("mock", f"user-{n}"), TASKS_EACH)
    yield Owner(User("mock", "application"), tasks - (tasks - hot) // TASKS_EACH * TASKS_EACH)


async def simulate(tasks: int) -> Simulated:
    """So many tasks, with a turn each, and every fifth with another."""
    with TemporaryDirectory() as folder:
        async with in_process(Path(folder), STORE) as service:
            return await Simulation(service).run(tasks)


class Simulation:
    """One run of it."""

    def __init__(self, service: InProcess) -> None:
        self._service = service
        self._turns: Counter[str] = Counter()
        self._seen: dict[str, Counter[Asked]] = {}

    async def run(self, tasks: int) -> Simulated:
        store = self._service.store
        began, before, left = time.perf_counter(), store.operations.copy(), Footprint()
        for owner in owners(tasks):
            left += await self._live(owner)
        return Simulated(
            tasks=tasks,
            turns=self._turns,
            seconds=time.perf_counter() - began,
            asked=Asked.of(store.operations - before),
            seen=self._seen,
            left=left,
            bytes_put=store.bytes_put,
        )

    async def _live(self, owner: Owner) -> Footprint:
        """All that an owner does; returns what of it is left in the store."""
        kind = FIRST
        for number in range(owner.tasks):
            task = await self._turn(owner, kind)
            kind = NEXT
            if number % SECOND_TURN == 0:
                await self._turn(owner, FOLLOW_UP, task)
        partition = self._service.exchange.service.records.partition(owner.user)
        return await cast("ForgettingStore", self._service.store.store).forget(partition)

    async def _turn(self, owner: Owner, kind: str, task_id: str | None = None) -> str:
        """The task of a turn; every so many turns, and at first, what it asked of the store is noted."""
        operations = self._service.store.operations
        seen = self._seen.setdefault(kind, Counter())
        sampled = not seen or self._turns.total() % SAMPLE == 0
        before: Counter[StoreOperation] = operations.copy() if sampled else operations
        request = await self._service.turn(task_id=task_id, user=owner.user)
        self._turns[kind] += 1
        if sampled:
            seen[Asked.of(operations - before)] += 1
        return request.task_id


async def simulation(scale: Scale) -> list[Figure]:
    """A million tasks, or a few thousand."""
    found = await simulate(scale.of(1_000_000, 5_000))
    tasks, turns = found.tasks, found.turns.total()
    many = f"{tasks:,} tasks of {found.turns[FIRST]:,} owners"
    return [
        Figure(measure="simulation", name=name, unit=unit, ours=value)
        for name, unit, value in (
            (many, "operations a turn", found.per_turn),
            ("a turn, all of the service but its wire", "ms", 1000 * found.seconds / turns),
            ("written by a turn", "bytes", found.bytes_put / turns),
            ("a stored task of 1.2 turns", "records", found.left.records / tasks),
            ("a stored task of 1.2 turns", "bytes", found.left.bytes / tasks),
        )
    ]
