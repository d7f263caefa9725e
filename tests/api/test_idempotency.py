"""Idempotency keys: sending again is safe, whatever became of the first, and whatever the network does."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from replicas import background, ended, replicas, said
from wire import JSON, Json, events, problem, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.faults import FaultProxy
from tealagents.testing.forking import Nursery
from tealagents.testing.pytest_stores import DURABLE, Place
from tealagents.testing.service import ServiceThread, offline_service
from tealagents.testing.waits import until

REPLAYED = "idempotent-replayed"
#: seconds after which a sender counts a message as cut off, and sends it again; any number does
GIVES_UP = 5.0
SCRIPT = {
    "rules": [
        {"when": {"text": "slowly"}, "reply": {"text": "at last", "headers_delay_ms": 500}},
        {"when": {"text": "for ever"}, "reply": {"text": "never", "headers_delay_ms": 600_000}},
        {"when": {"text": "break"}, "reply": {"error": {"status": 400, "message": "I will not."}}},
    ]
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "catalogue.json").write_text(json.dumps({"plugins": []}))
    env = {
        "TA_PLUGIN_MODULE": str(Path(__file__).parent / "custom_plugins.py"),
        "TA_PLUGIN_CATALOG_FILE": str(folder / "catalogue.json"),
    }
    limits = {"max_requests_per_user": 8}
    with offline_service(SCRIPT, env, agent={"plugins": ["Shell"]}, limits=limits) as pair:
        yield pair


@pytest.fixture
def ada(running: tuple[ServiceThread, OfflineModel]) -> Iterator[httpx.Client]:
    running[1].clear()
    with running[0].client("ada") as client:
        yield client


@pytest.fixture
def eve(running: tuple[ServiceThread, OfflineModel]) -> Iterator[httpx.Client]:
    with running[0].client("eve") as client:
        yield client


@pytest.fixture
def model(running: tuple[ServiceThread, OfflineModel]) -> OfflineModel:
    return running[1]


def post(client: httpx.Client, body: Json, key: str, path: str = "", **headers: str) -> httpx.Response:
    return client.post(path, json=body, headers={"idempotency-key": key, **headers})


# --- the same again ---------------------------------------------------------------------------------


def test_the_same_body_is_answered_with_the_first_outcome(ada: httpx.Client, model: OfflineModel) -> None:
    """However it is written: bodies are compared as parsed JSON. The model is asked once. covers: TASK-7"""
    body = text("hello", user_context={"a": "1", "b": "2"})
    first = post(ada, body, "same").raise_for_status()
    assert REPLAYED not in first.headers
    turned = dict(reversed(body.items())) | {"user_context": {"b": "2", "a": "1"}}
    written = json.dumps(turned, indent=3, ensure_ascii=True)
    again = ada.post("", content=written, headers={"idempotency-key": "same", **JSON})
    assert again.status_code == 200
    assert again.headers[REPLAYED] == "true"
    assert again.json() == first.json()
    assert len(model.requests) == 1


def test_a_number_is_the_same_however_it_is_written(ada: httpx.Client) -> None:
    """In JSON 1.0 and 1e0 are 1."""
    first = post(ada, text("hello", metadata={"n": 1, "list": [100]}), "number").raise_for_status()
    body = json.dumps(text("hello", metadata={"n": 0, "list": [0]}))
    for one, hundred in (("1.0", "1e2"), ("1e0", "100.0")):
        written = body.replace('"n": 0', f'"n": {one}').replace("[0]", f"[{hundred}]")
        again = ada.post("", content=written, headers={"idempotency-key": "number", **JSON})
        assert again.json() == first.json()
    problem(
        post(ada, text("hello", metadata={"n": 1.5, "list": [100]}), "number"), 422, "idempotency_key_reused"
    )


def test_a_failure_is_the_outcome_too(ada: httpx.Client, model: OfflineModel) -> None:
    """It is returned again, without inviting a retry, and the model is not called again."""
    first = problem(post(ada, text("break"), "failed"), 502, "model_error")
    again = post(ada, text("break"), "failed")
    assert problem(again, 502, "model_error") == first
    assert again.headers[REPLAYED] == "true"
    assert "retry-after" not in again.headers
    assert len(model.requests) == 1


def test_a_canceled_request_is_the_outcome_too(ada: httpx.Client, model: OfflineModel) -> None:
    """Under its key it stays canceled."""
    first = post(ada, text("for ever"), "canceled", prefer="respond-async").json()
    until(lambda: model.requests)
    ada.post(f"/requests/{first['request_id']}/cancel").raise_for_status()
    again = post(ada, text("for ever"), "canceled")
    assert problem(again, 409, "request_canceled")["request_id"] == first["request_id"]
    assert again.headers[REPLAYED] == "true"
    assert len(model.requests) == 1


def test_a_pause_is_answered_as_it_stands(ada: httpx.Client) -> None:
    """Paused while it is, and with the answer once it was decided. covers: HITL-1"""
    body = text('call Shell-look {"path": "/x"}')
    first = post(ada, body, "paused").json()
    assert first["status"] == "Paused"
    again = post(ada, body, "paused")
    assert again.json() == first
    assert again.headers[REPLAYED] == "true"
    answer = ada.post(f"/requests/{first['request_id']}/resume", json={"action": "approve"}).json()
    assert answer["status"] == "Completed"
    assert post(ada, body, "paused").json() == answer


def test_a_stream_is_replayed_from_its_beginning(ada: httpx.Client, model: OfflineModel) -> None:
    """Every event again, with its number; also of what was first taken as JSON. covers: STATE-3"""
    first = post(ada, text("hello there"), "stream", "/sse")
    again = post(ada, text("hello there"), "stream", "/sse")
    assert again.headers[REPLAYED] == "true"
    assert again.text == first.text
    assert len(list(events(first.text))) > 3
    plain = post(ada, text("hello there"), "stream")
    assert plain.json() == list(events(first.text))[-1].data
    json_first = post(ada, text("good morning"), "plain").json()
    replay = list(events(post(ada, text("good morning"), "plain", "/sse").text))
    assert [(event.number, event.name) for event in replay] == [(1, "request"), (2, "final-response")]
    assert replay[-1].data == json_first
    assert len(model.requests) == 2


def test_a_background_request_reports_its_outcome(ada: httpx.Client) -> None:
    """Sent again when it has ended, the answer comes at once."""
    first = post(ada, text("slowly"), "background", prefer="respond-async")
    assert first.status_code == 202
    ended(ada, first.json()["request_id"])
    again = post(ada, text("slowly"), "background", prefer="respond-async")
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert again.json()["request_id"] == first.json()["request_id"]


# --- not the same -----------------------------------------------------------------------------------


def test_another_body_is_refused(ada: httpx.Client, model: OfflineModel) -> None:
    """The key stands for one message, also while that runs."""
    first = post(ada, text("one"), "other").json()
    refused = problem(post(ada, text("two"), "other"), 422, "idempotency_key_reused")
    assert refused["request_id"] == first["request_id"]
    flying = post(ada, text("for ever"), "flying", prefer="respond-async").json()
    problem(post(ada, text("for even longer"), "flying"), 422, "idempotency_key_reused")
    until(lambda: len(model.requests) == 2)
    ada.post(f"/requests/{flying['request_id']}/cancel").raise_for_status()
    assert [r["body"]["messages"][-1]["content"] for r in model.requests] == ["one", "for ever"]


def test_while_the_first_runs_its_ids_are_returned(ada: httpx.Client) -> None:
    """So that it can be followed instead."""
    first = post(ada, text("for ever"), "running", prefer="respond-async").json()
    for path in ("", "/sse"):
        again = post(ada, text("for ever"), "running", path)
        refused = problem(again, 409, "request_in_progress")
        assert {name: refused[name] for name in ("session_id", "task_id", "request_id")} == {
            name: first[name] for name in ("session_id", "task_id", "request_id")
        }
        assert int(again.headers["retry-after"]) >= 1
        assert REPLAYED not in again.headers
    ada.post(f"/requests/{first['request_id']}/cancel").raise_for_status()


def test_keys_belong_to_users(ada: httpx.Client, eve: httpx.Client) -> None:
    """Another user's equal key is another key. covers: AUTH-3"""
    mine, hers = (post(client, text("hello"), "shared").json() for client in (ada, eve))
    assert mine["request_id"] != hers["request_id"]
    assert post(eve, text("something else"), "shared").status_code == 422
    assert post(ada, text("hello"), "shared").json() == mine


def test_the_key_of_a_deleted_task_finds_nothing(ada: httpx.Client, model: OfflineModel) -> None:
    """What was deleted is not begun again by a late retry, nor named where another message comes."""
    first = post(ada, text("hello"), "deleted").json()
    ada.delete(f"/tasks/{first['task_id']}").raise_for_status()
    for other in ("hello", "something else"):
        refused = post(ada, text(other), "deleted")
        assert "under a new idempotency key" in problem(refused, 404, "not_found")["detail"]
        assert first["task_id"] not in refused.text
    assert len(model.requests) == 1


# --- refusals do not use a key up -------------------------------------------------------------------


def test_a_refused_message_leaves_its_key_unused(ada: httpx.Client) -> None:
    """Not understood, busy, pending: the same key is good when the reason is gone."""
    problem(post(ada, {"items": []}, "refused"), 422, "invalid_request")
    run = background(ada, "for ever")
    task = run["task_id"]
    problem(post(ada, text("hello", task_id=task), "refused"), 409, "task_busy")
    ada.post(f"/requests/{run['request_id']}/cancel").raise_for_status()
    pause = ada.post("", json=text('call Shell-look {"path": "/x"}', task_id=task)).json()
    problem(post(ada, text("hello", task_id=task), "refused"), 409, "approval_pending")
    ada.post(f"/requests/{pause['request_id']}/cancel").raise_for_status()
    answer = post(ada, text("hello", task_id=task), "refused")
    assert answer.status_code == 200
    assert REPLAYED not in answer.headers


def test_an_overloaded_process_leaves_a_key_unused(ada: httpx.Client) -> None:
    """What was not taken can be sent again."""
    runs = [background(ada, "for ever") for _ in range(8)]
    problem(post(ada, text("hello"), "overload"), 429, "overloaded")
    for run in runs:
        ada.post(f"/requests/{run['request_id']}/cancel").raise_for_status()
    answer = post(ada, text("hello"), "overload")
    assert answer.status_code == 200
    assert REPLAYED not in answer.headers


def test_an_overloaded_process_answers_for_the_keys_it_knows(ada: httpx.Client) -> None:
    """With the first outcome, or that the first still runs: nothing new is begun. covers: TASK-7"""
    first = post(ada, text("hello"), "before").raise_for_status()
    running = post(ada, text("for ever"), "during", prefer="respond-async").json()
    runs = [running, *(background(ada, "for ever") for _ in range(7))]
    problem(post(ada, text("hello"), "new"), 429, "overloaded")
    again = post(ada, text("hello"), "before")
    assert (again.json(), again.headers[REPLAYED]) == (first.json(), "true")
    progress = problem(post(ada, text("for ever"), "during"), 409, "request_in_progress")
    assert progress["request_id"] == running["request_id"]
    problem(post(ada, text("another"), "before"), 422, "idempotency_key_reused")
    for run in runs:
        ada.post(f"/requests/{run['request_id']}/cancel").raise_for_status()
    assert post(ada, text("hello"), "new").json()["status"] == "Completed"


def test_a_key_is_one_text_of_up_to_255_characters(ada: httpx.Client) -> None:
    """Longer, empty or doubled ones are refused by name."""
    assert post(ada, text("hello"), "k" * 255).status_code == 200
    problem(post(ada, text("hello"), "k" * 256), 422, "invalid_request", "Idempotency-Key")
    problem(post(ada, text("hello"), ""), 422, "invalid_request", "Idempotency-Key")
    doubled = ada.post("", json=text("hello"), headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
    problem(doubled, 422, "invalid_request", "Idempotency-Key")


# --- across processes -------------------------------------------------------------------------------


def test_a_key_holds_on_every_replica_and_after_a_kill(nursery: Nursery, tmp_path: Path) -> None:
    """Its process dies: another one reports that it was interrupted, and does not run it. covers: STATE-3"""
    with (
        replicas(nursery, tmp_path, script=SCRIPT, limits={"lease_seconds": 4}) as pair,
        pair.first.client() as first,
        pair.second.client() as second,
    ):
        answer = post(first, text("hello"), "one").json()
        again = post(second, text("hello"), "one")
        assert (again.json(), again.headers[REPLAYED]) == (answer, "true")
        run = post(first, text("for ever"), "two", prefer="respond-async").json()
        problem(post(second, text("for ever"), "two"), 409, "request_in_progress")
        until(lambda: len(pair.model.requests) == 2)  # it has begun to be answered
        pair.first.kill()
        repeated = until(lambda: _unless_in_progress(post(second, text("for ever"), "two")))
        assert problem(repeated, 503, "interrupted")["request_id"] == run["request_id"]
        assert repeated.headers[REPLAYED] == "true"
        assert "retry-after" not in repeated.headers
        assert len(pair.model.requests) == 2


def _unless_in_progress(answer: httpx.Response) -> httpx.Response | None:
    return None if answer.json()["code"] == "request_in_progress" else answer


# --- while connections are cut ----------------------------------------------------------------------


@pytest.mark.parametrize("place", DURABLE, indirect=True)
async def test_retries_through_broken_connections_make_one_turn(
    place: Place, nursery: Nursery, tmp_path: Path
) -> None:
    """However often it is sent, to whomever: one turn, one call of the model. covers: TASK-7, STATE-3"""
    await retry(place, nursery, tmp_path, times=120)


@pytest.mark.soak
@pytest.mark.parametrize("place", DURABLE, indirect=True)
async def test_a_thousand_retries_make_one_turn(place: Place, nursery: Nursery, tmp_path: Path) -> None:
    """The same, a thousand times. covers: TASK-7, STATE-3"""
    await retry(place, nursery, tmp_path, times=1000)


async def retry(place: Place, nursery: Nursery, folder: Path, *, times: int) -> None:
    """Sends one message under one key so often, through proxies that break connections on both sides."""
    outcomes: Counter[str] = Counter()
    with ExitStack() as stack:
        pair = stack.enter_context(replicas(nursery, folder, env=place.env, script=SCRIPT))
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", service.port)) for service in pair.services]
        with pair.first.client() as client:
            task = client.post("", json=text("hello")).raise_for_status().json()["task_id"]
            body = text("slowly does it", task_id=task)
        for n, proxy in enumerate(proxies):
            proxy.chaos(seed=n, rate=0.1)
        if place.proxy:
            place.proxy.chaos(seed=7, rate=0.02)
        urls = [f"http://127.0.0.1:{proxy.port}{pair.first.prefix}" for proxy in proxies]
        numbers = iter(range(times))

        async def send_some() -> None:
            async with pair.first.async_client(timeout=GIVES_UP) as sender:
                for n in numbers:
                    answer = await _sent(sender, urls[n % 2], body)
                    outcomes[answer] += 1

        await asyncio.gather(*(send_some() for _ in range(8)))
        for proxy in (*proxies, *filter(None, [place.proxy])):
            proxy.calm()
        with pair.second.client() as client:
            answer = until(lambda: _known(post(client, body, "again and again")))
            assert answer.json()["content"]["output"] == "at last"
            assert said(client, task) == ["hello", "slowly does it"]
            assert said(client, task, "assistant")[1:] == ["at last"]
        asked = [r["body"]["messages"][-1]["content"] for r in pair.model.requests]
    print(f"\n{place.name}: {dict(outcomes)}, struck {[proxy.struck for proxy in proxies]}")
    assert asked.count("slowly does it") == 1
    assert outcomes["cut"] > 0
    assert not outcomes.keys() - {"ok", "cut", "request_in_progress", "persistence_unavailable"}


async def _sent(sender: httpx.AsyncClient, url: str, body: Json) -> str:
    """What came of one attempt: `ok`, a problem's code, or `cut`."""
    try:
        answer = await sender.post(url, json=body, headers={"idempotency-key": "again and again"})
        return "ok" if answer.status_code == 200 else str(answer.json()["code"])
    except (httpx.TransportError, json.JSONDecodeError):
        return "cut"


def _known(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.status_code == 200 else None
