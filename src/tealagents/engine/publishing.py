"""The events of a run: shown to followers in this process at once, then written to the log.

The log is written later and in small batches, so that no follower here waits for the store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from tealagents.domain.errors import Conflict, PersistenceUnavailable
from tealagents.domain.events import Event, Recorded, ending
from tealagents.domain.models import RequestRecord
from tealagents.engine.event_buffer import EventBuffer
from tealagents.state.streams import BATCH_EVENTS, first_batch
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks

#: seconds for which events are gathered before they are written to the log
GATHER_SECONDS = 0.05
#: the same for the first batch of a run, which followers in other processes wait for
FIRST_GATHER_SECONDS = 0.005
#: unwritten events beyond which the model has to wait for the store
MOST_UNWRITTEN = 1000

#: retries a write until it succeeds, or raises
Persist = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class Publisher(EventBuffer):
    """Numbers, shows and stores the events of one run: from the request's start, or from a decision."""

    def __init__(self, tasks: Tasks, writer: TaskWriter) -> None:
        self._tasks = tasks
        self._writer = writer
        begins = writer.message is not None
        super().__init__(0 if begins else writer.request.last_event)
        #: the id of the last event in the log; event 1 is never written: it is made from the record
        self._written = 1 if begins else self.base
        #: set when there is room for more events; None unless `take` is waiting for it, which is rare
        self._drained: asyncio.Event | None = None
        self._writing_behind: asyncio.Task[None] | None = None
        #: `_writing_behind` sleeps to gather events and may be canceled; during a write it must not be
        self._gathering = False

    # --- showing ---------------------------------------------------------------------------------

    def publish(self, *events: Event) -> None:
        """Numbers events and shows them to the followers here; a background task writes them to the log."""
        first = self.last_id + 1
        self.extend([*map(Recorded, count(first), events)])
        if self.last_id > 1 and self._writing_behind is None:
            self._writing_behind = asyncio.create_task(self._write_behind())

    def end(self, request: RequestRecord) -> None:
        """Shows the event that ends the stream. It is made from the record, and never written to the log."""
        event_id = max(request.last_event, self.last_id + 1)
        self.extend((Recorded(event_id, ending(request)),))
        self.close()

    # --- writing ---------------------------------------------------------------------------------

    async def take(self, events: Sequence[Event]) -> None:
        """Publishes events, waiting for the log whenever `MOST_UNWRITTEN` are unwritten: the end of a request
        whose process dies jumps over no more numbers than that (`state.streams.JUMP`)."""
        while events:
            room = MOST_UNWRITTEN - (self.last_id - self._written)
            if room < 1:
                await self._drain()
                room = 1
            self.publish(*events[:room])
            events = events[room:]

    async def _drain(self) -> None:
        """Waits until there is room, or until the background task has ended."""
        if self._writing_behind is not None:
            self._drained = asyncio.Event()
            await self._drained.wait()
            self._drained = None

    async def flush(self, persist: Persist) -> list[Recorded]:
        """Writes the log up to the last few events and returns those, to be stored with the request's end."""
        if (writing := self.stop()) is not None:
            await asyncio.wait([writing])
        while unwritten := self._unwritten():
            batch, fits = first_batch(unwritten)
            if fits and batch[-1].id == self.last_id:
                return batch
            try:
                await persist(self._write_batch)
            except Conflict:
                break  # another writer has taken the request: our next commit will be fenced
        return []

    def stop(self) -> asyncio.Task[None] | None:
        """Stops the background task; returns it if it is still writing a batch."""
        # dropped: its traceback refers to this publisher, which would live until a full garbage collection
        writing, self._writing_behind = self._writing_behind, None
        if writing is None or not self._gathering:
            return writing
        writing.cancel()
        return None

    def _unwritten(self) -> list[Recorded]:
        """The next events to write. They are found by index, as a run's events have consecutive numbers."""
        start = self._written - self.base
        return self._events[start : start + BATCH_EVENTS]

    async def _write_behind(self) -> None:
        """Writes events to the log in batches until there are none left."""
        try:
            await self._write_batches()
        finally:
            if self._writing_behind is asyncio.current_task():
                self._writing_behind = None
            if self._drained is not None:
                self._drained.set()

    async def _write_batches(self) -> None:
        pause = FIRST_GATHER_SECONDS if self._written <= self.base + 1 else GATHER_SECONDS
        while self._writing_behind is not None and self.last_id > self._written:
            self._gathering = True
            await self._tasks.records.clock.sleep(pause)
            self._gathering = False
            try:
                await self._write_batch()
            except PersistenceUnavailable:
                pause = min(pause * 2, 1.0)
            except Conflict:
                break  # another writer has taken the request, as in `flush`
            else:
                pause = GATHER_SECONDS
                if self._drained is not None and self.last_id - self._written < MOST_UNWRITTEN:
                    self._drained.set()

    async def _write_batch(self) -> None:
        writer = self._writer
        if batch := self._unwritten():
            self._written = await self._tasks.streams.write(
                writer.partition, writer.request.request_id, writer.request_version, batch
            )
