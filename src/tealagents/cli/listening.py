"""The address that `tealagents serve` listens on."""

import contextlib
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import typer

from tealagents.cli.loading import fail, unusable

#: seconds between two checks whether connections are accepted
_POLL_SECONDS = 0.02
#: set once another process accepts connections at this process's address
address_lost = threading.Event()


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """The socket to serve on. Exits with status 2 if the address cannot be used."""
    try:
        listener = _new_socket(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
    except OSError as error:
        raise fail(unusable(host, port, error)) from None
    with listener:
        listener.set_inheritable(True)
        yield listener


def _new_socket(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def announced(listener: socket.socket, announce: Callable[[], None]) -> Iterator[None]:
    """Within, calls `announce` once connections are accepted, by this process or by its first worker.

    Several processes can bind sockets to one port until one of them listens, and uvloop reports no error to
    the others. If another process listens first, this one is stopped with exit status 2.
    """
    family, address = listener.family, listener.getsockname()
    address_lost.clear()

    def accepts() -> bool:
        return listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0

    def wait() -> None:
        while not accepts():
            try:
                _new_socket(family, address).close()
            except OSError as error:
                if error.errno == errno.EADDRINUSE and not accepts():
                    address_lost.set()
                    try:
                        fail(unusable(address[0], address[1], error))
                    finally:
                        os.kill(os.getpid(), signal.SIGTERM)
                    return
            time.sleep(_POLL_SECONDS)
        announce()

    def waiting() -> None:
        with contextlib.suppress(OSError):  # the socket is closed; or `OutputLost`, which ends no service
            wait()

    threading.Thread(target=waiting, name="announce", daemon=True).start()
    yield
    if address_lost.is_set():
        raise typer.Exit(2)
