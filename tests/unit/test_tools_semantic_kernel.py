"""Plugins written for the earlier framework, with a stand-in for the package they import."""

import sys
from collections.abc import Iterator

import pytest
from tools_setup import FIXTURES, Context, by_name

from tealagents.domain.errors import ToolFailed
from tealagents.domain.ports import Tool
from tealagents.tools.code import load_plugins
from tealagents.tools.errors import ToolsetError

FOLDER = FIXTURES / "earlier"
FILE = FOLDER / "custom_plugins.py"


@pytest.fixture
def _semantic_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FOLDER / "packages")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "semantic_kernel"]:
        del sys.modules[name]


def tools(*names: str) -> dict[str, Tool]:
    return by_name(load_plugins(FILE, names))


@pytest.mark.usefixtures("_semantic_kernel")
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


@pytest.mark.usefixtures("_semantic_kernel")
async def test_parameters_for_the_framework_are_hidden() -> None:
    """What the framework filled in, or kept from the model, is left to its default."""
    tool = tools("WeatherPlugin")["WeatherPlugin-warn"]
    assert tool.spec.parameters["properties"] == {"text": {"type": "string", "description": "what to say"}}
    assert await tool.call(Context(), {"text": "storm"}) == "storm on default for None"
    with pytest.raises(ToolFailed, match="channel: there is no such argument"):
        await tool.call(Context(), {"text": "storm", "channel": "all"})


@pytest.mark.usefixtures("_semantic_kernel")
async def test_declared_scopes_give_a_delegated_token() -> None:
    """A class that declares scopes is given a token to act for the user in place of the header."""
    tool = tools("DelegatingPlugin")["DelegatingPlugin-authorization_header"]
    assert await tool.call(Context(), {}) == "Bearer token-of-alice-for-mail.send"


@pytest.mark.usefixtures("_semantic_kernel")
async def test_class_without_base_works() -> None:
    """A plain class with kernel functions and no constructor is a plugin as well."""
    assert await tools("PlainPlugin")["PlainPlugin-greet"].call(Context(), {}) == "hello"


@pytest.mark.usefixtures("_semantic_kernel")
def test_what_cannot_be_called_is_told_at_start() -> None:
    """A function that needs the kernel, or a class with another constructor, is refused with the reason."""
    with pytest.raises(
        ToolsetError, match=r"NeedsKernel\.think: 'kernel' is not for the model and has no default"
    ):
        tools("NeedsKernel")
    with pytest.raises(ToolsetError, match="OddConstructor: the constructor has to take"):
        tools("OddConstructor")


@pytest.mark.usefixtures("_semantic_kernel")
def test_stand_ins_do_not_stay() -> None:
    """The earlier framework's modules can be imported only while a plugin file is."""
    tools("PlainPlugin")
    assert not [name for name in sys.modules if name.startswith("sk_agents")]


def test_missing_package_is_told() -> None:
    """Without the package the error says what to install, and the other way out."""
    with pytest.raises(ToolsetError, match="pip install semantic-kernel, or derive them"):
        tools("WeatherPlugin")
