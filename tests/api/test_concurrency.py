"""One writer per task: what a second message meets, in one process and across replicas, dead ones too."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from replicas import Replicas, background, ended, gather, replicas, said
from wire import Event, events, lapse, problem, text

from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.service import offline_service
from tealagents.testing.waits import until

LEASE = 3
PLUGINS = Path(__file__).parent / "custom_plugins.py"


class Listener:
    """Takes a stream in a thread, so that the test can look at it while it runs."""

    def __init__(self, service: ForkedService, method: str, path: str, **request: Any) -> None:
        self.events: list[Event] = []
        self.comments = 0
        self.broken: httpx.TransportError | None = None
        self._thread = threading.Thread(target=self._listen, args=(service, method, path), kwargs=request)
        self._thread.start()

    def _listen(self, service: ForkedService, method: str, path: str, **request: Any) -> None:
        try:
            with service.client() as client, client.stream(method, path, **request) as response:
                for event in events(self._counted(response.iter_lines())):
                    self.events.append(event)
        except httpx.TransportError as error:
            self.broken = error

    def _counted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.comments += line.startswith(":")
            yield line

    def result(self) -> list[Event]:
        """All events, once the stream has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.events


def new_task(client: httpx.Client) -> str:
    task_id: str = client.post("", json=text("hello")).raise_for_status().json()["task_id"]
    return task_id


# --- reject -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rejecting(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with replicas(nursery, tmp_path_factory.mktemp("reject")) as running:
        yield running


async def test_of_a_hundred_messages_at_once_one_runs(rejecting: Replicas) -> None:
    """The others learn which, and when to try again; the history stays whole. covers: TASK-5, STATE-3"""
    urls = [service.url for service in rejecting.services]
    async with rejecting.first.async_client(limits=httpx.Limits(max_connections=100)) as client:
        task = (await client.post("", json=text("hello"))).raise_for_status().json()["task_id"]
        answers = await gather(
            *(client.post(urls[n % 2], json=text(f"slowly {n}", task_id=task)) for n in range(100))
        )
        taken = [answer.json() for answer in answers if answer.status_code == 200]
        for answer in answers:
            if answer.status_code != 200:
                refused = problem(answer, 409, "task_busy")
                assert refused["request_id"] in {answer["request_id"] for answer in taken}
                assert refused["task_id"] == task
                assert int(answer.headers["retry-after"]) >= 1
        messages = (await client.get(f"/tasks/{task}/messages?limit=200")).json()["items"]
        requests = [(await client.get(f"/requests/{each['request_id']}")).json() for each in taken]
    assert [m["role"] for m in messages] == ["user", "assistant"] * (len(taken) + 1)
    assert {m["request_id"] for m in messages[2:]} == {answer["request_id"] for answer in taken}
    assert len(taken) < len(answers)
    spans = sorted((request["started_at"], request["ended_at"]) for request in requests)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


# --- enqueue ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def queueing(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    limits = {"keepalive_seconds": 0.2, "max_queued_requests": 8}
    folder = tmp_path_factory.mktemp("enqueue")
    with replicas(nursery, folder, concurrency="enqueue", limits=limits) as running:
        yield running


def test_turns_follow_the_stored_order_on_every_replica(queueing: Replicas) -> None:
    """Messages that wait are answered in the order in which they were taken. covers: TASK-5"""
    with queueing.first.client() as first, queueing.second.client() as second:
        task = new_task(first)
        sent = [background(first, "0, when released", task_id=task)]
        assert sent[0]["status"] == "Running"
        for n in range(1, 6):
            sent.append(background((first, second)[n % 2], f"number {n}", task_id=task))
            assert sent[n]["status"] == "Queued"
        assert first.get(f"/tasks/{task}").json()["queued"] == [each["request_id"] for each in sent[1:]]
        with queueing.released():
            assert all(ended(second, each["request_id"])["status"] == "Completed" for each in sent)
        assert said(first, task) == ["hello", "0, when released", *(f"number {n}" for n in range(1, 6))]
        assert len(said(second, task, "assistant")) == 7


def test_a_stream_that_waits_says_so_and_keeps_alive(queueing: Replicas) -> None:
    """First `request` with status Queued, then comments, then the answer. covers: STATE-5"""
    with queueing.first.client() as first:
        task = new_task(first)
        background(first, "when released", task_id=task)
        sender = Listener(queueing.second, "POST", "/sse", json=text("and then", task_id=task))
        until(lambda: sender.events)
        identity = sender.events[0].data
        assert identity["status"] == "Queued"
        follower = Listener(queueing.first, "GET", f"/requests/{identity['request_id']}/events")
        until(lambda: sender.comments)
        with queueing.released():
            ends = sender.result(), follower.result()
        for heard in ends:
            assert heard[0].name == "request"
            assert heard[0].data["status"] == "Queued"
            assert [event.number for event in heard] == list(range(1, len(heard) + 1))
            assert heard[-1].name == "final-response"
        assert sender.events[-1].data == follower.events[-1].data


def test_a_waiting_request_can_be_canceled_from_anywhere(queueing: Replicas) -> None:
    """It ends at once, waiting clients are answered, and the next one's turn comes. covers: TASK-7"""
    with queueing.first.client() as first, queueing.second.client() as second:
        task = new_task(first)
        background(first, "again, when released", task_id=task)
        sender = Listener(queueing.second, "POST", "/sse", json=text("never mind", task_id=task))
        until(lambda: sender.events)
        waiting = sender.events[0].data["request_id"]
        last = background(first, "at last", task_id=task)
        canceled = first.post(f"/requests/{waiting}/cancel").raise_for_status().json()
        assert canceled["status"] == "Canceled"
        assert canceled["started_at"] is None
        assert sender.result()[-1].name == "error"
        assert sender.events[-1].data["code"] == "request_canceled"
        with queueing.released():
            assert ended(second, last["request_id"])["status"] == "Completed"
        assert said(second, task) == ["hello", "again, when released", "at last"]


def test_more_than_may_wait_are_refused(queueing: Replicas) -> None:
    """Beyond `max_queued_requests` a message is refused with the time to retry. covers: STATE-5"""
    with queueing.first.client() as first, queueing.second.client() as second:
        task = new_task(first)
        run = background(first, "for ever", task_id=task)
        waiting = [background(second, f"{n}", task_id=task) for n in range(8)]
        refused = second.post("", json=text("one more", task_id=task))
        problem(refused, 503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        for each in (*waiting, run):
            first.post(f"/requests/{each['request_id']}/cancel").raise_for_status()
        assert first.post("", json=text("now", task_id=task)).status_code == 200
        assert said(first, task) == ["hello", "for ever", "now"]


def test_a_request_does_not_wait_for_ever() -> None:
    """Waiting counts: whether its turn has come or not, it ends Failed at its timeout. covers: STATE-5"""
    limits = {"request_timeout_seconds": 50}
    script = {
        "rules": [
            {"when": "slowly 0", "reply": {"text": "at last", "headers_delay_ms": 600_000}},
            {"when": "slowly", "reply": {"fault": "silence"}},
        ]
    }
    with (
        offline_service(script, moved=True, concurrency="enqueue", limits=limits) as (service, model),
        service.client() as client,
    ):
        task = new_task(client)
        sent = [background(client, f"slowly {n}", task_id=task) for n in range(3)]
        service.advance(30)
        model.release()
        assert ended(client, sent[0]["request_id"])["status"] == "Completed"
        until(lambda: client.get(f"/requests/{sent[1]['request_id']}").json()["started_at"])
        service.advance(30)
        ends = [ended(client, each["request_id"]) for each in sent[1:]]
        assert [end["status"] for end in ends] == ["Failed", "Failed"]
        assert [end["error"]["code"] for end in ends] == ["request_timeout"] * 2
        assert ends[0]["started_at"] is not None
        assert client.post("", json=text("hello again", task_id=task)).status_code == 200


def test_the_requests_of_a_dead_process_leave_the_queue(nursery: Nursery, tmp_path: Path) -> None:
    """What waited in a process that was killed ends interrupted; others take their turn. covers: STATE-3"""
    with (
        replicas(nursery, tmp_path, concurrency="enqueue") as pair,
        pair.first.client() as first,
        pair.second.client() as second,
    ):
        task = new_task(second)
        run = background(first, "for ever", task_id=task)
        lost = background(first, "with the dead", task_id=task)
        kept = background(second, "with the living", task_id=task)
        pair.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        assert ended(second, kept["request_id"])["status"] == "Completed"
        for each in (run, lost):
            end = ended(second, each["request_id"])
            assert (end["status"], end["error"]["code"]) == ("Failed", "interrupted")
        assert said(second, task) == ["hello", "for ever", "with the living"]


# --- interrupt and rollback -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["interrupt", "rollback"])
def yielding(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Replicas]]:
    folder = tmp_path_factory.mktemp(request.param)
    with replicas(nursery, folder, concurrency=request.param) as running:
        yield request.param, running


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in one process", "across replicas"])
def test_the_running_request_gives_way(yielding: tuple[str, Replicas], elsewhere: bool) -> None:
    """Its caller gets 409, its followers an error; its messages stay, or leave with it. covers: TASK-5"""
    mode, pair = yielding
    with pair.first.client() as first, pair.second.client() as second:
        task = new_task(first)
        sender = Listener(pair.first, "POST", "/sse", json=text("dripping", task_id=task))
        until(lambda: len(sender.events) > 3)
        old = sender.events[0].data["request_id"]
        follower = Listener(pair.second, "GET", f"/requests/{old}/events")
        answer = (second if elsewhere else first).post("", json=text("now this", task_id=task))
        assert answer.status_code == 200, answer.text
        for heard in (sender.result(), follower.result()):
            assert heard[-1].name == "error"
            assert heard[-1].data["code"] == "request_canceled"
            assert heard[-1].data["request_id"] == old
        end = first.get(f"/requests/{old}").json()
        assert (end["status"], end["error"]["code"]) == ("Canceled", "request_canceled")
        assert end["content"]["output"].startswith("drip")
        kept = ["hello", "dripping", "now this"] if mode == "interrupt" else ["hello", "now this"]
        assert said(second, task) == kept
        sent = pair.model.requests[-1]["body"]["messages"]
        assert [m["content"] for m in sent if m["role"] == "user"] == ["hello", "now this"]


def test_a_superseded_caller_is_answered(yielding: tuple[str, Replicas]) -> None:
    """A client that waits for JSON gets 409 `request_canceled`, also when another replica took over."""
    _, pair = yielding
    with pair.first.client() as first, pair.second.client() as second:
        task = new_task(first)
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(first.post("", json=text("for ever", task_id=task)))
        )
        waiting.start()
        until(lambda: second.get(f"/tasks/{task}").json()["status"] == "Running")
        assert second.post("", json=text("no, this", task_id=task)).status_code == 200
        waiting.join(60)
        problem(answers[0], 409, "request_canceled")


async def test_of_many_that_give_way_the_last_is_answered(yielding: tuple[str, Replicas]) -> None:
    """Twenty at once: each is answered or reported as canceled, and nothing is left running."""
    _, pair = yielding
    urls = [service.url for service in pair.services]
    async with pair.first.async_client() as client:
        task = (await client.post("", json=text("hello"))).json()["task_id"]
        answers = await gather(
            *(client.post(urls[n % 2], json=text(f"slowly {n}", task_id=task)) for n in range(20))
        )
        outcomes = {answer.json().get("code", "ok") for answer in answers}
        assert outcomes == {"ok", "request_canceled"}
        assert (await client.get(f"/tasks/{task}")).json()["status"] == "Completed"
        [*_, last] = (await client.get(f"/tasks/{task}/messages?limit=200")).json()["items"]
        [answered] = [each for each in answers if each.json()["request_id"] == last["request_id"]]
        assert answered.json()["content"]["output"] == last["items"][0]["content"]
        assert (await client.post("", json=text("now", task_id=task))).status_code == 200


# --- a pause ----------------------------------------------------------------------------------------


def test_a_message_meets_a_pause_on_any_replica(nursery: Nursery, tmp_path: Path) -> None:
    """The answer names the pause; with `supersede` it cancels the pause first. covers: HITL-1"""
    catalogue = tmp_path / "catalogue.json"
    catalogue.write_text(json.dumps({"plugins": []}))  # what it does not name needs approval
    env = {"TA_PLUGIN_MODULE": str(PLUGINS), "TA_PLUGIN_CATALOG_FILE": str(catalogue)}
    with (
        replicas(nursery, tmp_path, env=env, agent={"plugins": ["Shell"]}) as pair,
        pair.first.client() as first,
        pair.second.client() as second,
    ):
        pause = first.post("", json=text('call Shell-look {"path": "/x"}')).json()
        assert pause["status"] == "Paused"
        task, old = pause["task_id"], pause["request_id"]
        refused = problem(second.post("", json=text("hello?", task_id=task)), 409, "approval_pending")
        assert refused["request_id"] == old
        assert refused["approval_id"] == pause["content"]["approval_id"]
        answer = second.post("", json=text("forget it", task_id=task, supersede=True))
        assert answer.json()["status"] == "Completed", answer.text
        end = first.get(f"/requests/{old}").json()
        assert (end["status"], end["error"]["code"]) == ("Canceled", "request_canceled")
        decision = first.post(f"/requests/{old}/resume", json={"action": "approve"})
        problem(decision, 409, "request_canceled")
        assert first.get("/approvals?status=pending").json()["items"] == []


# --- takeover ---------------------------------------------------------------------------------------


@pytest.fixture
def mortal(nursery: Nursery, tmp_path: Path) -> Iterator[Replicas]:
    with replicas(nursery, tmp_path) as running:
        yield running


@pytest.fixture
def forgetful(nursery: Nursery, tmp_path: Path) -> Iterator[Replicas]:
    """Processes with a short lease, to be stopped beyond it."""
    with replicas(nursery, tmp_path, limits={"lease_seconds": LEASE}) as running:
        yield running


def stopped_between_writes(service: ForkedService, database: Path) -> None:
    """Stops a process where it does not hold SQLite's lock, with which no other process could write."""

    def is_between() -> bool:
        service.stop()
        until(lambda: "State:\tT" in Path(f"/proc/{service.process.pid}/status").read_text())
        with closing(sqlite3.connect(database, timeout=1, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                service.cont()
                return False
            other.execute("ROLLBACK")
        return True

    until(is_between)


def begun(pair: Replicas, task: str) -> tuple[Listener, Listener, str]:
    """A request that drips on the first process: its sender, a follower on the second, its id."""
    sender = Listener(pair.first, "POST", "/sse", json=text("dripping", task_id=task))
    until(lambda: len(sender.events) > 5)
    request_id = sender.events[0].data["request_id"]
    follower = Listener(pair.second, "GET", f"/requests/{request_id}/events")
    until(lambda: len(follower.events) > 5)
    return sender, follower, request_id


def check_taken_over(client: httpx.Client, task: str, request_id: str, heard: list[Event]) -> None:
    """Every read shows the request interrupted, and its log ends behind everything that was heard."""
    end = ended(client, request_id)
    assert (end["status"], end["error"]["code"]) == ("Failed", "interrupted")
    assert end["content"]["output"].startswith("drip drip")
    assert client.get(f"/tasks/{task}").json()["status"] == "Failed"
    assert task in {each["task_id"] for each in client.get("/tasks?status=Failed").json()["items"]}
    assert client.get("/tasks?status=Running").json()["items"] == []
    assert heard[-1].name == "error"
    assert heard[-1].data["code"] == "interrupted"
    with client.stream("GET", f"/requests/{request_id}/events") as response:
        replay = list(events(response.iter_lines()))
    numbers = [event.number or 0 for event in replay]
    assert numbers[:-1] == list(range(1, len(numbers)))
    assert numbers[-1] == numbers[-2] + 1001 == heard[-1].number


def test_the_requests_of_a_killed_process_end(mortal: Replicas, tmp_path: Path) -> None:
    """Every read says so; followers get a number they cannot have seen. covers: STATE-3, TASK-5"""
    with mortal.second.client() as second:
        task = new_task(second)
        sender, follower, request_id = begun(mortal, task)
        mortal.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        heard = follower.result()
        assert sender.result()[-1].name == "partial-response"
        assert sender.broken is not None
        check_taken_over(second, task, request_id, heard)
        assert (heard[-1].number or 0) > (sender.events[-1].number or 0)
        seen = str(sender.events[-1].number)
        rest = second.get(f"/requests/{request_id}/events", headers={"last-event-id": seen})
        assert [event.name for event in events(rest.text)][-1] == "error"
        assert second.post("", json=text("go on", task_id=task)).json()["status"] == "Completed"


def test_a_process_that_wakes_up_writes_nothing(forgetful: Replicas, tmp_path: Path) -> None:
    """Stopped past its lease it finds its requests ended, answers clients, and continues. covers: STATE-3"""
    with forgetful.first.client() as first, forgetful.second.client() as second:
        task = new_task(second)
        sender, follower, request_id = begun(forgetful, task)
        stopped_between_writes(forgetful.first, tmp_path / "state.db")
        check_taken_over(second, task, request_id, follower.result())
        assert second.post("", json=text("go on", task_id=task)).json()["status"] == "Completed"
        audit = second.get(f"/tasks/{task}/audit?limit=200").json()
        forgetful.first.cont()
        assert sender.result()[-1].name == "error"
        assert sender.events[-1].data["code"] == "interrupted"
        assert first.post("", json=text("hello")).json()["status"] == "Completed"
        assert second.get(f"/tasks/{task}/audit?limit=200").json() == audit
        assert said(first, task) == ["hello", "dripping", "go on"]


def test_a_request_canceled_elsewhere_stops(mortal: Replicas) -> None:
    """The process that runs it hears of it, and its stream ends as the request did. covers: TASK-7"""
    with mortal.second.client() as second:
        task = new_task(second)
        sender, follower, request_id = begun(mortal, task)
        canceled = second.post(f"/requests/{request_id}/cancel").raise_for_status().json()
        assert canceled["status"] == "Canceled"
        for heard in (sender.result(), follower.result()):
            assert (heard[-1].name, heard[-1].data["code"]) == ("error", "request_canceled")
        until(lambda: mortal.model.requests[-1]["outcome"] == "left")
        assert second.post("", json=text("go on", task_id=task)).json()["status"] == "Completed"
