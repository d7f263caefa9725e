"""A request in the background: python demos/background/client.py URL"""

import sys
import time

from tealagents.client import Client, Delta, Final

with Client(sys.argv[1], token="ada") as agent:
    accepted = agent.background("pieces-20@50ms, please")
    status = accepted.status
    print(status)

    while status == "Running":  # polling; agent.wait(request_id) does just this
        time.sleep(0.2)
        status = agent.request(accepted.request_id).status
    print(status)
    print(agent.request(accepted.request_id).output)

    # or following: also afterwards, from the first event
    events = list(agent.follow(accepted.request_id))
    print(sum(isinstance(event, Delta) for event in events), "deltas, then", type(events[-1]).__name__)
    assert isinstance(events[-1], Final)
