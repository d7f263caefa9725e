"""The events of a request, from memory where it runs here, else from the log."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Protocol

from tealagents.domain.errors import NotFound
from tealagents.domain.events import Recorded, Started, ending
from tealagents.domain.models import ENDED, RequestRecord
from tealagents.engine.run import Run
from tealagents.state.streams import KEPT_SECONDS
from tealagents.state.tasks import Tasks

#: seconds between two looks at the log of a request that runs elsewhere
LOOK_SECONDS = 0.25


class Runner(Protocol):
    """This process, as followers see it."""

    tasks: Tasks
    #: True once it has drained: what is not over by then goes on elsewhere
    closed: bool

    def run_of(self, request_id: str) -> Run | None: ...


async def follow(
    runner: Runner, partition: str, request_id: str, after: int
) -> AsyncIterator[Sequence[Recorded]]:
    """The events behind `after`, as many at a time as there are, to the one that ends the stream.

    Passes over decided pauses, and ends at a pending one; what comes after that is waited for. Ends without
    such an event only where the process does; the follower then goes on in another.
    """
    tasks = runner.tasks
    while True:
        run = runner.run_of(request_id)
        lost: BaseException | None = None
        if run is not None and after >= run.stream.base:
            async for batch in run.stream.events(after):
                yield batch
                after = batch[-1].id
            lost = run.outcome.exception()
            if lost is None:
                return
        record = (await tasks.request(partition, request_id)).value
        if lost is not None and record.status not in ENDED:
            raise lost  # the end could not be stored, or is no longer ours to tell
        if after < 1:
            waited = record.started_at != record.created_at  # and was told so when it came
            yield [Recorded(1, Started("Queued" if waited else "Running"))]
            after = 1
        stored = await tasks.streams.read(partition, request_id, after)
        if stored:
            after = stored[-1].id
            yield stored
            continue
        if record.status in ENDED or (record.status == "Paused" and after < record.last_event):
            yield [Recorded(record.last_event, ending(record))]
            return
        if run is not None and record.status != "Paused":
            after = run.stream.base  # the id of the decided pause, which is passed over
            continue
        if runner.closed:
            return
        await tasks.records.clock.sleep(LOOK_SECONDS)


def nothing_left(record: RequestRecord, after: int) -> bool:
    """Whether an ended request has no event behind `after`."""
    return record.status in ENDED and after >= record.last_event


def check_kept(tasks: Tasks, record: RequestRecord) -> None:
    """`NotFound` where the log has been forgotten."""
    kept = timedelta(seconds=KEPT_SECONDS)
    if record.ended_at is not None and record.ended_at + kept < tasks.records.clock.now():
        raise NotFound(
            "The events of a request are kept for 24 hours after its end. Read the request for its result.",
            request_id=record.request_id,
            task_id=record.task_id,
        )
