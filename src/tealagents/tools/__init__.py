"""What a model can do: tools from Python files, OpenAPI services and MCP servers, under one governance.

====================  ==================================================================================
`open_toolsets`       opens all of an agent's tools; what bootstrap calls
`tools_at_hand`       those that no server has to be asked for, and whatever is wrong with the others' files
`code`                code plugins (`methods`, `signature`, `threads`: Python methods as tools)
`semantic_kernel`     plugins written for the earlier framework
`openapi`             OpenAPI plugins (`openapi_document`, `openapi_schema`: reading a document;
                      `openapi_request`: calling an operation)
`mcp`                 MCP servers (`mcp_connection`: a session; `mcp_transport`: its two ways; `mcp_results`;
                      `leash`: ends a child process whose parent has died)
`oauth`               a user's own authorization at somebody else's server (`oauth_servers`: what such
                      servers are asked, and believed)
`catalogue`           what the operator says of each tool, and what follows
`options`             the toolsets' options as config files write them
`naming`, `results`   the names of tools, the texts of their results
`errors`              the one error of opening tools
====================  ==================================================================================

Used by bootstrap. Imports `tealagents.domain` and `tealagents.plugins` only. `mcp*` need the extra `mcp`
and are imported when a server is configured.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

from tealagents.domain.ports import Toolset, ToolSpec
from tealagents.tools.catalogue import Catalogue, GovernedToolset, check_unique, govern, report
from tealagents.tools.code import load_plugins
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import prefix_of
from tealagents.tools.oauth import Consents, TokenVault
from tealagents.tools.openapi import OpenAPIPlugin
from tealagents.tools.options import MCPServerOptions, mcp_servers, remote_plugins

__all__ = [
    "Catalogue",
    "Consents",
    "GovernedToolset",
    "MCPServerOptions",
    "TokenVault",
    "ToolsetError",
    "open_toolsets",
    "report",
    "tools_at_hand",
]

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_toolsets(
    *,
    plugins: Sequence[str] = (),
    plugin_module: Path | None = None,
    remote: Sequence[str] = (),
    remote_plugin_file: Path | None = None,
    servers: Sequence[Mapping[str, Any]] = (),
    catalogue_file: Path | None = None,
    consents: Consents | None = None,
    others: Sequence[Toolset] = (),
    changed: Callable[[], None] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AsyncIterator[list[GovernedToolset]]:
    """All tools of an agent, opened, governed, and closed on leaving.

    - `plugins`: classes of the file `plugin_module` (`spec.agent.plugins`)
    - `remote`: entries of the file `remote_plugin_file` (`spec.agent.remote_plugins`)
    - `servers`: the entries of `spec.agent.mcp_servers`, `${NAME}` already replaced
    - `catalogue_file`: the catalogue; None: there is none
    - `consents`: who asks users to authorize servers; None: servers that want it fail, saying so
    - `others`: toolsets of third parties, not opened yet
    - `changed`: called when an MCP server lists other tools than before; `tools()` then gives them
    - `environment`: what `${NAME}` in the remote plugin file is replaced from

    Raises `ToolsetError` with what to do. What does not fit between catalogue and tools is logged.
    """
    catalogue = Catalogue.load(catalogue_file) if catalogue_file else None
    toolsets = [
        *_code_plugins(plugins, plugin_module),
        *_remote_plugins(remote, remote_plugin_file, environment),
        *_mcp_servers(servers, consents, changed),
        *others,
    ]
    _check_prefixes([*plugins, *remote, *(str(server.get("name", "")) for server in servers)])
    async with AsyncExitStack() as stack:
        await _enter_all(stack, toolsets)
        check_unique(toolsets)
        for sentence in report([tool for toolset in toolsets for tool in toolset.tools()], catalogue):
            logger.warning("%s", sentence)
        yield [GovernedToolset(toolset, catalogue, consents) for toolset in toolsets]


def tools_at_hand(
    *,
    plugins: Sequence[str] = (),
    plugin_module: Path | None = None,
    remote: Sequence[str] = (),
    remote_plugin_file: Path | None = None,
    servers: Sequence[Mapping[str, Any]] = (),
    catalogue_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[ToolSpec]:
    """The tools of the plugin file, governed; its classes are made, nothing is opened and nobody asked.

    Takes what `open_toolsets` takes, within an event loop as it does. `ToolsetError` for what is wrong with
    the plugins, the catalogue and the entries of services and servers; their documents are not read.
    """
    catalogue = Catalogue.load(catalogue_file) if catalogue_file else None
    code = _code_plugins(plugins, plugin_module)
    _remote_plugins(remote, remote_plugin_file, environment)
    _mcp_servers(servers, None, None)
    _check_prefixes([*plugins, *remote, *(str(server.get("name", "")) for server in servers)])
    check_unique(code)
    return [tool.spec for toolset in code for tool in govern(toolset.tools(), catalogue)]


async def _enter_all(stack: AsyncExitStack, toolsets: Sequence[Toolset]) -> None:
    """All at once: servers take their time to start. Whatever one raises, those that opened are closed."""
    tasks = [asyncio.ensure_future(toolset.__aenter__()) for toolset in toolsets]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for toolset, outcome in zip(toolsets, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                stack.push_async_exit(toolset)


def _code_plugins(names: Sequence[str], module: Path | None) -> list[Toolset]:
    if not names:
        return []
    if module is None:
        raise ToolsetError(
            f"The plugins {', '.join(names)} are configured, but there is no plugin file: put "
            "custom_plugins.py beside the config file, or name one in TA_PLUGIN_MODULE."
        )
    return [load_plugins(module, names)]


def _remote_plugins(names: Sequence[str], file: Path | None, environment: Mapping[str, str]) -> list[Toolset]:
    if not names:
        return []
    if file is None:
        raise ToolsetError(
            f"The remote plugins {', '.join(names)} are configured, but TA_REMOTE_PLUGIN_PATH names no file."
        )
    return [OpenAPIPlugin(options) for options in remote_plugins(file, list(names), environment)]


def _mcp_servers(
    entries: Sequence[Mapping[str, Any]], consents: Consents | None, changed: Callable[[], None] | None
) -> list[Toolset]:
    if not entries:
        return []
    options = mcp_servers(list(entries))
    try:
        from tealagents.tools.mcp import MCPServer
    except ModuleNotFoundError as error:
        raise ToolsetError(
            f"MCP servers need a package that is not installed ({error.name}): pip install 'tealagents[mcp]'."
        ) from error
    return [MCPServer(one, consents, changed) for one in options]


def _check_prefixes(names: Sequence[str]) -> None:
    """No name may begin another's tools: a server `git` could offer a tool called like one of `git-hub`."""
    for one, other in permutations(names, 2):
        if prefix_of(other).startswith(prefix_of(one)):
            raise ToolsetError(
                f"The tools of {one!r} and {other!r} cannot be told apart by name. Rename one of the two."
            )
