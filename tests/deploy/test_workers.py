"""`serve --workers`: how many requests are taken, and how those of a worker that dies end."""

import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from monitored import MonitoredService, message, monitored

from tealagents.testing.forking import Nursery
from tealagents.testing.waits import until

SCRIPT = "rules: [{when: {text: think}, reply: {fault: silence}}]"
EACH = 3


def in_flight(service: MonitoredService) -> dict[int, float]:
    """How many requests run, by the worker's process; one that does not answer in time is left out."""
    name = "tealagents_requests_in_flight"
    return {int(each.labels["worker"]): each.value for each in service.samples() if each.name == name}


def both(service: MonitoredService, running: float | None = None) -> dict[int, float]:
    """The same of both workers, once they run that many together."""

    def look() -> dict[int, float] | None:
        found = in_flight(service)
        return found if len(found) == 2 and running in (None, sum(found.values())) else None

    return until(look)


def sent(service: MonitoredService, words: str = "think", **fields: str) -> httpx.Response:
    """The answer to a message that is left to run, on a connection of its own: any worker may take it."""
    with service.client() as client:
        return client.post("", json=message(words, **fields), headers={"prefer": "respond-async"})


def test_admission_is_counted_by_worker(nursery: Nursery, tmp_path: Path) -> None:
    """Two workers take twice as many requests as one; then each refuses, whichever is asked."""
    limit = {"TA_LIMITS__MAX_CONCURRENT_REQUESTS": str(EACH)}
    with monitored(nursery, tmp_path, SCRIPT, workers=2, **limit) as service:
        both(service)
        taken: list[httpx.Response] = []

        def full() -> bool:
            answer = sent(service)
            taken.extend([answer] if answer.status_code == 202 else [])
            return len(taken) == 2 * EACH

        until(full)
        until(lambda: set(in_flight(service).values()) == {EACH})
        for _ in range(10):
            refused = sent(service)
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"]


def test_a_worker_that_dies_is_replaced(nursery: Nursery, tmp_path: Path) -> None:
    """What it ran is interrupted by the others, the task continues there, and there are two workers again."""
    with monitored(nursery, tmp_path, SCRIPT, workers=2, TA_LIMITS__LEASE_SECONDS="3") as service:
        both(service)
        running = sent(service).json()
        before = both(service, running=1)
        os.kill(next(pid for pid, requests in before.items() if requests), signal.SIGKILL)
        with service.client() as client:

            def ended() -> bool:
                found = client.get(f"/requests/{running['request_id']}").json()
                return (found["status"], (found["error"] or {}).get("code")) == ("Failed", "interrupted")

            until(lambda: answers(ended))
            answer = client.post("", json=message("hello", task_id=running["task_id"]))
            assert answer.json()["status"] == "Completed"
        until(lambda: both(service).keys() != before.keys())
        (line,) = [line for line in service.log().splitlines() if "has ended with -9" in line]
        assert json.loads(line)["level"] == "WARNING"


def test_a_worker_that_cannot_be_replaced_stops_no_other(nursery: Nursery, tmp_path: Path) -> None:
    """What keeps a worker from starting may pass: meanwhile the others serve, and then two serve again."""
    with monitored(nursery, tmp_path, SCRIPT, workers=2) as service:
        dies, stays = both(service)
        until(lambda: service.log().count("Application startup complete.") == 2)
        text = service.config_path.read_text()
        service.config_path.write_text("no: config")
        os.kill(dies, signal.SIGKILL)
        until(lambda: service.log().count("ended with 3;") == 2)
        with service.client() as client:
            assert client.post("", json=message("hello")).json()["status"] == "Completed"
        until(lambda: stays in in_flight(service))
        service.config_path.write_text(text)
        both(service)
        assert service.terminate() == 0


def test_a_supervisor_that_can_start_no_process_keeps_the_workers_it_has(
    nursery: Nursery, tmp_path: Path
) -> None:
    """As where a limit is reached just when a worker is to be restarted (SIGHUP), to be added (SIGTTIN), or
    dies: then it tries again, and two serve again."""
    with monitored(nursery, tmp_path, SCRIPT, workers=2) as service:
        dies, stays = both(service)
        files = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (3, files[1]))
        os.kill(service.process.pid, signal.SIGHUP)
        os.kill(service.process.pid, signal.SIGTTIN)
        until(lambda: service.log().count("a worker cannot be started: [Errno 24]") == 2)
        os.kill(dies, signal.SIGKILL)
        until(lambda: f"worker {dies} cannot be replaced: [Errno 24]" in service.log())
        with service.client() as client:
            assert client.post("", json=message("hello")).json()["status"] == "Completed"
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, files)
        assert stays in both(service)
        assert service.value("tealagents_workers_wanted") == 2  # none was added
        assert service.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTTOU])
def test_a_worker_that_is_replaced_or_removed_leaves_what_is_new_to_the_others(
    nursery: Nursery, tmp_path: Path, number: signal.Signals
) -> None:
    """They share its address: while it drains, none is refused there, nor on idle connections to it."""
    limits = {"TA_LIMITS__DRAIN_SECONDS": "600"}
    with monitored(nursery, tmp_path, SCRIPT, workers=2, **limits) as service, ExitStack() as clients:
        until(lambda: sent(service).status_code == 202 and all(both(service).values()))  # so both drain
        idle = [clients.enter_context(service.client()) for _ in range(8)]
        for client in idle:
            assert client.get("/health/ready").status_code == 200
        os.kill(service.process.pid, number)
        until(lambda: "are left to the other workers" in service.log())
        new = [clients.enter_context(service.client()) for _ in range(8)]
        for client in (*idle, *new):
            with suppress(httpx.TransportError):  # an idle connection may end just as it is used
                assert client.get("/health/ready").status_code == 200
            assert client.post("", json=message("hello")).json()["status"] == "Completed"


def test_a_new_worker_has_all_limits_of_the_config_that_it_reads(nursery: Nursery, tmp_path: Path) -> None:
    """Also those of the server itself, such as how long an idle connection stays open."""
    with monitored(nursery, tmp_path, SCRIPT, workers=2) as service:
        before = both(service).keys()
        config = yaml.safe_load(service.config_path.read_text())
        config["spec"]["limits"] = {"idle_connection_seconds": 0.5}
        service.config_path.write_text(yaml.safe_dump(config))
        os.kill(service.process.pid, signal.SIGHUP)
        until(lambda: len(now := in_flight(service).keys()) == 2 and not now & before)
        with socket.create_connection(("127.0.0.1", service.port)) as idle:
            idle.settimeout(30)
            idle.sendall(f"GET {service.prefix}/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
            while idle.recv(65536):
                pass


def test_workers_stop_when_their_supervisor_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    """No process is left that answers on the port, and none that holds a lease."""
    with monitored(nursery, tmp_path, SCRIPT, workers=2) as service:
        workers = list(both(service))
        service.process.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def answers(condition: Callable[[], bool]) -> bool:
    """The condition; False where the connection was to the worker that died."""
    try:
        return condition()
    except httpx.TransportError:
        return False
