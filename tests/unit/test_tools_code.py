"""Code plugins: what is found in a file, what the model sees of it, and what it gets back."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any

import pytest
from engine_setup import Scripted
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_serializer,
)
from tools_setup import FIXTURES, Context, by_name

from tealagents.domain.errors import NeedsAuthorization, NeedsOwner, ToolFailed
from tealagents.domain.models import ToolCall
from tealagents.domain.ports import Tool
from tealagents.domain.texts import LIMIT
from tealagents.engine.toolbox import Toolbox, ToolOutput
from tealagents.testing.waits import eventually
from tealagents.tools.code import load_plugins
from tealagents.tools.errors import ToolsetError
from tealagents.tools.methods import run_method
from tealagents.tools.results import to_text
from tealagents.tools.signature import Signature
from tealagents.tools.thread_pool import ThreadPool

FILE = FIXTURES / "custom_plugins.py"


@pytest.fixture(scope="module")
def shapes() -> dict[str, Tool]:
    return by_name(load_plugins(FILE, ["Shapes"]))


async def call(
    tools: Mapping[str, Tool], name: str, context: Context | None = None, /, **arguments: Any
) -> str:
    return await tools[name].call(context or Context(), arguments)


def loaded(tmp_path: Path, source: str, *names: str) -> dict[str, Tool]:
    file = tmp_path / "custom_plugins.py"
    file.write_text("from tealagents.plugins import Plugin, ToolContext, tool\n" + source)
    return by_name(load_plugins(file, names or ["P"]))


def refusal(tmp_path: Path, source: str, *names: str) -> str:
    with pytest.raises(ToolsetError) as refused:
        loaded(tmp_path, source, *names)
    return str(refused.value)


# --- results -------------------------------------------------------------------------------------


async def test_async_and_sync_tools_answer_alike(shapes: Mapping[str, Tool]) -> None:
    """A tool is awaited if it is async and runs in a thread if it is not; both may be static."""
    assert await call(shapes, "Shapes-is_async", text="hi") == "hi"
    assert await call(shapes, "Shapes-is_sync", text="hi") == "hi in a thread"
    assert await call(shapes, "Shapes-static", text="hi") == "hi"
    assert await call(shapes, "Shapes-late") == "later"


async def test_an_async_tool_may_return_what_another_function_awaits(tmp_path: Path) -> None:
    """As a tool that is not async may: without it, the model is sent the text of a coroutine object."""
    helper = "async def helper(): return 'found'\n"
    for kind in ("async def", "def"):
        tool = f"class P(Plugin):\n    @tool\n    {kind} f(self):\n        'x'\n        return helper()\n"
        assert await call(loaded(tmp_path, helper + tool), "P-f") == "found"


async def test_models_and_containers_become_json(shapes: Mapping[str, Tool]) -> None:
    """Pydantic models, data classes, enums and containers are returned as JSON, in plain characters."""
    answer = json.loads(
        await call(shapes, "Shapes-models", person={"name": "Ann", "home": {"street": "A 1"}})
    )
    assert answer == {
        "name": "Ann",
        "home": {"street": "A 1", "city": "Berlin"},
        "friends": [{"name": "Zoë", "home": None, "friends": []}],
    }
    assert await call(shapes, "Shapes-unicode", text="日本") == '{"größe":"日本","back":"本日"}'


async def test_bytes_are_text_where_they_can_be(shapes: Mapping[str, Tool]) -> None:
    """UTF-8 is returned as text; what is not text is described, with its size and its base64."""
    assert await call(shapes, "Shapes-data", text="grün") == "grün"
    described = json.loads(await call(shapes, "Shapes-data", text="x", binary=True))
    assert described == {"media_type": "application/octet-stream", "size_bytes": 4, "base64": "//4AeA=="}


async def test_huge_text_is_whole_up_to_a_bound(shapes: Mapping[str, Tool]) -> None:
    """A result up to the bound is passed whole; a longer one is cut and says how much is missing."""
    assert len(await call(shapes, "Shapes-huge", characters=LIMIT)) == LIMIT
    cut = await call(shapes, "Shapes-huge", characters=LIMIT + 5)
    assert cut.endswith("x\n[Cut here: 200,000 of 200,005 characters are shown.]")


async def test_text_that_cannot_be_stored_is_made_storable(shapes: Mapping[str, Tool]) -> None:
    """Pairs of surrogates become the character they mean; lone ones and NUL the replacement character."""
    assert await call(shapes, "Shapes-surrogates") == "a😀b�c�d"


@dataclass
class Listing:
    """What a tool may return."""

    names: tuple[str, ...]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["caf\udce9", 1.5, float("inf"), b"\xff"], '["caf�",1.5,"Infinity","_w=="]'),
        ({"caf\udce9": {1: "\ud83d\ude00\0"}}, '{"caf�":{"1":"😀�"}}'),
        (Path("caf\udce9.txt"), "caf�.txt"),
        ([Path("caf\udce9.txt")], '["caf�.txt"]'),
        (Listing(("caf\udce9",)), '{"names":["caf�"]}'),
    ],
)
def test_json_of_what_cannot_be_stored_is_made_storable(value: object, text: str) -> None:
    """The name of a file that is not UTF-8: a folder with one can be listed."""
    assert to_text(value) == text


class Reading(BaseModel):
    """What a tool may return, as pydantic writes it."""

    data: bytes = Field(alias="raw")
    value: float = 0


class Exact(Reading):
    model_config = ConfigDict(ser_json_bytes="base64", ser_json_inf_nan="strings")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Reading(raw=b"caf\xc3\xa9", value=float("nan")), '{"raw":"café","value":null}'),
        ({"caf\udce9": Exact(raw=b"caf\xe9")}, '{"caf�":{"raw":"Y2Fm6Q==","value":0.0}}'),
        (Exact(raw=b"caf\xe9", value=float("-inf")), '{"raw":"Y2Fm6Q==","value":"-Infinity"}'),
        ({"raw": b"caf\xe9", "value": float("nan")}, '{"raw":"Y2Fm6Q==","value":"NaN"}'),
    ],
)
def test_bytes_and_odd_numbers_of_a_model_are_written_as_its_config_says(value: object, text: str) -> None:
    assert to_text(value) == text


class Account(BaseModel):
    """Shows less of itself in JSON."""

    data: bytes
    token: str = "hush"

    @field_serializer("token", when_used="json")
    def redacted(self, _: str) -> str:
        return "***"


@dataclass
class Found:
    account: Account


@pytest.mark.parametrize("nested", [lambda it: it, lambda it: {"caf\udce9": [it]}, Found])
def test_bytes_of_a_model_that_are_no_text_are_a_failure_that_says_what_to_do(
    nested: Callable[[Account], object],
) -> None:
    """Nothing is shown that the model leaves out or replaces in JSON."""
    with pytest.raises(ToolFailed, match="bytes that are not UTF-8; set ser_json_bytes='base64'") as failed:
        to_text(nested(Account(data=b"caf\xe9")))
    assert "hush" not in str(failed.value)
    assert to_text(nested(Account(data=b"x"))).count('"token":"***"') == 1


class Nameless:
    """Says nothing of itself."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (PureWindowsPath(r"C:\new\table"), r"C:\new\table"),
        (PurePosixPath('/data/5" disk'), '/data/5" disk'),
        (Nameless(), "<test_tools_code.Nameless object>"),
    ],
)
def test_a_value_without_json_is_its_text(value: object, text: str) -> None:
    """Plainly, whatever is in a path, and without the address that is another in each process."""
    assert to_text(value) == text


def test_a_result_that_has_no_json_is_a_failure() -> None:
    """Also beside a lone surrogate. A generator has been read by then, and is not taken for an empty one."""
    circular: list[object] = ["caf\udce9"]
    circular.append(circular)
    for value in (circular, {"names": (name for name in ["caf\udce9"])}):
        with pytest.raises(ToolFailed, match="its result cannot be shown"):
            to_text(value)


async def test_nothing_is_said_in_words(shapes: Mapping[str, Tool]) -> None:
    """A tool that promises nothing is done; one that may find nothing found null."""
    assert await call(shapes, "Shapes-nothing") == "Done. The tool has no output."
    assert await call(shapes, "Shapes-perhaps", there=False) == "null"
    assert await call(shapes, "Shapes-perhaps", there=True) == "here"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("date", "2024-02-29"),
        ("datetime", "2024-02-29T12:00:00Z"),
        ("decimal", "1.10"),
        ("uuid", "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"),
        ("path", "/data/x"),
        ("enum", "blue"),
        ("bool", "true"),
        ("float", "Infinity"),
        ("set", "[1]"),
        ("tuple", '[1,"a",null]'),
        ("point", '{"x":1,"y":2}'),
        ("object", "as text"),
    ],
)
async def test_single_values_read_plainly(shapes: Mapping[str, Tool], kind: str, text: str) -> None:
    """Dates, numbers, enums and the like are returned as a person would write them."""
    assert await call(shapes, "Shapes-scalars", kind=kind) == text


async def test_result_without_an_end_is_reported(shapes: Mapping[str, Tool]) -> None:
    """A result that contains itself is reported as such, and that the tool has run."""
    with pytest.raises(ToolFailed, match="The tool ran, but its result cannot be shown"):
        await call(shapes, "Shapes-circular")


# --- arguments -----------------------------------------------------------------------------------


async def test_arguments_arrive_as_the_types_of_the_hints(shapes: Mapping[str, Tool]) -> None:
    """Nested lists, dictionaries of data classes and unions arrive as what they are declared to be."""
    assert await call(shapes, "Shapes-nested", table=[[1, 2], [3]], index={"a": [{"x": 4, "y": 0}]}) == "10"
    assert await call(shapes, "Shapes-unions", value=["a"]) == "list None"
    assert await call(shapes, "Shapes-unions", value={"street": "x"}, maybe=3) == "Address 3"
    assert await call(shapes, "Shapes-unions", value=5, maybe=None) == "int None"


async def test_defaults_are_the_functions_own(tmp_path: Path) -> None:
    """What the model leaves out is left to the function; what it gives is not kept for the next call."""
    tools = by_name(load_plugins(FILE, ["Shapes"]))
    first = json.loads(await call(tools, "Shapes-defaults", names=["mine"], colour="blue", note=None))
    assert first == {"limit": 10, "names": ["mine", "seen"], "colour": "blue", "note": None}
    second = json.loads(await call(tools, "Shapes-defaults", names=[]))
    assert second["names"] == ["seen"]


async def test_wrong_arguments_are_reported_in_words(shapes: Mapping[str, Tool]) -> None:
    """Each argument that is missing, wrong or unknown is named with the reason, and nothing is done."""
    with pytest.raises(ToolFailed) as raised:
        await call(shapes, "Shapes-models", persn={"name": "x"})
    assert str(raised.value).splitlines() == [
        "The arguments are not valid, nothing was done:",
        "- person: missing",
        "- persn: there is no such argument; the tool takes person. Did you mean 'person'?",
    ]
    with pytest.raises(ToolFailed, match=r"- person\.friends\.0\.name: missing"):
        await call(shapes, "Shapes-models", person={"name": "x", "friends": [{}]})
    with pytest.raises(ToolFailed, match=r"- colour: Input should be 'red' or 'blue' \(given: 'green'\)"):
        await call(shapes, "Shapes-defaults", colour="green")


def test_a_default_of_none_means_that_null_is_taken() -> None:
    """Also in a `Field`, as people write it: models send null for an option that they do not use."""

    def tool(limit: int = Field(None, ge=1)) -> None: ...  # type: ignore[assignment]

    signature = Signature(tool, "tool")
    shown = signature.schema["properties"]["limit"]
    assert shown == {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}
    assert signature.check({"limit": None}) == signature.check({}) == {"limit": None}
    with pytest.raises(ToolFailed, match="- limit: Input should be greater than or equal to 1"):
        signature.check({"limit": 0})


def test_an_argument_is_called_what_the_model_was_shown() -> None:
    """Also where a `Field` gives a parameter another name: the model does not know that of the function."""

    def tool(limit: int = Field(10, alias="max-results")) -> None: ...

    signature = Signature(tool, "tool")
    assert signature.check({"max-results": 3}) == {"limit": 3}
    with pytest.raises(ToolFailed) as raised:
        signature.check({"limit": 3, "max_results": 4})
    assert str(raised.value).splitlines()[1:] == [
        "- limit: there is no such argument; the tool takes max-results.",
        "- max_results: there is no such argument; the tool takes max-results. Did you mean 'max-results'?",
    ]


@pytest.mark.parametrize(
    "hint",
    [Iterable[int], Iterable[int] | None, Annotated[Iterable[Annotated[int, Field(ge=0)]], "which"]],
)
def test_an_iterable_is_checked_before_the_call(hint: Any) -> None:
    """As a list, which it arrives as: nothing is done for a call that is wrong in its last item."""

    def tool(ids: Any) -> None: ...

    tool.__annotations__["ids"] = hint
    signature = Signature(tool, "tool")
    assert signature.check({"ids": ["1", 2]}) == {"ids": [1, 2]}
    with pytest.raises(ToolFailed, match=r"- ids\.1: .* valid integer"):
        signature.check({"ids": [1, "x"]})


def test_a_default_may_say_what_a_schema_could() -> None:
    """It is a value of the plugin's, and no part of how its arguments are checked."""
    default = {"type": "generator"}

    def tool(source: dict[str, str] = default) -> None: ...

    given = {"source": {"type": "file"}}
    assert Signature(tool, "tool").check(given) == given


async def test_many_wrong_arguments_are_reported_briefly(shapes: Mapping[str, Tool]) -> None:
    """A thousand mistakes make a short text."""
    with pytest.raises(ToolFailed) as raised:
        await call(shapes, "Shapes-nested", table=[["x"] * 1000], index={})
    assert len(str(raised.value).splitlines()) == 22


def test_schema_holds_what_the_hints_say(shapes: Mapping[str, Tool]) -> None:
    """Types, enums, defaults, unions and nested models are in the schema; titles of fields are not."""
    schema = shapes["Shapes-defaults"].spec.parameters
    assert schema["properties"] == {
        "limit": {"type": "integer", "default": 10},
        "names": {"type": "array", "items": {"type": "string"}, "default": []},
        "colour": {"$ref": "#/$defs/Colour", "default": "red"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
    assert schema["additionalProperties"] is False
    assert "required" not in schema
    person = shapes["Shapes-models"].spec.parameters
    assert person["required"] == ["person"]
    assert set(person["$defs"]) == {"Person", "Address"}
    assert shapes["Shapes-nothing"].spec.parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


# --- descriptions and options --------------------------------------------------------------------


@pytest.mark.parametrize("style", ["google", "numpy", "sphinx"])
def test_docstrings_describe_tool_and_arguments(style: str) -> None:
    """The docstring up to its section of arguments is the tool's description, the section its arguments'."""
    spec = by_name(load_plugins(FILE, ["Documented"]))[f"Documented-{style}"].spec
    assert spec.description.startswith("Do it the ")
    assert "how many" not in spec.description
    assert spec.parameters["properties"]["a"]["description"] == "how many"


@pytest.mark.parametrize(
    ("hint", "default"),
    [
        (Annotated[int, "how many"], None),
        (Annotated[int, "how many"] | None, None),
        (Annotated[int | None, "how many"], ...),
        (Annotated[Annotated[int, "how many"] | None, Field(ge=1)], None),
    ],
)
def test_a_parameter_that_may_be_none_keeps_its_description(hint: Any, default: Any) -> None:
    """Wherever the None stands: beside the annotated type, within it, or as the default alone."""

    def tool(limit: Any) -> None: ...

    tool.__annotations__["limit"] = hint
    tool.__defaults__ = () if default is ... else (default,)
    assert Signature(tool, "tool").schema["properties"]["limit"]["description"] == "how many"


def test_a_parameter_of_two_described_types_has_the_description_of_neither() -> None:
    """One alone would be wrong for the other."""

    def tool(limit: Annotated[int, "how many"] | Annotated[str, "up to which"]) -> None: ...

    assert "description" not in Signature(tool, "tool").schema["properties"]["limit"]


async def test_options_and_annotations_win_over_the_docstring() -> None:
    """A name, a description and bounds that are written out are what the model sees."""
    tool = by_name(load_plugins(FILE, ["Documented"]))["Documented-renamed"]
    assert tool.spec.description == "Not what the docstring says."
    assert tool.spec.governance.requires_hitl
    properties = tool.spec.parameters["properties"]
    assert properties["plain"]["description"] == "in the annotation"
    assert properties["bounded"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "description": "in the field",
    }
    assert properties["schema"]["description"] == "a name that pydantic models have too"
    assert properties["field"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "default": 7,
        "description": "a field as default",
    }
    answer = json.loads(
        await tool.call(Context(), {"plain": "p", "bounded": "2", "schema": "s", "_private": 9})
    )
    assert answer == {"plain": "p", "bounded": 2, "schema": "s", "private": 9, "field": 7}


async def test_context_is_given_and_hidden() -> None:
    """A context is found by annotation or name, never shown to the model, and gives ids and tokens."""
    tools = by_name(load_plugins(FILE, ["Aware"]))
    assert set(tools["Aware-by_type"].spec.parameters["properties"]) == {"text"}
    assert set(tools["Aware-by_name"].spec.parameters["properties"]) == {"text"}
    assert set(tools["Aware-other_meaning"].spec.parameters["properties"]) == {"context"}
    context = Context()
    answer = await call(tools, "Aware-by_type", context, text="hi")
    assert answer == "alice@contoso request token-of-alice-for-files.read"
    assert context.extra == {"text": "hi"}
    assert await call(tools, "Aware-by_name", text="hi") == "alice hi"
    assert await call(tools, "Aware-other_meaning", context="hi") == "hi"


async def test_consent_is_asked_before_anything_is_done() -> None:
    """A plugin that declares scopes begins no call without the owner's token."""
    tools = by_name(load_plugins(FILE, ["Aware"]))
    context = Context(owner_is_here=False)
    with pytest.raises(NeedsOwner) as asked:
        await call(tools, "Aware-by_name", context, text="hi")
    assert context.asked == [("files.read",)]
    assert asked.value.begun is False


@pytest.mark.parametrize(
    "need", [NeedsOwner("now"), NeedsAuthorization("notes", "https://notes.example", ("a",))]
)
@pytest.mark.parametrize("grouped", [False, True])
async def test_what_a_tool_needs_its_user_for_says_that_it_had_begun(
    need: NeedsOwner | NeedsAuthorization, grouped: bool
) -> None:
    """What it did before is not known. Others may hold the same error: theirs stays as it is.

    It is asked for as well where a task of several needs it."""

    async def asks() -> None:
        if grouped:
            raise ExceptionGroup("two tasks", [ToolFailed("away"), ExceptionGroup("one task", [need])])
        raise need

    with pytest.raises(type(need)) as asked:
        await run_method(asks, {}, Context(), ThreadPool(1), "Notes-read", nothing="")
    raised = asked.value
    assert isinstance(raised, NeedsOwner | NeedsAuthorization)
    assert (raised.begun, need.begun) == (True, False)
    assert (str(raised), vars(raised)) == (str(need), vars(need) | {"begun": True})


async def test_plugin_is_opened_and_closed() -> None:
    """A plugin that is an async context manager is entered at startup and exited at shutdown."""
    toolset = load_plugins(FILE, ["Opened"])
    tools = by_name(toolset)
    async with toolset:
        assert await call(tools, "Opened-tell") == "open"
    assert await call(tools, "Opened-tell") == "closed"


def test_tools_are_inherited_and_can_be_dropped() -> None:
    """A derived plugin has its base's tools, but not those it overrides without the decorator."""
    assert set(by_name(load_plugins(FILE, ["Derived"]))) == {"Derived-kept", "Derived-added"}


# --- failures and concurrency --------------------------------------------------------------------


async def test_exceptions_reach_the_caller(shapes: Mapping[str, Tool]) -> None:
    """What a tool raises is raised, by its own type; from a thread, too."""
    with pytest.raises(ToolFailed, match="The disk is full"):
        await call(shapes, "Shapes-raising", kind="reported")
    with pytest.raises(ValueError, match="no such thing"):
        await call(shapes, "Shapes-raising", kind="value")
    with pytest.raises(ValueError, match="no such thing"):
        await call(shapes, "Shapes-raising_in_a_thread", kind="value")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Shapes-raising", "exit"),
        ("Shapes-raising", "canceled"),
        ("Shapes-raising_in_a_thread", "exit"),
        ("Shapes-raising_in_a_thread", "stop"),
    ],
)
async def test_tool_cannot_end_the_process(shapes: Mapping[str, Tool], name: str, kind: str) -> None:
    """`sys.exit()`, a stray cancellation and a stray StopIteration are failures of the tool alone."""
    with pytest.raises((ToolFailed, RuntimeError)):
        await call(shapes, name, kind=kind)


@pytest.mark.parametrize("name", ["Shapes-raising", "Shapes-raising_in_a_thread"])
@pytest.mark.parametrize("kind", ["exit", "canceled"])
async def test_what_a_tool_did_before_it_broke_off_is_unknown(
    shapes: Mapping[str, Tool], kind: str, name: str
) -> None:
    """A later request is not to take it for a failure that did nothing."""
    with pytest.raises(ToolFailed, match="hether it took effect is unknown") as failed:
        await call(shapes, name, kind=kind)
    assert failed.value.unknown


async def test_sync_tools_block_nothing(tmp_path: Path) -> None:
    """While sync tools hold their threads the loop keeps running, and they hold them at the same time."""
    source = """
import threading
class P(Plugin):
    everybody = threading.Barrier(21)
    @tool
    def meet(self) -> str:
        "Wait until everybody is there."
        self.everybody.wait(60)
        return "met"
"""
    [tool] = loaded(tmp_path, source, "P").values()
    everybody = tool._method.__self__.everybody  # type: ignore[attr-defined]
    met = [asyncio.create_task(tool.call(Context(), {})) for _ in range(20)]
    await eventually(lambda: everybody.n_waiting >= 20)
    assert not any(task.done() for task in met)
    await asyncio.to_thread(everybody.wait, 60)
    assert await asyncio.gather(*met) == ["met"] * 20


async def test_context_variables_are_seen_in_threads() -> None:
    """A sync tool sees the context variables of its caller: that is how log lines keep their ids."""
    tools = by_name(load_plugins(FILE, ["Shapes"]))
    method = tools["Shapes-context_variable"]._method  # type: ignore[attr-defined]
    current = method.__func__.__globals__["CURRENT"]
    token = current.set("request 7")
    try:
        assert await call(tools, "Shapes-context_variable") == "request 7"
    finally:
        current.reset(token)


async def test_threads_are_bounded_and_given_back(tmp_path: Path) -> None:
    """More blocking calls than threads wait their turn; a canceled one holds its place until it ends."""
    source = """
import threading, time
class P(Plugin):
    running = 0
    most = 0
    go_on = threading.Event()
    lock = threading.Lock()
    @tool
    def wait(self) -> int:
        "Wait."
        with self.lock:
            P.running += 1
            P.most = max(P.most, P.running)
        self.go_on.wait(60)
        with self.lock:
            P.running -= 1
        return P.most
"""
    file = tmp_path / "custom_plugins.py"
    file.write_text("from tealagents.plugins import Plugin, tool\n" + source)
    toolset = load_plugins(file, ["P"], max_threads=2)
    [tool] = toolset.tools()
    plugin = tool._method.__self__  # type: ignore[attr-defined]
    calls = [asyncio.create_task(tool.call(Context(), {})) for _ in range(6)]
    await eventually(lambda: plugin.running >= 2)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    await asyncio.sleep(0.02)
    assert plugin.running == 2
    plugin.go_on.set()
    assert await asyncio.gather(*calls[1:]) == ["2"] * 5


async def test_64_threads_run_tools_at_once(tmp_path: Path) -> None:
    """Further calls wait, and are made in the places that become free."""
    source = """
import threading
class P(Plugin):
    places = threading.Semaphore(0)
    begun = []
    @tool
    def wait(self) -> str:
        "Wait."
        self.begun.append(1)
        self.places.acquire(timeout=60)
        return "done"
"""
    [tool] = loaded(tmp_path, source, "P").values()
    plugin = tool._method.__self__  # type: ignore[attr-defined]
    calls = [asyncio.create_task(tool.call(Context(), {})) for _ in range(70)]
    await eventually(lambda: len(plugin.begun) >= 64)
    await asyncio.sleep(0.02)
    assert len(plugin.begun) == 64
    plugin.places.release(70)
    assert await asyncio.gather(*calls) == ["done"] * 70


async def test_what_a_blocking_tool_raises_keeps_its_text() -> None:
    """Whatever its class: the model is sent it."""

    class Panic(BaseException): ...

    def panics() -> str:
        raise Panic("index out of bounds")

    with pytest.raises(RuntimeError, match="it raised Panic: index out of bounds"):
        await ThreadPool(1).run(panics, "panics", ("t", "ada"))


async def test_a_free_thread_goes_to_the_owner_with_the_fewest_calls() -> None:
    """A message with many calls, of synchronous tools, keeps no other user waiting until all are made."""
    pool, made = ThreadPool(2), list[str]()
    may = {owner: threading.Semaphore(0) for owner in ("ada", "bob", "eve")}

    async def call(owner: str) -> None:
        await pool.run(partial(may[owner].acquire, timeout=60), "P-work", ("t", owner))
        made.append(owner)

    adas = [asyncio.create_task(call("ada")) for _ in range(6)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(call(owner)) for owner in ("bob", "bob", "bob", "eve")]
    await asyncio.sleep(0)
    may["bob"].release(3)
    may["eve"].release(1)
    may["ada"].release(1)  # a single place becomes free
    await eventually(lambda: len(made) == 5)
    assert made == ["ada", "bob", "eve", "bob", "bob"]
    may["ada"].release(5)
    await asyncio.gather(*adas, *others)


async def test_owners_for_whom_as_many_calls_run_take_turns() -> None:
    """Those who wait the longest do not keep the only place; nor does one that has given up."""
    pool, made = ThreadPool(1), list[str]()
    may = threading.Semaphore(0)

    async def call(name: str) -> None:
        await pool.run(partial(may.acquire, timeout=60), "P-work", ("t", name[:3]))
        made.append(name)

    calls = []
    for name in ("ada1", "ada2", "ada3", "bob1", "bob2", "bob3"):
        calls.append(asyncio.create_task(call(name)))
        await asyncio.sleep(0)
    calls[4].cancel()
    with pytest.raises(ToolFailed, match="All threads"):
        await calls.pop(4)
    may.release(5)
    await asyncio.gather(*calls)
    assert made == ["ada1", "ada2", "bob1", "ada3", "bob3"]


#: its call ends once it may, or after a minute
HANGING = """
import threading
class P(Plugin):
    go_on = threading.Event()
    @tool
    def hang(self) -> str:
        "Wait."
        self.go_on.wait(60)
        return "done"
"""


async def test_a_call_that_waited_for_a_thread_until_the_limit_was_not_made(tmp_path: Path) -> None:
    """It says so, and why it waited; what hangs may have taken effect."""
    file = tmp_path / "custom_plugins.py"
    file.write_text("from tealagents.plugins import Plugin, tool\n" + HANGING)
    toolset = load_plugins(file, ["P"], max_threads=1)
    box = Toolbox(Scripted(), 0.05)
    box.load([toolset])
    context: Any = Context()
    hanging, waiting = [await box.call(ToolCall(name, "P-hang", "{}"), context) for name in ("c1", "c2")]
    toolset.tools()[0]._method.__self__.go_on.set()  # type: ignore[attr-defined]
    assert isinstance(hanging, ToolOutput)
    assert isinstance(waiting, ToolOutput)
    assert hanging.unknown
    assert (waiting.output, waiting.unknown) == (
        "Error: All threads for tools (1) are taken by calls that still run. Nothing was done.",
        False,
    )


async def test_hanging_tool_does_not_keep_the_process(tmp_path: Path) -> None:
    """Threads of tools are daemons, so that one that hangs cannot prevent a shutdown."""
    [tool] = loaded(tmp_path, HANGING, "P").values()
    task = asyncio.create_task(tool.call(Context(), {}))
    [thread] = await eventually(lambda: [one for one in threading.enumerate() if one.name == "tool P-hang"])
    assert thread.daemon
    tool._method.__self__.go_on.set()  # type: ignore[attr-defined]
    assert await task == "done"


# --- loading -------------------------------------------------------------------------------------


def test_unknown_plugin_is_reported_with_those_found() -> None:
    """A name that is no plugin of the file is an error that lists the others, and the nearest one."""
    with pytest.raises(
        ToolsetError, match=r"there is no plugin 'Shape'; found: Aware, .* Did you mean 'Shapes'"
    ):
        load_plugins(FILE, ["Shape"])
    with pytest.raises(ToolsetError, match="the class Plain is not a plugin: derive it from"):
        load_plugins(FILE, ["Plain"])


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """A file that is not there is named, with where to put it."""
    with pytest.raises(ToolsetError, match=r"nowhere\.py does not exist.*TA_PLUGIN_MODULE"):
        load_plugins(tmp_path / "nowhere.py", ["P"])


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("x = 1/0\n", "custom_plugins.py, line 2: .* ZeroDivisionError"),
        ("def broken(:\n", "custom_plugins.py, line 2: .* SyntaxError"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import semantic_kernel.memory\n", "imports semantic_kernel.memory of the earlier platform"),
        ("class P(Plugin):\n    pass\n", "P: the plugin has no tool: mark a method with @tool"),
        ("@tool\ndef P(x: int): 'x'\n", "P is a function outside a class. Make it a method of a class"),
        (
            "class P(Plugin):\n    def __init__(self, x): pass\n    @tool\n    def f(self): 'x'\n",
            "P: the plugin cannot be made without arguments: TypeError",
        ),
        (
            "class P(Plugin):\n    @tool\n    def f(self, *args): 'x'\n",
            r"P\.f: \*args has no name that a model could give it by",
        ),
        *(
            (
                f"class P(Plugin):\n    @tool\n    def f(self, {parameters}): 'x'\n",
                rf"P\.f: {name}.* must be its only context, and have a name",
            )
            for parameters, name in (("context, /", "context"), ("context, more: ToolContext", "more"))
        ),
        (
            "class P(Plugin):\n    @tool\n    async def f(self):\n        yield 1\n",
            r"P\.f: a tool returns one result; a generator cannot be a tool",
        ),
        (
            "class Own: pass\nclass P(Plugin):\n    @tool\n    def f(self, a: int, b: Own): 'x'\n",
            r"P\.f: the type of 'b' has no JSON schema",
        ),
        (
            "from collections.abc import Callable\n"
            "class P(Plugin):\n    @tool\n    def f(self, a: Callable[[], int]): 'x'\n",
            r"P\.f: the types of its parameters have no JSON schema",
        ),
        (
            "class P(Plugin):\n    @tool\n    def f(self, a: 'Nowhere'): 'x'\n",
            r"P\.f: a type hint cannot be resolved: NameError: name 'Nowhere' is not defined",
        ),
        *(
            (
                "import datetime\nfrom typing import Annotated\nfrom pydantic import Field\n"
                "class Odd:\n    def __get_pydantic_core_schema__(*_): raise LookupError('no such unit')\n"
                f"class P(Plugin):\n    @tool\n    def f(self, a: int, b: {hint}): 'x'\n",
                rf"P\.f: {reason}",
            )
            for hint, reason in (
                ("[str]", "the type of 'b' has no JSON schema: "),
                ("{'a': int}", "the type of 'b' has no JSON schema: "),
                ("(int, str)", "the type of 'b' has no JSON schema: "),
                ("5", "the type of 'b' has no JSON schema: "),
                ("...", "the type of 'b' has no JSON schema: "),
                ("datetime", "the type of 'b' has no JSON schema: "),
                ("Odd", "the type of 'b' has no JSON schema: LookupError: no such unit"),
                ("Annotated[str, Field(pattern='(')]", "the type of 'b' .* error: unclosed group"),
                ("'the first number'", "a type hint cannot be resolved: .* 'the first number'"),
                ("int) -> ('a number'", "a type hint cannot be resolved: .* 'a number'"),
            )
        ),
        (
            "class P(Plugin):\n    @tool(name='no spaces')\n    def f(self): 'x'\n",
            r"P\.f: the name 'P-no spaces' cannot be sent to a model.* Give the tool another one with @tool",
        ),
        (
            "class P(Plugin):\n    on_behalf_of_scopes = 'api://read'\n    @tool\n    def f(self): 'x'\n",
            "P-f: on_behalf_of_scopes must be a list or a tuple of scopes",
        ),
        (
            "class P(Plugin):\n    on_behalf_of_scopes = 5\n    @tool\n    def f(self): 'x'\n",
            r"P-f: on_behalf_of_scopes must be a list or a tuple of scopes, such as \['User\.Read'\], not 5",
        ),
        *(
            (f"import asyncio\n{source}\n", f"line {line}: the file cannot be loaded: {reason}")
            for source, line, reason in (
                ("raise asyncio.CancelledError", 3, "CancelledError"),
                ("raise GeneratorExit", 3, "GeneratorExit"),
                ("class Own(BaseException): ...\nraise Own('why')", 4, "Own: why"),
                ("class Own(Exception):\n    def __str__(self): raise self\nraise Own", 5, "Own"),
            )
        ),
        (
            "class P(Plugin):\n    @tool\n    def f(self): 'x'\n"
            "    def __getattribute__(self, name): raise LookupError(name)\n",
            "P: LookupError: ",
        ),
        ("class P(Plugin):\n    @tool(timeout=0)\n    def f(self): 'x'\n", r"P\.f: the timeout has to be"),
        *(
            (
                f"class P(Plugin):\n    @tool(timeout={wrong})\n    def f(self): 'x'\n",
                "has to be a number of seconds",
            )
            for wrong in ("'5'", "float('nan')")
        ),
        *(
            (
                f"class P(Plugin):\n    @tool(requires_hitl={wrong})\n    def f(self): 'x'\n",
                r"P\.f: requires_hitl has to be True or False",
            )
            for wrong in ("'true'", "''", "None", "0")
        ),
        (
            "class P(Plugin):\n    @tool(description=5)\n    def f(self): 'x'\n",
            r"P\.f: name and description have to be text",
        ),
        *(
            (
                f"class P(Plugin):\n    @tool\n    def f(self, a: str = {default}): {docstring}\n",
                rf"P\.f: the tool cannot be sent to a model: .* at `\$\.{field}`",
            )
            for default, docstring, field in (
                ("'a'", "'caf\\udce9'", "description"),
                ("'\\udce9'", "'x'", "parameters"),
            )
        ),
        (
            "class P(Plugin):\n    @tool('Read it.')\n    def f(self): 'x'\n",
            r"line 3: .* @tool marks a function, not 'Read it\.'; its options are named",
        ),
        (
            "class P(Plugin):\n    @tool\n    def f(): 'x'\n",
            r"P\.f: .*: the first parameter of a method is self",
        ),
        *(
            (
                f"class P(Plugin):\n    @tool\n    def f({parameters}): 'x'\n",
                rf"P\.f: {first!r} would be the plugin itself: the first parameter of a method is self",
            )
            for parameters, first in (
                ("path: str", "path"),
                ("context: ToolContext, path: str", "context"),
            )
        ),
        (
            "class P(Plugin):\n    def __init__(self): exit(3)\n    @tool\n    def f(self): 'x'\n",
            "P: the plugin cannot be made without arguments: SystemExit: 3",
        ),
        *(
            (
                "from collections.abc import Generator, Iterable\n"
                f"class P(Plugin):\n    @tool\n    def f(self, a: {hint}): 'x'\n",
                r"P\.f: .* checked only while the tool reads it: use list",
            )
            for hint in ("Generator[int, None, None]", "dict[str, Iterable[int]]")
        ),
    ],
)
def test_mistakes_are_reported_with_their_place(tmp_path: Path, source: str, reported: str) -> None:
    """Each mistake in a plugin file names the file, the class, the method and the reason."""
    with pytest.raises(ToolsetError, match=f"custom_plugins.py.*{reported}|{reported}"):
        loaded(tmp_path, source)


@pytest.mark.parametrize("name", ["Bäd", "P" * 63])
def test_a_class_whose_name_no_tool_can_begin_with_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    """Another name for the tool would not help: with the class's name no model service takes any."""
    source = f"class {name}(Plugin):\n    @tool(name='x')\n    def f(self): 'x'\n"
    with pytest.raises(ToolsetError, match=f"'{name}-x' cannot be sent .* Rename the class"):
        loaded(tmp_path, source, name)


@pytest.mark.parametrize(
    ("marks", "parameters"),
    [
        ("", "self: 'P', path: str"),
        ("", "_self, path: str"),
        ("@staticmethod", "path: str"),
        ("@classmethod", "cls, path: str"),
        ("@wraps(lambda self, path: None)", "*args, **named"),
    ],
)
async def test_only_what_the_model_gives_is_a_parameter(tmp_path: Path, marks: str, parameters: str) -> None:
    """Not what a method is called on, if there is anything; a decorator may hide it."""
    tools = loaded(
        tmp_path,
        "from functools import wraps\n"
        f"class P(Plugin):\n    {marks}\n    @tool\n    def f({parameters}) -> str: 'x'\n",
    )
    assert list(tools["P-f"].spec.parameters["properties"]) == ["path"]


async def test_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    """A plugin may be spread over modules beside it, and its dataclasses and models resolve."""
    (tmp_path / "beside_the_plugin.py").write_text("GREETING = 'hello'\n")
    file = tmp_path / "custom_plugins.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from beside_the_plugin import GREETING\n"
        "from pydantic import BaseModel\n"
        "from tealagents.plugins import Plugin, tool\n"
        "class Name(BaseModel):\n    first: str\n"
        "class P(Plugin):\n    @tool\n    def greet(self, name: Name) -> str:\n"
        "        'Greet.'\n        return f'{GREETING} {name.first}'\n"
    )
    tools = by_name(load_plugins(file, ["P"]))
    assert await call(tools, "P-greet", name={"first": "Ann"}) == "hello Ann"


def test_tool_without_description_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tool without docstring works, and a warning says that the model does not know what it does."""
    with caplog.at_level(logging.WARNING):
        loaded(tmp_path, "class P(Plugin):\n    @tool\n    def f(self): pass\n")
    assert "P.f: the tool has no docstring" in caplog.text
