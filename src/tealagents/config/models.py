"""The config file as models. The text below each key is its documentation, here, in the docs and in editors.

Where files of the earlier framework may carry further keys, these are kept and ignored (`_Older`); in the
sections that are new an unknown key is a mistake (`Section`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tealagents.config.types import (
    Authority,
    Concurrency,
    Count,
    CountOrNone,
    DrainSeconds,
    Flag,
    HttpUrl,
    LeaseSeconds,
    NameOrClass,
    OnDisconnect,
    Origins,
    Protocols,
    Seconds,
    Temperature,
    Tenant,
    TenantIds,
    Text,
    ThreadKind,
    UrlSegment,
    Words,
    kind_of,
)

#: The versions of the file that this package serves.
API_VERSIONS = ("tealagents/v1alpha1",)


def contradiction(message: str, *path: str) -> PydanticCustomError:
    """Two keys that cannot both be right; the error is shown at `path` below the model that found it."""
    return PydanticCustomError("contradiction", "{message}", {"message": message, "path": path})


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    refused: ClassVar[Mapping[str, str]] = {}  #: keys that one might look for here, and what to say of them


class _Older(Section):
    model_config = ConfigDict(extra="allow")


class Skill(_Older):
    """One thing the agent is good at, for whoever chooses among agents."""

    id: str | None = None
    """Identifier of the skill, unique within the agent."""
    name: str | None = None
    """Name to show."""
    description: str | None = None
    """What the skill does."""
    tags: tuple[str, ...] = ()
    """Words to find it by."""
    examples: tuple[str, ...] = ()
    """Messages that make use of it."""
    input_modes: Annotated[
        tuple[str, ...], Field(validation_alias=AliasChoices("input_modes", "inputModes"))
    ] = ()
    """Kinds of content it takes, such as `text` and `image`."""
    output_modes: Annotated[
        tuple[str, ...], Field(validation_alias=AliasChoices("output_modes", "outputModes"))
    ] = ()
    """Kinds of content it gives."""


class Metadata(_Older):
    """What the agent says about itself."""

    description: str = ""
    """What the agent does, for people and orchestrators that choose among agents."""
    skills: tuple[Skill, ...] = ()
    """What it is good at."""


class GovernanceOverride(Section):
    """What is said of one tool of an MCP server, over what its trust level says."""

    requires_hitl: Flag | None = None
    """Whether a person approves each call."""
    cost: Literal["low", "medium", "high"] | None = None
    """What a call costs."""
    data_sensitivity: Literal["public", "proprietary", "confidential", "sensitive"] | None = None
    """The most sensitive data that a call may touch."""


class McpServer(_Older):
    """A server of tools that speaks the Model Context Protocol."""

    name: Text
    """Name of the server; the model knows its tools as `name-tool`."""
    transport: Literal["stdio", "http"] = "stdio"
    """`stdio` starts `command`, `http` calls `url`. Left out, whichever of the two is given."""
    command: Text | None = None
    """Program to start (`stdio`). With a slash in it, it is a path, relative to this file."""
    args: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Arguments of the program."""
    env: Annotated[dict[str, str], Field(repr=False)] = {}
    """Variables of the program, besides `PATH`, `HOME` and the like."""
    cwd: Text | None = None
    """Folder that the program runs in, relative to this file. Left out, the folder of this file."""
    url: Annotated[HttpUrl | None, Field(repr=False)] = None
    """Address of the server (`http`)."""
    headers: Annotated[dict[str, str], Field(repr=False)] = {}
    """Headers of every call (`http`). Credentials as `${NAME}`."""
    timeout: Seconds = 30
    """Seconds to start or connect, and for the server to begin to answer one HTTP request."""
    sse_read_timeout: Seconds = 300
    """Seconds of silence within an answer after which it is given up."""
    request_timeout: Seconds | None = None
    """Seconds for one call of a tool. Left out, `limits.tool_timeout_seconds`."""
    verify_ssl: Flag = True
    """Whether the server's certificate is checked."""
    trust_level: Literal["trusted", "sandboxed", "untrusted"] = "untrusted"
    """Which tools need approval where neither the catalogue nor an override says it: `trusted` none,
    `sandboxed` those that do more than read, `untrusted` all."""
    tool_governance_overrides: dict[str, GovernanceOverride] = {}
    """What is said of single tools, by the tool's name on the server."""
    auth_server: HttpUrl | None = None
    """OAuth authorization server where the user grants access. Left out, where the server says."""
    scopes: Words = ()
    """OAuth scopes that the user is asked for."""
    oauth_client_id: Text | None = None
    """This service's id at the authorization server, where it was registered by hand."""
    oauth_client_secret: Annotated[Text | None, Field(repr=False)] = None
    """The secret that goes with it. Written here only as `${NAME}`."""
    enable_dynamic_registration: Flag = True
    """Whether the service may register itself at the authorization server (RFC 7591)."""
    canonical_uri: HttpUrl | None = None
    """What access is asked for, where it is not `url` (RFC 8707)."""
    protocol_version: Text | None = None
    """Version of the protocol to insist on. Left out, the newest that both sides know."""
    on_behalf_of_scopes: Words = ()
    """Scopes of a token to act for the calling user, passed on to the server (`http`; Entra's on-behalf-of
    flow)."""

    @model_validator(mode="before")
    @classmethod
    def _transport_of_what_is_given(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "transport" in data:
            return data
        if ("command" in data) == ("url" in data):
            raise ValueError("give either 'command' (stdio) or 'url' (http), or say which in 'transport'")
        return data | {"transport": "stdio" if "command" in data else "http"}

    @model_validator(mode="after")
    def _fits_its_transport(self) -> Self:
        needed = "command" if self.transport == "stdio" else "url"
        if getattr(self, needed) is None:
            raise ValueError(f"transport {self.transport} needs '{needed}'")
        if self.transport == "stdio" and self.on_behalf_of_scopes:
            raise ValueError("on_behalf_of_scopes needs transport http: a program has no caller")
        return self

    def options(self) -> dict[str, Any]:
        """The keys that this package knows, with their values: what the server is opened with."""
        known = self.model_dump(exclude_none=True)
        return {name: known[name] for name in type(self).model_fields if name in known}


class Component(Section):
    """A toolset, reducer or context provider: its name, and its options beside it or under `options`."""

    name: NameOrClass
    """What it is called, or `module:Class`."""
    options: Annotated[dict[str, Any], Field(repr=False)] = {}
    """What it is told."""


def _component(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict):
        raise ValueError(f"must be a name, or a mapping with a name and options, not {kind_of(value)}")
    options = {key: item for key, item in value.items() if key != "name"}
    if options.keys() == {"options"} and isinstance(options["options"], dict):
        options = options["options"]
    return {key: item for key, item in value.items() if key == "name"} | {"options": options}


Components = tuple[
    Annotated[Component, BeforeValidator(_component, json_schema_input_type=Component | str)], ...
]


class AgentConfig(_Older):
    """The agent: its model, its instructions, its tools."""

    name: Text = "default"
    """Name of the agent within the file."""
    role: str | None = None
    """Its role in a few words."""
    model: Text
    """Model to call, by the name that the model service knows (for Azure OpenAI the deployment)."""
    system_prompt: str
    """Instructions that precede every conversation."""
    temperature: Temperature | None = None
    """Randomness from 0 to 2. Left out, the model's own default."""
    max_tokens: Count | None = None
    """Most tokens of one answer of the model. Left out, the model's own limit."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """How long a reasoning model thinks. Left out, the model's own default."""
    plugins: tuple[Text, ...] = ()
    """Classes of the plugin module whose tools the agent has."""
    remote_plugins: tuple[Text, ...] = ()
    """OpenAPI plugins, by their names in the file of `TA_REMOTE_PLUGIN_PATH`."""
    mcp_servers: tuple[McpServer, ...] = ()
    """MCP servers whose tools the agent has."""
    toolsets: Components = ()
    """Toolsets of others whose tools the agent has."""
    client: NameOrClass | None = None
    """How the model is called: `openai-chat`, `openai-responses` or `module:Class`. Left out, the thread's
    kind decides: `openai-chat` for local threads, `openai-responses` for remote ones."""

    @field_validator("mcp_servers")
    @classmethod
    def _names_are_unique(cls, servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        names = [server.name for server in servers]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two servers are called {', '.join(repeated)}")
        return servers


class AuthSection(Section):
    """Who may call. Each key has a variable `TA_ENTRA_…` (the provider: `TA_AUTH`), which wins."""

    provider: NameOrClass | None = None
    """`entra`, `mock` (the bearer token is the user id; for development) or `module:Class`. Left out,
    `entra` where a tenant is set, else `mock`, on loopback addresses only."""
    tenant_id: Tenant | None = None
    """The Entra tenant that issues the tokens."""
    audience: Words = ()
    """Audiences of which a token must have one: the service's client id or App ID URI."""
    scopes: Words = ()
    """Scopes that a user's token must all have."""
    allowed_tenants: TenantIds = ()
    """Ids of the tenants whose users may call. Needed where `tenant_id` stands for many, as `organizations`
    does."""
    allowed_clients: Words = ()
    """Client applications that may call. Empty: all."""
    approver_role: Text | None = None
    """Role that may decide on the tool calls of others in its tenant. Left out: nobody."""
    auditor_role: Text | None = None
    """Role that may read everything of its tenant. Left out: nobody."""
    allow_app_tokens: Flag = False
    """Whether applications may call without a user. Needs `app_roles`."""
    app_roles: Words = ()
    """Roles that an application's token must all have."""
    authority: Authority = "https://login.microsoftonline.com"
    """Where tokens come from; national clouds have their own."""
    client_id: Text | None = None
    """This service's own application id, to act for users downstream (on-behalf-of)."""
    client_secret: SecretStr | None = None
    """How the service proves itself downstream. Written here only as `${NAME}`."""
    certificate: Text | None = None
    """Instead of a secret: a PEM file with the private key and the certificate, relative to this file."""
    certificate_password: SecretStr | None = None
    """Password of the private key. Written here only as `${NAME}`."""
    consent_redirect_uri: HttpUrl | None = None
    """Where the browser goes after a user's consent. Left out, the application's first redirect URI."""
    options: Annotated[dict[str, Any], Field(repr=False)] = {}
    """Further options of the provider, such as `approver_users` and `auditor_users` of `mock`."""

    @model_validator(mode="after")
    def _app_tokens_have_roles(self) -> Self:
        if self.allow_app_tokens and not self.app_roles:
            raise ValueError("allow_app_tokens needs app_roles, or any application of the tenant could call")
        return self

    @model_validator(mode="after")
    def _many_tenants_are_listed(self) -> Self:
        if self.tenant_id in ("common", "organizations") and not self.allowed_tenants:
            raise ValueError(
                f"tenant_id {self.tenant_id} stands for every tenant; list yours in allowed_tenants"
            )
        return self

    @model_validator(mode="after")
    def _proves_itself_in_one_way(self) -> Self:
        if self.client_secret and self.certificate:
            raise ValueError("give either client_secret or certificate")
        if (self.client_secret or self.certificate) and not self.client_id:
            raise ValueError("client_secret and certificate need client_id")
        return self


def _auth_section(value: Any) -> Any:
    return {"provider": value} if isinstance(value, str) else value


class ThreadConfig(Section):
    """The conversation: where it is kept, and what of it the model is shown."""

    refused = {
        "store": "remove it: thread.kind alone decides where the conversation is kept, here (local) or in "
        "the model service (remote)"
    }

    kind: ThreadKind = "local"
    """`local`: messages are kept here and sent with each call. `remote`: the model service keeps them
    (Responses API) and only its id is kept here."""
    reducers: Components = ()
    """What shortens the model's view of a local conversation, in order. What is stored stays whole."""
    context_providers: Components = ()
    """What adds instructions, messages and tools to each call."""


class ConsoleSection(Section):
    """The console: a page in the browser that uses the API as any client does."""

    enabled: Flag | None = None
    """Whether it is served. Left out: by `tealagents serve` on loopback addresses only."""
    client_id: Text | None = None
    """Application that its users sign in with at Entra, registered as a single-page application. Left out,
    they paste an access token."""


class Limits(Section):
    """Bounds that keep one request, user or client from taking the service down. Any can be set by
    `TA_LIMITS__…`."""

    request_timeout_seconds: Seconds = 600
    """Seconds for a whole request, waiting for its turn included."""
    model_timeout_seconds: Seconds = 300
    """Seconds for one call of the model."""
    first_piece_timeout_seconds: Seconds = 60
    """Seconds until the first piece of the model's answer, connecting and headers included. Where the answer
    is not streamed, seconds for all of it."""
    piece_timeout_seconds: Seconds = 60
    """Seconds between two pieces of the model's answer."""
    max_tool_rounds: Count = 40
    """Rounds of tool calls that the model may ask for in one request."""
    tool_timeout_seconds: Seconds = 120
    """Seconds for one call of a tool."""
    max_body_bytes: Count = 20_000_000
    """Bytes of a request's body."""
    max_items: Count = 100
    """Items of one message."""
    max_concurrent_requests: Count = 1000
    """Requests that run at once in one process."""
    max_requests_per_user: Count = 100
    """Requests of one user that run at once in one process."""
    max_queued_requests: CountOrNone = 1000
    """Requests that wait for their turn on one task (`concurrency: enqueue`)."""
    keepalive_seconds: Seconds = 15
    """Seconds of silence on a stream after which a comment keeps it open."""
    drain_seconds: DrainSeconds = 20
    """Seconds that running requests get to finish when the process is told to stop."""
    approval_expiry_seconds: Seconds = 86_400
    """Seconds that a tool call waits for a decision."""
    lease_seconds: LeaseSeconds = 15
    """Seconds without a sign of life after which a process is taken for dead and its requests are freed."""


class Spec(_Older):
    """The agent and how it is served."""

    agent: AgentConfig
    """The agent."""
    persistence: Annotated[Text, Field(repr=False)] = "memory://"
    """Store of all state, as a URL: `memory://`, `file:///dir`, `sqlite:///file.db`, `postgresql://…`,
    `redis://…`, `dynamodb://table?region=…`. Relative paths are relative to this file."""
    auth: Annotated[AuthSection, BeforeValidator(_auth_section, json_schema_input_type=AuthSection | str)] = (
        AuthSection()
    )
    """Who may call. A text is short for the provider alone."""
    concurrency: Concurrency = "reject"
    """What a message meets while another runs on its task: `reject` it, `enqueue` it, or `interrupt` or
    `rollback` the running one."""
    on_disconnect: OnDisconnect = "continue"
    """What becomes of a request whose client leaves: `continue` or `cancel`."""
    protocols: Protocols = ()
    """Further protocols to serve the agent over: `openai`, `a2a`, `ag-ui`, `mcp`."""
    cors_origins: Origins = ()
    """Origins whose web pages may call, or `*` for all."""
    thread: ThreadConfig = ThreadConfig()
    """The conversation."""
    console: ConsoleSection = ConsoleSection()
    """The page in the browser."""
    limits: Limits = Limits()
    """Bounds."""

    @model_validator(mode="after")
    def _thread_kind_decides(self) -> Self:
        if self.thread.kind == "remote" and self.thread.reducers:
            raise contradiction(
                "thread.kind is remote, so the model service keeps the conversation and nothing here can "
                "shorten it; remove the reducers, or set thread.kind to local",
                "thread",
                "reducers",
            )
        if self.thread.kind == "remote" and self.agent.client == "openai-chat":
            raise contradiction(
                "thread.kind is remote, but openai-chat cannot keep a conversation in the model service; use "
                "openai-responses, or set thread.kind to local",
                "agent",
                "client",
            )
        return self


class ConfigFile(_Older):
    """A config file of tealagents: one agent, served over HTTP."""

    api_version: Annotated[Literal["tealagents/v1alpha1"], Field(alias="apiVersion")]
    """Version of this structure; it selects the application that serves the file."""
    kind: Literal["Agent", "Chat"] = "Agent"
    """`Agent` or `Chat`; the same thing."""
    name: UrlSegment
    """Name of the agent, the first part of every path: `/{name}/{version}`. State belongs to it."""
    version: UrlSegment
    """Version of the agent, the second part of every path. Its spelling is kept: 0.10 stays 0.10."""
    description: str = ""
    """What the service does, shown in its API documentation."""
    metadata: Metadata = Metadata()
    """What the agent says about itself."""
    spec: Spec
    """The agent and how it is served."""
