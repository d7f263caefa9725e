"""The config file as models. The text below each key is its documentation, here, in the docs and in editors.

What an adapter is configured with is declared by the adapter alone, and imported when a file names it
(`OptionsOf`). Where files of the earlier platform may have further keys, these are kept and ignored
(`LenientOptions`); elsewhere an unknown key is a mistake.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tealagents.domain.models import Concurrency
from tealagents.limits import Limits
from tealagents.options import (
    Count,
    Flag,
    NameOrClass,
    OnDisconnect,
    Options,
    Origins,
    Protocols,
    Temperature,
    Text,
    ThreadKind,
    UrlSegment,
    kind_of,
)

#: The versions of the file that this package serves.
API_VERSIONS = ("tealagents/v1alpha1",)
#: how the model is called where the file does not say, by the kind of the thread
CLIENTS: Mapping[ThreadKind, str] = {"local": "openai-chat", "remote": "openai-responses"}


def contradiction(message: str, *path: str | int) -> PydanticCustomError:
    """Two keys that cannot both be right; the error is shown at `path` below the model that found it."""
    return PydanticCustomError("contradiction", "{message}", {"message": message, "path": path})


@dataclass(frozen=True)
class OptionsOf:
    """Annotates a field with the options of an adapter: `module:Class`, imported when one is given."""

    reference: str

    def model(self) -> type[BaseModel]:
        module, _, name = self.reference.partition(":")
        found: type[BaseModel] = getattr(import_module(module), name)
        return found

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: self.model().model_validate(value))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {}  # `schema` knows better


if TYPE_CHECKING:
    from tealagents.tools.options import MCPServerOptions
else:
    MCPServerOptions = Annotated[Any, OptionsOf("tealagents.tools.options:MCPServerOptions")]


class LenientOptions(Options):
    """A section that may carry further keys, which are kept and ignored."""

    model_config = ConfigDict(extra="allow")


class Skill(LenientOptions):
    """One thing the agent is good at, for orchestrators that choose among agents."""

    id: str | None = None
    """Identifier of the skill, unique within the agent; by default its name."""
    name: str | None = None
    """Name to show."""
    description: str | None = None
    """What the skill does."""
    tags: tuple[str, ...] = ()
    """Words to find it by."""
    examples: tuple[str, ...] = ()
    """Example messages."""
    input_modes: Annotated[
        tuple[str, ...], Field(validation_alias=AliasChoices("input_modes", "inputModes"))
    ] = ()
    """Kinds of content it accepts: media types, such as `application/json`, or `text` and `image`."""
    output_modes: Annotated[
        tuple[str, ...], Field(validation_alias=AliasChoices("output_modes", "outputModes"))
    ] = ()
    """Kinds of content it returns."""


class Metadata(LenientOptions):
    """What the agent says about itself."""

    description: str = ""
    """What the agent does, for people and orchestrators that choose among agents."""
    skills: tuple[Skill, ...] = ()
    """What it is good at."""


class Component(Options):
    """A toolset, reducer or context provider: its name, and its options beside it or under `options`."""

    name: NameOrClass
    """Its name, or `module:Class`."""
    options: dict[str, Any] = Field({}, repr=False)
    """Its options."""


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


class AgentConfig(LenientOptions):
    """The agent: its model, its instructions, its tools."""

    name: Text = "default"
    """Name of the agent within the file."""
    role: str | None = None
    """Its role in a few words."""
    model: Text
    """Model to call, by its name at the model service (for Azure OpenAI the deployment)."""
    system_prompt: str
    """Instructions that precede every conversation."""
    temperature: Temperature | None = None
    """Randomness from 0 to 2. If omitted, the model's own default."""
    max_tokens: Count | None = None
    """Maximum tokens of one model answer. If omitted, the model's own limit."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """How long a reasoning model thinks. If omitted, the model's own default."""
    plugins: tuple[Text, ...] = ()
    """Classes of the plugin module whose tools the agent has."""
    remote_plugins: tuple[Text, ...] = ()
    """OpenAPI plugins, by their names in the file of `TA_REMOTE_PLUGIN_PATH`."""
    mcp_servers: tuple[MCPServerOptions, ...] = ()
    """MCP servers whose tools the agent has."""
    toolsets: Components = ()
    """Third-party toolsets whose tools the agent has."""
    client: NameOrClass | None = None
    """How the model is called: `openai-chat`, `openai-responses` or `module:Class`. If omitted, the thread's
    kind decides: `openai-chat` for local threads, `openai-responses` for remote ones."""

    @field_validator("mcp_servers")
    @classmethod
    def _names_are_unique(cls, servers: tuple[MCPServerOptions, ...]) -> tuple[MCPServerOptions, ...]:
        names = [server.name for server in servers]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two servers are called {', '.join(repeated)}")
        return servers


class ThreadConfig(Options):
    """The conversation: where it is kept, and what the model sees of it."""

    refused: ClassVar[Mapping[str, str]] = {
        "store": "remove it: thread.kind alone decides where the conversation is kept, here (local) or in "
        "the model service (remote)"
    }

    kind: ThreadKind = "local"
    """`local`: the messages are sent with each call. `remote`: the model service keeps them (Responses API)
    and is sent only what is new. They are stored here in either case."""
    reducers: Components = ()
    """Reducers that shorten what the model sees of a local conversation, in order. What is stored stays
    whole."""
    context_providers: Components = ()
    """Providers that add instructions, messages and tools to each call."""


class ConsoleSection(Options):
    """The console: a page in the browser that uses the API as any client does."""

    enabled: Flag | None = None
    """Whether it is served. If omitted: by `tealagents serve` on loopback addresses only."""
    client_id: Text | None = None
    """Application that its users sign in with at Entra, registered as a single-page application. If omitted,
    they paste an access token."""


class Spec(LenientOptions):
    """The agent and how it is served."""

    agent: AgentConfig
    """The agent."""
    persistence: Annotated[Text, Field(repr=False)] = "memory://"
    """Store of all state, as a URL: `memory://`, `file:///dir`, `sqlite:///file.db`, `postgresql://…`,
    `redis://…`, `dynamodb://table?region=…`. Relative paths are relative to this file."""
    auth: Any = None
    """Who may call. A plain text is the provider's name."""
    concurrency: Concurrency = "reject"
    """What happens to a message that arrives while another request runs on its task. `reject`: it is refused
    (`409 task_busy`). `enqueue`: it waits its turn. `interrupt`: the running request is canceled, and the
    message starts. `rollback`: the same, and the canceled request's messages leave the conversation."""
    on_disconnect: OnDisconnect = "continue"
    """What happens to a request when its client disconnects: `continue` or `cancel`."""
    protocols: Protocols = ()
    """Further protocols to serve the agent over: `openai`, `a2a`, `ag-ui`, `mcp`."""
    cors_origins: Origins = ()
    """Origins whose web pages may call, or `*` for all."""
    thread: ThreadConfig = ThreadConfig()
    """The conversation: where it is kept, and what the model sees of it."""
    console: ConsoleSection = ConsoleSection()
    """The console, a page in the browser."""
    limits: Limits = Limits()
    """Limits on requests, users and processes."""

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


class ConfigFile(LenientOptions):
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
