"""The tools of this agent. The file is found because it is next to the config."""

from typing import Literal

from tealagents.plugins import Plugin, ToolContext, ToolFailed, tool

BOOKS = {"whales": "shelf 3, blue spine", "lighthouses": "shelf 1, between the maps"}


class Shelves(Plugin):
    """The shelves of a very small library."""

    @tool
    async def find(
        self, context: ToolContext, topic: str, language: Literal["en", "de"] = "en"
    ) -> dict[str, str]:
        """Find the book about a topic.

        Args:
            topic: one word, in lower case
            language: the language it should be in
        """
        place = BOOKS.get(topic)
        if place is None:
            raise ToolFailed(f"There is no book about {topic}.")
        context.add_extra_data("looked_up", topic)
        return {"topic": topic, "language": language, "place": place}
