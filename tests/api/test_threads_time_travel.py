"""Checkpoints, rollback, fork, export and import of tasks, over HTTP."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from wire import NOBODYS, problem, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread, offline_service

Json = dict[str, Any]
HERE = Path(__file__).parent

pytest_plugins = ["tealagents.testing.pytest_servers"]


#: with `THOROUGH=1`, as in CI, on four stores
STORES = ["memory", "sqlite", "file", "redis"] if os.environ.get("THOROUGH") == "1" else ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    """A service on each store, with tools of which one needs approval."""
    url = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/state.db",
        "file": f"file:///{tmp_path}/state",
    }.get(request.param) or request.getfixturevalue("redis_url")
    env = {
        "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
        "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
    }
    with offline_service(env=env, agent={"plugins": ["Shell"]}, persistence=url) as pair:
        yield pair


def say(client: httpx.Client, words: str, task: str | None = None) -> Json:
    body = text(words, **({"task_id": task} if task else {}))
    answer: Json = client.post("", json=body).raise_for_status().json()
    return answer


def output(answer: Json) -> str:
    return str(answer["content"]["output"])


def messages(client: httpx.Client, task: str, **query: str) -> list[Json]:
    found: list[Json] = client.get(f"/tasks/{task}/messages", params=query).raise_for_status().json()["items"]
    return found


def texts(found: list[Json]) -> list[str]:
    return ["".join(item["content"] for item in message["items"]) for message in found]


def checkpoints(client: httpx.Client, task: str) -> list[Json]:
    found: list[Json] = client.get(f"/tasks/{task}/checkpoints").raise_for_status().json()["items"]
    return found


def rollback(client: httpx.Client, task: str, checkpoint: str) -> httpx.Response:
    return client.post(f"/tasks/{task}/rollback", json={"checkpoint_id": checkpoint})


def fork(client: httpx.Client, task: str, **point: str) -> httpx.Response:
    return client.post(f"/tasks/{task}/fork", json=point)


def introduced(client: httpx.Client, *names: str) -> tuple[str, list[str]]:
    """A task in which the user has given each of these names, and its checkpoints."""
    task: str | None = None
    marks = []
    for name in names:
        answer = say(client, f"My name is {name}.", task)
        task = answer["task_id"]
        marks.append(answer["request_id"])
    assert task is not None
    return task, marks


# --- checkpoints and rollback ---------------------------------------------------------------------


def test_each_completed_request_is_a_checkpoint(ada: httpx.Client) -> None:
    """Newest first, with the one that is current. covers: THREAD-7"""
    task, marks = introduced(ada, "Ada", "Eve")
    listed = checkpoints(ada, task)
    assert [each["checkpoint_id"] for each in listed] == marks[::-1]
    assert [each["request_id"] for each in listed] == marks[::-1]
    assert [each["current"] for each in listed] == [True, False]
    assert ada.get(f"/tasks/{task}").json()["checkpoint_id"] == marks[1]


def test_back_forward_and_another_way(ada: httpx.Client) -> None:
    """Nothing is erased by going back; what is said then is another branch. covers: THREAD-7"""
    task, marks = introduced(ada, "Ada", "Eve", "Joe")
    back = rollback(ada, task, marks[0]).raise_for_status().json()
    assert back["checkpoint_id"] == marks[0]
    assert texts(messages(ada, task))[0::2] == ["My name is Ada."]
    assert texts(messages(ada, task, checkpoint_id=marks[2]))[0::2] == [
        "My name is Ada.",
        "My name is Eve.",
        "My name is Joe.",
    ]
    branch = say(ada, "What is my name?", task)
    assert output(branch) == "Your name is Ada."
    rollback(ada, task, marks[2]).raise_for_status()
    assert output(say(ada, "What is my name?", task)) == "Your name is Joe."
    rollback(ada, task, branch["request_id"]).raise_for_status()
    assert texts(messages(ada, task)) == [
        "My name is Ada.",
        "Nice to meet you, Ada.",
        "What is my name?",
        "Your name is Ada.",
    ]
    assert len(checkpoints(ada, task)) == 5


def test_the_model_is_sent_the_current_path_alone(ada: httpx.Client, model: OfflineModel) -> None:
    """After each rollback exactly the messages of that checkpoint, and the new one. covers: THREAD-7"""
    task, marks = introduced(ada, "Ada", "Eve", "Joe")
    for steps, mark in ((1, marks[0]), (3, marks[2]), (2, marks[1]), (1, marks[0])):
        rollback(ada, task, mark).raise_for_status()
        say(ada, "hello", task)
        assert len(model.requests[-1]["body"]["messages"]) == 1 + 2 * steps + 1


def test_a_checkpoint_must_be_the_tasks_own(ada: httpx.Client, model: OfflineModel) -> None:
    """A checkpoint of another task, of a failed request, or of no task is not found. covers: THREAD-7"""
    task, _ = introduced(ada, "Ada")
    _, others = introduced(ada, "Eve")
    model.script({"otherwise": {"error": {"status": 400, "message": "not that"}}})
    failed = problem(ada.post("", json=text("And now?", task_id=task)), 502, "model_error")["request_id"]
    for mark in (others[0], failed, NOBODYS):
        problem(rollback(ada, task, mark), 404, "not_found")
        problem(fork(ada, task, checkpoint_id=mark), 404, "not_found")
        problem(ada.get(f"/tasks/{task}/messages", params={"checkpoint_id": mark}), 404, "not_found")


def test_a_paused_task_is_not_rolled_back(ada: httpx.Client) -> None:
    """Its decision comes first; forking works meanwhile, up to what is complete. covers: THREAD-7"""
    task, marks = introduced(ada, "Ada")
    paused = say(ada, 'call Shell-delete {"path": "/x"}', task)
    assert paused["status"] == "Paused"
    for mark in (marks[0], paused["request_id"], NOBODYS):
        pending = problem(rollback(ada, task, mark), 409, "approval_pending")
        assert pending["request_id"] == paused["request_id"]
    forked = fork(ada, task).json()
    assert output(say(ada, "What is my name?", forked["task_id"])) == "Your name is Ada."
    resumed = ada.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"})
    assert output(resumed.json()) == "Shell-delete said: deleted /x"
    rollback(ada, task, marks[0]).raise_for_status()


def test_a_running_task_is_not_rolled_back(ada: httpx.Client) -> None:
    """To whatever checkpoint: also to the one that its request may yet become. covers: THREAD-7"""
    task, marks = introduced(ada, "Ada")
    sent = text("pieces-2@600000ms", task_id=task)
    running = ada.post("", json=sent, headers={"prefer": "respond-async"}).raise_for_status().json()
    for mark in (marks[0], running["request_id"], NOBODYS):
        busy = problem(rollback(ada, task, mark), 409, "task_busy")
        assert busy["request_id"] == running["request_id"]
    ada.post(f"/requests/{running['request_id']}/cancel").raise_for_status()
    rollback(ada, task, marks[0]).raise_for_status()


# --- fork -----------------------------------------------------------------------------------------


def test_a_fork_holds_everything_up_to_its_point(ada: httpx.Client) -> None:
    """A checkpoint, a message, or the last completed request. covers: THREAD-6"""
    task, marks = introduced(ada, "Ada", "Eve", "Joe")
    whole = messages(ada, task)
    for point, count in (
        ({}, 6),
        ({"checkpoint_id": marks[1]}, 4),
        ({"message_id": whole[3]["message_id"]}, 4),
        ({"message_id": whole[2]["message_id"]}, 3),
        ({"message_id": whole[0]["message_id"]}, 1),
    ):
        answer = fork(ada, task, **point)
        assert answer.status_code == 201
        forked = answer.json()
        assert forked["session_id"] == ada.get(f"/tasks/{task}").json()["session_id"]
        copied = messages(ada, forked["task_id"])
        assert texts(copied) == texts(whole)[:count]
        assert not {each["message_id"] for each in copied} & {each["message_id"] for each in whole}
        assert [each["origin"] for each in copied] == [
            {"task_id": task, "message_id": each["message_id"]} for each in whole[:count]
        ]


def test_a_fork_holds_what_failed_as_well(ada: httpx.Client, model: OfflineModel) -> None:
    """What was canceled stays visible, marked by its request, and unsent. covers: THREAD-6"""
    first = say(ada, "My name is Ada.")
    task = first["task_id"]
    paused = say(ada, 'call Shell-delete {"path": "/x"}', task)
    assert paused["status"] == "Paused"
    ada.post(f"/requests/{paused['request_id']}/cancel").raise_for_status()
    last = say(ada, "And yours?", task)
    whole = messages(ada, task)
    forked = fork(ada, task, checkpoint_id=last["request_id"]).raise_for_status().json()["task_id"]
    copied = messages(ada, forked)
    assert texts(copied) == texts(whole)
    assert len(copied) == 6
    statuses = [ada.get(f"/requests/{each['request_id']}").json()["status"] for each in copied[::2]]
    assert statuses == ["Completed", "Canceled", "Completed"]
    assert [each["request_id"] for each in checkpoints(ada, forked)] == [
        copied[4]["request_id"],
        copied[0]["request_id"],
    ]
    say(ada, "Go on.", forked)
    sent = [each["content"] for each in model.requests[-1]["body"]["messages"] if each["role"] == "user"]
    assert sent == ["My name is Ada.", "And yours?", "Go on."]
    exported = ada.get(f"/tasks/{forked}/export").raise_for_status().json()
    ada.delete(f"/tasks/{forked}").raise_for_status()
    assert ada.post("/tasks/import", json=exported).status_code == 201
    assert texts(messages(ada, forked)) == [*texts(whole), "Go on.", texts(messages(ada, forked))[-1]]


def test_a_fork_at_what_failed_leaves_it_failed(ada: httpx.Client, model: OfflineModel) -> None:
    """Its message is there, no checkpoint, and not sent to the model. covers: THREAD-6"""
    task = say(ada, "My name is Ada.")["task_id"]
    paused = say(ada, 'call Shell-delete {"path": "/x"}', task)
    ada.post(f"/requests/{paused['request_id']}/cancel").raise_for_status()
    whole = messages(ada, task)
    forked = fork(ada, task, message_id=whole[2]["message_id"]).raise_for_status().json()["task_id"]
    copied = messages(ada, forked)
    assert texts(copied) == texts(whole)[:3]
    canceled = ada.get(f"/requests/{copied[2]['request_id']}").json()
    assert (canceled["status"], canceled["error"]["code"]) == ("Canceled", "request_canceled")
    assert (ada.get(f"/tasks/{forked}").json()["status"], output(canceled)) == ("Canceled", "")
    assert [each["request_id"] for each in checkpoints(ada, forked)] == [copied[0]["request_id"]]
    say(ada, "Go on.", forked)
    sent = [each["content"] for each in model.requests[-1]["body"]["messages"] if each["role"] == "user"]
    assert sent == ["My name is Ada.", "Go on."]


def test_a_fork_shows_as_output_only_what_the_agent_said(ada: httpx.Client) -> None:
    """At a user's message, or at the result of a tool, there is none. covers: THREAD-6"""
    answer = say(ada, 'call Shell-look {"path": "/x"}')
    user, _, result, last = messages(ada, answer["task_id"])
    for point, expected in ((user, ""), (result, ""), (last, output(answer))):
        forked = fork(ada, answer["task_id"], message_id=point["message_id"]).json()["task_id"]
        request_id = messages(ada, forked)[-1]["request_id"]
        assert output(ada.get(f"/requests/{request_id}").json()) == expected


def test_a_fork_is_independent(ada: httpx.Client) -> None:
    """Neither hears of the other, and the fork outlives its origin. covers: THREAD-6"""
    task, _ = introduced(ada, "Ada")
    other = fork(ada, task).json()["task_id"]
    say(ada, "My name is Eve.", task)
    assert output(say(ada, "What is my name?", other)) == "Your name is Ada."
    assert ada.delete(f"/tasks/{task}").status_code == 204
    assert ada.get(f"/tasks/{task}").status_code == 404
    assert output(say(ada, "What is my name?", other)) == "Your name is Ada."
    assert len(messages(ada, other)) == 6
    marks = checkpoints(ada, other)
    rollback(ada, other, marks[-1]["checkpoint_id"]).raise_for_status()
    assert len(messages(ada, other)) == 2


def test_no_fork_between_a_call_and_its_result(ada: httpx.Client) -> None:
    """Before or after both; two points at once, or an unknown one, are refused. covers: THREAD-6"""
    answer = say(ada, 'call Shell-look {"path": "/x"} and call Shell-look {"path": "/y"}')
    task = answer["task_id"]
    user, asked, first, second, last = messages(ada, task)
    for between in (asked, first):
        refused = fork(ada, task, message_id=between["message_id"])
        assert problem(refused, 422, "invalid_request")["field"] == "message_id"
    for point, count in ((user, 1), (second, 4), (last, 5)):
        forked = fork(ada, task, message_id=point["message_id"]).json()
        assert len(messages(ada, forked["task_id"])) == count
    both = fork(ada, task, message_id=user["message_id"], checkpoint_id=answer["request_id"])
    problem(both, 422, "invalid_request")
    problem(fork(ada, task, message_id=NOBODYS), 404, "not_found")


def test_editing_is_forking_before(ada: httpx.Client) -> None:
    """Fork before the message, and send another. covers: THREAD-9"""
    task, _ = introduced(ada, "Ada", "Eve")
    before = messages(ada, task)[1]["message_id"]
    edited = fork(ada, task, message_id=before).json()["task_id"]
    say(ada, "My name is Joe.", edited)
    assert output(say(ada, "What is my name?", edited)) == "Your name is Joe."
    assert output(say(ada, "What is my name?", task)) == "Your name is Eve."


# --- export and import ----------------------------------------------------------------------------


def test_checkpoints_name_their_parents(ada: httpx.Client) -> None:
    """So that they make a tree, whatever page they are on; also in a fork, and behind an import."""
    task, (one, two, three) = introduced(ada, "Ada", "Eve", "Ida")
    rollback(ada, task, one).raise_for_status()
    four = say(ada, "My name is Uma.", task)["request_id"]
    rollback(ada, task, two).raise_for_status()
    five = say(ada, "My name is Zoe.", task)["request_id"]
    tree = {one: None, two: one, three: two, four: one, five: two}
    assert parents(ada, task) == tree
    assert all("parent_id" not in each for each in checkpoints(ada, task))
    moved(ada, task)
    assert parents(ada, task) == tree
    copied = parents(ada, fork(ada, task).json()["task_id"])
    assert list(copied.values()) == [*list(copied)[1:], None]


def parents(client: httpx.Client, task: str) -> dict[str, str | None]:
    """The parent of each checkpoint, newest first, read one by one."""
    found: dict[str, str | None] = {}
    cursor: str | None = ""
    while cursor is not None:
        query = {"parents": "true", "limit": "1"} | ({"cursor": cursor} if cursor else {})
        page = client.get(f"/tasks/{task}/checkpoints", params=query).raise_for_status().json()
        found |= {each["checkpoint_id"]: each["parent_id"] for each in page["items"]}
        cursor = page["next_cursor"]
    return found


def moved(ada: httpx.Client, task: str) -> tuple[Json, Json]:
    """A task's document, and that of the same task after it was deleted and imported again."""
    document = ada.get(f"/tasks/{task}/export").raise_for_status().json()
    assert ada.delete(f"/tasks/{task}").status_code == 204
    answer = ada.post("/tasks/import", json=document)
    assert answer.status_code == 201, answer.text
    return document, ada.get(f"/tasks/{task}/export").raise_for_status().json()


def test_an_import_keeps_ids_messages_and_times(ada: httpx.Client) -> None:
    """And the way back; the conversation continues. covers: THREAD-1, THREAD-7"""
    task, marks = introduced(ada, "Ada", "Eve")
    say(ada, 'call Shell-look {"path": "/x"}', task)
    rollback(ada, task, marks[1]).raise_for_status()
    views = ("", "/messages", "/checkpoints")
    before = [ada.get(f"/tasks/{task}{view}").json() for view in views]
    request = ada.get(f"/requests/{marks[0]}").json()
    moved(ada, task)
    assert [ada.get(f"/tasks/{task}{view}").json() for view in views] == before
    assert ada.get(f"/requests/{marks[0]}").json() == request
    assert output(say(ada, "What is my name?", task)) == "Your name is Eve."
    rollback(ada, task, marks[0]).raise_for_status()
    assert output(say(ada, "What is my name?", task)) == "Your name is Ada."


def test_an_import_is_marked(ada: httpx.Client) -> None:
    """Its steps say so, and the audit starts anew with the digest of the document as it was written."""
    task, _ = introduced(ada, "Ada")
    ada.patch(f"/tasks/{task}", json={"metadata": {"large": 1e22, "small": 1e-7}}).raise_for_status()
    document = json.dumps(ada.get(f"/tasks/{task}/export").json(), indent=1).encode()
    ada.delete(f"/tasks/{task}").raise_for_status()
    ada.post(
        "/tasks/import", content=document, headers={"content-type": "application/json"}
    ).raise_for_status()
    steps = ada.get(f"/tasks/{task}/trace").json()["items"]
    assert steps
    assert all(step["imported"] for step in steps)
    first = ada.get(f"/tasks/{task}/audit").json()["items"][0]
    assert (first["action"], first["seq"], first["prev_hash"]) == ("task.imported", 1, "0" * 64)
    assert first["details"]["document_sha256"] == hashlib.sha256(document).hexdigest()


def test_exporting_again_is_the_same_but_for_the_marks(ada: httpx.Client) -> None:
    """The same entries and requests, followed by one more entry that records the import. covers: THREAD-1"""
    task, _ = introduced(ada, "Ada", "Eve")
    before, after = moved(ada, task)
    again = [unmarked(entry) for entry in after["entries"][1:]]
    assert again == [unmarked(entry, shift=1) for entry in before["entries"]]
    assert [request["output"] for request in after["requests"]] == [
        request["output"] for request in before["requests"]
    ]
    assert all(request["imported"] for request in after["requests"])
    assert after["task"]["created_at"] == before["task"]["created_at"]


def unmarked(entry: Json, shift: int = 0) -> Json:
    """An entry without what an import changes: its number, and the mark on steps."""
    body = dict(entry["body"])
    if "step" in body:
        body["step"] = {name: value for name, value in body["step"].items() if name != "imported"}
    if "first_seq" in body:
        body["first_seq"] += shift
    return {**entry, "body": body, "seq": entry["seq"] + shift}


def test_what_is_there_is_not_imported_over(ada: httpx.Client, eve: httpx.Client) -> None:
    """A task whose id is taken; and no one imports another user's task. covers: THREAD-1"""
    task, _ = introduced(ada, "Ada")
    document = ada.get(f"/tasks/{task}/export").json()
    there = problem(ada.post("/tasks/import", json=document), 409, "already_exists")
    assert there["detail"].endswith("exists already. Delete it, and import it again.")
    problem(eve.post("/tasks/import", json=document), 401, "not_owner")
    ada.delete(f"/tasks/{task}")
    problem(eve.post("/tasks/import", json=document), 401, "not_owner")
    document["task"]["owner"]["oid"] = "eve"
    problem(eve.post("/tasks/import", json=document), 401, "not_owner")
    assert ada.get(f"/tasks/{task}").status_code == 404


def test_only_what_has_ended_is_exported(ada: httpx.Client) -> None:
    """A paused request is decided first."""
    paused = say(ada, 'call Shell-delete {"path": "/x"}')
    problem(ada.get(f"/tasks/{paused['task_id']}/export"), 422, "invalid_request")
    ada.post(f"/requests/{paused['request_id']}/cancel").raise_for_status()
    moved(ada, paused["task_id"])
    assert ada.get(f"/requests/{paused['request_id']}").json()["status"] == "Canceled"


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"turn": "many"}, "context.turn"),
        ({"turn": -1}, "context.turn"),
        ({"view": []}, "context.view"),
        ({"providers": {"clerk": 1}}, "context.providers"),
        ({"providers": {"clerk": {"x": "y" * 300_000}}}, "context"),
    ],
)
def test_what_an_import_remembers_is_checked(ada: httpx.Client, context: Json, field: str) -> None:
    """It is read with every later turn, so it must be what a turn could have left. covers: THREAD-10"""
    task, _ = introduced(ada, "Ada")
    document = ada.get(f"/tasks/{task}/export").json()
    ada.delete(f"/tasks/{task}")
    document["requests"][0]["context"] = context
    refused = problem(ada.post("/tasks/import", json=document), 422, "invalid_request")
    assert refused["field"] == f"requests.0.{field}"
