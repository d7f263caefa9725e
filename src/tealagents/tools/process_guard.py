"""Runs a command and ends it, with all its children, once whoever started this is gone.

A child outlives a parent that is killed, and not every server ends when its standard input does. So the
service starts `python process_guard.py COMMAND …` in a process group of its own: standard input, output
and error are the command's, and a hang-up of standard input, which is the parent's death or its good-bye,
gives the command a moment and then ends the group. POSIX only. Nothing but the standard library, so that
it starts in a few milliseconds; run as a file, never imported.
"""

import os
import select
import signal
import sys
import time
from types import FrameType

#: seconds the command has to end by itself after its input hung up, and again after SIGTERM
GRACE = 3.0


def main(command: list[str]) -> int:
    if os.getpgrp() != os.getpid():
        # never end a group that we share with whoever started us
        os.setpgid(0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    try:
        child = os.posix_spawnp(command[0], command, os.environ)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        # handlers, not SIG_IGN, which children would inherit
        signal.signal(number, _note)
    # the other side reads the end of the output when the command is gone, not when this is
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = _guard(child, woken)
    os.killpg(0, signal.SIGTERM)
    return code


def _note(number: int, frame: FrameType | None) -> None:
    """The signal has written to the wake-up pipe; that is all that is wanted of it."""


def _guard(child: int, woken: int) -> int:
    """The command's exit code, which it has at the latest twice `GRACE` after the hang-up."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(0, 0)
    deadline: float | None = None
    asked = False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) & 0xFF
        events = poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)
        if any(descriptor == woken for descriptor, _ in events):
            os.read(woken, 512)
        if deadline is None and any(descriptor == 0 for descriptor, _ in events):
            poll.unregister(0)
            deadline = time.monotonic() + GRACE
        elif deadline is not None and time.monotonic() >= deadline:
            os.killpg(0, signal.SIGKILL if asked else signal.SIGTERM)
            asked, deadline = True, time.monotonic() + GRACE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
