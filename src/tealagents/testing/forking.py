"""Services that start in milliseconds: forked from one process that has imported everything already.

    with Nursery() as nursery, nursery.service(agent_config(…), env) as service:
        service.kill(), service.start(), service.stop(), service.cont()

A forked service is a process of its own like a `ServiceProcess`, and is run as in production, by
`tealagents serve`. Only its imports are shared, which are most of what a start costs.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tealagents.testing.service import Process, ServiceProcess

__all__ = ["PRELOADED", "ForkedService", "Nursery"]

#: what a service imports, besides the driver of its store
PRELOADED = (
    "aiohttp",
    "openai",
    "openai.types.chat",
    "tealagents.api.v1alpha1.app",
    "tealagents.app",
    "tealagents.auth.mock",
    "tealagents.bootstrap",
    "tealagents.cli.findings",
    "tealagents.cli.main",
    "tealagents.cli.protocol",
    "tealagents.cli.serve",
    "tealagents.llm.openai_chat",
    "tealagents.llm.wire",
    "tealagents.stores.files",
    "tealagents.stores.sqlite",
    "tealagents.tools.code",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
_PAUSE = 0.005


class Nursery:
    """The process that services are forked from. It ends, and they with it, when it is left."""

    def __init__(self, *preload: str) -> None:
        """`preload` names modules to import besides: the driver of a store, the module of a model."""
        self._preload = preload
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *self._preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def service(
        self, config: Mapping[str, Any] | Path, env: Mapping[str, str] | None = None, port: int | None = None
    ) -> "ForkedService":
        """A service to enter, as `ServiceProcess` is."""
        return ForkedService(self, config, env, port)

    def ask(self, **order: Any) -> int | None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            answer: int | None = json.loads(self._process.stdout.readline())
        return answer


class ForkedService(ServiceProcess):
    """A `ServiceProcess` that a nursery forks."""

    def __init__(
        self,
        nursery: Nursery,
        config: Mapping[str, Any] | Path,
        env: Mapping[str, str] | None,
        port: int | None,
    ) -> None:
        super().__init__(config, env, port)
        self._nursery = nursery

    def _launch(self, arguments: list[str], env: dict[str, str]) -> Process:
        return _Forked(
            self._nursery,
            self._nursery.ask(
                what="fork",
                arguments=arguments,
                env=env,
                log=self._log.name,
                folder=str(self.config_path.parent),
            ),
        )


class _Forked:
    """What is used of `subprocess.Popen`, of a child of the nursery."""

    def __init__(self, nursery: Nursery, pid: int | None) -> None:
        assert pid is not None
        self.pid = pid
        self._nursery = nursery
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._nursery.ask(what="poll", pid=self.pid)
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


def _serve_orders(preload: list[str]) -> None:
    """Forks and polls as standard input asks, until that ends."""
    for module in (*PRELOADED, *preload):
        import_module(module)
    gc.freeze()
    #: the processes that were forked, with the exit status of those that have ended
    children: dict[int, int | None] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if order["what"] == "fork":
            pid = _fork(order)
            children[pid] = None
            print(pid, flush=True)
        else:
            pid = order["pid"]
            if children[pid] is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                children[pid] = os.waitstatus_to_exitcode(status) if ended else None
            print(json.dumps(children[pid]), flush=True)
    for pid, exited in children.items():
        if exited is None:
            os.kill(pid, signal.SIGKILL)


def _fork(order: dict[str, Any]) -> int:
    if pid := os.fork():
        return pid
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    sys.argv = ["tealagents", *order["arguments"]]
    status = 1
    try:
        from tealagents.cli.main import main

        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a forked process can report to no one else
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve_orders(sys.argv[1:])
