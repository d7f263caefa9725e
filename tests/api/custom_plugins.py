"""The tools of the agents under test."""

import asyncio

from tealagents.plugins import Plugin, ToolContext, tool

#: what has been deleted, in order, in this process
deleted: list[str] = []


class Shell(Plugin):
    @tool
    async def delete(self, context: ToolContext, path: str) -> str:
        """Delete one file."""
        deleted.append(path)
        context.add_extra_data("deleted", path)
        return f"deleted {path}"

    @tool
    def look(self, path: str) -> str:
        """Look at one file."""
        return f"{path} holds nothing of interest"

    @tool
    async def wait(self, seconds: float) -> str:
        """Wait a while."""
        await asyncio.sleep(seconds)
        return "waited"
