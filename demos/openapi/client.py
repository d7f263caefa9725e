"""A message that needs two calls of the service: python demos/openapi/client.py URL"""

import sys

from tealagents.client import Client, Final, ToolCall, ToolResult

with Client(sys.argv[1], token="ada") as agent:
    for event in agent.stream("Is anything dry? Then water it."):
        if isinstance(event, ToolCall):
            print(f"{event.tool} {event.arguments}")
        elif isinstance(event, ToolResult):
            print(f"  said: {event.output}")
        elif isinstance(event, Final):
            print(event.answer.output)
