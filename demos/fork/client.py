"""One conversation, two futures: python demos/fork/client.py URL"""

import sys

from tealagents.client import Client

with Client(sys.argv[1], token="ada") as agent:
    start = agent.send("My name is Ada, my favourite city is Rome.")
    trip = start.task_id
    by_train = agent.send("My ticket is a train ticket.", task_id=trip)

    # a second future, from before the ticket
    other = agent.fork(trip, checkpoint_id=start.request_id)
    agent.send("My ticket is a plane ticket.", task_id=other.task_id)

    for name, task in (("train", trip), ("plane", other.task_id)):
        print(f"{name}: {agent.send('What is my ticket?', task_id=task).output}")
        print(f"{name}: {agent.send('What is my favourite city?', task_id=task).output}")

    # back to the ticket, and forward again: nothing is erased
    latest = next(iter(agent.checkpoints(trip)))
    agent.rollback(trip, start.request_id)
    print(f"back:  {agent.send('What is my ticket?', task_id=trip).output}")
    agent.rollback(trip, latest.checkpoint_id)
    print(f"again: {agent.send('What is my ticket?', task_id=trip).output}")
    print(
        f"\n{len(list(agent.checkpoints(trip)))} checkpoints, and {len(list(agent.messages(trip)))} messages:"
    )
    for message in agent.messages(trip, checkpoint_id=by_train.request_id):
        print(f"  {message.role}: {message.text}")
