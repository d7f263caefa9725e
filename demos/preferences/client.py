"""Remembered in a new session: python demos/preferences/client.py URL"""

import sys

from tealagents.client import Client


def shown(agent: Client, task_id: str) -> None:
    """What the model saw besides the conversation."""
    for step in agent.trace(task_id):
        if step.kind == "context":
            print(f"  {step.name}: {step.output['instructions']}")


with Client(sys.argv[1], token="ada") as ada, Client(sys.argv[1], token="eve") as eve:
    monday = ada.send("I prefer oat milk. My favourite coffee is Guji. Hello!")
    print(f"Monday, Ada: {monday.output}")

    tuesday = ada.send("What is my favourite coffee?")
    assert tuesday.session_id != monday.session_id
    print(f"\nTuesday, Ada: {tuesday.output}")
    shown(ada, tuesday.task_id)

    print(f"\nTuesday, Eve: {eve.send('What is my favourite coffee?').output}")

    # what was learned in a task goes with it
    ada.delete_task(monday.task_id)
    print(f"\nWednesday, Ada: {ada.send('What is my favourite coffee?').output}")
