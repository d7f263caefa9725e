"""Calls an old agent and a new one as an orchestrator does: python demos/earlier/client.py OLD_URL NEW_URL

Of each it knows only the address. The first path of the OpenAPI document is the one to call; orchestrators
choose by its description.
"""

import sys

import httpx

GATEWAY = {"taAgwKey": "demo-secret"}


def first_path(http: httpx.Client, openapi: str) -> tuple[str, str]:
    """Where the agent is called, and what it says of itself."""
    path, operations = next(iter(http.get(openapi).raise_for_status().json()["paths"].items()))
    return path, operations["post"]["description"].splitlines()[0]


def old(url: str) -> None:
    """The whole conversation goes with each call; a body that names no type is JSON."""
    with httpx.Client(base_url=url, headers=GATEWAY, timeout=60) as http:
        path, description = first_path(http, "/Greeter/0.1/openapi.json")
        print(f"{path}: {description}")
        body = b'{"chat_history": [{"role": "user", "content": "ada"}]}'
        answer = http.post(path, content=body).raise_for_status().json()
        print(f"output_raw: {answer['output_raw']}")
        with http.stream("POST", f"{path}/sse", content=body) as events:
            names = [
                line.removeprefix("event: ") for line in events.iter_lines() if line.startswith("event: ")
            ]
        print(f"events: {', '.join(dict.fromkeys(names))}")


def new(url: str) -> None:
    """The agent keeps the conversation; the answer's task_id continues it."""
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer orchestrator"}, timeout=60) as http:
        path, description = first_path(http, "/Keeper/0.1/openapi.json")
        print(f"{path}: {description}")
        known: dict[str, str] = {}
        for text in ("My name is Ada.", "What is my name?"):
            message = {"items": [{"content_type": "text", "content": text}], **known}
            answer = http.post(path, json=message).raise_for_status().json()
            known = {"task_id": answer["task_id"]}
            print(f"output: {answer['content']['output']}")


old(sys.argv[1])
new(sys.argv[2])
