"""`tealagents serve`: a start that fails is a sentence, and no service."""

import asyncio
import contextlib
import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import httpx
import pytest
import yaml
from earlier_agents import CHAT, write
from starlette.types import ASGIApp, Message
from uvicorn import Config
from uvicorn.supervisors.basereload import BaseReload
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess

from tealagents.api import sse
from tealagents.api.protocols import PROTOCOLS
from tealagents.auth.mock import MockAuthenticator
from tealagents.cli.application import _settled, build_or_exit
from tealagents.cli.serve import _check_start, _run_reloading, _run_workers, _watched_files
from tealagents.cli.supervisor import Supervisor
from tealagents.config import TelemetryOptions, load
from tealagents.domain.ports import Tool
from tealagents.llm.openai_chat import OpenAIChat
from tealagents.stores.memory import MemoryStore
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.service import agent_config
from tealagents.testing.waits import until
from tealagents.threads import ContextProvider

DEMO = Path(__file__).parents[2] / "demos" / "approval"
#: as it is installed; where its start is not in question, the forked one stands for it
PROGRAM = str(Path(sys.executable).with_name("tealagents"))


PROVIDER = """
from tealagents.threads import ContextProvider

class Slow(ContextProvider):
    async def invoking(self, invocation): ...
"""


#: in a module that a service imports: a start that a signal has ended gets little time, or no end of it
SOON = "import tealagents.cli.application as its\nits.UNDO_SECONDS = 0.1\n"
NEVER = SOON.replace("0.1", "1000")


def serve(nursery: Nursery, folder: Path, *options: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """`tealagents serve` of the config in a folder, until it ends by itself."""
    command = [nursery.program, "serve", str(folder / "config.yaml"), "--offline", "--port", str(free_port())]
    return subprocess.run(
        [*command, *options],
        env={**os.environ, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_offline_models_script_may_be_named_in_the_env_file(nursery: Nursery, tmp_path: Path) -> None:
    """As every variable may be; a mistake in the script ends the start."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    (tmp_path / ".env").write_text("TA_OFFLINE_SCRIPT=script.yaml\n")
    (tmp_path / "script.yaml").write_text("rules:\n  - repply: hi\n")
    served = serve(nursery, tmp_path)
    assert served.returncode == 2, served
    assert "TA_OFFLINE_SCRIPT: " in served.stderr
    assert "repply" in served.stderr


def test_a_service_without_a_key_can_be_tried_with_the_offline_model(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Which needs none: the refusal says so."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    served = subprocess.run(
        [nursery.program, "serve", "config.yaml", "--port", str(free_port())],
        env={**os.environ, "TA_API_KEY": "", "TA_BASE_URL": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (served.returncode, served.stdout) == (2, ""), served
    assert "TA_API_KEY: " in served.stderr
    assert "Or try it with --offline." in served.stderr


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
def test_the_offline_model_needs_no_identity(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """One that is configured is not used, by any process that serves: no token is requested, and the model is
    sent none. This one's authority cannot be reached."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(
        "TA_AZURE_CREDENTIAL=client_secret\nTA_AZURE_AUTHORITY=http://127.0.0.1:1\n"
    )
    identity = {"TENANT_ID": "example.com", "CLIENT_ID": "service", "CLIENT_SECRET": "secret"}
    env = {f"TA_AZURE_{name}": value for name, value in identity.items()}
    with served_from(nursery, tmp_path, *options, **env) as url:
        body = {"items": [{"content_type": "text", "content": "My name is Ada."}]}
        headers = {"authorization": "Bearer ada"}
        answer = httpx.post(url, json=body, headers=headers, timeout=120, trust_env=False)
    assert answer.json()["status"] == "Completed", answer.text


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("raise SystemExit(0)", "custom_plugins.py, line 1: the file cannot be loaded: SystemExit"),
        (
            "from tealagents.plugins import Plugin, tool\n"
            "class Files(Plugin):\n"
            "    async def __aenter__(self): raise ValueError('no drawer')\n"
            "    async def __aexit__(self, *exc): ...\n"
            "    @tool\n"
            "    def list(self) -> str: 'Lists.'\n",
            "ValueError: no drawer",
        ),
    ],
)
def test_a_start_that_fails_serves_nothing(
    nursery: Nursery, tmp_path: Path, source: str, reported: str
) -> None:
    """Whatever a plugin raises: exit status 3 with the reason, and the port stays closed."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    (tmp_path / "custom_plugins.py").write_text(source)
    served = serve(nursery, tmp_path)
    assert served.returncode == 3, served
    assert reported in served.stderr
    assert served.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("then", ["", f"{SOON}time.sleep(1000)\n"])
def test_a_signal_while_the_service_is_built_ends_it(
    nursery: Nursery, tmp_path: Path, number: signal.Signals, then: str
) -> None:
    """However long the modules take that the config names: it serves nothing, and exits with 0."""
    slow = f"import os, time\nos.kill(os.getpid(), {number})\n{then}{PROVIDER}"
    (tmp_path / "slow.py").write_text(slow)
    shutil.copy(DEMO / "custom_plugins.py", tmp_path)
    text = (DEMO / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(f"{text}\n  thread:\n    context_providers: ['slow:Slow']\n")
    served = serve(nursery, tmp_path)
    assert (served.returncode, served.stdout) == (0, ""), served


def test_a_signal_that_comes_first_ends_process_1_as_well(tmp_path: Path) -> None:
    """Which a container's is, and which the system ends on no signal that it does not listen to."""
    alone = ["unshare", "--fork", "--pid"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no process can be the first of its own")
    config = tmp_path / "config.yaml"
    os.mkfifo(config)

    def is_read() -> bool:
        try:
            readers.append(os.open(config, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    readers: list[int] = []
    with subprocess.Popen([*alone, "--kill-child", PROGRAM, "serve", str(config)]) as outside:
        try:
            until(is_read)
            children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)
            assert outside.wait(60) == 128 + signal.SIGTERM
        finally:
            outside.kill()
            os.close(readers[0])


WAITING = """
import asyncio, multiprocessing, os, signal, threading, time
from tealagents.plugins import Plugin, tool

parent = multiprocessing.parent_process()
if parent and {early}:
    noted, heard = threading.Event(), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *given: (heard(*given), noted.set()))
    os.kill(parent.pid, {number})
    while not noted.is_set():
        time.sleep(0.01)

def block():
    while True:  # Python handles a signal between two sleeps; just before a long one, only after it
        time.sleep(0.01)

class Files(Plugin):
    async def __aenter__(self):
        if not {early}:
            os.kill(parent.pid if parent else os.getpid(), {number})
        await {what}

    async def __aexit__(self, *exc): ...

    @tool
    def list(self) -> str:
        "Lists."
        return ""
"""


def waiting(
    nursery: Nursery,
    folder: Path,
    *options: str,
    number: int = signal.SIGTERM,
    early: bool = False,
    what: str = "asyncio.Event().wait()",
    first: str = "",
) -> "subprocess.CompletedProcess[str]":
    """A service whose start waits for a plugin, which sends the signal then, or where it is imported."""
    shutil.copy(DEMO / "config.yaml", folder)
    plugin = first + WAITING.format(number=int(number), early=early, what=what)
    (folder / "custom_plugins.py").write_text(plugin)
    store = f"sqlite:///{folder / 'state.db'}"
    return serve(nursery, folder, *options, TA_PERSISTENCE=store)


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_start_waits_ends_it(
    nursery: Nursery, tmp_path: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    """For a plugin, a tool server or a store: it serves nothing, exits with 0, and logs no error."""
    served = waiting(nursery, tmp_path, *options, number=int(number))
    assert (served.returncode, served.stdout) == (0, ""), served
    assert '"startup was ended by a signal"' in served.stderr
    assert '"ERROR"' not in served.stderr


@pytest.mark.parametrize("options", [("--workers", "2"), ("--reload",)])
def test_a_signal_while_a_process_is_built_ends_its_start(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Its server has noted it by then, and would look at it only once all is started."""
    served = waiting(nursery, tmp_path, *options, early=True)
    assert (served.returncode, served.stdout) == (0, ""), served


def test_a_signal_ends_a_start_that_waits_for_a_thread(nursery: Nursery, tmp_path: Path) -> None:
    """Which nothing can cancel."""
    what = "asyncio.to_thread(threading.Event().wait)"
    served = waiting(nursery, tmp_path, what=what)
    assert (served.returncode, served.stdout) == (0, ""), served


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
def test_a_signal_ends_a_start_that_a_plugin_blocks(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """It blocks what could cancel it."""
    what = "asyncio.sleep(block())"
    served = waiting(nursery, tmp_path, *options, what=what, first=SOON)
    assert (served.returncode, served.stdout) == (0, ""), served
    assert "startup was ended by a signal" in served.stderr


def test_a_signal_leaves_a_start_that_it_cancels_the_time_to_undo_it(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Only what blocks is ended after a while: the timer that would do it is gone once the loop runs."""
    what = "self.opened()\n\n    async def opened(self):\n"
    what += "        try:\n            await asyncio.Event().wait()\n"
    what += "        finally:\n"
    what += "            while any(isinstance(each, threading.Timer) for each in threading.enumerate()):\n"
    what += "                await asyncio.sleep(0.01)\n"
    what += "            print('undone')"
    served = waiting(nursery, tmp_path, what=what, first=NEVER)
    assert (served.returncode, served.stdout) == (0, "undone\n"), served


def test_a_second_signal_ends_a_start_at_once(nursery: Nursery, tmp_path: Path) -> None:
    """Without the time that the first one leaves."""
    what = "asyncio.sleep(os.kill(os.getpid(), signal.SIGINT) or block())"
    served = waiting(nursery, tmp_path, what=what, first=NEVER)
    assert (served.returncode, served.stdout) == (0, ""), served


def test_workers_that_a_plugin_blocks_end_when_their_supervisor_is_killed(
    nursery: Nursery, tmp_path: Path
) -> None:
    """They hold its standard error until they end."""
    what, number = "asyncio.sleep(block())", signal.SIGKILL
    killed = waiting(nursery, tmp_path, "--workers", "2", number=number, what=what, first=SOON)
    assert killed.returncode == -number, killed


LEAVING = """
import asyncio, os, sys
from tealagents.plugins import Plugin, tool

async def leave():
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["WHERE"]))
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
        await reader.read()
        sys.exit(7)

class Files(Plugin):
    async def __aenter__(self):
        self.leaving = asyncio.create_task(leave())

    async def __aexit__(self, *exc): ...

    @tool
    def list(self) -> str:
        "Lists."
        return ""
"""


def test_a_service_that_exits_by_itself_keeps_its_status(nursery: Nursery, tmp_path: Path) -> None:
    """0 is that of a stop in good order, after which nothing starts it again."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    (tmp_path / "custom_plugins.py").write_text(LEAVING)
    port = str(free_port())
    served = serve(nursery, tmp_path, "--port", port, WHERE=port)
    assert served.returncode == 7, served


@pytest.fixture
def signals() -> Iterator[None]:
    """What is done on signals is afterwards what it was."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_no_process_is_started_once_a_signal_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come while what starts them is still imported."""
    started: list[object] = []
    monkeypatch.setattr(Multiprocess, "run", lambda each: started.append(each))
    monkeypatch.setattr(BaseReload, "run", lambda each: started.append(each))
    with socket.socket() as listener:
        for stopped, count in (([signal.SIGTERM], 0), ([], 2)):
            _run_workers(TelemetryOptions(), 2, listener, {}, stopped)
            _run_reloading([tmp_path / "config.yaml"], listener, {}, stopped, lambda: None)
            assert len(started) == count


class FakeWorker:
    """As the supervisor sees a worker's process, which runs and answers only as a test says."""

    exitcode: int | None = None

    def __init__(self, *_: object) -> None:
        self.pid, self.process, self.answers, self.killed = id(self), self, False, False

    def start(self) -> None:
        self.answers = True

    def is_alive(self, timeout: float | None = None) -> bool:
        return not self.killed and (timeout is None or self.answers)

    def is_ready(self, timeout: float = 5) -> bool:
        return self.answers

    def terminate(self) -> None:
        self.exitcode = 0

    def kill(self) -> None:
        self.killed = True

    def join(self) -> None:
        """It has ended."""


@pytest.mark.usefixtures("signals")
def test_a_worker_is_replaced_when_it_no_longer_answers_and_not_while_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine Python alone may take longer than a worker has for its answer."""
    monkeypatch.setattr("tealagents.cli.supervisor.Process", FakeWorker)
    supervisor, slow = Supervisor(Config("unused"), []), FakeWorker()
    workers: list[Any] = [slow]
    supervisor.processes = workers
    for answers in (False, True):
        slow.answers = answers
        supervisor.keep_subprocess_alive()
        assert workers == [slow]
    slow.answers = False
    supervisor.keep_subprocess_alive()
    assert slow.killed
    assert workers != [slow]


@pytest.mark.usefixtures("signals")
def test_sighup_waits_for_a_worker_that_is_slow_to_start_and_cares_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it waits for a tool server; a worker that dies meanwhile is replaced."""

    class Slow(FakeWorker):
        def start(self) -> None:
            """It answers a minute after the first one was started."""

        def is_ready(self, timeout: float = 5) -> bool:
            self.answers = clock.seconds > 60
            return self.answers

    clock = FakeTime()
    monkeypatch.setattr("tealagents.cli.supervisor.Process", Slow)
    monkeypatch.setattr("tealagents.cli.supervisor.time", clock)
    supervisor, old, dead = Supervisor(Config("unused"), []), FakeWorker(), FakeWorker()
    workers: list[Any] = [old, dead]
    supervisor.processes = workers
    supervisor.served = dead.killed = True
    old.start()
    supervisor.restart_all()
    assert old.exitcode == 0
    assert all(isinstance(worker, Slow) and worker.answers for worker in workers)
    assert 60 < clock.seconds < 120


@pytest.mark.usefixtures("signals")
def test_a_second_sighup_gives_up_a_start_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waited for may be repaired by then: the next one begins with it."""

    class Hanging(FakeWorker):
        def start(self) -> None:
            supervisor.signal_queue.append(signal.SIGHUP)

        def is_ready(self, timeout: float = 5) -> bool:
            return False

    clock = FakeTime()
    monkeypatch.setattr("tealagents.cli.supervisor.Process", Hanging)
    monkeypatch.setattr("tealagents.cli.supervisor.time", clock)
    supervisor, old = Supervisor(Config("unused"), []), FakeWorker()
    workers: list[Any] = [old]
    supervisor.processes = workers
    old.start()
    supervisor.restart_all()
    assert workers == [old]
    assert not old.killed
    assert clock.seconds < 1


@pytest.mark.usefixtures("signals")
def test_a_worker_that_sigttou_removes_drains() -> None:
    """No one would look after it any more; the last one stays."""
    supervisor, kept, removed = Supervisor(Config("unused", workers=2), []), FakeWorker(), FakeWorker()
    workers: list[Any] = [kept, removed]
    supervisor.processes = workers
    for _ in range(2):
        supervisor.handle_ttou()
        assert workers == [kept]
    assert (kept.exitcode, removed.exitcode) == (None, 0)


class FakeTime:
    """Time that passes only while it is slept."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_metrics_on_the_port_of_the_service_are_refused(nursery: Nursery, tmp_path: Path) -> None:
    """Users reach that, and one of the two would not be served."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    served = serve(nursery, tmp_path, "--port", "9464", TA_METRICS_PORT="9464")
    assert (served.returncode, served.stdout) == (2, ""), served
    assert "TA_METRICS_PORT: 9464 is the port of the service" in served.stderr


def test_reload_and_workers_exclude_each_other(nursery: Nursery, tmp_path: Path) -> None:
    """The one is for development, the other is not: neither is left out in silence."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    served = serve(nursery, tmp_path, "--reload", "--workers", "2")
    assert (served.returncode, served.stdout) == (2, ""), served
    assert "leave out --reload or --workers" in served.stderr


@pytest.mark.parametrize(("store", "name"), [("memory://", "memory"), ("notebook:Notebook", "notebook")])
def test_workers_do_not_share_the_store_of_one_process(
    nursery: Nursery, tmp_path: Path, store: str, name: str
) -> None:
    """Each would see only its own tasks, or undo what the others commit: the store is named."""
    shutil.copy(DEMO / "config.yaml", tmp_path)
    own = "from tealagents.stores.memory import MemoryStore\nclass Notebook(MemoryStore): name = 'notebook'"
    (tmp_path / "notebook.py").write_text(own)
    served = serve(nursery, tmp_path, "--workers", "2", TA_PERSISTENCE=store)
    assert (served.returncode, served.stdout) == (2, ""), served
    assert f"2 workers cannot share the store '{name}': it is for one process" in served.stderr


def test_workers_that_cannot_start_are_a_start_that_fails(nursery: Nursery, tmp_path: Path) -> None:
    """The parent of several processes exits with 3 as a single one does, for its supervisor to see."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    away = {"TA_PERSISTENCE": "redis://127.0.0.1:1"}
    served = serve(nursery, tmp_path, "--workers", "2", **away)
    assert served.returncode == 3, served
    assert "redis" in served.stderr
    assert served.stdout == ""


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("", "broken has no 'Broken'"),
        ("raise ValueError('no drawer')", "ValueError: no drawer"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_workers_that_cannot_be_built_are_not_started_again(
    nursery: Nursery, tmp_path: Path, source: str, reported: str
) -> None:
    """Whether the config is refused, or what it names raises: exit status 3 with the reason."""
    (tmp_path / "broken.py").write_text(source)
    shutil.copy(DEMO / "custom_plugins.py", tmp_path)
    text = (DEMO / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(f"{text}\n  thread:\n    context_providers: ['broken:Broken']\n")
    served = serve(nursery, tmp_path, "--workers", "2", TA_PERSISTENCE=f"sqlite:///{tmp_path / 'state.db'}")
    assert served.returncode == 3, served
    assert reported in served.stderr
    assert served.stdout == ""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses with which the process would end soon, whatever still runs."""
    statuses = list[int]()
    monkeypatch.setattr("tealagents.cli.application._end_soon", lambda *_, status=0: statuses.append(status))
    monkeypatch.setattr("tealagents.cli.application._settled", lambda: None)
    return statuses


async def lifespan_of(app: ASGIApp, *, stopped: bool = True) -> list[Message]:
    """What it says of its start and its shutdown; without one, it is canceled once it has started."""
    left, sent = ["startup", *(["shutdown"] if stopped else [])], list[Message]()

    async def receive() -> Message:
        if not left:
            raise asyncio.CancelledError
        return {"type": f"lifespan.{left.pop(0)}"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    return sent


async def test_a_start_that_fails_says_why_whatever_is_served(tmp_path: Path, ended: list[int]) -> None:
    """What a protocol keeps open does not wrap what the store says, and what is left running ends as well."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config(protocols=[name for name in PROTOCOLS if "/" not in name])))
    away = {"TA_PERSISTENCE": "redis://127.0.0.1:1", "TA_API_KEY": "any", "TA_AUTH": "mock"}
    (failed,) = await lifespan_of(build_or_exit(load(path, env=away, dotenv=None)))
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"].startswith("The redis store at 127.0.0.1:1 is unavailable")
    assert ended == [3]


@pytest.mark.parametrize(
    ("host", "env", "warned"),
    [
        ("0.0.0.0", {}, True),
        ("127.0.0.1", {}, False),
        ("0.0.0.0", {"TA_PUBLIC_URL": "https://agents.example.com"}, False),
    ],
)
def test_a_service_that_does_not_know_its_address_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, env: dict[str, str], warned: bool
) -> None:
    """Behind a proxy that terminates TLS it would send clients, with their tokens, to http."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config()))
    entra = {"TA_ENTRA_TENANT_ID": "contoso.example", "TA_ENTRA_AUDIENCE": "api://assistant"}
    config = load(path, env={"TA_API_KEY": "any", **entra, **env}, dotenv=None)
    _check_start(config, host, 8000, 1)
    assert ("TA_PUBLIC_URL is not set" in capsys.readouterr().err) is warned


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another socket listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


SERVE = ("serve", str(DEMO / "config.yaml"), "--offline")


@pytest.mark.parametrize(
    "command", [SERVE, (*SERVE, "--workers", "2"), (*SERVE, "--reload"), ("offline-model",)]
)
def test_a_used_port_is_a_sentence(
    nursery: Nursery, tmp_path: Path, taken: int, command: tuple[str, ...]
) -> None:
    """It names the port and the option that helps."""
    ended = subprocess.run(
        [PROGRAM if command == SERVE else nursery.program, *command, "--port", str(taken)],
        env={**os.environ, "TA_PERSISTENCE": f"sqlite:///{tmp_path / 'state.db'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 2, ended
    said = f"port {taken} on 127.0.0.1 is in use by another process; stop it, or choose another with --port"
    assert said in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
def test_of_two_that_start_on_one_port_the_later_one_ends(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Both could bind it, as neither listened yet. It says why."""
    plugin = WAITING.format(number=0, early=False, what="asyncio.Event().wait()")
    begun, first, later = (tmp_path / name for name in ("begun", "first", "later"))
    for folder, source in (
        (first, (DEMO / "custom_plugins.py").read_text()),
        (later, plugin.replace("await", f"open({str(begun)!r}, 'w').close()\n        await")),
    ):
        folder.mkdir()
        shutil.copy(DEMO / "config.yaml", folder)
        (folder / "custom_plugins.py").write_text(source)
    port = str(free_port())
    command = [nursery.program, "serve", str(later / "config.yaml"), "--offline", "--port", port, *options]
    env = {**os.environ, "TA_PERSISTENCE": f"sqlite:///{later / 'state.db'}"}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as lost:
        try:
            until(begun.exists)
            with served_from(nursery, first, "--port", port) as url:
                out, said = lost.communicate(timeout=300)
                assert httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200
        finally:
            lost.terminate()
    assert (lost.returncode, out) == (2, ""), said
    assert f"port {port} on 127.0.0.1 is in use by another process" in said


@pytest.mark.parametrize("command", [SERVE, ("offline-model",)])
@pytest.mark.parametrize(
    ("host", "reported"), [("é..x", "'é..x' is not a valid host name"), ("", "it is empty: name an address")]
)
def test_a_host_that_can_be_no_name_is_refused(
    nursery: Nursery, command: tuple[str, ...], host: str, reported: str
) -> None:
    """By the option, with exit status 2. An empty one would be every address of the machine."""
    ended = subprocess.run(
        [nursery.program, *command, "--host", host, "--port", str(free_port())],
        env={**os.environ, "TA_AUTH": "mock"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 2, ended
    assert f"'--host': {reported}" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
def test_the_address_is_shown_when_it_is_served(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Who pastes the first message at once is answered."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    port = free_port()
    program = nursery.program if options else PROGRAM
    command = [program, "serve", str(tmp_path / "config.yaml"), "--offline", "--port", str(port), *options]
    env = {**os.environ, "TA_PERSISTENCE": f"sqlite:///{tmp_path / 'state.db'}"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            shown = service.stdout.readline()
            url = shown.split()[-1]
            ready = httpx.get(f"{url}/health/ready", timeout=30, trust_env=False)
        finally:
            service.send_signal(signal.SIGTERM)
            rest = service.stdout.read() if service.stdout else ""
    assert ready.status_code == 200
    assert f"127.0.0.1:{port}" in url
    assert "Paste a first message" in rest


@pytest.mark.parametrize("options", [[], ["--workers", "2"]])
@pytest.mark.parametrize("streams", ["2>&-", "<&- 2>&-"])
def test_a_service_whose_standard_error_is_closed_serves_all_the_same(
    tmp_path: Path, options: list[str], streams: str
) -> None:
    """Without a log, and to its end: where several are closed, the event loop does not get one of them."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    command = [PROGRAM, "serve", str(tmp_path / "config.yaml"), "--offline", "--port", str(free_port())]
    closed = ["sh", "-c", f'exec "$@" {streams}', "sh", *command, *options]
    env = {**os.environ, "TA_PERSISTENCE": f"sqlite:///{tmp_path / 'state.db'}"}
    with subprocess.Popen(closed, env=env, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline().startswith("Janitor 0.1")
        finally:
            service.send_signal(signal.SIGTERM)
    assert service.returncode == 0


@pytest.mark.parametrize("url", ["sqlite:///{place}", "file://{place}"])
def test_the_log_names_the_place_of_the_store_and_that_it_is_new(
    nursery: Nursery, tmp_path: Path, url: str
) -> None:
    """A mistyped path is noticed: it is served without the state that was meant."""
    place = tmp_path / "mounted" / "state"
    env = {"TA_AUTH": "mock", "TA_PERSISTENCE": url.format(place=place)}
    env |= {"TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "offline-key"}
    with nursery.service(agent_config(), env) as service:
        [new] = [line for line in service.log().splitlines() if f"there was no store at {place}" in line]
        assert json.loads(new)["level"] == "WARNING"
        assert service.terminate() == 0
        service.start()
        assert service.log().count(f' at {place}"') == 2
        assert service.log().count("there was no store") == 1


@contextlib.contextmanager
def served_from(nursery: Nursery, folder: Path, *options: str, **env: str) -> Iterator[str]:
    """The address of `tealagents serve` of the config in a folder, while it runs."""
    env = {"TA_PERSISTENCE": f"sqlite:///{folder / 'state.db'}", **env}
    with serving(nursery, folder / "config.yaml", *options, **env) as (_, url):
        yield url


@contextlib.contextmanager
def serving(
    nursery: Nursery, config: Path, *options: str, **env: str
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`tealagents serve` of a config, and its address, while it runs."""
    command = [nursery.program, "serve", str(config), "--offline", "--port", str(free_port()), *options]
    with subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            yield service, service.stdout.readline().split()[-1]
        finally:
            service.send_signal(signal.SIGTERM)


def console(url: str) -> int | None:
    """The status with which the console is answered; None while the process that serves is replaced."""
    try:
        return httpx.get(f"{url}/console/", timeout=30, trust_env=False).status_code
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("options", [("--workers", "2"), ("--reload",)])
@pytest.mark.parametrize(("said", "status"), [("", 200), ("  console: {enabled: false}\n", 404)])
def test_the_processes_that_serve_have_the_console_as_the_command_has(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...], said: str, status: int
) -> None:
    """By default on a loopback address, and as the file says."""
    shutil.copy(DEMO / "custom_plugins.py", tmp_path)
    (tmp_path / "config.yaml").write_text(f"{(DEMO / 'config.yaml').read_text()}\n{said}")
    with served_from(nursery, tmp_path, *options) as url:
        assert console(url) == status


def test_a_console_that_the_file_turns_off_is_gone_after_a_reload(nursery: Nursery, tmp_path: Path) -> None:
    """What the command found in the file, or by default, is not said again to the next process."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    with served_from(nursery, tmp_path, "--reload") as url:
        assert console(url) == 200
        with (tmp_path / "config.yaml").open("a") as file:
            file.write("\n  console: {enabled: false}\n")
        until(lambda: console(url) == 404)


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
def test_what_a_linked_config_names_is_beside_the_link(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Its store, its plugins: however many processes serve, and as for the other commands."""
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
        shutil.copy(DEMO / "custom_plugins.py", tmp_path / name)
    text = f"{(DEMO / 'config.yaml').read_text()}\n  persistence: sqlite:///state.db\n"
    (tmp_path / "shared" / "config.yaml").write_text(text)
    (tmp_path / "own" / "config.yaml").symlink_to("../shared/config.yaml")
    with serving(nursery, tmp_path / "own" / "config.yaml", *options):
        assert [each.parent.name for each in tmp_path.rglob("state.db")] == ["own"]


def test_workers_that_are_replaced_follow_a_link_to_another_folder(nursery: Nursery, tmp_path: Path) -> None:
    """As `current` is switched to the next release, before SIGHUP."""
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        shutil.copy(DEMO / "custom_plugins.py", tmp_path / name)
        text = (DEMO / "config.yaml").read_text().replace("Looks", f"Release {name} looks")
        (tmp_path / name / "config.yaml").write_text(text)
    current, store = tmp_path / "current", f"sqlite:///{tmp_path / 'state.db'}"
    current.symlink_to("1")

    def release() -> str | None:
        """Which one is served; None by a worker that is replaced meanwhile."""
        with contextlib.suppress(httpx.TransportError):
            described = httpx.get(f"{url}/openapi.json", timeout=30, trust_env=False).text
            return next((name for name in ("1", "2") if f"Release {name} looks" in described), None)
        return None

    config = current / "config.yaml"
    with serving(nursery, config, "--workers", "2", TA_PERSISTENCE=store) as (service, url):
        assert release() == "1"
        current.unlink()
        current.symlink_to("2")
        service.send_signal(signal.SIGHUP)
        until(lambda: {release() for _ in range(10)} == {"2"})


def test_a_reload_follows_what_the_config_names_wherever_it_is(nursery: Nursery, tmp_path: Path) -> None:
    """And `.env` beside the config. The plugin file notes that a process reads it."""
    for name in ("config", "code", "rules"):
        (tmp_path / name).mkdir()
    shutil.copy(DEMO / "config.yaml", tmp_path / "config")
    source = (DEMO / "custom_plugins.py").read_text()
    noting = f"{source}\nopen({str(tmp_path / 'started')!r}, 'w').close()\n"
    (tmp_path / "code" / "plugins.py").write_text(noting)
    (tmp_path / "rules" / "catalogue.json").write_text('{"plugins": []}')
    (tmp_path / "config" / ".env").touch()
    named = {"TA_PLUGIN_MODULE": "code/plugins.py", "TA_PLUGIN_CATALOG_FILE": "rules/catalogue.json"}
    env = {name: str(tmp_path / file) for name, file in named.items()}
    with served_from(nursery, tmp_path / "config", "--reload", **env):
        for edited in ("config/.env", *named.values()):
            (tmp_path / "started").unlink()
            with (tmp_path / edited).open("a") as file:
                file.write("\n")
            until((tmp_path / "started").exists)


def test_a_reload_with_a_mistake_waits_for_the_next(
    nursery: Nursery, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says so, and serves again when the mistake is corrected."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    config, said = tmp_path / "config.yaml", list[str]()

    def waits() -> bool:
        said.append(capfd.readouterr().err)
        return "not serving: waiting for a file to change" in "".join(said)

    with served_from(nursery, tmp_path, "--reload") as url:
        right = config.read_text()
        config.write_text(f"{right}\n]")
        until(waits)
        assert f"{config}:" in "".join(said)
        config.write_text(right)
        until(lambda: console(url) == 200)


def test_a_reload_follows_the_types_of_an_earlier_file_wherever_they_are(tmp_path: Path) -> None:
    """Their folder is watched, too."""
    types = tmp_path / "types" / "inputs.py"
    types.parent.mkdir()
    types.touch()
    config = load(write(tmp_path, CHAT), env={"TA_TYPES_MODULE": str(types)}, dotenv=None)
    assert types in _watched_files(config)


def test_an_offline_model_follows_the_script_that_is_edited(nursery: Nursery, tmp_path: Path) -> None:
    """With `--reload`. While there is a mistake in the script, it answers as before."""
    for name in ("config.yaml", "custom_plugins.py"):
        shutil.copy(DEMO / name, tmp_path)
    script = tmp_path / "script.yaml"

    def answers() -> tuple[str, bool] | None:
        """What the model says, and whether the service that asks it has started with the new file."""
        with contextlib.suppress(httpx.TransportError), httpx.Client(timeout=30, trust_env=False) as client:
            body = {"items": [{"content_type": "text", "content": "hello"}]}
            headers = {"authorization": "Bearer ada"}
            answer = client.post(url, json=body, headers=headers)
            if answer.status_code == 200:  # else it drains
                started_twice = "twice" in client.get(f"{url}/openapi.json").text
                return answer.json()["content"]["output"], started_twice
        return None

    script.write_text("otherwise: the old answer\n")
    with served_from(nursery, tmp_path, "--reload", TA_OFFLINE_SCRIPT=str(script)) as url:
        assert answers() == ("the old answer", False)
        script.write_text("otherwise: the new answer\n")
        until(lambda: answers() == ("the new answer", False))
        script.write_text("otherwize: nothing\n")
        config = tmp_path / "config.yaml"
        config.write_text(config.read_text().replace("Looks", "Started twice, it looks"))
        until(lambda: answers() == ("the new answer", True))


async def test_a_generator_that_is_dropped_is_closed_without_being_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop's register costs memory and time; what it is for, a service does itself."""
    closed = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        try:
            yield "one"
            yield "two"
        finally:
            closed.set()

    for name in ("freeze", "set_threshold", "enable"):  # the garbage collector is that of the tests
        monkeypatch.setattr(gc, name, lambda *_: None)
    _settled()
    begun = pieces()
    assert await anext(begun) == "one"
    assert begun not in asyncio.get_running_loop()._asyncgens  # type: ignore[attr-defined]
    del begun
    await asyncio.wait_for(closed.wait(), 60)


STUCK = """
from tealagents.plugins import Plugin, tool
class Stuck(Plugin):
    async def __aenter__(self): pass
    async def __aexit__(self, *_):
        raise {raised}
    @tool
    def stay(self) -> None:
        "Stay."
"""


def built(tmp_path: Path, auth: str = "mock", store: str = "memory://", **config: Any) -> ASGIApp:
    """A service in memory, as `serve` builds it."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config(**config)))
    given = {"TA_PERSISTENCE": store, "TA_API_KEY": "any", "TA_AUTH": auth}
    return build_or_exit(load(path, env=given, dotenv=None))


class Deaf(asyncio.Transport):
    """The connection of a client that takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return 1

    def abort(self) -> None:
        self.aborted.set()


class Answered:
    """An answer as the server sends it: it waits until the client has taken something."""

    def __init__(self, body: bytes) -> None:
        self.transport = Deaf()
        self._body = body

    async def receive(self) -> Message:
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self.transport.aborted.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.transport.aborted.wait()


async def test_the_connection_of_a_served_stream_that_is_not_read_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[int]
) -> None:
    """The log of calls, which only `serve` puts around the application, does not hide it."""
    monkeypatch.setattr(sse, "SEND_TIMEOUT", 0.1)
    app, started, stopped = built(tmp_path), asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        if started.is_set():
            await stopped.wait()
            return {"type": "lifespan.shutdown"}
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        started.set()

    serving = asyncio.ensure_future(app({"type": "lifespan"}, receive, send))
    await started.wait()
    answered = Answered(json.dumps({"items": [{"content_type": "text", "content": "hello"}]}).encode())
    head = [(b"authorization", b"Bearer ada"), (b"content-type", b"application/json")]
    where = {"method": "POST", "scheme": "http", "path": "/Tester/0.1/sse", "query_string": b""}
    scope = {"type": "http", **where, "headers": head, "client": ("127.0.0.1", 1)}
    async with asyncio.timeout(60):
        await app(scope, answered.receive, answered.send)
    stopped.set()
    await serving
    assert answered.transport.aborted.is_set()


class Refreshing(MockAuthenticator):
    """Holds a task group, as one does that looks at its authority's keys from time to time."""

    async def __aenter__(self) -> Self:
        self._group = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._group.__aexit__(*exc)


async def test_an_auth_provider_that_holds_a_task_group_does_not_hide_why_the_start_fails(
    tmp_path: Path, ended: list[int]
) -> None:
    """The group is passed the error, and raises one of its own."""
    source = STUCK.replace("pass", "raise ValueError('no drawer')").format(raised="SystemExit")
    (tmp_path / "custom_plugins.py").write_text(source)
    app = built(tmp_path, f"{__name__}:Refreshing", agent={"plugins": ["Stuck"]})
    (failed,) = await lifespan_of(app)
    where = "The plugin Stuck cannot be opened: custom_plugins.py, line 4"
    assert failed == {"type": "lifespan.startup.failed", "message": f"{where}: ValueError: no drawer."}
    assert ended == [3]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "SystemExit('it is stuck')",
            "The plugin Stuck failed to close: custom_plugins.py, line 6: SystemExit: it is stuck.",
        ),
        ("ValueError('it is stuck')", "ValueError: it is stuck"),
    ],
)
async def test_a_shutdown_that_fails_says_why(
    tmp_path: Path, ended: list[int], caplog: pytest.LogCaptureFixture, raised: str, said: str
) -> None:
    """It is no start that fails: the server is sent the reason, and the log names what failed. What is left
    running ends as well."""
    (tmp_path / "custom_plugins.py").write_text(STUCK.format(raised=raised))
    complete, failed = await lifespan_of(built(tmp_path, agent={"plugins": ["Stuck"]}))
    assert complete["type"] == "lifespan.startup.complete"
    assert failed == {"type": "lifespan.shutdown.failed", "message": said}
    assert ended == [0]
    [named] = [each.getMessage() for each in caplog.records if each.name == "tealagents.opening"]
    kind = raised.partition("(")[0]
    assert named == f"The plugin Stuck failed to close: custom_plugins.py, line 6: {kind}: it is stuck."


class Odd:
    """An extension that opens and closes as the test says."""

    FAILS: ClassVar[BaseException | None] = None
    #: lets an extension open that takes long
    LET_IN: ClassVar[asyncio.Event | None] = None
    #: lets an extension close that ignores its cancellation
    LET_GO: ClassVar[asyncio.Event | None] = None
    #: it ends when it is canceled
    OBEYS: ClassVar[bool] = False

    async def __aenter__(self) -> Self:
        if self.LET_IN is not None:
            await self.LET_IN.wait()
        if self.FAILS is not None:
            raise self.FAILS
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.OBEYS:
            await asyncio.Event().wait()
        while self.LET_GO is not None and not self.LET_GO.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.LET_GO.wait()


class OddAuth(Odd, MockAuthenticator): ...


class OddModel(Odd, OpenAIChat): ...


class OddProvider(Odd, ContextProvider): ...


class OddStore(Odd, MemoryStore): ...


class OddToolset(Odd):
    def __init__(self, options: object) -> None: ...

    def tools(self) -> list[Tool]:
        return []


ODD: dict[str, Any] = {
    "toolset OddToolset": {"agent": {"toolsets": [f"{__name__}:OddToolset"]}},
    "context provider OddProvider": {"thread": {"context_providers": [f"{__name__}:OddProvider"]}},
    "model client OddModel": {"agent": {"client": f"{__name__}:OddModel"}},
    "auth provider OddAuth": {"auth": f"{__name__}:OddAuth"},
    "store OddStore": {"store": f"{__name__}:OddStore://"},
}


@pytest.mark.parametrize("extension", ODD)
async def test_an_extension_that_does_not_close_is_left_behind(
    tmp_path: Path,
    ended: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extension: str,
) -> None:
    """Even where it ignores its cancellation: the process ends, and the log names the extension."""
    let_go = asyncio.Event()
    monkeypatch.setattr(Odd, "LET_GO", let_go)
    monkeypatch.setattr("tealagents.opening.CLOSE_SECONDS", 0.01)
    monkeypatch.setattr("tealagents.unwinding.UNWIND_SECONDS", 0.01)
    served = asyncio.ensure_future(lifespan_of(built(tmp_path, **ODD[extension])))
    await asyncio.wait((served,), timeout=30)
    was_done = served.done()
    let_go.set()
    assert (await served)[1] == {"type": "lifespan.shutdown.complete"}
    assert was_done
    assert f"The {extension} does not close; it is left behind" in caplog.text


@pytest.mark.parametrize("extension", ODD)
async def test_an_extension_whose_closing_is_cut_short_is_named(
    tmp_path: Path,
    ended: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extension: str,
) -> None:
    """Also where it ends when it is canceled: what it has not closed is its author's to find."""
    monkeypatch.setattr(Odd, "OBEYS", True)
    monkeypatch.setattr("tealagents.opening.CLOSE_SECONDS", 0.01)
    assert (await lifespan_of(built(tmp_path, **ODD[extension])))[1] == {"type": "lifespan.shutdown.complete"}
    assert f"The {extension} has not closed within 0.01 s, and is canceled" in caplog.text
    assert "left behind" not in caplog.text


@pytest.mark.parametrize("extension", ODD)
async def test_an_extension_that_takes_long_to_open_is_named(
    tmp_path: Path,
    ended: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extension: str,
) -> None:
    """The start waits for it, and the log says for what."""
    let_in = asyncio.Event()
    monkeypatch.setattr(Odd, "LET_IN", let_in)
    monkeypatch.setattr("tealagents.opening.SLOW_SECONDS", 0.01)
    served = asyncio.ensure_future(lifespan_of(built(tmp_path, **ODD[extension])))
    async with asyncio.timeout(30):
        while f"The {extension} is still being opened" not in caplog.text:
            await asyncio.sleep(0.01)
    let_in.set()
    assert (await served)[0] == {"type": "lifespan.startup.complete"}


async def test_a_store_of_ours_closes_in_its_own_time(
    tmp_path: Path, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options say how long it waits for the last writes."""
    written = list[str]()

    async def close(_: MemoryStore) -> None:
        await asyncio.sleep(0.1)
        written.append("the last")

    monkeypatch.setattr(MemoryStore, "close", close)
    monkeypatch.setattr("tealagents.opening.CLOSE_SECONDS", 0.01)
    assert (await lifespan_of(built(tmp_path)))[1] == {"type": "lifespan.shutdown.complete"}
    assert written == ["the last"]


@pytest.mark.parametrize("extension", ODD)
@pytest.mark.parametrize("error", [ValueError("no key"), asyncio.CancelledError("no key")])
async def test_an_extension_that_cannot_be_opened_is_named(
    tmp_path: Path,
    ended: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extension: str,
    error: BaseException,
) -> None:
    """With file and line; and no signal is reported where none came."""
    monkeypatch.setattr(Odd, "FAILS", error)
    (failed,) = await lifespan_of(built(tmp_path, **ODD[extension]))
    where, said = r"test_cli_serve\.py, line \d+", f"{type(error).__name__}: no key"
    assert re.fullmatch(rf"The {extension} cannot be opened: {where}: {said}\.", failed["message"])
    assert "signal" not in caplog.text


class Losing(Refreshing):
    """What it looks at is lost while the service serves."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._group.create_task(self._look())
        return self

    async def _look(self) -> None:
        await SERVES.wait()
        raise ConnectionError("the authority is away")


SERVES = asyncio.Event()


async def test_a_service_that_loses_what_it_needs_ends_with_an_error(
    tmp_path: Path, ended: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """No shutdown was asked for: the log says where it failed, and the status is that of a failure."""
    left = ["startup"]

    async def receive() -> Message:
        if not left:
            SERVES.set()
            await asyncio.Event().wait()
        return {"type": f"lifespan.{left.pop()}"}

    async def send(message: Message) -> None: ...

    await built(tmp_path, f"{__name__}:Losing")({"type": "lifespan"}, receive, send)
    assert ended == [1]
    assert "ConnectionError: the authority is away" in caplog.text


async def test_a_service_that_is_canceled_ends_what_is_left_running(tmp_path: Path, ended: list[int]) -> None:
    """On a second signal the server cancels it, without a shutdown."""
    with pytest.raises(asyncio.CancelledError):
        await lifespan_of(built(tmp_path), stopped=False)
    assert ended == [0]
