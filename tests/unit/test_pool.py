"""Connections that a server limits are shared."""

import asyncio

import pytest

from tealagents.stores import pool as pools
from tealagents.stores.pool import Pool


class Full(Exception):
    """The server takes no more connections."""


class Server:
    """Takes so many connections; `ready`: that it lets them in."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.ready = asyncio.Event()
        self.made: list[object] = []
        self.dropped: list[object] = []

    async def connect(self) -> object:
        await asyncio.sleep(0)
        if len(self.made) - len(self.dropped) >= self.room:
            raise Full
        connection = object()
        self.made.append(connection)
        await self.ready.wait()
        return connection

    async def usable(self, connection: object) -> bool:
        return connection not in self.dropped

    async def discard(self, connection: object) -> None:
        self.dropped.append(connection)

    def pool(self, seconds: float = 30.0) -> Pool[object]:
        return Pool(
            connect=self.connect,
            usable=self.usable,
            discard=self.discard,
            full=lambda error: isinstance(error, Full),
            size=10,
            timeout=seconds,
        )


async def use(pool: Pool[object]) -> None:
    connection = await pool.borrow()
    await asyncio.sleep(0)
    pool.give_back(connection)


async def test_connections_that_were_idle_for_long_are_dropped_however_few_are_borrowed_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that came back last is lent first: the others of a burst would stay for ever."""
    now = [0.0]
    monkeypatch.setattr(pools, "_now", lambda: now[0])
    server = Server(room=10)
    server.ready.set()
    pool = server.pool()
    for connection in await asyncio.gather(*(pool.borrow() for _ in range(5))):
        pool.give_back(connection)
    for _ in range(4):
        now[0] += pools.IDLE_SECONDS / 3
        await use(pool)
    assert len(server.made) == 5
    assert set(server.dropped) == set(server.made[:4])


async def test_a_connection_that_was_lent_when_the_pool_was_cleared_is_not_lent_again() -> None:
    """It leads to the server that was replaced, as the idle ones did."""
    server = Server(room=10)
    server.ready.set()
    pool = server.pool()
    lent, idle = [await pool.borrow() for _ in range(2)]
    pool.give_back(idle)
    await pool.clear()
    await use(pool)
    pool.give_back(lent)
    assert await pool.borrow() is server.made[2]
    assert server.dropped == [idle, lent]


async def test_who_is_refused_waits_for_the_connections_that_others_are_getting() -> None:
    """A refusal comes sooner than a connection: after a restart no one has one yet."""
    server = Server(room=2)
    pool = server.pool()
    users = [asyncio.create_task(use(pool)) for _ in range(20)]
    while len(server.made) < 2:
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(server.ready.set)
    await asyncio.gather(*users)
    # what came back meanwhile counts, too: no one has borrowed it yet
    await asyncio.gather(*(use(pool) for _ in range(20)))


async def test_callers_who_were_all_refused_at_once_soon_have_the_whole_pool_again() -> None:
    server = Server(room=0)
    pool = server.pool()
    refused = await asyncio.gather(*(use(pool) for _ in range(10)), return_exceptions=True)
    assert any(isinstance(each, Full) for each in refused)
    server.room = 10
    server.ready.set()
    everyone = asyncio.Barrier(10)

    async def use_together() -> None:
        connection = await pool.borrow()
        await everyone.wait()
        pool.give_back(connection)

    async with asyncio.timeout(pools.SECONDS_WITHOUT - 1):
        await asyncio.gather(*(use_together() for _ in range(10)))


async def test_a_connection_that_gave_no_answer_takes_those_with_it_that_were_idle() -> None:
    server = Server(room=10)
    server.ready.set()
    pool = server.pool()
    used = [await pool.borrow() for _ in range(6)]
    for connection in used:
        pool.give_back(connection)
    mute, quick = await pool.borrow(), await pool.borrow()
    await asyncio.sleep(pools.MUTE_SECONDS + 0.1)
    pool.give_back(quick)
    await pool.drop(mute)
    assert len(server.dropped) == 5
    assert await pool.borrow() is quick  # which has just answered


async def test_a_connection_of_a_caller_who_left_at_once_is_dropped_alone() -> None:
    server = Server(room=10)
    server.ready.set()
    pool = server.pool()
    used = [await pool.borrow() for _ in range(6)]
    for connection in used:
        pool.give_back(connection)
    await pool.drop(await pool.borrow())
    assert len(server.dropped) == 1


async def test_however_short_its_time_was_a_mute_connection_takes_the_idle_ones_with_it() -> None:
    server = Server(room=10)
    server.ready.set()
    pool = server.pool()
    used = [await pool.borrow() for _ in range(6)]
    for connection in used:
        pool.give_back(connection)
    await pool.drop(await pool.borrow(), mute=True)
    assert len(server.dropped) == 6


async def test_who_is_refused_hears_so_within_the_time_whoever_else_is_asking() -> None:
    server = Server(room=0)
    pool = server.pool(seconds=0.2)
    async with asyncio.timeout(30):
        refused = await asyncio.gather(*(use(pool) for _ in range(40)), return_exceptions=True)
    assert all(isinstance(each, Full | TimeoutError) for each in refused)
