"""Parses an OpenAPI document, JSON or YAML, and refuses one that would fill the memory.

The file of remote plugins is parsed as the same kind of YAML.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tealagents.domain.models import Json
from tealagents.mistakes import file_reason
from tealagents.tools.errors import ToolsetError

#: values that a document may contain; an alias counts as all the values that it stands for
MAX_VALUES = 1_000_000
#: characters `,`, `:`, `[` and `{` that a document may contain. They are counted before it is parsed, which
#: bounds the memory that parsing takes
MAX_MARKS = 2_500_000
_MERGE = "tag:yaml.org,2002:merge"


def parsed(content: bytes, where: str) -> Json:
    """The document as a JSON object. `ToolsetError`, beginning with `where`, if it cannot be parsed, is too
    large, or is not written for OpenAPI 3."""
    try:
        document = _value(content)
        _count(document, {})
    except _TooManyValues:
        raise ToolsetError(
            f"{where} holds more than {MAX_VALUES:,} values, those of aliases included."
        ) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ToolsetError(f"{where} is neither JSON nor YAML: {document_reason(error)}") from error
    if not isinstance(document, dict):
        raise ToolsetError(f"{where} is not an OpenAPI document.")
    if "swagger" in document:
        raise ToolsetError(f"{where} is written for OpenAPI 2.0 (Swagger). Convert it to OpenAPI 3.")
    if not str(document.get("openapi", "")).startswith("3."):
        raise ToolsetError(f"{where} does not say 'openapi: 3.…'; OpenAPI 3.0 and 3.1 are understood.")
    return document


class _TooManyValues(Exception):
    """The document's values, with aliases written out, would fill the memory."""


def _value(content: bytes) -> Any:
    if sum(map(content.count, (b",", b":", b"[", b"{"))) > MAX_MARKS:
        raise _TooManyValues
    text = content.decode("utf-8-sig")
    # JSON could be read as YAML, but generated JSON may contain a key twice, which `_Yaml` refuses
    return json.loads(text) if text.lstrip().startswith("{") else from_yaml(text)


def from_yaml(text: str) -> Any:
    """The value of a YAML text. Raises YAMLError, ValueError or RecursionError."""
    return yaml.load(text, _Yaml)  # noqa: S506


def document_reason(error: Exception) -> str:
    """Why a file could not be read or parsed, in one line. The text of a YAML error would quote the lines
    around the fault; here they are left out."""
    if isinstance(error, OSError | UnicodeError):
        return file_reason(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f"line {mark.line + 1}: {' '.join(filter(None, (error.context, error.problem)))}"
    return " ".join(str(error).split())


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values a document has with all aliases written out: aliases of aliases multiply, although they
    take no memory yet. `known` holds the counts so far, by the identity of the value."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = MAX_VALUES  # while it is counted: an alias of itself within it would have no end
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    if known[id(value)] > MAX_VALUES:
        raise _TooManyValues
    return known[id(value)]


class _Yaml(yaml.SafeLoader):
    """YAML with JSON's types alone, as OpenAPI uses it: `on`, `no`, `12:30` and dates are texts.

    Keys become texts. A key that is written twice is an error.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        #: keys that `<<` has brought, all mappings together
        self._merged = 0

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in known:
                    raise _fault(key, f"the key {key.value!r} is written twice")
                known.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Adds what `<<` brings: a mapping's own keys win, then those of the mapping that is named first.

        PyYAML's own takes memory without bounds before 6.0.4, and lets the last one win since.
        """
        merged = [value for key, value in node.value if key.tag == _MERGE]
        if not merged:
            return
        node.value = own = [pair for pair in node.value if pair[0].tag != _MERGE]
        known = {_name(key) for key, _ in own}
        brought: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for base in {id(base): base for value in merged for base in _bases(value)}.values():
            self.flatten_mapping(base)
            self._merged += len(base.value)
            if self._merged > MAX_VALUES:
                raise _fault(node, f"<< brings more than {MAX_VALUES:,} keys, all mappings together")
            for pair in base.value:
                brought.setdefault(_name(pair[0]), pair)
        node.value = [pair for name, pair in brought.items() if name not in known] + own

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        return {str(key): value for key, value in super().construct_mapping(node, deep=deep).items()}


def _bases(value: yaml.Node) -> Iterator[yaml.MappingNode]:
    """The mappings that `<<` names, one or a list."""
    for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
        if not isinstance(base, yaml.MappingNode):
            raise _fault(base, "<< needs a mapping")
        yield base


def _name(key: yaml.Node) -> Any:
    """What makes a key the same as another one: its text, as keys become texts."""
    return key.value if isinstance(key, yaml.ScalarNode) else id(key)


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


# the "core schema" of YAML 1.2, and merge keys; PyYAML's own resolvers are those of 1.1
_Yaml.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("merge", r"<<$", ["<"]),
):
    _Yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)
