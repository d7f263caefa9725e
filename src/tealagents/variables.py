"""The variables of the environment and of `.env`, read in the same way for a config and for a store alone.

An empty variable counts as not set, and spaces around a value are removed. Imports `mistakes` only.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dotenv.parser import parse_stream

from tealagents.mistakes import file_reason


@dataclass(frozen=True)
class Variables:
    """All variables that are set, and what is wrong with `.env`."""

    values: dict[str, str] = field(default_factory=dict, repr=False)
    #: of those that `.env` set: the line, counted from 1
    lines: dict[str, int] = field(default_factory=dict)
    #: what is wrong with which line of `.env`; None: with the file as a whole
    mistakes: list[tuple[int | None, str]] = field(default_factory=list)


def read_variables(env: Mapping[str, str], dotenv: Path | None) -> Variables:
    """The environment over `.env`, which need not exist. Its quotes and comments are those of python-dotenv;
    a `${NAME}` in it is not replaced."""
    read = Variables()
    if dotenv is not None:
        _read_dotenv(dotenv, read)
    for name, value in env.items():
        if value.strip():
            read.values[name] = value.strip()
            read.lines.pop(name, None)
    return read


def _read_dotenv(path: Path, read: Variables) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        read.mistakes.append((None, f"cannot be read: {file_reason(error)}"))
        return
    for binding in parse_stream(io.StringIO(text)):
        line = binding.original.line + _blank_lines_before(binding.original.string)
        if binding.error or (binding.key and binding.value is None):
            read.mistakes.append((line, "this is not NAME=value"))
        elif binding.key and binding.value and binding.value.strip():
            read.values[binding.key], read.lines[binding.key] = binding.value.strip(), line


def _blank_lines_before(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")
