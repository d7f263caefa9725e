"""How much at once, how long, and for whom: overload, deadlines, and clients that read nothing."""

import asyncio
import json
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message
from talk import (
    approve,
    begin,
    call,
    cancel,
    connections,
    decide,
    in_service,
    items,
    lines,
    paused,
    request,
    send,
    streamed_text,
    working_service,
)
from wire import NOBODYS, events, problem, streamed, text

from tealagents.api import bodies, sse
from tealagents.api.exchange import COPIES
from tealagents.domain.errors import Overloaded
from tealagents.domain.models import Caller, User
from tealagents.engine.admission import LARGEST_PER_PROCESS, LARGEST_PER_USER, Admission
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

SCRIPT = """
rules:
  - {when: begin and hang, reply: {pieces: [one, ' two', {text: ' three', delay_ms: 60000}]}}
  - {when: hang, reply: {text: never, headers_delay_ms: 60000}}
"""


def is_left(model: OfflineModel) -> None:
    """The connection of the last model call is closed by the client that made it."""
    until(lambda: model.requests[-1]["outcome"] is not None)
    assert model.requests[-1]["outcome"] == "left"


# --- how many at once -----------------------------------------------------------------------------


def sending(service: ServiceThread, user: str, *, sent: int, announced: int) -> socket.socket:
    """A connection on which a message is on its way, and does not end."""
    connection = socket.create_connection(("127.0.0.1", service.port))
    head = f"POST {service.prefix} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {user}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    connection.sendall(head.encode() + b" " * sent)
    return connection


def until_full(
    client: httpx.Client, held: Sequence[Callable[[], socket.socket]], stack: ExitStack
) -> httpx.Response:
    """Holds these unfinished posts until a whole one is refused. One of them that came when a whole one was
    in its way has been refused itself, and is sent again."""
    connections = {stack.enter_context(send()): send for send in held}
    while (refused := client.post("", json=text("x" * 500_000))).status_code == 200:
        for answered in select.select(connections, [], [], 0)[0]:
            send = connections.pop(answered)
            connections[stack.enter_context(send())] = send
    return refused


def test_bodies_on_their_way_have_a_budget() -> None:
    """Unfinished posts of one user hold no more than some bodies of the largest size; one too many is
    answered 429, others continue, and what ends or leaves gives its share back. covers: STATE-5"""
    limits = {"max_body_bytes": 1_000_000}
    with working_service(SCRIPT, limits=limits) as (service, _), ExitStack() as stack:
        ada = stack.enter_context(service.client())
        eve = stack.enter_context(service.client("eve"))
        unfinished = partial(sending, service, sent=990_000, announced=999_000)
        large = text("x" * 500_000)
        refused = until_full(ada, [partial(unfinished, "ada")] * LARGEST_PER_USER, stack)
        problem(refused, 429, "overloaded")
        assert send(ada, "a short one")["status"] == "Completed"
        assert eve.post("", json=large).status_code == 200
        crowd = [partial(unfinished, f"u{n}") for n in range(LARGEST_PER_PROCESS)]
        problem(until_full(eve, crowd, stack), 503, "overloaded")
        assert send(eve, "a short one")["status"] == "Completed"
        assert ada.get("/health/ready").status_code == 200
        stack.pop_all().close()
        with service.client() as ada:
            while (answer := ada.post("", json=large)).status_code != 200:
                problem(answer, answer.status_code, "overloaded")


def test_large_messages_that_are_answered_have_the_budget_of_bodies() -> None:
    """Messages in flight hold a share of it to their end, whether or not their clients wait for them, and an
    import holds one while it is carried out. covers: STATE-5"""
    limits = {"max_body_bytes": 1_000_000}
    with working_service(SCRIPT, limits=limits) as (service, _), service.client() as ada:
        long = "hang " + "x" * 950_000
        task = send(ada, "x" * 900_000)["task_id"]
        whole = ada.get(f"/tasks/{task}/export").json()
        ada.delete(f"/tasks/{task}").raise_for_status()
        running = [begin(ada, long) for _ in range(LARGEST_PER_USER)]
        problem(ada.post("", json=text(long)), 429, "overloaded")
        problem(ada.post("/tasks/import", json=whole), 429, "overloaded")
        assert send(ada, "a short one")["status"] == "Completed"
        with service.client("eve") as eve:
            assert send(eve, "x" * 950_000)["status"] == "Completed"
        cancel(ada, running[0])
        assert ada.post("/tasks/import", json=whole).status_code == 201
        for _ in range(2):
            assert send(ada, "x" * 900_000)["status"] == "Completed"


def test_a_large_message_that_waits_for_its_turn_holds_its_share() -> None:
    """Its client may wait for the answer, and once it is answered it could no longer be refused."""
    limits = {"max_body_bytes": 1_000_000}
    with (
        working_service(SCRIPT, limits=limits, concurrency="enqueue") as (service, _),
        service.client() as ada,
    ):
        running = begin(ada, "hang")
        long = {"task_id": running["task_id"]}
        waiting = [begin(ada, "hang " + "x" * 950_000, **long) for _ in range(LARGEST_PER_USER)]
        problem(ada.post("", json=text("hang " + "x" * 950_000, **long)), 429, "overloaded")
        cancel(ada, running)
        for each in reversed(waiting):
            cancel(ada, each)
        answering = service.app.exchange.service.admission.answering
        until(lambda: not answering._held and not answering._by_user)


def test_what_is_repeated_or_decided_comes_through_beside_large_messages(tmp_path: Path) -> None:
    """Bodies that are received have a budget of their own: a known key and a decision take no other place."""
    file = str(tmp_path / "file")
    write = json.dumps({"tool_calls": [{"name": "Work-write", "arguments": {"file": file, "line": "a"}}]})
    rules = f"- {{when: {{tool_result: true}}, reply: done}}\n  - {{when: pause, reply: {write}}}"
    limits = {"max_body_bytes": 1_000_000}
    with working_service(f"{SCRIPT}  {rules}\n", limits=limits) as (service, _), service.client() as ada:
        pause = paused(ada, "pause")
        long, key = "hang " + "x" * 950_000, {"idempotency-key": "k", "prefer": "respond-async"}
        assert ada.post("", json=text(long), headers=key).status_code == 202
        for _ in range(LARGEST_PER_USER - 1):
            begin(ada, long)
        problem(ada.post("", json=text("x" * 950_000)), 429, "overloaded")
        problem(ada.post("", json=text(long), headers=key), 409, "request_in_progress")
        edited = {"file": file, "line": "y" * 600_000}
        calls = [{"id": each["id"], "action": "approve", "arguments": edited} for each in pause["tool_calls"]]
        assert decide(ada, pause, action="approve", decisions=calls).status_code == 200


def test_forks_of_one_user_wait_for_each_other() -> None:
    """Each holds what it copies: beyond a few they wait, and another user's do not."""
    with (
        working_service(SCRIPT) as (service, _),
        service.client() as ada,
        service.client("eve") as eve,
        ThreadPoolExecutor(1) as pool,
    ):
        task, other = send(ada, "hello"), send(eve, "hello")
        owner = ada.get(f"/tasks/{task['task_id']}").json()["owner"]
        copying = service.app.exchange.copying(Caller(user=User(**owner)))
        for _ in range(COPIES):
            in_service(service, copying.acquire())
        waiting = pool.submit(ada.post, f"/tasks/{task['task_id']}/fork")
        assert eve.post(f"/tasks/{other['task_id']}/fork").status_code == 201
        assert not waiting.done()
        in_service(service, released(copying))
        assert waiting.result().status_code == 201


def test_large_messages_that_wait_for_a_fork_hold_their_shares() -> None:
    """They are in memory while the forks that they continue wait for their turn."""
    limits = {"max_body_bytes": 1_000_000}
    with (
        working_service(SCRIPT, limits=limits, protocols=["openai"]) as (service, _),
        service.client(timeout=60) as ada,
        ThreadPoolExecutor(LARGEST_PER_USER) as pool,
    ):

        def create(said: str, **after: str) -> httpx.Response:
            return ada.post("/openai/v1/responses", json={"input": said, **after})

        first = {"previous_response_id": create("hello").json()["id"]}
        create("and then?", **first).raise_for_status()
        owner = ada.get("/tasks").json()["items"][0]["owner"]
        copying = service.app.exchange.copying(Caller(user=User(**owner)))
        for _ in range(COPIES):
            in_service(service, copying.acquire())
        waiting = [pool.submit(create, "x" * 950_000, **first) for _ in range(LARGEST_PER_USER)]
        until(lambda: len(copying._waiters or ()) == LARGEST_PER_USER)
        assert create("x" * 950_000, **first).status_code == 429
        for _ in range(COPIES):
            in_service(service, released(copying))
        assert [each.result().status_code for each in waiting] == [200] * LARGEST_PER_USER


async def released(semaphore: asyncio.Semaphore) -> None:
    semaphore.release()


async def test_a_body_that_came_whole_is_refused_at_once() -> None:
    """Nothing more is waited for, and what was received counts no longer."""
    whole: list[Message] = [{"type": "http.request", "body": b" " * 200_000}]

    async def receive() -> Message:
        return whole.pop()

    admission = Admission(per_process=1, per_user=1, largest=25_000)
    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(Overloaded):
        await bodies.read(request, 1_000_000, "ada", admission, bytes)
    admission.receiving.take("ada", 100_000)


async def test_a_refused_body_counts_no_longer_while_the_rest_of_it_is_discarded() -> None:
    """None of it is in memory any more, however long its client goes on sending."""
    sent: list[Message] = [{"type": "http.request", "body": b" " * 100_000, "more_body": True}] * 2
    free: list[bool] = []

    async def receive() -> Message:
        if sent:
            return sent.pop()
        admission.receiving.check("ada", 100_000)
        free.append(True)
        return {"type": "http.request", "body": b" "}

    admission = Admission(per_process=1, per_user=1, largest=25_000)
    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(Overloaded):
        await bodies.read(request, 1_000_000, "ada", admission, bytes)
    assert free == [True]


async def test_between_large_bodies_everything_else_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of one user's large bodies delays others by one of them, and their bodies by one more."""
    large, small = b"[" + b"0," * 2000 + b"0]", b"[0]"
    admission = Admission(per_process=1, per_user=1, largest=25_000)
    happened: list[str] = []
    rests: list[float] = []
    now, sleep = 0.0, asyncio.sleep

    async def rest(seconds: float) -> None:
        nonlocal now
        now += max(seconds, 0)
        rests.append(seconds)
        await sleep(0)

    def parse(user: str) -> Callable[[bytes], None]:
        def use(_: bytes) -> None:
            nonlocal now
            now += 0.25
            happened.append(user)

        return use

    async def work() -> None:
        while True:
            happened.append("other work")
            await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", rest)
    monkeypatch.setattr("tealagents.engine.admission.monotonic", lambda: now)
    working = asyncio.ensure_future(work())
    users = ["ada", "ada", "ada", "ada", "eve"]
    async with asyncio.TaskGroup() as sent:
        for user in users:
            sent.create_task(bodies.in_turn(large, user, admission, parse(user)))
        await sleep(0)  # all of them wait, or are parsed
        await bodies.in_turn(small, "bob", admission, lambda _: happened.append("bob"))
    working.cancel()
    in_order = [name for name, _ in groupby(happened)]
    assert [name for name in in_order if name in users] == ["ada", "eve", "ada", "ada", "ada"]
    turns = in_order[in_order.index("eve") :]
    assert set(turns[1::2]) == {"other work"}, "one large body is parsed after another"
    assert turns[::2] == ["eve", "ada", "ada", "ada"]
    assert in_order.index("bob") < in_order.index("eve")
    assert rests[1:] == [0.5] * 4


@pytest.mark.parametrize("suffix", ["", "/sse"])
def test_one_request_too_many_of_a_user_is_refused_with_429(suffix: str) -> None:
    """A user's own limit does not concern others, reads, followers, cancels or health. covers: STATE-5"""
    limits = {"max_requests_per_user": 2}
    with working_service(SCRIPT, limits=limits) as (service, _), service.client() as ada:
        running = [begin(ada, "hang"), begin(ada, "hang")]
        refused = ada.post(suffix, json=text("hello"))
        problem(refused, 429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        with service.client("eve") as eve:
            assert send(eve, "hello")["status"] == "Completed"
        assert len(items(ada, "/tasks")) == 2
        with ada.stream("GET", f"/requests/{running[0]['request_id']}/events") as followed:
            assert next(events(followed.iter_lines())).name == "request"
            assert ada.get("/health/ready").status_code == 200
            cancel(ada, running[0])
        assert send(ada, "hello")["status"] == "Completed"
        cancel(ada, running[1])


def test_one_request_too_many_of_the_process_is_refused_with_503() -> None:
    """No new requests are taken; reads and health are answered; the refusal leaves nothing behind."""
    limits = {"max_concurrent_requests": 2}
    with (
        working_service(SCRIPT, limits=limits) as (service, _),
        service.client() as ada,
        service.client("eve") as eve,
    ):
        running = [begin(ada, "hang"), begin(eve, "hang")]
        key = {"idempotency-key": "again"}
        refused = ada.post("", json=text("hello"), headers=key)
        problem(refused, 503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        problem(eve.post("/sse", json=text("hello")), 503, "overloaded")
        assert len(items(ada, "/tasks")) == 1
        for path in ("/health", "/health/live", "/health/ready", "/tasks", "/approvals"):
            assert ada.get(path).status_code == 200, path
        cancel(eve, running[1])
        # the refusal has not used the key up
        answer = ada.post("", json=text("hello"), headers=key)
        assert answer.json()["status"] == "Completed"
        assert "idempotent-replayed" not in answer.headers
        cancel(ada, running[0])


def test_a_decision_counts_like_a_message_and_waits_undecided() -> None:
    """Over the limit, resuming is refused and the pause stays; paused requests are not counted."""
    limits = {"max_requests_per_user": 1}
    with working_service(SCRIPT, limits=limits) as (service, _), service.client() as ada:
        pause = paused(ada, call("Work-write", file="/dev/null", line="x"))
        running = begin(ada, "hang")
        resume = f"/requests/{pause['request_id']}/resume"
        problem(ada.post(resume, json={"action": "approve"}), 429, "overloaded")
        problem(ada.post(resume + "/sse", json={"action": "approve"}), 429, "overloaded")
        assert request(ada, pause["request_id"])["content"] == pause
        cancel(ada, running)
        answer = approve(ada, pause)
        assert answer["status"] == "Completed"
        running = begin(ada, "hang")
        assert approve(ada, pause) == answer  # what is decided is only read
        cancel(ada, running)


def test_every_end_of_a_request_gives_its_place_back() -> None:
    """Completed, failed, refused, canceled, paused, replayed: with room for one, the next one fits."""
    script = {"rules": [{"when": "fail", "reply": {"error": {"status": 400}}}]}
    limits = {"max_concurrent_requests": 1}
    with working_service(script, limits=limits) as (service, model), service.client() as ada:
        task = send(ada, "hello")["task_id"]
        problem(ada.post("", json=text("fail")), 502, "model_error")
        streamed(ada, "/sse", text("fail"))
        problem(ada.post("", json=text("x", session_id=task, task_id=task)), 409, "session_mismatch")
        problem(ada.post("", json=text("x", task_id=NOBODYS)), 404, "not_found")
        paused(ada, call("Work-write", file="/dev/null", line="x"))
        for _ in range(2):
            ada.post("", json=text("hi"), headers={"idempotency-key": "k"}).raise_for_status()
        model.script(SCRIPT)
        cancel(ada, begin(ada, "hang"))
        assert send(ada, "hello")["status"] == "Completed"


# --- how long -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["json", "sse"])
def test_a_request_past_its_deadline_ends_with_what_there_was(way: str) -> None:
    """504 after `request_timeout_seconds`, and the pieces said so far are kept. covers: STATE-5"""
    limits = {"request_timeout_seconds": 30}
    with working_service(SCRIPT, limits=limits, moved=True) as (service, model), service.client() as ada:
        if way == "json":
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(ada.post, "", json=text("begin and hang"))
                until(lambda: model.requests)
                service.advance(31)
                document = problem(waiting.result(), 504, "request_timeout")
        else:
            with ada.stream("POST", "/sse", json=text("begin and hang")) as stream:
                incoming = events(stream.iter_lines())
                found = [next(incoming) for _ in range(3)]
                service.advance(31)
                found += incoming
            assert [event.name for event in found[-2:]] == ["partial-response", "error"]
            assert streamed_text(found) == "one two"
            document = found[-1].data
            assert (document["code"], document["status"]) == ("request_timeout", 504)
        ended = request(ada, document["request_id"])
        assert ended["status"] == "Failed"
        assert ended["content"]["output"] == ("one two" if way == "sse" else "")
        is_left(model)
        model.script({})
        assert send(ada, "hello", task_id=document["task_id"])["status"] == "Completed"


def test_the_deadline_covers_tools_and_not_the_time_a_pause_waits(tmp_path: Path) -> None:
    """A tool does not outlast the request; a pause may."""
    file, limits = tmp_path / "written", {"request_timeout_seconds": 30}
    with working_service(limits=limits, moved=True) as (service, _), service.client() as ada:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(ada.post, "", json=text(call("Work-rest", file=str(file), seconds=600)))
            until(lambda: lines(file))
            service.advance(31)
            problem(waiting.result(), 504, "request_timeout")
        pause = paused(ada, call("Work-write", file="/dev/null", line="x"))
        service.advance(31)
        assert approve(ada, pause)["status"] == "Completed"


# --- clients that read nothing -------------------------------------------------------------------


class Deaf:
    """A client that sends a message and reads nothing of the answer."""

    def __init__(self, service: ServiceThread, words: str, user: str = "ada") -> None:
        body = json.dumps(text(words)).encode()
        head = (
            f"POST {service.prefix}/sse HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {user}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", service.port))
        self.socket.sendall(head.encode() + body)

    def close(self) -> None:
        self.socket.close()


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(sse, "SEND_TIMEOUT", seconds)
        yield


#: more text than the kernel buffers for a connection that is not read
LOUD = {"rules": [{"when": "shout", "reply": {"pieces": ["loud " * 13_000] * 60}}]}


def test_a_client_that_reads_nothing_is_cut_off_and_its_turn_is_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is really closed, quietly, while honest clients are served. covers: STATE-5"""
    with working_service(LOUD) as (service, _), service.client() as ada:
        caplog.clear()
        with impatient(monkeypatch, 0.3):
            deaf = [Deaf(service, "shout") for _ in range(3)]
            until(lambda: len(items(ada, "/tasks")) >= 3)
            ada.close()
            until(lambda: not connections(service))
            for client in deaf:
                client.close()
        with service.client() as again:
            until(lambda: {task["status"] for task in items(again, "/tasks")} == {"Completed"})
            assert len(items(again, "/tasks")) == 3
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_a_client_that_reads_nothing_cancels_where_leaving_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `on_disconnect: cancel` it counts as one that has left."""
    script = {
        "rules": [
            {
                "when": "shout",
                "reply": {"pieces": [*["loud " * 13_000] * 60, {"text": "end", "delay_ms": 60_000}]},
            }
        ]
    }
    with (
        working_service(script, on_disconnect="cancel") as (service, model),
        impatient(monkeypatch, 0.3),
        service.client() as ada,
    ):
        client = Deaf(service, "shout")
        until(lambda: [task["status"] for task in items(ada, "/tasks")] == ["Canceled"])
        is_left(model)
        client.close()


def test_clients_that_read_nothing_and_half_open_connections_do_not_stop_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 12 of the one and 60 of the other, every honest request is answered."""
    limits = {"max_requests_per_user": 1000}
    with working_service(LOUD, limits=limits) as (service, _), impatient(monkeypatch, 1.0):
        half_open = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(60)]
        for link in half_open[::2]:
            link.sendall(b"POST / HTTP/1.1\r\n")
        deaf = [Deaf(service, "shout", user="eve") for _ in range(12)]
        with service.client() as ada:
            for _ in range(10):
                assert send(ada, "hello")["status"] == "Completed"
                assert ada.get("/health/ready").status_code == 200
        for link in [*half_open, *(client.socket for client in deaf)]:
            link.close()
