"""The processes that start and end those that serve: of `serve --reload` and of `serve --workers`."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Never

import pytest
import typer
from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import SIGNALS

from tealagents.cli.supervisor import Reloader, Supervisor
from tealagents.testing.waits import until

#: seconds after which a thread that waits for itself is taken to wait for ever
PATIENCE = 30

#: an application that is in service once there is a file `open`, and cannot start where there is one
#: `broken`; a file named after its process shows that it has begun to start
GATED = """
import asyncio
import os
from pathlib import Path

HERE = Path(__file__).parent
if (HERE / "broken").exists():
    raise SystemExit(3)

async def app(scope, receive, send):
    await receive()
    (HERE / str(os.getpid())).touch()
    while not (HERE / "open").exists():
        await asyncio.sleep(0.01)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
"""

#: the same, but a worker that was asked to end drains until there is a file `over`
DRAINING = GATED.replace(
    """    await receive()
    await send({"type": "lifespan.shutdown.complete"})
""",
    """    await receive()
    while not (HERE / "over").exists():
        await asyncio.sleep(0.01)
    await send({"type": "lifespan.shutdown.complete"})

signal.signal(signal.SIGUSR1, signal.SIG_IGN)
""",
).replace("import os\n", "import os\nimport signal\n")


def stuck(*_: object) -> Never:
    raise AssertionError("the signal's handler waits for what its own thread holds")


@contextmanager
def at_line(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Calls `act` before the `number`-th line that is executed within it; yields how many there were."""
    lines = [0]

    def trace(_: FrameType, event: str, __: object) -> Any:
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_a_signal_at_any_moment_of_the_pause_between_two_looks_ends_it(tmp_path: Path) -> None:
    """Wherever the process is: none waits for a lock that is its own."""
    config = Config("nowhere:app", reload_dirs=[str(tmp_path)], reload_delay=0.001, log_config=None)
    number, reached, alarm = 0, True, signal.signal(signal.SIGALRM, stuck)
    try:
        while reached:
            number += 1
            reloader = Reloader(config, target=lambda sockets: None, sockets=[])
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            come = partial(reloader.signal_handler, signal.SIGTERM, None)
            with suppress(StopIteration), at_line(number, come) as lines:
                reloader.pause()
            reached = lines[0] >= number
            assert reloader.should_exit.is_set() == reached
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
    assert number > 2


def test_files_are_watched_before_the_first_process_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon that is: an edit of that moment is followed."""
    edited = tmp_path / "edited.py"
    started = SimpleNamespace(start=edited.touch)
    monkeypatch.setattr("uvicorn.supervisors.basereload.get_subprocess", lambda **_: started)
    config = Config(
        "nowhere:app", reload=True, reload_dirs=[str(tmp_path)], reload_delay=0.001, log_config=None
    )
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        reloader = Reloader(config, target=lambda sockets: None, sockets=[])
        reloader.startup()
        until(lambda: reloader.should_restart() == [edited])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_where_no_files_can_be_watched_nothing_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Editors use the system's watches up. The reason and what to do are said, without a traceback."""
    monkeypatch.setattr("watchfiles.main.RustNotify", exhausted)
    config = Config("nowhere:app", reload_dirs=[str(tmp_path)], log_config=None)
    with pytest.raises(typer.Exit) as ended:
        Reloader(config, target=lambda sockets: None, sockets=[]).run()
    assert ended.value.exit_code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "files cannot be watched: Too many open files" in said
    assert "leave out --reload" in said


def exhausted(*_: object) -> Never:
    raise RuntimeError("Too many open files (os error 24)")


@contextmanager
def supervising(app: str, workers: int) -> Iterator[Supervisor]:
    """A supervisor that looks after its workers when it is called to; in the end they are killed."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = Config(app, workers=workers, lifespan="on", log_config=None)
        supervisor = Supervisor(config, sockets=[listener])
        try:
            supervisor.init_processes()
            yield supervisor
        finally:
            for worker in supervisor.processes:
                worker.kill()
                worker.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)


def test_a_worker_that_cannot_be_replaced_stops_no_other_that_was_not_yet_seen_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came into service after the last look, at which it was still starting."""
    (tmp_path / "gated.py").write_text(GATED)
    monkeypatch.syspath_prepend(tmp_path)
    with supervising("gated:app", workers=2) as supervisor:
        dies, stays = supervisor.processes
        until(lambda: all((tmp_path / str(each.pid)).exists() for each in (dies, stays)))
        (tmp_path / "broken").touch()
        os.kill(dies.pid or 0, signal.SIGKILL)
        dies.join()
        supervisor.keep_subprocess_alive()
        assert not supervisor.served
        other = supervisor.processes[0]
        other.join()
        assert other.exitcode == STARTUP_FAILURE
        (tmp_path / "open").touch()
        until(stays.is_ready)
        supervisor.keep_subprocess_alive()
        assert not supervisor.should_exit.is_set()
        assert stays.exitcode is None


def test_workers_none_of_which_can_start_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps the first from starting would keep all."""
    (tmp_path / "gated.py").write_text(GATED)
    monkeypatch.syspath_prepend(tmp_path)
    with supervising("gated:app", workers=2) as supervisor:
        fails, starts = supervisor.processes
        until(lambda: all((tmp_path / str(each.pid)).exists() for each in (fails, starts)))
        (tmp_path / "broken").touch()
        os.kill(fails.pid or 0, signal.SIGKILL)
        fails.join()
        for _ in range(2):
            supervisor.keep_subprocess_alive()
            supervisor.processes[0].join()
        assert supervisor.should_exit.is_set()
        assert not supervisor.served


def test_a_worker_that_does_not_answer_when_a_signal_to_stop_has_come_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may only get no processor for a while, and is passed the signal: it ends what it runs."""
    (tmp_path / "gated.py").write_text(GATED)
    (tmp_path / "open").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with supervising("gated:app", workers=1) as supervisor:
        (worker,) = supervisor.processes
        until(worker.is_ready)
        supervisor.keep_subprocess_alive()
        os.kill(worker.pid or 0, signal.SIGSTOP)
        monkeypatch.setattr(supervisor.config, "timeout_worker_healthcheck", 0.1)
        signal.raise_signal(signal.SIGTERM)
        supervisor.keep_subprocess_alive()
        assert supervisor.processes == [worker]
        assert worker.exitcode is None


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_worker_that_dies_while_another_drains_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The one that drains may take as long as its requests, and is not replaced once more."""
    (tmp_path / "draining.py").write_text(DRAINING)
    (tmp_path / "open").touch()
    monkeypatch.syspath_prepend(tmp_path)
    replaced: list[bool] = []
    with supervising("draining:app", workers=2) as supervisor:
        first, second = supervisor.processes
        dies, drains = (first, second) if way == "removed" else (second, first)
        until(lambda: all(each.is_ready() for each in (first, second)))

        def kill_and_wait() -> None:
            try:
                until(lambda: drains not in supervisor.processes)
                os.kill(dies.pid or 0, signal.SIGKILL)
                until(lambda: dies not in supervisor.processes, within=PATIENCE)
                replaced.append(drains.exitcode is None)
            finally:
                (tmp_path / "over").touch()

        other = threading.Thread(target=kill_and_wait)
        other.start()
        if way == "removed":
            supervisor.handle_ttou()
        else:
            supervisor.restart_all()
        other.join()
        assert replaced == [True]
        assert len(supervisor.processes) == supervisor.processes_num == (1 if way == "removed" else 2)
        assert drains not in supervisor.processes


def test_a_worker_serves_from_when_it_has_started_until_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that takes the place of another: the service's metrics count those that serve."""
    (tmp_path / "draining.py").write_text(DRAINING)
    monkeypatch.syspath_prepend(tmp_path)
    with supervising("draining:app", workers=2) as supervisor:
        (tmp_path / "over").touch()
        pids = [each.pid or 0 for each in supervisor.processes]

        def serving() -> list[bool]:
            supervisor.keep_subprocess_alive()
            return [supervisor.serves(pid) for pid in pids]

        until(lambda: all((tmp_path / str(pid)).exists() for pid in pids))
        assert serving() == [False, False]
        (tmp_path / "open").touch()
        until(lambda: serving() == [True, True])
        supervisor.handle_ttou()
        assert serving() == [True, False]
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: supervisor.processes[0].exitcode is not None)
        assert serving() == [False, False]
        pids.append(supervisor.processes[0].pid or 0)
        until(lambda: serving() == [False, False, True])
