"""An MCP server of our own, with the official SDK. The agent starts it and speaks to it over stdio."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("kitchen")
RECIPES = {"pancakes": "2 eggs, 250 g flour, half a litre of milk"}


@server.tool()
def recipe(dish: str, servings: int = 4) -> str:
    """The ingredients of a dish."""
    return f"{dish} for {servings}: {RECIPES.get(dish, 'unknown')}"


if __name__ == "__main__":
    server.run("stdio")
