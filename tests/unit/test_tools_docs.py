"""The guide to tools says what is there, and its examples work."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tools_setup import Context, by_name

from tealagents.domain.errors import ToolFailed
from tealagents.registry import import_from
from tealagents.tools import Sources, open_toolsets
from tealagents.tools.catalogue import Catalogue
from tealagents.tools.code import load_plugins
from tealagents.tools.options import MCPServerOptions, RemotePluginOptions

GUIDE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_every_option_is_explained() -> None:
    """Each key of an MCP server and of a remote plugin is in the guide."""
    known = {f"`{name}`" for name in MCPServerOptions.model_fields}
    assert {name for name in known if name not in GUIDE} == set()
    assert {name for name in RemotePluginOptions.model_fields if f"{name}:" not in GUIDE} == set()


async def test_plugin_of_the_guide_works(tmp_path: Path) -> None:
    """The plugin that the guide shows does what it says, and refuses as it says."""
    source, _ = blocks("python")
    file = tmp_path / "custom_plugins.py"
    file.write_text(source)
    tool = by_name(load_plugins(file, ["Shell"]))["Shell-delete"]
    assert tool.spec.description == "Delete one file."
    properties = tool.spec.parameters["properties"]
    assert properties["path"]["description"] == "where it is, below the home folder"
    context = Context()
    assert await tool.call(context, {"path": "a"}) == "deleted a"
    assert context.extra == {"deleted": "a"}
    [refusal] = blocks("text")
    with pytest.raises(ToolFailed) as raised:
        await tool.call(context, {"pth": "a"})
    assert f"{raised.value}\n" == refusal


def test_options_of_the_guide_are_taken() -> None:
    """The entries that the guide shows are right."""
    remote, agent, servers, _ = (yaml.safe_load(block) for block in blocks("yaml"))
    entries = [
        RemotePluginOptions.model_validate(one) for one in remote["remote_plugins"] + agent["remote_plugins"]
    ]
    assert [one.operations for one in entries] == [["search", "getBook"], ["send_message", "get_request"]]
    shown = [MCPServerOptions.model_validate(one) for one in servers["mcp_servers"]]
    assert [one.transport for one in shown] == ["stdio", "http"]


def test_catalogue_of_the_guide_is_taken() -> None:
    """The catalogue that the guide shows is right."""
    catalogue = Catalogue.model_validate(json.loads(blocks("json")[-1]))
    assert [entry.tool_id for entry in catalogue.entries()] == ["Shell-delete"]


def test_package_map_names_every_module() -> None:
    """The package's docstring is a map of all its modules."""
    import tealagents.tools

    folder = Path(tealagents.tools.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert tealagents.tools.__doc__ is not None
    assert {name for name in modules if f"`{name}`" not in tealagents.tools.__doc__} == set()


async def test_toolset_of_the_guide_works(tmp_path: Path) -> None:
    """The toolset that the guide shows is opened by its name with the options that it shows."""
    (tmp_path / "shelf.py").write_text(blocks("python")[1])
    [entry] = yaml.safe_load(blocks("yaml")[-1])["toolsets"]
    import_from(tmp_path)
    async with open_toolsets(Sources(toolsets=[(entry.pop("name"), entry)])) as [toolset]:
        tool = by_name(toolset)["Shelf-look"]
        assert await tool.call(Context(), {"title": "Emma"}) == "Emma: in the hall"
        with pytest.raises(ToolFailed, match="no 'Ulysses' on the shelf"):
            await tool.call(Context(), {"title": "Ulysses"})
