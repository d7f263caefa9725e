"""Streams: what they say, how they are replayed and followed, and that each ends once, rightly."""

import asyncio
import gc
import http.client
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from operator import sub
from pathlib import Path
from statistics import median

import httpx
import pytest
from starlette.requests import Request as StarletteRequest
from talk import (
    approve,
    call,
    connections,
    in_service,
    items,
    numbers,
    request,
    send,
    streamed_text,
    working_process,
    working_service,
)
from wire import Event, Json, events, lapsed, problem, store_of, streamed, text

from tealagents.client import AsyncClient, Delta, Final, Request, Retry, StreamEvent
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.ports import Commit
from tealagents.llm.offline import OfflineModel
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.forking import Nursery
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.testing.waits import eventually, until

IDS = ("session_id", "task_id", "request_id")
TERMINAL = ("final-response", "approval-required", "error")
QUICK = Retry(first_delay=0.01, longest_delay=0.1)

SCRIPT = """
rules:
  - {when: begin and hang, reply: {pieces: [one, ' two', {text: ' three', delay_ms: 600000}]}}
  - {when: hang, reply: {text: never, headers_delay_ms: 600000}}
  - {when: refuse, reply: {error: {status: 400, message: not that}}}
  - when: {text: say and call, tool_result: false}
    reply:
      text: Let me see.
      tool_calls: [{name: Work-write, arguments: '{"file": "/dev/null", "line": "x"}'}]
  - {when: {text: say and call, tool_result: true}, reply: That was that.}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT) as pair:
        yield pair


def counted(count: int) -> str:
    """What `pieces-N` says."""
    return " ".join(str(number) for number in range(1, count + 1))


def held(count: int) -> Json:
    """A script that counts so far on demand; the last number comes when the model is released."""
    *words, last = counted(count).split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:]), {"text": f" {last}", "delay_ms": 10**9}]
    return {"rules": [{"when": "count", "reply": {"pieces": pieces, "piece_delay_ms": 5}}]}


@contextmanager
def playing(model: OfflineModel, script: Json) -> Iterator[None]:
    """Another script for a while."""
    model.script(script)
    try:
        yield
    finally:
        model.script(SCRIPT)


def leave(service: ServiceThread, model: OfflineModel, words: str) -> None:
    """Sends a message for JSON, and leaves while the model is asked; returns when the service knows."""
    asked, before = len(model.requests), connections(service)
    link = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"authorization": "Bearer ada", "content-type": "application/json"}
    link.request("POST", f"{service.prefix}/", json.dumps(text(words)), headers)
    until(lambda: len(model.requests) != asked)
    link.close()
    until(lambda: connections(service) <= before)


def replay(client: httpx.Client, request_id: str, after: int | None = None) -> list[Event]:
    query = "" if after is None else f"?after={after}"
    answer = client.get(f"/requests/{request_id}/events{query}")
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return list(events(answer.text))


def plain(found: list[Event]) -> list[tuple[int | None, str, Json]]:
    return [(event.number, event.name, event.data) for event in found]


# --- what is said --------------------------------------------------------------------------------


def test_a_stream_begins_with_the_request_and_ends_with_what_json_says(ada: httpx.Client) -> None:
    """Ids from 1, rising by one; `request`, pieces, one end that equals the JSON answer. covers: FLOW-1"""
    found = streamed(ada, "/sse", text("pieces-5"))
    assert numbers(found) == list(range(1, 8))
    assert [event.name for event in found] == ["request", *["partial-response"] * 5, "final-response"]
    first, last = found[0].data, found[-1].data
    assert set(first) == {*IDS, "status"}
    assert first["status"] == "Running"
    for event in found:
        assert {name: event.data[name] for name in IDS} == {name: first[name] for name in IDS}
    assert set(found[1].data) == {*IDS, "source", "output_partial"}
    assert found[1].data["source"] == "Tester:0.1"
    assert streamed_text(found) == counted(5) == last["content"]["output"]
    assert last == send_again(ada, first["request_id"])
    json_keys = set(send(ada, "pieces-5"))
    assert set(last) == json_keys


def send_again(client: httpx.Client, request_id: str) -> Json:
    """The JSON answer of a request, from its document."""
    found = request(client, request_id)
    return {name: found[name] for name in (*IDS, "status", "content")}


def test_each_piece_of_the_model_is_an_event_of_its_own_and_comes_at_once(
    ada: httpx.Client, model: OfflineModel
) -> None:
    """Pieces are not gathered: what was said is shown though the model says nothing more for now."""
    with ada.stream("POST", "/sse", json=text("begin and hang")) as stream:
        found = events(stream.iter_lines())
        first = next(found)
        pieces = [next(found).data["output_partial"] for _ in range(2)]
        assert pieces == ["one", " two"]
        ada.post(f"/requests/{first.data['request_id']}/cancel").raise_for_status()
        assert [event.data["code"] for event in found] == ["request_canceled"]


ACCEPTS: dict[str, bool] = {
    "text/event-stream": True,
    "Text/Event-Stream": True,
    "text/event-stream, application/json": True,
    "application/json, text/event-stream": True,
    "application/json;q=0.5, text/event-stream;q=0.9": True,
    "text/event-stream;q=0.9, */*;q=0.8": True,
    "text/event-stream; charset=utf-8": True,
    "application/json": False,
    "*/*": False,
    "text/*": False,
    "application/json, text/event-stream;q=0.5": False,
    "text/event-stream;q=0": False,
    "text/event-stream;q=0.1, */*": False,
    "text/plain": False,
}


@pytest.mark.parametrize("accept", ACCEPTS)
def test_accept_chooses_between_json_and_a_stream(ada: httpx.Client, accept: str) -> None:
    """A stream where `text/event-stream` is named at least as high as JSON. covers: APP-6"""
    answer = ada.post("", json=text("hello"), headers={"accept": accept})
    kind = "text/event-stream" if ACCEPTS[accept] else "application/json"
    assert answer.headers["content-type"].startswith(kind)


def test_a_refusal_is_a_problem_and_no_stream(ada: httpx.Client) -> None:
    """What is refused before it begins is answered with its status, on `/sse` too."""
    for body, status, code in (
        ({"items": []}, 422, "invalid_request"),
        (text("x", task_id="6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"), 404, "not_found"),
    ):
        problem(ada.post("/sse", json=body), status, code)


def test_the_headers_of_a_stream_keep_it_from_being_stored_or_held_back(ada: httpx.Client) -> None:
    """No cache, no buffering on the way."""
    answer = ada.post("/sse", json=text("hello"))
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"


def test_an_open_stream_keeps_nothing_of_the_call_that_it_answers(ada: httpx.Client) -> None:
    """Neither the call, whose body may be megabytes, nor what routed it waits for the end of the answer."""

    def calls() -> set[int]:
        return {id(each) for each in gc.get_objects() if isinstance(each, StarletteRequest)}

    others = calls()
    with ada.stream("POST", "/sse", json=text("begin and hang")) as response:
        lines = response.iter_lines()
        assert any(line.startswith("event: partial-response") for line in lines)
        assert calls() <= others


def test_comments_keep_a_silent_stream_alive() -> None:
    """While nothing else is sent, a comment is, also to followers; none between events. covers: STATE-5"""
    with (
        working_service(SCRIPT, limits={"keepalive_seconds": 0.05}) as (service, _),
        service.client() as ada,
        ada.stream("POST", "/sse", json=text("begin and hang")) as stream,
    ):
        lines = stream.iter_lines()
        comments = 0
        request_id = ""
        for line in lines:
            if line.startswith("data: ") and not request_id:
                request_id = line.partition('"request_id":"')[2][:36]
            comments += line.startswith(":")
            if comments == 3:
                break
        with ada.stream("GET", f"/requests/{request_id}/events?after=3") as followed:
            assert next(followed.iter_lines()).startswith(":")
        ada.post(f"/requests/{request_id}/cancel").raise_for_status()
        assert '"request_canceled"' in "".join(lines)


# --- replay --------------------------------------------------------------------------------------


def test_a_stream_is_replayed_from_any_event(ada: httpx.Client) -> None:
    """Behind each id comes exactly what followed; behind the last, nothing: 204."""
    found = streamed(ada, "/sse", text(f"pieces-4 and {call('Work-tell', key='a', value='b')}"))
    request_id = found[0].data["request_id"]
    assert plain(replay(ada, request_id)) == plain(found)
    for n, event in enumerate(found[:-1], start=1):
        header = {"last-event-id": str(event.number)}
        answer = ada.get(f"/requests/{request_id}/events", headers=header)
        assert plain(list(events(answer.text))) == plain(found[n:])
        assert plain(replay(ada, request_id, event.number)) == plain(found[n:])
    for after in (len(found), len(found) + 1, 10**9):
        answer = ada.get(f"/requests/{request_id}/events?after={after}")
        assert (answer.status_code, answer.content) == (204, b"")


def test_last_event_id_wins_over_after(ada: httpx.Client) -> None:
    """As an `EventSource` that reconnects to a URL with `after` sends both."""
    found = streamed(ada, "/sse", text("pieces-3"))
    path = f"/requests/{found[0].data['request_id']}/events?after=1"
    answer = ada.get(path, headers={"last-event-id": "4"})
    assert plain(list(events(answer.text))) == plain(found[4:])


@pytest.mark.parametrize("bad", ["x", "1.0", "-1", "0x1", "1 2", "٣"])
def test_an_id_that_is_no_integer_is_refused(ada: httpx.Client, bad: str) -> None:
    """422 names where it came from."""
    path = f"/requests/{send(ada, 'hello')['request_id']}/events"
    problem(ada.get(path, params={"after": bad}), 422, "invalid_request", "after")
    header = {b"last-event-id": bad.encode()}
    refused = problem(ada.get(path, headers=header), 422, "invalid_request", "Last-Event-ID")
    assert "must be an integer from 0" in refused["detail"]


def test_a_request_that_was_answered_as_json_is_replayed_too(ada: httpx.Client) -> None:
    """Its tool calls and its end are events as well; pieces there were none. covers: SESSION-8"""
    answer = send(ada, call("Work-tell", key="a", value="b"))
    found = replay(ada, answer["request_id"])
    assert [event.name for event in found] == ["request", "tool-call", "tool-result", "final-response"]
    assert numbers(found) == [1, 2, 3, 4]
    assert found[-1].data == answer
    refused = problem(ada.post("", json=text("refuse")), 502, "model_error")
    found = replay(ada, refused["request_id"])
    assert [event.name for event in found] == ["request", "error"]
    assert found[-1].data == refused


def test_a_replay_continues_over_pauses_as_far_as_was_decided(ada: httpx.Client) -> None:
    """It ends at a pending pause, passes over a decided one, and waits behind a pending one."""
    before = streamed(ada, "/sse", text("say and call"))
    request_id = before[0].data["request_id"]
    at_pause = plain(before)
    assert before[-1].name == "approval-required"
    pause = before[-1].data["content"]
    assert plain(replay(ada, request_id)) == at_pause
    assert plain(replay(ada, request_id, 1)) == at_pause[1:]
    last = before[-1].number
    with ada.stream("GET", f"/requests/{request_id}/events?after={last}") as waiting:
        lines = waiting.iter_lines()
        approve(ada, pause)
        after = list(events(lines))
    assert [event.name for event in after] == ["request", "tool-call", "tool-result", "final-response"]
    assert last is not None
    assert numbers(after) == list(range(last + 1, last + 5))
    assert plain(replay(ada, request_id)) == at_pause[:-1] + plain(after)
    for number in range(1, last + 1):
        assert plain(replay(ada, request_id, number)) == at_pause[number:-1] + plain(after)


def test_a_pause_that_is_canceled_ends_the_streams_that_wait_behind_it(ada: httpx.Client) -> None:
    """A client that waits for a decision learns that there will be none."""
    before = streamed(ada, "/sse", text("say and call"))
    request_id, last = before[0].data["request_id"], before[-1].number
    with ada.stream("GET", f"/requests/{request_id}/events?after={last}") as waiting:
        lines = waiting.iter_lines()
        ada.post(f"/requests/{request_id}/cancel").raise_for_status()
        [end] = events(lines)
    assert (end.name, end.data["code"]) == ("error", "request_canceled")
    assert last is not None
    assert end.number == last + 1
    assert plain(replay(ada, request_id)) == [*plain(before)[:-1], *plain([end])]


def test_a_deletion_ends_the_streams_that_wait_behind_a_pause(ada: httpx.Client) -> None:
    """With an error, as any other stream."""
    before = streamed(ada, "/sse", text("say and call"))
    ids = {name: before[0].data[name] for name in ("task_id", "request_id")}
    with ada.stream("GET", f"/requests/{ids['request_id']}/events?after={before[-1].number}") as waiting:
        lines = waiting.iter_lines()
        ada.delete(f"/tasks/{ids['task_id']}").raise_for_status()
        [end] = events(lines)
    assert (end.name, end.data["code"]) == ("error", "not_found")
    assert end.data["request_id"] == ids["request_id"]


def test_followers_see_the_same_whenever_they_come(ada: httpx.Client, model: OfflineModel) -> None:
    """At the beginning, in the middle, at the end: the same events with the same ids."""
    with playing(model, held(40)):
        accepted = ada.post("", json=text("count"), headers={"prefer": "respond-async"}).json()
        path = f"/requests/{accepted['request_id']}/events"
        with ada.stream("GET", path) as first, ada.stream("GET", path) as second:
            early, later = events(first.iter_lines()), events(second.iter_lines())
            found = [next(early) for _ in range(20)]
            # all but the last piece has been said when this one is read
            middle = [next(later) for _ in range(40)]
            model.release()
            found += early
            middle += later
    whole = replay(ada, accepted["request_id"])
    assert numbers(whole) == list(range(1, 43))
    assert plain(found) == plain(middle) == plain(whole)
    assert streamed_text(whole) == counted(40)


class ShiftedClock(SystemClock):
    """The machine's clock, which a test may set ahead."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


def test_events_are_forgotten_a_day_after_the_end_and_the_result_is_not(model: OfflineModel) -> None:
    """404 then says to read the request, which still has its content. covers: STATE-2"""
    clock = ShiftedClock()
    env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "k", "TA_AUTH": "mock"}
    with ServiceThread(agent_config(), env, clock=clock) as service, service.client() as ada:
        answer = send(ada, "hello")
        path = f"/requests/{answer['request_id']}/events"
        clock.ahead = timedelta(hours=23, minutes=59)
        assert replay(ada, answer["request_id"])[-1].data == answer
        clock.ahead = timedelta(hours=24, minutes=1)
        for after in ("", "?after=1", "?after=99"):
            problem(ada.get(path + after), 404, "not_found")
        assert request(ada, answer["request_id"])["content"] == answer["content"]


# --- followers elsewhere -------------------------------------------------------------------------


async def collected(
    client: httpx.AsyncClient,
    path: str,
    body: Json | None = None,
    until: Callable[[Event], object] | None = None,
) -> list[Event]:
    """The events of a stream, to its end or to the one that `until` accepts."""
    found: list[Event] = []
    pending: list[str] = []
    method = "GET" if body is None else "POST"
    async with client.stream(method, path, json=body) as stream:
        async for line in stream.aiter_lines():
            pending.append(line)
            if line == "":
                found += events(iter(pending))
                pending = []
                if found and until is not None and until(found[-1]):
                    break
    return found


async def test_followers_in_another_process_see_every_event_soon_and_to_the_end(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Without a gap or a repeat, a second behind at most; over a pause that is decided there, too.

    covers: STATE-3
    """
    with (
        OfflineModel(SCRIPT) as model,
        working_process(nursery, tmp_path / "state.db", model) as one,
        working_process(nursery, tmp_path / "state.db", model) as other,
    ):
        async with one.async_client() as here, other.async_client() as there:
            now = asyncio.get_running_loop().time
            sent: list[float] = []
            came: list[float] = []
            at_once = collected(here, "/sse", text("pieces-150@10ms"), lambda _: sent.append(now()))
            sender = asyncio.create_task(at_once)

            async def tasks() -> list[Json]:
                listed: list[Json] = (await there.get("/tasks")).json()["items"]
                return listed

            path = f"/requests/{(await eventually(tasks))[0]['request_id']}/events"
            followers = [asyncio.create_task(collected(there, f"{path}?after={n}")) for n in (0, 1, 7, 60)]
            timed = await collected(there, path, until=lambda _: came.append(now()))
            seen = [await follower for follower in followers]
            whole = plain(await sender)
            assert plain(timed) == whole
            assert [plain(found) for found in seen] == [whole[n:] for n in (0, 1, 7, 60)]
            # of most events, so that one pause of a busy machine says nothing
            assert median(map(sub, came, sent)) < 1
            # the pause is shown here, decided there, and followed here again
            before = await collected(here, "/sse", text("say and call"))
            pause = before[-1].data["content"]
            path = f"/requests/{pause['request_id']}"
            behind = asyncio.create_task(collected(here, f"{path}/events?after={before[-1].number}"))
            after = await collected(there, f"{path}/resume/sse", {"action": "approve"})
            assert plain(await behind) == plain(after)
            assert plain(await collected(here, f"{path}/events")) == plain(before)[:-1] + plain(after)


async def test_followers_of_a_killed_producer_get_the_error_that_the_request_ends_with(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Its id lies beyond all that any client has seen; the replay ends the same way. covers: STATE-4"""
    store = tmp_path / "state.db"
    with (
        OfflineModel(SCRIPT) as model,
        working_process(nursery, store, model) as one,
        working_process(nursery, store, model) as other,
    ):
        async with one.async_client() as here, other.async_client() as there:
            sent = await here.post("", json=text("pieces-5000@10ms"), headers={"prefer": "respond-async"})
            request_id = sent.json()["request_id"]
            path = f"/requests/{request_id}/events"
            follower = asyncio.create_task(collected(there, path))
            seen = await collected(here, path, until=lambda event: (event.number or 0) >= 40)
            one.kill()
            await lapsed(f"sqlite:///{store}")
            found = await follower
            end = found[-1]
            assert (end.name, end.data["code"]) == ("error", "interrupted")
            assert numbers(found)[:-1] == list(range(1, len(found)))
            assert end.number is not None
            assert end.number > max(number or 0 for number in numbers(seen))
            assert end.number > 1000
            assert [event.name for event in found].count("error") == 1
            ended = (await there.get(f"/requests/{request_id}")).json()
            assert (ended["status"], ended["error"]) == ("Failed", end.data)
            assert ended["content"]["output"] == streamed_text(found)
            assert plain(await collected(there, path)) == plain(found)
            assert plain(await collected(there, f"{path}?after={end.number - 1}")) == plain([end])
            assert (await there.get(f"{path}?after={end.number}")).status_code == 204


# --- clients that leave --------------------------------------------------------------------------


def wait_for_end(client: httpx.Client, request_id: str) -> Json:
    until(lambda: request(client, request_id)["status"] not in ("Running", "Queued"))
    return request(client, request_id)


async def leave_at(client: httpx.AsyncClient, words: str, name: str, occurrence: int) -> str:
    """Sends a message, and leaves at an event of this name; returns the request's id."""
    count = 0

    def reached(event: Event) -> bool:
        nonlocal count
        count += event.name == name
        return count == occurrence

    found = await collected(client, "/sse", text(words), until=reached)
    request_id: str = found[0].data["request_id"]
    return request_id


async def _leave(service: ServiceThread, model: OfflineModel, clients: int) -> None:
    """Clients that leave at every kind of event: their turns are stored all the same."""
    words = "pieces-6"
    model.script(
        {
            "rules": [
                {
                    "when": {"text": "pieces-6", "tool_result": False},
                    "reply": {
                        "text": "Let me see.",
                        "tool_calls": [{"name": "Work-tell", "arguments": {"key": "a", "value": "b"}}],
                    },
                },
                {"when": {"tool_result": True}, "reply": {"text": counted(6), "piece_delay_ms": 1}},
            ]
        }
    )
    places = [
        ("request", 1),
        ("partial-response", 1),
        ("partial-response", 3),
        ("tool-call", 1),
        ("tool-result", 1),
        ("partial-response", 6),
        ("final-response", 1),
    ]
    async with service.async_client("leaver") as client:
        sent = await asyncio.gather(
            *(leave_at(client, words, *places[n % len(places)]) for n in range(clients))
        )
        assert len(set(sent)) == clients
        for request_id in sent:
            while (found := (await client.get(f"/requests/{request_id}")).json())["status"] == "Running":
                await asyncio.sleep(0.01)
            assert found["status"] == "Completed"
            assert found["content"]["output"] == counted(6)


async def test_clients_that_leave_anywhere_do_not_stop_their_requests(
    service: ServiceThread, model: OfflineModel
) -> None:
    """At every kind of event, 60 clients leave: 60 turns are stored. covers: FLOW-1, STATE-3"""
    try:
        await _leave(service, model, 60)
    finally:
        model.script(SCRIPT)


@pytest.mark.soak
async def test_five_hundred_clients_that_leave_anywhere_do_not_stop_their_requests() -> None:
    """As above, 500. covers: FLOW-1, STATE-3"""
    with working_service(limits={"max_requests_per_user": 1000}) as (service, model):
        await _leave(service, model, 500)


def test_a_json_client_that_leaves_does_not_stop_its_request(
    ada: httpx.Client, service: ServiceThread, model: OfflineModel
) -> None:
    """The answer is stored for later readers."""
    with playing(model, held(40)):
        leave(service, model, "count, I cannot wait")
        assert request(ada, newest(ada))["status"] == "Running"
        model.release()
        ended = wait_for_end(ada, newest(ada))
    assert (ended["status"], ended["content"]["output"]) == ("Completed", counted(40))


def newest(client: httpx.Client) -> str:
    """The first request of the newest task."""
    [task] = items(client, "/tasks", limit=1)
    [first, *_] = items(client, f"/tasks/{task['task_id']}/audit")
    request_id: str = first["request_id"]
    return request_id


@pytest.fixture(scope="module")
def cancelling() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT, on_disconnect="cancel") as pair:
        yield pair


@pytest.mark.parametrize("way", ["sse", "json"])
def test_where_leaving_cancels_the_senders_connection_does(
    cancelling: tuple[ServiceThread, OfflineModel], way: str
) -> None:
    """By JSON and by SSE; the model call is closed, and what was said is kept."""
    service, model = cancelling
    model.clear()
    with service.client() as ada:
        if way == "sse":
            with ada.stream("POST", "/sse", json=text("begin and hang")) as stream:
                found = events(stream.iter_lines())
                request_id = next(found).data["request_id"]
                next(found)
                next(found)
        else:
            leave(service, model, "begin and hang")
            request_id = newest(ada)
        ended = wait_for_end(ada, request_id)
        assert (ended["status"], ended["error"]["code"]) == ("Canceled", "request_canceled")
        assert ended["content"]["output"] == ("one two" if way == "sse" else "")
        until(lambda: model.requests[-1]["outcome"] is not None)
        assert model.requests[-1]["outcome"] == "left"


def test_where_leaving_cancels_a_followers_leaving_does_not(
    cancelling: tuple[ServiceThread, OfflineModel],
) -> None:
    """Neither that of a client which follows a request in the background, nor of one that sends it again."""
    service, model = cancelling
    with playing(model, held(20)), service.client() as ada:
        headers = {"prefer": "respond-async", "idempotency-key": "one"}
        accepted = ada.post("", json=text("count"), headers=headers).json()
        for _ in range(3):
            with ada.stream("GET", f"/requests/{accepted['request_id']}/events") as stream:
                next(events(stream.iter_lines()))
        again = ada.post("", json=text("count"), headers={"idempotency-key": "one"})
        problem(again, 409, "request_in_progress")
        model.release()
        assert wait_for_end(ada, accepted["request_id"])["status"] == "Completed"


def test_where_leaving_cancels_that_of_who_decides_does_not(
    cancelling: tuple[ServiceThread, OfflineModel], tmp_path: Path
) -> None:
    """An approved tool runs to its end, and the request goes on."""
    service, _ = cancelling
    file = tmp_path / "lines"
    with service.client() as ada:
        words = call("Work-linger", file=str(file), line="approved", seconds=0.5)
        accepted = ada.post("", json=text(words), headers={"prefer": "respond-async"}).json()
        path = f"/requests/{accepted['request_id']}"
        until(lambda: ada.get(path).json()["status"] == "Paused")
        with ada.stream("POST", f"{path}/resume/sse", json={"action": "approve"}):
            until(file.exists)
        assert wait_for_end(ada, accepted["request_id"])["status"] == "Completed"
    assert file.read_text() == "approved\n"


# --- forty points of failure ----------------------------------------------------------------------


class Weak:
    """Wraps the store of a service in this process: commits fail while a test says so."""

    def __init__(self, service: ServiceThread) -> None:
        self._store = store_of(service)
        self._commit = self._store.commit
        self.away = False
        #: fail only commits that put a key with this beginning
        self.only = ""
        self._store.commit = self  # type: ignore[method-assign]

    async def __call__(self, partition: str, commit: Commit) -> None:
        if self.away and any(key.startswith(self.only) for key in commit.put):
            raise PersistenceUnavailable("The store is away.")
        await self._commit(partition, commit)

    def restore(self) -> None:
        self._store.commit = self._commit  # type: ignore[method-assign]


def one_end(found: list[Event]) -> Event:
    """The one event that ends a stream, which is its last."""
    ends = [event for event in found if event.name in TERMINAL]
    assert len(ends) == 1, found
    assert ends[0] is found[-1]
    assert numbers(found) == list(range(1, len(found) + 1)), found
    return ends[0]


def stored_end(client: httpx.Client, found: list[Event]) -> Json:
    """The request as it is stored, which must agree with the end that was shown, also in a replay."""
    ended = request(client, found[0].data["request_id"])
    assert plain(replay(client, ended["request_id"])) == plain(found)
    if ended["error"] is not None:
        assert ended["error"] == found[-1].data
    return ended


FAULTS: dict[str, tuple[Json, str]] = {
    "cut": ({"kind": "cut"}, "model_error"),
    "ended early": ({"kind": "end"}, "model_error"),
    "failed": ({"kind": "error", "message": "it broke"}, "model_error"),
    "silent": ({"kind": "silence"}, "model_timeout"),
}


@pytest.mark.parametrize("after", [0, 1, 2, 5])
@pytest.mark.parametrize("name", FAULTS)
def test_a_model_that_breaks_off_ends_the_stream_with_its_error(name: str, after: int) -> None:
    """Cut, ended early, failed or silent after n pieces: 16 points, one end each, the right one."""
    fault, code = FAULTS[name]
    script = {
        "rules": [{"when": "count", "reply": {"text": counted(6), "fault": {**fault, "after_pieces": after}}}]
    }
    impatient = {"piece_timeout_seconds": 0.3, "first_piece_timeout_seconds": 0.3}
    limits = impatient if code == "model_timeout" else {}
    with working_service(script, limits=limits) as (service, _), service.client() as ada:
        found = streamed(ada, "/sse", text("count"))
        end = one_end(found)
        assert (end.name, end.data["code"]) == ("error", code)
        # what was shown is a beginning of what was said, and all of it is kept
        assert counted(6).startswith(streamed_text(found))
        ended = stored_end(ada, found)
        assert ended["status"] == "Failed"
        assert ended["content"]["output"] == streamed_text(found)


@pytest.mark.parametrize("at", [1, 2, 3, 6, 12, 20])
def test_a_cancel_ends_the_stream_with_its_error(ada: httpx.Client, model: OfflineModel, at: int) -> None:
    """Canceled at the nth event: 6 points, one end each."""
    with playing(model, held(40)), ada.stream("POST", "/sse", json=text("count")) as stream:
        incoming = events(stream.iter_lines())
        found = [next(incoming) for _ in range(at)]
        canceled = ada.post(f"/requests/{found[0].data['request_id']}/cancel").json()
        assert canceled["status"] == "Canceled"
        found += incoming
    assert one_end(found).data["code"] == "request_canceled"
    assert stored_end(ada, found)["content"]["output"] == streamed_text(found)


@pytest.mark.parametrize("milliseconds", [1, 60, 120, 240])
def test_a_timeout_ends_the_stream_with_its_error(milliseconds: int) -> None:
    """Whenever the deadline comes: 4 points, one end each."""
    limits = {"request_timeout_seconds": milliseconds / 1000}
    with working_service(SCRIPT, limits=limits) as (service, _), service.client() as ada:
        found = streamed(ada, "/sse", text("pieces-500@5ms"))
        assert one_end(found).data["code"] == "request_timeout"
        assert stored_end(ada, found)["content"]["output"] == streamed_text(found)


@pytest.mark.parametrize("at", [1, 2, 10])
@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
def test_a_newer_message_ends_the_stream_with_its_error(mode: str, at: int) -> None:
    """Interrupted at the nth event by the next message: 6 points, one end each."""
    with working_service(held(40), concurrency=mode) as (service, _), service.client() as ada:
        with ada.stream("POST", "/sse", json=text("count")) as stream:
            incoming = events(stream.iter_lines())
            found = [next(incoming) for _ in range(at)]
            assert send(ada, "hello", task_id=found[0].data["task_id"])["status"] == "Completed"
            found += incoming
        assert one_end(found).data["code"] == "request_canceled"
        assert stored_end(ada, found)["status"] == "Canceled"


@pytest.mark.parametrize("at", [1, 5])
def test_a_drain_ends_the_stream_with_its_error(at: int) -> None:
    """Interrupted at the nth event because the process stops: 2 points, one end each."""
    with working_service(held(40), limits={"drain_seconds": 0}) as (service, _), service.client() as ada:
        with ada.stream("POST", "/sse", json=text("count")) as stream:
            incoming = events(stream.iter_lines())
            found = [next(incoming) for _ in range(at)]
            in_service(service, service.app.exchange.service.drain(0))
            found += incoming
        assert one_end(found).data["code"] == "interrupted"
        assert stored_end(ada, found)["status"] == "Failed"


@pytest.mark.parametrize("at", [1, 2, 8])
def test_a_store_that_goes_away_for_a_moment_costs_no_event(
    ada: httpx.Client, service: ServiceThread, model: OfflineModel, at: int
) -> None:
    """Away from the nth event on, and back before the end: 3 points; nothing is missing from the log."""
    weak = Weak(service)
    try:
        with playing(model, held(40)), ada.stream("POST", "/sse", json=text("count")) as stream:
            incoming = events(stream.iter_lines())
            found = [next(incoming) for _ in range(at)]
            weak.away = True
            found += [next(incoming) for _ in range(12)]
            weak.away = False
            model.release()
            found += incoming
    finally:
        weak.restore()
    assert one_end(found).name == "final-response"
    assert streamed_text(found) == counted(40)
    stored_end(ada, found)


@pytest.mark.parametrize("only", ["", "events/", "log/"])
def test_a_store_that_is_away_at_the_end_is_reported_and_the_end_is_written_later(
    ada: httpx.Client, service: ServiceThread, model: OfflineModel, only: str
) -> None:
    """3 points: `persistence_unavailable` with the ids; the request shows its outcome. covers: STATE-4"""
    weak = Weak(service)
    weak.only = only
    try:
        with playing(model, held(4)), ada.stream("POST", "/sse", json=text("count")) as stream:
            incoming = events(stream.iter_lines())
            found = [next(incoming)]
            weak.away = True
            model.release()
            found += incoming
            request_id = found[0].data["request_id"]
            end = found[-1]
            assert (end.name, end.data["code"]) == ("error", "persistence_unavailable")
            assert end.data["request_id"] == request_id
            assert end.number is None
        weak.away = False
        ended = wait_for_end(ada, request_id)
    finally:
        weak.restore()
    assert ended["status"] == "Completed"
    assert ended["content"]["output"] == counted(4)
    replayed = replay(ada, request_id)
    assert one_end(replayed).name == "final-response"
    assert streamed_text(replayed) == counted(4)


# --- cut connections -----------------------------------------------------------------------------


async def _cut(ports: list[int], prefix: str, streams: int, seed: int) -> None:
    """Streams cut at random bytes and resumed, some in another process: each whole, each ends once."""
    chance = random.Random(seed)
    places = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        pieces = chance.choice([5, 30, 80])
        cuts = [chance.randrange(1, 9000) for _ in range(chance.randrange(1, 5))]
        in_good_order, moves = chance.random() < 0.3, chance.random() < 0.5
        async with places, FaultProxy("127.0.0.1", ports[0]) as proxy:
            proxy.upcoming = [Faults(cut_replies_after=cut, cut_in_good_order=in_good_order) for cut in cuts]
            url = proxy.url_for(f"http://127.0.0.1:{ports[0]}{prefix}")
            found: list[StreamEvent] = []
            async with (
                AsyncClient(url, f"user-{number % 7}", retry=QUICK) as client,
                client.stream(f"pieces-{pieces}@2ms") as stream,
            ):
                async for event in stream:
                    if moves and len(found) == 1:
                        proxy.upstream = ("127.0.0.1", ports[-1])
                    found.append(event)
        assert isinstance(found[0], Request)
        assert [isinstance(event, Final) for event in found] == [False] * (len(found) - 1) + [True]
        assert "".join(event.text for event in found if isinstance(event, Delta)) == counted(pieces)
        assert [event.id for event in found] == list(range(1, len(found) + 1))

    await asyncio.gather(*(one(number) for number in range(streams)))


@asynccontextmanager
async def two_processes(nursery: Nursery, tmp_path: Path) -> AsyncIterator[tuple[list[int], str]]:
    limits = {"max_requests_per_user": 1000}
    with (
        OfflineModel() as model,
        working_process(nursery, tmp_path / "state.db", model, limits=limits) as one,
        working_process(nursery, tmp_path / "state.db", model, limits=limits) as other,
    ):
        yield [one.port, other.port], one.prefix


async def test_streams_cut_at_random_bytes_are_resumed(nursery: Nursery, tmp_path: Path) -> None:
    """Forty of them, half resumed in another process: every text equal to the byte. covers: STATE-3"""
    async with two_processes(nursery, tmp_path) as (ports, prefix):
        await _cut(ports, prefix, 40, seed=1)


@pytest.mark.soak
async def test_a_thousand_streams_cut_at_random_bytes_are_resumed(nursery: Nursery, tmp_path: Path) -> None:
    """As above, a thousand. covers: STATE-3"""
    async with two_processes(nursery, tmp_path) as (ports, prefix):
        await _cut(ports, prefix, 1000, seed=2)
