"""The variables of the environment and of `.env`, and what a `${NAME}` of the file stands for."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tealagents.config.problems import ConfigProblem, KeyPath
from tealagents.mistakes import key_text
from tealagents.options import FromEnvironment
from tealagents.variables import read_variables

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

    def from_dotenv(self) -> Mapping[str, str]:
        """The variables that `.env` brought."""
        return {name: self.variables[name] for name in self.places}

    def problem(self, name: str, message: str) -> ConfigProblem:
        """A problem with the variable `name`, placed in `.env` when that is where it was set."""
        file, line = self.places.get(name, (None, None))
        return ConfigProblem(file, line, key_text((name,)), message)


def read_environment(
    env: Mapping[str, str], dotenv: Path | None, problems: list[ConfigProblem]
) -> Environment:
    """The environment over `.env`, which need not exist; what is wrong with it is added to `problems`."""
    read, file = read_variables(env, dotenv), str(dotenv)
    problems += (ConfigProblem(file, line, "", message) for line, message in read.mistakes)
    return Environment(read.values, {name: (file, line) for name, line in read.lines.items()})


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
