"""What is asked of the store by each thing that a service does, counted.

The service runs in this process, without its wire and with a model that answers at once. The counts are exact
and the same on every machine and every store: `docs/scale.md` holds them, and a test compares.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count as count_up
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from msgspec import Struct

from benchmarks.figures import Figure
from benchmarks.measures import Scale
from tealagents.bootstrap import application
from tealagents.config import load
from tealagents.domain.models import Caller, Item, RequestRecord, User
from tealagents.domain.ports import Clock
from tealagents.engine.approvals import Command
from tealagents.state.new_message import Key, NewMessage
from tealagents.testing.counting import CountingStore, StoreOperation, counting_url
from tealagents.testing.service import agent_config

ADA = User("mock", "ada")
#: partitions of what a process does besides its requests: its lease with word from others, pending deletions
OF_THE_PROCESS = ("workers", "erasing")
#: how often is counted what the machine may add to
TRIES = 3
PLUGIN = """
from tealagents.plugins import Plugin, tool

class Work(Plugin):
    @tool
    async def look(self) -> str:
        "Look."
        return "nothing"

    @tool(requires_hitl=True)
    async def write(self) -> str:
        "Write."
        return "written"
"""


class Asked(Struct, frozen=True):
    """What was asked of a store."""

    reads: int = 0
    scans: int = 0
    commits: int = 0

    @property
    def total(self) -> int:
        return self.reads + self.scans + self.commits

    def __sub__(self, other: "Asked") -> "Asked":
        return Asked(self.reads - other.reads, self.scans - other.scans, self.commits - other.commits)

    @classmethod
    def of(cls, operations: Mapping[StoreOperation, int]) -> "Asked":
        named: Counter[str] = Counter()
        for operation, times in operations.items():
            if operation.partition not in OF_THE_PROCESS:
                named[operation.name] += times
        return cls(named["read"], named["scan"], named["commit"])


class InProcess:
    """A service without its wire, and the store it counts on."""

    def __init__(self, app: Any) -> None:
        self.exchange = app.exchange
        self.store: CountingStore = self.exchange.service.records.store

    async def turn(
        self,
        text: str = "hello",
        task_id: str | None = None,
        *,
        user: User = ADA,
        key: Key | None = None,
        streamed: bool = False,
    ) -> RequestRecord:
        """A message and its answer."""
        message = NewMessage(items=(Item("text", text),), task_id=task_id)
        sent = await self.exchange.submit(Caller(user), message, key, streamed=streamed)
        request: RequestRecord = await self.exchange.outcome(sent)
        return request

    async def asked(self, work: Callable[[], Awaitable[object]]) -> Asked:
        """What `work` asks of the store for its requests."""
        before = self.store.operations.copy()
        await work()
        return Asked.of(self.store.operations - before)


@asynccontextmanager
async def in_process(
    folder: Path, store: str = "memory://", clock: Clock | None = None, **spec: Any
) -> AsyncIterator[InProcess]:
    """A service in this process on a store that counts."""
    (folder / "custom_plugins.py").write_text(PLUGIN)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(
            agent_config(
                agent={"client": "benchmarks.echo:EchoModel", "plugins": ["Work"]},
                **spec,
            )
        )
    )
    env = {
        "TA_AUTH": "mock",
        "TA_API_KEY": "none",
        "TA_PERSISTENCE": counting_url(store),
        "TA_PLUGIN_MODULE": str(folder / "custom_plugins.py"),
        "TA_LOG_LEVEL": "ERROR",
    }
    app = application(load(folder / "config.yaml", env=env, dotenv=None), clock=clock)
    async with app.lifespan(app):
        yield InProcess(app)


# --- what is counted --------------------------------------------------------------------------------


async def count() -> dict[str, Asked]:
    """What each thing asks of the store, by the name that `docs/scale.md` has for it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        store = f"sqlite:///{folder}/state.db"
        replica = await stack.enter_async_context(in_process(folder, store))
        other = await stack.enter_async_context(in_process(folder, store))
        here = await stack.enter_async_context(in_process(folder))
        found = {"a user's first message": await here.asked(here.turn)}
        found["first turn of a task"] = await here.asked(here.turn)
        task = (await here.turn()).task_id
        found["follow-up turn"] = await here.asked(lambda: here.turn(task_id=task))
        task = (await replica.turn()).task_id
        await other.turn()
        found["follow-up turn on another replica"] = await other.asked(lambda: other.turn(task_id=task))
        names = map(str, count_up())
        found["idempotency key, in addition"] = await _more(
            here, lambda: here.turn(key=Key(next(names), "digest"))
        )
        found["tool round, in addition"] = await _more(here, lambda: here.turn("call Work-look"))
        found["pause and approval, in addition"] = await _more(here, lambda: _pause_and_approve(here))
        # the first delta has been written behind when the second comes, with which the request ends
        two = "deltas 2@300ms"
        found["batch of deltas, in addition"] = await _more(here, lambda: here.turn(two, streamed=True))
        return found


async def _more(here: InProcess, work: Callable[[], Awaitable[object]]) -> Asked:
    """What `work` asks for beyond a plain turn.

    The least of some tries: where the machine holds this process up for longer than deltas and steps are
    gathered, there is a batch more.
    """
    tries = [await here.asked(work) for _ in range(TRIES)]
    return min(tries, key=lambda asked: asked.total) - await here.asked(here.turn)


async def _pause_and_approve(here: InProcess) -> None:
    paused = await here.turn("call Work-write")
    command = Command(action="approve")
    view = await here.exchange.decide(Caller(ADA), paused.request_id, command, streamed=False)
    await here.exchange.outcome(view)


async def operations(scale: Scale) -> list[Figure]:
    """The counts as figures: commits, with reads and scans beside them."""
    return [
        Figure(
            measure="operations",
            name=name,
            unit=f"commits, {asked.reads} reads, {asked.scans} scans",
            ours=asked.commits,
        )
        for name, asked in (await count()).items()
    ]
