"""Deletion: complete, and resumed after any interruption."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from engine_setup import (
    ADA,
    EVE,
    Faulty,
    Process,
    Scripted,
    Watched,
    calls,
    damage,
    names,
    nothing,
    noting,
    process,
    says,
    waits,
)
from msgspec import to_builtins

from tealagents.domain import ids
from tealagents.domain.errors import (
    AlreadyExists,
    InvalidRequest,
    NeedsAuthorization,
    NotFound,
    NotOwner,
    PersistenceUnavailable,
    TaskBusy,
)
from tealagents.domain.events import Recorded, TextDelta
from tealagents.domain.ids import operation_id, random_id
from tealagents.domain.models import Head, Item, Json, RequestRecord, Session, ToolCall
from tealagents.domain.ports import COMMIT_RECORDS, Commit, Put, Record
from tealagents.state import keys
from tealagents.state.dump import Exporter
from tealagents.state.exporting import export
from tealagents.state.forking import fork
from tealagents.state.inventory import Inventory
from tealagents.state.memories import Memory
from tealagents.state.new_message import NewMessage
from tealagents.state.out_of_line import BLOB_BYTES
from tealagents.state.pruning import Pruning, UserErasure
from tealagents.state.records import ERASED_AT_ONCE
from tealagents.state.removal import MAKING_SECONDS, bury_unchanged
from tealagents.state.secret_store import SecretStore
from tealagents.state.session_deletion import SessionDeletion
from tealagents.state.workers import Signal
from tealagents.stores.files import FileOptions, FileStore
from tealagents.stores.memory import MemoryStore
from tealagents.stores.sqlite import SqliteOptions, SqliteStore
from tealagents.testing.clock import ShiftedClock
from tealagents.tools.oauth_pending import PendingConsent, PendingConsents
from tealagents.tools.oauth_servers import Endpoints, OAuthClient

TASK_DATA = ("task", "request/", "log/", "blob/", "event", "approval", "session")
#: seconds after which all that was in the making is given up
GIVEN_UP = -MAKING_SECONDS - 1


async def remains(here: Process) -> list[str]:
    """What is left of tasks and sessions in the user's partition."""
    return [key for key in await names(here.store, here.partition()) if key.startswith(TASK_DATA)]


async def expires(here: Process, task_id: str) -> None:
    """The task is one that expires in an hour."""
    at = here.records.clock.now() + timedelta(hours=1)
    await here.changes.patch(here.partition(), task_id, ADA.user, expires_at=at)


def kept_by(clock: ShiftedClock) -> MemoryStore:
    """A store whose time is that of the clock."""
    return MemoryStore(clock=lambda: clock.now().timestamp())


class Breaking(Faulty):
    """Is away from its `at`th deletion on, until a test says otherwise."""

    def __init__(self, at: int) -> None:
        super().__init__(MemoryStore())
        self._left = at
        self.fault = self._strike

    def _strike(self, partition: str, commit: Commit) -> str | None:
        if commit.delete or b'"erased":true' in b"".join(value for value, _ in commit.put.values()):
            self._left -= 1
        return "away" if self._left <= 0 else None

    def mend(self) -> None:
        self._left = 1_000_000


@pytest.mark.parametrize("at", range(1, 9))
async def test_a_deleted_session_is_erased_wherever_it_was_interrupted(at: int) -> None:
    """Sessions, their tasks and all they hold go, after a restart or when asked again. covers: STATE-2"""
    store = Breaking(1_000_000)
    session = random_id()
    async with process(store) as here:
        for _ in range(2):
            await here.ask(session_id=session)
        store._left = at
        with pytest.raises(PersistenceUnavailable):
            await here.eraser.delete_session(here.partition(), session)
    store.mend()
    async with process(store) as here:
        resumed = await here.eraser.resume_all(older_than_seconds=-1)
        if not resumed:  # it had not begun
            await here.eraser.delete_session(here.partition(), session)
        assert await remains(here) == []
        assert await names(store, keys.erasing("Tester")) == []
        with pytest.raises(NotFound):
            await here.eraser.delete_session(here.partition(), session)


async def test_a_deletion_that_failed_resumes_when_asked_again() -> None:
    """Deleting again what is half deleted deletes the rest."""
    store = Breaking(1_000_000)
    async with process(store) as here:
        request = await here.ask()
        store._left = 2
        with pytest.raises(PersistenceUnavailable):
            await here.eraser.delete_task(here.partition(), request.task_id)
        store.mend()
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert await remains(here) == [
            key for key in await remains(here) if key.startswith("session") and "tasks" not in key
        ]


async def test_a_task_that_begins_to_run_meanwhile_goes_with_its_session() -> None:
    """A message that comes in between does not save its task from being erased. covers: TASK-5"""
    session = random_id()
    gate = asyncio.Event()
    async with process(None, Scripted(says("hello"), waits(gate))) as here:
        first = await here.ask(session_id=session)
        stored = await here.catalog.session(here.partition(), session)
        head = await here.tasks.head(here.partition(), first.task_id)
        await here.send("again", first.task_id)
        assert await bury_unchanged(here.records, here.partition(), head) is None
        await SessionDeletion(here.tasks, here.partition(), stored).erase()
        assert await remains(here) == []
        gate.set()


async def test_a_session_is_deleted_although_a_task_of_it_expired_while_its_process_died() -> None:
    """No one could wait for that request, or cancel it. covers: STATE-2"""
    store, clock, session = MemoryStore(), ShiftedClock(), random_id()
    async with process(store, Scripted(waits(asyncio.Event()))) as dying:
        sent = await dying.send(session_id=session, streamed=True)
        await expires(dying, sent.request.task_id)
    clock.shift = timedelta(hours=2)
    async with process(store, clock=clock) as here:
        with pytest.raises(NotFound):
            await here.request(sent.request.request_id)
        await here.eraser.delete_session(here.partition(), session)
        assert await remains(here) == []


async def test_a_session_stays_while_a_task_of_it_runs_that_has_expired() -> None:
    """It is not hidden for a moment before its deletion is refused. covers: STATE-2"""
    store, clock, gate = Faulty(MemoryStore()), ShiftedClock(), asyncio.Event()
    async with process(store, Scripted(waits(gate)), clock=clock) as here:
        sent = await here.send(streamed=True)
        await expires(here, sent.request.task_id)
        clock.shift = timedelta(hours=2)
        before = len(store.commits)
        with pytest.raises(TaskBusy):
            await here.eraser.delete_session(here.partition(), sent.request.session_id)
        assert [commit for _, commit in store.commits[before:] if keys.DELETING in commit.put] == []
        gate.set()
        assert (await here.service.outcome(sent)).status == "Completed"
        await here.eraser.delete_session(here.partition(), sent.request.session_id)
        assert await remains(here) == []


class Overtaken(MemoryStore):
    """Lets something else happen just before the record of a request is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.overtaking: Callable[[], Awaitable[object]] | None = None

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.overtaking is not None and any(key.startswith("request/") for key in commit.delete):
            overtaking, self.overtaking = self.overtaking, None
            await overtaking()
        await super().commit(partition, commit)


async def test_what_is_streamed_while_its_task_is_erased_goes_too() -> None:
    """The process that answers learns of the deletion with its next commit only. covers: STATE-2"""
    store, gate = Overtaken(), asyncio.Event()
    async with process(store, Scripted(waits(gate))) as here:
        running = await here.send("hello")
        partition, request_id = here.partition(), running.request.request_id
        version = (await here.tasks.request(partition, request_id)).version
        late = [Recorded(2, TextDelta("late"))]
        store.overtaking = lambda: here.tasks.streams.write(partition, request_id, version, late)
        head = await here.tasks.head(partition, running.request.task_id)
        assert await here.eraser.delete_even_running(partition, head)
        assert store.overtaking is None
        assert not [key for key in await remains(here) if not key.startswith("session")]
        gate.set()


async def test_what_is_said_at_length_in_an_erased_task_is_not_stored() -> None:
    """A large body is stored before the commit that would find the task gone. covers: STATE-2"""
    gate = asyncio.Event()
    async with process(None, Scripted(waits(gate, "well", "x" * BLOB_BYTES))) as here:
        running = (await here.send("hello")).request
        head = await here.tasks.head(here.partition(), running.task_id)
        assert await here.eraser.delete_even_running(here.partition(), head)
        ended = asyncio.create_task(here.service.drain(5))
        gate.set()
        await ended
        assert not [key for key in await remains(here) if not key.startswith("session")]


async def test_nothing_is_learned_in_an_erased_task() -> None:
    """No later deletion would find it. covers: STATE-2"""
    async with process() as here:
        request, partition = await here.ask(), here.partition()
        memory = Memory(here.records, partition, "facts", request.session_id, request.task_id)
        await memory.remember("likes tea")
        await here.eraser.delete_task(partition, request.task_id)
        assert await memory.recall() == ()
        await memory.remember("likes coffee")
        assert await memory.recall() == ()


@pytest.mark.parametrize("deleted", [0, 1])
async def test_what_two_tasks_taught_outlives_either(deleted: int) -> None:
    """It is one memory while both are there, and gone with the other one. covers: STATE-2"""
    async with process() as here:
        partition, tasks = here.partition(), [(await here.ask()).task_id for _ in range(2)]
        memories = [Memory(here.records, partition, "facts", "s", task_id) for task_id in tasks]
        for memory in memories:
            await memory.remember("likes tea")
            await memory.remember("likes tea")
        assert [each.text for each in await memory.recall()] == ["likes tea"]
        await here.eraser.delete_task(partition, tasks.pop(deleted))
        (left,) = await memory.recall()
        assert (left.text, [left.task_id]) == ("likes tea", tasks)
        await here.eraser.delete_task(partition, *tasks)
        assert await memory.recall() == ()


async def test_nothing_is_learned_in_a_task_that_is_erased_just_then() -> None:
    """Between the look at the task and the write: what is remembered would outlive it. covers: STATE-2"""

    class Erasing(Faulty):
        erase: Callable[[], Awaitable[None]] | None = None

        async def commit(self, partition: str, commit: Commit) -> None:
            erase = self.erase
            if erase is not None and any(key.startswith(keys.MEMORIES) for key in commit.put):
                self.erase = None
                await erase()
            await super().commit(partition, commit)

    store = Erasing(MemoryStore())
    async with process(store) as here:
        request = await here.ask()
        memory = Memory(here.records, here.partition(), "facts", request.session_id, request.task_id)
        store.erase = partial(here.eraser.delete_task, here.partition(), request.task_id)
        await memory.remember("Ada has a cat.")
        assert store.erase is None
        assert await memory.recall() == ()


@pytest.mark.parametrize("kind", ["request", "approval", "log"])
async def test_what_is_damaged_is_erased_too(kind: str) -> None:
    """A deletion that was accepted is not kept up by a record that cannot be read. covers: STATE-4"""
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")))
    async with process(None, model, noting([], governed=True)) as here:
        paused = await here.ask()
        head = await here.tasks.head(here.partition(), paused.task_id)
        buried = await bury_unchanged(here.records, here.partition(), head)
        assert buried is not None
        damaged = {
            "request": keys.request(paused.request_id),
            "approval": keys.approval(paused.approvals[0]),
            "log": keys.log(paused.task_id, 2),
        }
        await damage(here.store, here.partition(), damaged[kind])
        await here.eraser.erase(here.partition(), buried)
        left = [key for key in await remains(here) if not key.startswith("session")]
        assert [key for key in left if not key.startswith("approvals/")] == []


async def test_a_pause_leaves_the_inbox_with_its_task() -> None:
    """What stands there names its owner, and stayed for a week after the pause expired. covers: STATE-2"""
    pausing = [calls(ToolCall("c1", "Shell-delete", "{}"))] * 2
    async with process(None, Scripted(*pausing), noting([], governed=True)) as here:
        inbox = keys.inbox("Tester", ADA.user.tid)
        gone, kept = await here.ask(), await here.ask()
        assert len(await names(here.store, inbox)) == 2
        await here.eraser.delete_task(here.partition(), gone.task_id)
        (left,) = await names(here.store, inbox)
        assert left.endswith(kept.approvals[0])


async def test_answers_to_questions_about_a_pause_leave_with_its_task() -> None:
    """No call takes one whose question was withdrawn. covers: STATE-2"""
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")))
    async with process(None, model, noting([], governed=True)) as here:
        paused, partition = await here.ask(), here.partition()
        answer = keys.answer(paused.approvals[0], "question")
        await here.records.commit(partition, marker=answer, put={answer: {"action": "reject"}})
        await here.eraser.delete_task(partition, paused.task_id)
        assert answer not in await names(here.store, partition)


@pytest.mark.parametrize("made_by", ["fork", "import"])
async def test_requests_that_only_a_damaged_batch_names_are_erased_too(made_by: str) -> None:
    """One batch holds up to 100 entries of a copy, and may be its only one. covers: STATE-4"""
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("done"))
    async with process(None, model, noting([], governed=True)) as here:
        paused = await here.ask()
        task_id = paused.task_id
        await here.ask("instead", task_id, supersede=True)
        other = await here.ask("kept")
        if made_by == "fork":
            copy = (await fork(here.tasks, here.partition(), task_id, ADA.user)).task_id
            await here.eraser.delete_task(here.partition(), task_id)
        else:
            document = await export(here.tasks, here.partition(), task_id)
            await here.eraser.delete_task(here.partition(), task_id)
            copy = (await here.importer.import_(ADA, document)).task_id
        (batch,) = await names(here.store, here.partition(), keys.logs(copy))
        await damage(here.store, here.partition(), batch)
        await here.eraser.delete_task(here.partition(), copy)
        kept = await names(here.store, here.partition(), "request/")
        assert kept == [keys.request(other.request_id)]
        assert await names(here.store, here.partition(), "approval") == []


async def test_a_damaged_note_of_a_deletion_stops_neither_start_nor_others() -> None:
    """Deletions that can resume do so, beside one whose note is damaged. covers: STATE-4"""
    async with process() as here:
        request = await here.ask()
        head = await here.tasks.head(here.partition(), request.task_id)
        await bury_unchanged(here.records, here.partition(), head)
        await damage(here.store, keys.erasing("Tester"), keys.task(random_id()))
        assert await here.eraser.resume_all(older_than_seconds=-1) == 1


async def test_the_id_of_a_deleted_session_is_free_again() -> None:
    """Nothing is kept of whose a client's own session id was. covers: SESSION-1"""
    session = random_id()
    async with process() as here:
        await here.ask(session_id=session)
        await here.eraser.delete_session(here.partition(), session)
        assert await names(here.store, keys.locators("Tester", session)) == []
        assert (await here.ask(session_id=session, caller=EVE)).session_id == session
        assert ADA != EVE


async def test_nothing_is_kept_of_whose_the_requests_of_a_deleted_import_were() -> None:
    """Their ids were made elsewhere, as of another agent's task. covers: STATE-2"""
    async with process() as here:
        request = await here.ask()
        document = json.dumps(to_builtins(await export(here.tasks, here.partition(), request.task_id)))
        task_id, request_id = random_id(), random_id()
        document = document.replace(request.task_id, task_id).replace(request.request_id, request_id)
        await here.importer.import_(ADA, json.loads(document))
        places = [keys.locators("Tester", each) for each in (task_id, request_id)]
        assert all([await names(here.store, place) for place in places])
        await here.eraser.delete_task(here.partition(), task_id)
        assert [await names(here.store, place) for place in places] == [[], []]


async def test_a_task_that_is_continued_while_old_ones_are_pruned_stays_with_its_session() -> None:
    """It is not old any more when its turn to be erased comes. covers: STATE-2"""
    async with process() as here:
        first = await here.ask()
        pruning = Pruning(here.eraser, before=here.records.clock.now())
        erased = []
        async for due in pruning.due():
            if due.what == "task":
                await here.ask("I am back", first.task_id)
            erased.append(await due.erase())
        assert erased == [False, False]
        assert (await here.ask("still", first.task_id)).session_id == first.session_id


@pytest.mark.parametrize("kind", ["session", "task"])
async def test_an_id_is_its_owners_until_nothing_of_theirs_has_it(kind: str) -> None:
    """A client gave a session and a task one id, and deleted either. covers: SESSION-1"""
    name = random_id()
    async with process() as here:
        await here.ask(session_id=name)
        await here.ask(new_task_id=name)
        delete_task, delete_session = here.eraser.delete_task, here.eraser.delete_session
        first, last = (delete_session, delete_task) if kind == "session" else (delete_task, delete_session)
        await first(here.partition(), name)
        for taking in ({"session_id": name}, {"new_task_id": name}):
            with pytest.raises(NotOwner):
                await here.ask(**taking, caller=EVE)
        left = keys.task if kind == "session" else keys.session
        assert await here.tasks.directory.owner_of(name, left(name)) == ADA.user
        await last(here.partition(), name)
        assert await names(here.store, keys.locators("Tester", name)) == []
        assert (await here.ask(session_id=name, caller=EVE)).session_id == name


@pytest.mark.parametrize("kind", ["session", "task"])
async def test_an_id_whose_locator_is_damaged_is_free_again_as_well(kind: str) -> None:
    """It keeps up neither the deletion nor who asks for the id after it. covers: SESSION-1, STATE-4"""
    name = random_id()
    taking: Any = {"session_id": name} if kind == "session" else {"new_task_id": name}
    async with process() as here:
        request = await here.ask(**taking)
        await damage(here.store, keys.locators("Tester", name), keys.locator(name))
        if kind == "session":
            await here.eraser.delete_session(here.partition(), name)
        else:
            await here.eraser.delete_task(here.partition(), name)
        assert [key for key in await remains(here) if request.task_id in key] == []
        assert await names(here.store, keys.erasing("Tester")) == []
        with pytest.raises(NotFound):
            await here.tasks.directory.locate(EVE, keys.session if kind == "session" else keys.task, name)
        assert (await here.ask(**taking, caller=EVE)).status == "Completed"


async def test_a_release_of_a_damaged_locator_leaves_that_of_the_next_owner_alone() -> None:
    """Another replica may be quicker, and the id another user's by then. covers: SESSION-1"""
    name = random_id()
    async with process() as here:
        directory = here.tasks.directory
        await directory.claim(keys.session, name, ADA.user)
        await damage(here.store, keys.locators("Tester", name), keys.locator(name))

        async def is_not_there() -> bool:
            return False

        async def is_eves_meanwhile() -> bool:
            await directory.release(keys.session, name, ADA.user, unless=is_not_there)
            await directory.claim(keys.session, name, EVE.user)
            return False

        await directory.release(keys.session, name, ADA.user, unless=is_eves_meanwhile)
        assert len(await names(here.store, keys.locators("Tester", name))) == 1


async def pruned(here: Process) -> tuple[list[bool], int]:
    """What was erased of what is due, and how many tasks were spared."""
    pruning = Pruning(here.eraser)
    return [await due.erase() async for due in pruning.due()], pruning.spared


async def test_an_expired_task_is_pruned_although_a_message_waits_its_turn_in_it() -> None:
    """It is spared while a request runs, and what waits behind that can never start. covers: STATE-2"""
    clock, gate = ShiftedClock(), asyncio.Event()
    options: Any = {"clock": clock, "concurrency": "enqueue", "lease_seconds": 86_400}
    async with process(kept_by(clock), Scripted(waits(gate)), **options) as here:
        runs = await here.send("one", streamed=True)
        waiting = await here.send("two", runs.request.task_id, streamed=True)
        await expires(here, runs.request.task_id)
        clock.shift = timedelta(hours=2)
        assert await pruned(here) == ([], 1)
        gate.set()
        assert (await here.service.outcome(runs)).status == "Completed"
        with pytest.raises(NotFound):
            await here.service.outcome(waiting)
        assert await pruned(here) == ([True], 0)
        assert [key for key in await remains(here) if not key.startswith("session")] == []


async def test_an_old_task_is_spared_while_a_living_process_has_a_message_waiting_in_it() -> None:
    """The process that ran the one before is gone: the message is about to take its place. covers: STATE-2"""
    store, gate = MemoryStore(), asyncio.Event()
    async with (
        process(store, concurrency="enqueue") as here,
        process(store, Scripted(waits(gate)), concurrency="enqueue") as dying,
    ):
        runs = await dying.send("one", streamed=True)
        await here.send("two", runs.request.task_id, streamed=True)
        await here.records.delete(keys.workers("Tester"), [keys.worker(dying.lease.worker_id)])
        pruning = Pruning(here.eraser, before=here.records.clock.now() + timedelta(hours=1))
        assert [due async for due in pruning.due()] == []
        assert pruning.spared == 1


async def test_an_expired_task_is_pruned_although_its_pause_has_not_expired() -> None:
    """No one can find the pause to decide it. covers: STATE-2"""
    clock, model = ShiftedClock(), Scripted(calls(ToolCall("c1", "Shell-delete", "{}")))
    async with process(kept_by(clock), model, noting([], governed=True), clock=clock) as here:
        paused = await here.ask()
        await expires(here, paused.task_id)
        clock.shift = timedelta(hours=2)
        assert await pruned(here) == ([True], 0)
        assert [key for key in await remains(here) if not key.startswith("session")] == []


async def test_a_task_has_not_expired_because_an_operators_clock_is_fast() -> None:
    """The store's clock decides what is erased. covers: STATE-2"""
    clock = ShiftedClock()
    async with process(clock=clock) as here:
        asked = await here.ask()
        await expires(here, asked.task_id)
        clock.shift = timedelta(hours=2)
        assert await pruned(here) == ([], 0)


async def test_a_task_that_begins_while_its_empty_session_is_pruned_is_kept_or_refused() -> None:
    """Whatever the moment, what was acknowledged is there. covers: STATE-2"""
    at = 1
    while await begun_while_its_session_is_pruned(at):
        at += 1
    assert at > 10


async def emptied_session(here: Process) -> str:
    """One in which there is no task any more."""
    first = await here.ask()
    await here.eraser.delete_task(here.partition(), first.task_id)
    return first.session_id


async def begun_while_its_session_is_pruned(at: int) -> bool:
    """It begins at await `at` of the deletion. False where that has fewer."""
    store = MemoryStore()
    watched = Watched(store)
    async with process(watched) as here, process(store) as other:
        session = await emptied_session(other)
        begun: list[RequestRecord | None] = []

        async def begin(point: int) -> None:
            if point == at:
                try:
                    begun.append(await other.ask(session_id=session))
                except NotFound:
                    begun.append(None)

        watched.points, watched.there = 0, begin
        await here.eraser.delete_empty_session(here.partition(), session)
        for request in begun:
            if request is not None:
                assert (await other.ask("on", request.task_id)).status == "Completed"
        return bool(begun)


class Killed(BaseException):
    """The process is gone: no handler of its own runs to any effect."""


async def test_a_task_that_had_begun_keeps_its_session_though_pruning_was_cut_off() -> None:
    """The process that finishes it decides as it would have itself. covers: STATE-2"""
    at = 3
    while await pruning_is_cut_off(at):
        at += 1
    assert at > 9


async def pruning_is_cut_off(at: int) -> bool:
    """It dies at await `at`; a task began once the session counted as empty. False where it has fewer."""
    store = MemoryStore()
    watched = Watched(store)
    async with process(watched) as here, process(store) as other:
        session = await emptied_session(other)
        begun: list[RequestRecord] = []

        async def begin_and_die(point: int) -> None:
            if point == 2:
                begun.append(await other.ask(session_id=session))
            if point >= at:
                raise Killed

        watched.points, watched.there = 0, begin_and_die
        try:
            await here.eraser.delete_empty_session(here.partition(), session)
        except Killed:
            killed = True
        else:
            killed = False
        watched.there = nothing
        await other.eraser.resume_all(older_than_seconds=-1)
        assert (await other.ask("on", begun[0].task_id)).session_id == session
        return killed


async def test_a_session_that_its_user_deletes_is_gone_though_pruning_would_have_kept_it() -> None:
    """Wherever pruning is when the deletion finds the session, and though that comes last. covers: STATE-2"""
    at = 3
    while await deleted_while_it_is_pruned(at):
        at += 1
    assert at > 9


async def deleted_while_it_is_pruned(at: int) -> bool:
    """The deletion begins at await `at` of the pruning, and ends behind it. False where that has fewer."""
    store = MemoryStore()
    watched, slow = Watched(store), Watched(store)
    async with process(watched) as here, process(slow) as deleting, process(store) as other:
        session, partition = await emptied_session(other), other.partition()
        deletions: list[asyncio.Task[None]] = []
        found, pruned = asyncio.Event(), asyncio.Event()

        async def wait_for_pruning(point: int) -> None:
            found.set()
            await pruned.wait()

        async def begin_and_delete(point: int) -> None:
            if point == 2:
                await other.ask(session_id=session)
            if point == at:
                slow.there = wait_for_pruning
                deletions.append(asyncio.create_task(deleting.eraser.delete_session(partition, session)))
                await found.wait()

        watched.points, watched.there = 0, begin_and_delete
        assert not await here.eraser.delete_empty_session(partition, session)
        pruned.set()
        await asyncio.gather(*deletions)
        assert (await remains(other) == []) == bool(deletions)
        return bool(deletions)


async def test_an_export_leaves_out_a_session_whose_deletion_is_not_finished() -> None:
    """It is gone for every reader, and stays so in the next store, with its tasks. covers: STATE-2"""
    store = Faulty(MemoryStore())
    async with process(store) as here:
        deleted, kept = await here.ask(), await here.ask()
        store.fault = lambda _, commit: "away" if keys.task(deleted.task_id) in commit.put else None
        with pytest.raises(PersistenceUnavailable):
            await here.eraser.delete_session(here.partition(), deleted.session_id)
        exported = b"".join([line async for line in Exporter(here.records).lines()])
        assert kept.task_id.encode() in exported
        assert deleted.task_id.encode() not in exported
        assert sum((await Inventory(here.records).count()).tasks.values()) == 1


async def test_an_export_keeps_a_task_that_had_begun_though_pruning_was_cut_off() -> None:
    """Its session, too, as the service would restore it. covers: STATE-2"""
    watched = Watched(MemoryStore())
    async with process(watched) as here, process(watched.store) as other:
        session = await emptied_session(other)
        begun: list[RequestRecord] = []

        async def begin_and_die(point: int) -> None:
            if point == 2:
                begun.append(await other.ask(session_id=session))
            marked = await other.records.get(other.partition(), keys.session(session), Session)
            if marked is None or marked.value.erased:
                raise Killed

        watched.points, watched.there = 0, begin_and_die
        with pytest.raises(Killed):
            await here.eraser.delete_empty_session(here.partition(), session)
        watched.there = nothing
        exported = [line async for line in Exporter(other.records).lines()]
        await other.eraser.resume_all(older_than_seconds=-1)
        assert begun[0].task_id.encode() in b"".join(exported)
        assert exported == [line async for line in Exporter(other.records).lines()]


async def test_what_is_deleted_being_damaged_keeps_no_task_from_an_export() -> None:
    """It is reported instead. covers: STATE-4"""
    async with process() as here:
        request = await here.ask()
        await damage(here.store, here.partition(), keys.DELETING)
        exporter = Exporter(here.records)
        exported = b"".join([line async for line in exporter.lines()])
        assert request.task_id.encode() in exported
        assert ["'deleting'" in problem for problem in exporter.problems] == [True]


class Listing(Faulty):
    """Counts how often a log is listed."""

    lists = 0

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        self.lists += prefix.startswith("log/")
        return await super().scan(partition, prefix, **page)


async def test_a_log_is_erased_many_records_at_a_time() -> None:
    """A store may list all that is left for each scan. A commit still has ten records at most."""
    store = Listing(MemoryStore())
    async with process(store) as here:
        request = await here.ask()
        for _ in range(29):
            await here.ask("more", request.task_id)
        batches = len(await names(store, here.partition(), keys.logs(request.task_id)))
        assert batches > ERASED_AT_ONCE
        store.lists = 0
        store.commits.clear()
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert store.lists <= batches // ERASED_AT_ONCE + 2
        assert await names(store, here.partition(), keys.logs(request.task_id)) == []
        assert all(len(commit.delete) + len(commit.expect) <= COMMIT_RECORDS for _, commit in store.commits)


class WrittenTo(MemoryStore):
    """Notes where each look at Ada's partition begins, and is written to before the third."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str | None] = []

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        if partition.endswith("/user/mock.ada") and not prefix:
            self.begun.append(page.get("after"))
            if len(self.begun) == 3:
                await self.commit(partition, Commit(operation=operation_id(), put={"a": Put(b"")}))
        return await super().scan(partition, prefix, **page)


async def test_a_user_is_erased_page_after_page() -> None:
    """A page begins behind the last, not before all that has expired; what comes meanwhile goes, too.

    covers: STATE-2
    """
    store = WrittenTo()
    async with process(store) as here:
        partition = here.partition()
        for n in range(135):
            await store.commit(partition, Commit(operation=operation_id(), put={f"x/{n:03}": Put(b"")}))
        erasure = UserErasure(here.eraser, ADA.user)
        assert await erasure.erase() == 136
        assert store.begun == [None, "x/049", "x/099", "x/134", None, "a", None]
        assert await names(store, partition) == []


async def test_a_user_is_erased_although_the_record_of_the_owners_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes as well, and so do the user's locators. Other users that it listed are listed again with their
    next request. covers: STATE-2, STATE-4"""
    monkeypatch.setattr(ids, "owner_tag", lambda _: "0" * 12)  # digests that collide
    store, name = MemoryStore(), random_id()
    async with process(store) as here:
        await here.ask(session_id=name)
        await here.ask(caller=EVE)
        await damage(store, keys.owners("Tester", "0" * 12), keys.owner("0" * 12))
        erasure = UserErasure(here.eraser, ADA.user)
        assert await erasure.erase() > 0
        assert await erasure.count() == 0
        assert await names(store, keys.locators("Tester", name)) == []
    async with process(store) as there:
        await there.ask(caller=EVE)
        assert await there.tasks.directory.knows(EVE.user)
        assert not await there.tasks.directory.knows(ADA.user)


class Clinging(MemoryStore):
    """Keeps an expired record, whatever deletes it."""

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        return ["clinging"]


async def test_an_expired_record_that_the_store_does_not_erase_ends_the_erasure() -> None:
    """It reports that, and does not try for ever."""
    async with process(Clinging()) as here:
        await here.ask()
        with pytest.raises(PersistenceUnavailable, match="still holds expired records in Tester/user/mock"):
            await UserErasure(here.eraser, ADA.user).erase()


async def test_what_has_expired_of_a_user_is_erased_with_the_rest(tmp_path: Path) -> None:
    """In the user's own partition and in the tenant's inbox, before any sweep. covers: STATE-2"""
    async with SqliteStore(SqliteOptions(path=tmp_path / "state.db")) as store, process(store) as here:
        inbox = keys.inbox("Tester", ADA.user.tid)
        for partition in (here.partition(), inbox):
            puts = {f"inbox/{n}": Put(b'{"owner":"ada"}', 0.01) for n in range(9)}
            await store.commit(partition, Commit(operation=operation_id(), put=puts))
        await asyncio.sleep(0.02)
        erasure = UserErasure(here.eraser, ADA.user)
        for _ in range(2):  # it can be repeated
            await erasure.erase()
        with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
            left = connection.execute(
                "SELECT key FROM records WHERE partition IN (?, ?)", (here.partition(), inbox)
            )
            assert left.fetchall() == []


@pytest.mark.parametrize("seconds", [0, 3601], ids=["at once", "after an hour"])
async def test_what_an_erased_user_asked_of_a_dead_process_is_erased_too(
    tmp_path: Path, seconds: float
) -> None:
    """Such as to cancel a request: it names the user, and no one takes it any more. covers: STATE-2"""
    asked = time.time()
    store = FileStore(FileOptions(path=tmp_path), clock=lambda: asked)
    async with store, process(store) as here:
        for user in (ADA.user, EVE.user):
            await here.tasks.peers.signal(random_id(), Signal(request_id=random_id(), actor=user.key))
        store.clock = lambda: asked + seconds
        await UserErasure(here.eraser, ADA.user).erase()
        left = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
        assert ADA.user.key not in left
        assert (EVE.user.key in left) == (seconds == 0)


async def test_an_authorization_that_waits_for_an_erased_user_is_erased_too() -> None:
    """Its link is of no use any more; the links of other users stay. covers: STATE-2"""
    async with process(MemoryStore()) as here:
        await here.ask("hello")
        pending = PendingConsents(SecretStore(here.records), time.time)
        for user in (ADA.user, EVE.user):
            consent = PendingConsent(
                user_key=user.key,
                request_id="r",
                server_name="notes",
                server_key="notes",
                at=Endpoints(
                    issuer="https://notes.example",
                    token_endpoint="https://notes.example/token",
                    client=OAuthClient("us"),
                    resource=None,
                    named=True,
                ),
                scopes=(),
                verifier="v",
                expires_at=time.time() + 3600,
                must_name_issuer=False,
            )
            link = NeedsAuthorization("notes", "https://notes.example/authorize")
            await pending.remember(f"state of {user.oid}", consent, (user.key, "notes", "r"), link)
        await UserErasure(here.eraser, ADA.user).erase()
        with pytest.raises(InvalidRequest, match="has been used, or is too old"):
            await pending.take(f"state of {ADA.user.oid}")
        assert (await pending.take(f"state of {EVE.user.oid}")).user_key == EVE.user.key


LONG = "x" * (BLOB_BYTES + 1)


async def talk(here: Process) -> RequestRecord:
    """A task of a few turns, with something long among them."""
    first = await here.ask(LONG)
    for n in range(5):
        await here.ask(f"more {n}", first.task_id)
    return first


async def make(here: Process, how: str, source: RequestRecord, document: Json) -> None:
    """A task that takes more than one commit to make."""
    if how == "fork":
        await fork(here.tasks, here.partition(), source.task_id, ADA.user)
    elif how == "import":
        await here.importer.import_(ADA, document)
    else:
        named = source.task_id if how == "message to a named task" else None
        message = NewMessage(items=(Item("text", LONG),), session_id=source.session_id, new_task_id=named)
        await here.service.submission.begin(ADA, message, None)


MADE = ["fork", "import", "message", "message to a named task"]


@pytest.mark.parametrize("how", MADE)
async def test_what_a_killed_process_had_in_the_making_is_erased(how: str) -> None:
    """Wherever it dies, and whatever is deleted after it: nothing that was said is left. covers: STATE-2"""
    at = 1
    while await killed_in_the_making(how, at):
        at += 1
    assert at > 7


async def killed_in_the_making(how: str, at: int) -> bool:
    """Makes a task and dies at this call of the store, if it comes to that. Then all else is deleted."""
    store = MemoryStore()
    watched = Watched(store)
    async with process(watched) as here:
        source = await talk(here)
        document = await export(here.tasks, here.partition(), source.task_id)
        if how not in ("fork", "message"):
            await here.eraser.delete_task(here.partition(), source.task_id)

        async def die(point: int) -> None:
            if point == at:
                watched.fault, watched.unreadable = (lambda _, __: "away"), True
                raise Killed

        watched.points, watched.there = 0, die
        killed = True
        with suppress(Killed, PersistenceUnavailable):
            await make(here, how, source, document)
            killed = False
        watched.there, watched.fault, watched.unreadable = nothing, (lambda _, __: None), False
    async with process(store) as other:
        with suppress(NotFound):
            await other.eraser.delete_session(other.partition(), source.session_id)
        await other.eraser.resume_all(GIVEN_UP)
        assert await remains(other) == [], at
        assert await names(store, keys.erasing("Tester")) == [], at
    return killed


@pytest.mark.parametrize("how", MADE)
async def test_what_was_in_the_making_as_the_store_went_away_can_be_made_again(how: str) -> None:
    """The second attempt finds nothing in its way, and what the first has left is erased. covers: STATE-2"""
    store = Faulty(MemoryStore())
    async with process(store) as here:
        source = await talk(here)
        document = await export(here.tasks, here.partition(), source.task_id)
        if how not in ("fork", "message"):
            await here.eraser.delete_task(here.partition(), source.task_id)
        store.commits.clear()
        store.fault = lambda _, __: "away" if len(store.commits) >= 3 else None
        with pytest.raises(PersistenceUnavailable):
            await make(here, how, source, document)
        store.fault = lambda _, __: None
        await make(here, how, source, document)
    async with process(store) as other:
        await other.eraser.delete_session(other.partition(), source.session_id)
        await other.eraser.resume_all(GIVEN_UP)
        assert await remains(other) == []
        assert await names(store, keys.erasing("Tester")) == []


@pytest.mark.parametrize("how", ["import", "message to a named task"])
async def test_a_message_to_what_is_being_given_up_is_whole_or_refused(how: str) -> None:
    """It takes no place in which another process still erases. covers: STATE-4"""
    at, taken = 1, []
    while (outcome := await message_while_it_is_given_up(how, at)) is not None:
        at += 1
        taken.append(outcome)
    assert at > 7
    assert not all(taken)


async def message_while_it_is_given_up(how: str, at: int) -> bool | None:
    """The task was cut off in the making; a message names it as the sweep has made this call of the store.

    Whether it is taken, and None where the sweep makes fewer calls.
    """
    store = MemoryStore()
    dying, sweeping = Faulty(store), Watched(store)
    async with process(dying) as here:
        source = await talk(here)
        document = await export(here.tasks, here.partition(), source.task_id)
        await here.eraser.delete_task(here.partition(), source.task_id)
        dying.commits.clear()
        dying.fault = lambda _, __: "away" if len(dying.commits) >= 3 else None
        with pytest.raises(PersistenceUnavailable):
            await make(here, how, source, document)
    taken: bool | None = None
    async with process(sweeping) as sweeper, process(store) as other, process(store) as third:

        async def send(point: int) -> None:
            nonlocal taken
            if point == at:
                taken = False
                with suppress(NotFound, AlreadyExists):
                    taken = (await other.ask(LONG, new_task_id=source.task_id)).status == "Completed"

        sweeping.points, sweeping.there = 0, send
        await sweeper.eraser.resume_all(GIVEN_UP)
        sweeping.there = nothing
        if taken:
            head = (await third.tasks.head(third.partition(), source.task_id)).value
            entries = third.tasks.history.forwards(third.partition(), source.task_id, ((1, head.tail_seq),))
            assert [logged.seq async for logged in entries][-1] == head.tail_seq, at
            assert (
                await third.tasks.directory.owner_of(source.task_id, keys.task(source.task_id)) == ADA.user
            ), at
            assert (await third.ask("on", source.task_id)).status == "Completed", at
    return taken


def away_from(failing: int, answered: int) -> Callable[[str, Commit], str | None]:
    """This commit fails, then so many are answered, and then none."""
    numbers = count(1)

    def fault(_: str, __: Commit) -> str | None:
        number = next(numbers)
        return "away" if number == failing or number > failing + answered else None

    return fault


async def test_an_import_whose_clearing_away_was_cut_off_can_be_made_by_another_process() -> None:
    """Wherever the store went away again: its guard is swept with what it had written. covers: STATE-2"""
    for answered in range(12):
        store = MemoryStore()
        failing = Faulty(store)
        async with process(failing) as here, process(store) as other:
            source = await talk(here)
            document = await export(here.tasks, here.partition(), source.task_id)
            await here.eraser.delete_task(here.partition(), source.task_id)
            failing.fault = away_from(7, answered)
            with pytest.raises(PersistenceUnavailable):
                await here.importer.import_(ADA, document)
            failing.fault = lambda _, __: None
            await other.eraser.resume_all(GIVEN_UP)
            assert (await other.importer.import_(ADA, document)).task_id == source.task_id, answered


async def test_an_import_that_could_not_begin_can_be_made_by_another_process() -> None:
    """Its guard goes, also where it was the first thing that the store took. covers: STATE-2"""
    store = MemoryStore()
    failing = Faulty(store)
    async with process(failing) as here, process(store) as other:
        source = await here.ask("hello")
        document = await export(here.tasks, here.partition(), source.task_id)
        await here.eraser.delete_task(here.partition(), source.task_id)
        guard = keys.importing(source.task_id)

        def fault(_: str, commit: Commit) -> None:
            failing.unreadable = guard in commit.put and not failing.refused

        failing.fault = fault
        with pytest.raises(PersistenceUnavailable):
            await here.importer.import_(ADA, document)
        assert (await other.importer.import_(ADA, document)).task_id == source.task_id
        # where it cannot be deleted at all, it is forgotten
        assert [each.put[guard].ttl for _, each in failing.commits if guard in each.put] == (
            [MAKING_SECONDS] * 2
        )


async def test_ids_that_were_made_here_leave_nothing_behind_however_often_they_are_used() -> None:
    """Whose they are, they say themselves. covers: STATE-2"""
    store = MemoryStore()
    async with process(store) as here:
        first = await here.ask("one")
        for named in (None, None, first.task_id):
            await here.eraser.delete_session(here.partition(), first.session_id)
            first = await here.ask("again", session_id=first.session_id, new_task_id=named)
        await here.eraser.delete_session(here.partition(), first.session_id)
        for identifier in (first.session_id, first.task_id):
            assert await names(store, keys.locators("Tester", identifier)) == []


async def test_the_end_of_a_making_forgets_no_deletion() -> None:
    """Which another process has begun meanwhile, and not finished. covers: STATE-4"""
    store = MemoryStore()
    forking, deleting = Watched(store), Faulty(store)
    async with process(forking) as here, process(deleting) as other, process(store) as third:
        source = await here.ask("one")
        partition = here.partition()

        async def delete(_: int) -> None:
            page = await third.catalog.tasks(partition, session_id=None, status=None, cursor=None, limit=9)
            for task in page.items:
                assert isinstance(task, Head)
                if task.task_id != source.task_id:
                    forking.there = nothing
                    deleting.fault = lambda where, commit: (
                        "away" if where == partition and commit.delete and not commit.put else None
                    )
                    with pytest.raises(PersistenceUnavailable):
                        await other.eraser.delete_task(partition, task.task_id)

        forking.there = delete
        forked = await fork(here.tasks, partition, source.task_id, ADA.user)
        assert forking.there is nothing
        await third.eraser.resume_all(GIVEN_UP)
        assert [key for key in await names(store, partition) if forked.task_id in key] == []


@pytest.mark.parametrize("how", MADE)
async def test_what_is_given_up_while_it_is_made_is_not_made(how: str) -> None:
    """At no point does a task come to be of which a part is erased already. covers: STATE-4"""
    at = 1
    while await given_up_in_the_making(how, at):
        at += 1
    assert at > 7


async def given_up_in_the_making(how: str, at: int) -> bool:
    """Makes a task, which another process gives up at this call of the store, if it comes to that."""
    store = MemoryStore()
    watched, given_up = Watched(store), False
    async with process(watched) as here, process(store) as other:
        source = await talk(here)
        document = await export(here.tasks, here.partition(), source.task_id)
        if how not in ("fork", "message"):
            await here.eraser.delete_task(here.partition(), source.task_id)

        async def give_up(point: int) -> None:
            nonlocal given_up
            if point == at:
                given_up = True
                await other.eraser.resume_all(GIVEN_UP)

        watched.points, watched.there = 0, give_up
        with suppress(NotFound, AlreadyExists):
            await make(here, how, source, document)
        watched.there = nothing
        page = await other.catalog.tasks(
            other.partition(), session_id=None, status=None, cursor=None, limit=9
        )
        for task in page.items:
            assert isinstance(task, Head)
            whole = other.tasks.history.forwards(other.partition(), task.task_id, ((1, task.tail_seq),))
            assert [logged.seq async for logged in whole][-1] == task.tail_seq, at
    return given_up
