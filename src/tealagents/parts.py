"""Makes the parts that a config names: store, model client, reducers, context providers, observer.

The wirings (`bootstrap`, `skagents`) put them together and open them. The library and the commands need some
of them, and no API: this module imports none.
"""

from collections.abc import Sequence

from tealagents.config import ServiceConfig
from tealagents.config.models import CLIENTS, AgentConfig
from tealagents.domain.errors import CorruptState, TealError, ToolFailed
from tealagents.domain.models import Json
from tealagents.domain.ports import Clock, Model, Store
from tealagents.engine.agent import AgentSpec
from tealagents.engine.observer import Observer
from tealagents.engine.toolbox import Govern, Toolbox
from tealagents.llm import ModelConfigError, open_model
from tealagents.llm.credentials import AzureCredential, AzureCredentialOptions
from tealagents.llm.options import OPENAI_URL, is_openai
from tealagents.mistakes import Misconfigured
from tealagents.state.inventory import Inventory
from tealagents.state.records import RecordStore
from tealagents.state.tasks import TaskRules
from tealagents.stores import StoreConfigError, plain_store, sealed
from tealagents.telemetry.requests import LoggedRequests
from tealagents.threads.components import open_providers, open_view
from tealagents.threads.context import Providers
from tealagents.threads.message_stores import MessageStoreFactory, SealedMessages
from tealagents.threads.views import View
from tealagents.tools.naming import plugin_of

#: what can be wrong with a config or with what it names, reported to the operator without a traceback
START_ERRORS = (TealError, Misconfigured, ToolFailed, OSError)

#: characters of the shortest audit key that is accepted
SHORTEST_AUDIT_KEY = 16


def store_of(config: ServiceConfig) -> Store:
    """The config's store, sealed where an encryption key is set."""
    return sealed(plain_store(config.persistence), *_encryption_keys(config))


def message_stores_of(config: ServiceConfig, stores: MessageStoreFactory) -> MessageStoreFactory:
    """Message stores of the library, sealed where an encryption key is set."""
    key, old_keys = _encryption_keys(config)
    if key is None:
        return stores
    from tealagents.stores.encrypted import Cipher

    cipher = Cipher(key, old_keys)
    return lambda: SealedMessages(stores(), cipher)


def _encryption_keys(config: ServiceConfig) -> tuple[str | None, list[str]]:
    key = config.encryption_key
    old_keys = [each.get_secret_value() for each in config.encryption_old_keys]
    return key.get_secret_value() if key is not None else None, old_keys


def model_of(config: ServiceConfig, credential: AzureCredential | None = None) -> Model:
    """The config's model client; `credential` gives it tokens, which it uses instead of a key."""
    agent, limits = config.agent, config.limits
    name = agent.client or CLIENTS[config.thread.kind]
    identity = config.environment.get("TA_AZURE_CREDENTIAL")
    if identity and is_openai(config.base_url or OPENAI_URL) and name in CLIENTS.values():
        raise ModelConfigError(
            "TA_AZURE_CREDENTIAL needs TA_BASE_URL, the address of the Azure resource: the tokens of this "
            "service's identity are not for OpenAI."
        )
    options: Json = {
        "model": agent.model,
        "api_key": config.api_key.get_secret_value() if config.api_key else None,
        "base_url": config.base_url,
        "temperature": agent.temperature,
        "max_tokens": agent.max_tokens,
        "reasoning_effort": agent.reasoning_effort,
        "model_timeout_seconds": limits.model_timeout_seconds,
        "first_piece_timeout_seconds": limits.first_piece_timeout_seconds,
        "piece_timeout_seconds": limits.piece_timeout_seconds,
        "azure_api_version": config.azure_api_version,
        "azure_deployment": config.azure_deployment,
        "token_provider": credential,
    }
    if name == "openai-responses":
        options["store"] = config.thread.kind == "remote"
    model = open_model(name, config.source.parent, **options)
    if config.thread.kind == "remote" and not getattr(model, "supports_remote_threads", False):
        raise ModelConfigError(
            f"The model client {name!r} keeps no conversations, which thread.kind: remote requires. Use "
            "openai-responses, or set thread.kind to local."
        )
    return model


def agent_of(config: ServiceConfig, model: Model, govern: Govern) -> AgentSpec:
    """The config's agent, whatever it is served by. Its tools are loaded once they are open."""
    return AgentSpec(
        name=config.name,
        version=config.version,
        system_prompt=(config.agent.system_prompt or "").strip(),
        model=model,
        toolbox=Toolbox(model, config.limits.tool_timeout_seconds, govern),
        limits=config.limits,
    )


def view_of(config: ServiceConfig) -> View | None:
    """The part of a conversation that the model sees; None: all of it."""
    reducers = [(each.name, each.options) for each in config.thread.reducers]
    return open_view(reducers, config.agent.model, config.source.parent)


def providers_of(config: ServiceConfig) -> Providers:
    providers = [(each.name, each.options) for each in config.thread.context_providers]
    return open_providers(providers, config.source.parent)


def credential_of(config: ServiceConfig) -> AzureCredential | None:
    """This service's own credential at Azure OpenAI, which it uses instead of a key."""
    options = AzureCredentialOptions.from_environment(config.environment)
    return AzureCredential(options) if options is not None else None


def record_store_of(config: ServiceConfig, store: Store, clock: Clock) -> RecordStore:
    """The config's records over an opened store."""
    key = config.audit_key.get_secret_value().encode() if config.audit_key else b""
    return RecordStore(store, config.name, clock, audit_key=key)


async def check_key(config: ServiceConfig, records: RecordStore, *, writes: bool = True) -> None:
    """Refuses any key but the store's own: new records would be unencrypted, or under another key.

    The first process that `writes` makes its key the store's own.
    """
    inventory = Inventory(records)
    check = inventory.claim if writes else inventory.check_key
    try:
        await check(keyed=config.encryption_key is not None)
    except CorruptState as error:
        raise StoreConfigError(
            f"TA_ENCRYPTION_KEY is not the key of this store: the record {error.key!r} {error.reason}."
        ) from None


def rules_of(config: ServiceConfig) -> TaskRules:
    limits = config.limits
    return TaskRules(
        concurrency=config.concurrency,
        max_queued=limits.max_queued_requests,
        request_timeout_seconds=limits.request_timeout_seconds,
        approval_expiry_seconds=limits.approval_expiry_seconds,
    )


def observer_of(config: ServiceConfig, agents: Sequence[AgentConfig]) -> Observer:
    """What observes requests, and the model calls and tool calls of these agents."""
    if not config.telemetry.metered:
        return LoggedRequests()
    from tealagents.telemetry.observing import OpenTelemetryObserver

    plugins = [
        plugin_of(name)
        for agent in agents
        for name in (*agent.plugins, *agent.remote_plugins, *(server.name for server in agent.mcp_servers))
    ]
    return OpenTelemetryObserver(
        config.name,
        config.version,
        plugins=plugins,
        content=config.telemetry.log_content,
    )


def weak_keys(config: ServiceConfig) -> Sequence[str]:
    """Why a key of the config is too weak; empty if none is."""
    if config.audit_key and len(config.audit_key.get_secret_value()) < SHORTEST_AUDIT_KEY:
        return [
            f"TA_AUDIT_KEY is shorter than {SHORTEST_AUDIT_KEY} characters; make one with "
            "`openssl rand -base64 32`"
        ]
    return []
