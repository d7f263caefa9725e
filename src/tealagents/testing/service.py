"""Running services for tests: in this process on a thread, or as a process of its own that can be killed.

Both are the real thing over real HTTP on loopback, with a config file on disk.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import uvicorn
import yaml

from tealagents.cli.protocol import server_options
from tealagents.testing.clock import ShiftedClock, advance
from tealagents.testing.servers import free_port

#: seconds a service may take to answer before its start is given up; one that has ended is noticed at once
START_SECONDS = 120.0
#: seconds that its clients wait for an answer; they pass only where none comes
ANSWER_SECONDS = 120.0
#: ports that are tried, because another process may take one between the look and the start
PORTS_TRIED = 5


def agent_config(
    *, name: str = "Tester", version: str = "0.1", model: str = "offline", **spec: Any
) -> dict[str, Any]:
    """A config document; keywords go under `spec`, `agent` among them is merged into the agent."""
    agent = {"name": "default", "role": "Tester", "model": model, "system_prompt": "You are a test."}
    agent |= spec.pop("agent", {})
    return {
        "apiVersion": "tealagents/v1alpha1",
        "kind": "Agent",
        "name": name,
        "version": version,
        "description": "An agent under test.",
        "spec": {"agent": agent, **spec},
    }


class RunningService:
    """What tests need of a service that runs: its URL, and a client for a user."""

    def __init__(self, config: Mapping[str, Any] | Path) -> None:
        self.port = 0
        if isinstance(config, Path):
            config_path, document = config, yaml.safe_load(config.read_text())
            self._folder: tempfile.TemporaryDirectory[str] | None = None
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="tealagents-")
            config_path, document = Path(self._folder.name) / "config.yaml", config
            config_path.write_text(yaml.safe_dump(dict(config)))
        self.config_path = config_path
        self.prefix = f"/{document.get('name') or document['service_name']}/{document['version']}"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The prefix that every path of the agent begins with."""
        return self.root + self.prefix

    def client(self, user: str | None = "ada", **options: Any) -> httpx.Client:
        """An HTTP client whose relative paths begin at the agent's prefix; without `user` no token."""
        return httpx.Client(**self._options(user, options))

    def async_client(self, user: str | None = "ada", **options: Any) -> httpx.AsyncClient:
        """As `client`, asynchronous."""
        return httpx.AsyncClient(**self._options(user, options))

    def _options(self, user: str | None, options: dict[str, Any]) -> dict[str, Any]:
        """Plain http: loading certificates of authorities would cost more than ten requests."""
        headers = {"authorization": f"Bearer {user}"} if user else {}
        headers |= options.pop("headers", {})
        made = {"base_url": self.url, "headers": headers, "timeout": ANSWER_SECONDS, "verify": False}
        return {**made, **options}

    def _wait_until_it_answers(self, alive: Any) -> None:
        deadline = time.monotonic() + START_SECONDS
        with self.client(None) as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx.TransportError):
                    client.get("/health/live")
                    return
                if not alive():
                    raise RuntimeError("the service ended while it started:\n" + self.log())
                time.sleep(0.02)
        raise RuntimeError("the service does not answer:\n" + self.log())

    def log(self) -> str:
        """What the service has said so far."""
        return ""

    def _cleanup(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


class ServiceThread(RunningService):
    """A service on a thread of this process: quick to start, and its parts can be looked at (`app`)."""

    def __init__(
        self,
        config: Mapping[str, Any] | Path,
        env: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        moved: bool = False,
        **wiring: Any,
    ) -> None:
        """`port` 0 means any that is free; with `moved` its time can be set forward by `advance`; `wiring` is
        handed to the wiring's `application`."""
        super().__init__(config)
        self._wanted_port = port
        self._clock = ShiftedClock() if moved else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._env = dict(env or {})
        self._wiring = {"clock": self._clock, **wiring} if moved else wiring
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self.app: Any = None

    def __enter__(self) -> Self:
        from tealagents.app import wiring
        from tealagents.config import load

        try:
            config = load(self.config_path, env=self._env, dotenv=None)
            self.app = wiring(config).application(config, **self._wiring)
        except BaseException:
            self._cleanup()
            raise
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the one before may linger
        sock.bind(("127.0.0.1", self._wanted_port))
        sock.listen(512)
        self.port = sock.getsockname()[1]
        options = uvicorn.Config(self.app, **server_options(config.limits), timeout_graceful_shutdown=2)
        self._server = server = uvicorn.Server(options)

        factory = asyncio.SelectorEventLoop if self._clock else options.get_loop_factory()

        def run() -> None:
            with asyncio.Runner(loop_factory=factory) as runner:
                self._loop = runner.get_loop()
                runner.run(server.serve(sockets=[sock]))

        self._thread = threading.Thread(target=run, daemon=True, name="service under test")
        self._thread.start()
        self._wait_until_it_answers(self._thread.is_alive)
        return self

    def advance(self, seconds: float) -> None:
        """Sets its time forward: deadlines pass, sleepers wake, idle connections end.

        What goes by the store's clock, such as leases and idempotency keys, is kept.
        """
        assert self._clock is not None
        assert self._loop is not None
        self._clock.shift += timedelta(seconds=seconds)
        advance(self._loop, seconds)
        asyncio.run_coroutine_threadsafe(_turns(10), self._loop).result()

    def __exit__(self, *exc: object) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=60)
        self._cleanup()


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Process(Protocol):
    """What is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...


class ServiceProcess(RunningService):
    """A service as a process of its own, as it is run in production."""

    def __init__(self, config: Mapping[str, Any] | Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(config)
        self._env = dict(env or {})
        self._process: Process | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="tealagents-", suffix=".log", delete=False)  # noqa: SIM115

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        self._log.close()
        os.unlink(self._log.name)
        self._cleanup()

    def start(self) -> None:
        """Starts it (again), on the port it had; one that was free a moment ago may be taken by now."""
        fixed = self.port
        for _ in range(PORTS_TRIED):
            self.port = fixed or free_port()
            try:
                return self._start()
            except RuntimeError:
                if fixed or f"port {self.port} on 127.0.0.1 is in use" not in self.log():
                    raise
        raise RuntimeError(f"none of {PORTS_TRIED} ports stayed free:\n{self.log()}")

    def _start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TA_")}
        self._process = self._launch(
            ["serve", str(self.config_path), "--port", str(self.port)], {**kept, **self._env}
        )
        self._wait_until_it_answers(lambda: self.process.poll() is None)

    def _launch(self, arguments: list[str], env: dict[str, str]) -> Process:
        """A process that runs `tealagents` with these arguments, and writes to the log."""
        return subprocess.Popen(
            [sys.executable, "-m", "tealagents", *arguments],
            env=env,
            stdout=self._log,
            stderr=self._log,
            cwd=self.config_path.parent,
        )

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError("the service was not started")
        return self._process

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP: it is alive and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT: it continues as if nothing had happened."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, timeout: float = 60) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        return self.process.wait(timeout)


@contextlib.contextmanager
def offline_service(
    script: Any = None, env: Mapping[str, str] | None = None, *, moved: bool = False, **spec: Any
) -> Iterator[tuple[ServiceThread, Any]]:
    """A service on a thread and the offline model behind it; `moved` as for `ServiceThread`."""
    from tealagents.llm.offline import OfflineModel

    with (
        OfflineModel(script) as model,
        ServiceThread(
            agent_config(**spec),
            {"TA_BASE_URL": model.base_url, "TA_API_KEY": "offline-key", "TA_AUTH": "mock", **(env or {})},
            moved=moved,
        ) as service,
    ):
        yield service, model
