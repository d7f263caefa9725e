"""The catalogue: the operator's rules for each tool, and applying them to calls.

The catalogue overrides the toolsets. A tool that it does not name needs approval, wherever the tool comes
from, since no one has reviewed it. Without a catalogue, the toolsets' own rules hold.
"""

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self, runtime_checkable

from msgspec.structs import replace
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from tealagents.domain.models import Cost, Json, Sensitivity, User
from tealagents.domain.ports import (
    Checking,
    Finding,
    Governance,
    PerOwner,
    Tool,
    ToolContext,
    Toolset,
    ToolSpec,
    Unlisted,
)
from tealagents.domain.tool_specs import NAME_RULE, VALID_NAME, flaw
from tealagents.mistakes import explained
from tealagents.options import Authority, Flag
from tealagents.registry import raised
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import suggestion
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_context import authorized
from tealagents.tools.openapi_parsing import document_reason
from tealagents.tools.options import GovernanceOverride, expanded
from tealagents.tools.schema_check import check_against
from tealagents.tools.user_tokens import in_time


class GovernanceEntry(BaseModel):
    """A tool's governance. Unknown keys are an error: a misspelt `requires_hitl` must not let a call
    through."""

    model_config = ConfigDict(extra="forbid")

    requires_hitl: Flag = False
    cost: Cost = "low"
    data_sensitivity: Sensitivity = "public"

    def governance(self) -> Governance:
        return Governance(
            requires_hitl=self.requires_hitl, cost=self.cost, data_sensitivity=self.data_sensitivity
        )


def _variable(text: str | None) -> str | None:
    if text and not re.fullmatch(r"\$\{\w+\}", text):
        raise ValueError('must be "${NAME}", which is replaced from the environment')
    return text


class OAuthEntry(BaseModel):
    """A tool that needs the user's own authorization at `auth_server`. Unknown keys are an error, too."""

    model_config = ConfigDict(extra="forbid")

    auth_type: Literal["oauth2"]
    auth_server: Authority
    scopes: list[str] = []
    #: this service's client id at `auth_server`; None: it registers itself
    oauth_client_id: str | None = None
    #: in the file only `${NAME}`, since the file must hold no secrets; replaced when it is loaded
    oauth_client_secret: Annotated[str | None, AfterValidator(_variable)] = Field(None, repr=False)


class ToolEntry(BaseModel):
    #: `Plugin-function`
    tool_id: str = Field(min_length=1)
    name: str = ""
    description: str = ""
    governance: GovernanceEntry
    auth: OAuthEntry | None = None

    def over(self, spec: ToolSpec) -> ToolSpec:
        """The spec with this entry's governance and, if the entry has one, its `auth`."""
        auth = self.auth and self.auth.model_dump(exclude={"oauth_client_secret"}, exclude_none=True)
        return replace(spec, governance=self.governance.governance(), auth=auth or spec.auth)


class PluginType(BaseModel):
    type_name: Literal["code", "mcp", "openapi"]


class PluginEntry(BaseModel):
    plugin_id: str = Field(min_length=1)
    name: str = ""
    description: str = ""
    version: str = ""
    owner: str = ""
    plugin_type: PluginType | None = None
    tools: list[ToolEntry]

    @field_validator("version", mode="before")
    @classmethod
    def _written_as_a_number(cls, version: object) -> object:
        return str(version) if isinstance(version, int | float) else version


class Catalogue(BaseModel):
    """The file that `TA_PLUGIN_CATALOG_FILE` names."""

    plugins: list[PluginEntry]

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str], unset: list[str] | None = None) -> Self:
        """Reads the file. Raises `ToolsetError`, which names the file, the key and the reason.

        `unset` collects the names of unset variables, as in `expanded`.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_object)
        except json.JSONDecodeError as error:
            raise ToolsetError(
                f"The catalogue {path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}."
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise ToolsetError(f"The catalogue {path} cannot be read: {document_reason(error)}.") from error
        try:
            catalogue = cls.model_validate(document)
        except ValidationError as error:
            raise ToolsetError(f"The catalogue {path}: {explained(error, cls, document)}") from error
        for entry in catalogue.entries():
            if catalogue.tools[entry.tool_id] is not entry:
                raise ToolsetError(f"The catalogue {path} names the tool {entry.tool_id!r} twice.")
            if entry.auth and entry.auth.oauth_client_secret:
                where = f"The catalogue {path}: {entry.tool_id}"
                secret = entry.auth.oauth_client_secret
                entry.auth.oauth_client_secret = expanded(secret, environment, where, unset)
        return catalogue

    def entries(self) -> Iterator[ToolEntry]:
        for plugin in self.plugins:
            yield from plugin.tools

    @cached_property
    def tools(self) -> Mapping[str, ToolEntry]:
        """The entries by their `tool_id`."""
        return {entry.tool_id: entry for entry in self.entries()}


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {key!r} twice")
    return made


# --- governing -----------------------------------------------------------------------------------


@runtime_checkable
class Overridden(Protocol):
    """A tool whose own configuration entry may override its governance (MCP)."""

    override: GovernanceOverride | None


class GovernedTool:
    """A tool with the governance that applies to it.

    If the catalogue demands the user's authorization for the tool, the call gets the token: as
    `context.user_token(scopes)`, and for an OpenAPI tool in the request. (An MCP server asks by itself.)
    """

    def __init__(
        self, tool: Tool, spec: ToolSpec, consents: Consents | None, client_secret: str | None
    ) -> None:
        self.spec = spec
        self.inner = tool
        self._consents = consents
        self._client_secret = client_secret

    def check(self, arguments: Json) -> None:
        """Uses the tool's own check, or else its schema; the arguments of an MCP tool are its server's to
        check."""
        if isinstance(self.inner, Checking):
            self.inner.check(arguments)
        elif not isinstance(self.inner, Overridden):
            check_against(self.spec.parameters, arguments)

    async def call(self, context: ToolContext, arguments: Json) -> str:
        if (
            self.spec.auth is not None
            and self._consents is not None
            and not isinstance(self.inner, Overridden)
        ):
            owned = authorized(context, self._consents, self.spec.auth, self._client_secret)
            context = await in_time(owned)
        return await self.inner.call(context, arguments)


class GovernedUnlistedTool(GovernedTool):
    """A governed placeholder for a tool that its server has not listed yet."""

    async def list_for(self, context: ToolContext) -> None:
        assert isinstance(self.inner, Unlisted)
        await self.inner.list_for(context)


def govern(
    tools: Sequence[Tool], catalogue: Catalogue | None, consents: Consents | None = None
) -> list[Tool]:
    """The tools, in order, each with the first governance that applies:

    1. The catalogue's entry, if it names the tool. 2. With a catalogue that does not name the tool: approval
    is needed, unless the override in an MCP server's entry sets `requires_hitl` to false. 3. Without a
    catalogue: the toolset's own rule (an MCP server's trust level, `@tool(requires_hitl=…)`).
    """
    return [_governed(tool, catalogue, consents) for tool in tools]


def _governed(tool: Tool, catalogue: Catalogue | None, consents: Consents | None) -> Tool:
    kind = GovernedUnlistedTool if isinstance(tool, Unlisted) else GovernedTool
    spec, secret = tool.spec, None
    if catalogue is not None:
        entry = catalogue.tools.get(spec.name)
        if entry is not None:
            spec = entry.over(spec)
            secret = entry.auth.oauth_client_secret if entry.auth else None
        elif not _is_cleared(tool):
            spec = replace(spec, governance=replace(spec.governance, requires_hitl=True))
    return kind(tool, spec, consents, secret)


def _is_cleared(tool: Tool) -> bool:
    return isinstance(tool, Overridden) and tool.override is not None and tool.override.requires_hitl is False


#: most lists of one toolset whose governed versions are cached: the common one, and those of owners
MAX_LISTS = 500


class GovernedToolset:
    """A toolset seen through the catalogue. The caller has opened the toolset, and closes it."""

    def __init__(
        self, toolset: Toolset, catalogue: Catalogue | None, consents: Consents | None = None
    ) -> None:
        self._toolset = toolset
        self._consents = consents
        self._catalogue = catalogue
        #: id of a list of the toolset → that list, and its governed version; least recently used first
        self._governed: OrderedDict[int, tuple[Sequence[Tool], Sequence[Tool]]] = OrderedDict()

    def tools(self) -> Sequence[Tool]:
        """The governed tools; rebuilt only when the toolset returns another list, as an MCP server may."""
        return self._govern(self._toolset.tools())

    def tools_of(self, owner: User) -> Sequence[Tool]:
        """The tools that this owner may see; the same list as `tools` if the owner has no own list."""
        if isinstance(self._toolset, PerOwner):
            return self._govern(self._toolset.tools_of(owner))
        return self.tools()

    def _govern(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        known = self._governed.get(id(tools))
        if known is None or known[0] is not tools:
            known = tools, tuple(govern(tools, self._catalogue, self._consents))
            self._governed[id(tools)] = known
        self._governed.move_to_end(id(tools))
        if len(self._governed) > MAX_LISTS:
            self._governed.popitem(last=False)
        return known[1]

    def find(self, name: str) -> Tool | None:
        """The tool of this name, even if its server lists it only for users who have consented; None if
        unknown."""
        for tool in self.tools():
            if tool.spec.name == name:
                return tool
        found = self._toolset.find(name) if isinstance(self._toolset, Finding) else None
        return govern([found], self._catalogue, self._consents)[0] if found else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


def check_tools(toolsets: Sequence[Toolset]) -> None:
    """`ToolsetError` for tools that could not be sent to a model (a toolset may be third-party code), and for
    two tools with one name: a decision about one would apply to the other."""
    seen: set[str] = set()
    for toolset in toolsets:
        for tool in _tools_listed_by(toolset):
            name = _checked_spec(tool, type(toolset).__name__).name
            if name in seen:
                raise ToolsetError(
                    f"Two tools are called {name!r}. Give one of them, or its plugin or server, another name."
                )
            seen.add(name)


def _tools_listed_by(toolset: Toolset) -> Iterable[Tool]:
    kind = type(toolset)
    try:
        tools: object = toolset.tools()
        if isinstance(tools, Iterable):
            return list(tools)
    except (Exception, SystemExit) as error:
        raise ToolsetError(f"{kind.__name__}.tools() failed: {raised(error, kind.__module__)}") from error
    if isinstance(tools, Coroutine):
        tools.close()
    what = f"{kind.__name__}.tools() returns a {type(tools).__name__}"
    raise ToolsetError(f"{what}: it must not be async, and return a list.")


def _checked_spec(tool: object, toolset: str) -> ToolSpec:
    spec = getattr(tool, "spec", None)
    if not isinstance(spec, ToolSpec) or not callable(getattr(tool, "call", None)):
        raise ToolsetError(
            f"The toolset {toolset} has a tool without a ToolSpec or a call: {type(tool).__name__}."
        )
    if wrong := flaw(spec):
        raise ToolsetError(f"The ToolSpec of {spec.name!r} in the toolset {toolset} is wrong: {wrong}.")
    if not VALID_NAME.fullmatch(spec.name):
        raise ToolsetError(f"The toolset {toolset} has a tool {spec.name!r}, which {NAME_RULE}.")
    return spec


def mismatches(
    tools: Sequence[Tool], catalogue: Catalogue | None, *, more_to_come: bool = False
) -> list[str]:
    """Mismatches between the catalogue and the tools, one sentence each, for the operator.

    With `more_to_come`, unknown names in the catalogue are not reported: context providers may add those
    tools.
    """
    if catalogue is None:
        return []
    tools = govern(tools, catalogue)
    there = [tool.spec.name for tool in tools]
    unnamed = [tool.spec for tool in tools if tool.spec.name not in catalogue.tools]
    missing = [
        f"The catalogue names {name!r}, which is not a tool of this agent.{suggestion(name, there)}"
        for name in catalogue.tools
        if name not in there and not more_to_come
    ]
    asking = [
        f"The catalogue does not name {spec.name!r}: each call to it needs approval."
        for spec in unnamed
        if spec.governance.requires_hitl
    ]
    cleared = [
        f"The catalogue does not name {spec.name!r}, but its server's entry in the config clears it."
        for spec in unnamed
        if not spec.governance.requires_hitl
    ]
    return missing + asking + cleared
