"""A tool call that is approved with other arguments: python demos/approval/client.py URL"""

import sys

from tealagents.client import Client, Decision

with Client(sys.argv[1], token="ada") as agent:
    answer = agent.send('call Files-delete {"path": "notes.txt"}')
    assert answer.approval is not None
    print(answer.status, "-", answer.approval.message)
    (call,) = answer.approval.tool_calls
    print("asked for:", call.tool, call.arguments)

    # the person looks at it, and has another file in mind
    edited = Decision(call.id, "approve", {"path": "draft.md"})
    answer = agent.resume(answer.approval, "reject", decisions=[edited])
    print(answer.status, "-", answer.output)

    print(agent.send("call Files-list {}", task_id=answer.task_id).output)
    for step in agent.trace(answer.task_id):
        if step.kind == "approval":
            print("trace:", step.kind, step.name)
