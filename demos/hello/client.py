"""Two messages to one task: python demos/hello/client.py URL"""

import sys

from tealagents.client import Client

with Client(sys.argv[1], token="ada") as agent:
    answer = agent.send("My name is Ada.")
    print("agent:", answer.output)

    answer = agent.send("What is my name?", task_id=answer.task_id)
    print("agent:", answer.output)
