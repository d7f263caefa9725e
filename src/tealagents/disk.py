"""Folders and files that a power failure does not take, readable by their owner alone.

What root adds to a store is given to the owner of the folder it is in: a command of an operator must leave
nothing that the service's user cannot write.
"""

import os
from contextlib import suppress


def make_folders(folder: str, *, within: bool = False) -> None:
    """Makes a folder and those above it that are missing, and waits until their names are on the disk.

    What is made `within` a store is its owner's, also where root makes it.
    """
    if os.path.isdir(folder):
        return
    above = os.path.dirname(os.path.abspath(folder))
    make_folders(above, within=within)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        if within and _is_root():
            handle = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
            _give(handle, above)
            os.close(handle)
    sync(above)


def sync(path: str) -> None:
    """Waits until a file's content, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private(path: str, flags: int) -> int:
    """An opener for `open`: where the file is made, no other user of the machine can read it."""
    if flags & os.O_CREAT and _is_root():
        with suppress(FileExistsError):
            handle = os.open(path, flags | os.O_EXCL, 0o600)  # no file of another's, by a link
            _give(handle, os.path.dirname(path))
            return handle
    return os.open(path, flags, 0o600)


def _is_root() -> bool:
    return os.name == "posix" and os.geteuid() == 0


def _give(handle: int, folder: str) -> None:
    owner = os.stat(folder or os.curdir)
    with suppress(OSError):  # a container may forbid it, and some file systems know no owners
        os.fchown(handle, owner.st_uid, owner.st_gid)
