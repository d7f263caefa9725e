"""A message that is sent again because its answer was lost: python demos/retry/client.py URL"""

import sys
import uuid

import httpx

key = str(uuid.uuid4())
message = {"items": [{"content_type": "text", "content": "Remember that the kettle is loud."}]}

with httpx.Client(headers={"Authorization": "Bearer ada", "Idempotency-Key": key}, timeout=60) as http:
    first = http.post(sys.argv[1], json=message)
    again = http.post(sys.argv[1], json=message)  # as after a time-out, when the outcome is unknown
    print(first.status_code, first.json()["content"]["output"])
    print(again.status_code, again.json()["content"]["output"])
    print("the same request:", again.json()["request_id"] == first.json()["request_id"])
    print("Idempotent-Replayed:", again.headers["idempotent-replayed"])

    trace = http.get(f"{sys.argv[1]}/tasks/{first.json()['task_id']}/trace").json()["items"]
    print("model calls:", sum(step["kind"] == "model" for step in trace))

    other = http.post(sys.argv[1], json={"items": [{"content_type": "text", "content": "Something else."}]})
    print(other.status_code, other.json()["code"])
