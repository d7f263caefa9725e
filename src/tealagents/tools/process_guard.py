"""Runs a command, bounds what it says, and ends it, with all its children, once the service is gone.

A child outlives a parent that is killed, and not every server ends when its standard input does; and a line
without an end would fill the memory of its reader. So the service starts `python process_guard.py LIMIT
MARKS COMMAND …` in a process group of its own. Standard input and error are the command's. Its output passes
through here: a line of more than LIMIT bytes, or of more than MARKS values of JSON, ends the group. A hang-up
of standard input, which is the parent's death or its good-bye, gives the command a moment and then ends the
group, and so does the end of its output: it can answer nothing any more. POSIX only. Nothing but the standard
library, so that it starts in a few milliseconds; run as a file, never imported.
"""

import os
import select
import signal
import sys
import time
from types import FrameType

#: seconds the command has to end by itself after the end of its input or output, and again after SIGTERM
GRACE = 3.0


def main(limit: int, marks: int, command: list[str]) -> int:
    if os.getpgrp() != os.getpid():
        # never end a group that we share with our parent
        os.setpgid(0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    said, saying = os.pipe()
    try:
        child = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, saying, 1)],
            # Python ignores these, and children would inherit that
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    os.close(saying)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        # handlers, not SIG_IGN, which children would inherit
        signal.signal(number, _note)
    code = Guard(child, woken, Relay(said, limit, marks)).run()
    os.close(1)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while _has_others():
        if time.monotonic() >= deadline:
            os.killpg(0, signal.SIGKILL)
        time.sleep(0.05)
    return code


def _has_others() -> bool:
    """Whether someone else is left in our group, as far as `/proc` tells."""
    group, us = str(os.getpgrp()).encode(), str(os.getpid())
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit() and name != us]
    except OSError:
        return False  # not Linux
    return any(_group(process) == group for process in processes)


def _group(process: str) -> bytes | None:
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            state, _, group = stat.read().rpartition(b")")[2].split()[:3]
    except OSError:
        return None  # it has ended meanwhile
    return None if state == b"Z" else group


def _note(number: int, frame: FrameType | None) -> None:
    """The signal has written to the wake-up pipe; that is all that is wanted of it."""


class Relay:
    """Passes the command's output on to ours, line by line as far as its length goes."""

    def __init__(self, said: int, limit: int, marks: int) -> None:
        os.set_blocking(said, False)
        os.set_blocking(1, False)
        self.said: int | None = said
        self._limit = limit
        self._most_marks = marks
        #: bytes, and separators of values, of the line that is not at its end
        self._line = self._marks = 0
        self._waiting = b""

    def wanted(self) -> tuple[int, int] | None:
        """The descriptor to wait for, and the event; None once the output is at its end."""
        if self._waiting:
            return 1, select.POLLOUT
        return None if self.said is None else (self.said, select.POLLIN)

    def step(self) -> bool:
        """Passes on what can be; False where there is nothing just now."""
        if not self._waiting and not self._read():
            return False
        try:
            self._waiting = self._waiting[os.write(1, self._waiting) :]
        except BlockingIOError:
            return False
        except OSError:
            self._waiting = b""  # it is not read any more
        return True

    def _read(self) -> bool:
        if self.said is None:
            return False
        try:
            self._waiting = os.read(self.said, 65_536)
        except BlockingIOError:
            return False
        if not self._waiting:
            os.close(self.said)
            self.said = None
            return False
        ended, line_end, rest = self._waiting.rpartition(b"\n")
        self._count(ended)
        if line_end:
            self._line = self._marks = 0
        self._count(rest)
        return True

    def _count(self, part: bytes) -> None:
        self._line += len(part)
        self._marks += part.count(b",") + part.count(b"[") + part.count(b"{")
        if self._line > self._limit or self._marks > self._most_marks:
            print("ended: it wrote a line that is too long to be read", file=sys.stderr, flush=True)
            os.killpg(0, signal.SIGKILL)


class Guard:
    """Waits for the command's end, or brings it about."""

    def __init__(self, child: int, woken: int, relay: Relay) -> None:
        self._child = child
        self._woken = woken
        self._relay = relay
        self._deadline: float | None = None
        self._asked = False

    def run(self) -> int:
        """The command's exit code, which it has at the latest twice `GRACE` after that end."""
        while True:
            done, status = os.waitpid(self._child, os.WNOHANG)
            if done:
                self._flush()
                return os.waitstatus_to_exitcode(status) & 0xFF
            events = self._events()
            if self._woken in events:
                os.read(self._woken, 512)
            self._relay.step()
            if self._deadline is None and (0 in events or self._relay.said is None):
                self._deadline = time.monotonic() + GRACE
            elif self._deadline is not None and time.monotonic() >= self._deadline:
                os.killpg(0, signal.SIGKILL if self._asked else signal.SIGTERM)
                self._asked, self._deadline = True, time.monotonic() + GRACE

    def _events(self) -> set[int]:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._deadline is None:
            poll.register(0, 0)
        if (wanted := self._relay.wanted()) is not None:
            poll.register(*wanted)
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic()) * 1000
        return {descriptor for descriptor, _ in poll.poll(left)}

    def _flush(self) -> None:
        """What the command has said is passed on; its children, who may go on talking, are ended next."""
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            if not self._relay.step():
                wanted = self._relay.wanted()
                if wanted is None or wanted[0] != 1:
                    return
                poll = select.poll()
                poll.register(*wanted)
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
