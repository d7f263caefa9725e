"""State in folders that a person can read: one JSON document a record. `file:///dir`

::

    dir/.format                                      says that this folder is a store
    dir/.notify                                      wakes other processes (`local_link`); may be deleted
    dir/+my+agent/user/alice.records/                a partition: `MyAgent/user/alice`
        task/6f1c….json                              a record: the key `task/6f1c…`
        log/6f1c…/000000000001.json
        .redo                                        the partition's lock, and its commit under way
        .expiring                                    which records may be forgotten, and when

A document names its key, its version, when it expires, and holds its value byte for byte: as JSON behind the
first line where it is JSON, in base64 where it is not. Names are escaped so that every key has a name of
its own on every file system (`+a` is `A`, `%40` is `@`, `…%+/` continues a name that is too long for one).

How a commit becomes whole, though there are several processes and any of them may be killed at any moment:
under the partition's lock its changes are written into `.redo` and synced, which is when it is committed;
then they are made, synced, and `.redo` is emptied. The next holder of the lock that finds something
in `.redo` makes those changes first. A `.redo` that was not written to its end was not committed, and is
emptied; so is one whose new documents its writer has no room for, before anyone else has seen it.

Locks are `flock`: the folder must lie on a local disk.
"""

import asyncio
import base64
import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec
import orjson
from pydantic import Field

from tealagents.disk import make_folders, private, sync
from tealagents.domain.errors import Conflict, CorruptState, Unknown
from tealagents.domain.ports import Commit, Put, Record
from tealagents.stores.base import (
    BaseStore,
    StoreConfigError,
    StoreOptions,
    StoreUrl,
    check_commit,
    check_keys,
    check_scan,
)
from tealagents.stores.local_link import LocalWatches

__all__ = ["FileOptions", "FileStore"]

T = TypeVar("T")

_FORMAT = b"tealagents files 1\n"
#: a line of `.expiring`; a full disk may have cut one off, and the next one was then written behind it
_NOTE = re.compile(rb"^([0-9]+\.[0-9]+) ([!-~]+)$", re.MULTILINE)
#: what the name of a file that is to take another's place ends in
_BESIDE = ".tmp"


class FileOptions(StoreOptions):
    path: Path
    #: seconds to wait for another process's lock before the store counts as unavailable
    busy_seconds: float = Field(default=10, gt=0)
    #: seconds between two looks, in each partition that is written to, for records that have expired
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
    pushes = True
    options_type = FileOptions
    options: FileOptions

    def __init__(self, options: FileOptions, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(options, clock=clock)
        self._root = options.path.absolute()
        #: commits to one partition wait here for each other, and not in threads for its lock
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._swept: dict[str, float] = {}
        self._watches = self._pushed = LocalWatches(options.watch_seconds, self._root / ".notify")

    @property
    def where(self) -> str:
        return str(self._root)

    async def open(self) -> None:
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="file-store")
        self._syncing = ThreadPoolExecutor(8, thread_name_prefix="file-store-sync")
        await self._in_thread(lambda: _make_store(self._root))

    async def close(self) -> None:
        self._pushed.close()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._syncing.shutdown)

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        folder = self._folder(partition)
        return await self._in_thread(lambda: folder.read(keys, self.clock()))

    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]:
        """See `Store.scan`. A damaged document comes as it is: the file's bytes as the value, no version.

        So one damaged record does not fail a list, and a check of the values finds it; `read` refuses it.
        """
        check_scan(partition, prefix, after, limit)
        folder = self._folder(partition)
        return await self._in_thread(lambda: folder.scan(prefix, after, limit, reverse, self.clock()))

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        await self.shielded(self._commit(partition, commit))

    async def answer(self) -> None:
        await self._in_thread(lambda: _check_store(self._root))

    async def _commit(self, partition: str, commit: Commit) -> None:
        async with self._turns.setdefault(partition, asyncio.Lock()):
            folder, now = self._folder(partition), self.clock()
            sweeps = now >= self._swept.get(partition, 0) + self.options.sweep_seconds
            await self._in_thread(lambda: folder.commit(commit, now, sweeps))
            if sweeps:
                self._swept[partition] = now
        self._pushed.announce(partition, commit.notify)

    def _folder(self, partition: str) -> "_Folder":
        return _Folder(self._root, partition, self.options.busy_seconds, self._syncing)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            file = f": {error.filename}" if error.filename else ""
            raise self.unavailable(f"{error.strerror or error}{file}") from error


# --- one partition, by threads ----------------------------------------------------------------------


class _Folder:
    """A partition's folder. Its methods block, and hold the partition's lock while they run."""

    def __init__(self, root: Path, partition: str, busy_seconds: float, syncing: ThreadPoolExecutor) -> None:
        self._root, self._busy_seconds, self._syncing = root, busy_seconds, syncing
        self._path = f"{root}/{_partition_path(partition)}"
        self._redo_file = f"{self._path}/.redo"
        self._expiring_file = f"{self._path}/.expiring"

    def read(self, keys: Sequence[str], now: float) -> list[Record | None]:
        with self._reading() as there:
            return [self._record(key, now) if there else None for key in keys]

    def scan(
        self, prefix: str, after: str | None, limit: int, reverse: bool, now: float
    ) -> list[tuple[str, Record]]:
        with self._reading() as there:
            keys = self._keys(prefix) if there else ()
            if after is not None:
                keys = (key for key in keys if (key < after if reverse else key > after))
            records = ((key, self._listed(key, now)) for key in sorted(keys, reverse=reverse))
            return list(islice(((key, record) for key, record in records if record), limit))

    def commit(self, commit: Commit, now: float, sweeps: bool) -> None:
        redo = self._open_redo()
        try:
            self._lock(redo, fcntl.LOCK_EX)
            self._finish(redo)
            if sweeps:
                self._sweep(now)
            self._check(commit, now)
            if commit.put or commit.delete:
                self._write(redo, commit, now)
        finally:
            os.close(redo)

    # reading

    @contextmanager
    def _reading(self) -> Iterator[bool]:
        """Holds the lock, shared, while every commit is whole; False where there is no such partition."""
        while True:
            try:
                redo = os.open(self._redo_file, os.O_RDWR)
            except FileNotFoundError:
                _check_store(self._root)
                yield False
                return
            try:
                self._lock(redo, fcntl.LOCK_SH)
                if os.fstat(redo).st_size == 0:
                    yield True
                    return
            finally:
                os.close(redo)
            self._finish_alone()

    def _record(self, key: str, now: float) -> Record | None:
        """The record as `read` shows it."""
        try:
            return self._load(key, now)
        except _Damaged as damage:
            raise CorruptState(key, f"in the file {self._file(key)} {damage.reason}") from damage

    def _listed(self, key: str, now: float) -> Record | None:
        """The record as `scan` shows it."""
        try:
            return self._load(key, now)
        except _Damaged as damage:
            return Record(damage.content, "")

    def _load(self, key: str, now: float) -> Record | None:
        try:
            with open(self._file(key), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        document = _Document.parse(key, content)
        if document.expires is not None and document.expires <= now:
            return None
        return Record(document.value, document.version)

    def _keys(self, prefix: str) -> Iterator[str]:
        """The keys of the files that are there, in no order, expired ones too."""
        above, _, _ = prefix.rpartition("/")
        start = f"{self._path}/{_folders(above)}" if "/" in prefix else self._path
        walk = _walk(start, above + "/" if "/" in prefix else "", "")
        return (key for key in walk if key.startswith(prefix))

    def _file(self, key: str) -> str:
        return f"{self._path}/{_key_path(key)}"

    # committing

    def _open_redo(self) -> int:
        try:
            return os.open(self._redo_file, os.O_RDWR)
        except FileNotFoundError:
            _check_store(self._root)
            make_folders(self._path)
            redo = os.open(self._redo_file, os.O_RDWR | os.O_CREAT, 0o600)
            sync(self._path)
            return redo

    def _check(self, commit: Commit, now: float) -> None:
        found = {key: self._record(key, now) for key in commit.expect}
        versions = {key: record.version if record else None for key, record in found.items()}
        if differing := [key for key, version in commit.expect.items() if versions[key] != version]:
            raise Conflict(*differing)

    def _write(self, redo: int, commit: Commit, now: float) -> None:
        documents = {key: _Document.made(put, commit.operation, now) for key, put in commit.put.items()}
        changes = _Changes(
            put={key: document.render(key).decode() for key, document in documents.items()},
            delete=list(commit.delete),
        )
        self._note_expiring({key: document.expires for key, document in documents.items()})
        try:
            self._promise(redo, changes)
            self._prepare(changes)
        except OSError:
            self._withdraw(redo, changes)
            raise
        try:
            self._make(changes)
            os.ftruncate(redo, 0)
        except OSError as error:
            raise Unknown(f"committed, and will be made when the disk allows it: {error}") from error

    def _promise(self, redo: int, changes: "_Changes") -> None:
        """Writes the redo. When it is on the disk the commit has happened; before that it has not."""
        body = msgspec.json.encode(changes)
        content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        with open(redo, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(redo)

    def _withdraw(self, redo: int, changes: "_Changes") -> None:
        """Takes back what could not be written: under the lock no one has seen the promise."""
        try:
            os.ftruncate(redo, 0)
            os.fsync(redo)
        except OSError as error:
            raise Unknown(f"may be made when the disk allows it: {error}") from error
        for key in changes.put:
            with suppress(OSError):  # was not made
                os.unlink(self._file(key) + _BESIDE)

    def _finish_alone(self) -> None:
        redo = self._open_redo()
        try:
            self._lock(redo, fcntl.LOCK_EX)
            self._finish(redo)
        finally:
            os.close(redo)

    def _finish(self, redo: int) -> None:
        """Makes what the last holder of the lock committed and did not live to make."""
        if not (size := os.fstat(redo).st_size):
            return
        digest, _, body = os.pread(redo, size, 0).partition(b"\n")
        if digest == hashlib.sha256(body).hexdigest().encode():
            changes = msgspec.json.decode(body, type=_Changes)
            self._prepare(changes)
            self._make(changes)
        os.ftruncate(redo, 0)

    def _prepare(self, changes: "_Changes") -> None:
        """Writes and syncs the new documents, each beside its place: all that needs room on the disk."""
        for key, text in changes.put.items():
            _write_beside(self._file(key), text.encode())
        self._sync([self._file(key) + _BESIDE for key in changes.put])

    def _make(self, changes: "_Changes") -> None:
        """Makes the changes and syncs them. Preparing and doing it again does the same."""
        folders = {self._remove(self._file(key)) for key in changes.delete}
        files = [self._file(key) for key in changes.put]
        for file in files:
            os.rename(file + _BESIDE, file)
        folders.update(map(os.path.dirname, files))
        self._sync([folder for folder in folders if os.path.isdir(folder)])  # a deletion may have removed it

    def _sync(self, paths: Sequence[str]) -> None:
        """Syncs all at once: a disk takes little longer for ten than for one."""
        for _ in self._syncing.map(sync, paths):
            pass

    def _remove(self, file: str) -> str:
        """Removes a file and the folders it leaves empty; the folder that remains."""
        with suppress(FileNotFoundError):
            os.unlink(file)
        folder = os.path.dirname(file)
        with suppress(OSError):  # it holds something, or was not there
            while folder != self._path:
                os.rmdir(folder)
                folder = os.path.dirname(folder)
        return folder

    def _lock(self, redo: int, kind: int) -> None:
        """Polls, because `flock` knows no time limit and its holder may be stopped."""
        pause, deadline = 0.0005, time.monotonic() + self._busy_seconds
        while True:
            try:
                return fcntl.flock(redo, kind | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    reason = f"another process has held a lock for {self._busy_seconds:g} seconds"
                    raise OSError(error.errno, reason, self._redo_file) from error
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    # forgetting

    def _note_expiring(self, expires: Mapping[str, float | None]) -> None:
        lines = [f"{at} {key}\n" for key, at in expires.items() if at is not None]
        if lines:
            with open(self._expiring_file, "a", opener=private) as file:
                file.writelines(lines)

    def _sweep(self, now: float) -> None:
        """Removes what has expired. An interrupted sweep, or a lost note, leaves files that no one sees."""
        try:
            notes = Path(self._expiring_file).read_bytes()
        except FileNotFoundError:
            return
        noted = {key.decode(): float(at) for at, key in _NOTE.findall(notes)}
        for key in [key for key, at in noted.items() if at <= now]:
            del noted[key]
            with suppress(_Damaged):  # stays as it is
                if self._load(key, now) is None:
                    self._remove(self._file(key))
        _replace(self._expiring_file, "".join(f"{at} {key}\n" for key, at in noted.items()).encode())


class _Changes(msgspec.Struct):
    """What `.redo` holds: documents by key, and keys."""

    put: dict[str, str]
    delete: list[str]


# --- documents --------------------------------------------------------------------------------------


class _Damaged(Exception):
    """A file that is no document of its key."""

    def __init__(self, content: bytes, reason: str) -> None:
        super().__init__(reason)
        self.content, self.reason = content, reason


class _Head(msgspec.Struct):
    """The first line of a document."""

    key: str
    version: str
    expires: float | None


class _Document(NamedTuple):
    """A record as a file: its head on the first line, then the value, then a closing brace."""

    value: bytes
    version: str
    expires: float | None

    @classmethod
    def made(cls, put: Put, version: str, now: float) -> "_Document":
        return cls(put.value, version, None if put.ttl is None else now + put.ttl)

    def render(self, key: str) -> bytes:
        head = msgspec.json.encode(_Head(key, self.version, self.expires)).removesuffix(b"}")
        if _is_json(self.value):
            return head + b',"value":\n' + self.value + b"\n}\n"
        return head + b',"base64":\n"' + base64.b64encode(self.value) + b'"\n}\n'

    @classmethod
    def parse(cls, key: str, content: bytes) -> "_Document":
        first, _, rest = content.partition(b"\n")
        body, brace, tail = rest.rpartition(b"\n}")
        try:
            head = msgspec.json.decode(first + b"null}", type=_Head)
            if not brace or tail.strip() or not _is_json(body):
                raise ValueError("it is cut off or edited")
            if first.endswith(b'"base64":'):
                body = base64.b64decode(body.strip(b'"'), validate=True)
        except ValueError as error:
            raise _Damaged(content, f"does not parse ({error})") from error
        if head.key != key:
            raise _Damaged(content, f"is the document of another key, {head.key!r}")
        return cls(body, head.version, head.expires)


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


# --- names ------------------------------------------------------------------------------------------

#: what a file's or folder's name cannot hold as it is: capitals, because some file systems take them for
#: small letters; a dot in front, and the dot of an ending that means something here
_UNSAFE = re.compile(r"[A-Z]|[^A-Za-z0-9._-]|^\.|\.(?=(?:json|tmp|records)$)", re.ASCII)
_ESCAPED = re.compile(r"\+([a-z])|%([0-9a-f]{2})", re.ASCII)
#: a longer name is continued in a folder; file systems allow 255 bytes
_PART = 200


def _escape(segment: str) -> str:
    escaped = _UNSAFE.sub(lambda m: f"+{m[0].lower()}" if m[0].isalpha() else f"%{ord(m[0]):02x}", segment)
    parts = [escaped[start : start + _PART] for start in range(0, len(escaped), _PART)]
    return "%+/".join(parts) or "%"


def _unescape(escaped: str) -> str:
    if escaped == "%":
        return ""
    return _ESCAPED.sub(lambda m: m[1].upper() if m[1] else chr(int(m[2], 16)), escaped)


def _folders(name: str) -> str:
    return "/".join(map(_escape, name.split("/")))


@lru_cache(maxsize=4096)
def _partition_path(partition: str) -> str:
    return _folders(partition) + ".records"


def _key_path(key: str) -> str:
    return _folders(key) + ".json"


def _walk(folder: str, above: str, begun: str) -> Iterator[str]:
    """The keys below `folder`, which is that of the keys in `above`; `begun` is the name it continues."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                yield above + _unescape(begun + entry.name.removesuffix(".json"))
            elif entry.is_dir() and entry.name.endswith("%+"):
                yield from _walk(entry.path, above, begun + entry.name.removesuffix("%+"))
            elif entry.is_dir():
                yield from _walk(entry.path, f"{above}{_unescape(begun + entry.name)}/", "")


# --- files and folders, synced ----------------------------------------------------------------------


def _make_store(root: Path) -> None:
    make_folders(str(root))
    marker = root / ".format"
    if not marker.exists():
        if any(not entry.name.startswith(".format") for entry in root.iterdir()):
            raise FileExistsError(errno.EEXIST, "it holds other files; name an empty folder", str(root))
        _replace(str(marker), _FORMAT)
        sync(str(root))
    _check_store(root)


def _check_store(root: Path) -> None:
    """OSError unless the folder is there and ours: a disk that is gone must not look like an empty store."""
    if (root / ".format").read_bytes() != _FORMAT:
        raise OSError(errno.EINVAL, "the folder was made by another version", str(root))


def _write_beside(file: str, content: bytes) -> None:
    make_folders(os.path.dirname(file))
    with open(file + _BESIDE, "wb", opener=private) as new:
        new.write(content)


def _replace(file: str, content: bytes) -> None:
    """Puts a file in its place, whole."""
    _write_beside(file, content)
    sync(file + _BESIDE)
    os.rename(file + _BESIDE, file)
