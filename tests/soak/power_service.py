"""A service that answers its clients, and says which of its answers have arrived (see `power_cuts`).

`python power_service.py STORE`
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from power_cuts import MARKS

from tealagents.testing.service import ServiceThread, offline_service

USERS = ("ada", "bob", "eve")
#: messages of each user
MESSAGES = 24


def acknowledged(what: str, **ids: object) -> None:
    """Says that an answer or a deletion was acknowledged, or that a deletion is intended."""
    with suppress(OSError):
        os.stat(MARKS + json.dumps({"what": what, **ids}).encode().hex())


def converse(service: ServiceThread, user: str) -> None:
    """Messages of new tasks and old ones, with and without a key; some sessions are deleted."""
    task_id = None
    with service.client(user) as client:
        for number in range(MESSAGES):
            items = [{"content_type": "text", "content": f"message {number} of {user}"}]
            message = {"items": items, **({"task_id": task_id} if number % 3 else {})}
            headers = {"Idempotency-Key": f"key-{number}"} if number % 2 else {}
            answer = client.post("", json=message, headers=headers).raise_for_status().json()
            task_id = answer["task_id"]
            output = answer["content"]["output"]
            acknowledged("answer", user=user, task=task_id, request=answer["request_id"], output=output)
            if number % 15 == 14:
                acknowledged("intention", user=user, task=task_id)
                client.delete(f"/sessions/{answer['session_id']}").raise_for_status()
                acknowledged("deletion", user=user, task=task_id)


if __name__ == "__main__":
    with (
        offline_service(None, {"TA_PERSISTENCE": sys.argv[1]}) as (running, _),
        ThreadPoolExecutor() as threads,
    ):
        list(threads.map(lambda user: converse(running, user), USERS))
