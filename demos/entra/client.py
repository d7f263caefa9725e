"""Who may see what, with tokens that are really checked: python demos/entra/client.py URL AUTHORITY"""

import sys

import httpx

from tealagents.client import Client, ProblemError

url, authority = sys.argv[1:]
TENANT = "11111111-2222-4333-8444-555555555555"


def token(user: str, scope: str = "access_as_user", roles: str = "") -> str:
    """What a person gets by signing in; `tealagents token` prints the same."""
    form = {"grant_type": "password", "username": user, "scope": scope, "roles": roles}
    answer = httpx.post(f"{authority}/{TENANT}/oauth2/v2.0/token", data=form).raise_for_status()
    return str(answer.json()["access_token"])


def attempt(who: str, bearer: str, task_id: str) -> None:
    try:
        with Client(url, token=bearer) as agent:
            print(f"{who} reads {len(list(agent.messages(task_id)))} messages")
    except ProblemError as refused:
        print(f"{who} is refused: {refused.status} {refused.code}")


alice = token("alice")
with Client(url, token=alice) as agent:
    answer = agent.send("My name is Alice.")
    print("alice reads:", answer.output)

attempt("alice", alice, answer.task_id)
attempt("bob", token("bob"), answer.task_id)
attempt("carol, an auditor,", token("carol", roles="Auditor"), answer.task_id)
attempt("a token for another scope", token("alice", scope="other"), answer.task_id)
attempt("a forged token", alice[:-4] + "AAAA", answer.task_id)
