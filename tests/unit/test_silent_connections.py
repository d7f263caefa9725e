"""Connections on which nothing arrives are closed, unless an answer is on its way."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from socket import SO_LINGER, SO_SNDBUF, SOL_SOCKET
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.asyncio.client import connect

from tealagents.limits import Limits
from tealagents.server import BoundedProtocol, server_options
from tealagents.testing.clock import advance

POST = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: here\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Application:
    """Reads what is sent, all of it or nothing, and answers once it may."""

    def __init__(self, *, reads: bool = True, size: int = 2, part: int | None = None) -> None:
        """`size`: bytes of the answer; `part`: of each part of it."""
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.called = asyncio.Event()
        self.connections: list[BoundedProtocol] = []
        self.answer = asyncio.Event()
        self._reads = reads
        self._size = size
        self._part = part or size

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        self.called.set()
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": (await receive())["text"]})
            return
        more = self._reads
        while more:
            message = await receive()
            self.received.put_nowait(message)
            more = message.get("more_body", False)
        await self.answer.wait()
        size = (b"content-length", b"%d" % self._size)
        await send({"type": "http.response.start", "status": 200, "headers": [size]})
        body = b"ok".rjust(self._size)
        for start in range(0, self._size, self._part):
            part, end = body[start : start + self._part], start + self._part
            await send({"type": "http.response.body", "body": part, "more_body": end < self._size})


class Client:
    """One connection, whose time is set forward."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.port = port
        self.send = writer.write
        self._reader = reader
        self._writer = writer

    def reset(self) -> None:
        """Ends the connection as a machine that has forgotten it."""
        socket = self._writer.get_extra_info("socket")
        socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()

    async def wait(self, seconds: float) -> None:
        """Lets time pass once the service has had all that was sent."""
        for _ in range(20):
            await asyncio.sleep(0.001)
        advance(asyncio.get_running_loop(), seconds)
        await asyncio.sleep(0.001)

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def take(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    def answer(self) -> "asyncio.Task[bytes]":
        return asyncio.create_task(self._reader.readuntil(b"ok"))

    async def is_closed(self) -> bool:
        return await self._reader.read() == b""


@asynccontextmanager
async def connected(application: Application) -> AsyncIterator[Client]:
    options = {**server_options(Limits()), "lifespan": "off"}
    config = uvicorn.Config(application, **options)
    config.load()
    state = ServerState()

    def connection() -> BoundedProtocol:
        application.connections.append(BoundedProtocol(config, state, {}))
        return application.connections[-1]

    async with AsyncExitStack() as stack:
        server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
        await stack.enter_async_context(server)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(writer.close)
        yield Client(port, reader, writer)
        application.answer.set()


async def test_a_client_that_says_nothing() -> None:
    async with connected(Application()) as client:
        await client.wait(76)
        assert await client.is_closed()


async def test_a_client_that_says_nothing_but_blank_lines() -> None:
    async with connected(Application()) as client:
        client.send(b"\r\n")
        await client.wait(76)
        assert await client.is_closed()


async def test_a_client_that_stops_within_the_head() -> None:
    async with connected(Application()) as client:
        client.send(GET[:20])
        await client.wait(76)
        assert await client.is_closed()


async def test_a_client_that_stops_within_the_body() -> None:
    """The application learns of it, and gives back what the body held."""
    application = Application()
    async with connected(application) as client:
        client.send(POST + b"half")
        assert (await application.received.get())["body"] == b"half"
        await client.wait(76)
        assert (await application.received.get())["type"] == "http.disconnect"
        assert await client.is_closed()


async def test_a_body_that_arrives_slowly() -> None:
    """However long it takes: the time counts from what arrived last."""
    application = Application()
    async with connected(application) as client:
        client.send(POST)
        await application.called.wait()
        for byte in b"123456789":
            await client.wait(61)
            client.send(bytes([byte]))
            while not (message := await application.received.get())["body"]:
                assert message["more_body"]
        application.answer.set()
        assert (await client.answer()).startswith(b"HTTP/1.1 200")


async def test_an_answer_that_takes_long() -> None:
    """The next request may have begun meanwhile; it is answered too."""
    application = Application()
    async with connected(application) as client:
        client.send(GET + POST[:20])
        await application.received.get()
        await client.wait(3600)
        await client.wait(3600)
        application.answer.set()
        assert (await client.answer()).startswith(b"HTTP/1.1 200")
        client.send(POST[20:] + b"123456789")
        assert (await client.answer()).startswith(b"HTTP/1.1 200")


#: bytes that no buffer on the way takes all of
LARGE = 30_000_000


@pytest.mark.parametrize(
    ("sent", "then", "part"),
    [
        pytest.param(GET, b"", None, id="once"),
        pytest.param(GET[:-2] + b"connection: close\r\n\r\n", b"", None, id="and closes"),
        pytest.param(GET, b"", 65536, id="in parts"),
        pytest.param(GET + GET, b"", None, id="twice"),
        pytest.param(GET, b"\r\n", None, id="and sends blank lines"),
    ],
)
async def test_a_client_that_takes_nothing_of_an_answer(sent: bytes, then: bytes, part: int | None) -> None:
    """What it does not take is not kept for ever."""
    application = Application(size=LARGE, part=part)
    application.answer.set()
    async with connected(application) as client:
        client.send(sent)
        await application.called.wait()
        (connection,) = application.connections
        await client.wait(1)
        client.send(then)
        await client.wait(60)
        assert connection.transport.get_write_buffer_size() > 0
        for _ in range(3):
            client.send(then)
            await client.wait(60)
        async with asyncio.timeout(30):
            while connection.parser is not None or connection.tasks:
                await asyncio.sleep(0.001)


async def test_a_client_that_takes_an_answer_slowly() -> None:
    application = Application(size=LARGE)
    application.answer.set()
    async with connected(application) as client:
        client.send(GET)
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        (connection,) = application.connections
        taken = 0
        for _ in range(3):
            await client.wait(76)
            untaken = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() == untaken:
                taken += len(await client.take(100_000))
        assert (await client.take(LARGE - taken)).endswith(b"ok")


class _Always:
    """A transport that holds as much of an answer whenever it is looked at."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def get_write_buffer_size(self) -> int:
        return 100_000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_a_client_that_takes_an_answer_in_parts_slowly() -> None:
    """By chance as much of one part waits as had waited of another."""
    application = Application(size=LARGE, part=1_000_000)
    application.answer.set()
    async with connected(application) as client:
        client.send(GET)
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        (connection,) = application.connections
        connection.transport = _Always(connection.transport)  # type: ignore[assignment]
        taken = 0
        for _ in range(3):
            await client.wait(76)
            while connection._unread:
                taken += len(await client.take(100_000))
        assert (await client.take(LARGE - taken)).endswith(b"ok")


async def test_an_application_that_does_not_read() -> None:
    """What the client sends stays where it is: it is not the client that is silent."""
    application = Application(reads=False)
    async with connected(application) as client:
        client.send(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 10000000\r\n\r\n" + b"x" * 1_000_000)
        while not (application.connections and application.connections[0].flow.read_paused):
            await asyncio.sleep(0.001)
        await client.wait(76)
        await client.wait(76)
        application.answer.set()
        assert (await client.answer()).startswith(b"HTTP/1.1 200")


async def test_a_connection_that_was_reset_is_forgotten_at_once() -> None:
    """Its timer would keep it, and all that it had received, for another minute."""
    application = Application()
    async with connected(application) as client:
        while not application.connections:
            await asyncio.sleep(0.001)
        (connection,) = application.connections
        timer = connection.timeout_keep_alive_task
        client.reset()
        while connection.parser is not None:
            await asyncio.sleep(0.001)
        assert timer is not None
        assert timer.cancelled()


@pytest.mark.parametrize("behind", [b"", GET, GET + GET], ids=["nothing", "one", "two"])
async def test_a_client_that_leaves_has_left_what_it_asked_first(behind: bytes) -> None:
    """Whatever it has sent behind it, of which nothing has begun."""

    class Following(Application):
        async def __call__(self, scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
            self.called.set()
            while (message := await receive())["type"] == "http.request":
                pass
            self.received.put_nowait(message)
            await send({"type": "http.response.start", "status": 200, "headers": []})

    application = Following()
    async with connected(application) as client:
        client.send(GET + behind)
        await application.called.wait()
        client.reset()
        assert await application.received.get() == {"type": "http.disconnect"}


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_asks_whether_to_send_its_body(reads: bool) -> None:
    """Answered without being asked for it, it may send it or not: the connection ends."""
    application = Application(reads=reads)
    application.answer.set()
    async with connected(application) as client:
        client.send(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n")
        if reads:
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"some text")
        assert (b"connection: close" in await client.head()) is not reads
        assert await client.take(2) == b"ok"
        if reads:
            client.send(GET)
            assert (await client.answer()).startswith(b"HTTP/1.1 200")
        else:
            assert await client.is_closed()


async def test_a_body_that_comes_after_the_service_has_begun_to_stop_keeps_no_connection() -> None:
    """Although its client has asked before it sent it."""
    application = Application()
    async with connected(application) as client:
        client.send(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        application.connections[0].shutdown()
        client.send(b"some text")
        application.answer.set()
        assert b"connection: close" in await client.head()
        assert await client.take(2) == b"ok"
        assert await client.is_closed()


async def test_a_websocket_outlives_the_answer_before_it() -> None:
    """The time in which the rest of that has to be taken does not end the WebSocket."""
    application = Application(size=LARGE)
    application.answer.set()
    async with connected(application) as client:
        client.send(GET)
        while not application.connections or not (cycle := application.connections[0].cycle):
            await asyncio.sleep(0.001)
        while not cycle.response_complete:
            await asyncio.sleep(0.001)
        (connection,) = application.connections
        client.send(UPGRADE)
        while connection in connection.connections:
            await asyncio.sleep(0.001)
        await client.head()
        await client.take(LARGE)
        assert (await client.head()).startswith(b"HTTP/1.1 101")
        await client.wait(76)
        client.send(b"\x81\x82\0\0\0\0ok")
        await client.take(6)  # a ping
        assert await client.take(4) == b"\x81\x02ok"


async def test_a_websocket_is_not_a_request_that_never_ends() -> None:
    async with connected(Application()) as client, connect(f"ws://127.0.0.1:{client.port}") as socket:
        await client.wait(76)
        await socket.send("still here")
        assert await socket.recv() == "still here"


async def test_a_websocket_is_read_no_faster_than_its_client_reads_the_answers_to_its_pings() -> None:
    """What has not been read does not pile up in memory."""
    application, pings = Application(), 16_000
    async with connected(application) as client:
        client.send(UPGRADE)
        await client.head()
        transport = application.connections[0].transport
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, 4096)
        client.send((b"\x89\xfd\0\0\0\0" + b"p" * 125) * pings)
        while transport.is_reading() and transport.get_write_buffer_size() < 1_000_000:
            await asyncio.sleep(0.001)
        assert transport.get_write_buffer_size() < 1_000_000
        assert await client.take(127 * pings) == (b"\x8a\x7d" + b"p" * 125) * pings
        client.send(b"\x81\x82\0\0\0\0ok")
        assert await client.take(4) == b"\x81\x02ok"


async def test_a_client_of_a_websocket_that_takes_nothing() -> None:
    """It is disconnected, and what it has not read is dropped."""
    application, size = Application(), 12_000_000
    async with connected(application) as client:
        client.send(UPGRADE)
        await client.head()
        (connection,) = application.connections
        client.send(b"\x81\xff" + struct.pack(">Q", size) + b"\0\0\0\0" + b"a" * size)
        while not connection.transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        await client.wait(61)
        assert not connection.connections


async def test_a_client_of_a_websocket_that_answers_no_ping_has_left() -> None:
    """An application that still sends is not at fault."""

    class Sending(Application):
        async def __call__(self, scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await self.answer.wait()
            with pytest.raises(OSError):
                await send({"type": "websocket.send", "text": "ok"})
            self.received.put_nowait(await receive())

    application = Sending()
    async with connected(application) as client:
        client.send(UPGRADE)
        await client.head()
        protocol: Any = application.connections[0].transport.get_protocol()
        application.answer.set()
        protocol.keepalive_timeout()
        async with asyncio.timeout(30):
            assert (await application.received.get())["type"] == "websocket.disconnect"
