"""The lock on a partition of the file store, held by one commit or by any number of reads.

Attempts to get it never block: `files` pauses between tries. So a process that is stopped while it holds the
lock occupies no threads of other processes.

Overlapping reads could keep a commit waiting for ever, and successive commits a read. So there is a gate in
front of the lock. An operation that finds the lock taken takes the gate (a commit alone, a read with other
reads), keeps it until it has the lock, and marks the lock. An operation that finds the mark goes through the
gate as well, after those that wait there. While none waits, the gate costs nothing: the mark is a bit in the
mode of the lock's file, which has to be read for the file's size in any case.

The gate is a lock on the partition's folder. A process that dies releases its locks, but may leave the mark:
the next operation that goes through the gate removes it.

Only the owner of the lock's file can mark it. A process of another user, as after a change of the service's
user, waits at the gate without a mark: the lock works as before, but later operations may overtake it.
"""

import fcntl
import os
import stat
from contextlib import suppress

#: the bit in the mode of the lock's file that means that an operation waits at the gate
_MARK = stat.S_IXUSR


class Locked(Exception):
    """The lock is taken, or other operations wait for it. Nothing was done."""


class PartitionLock:
    """One operation's attempt to get a partition's lock. Failed tries raise `Locked` and may be repeated."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._tried = False
        self._gate: int | None = None
        #: whether it holds the gate, so that it gets the lock before operations that wait for the gate
        self.is_next = False

    def shared(self, file: int) -> int:
        """Takes the lock for a read, until the lock's `file` is closed. Returns the file's size."""
        return self._take(file, fcntl.LOCK_SH)

    def exclusive(self, file: int) -> int:
        """Takes the lock for a commit, until the lock's `file` is closed. Returns the file's size."""
        return self._take(file, fcntl.LOCK_EX)

    def upgraded(self, file: int) -> int:
        """Makes the shared lock exclusive. Returns the file's size by then. If it raises, no lock is held."""
        _lock(file, fcntl.LOCK_EX)
        return os.fstat(file).st_size

    def leave(self) -> None:
        """Leaves the gate. Must be called after the last try, unless the first one got the lock."""
        if self._gate is not None:
            os.close(self._gate)
            self._gate, self.is_next = None, False

    def _take(self, file: int, kind: int) -> int:
        through_the_gate, self._tried = self._tried, True
        if through_the_gate:
            self._enter(file, kind)
        _lock(file, kind)
        found = os.fstat(file)
        if found.st_mode & _MARK:
            if not through_the_gate:
                raise Locked
            _set_mode(file, found.st_mode & ~_MARK)
        self.leave()
        return found.st_size

    def _enter(self, file: int, kind: int) -> None:
        if self._gate is None:
            self._gate = os.open(self._folder, os.O_RDONLY)
        _lock(self._gate, kind)
        self.is_next = True
        _set_mode(file, os.fstat(file).st_mode | _MARK)


def _set_mode(file: int, mode: int) -> None:
    with suppress(PermissionError):  # the file belongs to another user
        os.fchmod(file, stat.S_IMODE(mode))


def _lock(file: int, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Locked from error
