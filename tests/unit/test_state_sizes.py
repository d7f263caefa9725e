"""What is too large for one record, or for one commit, is stored all the same."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from engine_setup import (
    ADA,
    Function,
    Process,
    Scripted,
    Shared,
    Watched,
    calls,
    exchange_of,
    fails,
    names,
    noting,
    process,
    says,
    waits,
)

from tealagents.api.requests import user_message
from tealagents.domain.errors import RequestInProgress, TaskBusy
from tealagents.domain.events import TextDelta, ToolReturned
from tealagents.domain.models import Effects, Head, Item, Json, RequestRecord, ToolCall, ToolOutcome
from tealagents.domain.paths import MAX_EFFECTS_BYTES, remembering
from tealagents.domain.ports import Store, ToolContext
from tealagents.engine.approvals import CallDecision, Command
from tealagents.engine.prompt import effects_note
from tealagents.engine.service import Submitted
from tealagents.state import keys
from tealagents.state.exporting import export
from tealagents.state.forking import fork
from tealagents.state.new_message import Earlier, Key, NewMessage
from tealagents.stores import open_store
from tealagents.testing.waits import eventually

MEGABYTES = 3_000_000


@pytest.mark.parametrize("letter", ["x", "é", "\u0001", '"'])
async def test_an_answer_of_several_megabytes(letter: str) -> None:
    """A long answer, however it is encoded, is stored, read back, and replayed. covers: FLOW-1"""
    said = letter * MEGABYTES
    async with process(None, Scripted(says(said), says("yes"))) as here:
        first = await here.ask(streamed=True)
        assert first.status == "Completed"
        assert (await here.request(first.request_id)).output == said
        replayed = await here.followed(first.request_id)
        assert [event.id for event in replayed] == [1, 2, 3]
        assert replayed[1].event == TextDelta(said)
        second = await here.ask("and now?", first.task_id)
        assert second.status == "Completed"
        sent = here.model.calls[1].prompt
        assert [len(part) for part in sent[:2]] == [len("user: hello"), len(f"assistant: {said}".encode())]


async def test_a_result_of_several_megabytes_is_replayed_to_the_letter() -> None:
    """A tool's long result goes to the model and to later followers. covers: HITL-1"""
    model = Scripted(calls(ToolCall("c1", "Disk-read", "{}")), says("done"))
    async with process(None, model, Function("Disk-read", lambda _: "é" * MEGABYTES)) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Completed"
        replayed = await here.followed(request.request_id)
        assert [event.id for event in replayed] == list(range(1, request.last_event + 1))
        result = next(each.event for each in replayed if isinstance(each.event, ToolReturned))
        assert len(result.output) == MEGABYTES
        assert set(result.output) == {"é"}


async def test_arguments_of_megabytes_are_shown_edited_and_run() -> None:
    """A pause holds calls of any length, and so does a decision that edits them. covers: HITL-1"""
    ran: list[Json] = []
    tool = noting(ran, "Disk-write", governed=True)
    asked = json.dumps({"text": "é" * 500_000})
    async with process(
        None, Scripted(calls(ToolCall("c1", "Disk-write", asked)), says("done")), tool
    ) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Paused"
        assert request.pause is not None
        assert request.pause.calls[0].arguments == asked
        listed = await here.catalog.approvals(here.partition(), status="pending", cursor=None, limit=10)
        assert len(listed.items) == 1
        edited = CallDecision("c1", "approve", {"text": "y" * MEGABYTES})
        command = Command(decisions=(edited,))
        sent = await here.approvals.resume(ADA, request.request_id, command, streamed=True)
        assert (await here.service.outcome(sent)).status == "Completed"
        assert [len(arguments["text"]) for arguments in ran] == [MEGABYTES]


async def test_what_a_tool_adds_may_be_large_and_travels_with_copies() -> None:
    """Large extra data is in the answer, in a fork's, and in an imported task's. covers: TASK-3"""

    class Adding(Function):
        async def call(self, context: ToolContext, arguments: Json) -> str:
            context.add_extra_data("map", "#" * MEGABYTES)
            return "drawn"

    def drawn(request: RequestRecord) -> int:
        return len((request.extra_data or {})["map"])

    model = Scripted(calls(ToolCall("c1", "Map-draw", "{}")), says("done"))
    async with process(None, model, Adding("Map-draw", lambda _: "")) as here:
        request = await here.ask()
        assert drawn(request) == MEGABYTES
        forked = await fork(here.tasks, here.partition(), request.task_id, ADA.user)
        assert drawn(await here.request(forked.checkpoint_id or "")) == MEGABYTES
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert not await names(here.store, here.partition(), keys.blobs(request.task_id))
        await here.importer.import_(ADA, document)
        assert drawn(await here.request(request.request_id)) == MEGABYTES


@pytest.mark.parametrize("waiting", [False, True])
async def test_an_image_as_large_as_a_body_may_be(tmp_path: Path, waiting: bool) -> None:
    """15 MB of picture are stored, waiting or not, and sent to the model with every turn. covers: MODEL-2"""
    image = "data:image/png;base64," + "A" * 19_900_000
    store: Store = open_store(f"sqlite:///{tmp_path}/state.db")
    gate = asyncio.Event()
    model = Scripted(waits(gate), says("a picture"))
    async with store, process(store, model, concurrency="enqueue") as here:
        first = await here.send("hello")
        if not waiting:
            gate.set()
            await here.service.outcome(first)
        message = NewMessage(items=(Item("image", image),), task_id=first.request.task_id)
        second = await here.service.submit(ADA, message, None, streamed=False)
        assert second.request.status == ("Queued" if waiting else "Running")
        gate.set()
        assert (await here.service.outcome(second)).status == "Completed"
        head = (await here.tasks.head(here.partition(), first.request.task_id)).value
        messages, _ = await here.tasks.history.messages(here.partition(), head.task_id, head.path, limit=10)
        assert [len(message.items[0].content) for message in messages] == [5, 5, len(image), 9]


async def test_a_thousand_calls_at_once() -> None:
    """A round of very many calls is stored, and remembered when its request fails. covers: HITL-1"""
    wanted = [ToolCall(f"c{n}", "Disk-read", json.dumps({"path": "z" * 1000})) for n in range(1000)]
    async with process(
        None, Scripted(calls(*wanted), fails), Function("Disk-read", lambda _: "r" * 2000)
    ) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Failed"
        head = (await here.tasks.head(here.partition(), request.task_id)).value
        assert [tool.call_id for tool in head.effects[0].tools][-1] == "c999"
        here.model.answers = [says("done")]
        assert (await here.ask("again", request.task_id)).status == "Completed"
        assert b"c999" in here.model.calls[-1].prompt[0]
        assert b"more calls before these" in here.model.calls[-1].prompt[0]
        forked = await fork(here.tasks, here.partition(), request.task_id, ADA.user)
        assert "more calls before these" in (effects_note(forked) or "")


async def test_calls_behind_which_a_thousand_others_came_are_not_forgotten() -> None:
    """Rolled back to behind them, the note says that there were calls, in a fork and its import as well;
    rolled back to before them, nothing, also when it calls a tool anew. covers: TASK-3, THREAD-7"""
    wanted = [ToolCall(f"c{n}", "Disk-read", json.dumps({"path": "z" * 1000})) for n in range(1000)]
    answers = says("one"), calls(wanted[0]), fails, says("three"), calls(*wanted), fails
    async with process(None, Scripted(*answers), Function("Disk-read", lambda _: "")) as here:
        before = await here.ask()
        where = here.partition(), before.task_id
        said = ("two", "three", "four")
        _, behind, flood = [await here.ask(each, before.task_id) for each in said]
        assert (behind.status, flood.status) == ("Completed", "Failed")
        for checkpoint_id, told in ((behind.request_id, True), (before.request_id, False)):
            head = await here.changes.rollback(*where, ADA.user, checkpoint_id)
            forked = await fork(here.tasks, *where, ADA.user, checkpoint_id=checkpoint_id)
            document = await export(here.tasks, here.partition(), forked.task_id)
            await here.eraser.delete_task(here.partition(), forked.task_id)
            imported = await here.importer.import_(ADA, document)
            for each in (head, forked, imported):
                note = effects_note(each) or ""
                assert ("more calls, too many to be listed" in note) == bool(note) == told
        here.model.answers = [calls(wanted[1]), fails]
        assert (await here.ask("five", before.task_id)).status == "Failed"
        note = effects_note((await here.tasks.head(*where)).value) or ""
        assert "(c1): it was done" in note
        assert "more calls" not in note


def test_a_head_remembers_what_there_is_room_for() -> None:
    """The newest calls stay, with fewer of their arguments where they are many. covers: TASK-3"""

    def tools(n: int) -> tuple[ToolOutcome, ...]:
        return tuple(ToolOutcome(f"c{i}", "Disk-read", "é" * 500, "done") for i in range(n))

    few = remembering((), Effects(1, tools(3)))
    assert few == (Effects(1, tools(3)),)
    assert [effects.cut for effects in remembering(few, Effects(2, tools(3)))] == [0, 0]
    known: tuple[Effects, ...] = few
    for first in range(2, 300):
        known = remembering(known, Effects(first, tools(2)))
    assert known[-1] == Effects(299, tools(2))
    assert len(known) <= 100
    assert [effects.cut for effects in known] == [1] + [0] * (len(known) - 1)
    many = remembering(known, Effects(300, tools(5000)))
    assert len(many) == 1
    assert many[0].tools[-1].call_id == "c4999"
    assert many[0].cut == 1
    assert sum(len(repr(tool)) for tool in many[0].tools) < 2 * MAX_EFFECTS_BYTES


@pytest.mark.parametrize("rounds", [[200], [110, 92]])
def test_a_call_is_named_behind_calls_that_had_to_be_shortened(rounds: list[int]) -> None:
    """Shortened, they leave room for it: a payment is not forgotten. covers: TASK-3"""
    payment = Effects(1, (ToolOutcome("c0", "Bank-pay", "{}", "done"),))
    known: tuple[Effects, ...] = (payment,)
    for n, many in enumerate(rounds, 2):
        reads = tuple(ToolOutcome(f"{n}-{i}", "Disk-read", "z" * 500, "done") for i in range(many))
        known = remembering(known, Effects(n, reads))
    assert known[0] == payment
    assert [len(each.tools) for each in known] == [1, *rounds]


async def test_a_message_that_lost_a_race_leaves_nothing(tmp_path: Path) -> None:
    """Of twelve large ones under one key one is stored, and goes with its task. covers: TASK-7"""
    async with (
        open_store(f"sqlite:///{tmp_path}/state.db") as store,
        process(store) as here,
        process(store) as there,
    ):
        key = Key("k", "d")

        async def send(process: Process) -> None:
            with suppress(RequestInProgress):
                await process.ask("x" * 400_000, key=key)

        await asyncio.gather(*(send(each) for each in (here, there) * 6))
        page = await here.catalog.tasks(here.partition(), session_id=None, status=None, cursor=None, limit=9)
        [task] = page.items
        assert isinstance(task, Head)
        await here.eraser.delete_task(here.partition(), task.task_id)
        left = await names(store, here.partition())
        assert [name for name in left if name.startswith(("blob/", "log/", "request/"))] == []


LARGE = "x" * 300_000


@pytest.mark.parametrize(
    "sent",
    [
        lambda here, task: here.send(LARGE, task),
        lambda here, task: here.send("x" * MEGABYTES, task),  # which takes several commits
        lambda here, task: here.send("small", task, client={"sent": LARGE}),
        lambda here, task: here.changes.add(
            here.partition(), task, ADA.user, [Earlier("user", (Item("text", LARGE),))]
        ),
    ],
    ids=["message", "long", "record", "added"],
)
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path, sent: Callable[[Process, str], Awaitable[object]]
) -> None:
    """Another message takes the task while a large one is being stored: that one is erased. covers: TASK-5"""
    quicker: list[Submitted] = []

    async def overtaken(_: int) -> None:
        if not quicker and any(key.startswith("blob/") for key in late.commits[-1][1].put):
            quicker.append(await there.send("quick", task_id))

    async with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        late = Watched(store)
        model = Scripted(says("hello"), waits(asyncio.Event()))
        async with process(late) as here, process(store, model) as there:
            task_id = (await there.ask()).task_id
            late.there = overtaken
            with pytest.raises(TaskBusy):
                await sent(here, task_id)
            assert quicker
            assert await names(store, here.partition(), "blob/") == []


@pytest.mark.parametrize("end", ["begins", "canceled"])
async def test_a_large_message_that_waits_no_more_is_not_kept_twice(tmp_path: Path, end: str) -> None:
    """It is in the log, or it has left: what the queue kept of it is erased. Who has read the request before
    finds it there, or nothing. covers: TASK-5"""
    gate = asyncio.Event()
    model = Scripted(waits(gate), says("done"))
    async with (
        open_store(f"sqlite:///{tmp_path}/state.db") as store,
        process(store, model, concurrency="enqueue") as here,
    ):
        running = await here.send()
        queued = [await here.send("x" * size, running.request.task_id) for size in (100_000, 300_000)]
        assert len(await names(store, here.partition(), "blob/")) == 1 + 3
        if end == "canceled":
            for each in queued:
                await here.service.cancel(here.partition(), each.request.request_id, ADA.user.key)
        gate.set()
        for each in queued:
            await here.service.outcome(each)
        assert len(await names(store, here.partition(), "blob/")) == (3 if end == "begins" else 0)
        sizes = [len(part) for part in model.calls[-1].prompt if part.startswith(b"user")]
        assert sizes == ([11, 100_006, 300_006] if end == "begins" else [11])
        found = [await user_message(exchange_of(here), here.partition(), each.request) for each in queued]
        assert [len(each.text) for each in found if each] == ([100_000, 300_000] if end == "begins" else [])


async def test_a_queue_that_collides_keeps_each_large_message_once(tmp_path: Path) -> None:
    """However often each of them was tried. covers: TASK-5"""
    gate = asyncio.Event()
    async with (
        open_store(f"sqlite:///{tmp_path}/state.db") as store,
        process(store, Scripted(waits(gate), says("done")), concurrency="enqueue") as here,
    ):
        task_id = (await here.send()).request.task_id
        sent = await asyncio.gather(*(here.send(f"{n} {LARGE}", task_id) for n in range(6)))
        assert len(await names(store, here.partition(), "blob/")) == 6 * 3
        gate.set()
        for each in sent:
            assert (await here.service.outcome(each)).status == "Completed"
        assert len(await names(store, here.partition(), "blob/")) == 6 * 3


async def test_a_request_that_is_canceled_as_its_turn_comes_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Elsewhere, its large message with it: that is no damage. covers: TASK-5"""
    store, gate = Shared(), asyncio.Event()
    late = Watched(store)
    options: Any = {"concurrency": "enqueue"}
    async with process(late, Scripted(waits(gate)), **options) as here, process(store, **options) as there:
        running = await here.send()
        queued = (await here.send(LARGE, running.request.task_id)).request
        assert queued.waiting is not None
        partition = here.partition()

        async def canceled(_: int) -> None:
            head = (await there.tasks.stored_head(partition, queued.task_id)).value
            if head.running is None and head.queue:
                await there.tasks.cancel(partition, queued.request_id, ADA.user.key)

        late.there = canceled
        gate.set()
        await eventually(lambda: not here.service._waiting)
        assert (await there.request(queued.request_id)).status == "Canceled"
        assert await names(store, partition, "blob/") == []
    assert "is missing" not in caplog.text
