"""Two tasks in one session: python demos/sessions/client.py URL"""

import sys

from tealagents.client import Client

with Client(sys.argv[1], token="ada") as agent:
    tea = agent.send("My favourite tea is Assam.", metadata={"topic": "tea"})
    book = agent.send("My favourite book is Emma.", session_id=tea.session_id, metadata={"topic": "book"})

    # a follow-up names its task; the history is in the service
    print(agent.send("What is my favourite tea?", task_id=tea.task_id).output)
    # each task has a history of its own, also within one session
    print(agent.send("What is my favourite tea?", task_id=book.task_id).output)

    session = agent.session(tea.session_id)
    for task in reversed(session.tasks):
        print(f"\n{task.metadata['topic']}: {task.status}")
        for message in agent.messages(task.task_id):
            print(f"  {message.role}: {message.text}")
