"""Requests in the background, and canceling: what is answered, what stops, what is kept."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from talk import (
    begin,
    call,
    cancel,
    items,
    lines,
    numbers,
    paused,
    request,
    send,
    streamed_text,
    working_process,
    working_service,
)
from wire import NOBODYS, Json, events, problem, text

from tealagents.llm.offline import OfflineModel
from tealagents.stores import local_link
from tealagents.testing.forking import Nursery
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

SCRIPT = """
rules:
  - {when: begin and hang, reply: {pieces: [one, ' two', {text: ' three', delay_ms: 600000}]}}
  - {when: hang, reply: {text: never, headers_delay_ms: 600000}}
  - {when: refuse, reply: {error: {status: 400, message: not that}}}
  - {when: speak on, reply: {pieces: [one, ' two', {text: ' three', delay_ms: 600000}]}}
  - when: {text: ask after a while, tool_result: false}
    reply:
      pieces: [Let, ' me', {text: ' see.', delay_ms: 600000}]
      tool_calls: [{name: Work-note, arguments: '{"file": "/nowhere/at/all", "line": "x"}'}]
"""

LATER = {"prefer": "respond-async"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT, concurrency="enqueue") as pair:
        yield pair


def ended(client: httpx.Client, request_id: str) -> Json:
    until(lambda: request(client, request_id)["status"] not in ("Running", "Queued"))
    return request(client, request_id)


# --- in the background ---------------------------------------------------------------------------


def test_a_background_request_is_accepted_with_its_ids_and_its_place(
    ada: httpx.Client, service: ServiceThread
) -> None:
    """202 at once: the three ids, `Running`, the `Location` of the request. covers: FLOW-1"""
    answer = ada.post("", json=text("hello"), headers=LATER)
    assert answer.status_code == 202
    accepted = answer.json()
    assert set(accepted) == {"session_id", "task_id", "request_id", "status"}
    assert accepted["status"] == "Running"
    assert answer.headers["location"] == f"{service.prefix}/requests/{accepted['request_id']}"
    assert answer.headers["preference-applied"] == "respond-async"
    found = ada.get(service.root + answer.headers["location"]).raise_for_status().json()
    assert {name: found[name] for name in accepted if name != "status"} == {
        name: accepted[name] for name in accepted if name != "status"
    }


def test_a_background_request_is_polled_and_followed_to_its_end(
    ada: httpx.Client, model: OfflineModel
) -> None:
    """The request shows its status; its events come piece by piece. covers: FLOW-1"""
    accepted = begin(ada, "speak on")
    found = request(ada, accepted["request_id"])
    assert (found["status"], found["content"], found["error"]) == ("Running", None, None)
    assert found["created_at"] <= found["started_at"]
    assert found["ended_at"] is None
    with ada.stream("GET", f"/requests/{accepted['request_id']}/events") as following:
        incoming = events(following.iter_lines())
        stream = [next(incoming) for _ in range(3)]
        model.release()
        stream += incoming
    model.script(SCRIPT)
    assert numbers(stream) == list(range(1, 6))
    done = ended(ada, accepted["request_id"])
    assert done["status"] == "Completed"
    assert done["content"] == stream[-1].data["content"]
    assert done["content"]["output"] == streamed_text(stream)
    assert done["token_usage"] == done["content"]["token_usage"]
    assert done["ended_at"] >= done["started_at"]


def test_a_background_request_that_fails_says_why_when_it_is_read(ada: httpx.Client) -> None:
    """The error is the problem that the JSON way would have answered."""
    done = ended(ada, begin(ada, "refuse")["request_id"])
    assert (done["status"], done["error"]["code"], done["error"]["status"]) == ("Failed", "model_error", 502)
    assert "not that" in done["error"]["detail"]


def test_the_preference_is_ignored_on_a_stream(ada: httpx.Client) -> None:
    """`/sse`, and `Accept: text/event-stream`, are followed all the same."""
    for path, accept in (("/sse", "*/*"), ("", "text/event-stream")):
        answer = ada.post(path, json=text("hello"), headers={**LATER, "accept": accept})
        assert answer.status_code == 200
        assert list(events(answer.text))[-1].name == "final-response"


@pytest.mark.parametrize(
    "prefer",
    [
        "respond-async, wait=10",
        "wait=10, respond-async",
        "wait=10; a=b, respond-async; c",
        'handling="a \\" b", respond-async',
        "Respond-Async",
    ],
)
def test_the_preference_may_stand_among_others(ada: httpx.Client, prefer: str) -> None:
    """RFC 7240: a list, in any case."""
    assert ada.post("", json=text("hello"), headers={"prefer": prefer}).status_code == 202


@pytest.mark.parametrize(
    "prefer",
    [
        "wait=10",
        "no-respond-async",
        "return=minimal",
        "wait=10; respond-async",
        "wait=10;respond-async;a=b, return=minimal",
        'a="b, respond-async, c"',
        # without an end, which must not be looked for behind each quote anew
        pytest.param('a="' + r"\"" * 30_000 + ", respond-async", id="a text without an end"),
        pytest.param('a="' + r"\"" * 30_000 + ", respond-async\\", id="a text that ends escaped"),
    ],
)
def test_other_preferences_change_nothing(ada: httpx.Client, prefer: str) -> None:
    """What is not known is ignored, and a parameter of a preference is not a preference (RFC 7240)."""
    assert ada.post("", json=text("hello"), headers={"prefer": prefer}).status_code == 200


# --- cancel --------------------------------------------------------------------------------------


def test_a_running_request_is_canceled_when_the_call_returns(ada: httpx.Client, model: OfflineModel) -> None:
    """Its model call is closed, what there was of an answer is kept, the history stays clean.

    covers: STATE-5, TASK-3
    """
    accepted = begin(ada, "begin and hang")
    with ada.stream("GET", f"/requests/{accepted['request_id']}/events") as stream:
        incoming = events(stream.iter_lines())
        found = [next(incoming) for _ in range(3)]
        document = cancel(ada, accepted)
        assert (document["status"], document["error"]["code"]) == ("Canceled", "request_canceled")
        assert document["content"]["output"] == "one two"
        assert document == request(ada, accepted["request_id"])
        found += incoming
    assert found[-1].name == "error"
    assert found[-1].data == document["error"]
    until(lambda: model.requests[-1]["outcome"] is not None)
    assert model.requests[-1]["outcome"] == "left"
    assert ada.get(f"/tasks/{accepted['task_id']}").json()["status"] == "Canceled"
    send(ada, "hello", task_id=accepted["task_id"])
    sent = model.requests[-1]["body"]["messages"]
    assert [m["content"] for m in sent if m["role"] != "system"] == ["hello"]
    shown = items(ada, f"/tasks/{accepted['task_id']}/messages")
    assert [m["items"][0]["content"] for m in shown if m["role"] == "user"] == ["begin and hang", "hello"]


@pytest.mark.parametrize("way", ["json", "sse"])
def test_clients_that_wait_for_a_canceled_request_are_informed(ada: httpx.Client, way: str) -> None:
    """409 by JSON, an `error` with the same code by SSE."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ada.post, "" if way == "json" else "/sse", json=text("hang"))
        tasks = until(lambda: [t for t in items(ada, "/tasks", limit=1) if t["status"] == "Running"])
        ada.post(f"/requests/{tasks[0]['request_id']}/cancel").raise_for_status()
        answer = waiting.result()
    if way == "json":
        document = problem(answer, 409, "request_canceled")
    else:
        document = list(events(answer.text))[-1].data
    assert (document["code"], document["status"]) == ("request_canceled", 409)
    assert document["request_id"] == tasks[0]["request_id"]


def test_a_request_that_waits_its_turn_is_canceled_alone(ada: httpx.Client) -> None:
    """The one that runs continues, those behind it move up."""
    first = begin(ada, "hang")
    second, third = (begin(ada, words, task_id=first["task_id"]) for words in ("two", "three"))
    assert second["status"] == third["status"] == "Queued"
    assert cancel(ada, second)["status"] == "Canceled"
    assert request(ada, first["request_id"])["status"] == "Running"
    assert request(ada, third["request_id"])["status"] == "Queued"
    found = list(events(ada.get(f"/requests/{second['request_id']}/events").text))
    assert [event.name for event in found] == ["request", "error"]
    assert found[0].data["status"] == "Queued"
    cancel(ada, first)
    done = ended(ada, third["request_id"])
    assert (done["status"], done["content"]["output"]) == ("Completed", "You said: “three”")


def test_a_paused_request_is_canceled_and_runs_nothing(ada: httpx.Client, tmp_path: Path) -> None:
    """The pause is over, the task takes the next message."""
    file = tmp_path / "written"
    pause = paused(ada, call("Work-write", file=str(file), line="x"))
    assert cancel(ada, pause)["status"] == "Canceled"
    assert send(ada, "hello", task_id=pause["task_id"])["status"] == "Completed"
    assert lines(file) == []


def test_a_request_that_has_ended_stays_as_it_is(ada: httpx.Client) -> None:
    """Completed, failed or canceled: cancel answers with the request, unchanged, as often as it is sent."""
    for words in ("hello", "refuse", "hang"):
        accepted = begin(ada, words)
        before = cancel(ada, accepted) if words == "hang" else ended(ada, accepted["request_id"])
        for _ in range(2):
            assert cancel(ada, accepted) == before
        assert request(ada, accepted["request_id"]) == before


def test_strangers_cancel_nothing(ada: httpx.Client, eve: httpx.Client) -> None:
    """401 for another user's, 404 for one that does not exist. covers: AUTH-3"""
    accepted = begin(ada, "hang")
    problem(eve.post(f"/requests/{accepted['request_id']}/cancel"), 401, "not_owner")
    problem(eve.post(f"/requests/{NOBODYS}/cancel"), 404, "not_found")
    assert request(ada, accepted["request_id"])["status"] == "Running"
    cancel(ada, accepted)


def test_no_tool_starts_after_a_cancel(ada: httpx.Client, model: OfflineModel) -> None:
    """Canceled while the model still speaks, before it asks for its tool."""
    accepted = begin(ada, "ask after a while")
    with ada.stream("GET", f"/requests/{accepted['request_id']}/events") as stream:
        incoming = events(stream.iter_lines())
        found = [next(incoming) for _ in range(3)]
        cancel(ada, accepted)
        found += incoming
    until(lambda: model.requests[-1]["outcome"] is not None)
    assert model.requests[-1]["outcome"] == "left"
    assert [event.name for event in found] == ["request", "partial-response", "partial-response", "error"]
    steps = items(ada, f"/tasks/{accepted['task_id']}/trace")
    assert [step["kind"] for step in steps] == ["error"]


def test_a_cancel_reaches_tools_that_run(tmp_path: Path) -> None:
    """A tool under way is stopped, and does not run to its end."""
    file = tmp_path / "written"
    with working_service(moved=True) as (service, _), service.client() as ada:
        accepted = begin(ada, call("Work-rest", file=str(file), seconds=60))
        until(lambda: lines(file))
        assert cancel(ada, accepted)["status"] == "Canceled"
        service.advance(61)
        assert lines(file) == ["rest begins", "rest is stopped"]


def test_many_cancels_at_once_agree(ada: httpx.Client) -> None:
    """Eight at a time, against requests at any point of their way: each ends once, the same for all."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(12):
            accepted = begin(ada, f"pieces-{number * 3}@2ms" if number else "hello")
            documents = list(pool.map(lambda _, a=accepted: cancel(ada, a), range(8)))
            assert all(document == documents[0] for document in documents)
            assert documents[0]["status"] in ("Canceled", "Completed")
            found = list(events(ada.get(f"/requests/{accepted['request_id']}/events").text))
            assert numbers(found) == list(range(1, len(found) + 1))
            assert found[-1].name == ("error" if documents[0]["status"] == "Canceled" else "final-response")


def test_a_cancel_at_once_after_the_message_ends_it(ada: httpx.Client, eve: httpx.Client) -> None:
    """However early it comes, a place is given back and no client waits for ever."""
    for _ in range(20):
        accepted = begin(ada, "hang")
        assert cancel(ada, accepted)["status"] == "Canceled"
    assert send(ada, "hello")["status"] == "Completed"


def test_a_cancel_on_another_process_closes_the_model_call_within_five_seconds(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Canceled when the call returns there; here the model's connection closes, and no tool starts.

    covers: STATE-3, STATE-5
    """
    file = tmp_path / "written"
    script = {
        "rules": [
            {
                "when": {"text": "ask late", "tool_result": False},
                "reply": {
                    "pieces": ["Let me see.", {"text": " Well", "delay_ms": 600_000}],
                    "tool_calls": [{"name": "Work-note", "arguments": {"file": str(file), "line": "x"}}],
                },
            }
        ]
    }
    store = tmp_path / "state.db"
    with (
        OfflineModel(script) as model,
        working_process(nursery, store, model) as one,
        working_process(nursery, store, model) as other,
        one.client() as here,
        other.client() as there,
    ):
        accepted = begin(here, "ask late")
        with here.stream("GET", f"/requests/{accepted['request_id']}/events") as stream:
            incoming = events(stream.iter_lines())
            found = [next(incoming), next(incoming)]
            document = cancel(there, accepted)
            assert document["status"] == "Canceled"
            assert document["content"]["output"] in ("", "Let me see.")
            until(lambda: model.requests[-1]["outcome"] is not None)
            # a process that is not woken looks after that time
            assert local_link.RECHECK_SECONDS <= 5
            found += incoming
        assert model.requests[-1]["outcome"] == "left"
        assert found[-1].data["code"] == "request_canceled"
        assert request(here, accepted["request_id"]) == document
        assert send(there, "hello", task_id=accepted["task_id"])["status"] == "Completed"
        assert send(here, "hello", task_id=accepted["task_id"])["status"] == "Completed"
        # a tool that runs there is stopped, too
        running = begin(here, call("Work-rest", file=str(file), seconds=60))
        until(lambda: lines(file))
        cancel(there, running)
        follow = streamed_events(here, running)
        assert follow[-1] == "error"
        until(lambda: lines(file) == ["rest begins", "rest is stopped"])


def streamed_events(client: httpx.Client, accepted: Json) -> list[str]:
    answer = client.get(f"/requests/{accepted['request_id']}/events")
    return [event.name for event in events(answer.text)]
