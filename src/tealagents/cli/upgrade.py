"""`tealagents upgrade`: the `tealagents/v1alpha1` file of one of the earlier platform."""

import difflib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from tealagents.cli.loading import fail, stderr
from tealagents.config import API_VERSIONS, ConfigError, load
from tealagents.config.problems import reason
from tealagents.config.skagents import EarlierConfig
from tealagents.tools.input_types import INPUTS

_CLIENTS = """\
What changes for clients:
  request    {"items": [{"content_type": "text", "content": "…"}]} in place of chat_history
  follow-up  the service keeps the conversation: send the answer's task_id with the next message
  answer     content.output in place of output_raw; extra_data is an object, without items; ids are UUIDs
  events     request, partial-response, tool-call, tool-result, final-response or error, each with an id
  callers    Authorization: Bearer … on every call, as TA_AUTH wants it; gateway is for earlier files
  gone       /stream (the WebSocket), output_pydantic"""
_PARTS = re.compile(r"\{\{-?\s*(?P<name>\w+(?:\.\w+)*)\s*(?:\|[^}]*)?-?\}\}")
_CODE = re.compile(r"\{[{%#]")


class NotUpgraded(ValueError):
    """A file that only a person can turn into one of ours."""


def upgrade_command(
    file: Annotated[Path, typer.Argument(help="The file of skagents/v1 or skagents/v2alpha1.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write; by default NAME.v1alpha1.yaml beside the file."),
    ] = None,
) -> None:
    """Write the tealagents/v1alpha1 file of an earlier one.

    Comments are kept, and keys without a counterpart become comments. Shows the difference, and what changes
    for clients. The file itself is changed only if --output names it.
    """
    target = output or file.with_suffix(f".v1alpha1{file.suffix}")
    try:
        if target.exists() and target.resolve() != file.resolve():
            raise fail(f"{target} exists; name another with --output")
        config = load(file, env=os.environ, unset=[])
        if not isinstance(config, EarlierConfig):
            raise fail(f"{file} is of {config.api_version} already")
        before = file.read_text(encoding="utf-8-sig")
        after = upgraded(before, config)
        _write(target, after)
    except ConfigError as error:
        raise fail(*map(str, error.problems)) from None
    except NotUpgraded as error:
        raise fail(f"{file}: {error}") from None
    except OSError as error:
        raise fail(f"{target}: cannot be written: {reason(error)}") from None
    _show(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), str(file), str(target), lineterm="", n=1
        )
    )
    for note in notes(config, target):
        stderr.print(f"[yellow]![/] {escape(note)}")
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
    out = Console(highlight=False, soft_wrap=True)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in difference:
        out.print(escape(line), style=colours.get(line[:1], ""))


def notes(config: EarlierConfig, target: Path) -> Iterator[str]:
    """What a person has to look at."""
    if config.output_type is not None:
        yield f"output_type {config.output_type}: answers are text; say in system_prompt of what kind"
    if config.input_type not in INPUTS:
        yield f"input_type {config.input_type}: clients say in words what its fields said"
    if config.tasks:
        yield "the tasks have become part of system_prompt: one agent does them in one turn; read it once"
    if config.auth.provider == "gateway":
        yield "TA_AUTH=gateway is for the earlier versions; choose entra"
    try:
        load(target, env={}, dotenv=None, unset=[])
    except ConfigError as error:
        yield from map(str, error.problems)


# --- the text ------------------------------------------------------------------------------------


def upgraded(text: str, config: EarlierConfig) -> str:
    """The text of the file as `tealagents/v1alpha1`. `NotUpgraded` where only a person can decide."""
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    edit = _Edit(text)
    keys = _entries(root)
    edit.value(keys["apiVersion"][1], API_VERSIONS[0])
    if "service_name" in keys:
        edit.value(keys["service_name"][0], "name")
    for key in ("input_type", "output_type"):
        if key in keys:
            edit.comment(*keys[key])
    if config.tasks:
        _one_agent(edit, config, keys)
    return edit.text()


def _one_agent(edit: "_Edit", config: EarlierConfig, keys: "_Entries") -> None:
    """A sequence as one agent that is given its tasks."""
    if len(config.agents) > 1:
        raise NotUpgraded(
            f"its tasks are done by {len(config.agents)} agents, and a file of {API_VERSIONS[0]} has one: "
            "make a file of each, or keep this one as it is"
        )
    edit.value(keys["kind"][1], "Agent")
    spec = _entries(keys["spec"][1])
    key, agents = spec["agents"]
    if not isinstance(agents, yaml.SequenceNode) or agents.flow_style:
        raise NotUpgraded("spec.agents is written in […]: write it as a block first")
    edit.value(key, "agent")
    edit.dash(agents.value[0])
    edit.comment(*spec["tasks"])
    written = [_entries(task) for task in spec["tasks"][1].value]
    tasks = [written[task.place] for task in config.tasks]
    steps = _steps([(str(task["name"][1].value), str(task["instructions"][1].value)) for task in tasks])
    key, prompt = _entries(agents.value[0])["system_prompt"]
    edit.block(key, prompt, f"{prompt.value.strip()}\n\n{steps}")


def _steps(tasks: Sequence[tuple[str, str]]) -> str:
    """The names and instructions of tasks as a part of a system prompt."""
    texts = [_plain(name, instructions) for name, instructions in tasks]
    if len(texts) == 1:
        return texts[0]
    steps = [f"{n}. {name}: {text}" for n, ((name, _), text) in enumerate(zip(tasks, texts, strict=True), 1)]
    return "Do these tasks one after the other, and answer with the result of the last:\n" + "\n".join(steps)


def _plain(name: str, instructions: str) -> str:
    """Instructions with words in place of what was filled in."""

    def said(part: re.Match[str]) -> str:
        name = part["name"]
        return f"(the result of {name[1:]})" if name.startswith("_") else f"(the user's {name})"

    text = _PARTS.sub(said, instructions).strip()
    if _CODE.search(text):
        raise NotUpgraded(f"the instructions of {name} decide or loop: write the system_prompt by hand")
    return text


_Entries = dict[str, tuple[yaml.Node, yaml.Node]]


def _entries(node: yaml.Node) -> _Entries:
    return {key.value: (key, value) for key, value in node.value}


class _Edit:
    """Changes of a text at places that YAML names; the rest, comments too, stays as it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        #: from, to, and what stands there instead
        self._changes: list[tuple[int, int, str]] = []

    def value(self, node: yaml.Node, text: str) -> None:
        """Another text for a scalar."""
        self._changes.append((node.start_mark.index, node.end_mark.index, text))

    def dash(self, item: yaml.Node) -> None:
        """The first item of a list as what the list's key holds."""
        dash = self._text.rindex("-", 0, item.start_mark.index)
        self._changes.append((dash, dash + 1, " "))

    def comment(self, key: yaml.Node, value: yaml.Node) -> None:
        """The lines of an entry as comments."""
        start, end = self._lines(key, value)
        lines = self._text[start:end].splitlines(keepends=True)
        self._changes.append((start, end, "".join(f"# {line}" if line.strip() else line for line in lines)))

    def block(self, key: yaml.Node, value: yaml.Node, text: str) -> None:
        """Another text, of several lines, for an entry of a mapping; a comment behind it stays."""
        start, end = value.start_mark.index, self._lines(key, value)[1]
        is_block = isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")
        behind = "" if is_block else self._text[value.end_mark.index : end].strip()
        indent = " " * (key.start_mark.column + 2)
        lines = [f"{indent}{line}".rstrip() for line in text.splitlines()]
        head = f"| {behind}" if behind else "|"
        self._changes.append((start, end, "\n".join([head, *lines]) + "\n"))

    def _lines(self, key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
        """Where the lines of an entry begin and end, without what is blank or a comment behind it."""
        start = self._text.rfind("\n", 0, key.start_mark.index) + 1
        lines = self._text[start : value.end_mark.index].splitlines()
        last = max(n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
        whole = self._text[start:].splitlines(keepends=True)
        return start, start + sum(map(len, whole[: last + 1]))

    def text(self) -> str:
        text = self._text
        for start, end, instead in sorted(self._changes, reverse=True):
            text = text[:start] + instead + text[end:]
        return text
