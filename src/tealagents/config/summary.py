"""What would be served, in a few lines for people. No secret is in it."""

from collections.abc import Iterator, Sequence

from tealagents.config.auth import AuthConfig
from tealagents.config.models import CLIENTS, AgentConfig
from tealagents.config.service import ServiceConfig
from tealagents.config.urls import masked
from tealagents.outbound.addresses import shown


def summary(config: ServiceConfig) -> list[tuple[str, str]]:
    """Labels and what stands for them, in the order of reading."""
    return list(_lines(config))


def model_service(config: ServiceConfig) -> str | None:
    """The service that the model is called at; None where only a client of the config's own knows it."""
    if config.base_url:
        return shown(config.base_url)
    return None if ":" in (config.agent.client or "") else "OpenAI"


def _lines(config: ServiceConfig) -> Iterator[tuple[str, str]]:
    # a sequence of the earlier platform has several
    agents: Sequence[AgentConfig] = getattr(config, "agents", (config.agent,))
    yield "config", str(config.source)
    yield "serves", f"{config.prefix} ({config.kind}, {config.api_version})"
    for agent in agents:
        client = agent.client or CLIENTS[config.thread.kind]
        yield "model", f"{_whose(agent, agents)}{agent.model}, by {client}{_options(agent)}"
    if service := model_service(config):
        yield "model service", service
    yield "API key", "set" if config.api_key else "not set"
    for agent in agents:
        for label, tools in _tools(config, agent):
            yield label, _whose(agent, agents) + tools
    if config.plugin_catalog_file:
        yield "catalogue", str(config.plugin_catalog_file)
    yield "auth", _auth(config.auth)
    if config.stateless:
        yield "store", "none: each call is independent"
    else:
        yield from _state(config)
    yield "CORS origins", ", ".join(config.cors_origins) or "none"
    yield "console", _CONSOLE[config.console.enabled]
    yield "limits", _limits(config)
    endpoint = config.telemetry.endpoint
    yield "telemetry", shown(endpoint) if endpoint else "off"
    if config.telemetry.metrics_port is not None:
        yield "metrics", f"{config.telemetry.metrics_host}:{config.telemetry.metrics_port}"


def _state(config: ServiceConfig) -> Iterator[tuple[str, str]]:
    thread = config.thread
    yield "store", masked(config.persistence) + (", encrypted" if config.encryption_key else "")
    yield (
        "thread",
        ", ".join([thread.kind, *(part.name for part in thread.reducers + thread.context_providers)]),
    )
    yield "concurrency", f"{config.concurrency}; when a client disconnects: {config.on_disconnect}"
    yield "protocols", ", ".join((config.api_version, *config.protocols))


_CONSOLE = {None: "on loopback addresses only", True: "served", False: "not served"}


def _whose(agent: AgentConfig, agents: Sequence[AgentConfig]) -> str:
    return f"{agent.name}: " if len(agents) > 1 else ""


def _options(agent: AgentConfig) -> str:
    options = {
        "temperature": agent.temperature,
        "max_tokens": agent.max_tokens,
        "reasoning_effort": agent.reasoning_effort,
    }
    given = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    return f" ({given})" if given else ""


def _tools(config: ServiceConfig, agent: AgentConfig) -> Iterator[tuple[str, str]]:
    if agent.plugins:
        yield "plugins", f"{', '.join(agent.plugins)} (from {config.plugin_module or 'installed packages'})"
    if agent.remote_plugins:
        yield "OpenAPI plugins", f"{', '.join(agent.remote_plugins)} (from {config.remote_plugin_path})"
    for server in agent.mcp_servers:
        where = server.command if server.transport == "stdio" else shown(server.url or "")
        yield "MCP server", f"{server.name}: {where} ({server.trust_level})"
    if agent.toolsets:
        yield "toolsets", ", ".join(toolset.name for toolset in agent.toolsets)
    if not (agent.plugins or agent.remote_plugins or agent.mcp_servers or agent.toolsets):
        yield "tools", "none"


def _auth(auth: AuthConfig) -> str:
    if (entra := auth.entra) is not None:
        scopes = f", scopes {' '.join(entra.scopes)}" if entra.scopes else ""
        return f"entra, tenant {entra.tenant_id}, audience {' '.join(entra.audience)}{scopes}"
    return auth.provider if auth.chosen else f"{auth.provider} (not chosen, so on loopback addresses only)"


def _limits(config: ServiceConfig) -> str:
    defaults = type(config.limits)()
    changed = [f"{name} {value:g}" for name, value in config.limits if value != getattr(defaults, name)]
    return f"{', '.join(changed)}; all others at their defaults" if changed else "defaults"
