"""A response before which messages may come: alone, as the last event of a stream, or not at all."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message

from tealagents.api.sse import Announcements
from tealagents.testing.waits import eventually

LAST = b'event: message\ndata: {"last":true}\n\n'


class Connection:
    """A client that takes all it is sent, and may leave."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def served(self, events: Announcements, answered: Coroutine[Any, Any, Response]) -> None:
        await events.before(answered, 3600.0, {"type": "http"}, self.receive, self.send)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)


def _answer(status: int = 200) -> Response:
    return Response(b'{"last":true}', status, media_type="application/json")


async def test_a_response_before_which_nothing_comes_is_sent_alone() -> None:
    """With its status."""
    connection = Connection()

    async def answered() -> Response:
        return _answer(400)

    await connection.served(Announcements(), answered())
    assert (connection.status, connection.body) == (400, b'{"last":true}')


async def test_what_comes_before_makes_a_stream_that_the_response_ends() -> None:
    """Each event is taken before what sent it continues."""
    connection, events = Connection(), Announcements()
    taken: list[bytes] = []

    async def answered() -> Response:
        for n in (1, 2):
            await events.send({"n": n})
            taken.append(connection.body)
        return _answer()

    await connection.served(events, answered())
    first, second = (b'event: message\ndata: {"n":%d}\n\n' % n for n in (1, 2))
    assert taken == [first, first + second]
    assert connection.body == first + second + LAST


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_cancels_the_answer(begun: bool) -> None:
    """Whether or not a stream has begun."""
    connection, events, ended = Connection(), Announcements(), asyncio.Event()

    async def answered() -> Response:
        try:
            if begun:
                await events.send({"n": 1})
            connection.left.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        return _answer()

    await connection.served(events, answered())
    await ended.wait()
    assert LAST not in connection.body


@pytest.mark.parametrize("begun", [False, True])
async def test_a_fault_of_the_answer_is_raised(begun: bool) -> None:
    """Nothing waits for an answer that will not come."""
    connection, events = Connection(), Announcements()

    async def answered() -> Response:
        if begun:
            await events.send({"n": 1})
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        await connection.served(events, answered())


async def test_what_is_cancelled_from_outside_leaves_nothing_behind() -> None:
    """A server that stops cancels what it serves."""
    connection, events, ended = Connection(), Announcements(), asyncio.Event()

    async def answered() -> Response:
        try:
            await events.send({"n": 1})
            await asyncio.Event().wait()
        finally:
            ended.set()
        return _answer()

    serving = asyncio.ensure_future(connection.served(events, answered()))
    await eventually(lambda: connection.body, every=0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await ended.wait()
