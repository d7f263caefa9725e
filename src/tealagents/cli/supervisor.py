"""The parent process of several workers, or of one that is replaced when files change."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from socket import socket
from types import FrameType

from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process
from uvicorn.supervisors.watchfilesreload import WatchFilesReload

from tealagents.serving import STOPPING

#: seconds between two attempts to replace workers that could not start
RESTART_SECONDS = 2.0
#: seconds that a worker gets to be in service before it replaces another: it may wait for tool servers
START_SECONDS = 600.0
#: seconds between two signals to a worker: at once, they would be one
APART_SECONDS = 0.2
#: seconds for which the second waits, besides, for a worker that gets no processor to take the first
TAKEN_SECONDS = 10.0

log = logging.getLogger(__name__)


class Supervisor(Multiprocess):
    """Uvicorn's, but for four things: a worker that cannot be replaced stops no other, one that is slow to
    start is left to it, a signal to stop is heeded while one is replaced or removed (SIGHUP, SIGTTOU), and
    once it waits for its workers it listens to no signal."""

    #: whether any worker has been in service
    served = False
    #: whether a signal to stop has come
    stopped = False
    #: whether a second one came before the first was looked at
    hurried = False
    #: by the monotonic clock: when the next worker is replaced, after one that could not start
    _again_at = 0.0
    #: by the same clock: when the first signal to stop was passed on
    _terminated_at = 0.0

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, sockets)
        #: workers that have answered, by process id
        self._answered: set[int | None] = set()
        #: a worker that was draining, to be replaced or removed, when a signal to stop came
        self._retiring: list[Process] = []

    def keep_subprocess_alive(self) -> None:
        """Replaces workers that died. Once one has served, what keeps another from starting may pass."""
        if self.should_exit.is_set():
            return
        for index, worker in enumerate(self.processes):
            if worker.is_alive(self.config.timeout_worker_healthcheck):
                self._answered.add(worker.pid)
                self.served = self.served or worker.is_ready()
                continue
            if worker.pid not in self._answered and worker.process.is_alive():
                continue  # a busy machine takes longer to import what answers
            self._answered.discard(worker.pid)
            worker.kill()  # where it hangs
            worker.join()
            if worker.exitcode == STARTUP_FAILURE and not self.served:
                self.should_exit.set()
                return
            if time.monotonic() < self._again_at:
                continue
            if worker.exitcode == STARTUP_FAILURE:
                self._again_at = time.monotonic() + RESTART_SECONDS
            try:
                other = Process(self.config, self.sockets)
                other.start()
            except OSError as error:  # the machine lets no process begin just now
                log.warning("worker %s cannot be replaced: %s", worker.pid, error)
                self._again_at = time.monotonic() + RESTART_SECONDS
                continue
            log.warning("worker %s has ended with %s; another takes its place", worker.pid, worker.exitcode)
            self.processes[index] = other

    def handle_signals(self) -> None:
        """Also those that start workers, of which the machine may not let any begin just now."""
        stops = sum(number in STOPPING for number in self.signal_queue)
        self.stopped, self.hurried = self.stopped or stops > 0, stops > 1
        try:
            super().handle_signals()
        except OSError as error:
            log.warning("a worker cannot be started: %s", error)

    def restart_all(self) -> None:
        """Replaces each worker, once another is in service; ends on a signal to stop."""
        for index in range(len(self.processes)):
            if self._must_stop():
                return
            other = Process(self.config, self.sockets)
            other.start()
            serves = self._serves(other)
            worker = self.processes[index]
            if not serves:
                other.kill()
                other.join()
                if not (self._must_stop() or self._is_asked_again()):
                    log.error("worker %s is kept: its replacement did not start", worker.pid)
                return
            self.processes[index] = other
            self._retire(worker)

    def handle_ttin(self) -> None:
        """Adds a worker. One that cannot begin is not wanted, either."""
        try:
            super().handle_ttin()
        finally:
            self.processes_num = len(self.processes)

    def handle_ttou(self) -> None:
        """Removes a worker, unless it is the last."""
        if self.processes_num > 1:
            self.processes_num -= 1
            self._retire(self.processes.pop())

    def _must_stop(self) -> bool:
        return self.should_exit.is_set() or any(number in STOPPING for number in self.signal_queue)

    def _is_asked_again(self) -> bool:
        """Whether all workers are to be replaced once more: what did not start may be repaired."""
        return getattr(signal, "SIGHUP", None) in self.signal_queue

    def _serves(self, worker: Process) -> bool:
        """Whether a new worker is in service in time; not waited for once another signal has come.

        Meanwhile the others are looked after.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and worker.process.is_alive():
            if self._must_stop() or self._is_asked_again():
                break
            if worker.is_ready(timeout=1):
                return True
            self.keep_subprocess_alive()
            time.sleep(0.1)
        return False

    def _retire(self, worker: Process) -> None:
        """Lets a worker drain. Once a signal to stop has come it is waited for with the others."""
        worker.terminate()
        while worker.exitcode is None:
            if self._must_stop():
                self._retiring.append(worker)
                return
            worker.process.join(0.1)

    def join_all(self) -> None:
        """Waits for the workers to drain; another signal meanwhile is theirs."""
        self.processes += self._retiring
        for number in STOPPING:
            signal.signal(number, lambda *_: self.terminate_again())
        if self.hurried or self.signal_queue:
            self.terminate_again()
        super().join_all()

    def terminate_all(self) -> None:
        """Passes the first signal to stop on."""
        super().terminate_all()
        self._terminated_at = time.monotonic()

    def terminate_again(self) -> None:
        """Passes a second signal on."""
        time.sleep(max(0.0, self._terminated_at + APART_SECONDS - time.monotonic()))
        deadline = time.monotonic() + TAKEN_SECONDS
        for worker in sorted(self.processes, key=lambda worker: _is_signaled(worker.pid)):
            while _is_signaled(worker.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            if worker.exitcode is None and worker.pid is not None:
                os.kill(worker.pid, signal.SIGTERM)


def _is_signaled(pid: int | None) -> bool:
    """Whether a process has not taken a SIGTERM yet, as far as `/proc` tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False  # it has ended, or this is not Linux
    pending = int(status.partition("ShdPnd:")[2].split(maxsplit=1)[0], 16)
    return bool(pending >> (signal.SIGTERM - 1) & 1)


class Reloader(WatchFilesReload):
    """Uvicorn's, but a second signal to stop is passed on, and this process follows changes, too."""

    #: whether a signal to stop has come
    signaled = False
    #: whether another one came before it was passed on
    hurried = False
    #: called before the process that serves is replaced
    follow: Callable[[], None]

    def restart(self) -> None:
        self.follow()
        super().restart()

    def pause(self) -> None:
        """Holds no lock: a signal that came while this thread had the event's would wait for it for ever."""
        time.sleep(self.config.reload_delay)
        if self.should_exit.is_set():
            raise StopIteration

    def signal_handler(self, sig: int, frame: FrameType | None) -> None:
        """The first is looked at soon; on another the process that serves does not wait."""
        if not self.signaled:
            self.signaled = True
            super().signal_handler(sig, frame)
            return
        self.hurried = True
        for process in multiprocessing.active_children():
            process.terminate()

    def shutdown(self) -> None:
        """Passes the first signal on, and waits for the process."""
        if self.hurried:
            time.sleep(APART_SECONDS)
        super().shutdown()
