"""Requests that a client sends before it has the answers to earlier ones."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tealagents.limits import Limits
from tealagents.server import BoundedProtocol, server_options
from tealagents.testing.waits import eventually

#: the most bytes that the server reads at a time
READ = 256 * 1024
#: together, they are several times as large
REQUESTS = 12_000
#: larger than what is parsed at a time, and than what the server reads before the application asks for more
BODY = b"x" * 100_000


class Application:
    """Answers with the path and the size of the body; notes what the connection holds meanwhile."""

    def __init__(self, *, asks: bool) -> None:
        """`asks`: for the body, whether there is one or not."""
        self.connection: BoundedProtocol | None = None
        self.most_held = 0
        self.most_unparsed = 0
        self._asks = asks

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        assert self.connection is not None
        size, more = 0, self._asks or scope["method"] == "POST"
        while more:
            message = await receive()
            size += len(message["body"])
            more = message["more_body"]
        pipeline: Any = self.connection.pipeline
        self.most_held = max(self.most_held, len(pipeline))
        self.most_unparsed = max(self.most_unparsed, len(pipeline.unparsed))
        body = b"%b %d\n" % (scope["path"].encode(), size)
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


def request(n: int) -> bytes:
    line = b" /%d HTTP/1.1\r\nhost: here\r\n" % n
    if n % 5000:
        return b"GET" + line + b"\r\n"
    return b"POST" + line + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.mark.parametrize("asks", [False, True])
async def test_all_are_answered_in_order_and_few_are_held_at_a_time(asks: bool) -> None:
    application = Application(asks=asks)
    config = uvicorn.Config(application, **{**server_options(Limits()), "lifespan": "off"})
    config.load()

    def connection() -> BoundedProtocol:
        application.connection = BoundedProtocol(config, ServerState(), {})
        return application.connection

    async with await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.writelines(request(n) for n in range(REQUESTS))
        async with asyncio.timeout(60):
            for n in range(REQUESTS):
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readline() == b"/%d %d\n" % (n, 0 if n % 5000 else len(BODY))
        writer.close()
    assert 0 < application.most_held < 1000
    assert 0 < application.most_unparsed < 2 * READ


async def test_an_answer_is_not_cut_off_by_a_request_behind_it_that_came_in_two_parts() -> None:
    """However long the answer takes: the client has nothing more to send meanwhile."""
    listens, may_end = asyncio.Event(), asyncio.Event()
    connections: list[BoundedProtocol] = []

    async def application(
        scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        if scope["path"] == "/first":
            await listens.wait()
            leaving = asyncio.ensure_future(receive())
            await may_end.wait()
            leaving.cancel()
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(application, **{**server_options(Limits()), "lifespan": "off"})
    config.load()

    def connection() -> BoundedProtocol:
        connections.append(BoundedProtocol(config, ServerState(), {}))
        return connections[0]

    async with await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        head = b"POST /%b HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\n\r\n"
        writer.write(head % b"first" + b"hello")
        await eventually(lambda: connections and connections[0].cycle)
        connections[0].timeout_keep_alive = 0.05  # type: ignore[assignment]
        writer.write(head % b"second")
        await eventually(lambda: connections[0].pipeline)
        writer.write(b"world")
        listens.set()
        await eventually(lambda: connections[0].pipeline.unparsed)
        timer = connections[0].timeout_keep_alive_task
        await eventually(lambda: connections[0].timeout_keep_alive_task is not timer)
        may_end.set()
        async with asyncio.timeout(30):
            for expected in (b"hello", b"world"):
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(5) == expected
        writer.close()
