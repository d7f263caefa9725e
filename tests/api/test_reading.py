"""Reading and changing state: lists and their cursors, views of a task, expiry, deletion, and damage."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from talk import begin, call, cancel, lines, working_service
from wire import Json, problem, store_of, text

from tealagents.domain import ids
from tealagents.domain.ports import Commit, Put, Record, Store
from tealagents.llm.offline import OfflineModel
from tealagents.state import codec, history, keys
from tealagents.stores import open_store
from tealagents.testing.clock import ShiftedClock
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.testing.waits import until

HERE = Path(__file__).parent
T = TypeVar("T")


class Place:
    """A service on one kind of store, and a way to look into it."""

    def __init__(self, service: ServiceThread, url: str, clock: ShiftedClock) -> None:
        self.service = service
        self.clock = clock
        self._url = url

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Works on the store, as another process would where it can be opened twice."""

        async def opened() -> T:
            if self._url == "memory://":
                return await work(store_of(self.service))
            async with open_store(self._url) as store:
                return await work(store)

        return asyncio.run(opened())

    def records(self, partition: str) -> dict[str, Record]:
        async def all_of_it(store: Store) -> dict[str, Record]:
            found: dict[str, Record] = {}
            after = None
            while page := await store.scan(partition, "", after=after, limit=500):
                found |= dict(page)
                after = page[-1][0]
            return found

        return self.do(all_of_it)

    def damage(self, partition: str, key: str, change: Callable[[bytes], bytes]) -> bytes:
        """Changes the bytes of one record behind the service's back; returns what it left."""

        async def write(store: Store) -> bytes:
            (record,) = await store.read(partition, [key])
            assert record is not None, key
            left = change(record.value)
            await store.commit(partition, Commit(operation=ids.operation_id(), put={key: Put(left)}))
            return left

        return self.do(write)

    def value(self, partition: str, key: str) -> bytes | None:
        return self.records(partition)[key].value if key in self.records(partition) else None


URLS = {"memory": "memory://", "sqlite": "sqlite:///{}/state.db", "files": "file://{}/state"}


@pytest.fixture(scope="module", params=URLS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    url = URLS[request.param].format(tmp_path_factory.mktemp(request.param))
    clock = ShiftedClock()
    with OfflineModel() as model:
        env = {
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_AUTH": "mock",
            "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
            "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
        }
        config = agent_config(agent={"plugins": ["Shell"]}, persistence=url)
        with ServiceThread(config, env, clock=clock) as service:
            yield Place(service, url, clock)


@pytest.fixture
def user(place: Place, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of a user whom only this test has."""
    with place.service.client(name_of(request)) as client:
        yield client


@pytest.fixture
def partition(request: pytest.FixtureRequest) -> str:
    """Where what that user owns is stored."""
    return f"Tester/user/mock.{name_of(request)}"


def name_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.originalname)[5:60]


def pages(client: httpx.Client, path: str, limit: int, **query: Any) -> list[Json]:
    """All items of a list, page by page; no page is longer than it may be."""
    found: list[Json] = []
    cursor = None
    while True:
        params = {"limit": limit, **query} | ({"cursor": cursor} if cursor else {})
        page = client.get(path, params=params).raise_for_status().json()
        assert page.keys() == {"items", "next_cursor"}
        assert len(page["items"]) <= limit
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def say(client: httpx.Client, words: str, **fields: Any) -> Json:
    answer: Json = client.post("", json=text(words, **fields)).raise_for_status().json()
    return answer


# --- lists -------------------------------------------------------------------------------------------


def test_lists_are_newest_first_and_pages_join_to_the_whole(user: httpx.Client) -> None:
    """Whatever the size of a page; what comes meanwhile does not move what is there. covers: SESSION-1"""
    made = [say(user, f"hello {n}") for n in range(7)]
    tasks = [answer["task_id"] for answer in reversed(made)]
    sessions = [answer["session_id"] for answer in reversed(made)]
    for limit in (1, 3, 7, 200):
        assert [task["task_id"] for task in pages(user, "/tasks", limit)] == tasks
        assert [session["session_id"] for session in pages(user, "/sessions", limit)] == sessions
    first = user.get("/tasks", params={"limit": 3}).json()
    say(user, "one more in between")
    second = user.get("/tasks", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [task["task_id"] for task in first["items"] + second["items"]] == tasks[:6]


def test_a_session_groups_its_tasks_and_lists_them(user: httpx.Client) -> None:
    """By the session itself, and by the filter. covers: SESSION-1, TASK-4"""
    first = say(user, "one")
    session = first["session_id"]
    second = say(user, "two", session_id=session)
    say(user, "three")
    tasks = [second["task_id"], first["task_id"]]
    read = user.get(f"/sessions/{session}").raise_for_status().json()
    assert read["session_id"] == session
    assert [task["task_id"] for task in read["tasks"]] == tasks
    for limit in (1, 50):
        assert [t["task_id"] for t in pages(user, "/tasks", limit, session_id=session)] == tasks


def test_a_session_spans_agents_each_of_which_keeps_its_own_tasks(tmp_path: Path) -> None:
    """They share its id and nothing else, on one store as well. covers: TASK-4"""
    session = str(uuid.uuid4())
    with OfflineModel() as model, ExitStack() as stack:
        env = {
            "TA_PERSISTENCE": f"sqlite:///{tmp_path}/state.db",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_AUTH": "mock",
        }
        services = [
            stack.enter_context(ServiceThread(agent_config(name=name), env)) for name in ("One", "Other")
        ]
        one, other = (stack.enter_context(service.client()) for service in services)
        tasks = [say(client, "hello", session_id=session)["task_id"] for client in (one, other)]

        def shown(client: httpx.Client) -> list[str]:
            found = client.get(f"/sessions/{session}").raise_for_status().json()["tasks"]
            return [task["task_id"] for task in found]

        assert [shown(one), shown(other)] == [[tasks[0]], [tasks[1]]]
        problem(other.post("", json=text("hello", task_id=tasks[0])), 404, "not_found")
        one.delete(f"/sessions/{session}").raise_for_status()
        assert shown(other) == [tasks[1]]


def test_a_filtered_list_finds_all_of_a_status(user: httpx.Client) -> None:
    """A page may be short, even empty; the cursor continues. covers: TASK-3"""
    done = [say(user, f"hello {n}")["task_id"] for n in range(3)]
    paused = [say(user, 'call Shell-delete {"path": "/x"}')["task_id"] for _ in range(2)]
    done += [say(user, f"hello {n}")["task_id"] for n in range(3)]
    for limit in (1, 2, 50):
        found = pages(user, "/tasks", limit, status="Paused")
        assert [task["task_id"] for task in found] == paused[::-1]
        found = pages(user, "/tasks", limit, status="Completed")
        assert [task["task_id"] for task in found] == done[::-1]
        assert not pages(user, "/tasks", limit, status="Failed")
    inbox = pages(user, "/approvals", 1, status="pending")
    assert [item["task_id"] for item in inbox] == paused[::-1]
    assert pages(user, "/approvals", 1, status="decided") == []


def test_a_task_shows_what_it_holds(user: httpx.Client) -> None:
    """Owner, status, times with their offset, metadata, and the current checkpoint. covers: TASK-3"""
    answer = say(user, "hello", metadata={"channel": "web"})
    task = user.get(f"/tasks/{answer['task_id']}").raise_for_status().json()
    assert task["status"] == "Completed"
    assert task["owner"]["tid"] == "mock"
    assert task["metadata"] == {"channel": "web"}
    assert task["checkpoint_id"] == answer["request_id"]
    assert task["expires_at"] is task["request_id"] is task["approval_id"] is None
    for name in ("created_at", "last_updated"):
        assert datetime.fromisoformat(task[name]).utcoffset() == timedelta(0)


def test_messages_and_steps_are_oldest_first(user: httpx.Client) -> None:
    """With the tool calls and their results, by pages of any size. covers: TASK-3, HITL-1"""
    task = say(user, 'call Shell-look {"path": "/x"}')["task_id"]
    say(user, "thanks", task_id=task)
    for limit in (1, 2, 200):
        said = pages(user, f"/tasks/{task}/messages", limit)
        roles = "user assistant tool assistant user assistant"
        assert [message["role"] for message in said] == roles.split()
        (call,) = said[1]["tool_calls"]
        assert (call["tool"], json.loads(call["arguments"])) == ("Shell-look", {"path": "/x"})
        assert said[2]["tool_call_id"] == call["id"]
        assert said[2]["tool"] == "Shell-look"
        assert said[0]["items"] == text('call Shell-look {"path": "/x"}')["items"]
        steps = pages(user, f"/tasks/{task}/trace", limit)
        assert [step["kind"] for step in steps] == ["model", "tool", "model", "model"]
        assert steps[0]["usage"]["total_tokens"] > 0
        assert steps[1]["name"] == "Shell-look"
        assert steps[1]["outcome"] == "done"
        assert all(step["duration_ms"] >= 0 and step["started_at"] for step in steps)
        audit = pages(user, f"/tasks/{task}/audit", limit)
        assert [entry["seq"] for entry in audit] == list(range(1, len(audit) + 1))
        assert [b["prev_hash"] for b in audit[1:]] == [a["hash"] for a in audit[:-1]]


def test_a_page_of_large_messages_is_short(user: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process holds no more of them at once; the pages join to the whole, and no round is torn."""
    task = say(user, 'call Shell-look {"path": "/x"}')["task_id"]
    for n in range(3):
        say(user, f"{n}" + 900 * "x", task_id=task)
    whole = pages(user, f"/tasks/{task}/messages", 200)
    steps = pages(user, f"/tasks/{task}/trace", 200)
    monkeypatch.setattr(history, "PAGE_BYTES", 1000)
    first = user.get(f"/tasks/{task}/messages", params={"limit": 200}).json()
    assert 0 < len(first["items"]) < len(whole)
    assert first["next_cursor"] is not None
    for limit in (2, 200):
        assert pages(user, f"/tasks/{task}/messages", limit) == whole
    assert len(user.get(f"/tasks/{task}/trace").json()["items"]) < len(steps)
    assert pages(user, f"/tasks/{task}/trace", 200) == steps


def test_a_request_shows_its_outcome(user: httpx.Client) -> None:
    """Ids, status, times, usage and content, as the answer had them. covers: REQUEST-6"""
    answer = say(user, "hello")
    record = user.get(f"/requests/{answer['request_id']}").raise_for_status().json()
    assert record["content"] == answer["content"]
    assert record["status"] == "Completed"
    assert record["error"] is None
    assert record["token_usage"] == answer["content"]["token_usage"]
    assert record["created_at"] <= record["started_at"] <= record["ended_at"]


# --- time travel -------------------------------------------------------------------------------------


def words(client: httpx.Client, task: str, **query: Any) -> list[str]:
    """What the user said, on the current path or another."""
    said = pages(client, f"/tasks/{task}/messages", 200, **query)
    return [m["items"][0]["content"] for m in said if m["role"] == "user"]


def test_rollback_goes_back_and_forward_and_erases_nothing(user: httpx.Client) -> None:
    """Each completed request makes a checkpoint; the path of any can be read. covers: THREAD-7"""
    first = say(user, "one")
    task = first["task_id"]
    second, third = (say(user, word, task_id=task) for word in ("two", "three"))
    shown = pages(user, f"/tasks/{task}/checkpoints", 2)
    assert [c["checkpoint_id"] for c in shown] == [r["request_id"] for r in (third, second, first)]
    assert [c["current"] for c in shown] == [True, False, False]
    back = user.post(f"/tasks/{task}/rollback", json={"checkpoint_id": first["request_id"]})
    assert back.raise_for_status().json()["checkpoint_id"] == first["request_id"]
    assert words(user, task) == ["one"]
    other = say(user, "another two", task_id=task)
    assert words(user, task) == ["one", "another two"]
    assert words(user, task, checkpoint_id=third["request_id"]) == ["one", "two", "three"]
    user.post(f"/tasks/{task}/rollback", json={"checkpoint_id": third["request_id"]}).raise_for_status()
    assert words(user, task) == ["one", "two", "three"]
    assert len(pages(user, f"/tasks/{task}/checkpoints", 1)) == 4
    unknown = user.post(f"/tasks/{task}/rollback", json={"checkpoint_id": task})
    problem(unknown, 404, "not_found")
    assert other["task_id"] == task


def test_a_fork_holds_the_prefix_and_lives_on_its_own(user: httpx.Client) -> None:
    """Up to a checkpoint, a message, or the end; new ids that name their origin. covers: THREAD-6"""
    first = say(user, "one")
    task = first["task_id"]
    say(user, "two", task_id=task)
    said = pages(user, f"/tasks/{task}/messages", 200)
    forks = {
        "whole": ({}, ["one", "two"]),
        "checkpoint": ({"checkpoint_id": first["request_id"]}, ["one"]),
        "message": ({"message_id": said[1]["message_id"]}, ["one"]),
        "question": ({"message_id": said[2]["message_id"]}, ["one", "two"]),
    }
    made = {}
    for name, (point, expected) in forks.items():
        answer = user.post(f"/tasks/{task}/fork", json=point)
        assert answer.status_code == 201
        fork = made[name] = answer.json()["task_id"]
        assert words(user, fork) == expected
        copied = pages(user, f"/tasks/{fork}/messages", 200)
        assert [m["origin"]["message_id"] for m in copied] == [m["message_id"] for m in said[: len(copied)]]
        assert not {m["message_id"] for m in copied} & {m["message_id"] for m in said}
        assert answer.json()["origin"]["task_id"] == task
    user.delete(f"/tasks/{task}").raise_for_status()
    assert words(user, made["whole"]) == ["one", "two"]
    say(user, "three", task_id=made["whole"])
    assert words(user, made["whole"]) == ["one", "two", "three"]
    assert words(user, made["checkpoint"]) == ["one"]


def test_a_fork_never_separates_a_call_from_its_result(user: httpx.Client) -> None:
    """Between the two there is no point to fork at; an unknown one is not found. covers: THREAD-6"""
    task = say(user, 'call Shell-look {"path": "/x"}')["task_id"]
    said = pages(user, f"/tasks/{task}/messages", 200)
    between = user.post(f"/tasks/{task}/fork", json={"message_id": said[1]["message_id"]})
    problem(between, 422, "invalid_request", "message_id")
    behind = user.post(f"/tasks/{task}/fork", json={"message_id": said[2]["message_id"]})
    assert behind.status_code == 201
    problem(user.post(f"/tasks/{task}/fork", json={"message_id": task}), 404, "not_found")
    problem(user.post(f"/tasks/{task}/fork", json={"checkpoint_id": task}), 404, "not_found")


def test_a_task_moves_by_export_and_import(user: httpx.Client) -> None:
    """Ids, messages and times stay; trace and audit say that they were imported. covers: THREAD-6"""
    task = say(user, 'call Shell-look {"path": "/x"}', metadata={"a": 1})["task_id"]
    before = {view: pages(user, f"/tasks/{task}/{view}", 200) for view in ("messages", "checkpoints")}
    document = user.get(f"/tasks/{task}/export").raise_for_status().json()
    user.delete(f"/tasks/{task}").raise_for_status()
    problem(user.get(f"/tasks/{task}"), 404, "not_found")
    answer = user.post("/tasks/import", json=document)
    assert answer.status_code == 201
    assert answer.json()["task_id"] == task
    assert answer.json()["metadata"] == {"a": 1}
    assert {view: pages(user, f"/tasks/{task}/{view}", 200) for view in before} == before
    assert all(step["imported"] for step in pages(user, f"/tasks/{task}/trace", 200))
    audit = pages(user, f"/tasks/{task}/audit", 200)
    assert audit[0]["action"] == "task.imported"
    assert len(audit[0]["details"]["document_sha256"]) == 64
    assert say(user, "go on", task_id=task)["status"] == "Completed"


# --- changing ----------------------------------------------------------------------------------------


def test_a_patch_merges_metadata(user: httpx.Client) -> None:
    """RFC 7396: objects are merged, null removes, anything else replaces; each write moves `last_updated`.
    covers: STATE-2"""
    task = say(user, "hello", metadata={"a": 1, "b": {"c": 2, "d": 3}})["task_id"]
    before = user.get(f"/tasks/{task}").json()["last_updated"]
    patch = {"metadata": {"a": None, "b": {"c": 4, "d": None}, "e": [None]}}
    patched = user.patch(f"/tasks/{task}", json=patch).raise_for_status().json()
    assert patched["metadata"] == {"b": {"c": 4}, "e": [None]}
    assert patched["last_updated"] > before
    assert user.get(f"/tasks/{task}").json() == patched
    assert user.patch(f"/tasks/{task}", json={}).raise_for_status().json()["metadata"] == patched["metadata"]
    assert "task.patched" in [entry["action"] for entry in pages(user, f"/tasks/{task}/audit", 200)]


def test_each_step_of_a_request_moves_last_updated(tmp_path: Path) -> None:
    """From the message to the answer, and back by a rollback; the clock moves before each step, so that no
    step takes its time from another. covers: STATE-2"""
    file, slow = tmp_path / "written", {"first_delay_ms": 600_000}
    held = {"rules": [{"when": each, "reply": slow} for each in ("slowly", {"tool_result": True})]}
    linger = call("Work-linger", file=str(file), line="x", seconds=30)
    with (
        working_service(held, moved=True, concurrency="enqueue") as (service, model),
        service.client() as ada,
    ):
        first = begin(ada, "slowly")
        task = first["task_id"]

        def shown() -> Json:
            found: Json = ada.get(f"/tasks/{task}").raise_for_status().json()
            return found

        @contextmanager
        def moves(status: str) -> Iterator[None]:
            before = shown()["last_updated"]
            service.advance(1)
            yield
            until(lambda: (now := shown())["status"] == status and now["last_updated"] > before)

        with moves("Completed"):
            model.release()
        model.script(held)
        with moves("Running"):
            running = begin(ada, f"slowly {linger}", task_id=task)
        with moves("Running"):
            queued = begin(ada, "hello", task_id=task)
        with moves("Running"):
            cancel(ada, queued)
        with moves("Paused"):
            model.release()
        model.script(held)
        with moves("Running"):
            resume = f"/requests/{running['request_id']}/resume"
            ada.post(resume, json={"action": "approve"}, headers={"prefer": "respond-async"})
            until(lambda: lines(file))
        with moves("Running"):
            service.advance(30)
        with moves("Canceled"):
            cancel(ada, running)
        with moves("Canceled"):
            rollback = {"checkpoint_id": first["request_id"]}
            ada.post(f"/tasks/{task}/rollback", json=rollback).raise_for_status()


def test_an_expired_task_is_gone_for_everyone_and_erased_by_no_one(
    place: Place, user: httpx.Client, partition: str
) -> None:
    """404 on every path and in no list; what is stored stays. covers: TASK-3, STATE-2"""
    answer = say(user, "hello")
    task, request, session = answer["task_id"], answer["request_id"], answer["session_id"]
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    patched = user.patch(f"/tasks/{task}", json={"expires_at": soon}).raise_for_status().json()
    assert datetime.fromisoformat(patched["expires_at"]) == datetime.fromisoformat(soon)
    assert say(user, "still here", task_id=task)["status"] == "Completed"
    stored = place.records(partition).keys()
    place.clock.shift = timedelta(hours=2)
    try:
        for view in ("", "/messages", "/trace", "/checkpoints", "/audit", "/export"):
            problem(user.get(f"/tasks/{task}{view}"), 404, "not_found")
        for path in (f"/requests/{request}", f"/requests/{request}/events"):
            problem(user.get(path), 404, "not_found")
        problem(user.post("", json=text("hello?", task_id=task)), 404, "not_found")
        problem(user.patch(f"/tasks/{task}", json={"expires_at": None}), 404, "not_found")
        problem(user.post(f"/requests/{request}/cancel"), 404, "not_found")
        assert pages(user, "/tasks", 50) == []
        assert user.get(f"/sessions/{session}").json()["tasks"] == []
        assert [s["session_id"] for s in pages(user, "/sessions", 50)] == [session]
    finally:
        place.clock.shift = timedelta(0)
    assert place.records(partition).keys() >= stored
    unset = user.patch(f"/tasks/{task}", json={"expires_at": None}).raise_for_status().json()
    assert unset["expires_at"] is None


# --- deleting ----------------------------------------------------------------------------------------


def whole_life(client: httpx.Client, word: str, **fields: Any) -> list[Json]:
    """A task with large messages, streams, a decided and a pending pause, and a failed request."""
    first = client.post("/sse", json=text(f"{word} " + "x" * 300_000, **fields)).raise_for_status()
    ids_of = json.loads(first.text.split("data: ")[1].split("\n")[0])
    task = ids_of["task_id"]
    paused = say(client, f'call Shell-delete {{"path": "/{word}"}}', task_id=task)
    decision = {"action": "reject", "reason": word}
    client.post(f"/requests/{paused['request_id']}/resume", json=decision).raise_for_status()
    keyed = text(f"{word} again", task_id=task)
    client.post("", json=keyed, headers={"idempotency-key": word}).raise_for_status()
    pending = say(client, f'call Shell-delete {{"path": "/{word}/2"}}', task_id=task)
    return [ids_of, paused, pending]


def remains(place: Place, partition: str, *needles: str) -> list[str]:
    """The records that still hold something."""
    agent = partition.split("/")[0]
    found = []
    for name in (partition, f"{agent}/inbox/mock", f"{agent}/erasing"):
        for key, record in place.records(name).items():
            if any(needle in key or needle.encode() in record.value for needle in needles):
                found.append(f"{name} {key}")
    return found


def test_a_deleted_task_is_gone_from_the_store(place: Place, user: httpx.Client, partition: str) -> None:
    """Messages, trace, events, blobs, pauses, requests: nothing is left but the session and used keys."""
    lives = whole_life(user, "heliotrope")
    task, session = lives[0]["task_id"], lives[0]["session_id"]
    kept = say(user, "another task", session_id=session)
    approvals = [life["content"]["approval_id"] for life in lives[1:]]
    assert any(key.startswith("blob/") for key in place.records(partition))
    assert user.delete(f"/tasks/{task}").status_code == 204
    left = remains(place, partition, "heliotrope", *approvals, *(life["request_id"] for life in lives))
    assert not [key for key in left if "/inbox/" not in key], left
    assert all(" key/" in key for key in remains(place, partition, task)), remains(place, partition, task)
    for path in (f"/tasks/{task}", *(f"/requests/{life['request_id']}" for life in lives)):
        problem(user.get(path), 404, "not_found")
    problem(user.delete(f"/tasks/{task}"), 404, "not_found")
    again = user.post(
        "", json=text("heliotrope again", task_id=task), headers={"idempotency-key": "heliotrope"}
    )
    problem(again, 404, "not_found")
    assert pages(user, "/approvals", 50) == []
    assert [t["task_id"] for t in pages(user, "/tasks", 50)] == [kept["task_id"]]
    assert len(user.get(f"/sessions/{session}").json()["tasks"]) == 1


def test_a_deleted_session_takes_its_tasks_along(place: Place, user: httpx.Client, partition: str) -> None:
    """A late message to one of them finds nothing; the session's id is free. covers: SESSION-1"""
    first = whole_life(user, "vermilion")[0]
    session = first["session_id"]
    say(user, "vermilion, too", session_id=session)
    other = say(user, "of another session")
    assert user.delete(f"/sessions/{session}").status_code == 204
    left = remains(place, partition, "vermilion", first["request_id"])
    assert not [key for key in left if "/inbox/" not in key], left
    problem(user.get(f"/sessions/{session}"), 404, "not_found")
    problem(user.get("/tasks", params={"session_id": session}), 404, "not_found")
    problem(user.delete(f"/sessions/{session}"), 404, "not_found")
    problem(user.post("", json=text("late", task_id=first["task_id"])), 404, "not_found")
    assert [s["session_id"] for s in pages(user, "/sessions", 50)] == [other["session_id"]]
    again = say(user, "once more", session_id=session)
    assert [t["task_id"] for t in pages(user, "/tasks", 50, session_id=session)] == [again["task_id"]]


def test_what_runs_is_not_deleted(user: httpx.Client) -> None:
    """The refusal names the request, and says once what to do about it. covers: TASK-1"""
    sent = text("pieces-2@600000ms")
    running = user.post("", json=sent, headers={"prefer": "respond-async"}).raise_for_status().json()
    for path in (f"/tasks/{running['task_id']}", f"/sessions/{running['session_id']}"):
        refused = problem(user.delete(path), 409, "task_busy")
        assert refused["request_id"] == running["request_id"]
        assert refused["detail"].count("Wait for it, or cancel it.") == 1
        assert refused["detail"].lower().count("cancel") == 1
    user.post(f"/requests/{running['request_id']}/cancel").raise_for_status()
    assert user.delete(f"/sessions/{running['session_id']}").status_code == 204


# --- damage ------------------------------------------------------------------------------------------


def flipped(value: bytes) -> bytes:
    """One letter of what was said, changed."""
    assert b"periwinkle" in value
    return value.replace(b"periwinkle", b"perivinkle")


def cut(value: bytes) -> bytes:
    return value[: len(value) // 2]


DAMAGES = {"a letter changed": flipped, "half of it": cut, "something else": lambda _: b'{"hello": "world"}'}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_message_is_reported_by_name_and_left_as_it_is(
    place: Place, user: httpx.Client, partition: str, name: str
) -> None:
    """`corrupt_state` for that task alone; the next message is refused, too. covers: STATE-4"""
    sound = say(user, "a sound task")["task_id"]
    task = say(user, "once upon a time")["task_id"]
    say(user, "periwinkle", task_id=task)
    (key,) = [
        key
        for key, record in place.records(partition).items()
        if key.startswith(f"log/{task}/") and b'"content":"periwinkle"' in record.value
    ]
    left = place.damage(partition, key, DAMAGES[name])
    for answer in (
        user.get(f"/tasks/{task}/messages"),
        user.get(f"/tasks/{task}/trace"),
        user.get(f"/tasks/{task}/export"),
        user.post(f"/tasks/{task}/fork", json={}),
        user.post("", json=text("more", task_id=task)),
        user.post("/sse", json=text("more", task_id=task)),
    ):
        assert key in problem(answer, 500, "corrupt_state")["detail"]
    assert place.value(partition, key) == left
    assert user.get(f"/tasks/{task}").json()["status"] == "Completed"
    assert words(user, sound) == ["a sound task"]
    assert say(user, "go on", task_id=sound)["status"] == "Completed"
    assert {t["task_id"] for t in pages(user, "/tasks", 50)} >= {task, sound}
    user.delete(f"/tasks/{task}").raise_for_status()


def test_a_task_whose_log_was_emptied_with_its_head_is_damage(
    place: Place, user: httpx.Client, partition: str
) -> None:
    """The next message would begin the log anew, and its audit would verify. covers: STATE-4"""
    task = say(user, "once upon a time")["task_id"]
    key = keys.task(task)
    nothing = {
        "tail_seq": 0,
        "tail_hash": "",
        "tail_seal": "",
        "tail_key": 0,
        "path": [],
        "checkpoint_id": None,
    }

    def emptied(value: bytes) -> bytes:
        return codec.seal(partition, key, {**codec.unseal(partition, key, value, dict), **nothing})

    left = place.damage(partition, key, emptied)
    for answer in (user.post("", json=text("more", task_id=task)), user.get(f"/tasks/{task}")):
        assert key in problem(answer, 500, "corrupt_state")["detail"]
    assert place.value(partition, key) == left


def test_a_damaged_task_is_listed_as_such(place: Place, user: httpx.Client, partition: str) -> None:
    """One damaged record never fails a list, and everything of it says what is wrong. covers: STATE-4"""
    tasks = [say(user, f"hello {n}") for n in range(3)]
    damaged = tasks[1]["task_id"]
    left = place.damage(partition, f"task/{damaged}", cut)
    listed = pages(user, "/tasks", 2)
    assert [t["task_id"] for t in listed] == [t["task_id"] for t in reversed(tasks)]
    assert [t["error"]["code"] if "error" in t else None for t in listed] == [None, "corrupt_state", None]
    session = user.get(f"/sessions/{tasks[1]['session_id']}").json()
    assert session["tasks"][0]["error"]["code"] == "corrupt_state"
    for answer in (
        user.get(f"/tasks/{damaged}"),
        user.get(f"/tasks/{damaged}/messages"),
        user.get(f"/requests/{tasks[1]['request_id']}"),
        user.patch(f"/tasks/{damaged}", json={}),
        user.delete(f"/tasks/{damaged}"),
        user.post("", json=text("more", task_id=damaged)),
    ):
        assert f"task/{damaged}" in problem(answer, 500, "corrupt_state")["detail"]
    assert place.value(partition, f"task/{damaged}") == left


def test_damaged_sessions_requests_and_pauses_are_reported_by_name(
    place: Place, user: httpx.Client, partition: str
) -> None:
    """Each kind of record has its checksum. covers: STATE-4"""
    answer = say(user, 'call Shell-delete {"path": "/x"}')
    approval = answer["content"]["approval_id"]
    place.damage(partition, f"approval/{approval}", cut)
    listed = pages(user, "/approvals", 50)
    assert listed[0]["error"]["code"] == "corrupt_state"
    resume = user.post(f"/requests/{answer['request_id']}/resume", json={"action": "approve"})
    assert f"approval/{approval}" in problem(resume, 500, "corrupt_state")["detail"]
    place.damage(partition, f"request/{answer['request_id']}", cut)
    problem(user.get(f"/requests/{answer['request_id']}"), 500, "corrupt_state")
    place.damage(partition, f"session/{answer['session_id']}", cut)
    problem(user.get(f"/sessions/{answer['session_id']}"), 500, "corrupt_state")
    assert pages(user, "/sessions", 50)[0]["error"]["code"] == "corrupt_state"
    problem(user.post("", json=text("hi", session_id=answer["session_id"])), 500, "corrupt_state")
