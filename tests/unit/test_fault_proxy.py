"""The fault proxy: what it does to connections, seen from both ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.waits import eventually


class Echo:
    """A server that says back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.heard += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, text: bytes) -> None:
        self.writer.write(text)
        await self.writer.drain()

    async def hear(self, length: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(length), 60)

    async def end(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Client]:
    client = await connect(proxy)
    yield client
    await client.end()


async def connect(proxy: FaultProxy) -> Client:
    return Client(*await asyncio.open_connection(proxy.host, proxy.port))


async def until_heard(echo: Echo, text: bytes) -> None:
    await eventually(lambda: echo.heard == text)


async def test_bytes_pass_both_ways(client: Client) -> None:
    """Without faults it is a wire, for more bytes than any buffer holds."""
    text = bytes(range(256)) * 4096
    sending = asyncio.create_task(client.say(text))
    assert await client.hear(len(text)) == text
    await sending


async def test_dropped_reply(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    """The server hears the request and its reply is swallowed; that connection stays mute."""
    proxy.faults = Faults(drop_replies=True)
    await client.say(b"do it")
    await until_heard(echo, b"do it")
    await asyncio.sleep(0.05)
    proxy.calm()
    await client.say(b"!")
    await until_heard(echo, b"do it!")
    other = await connect(proxy)
    await other.say(b"?")
    assert await other.hear(1) == b"?"
    await other.end()
    # what was swallowed had the time that an answer takes
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.1)


async def test_reset(client: Client, proxy: FaultProxy) -> None:
    """A reset is seen as one, not as an orderly end."""
    await client.say(b"a")
    await client.hear(1)
    proxy.reset_all()
    with pytest.raises(ConnectionResetError):
        await client.hear(1)


async def test_half_close(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    """The client sees the end while the server still hears it."""
    await client.say(b"a")
    await client.hear(1)
    proxy.half_close_all()
    assert await asyncio.wait_for(client.reader.read(1), 60) == b""
    await client.say(b"b")
    await until_heard(echo, b"ab")


async def test_cut_within_a_request(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    """The server gets exactly so many bytes, then both ends see a reset."""
    proxy.faults = Faults(cut_requests_after=3)
    await client.say(b"12345")
    with pytest.raises(ConnectionResetError):
        await client.hear(5)
    assert echo.heard in (b"123", b"")  # a reset may overtake what the server has not read yet


async def test_cut_within_a_reply(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    """The server hears all of a request whose reply breaks off."""
    proxy.faults = Faults(cut_replies_after=3)
    await client.say(b"12345")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await client.hear(5)
    assert echo.heard == b"12345"


async def test_cut_in_good_order(client: Client, proxy: FaultProxy) -> None:
    """A reply can break off the way a server that ends early does it."""
    proxy.faults = Faults(cut_replies_after=3, cut_in_good_order=True)
    await client.say(b"12345")
    assert await asyncio.wait_for(client.reader.read(), 60) == b"123"


async def test_faults_of_the_next_connection(proxy: FaultProxy) -> None:
    """What is upcoming strikes one new connection, and the one after it is whole."""
    proxy.upcoming.append(Faults(cut_replies_after=1))
    for heard in (1, 3):
        client = await connect(proxy)
        await client.say(b"123")
        if heard == 1:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await client.hear(3)
        else:
            assert await client.hear(3) == b"123"
        await client.end()


async def test_blackhole(client: Client, proxy: FaultProxy) -> None:
    """Nothing passes while it lasts, and what waited continues afterwards."""
    proxy.faults = Faults(blackhole=True)
    await client.say(b"a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.1)
    proxy.calm()
    assert await client.hear(1) == b"a"


async def test_faults_of_one_connection(client: Client, proxy: FaultProxy) -> None:
    """A connection's own faults leave the others alone."""
    await client.say(b"a")
    await client.hear(1)
    (first,) = proxy.connections
    first.faults = Faults(blackhole=True)
    other = await connect(proxy)
    await other.say(b"b")
    assert await other.hear(1) == b"b"
    await client.say(b"c")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.1)
    await other.end()


async def test_refusing_and_delaying(proxy: FaultProxy) -> None:
    """A refused connection is reset; a delayed or throttled one answers all the same."""
    proxy.faults = Faults(refuse=True)
    client = await connect(proxy)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.hear(1)
    await client.end()
    proxy.faults = Faults(delay=0.01, throttle=1000)
    client = await connect(proxy)
    await client.say(b"x" * 20)
    assert await client.hear(20) == b"x" * 20
    await client.end()


async def test_a_server_that_is_not_there() -> None:
    """The client of an upstream that refuses is reset."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        async with FaultProxy("127.0.0.1", held.getsockname()[1]) as proxy:
            client = await connect(proxy)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await client.hear(1)
            await client.end()


async def test_chaos_strikes_every_kind(proxy: FaultProxy) -> None:
    """Random faults of every kind strike, and a client that connects anew gets through."""
    proxy.chaos(seed=7, rate=0.5, hold=0.002)
    answered = 0
    for _ in range(150):
        client = await connect(proxy)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await client.say(b"hello")
            await client.hear(5)
            answered += 1
        await client.end()
    assert answered > 0
    assert all(proxy.struck.values()), proxy.struck


def test_in_a_thread() -> None:
    """Code that is not asynchronous uses it as a plain context, from another thread."""
    with socket.create_server(("127.0.0.1", 0)) as server, FaultProxy(*server.getsockname()) as proxy:
        client = socket.create_connection((proxy.host, proxy.port), timeout=60)
        upstream, _ = server.accept()
        with client, upstream:
            client.sendall(b"a")
            assert upstream.recv(1) == b"a"
            proxy.reset_all()
            with pytest.raises(ConnectionResetError):
                client.recv(1)


@pytest.mark.parametrize(
    ("url", "proxied"),
    [
        ("redis://user:p%40ss@localhost:6379/0?prefix=x", "redis://user:p%40ss@127.0.0.1:{port}/0?prefix=x"),
        ("postgresql://h/db", "postgresql://127.0.0.1:{port}/db"),
        (
            "dynamodb://t?region=eu-west-1&endpoint=http://localhost:8000",
            "dynamodb://t?region=eu-west-1&endpoint=http://127.0.0.1:{port}",
        ),
    ],
)
async def test_urls(proxy: FaultProxy, url: str, proxied: str) -> None:
    """A store's URL leads through the proxy, whatever else it says."""
    assert proxy.url_for(url) == proxied.format(port=proxy.port)
