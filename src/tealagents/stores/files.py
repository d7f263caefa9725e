"""State in folders that a human can read, one JSON document per record. `file:///dir`

::

    dir/.format                                      says that this folder is a store
    dir/.notify                                      wakes other processes (`local_link`); may be deleted
    dir/+my+agent/user/alice.records/                a partition: `MyAgent/user/alice`
        task/6f1c….json                              a record: the key `task/6f1c…`
        log/6f1c…/000000000001.json
        .redo                                        the partition's lock, and its commit under way
        .expiring                                    which records may be forgotten, and when

The first line of a document has its key, its version and its expiry; then follows the value, byte for byte if
it is JSON, otherwise in base64. Names are escaped so that every key has a name of its own on every file
system (`+a` is `A`, `%40` is `@`, `…%+/` continues a name that is too long).

Commits are atomic, although several processes share the folder and any of them may be killed at any moment.
Under the partition's lock, a commit's changes are written to `.redo` and synced: now it is committed. Then
the changes are made and synced, and `.redo` is emptied. If the next holder of the lock finds changes in
`.redo`, it makes them first. An incomplete `.redo` was not committed, and is emptied; so is one whose
documents do not fit on the disk, before another process has seen it.

Locks are `flock`: the folder must lie on a local disk.
"""

import asyncio
import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic import Field

from tealagents.disk import make_folders, sync
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Record
from tealagents.stores.base import (
    ADVICE_ON_FILES,
    BaseStore,
    StoreConfigError,
    StoreOptions,
    StoreUrl,
    check_commit,
    check_key,
    check_keys,
    check_scan,
)
from tealagents.stores.file_folder import FORMAT, PartitionFolder, check_store, replace_file
from tealagents.stores.file_lock import Locked
from tealagents.stores.local_link import LocalWatches

__all__ = ["FileOptions", "FileStore"]

T = TypeVar("T")

#: how many partitions' last sweeps are remembered; beyond that, all are swept again
SWEPT_KNOWN = 10_000

#: the longest pause between two tries to get a lock, in seconds
LONGEST_PAUSE = 0.005
#: the same for the operation that gets the lock next, for which all others wait
NEXT_PAUSE = 0.001


class FileOptions(StoreOptions):
    path: Path
    #: seconds to wait for another process's lock before the store counts as unavailable
    busy_seconds: float = Field(default=10, gt=0)
    #: seconds between two sweeps for expired records, in each partition that is written to
    sweep_seconds: float = Field(default=3600, gt=0)

    @classmethod
    def location(cls, url: StoreUrl) -> dict[str, Any]:
        """`file:///absolute/dir`, `file://./relative/dir`"""
        if url.netloc not in ("", ".", ".."):
            raise StoreConfigError(
                f"{url.safe}: write file:///absolute/dir, or file://./relative/dir for a relative one."
            )
        if not url.path.strip("/"):
            raise StoreConfigError("file://: name the folder, as in file:///var/lib/agent.")
        return {"path": url.relative_to / (url.netloc + url.path)}


class FileStore(BaseStore):
    """Folders of JSON documents, shared by the processes of one machine."""

    name = "files"
    shared = True
    durable = True
    advice = ADVICE_ON_FILES
    pushes = True
    options_type = FileOptions
    options: FileOptions
    _watches: LocalWatches

    def __init__(self, options: FileOptions, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(options, clock=clock)
        self._root = options.path.absolute()
        #: per partition, for commits, and for reads that found the partition's lock taken: only one operation
        #: of this process at a time tries to get that lock
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._swept: dict[str, float] = {}
        self._watches = LocalWatches(options.watch_seconds, self._root / ".notify")

    @property
    def where(self) -> str:
        return str(self._root)

    async def exists(self) -> bool:
        """Whether the folder exists and is not empty, or the path is not a folder."""
        return any(self._root.iterdir()) if self._root.is_dir() else self._root.exists()

    async def open(self) -> None:
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="file-store")
        self._syncing = ThreadPoolExecutor(8, thread_name_prefix="file-store-sync")
        await self._in_thread(lambda: _make_store(self._root))

    async def close(self) -> None:
        self._watches.close()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._syncing.shutdown)

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        return await self._read(partition, lambda folder: folder.read(keys, self.clock()))

    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]:
        """See `Store.scan`. A damaged document is returned with the file's bytes and no version."""
        check_scan(partition, prefix, after, limit)
        return await self._read(
            partition, lambda folder: folder.scan(prefix, after, limit, reverse, self.clock())
        )

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        check_key(partition)
        return await self._read(partition, lambda folder: folder.expired(limit, self.clock()))

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        await self.shielded(self._commit(partition, commit))

    async def answer(self) -> None:
        await self._in_thread(lambda: check_store(self._root))

    async def _read(self, partition: str, work: Callable[[PartitionFolder], T]) -> T:
        """Reads at once or, if the lock is taken, in turn."""
        folder, deadline = self._folder(partition), self._deadline()
        try:
            return await self._in_thread(lambda: work(folder), folder.path)
        except Locked:
            async with self._turn(partition):
                return await self.shielded(self._locked(folder, lambda: work(folder), deadline))

    async def _commit(self, partition: str, commit: Commit) -> None:
        deadline = self._deadline()
        async with self._turn(partition):
            folder, now = self._folder(partition), self.clock()
            sweeps = now >= self._swept.get(partition, 0) + self.options.sweep_seconds
            await self._locked(folder, lambda: folder.commit(commit, now, sweeps), deadline)
            if sweeps:
                if len(self._swept) >= SWEPT_KNOWN:
                    self._swept.clear()
                self._swept[partition] = now
        self._watches.announce(partition, commit.notify)

    def _folder(self, partition: str) -> PartitionFolder:
        return PartitionFolder(self._root, partition, self._syncing)

    def _turn(self, partition: str) -> asyncio.Lock:
        return self._turns.setdefault(partition, asyncio.Lock())

    def _deadline(self) -> float:
        return time.monotonic() + self.options.busy_seconds

    async def _locked(self, folder: PartitionFolder, work: Callable[[], T], deadline: float) -> T:
        """Retries until `work` gets the lock. No thread is occupied between the tries.

        Must not be canceled, since a thread may be at the gate.
        """
        pause = 0.0005
        try:
            while True:
                try:
                    return await self._in_thread(work, folder.path)
                except Locked:
                    if time.monotonic() > deadline:
                        held = f"another process has held a lock for {self.options.busy_seconds:g} seconds"
                        raise self.unavailable(f"{held}: {folder.redo_file}") from None
                await asyncio.sleep(pause)
                pause = min(pause * 2, NEXT_PAUSE if folder.lock.is_next else LONGEST_PAUSE)
        finally:
            folder.lock.leave()

    async def _in_thread(self, work: Callable[[], T], place: str = "") -> T:
        """Runs `work`, which blocks, in a thread. Errors name `place` if they name no file."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            named = error.filename or place
            where = f": {named}" if named else ""
            raise self.unavailable(f"{error.strerror or error}{where}") from error


def _make_store(root: Path) -> None:
    make_folders(str(root))
    # checked before the marker, which another process that creates the store right now writes first
    holds_others = any(not entry.name.startswith(".format") for entry in root.iterdir())
    marker = root / ".format"
    if not marker.exists():
        if holds_others:
            raise FileExistsError(errno.EEXIST, "it holds other files; name an empty folder", str(root))
        replace_file(str(marker), FORMAT, written_as=f"{marker}.{operation_id()}")
        sync(str(root))
    check_store(root)
