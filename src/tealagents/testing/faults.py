"""A TCP proxy on loopback that disturbs connections as networks do, and a full disk.

    async with FaultProxy("127.0.0.1", 5432) as proxy:
        store = plain_store(proxy.url_for("postgresql://user@127.0.0.1:5432/db"))
        proxy.faults = Faults(drop_replies=True)      # the server acts, but clients get no reply

`proxy.faults` applies to all connections, `connection.faults` to one of them. Both can change at any time.
`proxy.chaos(seed=…, rate=…)` disturbs chunks at random, in the same way for the same seed and traffic.
``with FaultProxy(…)`` runs the proxy in a thread of its own, for code that is not asynchronous.

No bytes are ever lost from the middle of a stream, because TCP does not lose any: once a reply was dropped,
its connection delivers no further replies.
"""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = ["KINDS", "FaultProxy", "Faults", "ProxiedConnection", "full_disk"]

Direction = Literal["request", "reply"]
Kind = Literal["delay", "drop_reply", "reset", "half_close", "cut"]

#: what `chaos` may do to a chunk
KINDS: Final[tuple[Kind, ...]] = ("delay", "drop_reply", "reset", "half_close", "cut")

_CHUNK = 65536


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The disturbances of connections. By default, there are none."""

    #: seconds by which every chunk is delayed
    delay: float = 0
    #: the most bytes per second in each direction; None: unlimited
    throttle: float | None = None
    #: the server's replies are discarded
    drop_replies: bool = False
    #: nothing passes in either direction, and nothing is closed; afterwards, the held bytes are delivered
    blackhole: bool = False
    #: a new connection is reset at once
    refuse: bool = False
    #: a connection is reset once this many bytes have passed to the server
    cut_requests_after: int | None = None
    #: a connection is reset once this many bytes have passed to the client
    cut_replies_after: int | None = None
    #: a cut shuts that direction down (FIN) instead of resetting the connection
    cut_in_good_order: bool = False

    def room(self, direction: Direction, passed: int) -> int | None:
        """The number of bytes that may still pass before the cut; None without a cut."""
        limit = self.cut_requests_after if direction == "request" else self.cut_replies_after
        return None if limit is None else max(0, limit - passed)


NO_FAULTS: Final = Faults()


class ProxiedConnection:
    """One client's connection through the proxy."""

    def __init__(self, proxy: "FaultProxy", client: socket.socket) -> None:
        self.number = next(proxy._numbers)
        #: overrides the proxy's faults for this connection
        self.faults: Faults | None = proxy.upcoming.pop(0) if proxy.upcoming else None
        self.passed: dict[Direction, int] = {"request": 0, "reply": 0}
        self._proxy = proxy
        self._client = client
        self._server: socket.socket | None = None
        self._mute = False
        self._with_reset = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def reset(self) -> None:
        """Both ends see ECONNRESET."""
        self._with_reset = True
        self._task.cancel()

    def cut_after(self, passed: int, direction: Direction) -> None:
        """Resets the connection once `passed` bytes in total have passed in one direction."""
        request = direction == "request"
        self.faults = Faults(cut_requests_after=passed) if request else Faults(cut_replies_after=passed)

    def half_close(self, direction: Direction = "reply") -> None:
        """Shuts one direction down: its reader sees the end of the stream, its writer notices nothing yet."""
        if direction == "reply":
            self._mute = True
        sink = self._client if direction == "reply" else self._server
        if sink is not None:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    # --- passing bytes on -------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            if (self.faults or self._proxy.faults).refuse:
                self._with_reset = True
                return
            self._server = await _connect(self._proxy.upstream)
            requests = asyncio.create_task(self._pump(self._client, self._server, "request"))
            replies = asyncio.create_task(self._pump(self._server, self._client, "reply"))
            try:
                await asyncio.gather(requests, replies)
            finally:
                requests.cancel()
                replies.cancel()
                await asyncio.gather(requests, replies, return_exceptions=True)
        except OSError:
            self._with_reset = True
        except asyncio.CancelledError:
            pass  # by `reset`, or because the proxy ends
        finally:
            self._close()

    async def _pump(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await loop.sock_recv(source, _CHUNK):
            chunk = await self._disturbed(chunk, direction)
            if self._with_reset:
                return None  # the reset is due: bytes after lost ones must not pass
            if chunk:
                await loop.sock_sendall(sink, chunk)
                self.passed[direction] += len(chunk)
            if self._cut_due(direction):
                in_good_order = (self.faults or self._proxy.faults).cut_in_good_order
                return self.half_close(direction) if in_good_order else self.reset()
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        return None

    async def _disturbed(self, chunk: bytes, direction: Direction) -> bytes:
        """What is left of `chunk` after the current faults; returns after their delays."""
        chunk = await self._proxy._random_fault(self, chunk, direction)
        faults = self.faults or self._proxy.faults
        if faults.delay:
            await asyncio.sleep(faults.delay)
        if faults.throttle:
            await asyncio.sleep(len(chunk) / faults.throttle)
        while (self.faults or self._proxy.faults).blackhole:  # noqa: ASYNC110 — other tasks change the faults
            await asyncio.sleep(0.01)
        if direction == "reply" and (self.faults or self._proxy.faults).drop_replies:
            self._mute = True
        if direction == "reply" and self._mute:
            return b""
        return chunk[: faults.room(direction, self.passed[direction])]

    def _cut_due(self, direction: Direction) -> bool:
        return (self.faults or self._proxy.faults).room(direction, self.passed[direction]) == 0

    def _close(self) -> None:
        for end in (self._client, self._server):
            if end is not None:
                if self._with_reset:
                    with suppress(OSError):  # with a linger time of 0, close sends RST
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()


class FaultProxy:
    """Forwards connections from a free port on loopback to `host:port`, with faults. Enter it to start."""

    def __init__(self, host: str, port: int, *, faults: Faults = NO_FAULTS) -> None:
        self.upstream = (host, port)
        self.faults = faults
        #: the faults of the next connections, one entry for each; they override `faults`
        self.upcoming: list[Faults] = []
        self.host = "127.0.0.1"
        self.port = 0
        #: the open connections
        self.connections: set[ProxiedConnection] = set()
        #: how often each kind of random fault has occurred
        self.struck: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._numbers = iter(range(1 << 62))
        self._random: random.Random | None = None
        self._rate = 0.0
        self._hold = 0.05
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._thread: _ProxyThread | None = None

    def url_for(self, url: str) -> str:
        """`url` with the proxy's host and port; in its query parameter `endpoint`, if it has one."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "endpoint" in query:
            query["endpoint"] = self.url_for(query["endpoint"])
            return urlunsplit(parts._replace(query=urlencode(query, safe=":/")))
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}{self.host}:{self.port}"))

    # --- breaking things --------------------------------------------------------------------------

    def reset_all(self) -> None:
        """Resets every open connection."""
        self._for_all(ProxiedConnection.reset)

    def half_close_all(self) -> None:
        """Shuts the replies of all open connections down."""
        self._for_all(ProxiedConnection.half_close)

    def chaos(self, *, seed: int, rate: float, hold: float = 0.05) -> None:
        """From now on, one of `KINDS` happens to each chunk with probability `rate`.

        Delays last up to `hold` seconds.
        """
        self._random, self._rate, self._hold = random.Random(seed), rate, hold

    def calm(self) -> None:
        """Ends `chaos` and every fault that holds for all connections."""
        self._random = None
        self.faults = NO_FAULTS

    async def _random_fault(self, connection: ProxiedConnection, chunk: bytes, direction: Direction) -> bytes:
        chance = self._random
        if chance is None or chance.random() >= self._rate:
            return chunk
        kind = chance.choice(KINDS)
        self.struck[kind] += 1
        pause = chance.uniform(0, self._hold)
        if kind == "delay":
            await asyncio.sleep(pause)
            return chunk
        if kind == "cut":
            chunk = chunk[: chance.randrange(len(chunk))]
            connection.cut_after(connection.passed[direction] + len(chunk), direction)
            return chunk
        if kind == "half_close":
            connection.half_close()
        elif kind == "drop_reply":
            connection._mute = True
        elif kind == "reset":
            connection.reset()
            return b""
        # soon, so that the client need not wait for its own timeout; the server may have acted by then
        asyncio.get_running_loop().call_later(pause, connection.reset)
        return chunk

    # --- opening and closing ----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._listener = socket.create_server((self.host, 0), backlog=512)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._accepting is not None
        assert self._listener is not None
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listener.close()
        for connection in (open_now := list(self.connections)):
            connection._task.cancel()
        await asyncio.gather(*(connection._task for connection in open_now), return_exceptions=True)
        self._loop = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = ProxiedConnection(self, client)
            self.connections.add(connection)
            connection._task.add_done_callback(partial(self._forget, connection))

    def _forget(self, connection: ProxiedConnection, _: "asyncio.Task[None]") -> None:
        self.connections.discard(connection)
        # a task that was canceled before its first step has closed nothing
        connection._close()

    def __enter__(self) -> Self:
        self._thread = _ProxyThread(self)
        self._thread.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._thread is not None
        self._thread.end()
        self._thread = None

    def _for_all(self, action: Callable[[ProxiedConnection], None]) -> None:
        """Runs `action` for each connection in the thread of the proxy's loop, and waits for it."""
        done = threading.Event()

        def act() -> None:
            for connection in list(self.connections):
                action(connection)
            done.set()

        if self._thread is None:
            act()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(act)
            done.wait()


class _ProxyThread(threading.Thread):
    """Runs a proxy in an event loop of its own."""

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(name="fault-proxy", daemon=True)
        self._proxy = proxy
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()

    def begin(self) -> None:
        self.start()
        self._ready.wait()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.join()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with self._proxy:
            self._ready.set()
            await self._end.wait()


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Within, no file of this process or of its children can grow beyond `most_bytes`."""
    import resource  # Windows has none

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def _connect(address: tuple[str, int]) -> socket.socket:
    link = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    link.setblocking(False)
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(link, address)
    except BaseException:
        link.close()
        raise
    return link
