"""An MCP server's listing: fetched within limits, and as tools, with their names and their governance, and
placeholders for unlisted tools."""

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import mcp_types as types
from mcp.client import Client
from msgspec.structs import replace

from tealagents.domain.models import Json
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.domain.texts import bounded
from tealagents.domain.tool_specs import VALID_NAME
from tealagents.tools.naming import plugin_of, prefix_of, suggestion, tool_names
from tealagents.tools.options import GovernanceOverride, MCPServerOptions, TrustLevel
from tealagents.tools.schema_form import as_parameters
from tealagents.tools.user_tokens import TOKEN_SECONDS

logger = logging.getLogger(__name__)

#: most pages of a listing, and most tools of a server
MAX_PAGES, MAX_TOOLS = 200, 2_000
#: most characters of a listing, and most values: processing it blocks the event loop
MAX_LISTING, MAX_VALUES = 4_000_000, 100_000
#: most characters of a tool's description that the model is sent
MAX_DESCRIPTION = 4_000
#: most characters of JSON of one tool's parameters, and the schema that replaces a larger one
MAX_PARAMETERS = 64 * 1024
_ANY_OBJECT: Json = {
    "type": "object",
    "properties": {},
    "description": "any object; its schema is too large to be shown",
}
#: the function offered where a server lists its tools only for users who have authorized it
CONNECT = "connect"


async def fetch_tools(client: Client) -> list[types.Tool]:
    """The server's tools from all pages of its listing; tools beyond the limits are left out with a
    warning."""
    if client.server_capabilities.tools is None:
        return []
    taken = _Taken()
    cursor: str | None = None
    asked: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        is_whole = all(map(taken.take, page.tools))
        cursor = page.next_cursor or None  # some servers end a listing with an empty cursor
        if cursor is None or cursor in asked or not is_whole:
            break
        asked.add(cursor)
    if cursor is not None or not is_whole:
        most = (MAX_TOOLS, MAX_LISTING, MAX_VALUES, MAX_PAGES)
        logger.warning(
            "an MCP server lists more than %d tools, %d characters, %d values or %d pages, or a page twice; "
            "the rest is left out",
            *most,
        )
    tools = list(taken.tools.values())
    # by itself, the SDK forgets removed tools only after a listing of a single page
    client.session._absorb_tool_listing(types.ListToolsResult(tools=tools), complete=True)
    return tools


class _Taken:
    """The tools taken from a listing so far."""

    def __init__(self) -> None:
        #: by name: a tool that is listed twice, because pages shifted in between, counts once
        self.tools: dict[str, types.Tool] = {}
        self._size = self._values = 0

    def take(self, tool: types.Tool) -> bool:
        """Adds a tool; False if the listing exceeds its limits with it."""
        listed = repr(tool)  # JSON cannot hold everything that a schema may
        self._size += len(listed)
        self._values += sum(map(listed.count, ",[{"))
        if self._size > MAX_LISTING or self._values > MAX_VALUES:
            return False
        if tool.name in self.tools or _needs_a_task(tool):
            return True
        if len(self.tools) == MAX_TOOLS:
            return False
        self.tools[tool.name] = tool
        return True


def _needs_a_task(tool: types.Tool) -> bool:
    """Whether the tool runs only as a task of the server (2025-11-25): such a tool cannot be called
    directly."""
    return tool.execution is not None and tool.execution.task_support == "required"


class MCPTool:
    """One tool of a server."""

    def __init__(
        self,
        spec: ToolSpec,
        override: GovernanceOverride | None,
        call: Callable[[ToolContext, str, Json, str], Awaitable[str]],
    ) -> None:
        self.spec = spec
        self.override = override
        self._call = call

    async def call(self, context: ToolContext, arguments: Json) -> str:
        return await self._call(context, self.spec.name, arguments, self.spec.function)


class UnlistedTool(MCPTool):
    """A placeholder for a tool that its server has not listed for the owner yet; the tool may not exist."""

    def __init__(self, tool: MCPTool, connect: Callable[[ToolContext], Awaitable[str]]) -> None:
        super().__init__(replace(tool.spec, function=""), tool.override, tool._call)
        self._connect = connect

    async def list_for(self, context: ToolContext) -> None:
        await self._connect(context)


class Listing(NamedTuple):
    """The tools that a server has listed, for all users or for one."""

    #: of the server's listing, which itself would take as much memory again as the tools
    digest: bytes
    #: our name of each tool → the server's own name
    functions: Mapping[str, str]
    tools: tuple[Tool, ...]

    def named(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.spec.name == name), None)


class Lister:
    """Makes tools from one server's listings."""

    def __init__(
        self,
        options: MCPServerOptions,
        call: Callable[[ToolContext, str, Json, str], Awaitable[str]],
        connect: Callable[[ToolContext], Awaitable[str]],
    ) -> None:
        self._options = options
        self._call = call
        self._connect = connect

    def listing(self, listed: Sequence[types.Tool], before: Listing | None) -> Listing:
        """The tools of a listing. If nothing has changed, the tools of `before` are kept."""
        digest = _digest(listed)
        if before is not None and before.digest == digest:
            return before  # the usual case: making thousands of tools again would block the event loop
        functions = [tool.name for tool in listed]
        names = tool_names(self._options.name, functions)
        tools = tuple(self._tool(tool, name) for name, tool in zip(names, listed, strict=True))
        if before is not None:
            if [tool.spec for tool in before.tools] == [tool.spec for tool in tools]:
                return before._replace(digest=digest)
            self._warn_of_loosened(before, tools)
        return Listing(digest, dict(zip(names, functions, strict=True)), tools)

    def unlisted(self, name: str) -> Tool | None:
        """A placeholder for a tool not listed yet, governed as if the server had given it no annotations;
        None if the name cannot be one of this server."""
        prefix = prefix_of(self._options.name)
        if not name.startswith(prefix) or not VALID_NAME.fullmatch(name):
            return None
        function = name.removeprefix(prefix)
        for own in self._options.tool_governance_overrides:
            if tool_names(self._options.name, [own]) == [name]:
                function = own
        return UnlistedTool(self._tool(types.Tool(name=function, input_schema={}), name), self._connect)

    def connect_tool(self) -> Tool:
        """The tool offered in place of the tools of a server that lists them only for users who authorized
        it."""
        spec = self._spec(
            tool_names(self._options.name, [CONNECT])[0],
            f"Connects the user to {self._options.name}, whose tools are known only once the user has "
            "authorized it. Answers with the names of the tools that can be called from then on.",
            {"type": "object", "properties": {}},
            Governance(),
        )
        cleared = GovernanceOverride(requires_hitl=False)  # it does nothing but ask the user
        return MCPTool(spec, cleared, lambda context, *_: self._connect(context))

    def report(self, listing: Listing) -> None:
        """Logs the tools that all users are offered, and overrides that name no listed tool."""
        functions = list(listing.functions.values())
        logger.info("MCP server %s has these tools: %s", self._options.name, ", ".join(functions))
        for name in self._options.tool_governance_overrides:
            if name not in functions:
                logger.warning(
                    "MCP server %s: tool_governance_overrides names %r, which the server does not list.%s",
                    self._options.name,
                    name,
                    suggestion(name, functions),
                )

    def _warn_of_loosened(self, before: Listing, tools: Sequence[Tool]) -> None:
        """Warns the operator of tools that no longer need approval because the server changed annotations."""
        governed = {tool.spec.name for tool in before.tools if tool.spec.governance.requires_hitl}
        for tool in tools:
            if tool.spec.name in governed and not tool.spec.governance.requires_hitl:
                logger.warning(
                    "MCP server %s now lists %s as read-only: its calls no longer need approval.",
                    self._options.name,
                    tool.spec.name,
                )

    def _tool(self, tool: types.Tool, name: str) -> MCPTool:
        override = self._options.tool_governance_overrides.get(tool.name)
        governance = _governance(self._options.trust_level, tool.annotations)
        spec = self._spec(
            name,
            bounded(tool.description or tool.title or "", MAX_DESCRIPTION),
            self._parameters(tool.input_schema, name),
            override.over(governance) if override else governance,
            tool.name,
        )
        return MCPTool(spec, override, self._call)

    def _parameters(self, schema: Json, name: str) -> Json:
        if len(json.dumps(schema, ensure_ascii=False)) <= MAX_PARAMETERS:
            return as_parameters(schema)
        logger.warning(
            "MCP server %s: %s takes any object: its schema is larger than %s characters",
            self._options.name,
            name,
            f"{MAX_PARAMETERS:,}",
        )
        return _ANY_OBJECT

    def _spec(
        self, name: str, description: str, parameters: Json, governance: Governance, function: str = ""
    ) -> ToolSpec:
        token = TOKEN_SECONDS if self._options.transport == "http" else 0
        return ToolSpec(
            name=name,
            description=description,
            parameters=parameters,
            governance=governance,
            auth=self._auth(),
            timeout=self._options.call_seconds,
            waits=token + self._options.timeout + 1,
            plugin=plugin_of(self._options.name),
            function=function,
        )

    def _auth(self) -> Json | None:
        if not self._options.auth_server:
            return None
        scopes = list(self._options.scopes)
        return {"auth_type": "oauth2", "auth_server": self._options.auth_server, "scopes": scopes}


def _digest(listed: Sequence[types.Tool]) -> bytes:
    """SHA-256 of the listing's `repr`, since JSON cannot represent every value that a schema may hold."""
    return hashlib.sha256(repr(listed).encode()).digest()


def _governance(trust: TrustLevel, annotations: types.ToolAnnotations | None) -> Governance:
    """The governance by trust level. An untrusted server's annotations are ignored."""
    if trust == "trusted":
        return Governance()
    harmless = (
        annotations is not None
        and annotations.read_only_hint is True
        and annotations.destructive_hint is not True
    )
    return Governance(requires_hitl=not (trust == "sandboxed" and harmless))
