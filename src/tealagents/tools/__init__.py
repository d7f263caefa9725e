"""What a model can do: tools from Python files, OpenAPI services and MCP servers, under one governance.

====================  ==================================================================================
`Sources`             where an agent's tools come from
`open_toolsets`       opens all of them; what `tealagents.tooling` calls
`tools_at_hand`       the tools available without contacting a server; checks the other entries as well
`code`                code plugins (`methods`, `signature`: Python methods as tools; `thread_pool`:
                      where blocking ones run)
`semantic_kernel`     plugins written for the earlier platform (`input_types`: its types)
`openapi`             OpenAPI plugins (`openapi_parsing`, `openapi_document`, `openapi_schema`: reading a
                      document; `openapi_request`: calling an operation; `schema_check`: whether edited
                      arguments fit)
`mcp`                 MCP servers (`mcp_connection`: a session; `mcp_transport`: stdio and HTTP;
                      `mcp_listing`: a server's listing; `mcp_results`: the texts of results;
                      `process_guard`: ends a child process whose parent has died)
`oauth`               a user's own authorization at another service (`oauth_servers`: requests to such
                      services, and checks of their answers; `oauth_clients`: this service's registrations;
                      `oauth_pending`: authorizations that wait for the browser; `oauth_grants`: what users
                      granted, in the store; `oauth_tokens`: the tokens, and renewing them; `oauth_context`:
                      for tools that the catalogue protects; `user_tokens`: how tools wait for a token)
`catalogue`           the operator's rules for each tool, and applying them
`options`             the toolsets' options as config files write them
`naming`, `results`   the names of tools, the texts of their results
`schema_form`         the schemas of tools as model services take them
`errors`              the one error of opening tools
====================  ==================================================================================

Opened by `tealagents.tooling`, for the service and the library. Imports `domain`, `outbound`, `options`,
`mistakes`, `opening`, `registry` and `plugins` only. `mcp*` need the extra `mcp` and are imported when a
server is configured. Toolsets of third parties come by the entry-point group `tealagents.tools`, or as
``module:Class``.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

from tealagents.domain.ports import Toolset, ToolSpec
from tealagents.opening import Held
from tealagents.registry import Registry
from tealagents.tools.catalogue import Catalogue, GovernedToolset, OAuthEntry, check_tools, govern, mismatches
from tealagents.tools.code import load_plugins
from tealagents.tools.errors import Key, ToolsetError, errors_at
from tealagents.tools.naming import prefix_of
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_pending import Secrets
from tealagents.tools.oauth_servers import same_issuer
from tealagents.tools.openapi import OpenAPIPlugin
from tealagents.tools.options import MCPServerOptions, remote_plugins

__all__ = [
    "Catalogue",
    "Consents",
    "GovernedToolset",
    "MCPServerOptions",
    "Secrets",
    "Sources",
    "ToolsetError",
    "govern",
    "mismatches",
    "open_toolsets",
    "tools_at_hand",
]

logger = logging.getLogger(__name__)

TOOLSETS = Registry(
    word="toolset",
    error=ToolsetError,
    group="tealagents.tools",
    methods=("tools", "__aenter__", "__aexit__"),
)


#: keys of toolsets that limit how long each of their plugins or sessions may take to close
_WITH_LIMITS = (("plugins",), ("remote_plugins",), ("mcp_servers",))


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where an agent's tools come from."""

    #: classes of the file `plugin_module` (`spec.agent.plugins`)
    plugins: Sequence[str] = ()
    plugin_module: Path | None = None
    #: the Python files that were executed before, which are not executed again; see `code.imported`
    modules: dict[Path, ModuleType] | None = None
    #: entries of the file `remote_plugin_file` (`spec.agent.remote_plugins`)
    remote: Sequence[str] = ()
    remote_plugin_file: Path | None = None
    #: the variables that replace `${NAME}` in that file and in the catalogue
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    #: collects the names of unset variables; None: an unset variable raises `ToolsetError`
    unset: list[str] | None = None
    #: the entries of `spec.agent.mcp_servers`, `${NAME}` already replaced
    servers: Sequence[MCPServerOptions] = ()
    #: names and options of third parties' toolsets (`spec.agent.toolsets`)
    toolsets: Sequence[tuple[str, Mapping[str, Any]]] = ()
    #: the config file's, whose modules the toolsets may be in
    folder: Path | None = None
    #: the file with the operator's rules for each tool; None: there is no catalogue
    catalogue_file: Path | None = None

    #: whether requests may bring tools of their own: then the catalogue may name tools unknown at start
    more_to_come: bool = False
    #: the headers that continue the trace of the current call at an OpenAPI service
    trace_headers: Callable[[], Mapping[str, str]] = dict

    @cached_property
    @errors_at("TA_PLUGIN_CATALOG_FILE")
    def catalogue(self) -> Catalogue | None:
        if self.catalogue_file is None:
            return None
        return Catalogue.load(self.catalogue_file, self.environment, self.unset)

    @errors_at("plugins")
    def code(self) -> list[Toolset]:
        """A toolset with an instance of each class that `plugins` names; none without plugins."""
        if not self.plugins:
            return []
        if self.plugin_module is None:
            raise ToolsetError(
                f"The plugins {', '.join(self.plugins)} are configured, but there is no plugin file: put "
                "custom_plugins.py beside the config file, or name one in TA_PLUGIN_MODULE."
            )
        return [load_plugins(self.plugin_module, self.plugins, modules=self.modules)]

    @errors_at("remote_plugins")
    def services(self) -> list[OpenAPIPlugin]:
        """The OpenAPI services, not opened yet: their documents are not read."""
        if not self.remote:
            return []
        if self.remote_plugin_file is None:
            raise ToolsetError(
                f"The remote plugins {', '.join(self.remote)} are configured, but TA_REMOTE_PLUGIN_PATH "
                "names no file."
            )
        entries = remote_plugins(self.remote_plugin_file, list(self.remote), self.environment, self.unset)
        return [
            OpenAPIPlugin(
                options,
                authorized=self._are_authorized(options.plugin_name),
                trace_headers=self.trace_headers,
            )
            for options in entries
        ]

    def _are_authorized(self, plugin: str) -> bool:
        """Whether the catalogue demands the user's authorization for any of a plugin's tools."""
        entries = self.catalogue.entries() if self.catalogue is not None else ()
        return any(entry.auth and entry.tool_id.startswith(prefix_of(plugin)) for entry in entries)

    @errors_at("mcp_servers")
    def mcp(
        self, consents: Consents | None = None, changed: Callable[[], None] | None = None
    ) -> list[Toolset]:
        """The MCP servers, not started."""
        if not self.servers:
            return []
        try:
            from tealagents.tools.mcp import MCPServer
        except ModuleNotFoundError as error:
            raise ToolsetError(
                f"MCP servers need a package that is not installed ({error.name}): pip install "
                "'tealagents[mcp]'."
            ) from error
        except ImportError as error:
            raise ToolsetError(
                f"MCP servers need mcp 2, and {version('mcp')} is installed, which another package may have "
                "installed (semantic-kernel does): pip install 'tealagents[mcp]' in an environment without "
                "it."
            ) from error
        return [MCPServer(one, consents, changed) for one in self.servers]

    def third_party(self) -> list[Toolset]:
        """The third-party toolsets, created but not opened."""
        made: list[Toolset] = []
        for index, (name, options) in enumerate(self.toolsets):
            with errors_at("toolsets", index):
                made.append(TOOLSETS.make(name, TOOLSETS.find(name, self.folder), options))
        return made

    def check(self) -> None:
        """`ToolsetError` for names that clash, and for an `auth` in the catalogue that would have no
        effect."""
        self._check_names()
        self._check_authorizations()

    def _check_names(self) -> None:
        """No plugin's or server's prefix may begin another's: `git` could offer a tool named like one of
        `git-hub`."""
        names = [*self.plugins, *self.remote, *(server.name for server in self.servers)]
        for one, other in permutations(names, 2):
            if prefix_of(other).startswith(prefix_of(one)):
                raise ToolsetError(
                    f"The names of the tools of {one!r} and {other!r} clash. Rename one of the two."
                )

    @errors_at("mcp_servers")
    def _check_authorizations(self) -> None:
        """An MCP server uses only the authorization that its own entry names; the catalogue's must match
        it."""
        for entry in self.catalogue.entries() if self.catalogue is not None else ():
            for server in self.servers:
                its_own = entry.tool_id.startswith(prefix_of(server.name))
                if its_own and entry.auth is not None and not _asks_for(server, entry.auth):
                    raise ToolsetError(
                        f"The catalogue has an 'auth' for {entry.tool_id!r}, a tool of an MCP server. Set "
                        f"auth_server, scopes and oauth_client_id in the mcp_servers entry {server.name!r} "
                        "instead (only with transport http: a child process asks no user)."
                    )


@asynccontextmanager
async def open_toolsets(
    sources: Sources,
    *,
    consents: Consents | None = None,
    others: Sequence[Toolset] = (),
    changed: Callable[[], None] | None = None,
    failed: list[Exception] | None = None,
) -> AsyncIterator[list[GovernedToolset]]:
    """Opens all toolsets of an agent, and yields them under the catalogue's rules; closes them on leaving.

    - `consents`: asks users to authorize servers; None: calls to servers that need authorization fail
    - `others`: further toolsets, not opened yet
    - `changed`: called when an MCP server lists other tools than before; `tools()` then gives them
    - `failed`: collects the errors of toolsets that cannot be opened, and these are left out; None: the first
      error is raised

    Raises `ToolsetError`, whose text says what to do. Mismatches between catalogue and tools are logged.
    """
    catalogue = sources.catalogue
    made = [
        *((("plugins",), each) for each in sources.code()),
        *_entries("remote_plugins", sources.services()),
        *_entries("mcp_servers", sources.mcp(consents, changed)),
        *_entries("toolsets", sources.third_party()),
        *(((), each) for each in others),
    ]
    sources.check()
    async with AsyncExitStack() as stack:
        toolsets = await _enter_all(stack, made, failed)
        check_tools(toolsets)
        tools = [tool for toolset in toolsets for tool in toolset.tools()]
        more_to_come = sources.more_to_come or bool(failed)
        for sentence in mismatches(tools, catalogue, more_to_come=more_to_come):
            logger.warning("%s", sentence)
        yield [GovernedToolset(toolset, catalogue, consents) for toolset in toolsets]


async def tools_at_hand(sources: Sources) -> list[ToolSpec]:
    """The governed tools of the plugin file and of services whose documents are files; contacts no server.

    Raises `ToolsetError` for faults in them, in the catalogue, and in the entries of the other services,
    servers and toolsets, which are created but not opened.
    """
    catalogue, code = sources.catalogue, sources.code()
    services = [service for service in sources.services() if service.is_at_hand]
    sources.mcp()
    sources.third_party()
    sources.check()
    async with AsyncExitStack() as stack:
        await _enter_all(stack, [(("remote_plugins",), each) for each in services])
        toolsets = [*code, *services]
        check_tools(toolsets)
        return [tool.spec for toolset in toolsets for tool in govern(toolset.tools(), catalogue)]


def _asks_for(server: MCPServerOptions, auth: OAuthEntry) -> bool:
    return (
        server.transport == "http"
        and same_issuer(server.auth_server or "", auth.auth_server)
        and set(auth.scopes) <= set(server.scopes)
        and auth.oauth_client_id in (None, server.oauth_client_id)
    )


def _entries(name: str, toolsets: Sequence[Toolset]) -> list[tuple[Key, Toolset]]:
    """Toolsets with their keys: each is made of one entry of a list."""
    return [((name, index), each) for index, each in enumerate(toolsets)]


async def _enter_all(
    stack: AsyncExitStack, made: Sequence[tuple[Key, Toolset]], failed: list[Exception] | None = None
) -> list[Toolset]:
    """Enters all toolsets concurrently, since servers are slow to start, and returns those that are open.

    If one fails, the others are exited, unless `failed` takes its error.
    """
    held = [
        Held(toolset, "toolset", ToolsetError, bounded=key[:1] not in _WITH_LIMITS) for key, toolset in made
    ]
    tasks = [asyncio.ensure_future(_enter(key, each)) for (key, _), each in zip(made, held, strict=True)]
    stack.push_async_exit(partial(_exit_all, held, tasks))  # before any `await`, which may be canceled
    try:
        await asyncio.gather(*tasks, return_exceptions=failed is not None)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    if failed is not None:
        failed += (outcome for outcome in outcomes if isinstance(outcome, Exception))
    return [toolset for (_, toolset), task in zip(made, tasks, strict=True) if _succeeded(task)]


async def _enter(key: Key, held: Held) -> None:
    with errors_at(*key):
        await held.__aenter__()


def _succeeded(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is None


async def _exit_all(held: Sequence[Held], entering: Sequence[asyncio.Task[None]], *exc: Any) -> None:
    """Exits all entered toolsets concurrently: a server may never answer the end of its session."""
    if unfinished := [task for task in entering if not task.done()]:
        await asyncio.wait(unfinished)
    opened = (each for each, task in zip(held, entering, strict=True) if _succeeded(task))
    outcomes = await asyncio.gather(*(each.__aexit__(*exc) for each in opened), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
