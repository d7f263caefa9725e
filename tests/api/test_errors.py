"""Every error code, produced once over HTTP: status, headers, ids; and what a model service in trouble does.

`PRODUCED` says of each code how it comes about; a code without an entry fails the tests.
"""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from away import AwayStore
from wire import JSON, NOBODYS, Json, events, problem, store_of, streamed, text

from tealagents.api.http import RETRY_AFTER, STATUSES
from tealagents.domain import ids
from tealagents.domain.ports import Commit, Put
from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import LocalAuthority
from tealagents.testing.clock import ShiftedClock
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.service import (
    ServiceThread,
    agent_config,
    offline_service,
)
from tealagents.testing.waits import until

HERE = Path(__file__).parent
TOOLS = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
    "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
}
#: asks for a tool that waits until its request is canceled
LONG = 'call Shell-wait {"seconds": 60}'
#: asks for a tool that needs approval
GOVERNED = 'call Shell-delete {"path": "/x"}'
BACKGROUND = {"prefer": "respond-async"}


@dataclass
class Stage:
    """A service on which errors are produced, each by a user of its own."""

    service: ServiceThread
    model: OfflineModel
    clock: ShiftedClock
    clients: ExitStack

    def user(self, name: str | None = None) -> httpx.Client:
        return self.clients.enter_context(self.service.client(name or f"user-{uuid.uuid4()}"))

    @contextmanager
    def running(self, user: httpx.Client, **fields: Any) -> Iterator[Json]:
        """A request that runs in the background until the test is done with it."""
        started = user.post("", json=text(LONG, **fields), headers=BACKGROUND)
        assert started.status_code == 202, started.text
        try:
            yield started.json()
        finally:
            user.post(f"/requests/{started.json()['request_id']}/cancel").raise_for_status()

    def paused(self, user: httpx.Client) -> Json:
        answer: Json = user.post("", json=text(GOVERNED)).raise_for_status().json()
        assert answer["status"] == "Paused"
        return answer


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    clock = ShiftedClock()
    limits = {
        "max_requests_per_user": 2,
        "max_concurrent_requests": 4,
        "max_tool_rounds": 2,
        "max_body_bytes": 100_000,
    }
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "offline-key", "TA_AUTH": "mock", **TOOLS}
        config = agent_config(agent={"plugins": ["Shell"]}, limits=limits, persistence="away:AwayStore")
        with ServiceThread(config, env, clock=clock) as service, ExitStack() as clients:
            yield Stage(service, model, clock, clients)


@pytest.fixture(autouse=True)
def _all_is_well_again(stage: Stage) -> Iterator[None]:
    yield
    AwayStore.away, AwayStore.ahead = False, 0.0
    stage.clock.shift = timedelta(0)
    stage.model.script(None)


# --- each code once ----------------------------------------------------------------------------------


@dataclass
class Produced:
    """An answer with an error, and the ids it must name."""

    answer: httpx.Response
    known: Json
    status: int | None = None


def _ids(of: Json, *more: str) -> Json:
    return {name: of[name] for name in ("session_id", "task_id", "request_id", *more) if name in of}


def malformed(stage: Stage) -> Produced:
    return Produced(stage.user().post("", content=b"{", headers=JSON), {"field": "body"}, 400)


def invalid(stage: Stage) -> Produced:
    return Produced(stage.user().post("", json={"items": []}), {"field": "items"}, 422)


def key_reused(stage: Stage) -> Produced:
    """Also in flight."""
    user, key = stage.user(), {"idempotency-key": "k"}
    first = user.post("", json=text(LONG), headers={**key, **BACKGROUND}).json()
    answer = user.post("", json=text("two"), headers=key)
    user.post(f"/requests/{first['request_id']}/cancel").raise_for_status()
    problem(user.post("", json=text("three"), headers=key), 422, "idempotency_key_reused")
    return Produced(answer, _ids(first))


def unauthenticated(stage: Stage) -> Produced:
    with stage.service.client(None) as anonymous:
        return Produced(anonymous.get("/tasks"), {})


def not_owner(stage: Stage) -> Produced:
    task = stage.user().post("", json=text("hi")).json()["task_id"]
    return Produced(stage.user().get(f"/tasks/{task}"), {})


def not_found(stage: Stage) -> Produced:
    return Produced(stage.user().post("", json=text("hi", task_id=NOBODYS)), {})


def method_not_allowed(stage: Stage) -> Produced:
    return Produced(stage.user().put("/tasks"), {})


def task_busy(stage: Stage) -> Produced:
    """For a message as JSON, as a stream and in the background, a rollback, and a deletion."""
    user = stage.user()
    done = user.post("", json=text("hi")).json()
    task, session = done["task_id"], done["session_id"]
    with stage.running(user, task_id=task) as busy:
        for answer in (
            user.post("/sse", json=text("two", task_id=task)),
            user.post("", json=text("two", task_id=task), headers=BACKGROUND),
            user.post(f"/tasks/{task}/rollback", json={"checkpoint_id": done["request_id"]}),
            user.delete(f"/tasks/{task}"),
            user.delete(f"/sessions/{session}"),
        ):
            assert problem(answer, 409, "task_busy")["request_id"] == busy["request_id"]
        return Produced(user.post("", json=text("two", task_id=task)), _ids(busy))


def approval_pending(stage: Stage) -> Produced:
    user = stage.user()
    first = user.post("", json=text("hi")).json()
    paused = user.post("", json=text(GOVERNED, task_id=first["task_id"])).json()
    known = _ids(paused["content"], "approval_id")
    body = {"checkpoint_id": first["request_id"]}
    back = user.post(f"/tasks/{first['task_id']}/rollback", json=body)
    assert _ids(problem(back, 409, "approval_pending"), "approval_id") == known
    return Produced(user.post("", json=text("and?", task_id=paused["task_id"])), known)


def already_decided(stage: Stage) -> Produced:
    user = stage.user()
    paused = stage.paused(user)
    path = f"/requests/{paused['request_id']}/resume"
    user.post(path, json={"action": "approve"}).raise_for_status()
    problem(user.post(path + "/sse", json={"action": "reject"}), 409, "already_decided")
    answer = user.post(path, json={"action": "reject"})
    return Produced(answer, _ids(paused["content"], "approval_id"))


def approval_expired(stage: Stage) -> Produced:
    user = stage.user()
    paused = stage.paused(user)
    stage.clock.shift = timedelta(days=2)
    AwayStore.ahead = stage.clock.shift.total_seconds()  # which decides
    answer = user.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"})
    ended = user.get(f"/requests/{paused['request_id']}").json()
    assert ended["status"] == "Canceled"
    assert ended["error"]["code"] == "approval_expired"
    again = user.post("", json=text("go on", task_id=paused["task_id"]))
    assert again.json()["status"] == "Completed"
    return Produced(answer, _ids(paused["content"], "approval_id"))


def request_canceled(stage: Stage) -> Produced:
    """The sender waits while another client cancels; a decision of its pause gets the same error."""
    user = stage.user()
    paused = stage.paused(user)
    user.post(f"/requests/{paused['request_id']}/cancel").raise_for_status()
    late = user.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"})
    problem(late, 409, "request_canceled")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(user.post, "", json=text(LONG))
        request = _running_request(user)
        canceled = user.post(f"/requests/{request}/cancel").raise_for_status().json()
        assert canceled["status"] == "Canceled"
        return Produced(waiting.result(), _ids(canceled))


def _running_request(user: httpx.Client) -> str:
    """The request that runs, once it does."""
    task, *_ = until(lambda: user.get("/tasks?status=Running").json()["items"])
    return str(task["request_id"])


def _wait_for_intent(user: httpx.Client) -> None:
    """Until a running request's tools are about to run, so that its end must name them.

    Its event `tool-call` is sent a moment before that is kept.
    """
    task, *_ = until(lambda: user.get("/tasks?status=Running").json()["items"])
    audit = f"/tasks/{task['task_id']}/audit"
    until(lambda: "tool.intent" in [entry["action"] for entry in user.get(audit).json()["items"]])


def request_in_progress(stage: Stage) -> Produced:
    user, key = stage.user(), {"idempotency-key": "k"}
    first = user.post("", json=text(LONG), headers={**key, **BACKGROUND}).json()
    answer = user.post("", json=text(LONG), headers=key)
    user.post(f"/requests/{first['request_id']}/cancel").raise_for_status()
    return Produced(answer, _ids(first))


def already_exists(stage: Stage) -> Produced:
    user = stage.user()
    task = user.post("", json=text("hi")).json()["task_id"]
    document = user.get(f"/tasks/{task}/export").json()
    return Produced(user.post("/tasks/import", json=document), {"task_id": task})


def session_mismatch(stage: Stage) -> Produced:
    user = stage.user()
    task = user.post("", json=text("hi")).json()["task_id"]
    other = user.post("", json=text("hi")).json()["session_id"]
    return Produced(user.post("", json=text("x", task_id=task, session_id=other)), {"task_id": task})


def too_large(stage: Stage) -> Produced:
    return Produced(stage.user().post("", json=text("x" * 100_000)), {})


def overloaded_for_a_user(stage: Stage) -> Produced:
    """Others continue; reads are not counted."""
    user = stage.user()
    with stage.running(user), stage.running(user):
        stage.user().post("", json=text("hi")).raise_for_status()
        user.get("/tasks").raise_for_status()
        return Produced(user.post("", json=text("hi")), {}, 429)


def overloaded(stage: Stage) -> Produced:
    """Reads and health are not counted, and a refused request does not consume its key."""
    user, key = stage.user(), {"idempotency-key": "k"}
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(stage.running(stage.user()))
        user.get("/tasks").raise_for_status()
        user.get("/health").raise_for_status()
        answer = user.post("", json=text("hi"), headers=key)
    user.post("", json=text("hi"), headers=key).raise_for_status()
    return Produced(answer, {}, 503)


def corrupt_state(stage: Stage) -> Produced:
    user = stage.user("carl")
    task = user.post("", json=text("hi")).json()["task_id"]
    agent = stage.service.prefix.split("/")[1]
    damage = Commit(operation=ids.operation_id(), put={f"task/{task}": Put(b"damaged")})
    asyncio.run(store_of(stage.service).commit(f"{agent}/user/mock.carl", damage))
    answer = user.post("", json=text("hi", task_id=task))
    assert task in answer.json()["detail"]
    return Produced(answer, {})


def model_error(stage: Stage) -> Produced:
    stage.model.script({"otherwise": {"error": {"status": 400, "message": "no such luck"}}})
    user = stage.user()
    answer = user.post("", json=text("hi"))
    assert "no such luck" in answer.json()["detail"]
    return Produced(answer, _last_request(user))


def tool_rounds_exceeded(stage: Stage) -> Produced:
    again = {"tool_calls": [{"name": "Shell-look", "arguments": {"path": "/x"}}]}
    stage.model.script({"otherwise": again})
    user = stage.user()
    return Produced(user.post("", json=text("look")), _last_request(user))


def _last_request(user: httpx.Client) -> Json:
    """The ids of the user's only request."""
    (task,) = user.get("/tasks").json()["items"]
    request = user.get(f"/tasks/{task['task_id']}/messages").json()["items"][-1]["request_id"]
    return {**_ids(task), "request_id": request}


def persistence_unavailable(stage: Stage) -> Produced:
    """Reads, new messages and lists; the service recovers by itself."""
    user = stage.user()
    task = user.post("", json=text("hi")).json()["task_id"]
    AwayStore.away = True
    for path in (f"/tasks/{task}", "/tasks", "/sessions", "/approvals"):
        problem(user.get(path), 503, "persistence_unavailable")
    problem(user.post("", json=text("hi", task_id=task)), 503, "persistence_unavailable")
    assert user.get("/health/ready").status_code == 503
    assert user.get("/health").json()["status"] == "degraded"
    assert user.get("/health/live").status_code == 200
    answer = user.post("", json=text("hi"))
    AwayStore.away = False
    user.post("", json=text("hi", task_id=task)).raise_for_status()
    assert user.get("/health/ready").status_code == 200
    return Produced(answer, {})


#: code → how it comes about. Those that need a service of another kind have a test of their own below.
PRODUCED: dict[str, list[Callable[[Stage], Produced]]] = {
    "invalid_request": [malformed, invalid],
    "idempotency_key_reused": [key_reused],
    "unauthenticated": [unauthenticated],
    "not_owner": [not_owner],
    "not_found": [not_found],
    "method_not_allowed": [method_not_allowed],
    "task_busy": [task_busy],
    "approval_pending": [approval_pending],
    "already_decided": [already_decided],
    "approval_expired": [approval_expired],
    "request_canceled": [request_canceled],
    "request_in_progress": [request_in_progress],
    "already_exists": [already_exists],
    "session_mismatch": [session_mismatch],
    "too_large": [too_large],
    "overloaded": [overloaded, overloaded_for_a_user],
    "corrupt_state": [corrupt_state],
    "model_error": [model_error],
    "tool_rounds_exceeded": [tool_rounds_exceeded],
    "persistence_unavailable": [persistence_unavailable],
}
ELSEWHERE = {
    "insufficient_scope": "test_an_authority_that_is_away_and_a_token_that_lacks_a_scope",
    "auth_unavailable": "test_an_authority_that_is_away_and_a_token_that_lacks_a_scope",
    "draining": "test_a_process_that_drains_refuses_and_interrupts",
    "interrupted": "test_a_process_that_drains_refuses_and_interrupts",
    "remote_thread_lost": "test_a_remote_conversation_that_is_gone",
    "model_timeout": "test_a_model_service_in_trouble",
    "request_timeout": "test_a_request_that_takes_too_long",
    "internal_error": "test_a_fault_of_our_own_is_a_problem_too",
}
CASES = [(code, make) for code, makers in PRODUCED.items() for make in makers]


def test_every_code_is_produced() -> None:
    """A new code cannot be forgotten."""
    assert PRODUCED.keys() | ELSEWHERE.keys() == STATUSES.keys()
    assert set(ELSEWHERE.values()) <= globals().keys()


@pytest.mark.parametrize(("code", "make"), CASES, ids=[make.__name__ for _, make in CASES])
def test_a_code_comes_with_its_status_headers_and_ids(
    stage: Stage, code: str, make: Callable[[Stage], Produced]
) -> None:
    """Status and headers are the table's; the ids are named as far as they are known. covers: STATE-5"""
    produced = make(stage)
    status = produced.status or STATUSES[code]
    document = problem(produced.answer, status, code)
    assert document.items() >= produced.known.items(), document
    whole(produced.answer, code)


def test_a_refusal_says_what_to_do(stage: Stage) -> None:
    """Not only what is wrong. covers: STATE-5"""
    user = stage.user()
    done = user.post("", json=text("hello")).json()
    of_task, of_request = f"/tasks/{done['task_id']}", f"/requests/{done['request_id']}"
    stranger, approve = stage.user(), {"action": "approve"}
    pause = stage.paused(user)
    refusals = [
        (stranger.get(of_task), "Check the id."),
        (stranger.get(of_request), "Check the id."),
        (stranger.post("", json=text("hi", session_id=done["session_id"])), "Check the id."),
        (user.post(f"{of_request}/resume", json=approve), "Check the id."),
        (
            user.post(f"/requests/{pause['request_id']}/resume?approval_id={NOBODYS}", json=approve),
            "Check the ids.",
        ),
        (user.post(f"{of_task}/fork", json={"message_id": NOBODYS}), "roll back to its checkpoint"),
        (user.post(f"{of_task}/fork", json={"checkpoint_id": NOBODYS}), "List its checkpoints"),
        (user.get(f"{of_task}/messages?checkpoint_id={NOBODYS}"), "List its checkpoints"),
        (user.get("/oauth/callback"), "Resume the request"),
    ]
    assert not [answer.json() for answer, words in refusals if words not in answer.json()["detail"]]


def test_a_canceled_request_says_what_to_do_to_those_who_can(stage: Stage) -> None:
    """The answer, the stream and the record advise its owner to send the message again. covers: STATE-5"""
    user = stage.user()
    with stage.running(user) as run:
        url = f"/requests/{run['request_id']}"
        error = user.post(f"{url}/cancel").json()["error"]
    assert "send the message again, under a new Idempotency-Key" in error["detail"]
    assert user.get(url).json()["error"] == error
    assert list(events(user.get(f"{url}/events").text))[-1].data == error


def whole(answer: httpx.Response, code: str) -> None:
    """The headers that belong to a code, and no others."""
    assert ("www-authenticate" in answer.headers) is (answer.status_code in (401, 403))
    assert ("retry-after" in answer.headers) is (code in RETRY_AFTER)
    if code in RETRY_AFTER:
        assert int(answer.headers["retry-after"]) >= 1


# --- codes that need a service of another kind -------------------------------------------------------


def test_an_authority_that_is_away_and_a_token_that_lacks_a_scope() -> None:
    """503 with Retry-After while no caller can be identified; 403 names the scope. covers: AUTH-2"""
    with LocalAuthority() as authority:
        env = authority.environment(TA_API_KEY="none")
        lacking, whole_token = authority.token("alice", scopes=["other"]), authority.token("alice")
        with ServiceThread(agent_config(), env) as service, service.client(lacking) as client:
            answer = client.get("/tasks")
            problem(answer, 403, "insufficient_scope")
            assert 'scope="access_as_user"' in answer.headers["www-authenticate"]
            whole(answer, "insufficient_scope")
        authority.behave("down")
        with ServiceThread(agent_config(), env) as service, service.client(whole_token) as client:
            answer = client.get("/tasks")
            problem(answer, 503, "auth_unavailable")
            whole(answer, "auth_unavailable")
            assert client.get("/health").status_code == 200


def test_a_process_that_drains_refuses_and_interrupts(nursery: Nursery, tmp_path: Path) -> None:
    """New messages are refused, reads continue, what is no longer waited for is `interrupted`; exit 0."""
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "k", "TA_AUTH": "mock", **TOOLS}
        config = agent_config(
            agent={"plugins": ["Shell"]}, limits={"drain_seconds": 600}, persistence=f"file://{tmp_path}/s"
        )
        with nursery.service(config, env) as service, service.client("ada") as ada:
            done = ada.post("", json=text("hi")).raise_for_status().json()
            with ThreadPoolExecutor(2) as pool:
                waiting = pool.submit(ada.post, "", json=text(LONG))
                following = pool.submit(streamed, ada, "/sse", text(LONG))
                until(lambda: len(ada.get("/tasks?status=Running").json()["items"]) >= 2)
                service.process.terminate()
                until(lambda: ada.get("/health/ready").status_code == 503)
                refused = ada.post("", json=text("hi", task_id=done["task_id"]))
                problem(refused, 503, "draining")
                whole(refused, "draining")
                assert ada.get(f"/tasks/{done['task_id']}").json()["status"] == "Completed"
                assert ada.get("/health").json()["status"] == "draining"
                service.process.terminate()  # a second time: it waits no longer
                answer = waiting.result()
                reported = problem(answer, 503, "interrupted")
                whole(answer, "interrupted")
                assert {"session_id", "task_id", "request_id"} <= reported.keys()
                last = following.result()[-1]
                assert (last.name, last.data["code"]) == ("error", "interrupted")
            assert service.process.wait(60) == 0


def test_a_remote_conversation_that_is_gone() -> None:
    """The model service has forgotten the thread: 502, and the task says so each time. covers: THREAD-4"""
    port = free_port()
    with ExitStack() as stack:
        with OfflineModel(port=port) as model:
            env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "k", "TA_AUTH": "mock"}
            service = stack.enter_context(ServiceThread(agent_config(thread={"kind": "remote"}), env))
            ada = stack.enter_context(service.client("ada"))
            first = ada.post("", json=text("My name is Ada.")).raise_for_status().json()
        with OfflineModel(port=port):
            answer = ada.post("", json=text("What is my name?", task_id=first["task_id"]))
            reported = problem(answer, 502, "remote_thread_lost")
            assert reported["task_id"] == first["task_id"]
            whole(answer, "remote_thread_lost")


def test_a_fault_of_our_own_is_a_problem_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that raises something unheard of answers 500 without saying what it was."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(stage.service.app.exchange.catalog, "tasks", broken)
    answer = stage.user().get("/tasks")
    problem(answer, 500, "internal_error")
    assert "secret" not in answer.text


def test_an_end_that_cannot_be_stored_is_reported_with_its_ids(stage: Stage) -> None:
    """503 with the ids; once the store is back the request's record shows its outcome. covers: STATE-4"""
    user = stage.user()
    stage.model.script({"otherwise": {"text": "at last", "headers_delay_ms": 10**9}})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(user.post, "", json=text("hello"))
        request = _running_request(user)
        AwayStore.away = True
        stage.model.release()
        answer = waiting.result()
    reported = problem(answer, 503, "persistence_unavailable")
    whole(answer, "persistence_unavailable")
    assert reported["request_id"] == request
    AwayStore.away = False
    until(lambda: user.get(f"/requests/{request}").json()["status"] == "Completed")


# --- a model service in trouble ----------------------------------------------------------------------


@dataclass
class Trouble:
    """What goes wrong, how the request ends, and how often the model service may be called for it."""

    reply: Json
    code: str = "model_error"
    calls: int = 1
    #: what there was of an answer, where it was streamed
    output: str = ""


def _fault(kind: str, **more: Any) -> Json:
    return {"text": "one two three four", "fault": {"kind": kind, **more}}


HTML = {"body": "<html><title>Bad gateway</title></html>", "content_type": "text/html"}

TIMEOUT = "model_timeout"
TROUBLES = {
    "401": Trouble({"error": {"status": 401}}),
    "404": Trouble({"error": {"status": 404}}),
    "429 for long": Trouble({"error": {"status": 429, "headers": {"Retry-After": "300"}}}),
    "429": Trouble({"error": {"status": 429}}, calls=3),
    "500": Trouble({"error": {"status": 500}}, calls=3),
    "HTML instead of an error": Trouble({"error": {"status": 502, **HTML}}, calls=3),
    "HTML instead of an answer": Trouble({"error": {"status": 200, **HTML}}, calls=3),
    "cut in the middle": Trouble(_fault("cut", after_pieces=2), calls=3, output="one two"),
    "cut before the first piece": Trouble(_fault("cut", after_pieces=0), calls=3),
    "no finish": Trouble(_fault("end"), calls=3, output="one two three four"),
    "an error in the middle": Trouble(_fault("error", after_pieces=1), calls=3, output="one"),
    "a dribble": Trouble({"text": "one two", "dribble": {"bytes": 1, "delay_ms": 1000}}, code=TIMEOUT),
    "silence": Trouble({"fault": {"kind": "silence"}}, code=TIMEOUT),
    "silence in the middle": Trouble(_fault("silence", after_pieces=2), code=TIMEOUT, output="one two"),
}


@pytest.fixture(scope="module")
def timed() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with offline_service(limits={"max_tool_rounds": 2}, moved=True) as pair:
        yield pair


def wait_for_pieces(user: httpx.Client, words: str) -> None:
    """Returns when the running request's stream has come as far as these words."""
    shown = ""
    with user.stream("GET", f"/requests/{_running_request(user)}/events") as stream:
        for event in events(stream.iter_lines()):
            shown += event.data.get("output_partial", "")
            if shown == words:
                return


def problem_of(user: httpx.Client, way: str) -> Json:
    """The problem that a message ends with, however it is taken."""
    if way == "json":
        answer = user.post("", json=text("hi"))
        whole(answer, answer.json()["code"])
        return problem(answer, answer.status_code, answer.json()["code"])
    if way == "sse":
        shown = streamed(user, "/sse", text("hi"))
        assert [event.name for event in shown].count("error") == 1
        assert [event.number for event in shown] == list(range(1, len(shown) + 1))
        return shown[-1].data
    taken = user.post("", json=text("hi"), headers=BACKGROUND).json()
    followed = list(events(user.get(f"/requests/{taken['request_id']}/events").text))
    return followed[-1].data


@pytest.mark.parametrize("name", TROUBLES)
def test_a_model_service_in_trouble(timed: tuple[ServiceThread, OfflineModel], name: str) -> None:
    """The right code in all three ways, the request `Failed`, the task usable, no storm. covers: STATE-5"""
    service, model = timed
    trouble = TROUBLES[name]
    model.script({"otherwise": trouble.reply})
    model.clear()
    ways = ("json", "sse", "background")
    users = [stack_user(service, f"{name}-{way}") for way in ways]
    with ThreadPoolExecutor(3) as pool:
        pending = pool.map(problem_of, users, ways)
        if trouble.code == TIMEOUT:
            until(lambda: len(model.requests) >= 3)
            for user in users[1:]:
                wait_for_pieces(user, trouble.output)
            service.advance(61)
        found = list(pending)
    assert 3 <= len(model.requests) <= 3 * trouble.calls
    model.script(None)
    for user, way, document in zip(users, ways, found, strict=True):
        assert document["code"] == trouble.code, document
        assert document["status"] == STATUSES[trouble.code]
        record = user.get(f"/requests/{document['request_id']}").json()
        assert record["status"] == "Failed"
        assert record["error"] == document
        assert record["content"]["output"] == trouble.output or way == "json"
        usable_again(user, model, document["task_id"])
        user.close()


def stack_user(service: ServiceThread, name: str) -> httpx.Client:
    return service.client(name.replace(" ", "-"))


def usable_again(user: httpx.Client, model: OfflineModel, task: str) -> None:
    """The next message is answered, and what failed is no part of what the model is sent."""
    assert user.get(f"/tasks/{task}").json()["status"] == "Failed"
    answer = user.post("", json=text("My name is Ada.", task_id=task)).raise_for_status().json()
    assert answer["status"] == "Completed"
    sent = [said["content"] for said in model.requests[-1]["body"]["messages"]]
    assert sent == ["You are a test.", "My name is Ada."]
    history = user.get(f"/tasks/{task}/messages").json()["items"]
    assert [said["role"] for said in history] == ["user", "user", "assistant"]


def test_a_model_service_that_refuses_connections() -> None:
    """Where no server listens: 502, at once, for each request anew."""
    env = {"TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "k", "TA_AUTH": "mock"}
    with ServiceThread(agent_config(), env) as service, service.client("ada") as ada:
        answer = ada.post("", json=text("hi"))
        document = problem(answer, 502, "model_error")
        assert ada.get(f"/requests/{document['request_id']}").json()["error"] == document
        shown = streamed(ada, "/sse", text("hi", task_id=document["task_id"]))
        assert [event.name for event in shown] == ["request", "error"]
        assert shown[-1].data["code"] == "model_error"


def test_a_request_that_takes_too_long() -> None:
    """504 for the whole request, whatever it waits for; what its tools did is not forgotten."""
    limits = {"request_timeout_seconds": 30}
    with (
        offline_service(env=TOOLS, agent={"plugins": ["Shell"]}, limits=limits, moved=True) as pair,
        pair[0].client("ada") as ada,
        ThreadPoolExecutor(1) as pool,
    ):
        service, model = pair
        waiting = pool.submit(ada.post, "", json=text(LONG))
        _wait_for_intent(ada)
        service.advance(31)
        answer = waiting.result()
        document = problem(answer, 504, "request_timeout")
        whole(answer, "request_timeout")
        again = ada.post("", json=text("go on", task_id=document["task_id"])).raise_for_status()
        assert again.json()["status"] == "Completed"
        sent = model.requests[-1]["body"]["messages"]
        assert any("Shell-wait" in str(said) and said["role"] == "system" for said in sent)


def test_a_failed_outcome_is_replayed_under_its_key(stage: Stage) -> None:
    """`Idempotent-Replayed`, the same problem, no second model call, and no advice to retry."""
    user, key = stage.user(), {"idempotency-key": "k"}
    stage.model.script({"otherwise": {"error": {"status": 400, "message": "never"}}})
    stage.model.clear()
    first = user.post("", json=text("hi"), headers=key)
    again = user.post("", json=text("hi"), headers=key)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()
    assert again.status_code == 502
    shown = streamed(user, "/sse", text("hi"), **key)
    assert [(event.name, event.number) for event in shown] == [("request", 1), ("error", 2)]
    assert shown[-1].data == first.json()
    assert len(stage.model.requests) == 1


def test_a_hundred_messages_at_once_to_one_task_run_one_at_a_time() -> None:
    """One runs, the others learn which; the history is whole. covers: TASK-5"""
    at_once = 100
    with (
        offline_service(limits={"max_requests_per_user": 2 * at_once}) as (service, _),
        service.client("ada", limits=httpx.Limits(max_connections=at_once)) as ada,
    ):
        task = ada.post("", json=text("hello")).json()["task_id"]
        gate = threading.Barrier(at_once)

        def send(n: int) -> httpx.Response:
            gate.wait()
            return ada.post("", json=text(f"message {n} pieces-3@20ms", task_id=task))

        with ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(send, range(at_once)))
        done = {a.json()["request_id"] for a in answers if a.status_code == 200}
        for answer in answers:
            if answer.status_code != 200:
                assert problem(answer, 409, "task_busy")["request_id"] in done
                whole(answer, "task_busy")
        history = ada.get(f"/tasks/{task}/messages?limit=200").json()["items"]
        assert [said["role"] for said in history] == ["user", "assistant"] * (len(done) + 1)
        assert {said["request_id"] for said in history[2:]} == done
