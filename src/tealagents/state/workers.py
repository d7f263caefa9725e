"""One lease per process, however many requests it runs.

==========  ===========================================================
`Lease`     this process's lease: renewed, lost, taken anew
`Peers`     the other processes: which are dead, and signals to the others
`Mailbox`   the signals of other processes to this one
==========  ===========================================================

A worker renews its lease (a *beat*) every third of it, and retries soon after a failed beat: a store that is
away for less than the lease costs no request. A beat that is not answered within a fifth of the lease (at
least a second; longer after failures) has failed: the next may use another connection. Any process that finds
a beat older than the lease, by the store's clock, may mark the worker dead, by compare-and-set, and only then
end its requests. It may also do so if a beat has not changed for a whole lease, in case clocks were set back.
A worker that finds itself marked, or that could not beat for a whole lease, drops its requests and takes a
new id.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
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

#: seconds until a failed beat is retried
RETRY_SECONDS = 0.25
#: the least time for a beat, in seconds, however short the lease
LEAST_BEAT_SECONDS = 1.0
#: seconds that the process waits at its end for the lease to be returned
LAST_BEAT_SECONDS = 2.0
#: seconds for which a look at another worker is reused, and between attempts to get a new lease
GLANCE_SECONDS = 0.5
#: the version of a lease that cannot be read
_DAMAGED = "damaged"
#: seconds after its last write for which the store keeps a worker's record
FORGET_SECONDS = 7 * 86400.0


class Signal(Struct, frozen=True, kw_only=True):
    """`signal/{worker_id}/{request_id}`: asks the process that runs a request to end it."""

    request_id: str
    #: the key of the user who asked, or `transitions.SERVICE`
    actor: str
    #: the request has to give way to a newer message
    superseded: bool = False
    #: the request's number of pauses when the signal was sent; if it has paused since, the signal is ignored
    pauses: int | None = None


class Lease:
    """This process's lease."""

    def __init__(self, records: RecordStore, seconds: float) -> None:
        self.seconds = seconds
        self.worker_id = ""
        #: how often the lease was lost
        self.losses = 0
        #: it is lost, and no new one was taken yet
        self._is_lost = False
        self._records = records
        self._partition = keys.workers(records.agent)
        self._version: str | None = None
        self._beaten_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        #: held while the lease is written, by `_beat_for_ever` or by `ensure`
        self._writing = asyncio.Lock()
        #: when a new lease was last asked for
        self._tried_at = float("-inf")
        #: ids under which the lease was lost, until they are taken by `lost`
        self._lost_ids = asyncio.Queue[str]()

    async def lost(self) -> str:
        """Waits until a lease is lost; returns its worker id, whose requests have to be dropped."""
        return await self._lost_ids.get()

    @property
    def held(self) -> bool:
        """Whether this process may still write for the requests it runs."""
        return self._records.clock.monotonic() - self._beaten_at < self.seconds

    @property
    def used(self) -> float:
        """The part of the lease that has passed since the last beat, from 0 to 1; 0 while there is none to
        lose, because none was taken yet or it was returned."""
        if self._version is None and not self._is_lost:
            return 0.0
        return min(1.0, (self._records.clock.monotonic() - self._beaten_at) / self.seconds)

    async def ensure(self) -> None:
        """Makes sure that the lease is held: takes a new one if it has lapsed.

        `PersistenceUnavailable` if that is impossible now.
        """
        if self.held:
            return
        async with self._writing:
            if not self.held and self._records.clock.monotonic() - self._tried_at >= GLANCE_SECONDS:
                await self._lose("it could not be renewed in time")
        if not self.held:
            raise PersistenceUnavailable(
                "This process could not renew its lease at the store. Try again shortly."
            )

    async def start(self) -> None:
        await self._renew()
        self._task = asyncio.create_task(self._beat_for_ever(), name="lease")

    async def stop(self) -> None:
        """Retires the worker, so that no process has to wait for the lease to lapse."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._version is not None:
            try:
                async with asyncio.timeout(LAST_BEAT_SECONDS):
                    await self._write(dead=True)
            except (Conflict, TealError, TimeoutError):
                log.warning("the lease could not be returned; it expires in %s seconds", self.seconds)
        self._version = None
        self._beaten_at = float("-inf")

    @property
    def _key(self) -> str:
        return keys.worker(self.worker_id)

    async def _renew(self) -> None:
        """Takes a lease under a new id; requests of the old one are left to other processes to end."""
        self.worker_id = ids.random_id()
        self._version = None
        await self._write()
        if self._is_lost:
            log.info("a new lease is held: this process serves again, as worker %s", self.worker_id)
        self._is_lost = False

    async def _write(self, *, dead: bool = False) -> None:
        before = self._records.clock.monotonic()
        record = Worker(
            worker_id=self.worker_id,
            beat_at=await self._records.store.now(),
            lease_seconds=self.seconds,
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
        failures = 0
        while True:
            pause = min(RETRY_SECONDS, self.seconds / 10) if failures else self.seconds / 3
            await self._records.clock.sleep(pause)
            async with self._writing:
                failures = 0 if await self._beat(failures) else failures + 1

    async def _beat(self, failures: int) -> bool:
        """Renews the lease, or takes a new one; returns whether that succeeded.

        The first attempt times out soon, so that another connection replaces a dead one; each retry gives a
        slow store more time. Only the first of several failures in a row is logged.
        """
        began = self._records.clock.monotonic()
        longer = 2 ** min(failures, 3)
        limit = max(LEAST_BEAT_SECONDS, self.seconds / 5) * longer if self.held else self.seconds
        try:
            async with asyncio.timeout(min(limit, self.seconds)):
                if self.held:
                    await self._keep()
                else:
                    await self._lose("it could not be renewed in time")
        except Exception as error:  # any error: without further beats, all requests would be dropped
            if not failures:
                fault = None if isinstance(error, TealError | TimeoutError) else error
                text = str(error) or "no answer in time"
                log.warning("the lease could not be renewed: %s", text, exc_info=fault)
        return self._beaten_at >= began

    async def _keep(self) -> None:
        """Writes the lease, even if its version has changed because a beat's reply was lost."""
        with suppress(Conflict):
            await self._write()
            return
        found = await self._records.get(self._partition, self._key, Worker)
        if found is not None and not found.value.dead:
            self._version = found.version
            with suppress(Conflict):
                await self._write()
                return
        await self._lose("another process declared this one dead")

    async def _lose(self, why: str) -> None:
        first = self._version is not None and not self._is_lost
        if first:
            log.error("lease lost: %s; the requests running here are dropped", why)
            self.losses += 1
            self._is_lost = True
            self._lost_ids.put_nowait(self.worker_id)
        self._beaten_at = float("-inf")
        try:
            await self._retire()
            await self._renew()
        except (Conflict, TealError) as error:
            if first:
                log.warning("no new lease yet: %s", error)
        finally:
            self._tried_at = self._records.clock.monotonic()

    async def _retire(self) -> None:
        """Marks this process's old worker dead, unless others have, so that no one waits for its lease."""
        if self._version is not None:
            with suppress(Conflict):
                await self._write(dead=True)
            self._version = None


class Glance(Struct, frozen=True):
    """The result of a look at another worker's lease."""

    #: when, by this process's own clock
    at: float
    dead: bool
    #: the version of the beat, and since when it has been the same
    version: str = ""
    since: float = 0


class Peers:
    """The other processes that share the store."""

    def __init__(self, records: RecordStore, lease: Lease) -> None:
        self._records = records
        self._partition = keys.workers(records.agent)
        self._lease = lease
        self._seen: dict[str, Glance] = {}
        #: looks under way, shared by all callers
        self._looks: dict[str, asyncio.Task[Glance]] = {}

    async def dead(self, worker_id: str) -> bool:
        """Whether a worker is dead. If so, it is also marked, so that it can never write again."""
        if worker_id == self._lease.worker_id:
            return False
        seen = self._seen.get(worker_id)
        if seen is not None and (seen.dead or self._records.clock.monotonic() - seen.at < GLANCE_SECONDS):
            return seen.dead
        look = self._looks.get(worker_id)
        if look is None:
            look = self._looks[worker_id] = asyncio.create_task(self._look(worker_id, seen))
            look.add_done_callback(lambda _: self._looks.pop(worker_id))
        return (await asyncio.shield(look)).dead

    async def _look(self, worker_id: str, seen: Glance | None) -> Glance:
        glance = await self._judge(worker_id, seen)
        if len(self._seen) > 10_000:
            self._seen.clear()
        self._seen[worker_id] = glance
        return glance

    async def _judge(self, worker_id: str, seen: Glance | None) -> Glance:
        key = keys.worker(worker_id)
        now = self._records.clock.monotonic()
        try:
            found = await self._records.get(self._partition, key, Worker)
        except CorruptState as damage:
            return await self._judge_damaged(key, now, seen, damage)
        if found is None or found.value.dead:
            return Glance(now, dead=True)
        lease = found.value.lease_seconds
        if seen is not None and seen.version != found.version and now - seen.at < lease:
            return Glance(now, dead=False, version=found.version, since=now)  # it has beaten since
        since = seen.since if seen is not None and seen.version == found.version else now
        late = now - since > lease or await self._records.store.now() - found.value.beat_at > lease
        return Glance(now, late and await self._mark_dead(key, found), found.version, since)

    async def _judge_damaged(self, key: str, now: float, seen: Glance | None, damage: CorruptState) -> Glance:
        """A live process overwrites a damaged record; it is deleted if it stays damaged for a lease."""
        since = seen.since if seen is not None and seen.version == _DAMAGED else now
        if now - since <= self._lease.seconds:
            return Glance(now, dead=False, version=_DAMAGED, since=since)
        log.warning("a lease cannot be read and its process is taken for dead: %s", damage)
        await self._records.delete(self._partition, (key,))
        return Glance(now, dead=True)

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

    async def signal(self, worker_id: str, signal: Signal) -> None:
        """Leaves a signal for a worker, about a request that it runs."""
        mailbox = keys.signals(worker_id)
        key = mailbox + signal.request_id
        await self._records.commit(
            self._partition, marker=key, put={key: signal}, ttl={key: 3600}, notify=(mailbox,)
        )


class Mailbox:
    """The signals for this process, addressed to its worker id: with a new lease, it starts empty."""

    def __init__(self, records: RecordStore, lease: Lease) -> None:
        self._records = records
        self._partition = keys.workers(records.agent)
        self._lease = lease

    async def wakeups(self) -> AsyncIterator[None]:
        """Yields when there may be signals: at once, whenever one is sent, and otherwise once per lease.

        Ends at once if the store is not shared.
        """
        store, lease = self._records.store, self._lease
        while store.shared:
            worker = lease.worker_id
            async with store.watch(self._partition, keys.signals(worker)) as watch:
                while worker == lease.worker_id:
                    yield
                    await watch.wait(lease.seconds, found=False)

    async def signals(self) -> AsyncIterator[Signal]:
        """The signals so far. Each is removed when the next one is requested."""
        async for key, record in self._records.every(self._partition, keys.signals(self._lease.worker_id)):
            try:
                signal = unseal(self._partition, key, record.value, Signal)
            except CorruptState as error:
                log.warning("a signal from another process cannot be read: %s", error)
            else:
                yield signal
            await self._records.delete(self._partition, (key,))
