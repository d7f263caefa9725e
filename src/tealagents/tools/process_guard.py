"""Runs a command, bounds its output, and ends it, with its process group, once the service is gone.

A child outlives a parent that is killed, not every server ends when its standard input does, and a line
without an end would fill its reader's memory. So the service starts `python process_guard.py LIMIT MARKS
COMMAND …`, which makes itself a process group of its own. A child that leaves this group is not ended.

- The command inherits standard input and standard error. Its output passes through here.
- A line of more than LIMIT bytes, or with more than MARKS of the characters `,`, `[` and `{` (which bound the
  number of JSON values), ends the group at once.
- When standard input hangs up, because the parent has died or closed it, or when the command's output ends,
  so that it can answer nothing any more, the command has `GRACE` seconds to end; then the group is ended.

POSIX only. It imports only the standard library, so that it starts within milliseconds. It is run as a file
and never imported.
"""

import os
import select
import signal
import sys
import time
from types import FrameType

#: seconds that the command has to end after the end of its input or output, and again after SIGTERM
GRACE = 3.0


def main(limit: int, marks: int, command: list[str]) -> int:
    """Runs the command, then ends what is left of its group. Returns the command's exit code, or 127 if it
    cannot be started."""
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
            # Python ignores these signals, and a child would inherit that
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    os.close(saying)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        # only a signal with a handler is written to the wake-up pipe
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
    """Whether our group has another living process, as far as `/proc` shows."""
    group, us = str(os.getpgrp()).encode(), str(os.getpid())
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit() and name != us]
    except OSError:
        return False  # not Linux
    return any(_group(process) == group for process in processes)


def _group(process: str) -> bytes | None:
    """The process group of a process; None if it has ended, also if its parent has not noticed yet."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            state, _, group = stat.read().rpartition(b")")[2].split()[:3]
    except OSError:
        return None  # it has just ended
    return None if state == b"Z" else group


def _note(number: int, frame: FrameType | None) -> None:
    """Does nothing: the byte that the signal has put into the wake-up pipe is enough."""


class Relay:
    """Passes the command's output on to ours, and ends the group if a line is too long."""

    def __init__(self, said: int, limit: int, marks: int) -> None:
        os.set_blocking(said, False)
        os.set_blocking(1, False)
        #: the descriptor of the command's output; None: it has ended
        self.said: int | None = said
        self._limit = limit
        self._most_marks = marks
        #: bytes, and characters that bound JSON values, of the current line so far
        self._line = self._marks = 0
        #: what has been read and not written yet
        self._waiting = b""

    def wanted(self) -> tuple[int, int] | None:
        """The descriptor to wait for, and the event; None once all output has been passed on."""
        if self._waiting:
            return 1, select.POLLOUT
        return None if self.said is None else (self.said, select.POLLIN)

    def step(self) -> bool:
        """Passes on some output without blocking; False if nothing can be passed on now."""
        if not self._waiting and not self._read():
            return False
        try:
            self._waiting = self._waiting[os.write(1, self._waiting) :]
        except BlockingIOError:
            return False
        except OSError:
            self._waiting = b""  # the service no longer reads
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
    """Waits for the command's end, and ends its group if it does not end in time."""

    def __init__(self, child: int, woken: int, relay: Relay) -> None:
        self._child = child
        self._woken = woken
        self._relay = relay
        #: when the group is signaled (monotonic); None while the command may run
        self._deadline: float | None = None
        #: whether SIGTERM has been sent, so that SIGKILL is next
        self._asked = False

    def run(self) -> int:
        """Waits for the command's end; returns its exit code.

        After the end of its input or output, this takes at most twice `GRACE`, and the time to flush.
        """
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
        """Passes on what the command wrote before it ended, for at most `GRACE` seconds: its children, which
        are ended next, may keep writing."""
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
