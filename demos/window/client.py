"""A thousand turns in a small window: python demos/window/client.py URL"""

import sys

from tealagents.client import Client

TURNS = 1000

with Client(sys.argv[1], token="ada") as agent:
    answer = agent.send("My name is Ada.")
    task = answer.task_id
    largest = 0
    for turn in range(2, TURNS):
        answer = agent.send(f"This is turn {turn}.", task_id=task)
        if turn == 50:
            print(f"turn {turn}: the model was sent {answer.usage.prompt_tokens} tokens")
    print(f"turn {turn}: the model was sent {answer.usage.prompt_tokens} tokens")
    print(agent.send("What is my name?", task_id=task).output)

    # what is stored is whole; what the model was not sent is in the trace
    print(f"{sum(1 for _ in agent.messages(task))} messages are stored")
    steps = list(agent.trace(task))
    sent = [step.input["messages"] for step in steps if step.kind == "model"]
    print(f"the model was never sent more than {max(sent)} messages at once")
    summaries = [step for step in steps if step.kind == "reduction" and step.name == "summarize"]
    print(f"{len(summaries)} summaries were made; the last one: {summaries[-1].output['summary']}")
