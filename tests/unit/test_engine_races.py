"""Two things at once: evictions, late replies, cancels and drains, each between two awaits."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from engine_setup import (
    ADA,
    Faulty,
    Function,
    Process,
    Scripted,
    Watched,
    calls,
    damage,
    fails,
    names,
    nothing,
    noting,
    process,
    says,
    waits,
)

from tealagents.domain import paths
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import ApprovalPending, Interrupted, NotFound, PersistenceUnavailable
from tealagents.domain.events import Canceled, ModelDone, ModelEvent, TextDelta
from tealagents.domain.ids import random_id
from tealagents.domain.models import Item, Json, RequestRecord, TokenUsage, ToolCall
from tealagents.domain.ports import Commit, ModelCall, Record
from tealagents.engine import service
from tealagents.engine.approvals import Command
from tealagents.engine.observer import Observer, RequestWatch
from tealagents.engine.prompt import effects_note
from tealagents.state import begun, commits, endings, keys, workers
from tealagents.state.forking import fork
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.pruning import UserErasure
from tealagents.state.queue import QueuedRequest
from tealagents.state.streams import SPARE_SECONDS
from tealagents.state.task_writer import TaskWriter
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import overdue
from tealagents.testing.waits import eventually
from tealagents.threads import windows
from tealagents.threads.views import Part, Upcoming, View

SEND = ToolCall("c1", "Mail-send", '{"to": "x"}')
DELETE = ToolCall("c2", "Shell-delete", "{}")


class Late(Faulty):
    """A store whose next commit of a task is applied at once, and answered once `reply` is set."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.late = False
        self.reply = asyncio.Event()

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, commit)
        if self.late and writes_a_log(commit):
            self.late = False
            await self.reply.wait()


class Ahead(SystemClock):
    """The machine's clock, set forward."""

    seconds = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.seconds)


def writes_a_log(commit: Commit) -> bool:
    return any(key.startswith("log/") for key in commit.put)


def shared() -> MemoryStore:
    store = MemoryStore()
    store.shared = True
    return store


async def has_begun(here: Process, task_id: str) -> str:
    """The request that the store says runs on a task, once it does."""
    found = ""

    async def runs() -> bool:
        nonlocal found
        running = (await here.tasks.head(here.partition(), task_id)).value.running
        found = running.request_id if running else ""
        return bool(found)

    await eventually(runs)
    return found


async def note_of(here: Process, task_id: str) -> str:
    """What the next model call is sent about tools."""
    return effects_note((await here.tasks.head(here.partition(), task_id)).value) or ""


# --- the history ------------------------------------------------------------------------------------


async def test_a_history_dropped_while_a_request_runs_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take the room of its history: the next turn knows everything all the same. covers: TASK-4"""
    go = asyncio.Event()
    model = Scripted(says("one"), says("two"), waits(go, "th", "ree"), says("other"), says("four"))
    async with process(model=model) as here:
        task_id = (await here.ask("first")).task_id
        await here.ask("second", task_id)
        third = await here.send("third", task_id)
        await eventually(lambda: len(model.calls) == 3)
        monkeypatch.setattr(windows, "KEPT_BYTES", 10)
        await here.ask("another task")
        go.set()
        await here.service.outcome(third)
        await here.ask("fourth", task_id)
        said = [part for part in model.calls[-1].prompt if part.startswith(b"user")]
        assert said == [b"user: first", b"user: second", b"user: third", b"user: fourth"]


async def test_a_replica_forgets_the_history_of_a_task_that_was_deleted_and_begun_anew() -> None:
    """A client may name the id again: who knows the old conversation does not send it. covers: TASK-4"""
    store, name = shared(), random_id()
    async with process(store) as here, process(store) as there:
        for text in ("old one", "old two"):
            await there.ask(text, **({"new_task_id": name} if text == "old one" else {"task_id": name}))
        await here.eraser.delete_task(here.partition(), name)
        await here.ask("new one", new_task_id=name)
        await here.ask("new two", name)
        await there.ask("new three", name)
        said = [part for part in there.model.calls[-1].prompt if part.startswith(b"user")]
        assert said == [b"user: new one", b"user: new two", b"user: new three"]


async def test_a_reducers_memory_of_a_request_that_failed_is_not_believed() -> None:
    """What a reducer remembers counts with the checkpoint only. covers: THREAD-8"""
    seen: list[Any] = []

    class Counts:
        name = "counts"

        async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
            seen.append(upcoming.memory.get("counts", {}).get("said"))
            upcoming.memory["counts"] = {"said": upcoming.running[0].messages[0].text}
            async for part in parts:
                yield part

    model = Scripted(says("1"), fails, says("3"))
    async with process(model=model, agent={"view": View([Counts()])}) as here:
        task_id = (await here.ask("one")).task_id
        assert (await here.ask("two", task_id)).status == "Failed"
        await here.ask("three", task_id)
    assert seen == [None, "one", "one"]


# --- tools before a pause ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["approve", "reject"])
async def test_tools_that_ran_before_a_pause_are_reported_however_the_decision_ends(action: Any) -> None:
    """Canceled, or the store away, before the request has recalled itself. covers: HITL-1, SESSION-8"""
    ran: list[Json] = []
    store = Faulty(MemoryStore())
    tools = (noting(ran, "Mail-send"), noting(ran, governed=True))
    async with process(store, Scripted(calls(SEND, DELETE), says("ok")), *tools) as here:
        paused = await here.ask("do it")
        assert paused.status == "Paused"
        sent = await here.approvals.resume(ADA, paused.request_id, Command(action=action), streamed=False)
        if action == "approve":
            await here.service.cancel(here.partition(), paused.request_id, "mock.ada")
        else:
            store.unreadable = True
            await eventually(lambda: store.refused, every=0)
            store.unreadable = False
            assert (await here.service.outcome(sent)).status == "Failed"
        assert "Mail-send" in await note_of(here, paused.task_id)


# --- begins whose reply is late or lost ----------------------------------------------------------------


async def test_a_begin_in_doubt_does_not_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that made it ends it, so that others need not wait for its lease. covers: STATE-3"""
    monkeypatch.setattr(commits, "RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(begun, "LOOK_SECONDS", 0.05)
    inner = shared()
    store = Faulty(inner)

    def lose(partition: str, commit: Commit) -> str | None:
        if writes_a_log(commit):
            store.unreadable, store.fault = True, lambda *_: "unheard"
            return "lost"
        return None

    async with process(store) as here, process(inner) as there:
        task_id = (await here.ask("one")).task_id
        store.fault = lose
        with pytest.raises(PersistenceUnavailable):
            await here.send("two", task_id)
        store.fault, store.unreadable = (lambda *_: None), False
        request_id = await has_begun(there, task_id)

        async def ended() -> bool:
            return (await there.request(request_id)).status == "Failed"

        await eventually(ended)
        assert here.lease.held
        assert (await there.ask("three", task_id)).status == "Completed"


async def test_a_sender_that_is_canceled_in_its_begin_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit is applied, its caller gone: the request ends. covers: STATE-3"""
    monkeypatch.setattr(begun, "LOOK_SECONDS", 0.05)
    inner = shared()
    store = Late(inner)
    async with process(store) as here, process(inner) as there:
        task_id = (await here.ask("one")).task_id
        store.late = True
        sending = asyncio.create_task(here.ask("two", task_id))
        request_id = await has_begun(there, task_id)
        sending.cancel()
        await asyncio.sleep(0)
        store.reply.set()

        async def ended() -> bool:
            return (await there.request(request_id)).status == "Failed"

        await eventually(ended)


async def test_a_sender_that_is_canceled_at_the_end_of_a_large_begin_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its task is there by then; what is left to do is to forget the note of its making. covers: STATE-3"""
    monkeypatch.setattr(begun, "LOOK_SECONDS", 0.05)
    store = Watched(MemoryStore())
    async with process(store) as here:
        await here.ask("one")
        there = asyncio.Event()

        async def forgetting(_: int) -> None:
            if any(key.endswith("/making") for key in store.commits[-1][1].delete) and not there.is_set():
                there.set()
                await asyncio.Event().wait()

        store.there = forgetting
        sending = asyncio.create_task(here.send("x" * 600_000))
        await there.wait()
        (request_id,) = here.tasks.begun
        sending.cancel()
        await asyncio.wait([sending])
        store.there = nothing

        async def ended() -> bool:
            return (await here.request(request_id)).status == "Failed"

        await eventually(ended)
        assert list(here.tasks.begun) == []


async def test_a_run_that_cannot_end_is_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store raises what no store should: the run gives up, the request does not stay. covers: STATE-3"""
    monkeypatch.setattr(begun, "LOOK_SECONDS", 0.05)
    inner = shared()
    store = Faulty(inner)

    def broken(partition: str, commit: Commit) -> str | None:
        if writes_a_log(commit):
            raise ValueError("not what a store raises")
        return None

    async with process(store) as here, process(inner) as there:
        task_id = (await here.ask("one")).task_id
        go = asyncio.Event()
        here.model.answers = [waits(go, "a", "b")]
        sent = await here.send("two", task_id)
        store.fault = broken
        go.set()
        await eventually(lambda: not here.service._runs)
        store.fault = lambda *_: None

        async def ended() -> bool:
            return (await there.request(sent.request.request_id)).status == "Failed"

        await eventually(ended)


async def test_a_request_that_is_given_up_in_its_queue_does_not_wait_there_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its task was hidden for a moment: it ends, and the queue moves. covers: TASK-5"""
    monkeypatch.setattr(begun, "LOOK_SECONDS", 0.05)
    gate = asyncio.Event()
    async with process(None, Scripted(waits(gate)), concurrency="enqueue") as here:
        running = await here.send("one")

        async def given_up(waiting: QueuedRequest, _: str) -> RequestRecord:
            return waiting.request

        monkeypatch.setattr(here.service._wait_queues, "wait", given_up)
        queued = await here.send("two", running.request.task_id)

        async def ended() -> bool:
            return (await here.request(queued.request.request_id)).status == "Failed"

        await eventually(ended)
        gate.set()


async def test_an_observer_that_raises_keeps_no_place() -> None:
    """The request that it should have observed ends, and another one takes its place. covers: TASK-5"""

    class Broken(Observer):
        def request(self, request: RequestRecord) -> RequestWatch:
            raise ValueError("no exporter")

    async with process(agent={"observer": Broken()}) as here:
        sent = await here.send()
        (carried,) = here.service._carrying
        with pytest.raises(ValueError, match="no exporter"):
            await carried
        assert here.service.load().in_flight == 0
        request_id = sent.request.request_id
        await eventually(lambda: _has_ended(here, request_id))


async def _has_ended(here: Process, request_id: str) -> bool:
    return (await here.request(request_id)).status == "Failed"


async def test_a_run_whose_task_is_damaged_is_not_looked_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is away comes back; damage stays until an operator has seen to it. covers: STATE-3"""
    monkeypatch.setattr(begun, "LOOK_SECONDS", 0)
    async with process(model=Scripted(waits(asyncio.Event()))) as here:
        sent = await here.send(streamed=True)
        await damage(here.store, here.partition(), keys.request(sent.request.request_id))
        here.tasks.begun.abandon(here.partition(), sent.request.request_id)
        await eventually(lambda: not here.tasks.begun._ending, every=0)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_request_ended_before_its_begin_was_acknowledged_does_not_run(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted here, or canceled from another replica: the model is not asked. covers: STATE-3"""
    monkeypatch.setattr(workers, "GLANCE_SECONDS", 0.05)
    inner = shared()
    store = Late(inner)
    go = asyncio.Event()
    model = Scripted(says("one"), says("B"), waits(go, "A", "a"))
    async with process(store, model, concurrency="interrupt") as here, process(inner) as there:
        task_id = (await here.ask("one")).task_id
        store.late = True
        sending = asyncio.create_task(here.ask("A", task_id))
        request_id = await has_begun(there, task_id)
        if where == "here":
            assert (await here.ask("B", task_id)).status == "Completed"
        else:
            await there.service.cancel(there.partition(), request_id, "mock.ada")
        store.reply.set()
        assert (await sending).status == "Canceled"
        assert not any(call.prompt[-1] == b"user: A" for call in model.calls)


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize(
    ("how", "detail", "kept"),
    [
        ("cancel", "The request was canceled.", ["one", "A"]),
        ("interrupt", "The request was canceled by a newer message.", ["one", "A", "B"]),
        ("rollback", "The request was canceled by a newer message.", ["one", "B"]),
    ],
)
async def test_a_request_that_is_stopped_before_its_begin_was_acknowledged_ends_as_any_other(
    where: str, how: str, detail: str, kept: list[str]
) -> None:
    """Its own run writes the end: why, by whom, and with the next number of its events. covers: TASK-5"""
    inner = shared()
    store, model = Late(inner), Scripted(says("one"), says("B"))
    rules = {"concurrency": "interrupt" if how == "cancel" else how}
    async with process(store, model, **rules) as here, process(inner, Scripted(says("B")), **rules) as there:
        task_id = (await here.ask("one")).task_id
        store.late = True
        sending = asyncio.create_task(here.ask("A", task_id))
        request_id = await has_begun(there, task_id)
        asked = there if where == "there" else here
        if how == "cancel":
            stopping: asyncio.Task[Any] = asyncio.create_task(
                asked.service.cancel(asked.partition(), request_id, ADA.user.key)
            )
        else:
            stopping = asyncio.create_task(asked.ask("B", task_id))
        await eventually(lambda: here.tasks.begun._early_stops)
        store.reply.set()
        ended = await sending
        await stopping
        assert (ended.status, ended.error and ended.error.detail) == ("Canceled", detail)
        assert [each.id for each in await there.followed(request_id)] == [1, 2]
        head = (await there.tasks.head(there.partition(), task_id)).value
        said, _ = await there.tasks.history.messages(there.partition(), task_id, head.path, limit=10)
        assert [message.text for message in said if message.role == "user"] == kept
        entries = await there.tasks.history.entries_of(there.partition(), ended, head.tail_seq)
        assert entries[-1].entry.actor == ADA.user.key
        assert not any(call.prompt[-1] == b"user: A" for call in model.calls)


# --- waiting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["damaged", "away"])
async def test_waiting_clients_are_informed_in_time_although_the_task_cannot_be_read(how: str) -> None:
    """A queued request's caller is not kept past its timeout. covers: STATE-5"""
    store = Faulty(MemoryStore())
    model = Scripted(says("one"), waits(asyncio.Event()))
    limits, clock = {"request_timeout_seconds": 60}, Ahead()
    async with process(store, model, concurrency="enqueue", clock=clock, limits=limits, **limits) as here:
        task_id = (await here.ask("one")).task_id
        await here.send("two", task_id)
        waiting = await here.send("three", task_id)
        if how == "damaged":
            await damage(store, here.partition(), keys.task(task_id))
        else:
            store.unreadable, store.fault = True, lambda *_: "away"
        [(turn, _)] = here.service._waiting.values()
        clock.seconds = 61
        await overdue(_ended(turn), 61, lambda: True)
        assert waiting.request.request_id not in here.service._waiting
        store.unreadable, store.fault = False, lambda *_: None


async def _ended(turn: asyncio.Future[Any]) -> None:
    await asyncio.wait([turn])


async def test_what_runs_under_a_lost_lease_is_dropped_although_the_process_has_a_new_one() -> None:
    """Other processes end it: its model call would go on for no one. covers: STATE-4"""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        await here.send(streamed=True)
        assert here.service.load().in_flight == 1
        await here.lease._lose("a test says so")
        assert here.lease.held
        await eventually(lambda: not here.service.load().in_flight)


@pytest.mark.parametrize("renewed", [True, False])
async def test_what_begins_while_the_lease_is_lost_is_dropped_as_well(
    renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run starts after the others were dropped, maybe under a new lease, which is not its own."""

    async def fails() -> None:
        raise PersistenceUnavailable("The store is away.")

    store = Behind()
    async with process(store, Scripted(says("too late"))) as here:

        async def lost() -> None:
            with monkeypatch.context() as patched:
                if not renewed:
                    patched.setattr(here.lease, "_renew", fails)
                await here.lease._lose("a test says so")
            await eventually(here.lease._lost_ids.empty)

        store.there = lost
        with pytest.raises(Interrupted):
            await here.ask()


async def test_a_drain_waits_for_what_is_beginning() -> None:
    """A message whose begin is on its way when the process is stopped is answered. covers: FLOW-1"""
    store = Late(MemoryStore())
    async with process(store) as here:
        store.late = True
        sending = asyncio.create_task(here.ask("one"))
        await eventually(lambda: not store.late)
        draining = asyncio.create_task(here.service.drain(600))
        await eventually(lambda: here.service.admission.draining)
        assert not draining.done()
        store.reply.set()
        await draining
        assert here.service.admission.in_flight == 0
        assert (await sending).status == "Completed"


class Held(Faulty):
    """A store that answers no read before it may, and knows what it was asked for."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.may = asyncio.Event()
        self.may.set()
        self.asked: set[str] = set()

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        self.asked |= set(keys)
        await self.may.wait()
        return await super().read(partition, keys)


class Mute(Held):
    """A store that takes no commit either before it may."""

    async def commit(self, partition: str, commit: Commit) -> None:
        await self.may.wait()
        await super().commit(partition, commit)


async def two_queues(here: Process) -> tuple[list[str], list[str]]:
    """Two tasks that run, each with a message that waits: what runs, and what waits."""
    running = [(await here.send(streamed=True)).request for _ in range(2)]
    waiting = [(await here.send("next", each.task_id, streamed=True)).request for each in running]
    await eventually(lambda: len(here.model.calls) == 2)
    return [each.request_id for each in running], [each.request_id for each in waiting]


async def test_a_drain_ends_what_runs_and_what_waits_side_by_side() -> None:
    """What waits for one task holds up neither what runs nor what waits for another. covers: TASK-5"""
    store, stopped = Held(MemoryStore()), []

    async def until_stopped(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        try:
            await asyncio.Event().wait()
            yield TextDelta("never")
        finally:
            stopped.append(call)

    async with process(store, Scripted(until_stopped), concurrency="enqueue") as here:
        running, waiting = await two_queues(here)
        store.may.clear()
        store.asked.clear()
        draining = asyncio.create_task(here.service.drain(0))
        await eventually(lambda: {keys.request(each) for each in waiting} <= store.asked, every=0)
        await eventually(lambda: len(stopped) == 2, every=0)
        store.may.set()
        await draining
        ended = [await here.request(each) for each in (*running, *waiting)]
        assert [each.error and each.error.code for each in ended] == ["interrupted"] * 4


async def test_a_drain_does_not_wait_for_a_store_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The requests that wait are left to other processes, once this one is gone. covers: STATE-3"""
    monkeypatch.setattr(service, "LAST_WRITES_SECONDS", 0)
    store = Held(shared())
    async with process(store.store) as there:
        async with process(store, Scripted(waits(asyncio.Event())), concurrency="enqueue") as here:
            _, waiting = await two_queues(here)
            store.may.clear()
            draining = asyncio.create_task(here.service.drain(0))
            await eventually(lambda: here.service.followers.closed, every=0)
            store.may.set()
            await draining
        ended = [await there.request(each) for each in waiting]
        assert [each.error and each.error.code for each in ended] == ["interrupted"] * 2


async def test_a_drain_reports_an_end_that_the_store_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the stream of the message would break off, and a proxy may make a whole answer of that."""
    monkeypatch.setattr(service, "LAST_WRITES_SECONDS", 0)
    store = Mute(MemoryStore())
    async with process(store, Scripted(waits(asyncio.Event()))) as here:
        sent = await here.send(streamed=True)
        waiting = [
            asyncio.ensure_future(here.followed(sent.request.request_id)),
            asyncio.ensure_future(here.service.outcome(sent)),
        ]
        await eventually(lambda: len(here.model.calls) == 1)
        store.may.clear()
        await here.service.drain(0)
        said = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
        store.may.set()
    for error in said:
        assert isinstance(error, PersistenceUnavailable)
        assert error.ids["request_id"] == sent.request.request_id


async def test_a_drain_that_has_ended_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service ends after it: a store that hangs would hold up the process twice."""
    monkeypatch.setattr(service, "LAST_WRITES_SECONDS", 0)
    store = Held(MemoryStore())
    async with process(store, Scripted(waits(asyncio.Event())), concurrency="enqueue") as here:
        await two_queues(here)
        store.may.clear()
        await here.service.drain(0)
        monkeypatch.setattr(service, "LAST_WRITES_SECONDS", 3600)
        await asyncio.wait_for(here.service.drain(0), 30)
        store.may.set()


# --- idempotency ----------------------------------------------------------------------------------------


async def test_a_key_that_is_used_again_stays_with_who_uses_it_now() -> None:
    """A pause that is settled long after its key ran out does not take the key back. covers: SESSION-7"""
    clock = Ahead()
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    short = {"approval_expiry_seconds": 60, "request_timeout_seconds": 60}
    key = Key("k" * 64, "d" * 64)
    async with process(
        store,
        Scripted(calls(DELETE), says("second")),
        noting([], governed=True),
        clock=clock,
        lease_seconds=1e9,
        limits={"approval_expiry_seconds": 60},
        **short,
    ) as here:
        first = await here.ask("one", key=key)
        clock.seconds = 86_400 + 200
        second = await here.ask("two", key=key)
        assert (await here.request(first.request_id)).status == "Canceled"
        again = await here.send("two", key=key)
        assert (again.replayed, again.request.request_id) == (True, second.request_id)


async def test_a_request_that_is_ended_late_does_not_take_its_key_back() -> None:
    """Its process died, and its key ran out and was used again before that was seen. covers: SESSION-7"""
    clock = Ahead()
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    options: dict[str, Any] = {"clock": clock, "lease_seconds": 1e9}
    options |= {"approval_expiry_seconds": 60, "request_timeout_seconds": 60}
    key = Key("k" * 64, "d" * 64)
    async with process(store, **options) as here:
        dead = Process(store, Scripted(), **options)
        await dead.lease._renew()
        first = await dead.service.submission.begin(ADA, NewMessage(items=(Item("text", "one"),)), key)
        assert isinstance(first, TaskWriter)
        await dead.lease._retire()
        clock.seconds = 2 * 86_400
        second = await here.ask("two", key=key)
        assert second.request_id != first.request.request_id
        ended = await here.request(first.request.request_id)
        assert (ended.status, ended.idempotency) == ("Failed", None)
        again = await here.send("two", key=key)
        assert (again.replayed, again.request.request_id) == (True, second.request_id)


async def test_a_key_is_replayed_for_a_day_after_the_end_of_its_request() -> None:
    """By the store's clock; after that it is as good as new. covers: SESSION-7"""
    clock = Ahead()
    key = Key("k" * 64, "d" * 64)
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    async with process(store, clock=clock, lease_seconds=1e9) as here:
        first = await here.ask("one", key=key)
        clock.seconds = 86_400 - 60
        again = await here.send("one", key=key)
        assert (again.replayed, again.request.request_id) == (True, first.request_id)
        clock.seconds = 86_400 + 60
        second = await here.send("one", key=key)
        assert not second.replayed
        assert second.request.request_id != first.request_id


async def test_the_day_of_a_key_counts_from_the_expiry_of_its_pause() -> None:
    """However late it is seen that the pause has expired; the audit has the time at which it was.
    covers: SESSION-7"""
    clock = Ahead()
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    key = Key("k" * 64, "d" * 64)
    limits = {"approval_expiry_seconds": 60}
    options: dict[str, Any] = {"clock": clock, "lease_seconds": 1e9, "limits": limits, **limits}
    async with process(store, Scripted(calls(DELETE)), noting([], governed=True), **options) as here:
        paused = await here.ask("one", key=key)
        assert paused.pause is not None
        clock.seconds = 86_400
        ended = await here.request(paused.request_id)
        assert (ended.status, ended.ended_at) == ("Canceled", paused.pause.expires_at)
        task = await here.tasks.stored_head(here.partition(), paused.task_id)
        assert task.value.updated_at >= paused.created_at + timedelta(seconds=86_400)
        assert (await here.send("one", key=key)).replayed
        clock.seconds = 86_400 + 90
        assert not (await here.send("one", key=key)).replayed


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_who_runs_a_request_writes_its_end_for_others(how: str) -> None:
    """Ended from another replica it holds what was shown, and the numbers of its events rise by one.
    covers: TASK-5"""
    store, never = shared(), asyncio.Event()
    model = Scripted(waits(never, "one ", "two"), says("newer"))
    async with (
        process(store, model, concurrency="interrupt") as here,
        process(store, model, concurrency="interrupt") as there,
    ):
        sent = await here.send(streamed=True)
        request_id = sent.request.request_id
        await eventually(lambda: model.calls)
        if how == "cancel":
            await there.service.cancel(there.partition(), request_id, "mock.ada")
        else:
            assert (await there.ask("newer", sent.request.task_id)).status == "Completed"
        ended = await there.request(request_id)
        assert ended.status == "Canceled"
        assert ended.output == "one "
        found = await there.followed(request_id)
        assert [event.id for event in found] == list(range(1, len(found) + 1))
        assert isinstance(found[-1].event, Canceled)


@pytest.mark.parametrize("how", ["here", "there", "asked"])
async def test_the_end_of_a_request_is_counted_once(how: str) -> None:
    """By the process that has written it: the one that runs it, also when another asks for it, or another."""
    store, go = shared(), asyncio.Event()
    counted: list[tuple[str, bool]] = []

    class Counting(Observer):
        def request(self, request: RequestRecord) -> RequestWatch:
            return Counted(request)

        def ended_outside(self, request: RequestRecord) -> None:
            counted.append((request.status, True))

    class Counted(RequestWatch):
        def ended(self, request: RequestRecord, *, here: bool = True) -> None:
            counted.append((request.status, here))

    agent, model = {"observer": Counting()}, Scripted(waits(go, "one ", "two"))
    async with process(store, model, agent=agent) as here, process(store, agent=agent) as there:
        sent = await here.send("one")
        request_id, partition = sent.request.request_id, here.partition()
        await eventually(lambda: model.calls)
        if how == "asked":
            await there.service.cancel(partition, request_id, "mock.ada")
        elif how == "there":
            head = await there.tasks.head(partition, sent.request.task_id)
            assert await there.tasks.end(partition, head, request_id, endings.INTERRUPTED, "mock.ada")
        go.set()
        await eventually(lambda: not here.service.load().in_flight)
        status = (await there.request(request_id)).status
    assert [ended for ended, is_counted in counted if is_counted] == [status]
    assert len(counted) == (2 if how == "there" else 1)


@pytest.mark.parametrize("concurrency", ["interrupt", "rollback"])
async def test_a_newer_message_ends_no_pause_that_it_meets_elsewhere(
    monkeypatch: pytest.MonkeyPatch, concurrency: Any
) -> None:
    """The request pauses on its replica just before it is to give way: only `supersede` ends a pause.
    covers: HITL-1"""
    store, gate, asks = shared(), asyncio.Event(), calls(DELETE)

    async def pauses(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        await gate.wait()
        async for event in asks(call):
            yield event

    async with (
        process(store, Scripted(pauses), noting([], governed=True), concurrency=concurrency) as here,
        process(store, Scripted(says("newer")), concurrency=concurrency) as there,
    ):
        sent = await here.send()
        cancel = there.tasks.cancel

        async def late(*which: Any, **how: Any) -> bool:
            gate.set()
            await here.service.outcome(sent)
            return await cancel(*which, **how)

        monkeypatch.setattr(there.tasks, "cancel", late)
        with pytest.raises(ApprovalPending):
            await there.ask("newer", sent.request.task_id)
        assert (await there.request(sent.request.request_id)).status == "Paused"
        assert (await there.ask("newer", sent.request.task_id, supersede=True)).status == "Completed"


@pytest.mark.parametrize("concurrency", ["interrupt", "rollback"])
async def test_a_word_for_a_request_that_has_paused_does_not_cancel_it_once_it_is_approved(
    monkeypatch: pytest.MonkeyPatch, concurrency: Any
) -> None:
    """It pauses while another replica asks it to give way: that message is refused, the pause stays, and the
    approval holds. covers: HITL-1"""
    store, gate, end = shared(), asyncio.Event(), asyncio.Event()
    asks, ran = calls(DELETE), list[Json]()

    async def pauses(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        await gate.wait()
        async for event in asks(call):
            yield event

    model = Scripted(pauses, waits(end, "done"))
    async with (
        process(store, model, noting(ran, governed=True), concurrency=concurrency) as here,
        process(store, Scripted(says("newer")), concurrency=concurrency) as there,
    ):
        sent = await here.send()
        request_id, signal = sent.request.request_id, there.tasks.peers.signal

        async def late(worker_id: str, asked: workers.Signal) -> None:
            gate.set()
            await eventually(lambda: not here.tasks.begun)
            await signal(worker_id, asked)

        monkeypatch.setattr(there.tasks.peers, "signal", late)
        with pytest.raises(ApprovalPending):
            await there.ask("newer", sent.request.task_id)
        resumed = await here.approvals.resume(ADA, request_id, Command(action="approve"), streamed=False)
        await eventually(lambda: len(model.calls) == 2)
        # the next signal is read with all that have been left before
        await signal(here.lease.worker_id, workers.Signal(request_id=random_id(), actor="mock.ada"))
        mailbox = keys.signals(here.lease.worker_id)
        await eventually(lambda: _is_empty(store, keys.workers("Tester"), mailbox))
        end.set()
        assert (await here.service.outcome(resumed)).status == "Completed"
        assert len(ran) == 1


async def test_a_signal_of_the_version_before_which_counts_no_pauses_ends_the_run() -> None:
    """As while an update rolls. covers: REQUEST-8"""
    store, never = shared(), asyncio.Event()
    model = Scripted(calls(DELETE), waits(never))
    async with process(store, model, noting([], governed=True)) as here, process(store) as there:
        paused = await here.ask()
        await here.approvals.resume(ADA, paused.request_id, Command(action="approve"), streamed=False)
        await eventually(lambda: len(model.calls) == 2)
        signal = workers.Signal(request_id=paused.request_id, actor="mock.ada")
        await there.tasks.peers.signal(here.lease.worker_id, signal)

        async def canceled() -> bool:
            return (await here.request(paused.request_id)).status == "Canceled"

        await eventually(canceled)


async def _is_empty(store: MemoryStore, partition: str, prefix: str) -> bool:
    return not await names(store, partition, prefix)


async def test_a_request_that_is_ended_from_outside_is_reported_as_any_other() -> None:
    """Where its process does not answer: its model calls count, and its end is a step of the trace.
    covers: REQUEST-8"""
    store, never = MemoryStore(), asyncio.Event()  # this store carries no signals

    async def counted(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        look = ToolCall("c1", "Shell-look", "{}")
        yield ModelDone(
            finish_reason="tool_calls", tool_calls=(look,), model="scripted", usage=TokenUsage(9, 2, 11)
        )

    model = Scripted(counted, waits(never, "late"))
    async with process(store, model, noting([], "Shell-look")) as here, process(store) as there:
        sent = await here.send()
        await eventually(lambda: len(model.calls) >= 2)
        request_id, task_id = sent.request.request_id, sent.request.task_id
        ended = await there.service.cancel(there.partition(), request_id, "mock.ada")
        assert ended.usage == TokenUsage(9, 2, 11)
        head = (await there.tasks.head(there.partition(), task_id)).value
        steps, _ = await there.tasks.history.steps(there.partition(), task_id, head.tail_seq, limit=20)
        assert [(step.kind, step.name) for step in steps][-1] == ("error", "request_canceled")


async def test_tools_of_a_message_that_was_rolled_back_are_not_forgotten() -> None:
    """Its messages leave the task, what it did in the world does not. covers: TASK-5"""
    never = asyncio.Event()
    model = Scripted(
        calls(ToolCall("c1", "Shell-look", "{}")), waits(never, "late"), says("done"), says("on")
    )
    async with process(None, model, noting([], "Shell-look"), concurrency="rollback") as here:
        sent = await here.send("look")
        await eventually(lambda: len(model.calls) >= 2)
        task_id = sent.request.task_id
        assert (await here.ask("instead", task_id)).status == "Completed"
        head = (await here.tasks.head(here.partition(), task_id)).value
        assert [tool.call_id for tool in paths.effects_on_path(head)] == ["c1"]
        said, _ = await here.tasks.history.messages(here.partition(), task_id, head.path, limit=10)
        assert [message.text for message in said] == ["instead", "done"]
        assert (await here.ask("more", task_id)).status == "Completed"
        forked = await fork(here.tasks, here.partition(), task_id, ADA.user)
        assert [tool.call_id for tool in paths.effects_on_path(forked)] == ["c1"]


class Between(MemoryStore):
    """Lets something else happen between the next read of a log of events and what is made of it."""

    there: Callable[[], Awaitable[None]] | None = None

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        found = await super().scan(partition, prefix, **page)
        if self.there is not None and prefix.startswith("events/"):
            there, self.there = self.there, None
            await there()
        return found


async def test_what_is_erased_while_it_resumes_does_not_come_back() -> None:
    """The events of before the pause stay erased, and the approved call is not made. covers: STATE-2"""

    async def asks(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("my secret")
        yield ModelDone(finish_reason="tool_calls", tool_calls=(DELETE,))

    store, ran, clock = Between(), list[Json](), Ahead()
    async with process(store, Scripted(asks), noting(ran, governed=True), clock=clock) as here:
        paused = await here.ask(streamed=True)
        assert await names(store, here.partition(), "events/")
        clock.seconds = SPARE_SECONDS + 60

        async def erases() -> None:
            await UserErasure(here.eraser, ADA.user).erase()

        store.there = erases
        resumed = await here.approvals.resume(
            ADA, paused.request_id, Command(action="approve"), streamed=True
        )
        with pytest.raises(NotFound):
            await here.service.outcome(resumed)
        assert not await names(store, here.partition(), "events/")
    assert ran == []


class Behind(MemoryStore):
    """Lets something else happen behind the next commit of a task."""

    there: Callable[[], Awaitable[object]] | None = None

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, commit)
        if self.there is not None and writes_a_log(commit):
            there, self.there = self.there, None
            await there()


class Overtaken(MemoryStore):
    """Lets something else happen before the next commit of a task."""

    first: Callable[[], Awaitable[object]] | None = None

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.first is not None and writes_a_log(commit):
            first, self.first = self.first, None
            await first()
        await super().commit(partition, commit)


async def test_a_request_that_resumes_while_it_is_canceled_is_ended_by_its_run() -> None:
    """So nothing runs once the cancel is answered, and its events have no gap. covers: TASK-5"""
    store, model = Overtaken(), Scripted(calls(DELETE), waits(asyncio.Event(), "I deleted"))
    async with process(store, model, noting([], governed=True)) as here:
        paused = await here.ask()

        async def resumes() -> None:
            await here.approvals.resume(ADA, paused.request_id, Command(action="approve"), streamed=True)
            await eventually(lambda: len(model.calls) == 2)

        store.first = resumes
        ended = await here.service.cancel(here.partition(), paused.request_id, ADA.user.key)
        assert (ended.status, here.service.load().in_flight) == ("Canceled", 0)
        *_, before, last = await here.followed(paused.request_id)
        assert last.id == before.id + 1


class TakenLate(MemoryStore):
    """Holds the first cancel, and the reply to a queued request's turn, until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.taken = asyncio.Event(), asyncio.Event()
        self.cancels, self.replies = asyncio.Event(), asyncio.Event()

    async def commit(self, partition: str, commit: Commit) -> None:
        entry = b"".join(put.value for key, put in commit.put.items() if key.startswith("log/"))
        if b"request.canceled" in entry and not self.held.is_set():
            self.held.set()
            await self.cancels.wait()
        await super().commit(partition, commit)
        if b"message.received" in entry and self.held.is_set():
            self.taken.set()
            await self.replies.wait()


async def test_a_queued_request_whose_turn_comes_while_it_is_canceled_is_ended_by_its_run() -> None:
    """Its events are numbered without a gap. covers: TASK-5"""
    store, gate = TakenLate(), asyncio.Event()
    async with process(store, Scripted(waits(gate), waits(asyncio.Event())), concurrency="enqueue") as here:
        first = await here.send("one")
        waiting = (await here.send("two", first.request.task_id, streamed=True)).request
        canceling = asyncio.create_task(
            here.service.cancel(here.partition(), waiting.request_id, ADA.user.key)
        )
        await store.held.wait()
        gate.set()
        await store.taken.wait()
        store.cancels.set()
        await eventually(lambda: here.tasks.begun._early_stops)
        store.replies.set()
        assert (await canceling).status == "Canceled"
        assert [event.id for event in await here.followed(waiting.request_id)] == [1, 2]


async def test_a_request_that_resumes_where_it_is_to_give_way_is_ended_by_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had paused on its replica just before: its approved tool does not run beside the newer message.
    covers: HITL-1"""
    store, gate, ran = shared(), asyncio.Event(), list[str]()
    asks = calls(DELETE)

    async def pauses(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        await gate.wait()
        async for event in asks(call):
            yield event

    async def runs() -> None:
        ran.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            ran.append("ended")

    tool = Function("Shell-delete", lambda _: runs(), governed=True)
    async with (
        process(store, Scripted(pauses), tool, concurrency="interrupt") as there,
        process(store, Scripted(says("newer")), tool, concurrency="interrupt") as here,
    ):
        sent = await there.send()
        signal, request_id = here.tasks.peers.signal, sent.request.request_id

        async def late(*which: Any) -> None:
            gate.set()
            await there.service.outcome(sent)
            await here.approvals.resume(ADA, request_id, Command(action="approve"), streamed=False)
            await eventually(lambda: ran)
            await signal(*which)

        monkeypatch.setattr(here.tasks.peers, "signal", late)
        assert (await here.ask("newer", sent.request.task_id)).status == "Completed"
        assert ((await here.request(request_id)).status, ran) == ("Canceled", ["begun", "ended"])


async def test_a_request_that_another_process_ends_while_it_resumes_makes_no_call() -> None:
    """What was approved is not made any more once the request has ended. covers: HITL-1"""
    store, ran = Behind(), list[Json]()
    async with process(store, Scripted(calls(DELETE)), noting(ran, governed=True)) as here:
        paused, other = await here.ask(), Process(store, Scripted())

        async def ends() -> None:
            head = await other.tasks.stored_head(here.partition(), paused.task_id)
            assert await other.tasks.end(
                here.partition(), head, paused.request_id, endings.INTERRUPTED, "service"
            )

        store.there = ends
        resumed = await here.approvals.resume(
            ADA, paused.request_id, Command(action="approve"), streamed=False
        )
        assert (await here.service.outcome(resumed)).status == "Failed"
    assert ran == []
