"""The log of a request's stream events: read from anywhere, without a gap or a repeat."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

import pytest
from engine_setup import ADA, Process, Scripted, damage, names, noting, process, waits

from tealagents.domain.errors import Conflict
from tealagents.domain.events import ModelDone, ModelEvent, Recorded, TextDelta
from tealagents.domain.models import RequestRecord, ToolCall
from tealagents.domain.ports import ModelCall
from tealagents.engine.approvals import Command
from tealagents.state import keys
from tealagents.state.streams import BATCH_BYTES, JUMP, portion
from tealagents.state.tasks import CANCELED
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
        for text in ("x", "x" * 2 * BATCH_BYTES):
            with pytest.raises(Conflict):
                await here.tasks.streams.write(
                    here.partition(), request.request_id, version, [piece(2, text)]
                )
        assert not await names(here.store, here.partition(), "event")


async def test_parts_are_kept_with_a_resumed_log_and_erased_with_their_task() -> None:
    """What is stored in parts has the life of the log it belongs to. covers: STATE-2"""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        request, version = await begun(here)
        large = piece(2, "é" * BATCH_BYTES)
        write = here.tasks.streams.write
        assert await write(here.partition(), request.request_id, version, [large, piece(3)]) == 2
        assert await write(here.partition(), request.request_id, version, [piece(3)]) == 3
        await here.tasks.streams.keep(here.partition(), request.request_id, version)
        assert await stored(here, request, 1) == [large, piece(3)]
        await here.service.cancel(here.partition(), request.request_id, "ada")
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert not await names(here.store, here.partition(), "event")


def test_a_batch_is_bounded_in_events_and_in_bytes() -> None:
    """As many events as fit; one that is too large for any batch comes alone."""
    assert portion([piece(n) for n in range(2, 400)]) == ([piece(n) for n in range(2, 258)], True)
    large = piece(3, "\u0001" * (BATCH_BYTES // 6))
    assert portion([piece(2), large, piece(4)]) == ([piece(2)], True)
    assert portion([large, piece(4)]) == ([large], False)
