"""`tealagents upgrade`: the `tealagents/v1alpha1` file of one of the earlier platform."""

import difflib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from tealagents.cli.loading import fail, plain_console, warn
from tealagents.config import API_VERSIONS, ConfigError, load
from tealagents.config.problems import KeyPath, key_text, reason
from tealagents.config.skagents import V1, EarlierConfig
from tealagents.domain.models import Json
from tealagents.tools.input_types import INPUTS

_CLIENTS = """\
What changes for clients:
  request    {"items": [{"content_type": "text", "content": "…"}]} in place of chat_history
  follow-up  the service keeps the conversation: send the answer's task_id with the next message
  answer     content.output in place of output_raw; extra_data is an object, without items; ids are UUIDs
  events     each with an id; the last one is final-response, approval-required or error
  callers    Authorization: Bearer … on every call, as TA_AUTH requires; gateway is for earlier files
  gone       /stream (the WebSocket), output_pydantic"""
_PARTS = re.compile(r"\{#(?s:.*?)#\}|\{\{-?\s*(?P<name>\w+(?:\.\w+)*)\s*-?\}\}")
_BY_HAND = "write that part in another way first, or upgrade the file by hand"
_CODE = re.compile(r"\{[{%#](?s:.*?)(?:[}%#]\}|$)")


class NotUpgraded(ValueError):
    """A file that only a person can turn into one of ours."""


def upgrade_command(
    file: Annotated[Path, typer.Argument(help="The file of skagents/v1 or skagents/v2alpha1.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The new file; by default NAME.v1alpha1.yaml beside it."
        ),
    ] = None,
) -> None:
    """Convert an earlier file to tealagents/v1alpha1.

    Comments are kept, and keys without a counterpart become comments. The command shows the difference, and
    what changes for clients. The file itself is changed only if --output names it.
    """
    try:
        config = load(file, env=os.environ, unset=[], upgrading=True)
    except ConfigError as error:
        raise fail(*map(str, error.problems)) from None
    if not isinstance(config, EarlierConfig):
        raise fail(f"{file} is already {config.api_version}")
    target = output or file.with_suffix(f".v1alpha1{file.suffix}")
    try:
        if target.exists() and target.resolve() != file.resolve():
            raise fail(f"{target} exists; name another with --output")
        before = file.read_text(encoding="utf-8-sig")
        after = upgraded(before, config)
        _write(target, after)
    except NotUpgraded as error:
        raise fail(f"{file}: {error}") from None
    except OSError as error:
        raise fail(f"{target}: cannot be written: {reason(error)}") from None
    _show(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), str(file), str(target), lineterm="", n=1
        )
    )
    warn(*notes(config, target))
    print(f"\n{_CLIENTS}\n\nWritten: {target}")


def _write(target: Path, text: str) -> None:
    """Writes a file that appears once it is complete; one that it replaces stays as it is until then."""
    target = target.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _show(difference: Iterator[str]) -> None:
    out = plain_console()
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in difference:
        out.print(escape(line), style=colours.get(line[:1], ""))


def notes(config: EarlierConfig, target: Path) -> Iterator[str]:
    """What a person has to look at."""
    if config.output_type is not None:
        yield f"output_type {config.output_type}: answers are text; describe their form in system_prompt"
    if config.input_type not in INPUTS:
        yield f"input_type {config.input_type}: clients write what its fields held as text"
    if config.tasks:
        yield (
            "the tasks have become part of system_prompt: one agent does them in one turn; review the prompt"
        )
    has_plugins = any(agent.plugins for agent in config.agents)
    if has_plugins and "authorization" not in config.forward_headers:
        yield (
            "plugins are no longer given the caller's Authorization: let them declare on_behalf_of_scopes, "
            "or set TA_FORWARD_HEADERS=authorization"
        )
    if config.auth.provider == "gateway":
        yield "TA_AUTH=gateway is for the earlier versions; choose entra"
    try:
        load(target, env={}, dotenv=None, unset=[])
    except ConfigError as error:
        yield from map(str, error.problems)


# --- the text ------------------------------------------------------------------------------------


def upgraded(text: str, config: EarlierConfig) -> str:
    """The text of the file as `tealagents/v1alpha1`. `NotUpgraded` where only a person can decide, or where
    the file is written in a way that cannot be edited in place."""
    root = yaml.compose(text)
    assert root is not None
    edit, meant = _Edit(text), _values(text)
    edit.value(_entry(root, ("apiVersion",))[1], API_VERSIONS[0])
    meant["apiVersion"] = API_VERSIONS[0]
    if config.api_version == V1:
        edit.value(_entry(root, ("service_name",))[0], "name")
        meant["name"] = meant.pop("service_name")
    for key in ("input_type", "output_type"):
        if key in meant:
            edit.comment(root, (key,))
            del meant[key]
    if config.tasks:
        _one_agent(edit, config, root, meant)
    after = edit.text()
    _compare(after, meant)
    return after


def _values(text: str) -> Json:
    """What a file says: mappings, lists, and each other value as its text."""
    said: Json = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - makes nothing but these
    return said


def _compare(text: str, meant: Json) -> None:
    """`NotUpgraded` where the text does not say what is meant."""
    try:
        said = _values(text)
    except yaml.reader.ReaderError as error:
        raise NotUpgraded(
            f"the character U+{error.character:04X} cannot appear in the result: {_BY_HAND}"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", in line {mark.line + 1}" if mark else ""
        raise NotUpgraded(f"the result would not be YAML{line}: {_BY_HAND}") from None
    if said != meant:
        place = key_text(_difference(said, meant))
        raise NotUpgraded(f"the result would say something else under {place}: {_BY_HAND}")


def _difference(said: Any, meant: Any) -> KeyPath:
    """The first key, from the top, at which two values differ."""
    if isinstance(said, dict) and isinstance(meant, dict):
        for key in (*meant, *said):
            if said.get(key) != meant.get(key):
                return (key, *_difference(said.get(key), meant.get(key)))
    return ()


def _one_agent(edit: "_Edit", config: EarlierConfig, root: yaml.Node, meant: Json) -> None:
    """A sequence as one agent that is given its tasks."""
    if len(config.agents) > 1:
        raise NotUpgraded(
            f"its tasks are done by {len(config.agents)} agents, and a file of {API_VERSIONS[0]} has one: "
            "make a file of each, or keep this one as it is"
        )
    spec = _entry(root, ("spec",))[1]
    key, agents = _entry(spec, ("spec", "agents"))
    tasks = _entry(spec, ("spec", "tasks"))[1].value
    edit.value(_entry(root, ("kind",))[1], "Agent")
    edit.value(key, "agent")
    edit.dash(agents, ("spec", "agents"))
    edit.comment(spec, ("spec", "tasks"))
    steps = _steps([_task(tasks[task.place], ("spec", "tasks", task.place)) for task in config.tasks])
    agent, place = agents.value[0], ("spec", "agents", 0, "system_prompt")
    prompt = f"{_entry(agent, place)[1].value.strip()}\n\n{steps}"
    edit.block(agent, prompt, place)
    [own] = meant["spec"].pop("agents")
    del meant["spec"]["tasks"]
    meant["spec"]["agent"] = {**own, "system_prompt": f"{prompt}\n"}
    meant["kind"] = "Agent"


def _task(node: yaml.Node, place: KeyPath) -> tuple[str, str]:
    """The name and the instructions of a task, as they are written."""
    name, instructions = (_entry(node, (*place, key))[1].value for key in ("name", "instructions"))
    return name, instructions


def _steps(tasks: Sequence[tuple[str, str]]) -> str:
    """The names and instructions of tasks as a part of a system prompt."""
    texts = [_plain(name, instructions) for name, instructions in tasks]
    if len(texts) == 1:
        return texts[0]
    steps = [f"{n}. {name}: {text}" for n, ((name, _), text) in enumerate(zip(tasks, texts, strict=True), 1)]
    return "Do these tasks one after the other, and answer with the result of the last:\n" + "\n".join(steps)


def _plain(name: str, instructions: str) -> str:
    """Instructions with words in place of what was filled in, without comments."""

    def said(part: re.Match[str]) -> str:
        if (name := part["name"]) is None:
            return ""
        return f"(the result of {name[1:]})" if name.startswith("_") else f"(the user's {name})"

    text = _PARTS.sub(said, instructions).strip()
    if code := _CODE.search(text):
        more = f"do more than name fields, in {shorten(code[0], 80, placeholder=' …')}"
        raise NotUpgraded(f"the instructions of {name} {more}: write the system_prompt by hand")
    return text


def _entry(mapping: yaml.Node, place: KeyPath) -> tuple[yaml.Node, yaml.Node]:
    """The key and the value of the entry at `place`, which the mapping holds."""
    for key, value in mapping.value:
        if key.value == place[-1]:
            return key, value
    raise NotUpgraded(f"{key_text(place)} is merged in with <<: write it out first")


class _Edit:
    """Changes of a text at places that YAML names; the rest, comments too, stays as it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        #: from, to, and what stands there instead
        self._changes: list[tuple[int, int, str]] = []

    def value(self, node: yaml.Node, text: str) -> None:
        """Another text for a scalar."""
        self._changes.append((node.start_mark.index, node.end_mark.index, text))

    def dash(self, items: yaml.Node, place: KeyPath) -> None:
        """The first item of a list as what the list's key holds."""
        self._in_place(items, place)
        start = items.start_mark.index
        self._changes.append((start, start + 1, " "))

    def comment(self, mapping: yaml.Node, place: KeyPath) -> None:
        """The lines of an entry as comments."""
        self._in_place(mapping, place[:-1])
        start, end = self._lines(*_entry(mapping, place), place)
        lines = self._text[start:end].splitlines(keepends=True)
        self._changes.append((start, end, "".join(f"# {line}" if line.strip() else line for line in lines)))

    def block(self, mapping: yaml.Node, text: str, place: KeyPath) -> None:
        """Another text, of several lines, for an entry of a mapping; a comment behind it stays."""
        self._in_place(mapping, place[:-1])
        key, value = _entry(mapping, place)
        start, end = value.start_mark.index, self._lines(key, value, place)[1]
        behind = self._comment(value)
        indent = " " * (key.start_mark.column + 2)
        lines = [indent + line if line else "" for line in text.split("\n")]
        head = f"| {behind}" if behind else "|"
        self._changes.append((start, end, "\n".join([head, *lines]) + "\n"))

    def _comment(self, value: yaml.Node) -> str:
        """The comment behind a value, or behind the sign that begins a block."""
        is_block = isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")
        mark = value.start_mark if is_block else value.end_mark
        line = self._text[mark.index :].partition("\n")[0]
        return line[line.index("#") :].rstrip() if "#" in line else ""

    def _in_place(self, node: yaml.Node, place: KeyPath) -> None:
        """`NotUpgraded` for a mapping or list whose lines are not its own."""
        if isinstance(node, yaml.CollectionNode) and node.flow_style:
            brackets = "[…]" if isinstance(node, yaml.SequenceNode) else "{…}"
            where = key_text(place) if place else "the file"
            raise NotUpgraded(f"{where} is written in {brackets}: write it as a block first")

    def _lines(self, key: yaml.Node, value: yaml.Node, place: KeyPath) -> tuple[int, int]:
        """Where the lines of an entry begin and end, without what is blank or a comment behind it."""
        start = self._text.rfind("\n", 0, key.start_mark.index) + 1
        last = value
        while isinstance(last, yaml.CollectionNode) and not last.flow_style and last.value:
            last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
        if last.end_mark.index < key.end_mark.index:
            raise NotUpgraded(f"{key_text(place)} is, or ends in, an alias: write it out first")
        end = start + len(self._text[start : last.end_mark.index].rstrip())
        newline = self._text.find("\n", end)
        return start, len(self._text) if newline < 0 else newline + 1

    def text(self) -> str:
        text = self._text
        for start, end, instead in sorted(self._changes, reverse=True):
            text = text[:start] + instead + text[end:]
        return text
