"""A message of text and a picture: python demos/images/client.py URL"""

import sys
from pathlib import Path

from tealagents.client import Client, Image, Text

picture = Path(__file__).with_name("teapot.png")

with Client(sys.argv[1], token="ada") as agent:
    answer = agent.send([Text("What is in this picture?"), Image.of_file(picture)])
    print(answer.output)

    # the picture is part of the task's history: a follow-up is about it, too
    for message in agent.messages(answer.task_id):
        print(message.role, [item["content_type"] for item in message.raw["items"]])
