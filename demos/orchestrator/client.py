"""A program that knows only where an agent is: python demos/orchestrator/client.py URL

It finds what to call in the agent's OpenAPI document: the first path is the message route.
"""

import sys

import httpx

with httpx.Client(base_url=sys.argv[1], headers={"Authorization": "Bearer orchestrator"}, timeout=60) as http:
    agent = http.get("/").raise_for_status().json()["agents"][0]
    skills = [skill["name"] for skill in agent["metadata"]["skills"]]
    print(f"found {agent['name']} {agent['version']}: {', '.join(skills)}")

    document = http.get(agent["openapi"]).raise_for_status().json()
    path, operations = next(iter(document["paths"].items()))
    print(f"POST {path}: {operations['post']['description'].splitlines()[0]}")

    task_id = None
    for text in ("Remember that I sit by the window.", "What did I tell you to remember?"):
        message = {"items": [{"content_type": "text", "content": text}]} | (
            {"task_id": task_id} if task_id else {}
        )
        answer = http.post(path, json=message).raise_for_status().json()
        task_id = answer["task_id"]
        print(f"{text} -> {answer['content']['output']}")
