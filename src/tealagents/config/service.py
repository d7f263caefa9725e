"""The effective config: the file, with what the environment says over it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

from tealagents.config.auth import AuthConfig
from tealagents.config.file import Document
from tealagents.config.loading import Loading
from tealagents.config.models import (
    AgentConfig,
    ConfigFile,
    ConsoleSection,
    Metadata,
    ThreadConfig,
)
from tealagents.config.settings import Settings
from tealagents.domain.models import Concurrency
from tealagents.limits import Limits
from tealagents.options import OnDisconnect, Options

if TYPE_CHECKING:
    from tealagents.tools.options import MCPServerOptions

#: what the versions of the earlier platform begin with
EARLIER = "skagents/"
#: the provider that is for these versions alone: a gateway has checked the caller
GATEWAY = "gateway"
#: the port for OTLP over gRPC, by convention
_GRPC_PORT = 4317
#: the settings for Azure OpenAI that are not about the identity that gets tokens
_NO_IDENTITY = ("azure_api_version", "azure_deployment", "azure_credential")


class TelemetryOptions(Options):
    """What is observed, and where it goes."""

    endpoint: str | None = None
    """Where traces, metrics and logs are exported to (OTLP over HTTP); None: nowhere."""
    metrics_host: str = "127.0.0.1"
    """Address at which Prometheus reads `/metrics`."""
    metrics_port: int | None = None
    """Port at which Prometheus reads `/metrics`; None: nowhere."""
    log_level: str = "INFO"
    """Lowest severity that is logged."""
    log_content: bool = False
    """Whether logs and spans may hold the content of messages."""

    @property
    def traced(self) -> bool:
        """Whether there is somewhere to export to."""
        return self.endpoint is not None

    @property
    def metered(self) -> bool:
        """Whether metrics are exported, or can be read."""
        return self.traced or self.metrics_port is not None


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """Everything that a service needs to know, checked. All paths are absolute."""

    source: Path  #: the config file
    api_version: str
    kind: str
    name: str
    version: str
    description: str
    metadata: Metadata
    agent: AgentConfig
    thread: ThreadConfig
    console: ConsoleSection
    limits: Limits
    concurrency: Concurrency
    on_disconnect: OnDisconnect
    protocols: tuple[str, ...]  #: besides the API of `api_version`
    cors_origins: tuple[str, ...]
    auth: AuthConfig
    persistence: str = field(repr=False)  #: URL of the store; may hold a password
    base_url: str | None = field(repr=False)
    azure_api_version: str | None
    azure_deployment: str | None
    api_key: SecretStr | None
    encryption_key: SecretStr | None
    encryption_old_keys: tuple[SecretStr, ...]
    audit_key: SecretStr | None
    plugin_module: Path | None
    plugin_catalog_file: Path | None
    remote_plugin_path: Path | None
    public_url: str | None  #: without a slash at the end
    forward_headers: tuple[str, ...]  #: in lower case
    offline_script: Path | None
    telemetry: TelemetryOptions
    environment: Mapping[str, str] = field(repr=False)  #: all variables, those of `.env` too
    warnings: tuple[str, ...]  #: what works but was probably not meant
    document: Document = field(repr=False, compare=False)  #: the file, to say where a key stands
    #: the Python files that were executed for it: its agents share what they hold
    modules: dict[Path, ModuleType] = field(default_factory=dict, repr=False, compare=False)

    @property
    def stateless(self) -> bool:
        """Whether nothing is stored: the file is of the earlier platform."""
        return self.api_version.startswith(EARLIER)

    @property
    def prefix(self) -> str:
        """What every path of the service begins with: /{name}/{version}."""
        return f"/{self.name}/{self.version}"


def combined(file: ConfigFile, auth: AuthConfig, loading: Loading) -> ServiceConfig:
    """A valid file with the environment over it."""
    spec, document, settings = file.spec, loading.document, loading.settings
    return ServiceConfig(
        source=Path(os.path.abspath(document.name)),
        api_version=file.api_version,
        kind=file.kind,
        name=file.name,
        version=file.version,
        description=file.description,
        metadata=file.metadata,
        agent=with_programs_below(spec.agent, document.directory),
        thread=spec.thread,
        console=spec.console,
        limits=spec.limits,
        concurrency=spec.concurrency,
        on_disconnect=spec.on_disconnect,
        protocols=spec.protocols,
        cors_origins=spec.cors_origins,
        auth=auth,
        persistence=spec.persistence,
        base_url=settings.base_url,
        azure_api_version=settings.azure_api_version,
        azure_deployment=settings.azure_deployment,
        api_key=settings.api_key,
        encryption_key=settings.encryption_key,
        encryption_old_keys=settings.encryption_old_keys,
        audit_key=settings.audit_key,
        plugin_module=settings.plugin_module or beside(document, "custom_plugins.py"),
        plugin_catalog_file=settings.plugin_catalog_file,
        remote_plugin_path=settings.remote_plugin_path,
        public_url=settings.public_url.rstrip("/") if settings.public_url else None,
        forward_headers=settings.forward_headers,
        offline_script=settings.offline_script,
        telemetry=_telemetry(settings),
        environment=loading.environment.variables,
        warnings=(*loading.warnings, *_warnings_of(auth, settings)),
        document=document,
    )


def _warnings_of(auth: AuthConfig, settings: Settings) -> Iterator[str]:
    if auth.entra is not None and not auth.entra.scopes:
        yield "any token for the audience is accepted: no scopes are required; set TA_ENTRA_SCOPES"
    elif auth.entra is None and not auth.chosen:
        yield (
            "authentication is off: no provider is chosen, so the mock provider accepts any bearer token as "
            "the user id, on loopback addresses only; set TA_AUTH or spec.auth"
        )
    if settings.encryption_old_keys and settings.encryption_key is None:
        yield "TA_ENCRYPTION_OLD_KEYS: has no effect without TA_ENCRYPTION_KEY; nothing is encrypted"
    azure = [name for name in Settings.model_fields if name.startswith("azure_") and name not in _NO_IDENTITY]
    identity = [name for name in azure if name in settings.model_fields_set]
    if identity and settings.azure_credential is None:
        named = ", ".join(f"TA_{name.upper()}" for name in identity)
        yield f"{named}: no effect without TA_AZURE_CREDENTIAL, the kind of identity"
    if settings.telemetry_enabled and settings.otel_endpoint is None:
        yield "TA_TELEMETRY_ENABLED: has no effect without TA_OTEL_ENDPOINT; nothing is exported"
    if "metrics_host" in settings.model_fields_set and settings.metrics_port is None:
        yield "TA_METRICS_HOST: has no effect without TA_METRICS_PORT; no metrics are offered"
    if settings.otel_endpoint is not None and urlsplit(settings.otel_endpoint).port == _GRPC_PORT:
        yield (
            f"TA_OTEL_ENDPOINT: {_GRPC_PORT} is usually a collector's port for gRPC, and the service exports "
            "over HTTP; use the collector's port for HTTP, usually 4318"
        )


def _telemetry(settings: Settings) -> TelemetryOptions:
    return TelemetryOptions(
        endpoint=settings.otel_endpoint if settings.telemetry_enabled is not False else None,
        metrics_host=settings.metrics_host,
        metrics_port=settings.metrics_port,
        log_level=settings.log_level,
        log_content=settings.log_content,
    )


def with_programs_below(agent: AgentConfig, directory: Path) -> AgentConfig:
    """The agent, its MCP servers' programs found from where the file is, and running there."""

    def located(server: "MCPServerOptions") -> "MCPServerOptions":
        if server.command is None:
            return server
        paths = {"cwd": os.path.normpath(directory / (server.cwd or "."))}
        if "/" in server.command:
            paths["command"] = os.path.normpath(directory / server.command)
        return server.model_copy(update=paths)

    return agent.model_copy(update={"mcp_servers": tuple(map(located, agent.mcp_servers))})


def beside(document: Document, name: str) -> Path | None:
    path = document.directory / name
    return path if path.is_file() else None
