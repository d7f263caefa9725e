"""What notifies other processes is cut, and nothing else: followers there see every event all the same.

How late they see it follows from intervals, which `tests/unit/test_watches.py` holds.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from engine_setup import Answer, Scripted, process

from tealagents.domain.events import Completed, ModelDone, ModelEvent, Recorded, TextDelta
from tealagents.domain.ports import ModelCall, Store
from tealagents.stores import plain_store
from tealagents.testing.faults import FaultProxy, Faults, ProxiedConnection
from tealagents.testing.servers import Server
from tealagents.testing.waits import eventually

#: seconds after which what must happen has not
LONG = 30.0
#: connections for what the following process asks of the store
POOL = 6


def as_told(words: "asyncio.Queue[str]") -> Answer:
    """Says each word when it comes; an empty one ends the answer."""

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        while word := await words.get():
            yield TextDelta(word)
        yield ModelDone(finish_reason="stop", model="scripted")

    return answer


@asynccontextmanager
async def linked(proxy: FaultProxy, url: str) -> AsyncIterator[tuple[Store, ProxiedConnection]]:
    """A store with all its connections open, and the one that brings notifications."""
    async with plain_store(f"{proxy.url_for(url)}&pool={POOL}") as store:
        await asyncio.gather(*(store.read("p", ["key"]) for _ in range(POOL)))
        others = list(proxy.connections)
        async with store.watch("p", "topic"):
            # a link that a busy machine has not made in time is made again
            await eventually(lambda: store._watches.live)
            (link,) = (each for each in proxy.connections if each not in others)
            for connection in others:
                connection.faults = Faults()
            yield store, link


@pytest.mark.parametrize("kind", ["postgres", "redis"])
@pytest.mark.parametrize("cut", ["muted", "refused"])
async def test_every_event_arrives(kind: str, cut: str, request: pytest.FixtureRequest) -> None:
    """Whether the link stays open and brings nothing, or breaks and cannot be made again.

    covers: SESSION-8
    """
    server: Server = request.getfixturevalue(f"{kind}_server")
    url: str = request.getfixturevalue(f"{kind}_url")
    words = asyncio.Queue[str]()
    async with (
        asyncio.timeout(LONG),
        FaultProxy(server.host, server.port) as proxy,
        plain_store(url) as past,
        linked(proxy, url) as (through, link),
        process(past, Scripted(as_told(words))) as here,
        process(through) as there,
    ):
        sent = await here.send(streamed=True)
        events = there.service.follow(sent.partition, sent.request.request_id, 0)
        seen: list[Recorded] = []
        words.put_nowait("one ")
        await until_said(events, seen, "one ")
        if cut == "muted":
            link.faults = proxy.faults = Faults(drop_replies=True)
        else:
            proxy.faults = Faults(refuse=True)
            link.reset()
        for word in ("two ", "three "):
            words.put_nowait(word)
            await until_said(events, seen, word)
        words.put_nowait("")
        async for batch in events:
            seen += batch
        assert [each.id for each in seen] == list(range(1, len(seen) + 1))
        assert isinstance(seen[-1].event, Completed)


async def until_said(events: AsyncIterator[Sequence[Recorded]], seen: list[Recorded], word: str) -> None:
    while not seen or seen[-1].event != TextDelta(word):
        seen += await anext(events)
