"""Requests that run in another process, followed from this one."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any

import pytest
from engine_setup import (
    ADA,
    Faulty,
    Process,
    Scripted,
    Shared,
    Watched,
    calls,
    nothing,
    noting,
    process,
    says,
    waits,
)
from msgspec.structs import replace

from tealagents.domain.errors import Interrupted, NotFound, PersistenceUnavailable
from tealagents.domain.events import (
    Canceled,
    Completed,
    Failed,
    ModelDone,
    ModelEvent,
    Recorded,
    Started,
    TextDelta,
)
from tealagents.domain.ids import operation_id
from tealagents.domain.models import Failure, Head, RequestRecord, Session, ToolCall, User
from tealagents.domain.ports import Commit, ModelCall, Put, Record
from tealagents.engine import wait_queue
from tealagents.engine.approvals import Command
from tealagents.engine.event_buffer import EventBuffer
from tealagents.engine.following import CHECK_SECONDS
from tealagents.engine.run import TASK_GONE
from tealagents.state import keys
from tealagents.state.pruning import UserErasure
from tealagents.state.session_deletion import SessionDeletion
from tealagents.state.streams import JUMP
from tealagents.state.tasks import SOONEST_LOOK_SECONDS, next_look
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock, advance
from tealagents.testing.counting import CountingOptions, CountingStore, StoreOperation
from tealagents.testing.waits import eventually


class Silent(Shared):
    """Its notifications are all lost."""

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, replace(commit, notify=()))


class Remote(CountingStore):
    """Counts, and does not answer at once."""

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        await asyncio.sleep(0)
        return await super().read(partition, keys)


async def test_followers_of_what_is_deleted_meanwhile_hear_so() -> None:
    """In the process that runs it, and in others: not that their id would be wrong."""
    store, gate = Shared(), asyncio.Event()
    async with process(store, Scripted(waits(gate))) as here, process(store) as there:
        sent = await here.send(streamed=True)
        request_id = sent.request.request_id
        following = [asyncio.create_task(each.followed(request_id)) for each in (here, there)]
        while not (here.model.calls and there.service.followers._followed):
            await asyncio.sleep(0)
        await UserErasure(there.eraser, ADA.user).erase()
        gate.set()
        for each in await asyncio.gather(*following, return_exceptions=True):
            assert isinstance(each, NotFound)
            assert each.detail == TASK_GONE


@pytest.mark.parametrize("status", ["Paused", "Completed"])
async def test_a_stream_whose_task_is_deleted_meanwhile_has_no_gap(status: str) -> None:
    """After whichever read the deletion comes: the follower gets all events, or an error."""
    call = (ToolCall("c1", "Shell-delete", "{}"),) if status == "Paused" else ()

    async def answer(_: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        for text in ("one", "two"):
            yield TextDelta(text)
        yield ModelDone(finish_reason="tool_calls" if call else "stop", tool_calls=call, model="scripted")

    store, deleted_after = Shared(), 0
    watched = Watched(store)
    async with process(store, Scripted(answer), noting([], governed=True)) as here, process(watched) as there:
        while watched.points >= deleted_after:  # until the stream is over before
            watched.there, deleted_after = nothing, deleted_after + 1
            request = await here.ask(streamed=True)
            assert request.status == status

            async def delete(point: int, task_id: str = request.task_id, after: int = deleted_after) -> None:
                if point == after:
                    await here.eraser.delete_task(here.partition(), task_id)

            seen, watched.points, watched.there = list[int](), 0, delete
            with suppress(NotFound):
                async for events in there.service.follow(there.partition(), request.request_id, 0):
                    seen += [each.id for each in events]
                assert seen[-1] == request.last_event
            assert seen == [*range(1, len(seen) + 1)], deleted_after
    assert seen[-1] == request.last_event
    assert deleted_after > 3


@pytest.mark.parametrize("deleted_after", [1, 2, 3, 4])
async def test_a_stream_that_runs_elsewhere_has_no_gap_where_its_task_is_deleted_at_its_end(
    deleted_after: int,
) -> None:
    """It ends after the first read with which the follower looks for news; the deletion comes later."""
    news, end = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("one")
        await news.wait()
        yield TextDelta("two")
        await end.wait()
        yield TextDelta("three")
        yield ModelDone(finish_reason="stop", tool_calls=(), model="scripted")

    store = Shared()
    watched = Watched(store)
    async with process(store, Scripted(answer)) as here, process(watched) as there:
        request = (await here.send(streamed=True)).request
        seen: list[int] = []

        async def follow() -> None:
            async for events in there.service.follow(there.partition(), request.request_id, 0):
                seen.extend(each.id for each in events)

        async def meanwhile(point: int) -> None:
            if point == 1:
                end.set()
                while (await here.request(request.request_id)).status == "Running":
                    await asyncio.sleep(0.01)
            if point == deleted_after:
                watched.there = nothing
                await here.eraser.delete_task(here.partition(), request.task_id)

        following = asyncio.create_task(follow())
        await eventually(lambda: seen == [1, 2])
        watched.points, watched.there = 0, meanwhile
        news.set()
        with suppress(NotFound):
            async with asyncio.timeout(30):
                await following
    assert seen == [*range(1, len(seen) + 1)]


async def test_a_request_that_the_store_has_lost_was_interrupted_and_its_task_is_not_called_gone() -> None:
    """A crash of the store undoes its first commit: its sender and its followers in any process hear so."""
    store, gate = Shared(), asyncio.Event()
    model = Scripted(says("hello"), waits(gate))
    async with process(store, model, concurrency="enqueue") as here, process(store) as there:
        task_id = (await here.ask()).task_id
        before = dict(await contents(store, here.partition()))
        sent = await here.send("more", task_id)
        queued = await here.send("later", task_id)
        request_id = sent.request.request_id
        hearing = [
            asyncio.create_task(here.service.outcome(sent)),
            *(asyncio.create_task(each.followed(request_id)) for each in (here, there)),
        ]
        while not (len(model.calls) == 2 and there.service.followers._followed):
            await asyncio.sleep(0)
        lost = [key for key, _ in await contents(store, here.partition()) if key not in before]
        put = {key: Put(record.value) for key, record in before.items()}
        await store.commit(here.partition(), Commit(operation=operation_id(), put=put))
        back = Commit(operation=operation_id(), delete=lost, notify={keys.request(request_id)})
        await store.commit(here.partition(), back)
        gate.set()
        for each in await asyncio.gather(*hearing, return_exceptions=True):
            assert isinstance(each, Interrupted)
            assert each.ids["request_id"] == request_id
        with pytest.raises(Interrupted) as unstarted:
            await here.service.outcome(queued)
        assert unstarted.value.ids["request_id"] == queued.request.request_id
        assert (await here.ask("again", task_id)).status == "Completed"


async def contents(store: Shared, partition: str) -> list[tuple[str, Record]]:
    return await store.scan(partition, "", limit=500)


#: asks for a tool that a human has to approve
DELETE = calls(ToolCall("c1", "Shell-delete", "{}"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def pass_by(clock: FakeClock, seconds: float) -> None:
    """Lets time pass, and what was due happen."""
    clock.advance(seconds)
    for _ in range(100):
        await asyncio.sleep(0)


async def expire(clock: FakeClock, seconds: float) -> None:
    """Lets the timers of watches pass as well."""
    clock.advance(seconds)
    advance(asyncio.get_running_loop(), seconds)


async def test_silent_requests_cost_one_look_at_the_process_that_runs_them(clock: FakeClock) -> None:
    """However many requests of it are followed, and by how many: nothing else is asked of the store."""
    store = Remote(CountingOptions())
    model = Scripted(waits(asyncio.Event()))
    async with (
        process(store, model, clock=clock, lease_seconds=3000) as here,
        process(store, clock=clock, lease_seconds=3000) as there,
    ):
        sent = [await here.send(streamed=True) for _ in range(20)]
        following = [
            asyncio.ensure_future(there.followed(each.request.request_id)) for each in sent for _ in range(5)
        ]
        await pass_by(clock, 0)
        await pass_by(clock, CHECK_SECONDS)
        store.operations.clear()
        for _ in range(3):
            await pass_by(clock, CHECK_SECONDS)
        assert store.operations == Counter(
            {StoreOperation("read", "workers"): 3, StoreOperation("now", ""): 3}
        )
        for each in following:
            each.cancel()


@pytest.mark.parametrize("lease", [15.0, 2.0])
async def test_followers_learn_that_the_process_has_died(clock: FakeClock, lease: float) -> None:
    """All requests of a dead process end, and their followers see it though no notification came.

    Two leases after its death at the latest. covers: STATE-4
    """
    store = Silent(clock=lambda: clock.now().timestamp())
    async with process(store, clock=clock, lease_seconds=lease) as there:
        dead = Process(store, Scripted(waits(asyncio.Event())), clock=clock, lease_seconds=lease)
        await dead.lease._renew()
        sent = [await dead.send(streamed=True) for _ in range(3)]
        following = [asyncio.ensure_future(there.followed(each.request.request_id)) for each in sent]
        await pass_by(clock, 1)
        assert not any(each.done() for each in following)
        await pass_by(clock, 2 * lease - 1)
        assert all(each.done() for each in following)
        for events in await asyncio.gather(*following):
            assert isinstance(events[-1].event, Failed)
            assert events[-1].event.error.code == "interrupted"


async def test_who_joins_after_a_process_has_died_gets_the_end_whose_number_jumps(clock: FakeClock) -> None:
    """As those did who followed before: that events seem to be missing is no error. covers: STATE-4"""
    store = Silent(clock=lambda: clock.now().timestamp())
    async with process(store, clock=clock) as there:
        dead = Process(store, Scripted(waits(asyncio.Event(), "one")), clock=clock)
        await dead.lease._renew()
        request_id = (await dead.send(streamed=True)).request.request_id
        following = asyncio.create_task(there.followed(request_id))
        await pass_by(clock, 1)
        await pass_by(clock, 30)
        seen = await following
        assert seen[-1].id > JUMP
        assert await there.followed(request_id) == seen


async def test_what_waits_its_turn_at_the_end_of_a_drain_is_an_error_to_who_follows_it(
    clock: FakeClock,
) -> None:
    """Its end is stored, and its stream does not break off. What runs elsewhere is followed there."""
    store = Silent(clock=lambda: clock.now().timestamp())
    options: Any = {"concurrency": "enqueue", "clock": clock}
    async with process(store, Scripted(waits(asyncio.Event())), **options) as there:
        running = (await there.send(streamed=True)).request
        async with process(store, **options) as here:
            queued = (await here.send("next", running.task_id, streamed=True)).request
            following = [asyncio.create_task(here.followed(one.request_id)) for one in (queued, running)]
            await pass_by(clock, 0)
            await here.service.drain(0)
            of_queued, of_running = await asyncio.gather(*following)
    assert [type(each.event) for each in of_queued] == [Started, Failed]
    assert [type(each.event) for each in of_running] == [Started]


async def behind_the_pause(here: Process, paused: RequestRecord) -> asyncio.Task[list[Recorded]]:
    """A follower that has seen the pause and waits for what comes of it."""
    following = asyncio.create_task(here.followed(paused.request_id, paused.last_event))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not following.done()
    return following


async def test_who_waits_behind_a_pause_learns_that_the_process_that_resumed_it_has_died(
    clock: FakeClock,
) -> None:
    """It died right after it had stored the decision, before it notified others. covers: STATE-4"""
    store = Silent(clock=lambda: clock.now().timestamp())
    async with process(store, Scripted(DELETE), noting([], governed=True), clock=clock) as there:
        paused = await there.ask()
        following = await behind_the_pause(there, paused)
        dead = Process(store, Scripted(waits(asyncio.Event())), noting([], governed=True), clock=clock)
        await dead.lease._renew()
        await dead.approvals.resume(ADA, paused.request_id, Command(action="approve"), streamed=True)
        await pass_by(clock, 2 * dead.lease.seconds)
        seen = await asyncio.wait_for(following, 30)
    assert isinstance(seen[-1].event, Failed)
    assert seen[-1].event.error.code == "interrupted"


async def test_who_waits_behind_a_pause_learns_at_once_that_its_task_was_deleted(clock: FakeClock) -> None:
    """The deletion wakes them; no time has to pass."""
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    async with process(store, Scripted(DELETE), noting([], governed=True), clock=clock) as here:
        paused = await here.ask()
        following = await behind_the_pause(here, paused)
        await here.eraser.delete_task(here.partition(), paused.task_id)
        with pytest.raises(NotFound) as gone:
            await following
        assert gone.value.ids["request_id"] == paused.request_id


@pytest.mark.parametrize("how", ["task", "session", "expiry"])
async def test_who_waits_behind_a_pause_learns_that_its_task_is_gone(how: str, clock: FakeClock) -> None:
    """However it went, and though no notification came."""
    store = Silent(clock=lambda: clock.now().timestamp())
    async with process(store, Scripted(DELETE), noting([], governed=True), clock=clock) as here:
        paused = await here.ask()
        following = await behind_the_pause(here, paused)
        partition = here.partition()
        if how == "task":
            await here.eraser.delete_task(partition, paused.task_id)
        elif how == "session":
            await here.eraser.delete_session(partition, paused.session_id)
        else:
            at = clock.now() + timedelta(seconds=1)
            await here.changes.patch(
                partition, paused.task_id, User("mock", "ada"), metadata={}, expires_at=at
            )
        await pass_by(clock, CHECK_SECONDS)
        assert following.done()
        with pytest.raises(NotFound) as gone:
            await following
        assert gone.value.ids == {"request_id": paused.request_id, "task_id": paused.task_id}
        assert ("expired" if how == "expiry" else "deleted") in gone.value.detail


async def test_a_deletion_that_is_refused_ends_no_message_that_waits_and_no_stream(clock: FakeClock) -> None:
    """Between its mark and its restoration, the session's tasks are found by no reader. covers: TASK-5"""
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    options: Any = {"concurrency": "enqueue", "clock": clock}
    goes_on = asyncio.Event()
    async with process(store, Scripted(waits(goes_on), says("two")), **options) as there:
        running = (await there.send(streamed=True)).request
        queued = (await there.send("next", running.task_id, streamed=True)).request
        async with process(store, **options) as here:
            following = asyncio.create_task(here.followed(queued.request_id))
            await pass_by(clock, 0)
            partition, key = here.partition(), keys.task(running.task_id)
            session = await here.tasks.records.get(partition, keys.session(running.session_id), Session)
            head = await here.tasks.records.get(partition, key, Head)
            assert session is not None
            assert head is not None
            deletion = SessionDeletion(here.tasks, partition, session)
            await deletion.mark(if_empty=True)
            await here.tasks.records.commit(
                partition, marker=key, expect={key: head.version}, put={key: head.value}
            )
            await pass_by(clock, CHECK_SECONDS)
            assert not following.done()
            assert not await deletion.erase_if_empty()
            goes_on.set()
            async with asyncio.timeout(30):
                events = await following
        assert isinstance(events[-1].event, Completed)


async def test_who_waits_behind_a_pause_learns_that_it_has_expired_when_it_does(clock: FakeClock) -> None:
    """No round of checks has to come first. The request ends at the moment until which it could be decided.
    covers: HITL-1, STATE-4"""
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    options: Any = {"clock": clock, "limits": {"approval_expiry_seconds": 3}}
    async with process(store, Scripted(DELETE), noting([], governed=True), **options) as here:
        paused = await here.ask()
        following = await behind_the_pause(here, paused)
        await expire(clock, 3)
        async with asyncio.timeout(30):
            events = await following
        assert paused.pause is not None
        assert (await here.request(paused.request_id)).ended_at == paused.pause.expires_at
    assert isinstance(events[-1].event, Canceled)
    assert events[-1].event.error.code == "approval_expired"


async def test_a_message_behind_a_pause_begins_when_that_expires(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However rarely its queue is looked at while nothing happens. covers: TASK-5"""
    monkeypatch.setattr(wait_queue, "SILENCE_SECONDS", 3600)
    monkeypatch.setattr(wait_queue, "OVERLOOKED_SECONDS", 3600)
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    options: Any = {"clock": clock, "limits": {"approval_expiry_seconds": 3}, "concurrency": "enqueue"}
    asked = asyncio.Event()

    async def asks(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        await asked.wait()
        async for event in DELETE(call):
            yield event

    model = Scripted(asks, says("next"))
    async with process(store, model, noting([], governed=True), lease_seconds=9000, **options) as here:
        first = await here.send()
        waiting = await here.send("next", first.request.task_id)
        asked.set()
        assert (await here.service.outcome(first)).status == "Paused"
        await pass_by(clock, 0)
        assert (await here.request(waiting.request.request_id)).status == "Queued"
        await expire(clock, 3)
        async with asyncio.timeout(30):
            assert (await here.service.outcome(waiting)).output == "next"


async def test_a_pause_that_has_not_expired_by_another_clock_is_looked_at_ever_more_rarely() -> None:
    now = FakeClock().now()
    assert next_look(now + timedelta(hours=3), now) == 3 * 3600
    assert next_look(now, now) == SOONEST_LOOK_SECONDS
    assert next_look(now, now + timedelta(seconds=2)) == 2


async def test_pauses_that_are_followed_cost_one_read_each(clock: FakeClock) -> None:
    """However many follow each of them: nothing else is asked of the store."""
    store = Remote(CountingOptions())
    options: Any = {"clock": clock, "lease_seconds": 3000}
    async with process(store, Scripted(DELETE), noting([], governed=True), **options) as here:
        paused = [await here.ask() for _ in range(3)]
        following = [await behind_the_pause(here, each) for each in paused for _ in range(5)]
        await pass_by(clock, CHECK_SECONDS)
        store.operations.clear()
        await pass_by(clock, CHECK_SECONDS)
        assert store.operations == Counter({StoreOperation("read", "user"): 3})
        assert not any(each.done() for each in following)
        for each in following:
            each.cancel()


async def test_who_joins_after_a_decision_sees_each_event_once() -> None:
    """From the beginning on, while the request runs: also what has come since and is in the log already."""
    goes_on = asyncio.Event()
    model = Scripted(DELETE, waits(goes_on, "one", " two"))
    async with process(None, model, noting([], governed=True)) as here:
        paused = await here.ask()
        approve = Command(action="approve")
        sent = await here.approvals.resume(ADA, paused.request_id, approve, streamed=True)

        async def logged() -> bool:
            streams = here.tasks.streams.read(sent.partition, paused.request_id, paused.last_event)
            return len([each async for batch in streams for each in batch]) > 1

        await eventually(logged)
        following = asyncio.create_task(here.followed(paused.request_id))
        await asyncio.sleep(0.05)
        goes_on.set()
        numbers = [each.id for each in await following]
    assert numbers == [n for n in range(1, numbers[-1] + 1) if n != paused.last_event]


async def test_who_joins_behind_a_decided_pause_misses_nothing() -> None:
    """The number of a pause that was decided before it was seen is passed over."""
    buffer = EventBuffer(5)
    buffer.extend([Recorded(n, TextDelta("x")) for n in (6, 7, 9, 10)])
    async with aclosing(buffer.follow(8)) as following:  # type: ignore[type-var]
        assert [each.id for each in await anext(following)] == [9, 10]


async def test_a_pause_that_is_decided_while_its_log_is_read_is_passed_over_elsewhere() -> None:
    """The follower in another process sees each event once, in order, to the end. covers: SESSION-8"""
    store, goes_on = Shared(), asyncio.Event()

    class Slow(Faulty):
        async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
            """Of the tail's first look: the pause comes before it, and the decision behind it."""
            first = bool(there.service.followers._followed) and not goes_on.is_set()
            if first:
                goes_on.set()
                await eventually(lambda: is_at("Paused"))
            found = await super().read(partition, keys)
            if first:
                await here.approvals.resume(ADA, request_id, Command(action="approve"), streamed=True)
                await eventually(lambda: is_at("Completed"))
            return found

    async def is_at(status: str) -> bool:
        return (await here.request(request_id)).status == status

    async def asks(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("one ")
        await goes_on.wait()
        yield TextDelta("two ")
        yield ModelDone(finish_reason="tool_calls", tool_calls=(ToolCall("c1", "Shell-delete", "{}"),))

    tool, slow = noting([], governed=True), Slow(store)
    async with process(store, Scripted(asks, says("done", "!")), tool) as here, process(slow) as there:
        request_id = (await here.send(streamed=True)).request.request_id
        seen = await there.followed(request_id)
        assert isinstance(seen[-1].event, Completed)
        assert seen == await here.followed(request_id)


async def test_who_comes_late_gets_a_long_answer_in_parts() -> None:
    """Between them other requests get their turn."""
    buffer, turns = EventBuffer(0), 0
    buffer.extend(
        [*(Recorded(n, TextDelta("x")) for n in range(1, 2501)), Recorded(2501, Canceled(Failure("x", "x")))]
    )

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(other())
    found = [(len(batch), turns, batch[-1].id) async for batch in buffer.follow(0)]
    waiting.cancel()
    assert found == [(1000, 0, 1000), (1000, 1, 2000), (501, 2, 2501)]


async def test_the_first_event_of_a_request_that_waited_is_the_same_for_all() -> None:
    """Who joins while it runs, and who replays it later, read of it what its sender was told: `Queued`."""
    first, second = asyncio.Event(), asyncio.Event()
    model = Scripted(waits(first), waits(second))
    async with process(MemoryStore(), model, concurrency="enqueue") as here:
        ahead = await here.send("one", streamed=True)
        sent = await here.send("two", ahead.request.task_id, streamed=True)
        request_id = sent.request.request_id
        assert sent.request.status == "Queued"
        first.set()
        await eventually(lambda: len(model.calls) == 2)
        running = here.service.follow(here.partition(), request_id, 0)
        seen = list(await anext(running))
        assert seen[0] == Recorded(1, Started("Queued"))
        second.set()
        async for events in running:
            seen += events
        assert await here.followed(request_id) == seen


async def test_who_comes_later_does_not_get_an_error_that_is_over() -> None:
    """A follower that reads slowly still has what the store's outage ended; the others follow anew."""
    store, gates = Shared(), [asyncio.Event(), asyncio.Event()]

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        for text, gate in zip(("one", "two"), gates, strict=True):
            yield TextDelta(text)
            await gate.wait()
        yield ModelDone(finish_reason="stop", model="scripted")

    faulty = Faulty(store)
    async with process(store, Scripted(answer)) as here, process(faulty) as there:
        sent = await here.send(streamed=True)
        request_id = sent.request.request_id
        slow = there.service.follow(there.partition(), request_id, 0)
        assert isinstance((await anext(slow))[0].event, Started)
        assert (await anext(slow))[0].event == TextDelta("one")
        faulty.unreadable = True
        gates[0].set()
        await eventually(lambda: all(tail.closed for tail in there.service.followers._followed))
        faulty.unreadable = False
        following = asyncio.ensure_future(there.followed(request_id))
        await eventually(lambda: any(not tail.closed for tail in there.service.followers._followed))
        gates[1].set()
        assert isinstance((await following)[-1].event, Completed)
        with pytest.raises(PersistenceUnavailable):
            await anext(slow)


async def test_a_drain_lets_all_followers_go() -> None:
    """Those too that are further behind than the first one was. covers: SESSION-8"""
    store = Shared()
    async with process(store, Scripted(waits(asyncio.Event(), "one"))) as here, process(store) as there:
        sent = await here.send(streamed=True)
        ahead = asyncio.ensure_future(there.followed(sent.request.request_id, 50))
        await eventually(lambda: len(there.service.followers._followed) == 1)
        behind = asyncio.ensure_future(there.followed(sent.request.request_id))
        await eventually(lambda: len(there.service.followers._followed) == 2)
        await there.service.drain(0)
        assert await ahead == []
        assert isinstance((await behind)[0].event, Started)
