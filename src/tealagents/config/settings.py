"""The variables `TA_…`. They win over the file; what a variable is for stands below it.

To add one, add a field here; if it wins over a key of the file, also say over which in `OVERRIDES`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError

from tealagents.config.environment import Environment
from tealagents.config.explain import explain, model_at
from tealagents.config.models import ConsoleSection, Limits, Section
from tealagents.config.problems import KeyPath, Problem, did_you_mean
from tealagents.config.types import (
    Authority,
    Concurrency,
    ExistingFile,
    Flag,
    HeaderNames,
    HttpUrl,
    LogLevel,
    NameOrClass,
    OnDisconnect,
    Origins,
    Port,
    Protocols,
    Tenant,
    TenantIds,
    Text,
    ThreadKind,
    Words,
)

_PREFIX = "TA_"
#: Variables of the same prefix that the service itself has no use for.
_OF_CLIENTS = frozenset({"TA_TOKEN"})


def _secrets(value: Any) -> Any:
    return tuple(map(SecretStr, value.split())) if isinstance(value, str) else value


class _Thread(Section):
    kind: ThreadKind = "local"
    """Where conversations are kept: local or remote."""


class Settings(Section):
    """What the environment says."""

    service_config: Path | None = None
    """The config file, where the command line names none."""
    api_key: SecretStr | None = None
    """Key of the model service."""
    base_url: Annotated[HttpUrl | None, Field(repr=False)] = None
    """Address of an OpenAI-compatible model service, or of an Azure resource. Unset: OpenAI."""
    azure_api_version: Text | None = None
    """Version of Azure's dated API (`api-version`). Unset: Azure's `/openai/v1/`, which needs none."""
    azure_deployment: Text | None = None
    """Deployment at Azure, where it is not called like the model."""
    azure_credential: (
        Literal["client_secret", "certificate", "managed_identity", "workload_identity"] | None
    ) = None
    """How the service gets tokens for Azure OpenAI, instead of a key."""
    azure_tenant_id: Tenant | None = None
    """Tenant of that identity. Unset: `AZURE_TENANT_ID`."""
    azure_client_id: Text | None = None
    """Application id of that identity, or the user-assigned managed identity. Unset: `AZURE_CLIENT_ID`."""
    azure_client_secret: SecretStr | None = None
    """Its secret (`client_secret`)."""
    azure_client_certificate: ExistingFile | None = None
    """PEM file with its private key and certificate (`certificate`)."""
    azure_federated_token_file: ExistingFile | None = None
    """File with the platform's token (`workload_identity`). Unset: `AZURE_FEDERATED_TOKEN_FILE`."""
    azure_authority: Authority | None = None
    """Where its tokens come from. Unset: `AZURE_AUTHORITY_HOST`, else `https://login.microsoftonline.com`."""
    azure_scope: Text | None = None
    """What its tokens are for. Unset: `https://cognitiveservices.azure.com/.default`."""

    persistence: Annotated[Text | None, Field(repr=False)] = None
    """Store of all state, as a URL. Relative paths are relative to the working directory."""
    encryption_key: SecretStr | None = None
    """Key that seals stored content. Unset: content is stored readable."""
    encryption_old_keys: Annotated[tuple[SecretStr, ...], BeforeValidator(_secrets)] = ()
    """Earlier encryption keys, separated by spaces; they open, and nothing is sealed with them."""
    audit_key: SecretStr | None = None
    """Key of the audit record's hashes. Unset: plain hashes, which find accidents but no forgery."""

    auth: NameOrClass | None = None
    """Who checks tokens: `entra`, `mock` or `module:Class`."""
    entra_tenant_id: Tenant | None = None
    """The Entra tenant that issues the tokens."""
    entra_audience: Words = ()
    """Audiences of which a token must have one."""
    entra_scopes: Words = ()
    """Scopes that a user's token must all have."""
    entra_allowed_tenants: TenantIds = ()
    """Ids of the tenants whose users may call."""
    entra_allowed_clients: Words = ()
    """Client applications that may call. Unset: all."""
    entra_approver_role: Text | None = None
    """Role that may decide on the tool calls of others in its tenant."""
    entra_auditor_role: Text | None = None
    """Role that may read everything of its tenant."""
    entra_allow_app_tokens: Flag = False
    """Whether applications may call without a user."""
    entra_app_roles: Words = ()
    """Roles that an application's token must all have."""
    entra_authority: Authority = "https://login.microsoftonline.com"
    """Where tokens come from."""
    entra_client_id: Text | None = None
    """This service's own application id, to act for users downstream."""
    entra_client_secret: SecretStr | None = None
    """How the service proves itself downstream."""
    entra_certificate: ExistingFile | None = None
    """Instead of a secret: a PEM file with the private key and the certificate."""
    entra_certificate_password: SecretStr | None = None
    """Password of the private key."""
    entra_consent_redirect_uri: HttpUrl | None = None
    """Where the browser goes after a user's consent."""

    concurrency: Concurrency = "reject"
    """What a message meets while another runs on its task: reject, enqueue, interrupt or rollback."""
    on_disconnect: OnDisconnect = "continue"
    """What becomes of a request whose client leaves: continue or cancel."""
    protocols: Protocols = ()
    """Further protocols to serve the agent over: `openai`, `a2a`, `ag-ui`, `mcp`."""
    cors_origins: Origins = ()
    """Origins whose web pages may call, or `*`."""
    thread: _Thread = _Thread()
    console: ConsoleSection = ConsoleSection()
    limits: Limits = Limits()

    plugin_module: ExistingFile | None = None
    """File of the code plugins. Unset: `custom_plugins.py` beside the config file, where there is one."""
    plugin_catalog_file: ExistingFile | None = None
    """The catalogue (JSON): which tools need approval, and which authorization."""
    remote_plugin_path: ExistingFile | None = None
    """File that lists the OpenAPI plugins."""
    public_url: HttpUrl | None = None
    """Address under which browsers reach the service, where users come back to after authorizing a server."""
    forward_headers: HeaderNames = ()
    """Headers of the caller's request that tools may see, separated by spaces."""
    offline_script: ExistingFile | None = None
    """Script (YAML) of what the offline model answers."""

    telemetry_enabled: Flag | None = None
    """Whether traces, metrics and logs are exported. Unset: when there is an endpoint."""
    otel_endpoint: HttpUrl | None = None
    """Where to export to (OTLP over HTTP)."""
    metrics_port: Port | None = None
    """Port at which Prometheus reads `/metrics`, without a token. Unset: nowhere."""
    metrics_host: Text = "127.0.0.1"
    """Address at which it listens. Another than loopback: let a firewall say who reaches it."""
    log_level: LogLevel = "INFO"
    """Least severity that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    log_content: Flag = False
    """Whether logs and spans may hold the content of messages, at every level."""


#: The keys of the file that variables win over.
OVERRIDES: Mapping[str, KeyPath] = {
    "TA_PERSISTENCE": ("spec", "persistence"),
    "TA_AUTH": ("spec", "auth", "provider"),
    "TA_CONCURRENCY": ("spec", "concurrency"),
    "TA_ON_DISCONNECT": ("spec", "on_disconnect"),
    "TA_PROTOCOLS": ("spec", "protocols"),
    "TA_CORS_ORIGINS": ("spec", "cors_origins"),
    "TA_THREAD__KIND": ("spec", "thread", "kind"),
    **{f"TA_CONSOLE__{name.upper()}": ("spec", "console", name) for name in ConsoleSection.model_fields},
    **{f"TA_LIMITS__{name.upper()}": ("spec", "limits", name) for name in Limits.model_fields},
    **{
        f"TA_{name.upper()}": ("spec", "auth", name.removeprefix("entra_"))
        for name in Settings.model_fields
        if name.startswith("entra_")
    },
}


@cache
def variables() -> Mapping[str, tuple[str, ...]]:
    """Every variable there is, and the field of `Settings` that it sets."""
    known: dict[str, tuple[str, ...]] = {}
    for name in Settings.model_fields:
        section = model_at(Settings, (name,))
        for path in [(name, inner) for inner in section.model_fields] if section else [(name,)]:
            known[_PREFIX + "__".join(path).upper()] = path
    return known


def read_settings(environment: Environment, problems: list[Problem], warnings: list[str]) -> Settings:
    """The settings without those that are wrong, which are added to `problems`."""
    known = variables()
    warnings += (
        str(environment.problem(name, "unknown variable, ignored" + did_you_mean(name, known)))
        for name in sorted(environment.variables)
        if name.startswith(_PREFIX) and name not in known and name not in _OF_CLIENTS
    )
    given = {name: text for name in known if (text := environment.get(name)) is not None}
    wrong = dict(_mistakes(given))
    problems += (environment.problem(name, message) for name, message in wrong.items())
    return Settings.model_validate(_nested({name: given[name] for name in given if name not in wrong}))


def _mistakes(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that are wrong, and why."""
    names = {path: name for name, path in variables().items()}
    try:
        Settings.model_validate(_nested(given))
    except ValidationError as error:
        for each in error.errors():
            path = tuple(map(str, each["loc"]))
            yield names.get(path) or names[path[:1]], explain(each, Settings)


def _nested(given: Mapping[str, str]) -> dict[str, Any]:
    known = variables()
    values: dict[str, Any] = {}
    for name, text in given.items():
        *sections, key = known[name]
        section = values
        for part in sections:
            section = section.setdefault(part, {})
        section[key] = text
    return values
