"""Runs the commands of a README, most of them forked from a process that has imported everything already.

Python's start and the imports are nearly all that such a command costs; there are dozens of them.
"""

import gc
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import httpx

from tealagents.testing.forking import PRELOADED
from tealagents.testing.servers import free_port

ROOT = Path(__file__).parents[2]
#: what tests/fixtures/tools/install.sh has installed
NODE_MODULES = ROOT / ".tools" / "node" / "node_modules"
#: seconds for one command (the longest takes ten on an idle machine), and for a server to answer
PATIENCE = 240.0
#: ports that the READMEs name
_PORTS = ("8000", "8100", "8444")
_PORT = re.compile(r"(?<![-\w])\d{4,5}(?![-\w])")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(\S*)\s+")
#: what commands import besides what services do
_IMPORTS = ("h2.connection", "httpcore", "mcp", "tealagents.client", "tealagents.llm.offline")


class Origin:
    """The process that commands are forked from."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def fork(self, words: list[str], env: Mapping[str, str], folder: Path, out: Path) -> int:
        """Runs a command in a folder, with its output in a file; returns its process id."""
        pid = self._ask(words=words, env=dict(env), folder=str(folder), out=str(out))
        assert pid is not None
        return pid

    def poll(self, pid: int) -> int | None:
        """The exit status, or None while it runs."""
        return self._ask(pid=pid)

    def _ask(self, **order: Any) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer


class Terminal:
    """Runs what a README says, on a copy of a folder with free ports in place of those that are named."""

    def __init__(self, origin: Origin, copied: Path) -> None:
        self._origin = origin
        self._copied = copied
        self._ports = {documented: str(free_port()) for documented in _PORTS}
        bin_folder = str(Path(sys.executable).parent)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TA_", "OPENAI_"))}
        self.env = {**kept, "PATH": f"{bin_folder}{os.pathsep}{kept['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        self._servers: list[int] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="tealagents-demo-")
        self._folder = Path(self._temporary.name)

    def __enter__(self) -> Self:
        copy = self._folder / self._copied.relative_to(ROOT)
        shutil.copytree(self._copied, copy, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
        for path in copy.glob("*.yaml"):
            path.write_text(self.local(path.read_text()))
        (self._folder / "clients").symlink_to(ROOT / "clients")
        (self._folder / "node_modules").symlink_to(NODE_MODULES)
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self._servers:
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)
        for server in self._servers:
            self._wait(server)
        self._temporary.cleanup()

    # --- commands ---------------------------------------------------------------------------------

    def local(self, text: str) -> str:
        """The text with the ports that are really used."""
        return _PORT.sub(lambda found: self._ports.get(found[0], found[0]), text)

    def documented(self, text: str) -> str:
        """The text with the ports that the README names."""
        documented = {used: port for port, used in self._ports.items()}
        return _PORT.sub(lambda found: documented.get(found[0], found[0]), text)

    def serve(self, command: str) -> None:
        """Starts a server, and returns when it answers."""
        command = self.local(command)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value
            return
        env, words = _split(command)
        if words[0] == "tealagents" and words[1] in ("serve", "authority") and "--port" not in words:
            words += ["--port", self._ports["8000" if words[1] == "serve" else "8444"]]
        port = next(word for word in words if word in self._ports.values())
        log = self._file("server.log")
        pid = self._origin.fork(words, {**self.env, **env}, self._folder, log)
        self._servers.append(pid)
        self._wait_for(int(port), pid, log)

    def run(self, commands: Sequence[str]) -> list[str]:
        """What each command prints. They are typed one after the other into one shell."""
        commands = [self.local(command) for command in commands]
        if all(_forkable(command) for command in commands):
            printed = [self._run_forked(command) for command in commands]
        else:
            printed = self._run_in_shell(commands)
        return [self.documented(output) for output in printed]

    def _run_forked(self, command: str) -> str:
        env, words = _split(command)
        out = self._file("output")
        status = self._wait(self._origin.fork(words, {**self.env, **env}, self._folder, out))
        printed = out.read_text()
        assert status == 0, f"{command} ended with {status}:\n{printed}"
        return printed

    def _run_in_shell(self, commands: Sequence[str]) -> list[str]:
        script = "set -e\n" + "".join(f"{command}\nprintf '\\036'\n" for command in commands)
        ended = subprocess.run(
            ["sh", "-c", script],
            cwd=self._folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == 0, f"the shell ended with {ended.returncode}:\n{ended.stdout}"
        return ended.stdout.split("\036")[:-1]

    def _file(self, name: str) -> Path:
        handle, path = tempfile.mkstemp(prefix=name, dir=self._folder)
        os.close(handle)
        return Path(path)

    # --- processes --------------------------------------------------------------------------------

    def _wait(self, pid: int) -> int:
        deadline = time.monotonic() + PATIENCE
        while (status := self._origin.poll(pid)) is None:
            assert time.monotonic() < deadline, "the command does not end"
            time.sleep(0.01)
        return status

    def _wait_for(self, port: int, pid: int, log: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(OSError, httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/", timeout=30, trust_env=False, verify=False)
                return
            status = self._origin.poll(pid)
            if status is not None:
                self._servers.remove(pid)
            assert status is None, f"the server ended with {status}:\n{log.read_text()}"
            time.sleep(0.02)
        raise AssertionError(f"nothing answers on port {port}:\n{log.read_text()}")


def _split(command: str) -> tuple[dict[str, str], list[str]]:
    """The assignments in front of a command, and its words."""
    env = {}
    while found := _ASSIGNMENT.match(command):
        env[found[1]] = found[2]
        command = command[found.end() :]
    return env, shlex.split(command)


def _forkable(command: str) -> bool:
    """Whether it is one command of Python's, and no matter for a shell."""
    _, words = _split(command)
    return words[0] in ("python", "tealagents") and not set(words) & {"|", ">", "&&", ";"}


# --- in the process that is forked ------------------------------------------------------------------


def _serve_orders() -> None:
    for module in (*PRELOADED, *_IMPORTS):
        import_module(module)
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        answer: int | None
        if "words" in order:
            answer = os.fork()
            if not answer:
                _become(order)
        else:
            ended, status = os.waitpid(order["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(answer), flush=True)


def _become(order: dict[str, Any]) -> None:
    """Runs the command in place of the order-taking, and ends."""
    out = os.open(order["out"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    status = 0
    try:
        _run(order["words"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 — as Python does at the end of a program
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(words: list[str]) -> None:
    program, *arguments = words
    if program == "tealagents":
        from tealagents.cli import main

        sys.argv = words
        main()
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _serve_orders()
