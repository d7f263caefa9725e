"""The tools of the agent whose exchange is recorded."""

import asyncio

from tealagents.plugins import Plugin, ToolContext, tool


class Shell(Plugin):
    @tool
    async def delete(self, context: ToolContext, path: str) -> str:
        """Delete one file."""
        context.add_extra_data("deleted", path)
        return f"deleted {path}"

    @tool
    def look(self, path: str) -> str:
        """Look at one file."""
        if path == "/nowhere":
            raise FileNotFoundError(path)
        return f"{path} holds nothing of interest"

    @tool
    async def wait(self) -> str:
        """Wait until the request is canceled."""
        await asyncio.Event().wait()
        return "never"
