"""The requests that this process has begun and is not done with; it ends those that no run carries on."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager

from tealagents.domain.errors import Conflict, PersistenceUnavailable, TealError
from tealagents.domain.models import ENDED, RequestRecord
from tealagents.domain.ports import Clock
from tealagents.state.records import Headless, Stored
from tealagents.state.workers import Lease

log = logging.getLogger(__name__)

#: how often a request that no run here carries on is looked for, to end it, and the seconds in between
LOOKS = 20
LOOK_SECONDS = 0.5


class BegunRequests(Collection[str]):
    """Their ids. A request that runs here, as the store has it, and is not among them has no run.

    It was begun by a commit whose reply was lost, and is ended.
    """

    def __init__(
        self, lease: Lease, clock: Clock, find: Callable[[str, str], Awaitable[Stored[RequestRecord]]]
    ) -> None:
        """`find` reads a request, given its partition and id, and ends it if it cannot continue."""
        self._lease = lease
        self._clock = clock
        self._find = find
        self._counts: Counter[str] = Counter()
        #: those that were ended before their run was stopped, and how many pauses each had by then
        self._ended_early: dict[str, int] = {}
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
            self.leave(partition, request_id)
            raise

    def over(self, request_id: str) -> None:
        """This process is done with a request, or with one attempt to begin it."""
        self._counts[request_id] -= 1
        if self._counts[request_id] <= 0:
            del self._counts[request_id]
            self._ended_early.pop(request_id, None)

    def leave(self, partition: str, request_id: str) -> None:
        """This process is done with a request that no run here carries on, and ends it, if it exists.

        Other processes do not end it, since its worker is alive.
        """
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

    def note_end(self, request_id: str, pauses: int) -> None:
        """A request was ended from outside when it had had so many pauses: its run must not start."""
        if request_id in self:
            self._ended_early[request_id] = pauses

    def ended_early(self, request: RequestRecord) -> bool:
        """Whether a request whose run starts was ended from outside meanwhile, since its last pause."""
        return self._ended_early.get(request.request_id) == len(request.approvals)

    def stop(self) -> None:
        """The process ends; once its lease has lapsed, other processes end the requests that it leaves."""
        ending, self._ending = self._ending or (), None
        for task in ending:
            task.cancel()
