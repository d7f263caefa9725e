"""What is wrong with a config, said so that the reader can fix it without looking anything up."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]  #: ("spec", "agent", "mcp_servers", 0, "url")
Mistake = tuple[KeyPath, str]  #: where, and what is wrong there


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong, and where."""

    file: str | None  #: the file as the user named it; None when a variable of the environment is at fault
    line: int | None  #: counted from 1
    key: str  #: "spec.agent.model" or "TA_LIMITS__MAX_TOOL_ROUNDS"; empty for the file as a whole
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        text = ": ".join(part for part in (place, self.key, self.message) if part)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(Exception):
    """The config cannot be used. Printed, it is one line a problem."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))


def key_text(path: Iterable[str | int]) -> str:
    """The path as it is written in messages: spec.agent.mcp_servers[0].url, odd keys in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w$-]+", part) else json.dumps(part)
            text += f".{name}" if text else name
    return text


def reason(error: OSError | ValueError) -> str:
    """Why a file could not be read, without the path, which the message has already."""
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    return str(error)
