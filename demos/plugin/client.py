"""Questions that need a tool: python demos/plugin/client.py URL"""

import sys

from tealagents.client import Client, Final, ToolCall, ToolResult

with Client(sys.argv[1], token="ada") as agent:
    for question in ("Where is the book about whales?", "And the one about volcanoes?"):
        print(question)
        for event in agent.stream(question):
            if isinstance(event, ToolCall):
                print(f"  {event.tool} {event.arguments}")
            elif isinstance(event, ToolResult):
                print(f"  {'failed' if event.is_error else 'said'}: {event.output}")
            elif isinstance(event, Final):
                print(f"  {event.answer.output} {event.answer.extra_data or ''}")
