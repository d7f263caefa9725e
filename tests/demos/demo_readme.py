"""What a demo's README promises: which servers to start, what to type, and what is then seen.

Three kinds of fenced blocks are understood:

    sh          one command a line that is left running, in a terminal of its own (or `export NAME=value`)
    console     what is typed behind `$ `, and below it what is seen
    chat        the same of `tealagents chat`: behind `› ` and behind a question's `? ` is what is typed
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\bcall_[0-9a-f]{24}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00| UTC)")


@dataclass(frozen=True)
class Typed:
    """A command, its continuation lines included, and what is seen below it."""

    command: str
    output: str


@dataclass(frozen=True)
class Block:
    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of an `sh` block, without comments."""
        return [line for line in joined(self.text).splitlines() if line.strip() and not line.startswith("#")]

    @property
    def typed(self) -> list[Typed]:
        """What is typed into a `console` block, one after the other."""
        parts = re.split(r"^\$ ", joined(self.text), flags=re.MULTILINE)[1:]
        return [Typed(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def joined(text: str) -> str:
    """Lines that end in a backslash, put together."""
    return re.sub(r"\s*\\\n\s*", " ", text)


def blocks(readme: Path) -> list[Block]:
    return [Block(kind, text) for kind, text in _BLOCK.findall(readme.read_text())]


class Normal:
    """Makes two runs comparable: ids get numbers as they appear, times lose their value."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        numbered = _ID.sub(lambda found: f"<id {self._number(found[0])}>", text)
        lines = [line.rstrip() for line in _TIME.sub("<time>", numbered).splitlines()]
        return "\n".join(lines).strip()

    def _number(self, identifier: str) -> int:
        return self._numbers.setdefault(identifier, len(self._numbers) + 1)


def answers_in_chat(lines: Sequence[str]) -> list[str]:
    """What the user types in a `chat` block, in order."""
    typed = []
    for line in lines:
        if line.startswith("› "):
            typed.append(line[2:])
        elif found := re.match(r"(?:\[a\]pprove.*\?|reason, .*:) ?(.*)$", line):
            typed.append(found[1])
    return typed
