"""Three processes on one store, 32 clients, 20 tasks, and everything that can happen to them at random.

Processes are killed (`SIGKILL`) and started again, stopped (`SIGSTOP`) beyond their lease and woken, and
connections between them and a store's server are delayed, cut, half-closed and robbed of replies. Then every
task is read over REST and held against what each client was answered: `tealagents.testing.history`.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress

import pytest

from tealagents.testing.faults import FaultProxy
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.history import ClientHistory, Correspondent, check
from tealagents.testing.pytest_stores import DURABLE, Place
from tealagents.testing.service import agent_config

PROCESSES, CLIENTS, TASKS = 3, 32, 20
#: how many messages, and for how long; CI has more time, and takes every durable store
THOROUGH = os.environ.get("THOROUGH") == "1"
MESSAGES, SECONDS = (250, 6) if THOROUGH else (120, 2)
#: of a short run on a server that takes its time
FEW_TASKS = {"dynamodb": 6}
#: seconds; of one that is shorter, a busy machine misses so many beats that hardly anything is answered
LEASE = 2.0
#: seconds that a client waits for an answer
PATIENCE = 15.0
#: after which a task that takes no message is stuck; on a busy machine a process misses beats of its lease
STUCK_SECONDS = 150.0
#: answers that come between two faults of a process, or of the connections to the store
ANSWERS = 3
#: seconds after which a run that proves too little is given up
LONGEST_SECONDS = 240.0

#: what happens to a message that meets another on its task
CONCURRENCY = {
    "files": "reject",
    "sqlite": "enqueue",
    "postgres": "enqueue",
    "redis": "enqueue",
    "dynamodb": "reject",
}


@pytest.mark.parametrize("place", DURABLE if THOROUGH else ["sqlite", "redis"], indirect=True)
async def test_nothing_is_lost_doubled_or_stuck(place: Place, nursery: Nursery) -> None:
    """Whatever was answered is so, whatever is so was sent, and every task continues.

    covers: STATE-3, TASK-5
    """
    few = FEW_TASKS.get(place.name, TASKS)
    await prove(place, nursery, tasks=few, messages=MESSAGES, seconds=SECONDS, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("place", DURABLE, indirect=True)
async def test_nothing_is_lost_doubled_or_stuck_in_the_long_run(place: Place, nursery: Nursery) -> None:
    """The same, over 5,000 messages. covers: STATE-3, TASK-5"""
    await prove(place, nursery, tasks=TASKS, messages=5000, seconds=900, seed=2)


async def prove(
    place: Place, nursery: Nursery, *, tasks: int, messages: int, seconds: float, seed: int
) -> None:
    """Sends so many messages, or for so long, while things break; then nothing is wrong."""
    rng, history, faults = random.Random(seed), ClientHistory(), Counter[str]()
    with running(place, nursery) as services:
        async with clients(history, services, rng) as correspondents:
            made = await asyncio.gather(*map(a_task, correspondents[:tasks]))
            began = time.monotonic()

            def enough() -> bool:
                """Whether the run was long enough and proves something: a busy machine takes longer."""
                elapsed = time.monotonic() - began
                if len(history.operations) < messages and elapsed < seconds:
                    return False
                proves = faults.total() > SECONDS / 2 and history.count("ok") > 2 * tasks
                return (proves and bool(history.looks)) or elapsed > max(LONGEST_SECONDS, 20 * seconds)

            async with asyncio.TaskGroup() as group:
                for service in services:
                    group.create_task(torment(service, rng, faults, history, enough))
                if place.proxy:
                    group.create_task(break_connections(place.proxy, rng, faults, history, enough))
                for correspondent in correspondents:
                    group.create_task(correspond(correspondent, made, rng, enough))
            took = time.monotonic() - began
            await calm(place, services)
            await settled(correspondents, made)
            verdict = await check(history, correspondents[0].http, [s.url for s in services])
            logs = "\n".join(f"--- {service.url}\n{service.log()}" for service in services)
    counts = {outcome: history.count(outcome) for outcome in ("ok", "failed", "unknown")}
    print(f"\n{place.name}: {counts} in {took:.1f} s, {len(history.looks)} looks, faults {dict(faults)}")
    assert not verdict.faults, f"{verdict.faults}\n{logs}"
    assert faults.total() > SECONDS / 2
    assert counts["ok"] > 2 * tasks
    assert history.looks


@contextmanager
def running(place: Place, nursery: Nursery) -> Iterator[list[ForkedService]]:
    config = agent_config(
        concurrency=CONCURRENCY[place.name],
        limits={"lease_seconds": LEASE, "request_timeout_seconds": 20},
        agent={"client": "tealagents.testing.digest_model:DigestModel", "model": "digest-5ms"},
    )
    with ExitStack() as stack:
        yield [stack.enter_context(nursery.service(config, place.env)) for _ in range(PROCESSES)]


@asynccontextmanager
async def clients(
    history: ClientHistory, services: Sequence[ForkedService], rng: random.Random
) -> AsyncIterator[list[Correspondent]]:
    async with AsyncExitStack() as stack:
        yield [
            Correspondent(
                history,
                await stack.enter_async_context(services[0].async_client("ada")),
                [service.url for service in services],
                random.Random(rng.random()),
                deadline=PATIENCE,
            )
            for _ in range(CLIENTS)
        ]


async def a_task(correspondent: Correspondent) -> str:
    """A task that takes messages. A busy machine may miss a beat, which ends what runs."""
    given_up = time.monotonic() + STUCK_SECONDS
    while (first := await correspondent.send(None, attempts=5)).task_id is None:
        assert time.monotonic() < given_up, f"no task could be made: {first}"
    return first.task_id


async def correspond(
    correspondent: Correspondent, tasks: Sequence[str], rng: random.Random, enough: Callable[[], bool]
) -> None:
    """One client's life: mostly messages, with and without a key, now and then a look."""
    while not enough():
        task = rng.choice(tasks)
        await correspondent.send(task, attempts=rng.choice((1, 8)), streamed=rng.random() < 0.3)
        if rng.random() < 0.2:
            await correspondent.look(task)


async def answered(history: ClientHistory, enough: Callable[[], bool]) -> None:
    """Waits for some answers more: to a busy machine, faults by the clock would leave time for none."""
    goal = history.count("ok") + ANSWERS
    while history.count("ok") < goal and not enough():
        await asyncio.sleep(0.05)


async def torment(
    service: ForkedService,
    rng: random.Random,
    faults: "Counter[str]",
    history: ClientHistory,
    enough: Callable[[], bool],
) -> None:
    """Kills a process and starts it again, or stops it beyond its lease and wakes it, again and again."""
    while not enough():
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        kind = rng.choice(("kill", "kill", "stop"))
        faults[kind] += 1
        if kind == "kill":
            await asyncio.to_thread(service.kill)
            await asyncio.sleep(rng.uniform(0, 0.5))
            await asyncio.to_thread(started, service)
        else:
            service.stop()
            await asyncio.sleep(rng.uniform(1.2, 2.0) * LEASE)
            service.cont()
        await answered(history, enough)


def started(service: ForkedService) -> None:
    """Starts a process, again where its store could not be reached."""
    for _ in range(20):
        with suppress(RuntimeError):
            return service.start()
    return service.start()


async def break_connections(
    proxy: FaultProxy,
    rng: random.Random,
    faults: "Counter[str]",
    history: ClientHistory,
    enough: Callable[[], bool],
) -> None:
    """Resets all connections to the store, or lets them suffer for a while."""
    while not enough():
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        if rng.random() < 0.3:
            faults["reset"] += len(proxy.connections)
            proxy.reset_all()
        else:
            proxy.chaos(seed=rng.randrange(1 << 30), rate=0.02)
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            proxy.calm()
        await answered(history, enough)
    faults.update({str(kind): count for kind, count in proxy.struck.items()})


async def calm(place: Place, services: Sequence[ForkedService]) -> None:
    """All processes live and nothing breaks any more."""
    if place.proxy:
        place.proxy.calm()
    for service in services:
        service.cont()
        if service.process.poll() is not None:
            await asyncio.to_thread(started, service)
    await asyncio.sleep(2 * LEASE)


async def settled(correspondents: Sequence[Correspondent], tasks: Sequence[str]) -> None:
    """Every task takes one more message, at the latest once what a process had begun in it has ended."""
    for n, task in enumerate(tasks):
        given_up = time.monotonic() + STUCK_SECONDS
        while (probe := await correspondents[n % CLIENTS].send(task, attempts=10)).outcome != "ok":
            assert time.monotonic() < given_up, f"the task {task} takes no message: {probe}"
            await asyncio.sleep(LEASE / 4)
