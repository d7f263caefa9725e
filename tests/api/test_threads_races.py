"""Rollbacks and forks that race with messages, on three processes that share a store."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import httpx
import pytest
from wire import text

from tealagents.testing.digest_model import digest_answer
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.history import audit_fault, everything, reader
from tealagents.testing.service import agent_config

pytest_plugins = ["tealagents.testing.pytest_servers"]

PROCESSES, SENDERS, TRAVELLERS, MESSAGES = 3, 8, 4, 120


@pytest.fixture(params=["sqlite", "redis"])
def services(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path: Any
) -> Iterator[list[ForkedService]]:
    url = (
        f"sqlite:///{tmp_path}/state.db"
        if request.param == "sqlite"
        else request.getfixturevalue("redis_url")
    )
    config = agent_config(
        persistence=url,
        agent={"client": "tealagents.testing.digest_model:DigestModel", "model": "digest-5ms"},
        thread={"context_providers": [{"name": "facts", "tools": False}]},
    )
    env = {"TA_AUTH": "mock"}
    with ExitStack() as stack:
        yield [stack.enter_context(nursery.service(config, env)) for _ in range(PROCESSES)]


@pytest.fixture
async def replicas(services: list[ForkedService]) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(each.async_client("ada")) for each in services]


class World:
    """What the clients know."""

    def __init__(self, replicas: list[httpx.AsyncClient], rng: random.Random) -> None:
        self.replicas = replicas
        self.rng = rng
        self.tasks: list[str] = []
        #: request ids that completed, by task
        self.marks: dict[str, list[str]] = defaultdict(list)
        #: answers that clients received, by request
        self.answers: dict[str, str] = {}
        self.sent = 0
        self.outcomes: dict[str, int] = defaultdict(int)

    @property
    def done(self) -> bool:
        """Enough was sent, and on a slow store, where most is refused, enough of it has succeeded."""
        often = self.outcomes["send 200"] > 20 and self.outcomes["rollback 200"] > 5
        return self.sent >= (MESSAGES if often else 10 * MESSAGES)

    @property
    def anywhere(self) -> httpx.AsyncClient:
        return self.rng.choice(self.replicas)

    async def send(self, task: str | None = None) -> None:
        self.sent += 1
        body = text(f"word{self.sent}", **({"task_id": task} if task else {}))
        answer = await self.anywhere.post("", json=body)
        self.outcomes[f"send {answer.status_code}"] += 1
        assert answer.status_code in (200, 409), answer.text
        if answer.status_code == 200:
            done = answer.json()
            self.answers[done["request_id"]] = done["content"]["output"]
            self.marks[done["task_id"]].append(done["request_id"])
            if task is None:
                self.tasks.append(done["task_id"])

    async def roll_back(self) -> None:
        task = self.rng.choice(self.tasks)
        body = {"checkpoint_id": self.rng.choice(self.marks[task])}
        answer = await self.anywhere.post(f"/tasks/{task}/rollback", json=body)
        self.outcomes[f"rollback {answer.status_code}"] += 1
        assert answer.status_code in (200, 409), answer.text

    async def fork(self) -> None:
        task = self.rng.choice(self.tasks)
        body = {"checkpoint_id": self.rng.choice(self.marks[task])} if self.rng.random() < 0.7 else {}
        answer = await self.anywhere.post(f"/tasks/{task}/fork", json=body)
        self.outcomes[f"fork {answer.status_code}"] += 1
        assert answer.status_code == 201, answer.text
        forked = answer.json()
        self.tasks.append(forked["task_id"])
        self.marks[forked["task_id"]].append(forked["checkpoint_id"])


async def test_every_answer_knows_its_own_past_and_no_other(replicas: list[httpx.AsyncClient]) -> None:
    """Whatever was rolled back or forked meanwhile: the model was sent exactly the messages of the checkpoint
    its answer became, no returned answer is lost, and every audit holds. covers: THREAD-6, THREAD-7"""
    world = World(replicas, random.Random(7))
    await asyncio.gather(*(world.send() for _ in range(3)))

    async def sender() -> None:
        while not world.done:
            await world.send(world.rng.choice(world.tasks))

    async def traveller() -> None:
        while not world.done:
            await (world.roll_back() if world.rng.random() < 0.7 or len(world.tasks) > 12 else world.fork())

    async with asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(sender())
        for _ in range(TRAVELLERS):
            group.create_task(traveller())

    assert world.outcomes["rollback 200"] > 5
    assert world.outcomes["send 200"] > 20
    for task in world.tasks:
        await check(world, task)


async def check(world: World, task: str) -> None:
    read = reader(world.anywhere, "")
    marks = {each["checkpoint_id"]: each for each in await everything(read, f"/tasks/{task}/checkpoints")}
    assert set(world.marks[task]) <= set(marks)
    for mark in marks:
        messages = await everything(read, f"/tasks/{task}/messages", checkpoint_id=mark)
        said = ["".join(item["content"] for item in m["items"]) for m in messages if m["role"] == "user"]
        answer = "".join(item["content"] for item in messages[-1]["items"])
        assert answer == digest_answer(said)
        assert messages[-1]["request_id"] == mark
        assert world.answers.get(mark, answer) == answer
    (current,) = [mark for mark, each in marks.items() if each["current"]]
    now = await everything(read, f"/tasks/{task}/messages")
    assert now == await everything(read, f"/tasks/{task}/messages", checkpoint_id=current)
    assert audit_fault(await everything(read, f"/tasks/{task}/audit")) is None
