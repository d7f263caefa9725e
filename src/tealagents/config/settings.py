"""The variables `TA_…`. They win over the file; what a variable is for stands below it.

To add one, add a field to `Settings`, or where it wins over a key of the file, an entry to `OVERRIDES`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError

from tealagents.config.auth import AUTH
from tealagents.config.earlier import is_earlier, remarks
from tealagents.config.environment import Environment
from tealagents.config.models import ConsoleSection
from tealagents.config.problems import ConfigProblem, KeyPath
from tealagents.limits import Limits
from tealagents.mistakes import did_you_mean, explain
from tealagents.options import (
    Authority,
    AzureIdentity,
    EncryptionKey,
    ExistingFile,
    Flag,
    HeaderKey,
    HeaderNames,
    HttpUrl,
    LogLevel,
    Options,
    Port,
    PublicUrl,
    Tenant,
    Text,
)

_PREFIX = "TA_"
#: Variables of the same prefix that the service itself has no use for.
_OF_CLIENTS = frozenset({"TA_TOKEN"})


def _secrets(value: Any) -> Any:
    return tuple(map(SecretStr, value.split())) if isinstance(value, str) else value


def _to_be_extended(endpoint: str) -> str:
    if "?" in endpoint or "#" in endpoint:
        raise ValueError("must be without a query and a fragment; put keys into OTEL_EXPORTER_OTLP_HEADERS")
    if signal := re.search(r"/v1/(traces|metrics|logs)(?=/?$)", endpoint):
        raise ValueError(f"must be without {signal[0]}: the path of each signal is added to it")
    return endpoint


class Settings(Options):
    """What the environment says."""

    service_config: Path | None = None
    """The config file, if the command line names none."""
    api_key: HeaderKey | None = None
    """Key of the model service."""
    base_url: Annotated[HttpUrl | None, Field(repr=False)] = None
    """Address of an OpenAI-compatible model service, or of an Azure resource. Unset: OpenAI."""
    azure_api_version: Text | None = None
    """Version of Azure's dated API (`api-version`). Unset: Azure's `/openai/v1/`, which needs none."""
    azure_deployment: Text | None = None
    """Deployment at Azure, if its name is not the model's."""
    azure_credential: AzureIdentity | None = None
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

    encryption_key: EncryptionKey | None = None
    """Key that encrypts stored content, of at least 8 characters. Unset: content is stored in the clear."""
    encryption_old_keys: Annotated[tuple[EncryptionKey, ...], BeforeValidator(_secrets)] = ()
    """Earlier encryption keys, separated by spaces; used for reading only."""
    audit_key: SecretStr | None = None
    """Key of the audit hashes. Unset: plain hashes, which reveal accidental damage but not forgery."""

    plugin_module: ExistingFile | None = None
    """File of the code plugins. Unset: `custom_plugins.py` beside the config file, if there is one."""
    types_module: ExistingFile | None = None
    """File of the types that a `skagents` file names. Unset: `custom_types.py` beside the config file, if
    there is one."""
    gateway_secret: HeaderKey | None = None
    """Secret that a gateway sends in the header `taAgwKey` (`TA_AUTH=gateway`, `skagents` only)."""
    plugin_catalog_file: ExistingFile | None = None
    """The catalogue (JSON): which tools need approval or authorization."""
    remote_plugin_path: ExistingFile | None = None
    """File that lists the OpenAPI plugins."""
    public_url: PublicUrl | None = None
    """Public address of the service; set it behind a proxy. Users return there after authorizing a tool
    server; agent cards name it, and so do the challenges that tell clients where to get a token."""
    forward_headers: HeaderNames = ()
    """Headers of the caller's request that tools may see, separated by spaces."""
    offline_script: ExistingFile | None = None
    """Script (YAML) of the offline model's answers."""

    telemetry_enabled: Flag | None = None
    """Whether traces, metrics and logs are exported. Unset: exported if there is an endpoint."""
    otel_endpoint: Annotated[HttpUrl, AfterValidator(_to_be_extended)] | None = None
    """Where to export to (OTLP over HTTP). `/v1/traces`, `/v1/metrics` and `/v1/logs` are added to it."""
    metrics_port: Port | None = None
    """Port at which Prometheus reads `/metrics`, without a token. Unset: nowhere."""
    metrics_host: Text = "127.0.0.1"
    """Address at which that port listens. Beyond loopback, restrict access with a firewall."""
    log_level: LogLevel = "INFO"
    """Lowest severity that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    log_content: Flag = False
    """Whether logs and spans may hold the content of messages, at every level."""


#: The keys of the file that variables win over; those of Entra are in `variables`.
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
}
_ENTRA = "TA_ENTRA_"


@cache
def variables() -> Mapping[str, KeyPath | str]:
    """Every variable there is, and what it sets: a key of the file, or a field of `Settings`."""
    from tealagents.auth.options import EntraOptions

    entra = {_ENTRA + name.upper(): (*AUTH, name) for name in EntraOptions.model_fields}
    own = {_PREFIX + name.upper(): name for name in Settings.model_fields}
    return {**own, **OVERRIDES, **entra}


def overrides(environment: Environment) -> Mapping[str, KeyPath]:
    """The variables that are set and win over keys of the file."""
    known: Mapping[str, KeyPath | str] = OVERRIDES
    if any(name.startswith(_ENTRA) for name in environment.variables):
        known = variables()
    return {
        name: key
        for name, key in known.items()
        if isinstance(key, tuple) and environment.get(name) is not None
    }


def read_settings(environment: Environment, problems: list[ConfigProblem], warnings: list[str]) -> Settings:
    """The settings without those that are wrong, which are added to `problems`."""
    warnings += _unknown(environment)
    warnings += remarks(environment)
    given = {
        name: text
        for name in Settings.model_fields
        if (text := environment.get(_PREFIX + name.upper())) is not None
    }
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        for each in error.errors():
            name = str(each["loc"][0])
            given.pop(name, None)
            problems.append(environment.problem(_PREFIX + name.upper(), explain(each, Settings)))
        return Settings.model_validate(given)


def _unknown(environment: Environment) -> Iterator[str]:
    own = {_PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(environment.variables):
        if not name.startswith(_PREFIX) or name in own | OVERRIDES.keys() | _OF_CLIENTS or is_earlier(name):
            continue
        if name not in variables():
            message = "unknown variable, ignored" + did_you_mean(name, variables())
            yield str(environment.problem(name, message))
