"""The requests that this process has begun and is not done with.

A request that runs here according to the store, and is not among them, has no run: it was begun by a commit
whose reply was lost, or its run could not store the end. Other processes leave it alone while this one lives,
so this one ends it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tealagents.domain.errors import Conflict, PersistenceUnavailable, TealError
from tealagents.domain.models import ENDED, RequestRecord
from tealagents.domain.ports import Clock
from tealagents.state.endings import Stop
from tealagents.state.out_of_line import Headless
from tealagents.state.records import Stored
from tealagents.state.workers import Lease

log = logging.getLogger(__name__)

#: how often a request that no run here carries on is looked for, to end it, and the seconds in between
LOOKS = 20
LOOK_SECONDS = 0.5


class _EarlyStop(NamedTuple):
    """A stop that reached a request before its run."""

    stop: Stop
    #: the request's number of pauses when the stop was sent; None for whatever number it has
    pauses: int | None
    #: done once the run starts, or none will
    settled: asyncio.Future[None]


class BegunRequests(Collection[str]):
    """The ids of the requests that this process has begun and is not done with."""

    def __init__(
        self, lease: Lease, clock: Clock, find: Callable[[str, str], Awaitable[Stored[RequestRecord]]]
    ) -> None:
        """`find` reads a request, given its partition and id, and ends it if it cannot continue."""
        self._lease = lease
        self._clock = clock
        self._find = find
        self._counts: Counter[str] = Counter()
        self._early_stops: dict[str, _EarlyStop] = {}
        #: asyncio tasks that end requests which no run here carries on; None once the process ends
        self._ending: set[asyncio.Task[None]] | None = set()

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    @contextmanager
    def beginning(self, partition: str, request_id: str) -> Iterator[None]:
        """A context for the commit that gives this process a request; if it raises, that has failed."""
        self._counts[request_id] += 1
        try:
            yield
        except (Conflict, Headless):
            self.over(request_id)
            raise
        except BaseException:  # the commit may have been applied, or still will be
            self.abandon(partition, request_id)
            raise

    def over(self, request_id: str) -> None:
        """This process is done with a request, or with one attempt to begin it."""
        self._counts[request_id] -= 1
        if self._counts[request_id] <= 0:
            del self._counts[request_id]
            if (early := self._early_stops.pop(request_id, None)) is not None:
                early.settled.set_result(None)

    def abandon(self, partition: str, request_id: str) -> None:
        """This process is done with a request that no run here carries on, and ends it, if it exists."""
        self.over(request_id)
        if self._ending is None:  # the run was canceled with the event loop, which ends no new task
            return
        task = asyncio.create_task(self._see_ended(partition, request_id, self._lease.worker_id))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _see_ended(self, partition: str, request_id: str, worker_id: str) -> None:
        looks = 0
        while looks < LOOKS and worker_id == self._lease.worker_id:
            try:
                looks += 1
                if (await self._find(partition, request_id)).value.status in ENDED:
                    return
            except PersistenceUnavailable:
                looks -= 1
            except TealError:
                pass  # it does not exist, perhaps not yet; or it is damaged, as its readers will be told
            except Exception:
                log.exception("request %s cannot be ended yet", request_id)
            await self._clock.sleep(LOOK_SECONDS)

    def stop_early(
        self, request_id: str, stop: Stop, pauses: int | None = None
    ) -> asyncio.Future[None] | None:
        """Keeps the latest stop for a request whose run has not started.

        It counts only if the request has had so many `pauses` by then. Returns what is done once the run has
        started, or never will; None if this process has not begun the request.
        """
        if request_id not in self:
            return None
        early = self._early_stops.get(request_id)
        settled = early.settled if early else asyncio.get_running_loop().create_future()
        self._early_stops[request_id] = _EarlyStop(stop, pauses, settled)
        return settled

    def carries_on(self, request_id: str) -> bool:
        """Whether this process runs a request, or is about to, and no stop is kept for it."""
        return request_id in self and request_id not in self._early_stops

    def starts(self, request: RequestRecord) -> Stop | None:
        """The run of a request starts; returns the stop that is kept for it."""
        early = self._early_stops.pop(request.request_id, None)
        if early is None:
            return None
        early.settled.set_result(None)
        return early.stop if early.pauses in (None, len(request.approvals)) else None

    def close(self) -> None:
        """The process ends; once its lease has lapsed, other processes end the requests that it leaves."""
        ending, self._ending = self._ending or (), None
        for task in ending:
            task.cancel()
