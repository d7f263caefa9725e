"""The workers of pytest-xdist are forked from a process that has imported all tests.

Importing the tests and their libraries takes seconds, and all workers would do it at the same time. A forked
worker shares the imports; otherwise it is like any other, and collects and runs the tests. A module that
cannot be imported is imported again by each worker, which reports the error.
"""

import atexit
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: the program that pytest-xdist calls in place of Python: it passes its streams and its code to the process
#: from which workers are forked, and ends with the worker
_PROGRAM = """
import os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal, the worker gets it as well
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
socket.send_fds(link, [sys.argv[-1].encode()], [0, 1, 2])
os.closerange(0, 3)
link.recv(1)
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Before pytest-xdist starts the first worker."""
    folder = Path(tempfile.mkdtemp(prefix="tealagents-workers-"))
    place, program = str(folder / "socket"), folder / "python"
    command = shlex.join([sys.executable, "-I", "-S", "-c", _PROGRAM, place])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(128)
        origin = subprocess.Popen(
            [sys.executable, "-u", __file__, str(listener.fileno()), *config.invocation_params.args],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )

    def end() -> None:
        assert origin.stdin is not None
        origin.stdin.close()
        origin.wait()
        shutil.rmtree(folder)

    config.add_cleanup(end)
    for spec in specs:
        if spec.popen and spec.python is None:
            spec.python = shlex.quote(str(program))


# --- in the process from which they are forked ------------------------------------------------------


class _NoTests:
    """A plugin for pytest: modules are imported, with their assertions rewritten, and have no tests."""

    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []


def _import_tests(arguments: Sequence[str]) -> None:
    """Prints nothing: the workers report what is wrong."""
    streams = [os.dup(1), os.dup(2)]
    with open(os.devnull, "wb") as nothing:
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    with suppress(Exception):
        pytest.main([*arguments, "--collect-only", "--numprocesses=0"], plugins=[_NoTests()])
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)


def _serve_orders(listener: socket.socket) -> str | None:
    """Forks workers until standard input ends. In a worker, returns the program that it is to run."""
    while True:
        asking, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in asking:
            return None
        link, _ = listener.accept()
        program, streams, _, _ = socket.recv_fds(link, 10_000, 3)
        if not os.fork():
            link.detach()  # it is closed when the worker has ended
            for target, source in enumerate(streams):
                os.dup2(source, target)
                os.close(source)
            return program.decode()
        link.close()
        for each in streams:
            os.close(each)


def _work(program: str) -> None:
    """Runs the program as `python -u -c` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-c"]
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(program, vars(main))


def _main() -> None:
    # Registered first, it comes last: nothing is left to do but to free the memory, object by object.
    atexit.register(os._exit, 0)
    _import_tests(sys.argv[2:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal, all processes get it
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        program = _serve_orders(listener)
    if program is not None:
        _work(program)


if __name__ == "__main__":
    _main()
