"""What `multiprocessing` spawns in a forked service is forked as well: it need not import everything again.

`share_imports` forks a seedling: a process that has imported what the service has, and has done nothing yet.
What is spawned later is forked from that, and gets what a program gets that is executed: the descriptors that
are passed, the variables, the folder. All else is done as `multiprocessing` does it. On Linux only.
"""

import ctypes
import fcntl
import json
import multiprocessing.util
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["share_imports"]

#: of `prctl`: what descends from this process is its child once its parent has ended
_ADOPT = 36


def share_imports() -> None:
    """From now on `multiprocessing` forks what it would execute, from this process as it is now."""
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0):
        return
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        _serve_orders(theirs)
    theirs.close()
    answers = ours.makefile()

    def forked(path: bytes, arguments: Sequence[str], descriptors: Iterable[int]) -> int:
        """In the place of `multiprocessing.util.spawnv_passfds`."""
        passed = sorted(map(int, descriptors))
        program = arguments.index("-c") + 1
        order = {
            "program": arguments[program],
            "arguments": ["-c", *arguments[program + 1 :]],
            "descriptors": passed,
            "env": dict(os.environ),
            "folder": os.getcwd(),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        }
        socket.send_fds(ours, [b"."], passed)
        ours.sendall(json.dumps(order).encode() + b"\n")
        return int(answers.readline())

    multiprocessing.util.spawnv_passfds = forked  # type: ignore[assignment]


def _serve_orders(link: socket.socket) -> None:
    """Forks as the service asks, until it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal, all processes get it
    while True:
        mark, passed, _, _ = socket.recv_fds(link, 1, 250)
        if not mark:
            os._exit(0)
        with link.makefile() as asked:
            order = json.loads(asked.readline())
        # The service becomes the parent of what is forked when the process between them has ended.
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            _run(link, passed, order, between)
        os.waitpid(between, 0)
        for each in passed:
            os.close(each)


def _run(link: socket.socket, passed: list[int], order: dict[str, Any], between: int) -> None:
    """Becomes what was ordered."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
        while os.getppid() == between:
            time.sleep(0.001)
        link.sendall(b"%d\n" % os.getpid())
        link.detach()
        _renumber(passed, order["descriptors"])
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["folder"])
        sys.argv = order["arguments"]
        exec(order["program"], {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a forked process can report to no one else
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def _renumber(descriptors: list[int], numbers: list[int]) -> None:
    """Gives the descriptors their numbers, and closes all others but the standard streams."""
    above = max(numbers) + 1
    away = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in descriptors]
    for source, number in zip(away, numbers, strict=True):
        os.dup2(source, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in numbers:
            with suppress(OSError):  # that of the listing is closed
                os.close(number)
