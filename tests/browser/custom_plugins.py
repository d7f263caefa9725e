"""The tools of the agent whose console is looked at."""

import asyncio
import enum
from pathlib import Path
from typing import Literal

from tealagents.domain.errors import NeedsAuthorization
from tealagents.plugins import Plugin, tool


class Level(enum.Enum):
    """How much there is of it."""

    LOW = "low"
    HIGH = "high"


class Files(Plugin):
    @tool
    async def list(self) -> str:
        """List the files."""
        return "draft.md, holiday.jpg, notes.txt"

    @tool
    async def delete(self, path: str, force: bool = False) -> str:
        """Delete one file."""
        return f"{path} is deleted"

    @tool
    async def rotate(
        self,
        path: str,
        keep: int = 5,
        how: Literal["move", "copy"] = "move",
        quietly: bool = False,
    ) -> str:
        """Rotate a file."""
        return f"{path} {keep} {how} {quietly}"

    @tool
    async def log(self, level: Level, least: Level | None = None) -> str:
        """Set what is logged."""
        return f"{level.value} {least and least.value}"

    @tool
    async def echo(self, text: str) -> str:
        """Say the same."""
        return text


class Gate(Plugin):
    @tool
    async def wait(self, path: str) -> str:
        """Wait until there is a file at the path: until the test lets the answer continue."""
        while not Path(path).exists():
            await asyncio.sleep(0.02)
        return "open"

    @tool
    async def enter(self, path: str, name: str) -> str:
        """Go in, which needs the user's authorization until there is a file at the path."""
        if not Path(path).exists():
            raise NeedsAuthorization("gate", "https://gate.example/consent", ("gate.see", "gate.pass"))
        return f"{name} is in"
