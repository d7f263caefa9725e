"""The events of a run: shown to its followers on this process at once, written to the log behind them.

The log is written in small batches, so that a delta never waits for the store on its way to who is connected.
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
#: the same for the first of a stretch, which followers elsewhere wait for
FIRST_GATHER_SECONDS = 0.005
#: events that may be unwritten before the model is made to wait for the store
MOST_UNWRITTEN = 1000

#: tries a write until it succeeds, or gives up for good
Persist = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class Publisher(EventBuffer):
    """Numbers, shows and stores the events of one stretch of a request: from its start or a decision on."""

    def __init__(self, tasks: Tasks, writer: TaskWriter) -> None:
        self._tasks = tasks
        self._writer = writer
        begins = writer.message is not None
        super().__init__(0 if begins else writer.request.last_event)
        #: the id of the last event that is in the log; the very first is made from the record instead
        self._written = 1 if begins else self.base
        #: set when what waits for room may continue; made when there is none, which is rare
        self._drained: asyncio.Event | None = None
        self._writing_behind: asyncio.Task[None] | None = None
        #: what writes behind waits for more events, and may be canceled; while it asks the store, it may not
        self._gathering = False

    # --- showing ---------------------------------------------------------------------------------

    def publish(self, *events: Event) -> None:
        """Numbers events and shows them to the followers here; the log is written behind them."""
        first = self.last_id + 1
        self.extend([*map(Recorded, count(first), events)])
        if self.last_id > 1 and self._writing_behind is None:
            self._writing_behind = asyncio.create_task(self._write_behind())

    def end(self, request: RequestRecord) -> None:
        """Shows the event that ends the stream, as the record says; it is not in the log."""
        event_id = max(request.last_event, self.last_id + 1)
        self.extend((Recorded(event_id, ending(request)),))
        self.close()

    # --- writing ---------------------------------------------------------------------------------

    async def take(self, events: Sequence[Event]) -> None:
        """Publishes events, and waits wherever as many are unwritten as the last event of a request that
        is ended from outside can jump over."""
        while events:
            room = MOST_UNWRITTEN - (self.last_id - self._written)
            if room < 1:
                await self._drain()
                room = 1
            self.publish(*events[:room])
            events = events[room:]

    async def _drain(self) -> None:
        """Waits until there is room, or nothing is written behind any more."""
        if self._writing_behind is not None:
            self._drained = asyncio.Event()
            await self._drained.wait()
            self._drained = None

    async def settle(self, persist: Persist) -> list[Recorded]:
        """Stops writing behind, and returns the last few events, which go with the end's own commit."""
        if (writer := self.stop()) is not None:
            await asyncio.wait([writer])
        while unwritten := self._unwritten():
            batch, fits = first_batch(unwritten)
            if fits and batch[-1].id == self.last_id:
                return batch
            try:
                await persist(self._write_batch)
            except Conflict:
                break  # the request has changed hands; its next commit finds out
        return []

    def stop(self) -> asyncio.Task[None] | None:
        """Begins to write no more behind; what still writes a batch is returned."""
        # not kept: its traceback names this publisher, which would stay until a full collection
        writer, self._writing_behind = self._writing_behind, None
        if writer is None or not self._gathering:
            return writer
        writer.cancel()
        return None

    def _unwritten(self) -> list[Recorded]:
        """What is to be written to the log next; the numbers of a running request's events rise by one."""
        start = self._written - self.base
        return self._events[start : start + BATCH_EVENTS]

    async def _write_behind(self) -> None:
        """Writes events to the log in batches until there are none left."""
        try:
            await self._write_batches()
        finally:
            if self._writing_behind is asyncio.current_task():  # not kept for as long as nothing more comes
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
                break  # as above
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
