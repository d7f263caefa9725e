"""Commits transitions: the one place where the head of a living task is changed.

Every change of a task is read, decide, commit: `HeadCommits.transact` reads the head, asks a decider, and
writes the transition that it returns in one commit, a compare-and-set on the head.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext, suppress
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import Conflict, PersistenceUnavailable
from tealagents.domain.models import Head, RequestRecord
from tealagents.state import keys
from tealagents.state.begun import BegunRequests
from tealagents.state.out_of_line import Headless, blob_ref
from tealagents.state.owner_directory import Directory
from tealagents.state.records import RecordStore, Stored
from tealagents.state.removal import bury, drop_note, give_up
from tealagents.state.transitions import Transition, with_key

T = TypeVar("T")
F = TypeVar("F", bound="Stored[Head] | None")


class Written(Struct, frozen=True, kw_only=True):
    """The result of a commit."""

    partition: str
    head: Head
    #: of the head, and of the request if it was written
    version: str
    request: RequestRecord | None


class HeadCommits:
    """Commits the transitions of one agent's tasks."""

    def __init__(
        self, records: RecordStore, begun: BegunRequests, directory: Directory, key_seconds: float
    ) -> None:
        """`key_seconds`: for how long the idempotency key of a request that has not ended is stored."""
        self._records = records
        self._begun = begun
        self._directory = directory
        self._key_seconds = key_seconds

    async def transact(
        self,
        partition: str,
        look: Callable[[], Awaitable[F]],
        decide: Callable[[F], Awaitable[Transition | T]],
    ) -> Written | T:
        """Reads the head, decides, commits; starts over if the head has changed meanwhile.

        `look` reads the head, and whatever else the decision needs; it returns None for a new task. `decide`
        returns a `Transition`, or a result of the caller's own, which is returned. It raises `Conflict` if it
        knows that the head has changed, for example because it had to end a request first.
        """
        while True:
            found = await look()
            version = found.version if found is not None else None
            with suppress(Conflict):
                decided = await decide(found)
                if not isinstance(decided, Transition):
                    return decided
                return await self.commit(partition, decided, version=version)

    async def commit(
        self, partition: str, transition: Transition, *, version: str | None, operation: str | None = None
    ) -> Written:
        """Writes a transition if the head is still at this version; `Conflict` otherwise.

        The log record is the commit marker: no later commit overwrites it, so it shows whether a commit whose
        reply was lost was applied.
        """
        transition = with_key(transition, self._key_seconds)
        try:
            written = await self._commit(partition, transition, version, operation)
        except Headless:
            written = await self._commit_large(partition, transition, operation)
        if transition.drops:
            await self._erase(partition, transition.drops)
        return written

    async def _commit_large(self, partition: str, transition: Transition, operation: str | None) -> Written:
        """Writes a new task that is too large for one commit: it begins under a tombstone."""
        records, head = self._records, transition.head
        absent = {keys.task(head.task_id): None}
        making = await bury(records, partition, head, absent, making=True)
        try:
            written = await self._commit(partition, transition, making.version, operation)
        except Conflict:
            with suppress(Conflict):  # another message has taken the id that the client has chosen
                await give_up(records, self._directory, partition, making)
            raise
        try:
            with suppress(PersistenceUnavailable):  # the sweep drops an old note
                await drop_note(records, head, making=True)
        except BaseException:  # the request has begun, but no run will carry it on
            if transition.takes and written.request is not None:
                self._begun.abandon(partition, written.request.request_id)
            raise
        return written

    async def _commit(
        self, partition: str, transition: Transition, version: str | None, operation: str | None
    ) -> Written:
        try:
            return await self._write(partition, transition, version, operation)
        except Conflict:
            if transition.fresh:
                await self._erase(partition, self._chunks(partition, transition))
            raise

    def _chunks(self, partition: str, transition: Transition) -> list[str]:
        """The keys of all chunks that a transition stores out of line."""
        request, put = transition.request, transition.put
        if request is not None:
            put = {**put, keys.request(request.request_id): request}
        parts = [*transition.parts, *self._records.parts(partition, transition.entries, put)]
        return [key for part in parts for key in blob_ref(part).keys(transition.head.task_id)]

    async def _erase(self, partition: str, names: Collection[str]) -> None:
        """Erases unreferenced chunks; if the store is unavailable, they stay until their task is erased."""
        with suppress(PersistenceUnavailable):
            await self._records.delete(partition, names)

    async def _write(
        self, partition: str, transition: Transition, version: str | None, operation: str | None
    ) -> Written:
        request = transition.request
        grown = transition.head
        if grown.updated_at < grown.created_at:  # the clock was set back
            grown = replace(grown, updated_at=grown.created_at)
        for part in transition.parts:
            await self._records.put_part(partition, grown.task_id, part, version)
        head, log_key, log_record = await self._records.extended(
            partition, grown, transition.entries, version
        )
        put: dict[str, object] = {**transition.put, keys.task(head.task_id): head}
        if request is not None and request.ended_at is not None:
            put[keys.request(request.request_id)] = request
        put[log_key] = log_record
        if request is not None:
            # a new request last, an ended one (above) before its entries: a row that grows between full pages
            # makes SQLite write the neighboring pages, too
            put.setdefault(keys.request(request.request_id), request)
        taken = request if transition.takes else None
        taking = self._begun.beginning(partition, taken.request_id) if taken else nullcontext()
        try:
            with taking:
                written = await self._records.commit(
                    partition,
                    marker=log_key,
                    expect={**transition.expect, keys.task(head.task_id): version, log_key: None},
                    put=put,
                    ttl=transition.ttl,
                    operation=operation,
                    unsynced=transition.unsynced,
                    notify=_concerned(transition),
                )
        except PersistenceUnavailable as error:
            raise error.with_ids(**(request.ids if request else {"task_id": head.task_id})) from None
        return Written(partition=partition, head=head, version=written, request=request)


def _concerned(transition: Transition) -> list[str]:
    """The topics that a transition notifies: its request's followers, and requests in the task's queue."""
    head, request = transition.head, transition.request
    topics = []
    left_queue = request is not None and request.ended_at is not None and request.started_at is None
    if request is not None and not (transition.takes and request.pause is None and not request.approvals):
        topics.append(keys.request(request.request_id))
    if head.queue or left_queue:
        topics.append(keys.task(head.task_id))
    return topics
