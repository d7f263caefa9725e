"""Private servers on free ports of loopback, for tests: Redis, a Redis cluster, PostgreSQL, DynamoDB (moto).

    with RedisServer() as server:
        ...  server.url, server.kill(), server.restart(), server.stop(), server.cont()

Each server keeps its data in a temporary folder, which is removed when the server ends. If the test process
is killed, a watchdog process ends the servers and removes their folders. Starting a server whose program is
not installed raises `ServerMissing`, which says what to install. With `durable=True` a server syncs its
writes to disk as in production; by default it does not.

`tealagents.testing.pytest_servers` provides them as fixtures.
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

#: seconds that a server gets to answer, on a machine that may be busy
START_SECONDS = 60.0


class ServerMissing(RuntimeError):
    """A server's program is not installed. The text says what to install."""


class Server(ABC):
    """One server process. Entering it waits until it answers; leaving it ends it and erases its data."""

    name: ClassVar[str]
    host: ClassVar[str] = "127.0.0.1"
    #: the signal that ends it at once and leaves nothing outside of its folder
    end_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for a store that uses it."""

    @property
    def directory(self) -> Path:
        """The folder of its data and its `server.log`. Raises `RuntimeError` before it is entered."""
        if self._directory is None:
            raise RuntimeError(f"the {self.name} server has not been started")
        return self._directory

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- for tests --------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL, like a power failure. `restart` starts it again with its data."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing until `cont`."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills it if it is running, and starts it again with the same port and data."""
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

    # --- for each kind of server ------------------------------------------------------------------

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments, for `self.port` and `self.directory`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is ready to serve. An OSError counts as False."""

    def prepare(self) -> None:  # noqa: B027 — most servers need none
        """Prepares the folder, once before the first start."""

    def clean_up(self) -> None:  # noqa: B027
        """Cleans up outside of the folder, after the process has ended."""

    def account(self) -> str | None:
        """The account that it must run as; None for that of this process."""
        return None

    # --- starting and ending ----------------------------------------------------------------------

    def _start_somewhere(self) -> None:
        """Starts it on a free port, and tries another one if a process has taken that in the meantime."""
        for attempt in range(5):
            try:
                self._start_on(free_port())
            except RuntimeError:
                if attempt == 4:
                    raise
            else:
                return

    def _start_on(self, port: int) -> None:
        """Starts it and waits until it answers. Retries, as a killed server may block its port or data."""
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
        """False for the first start: another port is tried instead."""
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
        _watchdog.watch(self._process.pid, self.end_signal, self.directory)

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
        """The process ids of the server and its children; empty if it does not run."""
        if self._process is None or not self.running:
            return []
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
        own = self._process.pid
        return [own, *(pid for pid, parent in pairs if parent == own)]

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the server; SIGKILL, SIGSTOP and SIGCONT to its children as well."""
        to_all = number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
        for pid in self.processes()[: None if to_all else 1]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(START_SECONDS)
            _watchdog.unwatch(self._process.pid)


# --- Redis ------------------------------------------------------------------------------------------


class RedisServer(Server):
    """`redis-server`. With `durable`, each write is synced to a file before it is acknowledged."""

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
        """The reply to a command as text, without a client library; the items of an array as lines."""
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
            # nodes with the same epoch settle that later, and may then lose a slot that is being moved
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
        """Whether this node knows `size` nodes and the owner of every slot.

        `cluster_state` is not enough: without full coverage it is ok before the node knows the others' slots.
        """
        info = dict(line.partition(":")[::2] for line in self.ask("CLUSTER", "INFO").splitlines())
        parts = ("cluster_state", "cluster_known_nodes", "cluster_slots_ok")
        return [info.get(part) for part in parts] == ["ok", str(size), "16384"]


# --- PostgreSQL -------------------------------------------------------------------------------------


class PostgresServer(Server):
    """`postgres` on a new cluster that trusts every loopback connection. With `durable`, it uses fsync."""

    name = "postgres"
    # an immediate shutdown, which also removes the shared memory, unlike SIGKILL
    end_signal = signal.SIGQUIT
    user: ClassVar[str] = "tealagents"
    #: the folder of a cluster that was never started, from which all servers of this process are copied
    _fresh: ClassVar[Path | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()
    #: a folder for that cluster, to share it with other processes: the first that needs it creates it
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
            # deadlocks are detected at once instead of after a second
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
        """Copies a new cluster: `initdb` takes a second of CPU time, so it runs only once."""
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
        _watchdog.watch_folder(folder)
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
        """Whether it answers a start-up packet with a request to authenticate; it refuses while it starts."""
        with socket.create_connection((self.host, self.port), timeout=30) as link:
            parameters = f"user\0{self.user}\0database\0postgres\0\0".encode()
            body = (196608).to_bytes(4, "big") + parameters
            link.sendall((len(body) + 4).to_bytes(4, "big") + body)
            return link.recv(1) == b"R"

    def clean_up(self) -> None:
        """Removes the System V shared memory that a killed server has left if it was not started again."""
        if self._directory is None:
            return
        with suppress(OSError, IndexError):
            _, identifier = (self.directory / "data/postmaster.pid").read_text().splitlines()[6].split()
            subprocess.run(["ipcrm", "-m", identifier], capture_output=True)


def _postgres_program(name: str) -> str:
    """The path of a program: on the PATH, or the newest version where Debian or Homebrew install it.

    Raises `ServerMissing`.
    """
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

#: moto's backend is not thread-safe, so requests run one at a time, which also makes transactions atomic. For
#: speed: moto makes a deep copy of the whole table for each transaction, and sorts it for each query. A
#: shallow copy is enough (items are replaced and never changed), and so is sorting the items in the query's
#: range. And its services and the aliases of attribute names are not looked up again for each request.
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
    """moto's server. It keeps everything in memory, so it is empty after `kill` and `restart`."""

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
for line in sys.stdin:  # ends when the process at the other end has ended, in whatever way
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
    """A process that ends the servers if this process ends without doing so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def watch(self, pid: int, end_signal: signal.Signals, directory: Path) -> None:
        """Registers a server, which ends by that signal, and its folder."""
        self._send(f"{pid} {int(end_signal)} {directory}")

    def watch_folder(self, directory: Path) -> None:
        """Registers a folder, to be removed at the end."""
        self._send(f"- 0 {directory}")

    def unwatch(self, pid: int) -> None:
        """Removes a server that has ended."""
        self._send(f"{pid} 0 ")

    def _send(self, line: str) -> None:
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


#: below the ephemeral ports, which the system may give to another process before the port is bound
_PORTS = range(10_000, 32_000)


def free_port() -> int:
    """A port on loopback that is free now."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _program(name: str, hint: str) -> str:
    if found := shutil.which(name):
        return found
    raise ServerMissing(hint)
