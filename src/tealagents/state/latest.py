"""A user's requests, the last changed ones first.

There is no index in this order, since it would have to be written with every change of a status; all requests
are read for each page.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, InvalidRequest, NotFound
from tealagents.domain.models import ENDED, Head, RequestRecord
from tealagents.state import batches, keys
from tealagents.state.catalog import Catalog, Damaged
from tealagents.state.tasks import Tasks

#: records read at a time
PAGE = 200


class Changed(Struct, frozen=True, order=True):
    """A request, and when it reached its current status."""

    at: datetime
    request_id: str

    def __str__(self) -> str:
        at = self.at.isoformat().replace("+00:00", "Z")  # in the query of a URL, a plus is a space
        return f"{at}/{self.request_id}"

    @classmethod
    def parse(cls, text: str, field: str) -> "Changed":
        """The inverse of `str`. `InvalidRequest`, naming `field`, for any other text."""
        at, _, request_id = text.partition("/")
        try:
            return cls(datetime.fromisoformat(at).astimezone(UTC), ids.canonical(request_id, field))
        except (ValueError, OverflowError):
            raise InvalidRequest(field, "must be a page token that this list returned") from None


class LatestPage(Struct, frozen=True):
    """A page of the wanted requests, as they are now."""

    records: list[RequestRecord]
    #: the next page begins after this; None: this page is the last
    last: Changed | None
    #: the number of requests on all pages
    total: int


async def page(
    tasks: Tasks,
    partition: str,
    wanted: Callable[[RequestRecord], bool],
    *,
    behind: Changed | None = None,
    limit: int,
) -> LatestPage:
    """A page of the requests for which `wanted` is true, after `behind`.

    It is short where some were deleted, or have changed so that they are not wanted, since they were found.
    """
    found = await _latest(tasks, partition, wanted)
    due = [each for each in found if behind is None or each < behind]
    shown = due[:limit]
    read = await batches.each(partial(_read, tasks, partition), [each.request_id for each in shown])
    records = [record for record in read if record is not None and wanted(record)]
    return LatestPage(records, shown[-1] if len(due) > limit else None, len(found))


async def _read(tasks: Tasks, partition: str, request_id: str) -> RequestRecord | None:
    """The request as it is now; None if it was deleted or damaged meanwhile."""
    try:
        return (await tasks.request(partition, request_id, reading=True)).value
    except (NotFound, CorruptState):
        return None


async def _latest(tasks: Tasks, partition: str, wanted: Callable[[RequestRecord], bool]) -> list[Changed]:
    """All wanted requests except those of deleted tasks, newest first. Damaged records are left out."""
    found: list[tuple[Changed, str]] = []
    under_way: list[RequestRecord] = []
    async for key, stored in tasks.records.every(partition, keys.request(""), page=PAGE):
        try:
            opened = await tasks.records.whole(partition, key, stored, RequestRecord)
        except CorruptState:
            continue  # the damage is reported when the request is read by its id
        if opened is None:
            continue
        if (record := opened.value).status not in ENDED:
            under_way.append(record)
        elif wanted(record):
            found.append((_changed(record), record.task_id))
    task_ids = [*(task_id for _, task_id in found), *(record.task_id for record in under_way)]
    there = await _there(tasks, partition, list(dict.fromkeys(task_ids)))

    async def current(record: RequestRecord) -> RequestRecord | None:
        head = there.get(record.task_id)
        # as was due, or since it was read
        ended = isinstance(head, Head) and not head.names(record.request_id)
        return await _read(tasks, partition, record.request_id) if ended else record

    for now in await batches.each(current, under_way):
        if now is not None and wanted(now):
            found.append((_changed(now), now.task_id))
    return sorted((each for each, task_id in found if task_id in there), reverse=True)


def _changed(record: RequestRecord) -> Changed:
    return Changed(record.changed_at, record.request_id)


async def _there(tasks: Tasks, partition: str, task_ids: Sequence[str]) -> dict[str, Head | Damaged]:
    """Those of the tasks that exist, damaged ones included, after what was due on them has ended."""
    catalog = Catalog(tasks)
    there: dict[str, Head | Damaged] = {}
    for start in range(0, len(task_ids), PAGE):
        some = task_ids[start : start + PAGE]
        heads = await catalog.heads(partition, some)
        there |= {task_id: head for task_id, head in zip(some, heads, strict=True) if head is not None}
    return there
