"""Export and import of all state: what is large comes back with all that leads to it."""

import json

import pytest
from engine_setup import Process, Scripted, calls, names, noting, process, says

from tealagents.domain.models import ToolCall
from tealagents.state import keys
from tealagents.state.dump import Exporter, Importer
from tealagents.state.new_message import Key

#: bytes of a record that is stored out of line: in chunks that fit into one commit, and that do not
LARGE, LARGER = 80_000, 800_000
KEY = Key("a" * 64, "b" * 64)


async def exported(here: Process) -> list[bytes]:
    return [line async for line in Exporter(here.records).lines()]


async def imported(lines: list[bytes], there: Process) -> Importer:
    importer = Importer(there.records, key_seconds=1000)
    await importer.write(lines)
    return importer


@pytest.mark.parametrize("size", [LARGE, LARGER])
async def test_the_idempotency_key_of_a_large_request_is_moved(size: int) -> None:
    """A retry at the new store is answered, not run again. covers: STATE-4"""
    async with process(None, Scripted(says("z" * size))) as here:
        request = await here.ask("hello", key=KEY)
        lines = await exported(here)
    async with process() as there:
        await imported(lines, there)
        assert await there.request(request.request_id) == request
        replayed = await there.ask("hello", key=KEY)
        assert (replayed.request_id, there.model.calls) == (request.request_id, [])


@pytest.mark.parametrize("size", [LARGE, LARGER])
async def test_a_large_pause_is_moved_with_its_listing_and_its_place_in_the_inbox(size: int) -> None:
    """The approver finds it at the new store as at the old one. covers: STATE-4"""
    call = ToolCall("c1", "Shell-delete", json.dumps({"x": "y" * size}))
    inbox = keys.inbox("Tester", "mock")
    async with process(None, Scripted(calls(call)), noting([], governed=True)) as here:
        assert (await here.ask()).status == "Paused"
        lines, noted = await exported(here), await names(here.store, inbox)
        listed = await here.catalog.approvals(here.partition(), status="pending", cursor=None, limit=9)
    async with process() as there:
        await imported(lines, there)
        assert len(noted) == 1
        assert await names(there.store, inbox) == noted
        found = await there.catalog.approvals(there.partition(), status="pending", cursor=None, limit=9)
        assert found.items == listed.items


async def test_a_large_record_that_lacks_a_chunk_is_moved_as_it_was_found() -> None:
    """Only what would be derived from its content is not made. covers: STATE-4"""
    async with process(None, Scripted(says("z" * LARGE))) as here:
        request = await here.ask("hello", key=KEY)
        await here.records.delete(here.partition(), (await names(here.store, here.partition(), "blob/"))[:1])
        lines = await exported(here)
    async with process() as there:
        importer = await imported(lines, there)
        assert importer.written == len(lines) - 2
        (moved,) = await there.store.read(there.partition(), [keys.request(request.request_id)])
        assert moved is not None
        assert await exported(there) == lines
