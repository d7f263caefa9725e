"""Plugins written for the earlier platform, with stand-ins for the packages they import."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tools_setup import FIXTURES, Context, by_name

from tealagents.domain.errors import ToolFailed
from tealagents.domain.ports import Tool
from tealagents.tools import Sources
from tealagents.tools.code import load_plugins
from tealagents.tools.errors import ToolsetError
from tealagents.tools.options import MCPServerOptions
from tealagents.tools.signature import Signature

FOLDER = FIXTURES / "earlier"
FILE = FOLDER / "custom_plugins.py"


def tools(*names: str) -> dict[str, Tool]:
    return by_name(load_plugins(FILE, names))


async def test_kernel_functions_are_tools() -> None:
    """Kernel functions are called with the caller's header and a collector of extra data."""
    loaded = tools("WeatherPlugin")
    assert set(loaded) == {"WeatherPlugin-forecast", "WeatherPlugin-warn"}
    spec = loaded["WeatherPlugin-forecast"].spec
    assert spec.description == "Get the forecast for a city."
    assert spec.parameters["properties"] == {
        "city": {"type": "string", "description": "the city's name"},
        "days": {"type": "integer", "default": 2},
    }
    context = Context(headers={"Authorization": "Bearer mine"})
    answer = await loaded["WeatherPlugin-forecast"].call(context, {"city": "Rome"})
    assert answer == '{"city":"Rome","degrees":[3.5,3.5]}'
    assert context.extra == {"asked by": "Bearer mine"}


async def test_parameters_for_the_framework_are_hidden() -> None:
    """What the framework filled in, or kept from the model, is left to its default."""
    tool = tools("WeatherPlugin")["WeatherPlugin-warn"]
    assert tool.spec.parameters["properties"] == {"text": {"type": "string", "description": "what to say"}}
    assert await tool.call(Context(), {"text": "storm"}) == "storm on default for None"
    with pytest.raises(ToolFailed, match="channel: there is no such argument"):
        await tool.call(Context(), {"text": "storm", "channel": "all"})


def test_a_parameter_without_a_type_is_the_models_whatever_its_name() -> None:
    """The earlier platform knew no context."""

    summarize = lambda context, length=3: context[:length]  # noqa: E731
    shown = Signature(summarize, "P.summarize", lenient=True).schema["properties"]
    assert list(shown) == ["context", "length"]


async def test_types_without_a_schema_stop_no_plugin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A parameter with a default keeps it, and the model sends any value for another. The function `any` is
    meant as the type, and a TypedDict is described on each version of Python."""
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        "import logging\n"
        "from typing import Callable, Dict, List, Optional, TypedDict\n"
        "from semantic_kernel.functions import kernel_function\n\n"
        "class Client: ...\n\n"
        "class Filter(TypedDict, total=False):\n"
        "    city: str\n\n"
        "class Broken(TypedDict):\n"
        "    key: 'Nowhere'\n\n"
        "class Search:\n"
        "    @kernel_function\n"
        "    def left(self, text: str, client: Optional[Client] = None, call: Callable = print,\n"
        "             *, log: logging.Logger = logging.getLogger('x'), odd: logging = None) -> str:\n"
        "        return f'{text} {client} {call.__name__} {log.name} {odd}'\n"
        "    @kernel_function\n"
        "    def taken(self, a: any, b: Dict[str, any], c: 'list[list[any] | None]', d: any = None):\n"
        "        return [a, b, c, d]\n"
        "    @kernel_function\n"
        "    def typed(self, one: Filter, more: List[Filter], last: Optional[Filter] = None):\n"
        "        return [one, more, last]\n"
        "    @kernel_function\n"
        "    def unknown(self, client: Client, broken: Broken):\n"
        "        return [client, broken]\n"
    )
    left, taken, typed, unknown = load_plugins(file, ["Search"]).tools()
    assert list(left.spec.parameters["properties"]) == ["text"]
    assert await left.call(Context(), {"text": "hi"}) == "hi None print x None"
    with pytest.raises(ToolFailed, match="client: there is no such argument"):
        await left.call(Context(), {"text": "hi", "client": {}})
    given: dict[str, Any] = {"a": 1, "b": {"a": "b"}, "c": [None, [{}]], "d": "e"}
    assert json.loads(await taken.call(Context(), given)) == list(given.values())
    with pytest.raises(ToolFailed, match="b: Input should be a valid dictionary"):
        await taken.call(Context(), {**given, "b": 1})
    given = {"one": {"city": "Rome"}, "more": [{}], "last": None}
    assert json.loads(await typed.call(Context(), given)) == list(given.values())
    assert "city" in str(typed.spec.parameters)
    given = {"client": {"a": 1}, "broken": "b"}
    assert "Search.unknown: the type of 'client' has no JSON schema, so it takes any value" in caplog.text
    assert json.loads(await unknown.call(Context(), given)) == list(given.values())


async def test_what_a_generator_yields_is_the_result(tmp_path: Path) -> None:
    """Its items are collected into a list where it runs, also if a function that is none returns it."""
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        "import asyncio\n"
        "import threading\n"
        "from semantic_kernel.functions import kernel_function\n\n"
        "class Rows:\n"
        "    @kernel_function\n"
        "    def rows(self, n: int):\n"
        "        yield threading.current_thread() is threading.main_thread()\n"
        "        yield from range(n)\n"
        "    @kernel_function\n"
        "    async def slow(self, n: int):\n"
        "        yield await asyncio.sleep(0, threading.current_thread() is threading.main_thread())\n"
        "        for each in range(n):\n"
        "            yield each\n"
        "    @kernel_function\n"
        "    def made(self, n: int):\n"
        "        return self.slow(n)\n"
    )
    rows, *others = load_plugins(file, ["Rows"]).tools()
    assert await rows.call(Context(), {"n": 2}) == "[false,0,1]"
    for tool in others:
        assert await tool.call(Context(), {"n": 2}) == "[true,0,1]"


def test_a_function_that_makes_a_plugin_is_named(tmp_path: Path) -> None:
    """What to write instead is said: without a class, the tools are not known at start."""
    file = tmp_path / "custom_plugins.py"
    file.write_text("def Made(authorization, extra_data_collector): ...\n")
    with pytest.raises(ToolsetError, match=r"Made is not a class\. .*takes \(authorization, extra_data_col"):
        load_plugins(file, ["Made"])


async def test_a_number_is_taken_for_a_text() -> None:
    """Models send the digits of a code as a number; an id that may be either stays one."""
    lookup = lambda code, either=0, codes=(): (code, either, codes)  # noqa: E731
    lookup.__annotations__ = {"code": str, "either": int | str, "codes": list[str]}
    given = {"code": 7, "either": 8, "codes": ["a", 9]}
    taken = {"code": "7", "either": 8, "codes": ["a", "9"]}
    assert Signature(lookup, "P.lookup", lenient=True).check(given) == taken
    with pytest.raises(ToolFailed, match="code: Input should be a valid string"):
        Signature(lookup, "P.lookup").check(given)


async def test_declared_scopes_give_a_delegated_token() -> None:
    """A class that declares scopes is given a token to act for the user in place of the header."""
    tool = tools("DelegatingPlugin")["DelegatingPlugin-authorization_header"]
    assert await tool.call(Context(), {}) == "Bearer token-of-alice-for-mail.send"


async def test_class_without_base_works() -> None:
    """A plain class with kernel functions and no constructor is a plugin as well."""
    assert await tools("PlainPlugin")["PlainPlugin-greet"].call(Context(), {}) == "hello"


async def test_functions_without_an_instance_work() -> None:
    """Static and class methods are tools, whichever decorator comes first."""
    loaded = tools("Sums")
    assert list(loaded) == ["Sums-inc", "Sums-dec", "Sums-kind"]
    assert loaded["Sums-dec"].spec.description == "Take one away."
    assert loaded["Sums-dec"].spec.parameters["properties"]["x"]["description"] == "a number"
    assert await loaded["Sums-inc"].call(Context(), {"x": 1}) == "2"
    assert await loaded["Sums-dec"].call(Context(), {"x": 1}) == "0"
    assert await loaded["Sums-kind"].call(Context(), {}) == "Sums"


async def test_a_constructor_is_given_what_it_names() -> None:
    """The authorization alone or the collector alone, where it does not take both."""
    context = Context(headers={"Authorization": "Bearer mine"})
    assert await tools("AuthorizedPlugin")["AuthorizedPlugin-header"].call(context, {}) == "Bearer mine"
    assert await tools("CollectingPlugin")["CollectingPlugin-collect"].call(context, {}) == "2 of 2"
    assert context.extra == {"degrees": 7, "station": "Blindern"}


async def test_an_async_function_finds_its_instance_made_on_the_event_loop(tmp_path: Path) -> None:
    """A constructor may open a client that belongs to the loop. Beside it, functions that are not async have
    theirs made in the thread where they run, as both may block."""
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        "import asyncio\n"
        "import threading\n"
        "from semantic_kernel.functions import kernel_function\n\n"
        "class Client:\n"
        "    def __init__(self):\n"
        "        self.made_in = threading.current_thread()\n"
        "        if self.made_in is threading.main_thread():\n"
        "            self.answer = asyncio.ensure_future(asyncio.sleep(0, 'pong'))\n"
        "    @kernel_function\n"
        "    async def ping(self) -> str:\n"
        "        return await self.answer\n"
        "    @kernel_function\n"
        "    def block(self) -> bool:\n"
        "        return self.made_in is threading.current_thread() is not threading.main_thread()\n"
    )
    ping, block = load_plugins(file, ["Client"]).tools()
    assert await ping.call(Context(), {}) == "pong"
    assert await block.call(Context(), {}) == "true"


async def test_a_wrapper_that_is_not_async_may_run_an_event_loop_of_its_own(tmp_path: Path) -> None:
    """Whatever it wraps, it runs in a thread."""
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        "import asyncio\n"
        "import functools\n"
        "from semantic_kernel.functions import kernel_function\n\n"
        "def blocking(function):\n"
        "    @functools.wraps(function)\n"
        "    def run(*given, **named):\n"
        "        return asyncio.run(function(*given, **named))\n"
        "    return run\n\n"
        "class Client:\n"
        "    @kernel_function\n"
        "    @blocking\n"
        "    async def ping(self) -> str:\n"
        "        return 'pong'\n"
    )
    [ping] = load_plugins(file, ["Client"]).tools()
    assert await ping.call(Context(), {}) == "pong"


async def test_a_constructor_on_the_event_loop_does_not_end_the_process(tmp_path: Path) -> None:
    """It is a part of the call, as it is in a thread."""
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        "import sys\n"
        "from semantic_kernel.functions import kernel_function\n\n"
        "class Ending:\n"
        "    def __init__(self):\n"
        "        sys.exit(1)\n"
        "    @kernel_function\n"
        "    async def ping(self) -> str:\n"
        "        return 'pong'\n"
    )
    [ping] = load_plugins(file, ["Ending"]).tools()
    with pytest.raises(ToolFailed, match="SystemExit"):
        await ping.call(Context(), {})


def test_what_cannot_be_called_is_reported_at_start() -> None:
    """A function that needs the kernel, or a class with another constructor, is refused with the reason."""
    with pytest.raises(
        ToolsetError, match=r"NeedsKernel\.think: 'kernel' is not for the model and has no default"
    ):
        tools("NeedsKernel")
    with pytest.raises(ToolsetError, match="OddConstructor: the constructor has to take"):
        tools("OddConstructor")


@pytest.mark.parametrize("module", ["semantic_kernel.functions", "semantic_kernel"])
async def test_every_form_of_import_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Of a module by its whole name, of the package alone, and inside a function that is called later."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "semantic_kernel"]:
        monkeypatch.delitem(sys.modules, name)
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        f"import {module}\n"
        "import sk_agents.ska_types\n\n"
        "class Late(sk_agents.ska_types.BasePlugin):\n"
        "    @semantic_kernel.functions.kernel_function\n"
        "    def usage(self) -> str:\n"
        "        from sk_agents.ska_types import TokenUsage\n"
        "        return TokenUsage.__name__\n"
    )
    [usage] = load_plugins(file, ["Late"]).tools()
    assert await usage.call(Context(), {}) == "AnswerUsage"


def test_a_package_that_is_installed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its modules is stood in for, not even one that it lacks."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sk_agents"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    package = tmp_path / "sk_agents"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True")
    file = tmp_path / "custom_plugins.py"
    file.write_text("from sk_agents import REAL\nimport sk_agents.ska_types\n")
    with pytest.raises(ToolsetError, match=r"imports sk_agents\.ska_types of the earlier"):
        load_plugins(file, ["Any"])
    file.write_text("from sk_agents import IMAGINED")
    with pytest.raises(ToolsetError, match=r"line 1: .* cannot import name 'IMAGINED' from 'sk_agents'"):
        load_plugins(file, ["Any"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "sk_agents"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("from semantic_kernel.connectors.ai import something", "semantic_kernel.connectors"),
        ("from semantic_kernel.functions import KernelPlugin", "semantic_kernel.functions.KernelPlugin"),
        ("from semantic_kernel import connectors", "semantic_kernel.connectors"),
    ],
)
def test_a_module_that_is_not_stood_in_for_is_named(tmp_path: Path, statement: str, missing: str) -> None:
    """If a file needs more of the framework than its mark, the error says what is missing and what to do."""
    file = tmp_path / "custom_plugins.py"
    file.write_text(f"{statement}\n")
    with pytest.raises(ToolsetError, match=rf"imports {re.escape(missing)} of the earlier.*mcp"):
        load_plugins(file, ["Any"])


def test_an_mcp_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package may have brought an older one along: an error that says so, and no traceback."""
    import_module("mcp")  # what it imports of its own is there; only what we want of it is not
    older = ModuleType("mcp.client")
    monkeypatch.setitem(sys.modules, "mcp.client", older)
    for name in [name for name in sys.modules if name.startswith("tealagents.tools.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    sources = Sources(servers=[MCPServerOptions(name="a", command="x")])
    with pytest.raises(ToolsetError, match=r"MCP servers need mcp 2.* is installed.*semantic-kernel"):
        sources.mcp()
