"""Makes `multiprocessing` in a forked service fork its processes, so that they share the imports.

`share_imports` forks a template process, which has the service's imports and has done nothing yet. Processes
that are spawned later are forked from it, and get what an executed program would get: the passed descriptors,
the environment, the working folder. Everything else works as in `multiprocessing`. Linux only.
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

#: `PR_SET_CHILD_SUBREAPER` of `prctl`: orphaned descendants become children of this process
_SET_CHILD_SUBREAPER = 36


def share_imports() -> None:
    """From now on, `multiprocessing` forks copies of this process as it is now, and executes no Python."""
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        return
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        _serve_orders(theirs)
    theirs.close()
    answers = ours.makefile()

    def forked(path: bytes, arguments: Sequence[str], descriptors: Iterable[int]) -> int:
        """Replaces `multiprocessing.util.spawnv_passfds`. Returns the process id."""
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
    """Serves the service's orders to fork, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal, all processes get it
    while True:
        mark, passed, _, _ = socket.recv_fds(link, 1, 250)
        if not mark:
            os._exit(0)
        with link.makefile() as asked:
            order = json.loads(asked.readline())
        # once the intermediate process has ended, the service becomes the parent of the forked one
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
    """Runs the ordered program in this process, and ends it."""
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
    """Gives the descriptors these numbers, and closes all others except the standard streams."""
    above = max(numbers) + 1
    away = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in descriptors]
    for source, number in zip(away, numbers, strict=True):
        os.dup2(source, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in numbers:
            with suppress(OSError):  # the descriptor of the listing itself is closed already
                os.close(number)
