"""The example configs load, and nothing that can be configured is missing from the reference."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from config_files import problems, read, with_spec
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tealagents.api.protocols import PROTOCOLS
from tealagents.config import AgentConfig, ConfigFile, ConsoleSection, ServiceConfig, ThreadConfig, load
from tealagents.config.auth import entra_section
from tealagents.config.documentation import meaning
from tealagents.config.file import read_document
from tealagents.config.models import Metadata, Skill, Spec
from tealagents.config.settings import Settings, variables
from tealagents.limits import Limits
from tealagents.mistakes import key_of, key_text, model_at
from tealagents.plugins import Plugin
from tealagents.tools.options import GovernanceOverride, MCPServerOptions

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SECTIONS = (
    *(ConfigFile, Metadata, Skill, Spec, AgentConfig, MCPServerOptions, GovernanceOverride),
    *(entra_section(), ThreadConfig, ConsoleSection, Limits),
)
VARIABLES = {"STATE_PASSWORD": "x", "HANDBOOK_TOKEN": "y"}


def config_of(file: Path) -> ServiceConfig:
    return load(file, env=VARIABLES, dotenv=None)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_example_configs_load(file: Path) -> None:
    """Every config that is shipped is right, and warns of nothing but its lack of an authority."""
    config = config_of(file)
    assert [warning for warning in config.warnings if "accepts any bearer token" not in warning] == []


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_key_of_an_example_is_explained(file: Path) -> None:
    """Where a scenario's file sets something for the scenario, a comment says what it is."""
    text = file.read_text()
    assert text.startswith("#")
    assert text.count("#") >= 4


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_the_command_of_an_example_starts_it(file: Path) -> None:
    """It gives the model service's key, or needs none."""
    commands = [line for line in file.read_text().splitlines() if "tealagents serve configs/" in line]
    assert all("TA_API_KEY=" in line or "--offline" in line for line in commands)


def test_plugins_of_the_examples_exist() -> None:
    """The classes that the examples name are in the file beside them."""
    module = runpy.run_path(str(ROOT / "configs" / "custom_plugins.py"))
    for name in {plugin for file in CONFIGS for plugin in config_of(file).agent.plugins}:
        assert issubclass(module[name], Plugin)


def test_earlier_frameworks_example_differs_in_one_line() -> None:
    """The example of an older file has nothing that an older file could not have. covers: APP-3"""
    data = read_document(ROOT / "configs" / "from-v2alpha1.yaml", []).data
    assert data.keys() == {"apiVersion", "kind", "name", "version", "metadata", "spec"}
    assert data["spec"].keys() == {"agent"}


def test_notations_of_numbers_that_only_the_file_may_use(tmp_path: Path) -> None:
    """The page names those that a variable may not, whether it overrides the key or the key names it."""
    page = (ROOT / "docs/config.md").read_text()
    notations = re.findall(r"`([^`]+)`", page.partition("The file may also say ")[2].partition(".\n")[0])
    assert notations
    refused = {"spec.limits.max_items", "TA_LIMITS__MAX_ITEMS"}
    for number in notations:
        assert read(tmp_path, with_spec(f"limits: {{max_items: {number}}}")).limits.max_items > 1
        referred = problems(tmp_path, with_spec("limits: {max_items: '${N}'}"), N=number)
        overridden = problems(tmp_path, TA_LIMITS__MAX_ITEMS=number)
        found = {(each.key, each.message) for each in (*referred, *overridden)}
        assert found == {(key, "must be a whole number") for key in refused}


def all_keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of the file, `[]` standing for any entry of a list or a mapping of names."""
    for name, field in model.model_fields.items():
        here = (*path, key_of(name, field))
        yield here
        section, entry = model_at(model, (here[-1],)), model_at(model, (here[-1], 0))
        if here == ("spec", "auth"):
            section = entra_section()
        if section:
            yield from all_keys(section, here)
        elif entry and entry.__name__ != "Component":
            yield from all_keys(entry, (*here, "[]"))


def test_reference_has_every_key() -> None:
    """configs/reference.yaml shows every key there is."""
    lines = read_document(ROOT / "configs" / "reference.yaml", []).lines
    shown = {
        tuple("[]" if isinstance(part, int) or part == "example" else part for part in path) for path in lines
    }
    assert set(all_keys(ConfigFile)) - shown == set()


@pytest.mark.parametrize("page", ["docs/config.md", "configs/reference.yaml"])
def test_pages_name_each_protocol(page: str) -> None:
    """Where they say what an agent can be served over."""
    (listed,) = re.findall(r"urther protocols to serve the agent over: (.+)", (ROOT / page).read_text())
    assert set(re.findall(r"[\w-]+", listed)) == {name for name in PROTOCOLS if "/" not in name}


def test_each_protocol_has_a_page() -> None:
    """The index links to a page that has the protocol's name."""
    index = (ROOT / "docs" / "index.md").read_text()
    assert [name for name in PROTOCOLS if "/" not in name and f"({name}" not in index] == []


def test_reference_shows_the_defaults() -> None:
    """What configs/reference.yaml says of a key that has a default is that default."""
    config = config_of(ROOT / "configs" / "reference.yaml")
    file = ConfigFile.model_validate(
        {
            "apiVersion": config.api_version,
            "name": "a",
            "version": "1",
            "spec": {"agent": {"model": "m", "system_prompt": ""}},
        }
    )
    assert config.limits == Limits()
    assert config.thread == ThreadConfig()
    assert config.console == ConsoleSection()
    shown = read_document(ROOT / "configs" / "reference.yaml", []).data["spec"]["auth"]
    for name, field in entra_section().model_fields.items():
        assert (shown.get(name) or None) == (None if field.is_required() else field.default or None), name
    assert config.agent.model_copy(update={"model": "m", "mcp_servers": ()}) == file.spec.agent
    assert (config.kind, config.description, config.persistence) == (
        file.kind,
        file.description,
        file.spec.persistence,
    )
    assert (config.concurrency, config.on_disconnect) == (file.spec.concurrency, file.spec.on_disconnect)
    for server in config.agent.mcp_servers:
        for name in ("timeout", "sse_read_timeout", "request_timeout", "trust_level", "verify_ssl", "scopes"):
            assert getattr(server, name) == MCPServerOptions.model_fields[name].default


# --- docs/config.md ----------------------------------------------------------------------------------


def row(section: type[BaseModel], name: str, title: str, unset: str = "") -> str:
    """The line of the reference that a key or a variable must have."""
    field = section.model_fields[name]
    about = meaning(section, name)
    assert about, f"{section.__name__}.{name} has no text below it"
    return f"| `{title}` | {kind(field.annotation, field.metadata)} | {unset or default(field)} | {about} |"


def kind(annotation: Any, metadata: Any = ()) -> str:
    """The type of a key, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return kind(next(part for part in parts if part is not NoneType), metadata)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is tuple:
        return "list"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    words: dict[Any, str] = {
        Any: "text or mapping",
        str: "text",
        SecretStr: "secret",
        bool: "true or false",
        Path: "path",
    }
    return words.get(annotation) or number(annotation, metadata)


def number(annotation: Any, metadata: Any) -> str:
    parts = [part for each in metadata for part in getattr(each, "metadata", [each])]
    low = next((f"{each.gt:g} <" for each in parts if hasattr(each, "gt") and each.gt is not None), "")
    low = next((f"{each.ge:g} ≤" for each in parts if hasattr(each, "ge") and each.ge is not None), low)
    high = next((f"{each.le:g}" for each in parts if getattr(each, "le", None) and each.le < 100_000), None)
    word = "whole number" if annotation is int else "number"
    if high and "≤" in low:
        return f"{word}, {low.split()[0]} to {high}"
    return f"{word}, {low.split()[0]} or more" if "≤" in low else f"{word}, more than {low.split()[0]}"


def default(field: FieldInfo) -> str:
    value = field.get_default()
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "below"
    if value in (None, "", (), {}):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rows_of(section: type[BaseModel]) -> list[str]:
    return [row(section, name, key_of(name, field)) for name, field in section.model_fields.items()]


def rows_of_variables() -> list[str]:
    """Variables that win over a key of the file name the key, which is explained above."""
    rows = []
    for variable, sets in variables().items():
        if isinstance(sets, str):
            rows.append(row(Settings, sets, variable))
        else:
            rows.append(f"| `{variable}` | `{key_text(sets)}` |")
    return rows


@pytest.mark.parametrize(
    "line",
    [*(line for section in SECTIONS for line in rows_of(section)), *rows_of_variables()],
    ids=lambda line: re.findall(r"`(\w+)`", line)[0],
)
def test_reference_documents_every_key_and_variable(line: str) -> None:
    """docs/config.md has each key and each variable with its type, default and meaning."""
    assert line in (ROOT / "docs" / "config.md").read_text().splitlines()
