"""The tools of one config: plugins, OpenAPI services, MCP servers, governed by the catalogue."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from tealagents.config import ServiceConfig, TelemetryOptions
from tealagents.domain.ports import Clock, Delegation, Tool, Toolset, ToolSpec
from tealagents.state.records import RecordStore
from tealagents.state.secret_store import SecretStore
from tealagents.tools import Consents, Sources, govern, open_toolsets, tools_at_hand


async def offered(config: ServiceConfig, unset: list[str]) -> list[ToolSpec]:
    """The tools that are known before any server is asked. `ToolsetError` where they cannot be had.

    `unset` takes the variables that the files of remote plugins and of the catalogue name, and that have
    no value.
    """
    return await tools_at_hand(_sources(config, unset))


def _sources(config: ServiceConfig, unset: list[str] | None = None) -> Sources:
    agent, seconds = config.agent, config.limits.tool_timeout_seconds
    return Sources(
        plugins=agent.plugins,
        plugin_module=config.plugin_module,
        modules=config.modules,
        remote=agent.remote_plugins,
        remote_plugin_file=config.remote_plugin_path,
        environment=config.environment,
        unset=unset,
        # their own limit ends a call that was sent; the one from outside allows for waiting besides
        servers=[each.limited(seconds) for each in agent.mcp_servers],
        toolsets=[(each.name, each.options) for each in agent.toolsets],
        folder=config.source.parent,
        catalogue_file=config.plugin_catalog_file,
        more_to_come=bool(config.thread.context_providers),
        trace_headers=_trace_headers(config.telemetry),
    )


def _trace_headers(telemetry: TelemetryOptions) -> Callable[[], Mapping[str, str]]:
    """What names the headers that continue the current trace: none where there are no traces."""
    if not telemetry.traced:
        return dict
    from tealagents.telemetry.http import trace_headers

    return trace_headers


def _without_url(config: ServiceConfig) -> str:
    """What the operator can do where users cannot be sent back to the service."""
    if config.stateless:
        return (
            f"An agent of {config.api_version} has none: the operator has to migrate it with `tealagents "
            "upgrade`."
        )
    return "The operator has to set TA_PUBLIC_URL."


def _several(config: ServiceConfig) -> bool:
    """Whether there may be several servers that users authorize: one could be after the codes of another."""
    return len(config.agent.mcp_servers) > 1 or config.plugin_catalog_file is not None


class Tooling:
    """Opens every toolset of a config, and what acts for users downstream."""

    def __init__(self, config: ServiceConfig, records: RecordStore | None, clock: Clock) -> None:
        """`records` keeps what users have granted; None: nothing outlives the process."""
        self._sources = _sources(config)
        self._stack = AsyncExitStack()
        self.delegation: Delegation | None = None
        if (entra := config.auth.entra) is not None:
            # imported here: it brings msal along, which takes long
            from tealagents.auth.delegation import open_delegation

            self.delegation = open_delegation(entra, clock)
        callback = f"{config.public_url}{config.prefix}/oauth/callback" if config.public_url else None
        secret_store = (
            SecretStore(records) if records is not None and config.encryption_key is not None else None
        )
        #: asks users to authorize tool servers, and takes what the browser brings back
        self.consents = Consents(
            callback,
            without_url=_without_url(config),
            own_callbacks=_several(config),
            secret_store=secret_store,
        )

    async def open(
        self, changed: Callable[[], None], failed: list[Exception] | None = None
    ) -> Sequence[Toolset]:
        """The toolsets, open until `close`. `changed` is called when an MCP server lists other tools;
        `failed` is that of `open_toolsets`."""
        self._stack.push_async_callback(self.consents.tokens.settled)
        if self.delegation is not None:
            await self._stack.enter_async_context(self.delegation)  # type: ignore[arg-type]
        return await self._stack.enter_async_context(
            open_toolsets(self._sources, consents=self.consents, changed=changed, failed=failed)
        )

    def govern(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Tools that context providers bring to a request, under the governance that holds for all others."""
        return govern(tools, self._sources.catalogue, self.consents)

    async def close(self) -> None:
        await self._stack.aclose()
