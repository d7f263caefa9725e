"""What an agent works with while it is open: clients of the model, tools, providers."""

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

from tealagents.agent.answering import Side
from tealagents.config import ServiceConfig
from tealagents.domain.ports import Clock, Store, Tool, Toolset
from tealagents.engine.toolbox import Toolbox
from tealagents.state.records import RecordStore
from tealagents.threads.context import Providers

Kind = Literal["local", "remote"]


def with_kind(config: ServiceConfig, kind: Kind) -> ServiceConfig:
    """The config, as it would be for the other kind of threads."""
    return dataclasses.replace(config, thread=config.thread.model_copy(update={"kind": kind}))


class Opened:
    """What an agent works with while it is open."""

    def __init__(
        self,
        config: ServiceConfig,
        records: RecordStore,
        providers: Providers,
        toolsets: Sequence[Toolset],
        govern: Callable[[Sequence[Tool]], Sequence[Tool]],
    ) -> None:
        self.records = records
        self.providers = providers
        self._config = config
        self._toolsets = toolsets
        self._govern = govern
        self._stack = AsyncExitStack()
        self._sides: dict[Kind, Side] = {}

    async def side(self, kind: Kind) -> Side:
        """The model's client for a kind of thread, opened when it is first needed."""
        if kind not in self._sides:
            from tealagents.bootstrap import credential_of, model_of

            config = with_kind(self._config, kind)
            model = await self._stack.enter_async_context(model_of(config, credential_of(config)))
            toolbox = Toolbox(model, config.limits.tool_timeout_seconds, self._govern)
            toolbox.load(self._toolsets)
            self._sides[kind] = Side(model, toolbox)
        return self._sides[kind]

    def reload(self) -> None:
        for side in self._sides.values():
            side.toolbox.reload()

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def opened(
    config: ServiceConfig, store: Store, providers: Providers, clock: Clock
) -> AsyncIterator[Opened]:
    """Everything open; `store` is open already, where it is needed."""
    from tealagents.bootstrap import ledger_of
    from tealagents.tooling import Tooling

    records = ledger_of(config, store, clock)
    working: list[Opened] = []

    def changed() -> None:
        for each in working:
            each.reload()

    async with AsyncExitStack() as stack:
        tooling = Tooling(config, records, clock)
        stack.push_async_callback(tooling.close)
        working.append(Opened(config, records, providers, await tooling.open(changed), tooling.govern))
        stack.push_async_callback(working[0].close)
        await stack.enter_async_context(providers)
        yield working[0]
