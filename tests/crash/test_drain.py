"""Stopping in good order: what is running ends, what remains is interrupted, nothing new begins, exit 0."""

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tealagents.cli.supervisor import _has_pending_sigterm
from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.service import Process, ServiceProcess, agent_config

sys.path.append(str(Path(__file__).parents[1] / "api"))

import a2a_talk
import agui_talk
import mcp_talk
from openai_talk import DONE
from served_routes import PROTOCOLS
from talk import (
    AGENT,
    PLUGINS,
    begin,
    call,
    decide,
    in_service,
    items,
    paused,
    request,
    send,
    streamed_text,
    working_service,
)
from wire import Event, Json, events, problem, text

from tealagents.testing.waits import until

SCRIPT = """
rules:
  - {when: hang, reply: {pieces: [one, ' two', {text: ' three', delay_ms: 600000}]}}
"""


#: as well once it has the result of a tool
HANGING: Json = {
    "rules": [
        {"when": when, "reply": {"text": "never", "headers_delay_ms": 600_000}}
        for when in ({"text": "hang"}, {"tool_result": True})
    ]
}


@pytest.fixture(scope="module")
def model() -> Iterator[OfflineModel]:
    with OfflineModel(SCRIPT) as running:
        yield running


#: a process that waits for what runs, which on a busy machine must not be given up before it is stopped
PATIENT: Json = {
    "drain_seconds": 600,
    "first_piece_timeout_seconds": 600,
    "piece_timeout_seconds": 600,
    "model_timeout_seconds": 600,
}


def config(**spec: Any) -> Json:
    return agent_config(**{"agent": AGENT, **spec})


def env(model: OfflineModel, store: Path) -> dict[str, str]:
    return {
        "TA_AUTH": "mock",
        "TA_BASE_URL": model.base_url,
        "TA_API_KEY": "offline-key",
        "TA_PERSISTENCE": f"sqlite:///{store}",
        "TA_PLUGIN_MODULE": str(PLUGINS),
    }


@pytest.fixture
def service(nursery: Nursery, model: OfflineModel, tmp_path: Path) -> Iterator[ForkedService]:
    """A process that gives running requests two seconds."""
    spec = {"limits": {"drain_seconds": 2}, "concurrency": "enqueue"}
    with nursery.service(config(**spec), env(model, tmp_path / "state.db")) as running:
        yield running


@pytest.fixture
def patient(nursery: Nursery, model: OfflineModel, tmp_path: Path) -> Iterator[ForkedService]:
    """A process that gives running requests more time than any test has."""
    with nursery.service(config(limits=PATIENT), env(model, tmp_path / "state.db")) as running:
        yield running


def posted(client: httpx.Client, path: str, body: Json) -> Json:
    """The document that answers a call."""
    found: Json = client.post(path, json=body).raise_for_status().json()
    return found


class Following:
    """A stream that is followed in the background."""

    def __init__(self, client: httpx.Client, path: str, body: Json | None = None) -> None:
        self.events: list[Event] = []
        self.ended: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(client, path, body), daemon=True)
        self._thread.start()
        assert self._begun.wait(60)

    def _follow(self, client: httpx.Client, path: str, body: Json | None) -> None:
        method = "POST" if body is not None else "GET"
        try:
            with client.stream(method, path, json=body) as stream:
                self._begun.set()
                for event in events(stream.iter_lines()):
                    self.events.append(event)
        except httpx.TransportError as error:
            self.ended = error

    def wait_for(self, name: str) -> Event:
        """The first event of this name."""
        return until(lambda: next((event for event in self.events if event.name == name), None))

    def end(self) -> list[Event]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.events


def drains(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 503
    except (httpx.ReadError, httpx.RemoteProtocolError):
        # a worker that had nothing to finish has ended, with its connections
        return False


def stopped(service: ServiceProcess) -> "Future[int]":
    """Sends SIGTERM; the exit status comes later."""
    service.process.terminate()
    pool = ThreadPoolExecutor(1)
    status = pool.submit(service.process.wait, 60)
    pool.shutdown(wait=False)
    return status


def has_taken_its_signals(pid: int) -> bool:
    """Whether a process sleeps again after what it was sent: a signal before that is one with the first."""
    status = state_of(pid)
    return not int(status["ShdPnd"], 16) and status["State"].startswith("S")


def is_suspended(pid: int) -> bool:
    return state_of(pid)["State"].startswith("T")


def state_of(pid: int) -> dict[str, str]:
    """What the system knows about a process, by its names."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def test_a_process_that_is_stopped_finishes_what_runs_and_takes_nothing_new(
    patient: ForkedService, tmp_path: Path
) -> None:
    """New messages and resumes are refused, reads and health work, what runs ends, exit 0."""
    file, go_on = tmp_path / "written", tmp_path / "go-on"
    blocks = call("Work-block", file=str(file), until=str(go_on))
    with patient.client() as ada:
        pause = paused(ada, call("Work-write", file=str(file), line="x"))
        streaming = Following(ada, "/sse", text(blocks))
        streaming.wait_for("tool-call")
        with ThreadPoolExecutor() as pool, patient.client("eve") as eve:
            waiting = pool.submit(send, eve, blocks)
            until(lambda: file.exists() and file.read_text().count("begins") == 2)
            status = stopped(patient)
            until(lambda: drains(ada))
            for refused in (
                ada.post("", json=text("hello")),
                ada.post("/sse", json=text("hello")),
                ada.post("", json=text("hello"), headers={"prefer": "respond-async"}),
                decide(ada, pause, action="approve"),
                ada.post(f"/requests/{pause['request_id']}/resume/sse", json={"action": "approve"}),
            ):
                problem(refused, 503, "draining")
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.headers["connection"] == "close"  # the next attempt may reach another process
            assert ada.get("/health/live").status_code == 200
            assert ada.get("/health").json()["status"] != "ok"
            assert request(ada, pause["request_id"])["content"] == pause
            assert ada.get("/tasks").status_code == 200
            go_on.touch()
            assert waiting.result()["content"]["output"] == "Work-block said: unblocked"
        assert streaming.end()[-1].name == "final-response"
        assert status.result() == 0
    patient.start()
    with patient.client() as ada:
        found = request(ada, streaming.events[0].data["request_id"])
        assert found["content"] == streaming.events[-1].data["content"]
        assert decide(ada, pause, action="approve").json()["status"] == "Completed"
    assert file.read_text().count("x") == 1


def test_what_has_not_ended_in_time_is_interrupted_and_every_client_is_informed(
    service: ForkedService, model: OfflineModel
) -> None:
    """The sender by JSON and by SSE, followers and who waits in the queue get the same; exit 0."""
    with (
        service.client(timeout=60) as ada,
        service.client("eve", timeout=60) as eve,
        service.client("bob", timeout=60) as bob,
        ThreadPoolExecutor() as pool,
    ):
        first = begin(ada, "hang")
        follower = Following(ada, f"/requests/{first['request_id']}/events")
        follower.wait_for("partial-response")
        queued = Following(ada, "/sse", text("hello", task_id=first["task_id"]))
        streaming = Following(eve, "/sse", text("hang"))
        plain = pool.submit(bob.post, "", json=text("hang"))
        until(lambda: [call["outcome"] for call in model.requests].count(None) == 3)
        status = stopped(service)
        assert follower.end()[-1].data["code"] == "interrupted"
        assert streamed_text(follower.events) == "one two"
        last = streaming.end()[-1]
        assert (last.name, last.data["code"]) == ("error", "interrupted")
        problem(plain.result(), 503, "interrupted")
        assert plain.result().headers["retry-after"]
        assert [event.name for event in queued.end()] == ["request", "error"]
        assert queued.events[-1].data["code"] == "interrupted"
        assert status.result() == 0
    assert '"level":"ERROR"' not in service.log()
    service.start()
    with service.client() as ada:
        found = request(ada, first["request_id"])
        assert (found["status"], found["error"]["code"]) == ("Failed", "interrupted")
        assert found["content"]["output"] == "one two"
        replayed = list(events(ada.get(f"/requests/{first['request_id']}/events").text))
        assert [(e.number, e.name, e.data) for e in replayed] == [
            (e.number, e.name, e.data) for e in follower.events
        ]
        assert request(ada, queued.events[0].data["request_id"])["error"]["code"] == "interrupted"
        assert send(ada, "hello", task_id=first["task_id"])["status"] == "Completed"


def test_followers_of_what_runs_elsewhere_are_let_go_quietly(
    nursery: Nursery, model: OfflineModel, tmp_path: Path
) -> None:
    """A stream of what runs in another process ends without an event: its client continues there."""
    store = tmp_path / "state.db"
    with (
        nursery.service(config(), env(model, store)) as one,
        nursery.service(config(), env(model, store)) as other,
        one.client(timeout=60) as here,
        other.client(timeout=60) as there,
    ):
        running = begin(here, "hang")
        pause = paused(here, call("Work-write", file="/dev/null", line="x"))
        follower = Following(there, f"/requests/{running['request_id']}/events")
        follower.wait_for("partial-response")
        waiting = Following(there, f"/requests/{pause['request_id']}/events?after=1")
        assert waiting.end()[-1].name == "approval-required"
        assert other.terminate() == 0
        assert follower.end()[-1].name == "partial-response"
        assert follower.ended is None
        assert '"level":"ERROR"' not in other.log()
        number = follower.events[-1].number
        again = Following(here, f"/requests/{running['request_id']}/events?after={number}")
        here.post(f"/requests/{running['request_id']}/cancel").raise_for_status()
        assert again.end()[-1].data["code"] == "request_canceled"


def test_an_idle_process_stops_at_once_even_with_idle_connections(patient: ForkedService) -> None:
    """Open connections that ask for nothing do not delay the end: it would be away in ten minutes only."""
    with patient.client() as ada:
        assert send(ada, "hello")["status"] == "Completed"
        assert patient.terminate() == 0


def test_a_message_that_is_still_arriving_at_the_end_is_refused_as_a_new_one(
    nursery: Nursery, model: OfflineModel, tmp_path: Path
) -> None:
    """Each protocol says in its own words that the process ends: nothing was taken."""
    spec = config(protocols=["openai"])
    codes = {
        "": lambda answer: answer["code"],
        "/openai/v1/responses": lambda answer: answer["error"]["code"],
    }
    with nursery.service(spec, env(model, tmp_path / "state.db")) as service, ExitStack() as open_links:
        sending = {}
        for path in codes:
            link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
            sending[path] = open_links.enter_context(closing(link))
            link.putrequest("POST", f"{httpx.URL(service.url).path}{path}")
            headers = {"authorization": "Bearer ada", "content-type": "application/json"}
            for name, value in {**headers, "content-length": "100", "expect": "100-continue"}.items():
                link.putheader(name, value)
            link.endheaders()
            assert b"100 Continue" in link.sock.recv(1000)  # by now the body is being read
            link.send(b'{"items": [')
        status = stopped(service)
        for path, link in sending.items():
            answer = link.getresponse()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert codes[path](json.load(answer)) == "draining"
        assert status.result(60) == 0
        assert "Exception in ASGI application" not in service.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_does_not_wait(
    nursery: Nursery, model: OfflineModel, tmp_path: Path, number: signal.Signals
) -> None:
    """On a second signal the process stores what runs as interrupted and exits.

    Also where its terminal is closed: that is a signal like the others.
    """
    spec = {"limits": PATIENT}
    with (
        nursery.service(config(**spec), env(model, tmp_path / "state.db")) as service,
        service.client() as ada,
    ):
        first = begin(ada, "hang")
        streaming = Following(ada, "/sse", text("hang"))
        service.process.send_signal(number)
        until(lambda: drains(ada))
        service.process.send_signal(number)
        assert service.process.wait(60) == 0
        until(lambda: streaming.events[-1].name == "error")
        assert streaming.events[-1].data["code"] == "interrupted"
        service.start()
        with service.client() as again:
            found = request(again, first["request_id"])
            assert (found["status"], found["error"]["code"]) == ("Failed", "interrupted")


class TwoWorkers(ServiceProcess):
    """`tealagents serve --workers 2`."""

    def _launch(self, arguments: list[str], env: dict[str, str]) -> Process:
        return super()._launch([*arguments, "--workers", "2"], env)


class Reloading(ServiceProcess):
    """`tealagents serve --reload`."""

    def _launch(self, arguments: list[str], env: dict[str, str]) -> Process:
        return super()._launch([*arguments, "--reload"], env)


class ForkedTwoWorkers(TwoWorkers, ForkedService):
    """The same, forked with its workers."""


class ForkedReloading(Reloading, ForkedService):
    """The same, forked with the process that serves."""


def test_two_workers_drain_like_one(nursery: Nursery, model: OfflineModel, tmp_path: Path) -> None:
    """On a signal the parent lets both finish: what runs ends or, in the end, is interrupted; exit 0."""
    file, go_on = tmp_path / "written", tmp_path / "go-on"
    blocks = text(call("Work-block", file=str(file), until=str(go_on)))
    started = config(limits=PATIENT), env(model, tmp_path / "state.db")
    with TwoWorkers(*started) as service, ExitStack() as clients:
        ending = [
            Following(clients.enter_context(service.client(timeout=60)), "/sse", blocks) for _ in range(3)
        ]
        for following in ending:
            following.wait_for("tool-call")
        status = stopped(service)
        go_on.touch()
        assert [following.end()[-1].name for following in ending] == ["final-response"] * 3
        assert status.result() == 0
    started[0]["spec"]["limits"] = {**PATIENT, "drain_seconds": 1}
    with ForkedTwoWorkers(nursery, *started) as service, ExitStack() as clients:
        hanging = [
            Following(clients.enter_context(service.client(timeout=60)), "/sse", text("hang"))
            for _ in range(3)
        ]
        for following in hanging:
            following.wait_for("partial-response")
        status = stopped(service)
        assert [following.end()[-1].data["code"] for following in hanging] == ["interrupted"] * 3
        assert status.result() == 0


@pytest.mark.parametrize("workers", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_second_signal_reaches_the_processes_that_serve(
    nursery: Nursery, model: OfflineModel, tmp_path: Path, workers: bool, apart: bool
) -> None:
    """On a second signal the parent does not wait either: what runs in them is stored as interrupted.

    Also where it comes before the parent of workers has looked at the first, as twice Ctrl-C.
    """
    started = config(limits=PATIENT), env(model, tmp_path / "state.db")
    service: ServiceProcess
    if workers:
        service = ForkedTwoWorkers(nursery, *started)
    elif apart:
        service = ForkedReloading(nursery, *started)
    else:  # as it is installed, as in the test above
        service = Reloading(*started)
    with service:
        clients = [service.client("ada", timeout=60) for _ in range(6)]
        hanging = [Following(client, "/sse", text("hang")) for client in clients]
        for following in hanging:
            following.wait_for("partial-response")
        status = stopped(service)
        if workers and not apart:
            until(lambda: has_taken_its_signals(service.process.pid))
        else:  # one that waits for files to change looks at signals and passes them on in one go
            until(lambda: drains(clients[0]))
        service.process.terminate()
        assert [following.end()[-1].data["code"] for following in hanging] == ["interrupted"] * 6
        assert status.result() == 0
        for client in clients:
            client.close()


def test_a_second_signal_reaches_a_worker_that_gets_no_processor_for_a_while(
    nursery: Nursery, model: OfflineModel, tmp_path: Path
) -> None:
    """It waits until the first is taken: the system keeps only one of each number for a process.

    Nor is the worker killed and replaced because it did not answer meanwhile.
    """
    started = config(limits=PATIENT), env(model, tmp_path / "state.db")
    with ForkedTwoWorkers(nursery, *started) as service:
        clients = [service.client("ada", timeout=60) for _ in range(6)]
        hanging = [Following(client, "/sse", text("hang")) for client in clients]
        for following in hanging:
            following.wait_for("partial-response")
        parent = service.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        workers = [int(pid) for pid in children.split()]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        # of two signals that wait, the one to end would be handled first, and no longer be pending
        until(lambda: all(map(is_suspended, workers)))
        status = stopped(service)
        until(lambda: sum(map(_has_pending_sigterm, workers)) == 2)  # not what keeps account of resources
        service.process.terminate()
        until(lambda: has_taken_its_signals(parent))
        time.sleep(1)  # in which the second would be lost
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        assert [following.end()[-1].data["code"] for following in hanging] == ["interrupted"] * 6
        assert status.result() == 0
        for client in clients:
            client.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTTOU])
def test_a_signal_to_stop_ends_the_wait_for_a_worker_that_is_replaced(
    nursery: Nursery, model: OfflineModel, tmp_path: Path, number: signal.Signals
) -> None:
    """The parent stops all while one drains, and that one is passed the second signal as well."""
    started = config(limits=PATIENT), env(model, tmp_path / "state.db")
    with ForkedTwoWorkers(nursery, *started) as service:
        clients = [service.client("ada", timeout=60) for _ in range(6)]
        hanging = [Following(client, "/sse", text("hang")) for client in clients]
        for following in hanging:
            following.wait_for("partial-response")
        service.process.send_signal(number)
        until(lambda: "Terminated child process" in service.log())
        status = stopped(service)
        # to a process that has not heard the first yet, two signals may be one
        until(lambda: has_taken_its_signals(service.process.pid))
        until(lambda: sum(map(int, re.findall(r"draining: (\d+) requests", service.log()))) == len(hanging))
        service.process.terminate()
        assert [following.end()[-1].data["code"] for following in hanging] == ["interrupted"] * 6
        assert status.result() == 0
        for client in clients:
            client.close()


def test_ctrl_c_is_one_signal_for_two_workers(nursery: Nursery, model: OfflineModel, tmp_path: Path) -> None:
    """A terminal sends it to the parent and to each worker: what runs is finished all the same."""
    file, go_on = tmp_path / "written", tmp_path / "go-on"
    spec = {"limits": PATIENT}
    with ForkedTwoWorkers(nursery, config(**spec), env(model, tmp_path / "state.db")) as service:
        clients = [service.client("ada", timeout=60) for _ in range(4)]
        body = text(call("Work-block", file=str(file), until=str(go_on)))
        ending = [Following(client, "/sse", body) for client in clients]
        for following in ending:
            following.wait_for("tool-call")
        parent = service.process.pid
        workers = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        files = Path(f"/proc/{parent}/fd")
        opened = len(list(files.iterdir()))
        for pid in (parent, *map(int, workers)):
            os.kill(pid, signal.SIGINT)
        # the parent has passed it on when it has closed both ends of its connection to each worker
        until(lambda: len(list(files.iterdir())) <= opened - 4)
        until(lambda: all(map(drains, clients)))
        go_on.touch()
        assert [following.end()[-1].name for following in ending] == ["final-response"] * 4
        assert service.process.wait(60) == 0
        for client in clients:
            client.close()


DEAF = """
import asyncio, pathlib
from tealagents.plugins import Plugin, tool

class Deaf(Plugin):
    @tool
    async def wait(self, file: str) -> str:
        "Wait for ever."
        while True:
            pathlib.Path(file).touch()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
"""


def test_a_process_with_a_tool_that_ignores_its_cancellation_ends_once_it_has_drained(
    nursery: Nursery, model: OfflineModel, tmp_path: Path
) -> None:
    """The tool's time is up, and the request ends; so does the process."""
    plugins, file = tmp_path / "plugins.py", tmp_path / "called"
    plugins.write_text(DEAF)
    spec = config(agent={"plugins": ["Deaf"]}, limits={"tool_timeout_seconds": 0.2})
    variables = {**env(model, tmp_path / "state.db"), "TA_PLUGIN_MODULE": str(plugins)}
    with nursery.service(spec, variables) as running, running.client() as ada:
        assert send(ada, call("Deaf-wait", file=str(file)))["status"] == "Completed"
        assert file.exists()
        assert stopped(running).result(60) == 0


def test_who_waits_for_what_runs_elsewhere_is_refused_in_the_words_of_each_protocol(tmp_path: Path) -> None:
    """Where a stream without an end looks like a whole answer, it has one, and JSON shows no empty answer."""
    spec: Json = {"protocols": list(PROTOCOLS), "persistence": f"sqlite:///{tmp_path}/state.db"}
    words = call("Work-write", file=str(tmp_path / "written"), line="x")
    with (
        working_service(HANGING, **spec) as (one, _),
        working_service(HANGING, **spec) as (other, _),
        one.client(timeout=60, headers=a2a_talk.VERSION) as here,
        other.client(timeout=60, headers=a2a_talk.VERSION) as there,
        ThreadPoolExecutor(16) as pool,
    ):
        response = posted(here, "/openai/v1/responses", {"input": "hang", "background": True})
        pause = posted(here, "/openai/v1/responses", {"input": words})["output"][-1]
        answer = {"type": "mcp_approval_response", "approval_request_id": pause["id"], "approve": True}
        message = {"message": a2a_talk.message("hang")}
        at_once = {**message, "configuration": {"returnImmediately": True}}
        task = posted(here, "/a2a/message:send", at_once)["task"]
        run = agui_talk.run_input("thread", agui_talk.user("hang"))
        asked = mcp_talk.asking("hang", idempotency_key="key")
        running = [
            pool.submit(here.post, "/openai/v1/responses", json={"input": [answer]}),
            pool.submit(here.post, "/ag-ui", json=run),
            pool.submit(mcp_talk.post, here, asked),
        ]
        until(lambda: len(here.get("/tasks?status=Running").json()["items"]) == 5)
        waiting = {
            "openai": pool.submit(there.post, "/openai/v1/responses", json={"input": [answer]}),
            "openai stream": pool.submit(there.get, f"/openai/v1/responses/{response['id']}?stream=true"),
            "a2a": pool.submit(there.post, "/a2a/message:send", json=message),
            "a2a stream": pool.submit(there.post, "/a2a/message:stream", json=message),
            "a2a subscription": pool.submit(there.post, f"/a2a/tasks/{task['id']}:subscribe"),
            "ag-ui": pool.submit(there.post, "/ag-ui", json=run),
            "mcp": pool.submit(mcp_talk.post, there, asked),
        }
        until(lambda: other.app.exchange.service.followers.count == len(waiting))
        in_service(other, other.app.exchange.service.drain(0))
        said = {name: each.result(60) for name, each in waiting.items()}
        for each in here.get("/tasks").json()["items"]:
            (message, *_) = items(here, f"/tasks/{each['task_id']}/messages")
            here.post(f"/requests/{message['request_id']}/cancel").raise_for_status()
        assert all(each.result(60) for each in running)
    assert [said[name].status_code for name in ("openai", "a2a")] == [503, 503]
    assert said["openai"].json()["error"]["code"] == "draining"
    streamed = said["openai stream"].text.removesuffix(f"data: {DONE}\n\n")
    *_, before, end = [each.data for each in events(streamed)]
    assert (end["type"], end["code"]) == ("error", "draining")
    assert end["sequence_number"] == before["sequence_number"], "behind which the client continues elsewhere"
    for name in ("a2a", "a2a stream", "a2a subscription"):
        error = json.loads(said[name].text.strip().splitlines()[-1].removeprefix("data: "))["error"]
        assert error["details"][0]["reason"] == "DRAINING"
    last = agui_talk.events(said["ag-ui"].text)[-1]
    assert (last["type"], last["code"]) == ("RUN_ERROR", "draining")
    assert mcp_talk.error(said["mcp"].json()["result"]["structuredContent"]) == "draining"
