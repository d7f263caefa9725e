"""The code plugins of the configs in this folder."""

from tealagents.plugins import Plugin, ToolContext, tool


class Files(Plugin):
    """Files that exist only in memory, so that trying this out does no harm. One folder per user."""

    def __init__(self) -> None:
        self._folders: dict[str, set[str]] = {}

    def _folder(self, user_id: str) -> set[str]:
        return self._folders.setdefault(user_id, {"notes.txt", "holiday.jpg", "draft.md"})

    @tool
    async def list(self, context: ToolContext) -> str:
        """List the user's files."""
        return ", ".join(sorted(self._folder(context.user_id))) or "none"

    @tool
    async def delete(self, context: ToolContext, path: str) -> str:
        """Delete one file."""
        self._folder(context.user_id).discard(path)
        return f"{path} is deleted"


class Shelves(Plugin):
    """The shelves of a very small library."""

    BOOKS = {"whales": "shelf 3, blue spine", "lighthouses": "shelf 1, between the maps"}  # noqa: RUF012

    @tool
    async def find(self, topic: str) -> str:
        """Find the book about a topic."""
        return self.BOOKS.get(topic.lower(), "there is no book about it")
