"""A stream that is cut, and read on from where it was: python demos/streaming/client.py URL"""

import sys

from tealagents.client import Client, Delta, Final

with Client(sys.argv[1], token="ada") as agent:
    received = ""
    with agent.stream("pieces-12@50ms, please") as events:
        for event in events:
            if isinstance(event, Delta):
                received += event.text
                print(event.text, end="", flush=True)
                if len(received.split()) == 5:
                    break  # this client is gone; the request is not
    request_id, seen = events.request_id, events.last_event_id
    print(f"\n-- cut after event {seen} --")

    # any process, on any replica, can read on
    for event in agent.follow(str(request_id), after=seen):
        if isinstance(event, Delta):
            received += event.text
            print(event.text, end="", flush=True)
        elif isinstance(event, Final):
            print(f"\n-- the end, event {event.id}; nothing lost: {received == event.answer.output} --")
