"""Folders and files that a power failure does not take, readable by their owner alone."""

import os
from contextlib import suppress


def make_folders(folder: str) -> None:
    """Makes a folder and those above it that are missing, and waits until their names are on the disk."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(os.path.abspath(folder))
    make_folders(above)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
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
    return os.open(path, flags, 0o600)
