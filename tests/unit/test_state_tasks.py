"""A task's life where its records contradict each other, are damaged, or come from a lost reply."""

import asyncio
import time
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from engine_setup import (
    ADA,
    EVE,
    Faulty,
    Process,
    Scripted,
    Shared,
    calls,
    damage,
    fails,
    noting,
    process,
    says,
    waits,
)
from msgspec.structs import replace
from refusing_store import RefusingStore, refusing

from tealagents.domain.errors import (
    ApprovalExpired,
    CheckpointMoved,
    CorruptState,
    NotFound,
    NotOwner,
    PersistenceUnavailable,
)
from tealagents.domain.ids import operation_id, owner_tag
from tealagents.domain.models import Head, Item, Json, ToolCall
from tealagents.domain.ports import Commit, Put
from tealagents.engine import wait_queue
from tealagents.engine.approvals import Command
from tealagents.state import commits, keys, latest, tasks
from tealagents.state.catalog import Damaged
from tealagents.state.changes import Changes
from tealagents.state.endings import CANCELED
from tealagents.state.forking import fork
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.owner_directory import CLAIM_SECONDS
from tealagents.state.queue import QueuedRequest, try_start
from tealagents.state.records import Stored
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock, ShiftedClock


async def stale(here: Process, worker: Process) -> tuple[str, str]:
    """A task and its request that a process has left running and that is dead."""
    sent = await worker.send()
    await worker.lease._retire()
    worker.tasks.begun.close()
    return sent.request.task_id, sent.request.request_id


@pytest.mark.parametrize("missing", [False, True])
async def test_a_dead_request_whose_record_is_damaged_stops_its_own_task_alone(missing: bool) -> None:
    """That task says what is wrong, in lists too; it is left as it was found, and others work.

    covers: STATE-4
    """
    store = MemoryStore()
    async with process(store) as here:
        dead = Process(store, Scripted(waits(asyncio.Event())))
        await dead.lease._renew()
        task_id, request_id = await stale(here, dead)
        key = keys.request(request_id)
        if missing:
            await store.commit(here.partition(), Commit(operation=operation_id(), delete=[key]))
        else:
            await damage(store, here.partition(), key)
        before = await store.read(here.partition(), [keys.task(task_id), key])
        for _ in range(2):
            with pytest.raises(CorruptState, match=request_id):
                await here.tasks.head(here.partition(), task_id)
            with pytest.raises(CorruptState, match=request_id):
                await here.send("and now?", task_id)
        other = await here.ask("hello")
        assert other.status == "Completed"
        page = await here.catalog.tasks(here.partition(), session_id=None, status=None, cursor=None, limit=9)
        assert [type(item) for item in page.items] == [Head, Damaged]
        assert await store.read(here.partition(), [keys.task(task_id), key]) == before


@pytest.mark.parametrize("marked", [True, False])
async def test_what_a_dead_process_left_keeps_nothing_from_being_read_while_the_store_takes_no_writes(
    marked: bool,
) -> None:
    """It is shown as it is stored, and ends once the store takes writes. Who writes hears of the store.

    covers: STATE-4
    """
    store = RefusingStore()
    async with process(store, Scripted(says("one"), says("two"))) as here:
        dead, other, first = (
            Process(store, Scripted(waits(asyncio.Event()))),
            await here.ask(),
            await here.ask(),
        )
        await dead.lease._renew()
        left = (await dead.send("more", first.task_id)).request
        dead.tasks.begun.close()
        if marked:
            await dead.lease._retire()
        else:
            store.clock = lambda: time.time() + 2 * dead.lease.seconds
        before = await here.tasks.stored_head(here.partition(), first.task_id)
        with refusing(lambda *_: True):
            page = await here.catalog.tasks(
                here.partition(), session_id=None, status=None, cursor=None, limit=9
            )
            (shown,) = (head for head in page.items if isinstance(head, Head) and head.status == "Running")
            assert (len(page.items), shown) == (2, before.value)
            assert await here.tasks.head(here.partition(), first.task_id, reading=True) == before
            newest = await latest.page(here.tasks, here.partition(), lambda _: True, behind=None, limit=9)
            assert {each.request_id for each in newest.records} == {
                each.request_id for each in (other, first, left)
            }
            assert await here.request(first.request_id) == first
            for write in (here.send("and now?", first.task_id), here.request(left.request_id)):
                with pytest.raises(PersistenceUnavailable):
                    await write
        ended = await here.request(left.request_id)
        assert ended.error is not None
        assert (ended.status, ended.error.code) == ("Failed", "interrupted")
        assert await here.request(left.request_id) == ended


async def test_a_dead_request_whose_task_is_deleted_meanwhile_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process has ended it, too, and its owner has deleted the task: that is no damage."""
    store = MemoryStore()
    async with process(store) as here, process(store) as there:
        dead = Process(store, Scripted(waits(asyncio.Event())))
        await dead.lease._renew()
        task_id, _ = await stale(here, dead)
        scan = here.records.scan

        async def deleted_first(partition: str, prefix: str, *args: Any, **options: Any) -> Any:
            if prefix == keys.logs(task_id):
                monkeypatch.undo()
                await there.eraser.delete_task(partition, task_id)
            return await scan(partition, prefix, *args, **options)

        monkeypatch.setattr(here.records, "scan", deleted_first)
        with pytest.raises(NotFound, match=task_id):
            await here.send("and now?", task_id)


async def test_a_request_of_which_its_task_knows_nothing_is_damage() -> None:
    """A record that says it runs, and a task that is idle, contradict each other; none waits for ever."""
    async with process(None, Scripted(waits(asyncio.Event()))) as here:
        sent = await here.send()
        partition, request_id = here.partition(), sent.request.request_id
        (record,) = await here.store.read(partition, [keys.request(request_id)])
        await here.service.cancel(partition, request_id, "ada")
        assert record is not None
        put = {keys.request(request_id): Put(record.value)}
        await here.store.commit(partition, Commit(operation=operation_id(), put=put))
        for attempt in (here.request(request_id), here.tasks.cancel(partition, request_id, "ada", CANCELED)):
            with pytest.raises(CorruptState, match="knows nothing"):
                await attempt
        with pytest.raises(CorruptState):
            await here.followed(request_id, 1)


class SetClock(FakeClock):
    """A wall clock that can be set; elapsed time is not affected."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


async def test_a_task_is_never_changed_before_it_was_made() -> None:
    """Where the machine's clock is set back: by a message, a change, a rollback, a fork. covers: TASK-1"""
    clock = SetClock()
    clock.ahead = timedelta(hours=2)
    async with process(clock=clock, lease_seconds=3600) as here:
        first, partition = await here.ask(), here.partition()

        async def check(task_id: str = first.task_id) -> None:
            head = (await here.tasks.head(partition, task_id)).value
            assert head.updated_at >= head.created_at

        clock.ahead = timedelta()
        await here.ask("again", first.task_id)
        await check()
        await here.changes.patch(partition, first.task_id, ADA.user, metadata={"a": 1})
        await check()
        await here.changes.rollback(partition, first.task_id, ADA.user, first.request_id)
        await check()
        await check((await fork(here.tasks, partition, first.task_id, ADA.user)).task_id)


@pytest.mark.parametrize("paused", [True, False])
async def test_a_process_whose_clock_is_ahead_ends_nothing_early(paused: bool) -> None:
    """Neither a pause nor a message that waits: their time is up by the store's clock, for every process.
    covers: STATE-5"""
    ahead, at_store = ShiftedClock(), ShiftedClock()
    ahead.shift = timedelta(minutes=5)
    store = MemoryStore(clock=lambda: at_store.now().timestamp())
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")) if paused else waits(asyncio.Event()))
    rules: dict[str, Any] = {"approval_expiry_seconds": 240, "request_timeout_seconds": 240}
    limits = {"approval_expiry_seconds": 240}
    rules |= {"limits": limits, "lease_seconds": 1e9, "concurrency": "enqueue"}
    async with (
        process(store, model, noting([], governed=True), **rules) as here,
        process(store, Scripted(), clock=ahead, **rules) as there,
    ):
        if paused:
            waiting, status, code = await here.ask(), "Paused", "approval_expired"
        else:
            first = await here.send()
            waiting = (await here.send("next", first.request.task_id)).request
            status, code = "Queued", "request_timeout"
        assert (await there.request(waiting.request_id)).status == status
        assert (await here.request(waiting.request_id)).status == status
        at_store.shift = timedelta(minutes=5)
        ended = (await there.request(waiting.request_id)).error
        assert ended is not None
        assert ended.code == code


async def test_a_pause_of_a_process_whose_clock_is_behind_can_be_decided_for_as_long_as_any_other() -> None:
    """Its time begins by the store's clock, by which it also ends. covers: HITL-1, STATE-5"""
    behind, at_store = ShiftedClock(), ShiftedClock()
    behind.shift = timedelta(minutes=-10)
    store, ran = MemoryStore(clock=lambda: at_store.now().timestamp()), list[Json]()
    rules: dict[str, Any] = {"limits": {"approval_expiry_seconds": 240}, "lease_seconds": 1e9}
    model, approve = Scripted(calls(ToolCall("c1", "Shell-delete", "{}"))), Command(action="approve")
    async with (
        process(store, model, noting([], governed=True), clock=behind, **rules) as here,
        process(store, Scripted(says("done")), noting(ran, governed=True), **rules) as there,
    ):
        paused = await here.ask()
        at_store.shift = timedelta(minutes=3)
        assert (await there.request(paused.request_id)).status == "Paused"
        sent = await there.approvals.resume(ADA, paused.request_id, approve, streamed=False)
        assert (await there.service.outcome(sent)).output == "done"
        assert len(ran) == 1


async def test_a_process_whose_clock_is_behind_decides_no_pause_late() -> None:
    """Its time is up by the store's clock: what was to be approved does not run. covers: STATE-5"""
    behind, at_store = ShiftedClock(), ShiftedClock()
    behind.shift = timedelta(minutes=-10)
    store, ran = MemoryStore(clock=lambda: at_store.now().timestamp()), list[Json]()
    rules: dict[str, Any] = {"limits": {"approval_expiry_seconds": 240}, "lease_seconds": 1e9}
    model, approve = Scripted(calls(ToolCall("c1", "Shell-delete", "{}"))), Command(action="approve")
    async with (
        process(store, model, noting([], governed=True), **rules) as here,
        process(store, Scripted(says("done")), noting(ran, governed=True), clock=behind, **rules) as there,
    ):
        paused = await here.ask()
        at_store.shift = timedelta(minutes=5)
        for _ in range(2):
            with pytest.raises(ApprovalExpired):
                await there.approvals.resume(ADA, paused.request_id, approve, streamed=False)
        ended = await there.request(paused.request_id)
        assert (ended.status, ended.error and ended.error.code) == ("Canceled", "approval_expired")
        assert ran == []


@pytest.mark.parametrize("action", ["approve", "cancel"])
async def test_a_damaged_idempotency_key_keeps_no_pause_from_its_end(action: str) -> None:
    """The request ends as decided, and a retry is answered with its outcome. covers: STATE-4"""
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("done"))
    key = Key("a" * 64, "b" * 64)
    async with process(None, model, noting([], governed=True)) as here:
        paused = await here.ask(key=key)
        await damage(here.store, here.partition(), keys.idempotency(key.name))
        if action == "approve":
            command = Command(action="approve")
            sent = await here.approvals.resume(ADA, paused.request_id, command, streamed=False)
            ended = await here.service.outcome(sent)
        else:
            await here.tasks.cancel(here.partition(), paused.request_id, "mock.ada")
            ended = await here.request(paused.request_id)
        assert ended.status == ("Completed" if action == "approve" else "Canceled")
        assert await here.ask(key=key) == ended


async def test_a_damaged_index_of_owners_locks_no_one_out() -> None:
    """The index names other users' ids; its owner's messages are answered without it. covers: STATE-4"""
    store = MemoryStore()
    async with process(store) as here:
        first = await here.ask()
        tag = owner_tag(ADA.user.key)
        await damage(store, keys.owners("Tester", tag), f"owner/{tag}")
    async with process(store) as here:
        assert (await here.ask("again", first.task_id)).status == "Completed"
        with pytest.raises((CorruptState, NotFound)):
            await here.ask("mine?", first.task_id, caller=EVE)


async def test_an_id_that_another_user_is_just_taking_is_named() -> None:
    """Of two who bring one session id, the second is refused before the first one's session exists."""
    session_id = str(uuid4())
    async with process() as here:
        await here.tasks.directory.claim(keys.session, session_id, ADA.user)
        with pytest.raises(NotOwner, match=session_id) as refused:
            await here.send(session_id=session_id, caller=EVE)
    assert refused.value.ids == {"session_id": session_id}


@pytest.mark.parametrize("made", [False, True], ids=["claimed alone", "with its session"])
async def test_an_id_that_a_dead_process_has_claimed_is_free_again_a_minute_later(made: bool) -> None:
    """For another user, unless the claim was followed by what it was made for. covers: SESSION-1, STATE-4"""
    session_id, clock = str(uuid4()), FakeClock()
    store = Shared(clock=lambda: clock.now().timestamp())
    async with process(store, clock=clock, lease_seconds=3600) as here:
        if made:
            await here.ask(session_id=session_id)
        else:  # the process dies behind this
            await here.tasks.directory.claim(keys.session, session_id, ADA.user)
        claim = partial(here.tasks.directory.claim, keys.session, session_id, EVE.user)
        clock.advance(CLAIM_SECONDS - 1)
        with pytest.raises(NotOwner):
            await claim()
        clock.advance(1)
        if made:
            with pytest.raises(NotOwner):
                await claim()
        else:
            await claim()
            assert (await here.ask(session_id=session_id, caller=EVE)).status == "Completed"


async def test_an_id_whose_owner_tries_again_to_use_it_is_not_taken_over_meanwhile() -> None:
    """The first claim is old by then; the second holds as long until its session is stored."""
    session_id, clock = str(uuid4()), FakeClock()
    store = Shared(clock=lambda: clock.now().timestamp())
    async with process(store, clock=clock, lease_seconds=3600) as here:
        directory = here.tasks.directory
        for _ in range(2):
            await directory.claim(keys.session, session_id, ADA.user)
            clock.advance(CLAIM_SECONDS - 1)
            with pytest.raises(NotOwner):
                await directory.claim(keys.session, session_id, EVE.user)


@pytest.mark.parametrize("text", ["second", "x" * 300_000], ids=["small", "large"])
async def test_a_waiting_request_begins_although_the_reply_was_lost(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that takes its turn gets no reply but has succeeded; the request runs. covers: TASK-5"""
    monkeypatch.setattr(commits, "RESOLVE_SECONDS", 0.1)
    store = Faulty(MemoryStore())
    gate = asyncio.Event()
    async with process(store, Scripted(waits(gate), says("second")), concurrency="enqueue") as here:
        first = await here.send("first")
        second = await here.send(text, first.request.task_id)
        assert second.request.status == "Queued"

        def strike(partition: str, commit: Commit) -> str | None:
            if store.unreadable:
                return "away"
            begins = keys.request(second.request.request_id) in commit.put and any(
                key.startswith("log/") for key in commit.put
            )
            if not begins or b'"Running"' not in commit.put[keys.request(second.request.request_id)].value:
                return None
            store.unreadable = True
            store.fault = lambda _, __: "away" if store.unreadable else None
            asyncio.get_running_loop().call_later(0.4, lambda: setattr(store, "unreadable", False))
            return "lost"

        store.fault = strike
        gate.set()
        assert (await here.service.outcome(second)).status == "Completed"
        assert f"user: {text}".encode() in here.model.calls[-1].prompt
        assert here.service.admission.in_flight == 0
        assert not here.tasks.begun


async def test_a_message_that_comes_between_an_end_and_the_next_start_waits_behind_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task is free for a moment, and not for who comes just then. covers: TASK-5"""
    gate, turn = asyncio.Event(), asyncio.Event()

    async def later(*which: Any) -> object:
        await turn.wait()
        return await try_start(*which)

    monkeypatch.setattr(wait_queue, "try_start", later)
    async with process(None, Scripted(waits(gate), says("fine")), concurrency="enqueue") as here:
        first = await here.send("first")
        second = await here.send("second", first.request.task_id)
        gate.set()
        await here.service.outcome(first)
        assert (await here.tasks.head(here.partition(), first.request.task_id)).value.running is None
        third = await here.send("third", first.request.task_id)
        assert third.request.status == "Queued"
        turn.set()
        for sent in (second, third):
            assert (await here.service.outcome(sent)).status == "Completed"
        said = [part for part in here.model.calls[-1].prompt if part.startswith(b"user")]
        assert said == [b"user: first", b"user: second", b"user: third"]


async def test_a_message_for_the_end_of_a_task_is_refused_behind_another_one_alone() -> None:
    """What the running request writes is no reason: it may write at any time. covers: TASK-5"""
    gate = asyncio.Event()
    async with process(None, Scripted(waits(gate), fails, says("fine")), concurrency="enqueue") as here:
        first = await here.send("first")
        partition, task_id = here.partition(), first.request.task_id

        async def look() -> Head:
            return (await here.tasks.head(partition, task_id)).value

        seen = await look()
        await Changes(here.tasks).patch(partition, task_id, ADA.user, metadata={"a": 1})
        assert (await look()).tail_hash != seen.tail_hash
        second = await here.send("second", task_id, at_end=seen.end)
        assert second.request.status == "Queued"
        with pytest.raises(CheckpointMoved):
            await here.send("second", task_id, at_end=seen.end)
        gate.set()
        assert (await here.service.outcome(second)).status == "Failed"
        for before in (seen, replace(seen, running=None)):
            with pytest.raises(CheckpointMoved):
                await here.send("third", task_id, at_end=before.end)
        third = await here.ask("third", task_id, at_end=(await look()).end)
        assert third.status == "Completed"


async def test_what_a_dead_process_left_in_the_queue_leaves_it_wherever_it_stands() -> None:
    """What waits before it in a living process waits on. covers: TASK-5"""
    store = MemoryStore()
    rules: dict[str, Any] = {"concurrency": "enqueue"}
    async with process(store, Scripted(waits(asyncio.Event())), **rules) as here:
        first = await here.send("first")
        second = await here.send("second", first.request.task_id)
        dead = Process(store, Scripted(), **rules)
        await dead.lease._renew()
        message = NewMessage(items=(Item("text", "third"),), task_id=first.request.task_id)
        third = await dead.service.submission.begin(ADA, message, None)
        assert isinstance(third, QueuedRequest)
        await dead.lease._retire()
        ended = await here.request(third.request.request_id)
        assert ended.error is not None
        assert (ended.status, ended.error.code) == ("Failed", "interrupted")
        assert (await here.request(second.request.request_id)).status == "Queued"


async def test_a_pause_that_its_owner_cancels_stays_in_the_history() -> None:
    """Only what gives way to a newer message is rolled back. covers: TASK-5"""
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")))
    async with process(None, model, noting([], governed=True), concurrency="rollback") as here:
        paused = await here.ask("delete it")
        await here.service.cancel(here.partition(), paused.request_id, ADA.user.key)
        head = (await here.tasks.head(here.partition(), paused.task_id)).value
        assert head.status == "Canceled"
        said, _ = await here.tasks.history.messages(here.partition(), head.task_id, head.path, limit=10)
        assert [message.text for message in said if message.role == "user"] == ["delete it"]


async def test_a_request_that_another_process_rolls_back_leaves_no_message_in_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own process does not answer, so its end is written from outside. covers: TASK-5"""
    monkeypatch.setattr(tasks, "ASKED_SECONDS", 0)
    store, rules = MemoryStore(), {"concurrency": "rollback"}
    async with (
        process(store, Scripted(waits(asyncio.Event())), **rules) as here,
        process(store, Scripted(says("newer")), **rules) as there,
    ):
        sent = await here.send("older")
        task_id = sent.request.task_id
        assert (await there.ask("instead", task_id)).status == "Completed"
        assert (await there.request(sent.request.request_id)).status == "Canceled"
        head = (await there.tasks.head(there.partition(), task_id)).value
        said, _ = await there.tasks.history.messages(there.partition(), task_id, head.path, limit=10)
        assert [message.text for message in said] == ["instead", "newer"]


async def test_a_request_that_completes_while_it_is_looked_for_can_be_rolled_back_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was read while it ran, and its task once it had ended."""
    async with process(None, Scripted()) as here:
        ended = await here.ask()
        get, reads = here.tasks.records.get, list[str]()

        async def before(partition: str, key: str, kind: type[Any]) -> Any:
            found = await get(partition, key, kind)
            reads.append(key)
            if found is not None and reads.count(keys.request(ended.request_id)) == 1:
                return Stored(replace(found.value, status="Running"), "earlier")
            return found

        monkeypatch.setattr(here.tasks.records, "get", before)
        head = await here.changes.rollback(here.partition(), ended.task_id, ADA.user, ended.request_id)
        assert head.checkpoint_id == ended.request_id
