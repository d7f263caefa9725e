"""The process of `serve --reload` that starts and ends the one that serves."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Never

from uvicorn import Config

from tealagents.cli.supervisor import Reloader

#: seconds after which a thread that waits for itself is taken to wait for ever
PATIENCE = 30


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
