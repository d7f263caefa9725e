"""`/metrics`: what it reports, what it never reports, and which process answers for several workers."""

import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from monitored import MonitoredService, message, monitored
from prometheus_client import CollectorRegistry, Gauge

from tealagents.llm.offline import OfflineModel
from tealagents.telemetry import scraping
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.waits import until

USER, WORDS, MADE_UP = "canary-user", "canary words", "Work-canary_tool"
SCRIPT = f"""
rules:
  - when: {{text: made up}}
    reply: {{tool_calls: [{{id: call_1, name: {MADE_UP}, arguments: '{{}}'}}]}}
  - when: {{text: not today}}
    reply: {{error: {{status: 400, message: not today}}}}
  - when: {{text: think}}
    reply: {{fault: silence}}
"""


@pytest.fixture(scope="module")
def service(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredService]:
    with monitored(nursery, tmp_path_factory.mktemp("metrics"), SCRIPT) as running:
        yield running


def test_a_turn_is_counted(service: MonitoredService) -> None:
    """Its outcome and time, the model's tokens, its tools by plugin, and what it asked of the store."""
    turns = service.value("tealagents_requests_total", status="Completed")
    with service.client(USER) as client:
        client.post("", json=message('call Work-repeat {"text": "a", "times": 2}')).raise_for_status()
        client.post("", json=message(WORDS), headers={"accept": "text/event-stream"}).raise_for_status()
    until(lambda: service.value("tealagents_requests_total", status="Completed") == turns + 2)
    value = service.value
    assert value("tealagents_request_duration_seconds_count", status="Completed") == turns + 2
    assert value("gen_ai_client_token_usage_sum", gen_ai_token_type="output") > 0
    assert value("gen_ai_client_operation_time_to_first_chunk_seconds_count") > 0
    assert value("tealagents_tool_duration_seconds_count", tealagents_plugin="Work", outcome="done") == 1
    assert value("db_client_operation_duration_seconds_count", db_operation_name="commit") > 0
    assert 0 < value("tealagents_lease_used_ratio") < 1
    assert value("process_open_fds") > 0


def test_an_answer_that_is_not_streamed_has_no_first_delta(service: MonitoredService) -> None:
    """Its first text is the whole: how long that takes says nothing of how long a user looks at nothing."""

    def calls() -> float:
        return service.value("gen_ai_client_operation_duration_seconds_count")

    def timed() -> float:
        return service.value("gen_ai_client_operation_time_to_first_chunk_seconds_count")

    made, first = calls(), timed()
    with service.client(USER) as client:
        client.post("", json=message(WORDS)).raise_for_status()
        until(lambda: calls() == made + 1)
        assert timed() == first
        client.post("", json=message(WORDS), headers={"accept": "text/event-stream"}).raise_for_status()
    until(lambda: calls() == made + 2)
    assert timed() == first + 1


def test_what_is_under_way_is_reported(service: MonitoredService) -> None:
    """Requests in flight, those that wait for their turn, and open streams; and when they are over."""

    def seen() -> tuple[float, ...]:
        names = ("tealagents_requests_in_flight", "tealagents_requests_queued", "tealagents_followers")
        return tuple(map(service.value, names))

    with service.client(USER) as client, following(client, message("think")) as running:
        until(lambda: seen() == (1, 0, 1))
        with following(client, message("hello", task_id=running["task_id"])) as waiting:
            until(lambda: seen() == (2, 1, 2))
            for ids in (waiting, running):
                client.post(f"/requests/{ids['request_id']}/cancel").raise_for_status()
    until(lambda: seen() == (0, 0, 0))


def test_a_stream_that_its_client_has_left_is_open_no_longer(service: MonitoredService) -> None:
    """Whether it has sent the message or not, while the request continues."""

    def seen() -> tuple[float, ...]:
        return tuple(map(service.value, ("tealagents_requests_in_flight", "tealagents_followers")))

    with service.client(USER) as client:
        with (
            following(client, message("think")) as running,
            client.stream("GET", f"/requests/{running['request_id']}/events") as follower,
        ):
            lines = follower.iter_lines()
            next(lines)
            until(lambda: seen() == (1, 2))
        until(lambda: seen() == (1, 0))
        client.post(f"/requests/{running['request_id']}/cancel").raise_for_status()


@contextmanager
def following(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The first event of a request, whose stream stays open meanwhile."""
    streamed = {"accept": "text/event-stream"}
    with client.stream("POST", "", json=body, headers=streamed) as answer:
        lines = answer.iter_lines()
        for line in lines:
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))
                return


def test_what_fails_is_counted_by_its_code(service: MonitoredService) -> None:
    """Requests that end Failed, and HTTP requests that are refused."""

    def failed() -> float:
        return service.value("tealagents_requests_total", error_type="model_error")

    def unauthenticated() -> float:
        return service.value("http_server_request_duration_seconds_count", http_response_status_code="401")

    before = failed(), unauthenticated()
    with service.client(USER) as client, service.client(None) as anonymous:
        assert client.post("", json=message("not today")).status_code == 502
        assert anonymous.post("", json=message("hello")).status_code == 401
        assert client.post("", json={"items": []}).status_code == 422
    for code in ("unauthenticated", "invalid_request"):
        assert service.value("tealagents_refusals_total", error_type=code) >= 1
    until(lambda: (failed(), unauthenticated()) == (before[0] + 1, before[1] + 1))


def test_calls_without_a_token_are_told_from_those_with_a_wrong_one(service: MonitoredService) -> None:
    """Anyone who reaches the port can make the former; many of the latter may come from a wrong setting."""

    def refused(**labels: str) -> float:
        return service.value("tealagents_refusals_total", error_type="unauthenticated", **labels)

    before, anonymous = refused(), refused(tealagents_credentials="none")
    with service.client(None) as client:
        assert client.get("/tasks").status_code == 401
        assert client.get("/tasks", headers={"Authorization": "Bearer " + "x" * 201}).status_code == 401
    until(lambda: refused() == before + 2)
    assert refused(tealagents_credentials="none") == anonymous + 1


def test_a_request_that_ends_without_a_run_is_counted(service: MonitoredService) -> None:
    """It waited for its turn, or for a decision."""

    def canceled() -> float:
        return service.value("tealagents_requests_total", status="Canceled")

    before = canceled()
    with service.client(USER) as client, following(client, message("think")) as running:
        with following(client, message("hello", task_id=running["task_id"])) as waiting:
            client.post(f"/requests/{waiting['request_id']}/cancel").raise_for_status()
        until(lambda: canceled() == before + 1)
        client.post(f"/requests/{running['request_id']}/cancel").raise_for_status()
        until(lambda: canceled() == before + 2)
        paused = client.post("", json=message('call Work-write {"file": "/dev/null", "line": "x"}')).json()
        client.post(f"/requests/{paused['request_id']}/cancel").raise_for_status()
        until(lambda: canceled() == before + 3)


def test_nothing_is_exported_that_anyone_could_make_up(service: MonitoredService) -> None:
    """No user, no message, no id, no tool that the model invents, no path or method that a client invents."""
    with service.client(USER) as client:
        answer = client.post("", json=message(WORDS)).raise_for_status().json()
        client.post("", json=message("made up")).raise_for_status()
        client.get("/tasks/canary-path")
        client.request("CANARY", "/tasks")
    page = service.metrics()
    assert "canary" not in page.lower()
    for name in ("session_id", "task_id", "request_id"):
        assert answer[name] not in page
    assert service.value("tealagents_tool_duration_seconds_count", outcome="error") >= 1


def test_a_route_is_what_the_service_declares(service: MonitoredService) -> None:
    """Also where an id repeats the beginning of a path, or a part of it."""
    declared = f"{service.prefix}/tasks/{{task_id}}"
    before = service.value("http_server_request_duration_seconds_count", http_route=declared)
    repeated = ("W", "Watched", "t", "task", "tasks")
    with service.client(USER) as client:
        for name in repeated:
            assert client.get(f"/tasks/{name}").status_code == 422
    count = service.value("http_server_request_duration_seconds_count", http_route=declared)
    assert count == before + len(repeated)


def test_the_public_port_has_no_metrics(service: MonitoredService) -> None:
    """They are at their own address only, where there is nothing else, and only to be read."""
    with service.client(USER) as client:
        for path in ("/metrics", service.prefix + "/metrics"):
            assert client.get(service.root + path).status_code == 404
    own = f"http://127.0.0.1:{service.metrics_port}"
    assert httpx.get(own, timeout=60).status_code == 404
    assert httpx.get(own + service.prefix, timeout=60).status_code == 404
    assert httpx.post(own + "/metrics").status_code == 501


def test_a_reader_that_is_silent_is_hung_up_on(service: MonitoredService) -> None:
    """As many as there may be at once do not keep Prometheus out for long."""
    address = ("127.0.0.1", service.metrics_port)
    silent = [socket.create_connection(address) for _ in range(12)]
    try:
        for each in silent:
            each.settimeout(60)
            assert each.recv(1) == b""
        assert service.samples()
    finally:
        for each in silent:
            each.close()


def test_a_reader_whose_request_takes_too_long_is_hung_up_on(service: MonitoredService) -> None:
    """Also where a byte of it comes now and then: that keeps Prometheus out no longer than silence."""
    address = ("127.0.0.1", service.metrics_port)
    slow = [socket.create_connection(address) for _ in range(scraping.MOST_READERS)]

    def are_hung_up_on() -> bool:
        for each in slow[:]:
            try:
                each.send(b"G")
            except OSError:
                slow.remove(each)
                each.close()
        return not slow

    try:
        until(are_hung_up_on, every=0.2)
        assert service.samples()
    finally:
        for each in slow:
            each.close()


def test_readers_that_got_no_thread_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics are read again once there are threads."""
    port, starting = free_port(), threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if "process_request_thread" in thread.name:
            raise RuntimeError("can't start new thread")
        starting(thread)

    with scraping.offered(CollectorRegistry(), "127.0.0.1", port):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            for _ in range(scraping.MOST_READERS):
                with pytest.raises(httpx.HTTPError):
                    httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
        assert httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).status_code == 200


def test_all_workers_are_reported_as_one(nursery: Nursery, tmp_path: Path) -> None:
    """Two workers share one address; one that dies is no longer reported, and its replacement is."""
    with monitored(nursery, tmp_path, workers=2) as service:
        until(lambda: service.value("tealagents_workers") == 2)
        assert service.value("tealagents_workers_wanted") == 2
        with service.client(USER) as client:
            for _ in range(5):
                client.post("", json=message("hello")).raise_for_status()
        until(lambda: service.value("tealagents_requests_total", status="Completed") == 5)
        # one that does not answer in time is left out
        first = until(lambda: workers if len(workers := workers_of(service)) == 2 else None)
        os.kill(int(min(first)), signal.SIGKILL)
        until(lambda: len(workers_of(service) - first) == 1 and service.value("tealagents_workers") == 2)
        assert min(first) not in workers_of(service)


@pytest.mark.parametrize("sent", ["", 'tealagents_requests_total{status="Com'])
def test_a_worker_that_is_killed_while_it_answers_is_left_out(sent: str) -> None:
    """It is not counted, and the scrape does not fail for a line that was cut."""
    port = free_port()
    with scraping.gathered("127.0.0.1", port, lambda: 2), socket.socket(socket.AF_UNIX) as worker:
        worker.bind(f"{os.environ[scraping.SOCKETS]}/1")
        worker.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as reader:
            reader.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with worker.accept()[0] as asked:
                asked.sendall(sent.encode())
            page = reader.makefile().read()
    assert "tealagents_workers 0.0" in page
    assert "tealagents_workers_wanted 2.0" in page


def test_a_worker_that_is_added_or_removed_is_wanted_or_not(nursery: Nursery, tmp_path: Path) -> None:
    """By SIGTTIN and SIGTTOU: the alert on missing workers compares the two numbers."""
    with monitored(nursery, tmp_path, workers=2) as running:

        def seen() -> tuple[float, ...]:
            return tuple(map(running.value, ("tealagents_workers", "tealagents_workers_wanted")))

        until(lambda: seen() == (2, 2))
        os.kill(running.process.pid, signal.SIGTTIN)
        until(lambda: seen() == (3, 3))
        os.kill(running.process.pid, signal.SIGTTOU)
        until(lambda: seen() == (2, 2))


def workers_of(service: MonitoredService) -> set[str]:
    return {sample.labels["worker"] for sample in service.samples() if "worker" in sample.labels}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_address_that_is_taken_fails_the_start(nursery: Nursery, tmp_path: Path, workers: int) -> None:
    """With one sentence that names it: the operator asked for a service that can be monitored."""
    with socket.socket() as taken, OfflineModel() as model:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = MonitoredService(nursery, tmp_path, model, workers=workers, TA_METRICS_PORT=str(port))
        assert f"the metrics cannot be offered at 127.0.0.1:{port}" in log_of_failed_start(service)


@pytest.mark.parametrize("host", ["nosuch.invalid", "a..b"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_host_that_is_unknown_fails_the_start(
    nursery: Nursery, tmp_path: Path, workers: int, host: str
) -> None:
    """With one sentence that names it and its variable, also where it can be no host's name."""
    with OfflineModel() as model:
        service = MonitoredService(nursery, tmp_path, model, workers=workers, TA_METRICS_HOST=host)
        log = log_of_failed_start(service)
    assert f"the metrics cannot be offered at {host}:{service.metrics_port}" in log
    assert "TA_METRICS_HOST" in log


def log_of_failed_start(service: MonitoredService) -> str:
    try:
        with pytest.raises(RuntimeError):
            service.start()
        assert service.process.wait(30) == 2
        assert "Traceback" not in service.log()
        return service.log()
    finally:
        service.__exit__()


def test_a_folder_too_long_for_sockets_fails_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several workers: none is started, and the text names the variable."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with (
        pytest.raises(OSError, match="set TMPDIR to a folder with a short path"),
        scraping.gathered("127.0.0.1", free_port(), lambda: 2),
    ):
        pass
    assert not list(folder.iterdir())


def test_without_a_port_there_is_nothing_to_read(nursery: Nursery, tmp_path: Path) -> None:
    """Metrics are off by default."""
    with monitored(nursery, tmp_path, TA_METRICS_PORT="") as service, pytest.raises(httpx.ConnectError):
        service.metrics()


def test_a_worker_that_is_read_while_it_starts_is_seen_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is there before it listens: that is no dead worker, whose socket would be removed."""
    workers, listen = scraping._Workers(tmp_path, lambda: 1), scraping._SocketServer.server_activate
    answered: list[float] = []

    def look() -> None:
        found = {each.name: each.samples[0].value for each in workers.collect()}
        answered.append(found["tealagents_workers"])

    def read_before(server: scraping._SocketServer) -> None:
        look()
        listen(server)

    monkeypatch.setenv(scraping.SOCKETS, str(tmp_path))
    monkeypatch.setattr(scraping._SocketServer, "server_activate", read_before)
    with scraping.offered(CollectorRegistry(), "127.0.0.1", 0):
        look()
    assert answered == [0, 1]


def test_a_worker_that_is_still_starting_is_reported_but_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alerts on missing workers are for those that serve; what a start waits for is seen meanwhile."""
    serving: set[int] = set()
    monkeypatch.setenv(scraping.SOCKETS, str(tmp_path))
    registry = CollectorRegistry()
    Gauge("tealagents_starting", "Whether it does.", registry=registry).set(1)
    workers = scraping._Workers(tmp_path, lambda: 1, serving.__contains__)

    def look() -> dict[str, float]:
        return {sample.name: sample.value for each in workers.collect() for sample in each.samples}

    with scraping.offered(registry, "127.0.0.1", 0):
        assert look() == {
            "tealagents_starting": 1,
            "tealagents_workers": 0,
            "tealagents_workers_wanted": 1,
        }
        serving.add(os.getpid())
        assert look()["tealagents_workers"] == 1
