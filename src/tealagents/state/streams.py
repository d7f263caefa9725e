"""A request's stream events, kept for replay.

The first event and the last are not stored, but made from the request's record, which holds the same values
and is committed with the end itself. So the log of an ended request never lacks them, and the answer is
stored once.

A batch is written only while the request's record is unchanged (the commit expects its version), so no
process can add to a log whose end was reported. An event that is too large for a batch is stored in parts;
the log has a reference to them.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from tealagents.domain.errors import Conflict, CorruptState
from tealagents.domain.events import Recorded, Started, TextDelta, ToolCalled
from tealagents.domain.models import RequestRecord
from tealagents.domain.ports import COMMIT_RECORDS
from tealagents.state import codec, keys
from tealagents.state.commits import portions
from tealagents.state.records import RecordStore

log = logging.getLogger(__name__)

#: the most events of one batch
BATCH_EVENTS = 256
#: bytes of one batch; an event larger than this is stored in parts
EVENT_BATCH_BYTES = 128 * 1024
#: batches read at once
READ_BATCHES = 8
#: characters of one part
PART_CHARACTERS = 128 * 1024
#: a running request that is ended from outside gets the last stored id plus this as the id of its last event:
#: followers cannot have seen a higher one
JUMP = 1001
#: seconds for which a log is kept after the request's end
KEPT_SECONDS = 86400.0
#: further seconds for which a log is kept: a request that is resumed within this time after its start, or
#: after its log was last rewritten, does not need its log rewritten to renew the expiry
SPARE_SECONDS = 3600.0


class Unfinished(Struct, frozen=True):
    """The last event and the answer so far, according to the log of a request that has not ended."""

    last_event: int
    output: str


class Parts(Struct, frozen=True):
    """Stored in the log in place of an event that is stored in parts."""

    event_id: int
    parts: int


EventBatch = list[Recorded] | Parts
_EVENT_BATCH = cast("type[EventBatch]", EventBatch)


def first_batch(events: Sequence[Recorded]) -> tuple[list[Recorded], bool]:
    """The first of `events` that make up one batch; and False if it is a single event that is too large."""
    batch = list(events[:BATCH_EVENTS])
    if len(codec.encode_json(batch)) <= EVENT_BATCH_BYTES:
        return batch, True
    batch = []
    room = EVENT_BATCH_BYTES
    for event in events[:BATCH_EVENTS]:
        room -= len(codec.encode_json(event))
        if room < 0:
            return (batch, True) if batch else ([event], False)
        batch.append(event)
    return batch, True


class StreamLog:
    """Writes and reads the events between a request's first and its last."""

    def __init__(self, records: RecordStore, ttl: float) -> None:
        self._records = records
        #: seconds for which a batch is kept: until more than a day after the latest possible end
        self.ttl = ttl

    async def write(self, partition: str, request_id: str, version: str, events: Sequence[Recorded]) -> int:
        """Stores the first batch of `events`; returns the id of its last event.

        `Conflict` if the request is no longer at `version`.
        """
        batch, fits = first_batch(events)
        key = keys.stream(request_id, batch[0].id)
        stored: EventBatch = batch
        if not fits:
            stored = await self._write_parts(partition, request_id, version, batch[0])
        try:
            await self._records.commit(
                partition,
                marker=key,
                expect={keys.request(request_id): version, key: None},
                put={key: stored},
                ttl={key: self.ttl},
                notify=(keys.request(request_id),),
            )
        except Conflict:
            return await self._written_before(partition, request_id, version, key)
        return batch[-1].id

    async def _write_parts(self, partition: str, request_id: str, version: str, event: Recorded) -> Parts:
        """Stores one large event; it is invisible until the batch that names its parts is written."""
        text = codec.encode_json(event).decode()
        parts = range(0, len(text), PART_CHARACTERS)
        for n, start in enumerate(parts):
            key = keys.stream_part(request_id, event.id, n)
            await self._records.commit(
                partition,
                marker=key,
                expect={keys.request(request_id): version},
                put={key: text[start : start + PART_CHARACTERS]},
                ttl={key: self.ttl},
            )
        return Parts(event.id, len(parts))

    async def _written_before(self, partition: str, request_id: str, version: str, key: str) -> int:
        """The last id of a batch that was stored by an in-doubt attempt."""
        request, batch = await self._records.store.read(partition, [keys.request(request_id), key])
        stored = self._records.open(partition, key, batch, _EVENT_BATCH)
        if request is None or request.version != version or stored is None:
            raise Conflict(key)
        return _last_id(stored.value)

    async def read(self, partition: str, request_id: str, after: int) -> AsyncIterator[list[Recorded]]:
        """The stored events after `after`: the rest of its batch, then `READ_BATCHES` at a time.

        A follower that is up to date, or one batch behind, costs the read of one batch.
        """
        newest = await self._scan(partition, request_id, None, limit=1, reverse=True)
        if not newest or _last_id(newest[0]) <= after:
            return
        batches = newest
        if _first_id(newest[0]) > after + 1:
            begun = keys.stream(request_id, after + 1)
            batches = await self._scan(partition, request_id, begun, limit=1, reverse=True)
            batches += await self._following(partition, request_id, after)
        while events := await self._events(partition, request_id, batches, after):
            yield events
            after = events[-1].id
            if after >= _last_id(newest[0]):
                return
            batches = await self._following(partition, request_id, after)

    async def _following(self, partition: str, request_id: str, after: int) -> list[EventBatch]:
        return await self._scan(partition, request_id, keys.stream(request_id, after), limit=READ_BATCHES)

    async def _scan(
        self, partition: str, request_id: str, after: str | None, *, limit: int, reverse: bool = False
    ) -> list[EventBatch]:
        found = await self._records.scan(
            partition, keys.streams(request_id), _EVENT_BATCH, after=after, limit=limit, reverse=reverse
        )
        return [batch for _, batch in found]

    async def _events(
        self, partition: str, request_id: str, batches: Sequence[EventBatch], after: int
    ) -> list[Recorded]:
        found: list[Recorded] = []
        for batch in batches:
            if not isinstance(batch, Parts):
                found += [event for event in batch if event.id > after]
            elif batch.event_id > after:
                found.append(await self._assembled(partition, request_id, batch))
        return found

    async def _assembled(self, partition: str, request_id: str, large: Parts) -> Recorded:
        names = [keys.stream_part(request_id, large.event_id, n) for n in range(large.parts)]
        texts: list[str] = []
        for name in names:
            part = await self._records.get(partition, name, str)
            if part is None:
                raise CorruptState(name, "is missing", request_id=request_id)
            texts.append(part.value)
        return codec.parse(names[0], "".join(texts).encode(), Recorded)

    async def unfinished(self, partition: str, request: RequestRecord) -> Unfinished:
        """The last event and the answer so far of a request whose process cannot be asked.

        A damaged log gives only a last event: events are not part of the task, and must not block it.
        """
        last = 1
        texts: list[str] = []
        try:
            async for events in self.read(partition, request.request_id, last):
                for recorded in events:
                    if isinstance(recorded.event, TextDelta):
                        texts.append(recorded.event.text)
                    elif isinstance(recorded.event, ToolCalled | Started):
                        texts.clear()  # text before tool calls is not part of the answer
                last = events[-1].id
        except CorruptState as error:
            log.error("the events of request %s cannot be read: %s", request.request_id, error)
            last = await self._farthest(partition, request.request_id)
            texts.clear()
        if request.pause is not None:  # its calls came after all text
            texts.clear()
        return Unfinished(max(last, request.last_event), "".join(texts))

    async def _farthest(self, partition: str, request_id: str) -> int:
        """The highest id that a log can hold, judging by the keys of its batches alone."""
        newest = await self._records.store.scan(partition, keys.streams(request_id), limit=1, reverse=True)
        return int(keys.last_segment(newest[0][0])) + BATCH_EVENTS if newest else 1

    async def keep(self, partition: str, request_id: str, version: str) -> None:
        """Renews the expiry of a log after its request was resumed, by writing it again.

        `Conflict` if the request is no longer at `version`, so that erased events do not come back.
        """
        unchanged = {keys.request(request_id): version}
        for prefix, kind in ((keys.streams(request_id), _EVENT_BATCH), (keys.stream_parts(request_id), str)):
            await self._keep_under(partition, prefix, kind, unchanged)

    async def _keep_under(
        self, partition: str, prefix: str, kind: type[Any], unchanged: Mapping[str, str]
    ) -> None:
        after: str | None = None
        while found := await self._records.scan(partition, prefix, kind, after=after, limit=COMMIT_RECORDS):
            for put in portions(dict(found)):
                ttl = dict.fromkeys(put, self.ttl)
                await self._records.commit(
                    partition, marker=next(iter(put)), expect=unchanged, put=put, ttl=ttl
                )
            after = found[-1][0]


def _first_id(batch: EventBatch) -> int:
    return batch.event_id if isinstance(batch, Parts) else batch[0].id


def _last_id(batch: EventBatch) -> int:
    return batch.event_id if isinstance(batch, Parts) else batch[-1].id
