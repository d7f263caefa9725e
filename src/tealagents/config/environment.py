"""The variables of the environment and of `.env`, and what a `${NAME}` of the file stands for."""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from tealagents.config.problems import ConfigProblem, KeyPath
from tealagents.mistakes import file_reason, key_text
from tealagents.options import FromEnvironment

_REFERENCE = re.compile(
    r"""(?P<escaped> \$? ) \$ \{
        (?P<name> [A-Za-z_][A-Za-z0-9_]* )
        (?P<operator> :?[-+?=] [^}]* )?   # what a shell would take: ${NAME:-default}
    \}""",
    re.VERBOSE,
)

#: What no store can keep and no terminal can print: NUL, and halves of a character.
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")


class Unset(ValueError):
    """A text refers to a variable that is not set."""


@dataclass(frozen=True)
class Environment:
    """All variables that are set; an empty one counts as unset."""

    variables: Mapping[str, str]
    places: Mapping[str, tuple[str, int]]  #: file and line of those that `.env` brought

    def get(self, name: str) -> FromEnvironment | None:
        value = self.variables.get(name)
        return None if value is None else FromEnvironment(value)

    def problem(self, name: str, message: str) -> ConfigProblem:
        """A problem with the variable `name`, placed in `.env` when that is where it was set."""
        file, line = self.places.get(name, (None, None))
        return ConfigProblem(file, line, key_text((name,)), message)


def read_environment(
    env: Mapping[str, str], dotenv: Path | None, problems: list[ConfigProblem]
) -> Environment:
    """The environment over `.env`, which need not exist. Its quotes and comments are those of python-dotenv;
    a `${NAME}` in it is not replaced."""
    variables: dict[str, str] = {}
    places: dict[str, tuple[str, int]] = {}
    if dotenv is not None:
        for name, value, line in _read_dotenv(dotenv, problems):
            variables[name], places[name] = value, (str(dotenv), line)
    for name, value in env.items():
        if value.strip():
            variables[name] = value.strip()
            places.pop(name, None)
    return Environment(variables, places)


def _read_dotenv(path: Path, problems: list[ConfigProblem]) -> Iterator[tuple[str, str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        problems.append(ConfigProblem(str(path), None, "", f"cannot be read: {file_reason(error)}"))
        return
    for binding in parse_stream(io.StringIO(text)):
        line = binding.original.line + _blank_lines_before(binding.original.string)
        if binding.error or (binding.key and binding.value is None):
            problems.append(ConfigProblem(str(path), line, "", "this is not NAME=value"))
        elif binding.key and binding.value and binding.value.strip():
            yield binding.key, binding.value.strip(), line


def _blank_lines_before(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")


def is_literal(text: str) -> bool:
    """Whether the text says all there is, that is, refers to no variable."""
    return all(reference["escaped"] for reference in _REFERENCE.finditer(text))


def usable(text: str) -> bool:
    return _UNUSABLE.search(text) is None


def expand(text: str, environment: Environment) -> str:
    """The text with each `${NAME}` replaced by the variable, and each `$${NAME}` by the text `${NAME}`.

    Replacements are not searched again. Raises ValueError that names the variable.
    """

    def replacement(reference: re.Match[str]) -> str:
        if reference["escaped"]:
            return reference[0][1:]
        name = reference["name"]
        if reference["operator"]:
            raise ValueError(
                f"a default within ${{{name}}} is not supported; write ${{{name}}} and set {name}"
            )
        value = environment.get(name)
        if value is None:
            raise Unset(f"the variable {name} is not set; for the text ${{{name}}} itself write $${{{name}}}")
        if not usable(value):
            raise ValueError(f"the variable {name} is not valid text")
        return value

    expanded, count = _REFERENCE.subn(replacement, text)
    return FromEnvironment(expanded) if count else text


def expand_all(
    value: Any, environment: Environment, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, ValueError]]:
    """Expands every text within `value`, in place, and yields what is wrong with which of them.

    What a variable brought already is not searched again.
    """
    entries = enumerate(value) if isinstance(value, list) else value.items()
    for key, item in list(entries):
        if isinstance(item, list | dict):
            yield from expand_all(item, environment, (*path, key))
        elif isinstance(item, str) and not isinstance(item, FromEnvironment):
            try:
                value[key] = expand(item, environment)
            except ValueError as error:
                yield (*path, key), error
