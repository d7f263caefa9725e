"""What clients are answered when the store refuses a write of their request."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from refusing_store import refusing, unreadable
from wire import Json, events, text

from tealagents.domain.ports import Commit
from tealagents.testing.service import offline_service
from tealagents.testing.waits import until

#: what the store says of itself, in its log only
PLACES = ("postgres.internal", "5432", "/var/lib", "read-only")


@pytest.fixture
def ada() -> Iterator[httpx.Client]:
    env = {"TA_PLUGIN_MODULE": str(Path(__file__).parent / "custom_plugins.py")}
    store = "refusing_store:RefusingStore"
    agent = {"plugins": ["Shell"]}
    with (
        offline_service(None, env, persistence=store, agent=agent) as (service, _),
        service.client("ada") as client,
    ):
        yield client


def is_an_intent(partition: str, commit: Commit) -> bool:
    """A commit in the midst of a turn: neither its beginning nor its end, which write the request, too."""
    return {key.split("/")[0] for key in commit.put} == {"task", "log"}


@pytest.mark.parametrize("path", ["", "/sse"])
def test_a_request_that_failed_for_want_of_the_store_asks_for_a_new_key(ada: httpx.Client, path: str) -> None:
    """Sent again, read or replayed: it failed, the key will bring no other end, and
    where the store is stays inside. covers: STATE-4"""
    message, key = text('call Shell-look {"path": "a"}'), {"idempotency-key": f"key of {path or '/'}"}
    with refusing(is_an_intent):
        first = ada.post(path, json=message, headers=key)
    answers = [first, *(ada.post(path, json=message, headers=key) for _ in range(2))]
    found = [problem_of(answer) for answer in answers]
    request = ada.get(f"/requests/{found[0]['request_id']}").json()
    replay = ada.get(f"/requests/{found[0]['request_id']}/events")
    assert request["status"] == "Failed"
    for each in (*found, request["error"], problem_of(replay)):
        assert each["code"] == "persistence_unavailable"
        assert "failed" in each["detail"]
        assert "under a new idempotency key or id" in each["detail"]
    for answer in (*answers, replay):
        assert not [place for place in PLACES if place in answer.text]
    again = ada.post(
        path, json={**message, "task_id": request["task_id"]}, headers={"idempotency-key": "new"}
    )
    assert again.status_code == 200


def problem_of(answer: httpx.Response) -> Json:
    """The problem that an answer, or the end of a stream, consists of."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        last = list(events(answer.text))[-1]
        assert last.name == "error"
        return last.data
    found: Json = answer.json()
    return found


def test_a_request_is_canceled_though_the_store_cannot_be_read(ada: httpx.Client) -> None:
    """The answer says that the store is away; the request stops, and ends so. covers: STATE-4"""
    background = {"prefer": "respond-async"}
    begun = ada.post("", json=text("pieces-9000@50ms"), headers=background).raise_for_status().json()
    with unreadable():
        refused = ada.post(f"/requests/{begun['request_id']}/cancel")
        assert (refused.status_code, refused.json()["code"]) == (503, "persistence_unavailable")
    until(lambda: ada.get(f"/requests/{begun['request_id']}").json()["status"] == "Canceled")


def test_a_request_that_was_cut_off_keeps_nothing_from_being_read_while_the_store_takes_no_writes(
    ada: httpx.Client,
) -> None:
    """Its end cannot be stored: it is shown as it was until it can, in lists too. covers: STATE-4"""
    first = ada.post("", json=text("My name is Ada.")).raise_for_status().json()
    task = f"/tasks/{first['task_id']}"
    message = text("pieces-10@50ms", task_id=first["task_id"])
    cut = ada.post("", json=message, headers={"prefer": "respond-async"}).raise_for_status().json()
    request = f"/requests/{cut['request_id']}"
    with refusing(lambda partition, commit: True):
        until(lambda: ada.get(request).status_code == 503)
        assert [each["status"] for each in ada.get("/tasks").raise_for_status().json()["items"]] == [
            "Running"
        ]
        session = ada.get(f"/sessions/{first['session_id']}").raise_for_status().json()
        assert session["tasks"] == [ada.get(task).raise_for_status().json()]
        said = ada.get(f"{task}/messages").raise_for_status().json()["items"]
        assert [each["role"] for each in said] == ["user", "assistant", "user"]
        for path in (
            f"{task}/trace",
            f"{task}/audit",
            f"{task}/checkpoints",
            f"/requests/{first['request_id']}",
        ):
            ada.get(path).raise_for_status()
        assert ada.get(f"{task}/export").status_code == 503
    ended = ada.get(request).raise_for_status().json()
    assert (ended["status"], ended["error"]["code"]) == ("Failed", "interrupted")
    assert ada.get(f"{task}/export").status_code == 200
