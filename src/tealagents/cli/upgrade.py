"""`tealagents upgrade`: converts a file of the earlier platform to `tealagents/v1alpha1`."""

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
from tealagents.config.problems import KeyPath
from tealagents.config.skagents import V1, EarlierConfig
from tealagents.domain.models import Json
from tealagents.mistakes import file_reason, key_text
from tealagents.tools.input_types import INPUTS

_CLIENTS = """\
What changes for clients:
  request    {"items": [{"content_type": "text", "content": "…"}]} in place of chat_history
  follow-up  the service keeps the conversation: send the answer's task_id with the next message
  answer     content.output in place of output_raw; extra_data is an object, without items; ids are UUIDs
  events     each with an id; the last one is final-response, approval-required or error
  callers    Authorization: Bearer … on every call, as TA_AUTH requires; gateway is for earlier files
  gone       /stream (the WebSocket), output_pydantic"""
_LITERAL = r"(?:[Tt]rue|[Ff]alse|[Nn]one)\b"
_REPLACEABLE = re.compile(
    rf"\{{#(?s:.*?)#\}}|\{{\{{-?\s*(?P<name>(?!{_LITERAL})[^\W\d]\w*(?:\.\w+)*)\s*-?\}}\}}"
)
_BY_HAND = "write that part in another way first, or upgrade the file by hand"
_CODE = re.compile(r"\{[{%#](?s:.*?)(?:[}%#]\}|$)")


class NotUpgraded(ValueError):
    """A file that must be converted by hand. The text says why, and what to do."""


def upgrade_command(
    file: Annotated[Path, typer.Argument(help="The skagents/v1 or skagents/v2alpha1 file.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The new file; by default NAME.v1alpha1.yaml next to it."
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
        warn(*error.warnings)
        raise fail(*map(str, error.problems)) from None
    if not isinstance(config, EarlierConfig):
        raise fail(f"{file} is already {config.api_version}")
    target = output or file.with_suffix(f".v1alpha1{file.suffix}")
    try:
        if target.exists() and target.resolve() != file.resolve():
            raise fail(f"{target} exists; name another with --output")
        before = _text(file)
        after = upgraded(before, config)
        _write(target, after)
    except NotUpgraded as error:
        raise fail(f"{file}: {error}") from None
    except OSError as error:
        raise fail(f"{target}: cannot be written: {file_reason(error)}") from None
    _show(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), str(file), str(target), lineterm="", n=1
        )
    )
    warn(*notes(config, target))
    print(f"\n{_CLIENTS}\n\nWritten: {target}")


def _text(file: Path) -> str:
    """The text of the file, with its line ends as they are."""
    if not file.is_file():  # `load` has read it already, and there is nothing left to read
        raise NotUpgraded("is no regular file, and can be read only once: save it to a file first")
    return file.read_bytes().decode("utf-8-sig")


def _write(target: Path, text: str) -> None:
    """Writes a file atomically: it appears, or replaces an existing one, only once it is complete."""
    target = target.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_bytes(text.encode())
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
    """What the user has to review."""
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
    # `.env` has been read; a gateway is named above
    environment = {k: v for k, v in config.environment.items() if (k, v) != ("TA_AUTH", "gateway")}
    try:
        load(target, env=environment, dotenv=None, unset=[])
    except ConfigError as error:
        yield from map(str, error.problems)


# --- the text ------------------------------------------------------------------------------------


def upgraded(text: str, config: EarlierConfig) -> str:
    """The text of the file, converted to `tealagents/v1alpha1`.

    Raises `NotUpgraded` if a human must decide, or if the file's layout cannot be edited in place.
    """
    root = yaml.compose(text)
    assert root is not None
    edit, meant = _Edit(text), _values(text)
    edit.value(_entry_at(root, ("apiVersion",))[1], API_VERSIONS[0])
    meant["apiVersion"] = API_VERSIONS[0]
    if config.api_version == V1:
        edit.value(_entry_at(root, ("service_name",))[0], "name")
        _rename(meant, "service_name", ("name",))
    for key in ("input_type", "output_type"):
        if key in meant:
            edit.comment(root, (key,))
            del meant[key]
    if config.tasks:
        _merge_tasks(edit, config, root, meant)
    after = edit.text()
    _compare(after, meant)
    return after


def _values(text: str) -> Json:
    """The content of a YAML file: mappings, lists, and every other value as its text."""
    said: Json = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it only makes texts, lists and mappings
    return said


def _compare(text: str, meant: Json) -> None:
    """Raises `NotUpgraded` if the content of the new text differs from what is `meant`."""
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
        raise NotUpgraded(f"the result would have another value at {place}: {_BY_HAND}")


def _difference(said: Any, meant: Any) -> KeyPath:
    """The path to the first key at which two values differ."""
    if isinstance(said, dict) and isinstance(meant, dict):
        for key in (*meant, *said):
            if said.get(key) != meant.get(key):
                return (key, *_difference(said.get(key), meant.get(key)))
    return ()


def _merge_tasks(edit: "_Edit", config: EarlierConfig, root: yaml.Node, meant: Json) -> None:
    """Converts a sequence of tasks to one agent, whose system prompt contains the tasks."""
    if len(config.agents) > 1:
        raise NotUpgraded(
            f"its tasks are done by {len(config.agents)} agents, and a file of {API_VERSIONS[0]} has one: "
            "make a file of each, or keep this one as it is"
        )
    spec = _entry_at(root, ("spec",))[1]
    key, agents = _entry_at(spec, ("spec", "agents"))
    tasks = _entry_at(spec, ("spec", "tasks"))[1].value
    edit.value(_entry_at(root, ("kind",))[1], "Agent")
    edit.value(key, "agent")
    edit.dash(agents, ("spec", "agents"))
    edit.comment(spec, ("spec", "tasks"))
    steps = _steps([_task(tasks[task.place], ("spec", "tasks", task.place)) for task in config.tasks])
    agent, place = agents.value[0], ("spec", "agents", 0, "system_prompt")
    prompt = f"{_entry_at(agent, place)[1].value.strip()}\n\n{steps}"
    edit.block(agent, prompt, place)
    _rename(meant["spec"], "agents", ("spec", "agent"))
    [own] = meant["spec"]["agent"]
    del meant["spec"]["tasks"]
    meant["spec"]["agent"] = {**own, "system_prompt": f"{prompt}\n"}
    meant["kind"] = "Agent"


def _rename(meant: Json, key: str, place: KeyPath) -> None:
    """Gives an entry of a mapping another key. In the file, its new path is `place`."""
    new = str(place[-1])
    if new in meant:
        raise NotUpgraded(f"{key} becomes {new}, and there is already {key_text(place)}: remove it first")
    meant[new] = meant.pop(key)


def _task(node: yaml.Node, place: KeyPath) -> tuple[str, str]:
    """The name and the instructions of a task, as in the file."""
    name, instructions = (_entry_at(node, (*place, key))[1].value for key in ("name", "instructions"))
    return name, instructions


def _steps(tasks: Sequence[tuple[str, str]]) -> str:
    """The names and instructions of tasks as a part of a system prompt."""
    texts = [_plain(name, instructions) for name, instructions in tasks]
    if len(texts) == 1:
        return texts[0]
    steps = [f"{n}. {name}: {text}" for n, ((name, _), text) in enumerate(zip(tasks, texts, strict=True), 1)]
    return "Do these tasks one after the other, and answer with the result of the last:\n" + "\n".join(steps)


def _plain(name: str, instructions: str) -> str:
    """Instructions with words in place of their `{{ fields }}`, and without comments."""

    def said(part: re.Match[str]) -> str:
        if (name := part["name"]) is None:
            return ""
        return f"(the result of {name[1:]})" if name.startswith("_") else f"(the user's {name})"

    text = _REPLACEABLE.sub(said, instructions).strip()
    if code := _CODE.search(text):
        more = f"do more than name fields, in {shorten(code[0], 80, placeholder=' …')}"
        raise NotUpgraded(f"the instructions of {name} {more}: write the system_prompt by hand")
    return text


def _entry_at(mapping: yaml.Node, place: KeyPath) -> tuple[yaml.Node, yaml.Node]:
    """The key and the value of a mapping's entry. Its path in the file is `place`."""
    for key, value in mapping.value:
        if key.value == place[-1]:
            return key, value
    raise NotUpgraded(f"{key_text(place)} is merged in with <<: write it out first")


class _Edit:
    """Edits a YAML text at the positions of its nodes. Everything else stays as it is, also comments."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line_end = "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"
        #: start, end and replacement
        self._changes: list[tuple[int, int, str]] = []

    def value(self, node: yaml.Node, text: str) -> None:
        """Replaces a scalar."""
        self._changes.append((node.start_mark.index, node.end_mark.index, text))

    def dash(self, items: yaml.Node, place: KeyPath) -> None:
        """Makes the first item of a list the value of the list's key, by removing its dash."""
        self._require_block_style(items, place)
        start = items.start_mark.index
        self._changes.append((start, start + 1, " "))

    def comment(self, mapping: yaml.Node, place: KeyPath) -> None:
        """Turns the lines of an entry into comments."""
        self._require_block_style(mapping, place[:-1])
        start, end = self._lines(*_entry_at(mapping, place), place)
        lines = self._text[start:end].splitlines(keepends=True)
        self._changes.append((start, end, "".join(f"# {line}" if line.strip() else line for line in lines)))

    def block(self, mapping: yaml.Node, text: str, place: KeyPath) -> None:
        """Replaces an entry's value by a block of several lines; a comment after the value stays."""
        self._require_block_style(mapping, place[:-1])
        key, value = _entry_at(mapping, place)
        start, end = value.start_mark.index, self._lines(key, value, place)[1]
        behind = self._comment(value)
        indent = " " * (key.start_mark.column + 2)
        lines = [indent + line if line else "" for line in text.split("\n")]
        head = f"| {behind}" if behind else "|"
        self._changes.append((start, end, "".join(f"{line}{self._line_end}" for line in (head, *lines))))

    def _comment(self, value: yaml.Node) -> str:
        """The comment on the line on which a value ends, or a block scalar begins; empty if there is none."""
        is_block = isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")
        mark = value.start_mark if is_block else value.end_mark
        line = self._text[mark.index :].partition("\n")[0]
        return line[line.index("#") :].rstrip() if "#" in line else ""

    def _require_block_style(self, node: yaml.Node, place: KeyPath) -> None:
        """Raises `NotUpgraded` for a mapping or list in brackets, whose entries share lines."""
        if isinstance(node, yaml.CollectionNode) and node.flow_style:
            brackets = "[…]" if isinstance(node, yaml.SequenceNode) else "{…}"
            where = key_text(place) if place else "the file"
            raise NotUpgraded(f"{where} is written in {brackets}: write it as a block first")

    def _lines(self, key: yaml.Node, value: yaml.Node, place: KeyPath) -> tuple[int, int]:
        """The start and end of an entry's lines, without blank lines and comments after it."""
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
