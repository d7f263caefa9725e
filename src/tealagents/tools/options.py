"""The options of the toolsets, as config files write them. Reading them needs no optional package."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from tealagents.domain.models import Cost, Sensitivity
from tealagents.domain.ports import Governance
from tealagents.mistakes import explained
from tealagents.options import Authority, Flag, Headers, HttpUrl, Options, Seconds, Text, Words
from tealagents.outbound.addresses import is_http_url
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import listed, suggestion
from tealagents.tools.openapi_parsing import document_reason, from_yaml

TrustLevel = Literal["trusted", "sandboxed", "untrusted"]

#: the name of a variable; `${NAME:-default}` is always an error, since there are no defaults
_VARIABLE = re.compile(r"[\w.-]+")


class GovernanceOverride(Options):
    """The part of a tool's governance that an MCP server's entry in the config changes."""

    requires_hitl: Flag | None = None
    """Whether a human approves each call."""
    cost: Cost | None = None
    """What a call costs."""
    data_sensitivity: Sensitivity | None = None
    """The most sensitive data that a call may touch."""

    def over(self, governance: Governance) -> Governance:
        """`governance` with the fields that are given here replaced."""
        return replace(governance, **self.model_dump(exclude_none=True))


class MCPServerOptions(Options):
    """A server of tools that speaks the Model Context Protocol: one entry of `mcp_servers`."""

    #: keys that only older files carry are kept and ignored
    model_config = ConfigDict(extra="allow")

    name: Text
    """Name of the server; the model knows its tools as `name-tool`."""
    transport: Literal["stdio", "http"] | None = None
    """`stdio` starts `command`, `http` calls `url`. If omitted, it follows from which of the two is given."""
    command: Text | None = None
    """Program to start (`stdio`). If it contains a slash, it is a path, relative to this file."""
    args: tuple[str, ...] = Field((), repr=False)
    """Arguments of the program."""
    env: dict[str, str] = Field({}, repr=False)
    """Environment variables of the program, in addition to `PATH`, `HOME` and the like."""
    cwd: Text | None = None
    """Folder that the program runs in, relative to this file. If omitted, the folder of this file."""
    url: Annotated[HttpUrl | None, Field(repr=False)] = None
    """Address of the server (`http`)."""
    headers: Headers = Field({}, repr=False)
    """Headers of every call (`http`). Credentials as `${NAME}`."""
    timeout: Seconds = 30
    """Seconds to start or connect, to list the tools, and for a call to wait for a session."""
    sse_read_timeout: Seconds = 300
    """Seconds of silence within an answer after which the call fails. If omitted, `request_timeout` if
    that is longer."""
    request_timeout: Seconds | None = None
    """Seconds for one tool call. If omitted, `limits.tool_timeout_seconds`."""
    verify_ssl: Flag = True
    """Whether the server's certificate is checked."""
    trust_level: TrustLevel = "untrusted"
    """Which tools need approval, unless the catalogue or an override decides: `trusted` none, `sandboxed`
    those that do more than read, `untrusted` all."""
    tool_governance_overrides: dict[str, GovernanceOverride] = Field({})
    """Governance of individual tools, by the tool's name on the server."""
    auth_server: Authority | None = None
    """OAuth authorization server where the user grants access. If omitted, the one that the server names."""
    scopes: Words = ()
    """OAuth scopes that the user is asked for."""
    oauth_client_id: Text | None = None
    """This service's client id at the authorization server, if it was registered by hand."""
    oauth_client_secret: Annotated[Text | None, Field(repr=False)] = None
    """The client secret. Written here only as `${NAME}`."""
    enable_dynamic_registration: Flag = True
    """Whether the service may register itself at the authorization server (RFC 7591)."""
    assume_pkce: Flag = False
    """Whether to assume that `auth_server` supports PKCE (S256) if its metadata does not mention it."""
    canonical_uri: HttpUrl | None = None
    """The resource to request access to, if it is not `url` (RFC 8707)."""
    protocol_version: Text | None = None
    """Protocol version to require: checked, not offered. If omitted, the newest that both sides support."""
    on_behalf_of_scopes: Words = ()
    """Scopes of the on-behalf-of token that is passed on to the server for the calling user (`http`;
    Entra)."""
    _limit: float | None = PrivateAttr(None)

    @property
    def call_seconds(self) -> float | None:
        """Seconds after which a call that was sent is given up; None: only the caller limits it."""
        return self.request_timeout or self._limit

    def limited(self, seconds: float) -> Self:
        """These options with the seconds that one call may take if `request_timeout` is omitted."""
        limited = self.model_copy()
        limited._limit = seconds
        return limited

    @model_validator(mode="before")
    @classmethod
    def _transport_of_what_is_given(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("transport") is not None:
            return data
        if ("command" in data) == ("url" in data):
            raise ValueError("give either 'command' (stdio) or 'url' (http), or say which in 'transport'")
        return data | {"transport": "stdio" if "command" in data else "http"}

    @model_validator(mode="after")
    def _fits_its_transport(self) -> Self:
        needed = "command" if self.transport == "stdio" else "url"
        if getattr(self, needed) is None:
            raise ValueError(f"transport {self.transport} needs '{needed}'")
        if self.oauth_client_secret and not self.auth_server:
            raise ValueError(
                "oauth_client_secret needs auth_server, or the server would choose who receives the secret"
            )
        if self.assume_pkce and not self.auth_server:
            raise ValueError(
                "assume_pkce needs auth_server, or the tool server would choose where PKCE is assumed"
            )
        if self.auth_server and not self.oauth_client_id and not self.enable_dynamic_registration:
            raise ValueError("auth_server needs oauth_client_id if enable_dynamic_registration is false")
        if self.transport == "stdio" and self.on_behalf_of_scopes:
            raise ValueError("on_behalf_of_scopes needs transport http: a program has no caller")
        return self


class RemotePluginOptions(BaseModel):
    """One entry of `remote_plugins` in the file that `TA_REMOTE_PLUGIN_PATH` names."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    #: the plugin's name; the model knows its tools as `plugin_name-function`
    plugin_name: str = Field(min_length=1)
    #: the OpenAPI document, JSON or YAML: a path relative to the file, or a URL
    openapi_json_path: str = Field(min_length=1)
    #: where requests go; None: the first server of the document
    server_url: str | None = None
    #: sent with each request; `${NAME}` is replaced from the environment
    headers: Headers = {}
    #: whether the caller's own token is passed on
    pass_user_token: Flag = False
    #: scopes of a token to act for the caller (on-behalf-of), which is passed on; empty: none is
    on_behalf_of_scopes: list[str] = []
    #: seconds for one call
    timeout: Seconds = 60
    #: whether the server's certificate is checked
    verify_ssl: Flag = True
    #: only these operations (by operationId) become tools; None: all
    operations: list[str] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.server_url is not None and not is_http_url(self.server_url):
            raise ValueError("'server_url' must be an http:// or https:// URL")
        if self.pass_user_token and self.on_behalf_of_scopes:
            raise ValueError("'pass_user_token' and 'on_behalf_of_scopes' exclude each other")
        return self


class _RemotePluginFile(BaseModel):
    remote_plugins: list[RemotePluginOptions]


def remote_plugins(
    file: Path, names: list[str], environment: Mapping[str, str], unset: list[str] | None = None
) -> list[RemotePluginOptions]:
    """The entries of the file for `names`, in their order; documents' paths are absolute, and `${NAME}` in
    headers is replaced.

    `unset` is as in `expanded`. `ToolsetError` if the file is invalid or has no entry of a name.
    """
    entries = {entry.plugin_name: entry for entry in _remote_plugin_file(file)}
    chosen = []
    for name in names:
        if name not in entries:
            raise ToolsetError(
                f"{file}: there is no remote plugin {name!r}; found: {listed(sorted(entries))}."
                f"{suggestion(name, list(entries))}"
            )
        chosen.append(_resolved(entries[name], file, environment, unset))
    return chosen


def _remote_plugin_file(file: Path) -> list[RemotePluginOptions]:
    try:
        document = from_yaml(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ToolsetError(
            f"The remote plugin file {file} cannot be read: {document_reason(error)}"
        ) from error
    try:
        entries = _RemotePluginFile.model_validate(document).remote_plugins
    except ValidationError as error:
        raise ToolsetError(
            f"The remote plugin file {file}: {explained(error, _RemotePluginFile, document)}"
        ) from error
    names = Counter(entry.plugin_name for entry in entries)
    if repeated := sorted(name for name in names if names[name] > 1):
        raise ToolsetError(f"The remote plugin file {file} has more than one entry for {listed(repeated)}.")
    return entries


def _resolved(
    entry: RemotePluginOptions, file: Path, environment: Mapping[str, str], unset: list[str] | None
) -> RemotePluginOptions:
    path = entry.openapi_json_path
    if not is_http_url(path):
        path = str(_located(Path(path), file))
    where = f"{file}: {entry.plugin_name}"
    headers = {name: expanded(value, environment, where, unset) for name, value in entry.headers.items()}
    resolved = entry.model_dump() | {"openapi_json_path": path, "headers": headers}
    try:
        return RemotePluginOptions.model_validate(resolved)
    except ValidationError as error:
        raise ToolsetError(f"{where}: {explained(error, RemotePluginOptions, resolved)}") from error


def _located(path: Path, file: Path) -> Path:
    """A relative path is looked for beside the file, then, for older files, in the working directory."""
    beside = (file.parent / path).resolve()
    return beside if beside.exists() or not path.exists() else path.resolve()


def expanded(text: str, environment: Mapping[str, str], where: str, unset: list[str] | None = None) -> str:
    """`text` with each `${NAME}` replaced from the environment.

    `ToolsetError` for a variable that is not set. If a list is given as `unset`, the error's text is appended
    to it instead, and `${NAME}` stays; what is not the name of a variable still raises.
    """
    head, *rest = text.split("${")
    for part in rest:
        name, closed, tail = part.partition("}")
        if closed and name in environment:
            head += environment[name] + tail
            continue
        missing = f"{where}: the environment variable {name!r} is not set."
        if unset is None or not (closed and _VARIABLE.fullmatch(name)):
            raise ToolsetError(missing)
        unset.append(missing)
        head += "${" + part
    return head
