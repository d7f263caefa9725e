"""The processes that are measured, and what Linux reports of them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import httpx
import yaml

from tealagents.testing.servers import free_port

#: seconds a process gets to answer
START_SECONDS = 30.0


class Measured:
    """A server process of its own on a free port. Entered, it answers; left, it is gone."""

    #: what is asked for to see whether it answers
    probe: ClassVar[str] = "/"

    def __init__(self) -> None:
        self.port = free_port()
        #: seconds from the start of the process to its first answer
        self.ready_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 — open for as long as the process writes to it

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {}

    @property
    def folder(self) -> Path | None:
        """The folder it runs in; None for this process's own."""
        return None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the process was not started")
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- what is measured ------------------------------------------------------------------------

    def cpu(self) -> float:
        """Milliseconds of CPU that all its threads, ended ones too, have used so far."""
        return 1000 * time.clock_gettime((~self.pid << 3) | 2)

    def memory(self) -> int:
        """Kilobytes of resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def written(self) -> int:
        """Bytes it has passed to `write`, to files and sockets alike."""
        return int(Path(f"/proc/{self.pid}/io").read_text().split("wchar:")[1].split()[0])

    # --- starting and ending ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        # compiled modules are kept, as those of an installed package are
        left_out = ("TA_", "OPENAI_", "OTEL_", "PYTHONDONTWRITEBYTECODE")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        started = time.perf_counter()
        self._process = subprocess.Popen(
            self.command(),
            env={**kept, **self.environment()},
            cwd=self.folder,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait_until_ready(started)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_until_ready(self, started: float) -> None:
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.perf_counter() - started < START_SECONDS:
                with suppress(httpx.TransportError):
                    if client.get(self.url + self.probe).is_success:
                        self.ready_seconds = time.perf_counter() - started
                        return
                if self._process is None or self._process.poll() is not None:
                    break
                time.sleep(0.005)
        self._log.seek(0)
        raise RuntimeError("the process did not start:\n" + self._log.read().decode(errors="replace"))

    def __exit__(self, *exc: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()


class ModelProcess(Measured):
    """The offline model, silent, on its own core where there are two."""

    probe = "/v1/models"

    def __init__(self, script: Path | None = None) -> None:
        super().__init__()
        self._script = str(script) if script is not None else None

    def command(self) -> Sequence[str]:
        program = (
            "from pathlib import Path; from tealagents.llm.offline import serve; "
            f"script = {self._script!r}; "
            f"serve('127.0.0.1', {self.port}, script and Path(script), log=False)"
        )
        return [sys.executable, "-c", program]

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


class FloorProcess(Measured):
    """The bare handler, served as the service is: uvicorn without access log."""

    probe = "/docs"

    def __init__(self, model: ModelProcess) -> None:
        super().__init__()
        self._model = model

    def command(self) -> Sequence[str]:
        options = ["--port", str(self.port), "--no-access-log", "--log-level", "warning"]
        return [sys.executable, "-m", "uvicorn", "benchmarks.floor:app", *options]

    def environment(self) -> Mapping[str, str]:
        return {"OPENAI_BASE_URL": self._model.base_url, "OPENAI_API_KEY": "any"}


class ServiceProcess(Measured):
    """`tealagents serve` with a config of its own, and its state in a folder of its own."""

    prefix: ClassVar[str] = "/Bench/0.1"
    probe = f"{prefix}/health"

    def __init__(
        self, model: ModelProcess, store: str = "memory://", spec: Mapping[str, Any] | None = None
    ) -> None:
        """`spec` goes into the config besides, its `agent` into the agent."""
        super().__init__()
        self._model = model
        self._store = store
        self._spec = dict(spec or {})
        self._folder = tempfile.TemporaryDirectory(prefix="tealagents-bench-")

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def command(self) -> Sequence[str]:
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(self._config()))
        program = str(Path(sys.executable).with_name("tealagents"))
        return [program, "serve", str(path), "--port", str(self.port)]

    def _config(self) -> dict[str, Any]:
        spec = dict(self._spec)
        agent = {"name": "default", "model": "offline", "system_prompt": "You are measured."}
        agent |= spec.pop("agent", {})
        return {
            "apiVersion": "tealagents/v1alpha1",
            "kind": "Agent",
            "name": "Bench",
            "version": "0.1",
            "spec": {"agent": agent, **spec},
        }

    def environment(self) -> Mapping[str, str]:
        model = {"TA_BASE_URL": self._model.base_url, "TA_API_KEY": "any"}
        return {**model, "TA_AUTH": "mock", "TA_PERSISTENCE": self._store}

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._folder.cleanup()
