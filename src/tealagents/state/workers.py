"""One lease a process, however many requests it runs.

A worker beats every third of its lease, by the store's clock. The process that finds a beat older than the
lease may declare the worker dead, by compare-and-set, and only then end its requests; a worker that
finds itself declared dead, or that could not beat for a lease, drops what it runs and takes a new id.
A beat that stays the same for a lease means the same, where clocks are set back meanwhile.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, TealError
from tealagents.domain.models import Worker
from tealagents.state import keys
from tealagents.state.codec import unseal
from tealagents.state.records import RecordStore, Stored

log = logging.getLogger(__name__)

#: seconds for which what was read of another worker is believed
GLANCE_SECONDS = 0.5
#: the topic of a mailbox in which other processes leave signals
_SIGNALS = "signals"
#: seconds after which a dead or retired worker's record is forgotten by the store
FORGET_SECONDS = 7 * 86400.0

LostHandler = Callable[[], None]


class Word(Struct, frozen=True, kw_only=True):
    """`signal/{request_id}`: what another process asks of the one that runs a request: to end it."""

    request_id: str
    #: who asks
    actor: str
    #: for a newer message
    superseded: bool = False


SignalHandler = Callable[[Word], Awaitable[None]]


class Glance(Struct, frozen=True):
    """What was seen of another worker."""

    #: when, by this process's own clock
    at: float
    dead: bool
    #: the beat that was seen, and since when it has been the same
    version: str = ""
    since: float = 0


class Lease:
    """This process's lease, and its view of the others'."""

    def __init__(self, records: RecordStore, lease_seconds: float) -> None:
        self._records = records
        self._seconds = lease_seconds
        self._partition = keys.workers(records.agent)
        self._key = ""
        self._version: str | None = None
        self._beaten_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._seen: dict[str, Glance] = {}
        #: held while the lease is written: by the heart, or by who cannot wait for its next beat
        self._writing = asyncio.Lock()
        #: when a new lease was last asked for
        self._tried_at = float("-inf")
        #: how often the lease was lost
        self.lost = 0
        self._on_lost: LostHandler = lambda: None
        self._on_signal: SignalHandler | None = None
        self._busy: Callable[[], bool] = lambda: True
        self.worker_id = ""

    def attach(self, *, on_lost: LostHandler, on_signal: SignalHandler, busy: Callable[[], bool]) -> None:
        """What is called when the lease is lost, and when another process leaves word for a request."""
        self._on_lost, self._on_signal, self._busy = on_lost, on_signal, busy

    @property
    def held(self) -> bool:
        """Whether this process may still write for the requests it runs."""
        return self._records.clock.monotonic() - self._beaten_at < self._seconds

    @property
    def used(self) -> float:
        """How much of the lease has passed since the last beat, at most all of it."""
        return min(1.0, (self._records.clock.monotonic() - self._beaten_at) / self._seconds)

    async def ensure(self) -> None:
        """Returns where the lease is held; takes a new one where it had lapsed.

        `PersistenceUnavailable` where that cannot be done now.
        """
        if self.held:
            return
        async with self._writing:
            if not self.held and self._records.clock.monotonic() - self._tried_at >= GLANCE_SECONDS:
                await self._lost("it could not be renewed in time")
        if not self.held:
            raise PersistenceUnavailable(
                "This process could not renew its lease at the store. Try again shortly.", retry_after=2
            )

    async def start(self) -> None:
        await self._renew()
        self._task = asyncio.create_task(self._beat_for_ever(), name="lease")
        if self._records.store.shared:
            self._listener = asyncio.create_task(self._listen_for_ever(), name="signals")

    async def stop(self) -> None:
        """Retires the worker, so that no process has to wait for the lease to lapse."""
        for task in (self._task, self._listener):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = self._listener = None
        if self._version is not None:
            try:
                await self._write(dead=True)
            except (Conflict, TealError):
                log.warning("the lease could not be given back; it lapses in %s seconds", self._seconds)
        self._version = None
        self._beaten_at = float("-inf")

    # --- beating ---------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Takes a new id: what ran under the old one is another's to end."""
        self.worker_id = ids.random_id()
        self._key = f"worker/{self.worker_id}"
        self._version = None
        await self._write()

    async def _write(self, *, dead: bool = False) -> None:
        before = self._records.clock.monotonic()
        record = Worker(
            worker_id=self.worker_id,
            beat_at=await self._records.store.now(),
            lease_seconds=self._seconds,
            dead=dead,
            host=socket.gethostname(),
        )
        self._version = await self._records.commit(
            self._partition,
            marker=self._key,
            expect={self._key: self._version},
            put={self._key: record},
            ttl={self._key: FORGET_SECONDS},
        )
        self._beaten_at = float("-inf") if dead else before

    async def _beat_for_ever(self) -> None:
        while True:
            await self._records.clock.sleep(self._seconds / 3)
            async with self._writing:
                await self._beat()

    async def _beat(self) -> None:
        if not self.held:
            await self._lost("it could not be renewed in time")
            return
        try:
            await self._write()
        except Conflict:
            await self._contested()
        except TealError as error:
            log.warning("the lease could not be renewed: %s", error)

    async def _contested(self) -> None:
        """The lease is not as it was left: it was declared dead, or a beat's reply was lost."""
        try:
            found = await self._records.get(self._partition, self._key, Worker)
            if found is not None and not found.value.dead:
                self._version = found.version
                await self._write()
                return
        except TealError as error:
            log.warning("the lease could not be renewed: %s", error)
            return
        except Conflict:
            pass
        await self._lost("another process declared this one dead")

    async def _lost(self, why: str) -> None:
        if self._version is not None:
            log.error("lease lost: %s; the requests running here are dropped", why)
            self.lost += 1
        self._beaten_at = float("-inf")
        self._on_lost()
        try:
            await self._retire()
            await self._renew()
        except (Conflict, TealError) as error:
            log.warning("no new lease yet: %s", error)
        self._tried_at = self._records.clock.monotonic()

    async def _retire(self) -> None:
        """Marks the worker that this process was as dead, unless others have: none need wait for it."""
        if self._version is not None:
            with suppress(Conflict):
                await self._write(dead=True)
            self._version = None

    # --- others ----------------------------------------------------------------------------------

    async def dead(self, worker_id: str) -> bool:
        """Whether a worker is dead; if so it is also marked, so that it can never write again."""
        if worker_id == self.worker_id:
            return False
        seen = self._seen.get(worker_id)
        if seen is None or not (seen.dead or self._records.clock.monotonic() - seen.at < GLANCE_SECONDS):
            seen = await self._judge(worker_id, seen)
            if len(self._seen) > 10_000:
                self._seen.clear()
            self._seen[worker_id] = seen
        return seen.dead

    async def _judge(self, worker_id: str, seen: Glance | None) -> Glance:
        key = f"worker/{worker_id}"
        now = self._records.clock.monotonic()
        found = await self._records.get(self._partition, key, Worker)
        if found is None or found.value.dead:
            return Glance(now, dead=True)
        since = seen.since if seen is not None and seen.version == found.version else now
        lease = found.value.lease_seconds
        late = now - since > lease or await self._records.store.now() - found.value.beat_at > lease
        return Glance(now, late and await self._mark_dead(key, found), found.version, since)

    async def _mark_dead(self, key: str, found: Stored[Worker]) -> bool:
        try:
            await self._records.commit(
                self._partition,
                marker=key,
                expect={key: found.version},
                put={key: msgspec.structs.replace(found.value, dead=True)},
                ttl={key: FORGET_SECONDS},
            )
        except Conflict:
            return False  # it has just beaten, or another process marked it: look again
        log.warning("worker %s on %s is dead", found.value.worker_id, found.value.host)
        return True

    # --- signals ---------------------------------------------------------------------------------

    async def signal(self, worker_id: str, word: Word) -> None:
        """Leaves word for a worker of a request it runs."""
        key = f"signal/{word.request_id}"
        await self._records.commit(
            keys.signals(self._records.agent, worker_id),
            marker=key,
            put={key: word},
            ttl={key: 3600},
            notify=(_SIGNALS,),
        )

    async def _listen_for_ever(self) -> None:
        """Takes signals as they come. Its mailbox is the worker's: with a new lease there is a new one."""
        store = self._records.store
        while True:
            worker = self.worker_id
            async with store.watch(keys.signals(self._records.agent, worker), _SIGNALS) as watch:
                while worker == self.worker_id:
                    if self._busy():
                        try:
                            await self._listen()
                        except TealError as error:
                            log.warning("signals could not be read: %s", error)
                    while not await watch.wait(self._seconds, found=False):
                        if worker != self.worker_id or self._busy():
                            break

    async def _listen(self) -> None:
        partition = keys.signals(self._records.agent, self.worker_id)
        for key, record in await self._records.store.scan(partition, "signal/"):
            try:
                word = unseal(partition, key, record.value, Word)
            except CorruptState as error:
                log.warning("a signal from another process cannot be read: %s", error)
            else:
                if self._on_signal is not None:
                    await self._on_signal(word)
            await self._records.delete(partition, (key,))
