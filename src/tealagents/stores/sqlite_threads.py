"""Threads that own a SQLite connection: they serve queued jobs in groups, and answer on the event loop."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

from tealagents.domain.errors import StoreError

__all__ = ["GROUP", "ConnectionThread", "Job", "fail", "one_by_one"]

T = TypeVar("T")

#: commits that may share one transaction
GROUP: Final = 64


class Job:
    """Work to do with a connection, and the future that waits for it."""

    __slots__ = ("error", "future", "result", "then", "work")

    def __init__(
        self, work: Callable[[sqlite3.Connection], Any], then: Callable[[], None] | None = None
    ) -> None:
        self.work = work
        self.then = then
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def do(self, connection: sqlite3.Connection) -> None:
        try:
            self.result = self.work(connection)
        except StoreError as error:
            self.error = error.with_traceback(None)  # which refers to this job

    def settle(self) -> None:
        if self.then is not None and self.error is None:
            self.then()
        if self.future.done():  # its caller was canceled
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class ConnectionThread(Thread):
    """A thread that owns a connection: serves queued jobs, a group at a time, and answers on the loop."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        serve: Callable[[sqlite3.Connection, Sequence[Job]], None],
    ) -> None:
        super().__init__(name="sqlite-store", daemon=True)
        self._connection, self._serve = connection, serve
        #: a plain queue, with one call to the loop per group, costs less than a `ThreadPoolExecutor`
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.start()

    async def do(self, work: Callable[[sqlite3.Connection], T], then: Callable[[], None] | None = None) -> T:
        """Queues `work` and returns its result, or raises its error.

        If it succeeds, `then` is called on the event loop, whether or not the caller still waits.
        """
        if self._closed:
            raise sqlite3.ProgrammingError("the store is closed")
        job = Job(work, then)
        self._queue.put(job)
        try:
            result: T = await job.future
        finally:  # its error refers to this frame by its traceback
            del job
        return result

    async def close(self) -> None:
        """Returns when all queued jobs are done and the connection is closed."""
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self.join)

    def run(self) -> None:
        with closing(self._connection):
            while jobs := self._next():
                try:
                    self._serve(self._connection, jobs)
                except BaseException as error:  # noqa: BLE001 — raised where the work is awaited
                    fail(jobs, error)
                self._loop.call_soon_threadsafe(_settle, jobs)

    def _next(self) -> list[Job]:
        """Waits for queued jobs and returns a group of them; empty once the thread is closed."""
        jobs = [self._queue.get()]
        while len(jobs) < GROUP and jobs[-1] and not self._queue.empty():
            jobs.append(self._queue.get())
        if jobs[-1] is None and len(jobs) > 1:
            self._queue.put(None)
        return [job for job in jobs if job]


def one_by_one(connection: sqlite3.Connection, jobs: Sequence[Job]) -> None:
    for job in jobs:
        try:
            job.do(connection)
        except sqlite3.Error as error:
            job.error = error


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.settle()


def fail(jobs: Sequence[Job], error: BaseException) -> None:
    """Fails all jobs with `error`, except those that have an error of their own already."""
    for job in jobs:
        job.error = job.error or error
