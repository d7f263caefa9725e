"""The lock on a partition of the file store. It is tried and never waited for: `files` waits between tries.

So a process that is stopped while it holds one costs the others no thread.
"""

import fcntl


class Locked(Exception):
    """The lock is taken. Nothing was done."""


def lock(file: int, kind: int) -> None:
    """Takes a `flock` of this kind, or raises `Locked` at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Locked from error
