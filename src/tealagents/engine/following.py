"""The events of a request, from memory where it runs here, else from the log as other processes write it.

However many followers a request has in this process, there is one watch on it and one reader of its log.
While nothing happens, nothing is read.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from tealagents.domain.errors import NotFound, TealError
from tealagents.domain.events import Recorded, Started, Terminal, ending
from tealagents.domain.models import ENDED, RequestRecord
from tealagents.domain.ports import Watch
from tealagents.engine.event_buffer import EventBuffer
from tealagents.engine.run import Run
from tealagents.state import keys
from tealagents.state.streams import KEPT_SECONDS
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)

#: seconds of silence after which it is asked whether the process that runs a request is still alive
SILENCE_SECONDS = 5.0


class Runner(Protocol):
    """This process, as followers see it."""

    tasks: Tasks
    tails: "Tails"
    #: True once it has drained: what is not over by then goes on elsewhere
    closed: bool

    def run_of(self, request_id: str) -> Run | None: ...


async def follow(
    runner: Runner, partition: str, request_id: str, after: int
) -> AsyncIterator[Sequence[Recorded]]:
    """The events behind `after`, as many at a time as there are, to the one that ends the stream.

    Passes over decided pauses, and ends at a pending one; what comes after that is waited for. Ends without
    such an event only where the process does; the follower then goes on in another.
    """
    tasks = runner.tasks
    while True:
        run = runner.run_of(request_id)
        lost: BaseException | None = None
        if run is not None and after >= run.stream.base:
            async for batch in run.stream.events(after):
                yield batch
                after = batch[-1].id
            lost = run.outcome.exception()
            if lost is None:
                return
        record = (await tasks.request(partition, request_id)).value
        if lost is not None and record.status not in ENDED:
            raise lost  # the end could not be stored, or is not ours to report
        if after < 1:
            waited = record.started_at != record.created_at  # and was said to when it came
            yield [Recorded(1, Started("Queued" if waited else "Running"))]
            after = 1
        async for batch in _stored(tasks, partition, request_id, after):
            yield batch
            after = batch[-1].id
        if (last := _last(record, after)) is not None:
            yield [last]
            return
        if run is not None and record.status != "Paused":
            after = run.stream.base  # the id of the decided pause, which is passed over
            continue
        with runner.tails.open(partition, record, after) as tail:
            async for batch in tail.follow(after):
                yield batch
                after = batch[-1].id
                if isinstance(batch[-1].event, Terminal):
                    return
        if runner.closed:
            return


async def _stored(
    tasks: Tasks, partition: str, request_id: str, after: int
) -> AsyncGenerator[Sequence[Recorded], None]:
    """What the log holds behind `after`."""
    while batch := await tasks.streams.read(partition, request_id, after):
        yield batch
        after = batch[-1].id


def _last(record: RequestRecord, after: int) -> Recorded | None:
    """The event that ends the stream of a request as it stands, for a follower that has seen `after`."""
    if record.status in ENDED or (record.status == "Paused" and after < record.last_event):
        return Recorded(record.last_event, ending(record))
    return None


class Tails:
    """What this process follows of requests that run in others: one `Tail` a request."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._open: dict[str, Tail] = {}

    @contextmanager
    def open(self, partition: str, record: RequestRecord, after: int) -> Iterator[EventBuffer]:
        """The events of a request behind `after`, as its log grows, for as long as the block lasts."""
        tail = self._open.get(record.request_id)
        if tail is None or tail.buffer.base > after:
            tail = Tail(self._tasks, partition, record.request_id, after)
            self._open.setdefault(record.request_id, tail)
        tail.followers += 1
        try:
            yield tail.buffer
        finally:
            tail.followers -= 1
            if not tail.followers:
                tail.reading.cancel()
                if self._open.get(record.request_id) is tail:
                    del self._open[record.request_id]

    def runs_here(self, request_id: str) -> None:
        """A request that was followed from elsewhere is run by this process from now on."""
        if (tail := self._open.pop(request_id, None)) is not None:
            tail.buffer.close()

    def close(self) -> None:
        """The process ends: its followers go on in another."""
        for tail in self._open.values():
            tail.buffer.close()


class Tail:
    """The events of one request as other processes write them, read once for all followers here."""

    def __init__(self, tasks: Tasks, partition: str, request_id: str, after: int) -> None:
        self._tasks = tasks
        self._partition = partition
        self._request_id = request_id
        self.buffer = EventBuffer(after)
        self.followers = 0
        self._now = asyncio.get_running_loop().time
        #: when something was last read, or it was last asked whether anything can come
        self._heard = self._now()
        self.reading = asyncio.create_task(self._read(), name=f"tail {request_id}")

    async def _read(self) -> None:
        """Reads to the end of the stream, waiting to be woken."""
        store = self._tasks.records.store
        try:
            async with store.watch(self._partition, keys.request(self._request_id)) as watch:
                while await self._look(watch):
                    pass
        except TealError as error:
            self.buffer.close(error)
        except Exception as error:
            log.exception("request %s cannot be followed", self._request_id)
            self.buffer.close(error)

    async def _look(self, watch: Watch) -> bool:
        """Reads what is new, and waits for more; False behind the end."""
        key = keys.request(self._request_id)
        found = await self._tasks.records.get(self._partition, key, RequestRecord)
        if found is None:  # deleted: the task says so
            found = await self._tasks.request(self._partition, self._request_id)
        record, before = found.value, self.buffer.last_id
        async for batch in _stored(self._tasks, self._partition, self._request_id, before):
            self.buffer.extend(batch)
        if (last := _last(record, self.buffer.last_id)) is not None:
            self.buffer.extend((last,))
            self.buffer.close()
            return False
        if self.buffer.last_id > before:
            self._heard = self._now()
        woken = False
        while not woken:
            # a watch without pushes wakes by its timer, which is no news of the process that runs the request
            woken = await watch.wait(SILENCE_SECONDS, found=self.buffer.last_id > before)
            before = self.buffer.last_id
            if self._now() - self._heard >= SILENCE_SECONDS:
                self._heard = self._now()
                if await self._is_due(record):
                    await self._tasks.request(self._partition, self._request_id)  # which ends it
                    break
        return True

    async def _is_due(self, record: RequestRecord) -> bool:
        """Whether nothing more can come of the request by itself: its process died, or its time is up."""
        if record.pause is not None:
            return record.pause.expires_at <= self._tasks.records.clock.now()
        if record.status == "Queued":
            return True
        return record.worker_id is not None and await self._tasks.lease.dead(record.worker_id)


def nothing_left(record: RequestRecord, after: int) -> bool:
    """Whether an ended request has no event behind `after`."""
    return record.status in ENDED and after >= record.last_event


def check_kept(tasks: Tasks, record: RequestRecord) -> None:
    """`NotFound` where the log has been forgotten."""
    kept = timedelta(seconds=KEPT_SECONDS)
    if record.ended_at is not None and record.ended_at + kept < tasks.records.clock.now():
        raise NotFound(
            "The events of a request are kept for 24 hours after its end. Read the request for its result.",
            request_id=record.request_id,
            task_id=record.task_id,
        )
