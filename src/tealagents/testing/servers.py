"""Private servers on free ports of loopback, for tests: Redis, a Redis cluster, PostgreSQL, DynamoDB (moto).

    with RedisServer() as server:
        ...  server.url, server.kill(), server.restart(), server.stop(), server.cont()

Each keeps its data in a folder of its own under the system's temporary directory and takes it along when it
ends. So it does when the test process is killed: a watchdog process sees the pipe from it close, ends the
servers and removes their folders. A server whose program is not installed raises `ServerMissing`, which says
what to install. Nothing is synced to disk unless `durable=True` asks for what a production server does.

`tealagents.testing.pytest_servers` offers them as fixtures.
"""

import atexit
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from tealagents.testing.waits import until

__all__ = [
    "ClusterNode",
    "DynamoServer",
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "Server",
    "ServerMissing",
]

#: seconds that a server is given to answer, on a machine that may be busy
START_SECONDS = 60.0


class ServerMissing(RuntimeError):
    """A server's program is not installed. The text says what to install."""


class Server(ABC):
    """One server process. Entered, it answers; left, it and its data are gone."""

    name: ClassVar[str]
    host: ClassVar[str] = "127.0.0.1"
    #: the signal on which it ends at once, leaving nothing behind outside of its folder
    end_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """What a store is given to reach it."""

    @property
    def directory(self) -> Path:
        """Where its data and its `server.log` are."""
        if self._directory is None:
            raise RuntimeError(f"the {self.name} server has not been started")
        return self._directory

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- what a test does to it -------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL, as a machine that loses its power. `restart` brings it back with its data."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """SIGSTOP: it holds its connections and answers no one, until `cont`."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills it, where it still runs, and starts it again on the same port and data."""
        if self.running:
            self.cont()
            self.kill()
        self._start_on(self.port)

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix=f"tealagents-{self.name}-"))
        try:
            self.prepare()
            self._start_somewhere()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None and self.running:
            self.cont()
            self._signal(self.end_signal)
            self._reap()
        self.clean_up()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- what a kind of server fills --------------------------------------------------------------

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments, for `self.port` and `self.directory`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is ready to serve; OSError counts as not yet."""

    def prepare(self) -> None:  # noqa: B027 — most servers need none
        """What is done to the folder once, before the first start."""

    def clean_up(self) -> None:  # noqa: B027
        """What is undone outside of the folder after the process has ended."""

    def account(self) -> str | None:
        """The account it must run as, where this process may not run it under its own."""
        return None

    # --- starting and ending ----------------------------------------------------------------------

    def _start_somewhere(self) -> None:
        """On a free port; on another one where another process takes it in the meantime."""
        for attempt in range(5):
            try:
                self._start_on(free_port())
            except RuntimeError:
                if attempt == 4:
                    raise
            else:
                return

    def _start_on(self, port: int) -> None:
        """Waits until it answers. A server that was killed may hold on to its port or data for a moment."""
        self.port = port
        deadline = time.monotonic() + START_SECONDS
        while True:
            self._spawn()
            if self._wait_until_ready(deadline):
                return
            self._reap()
            if time.monotonic() > deadline or not self._may_be_retried():
                raise RuntimeError(f"{self.name} did not start on port {port}:\n{self.log_tail()}")
            time.sleep(0.1)

    def _may_be_retried(self) -> bool:
        """On the first start another port is the better choice."""
        return (self.directory / "started").exists()

    def _spawn(self) -> None:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PG", "REDIS", "AWS_", "MOTO"))
        }
        account = self.account()
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=account,
                group=account and _group_of(account),
                extra_groups=() if account else None,
            )
        _watchdog.hold(self._process.pid, self.end_signal, self.directory)

    def _wait_until_ready(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            with suppress(OSError):
                if self.answers():
                    (self.directory / "started").touch()
                    return True
            time.sleep(0.02)
        if self.running:
            self._signal(self.end_signal)
        return False

    def log_tail(self) -> str:
        text = (self.directory / "server.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])

    def processes(self) -> list[int]:
        """The server and its children, as long as it runs."""
        if self._process is None or not self.running:
            return []
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
        own = self._process.pid
        return [own, *(pid for pid, parent in pairs if parent == own)]

    def _signal(self, number: signal.Signals) -> None:
        """To the server and its children; one that may end by itself is signaled alone."""
        to_all = number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
        for pid in self.processes()[: None if to_all else 1]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(START_SECONDS)
            _watchdog.let_go(self._process.pid)


# --- Redis ------------------------------------------------------------------------------------------


class RedisServer(Server):
    """`redis-server`; durable: every write is synced to the append-only file before it is acknowledged."""

    name = "redis"

    def __init__(self, *, durable: bool = False, options: Sequence[str] = ()) -> None:
        super().__init__(durable=durable)
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def command(self) -> Sequence[str]:
        program = _program("redis-server", "redis-server: `apt install redis-server`, `brew install redis`")
        kept = ("--appendonly", "yes", "--appendfsync", "always") if self.durable else ("--appendonly", "no")
        # fmt: off
        return [
            program, "--port", str(self.port), "--bind", self.host, "--dir", str(self.directory),
            "--save", "", "--maxmemory-policy", "noeviction", *kept, *self._options,
        ]
        # fmt: on

    def answers(self) -> bool:
        return self.ask("PING") == "+PONG"

    def ask(self, *command: str) -> str:
        """The reply to a command, without a client library: its line, or the lines of what it holds."""
        with socket.create_connection((self.host, self.port), timeout=30) as link:
            parts = "".join(f"${len(part)}\r\n{part}\r\n" for part in command)
            link.sendall(f"*{len(command)}\r\n{parts}".encode())
            reader = link.makefile("rb")
            return _redis_reply(reader.readline().decode().rstrip(), reader)


def _redis_reply(line: str, rest: BinaryIO) -> str:
    kind, size = line[:1], line[1:]
    if kind == "$":
        return rest.read(int(size) + 2)[:-2].decode(errors="replace") if size != "-1" else ""
    if kind == "*":
        items = (_redis_reply(rest.readline().decode().rstrip(), rest) for _ in range(int(size)))
        return "\n".join(items)
    return line


class RedisCluster:
    """Three masters that share the slots, without replicas."""

    name = "redis-cluster"

    def __init__(self, *, durable: bool = False) -> None:
        self.nodes = [ClusterNode(durable=durable) for _ in range(3)]

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.__enter__()
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _join(self) -> None:
        first, *others = self.nodes
        bounds = (0, 5461, 10923, 16384)
        for epoch, node in enumerate(self.nodes, start=1):
            # nodes of one epoch settle it among themselves later, and a slot on the move may be taken back
            node.expect_ok("CLUSTER", "SET-CONFIG-EPOCH", str(epoch))
            node.expect_ok("CLUSTER", "ADDSLOTSRANGE", str(bounds[epoch - 1]), str(bounds[epoch] - 1))
        for node in others:
            first.expect_ok("CLUSTER", "MEET", node.host, str(node.port), str(node.bus_port))
        until(lambda: all(node.joined(len(self.nodes)) for node in self.nodes), every=0.05)


class ClusterNode(RedisServer):
    """One of a cluster's masters."""

    name = "redis-cluster"

    @property
    def bus_port(self) -> int:
        return self._bus_port

    def command(self) -> Sequence[str]:
        if not (self.directory / "started").exists():
            self._bus_port = free_port()
        # fmt: off
        return [
            *super().command(), "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
            "--cluster-port", str(self._bus_port), "--cluster-require-full-coverage", "no",
        ]
        # fmt: on

    def expect_ok(self, *command: str) -> None:
        if (reply := self.ask(*command)) != "+OK":
            raise RuntimeError(f"{' '.join(command)}: {reply}")

    def joined(self, size: int) -> bool:
        """Whether it knows so many nodes, and who serves each slot.

        The state is no proof: without full coverage it is ok before a node has heard of the others' slots.
        """
        info = dict(line.partition(":")[::2] for line in self.ask("CLUSTER", "INFO").splitlines())
        parts = ("cluster_state", "cluster_known_nodes", "cluster_slots_ok")
        return [info.get(part) for part in parts] == ["ok", str(size), "16384"]


# --- PostgreSQL -------------------------------------------------------------------------------------


class PostgresServer(Server):
    """`postgres` on a fresh cluster that trusts every loopback connection; durable: with fsync."""

    name = "postgres"
    # an immediate shutdown: unlike SIGKILL it takes the shared memory along
    end_signal = signal.SIGQUIT
    user: ClassVar[str] = "tealagents"
    #: the folder of a cluster that was never started, for all servers of this process
    _fresh: ClassVar[Path | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()
    #: a folder for it that other processes have as well: whichever needs it first makes it
    shared: ClassVar[Path | None] = None

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}:secret@{self.host}:{self.port}/postgres"

    def command(self) -> Sequence[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": self.host,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "on" if self.durable else "off",
            "full_page_writes": "on" if self.durable else "off",
            # commits that wait for each other are found at once, rather than after a second
            "deadlock_timeout": "50ms",
            "log_min_messages": "warning",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [_postgres_program("postgres"), "-D", str(self.directory / "data"), *options]

    def account(self) -> str | None:
        """PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return None
        return "postgres" if _account_exists("postgres") else "nobody"

    def prepare(self) -> None:
        """Copies a fresh cluster: `initdb`, which takes a second of a processor's time, is run once."""
        if account := self.account():
            shutil.chown(self.directory, account)
        with PostgresServer._making:
            if PostgresServer._fresh is None:
                PostgresServer._fresh = self._make_fresh(account)
            fresh = PostgresServer._fresh
        self._run_as(account, ["cp", "-Rp", str(fresh / "data"), "data"])

    def _make_fresh(self, account: str | None) -> Path:
        if (folder := PostgresServer.shared) is not None:
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (folder / "made").exists():
                    self._initialize(folder, account)
                    (folder / "made").touch()
            return folder
        folder = Path(tempfile.mkdtemp(prefix=f"tealagents-{self.name}-fresh-"))
        _watchdog.hold_folder(folder)
        self._initialize(folder, account)
        return folder

    def _initialize(self, folder: Path, account: str | None) -> None:
        if account:
            shutil.chown(folder, account)
        arguments = ["-U", self.user, "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync"]
        self._run_as(account, [_postgres_program("initdb"), "-D", str(folder / "data"), *arguments])

    def _run_as(self, account: str | None, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.directory,
            capture_output=True,
            text=True,
            user=account,
            group=account and _group_of(account),
            extra_groups=() if account else None,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def answers(self) -> bool:
        """It asks a start-up packet for authentication, or refuses it as long as it is starting itself."""
        with socket.create_connection((self.host, self.port), timeout=30) as link:
            parameters = f"user\0{self.user}\0database\0postgres\0\0".encode()
            body = (196608).to_bytes(4, "big") + parameters
            link.sendall((len(body) + 4).to_bytes(4, "big") + body)
            return link.recv(1) == b"R"

    def clean_up(self) -> None:
        """A killed server that was not started again has left a few bytes of System V shared memory."""
        if self._directory is None:
            return
        with suppress(OSError, IndexError):
            _, identifier = (self.directory / "data/postmaster.pid").read_text().splitlines()[6].split()
            subprocess.run(["ipcrm", "-m", identifier], capture_output=True)


def _postgres_program(name: str) -> str:
    """On the path, or where Debian and Homebrew put it: the newest version there."""
    if found := shutil.which(name):
        return found
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/opt/homebrew/opt").glob("postgresql*/bin")]
    candidates = sorted(
        (p for place in places if (p := place / name).exists()), key=lambda p: (len(str(p)), p)
    )
    if not candidates:
        raise ServerMissing("PostgreSQL: `apt install postgresql`, `brew install postgresql`")
    return str(candidates[-1])


def _account_exists(name: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _group_of(account: str) -> int:
    import pwd

    return pwd.getpwnam(account).pw_gid


# --- DynamoDB ---------------------------------------------------------------------------------------

#: moto's backend is not safe for threads: one request at a time, so that a transaction is one. It also copies
#: the whole table, deeply, for each transaction, and sorts it for each query: enough is a copy of which items
#: there are (they are replaced and never changed), and a sort of those that the query can mean. Nor does it
#: look anew with each request which services it has, and by which other names a value could be meant.
_MOTO = """
import copy, functools, sys, threading, types
import moto.backends, moto.core.responses, moto.core.serialize, moto.dynamodb.models
from moto.dynamodb.models.table import Table
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

def saved(thing):
    if not isinstance(thing, Table):
        return copy.deepcopy(thing)
    table = copy.copy(thing)
    table.items = copy.copy(thing.items)
    for partition, items in thing.items.items():
        table.items[partition] = dict(items) if isinstance(items, dict) else items
    return table

moto.dynamodb.models.copy = types.SimpleNamespace(copy=copy.copy, deepcopy=saved)

def query(self, hash_key, comparison, bounds, *rest, **named):
    if named.get("index_name") is None and comparison == "BETWEEN":
        low, high = (bound.value for bound in bounds)
        items = self.items.get(hash_key, {})
        meant = {key: item for key, item in items.items() if low <= key.value <= high}
        self = copy.copy(self)
        self.items = {hash_key: meant}
    return query_all(self, hash_key, comparison, bounds, *rest, **named)

query_all, Table.query = Table.query, query

modules = list(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: modules
moto.core.responses.method_names_from_class = functools.cache(moto.core.responses.method_names_from_class)

TYPES = {"S", "N", "B", "SS", "NS", "BS", "M", "L", "NULL", "BOOL"}
Picker = moto.core.serialize.XFormedAttributePicker

def picked(self, context):
    if type(context.obj) is dict and len(context.obj) == 1 and TYPES.issuperset(context.obj):
        return context.obj.get(context.key)
    return pick_any(self, context)

pick_any, Picker.__call__ = Picker.__call__, picked

app = DomainDispatcherApplication(create_backend_app)
turn = threading.Lock()

def one_at_a_time(environ, start_response):
    with turn:
        return list(app(environ, start_response))

class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    def log(self, *args): pass

port = int(sys.argv[1])
make_server("127.0.0.1", port, one_at_a_time, threaded=True, request_handler=Quiet).serve_forever()
"""


class DynamoServer(Server):
    """moto's server. It keeps everything in memory: after `kill` and `restart` it is empty."""

    name = "dynamodb"

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return self.url_of("tealagents")

    def url_of(self, table: str) -> str:
        return f"dynamodb://{table}?region=us-east-1&endpoint={self.endpoint}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", _MOTO, str(self.port)]

    def prepare(self) -> None:
        from importlib.util import find_spec

        if find_spec("moto") is None or find_spec("flask") is None:
            raise ServerMissing("moto's server: `pip install 'moto[server]'`")

    def answers(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=30):
            return True


# --- the watchdog -----------------------------------------------------------------------------------

_WATCHDOG = """
import os, shutil, signal, subprocess, sys, time
held, folders = {}, []
for line in sys.stdin:  # ends when the process that holds the other end has ended, however it did
    pid, number, directory = line.rstrip("\\n").split(" ", 2)
    if pid == "-":
        folders.append(directory)
    elif directory:
        held[int(pid)] = int(number), directory
    else:
        held.pop(int(pid), None)

def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass

def processes():  # the servers and their children that run or are stopped, but for those not yet reaped
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    rows = [(int(pid), int(parent)) for pid, parent, state in rows if state[0] != "Z"]
    return [pid for pid, parent in rows if pid in held or parent in held]

known = processes() if held else []
for pid in known:
    send_signal(pid, signal.SIGCONT)
for pid, (number, _) in held.items():
    if pid in known:
        send_signal(pid, number)
deadline = time.monotonic() + 5
while set(known) & set(processes()) and time.monotonic() < deadline:
    time.sleep(0.05)
for pid in set(known) & set(processes()):
    send_signal(pid, signal.SIGKILL)
for directory in [*folders, *(directory for _, directory in held.values())]:
    shutil.rmtree(directory, ignore_errors=True)
"""


class _Watchdog:
    """A process that ends the servers, should this one end without doing so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def hold(self, pid: int, end_signal: signal.Signals, directory: Path) -> None:
        self._tell(f"{pid} {int(end_signal)} {directory}")

    def hold_folder(self, directory: Path) -> None:
        """To be removed in the end."""
        self._tell(f"- 0 {directory}")

    def let_go(self, pid: int) -> None:
        self._tell(f"{pid} 0 ")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _WATCHDOG],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                atexit.register(self._end, self._process)
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    @staticmethod
    def _end(process: "subprocess.Popen[str]") -> None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        process.wait(START_SECONDS)


_watchdog = _Watchdog()


# --- small things -----------------------------------------------------------------------------------


#: below those that systems give out by themselves: before it is bound, such a one is easily another's
_PORTS = range(10_000, 32_000)


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _program(name: str, hint: str) -> str:
    if found := shutil.which(name):
        return found
    raise ServerMissing(hint)
