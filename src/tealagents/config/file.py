"""Reading YAML so that every value knows the line and the key it came from.

YAML 1.1 as PyYAML reads it, with three differences that a config wants: nothing becomes a date, `12:30`
and `007` stay text, and `1e-3` is a number. `version` keeps its spelling whatever it looks like: `0.10`
is not `0.1`. A key without a value counts as not written.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml

from tealagents.config.environment import usable
from tealagents.config.problems import ConfigError, ConfigProblem, KeyPath
from tealagents.mistakes import file_reason, key_text

_MAX_VALUES = 100_000  # aliases of aliases multiply: nine lines can stand for a billion values
_TAG = "tag:yaml.org,2002:"
_VERSION: KeyPath = ("version",)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own way to say it


_TRUE = ("yes", "true", "on")
_FALSE = ("no", "false", "off")
for _name, _pattern, _first in (
    ("bool", "|".join(f"{w}|{w.title()}|{w.upper()}" for w in (*_TRUE, *_FALSE)), "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass
class Document:
    """A config file as plain values, and the line of each key."""

    name: str  #: the path as the user gave it
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    #: what variables say instead of the file, and where each is set
    overridden: dict[KeyPath, ConfigProblem] = field(default_factory=dict)

    #: keys whose `${NAME}` is not set, where that is no mistake
    unset: set[KeyPath] = field(default_factory=set)

    @property
    def directory(self) -> Path:
        """Where the file lies. Links are not followed: mounted config maps are links to elsewhere."""
        return Path(os.path.abspath(self.name)).parent

    def line(self, path: KeyPath) -> int:
        """The line of the key, or of the nearest one around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: KeyPath, message: str) -> ConfigProblem:
        """A problem with a key: at its line, or at the variable that was put over it."""
        for length in range(len(path), 0, -1):
            if (variable := self.overridden.get(path[:length])) is not None:
                return replace(variable, message=message)
        return ConfigProblem(self.name, self.line(path), key_text(path), message)

    def get(self, path: KeyPath) -> Any:
        """The value at the path, or None."""
        value: Any = self.data
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def put(self, path: KeyPath, value: Any) -> None:
        """Sets the value, making the mappings around it; what is no mapping stays, to be found wrong."""
        section: dict[str | int, Any] = cast(dict[str | int, Any], self.data)
        for part in path[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                return
        section[path[-1]] = value

    def remove(self, path: KeyPath) -> None:
        section = self.get(path[:-1])
        if isinstance(section, dict):
            section.pop(path[-1], None)

    def replace(self, path: KeyPath, value: Any) -> None:
        """Another value for a key or an item of a list that is there; None: none, where it is a key."""
        section = self.get(path[:-1])
        if value is None:
            self.remove(path)
        elif isinstance(section, dict | list):
            section[cast(Any, path[-1])] = value

    def unset_around(self, path: KeyPath) -> KeyPath | None:
        """The key whose `${NAME}` is not set, at the path or around it."""
        return next((path[:n] for n in range(len(path), 0, -1) if path[:n] in self.unset), None)

    def is_open(self, path: KeyPath) -> bool:
        """Whether a `${NAME}` that is not set stands at the path, below it or around it."""
        return self.unset_around(path) is not None or any(key[: len(path)] == path for key in self.unset)

    def values(self) -> Iterator[tuple[KeyPath, Any]]:
        """Every value that is neither a mapping nor a list, with its path."""
        return _leaves(self.data, ())


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(item, (*path, key))


def read_document(path: Path, problems: list[ConfigProblem]) -> Document:
    """The file's content. Duplicate keys and values that YAML cannot say are added to `problems`.

    Raises ConfigError when there is no mapping to speak of: no such file, no YAML, a list.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        hint = "; name the config file in it" if isinstance(error, IsADirectoryError) else ""
        raise ConfigError(
            [ConfigProblem(str(path), None, "", f"cannot be read: {file_reason(error)}{hint}")]
        ) from None
    try:
        root = yaml.compose(text, Loader=_Loader)
        return _Values(str(path), problems).document(root)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(path, text, error)]) from None
    except RecursionError:
        raise ConfigError([ConfigProblem(str(path), None, "", "is nested too deeply")]) from None
    except (ValueError, OverflowError):  # PyYAML lets them out for some bad escapes and directives
        raise ConfigError(
            [ConfigProblem(str(path), None, "", "is not YAML: bad escape or directive")]
        ) from None


def _syntax_problem(path: Path, text: str, error: yaml.YAMLError) -> ConfigProblem:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return ConfigProblem(
            str(path), line, "", f"is not YAML: the character U+{error.character:04X} is not allowed"
        )
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        what = " ".join(filter(None, (error.context, error.problem)))
        hint = '; within {…} and […] write "${NAME}" in quotes' if "'{'" in what else ""
        return ConfigProblem(str(path), mark.line + 1, "", f"is not YAML: {what}{hint}")
    return ConfigProblem(str(path), None, "", "is not YAML")


@dataclass
class _Values:
    """Turns PyYAML's nodes into plain values, noting lines."""

    file: str
    problems: list[ConfigProblem]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    around: list[yaml.Node] = field(default_factory=list)  # the nodes that the current one lies in
    count: int = 0

    def document(self, root: yaml.Node | None) -> Document:
        if root is None:
            raise ConfigError([ConfigProblem(self.file, None, "", "is empty")])
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                [ConfigProblem(self.file, _line(root), "", "must be a mapping (keys and values)")]
            )
        return Document(self.file, self.mapping(root, ()), self.lines)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > _MAX_VALUES:
            raise ConfigError(
                [ConfigProblem(self.file, _line(node), "", f"has more than {_MAX_VALUES} values")]
            )
        if node in self.around:
            self.problem(node, path, "contains itself")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            self.problem(node, path, f"cannot be read as {node.tag.removeprefix(_TAG)}")
        self.around.append(node)
        items = self.mapping(node, path) if isinstance(node, yaml.MappingNode) else self.list(node, path)
        self.around.pop()
        return items

    def list(self, node: yaml.Node, path: KeyPath) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            self.lines[*path, index] = _line(item)
            items.append(self.value(item, (*path, index)))
        return items

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        items: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif (key := self.key(key_node, path)) is None:
                continue
            elif key in first:
                self.problem(key_node, (*path, key), f"is written twice; first on line {first[key]}")
            else:
                first[key] = self.lines[*path, key] = _line(key_node)
                items[key] = self.value(value_node, (*path, key))
        for base in merged:
            self.merge(base, items, path)
        return {key: item for key, item in items.items() if item is not None}

    def merge(self, base: yaml.Node, items: dict[str, Any], path: KeyPath) -> None:
        """What `<<: *base` brings: keys that the mapping does not have itself."""
        if not isinstance(base, yaml.MappingNode):
            self.problem(base, path, "<< needs a mapping")
            return
        own = {path_: line for path_, line in self.lines.items() if path_[: len(path)] == path}
        brought = self.value(base, path)
        self.lines |= own
        for key, item in (brought or {}).items():
            items.setdefault(key, item)

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode) and usable(node.value):
            return str(node.value)
        self.problem(node, path, "a key must be plain text")
        return None

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text: str = node.value
        if not usable(text):
            self.problem(node, path, "contains an invalid character (NUL or half a surrogate pair)")
            return None
        if path == _VERSION and node.tag != _TAG + "null":
            return text
        kind = node.tag.removeprefix(_TAG)
        try:
            return _scalar(kind, text)
        except ValueError:
            wanted = "int of 64 bits; a text needs quotes" if kind == "int" else kind
            self.problem(node, path, f"cannot be read as {wanted}")
            return None

    def problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.problems.append(ConfigProblem(self.file, _line(node), key_text(path), message))


def _scalar(kind: str, text: str) -> Any:
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "int":
            number = int(text.replace("_", ""), 0)
            if number.bit_length() > 64:  # Python reads hexadecimal ones that it refuses to write as text
                raise ValueError(kind)
            return number
        case "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case "bool" if text.lower() in _TRUE or text.lower() in _FALSE:
            return text.lower() in _TRUE
    raise ValueError(kind)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
