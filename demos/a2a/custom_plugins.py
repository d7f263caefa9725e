"""The garden's tools."""

from tealagents.plugins import Plugin, tool


class Garden(Plugin):
    @tool
    def water(self, plant: str) -> str:
        """Water one plant."""
        return f"the {plant} is watered"

    @tool(requires_hitl=True)
    def cut(self, plant: str) -> str:
        """Cut one plant back."""
        return f"the {plant} is cut"
