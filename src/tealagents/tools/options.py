"""The options of the toolsets, as config files write them. Reading them needs no optional package."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tealagents.tools.catalogue import GovernanceOverride
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import suggestion

logger = logging.getLogger(__name__)

Seconds = Annotated[float, Field(gt=0)]
TrustLevel = Literal["trusted", "sandboxed", "untrusted"]


class MCPServerOptions(BaseModel):
    """One entry of `mcp_servers`. Keys that only older files carry are kept and ignored."""

    model_config = ConfigDict(extra="allow")

    #: the plugin's name towards the model
    name: str = Field(min_length=1)
    #: `stdio` starts `command`, `http` calls `url`; None: whichever of the two is given
    transport: Literal["stdio", "http"] | None = None
    command: str | None = None
    args: list[str] = []
    #: what the child is given besides PATH, HOME, LANG and the like
    env: dict[str, str] = {}
    cwd: Path | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    #: seconds for starting or connecting, and for one HTTP request to begin to be answered
    timeout: Seconds = 30
    #: seconds of silence on a response before it is given up
    sse_read_timeout: Seconds = 300
    #: seconds for one call; None: the config's `tool_timeout_seconds`
    request_timeout: Seconds | None = None
    verify_ssl: bool = True
    #: trusted: no approval; sandboxed: approval for what is not read-only; untrusted: for everything
    trust_level: TrustLevel = "untrusted"
    #: by the server's own name of the tool
    tool_governance_overrides: dict[str, GovernanceOverride] = {}
    #: where users authorize this service to use the server; None: where the server says
    auth_server: str | None = None
    scopes: list[str] = []
    oauth_client_id: str | None = None
    oauth_client_secret: str | None = None
    enable_dynamic_registration: bool = True
    #: the URL tokens are for, where it is not `url`
    canonical_uri: str | None = None
    #: a version of the protocol to insist on; None: the newest both sides know
    protocol_version: str | None = None
    #: scopes of a token to act for the user, passed on to the server (on-behalf-of)
    on_behalf_of_scopes: list[str] = []

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if self.transport is None and bool(self.command) == bool(self.url):
            raise ValueError("give either 'command' (stdio) or 'url' (http), or say which in 'transport'")
        if self.transport is None:
            self.transport = "stdio" if self.command else "http"
        if self.transport == "stdio" and not self.command:
            raise ValueError("'command' is required for the transport stdio")
        if self.transport == "http" and not is_http_url(self.url or ""):
            raise ValueError("'url' has to be an http:// or https:// URL for the transport http")
        if self.transport == "stdio" and self.on_behalf_of_scopes:
            raise ValueError("'on_behalf_of_scopes' is for the transport http: a process has no caller")
        if self.model_extra:
            logger.warning("MCP server %s: ignored keys: %s", self.name, ", ".join(sorted(self.model_extra)))
        return self


class RemotePluginOptions(BaseModel):
    """One entry of `remote_plugins` in the file that `TA_REMOTE_PLUGIN_PATH` names."""

    model_config = ConfigDict(extra="forbid")

    #: the plugin's name towards the model
    plugin_name: str = Field(min_length=1)
    #: the OpenAPI document, JSON or YAML: a path relative to the file, or a URL
    openapi_json_path: str = Field(min_length=1)
    #: where requests go; None: the first server of the document
    server_url: str | None = None
    #: sent with each request; `${NAME}` is replaced from the environment
    headers: dict[str, str] = {}
    #: the caller's own token is passed on
    pass_user_token: bool = False
    #: a token to act for the caller is passed on (on-behalf-of)
    on_behalf_of_scopes: list[str] = []
    #: seconds for one call
    timeout: Seconds = 60
    verify_ssl: bool = True
    #: only these operations (by operationId) become tools; None: all
    operations: list[str] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.server_url is not None and not is_http_url(self.server_url):
            raise ValueError("'server_url' has to be an http:// or https:// URL")
        if self.pass_user_token and self.on_behalf_of_scopes:
            raise ValueError("'pass_user_token' and 'on_behalf_of_scopes' exclude each other")
        return self


class _RemotePluginFile(BaseModel):
    remote_plugins: list[RemotePluginOptions]


def is_http_url(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def shown(place: str) -> str:
    """A path or URL as texts show it: without what may be secret in a URL, its user, query and fragment."""
    if not is_http_url(place):
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def mcp_servers(entries: list[Mapping[str, Any]]) -> list[MCPServerOptions]:
    """The entries of `mcp_servers`, checked. `ToolsetError` names the entry and the key."""
    servers = []
    for number, entry in enumerate(entries):
        try:
            servers.append(MCPServerOptions.model_validate(entry))
        except ValidationError as error:
            raise ToolsetError(f"mcp_servers[{number}] ({entry.get('name', '?')}): {told(error)}") from error
    names = [server.name for server in servers]
    for name in names:
        if names.count(name) > 1:
            raise ToolsetError(f"mcp_servers: two servers are called {name!r}.")
    return servers


def remote_plugins(file: Path, names: list[str], environment: Mapping[str, str]) -> list[RemotePluginOptions]:
    """The entries of the file for `names`, in their order, with documents' paths made absolute."""
    entries = {entry.plugin_name: entry for entry in _remote_plugin_file(file)}
    chosen = []
    for name in names:
        if name not in entries:
            there = ", ".join(sorted(entries)) or "none"
            raise ToolsetError(
                f"{file}: there is no remote plugin {name!r}; found: {there}."
                f"{suggestion(name, list(entries))}"
            )
        chosen.append(_resolved(entries[name], file, environment))
    return chosen


def _remote_plugin_file(file: Path) -> list[RemotePluginOptions]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ToolsetError(f"The remote plugin file {file} cannot be read: {error}") from error
    try:
        return _RemotePluginFile.model_validate(document).remote_plugins
    except ValidationError as error:
        raise ToolsetError(f"The remote plugin file {file}: {told(error)}") from error


def _resolved(entry: RemotePluginOptions, file: Path, environment: Mapping[str, str]) -> RemotePluginOptions:
    path = entry.openapi_json_path
    if not is_http_url(path):
        path = str((file.parent / path).resolve())
    where = f"{file}: {entry.plugin_name}"
    headers = {name: expanded(value, environment, where) for name, value in entry.headers.items()}
    return entry.model_copy(update={"openapi_json_path": path, "headers": headers})


def expanded(text: str, environment: Mapping[str, str], where: str) -> str:
    """`text` with each `${NAME}` replaced from the environment."""
    head, *rest = text.split("${")
    for part in rest:
        name, closed, tail = part.partition("}")
        if not closed or name not in environment:
            raise ToolsetError(f"{where}: the environment variable {name!r} is not set.")
        head += environment[name] + tail
    return head


def told(error: ValidationError) -> str:
    lines = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in detail["loc"])
        lines.append(f"{place}: {detail['msg']}" if place else detail["msg"])
    return "; ".join(lines)
