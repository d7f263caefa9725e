"""Opening a client by its name, and what its options refuse."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from llm_setup import KEY, client, events, text_of

from tealagents import registry
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import Message
from tealagents.domain.ports import Model, ModelCall, ToolSpec
from tealagents.llm import MODELS, ModelConfigError, ModelOptions, open_model
from tealagents.llm.credentials import ENVIRONMENT
from tealagents.llm.offline import OfflineModel


class ParrotOptions(ModelOptions):
    volume: int = 1


class Parrot:
    """A client as a third party would write it."""

    Options: ClassVar = ParrotOptions
    provider = "parrot"
    supports_remote_threads = False

    def __init__(self, options: ParrotOptions) -> None:
        self.name = options.model
        self.options = options

    def encode_system(self, text: str) -> bytes:
        return text.encode()

    def encode(self, message: Message) -> bytes:
        return message.text.encode()

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return b""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        yield [TextDelta(call.prompt[-1].decode())]
        yield [ModelDone(finish_reason="stop")]

    async def __aenter__(self) -> "Parrot":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


class Wrapped:
    """Hands everything on to another client."""

    def __init__(self, options: object) -> None:
        self._inner = Parrot(Parrot.Options.model_validate(options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> "Wrapped":
        return self

    async def __aexit__(self, *exc: object) -> None: ...


async def test_a_class_may_hand_everything_on() -> None:
    """Its methods are those of its objects."""
    async with open_model("test_llm_open:Wrapped", model="macaw", volume=3, temperature=None) as model:
        assert model.name == "macaw"


async def test_a_class_of_ones_own_is_named_by_its_place() -> None:
    """`module:Class`, with the options that every client is given and its own."""
    model: Any = open_model("test_llm_open:Parrot", model="macaw", volume=3, temperature=None)
    assert (model.options.volume, model.name) == (3, "macaw")
    async with model:
        assert text_of(await events(model)) == "hello"


def test_the_options_of_the_page_are_set_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that a client's class adds is given to `open_model`, with the client of the page."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    [code] = re.findall(r"```python\n([^`]*class Parrot:.*?)```", page, re.DOTALL)
    [name, text] = re.findall(r'`open_model\("(parrot:Parrot)", ([^`]*)\)`', page)[0]
    module = ModuleType("parrot")
    monkeypatch.setitem(sys.modules, "parrot", module)
    exec(compile(code, "models.md", "exec"), module.__dict__)
    options = dict(each.split("=") for each in text.replace('"', "").split(", "))
    model: Any = open_model(name, **{**options, "volume": int(options["volume"])})
    assert (model.name, model._volume) == ("macaw", 2)


def test_an_installed_client_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point of the group `tealagents.llm`."""
    parrot = EntryPoint("parrot", "test_llm_open:Parrot", "tealagents.llm")

    def installed(**wanted: Any) -> EntryPoints:
        return EntryPoints([parrot]).select(**wanted)

    monkeypatch.setattr(registry, "entry_points", installed)
    assert isinstance(open_model("parrot", model="macaw"), Parrot)
    assert MODELS.known() == ["openai-chat", "openai-responses", "parrot"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai", "Known: openai-chat, openai-responses"),
        ("no_such_module:Class", "no module 'no_such_module'"),
        ("test_llm_open:Macaw", "has no 'Macaw'"),
        ("json:JSONEncoder", "has no encode_system, encode_tools, stream, __aenter__, __aexit__"),
    ],
)
def test_an_unknown_name_is_an_error_that_helps(name: str, said: str) -> None:
    """It lists those that are known, or says what is missing."""
    with pytest.raises(ModelConfigError, match=said):
        open_model(name, model="x", api_key=KEY)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"provider": "parrot"}, "has no name."),
        ({"name": "polly"}, "has no provider."),
        ({}, "has no name, provider."),
    ],
)
def test_a_client_without_its_attributes_is_refused(
    attributes: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is made, as one without its methods is: otherwise every message failed."""
    methods = {each: getattr(Parrot, each) for each in MODELS.methods}
    unnamed = type("Unnamed", (), {**methods, **attributes, "__init__": lambda self, options: None})
    monkeypatch.setitem(globals(), "Unnamed", unnamed)
    with pytest.raises(ModelConfigError, match=f"^The model client 'test_llm_open:Unnamed' {said}$"):
        open_model("test_llm_open:Unnamed", model="macaw")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temprature": 1}, "temprature"),
        ({"model": ""}, "model"),
        ({"temperature": -1}, "temperature"),
        ({"model_timeout_seconds": 0}, "model_timeout_seconds"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "127.0.0.1:8000"}, "base_url"),
        ({"base_url": f"https://user:{KEY}@example.com/v1"}, "credentials"),
        ({"base_url": f"https://example.com/v1?key={KEY}"}, "no query"),
        ({"api_key": None}, "TA_API_KEY"),
        ({"api_key": None, "base_url": "https://x.openai.azure.com"}, "TA_AZURE_CREDENTIAL"),
        (
            {"azure_api_version": "2024-10-21"},
            "TA_AZURE_API_VERSION and TA_AZURE_DEPLOYMENT need TA_BASE_URL",
        ),
        ({"azure_deployment": "mine"}, "TA_AZURE_API_VERSION and TA_AZURE_DEPLOYMENT need TA_BASE_URL"),
        ({"base_url": "http://model.example.com", "token_provider": None, "headers": KEY}, "headers"),
        ({"api_key": f"{KEY}\u201d"}, "api_key: cannot be sent"),
        ({"headers": {"x-team": f"{KEY}\n"}}, "headers: the value of x-team cannot be sent"),
        ({"headers": {"x team": KEY}}, "headers: 'x team' cannot be the name of a header"),
    ],
)
def test_an_option_that_is_wrong_is_named_and_not_shown(options: dict[str, Any], said: str) -> None:
    """Which option, and what is wrong with it; never its value, which may be a secret."""
    with pytest.raises(ModelConfigError, match=said) as wrong:
        open_model("openai-chat", **{"model": "gpt-4o", "api_key": KEY, **options})
    assert KEY not in str(wrong.value)


def test_tokens_are_not_sent_in_the_clear() -> None:
    """An identity's token over plain http is refused, but to loopback."""

    async def token() -> str:
        return "token"

    with pytest.raises(ModelConfigError, match="https"):
        open_model("openai-chat", model="x", base_url="http://model.example.com", token_provider=token)
    assert open_model("openai-chat", model="x", base_url="http://127.0.0.1:9", token_provider=token)


async def test_a_key_in_the_clear_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Plain http to another machine: once, when the client is opened."""
    async with client("http://model.example.com/v1"):
        pass
    assert "plain http to http://model.example.com/v1" in caplog.text
    caplog.clear()
    async with client("http://127.0.0.1:9/v1"):
        pass
    assert caplog.text == ""


def test_options_do_not_show_their_secrets() -> None:
    """Neither in repr nor as text."""
    model: Any = client("http://127.0.0.1:9/v1")
    for options in (model.Options(model="x", api_key=KEY),):
        assert KEY not in repr(options)
        assert KEY not in str(options)


async def test_a_client_that_was_never_used_closes_quietly() -> None:
    """Opened and closed at once."""
    async with client("http://127.0.0.1:9/v1") as model:
        assert model.name == "gpt-4o"
        assert model.provider == "openai"


async def test_clients_can_be_opened_one_after_another() -> None:
    """Each has its own connections."""
    async with OfflineModel() as service:
        for _ in range(2):
            model: Model = client(service.base_url)
            async with model:
                assert text_of(await events(model))


async def test_the_sdk_is_not_waited_for_at_the_start() -> None:
    """Importing the clients imports neither the SDK nor its HTTP libraries; that happens beside the start."""
    code = "import sys, tealagents.llm.openai_chat, tealagents.llm.openai_responses; print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert not {"openai", "aiohttp", "httpx", "httpx2", "msal"} & set(out.decode().split())


# --- the documentation ----------------------------------------------------------------------------------

MANUAL = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
def test_every_option_is_documented(name: str) -> None:
    """Each stands in the table of the manual."""
    model: Any = open_model(name, model="x", api_key=KEY)
    manual = MANUAL.read_text("utf-8")
    assert [option for option in model.Options.model_fields if f"`{option}`" not in manual] == []


def test_every_variable_of_an_identity_is_documented() -> None:
    """Our own names, and those that a platform sets for a workload."""
    manual = MANUAL.read_text("utf-8")
    ours = [names[0] for names in ENVIRONMENT.values()]
    assert [name for name in ours if f"`{name}`" not in manual] == []


async def test_the_manuals_own_client_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example is complete."""
    blocks = MANUAL.read_text("utf-8").split("```python\n")[1:]
    (tmp_path / "manual_parrot.py").write_text(blocks[-1].partition("```")[0], "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    async with open_model("manual_parrot:Parrot", model="macaw", volume=2) as model:
        assert text_of(await events(model)) == "hellohello"


def test_the_manuals_other_code_compiles() -> None:
    """No name in it is misspelt."""
    for block in MANUAL.read_text("utf-8").split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], str(MANUAL), "exec"), {"__name__": "manual"})
