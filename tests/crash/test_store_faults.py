"""Stores behind a network that fails, and servers that die: nothing acknowledged is lost or done twice.

Writers append to one log by compare-and-set, as the record store does. What each of them was answered is
compared with what the log holds in the end, entry by entry.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tealagents.domain.errors import Conflict, PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Store
from tealagents.stores import plain_store
from tealagents.testing.faults import FaultProxy
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import DynamoServer, PostgresServer, RedisServer, Server
from tealagents.testing.waits import eventually

PARTITION = "agent/user/tid.oid"
WRITERS = 4


class Writer:
    """Appends entries of its own until each is acknowledged, whatever the store answers in between."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        #: the numbers at which the store acknowledged its entries, in their order
        self.acknowledged: list[int] = []
        self.doubts = 0

    async def write(self, entries: int) -> None:
        for number in range(entries):
            while not await self._appended(f"{self.name}/{number}".encode()):
                pass

    async def _appended(self, entry: bytes) -> bool:
        """One try, at the end of the log; False where it surely left nothing."""
        try:
            head, *_ = await self.store.read(PARTITION, ["head"])
        except PersistenceUnavailable:
            return False
        position = int(head.value) + 1 if head else 1
        assert position > max(self.acknowledged, default=0), "a read did not see what was acknowledged before"
        commit = Commit(
            operation=operation_id(),
            expect={"head": head.version if head else None, log(position): None},
            put={"head": Put(b"%d" % position), log(position): Put(entry)},
        )
        if await self._applied(commit, position):
            self.acknowledged.append(position)
            return True
        return False

    async def _applied(self, commit: Commit, position: int) -> bool:
        """Sends a commit until its outcome is certain, as the record store does: under one operation id."""
        in_doubt = False
        while True:
            try:
                await self.store.commit(PARTITION, commit)
            except Conflict:
                return in_doubt and await self._wrote(commit, position)
            except Unknown:
                in_doubt = True
                self.doubts += 1
            except PersistenceUnavailable:
                if not in_doubt:
                    return False
            else:
                return True

    async def _wrote(self, commit: Commit, position: int) -> bool:
        while True:
            try:
                (found,) = await self.store.read(PARTITION, [log(position)])
            except PersistenceUnavailable:
                continue
            return found is not None and found.version == commit.operation


async def acknowledged(writers: list[Writer], most: int) -> None:
    """Waits until the stores have acknowledged so many entries of all writers together."""
    await eventually(lambda: sum(len(writer.acknowledged) for writer in writers) >= most)


def log(position: int) -> str:
    return f"log/{position:06d}"


async def check(store: Store, writers: list[Writer], entries: int) -> None:
    """The log holds exactly what was acknowledged: nothing lost, doubled, invented or out of order."""
    found: list[bytes] = []
    while page := await store.scan(PARTITION, "log/", after=log(len(found))):
        assert [key for key, _ in page] == [log(len(found) + n) for n in range(1, len(page) + 1)]
        found += [record.value for _, record in page]
    (head,) = await store.read(PARTITION, ["head"])
    assert head is not None
    assert int(head.value) == len(found) == len(writers) * entries
    for writer in writers:
        assert [found[n - 1] for n in writer.acknowledged] == [
            f"{writer.name}/{n}".encode() for n in range(entries)
        ]


async def opened(url: str, stack: AsyncExitStack) -> Store | None:
    """None where a server that is busy has not answered in time."""
    try:
        return await stack.enter_async_context(plain_store(url))
    except PersistenceUnavailable:
        return None


# --- a network that fails -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["postgres", "redis", "dynamodb"])
async def test_a_network_that_fails(kind: str, seed: int, request: pytest.FixtureRequest) -> None:
    """Connections are delayed, muted, reset, half closed and cut at random: the log is exact.

    covers: TASK-5
    """
    server: Server = request.getfixturevalue(f"{kind}_server")
    url: str = request.getfixturevalue(f"{kind}_url")
    entries = 50 if kind != "dynamodb" else 15
    async with FaultProxy(server.host, server.port) as proxy:
        through = f"{proxy.url_for(url)}&command_timeout=1&connect_timeout=1&pool=3"
        async with AsyncExitStack() as stack:
            store = await eventually(lambda: opened(through, stack))
            proxy.chaos(seed=seed, rate=0.04, hold=0.03)
            writers = [Writer(store, f"writer{n}") for n in range(WRITERS)]
            await asyncio.gather(*(writer.write(entries) for writer in writers))
            proxy.calm()
        assert sum(proxy.struck.values()) > entries / 4
    async with plain_store(url) as store:
        await check(store, writers, entries)


# --- a server that dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer])
async def test_a_server_that_dies(kind: type[PostgresServer] | type[RedisServer]) -> None:
    """The server is killed and started again while it is written to: what it acknowledged is all there."""
    entries = 50
    with running(lambda: kind(durable=True)) as server:
        async with AsyncExitStack() as stack:
            hasty = server.url + "?command_timeout=1&connect_timeout=1"
            store = await eventually(lambda: opened(hasty, stack))
            writers = [Writer(store, f"writer{n}") for n in range(WRITERS)]
            writing = asyncio.gather(*(writer.write(entries) for writer in writers))
            for part in (1, 2, 3):
                await acknowledged(writers, part * entries)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
            await writing
        async with plain_store(server.url) as store:
            await check(store, writers, entries)


async def test_a_server_that_stands_still(dynamodb_server: DynamoServer, dynamodb_url: str) -> None:
    """The service stops answering for longer than any caller waits, and continues: the log is exact."""
    async with plain_store(dynamodb_url), AsyncExitStack() as stack:
        store = await eventually(lambda: opened(dynamodb_url + "&command_timeout=1", stack))
        writers = [Writer(store, f"writer{n}") for n in range(2)]
        writing = asyncio.gather(*(writer.write(10) for writer in writers))
        for part in (5, 12):
            await acknowledged(writers, part)
            dynamodb_server.stop()
            await asyncio.sleep(1.5)
            dynamodb_server.cont()
        await writing
    async with plain_store(dynamodb_url) as store:
        await check(store, writers, 10)
