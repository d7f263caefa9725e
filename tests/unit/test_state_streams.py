"""The log of a request's stream events: read from anywhere, without a gap or a repeat."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from engine_setup import (
    ADA,
    Answer,
    Faulty,
    Process,
    Scripted,
    calls,
    damage,
    names,
    noting,
    process,
    says,
    waits,
)
from msgspec.structs import replace

from tealagents.domain.errors import Conflict
from tealagents.domain.events import ModelDone, ModelEvent, Recorded, TextDelta
from tealagents.domain.models import Item, RequestRecord, ToolCall
from tealagents.domain.ports import ModelCall
from tealagents.engine.approvals import Command
from tealagents.state import keys
from tealagents.state.endings import CANCELED
from tealagents.state.new_message import NewMessage
from tealagents.state.queue import QueuedRequest, try_start
from tealagents.state.streams import EVENT_BATCH_BYTES, JUMP, SPARE_SECONDS, first_batch
from tealagents.state.task_writer import TaskWriter
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import ShiftedClock
from tealagents.testing.waits import eventually


def piece(number: int, text: str = "x") -> Recorded:
    return Recorded(number, TextDelta(text))


async def begun(here: Process) -> tuple[RequestRecord, str]:
    """A request whose model says nothing yet, and the version of its record."""
    sent = await here.send(streamed=True)
    stored = await here.records.get(sent.partition, keys.request(sent.request.request_id), RequestRecord)
    assert stored is not None
    return stored.value, stored.version


async def written(here: Process, sizes: list[int]) -> RequestRecord:
    """A log of batches of these numbers of events, from event 2 on."""
    request, version = await begun(here)
    numbers = itertools.count(2)
    for size in sizes:
        events = [piece(next(numbers)) for _ in range(size)]
        await here.tasks.streams.write(here.partition(), request.request_id, version, events)
    return request


async def stored(here: Process, request: RequestRecord, after: int) -> list[Recorded]:
    """What the log holds behind `after`."""
    batches = here.tasks.streams.read(here.partition(), request.request_id, after)
    return [event async for batch in batches for event in batch]


@pytest.mark.parametrize("sizes", [[1] * 40, [256, 256, 3], [1] * 20 + [200] + [1] * 20])
async def test_a_log_is_read_from_anywhere(sizes: list[int]) -> None:
    """However its batches lie, what follows any event comes whole and in order. covers: SESSION-8"""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        request = await written(here, sizes)
        last = sum(sizes) + 1
        for after in range(last + 2):
            found = [event.id for event in await stored(here, request, after)]
            assert found == list(range(max(2, after + 1), last + 1)), after


async def test_an_outsider_ends_a_request_behind_all_that_was_stored() -> None:
    """The end jumps over the last of many small batches, with all that was said. covers: STATE-4"""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        request = await written(here, [1] * 30)
        stored = await here.tasks.head(here.partition(), request.task_id)
        assert await here.tasks.end(here.partition(), stored, request.request_id, CANCELED, "ada")
        ended = await here.request(request.request_id)
        assert ended.last_event == 31 + JUMP
        assert ended.output == "x" * 30


async def test_the_end_of_a_dead_process_is_behind_all_the_calls_that_it_showed() -> None:
    """However many were approved at once: a follower that has seen them all gets the end. covers: STATE-4"""
    store = Faulty(MemoryStore())
    model = Scripted(calls(*(ToolCall(f"c{n}", "Shell-delete", "{}") for n in range(JUMP + 100))))
    async with process(store) as there:
        dead = Process(store, model, noting([], governed=True))
        await dead.lease._renew()
        paused = await dead.ask(streamed=True)
        store.fault = lambda _, commit: (
            "away" if any(key.startswith("events/") for key in commit.put) else None
        )
        await dead.approvals.resume(ADA, paused.request_id, Command(action="approve"), streamed=True)
        run = dead.service.run_of(paused.request_id)
        assert run is not None
        await eventually(lambda: run.stream.last_id > paused.last_event + JUMP - 10)
        seen = run.stream.last_id
        await dead.lease._retire()
        dead.tasks.begun.close()
        assert (await there.request(paused.request_id)).last_event > seen


async def announces(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
    """Says what it is about to do, and calls a tool."""
    yield TextDelta("I will delete it.")
    yield ModelDone(finish_reason="tool_calls", tool_calls=(ToolCall("c1", "Shell-delete", "{}"),))


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_comes_with_calls_that_wait_is_no_part_of_the_answer(streamed: bool) -> None:
    """Where their pause is canceled, the request had said nothing in answer. covers: HITL-1"""
    async with process(None, Scripted(announces), noting([], governed=True)) as here:
        paused = await here.ask(streamed=streamed)
        await here.service.cancel(here.partition(), paused.request_id, "ada")
        assert (await here.request(paused.request_id)).output == ""


async def test_an_answer_begins_behind_the_pause_before_it() -> None:
    """What the log of a dead producer holds of it is not glued to what came with the calls. covers: HITL-1"""
    model = Scripted(announces, waits(asyncio.Event(), "As you wish"))
    async with process(None, model, noting([], governed=True)) as here:
        paused = await here.ask(streamed=True)
        await here.approvals.resume(ADA, paused.request_id, Command(action="reject"), streamed=True)
        request = await here.request(paused.request_id)

        async def output() -> str:
            return (await here.tasks.streams.unfinished(here.partition(), request)).output

        async def said() -> bool:
            return (await output()).endswith("As you wish")

        await eventually(said)
        assert await output() == "As you wish"


async def test_a_damaged_log_does_not_keep_a_task_from_going_on() -> None:
    """Event logs are not task data: a dead request is ended even where its log cannot be read."""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        request = await written(here, [3, 3, 3])
        await damage(here.store, here.partition(), keys.stream(request.request_id, 5))
        stored = await here.tasks.head(here.partition(), request.task_id)
        assert await here.tasks.end(here.partition(), stored, request.request_id, CANCELED, "ada")
        assert (await here.request(request.request_id)).last_event > 10 + JUMP


async def test_nothing_is_added_after_the_end() -> None:
    """A producer that was stopped and continues finds its log closed, also for what comes in parts."""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        request, version = await begun(here)
        stored = await here.tasks.head(here.partition(), request.task_id)
        await here.tasks.end(here.partition(), stored, request.request_id, CANCELED, "ada")
        for text in ("x", "x" * 2 * EVENT_BATCH_BYTES):
            with pytest.raises(Conflict):
                await here.tasks.streams.write(
                    here.partition(), request.request_id, version, [piece(2, text)]
                )
        assert not await names(here.store, here.partition(), "event")


async def test_a_queued_request_that_began_unheard_streams_though_its_task_has_changed() -> None:
    """The log expects the request as it was begun, not the head, which others write. covers: SESSION-8"""
    async with process(None, Scripted(waits(asyncio.Event())), concurrency="enqueue") as here:
        submission, message = here.service.submission, NewMessage(items=(Item("text", "hello"),))
        first = await submission.begin(ADA, message, None)
        assert isinstance(first, TaskWriter)
        waiting = await submission.begin(ADA, replace(message, task_id=first.head.task_id), None)
        assert isinstance(waiting, QueuedRequest)
        await here.tasks.cancel(here.partition(), first.request.request_id, "ada")
        await try_start(here.tasks, "ada", waiting)  # and its reply is lost
        await here.changes.patch(here.partition(), first.head.task_id, ADA.user, metadata={"read": True})
        begun = await try_start(here.tasks, "ada", waiting)
        assert isinstance(begun, TaskWriter)
        request_id, version = begun.request.request_id, begun.request_version
        assert await here.tasks.streams.write(here.partition(), request_id, version, [piece(2)]) == 2


async def test_parts_are_kept_with_a_resumed_log_and_erased_with_their_task() -> None:
    """What is stored in parts has the life of the log it belongs to. covers: STATE-2"""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        request, version = await begun(here)
        large = piece(2, "é" * EVENT_BATCH_BYTES)
        write = here.tasks.streams.write
        assert await write(here.partition(), request.request_id, version, [large, piece(3)]) == 2
        assert await write(here.partition(), request.request_id, version, [piece(3)]) == 3
        await here.tasks.streams.keep(here.partition(), request.request_id, version)
        assert await stored(here, request, 1) == [large, piece(3)]
        await here.service.cancel(here.partition(), request.request_id, "ada")
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert not await names(here.store, here.partition(), "event")


def speaks_in_batches(here: Process, batches: int) -> Answer:
    """Says so many words, each once that before it is stored; then it calls a tool."""

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        for n in range(batches):
            yield TextDelta(f"word{n} ")
            await eventually(lambda n=n: _are_stored(here, n + 1))  # type: ignore[misc]
        yield ModelDone(finish_reason="tool_calls", tool_calls=(ToolCall("c1", "Shell-delete", "{}"),))

    return answer


async def _are_stored(here: Process, batches: int) -> bool:
    return len(await names(here.store, here.partition(), "events/")) >= batches


async def written_again(here: Process, store: Faulty, request_id: str) -> list[list[str]]:
    """The batches of before that are written again when the request is approved, commit by commit."""
    there = await names(here.store, here.partition(), "events/")
    store.commits.clear()
    approval_id = (await here.request(request_id)).approvals[-1]
    command = Command(action="approve", approval_id=approval_id)
    await here.service.outcome(await here.approvals.resume(ADA, request_id, command, streamed=True))
    again = [[key for key in commit.put if key in there] for _, commit in store.commits]
    return [keys for keys in again if keys]


async def test_an_approval_costs_the_same_however_long_the_request_has_streamed() -> None:
    """The approved call does not wait until the events of before are written again. covers: SESSION-8"""
    store = Faulty(MemoryStore())
    async with process(store, Scripted(), noting([], governed=True)) as here:
        here.model.answers = [speaks_in_batches(here, 20), says("done")]
        paused = await here.ask(streamed=True)
        assert await written_again(here, store, paused.request_id) == []


async def test_the_events_of_a_request_that_is_approved_late_are_kept_anew_once() -> None:
    """As many in a commit as it holds, and not again with the next approval. covers: SESSION-8"""
    store, clock = Faulty(MemoryStore()), ShiftedClock()
    async with process(store, Scripted(), noting([], governed=True), clock=clock) as here:
        again = calls(ToolCall("c2", "Shell-delete", "{}"))
        here.model.answers = [speaks_in_batches(here, 20), again, says("done")]
        paused = await here.ask(streamed=True)
        batches = await names(here.store, here.partition(), "events/")
        clock.shift += timedelta(seconds=SPARE_SECONDS + 60)
        kept = await written_again(here, store, paused.request_id)
        assert [key for keys in kept for key in keys] == batches
        assert len(kept) <= 4
        assert await written_again(here, store, paused.request_id) == []


def test_a_batch_is_bounded_in_events_and_in_bytes() -> None:
    """As many events as fit; one that is too large for any batch comes alone."""
    assert first_batch([piece(n) for n in range(2, 400)]) == ([piece(n) for n in range(2, 258)], True)
    large = piece(3, "\u0001" * (EVENT_BATCH_BYTES // 6))
    assert first_batch([piece(2), large, piece(4)]) == ([piece(2)], True)
    assert first_batch([large, piece(4)]) == ([large], False)
