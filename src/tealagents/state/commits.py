"""Sends commits to a store, and finds the outcome of one whose reply was lost."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial

from tealagents.domain.errors import (
    LEARN_THE_OUTCOME,
    Conflict,
    CorruptState,
    PersistenceUnavailable,
    Unknown,
)
from tealagents.domain.ports import COMMIT_RECORDS, Clock, Commit, Store
from tealagents.state import codec, keys

#: seconds for which an in-doubt commit is retried before the caller gets an error
RESOLVE_SECONDS = 5.0
#: bytes of the values that `portions` puts into one commit
PORTION_BYTES = 900_000


async def version(store: Store, partition: str, key: str) -> str | None:
    """The version of a record, whatever it holds; None if there is none."""
    (record,) = await store.read(partition, [key])
    return record.version if record is not None else None


async def send(store: Store, clock: Clock, partition: str, commit: Commit, marker: str) -> None:
    """Sends a commit until its outcome is certain.

    `marker` is the key whose version shows, if the reply is lost, whether the commit was applied.

    Raises `Conflict`; `CorruptState` if a log continues beyond its head's tail; `PersistenceUnavailable` if
    the store is unavailable, or does not report the outcome within `RESOLVE_SECONDS`.
    """
    try:
        await store.commit(partition, commit)
    except Unknown:
        await _resolve(store, clock, partition, commit, marker)
    except Conflict as conflict:
        if conflict.keys == (marker,) and commit.expect.get(marker, "") is None:
            await _check_contradiction(store, partition, commit, marker)
        raise


async def send_deletion(store: Store, clock: Clock, partition: str, commit: Commit) -> None:
    """Sends a commit that only deletes. Deleting twice is harmless, so it is repeated until a reply comes.

    Raises `Conflict`, and `PersistenceUnavailable` as `send` does.
    """
    try:
        await store.commit(partition, commit)
    except Unknown:
        await _repeat(
            clock,
            partial(store.commit, partition, commit),
            "The store did not say whether records were deleted. Delete them again.",
        )


def portions(values: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """The values in portions, each small enough for a commit that expects one further record."""
    portion: dict[str, object] = {}
    room = PORTION_BYTES
    for key, value in values.items():
        size = len(codec.encode_json(value))
        if portion and (size > room or len(portion) == COMMIT_RECORDS - 1):
            yield portion
            portion, room = {}, PORTION_BYTES
        portion[key] = value
        room -= size
    if portion:
        yield portion


async def _check_contradiction(store: Store, partition: str, commit: Commit, marker: str) -> None:
    """`CorruptState` if a log continues beyond its head's tail: no commit could ever succeed."""
    if not marker.startswith(keys.LOGS):
        return
    names = [key for key in commit.expect if key != marker]
    found = await store.read(partition, names)
    versions = [record.version if record is not None else None for record in found]
    if names and versions == [commit.expect[name] for name in names]:
        raise CorruptState(marker, "exists, though its task ends before it")


async def _resolve(store: Store, clock: Clock, partition: str, commit: Commit, marker: str) -> None:
    """Sends an in-doubt commit again, under its own operation id, until its outcome is certain."""

    async def applied() -> bool:
        return await version(store, partition, marker) == commit.operation

    async def again() -> None:
        if await applied():
            return
        try:
            await store.commit(partition, commit)
        except Conflict:
            if not await applied():
                raise

    await _repeat(clock, again, f"The store did not say whether a write was applied. {LEARN_THE_OUTCOME}")


async def _repeat(clock: Clock, attempt: Callable[[], Awaitable[None]], advice: str) -> None:
    """Retries until the store reports an outcome; after `RESOLVE_SECONDS`, `PersistenceUnavailable` with
    `advice`."""
    deadline = clock.monotonic() + RESOLVE_SECONDS
    pause = 0.05
    while True:
        try:
            return await attempt()
        except (Unknown, PersistenceUnavailable) as error:
            if clock.monotonic() + pause > deadline:
                raise PersistenceUnavailable(advice, retry_after=5) from error
            await clock.sleep(pause)
            pause = min(pause * 2, 1.0)
