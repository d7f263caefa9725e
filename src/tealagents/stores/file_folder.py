"""A partition of the file store: its folder, and its atomic commits (explained in `files`)."""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec

from tealagents.disk import make_folders, private, sync
from tealagents.domain.errors import Conflict, CorruptState, Unknown
from tealagents.domain.ports import NAME, Commit, Record
from tealagents.stores.file_documents import (
    DamagedFile,
    RecordFile,
    folders_of,
    key_path,
    partition_path,
    walk,
)
from tealagents.stores.file_lock import PartitionLock

#: what the file `.format` holds
FORMAT = b"tealagents files 1\n"
#: a line of `.expiring`; on a full disk, one may be cut off, with the next one appended to it
_NOTE = re.compile(rb"^([0-9]+\.[0-9]+) ([!-~]+)$", re.MULTILINE)
#: errors of a file that are its own, such as those of an unreadable sector. Too many open files is none
_DAMAGE = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.EIO}
#: the extension of a new file before it replaces the old one
_BESIDE = ".tmp"


class Redo(msgspec.Struct):
    """The content of `.redo`: new documents by key, and deleted keys."""

    put: dict[str, str]
    delete: list[str]


class PartitionFolder:
    """A partition's folder. Its methods block, and hold the partition's lock while they run.

    Each raises `Locked` if another operation holds the lock, and may be called again; finally, call
    `lock.leave`.
    """

    def __init__(self, root: Path, partition: str, syncing: ThreadPoolExecutor) -> None:
        self._root, self._syncing = root, syncing
        #: the folder's path
        self.path = f"{root}/{partition_path(partition)}"
        self.redo_file = f"{self.path}/.redo"
        self._expiring_file = f"{self.path}/.expiring"
        self.lock = PartitionLock(self.path)

    def read(self, keys: Sequence[str], now: float) -> list[Record | None]:
        with self._reading() as there:
            return [self._record(key, now) if there else None for key in keys]

    def scan(
        self, prefix: str, after: str | None, limit: int, reverse: bool, now: float
    ) -> list[tuple[str, Record]]:
        with self._reading() as there:
            files = self._files(prefix) if there else ()
            if after is not None:
                files = (file for file in files if (file[0] < after if reverse else file[0] > after))
            keys = self._keys(sorted(files, reverse=reverse))
            records = ((key, self._listed(key, now)) for key in keys)
            return list(islice(((key, record) for key, record in records if record), limit))

    def expired(self, limit: int, now: float) -> list[str]:
        with self._reading() as there:
            keys = self._keys(self._files("") if there else ())
            return list(islice((key for key in keys if self._listed(key, now) is None), limit))

    def commit(self, commit: Commit, now: float, sweeps: bool) -> None:
        redo = self._open_redo()
        try:
            self._finish(redo, self.lock.exclusive(redo))
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
        """Holds the shared lock, with every commit finished; yields False if there is no such partition."""
        try:
            redo = os.open(self.redo_file, os.O_RDWR)
        except FileNotFoundError:
            check_store(self._root)
            yield False
            return
        try:
            if self.lock.shared(redo):
                self._finish(redo, self.lock.upgraded(redo))
            yield True
        finally:
            os.close(redo)

    def _record(self, key: str, now: float) -> Record | None:
        """The record for `read`: a damaged one raises `CorruptState`."""
        try:
            return self._load(key, now)
        except DamagedFile as damage:
            raise CorruptState(key, damage.reason, place=f"in the file {self._file(key)}") from damage

    def _listed(self, key: str, now: float) -> Record | None:
        """The record for `scan`: a damaged one has the file's bytes and no version."""
        try:
            return self._load(key, now)
        except DamagedFile as damage:
            return Record(damage.content, "")

    def _load(self, key: str, now: float) -> Record | None:
        path = self._file(key)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            os.lstat(path)  # raises if it is the folder that cannot be used
            raise DamagedFile(b"", f"cannot be read ({error.strerror})") from error
        document = RecordFile.parse(key, content)
        if document.expires is not None and document.expires <= now:
            return None
        return Record(document.value, document.version)

    def _keys(self, files: Iterable[tuple[str, str]]) -> Iterator[str]:
        """The keys of records, without the files of others, such as copies, whose names no key has here."""
        return (key for key, file in files if NAME.fullmatch(key) and file == self._file(key))

    def _files(self, prefix: str) -> Iterator[tuple[str, str]]:
        """All files under a prefix, as `walk` finds them, in no order, including expired ones."""
        above, _, _ = prefix.rpartition("/")
        start = f"{self.path}/{folders_of(above)}" if "/" in prefix else self.path
        files = walk(start, above + "/" if "/" in prefix else "", "")
        return (file for file in files if file[0].startswith(prefix))

    def _file(self, key: str) -> str:
        return f"{self.path}/{key_path(key)}"

    # committing

    def _open_redo(self) -> int:
        try:
            return os.open(self.redo_file, os.O_RDWR)
        except FileNotFoundError:
            check_store(self._root)
            make_folders(self.path, within=True)
            redo = private(self.redo_file, os.O_RDWR | os.O_CREAT)
            sync(self.path)
            return redo

    def _check(self, commit: Commit, now: float) -> None:
        found = {key: self._record(key, now) for key in commit.expect}
        versions = {key: record.version if record else None for key, record in found.items()}
        if differing := [key for key, version in commit.expect.items() if versions[key] != version]:
            raise Conflict(*differing)

    def _write(self, redo: int, commit: Commit, now: float) -> None:
        documents = {key: RecordFile.made(put, commit.operation, now) for key, put in commit.put.items()}
        changes = Redo(
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
            raise Unknown(f"committed; it will be applied once the disk allows it: {error}") from error

    def _promise(self, redo: int, changes: Redo) -> None:
        """Writes and syncs `.redo`. Once that is on the disk, the commit has happened."""
        body = msgspec.json.encode(changes)
        content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        with open(redo, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(redo)

    def _withdraw(self, redo: int, changes: Redo) -> None:
        """Empties `.redo` again if the documents could not be written: under the lock, no one has seen it."""
        try:
            os.ftruncate(redo, 0)
            os.fsync(redo)
        except OSError as error:
            raise Unknown(f"it may be applied once the disk allows it: {error}") from error
        for key in changes.put:
            with suppress(OSError):  # it was not written
                os.unlink(self._file(key) + _BESIDE)

    def _finish(self, redo: int, size: int) -> None:
        """Makes the changes of a commit whose process died before it could."""
        if not size:
            return
        digest, _, body = os.pread(redo, size, 0).partition(b"\n")
        if digest == hashlib.sha256(body).hexdigest().encode():
            changes = msgspec.json.decode(body, type=Redo)
            self._prepare(changes)
            self._make(changes)
        os.ftruncate(redo, 0)

    def _prepare(self, changes: Redo) -> None:
        """Writes and syncs the new documents beside the old ones; later steps need no room on the disk."""
        for key, text in changes.put.items():
            _write_beside(self._file(key), text.encode())
        self._sync([self._file(key) + _BESIDE for key in changes.put])

    def _make(self, changes: Redo) -> None:
        """Makes the changes and syncs them. `_prepare` and `_make` may be repeated."""
        folders = {self._remove(self._file(key)) for key in changes.delete}
        files = [self._file(key) for key in changes.put]
        for file in files:
            os.rename(file + _BESIDE, file)
        folders.update(map(os.path.dirname, files))
        if changes.delete and {*os.listdir(self.path)} == {".redo", ".expiring"}:
            os.unlink(self._expiring_file)  # erasing a user must not leave the names of records
        self._sync([folder for folder in folders if os.path.isdir(folder)])  # a deletion may have removed it

    def _sync(self, paths: Sequence[str]) -> None:
        """Syncs all paths in parallel: a disk takes little longer for ten than for one."""
        for _ in self._syncing.map(sync, paths):
            pass

    def _remove(self, file: str) -> str:
        """Removes a file and the folders that it leaves empty; returns the first folder that remains."""
        with suppress(FileNotFoundError):
            if os.path.isdir(file) and not os.path.islink(file):  # damage, which goes with its task or user
                shutil.rmtree(file)
            else:
                os.unlink(file)
        folder = os.path.dirname(file)
        with suppress(OSError):  # it is not empty, or does not exist
            while folder != self.path:
                os.rmdir(folder)
                folder = os.path.dirname(folder)
        return folder

    # forgetting

    def _note_expiring(self, expires: Mapping[str, float | None]) -> None:
        lines = [f"{at} {key}\n" for key, at in expires.items() if at is not None]
        if lines:
            with open(self._expiring_file, "a", opener=private) as file:
                file.writelines(lines)

    def _sweep(self, now: float) -> None:
        """Removes expired records. An interrupted sweep, or a lost note, leaves files that no one sees."""
        try:
            notes = Path(self._expiring_file).read_bytes()
        except FileNotFoundError:
            return
        noted = {key.decode(): float(at) for at, key in _NOTE.findall(notes)}
        for key in [key for key, at in noted.items() if at <= now]:
            del noted[key]
            with suppress(DamagedFile):  # stays as it is
                if self._load(key, now) is None:
                    self._remove(self._file(key))
        replace_file(self._expiring_file, "".join(f"{at} {key}\n" for key, at in noted.items()).encode())


def check_store(root: Path) -> None:
    """`OSError` unless the folder is a store of this version: an unmounted disk must not look empty."""
    if (root / ".format").read_bytes() != FORMAT:
        raise OSError(errno.EINVAL, "the folder was made by another version", str(root))


def _write_beside(file: str, content: bytes) -> None:
    make_folders(os.path.dirname(file), within=True)
    with open(file + _BESIDE, "wb", opener=private) as new:
        new.write(content)


def replace_file(file: str, content: bytes, *, written_as: str | None = None) -> None:
    """Replaces a file atomically. Concurrent writers each need their own `written_as`."""
    written_as = written_as or file
    _write_beside(written_as, content)
    sync(written_as + _BESIDE)
    os.rename(written_as + _BESIDE, file)
