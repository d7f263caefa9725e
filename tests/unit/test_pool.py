"""Connections that a server limits are shared."""

import asyncio

from tealagents.stores.pool import Pool


class Full(Exception):
    """The server takes no more connections."""


async def test_who_is_refused_waits_for_the_connections_that_others_are_getting() -> None:
    """A refusal comes sooner than a connection: after a restart no one has one yet."""
    made, ready = 0, asyncio.Event()

    async def connect() -> int:
        nonlocal made
        if made == 2:
            raise Full
        made += 1
        await ready.wait()
        return made

    async def usable(_: int) -> bool:
        return True

    async def discard(_: int) -> None: ...

    pool = Pool(
        connect=connect,
        usable=usable,
        discard=discard,
        full=lambda error: isinstance(error, Full),
        size=10,
        timeout=30.0,
    )

    async def use() -> None:
        connection = await pool.borrow()
        await asyncio.sleep(0)
        pool.give_back(connection)

    users = [asyncio.create_task(use()) for _ in range(20)]
    while made < 2:
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(ready.set)
    await asyncio.gather(*users)
    # what came back meanwhile counts, too: no one has borrowed it yet
    await asyncio.gather(*(use() for _ in range(20)))
