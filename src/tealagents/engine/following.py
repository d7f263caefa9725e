"""The events of a request: from memory if it runs in this process, else from its log, which others write.

However many followers a request has in this process, it has one watch and one reader of its log. While no
event is written, nothing is read.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from tealagents.domain.errors import Interrupted, NotFound, TealError, Vanishing
from tealagents.domain.events import Recorded, Terminal, beginning, ending
from tealagents.domain.models import ENDED, RequestRecord
from tealagents.engine.event_buffer import EventBuffer
from tealagents.engine.run import SET_BACK, TASK_GONE, Run
from tealagents.state import keys
from tealagents.state.streams import KEPT_SECONDS
from tealagents.state.tasks import Tasks, next_look

log = logging.getLogger(__name__)

#: seconds between checks whether the processes that run the followed requests are still alive
CHECK_SECONDS = 5.0


def _last(record: RequestRecord, after: int) -> Recorded | None:
    """The event that ends the request's stream for a follower that has seen `after`; None: it continues."""
    if record.status in ENDED or (record.status == "Paused" and after < record.last_event):
        return Recorded(record.last_event, ending(record))
    return None


class Followers:
    """The followers of requests in this process, with one `Tail` for each request that runs in another."""

    def __init__(self, tasks: Tasks, run_of: Callable[[str], Run | None]) -> None:
        """`run_of` finds the run of a request, if it runs in this process."""
        self._tasks = tasks
        self._run_of = run_of
        #: open streams of events
        self.count = 0
        #: the process has drained: followers have to continue in other processes
        self.closed = False
        self._open: dict[str, Tail] = {}
        #: those in `_open`, and replaced ones that slow followers are still reading
        self._followed: set[Tail] = set()

    async def follow(self, partition: str, request_id: str, after: int) -> AsyncGenerator[Sequence[Recorded]]:
        """The events after `after`, in batches, until one ends the stream.

        Decided pauses are left out, a pending one ends the stream; a follower that has seen it waits for the
        decision. Only when the process shuts down, the stream ends early: the follower continues in another.
        """
        self.count += 1
        try:
            while True:
                run = self._run_of(request_id)
                lost: BaseException | None = None
                if run is not None and after >= run.stream.base:
                    async for batch in run.stream.follow(after):
                        yield batch
                        after = batch[-1].id
                    lost = run.outcome.exception()
                    if lost is None:
                        return
                    if isinstance(lost, NotFound) or self.closed:  # the store may not answer before the end
                        raise lost
                try:
                    record = (await self._tasks.request(partition, request_id)).value
                except NotFound:
                    if isinstance(lost, Interrupted) and lost.detail == SET_BACK:
                        raise lost from None
                    raise
                if lost is not None and record.status not in ENDED:
                    raise lost  # the end could not be stored, or another process has to write it
                if after < 1:
                    yield [Recorded(1, beginning(record))]
                    after = 1
                async for batch in self._tasks.streams.read(partition, request_id, after):
                    yield batch
                    after = batch[-1].id
                if (last := _last(record, after)) is not None:
                    if after + 1 < last.id:  # a gap by design, or the task was deleted
                        await self._tasks.request(partition, request_id)
                    yield [last]
                    return
                if run is not None and record.status != "Paused":
                    after = max(after, run.stream.base)  # the id of the decided pause, which is left out
                    continue
                if self.closed:  # requests that ended during the drain were handled above
                    return
                with self._tail(partition, record, after) as tail:
                    async for batch in tail.follow(after):
                        yield batch
                        after = batch[-1].id
                        if isinstance(batch[-1].event, Terminal):
                            return
        finally:
            self.count -= 1

    @contextmanager
    def _tail(self, partition: str, record: RequestRecord, after: int) -> Iterator[EventBuffer]:
        """A buffer that receives the events of a request after `after` for as long as the block lasts."""
        tail = self._open.get(record.request_id)
        if tail is None or tail.closed or tail.base > after:
            tail = self._open[record.request_id] = Tail(self._tasks, partition, record, after)
            self._followed.add(tail)
        tail.followers += 1
        try:
            yield tail
        finally:
            tail.followers -= 1
            if not tail.followers:
                tail.stop()
                self._followed.discard(tail)
                if self._open.get(record.request_id) is tail:
                    del self._open[record.request_id]

    async def attend(self) -> None:
        """Ends followed requests whose process died or whose time is up; runs as long as the service.

        All requests are checked concurrently, so that a process that runs many of them is looked up once.
        """
        while True:
            await self._tasks.records.clock.sleep(min(CHECK_SECONDS, self._tasks.lease.seconds / 2))
            await asyncio.gather(*(tail.check() for tail in self._followed))

    def runs_here(self, request_id: str) -> None:
        """From now on, this process runs the request; followers switch to its run."""
        if (tail := self._open.pop(request_id, None)) is not None:
            tail.close()

    def close(self) -> None:
        """The process shuts down: its followers continue in another."""
        self.closed = True
        for tail in self._followed:
            tail.close()


class Tail(EventBuffer):
    """The events of one request as other processes write them, read once for all followers here."""

    def __init__(self, tasks: Tasks, partition: str, record: RequestRecord, after: int) -> None:
        super().__init__(after)
        self._tasks = tasks
        self._partition = partition
        self._request_id = record.request_id
        #: the request as last read
        self._record = record
        self.followers = 0
        #: held while reading the store
        self._looking = asyncio.Lock()
        self._reading: asyncio.Task[None] | None
        self._reading = asyncio.create_task(self._read(), name=f"tail {record.request_id}")

    def stop(self) -> None:
        """Nothing more is read; called once, when the last follower has left."""
        reading, self._reading = self._reading, None  # its error will refer to this tail
        if reading is not None:
            reading.cancel()

    async def _read(self) -> None:
        """Reads the log to its end, each time the watch wakes."""
        store = self._tasks.records.store
        with self._reporting():
            async with store.watch(self._partition, keys.request(self._request_id)) as watch:
                before = self.last_id
                while await self._look():
                    woken = await watch.wait(self._next_look(), found=self.last_id > before)
                    if not (woken or self.closed):
                        await self._end_if_due()
                    before = self.last_id

    def _next_look(self) -> float | None:
        pause, now = self._record.pause, self._tasks.records.clock.now()
        return next_look(pause.expires_at, now) if pause is not None else None

    async def check(self) -> None:
        """Ends the request if its process died or its time is up. Notices a decision on its pause: the
        process that made it may have died before it notified others."""
        with self._reporting():
            pause = None if self.closed else self._record.pause
            if pause is not None and await self._check_task() != pause.approval_id:
                await self._look()
            if not self.closed and await self._is_due():
                await self._end_if_due()
                await self._look()

    async def _end_if_due(self) -> None:
        with suppress(Vanishing):
            await self._tasks.request(self._partition, self._request_id)

    async def _look(self) -> bool:
        """Reads new events into the buffer. Returns False once the stream has ended."""
        async with self._looking:
            while not self.closed:
                await self._read_log()  # before the record: events need not wait for the check for an end
                key = keys.request(self._request_id)
                found = await self._tasks.records.get(self._partition, key, RequestRecord)
                if found is None:
                    await self._check_task()
                    raise Interrupted(SET_BACK).with_ids(**self._record.ids)
                self._record = found.value
                if (last := _last(found.value, self.last_id)) is None:
                    return True
                if self.last_id + 1 < last.id:
                    await self._read_log()  # once more: the last events may have been written with the end
                    if _last(found.value, self.last_id) is None:
                        continue  # the pause was decided meanwhile: later events are in the buffer already
                    if self.last_id + 1 < last.id:  # a gap by design, or the task was deleted
                        await self._end_if_due()
                self.extend((last,))
                self.close()
            return False

    async def _read_log(self) -> None:
        streams, after = self._tasks.streams, self.last_id
        async for batch in streams.read(self._partition, self._request_id, after):
            self.extend(batch)

    async def _is_due(self) -> bool:
        """Whether the request's process died, or its time may be up."""
        record = self._record
        if record.pause is not None:
            return record.pause.expires_at <= self._tasks.records.clock.now()
        if record.status == "Queued":
            return True
        return record.worker_id is not None and await self._tasks.peers.dead(record.worker_id)

    async def _check_task(self) -> str | None:
        """The id of the pause that the task waits in, if any.

        `NotFound` if the task is gone: one that expires during a pause writes nothing that would wake.
        """
        try:
            head = (await self._tasks.stored_head(self._partition, self._record.task_id)).value
        except Vanishing:
            return None
        except NotFound as error:
            raise error.with_ids(request_id=self._request_id) from None
        return head.pending.approval_id if head.pending is not None else None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Passes errors of the block on to the followers."""
        try:
            yield
        except NotFound as error:
            self.close(NotFound(TASK_GONE).with_ids(**error.ids))
        except TealError as error:
            self.close(error)
        except Exception as error:
            log.exception("request %s cannot be followed", self._request_id)
            self.close(error)


def nothing_left(record: RequestRecord, after: int) -> bool:
    """Whether the request has ended and has no event after `after`."""
    return record.status in ENDED and after >= record.last_event


def check_kept(tasks: Tasks, record: RequestRecord) -> None:
    """`NotFound` if the request's events have expired."""
    kept = timedelta(seconds=KEPT_SECONDS)
    if record.ended_at is not None and record.ended_at + kept < tasks.records.clock.now():
        raise NotFound(
            "The events of a request are kept for 24 hours after its end. Read the request for its result.",
            request_id=record.request_id,
            task_id=record.task_id,
        )
