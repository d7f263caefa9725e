"""Running services for tests: on a thread of this process, or as a separate process that can be killed.

Both are complete services with a config file on disk, called over HTTP on loopback.
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
from collections.abc import Awaitable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import uvicorn
import yaml
from starlette.types import Receive, Scope, Send

from tealagents.config.file import read_document
from tealagents.domain.errors import described, ungrouped
from tealagents.limits import Limits
from tealagents.server import server_options
from tealagents.testing.clock import ShiftedClock, advance
from tealagents.testing.servers import free_port

#: seconds that a service gets to answer after its start; one that has ended is noticed at once
START_SECONDS = 120.0
#: seconds that its clients wait for an answer
ANSWER_SECONDS = 120.0
#: the number of ports to try: another process may take one before the service has started
PORTS_TRIED = 5


def agent_config(
    *, name: str = "Tester", version: str = "0.1", model: str = "offline", **spec: Any
) -> dict[str, Any]:
    """A config document. Keywords become keys of `spec`; `agent` is merged into the default agent."""
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
    """The base class of running services: the URL, and clients for users."""

    def __init__(self, config: Mapping[str, Any] | Path) -> None:
        self.port = 0
        if isinstance(config, Path):
            # as the service reads it: `version: 0.10` is not 0.1
            config_path, document = config, read_document(config, []).data
            self._folder: tempfile.TemporaryDirectory[str] | None = None
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="tealagents-")
            config_path, document = Path(self._folder.name) / "config.yaml", dict(config)
            config_path.write_text(yaml.safe_dump(document))
        self.config_path = config_path
        self.prefix = f"/{document.get('name') or document['service_name']}/{document['version']}"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the agent: `root` and the agent's prefix."""
        return self.root + self.prefix

    def client(self, user: str | None = "ada", **options: Any) -> httpx.Client:
        """An HTTP client whose base URL is the agent's; with the user's token, unless `user` is None."""
        return httpx.Client(**self._options(user, options))

    def async_client(self, user: str | None = "ada", **options: Any) -> httpx.AsyncClient:
        """As `client`, but asynchronous."""
        return httpx.AsyncClient(**self._options(user, options))

    def _options(self, user: str | None, options: dict[str, Any]) -> dict[str, Any]:
        """`verify` is off because loading CA certificates would take longer than ten requests."""
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
        """The output of the service so far; of a thread, only the error that ended it."""
        return ""

    def _cleanup(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


class ServiceThread(RunningService):
    """A service on a thread of this process: quick to start, and its application can be inspected (`app`)."""

    def __init__(
        self,
        config: Mapping[str, Any] | Path,
        env: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        moved: bool = False,
        **wiring: Any,
    ) -> None:
        """`port` 0: any free port. `moved`: `advance` can set the time forward. `wiring`: passed to the
        wiring's `application`.
        """
        super().__init__(config)
        self._wanted_port = port
        self._clock = ShiftedClock() if moved else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._env = dict(env or {})
        self._wiring = {"clock": self._clock, **wiring} if moved else wiring
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._failure = ""
        self.app: Any = None

    def __enter__(self) -> Self:
        from tealagents.app import wiring
        from tealagents.config import load

        try:
            config = load(self.config_path, env=self._env, dotenv=None)
            self.app = wiring(config).application(config, **self._wiring)
            self._start(config.limits)
        except BaseException:
            self._cleanup()
            raise
        return self

    def _start(self, limits: Limits) -> None:
        """Starts the thread. `RuntimeError` with the reason if the application does not start."""
        sock = socket.socket()
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections of an earlier service may linger
        sock.bind(("127.0.0.1", self._wanted_port))
        sock.listen(512)
        self.port = sock.getsockname()[1]
        options = uvicorn.Config(self._serve, **server_options(limits), timeout_graceful_shutdown=2)
        self._server = server = uvicorn.Server(options)

        factory = asyncio.SelectorEventLoop if self._clock else options.get_loop_factory()

        def run() -> None:
            # a failed start is a `SystemExit`; if it left the socket open, clients would wait for an answer
            with sock, contextlib.suppress(SystemExit), asyncio.Runner(loop_factory=factory) as runner:
                self._loop = runner.get_loop()
                runner.run(server.serve(sockets=[sock]))

        self._thread = threading.Thread(target=run, daemon=True, name="service under test")
        self._thread.start()
        self._wait_until_it_answers(self._thread.is_alive)

    def _serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (self._live if scope["type"] == "lifespan" else self.app)(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The lifespan of the application; notes the error that ends it."""
        try:
            with ungrouped():
                await self.app(scope, receive, send)
        except BaseException as error:
            self._failure = described(error)
            raise

    def log(self) -> str:
        return self._failure

    def advance(self, seconds: float) -> None:
        """Sets the service's time forward: deadlines pass, sleeps end, idle connections are closed.

        The store's clock does not change, so leases and idempotency keys do not expire.
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
    """The part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...


class ServiceProcess(RunningService):
    """A service as a separate process, started as in production."""

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
        """Starts it, or starts it again on the same port. The first start retries if its port is taken."""
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
        """Starts `tealagents` with these arguments; its output goes to the log."""
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
        """SIGKILL: ends it without any cleanup."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP: suspends it until `cont`."""
        self.process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT: resumes it."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, timeout: float = 60) -> int:
        """SIGTERM. Waits for the process to end, and returns its exit status."""
        self.process.terminate()
        return self.process.wait(timeout)


@contextlib.contextmanager
def offline_service(
    script: Any = None, env: Mapping[str, str] | None = None, *, moved: bool = False, **spec: Any
) -> Iterator[tuple[ServiceThread, Any]]:
    """A service on a thread, with the offline model. `moved` is that of `ServiceThread`."""
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
