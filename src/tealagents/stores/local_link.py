"""Notifications among the processes of one machine, through a small file beside the state.

Each topic has one of 4,095 slots. To notify it, a process writes 8 random bytes to that slot, and then to the
first slot. A process with watches reads the first slot every 20 ms, and all slots when the first one has
changed. So a look costs a microsecond, and nothing has to be locked, or cleaned up after processes that died.
If topics share a slot, the watches of all of them are woken.

The file holds no state: if it is deleted, it is created again. Like the state, it must be on a local disk.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from tealagents.disk import private
from tealagents.stores.watches import Topic, Watches

__all__ = ["LocalWatches"]

log = logging.getLogger(__name__)

#: seconds between two looks at the file
LOOK_SECONDS: Final = 0.02
#: seconds between two checks whether the file was replaced
RENEW_SECONDS: Final = 1.0
#: seconds after which a watch looks without being woken: a process may die before it notifies of its commit
RECHECK_SECONDS: Final = 5.0

_SLOT: Final = 8
_SLOTS: Final = 4096


class LocalWatches(Watches):
    """The watches of one opened store, and the notifications of its commits."""

    def __init__(self, seconds: float, path: Path) -> None:
        super().__init__(seconds, live=False, recheck=RECHECK_SECONDS)
        self._path = path
        self._file: int | None = None
        #: the content of all slots at the last look
        self._seen = bytes(_SLOT * _SLOTS)
        #: by slot, what this process has written since the last look
        self._written: dict[int, bytes] = {}
        self._topics_of: defaultdict[int, set[Topic]] = defaultdict(set)
        self._renewed_at = 0.0
        #: the file could not be opened, which is logged once
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None

    async def subscribe(self, topic: Topic) -> None:
        self._topics_of[_slot(topic)].add(topic)
        if self._timer is None:
            self._open_anew()
            self._look()

    def unsubscribe(self, topic: Topic) -> None:
        slot = _slot(topic)
        self._topics_of[slot].discard(topic)
        if not self._topics_of[slot]:
            del self._topics_of[slot]

    def announce(self, partition: str, topics: Collection[str]) -> None:
        """Wakes this process's watches now, and those of other processes at their next look."""
        for topic in topics:
            slot = _slot((partition, topic))
            self._write(slot)
            # all topics of the slot: another process may have notified one, and this write has hidden that
            for watched in self._topics_of.get(slot, ()):
                self.notify(watched)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close()

    # --- the file ---------------------------------------------------------------------------------

    def _open(self, flags: int = 0) -> None:
        """Opens the file. Without `O_CREAT`, `FileNotFoundError` if no process has ever watched."""
        self._file = private(str(self._path), os.O_RDWR | os.O_CLOEXEC | flags)
        self.live = True

    def _open_anew(self) -> None:
        self._close()
        try:
            self._open(os.O_CREAT)
        except OSError as error:
            if not self._refused:
                log.warning("watches poll: %s", error)
            self._refused = True
        else:
            self._seen, self._refused = self._slots(), False

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self.live = None, False

    def _write(self, slot: int) -> None:
        token = os.urandom(_SLOT)
        with suppress(OSError):  # no one watches; or the disk is full, and others notice at their recheck
            if self._is_stale():
                self._close()
            if self._file is None:
                self._open()
            assert self._file is not None
            self._written[slot] = token
            os.pwrite(self._file, token, slot * _SLOT)
            os.pwrite(self._file, token, 0)

    def _slots(self) -> bytes:
        assert self._file is not None
        return os.pread(self._file, _SLOT * _SLOTS, 0).ljust(_SLOT * _SLOTS, b"\0")

    def _look(self) -> None:
        """Looks for notifications by other processes, and schedules the next look while there are watches."""
        self._timer = None
        if not self._topics_of:
            return
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        if self._is_stale():
            self._open_anew()
            self.wake_all()
        if self._file is not None and os.pread(self._file, _SLOT, 0) != self._seen[:_SLOT]:
            self._compare(self._slots())

    def _is_stale(self) -> bool:
        """Whether the file has to be opened again; checked every `RENEW_SECONDS`."""
        if time.monotonic() - self._renewed_at < RENEW_SECONDS:
            return False
        self._renewed_at = time.monotonic()
        try:
            return self._file is None or not os.path.samestat(os.stat(self._path), os.fstat(self._file))
        except OSError:
            return True

    def _compare(self, slots: bytes) -> None:
        seen, self._seen = self._seen, slots
        written, self._written = self._written, {}
        for slot, topics in self._topics_of.items():
            place = slice(slot * _SLOT, (slot + 1) * _SLOT)
            if slots[place] not in (seen[place], written.get(slot)):
                for topic in topics:
                    self.notify(topic)


def _slot(topic: Topic) -> int:
    digest = hashlib.blake2b(" ".join(topic).encode(), digest_size=4).digest()
    return 1 + int.from_bytes(digest) % (_SLOTS - 1)
