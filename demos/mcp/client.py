"""A question that needs the MCP server: python demos/mcp/client.py URL"""

import sys

from tealagents.client import Client, Final, ToolCall, ToolResult

with Client(sys.argv[1], token="ada") as agent:
    for event in agent.stream("What do I need for pancakes, for the two of us?"):
        if isinstance(event, ToolCall):
            print(f"{event.tool} {event.arguments}")
        elif isinstance(event, ToolResult):
            print(f"  said: {event.output}")
        elif isinstance(event, Final):
            print(event.answer.output)
