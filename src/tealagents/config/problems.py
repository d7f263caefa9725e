"""What is wrong with a config, said so that the reader can fix it without looking anything up."""

from collections.abc import Sequence
from dataclasses import dataclass

from tealagents.mistakes import printable

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
        return printable(": ".join(part for part in (place, self.key, self.message) if part))


class ConfigError(Exception):
    """The config cannot be used. Printed, it is one line a problem; a traceback shows the warnings, too."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def warnings(self) -> Sequence[str]:
        """What may be the reason for a problem, such as a mistyped variable: the notes of the exception."""
        return getattr(self, "__notes__", ())
