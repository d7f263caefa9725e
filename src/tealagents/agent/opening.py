"""The resources of an open agent: model clients, tools, providers."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Generic, Literal, TypeVar

from tealagents.config import ServiceConfig
from tealagents.domain.ports import Clock, Store, Toolset
from tealagents.engine.agent import AgentSpec
from tealagents.engine.toolbox import Govern
from tealagents.llm import ModelConfigError
from tealagents.llm.credentials import AzureCredential
from tealagents.opening import Held
from tealagents.state.records import RecordStore
from tealagents.threads.context import Providers
from tealagents.threads.views import View

Kind = Literal["local", "remote"]

T = TypeVar("T")


def with_kind(config: ServiceConfig, kind: Kind) -> ServiceConfig:
    """The config for threads of this kind. An agent that is configured for remote threads uses the same API
    for local ones."""
    agent = config.agent
    if agent.client is None and config.thread.kind == "remote":
        agent = agent.model_copy(update={"client": "openai-responses"})
    return dataclasses.replace(config, agent=agent, thread=config.thread.model_copy(update={"kind": kind}))


class LoopLock:
    """A lock per event loop, since an agent may be used in one loop after another, as with `asyncio.run`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def __call__(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


class Shared(Generic[T]):
    """A resource with several concurrent users: the first one opens it, the last one closes it.

    All users are in the event loop that the resource belongs to; once it is closed, another loop may open it.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]], *, stays: bool = False) -> None:
        """`stays`: once opened, it is never closed."""
        #: the resource; None while it is closed
        self.value: T | None = None
        self._opening = opening
        self._stays = stays
        self._users = 0
        #: how many are entering, using or leaving it, and in which event loop
        self._busy = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard = threading.Lock()
        self._changing = LoopLock()
        self._stack = AsyncExitStack()

    def check_loop(self) -> None:
        """`RuntimeError` if it is in use in another event loop."""
        loop = self._loop
        if self._busy and loop and loop is not asyncio.get_running_loop() and loop.is_running():
            raise RuntimeError(
                "An agent that is entered with `async with`, or has context providers, can be used in one "
                "event loop at a time; this one is in use in another. Make an agent for each thread."
            )

    async def enter(self) -> T:
        with self._guard:
            self.check_loop()
            self._loop = asyncio.get_running_loop()
            self._busy += 1
        try:
            async with self._changing():
                if self.value is None:
                    self.value = await self._stack.enter_async_context(self._opening())
                self._users += 1
                return self.value
        except BaseException:
            self._busy -= 1
            raise

    async def leave(self) -> None:
        self._users -= 1  # before any `await`, so that a canceled user has left, too
        try:
            async with self._changing():
                if not self._users and not self._stays:
                    self.value = None
                    await self._stack.aclose()
        finally:
            self._busy -= 1

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[T]:
        value = await self.enter()
        try:
            yield value
        finally:
            await self.leave()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """The resources of an open agent."""

    config: ServiceConfig
    records: RecordStore
    providers: Providers
    toolsets: Sequence[Toolset]
    govern: Govern
    view: View | None
    credential: AzureCredential | None
    #: the agents that have been used so far, and what closes their model clients
    agents: dict[Kind, AgentSpec]
    models: AsyncExitStack

    async def agent(self, kind: Kind) -> AgentSpec:
        """The agent for one kind of thread; its model client is opened on first use."""
        if kind not in self.agents:
            from tealagents.parts import agent_of, model_of

            config = with_kind(self.config, kind)
            model = model_of(config, self.credential)
            await self.models.enter_async_context(Held(model, "model client", ModelConfigError))
            agent = agent_of(config, model, self.govern)
            agent.toolbox.load(self.toolsets)
            view = self.view if kind == "local" else None
            self.agents[kind] = dataclasses.replace(
                agent, thread_kind=kind, view=view, providers=self.providers
            )
        return self.agents[kind]


@asynccontextmanager
async def opened(
    config: ServiceConfig, store: Store, providers: Providers, view: View | None, clock: Clock
) -> AsyncIterator[Opened]:
    """Opens the resources of an agent; `store` and `providers`, if needed, must be open already."""
    from tealagents.parts import credential_of, record_store_of
    from tealagents.tooling import Tooling

    records = record_store_of(config, store, clock)
    agents: dict[Kind, AgentSpec] = {}

    def changed() -> None:
        for agent in agents.values():
            agent.toolbox.reload()

    async with AsyncExitStack() as stack:
        tooling = Tooling(config, records, clock)
        stack.push_async_callback(tooling.close)
        toolsets = await tooling.open(changed)
        credential = credential_of(config)
        if credential is not None:
            await stack.enter_async_context(credential)
        models = AsyncExitStack()
        stack.push_async_callback(models.aclose)
        yield Opened(
            config=config,
            records=records,
            providers=providers,
            toolsets=toolsets,
            govern=tooling.govern,
            view=view,
            credential=credential,
            agents=agents,
            models=models,
        )
