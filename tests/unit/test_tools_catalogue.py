"""The catalogue, and opening all tools of an agent."""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pytest
from msgspec.structs import asdict, replace
from pydantic import BaseModel
from tools_setup import FIXTURES, Context, by_name

from tealagents.domain.errors import ToolFailed
from tealagents.domain.ports import Checking, Governance, Tool, ToolContext, ToolSpec
from tealagents.testing.waits import eventually
from tealagents.tools import Sources, ToolsetError, open_toolsets, tools_at_hand
from tealagents.tools.catalogue import Catalogue, GovernedToolset, govern, mismatches
from tealagents.tools.naming import tool_names
from tealagents.tools.options import GovernanceOverride, MCPServerOptions

Json = dict[str, Any]


class Named:
    """A tool that does nothing."""

    def __init__(self, name: str, *, requires_hitl: bool = False) -> None:
        self.spec = ToolSpec(
            name=name, description="", parameters={}, governance=Governance(requires_hitl=requires_hitl)
        )

    async def call(self, context: ToolContext, arguments: Json) -> str:
        return self.spec.name


class Overridden(Named):
    """A tool of an untrusted server, whose entry says something of it."""

    def __init__(self, name: str, **override: Any) -> None:
        super().__init__(name, requires_hitl=override.get("requires_hitl", True))
        self.override: GovernanceOverride | None = GovernanceOverride(**override)


class Listed:
    """A toolset whose list can be replaced; it counts how it is opened and closed."""

    def __init__(self, *names: str, fails: bool = False) -> None:
        self.list: Sequence[Tool] = tuple(Named(name) for name in names)
        self.fails = fails
        self.open = 0

    def tools(self) -> Sequence[Tool]:
        return self.list

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        if self.fails:
            raise ToolsetError("this one cannot be opened")
        self.open += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.open -= 1


class Roomed(Listed):
    """A toolset with options."""

    class Options(BaseModel):
        room: str

    def __init__(self, options: Options) -> None:
        super().__init__(f"Roomed-{options.room}")


def entry(tool_id: str, **governance: Any) -> Json:
    return {"tool_id": tool_id, "name": tool_id, "description": "", "governance": governance, "auth": None}


#: a scope that would not be asked for, and a secret in the file
MISSPELT = {"auth_type": "oauth2", "auth_server": "https://x", "oauth_client_secret": "s3cret", "scope": []}
PLAIN = {"auth_type": "oauth2", "auth_server": "http://login.example"}


def catalogue(*entries: Json) -> Catalogue:
    return Catalogue.model_validate({"plugins": [{"plugin_id": "P", "tools": list(entries)}]})


def governed(tool: Tool, entries: Catalogue | None) -> bool:
    return govern([tool], entries)[0].spec.governance.requires_hitl


# --- governing -----------------------------------------------------------------------------------


def test_without_catalogue_the_toolsets_rules_hold() -> None:
    """Without a catalogue code plugins are trusted, and what asks for approval itself gets it."""
    assert not governed(Named("A-b"), None)
    assert governed(Named("A-b", requires_hitl=True), None)


def test_with_catalogue_what_it_does_not_name_needs_approval() -> None:
    """A tool that a configured catalogue does not name is not trusted. covers: HITL-2"""
    entries = catalogue(
        entry("A-b"), entry("A-c", requires_hitl=True, cost="high", data_sensitivity="sensitive")
    )
    assert not governed(Named("A-b"), entries)
    assert governed(Named("A-x"), entries)
    spec = govern([Named("A-c")], entries)[0].spec
    assert spec.governance == Governance(requires_hitl=True, cost="high", data_sensitivity="sensitive")
    assert governed(Named("A-b"), catalogue())


def test_catalogue_decides_over_the_tool_and_over_overrides() -> None:
    """What the catalogue says of a tool it names holds, whatever code or config say."""
    entries = catalogue(entry("A-b"), entry("S-c", requires_hitl=True))
    assert not governed(Named("A-b", requires_hitl=True), entries)
    assert governed(Overridden("S-c", requires_hitl=False), entries)


def test_override_clears_what_the_catalogue_does_not_name() -> None:
    """An MCP server's entry may clear a tool, by saying so of approval; other keys clear nothing."""
    assert governed(Overridden("S-b", cost="low"), catalogue())
    assert not governed(Overridden("S-b", requires_hitl=False), catalogue())


def test_edited_arguments_are_held_against_the_schema_of_a_tool_without_a_check() -> None:
    """A toolset of one's own need not check by itself; those of an MCP server are checked there."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    for kind, is_checked in ((Named, True), (Overridden, False)):
        tool = kind("A-b")
        tool.spec = replace(tool.spec, parameters=schema)
        (found,) = govern([tool], None)
        assert isinstance(found, Checking)
        found.check({"path": "/x"})
        refused = pytest.raises(ToolFailed, match="'path' is a required property")
        with refused if is_checked else nullcontext():
            found.check({"pth": "/x"})


def test_changed_lists_are_governed_again() -> None:
    """A toolset that lists other tools than before has those governed, and only then."""
    listed = Listed("A-b")
    toolset = GovernedToolset(listed, catalogue(entry("A-b")))
    first = toolset.tools()
    assert toolset.tools() is first
    listed.list = (Named("A-b"), Named("A-new"))
    assert [tool.spec.governance.requires_hitl for tool in toolset.tools()] == [False, True]
    assert toolset.find("A-new") is not None
    assert toolset.find("A-nowhere") is None


async def test_governed_tool_calls_the_tool() -> None:
    """Governance changes what a tool needs, not what it does."""
    [tool] = govern([Named("A-b")], catalogue())
    assert await tool.call(Context(), {}) == "A-b"


def test_what_does_not_fit_is_reported() -> None:
    """Entries without a tool and tools without an entry are reported, each in a sentence."""
    tools = [Named("Shell-delete"), Named("Shell-list"), Overridden("S-b", requires_hitl=False)]
    sentences = mismatches(tools, catalogue(entry("Shell-delete"), entry("Shell-lists")))
    assert sentences == [
        "The catalogue names 'Shell-lists', which is not a tool of this agent. Did you mean 'Shell-list'?",
        "The catalogue does not name 'Shell-list': each call to it needs approval.",
        "The catalogue does not name 'S-b', but its server's entry in the config clears it.",
    ]
    assert mismatches(tools, None) == []


# --- the file ------------------------------------------------------------------------------------


def test_whole_catalogue_is_read(tmp_path: Path) -> None:
    """The file in its documented form is read with all its keys."""
    document = {
        "plugins": [
            {
                "plugin_id": "Shell",
                "name": "Shell",
                "description": "Runs commands.",
                "version": 1.0,
                "owner": "system",
                "plugin_type": {"type_name": "code"},
                "tools": [
                    {
                        "tool_id": "Shell-delete",
                        "name": "delete",
                        "description": "Deletes.",
                        "governance": {
                            "requires_hitl": True,
                            "cost": "high",
                            "data_sensitivity": "proprietary",
                        },
                        "auth": {"auth_type": "oauth2", "auth_server": "https://a.example", "scopes": ["x"]},
                    }
                ],
            }
        ]
    }
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps(document))
    [tool] = Catalogue.load(file, {}).entries()
    assert tool.governance.governance() == Governance(
        requires_hitl=True, cost="high", data_sensitivity="proprietary"
    )
    assert tool.auth is not None
    assert tool.auth.scopes == ["x"]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{", r"is not JSON: line 1, column 2"),
        ("[]", r"must be a mapping \(keys and values\), not a list"),
        ('{"plugins": [{"tools": []}]}', r"plugins\[0\]\.plugin_id: is missing"),
        (
            json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("A-b", cost="huge")]}]}),
            r"plugins\[0\]\.tools\[0\]\.governance\.cost: must be 'low', 'medium' or 'high'",
        ),
        (
            json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("A-b", require_hitl=True)]}]}),
            r"governance\.require_hitl: unknown key; did you mean 'requires_hitl'\?$",
        ),
        *(
            (
                json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("A-b", requires_hitl=unclear)]}]}),
                rf"governance\.requires_hitl: must be true or false, not {kind}$",
            )
            for kind, values in {
                "text": ("false", "FALSE", "no", "off", "n", "0", "true", "yes"),
                "a number": (0, 1, 0.0, 1.0),
                "nothing": (None,),
            }.items()
            for unclear in values
        ),
        (
            json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("A-b") | {"auth": MISSPELT}]}]}),
            r"auth\.oauth_client_secret: must be \"\$\{NAME\}\".*auth\.scope: unknown key",
        ),
        (
            json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("A-b") | {"auth": PLAIN}]}]}),
            r"auth\.auth_server: must be https://; plain http is for loopback addresses only",
        ),
        (
            json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("A-b"), entry("A-b")]}]}),
            "names the tool 'A-b' twice",
        ),
        ('{"plugins": [], "plugins": []}', "an object has the key 'plugins' twice"),
    ],
)
def test_flaws_are_reported_with_their_key(tmp_path: Path, text: str, reported: str) -> None:
    """A mistake in the catalogue names the file and the key; a misspelt one lets nothing through."""
    file = tmp_path / "catalogue.json"
    file.write_text(text)
    with pytest.raises(ToolsetError, match=f"(?s)catalogue.json.*{reported}"):
        Catalogue.load(file, {})


def test_missing_catalogue_is_reported(tmp_path: Path) -> None:
    """A catalogue that is configured and not there is an error, not no catalogue."""
    with pytest.raises(ToolsetError, match=r"nowhere\.json cannot be read"):
        Catalogue.load(tmp_path / "nowhere.json", {})


# --- names ---------------------------------------------------------------------------------------


def test_names_do_not_depend_on_the_order() -> None:
    """A name that had to be changed is the same wherever it stands in a listing."""
    functions = ["a b", "a.b", "a_b", "y" * 70, "ü"]
    forwards = dict(zip(functions, tool_names("P", functions), strict=True))
    backwards = dict(zip(functions[::-1], tool_names("P", functions[::-1]), strict=True))
    assert forwards == backwards
    assert len(set(forwards.values())) == 5
    assert forwards["a_b"] == "P-a_b"


# --- opening all ---------------------------------------------------------------------------------


async def test_all_tools_are_opened_governed_and_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Plugins, services, servers and toolsets of others are one list, under one catalogue."""
    (tmp_path / "api.json").write_text(
        json.dumps(
            {
                "openapi": "3.1.0",
                "info": {"title": "t", "version": "1"},
                "paths": {"/x": {"get": {"operationId": "look"}}},
            }
        )
    )
    (tmp_path / "remote.yaml").write_text(
        "remote_plugins:\n  - {plugin_name: Api, openapi_json_path: api.json, server_url: http://127.0.0.1:1}\n"
    )
    (tmp_path / "catalogue.json").write_text(
        json.dumps({"plugins": [{"plugin_id": "P", "tools": [entry("Base-kept"), entry("Nobody-home")]}]})
    )
    other = Listed("Other-tool")
    with caplog.at_level(logging.WARNING):
        sources = Sources(
            plugins=["Base"],
            plugin_module=FIXTURES / "custom_plugins.py",
            remote=["Api"],
            remote_plugin_file=tmp_path / "remote.yaml",
            servers=[
                MCPServerOptions(
                    name="odd",
                    command=sys.executable,
                    args=(str(FIXTURES / "odd_server.py"), str(tmp_path)),
                    trust_level="trusted",
                    tool_governance_overrides={"echo": GovernanceOverride(requires_hitl=False)},
                )
            ],
            catalogue_file=tmp_path / "catalogue.json",
        )
        async with open_toolsets(sources, others=[other]) as toolsets:
            tools = {name: tool for toolset in toolsets for name, tool in by_name(toolset).items()}
            needs = {name: tool.spec.governance.requires_hitl for name, tool in tools.items()}
            assert other.open == 1
            assert len(tools) == 13
            assert needs["Base-kept"] is False
            assert needs["Base-dropped"] is True
            assert needs["Api-look"] is True
            assert needs["Other-tool"] is True
            assert needs["odd-echo"] is False
            assert needs["odd-slow"] is True
            assert await tools["Base-kept"].call(Context(), {}) == "kept"
            assert await tools["odd-echo"].call(Context(), {"a": 1}) == '{"a": 1}'
    assert other.open == 0
    assert "The catalogue names 'Nobody-home', which is not a tool of this agent." in caplog.text
    assert "The catalogue does not name 'Base-dropped': each call to it needs approval." in caplog.text


async def test_nothing_configured_is_nothing_opened() -> None:
    """An agent without tools has none, and needs no file."""
    async with open_toolsets(Sources()) as toolsets:
        assert toolsets == []


async def test_what_opened_is_closed_when_another_does_not() -> None:
    """One toolset that cannot be opened closes those that were, and its reason is reported."""
    good, bad = Listed("A-b"), Listed("B-c", fails=True)
    with pytest.raises(ToolsetError, match="this one cannot be opened"):
        async with open_toolsets(Sources(), others=[good, bad]):
            pass
    assert good.open == 0


async def test_toolsets_are_closed_all_at_once() -> None:
    """A stop takes as long as the slowest does; one that fails to close keeps no other open."""
    closing: set[Listed] = set()

    class Slow(Listed):
        async def __aexit__(self, *exc: object) -> None:
            closing.add(self)
            await eventually(lambda: len(closing) == 2)
            await super().__aexit__(*exc)
            if self.fails_to_close:
                raise OSError("it is stuck")

        fails_to_close = False

    first, second = Slow("A-b"), Slow("B-c")
    first.fails_to_close = True
    with pytest.raises(OSError, match="it is stuck"):
        async with open_toolsets(Sources(), others=[first, second]):
            pass
    assert first.open == second.open == 0


async def test_what_opened_is_closed_when_the_start_is_canceled_after_it_has_failed() -> None:
    """While one toolset still unwinds because another cannot be opened, a caller may give up as well."""
    unwinding = asyncio.Event()

    class Slow(Listed):
        async def __aenter__(self) -> Self:
            try:
                await asyncio.Event().wait()
            finally:
                unwinding.set()
                await asyncio.Event().wait()
            return self

    class Second(Listed):
        async def __aenter__(self) -> Self:
            await eventually(lambda: good.open)
            return await super().__aenter__()

    good = Listed("A-b")

    async def start() -> None:
        async with open_toolsets(Sources(), others=[good, Second("B-c", fails=True), Slow("C-d")]):
            pass

    task = asyncio.create_task(start())
    await unwinding.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert good.open == 0


async def test_what_opened_is_closed_when_the_start_is_canceled() -> None:
    """A start that is given up leaves nothing open."""

    class Slow(Listed):
        async def __aenter__(self) -> Self:
            await asyncio.sleep(30)
            return self

    good = Listed("A-b")

    async def start() -> None:
        async with open_toolsets(Sources(), others=[good, Slow("B-c")]):
            pass

    task = asyncio.create_task(start())
    await eventually(lambda: good.open)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert good.open == 0


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"plugins": ["P"]}, "put custom_plugins.py beside the config file"),
        ({"remote": ["R"]}, "TA_REMOTE_PLUGIN_PATH names no file"),
        ({"toolsets": [("shelf", {})]}, "Unknown toolset 'shelf'. Name one as module:Class."),
        (
            {"toolsets": [("no_such:Shelf", {})]},
            "toolset 'no_such:Shelf' cannot be imported: there is no module",
        ),
        ({"toolsets": [("json:Shelf", {})]}, "toolset 'json:Shelf' does not exist: json has no 'Shelf'"),
        ({"toolsets": [("json:loads", {})]}, "toolset 'json:loads' is not a class"),
        ({"toolsets": [("json:JSONEncoder", {})]}, "'json:JSONEncoder' has no tools, __aenter__, __aexit__"),
        (
            {"toolsets": [(f"{__name__}:Roomed", {"room": 7})]},
            "Roomed' cannot be opened: room: must be text, not a number",
        ),
        (
            {"servers": [MCPServerOptions(name=name, command="x") for name in ("git", "git-hub")]},
            "tools of 'git' and 'git-hub' clash",
        ),
    ],
)
async def test_mistakes_are_reported_at_start(options: Json, reported: str) -> None:
    """What cannot be meant is an error at start that says what to do."""
    with pytest.raises(ToolsetError, match=reported):
        async with open_toolsets(Sources(**options)):
            pass


@pytest.mark.parametrize(
    ("server", "fits"),
    [
        ({"command": "x", "auth_server": "https://login.example", "scopes": ["r"]}, False),
        ({"url": "http://127.0.0.1:1/mcp"}, False),
        ({"url": "http://127.0.0.1:1/mcp", "auth_server": "https://other.example", "scopes": ["r"]}, False),
        ({"url": "http://127.0.0.1:1/mcp", "auth_server": "https://login.example"}, False),
        ({"url": "http://127.0.0.1:1/mcp", "auth_server": "https://login.example", "scopes": ["r"]}, False),
        (
            {
                "url": "http://127.0.0.1:1/mcp",
                "auth_server": "https://login.example/",
                "scopes": ["r"],
                "oauth_client_id": "me",
            },
            True,
        ),
    ],
)
async def test_an_auth_that_an_mcp_server_does_not_ask_for_is_refused(
    tmp_path: Path, server: Json, fits: bool
) -> None:
    """The catalogue cannot have a tool run without the authorization that it names for it."""
    auth: Json = {"auth_type": "oauth2", "auth_server": "https://login.example", "scopes": ["r"]}
    auth["oauth_client_id"] = "me"
    tools = [{"tool_id": "Kitchen-recipe", "governance": {"requires_hitl": False}, "auth": auth}]
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps({"plugins": [{"plugin_id": "Kitchen", "tools": tools}]}))
    sources = Sources(servers=[MCPServerOptions(name="Kitchen", **server)], catalogue_file=file)
    refused = pytest.raises(ToolsetError, match="in the mcp_servers entry 'Kitchen' instead")
    with nullcontext() if fits else refused:
        await tools_at_hand(sources)


async def test_two_tools_of_one_name_are_reported_at_start() -> None:
    """A name is one tool's: the second that claims it fails the start."""
    with pytest.raises(ToolsetError, match="Two tools are called 'A-b'"):
        async with open_toolsets(Sources(), others=[Listed("A-b"), Listed("A-b")]):
            pass


HOLDING = """
import asyncio, sys
import anyio
from contextlib import AsyncExitStack
from tealagents.plugins import Plugin, tool

class {name}(Plugin):
    given = []

    async def __aenter__(self):
        self.stack = AsyncExitStack()
        self.group = await self.stack.enter_async_context({group})
        {start}
        return self

    async def __aexit__(self, *exc):
        self.given.append(exc[1])
        {end}
        await self.stack.aclose()

    @tool
    async def seen(self) -> str:
        "What it was closed with."
        return repr(self.given)
"""
OF_ANYIO = {
    "name": "Holding",
    "group": "anyio.create_task_group()",
    "start": "self.group.start_soon(anyio.sleep_forever)",
    "end": "self.group.cancel_scope.cancel()",
}
OF_ASYNCIO = {"name": "Holding", "group": "asyncio.TaskGroup()", "start": "pass", "end": "pass"}


def plugin_file(tmp_path: Path, *sources: dict[str, str]) -> Sources:
    """Plugins that hold groups of tasks, as clients of servers do."""
    file = tmp_path / "custom_plugins.py"
    file.write_text("".join(HOLDING.format(**source) for source in sources))
    return Sources(plugins=[source["name"] for source in sources], plugin_module=file)


@pytest.mark.parametrize("source", [OF_ANYIO, OF_ASYNCIO], ids=["anyio", "asyncio"])
async def test_a_plugin_is_entered_and_exited_by_one_task(tmp_path: Path, source: dict[str, str]) -> None:
    """A task group that a plugin enters with itself is exited as it must be, whatever ends the agent."""
    sources = plugin_file(tmp_path, source)
    async with open_toolsets(sources) as [toolset]:
        assert await by_name(toolset)["Holding-seen"].call(Context(), {}) == "[]"
    with pytest.raises(LookupError, match="the body"):
        async with open_toolsets(sources) as [toolset]:
            raise LookupError("the body")
    assert await by_name(toolset)["Holding-seen"].call(Context(), {}) == "[LookupError('the body')]"


async def test_a_plugin_learns_that_what_it_is_open_for_was_canceled(tmp_path: Path) -> None:
    """A cancellation reaches the plugin as in one `async with`, and is that of the body still."""
    seen: list[Tool] = []

    async def use() -> None:
        async with open_toolsets(plugin_file(tmp_path, OF_ANYIO)) as [toolset]:
            seen.extend(toolset.tools())
            await asyncio.sleep(30)

    task = asyncio.create_task(use())
    await eventually(lambda: bool(seen))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await seen[0].call(Context(), {}) == "[CancelledError()]"


async def test_a_plugin_whose_background_fails_closes_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged when it happens, and reported at the end; another plugin of the file stays open."""
    failing = OF_ANYIO | {"name": "Failing", "start": "self.group.start_soon(self.fail)"}
    source = "    async def fail(self):\n        raise LookupError('no connection')\n"
    sources = plugin_file(tmp_path, failing, OF_ANYIO)
    file = tmp_path / "custom_plugins.py"
    file.write_text(file.read_text().replace("    given = []\n", f"    given = []\n{source}", 1))
    async with AsyncExitStack() as stack:
        [toolset] = await stack.enter_async_context(open_toolsets(sources))
        await eventually(lambda: "The plugin Failing failed while it was open" in caplog.text)
        assert await by_name(toolset)["Holding-seen"].call(Context(), {}) == "[]"
        with pytest.raises(LookupError, match="no connection"):
            await stack.aclose()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("sys.exit('no database: set DB_URL')", "SystemExit: no database: set DB_URL."),
        ("raise ValueError('no database')", "ValueError: no database."),
        ("raise asyncio.CancelledError", "CancelledError."),
    ],
)
async def test_a_plugin_that_cannot_be_opened_says_where_and_why(
    tmp_path: Path, start: str, said: str
) -> None:
    """Its name, file and line, and the text of what it raised; it stops neither the loop nor the process."""
    with pytest.raises(ToolsetError) as refused:
        async with open_toolsets(plugin_file(tmp_path, OF_ASYNCIO | {"start": start})):
            pass
    assert str(refused.value) == f"The plugin Holding cannot be opened: custom_plugins.py, line 13: {said}"


PASSING_ON = {"end": "await self.stack.__aexit__(*exc)"}


@pytest.mark.parametrize("group", ["anyio.create_task_group()", "asyncio.TaskGroup()"])
async def test_a_plugin_that_passes_an_error_to_its_group_does_not_hide_it(
    tmp_path: Path, group: str
) -> None:
    """Neither why another plugin cannot be opened, nor what ends the agent."""
    holding = OF_ASYNCIO | PASSING_ON | {"group": group}
    broken = OF_ASYNCIO | {"name": "Broken", "start": "raise ValueError('no database')"}
    with pytest.raises(ToolsetError, match=r"plugin Broken cannot be opened: .* ValueError: no database\."):
        async with open_toolsets(plugin_file(tmp_path, holding, broken)):
            pass
    with pytest.raises(LookupError, match="the body"):
        async with open_toolsets(plugin_file(tmp_path, holding)):
            raise LookupError("the body")


async def test_a_plugin_that_cannot_be_opened_says_what_failed_in_its_group(tmp_path: Path) -> None:
    """Not that something in a group did."""
    failing = OF_ASYNCIO | {"start": "raise ExceptionGroup('a group', [ValueError('no database')])"}
    with pytest.raises(ToolsetError, match=r"be opened: custom_plugins\.py.*: ValueError: no database"):
        async with open_toolsets(plugin_file(tmp_path, failing)):
            pass


async def test_a_plugin_that_ends_the_process_as_it_closes_is_an_error(tmp_path: Path) -> None:
    """`sys.exit` there is a failure like any other."""
    with pytest.raises(ToolsetError, match=r"The plugin Holding failed to close: .* SystemExit: 3"):
        async with open_toolsets(plugin_file(tmp_path, OF_ASYNCIO | {"end": "sys.exit(3)"})):
            pass


class Raising(Listed):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    async def __aenter__(self) -> Self:
        if self.where == "enter":
            raise SystemExit("no key: set SHELF_KEY")
        return await super().__aenter__()

    def tools(self) -> Sequence[Tool]:
        raise LookupError("no shelf")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            "enter",
            r"toolset Raising cannot be opened: test_tools_catalogue\.py, line \d+: SystemExit: no key",
        ),
        ("tools", r"Raising\.tools\(\) failed: test_tools_catalogue\.py, line \d+: LookupError: no shelf"),
    ],
)
async def test_a_toolset_that_cannot_be_opened_says_where_and_why(where: str, said: str) -> None:
    """Its class, file and line, and the text of what it raised."""
    toolset = Raising(where)
    with pytest.raises(ToolsetError, match=said):
        async with open_toolsets(Sources(), others=[toolset]):
            pass
    assert toolset.open == 0


class Wrong(Listed):
    """Lists what it is made with."""

    def __init__(self, listed: Any) -> None:
        super().__init__()
        self.list = listed


class Async(Listed):
    async def tools(self) -> Sequence[Tool]:  # type: ignore[override]
        return []


#: whether its tool needs approval is not to be guessed
UNCLEAR = Governance(requires_hitl=0)  # type: ignore[arg-type]


def named(**wrong: Any) -> Named:
    tool = Named("A-b")
    tool.spec = replace(tool.spec, **wrong)
    return tool


@pytest.mark.parametrize(
    ("toolset", "why"),
    [
        (
            Wrong([named(name="Regal-schön")]),
            "Wrong has a tool 'Regal-schön', which cannot be sent to a model",
        ),
        (Wrong([named(parameters="x")]), r"'A-b' in the toolset Wrong is wrong: .* at `\$\.parameters`"),
        (Wrong([named(name=5)]), r"is wrong: .* at `\$\.name`"),
        (
            Wrong([named(description="\ud800")]),
            r"'A-b' in the toolset Wrong is .* at `\$\.description`",
        ),
        (Wrong([named(parameters={"default": object()})]), r"is wrong: .* at `\$\.parameters`"),
        (Wrong([named(parameters={"\ud800": 1})]), r"is wrong: .* at `\$\.parameters`"),
        *(
            (Wrong([named(parameters={"default": [value]})]), r"is wrong: .* at `\$\.parameters`")
            for value in ({1}, Decimal(1), b"x", {1: 2}, float("nan"), date(2026, 1, 1), 10**400)
        ),
        (
            Wrong([named(parameters={"type": "string"})]),
            r"is wrong: .* type 'object', got 'string' .* at `\$\.parameters`",
        ),
        (Wrong([named(governance=UNCLEAR)]), r"is wrong: .* at `\$\.governance\.requires_hitl`"),
        (Wrong([object()]), "a tool without a ToolSpec or a call: object"),
        (Wrong(None), r"Wrong.tools\(\) returns a NoneType"),
        (Async(), r"Async.tools\(\) returns a coroutine: it must not be async"),
    ],
)
async def test_tools_that_no_model_could_be_sent_are_refused_at_start(toolset: Listed, why: str) -> None:
    """Those of a third party's toolset, too: the model service would refuse each request."""
    with pytest.raises(ToolsetError, match=why):
        async with open_toolsets(Sources(), others=[toolset]):
            pass


class Handled(ToolSpec, frozen=True, kw_only=True):
    """Says besides how its toolset serves it."""

    handler: Any


async def test_a_spec_may_have_fields_of_its_own() -> None:
    """They are the toolset's affair, whatever they hold: no model is sent them."""
    tool = Named("A-b")
    tool.spec = Handled(**asdict(tool.spec), handler=print)
    async with open_toolsets(Sources(), others=[Wrong([tool])]) as [toolset]:
        assert [each.spec.name for each in toolset.tools()] == ["A-b"]


async def test_missing_package_for_servers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the error for an agent with MCP servers says what to install."""
    monkeypatch.delitem(sys.modules, "tealagents.tools.mcp", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(ToolsetError, match=r"pip install 'tealagents\[mcp\]'"):
        async with open_toolsets(Sources(servers=[MCPServerOptions(name="a", command="x")])):
            pass
