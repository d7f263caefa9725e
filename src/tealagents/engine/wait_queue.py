"""Requests that wait for their task: for all of one task in this process, one look at how it stands.

A look is made every quarter of a second, and at once where something ends or is canceled here. It calls whose
turn it is, and who waits no more; the others go on waiting at hardly any cost.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tealagents.domain.errors import TealError
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)

#: seconds between two looks at a task for which requests wait
TURN_SECONDS = 0.25
#: seconds after which who waits looks for itself, should it not have been called
OVERLOOKED_SECONDS = 30.0


class Place:
    """One request's place in the line."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def call(self) -> None:
        self._event.set()

    async def called(self) -> None:
        """Returns when it may be this request's turn, or never will be: whoever is called tries."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OVERLOOKED_SECONDS):
                await self._event.wait()
        self._event.clear()


class WaitQueues:
    """All who wait in this process, by task."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._lines: dict[str, _Line] = {}

    @contextmanager
    def place(self, partition: str, task_id: str, request_id: str) -> Iterator[Place]:
        """A place for as long as the block lasts."""
        line = self._lines.get(task_id)
        if line is None:
            line = self._lines[task_id] = _Line(self._tasks, partition, task_id)
        place = line.places[request_id] = Place()
        try:
            yield place
        finally:
            del line.places[request_id]
            if not line.places:
                line.close()
                del self._lines[task_id]

    def look(self, task_id: str) -> None:
        """Something of the task has changed here: who waits for it need not wait for the next look."""
        if (line := self._lines.get(task_id)) is not None:
            line.changed.set()


class _Line:
    """Those who wait for one task, and the one who looks for them."""

    def __init__(self, tasks: Tasks, partition: str, task_id: str) -> None:
        self._tasks = tasks
        self._partition = partition
        self._task_id = task_id
        self.places: dict[str, Place] = {}
        self.changed = asyncio.Event()
        self._watch = asyncio.create_task(self._look_for_ever(), name=f"line {task_id}")

    def close(self) -> None:
        self._watch.cancel()

    async def _look_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await self.changed.wait()
            self.changed.clear()
            for request_id in await self._due():
                if (place := self.places.get(request_id)) is not None:
                    place.call()

    async def _due(self) -> set[str]:
        """Who has something to do: the first, once the task is free, and whoever has left the queue."""
        try:
            head = (await self._tasks.head(self._partition, self._task_id)).value
        except TealError:
            return set(self.places)  # each finds out what that means for its own request
        except Exception:
            log.exception("task %s cannot be looked at", self._task_id)
            return set(self.places)
        queue = [queued.request_id for queued in head.queue]
        gone = self.places.keys() - set(queue)
        return gone if head.running or head.pending else {*gone, *queue[:1]}
