"""Files that exist only in memory, so that trying this out does no harm. One folder per user."""

from tealagents.plugins import Plugin, ToolContext, tool


class Files(Plugin):
    def __init__(self) -> None:
        self._folders: dict[str, set[str]] = {}

    def _folder(self, user_id: str) -> set[str]:
        return self._folders.setdefault(user_id, {"draft.md", "holiday.jpg", "notes.txt"})

    @tool
    async def list(self, context: ToolContext) -> str:
        """List the user's files."""
        return ", ".join(sorted(self._folder(context.user_id))) or "none"

    @tool
    async def delete(self, context: ToolContext, path: str) -> str:
        """Delete one file."""
        self._folder(context.user_id).discard(path)
        return f"{path} is deleted"
