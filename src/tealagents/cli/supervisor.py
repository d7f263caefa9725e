"""The parent process: of several workers, or of one process that is replaced when files change."""

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
from watchfiles import watch

from tealagents.cli.loading import fail
from tealagents.serving import STOPPING

#: seconds between two attempts to replace workers that could not start
RESTART_SECONDS = 2.0
#: seconds that a new worker gets to start serving before it replaces another: it may wait for tool servers
START_SECONDS = 600.0
#: seconds between two signals to a worker, which would otherwise merge into one
APART_SECONDS = 0.2
#: seconds that the second signal waits, in addition, for a worker that has not handled the first one yet
TAKEN_SECONDS = 10.0
#: milliseconds that the reloader waits for changes, and seconds between two looks for them
WATCH_MILLISECONDS, LOOK_SECONDS = 1, 0.05

log = logging.getLogger(__name__)


class Supervisor(Multiprocess):
    """Uvicorn's supervisor, with five differences:

    - a worker that cannot be replaced stops no other worker
    - a worker that is slow to start is not killed
    - a worker that is replaced or removed leaves new connections to the others while it drains
    - a signal to stop takes effect while a worker is being replaced or removed (SIGHUP, SIGTTOU)
    - while it waits for its workers to end, it only passes signals to stop on to them
    """

    #: whether any worker has served
    served = False
    #: whether a signal to stop has arrived
    stopped = False
    #: whether a second one arrived before the first was handled
    hurried = False
    #: monotonic time before which no worker is replaced, after one that could not start
    _again_at = 0.0
    #: monotonic time at which the first signal to stop was passed on
    _terminated_at = 0.0

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, sockets)
        #: process ids of the workers that have answered
        self._answered: set[int | None] = set()
        #: of these, those that were seen to serve
        self._ready: set[int | None] = set()
        #: a worker that was draining, to be replaced or removed, when a signal to stop came
        self._retiring: list[Process] = []

    def keep_subprocess_alive(self) -> None:
        """Replaces dead workers, unless a signal to stop has come. A failed start ends the service only if no
        worker has served yet."""
        if self.should_exit.is_set():
            return
        for index, worker in enumerate(self.processes):
            if worker.is_alive(self.config.timeout_worker_healthcheck):
                self._answered.add(worker.pid)
                if worker.pid not in self._ready and worker.is_ready():
                    self._ready.add(worker.pid)
                    self.served = True
                continue
            if worker.pid not in self._answered and worker.process.is_alive():
                continue  # it is still importing its code, which takes long on a busy machine
            if self._must_stop():
                return  # it is passed the signal like the others, and may still end what it runs
            self._answered.discard(worker.pid)
            self._ready.discard(worker.pid)
            worker.kill()  # it may hang
            worker.join()
            if worker.exitcode == STARTUP_FAILURE and not self._has_served():
                self.should_exit.set()
                return
            if time.monotonic() < self._again_at:
                continue
            if worker.exitcode == STARTUP_FAILURE:
                self._again_at = time.monotonic() + RESTART_SECONDS
            try:
                other = Process(self.config, self.sockets)
                other.start()
            except OSError as error:  # the machine cannot start a process at the moment
                log.warning("worker %s cannot be replaced: %s", worker.pid, error)
                self._again_at = time.monotonic() + RESTART_SECONDS
                continue
            log.warning("worker %s has ended with %s; another takes its place", worker.pid, worker.exitcode)
            self.processes[index] = other

    def serves(self, pid: int) -> bool:
        """Whether this process is a worker in service: started, and neither replaced nor removed."""
        return pid in self._ready and any(worker.pid == pid for worker in self.processes)

    def _has_served(self) -> bool:
        """Whether any worker has been in service, be it only since it was last looked at."""
        answering = (
            each for each in self.processes if each.pid in self._answered and each.process.is_alive()
        )
        self.served = self.served or any(each.is_ready() for each in answering)
        return self.served

    def handle_signals(self) -> None:
        """Handles the signals that have arrived. If one is to start a worker, the machine may refuse that."""
        stops = sum(number in STOPPING for number in self.signal_queue)
        self.stopped, self.hurried = self.stopped or stops > 0, stops > 1
        try:
            super().handle_signals()
        except OSError as error:
            log.warning("a worker cannot be started: %s", error)

    def restart_all(self) -> None:
        """Replaces each worker once its replacement serves. Ends on a signal to stop."""
        for index in range(len(self.processes)):
            if self._must_stop():
                return
            other = Process(self.config, self.sockets)
            other.start()
            serves = self._gets_ready(other)
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
        """Adds a worker. One that cannot be started is not retried."""
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
        """Whether another SIGHUP has arrived: what kept a worker from starting may have been repaired."""
        return signal.SIGHUP in self.signal_queue

    def _gets_ready(self, worker: Process) -> bool:
        """Waits for a new worker to serve, and keeps the others alive in the meantime.

        False if it takes longer than `START_SECONDS`, or if another signal arrives.
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
        """Drains a worker, which leaves new connections to the others, and waits for it; after a signal to
        stop, `join_all` waits for it instead. It is no longer one of `processes`, which are kept alive."""
        worker.terminate()
        if worker.exitcode is None and worker.pid is not None:
            os.kill(worker.pid, signal.SIGUSR1)
        while worker.exitcode is None:
            if self._must_stop():
                self._retiring.append(worker)
                return
            self.keep_subprocess_alive()
            worker.process.join(0.1)

    def join_all(self) -> None:
        """Waits for the workers to drain. Further signals to stop are passed on to them."""
        self.processes += self._retiring
        for number in STOPPING:
            signal.signal(number, lambda *_: self.terminate_again())
        if self.hurried or self.signal_queue:
            self.terminate_again()
        super().join_all()

    def terminate_all(self) -> None:
        """Passes the first signal to stop on to the workers."""
        super().terminate_all()
        self._terminated_at = time.monotonic()

    def terminate_again(self) -> None:
        """Passes a second signal to stop on, first to the workers that have handled the first one."""
        time.sleep(max(0.0, self._terminated_at + APART_SECONDS - time.monotonic()))
        deadline = time.monotonic() + TAKEN_SECONDS
        for worker in sorted(self.processes, key=lambda worker: _has_pending_sigterm(worker.pid)):
            while _has_pending_sigterm(worker.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            if worker.exitcode is None and worker.pid is not None:
                os.kill(worker.pid, signal.SIGTERM)


def _has_pending_sigterm(pid: int | None) -> bool:
    """Whether a process has yet to handle a SIGTERM, according to `/proc`; False if there is no `/proc`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False  # it has ended, or this is not Linux
    pending = int(status.partition("ShdPnd:")[2].split(maxsplit=1)[0], 16)
    return bool(pending >> (signal.SIGTERM - 1) & 1)


class Reloader(WatchFilesReload):
    """Uvicorn's reloader, with three differences:

    - a second signal to stop is passed on as well
    - `follow` is called on changes
    - the files are watched before the first process serves
    """

    #: whether a signal to stop has arrived
    signaled = False
    #: whether another one arrived before it was passed on
    hurried = False
    #: called before the serving process is replaced
    follow: Callable[[], None]

    def __init__(
        self, config: Config, target: Callable[[list[socket] | None], None], sockets: list[socket]
    ) -> None:
        super().__init__(config, target, sockets)
        self.watcher = watch(
            *self.reload_dirs,
            watch_filter=None,
            stop_event=self.should_exit,
            rust_timeout=WATCH_MILLISECONDS,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )

    def startup(self) -> None:
        """The files are watched from the first look at them: one that is edited as soon as the first process
        serves is not missed. Ends the command if the system watches no more files."""
        try:
            next(self.watcher, None)
        except (OSError, RuntimeError) as error:  # the latter from `watchfiles` itself
            raise fail(
                f"--reload: files cannot be watched: {error}. End other programs that watch files, raise the "
                "limits fs.inotify.max_user_instances and fs.inotify.max_user_watches, or leave out --reload."
            ) from error
        super().startup()

    def restart(self) -> None:
        self.follow()
        super().restart()

    def pause(self) -> None:
        """Waits without uvicorn's `Event.wait`: a signal handler would wait for ever for the event's lock."""
        time.sleep(self.config.reload_delay)
        if self.should_exit.is_set():
            raise StopIteration

    def signal_handler(self, sig: int, frame: FrameType | None) -> None:
        """The first signal is handled by the loop; a second one goes to the serving process at once."""
        if not self.signaled:
            self.signaled = True
            super().signal_handler(sig, frame)
            return
        self.hurried = True
        for process in multiprocessing.active_children():
            process.terminate()

    def shutdown(self) -> None:
        """Passes the first signal on to the serving process, and waits for it."""
        if self.hurried:
            time.sleep(APART_SECONDS)
        super().shutdown()
