"""A user's requests, those whose status changed last first.

No index has that order, since it would be written with every change; the list is made when it is asked for.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, InvalidRequest, NotFound
from tealagents.domain.models import RequestRecord
from tealagents.state import keys
from tealagents.state.tasks import Tasks

#: records read at a time
PAGE = 200


class Changed(Struct, frozen=True, order=True):
    """A request, and when it came into the status that it has."""

    at: datetime
    request_id: str

    def __str__(self) -> str:
        return f"{self.at.isoformat()}/{self.request_id}"

    @classmethod
    def parse(cls, text: str, field: str) -> "Changed":
        """What `str` made a text of. `InvalidRequest`, naming `field`, for any other text."""
        at, _, request_id = text.partition("/")
        try:
            return cls(datetime.fromisoformat(at).astimezone(UTC), ids.canonical(request_id, field))
        except (ValueError, OverflowError):
            raise InvalidRequest(field, "is not one that this list gave out") from None


class LatestPage(Struct, frozen=True):
    """Some of the requests that are wanted, as they are by now."""

    records: list[RequestRecord]
    #: behind which the next page begins; None: this is the last
    last: Changed | None
    #: how many there are on all pages
    total: int


def changed_at(record: RequestRecord) -> datetime:
    """When a request came into the status that it has."""
    if record.pause is not None:
        return record.pause.created_at
    return record.ended_at or record.started_at or record.created_at


async def page(
    tasks: Tasks,
    partition: str,
    wanted: Callable[[RequestRecord], bool],
    *,
    behind: Changed | None = None,
    limit: int,
) -> LatestPage:
    """A page of the requests that are wanted."""
    found = await _latest(tasks, partition, wanted)
    due = [each for each in found if behind is None or each < behind]
    shown = due[:limit]
    records = [record for each in shown if (record := await _read(tasks, partition, each.request_id))]
    return LatestPage(records, shown[-1] if len(due) > limit else None, len(found))


async def _read(tasks: Tasks, partition: str, request_id: str) -> RequestRecord | None:
    """The request as it is by now; None where it was deleted or damaged meanwhile."""
    try:
        return (await tasks.request(partition, request_id)).value
    except (NotFound, CorruptState):
        return None


async def _latest(tasks: Tasks, partition: str, wanted: Callable[[RequestRecord], bool]) -> list[Changed]:
    """All requests that are wanted, but those of tasks that are gone. A damaged one hides no other."""
    found: list[Changed] = []
    there: dict[str, bool] = {}
    async for key, stored in tasks.records.every(partition, keys.request(""), page=PAGE):
        try:
            opened = await tasks.records.whole(partition, key, stored, RequestRecord)
        except CorruptState:
            continue  # reading it by its id reports it
        record = opened.value if opened else None
        if record is None or not wanted(record):
            continue
        if record.task_id not in there:
            there[record.task_id] = await _is_there(tasks, partition, record.task_id)
        if there[record.task_id]:
            found.append(Changed(changed_at(record), record.request_id))
    return sorted(found, reverse=True)


async def _is_there(tasks: Tasks, partition: str, task_id: str) -> bool:
    try:
        await tasks.head(partition, task_id)
    except NotFound:
        return False
    except CorruptState:
        pass  # it is there, in whatever state
    return True
