"""Services and commands that start in milliseconds: they are forked from a process with everything imported.

    with Nursery() as nursery, nursery.service(agent_config(…), env) as service:
        service.kill(), service.start(), service.stop(), service.cont()
        subprocess.run([nursery.program, "check", …])

A forked service is a separate process like a `ServiceProcess`, and runs as in production, by
`tealagents serve`. It shares the imports, which take most of the time of a start, and has more time to export
what remains at its end: a busy machine takes longer than an orchestrator waits.
"""

import ast
import codecs
import gc
import json
import os
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Self

from tealagents.testing.service import Process, ServiceProcess
from tealagents.testing.spawning import share_imports

__all__ = ["PRELOADED", "ForkedService", "Nursery"]

#: the modules that services and commands import, except the drivers of stores
PRELOADED = (
    "aiohttp",
    "encodings.idna",
    "encodings.utf_8_sig",
    "multiprocessing.popen_spawn_posix",
    "openai",
    "openai.types.chat",
    "rich._emoji_codes",
    "tealagents.api.v1alpha1.app",
    "tealagents.app",
    "tealagents.auth.mock",
    "tealagents.bootstrap",
    "tealagents.cli.application",
    "tealagents.cli.chat",
    "tealagents.cli.check",
    "tealagents.cli.doctor",
    "tealagents.cli.findings",
    "tealagents.cli.listening",
    "tealagents.cli.main",
    "tealagents.cli.migrate",
    "tealagents.cli.new",
    "tealagents.cli.offline",
    "tealagents.cli.serve",
    "tealagents.cli.state",
    "tealagents.cli.supervisor",
    "tealagents.cli.token",
    "tealagents.cli.upgrade",
    "tealagents.llm.offline",
    "tealagents.llm.openai_chat",
    "tealagents.llm.openai_responses",
    "tealagents.llm.wire",
    "tealagents.server",
    "tealagents.stores.files",
    "tealagents.stores.sqlite",
    "tealagents.telemetry.exporting",
    "tealagents.telemetry.scraping",
    "tealagents.tools.code",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
#: seconds that a forked service has to export what remains
EXPORT_SECONDS = 30.0
_PAUSE = 0.005
#: the program that replaces the command: it passes its streams to the forked process, forwards signals to it,
#: and ends with its exit status. With `signal`, `socket` and `json` it would take twice the time
_PROGRAM = """
import _signal, _socket, os, resource, sys
passed_on = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM)
_signal.pthread_sigmask(_signal.SIG_BLOCK, passed_on)  # until the process that they are for is known
link = _socket.socket(_socket.AF_UNIX)
link.connect(sys.argv[1])
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
link.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
order = {"arguments": sys.argv[2:], "env": dict(os.environ), "folder": os.getcwd(), "waits": True}
order["largest_file"] = resource.getrlimit(resource.RLIMIT_FSIZE)
link.sendall(ascii(order).encode() + b"\\n")
answers = open(link.fileno(), "rb", closefd=False)
pid = int(answers.readline())
def pass_on(number, _):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended; its status is on its way
for number in passed_on:
    _signal.signal(number, pass_on)
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, passed_on)
status = int(answers.readline() or -_signal.SIGKILL)
if status < 0:
    os.kill(os.getpid(), _signal.SIGKILL)
os._exit(status)
"""


class Nursery:
    """The process from which services are forked. Leaving it kills it and all forked processes."""

    def __init__(self, *preload: str) -> None:
        """`preload` names more modules to import, such as the driver of a store or the module of a model."""
        self._preload = preload
        self._process: subprocess.Popen[bytes] | None = None
        #: the folder of `program`, to be put on the PATH
        self.folder = Path()

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The nursery that another process has entered, by its `folder`."""
        found = cls()
        found.folder = folder
        return found

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="tealagents-"))
        command = shlex.join([sys.executable, "-I", "-S", "-c", _PROGRAM, self._socket])
        Path(self.program).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        Path(self.program).chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._socket)
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), *self._preload],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self.folder)

    @property
    def _socket(self) -> str:
        return str(self.folder / "socket")

    @property
    def program(self) -> str:
        """The path of a `tealagents` program to call instead of the installed command.

        It runs in the caller's folder, with the caller's environment, streams and limit on file sizes.
        """
        return str(self.folder / "tealagents")

    def service(
        self, config: Mapping[str, Any] | Path, env: Mapping[str, str] | None = None
    ) -> "ForkedService":
        """A forked service; enter it like a `ServiceProcess`."""
        return ForkedService(self, config, env)

    def fork(self, arguments: list[str], env: dict[str, str], log: str, folder: Path) -> int:
        """Starts `tealagents` with these arguments. Returns its process id."""
        with open(os.devnull, "rb") as nothing, open(log, "ab") as output:
            found = self._ask(
                [nothing.fileno(), output.fileno(), output.fileno()],
                arguments=arguments,
                env=env,
                folder=str(folder),
                largest_file=resource.getrlimit(resource.RLIMIT_FSIZE),
            )
        assert found is not None
        return found

    def status(self, pid: int) -> int | None:
        """The exit status of a forked process; None while it runs."""
        return self._ask([], pid=pid)

    def _ask(self, streams: list[int], **order: Any) -> int | None:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(self._socket)
            socket.send_fds(link, [b"."], streams)
            link.sendall(ascii(order).encode() + b"\n")
            with link.makefile() as answers:
                answer: int | None = json.loads(answers.readline())
        return answer


class ForkedService(ServiceProcess):
    """A `ServiceProcess` that is forked by a nursery."""

    def __init__(
        self, nursery: Nursery, config: Mapping[str, Any] | Path, env: Mapping[str, str] | None
    ) -> None:
        super().__init__(config, env)
        self._nursery = nursery

    def _launch(self, arguments: list[str], env: dict[str, str]) -> Process:
        pid = self._nursery.fork(arguments, env, self._log.name, self.config_path.parent)
        return _Forked(self._nursery, pid)


class _Forked:
    """A child of the nursery, as a `Process`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._nursery.status(self.pid)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout if timeout is not None else 1e9)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"forked service {self.pid}", timeout or 0)
            time.sleep(_PAUSE)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


# --- in the nursery ---------------------------------------------------------------------------------


class _Children:
    """The forked processes."""

    def __init__(self) -> None:
        #: process id → exit status, or None while it runs
        self._statuses: dict[int, int | None] = {}
        #: process id → the connection of the program that waits for the exit status
        self._waiting: dict[int, socket.socket] = {}
        #: can be read when a process has ended
        self.ended, self._noted = os.pipe()
        os.set_blocking(self._noted, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._noted, warn_on_full_buffer=False)

    def fork(self, link: socket.socket, *, waits: bool) -> int:
        """As `os.fork`. `link` is sent the process id and, if it `waits`, the exit status in the end."""
        pid = os.fork()
        if pid:
            self._statuses[pid] = None
            if waits:
                self._waiting[pid] = link.dup()
            link.sendall(b"%d\n" % pid)
        else:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self.ended)
            os.close(self._noted)
            for each in (link, *self._waiting.values()):
                each.close()
        return pid

    def status(self, pid: int) -> int | None:
        """The exit status of a process; None while it runs."""
        if self._statuses[pid] is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            self._statuses[pid] = os.waitstatus_to_exitcode(status) if ended else None
        return self._statuses[pid]

    def report(self) -> None:
        """Sends the exit statuses of those that have ended to the programs that wait for them."""
        os.read(self.ended, 4096)
        for pid, link in tuple(self._waiting.items()):
            if (status := self.status(pid)) is not None:
                del self._waiting[pid]
                with link, suppress(ConnectionError):  # the program has ended
                    link.sendall(b"%d\n" % status)

    def kill(self) -> None:
        for pid in self._statuses:
            if self.status(pid) is None:
                os.kill(pid, signal.SIGKILL)


def _serve_orders(listener: socket.socket, preload: list[str]) -> None:
    """Serves orders to fork and to poll, until standard input ends."""
    for module in (*PRELOADED, *preload):
        import_module(module)
    from tealagents.telemetry import exporting

    exporting.LAST_EXPORTS_SECONDS = EXPORT_SECONDS
    gc.freeze()
    children = _Children()
    while True:
        asking, _, _ = select.select([sys.stdin, listener, children.ended], [], [])
        if sys.stdin in asking:
            break
        if children.ended in asking:
            children.report()
        if listener in asking:
            link, _ = listener.accept()
            with link, suppress(ConnectionError):  # the caller has ended
                _handle_order(link, children)
    children.kill()


def _handle_order(link: socket.socket, children: _Children) -> None:
    """Returns the status of a process, or forks one."""
    _, streams, _, _ = socket.recv_fds(link, 1, 3)
    with link.makefile() as asked:
        line = asked.readline()
    if not line:
        return
    order = ast.literal_eval(line)
    if "pid" in order:
        link.sendall(json.dumps(children.status(order["pid"])).encode())
    elif not children.fork(link, waits=order.get("waits", False)):
        status = 1
        try:
            status = _run(order, streams)
        finally:
            os._exit(status)
    for each in streams:
        os.close(each)


def _run(order: dict[str, Any], streams: list[int]) -> int:
    """Runs the ordered command in this process. Returns its exit status."""
    for target, source in enumerate(streams):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    resource.setrlimit(resource.RLIMIT_FSIZE, order["largest_file"])
    sys.argv = ["tealagents", *order["arguments"]]
    sys.path[0] = str(Path(sys.executable).parent)  # the folder of the installed command
    # as with `python -m tealagents`; its workers need nothing of this module
    sys.modules["__main__"].__spec__ = find_spec("tealagents.__main__")
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
    if {"--workers", "--reload"} & {*order["arguments"]}:
        share_imports()
    status = 1
    try:
        from tealagents.cli.main import main

        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - a forked process can report to no one else
        traceback.print_exc()
    try:
        sys.stdout.flush()
    except OSError:  # as Python does at the end of any process
        traceback.print_exc()
        status = 120
    return status


def _stream(number: int, mode: str) -> TextIOWrapper:
    """A standard stream, opened as Python does, according to the PYTHON… variables."""
    unbuffered = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    return TextIOWrapper(
        open(number, f"{mode}b", 0 if unbuffered else -1, closefd=False),
        codecs.lookup(encoding or "utf-8").name,
        "backslashreplace" if number == 2 else errors or "strict",
        line_buffering=number == 2 or os.isatty(number),
        write_through=unbuffered,
    )


if __name__ == "__main__":
    _serve_orders(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
