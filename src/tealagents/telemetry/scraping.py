"""`/metrics` for Prometheus, on an address of its own.

A process that serves alone answers there itself (`offered`). With `--workers` each worker offers its metrics
on a socket in a folder of the parent, whose path it inherits (`SOCKETS`); the parent answers for all of them
(`gathered`) and gives each sample the label `worker`. A worker that does not answer in time is left out.

Threads answer, so that metrics come even from a process whose event loop hangs.
"""

import io
import logging
import os
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

PATH = "/metrics"
#: the variable that names the folder with the workers' sockets
SOCKETS = "TEALAGENTS_METRICS_SOCKETS"
#: most readers at once; Prometheus needs one
MOST_READERS = 8
#: seconds to wait for a reader's whole request, for the answer to be taken, or for data from a worker
SILENCE_SECONDS = 2.0
#: what a worker's metrics end with: what a process has sent that is killed meanwhile does not
END = b"# EOF\n"
#: the highest process id on Linux
HIGHEST_PID = 4_194_304
#: seconds between two checks whether to stop
LOOK_SECONDS = 0.1


class _Bounded(socketserver.ThreadingMixIn):
    """Serves up to `MOST_READERS` readers, each in a thread; further connections are closed at once."""

    daemon_threads = True
    registry: Collector

    def __init__(self, *args: Any, **options: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_READERS)
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be started
                self._places.release()
                raise
        else:
            self.shutdown_request(request)  # type: ignore[attr-defined]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # readers may disconnect at any time
            log.warning("a scrape of the metrics failed", exc_info=True)


class _HttpServer(_Bounded, ThreadingHTTPServer):
    pass


class _SocketServer(_Bounded, socketserver.UnixStreamServer):
    pass


class _Request(io.RawIOBase):
    """The bytes of a request. All of them have to come in time: a reader could send one now and then."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._due = time.monotonic() + SILENCE_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._due - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(SILENCE_SECONDS)  # for the answer


class _Page(BaseHTTPRequestHandler):
    """GET /metrics, and nothing else."""

    timeout = SILENCE_SECONDS
    server: _HttpServer
    server_version, sys_version = "tealagents", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = generate_latest(self.server.registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: scrapes are too frequent."""


class _Text(socketserver.StreamRequestHandler):
    """Sends the metrics as text to each connection, without waiting for a request."""

    timeout = SILENCE_SECONDS
    server: _SocketServer

    def handle(self) -> None:
        self.wfile.write(generate_latest(self.server.registry) + END)


@contextmanager
def offered(registry: Collector, host: str, port: int) -> Iterator[None]:
    """Offers the metrics of this process: to its parent if it is a worker, else at `host` and `port`.

    Raises `OSError` if the address is taken or unknown.
    """
    if folder := os.environ.get(SOCKETS):
        name = str(os.getpid())
        unseen = Path(folder, f".{name}")
        with _SocketServer(str(unseen), _Text) as worker:
            # renamed once it listens: a socket that refuses connections is taken for that of a dead worker
            unseen.rename(Path(folder, name))
            yield from _answering(worker, registry)
    else:
        with _http_server(host, port) as server:
            yield from _answering(server, registry)


@contextmanager
def gathered(
    host: str, port: int, wanted: Callable[[], int], serves: Callable[[int], bool] = lambda _: True
) -> Iterator[None]:
    """Offers the metrics of all workers at `host` and `port`; start the workers inside this context.

    `wanted` returns how many workers there should be at the moment, and `serves` whether the one with this
    process id is in service: its metrics are there from when it begins to start. Raises `OSError`.
    """
    with tempfile.TemporaryDirectory(prefix="tealagents-") as folder, _http_server(host, port) as server:
        _try_socket(folder)
        os.environ[SOCKETS] = folder
        registry = CollectorRegistry()
        registry.register(_Workers(Path(folder), wanted, serves))
        try:
            yield from _answering(server, registry)
        finally:
            del os.environ[SOCKETS]


def _try_socket(folder: str) -> None:
    """`OSError` if a worker could not bind its socket: a socket's path is limited to about 100 bytes."""
    try:
        with socket.socket(socket.AF_UNIX) as longest:
            longest.bind(f"{folder}/.{HIGHEST_PID}")
    except OSError as error:
        raise OSError(
            f"the metrics of several workers need sockets in {folder}: {error}; set TMPDIR to a folder "
            "with a short path"
        ) from error


def check_address(host: str, port: int) -> None:
    """Raises `OSError`, which says what to do, if the metrics cannot be offered there."""
    _http_server(host, port).server_close()


def _http_server(host: str, port: int) -> _HttpServer:
    """A listening server, for IPv6 if `host` is an IPv6 address. `OSError` as in `check_address`."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kind = type("_Server", (_HttpServer,), {"address_family": family})
        return kind(address[:2], _Page)  # type: ignore[no-any-return]
    except (OSError, UnicodeError) as error:  # the latter where `host` can be no name
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise OSError(
            f"the metrics cannot be offered at {host}:{port}: {reason}; choose another with TA_METRICS_HOST "
            "or TA_METRICS_PORT"
        ) from error


def _answering(server: Any, registry: Collector) -> Iterator[None]:
    server.registry = registry
    thread = threading.Thread(target=server.serve_forever, args=[LOOK_SECONDS], daemon=True, name="metrics")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        if isinstance(server, _SocketServer):
            Path(str(server.server_address)).unlink(missing_ok=True)


class _Workers(Collector):
    """The workers' metrics, each sample labeled with its process; how many workers serve, and should."""

    def __init__(
        self, folder: Path, wanted: Callable[[], int], serves: Callable[[int], bool] = lambda _: True
    ) -> None:
        self._folder = folder
        self._wanted = wanted
        self._serves = serves

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        answered = 0
        for path in sorted(self._folder.glob("[0-9]*")):
            if (text := _read(path)) is None:
                continue
            answered += self._serves(int(path.name))
            for family in text_string_to_metric_families(text):
                known = families.setdefault(family.name, _empty(family))
                known.samples += [
                    sample._replace(labels={**sample.labels, "worker": path.name})
                    for sample in family.samples
                ]
        yield from families.values()
        yield GaugeMetricFamily(
            "tealagents_workers", "Workers that serve, and answered the last scrape.", answered
        )
        yield GaugeMetricFamily("tealagents_workers_wanted", "Workers that there should be.", self._wanted())


def _empty(family: Metric) -> Metric:
    return Metric(family.name, family.documentation, family.type)


def _read(path: Path) -> str | None:
    """The metrics of one worker; None if it does not answer. The socket of a dead worker is removed."""
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as reader:
        reader.settimeout(SILENCE_SECONDS)
        try:
            reader.connect(str(path))
            while chunk := reader.recv(65536):
                received += chunk
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                path.unlink()
            return None
        except OSError:
            return None
    return received.decode() if received.endswith(END) else None
