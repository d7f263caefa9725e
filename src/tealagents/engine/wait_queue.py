"""Requests that wait for their task. All of this process's requests for one task share one watch on it.

When the task changes, its head is read once. The request whose turn it is and those that are no longer
queued are woken; the others keep waiting at hardly any cost.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tealagents.domain.errors import CorruptState, NotFound, TealError, Vanishing
from tealagents.domain.models import Head, RequestRecord
from tealagents.state import keys
from tealagents.state.queue import QueuedRequest, try_start
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks, next_look

log = logging.getLogger(__name__)

#: seconds without a change after which a task is read anyway, since its writer may have died
SILENCE_SECONDS = 5.0
#: seconds until a task that could not be read is read again
RETRY_SECONDS = 0.25
#: seconds after which a waiting request tries by itself, in case it was not woken
OVERLOOKED_SECONDS = 30.0


class WaitQueues:
    """The requests that wait in this process, by task."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._queues: dict[str, _WaitQueue] = {}

    async def wait(self, waiting: QueuedRequest, actor: str) -> TaskWriter | RequestRecord:
        """Takes the task for the request when its turn comes; returns the request if it never does."""
        request, clock = waiting.request, self._tasks.records.clock
        with self._ticket(waiting.partition, request.task_id, request.request_id) as ticket:
            while (begun := await self._try_start(waiting, actor)) is None:
                left = max(0.05, (waiting.deadline - clock.now()).total_seconds())
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, OVERLOOKED_SECONDS)):
                        await ticket.wait()
                ticket.clear()
        return begun

    async def _try_start(self, waiting: QueuedRequest, actor: str) -> TaskWriter | RequestRecord | None:
        try:
            return await try_start(self._tasks, actor, waiting)
        except TealError as error:
            log.warning("request %s waits: %s", waiting.request.request_id, error)
            late = self._tasks.records.clock.now() >= waiting.deadline
            gone = isinstance(error, NotFound) and not isinstance(error, Vanishing)
            if late or gone or isinstance(error, CorruptState):
                return waiting.request
            return None

    @contextmanager
    def _ticket(self, partition: str, task_id: str, request_id: str) -> Iterator[asyncio.Event]:
        """A ticket for as long as the block lasts, set when the request's turn may have come, or will
        never come."""
        queue = self._queues.get(task_id)
        if queue is None:
            queue = self._queues[task_id] = _WaitQueue(self._tasks, partition, task_id)
        ticket = queue.tickets[request_id] = asyncio.Event()
        try:
            yield ticket
        finally:
            del queue.tickets[request_id]
            if not queue.tickets:
                queue.close()
                del self._queues[task_id]


class _WaitQueue:
    """The tickets of the requests that wait for one task, and the watch that sets them."""

    def __init__(self, tasks: Tasks, partition: str, task_id: str) -> None:
        self._tasks = tasks
        self._partition = partition
        self._task_id = task_id
        #: by the requests' ids
        self.tickets: dict[str, asyncio.Event] = {}
        self._watch: asyncio.Task[None] | None
        self._watch = asyncio.create_task(self._look_for_ever(), name=f"queue {task_id}")

    def close(self) -> None:
        watch, self._watch = self._watch, None  # its error will refer to this queue
        if watch is not None:
            watch.cancel()

    async def _look_for_ever(self) -> None:
        """Reads the task whenever it changes, and after `_silence` seconds without a change."""
        async with self._tasks.records.store.watch(self._partition, keys.task(self._task_id)) as watch:
            while True:
                head = await self._head()
                for request_id in self.tickets if head is None else self._due(head):
                    if (ticket := self.tickets.get(request_id)) is not None:
                        ticket.set()
                await watch.wait(self._silence(head), found=head is None)

    async def _head(self) -> Head | None:
        """The task's head; None if it cannot be read: each request then tries, and gets the error, itself."""
        try:
            return (await self._tasks.head(self._partition, self._task_id)).value
        except TealError:
            return None
        except Exception:
            log.exception("task %s cannot be looked at", self._task_id)
            return None

    def _due(self, head: Head) -> set[str]:
        """The requests to wake: the first, if the task is free, and those that have left the queue."""
        queue = [queued.request_id for queued in head.queue]
        gone = self.tickets.keys() - set(queue)
        return gone if head.occupant else {*gone, *queue[:1]}

    def _silence(self, head: Head | None) -> float:
        """Seconds after which to read the task anyway: its writer may have died, or its pause may expire."""
        if head is None:
            return RETRY_SECONDS
        silence = min(SILENCE_SECONDS, self._tasks.lease.seconds / 2)
        if head.pending is None:
            return silence
        return min(silence, next_look(head.pending.expires_at, self._tasks.records.clock.now()))
