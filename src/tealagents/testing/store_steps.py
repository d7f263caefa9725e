"""Steps that the tests of stores share: commits with new ids, reading values, races, pages."""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from tealagents.domain.errors import Conflict, PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Store
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.servers import Server

__all__ = [
    "OpenStore",
    "amount",
    "applied",
    "batches",
    "change_until_done",
    "commit",
    "erase_expired",
    "found_again",
    "lost_reply",
    "moved",
    "pages",
    "put",
    "put_all",
    "reading",
    "scanning",
    "ticks",
    "two_openings",
    "until",
    "values",
    "winners",
]

#: makes a store that is not opened yet; each call makes another one on the same state
OpenStore = Callable[[], Store]


@asynccontextmanager
async def two_openings(open_store: OpenStore) -> AsyncIterator[tuple[Store, Store]]:
    """Opens two stores on the same state; the same store twice if it is not `shared`."""
    async with AsyncExitStack() as opened:
        one = await opened.enter_async_context(open_store())
        yield one, await opened.enter_async_context(open_store()) if one.shared else one


def commit(
    *,
    expect: Mapping[str, str | None] | None = None,
    put: Mapping[str, bytes] | None = None,
    delete: Collection[str] = (),
    ttl: float | None = None,
    unsynced: bool = False,
    notify: Collection[str] = (),
) -> Commit:
    """A commit with a new operation id."""
    return Commit(
        operation=operation_id(),
        expect=expect or {},
        put={key: Put(value, ttl) for key, value in (put or {}).items()},
        delete=delete,
        unsynced=unsynced,
        notify=notify,
    )


async def put(store: Store, partition: str, records: Mapping[str, bytes], ttl: float | None = None) -> str:
    """Puts records without expectations. Returns the operation id."""
    change = commit(put=records, ttl=ttl)
    await store.commit(partition, change)
    return change.operation


async def put_all(store: Store, partition: str, records: Mapping[str, bytes]) -> None:
    """As `put`, in as many commits as necessary."""
    for keys in batches(list(records)):
        await put(store, partition, {key: records[key] for key in keys})


async def values(store: Store, partition: str, keys: Sequence[str]) -> list[bytes | None]:
    return [record and record.value for record in await store.read(partition, keys)]


async def erase_expired(store: Store, partition: str, limit: int = 10) -> list[str]:
    """Deletes expired records that are still stored. Returns their keys."""
    erased: list[str] = []
    while expired := await store.expired(partition, limit=limit):
        assert len(expired) <= limit
        await store.commit(partition, commit(delete=expired))
        erased += expired
    return erased


async def pages(
    store: Store, partition: str, prefix: str, limit: int, reverse: bool
) -> AsyncGenerator[list[str]]:
    """Yields the keys of each page, up to the first short page."""
    after = None
    while True:
        found = await store.scan(partition, prefix, after=after, limit=limit, reverse=reverse)
        yield [key for key, _ in found]
        if len(found) < limit:
            return
        after = found[-1][0]


async def winners(store: Store, partition: str, changes: Sequence[Commit]) -> list[Commit]:
    """Commits all `changes` concurrently. Returns those that did not conflict."""

    async def won(change: Commit) -> bool:
        try:
            await store.commit(partition, change)
        except Conflict:
            return False
        return True

    outcomes = await asyncio.gather(*map(won, changes))
    return [change for change, outcome in zip(changes, outcomes, strict=True) if outcome]


async def change_until_done(
    store: Store, partition: str, change: Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
) -> None:
    """Reads all records, changes them, and commits on the versions read. Retries after a conflict."""
    while True:
        found = dict(await store.scan(partition, ""))
        new = change({key: record.value for key, record in found.items()})
        with suppress(Conflict):
            await store.commit(partition, commit(expect={key: found[key].version for key in new}, put=new))
            return


def moved(found: Mapping[str, bytes], source: str, target: str) -> Mapping[str, bytes]:
    """The change that moves one unit from one account to another."""
    return {source: b"%d" % (int(found[source]) - 1), target: b"%d" % (int(found[target]) + 1)}


def amount(value: bytes | None) -> int:
    assert value is not None
    return int(value)


async def reading(store: Store, partition: str, keys: Collection[str]) -> None:
    for _ in range(4):
        await store.read(partition, list(keys))


async def scanning(store: Store, partition: str) -> None:
    for _ in range(4):
        await store.scan(partition, "")


async def until(look: Callable[[], Coroutine[Any, Any, Any]], expected: Collection[Any]) -> None:
    """Waits until `look` returns one of `expected`. Fails after 30 seconds, with the last value."""
    deadline = time.monotonic() + 30
    while True:
        if (seen := await look()) in expected:
            return
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(0.02)


async def applied(store: Store, partition: str, change: Commit) -> None:
    """Waits until the commit can be read, whether or not its caller has received a reply."""
    key = next(iter(change.put))

    async def version() -> str | None:
        [record] = await store.read(partition, [key])
        return record and record.version

    await until(version, [change.operation])


async def lost_reply(proxy: FaultProxy, store_of: Callable[[str], Store], url: str, faults: Faults) -> None:
    """Checks that a commit with a lost reply is in doubt, and that a read shows that it was applied."""
    async with proxy, store_of(proxy.url_for(url)) as store, store_of(url) as direct:
        await put(store, "p", {"key": b"1"})
        proxy.faults = faults
        lost = commit(put={"key": b"2", "other": b"2"})
        waiting = asyncio.create_task(store.commit("p", lost))
        await applied(direct, "p", lost)
        proxy.reset_all()
        [outcome] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome, Unknown), outcome
        proxy.calm()
        found = await store.read("p", ["key", "other"])
        assert {record and record.version for record in found} == {lost.operation}


async def found_again(server: Server, store: Store) -> None:
    """Checks that operations fail while the store's server is killed, and succeed after its restart."""
    version = await put(store, "p", {"key": b"1"})
    server.kill()
    [read] = await asyncio.gather(store.read("p", ["key"]), return_exceptions=True)
    assert isinstance(read, PersistenceUnavailable), read
    [written] = await asyncio.gather(put(store, "p", {"other": b"2"}), return_exceptions=True)
    assert isinstance(written, PersistenceUnavailable | Unknown), written
    server.restart()
    assert await values(store, "p", ["key"]) == [b"1"]
    await store.commit("p", commit(expect={"key": version}, put={"key": b"3"}))


async def ticks(count: int) -> None:
    """Lets the event loop run `count` iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


def batches(items: Sequence[str], size: int = 10) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
