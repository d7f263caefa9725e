"""Deletions at every await of them: what others see meanwhile, what a crash there leaves, and what a process
that stood still there does when it wakes up."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import pytest
from engine_setup import ADA, EVE, Process, Scripted, Watched, calls, names, nothing, noting, process, says

from tealagents.domain.errors import NotFound, NotOwner, TaskBusy
from tealagents.domain.events import ModelEvent
from tealagents.domain.ids import random_id
from tealagents.domain.models import RequestRecord, ToolCall
from tealagents.domain.ports import Commit, ModelCall, Store
from tealagents.serving import background
from tealagents.state import erasing, keys
from tealagents.state.exporting import export
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock

#: of the awaits of a deletion, every so manieth is a crash; with `THOROUGH=1`, as in CI, every single one
STRIDE = 1 if os.environ.get("THOROUGH") == "1" else 7


class Killed(BaseException):
    """The process is gone: no handler of its own runs to any effect."""


class Doomed(NamedTuple):
    """A session that is about to be deleted: an answered task, another one, and one that is paused."""

    session_id: str
    requests: list[RequestRecord]
    #: a task of another session, which stays
    other: str

    @property
    def tasks(self) -> list[str]:
        return [request.task_id for request in self.requests]


class World:
    """A store, the process that deletes, and one beside it that reads, writes and sweeps."""

    def __init__(self, clock: FakeClock, watched: Watched, deleting: Process, beside: Process) -> None:
        self.clock = clock
        self.watched = watched
        self.deleting = deleting
        self.beside = beside
        self.partition = beside.partition()
        self._before: list[str] = []

    async def prepared(self) -> Doomed:
        ask, session = self.beside.ask, random_id()
        other = (await ask("other")).task_id
        self._before = await self._names(session)
        requests = [await ask(text, session_id=session) for text in ("one", "two", "delete")]
        assert [request.status for request in requests] == ["Completed", "Completed", "Paused"]
        return Doomed(session, requests, other)

    async def delete(self, session: Doomed) -> None:
        self.watched.points = 0
        await self.deleting.eraser.delete_session(self.partition, session.session_id)

    async def killed(self, session: Doomed, at: int) -> bool:
        """Deletes until the process dies at this await; False where the deletion has fewer."""

        async def die(point: int) -> None:
            if point >= at:
                raise Killed

        self.watched.there = die
        try:
            await self.delete(session)
        except Killed:
            return True
        finally:
            self.watched.there = nothing
        return False

    async def is_there(self, session: Doomed) -> bool:
        """Whether the session is there, of which all readers are of one mind."""
        here, partition = self.beside, self.partition
        sessions = (await here.catalog.sessions(partition, cursor=None, limit=50)).items
        seen = {
            "session": await found(here.catalog.session(partition, session.session_id)),
            "sessions": session.session_id in attributes(sessions, "session_id"),
        }
        for listed in (None, session.session_id):
            tasks = await listed_tasks(here, listed)
            seen |= {f"{task} in the tasks of {listed}": task in tasks for task in session.tasks}
            assert (session.other in tasks) == (listed is None)
        pauses = (await here.catalog.approvals(partition, status=None, cursor=None, limit=50)).items
        seen["approval"] = session.tasks[-1] in attributes(pauses, "task_id")
        for request in session.requests:
            seen[f"task {request.task_id}"] = await found(here.tasks.head(partition, request.task_id))
            seen[f"request of {request.task_id}"] = await found(here.request(request.request_id))
        assert len(set(seen.values())) == 1, seen
        return seen["session"]

    async def takes(self, session: Doomed, words: str) -> bool:
        """Whether messages to its tasks are answered; what was answered is in the history, whole."""
        took = {await self._takes(task, f"{words}, {n}") for n, task in enumerate(session.tasks)}
        assert len(took) == 1
        return took.pop()

    async def _takes(self, task_id: str, words: str) -> bool:
        if not await found(self.beside.ask(words, task_id, supersede=True)):
            return False
        tasks = self.beside.tasks
        head = (await tasks.head(self.partition, task_id)).value
        history, _ = await tasks.history.messages(self.partition, task_id, head.path, limit=1000)
        assert [message.text for message in history[-2:]] == [words, "hello"]
        return True

    async def swept(self) -> None:
        """Some time passes for the process beside, in which it sweeps."""
        self.clock.advance(erasing.SWEEP_SECONDS + 1)
        for _ in range(1000):
            await asyncio.sleep(0)

    async def assert_erased(self, session: Doomed) -> None:
        """Nothing of it is left, neither records nor notes, and any user can use its id."""
        assert await self._names(session.session_id) == self._before

    async def _names(self, session_id: str) -> list[str]:
        store, agent = self.watched.store, self.beside.records.agent
        places = (self.partition, keys.erasing(agent), keys.locators(agent, session_id))
        return [name for place in places for name in await names(store, place)]


Answer = Callable[[ModelCall], AsyncGenerator[ModelEvent, None]]


async def obeys(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
    """Says hello; asks for a tool that must be approved where the message says delete."""
    answer = calls(ToolCall("c1", "Shell-delete", "{}")) if b"delete" in call.prompt[-1] else says("hello")
    async for event in answer(call):
        yield event


@asynccontextmanager
async def world(answer: Answer = obeys) -> AsyncIterator[World]:
    clock = FakeClock()
    store = MemoryStore(clock=clock.monotonic)
    watched = Watched(store)
    model = Scripted(answer)
    async with (
        process(watched, clock=clock, lease_seconds=3600) as deleting,
        process(store, model, noting([], governed=True), clock=clock, lease_seconds=3600) as beside,
        background(beside.eraser.sweep),
    ):
        yield World(clock, watched, deleting, beside)


async def listed_tasks(here: Process, session_id: str | None) -> list[str]:
    page = await here.catalog.tasks(
        here.partition(), session_id=session_id, status=None, cursor=None, limit=50
    )
    return attributes(page.items, "task_id")


def attributes(items: Sequence[object], name: str) -> list[str]:
    return [getattr(item, name) for item in items]


async def found(reading: Awaitable[object]) -> bool:
    try:
        await reading
    except NotFound:
        return False
    return True


async def test_a_session_is_there_or_gone_for_all_who_look_while_it_is_deleted() -> None:
    """At each await of the deletion readers and writers agree, and gone stays gone. covers: STATE-2"""
    async with world() as here:
        session = await here.prepared()
        seen: list[bool] = []

        async def look(point: int) -> None:
            seen.append(await here.is_there(session))
            assert await here.takes(session, f"at {point}") == seen[-1]

        here.watched.there = look
        await here.delete(session)
        assert seen == sorted(seen, reverse=True)
        assert set(seen) == {True, False}
        await here.assert_erased(session)


async def test_a_deletion_killed_at_any_await_is_finished_while_the_service_runs() -> None:
    """Either nothing was deleted and all works, or the session is gone for all who look, takes no message,
    and is erased without another restart. covers: STATE-2"""
    at, outcomes = 1, set()
    while True:
        async with world() as here:
            session = await here.prepared()
            if not await here.killed(session, at):
                break
            there = await here.is_there(session)
            assert await here.takes(session, "after the crash") == there
            await here.swept()
            if there:
                assert await here.takes(session, "after the sweep")
                await here.delete(session)
            await here.assert_erased(session)
            outcomes.add(there)
        at += STRIDE
    assert outcomes == {True, False}


@pytest.mark.parametrize("new", [True, False])
async def test_a_request_that_begins_in_a_session_keeps_it_or_is_refused(new: bool) -> None:
    """At each await of the deletion: never is a request that was begun destroyed. covers: STATE-2"""
    at, outcomes = 1, set()
    while (outcome := await begun_while_a_session_is_deleted(at, new=new)) is not None:
        outcomes.add(outcome)
        at += 1
    assert outcomes == ({"kept", "refused", "taken again"} if new else {"kept", "refused"})


async def begun_while_a_session_is_deleted(at: int, *, new: bool) -> str | None:
    """A request begins at the await `at` of the deletion. None where it has fewer."""
    asked, answers = asyncio.Event(), asyncio.Event()
    begun: list[asyncio.Task[RequestRecord]] = []

    async def slowly(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        if b"slowly" in call.prompt[-1]:
            asked.set()
            await answers.wait()
        async for event in obeys(call):
            yield event

    async with world(slowly) as here:
        session, ask = await here.prepared(), here.beside.ask

        async def begin(point: int) -> None:
            if point == at:
                place = {"session_id": session.session_id} if new else {"task_id": session.tasks[0]}
                begun.append(asyncio.create_task(ask("slowly", **place)))
                waiting = asyncio.create_task(asked.wait())
                await asyncio.wait([begun[0], waiting], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()

        here.watched.there = begin
        try:
            await here.delete(session)
        except TaskBusy:
            outcome = "kept"
        else:
            outcome = "refused" if begun and not asked.is_set() else "taken again"
        here.watched.there = nothing
        if not begun:
            return None
        answers.set()
        if outcome == "refused":
            with pytest.raises(NotFound):
                await begun[0]
            await here.assert_erased(session)
            return outcome
        request = await begun[0]
        assert request.status == "Completed"
        tasks = await listed_tasks(here.beside, session.session_id)
        assert (request.task_id in tasks, set(session.tasks) <= set(tasks)) == (True, outcome == "kept")
        return outcome


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_message_that_was_read_before_a_deletion_keeps_the_session_or_is_refused(
    resumed: bool,
) -> None:
    """It is committed at each await of the deletion, or of the one that continues it after a crash: what was
    acknowledged is never destroyed. covers: STATE-2"""
    at, outcomes = 1, set()
    while (outcome := await committed_while_a_session_is_deleted(at, resumed=resumed)) is not None:
        outcomes.add(outcome)
        at += 1
    assert outcomes == {"kept", "refused"}


async def test_of_two_deletions_of_a_session_none_says_that_it_is_gone_where_the_other_keeps_it() -> None:
    """The other one meets a task that runs, and the session is there again. covers: STATE-2"""
    at, outcomes = 1, set()
    while (outcome := await committed_while_a_session_is_deleted(at, resumed=False, twice=True)) is not None:
        outcomes.add(outcome)
        at += 1
    assert outcomes == {"kept", "refused"}


class HeldBack(Watched):
    """Commits nothing of a task before it may."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reached, self.may = asyncio.Event(), asyncio.Event()

    async def commit(self, partition: str, commit: Commit) -> None:
        if any(key.startswith(keys.LOGS) for key in commit.put):
            self.reached.set()
            await self.may.wait()
        await super().commit(partition, commit)


async def committed_while_a_session_is_deleted(at: int, *, resumed: bool, twice: bool = False) -> str | None:
    """The commit of a message is held back until the await `at` of the deletion. None where it has fewer.

    `twice`: then another process deletes the session, too.
    """
    asked, answers = asyncio.Event(), asyncio.Event()

    async def slowly(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        asked.set()
        await answers.wait()
        async for event in obeys(call):
            yield event

    async with world() as here:
        session = await here.prepared()
        held = HeldBack(here.watched.store)
        async with process(held, Scripted(slowly), clock=here.clock, lease_seconds=3600) as sending:
            message = asyncio.create_task(sending.ask("held back", session.tasks[0]))
            await held.reached.wait()
            if resumed:
                await deletion_that_crashes_once_marked(here, session.session_id)

            async def let_it_through(point: int) -> None:
                if point == at:
                    held.may.set()
                    waiting = asyncio.create_task(asked.wait())
                    await asyncio.wait([message, waiting], return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    if twice:
                        with suppress(NotFound, TaskBusy):
                            await here.beside.eraser.delete_session(here.partition, session.session_id)

            here.watched.points, here.watched.there = 0, let_it_through
            try:
                await here.deleting.eraser.delete_session(here.partition, session.session_id)
            except TaskBusy:
                outcome = "kept"
            except NotFound:  # where the other deletion was faster
                assert twice
                outcome = "refused"
            else:
                outcome = "refused"
            done = not held.may.is_set()
            held.may.set()
            answers.set()
            if outcome == "refused":
                with pytest.raises(NotFound):
                    await message
                assert not asked.is_set()
                if twice:
                    await here.swept()  # the slower one may have noted what was gone by then
                await here.assert_erased(session)
            else:
                assert (await message).status == "Completed"
                assert set(await listed_tasks(here.beside, session.session_id)) == set(session.tasks)
    return None if done else outcome


async def test_the_id_of_a_session_can_be_taken_again_as_soon_as_it_is_free() -> None:
    """What is left to do of the deletion then does not touch the new session, nor whose it is."""
    async with world() as here:
        session = await here.prepared()
        taken: list[RequestRecord] = []

        async def take(point: int) -> None:
            with suppress(NotFound):
                if not taken and not await found(here.beside.tasks.head(here.partition, session.tasks[0])):
                    taken.append(await here.beside.ask("again", session_id=session.session_id))

        here.watched.there = take
        await here.delete(session)
        assert await listed_tasks(here.beside, session.session_id) == [taken[0].task_id]
        with pytest.raises(NotOwner):
            await here.beside.ask("mine", session_id=session.session_id, caller=EVE)


async def test_a_second_deletion_of_an_id_is_finished_though_the_first_ends_behind_its_crash() -> None:
    """What is left to do of a deletion does not take the note of another one along."""
    async with world() as here:
        session = await here.prepared()
        crashed: list[int] = []

        async def again(point: int) -> None:
            if crashed or await found(here.beside.catalog.session(here.partition, session.session_id)):
                return
            with suppress(NotFound):  # the id is not free yet
                here.clock.advance(1)
                await here.beside.ask("again", session_id=session.session_id)
                crashed.append(point)
                await deletion_that_crashes_once_marked(here, session.session_id)

        here.watched.there = again
        await here.delete(session)
        assert crashed
        await here.swept()
        await here.assert_erased(session)


async def deletion_that_crashes_once_marked(here: World, session_id: str) -> None:
    """Another process deletes the session, and dies as soon as it is gone for readers."""
    store = Watched(here.watched.store)

    async def die_once_marked(_: int) -> None:
        if not await found(here.beside.catalog.session(here.partition, session_id)):
            raise Killed

    store.there = die_once_marked
    dying = Process(store, here.beside.model, clock=here.clock)
    with pytest.raises(Killed):
        await dying.eraser.delete_session(here.partition, session_id)


async def test_a_deletion_that_wakes_up_leaves_the_session_alone_that_has_the_id_by_then() -> None:
    """Another process has finished the deletion meanwhile, and the id was taken again. covers: STATE-2"""
    at = 1
    while await taken_again_while_a_deletion_stands_still(at):
        at += 1
    assert at > 20


async def taken_again_while_a_deletion_stands_still(at: int) -> bool:
    """The deletion stands still at its await `at`. False where it has fewer."""
    async with world() as here:
        session = await here.prepared()
        taken: list[RequestRecord] = []

        async def stand_still(point: int) -> None:
            if point == at:
                with suppress(NotFound):
                    await here.beside.eraser.delete_session(here.partition, session.session_id)
                here.clock.advance(1)
                taken.append(await here.beside.ask("again", session_id=session.session_id))

        here.watched.there = stand_still
        with suppress(NotFound):
            await here.delete(session)
        if taken:
            assert await listed_tasks(here.beside, session.session_id) == [taken[0].task_id]
            await here.beside.catalog.session(here.partition, session.session_id)
            with pytest.raises(NotOwner):
                await here.beside.ask("mine", session_id=session.session_id, caller=EVE)
        return bool(taken)


async def test_a_deletion_that_wakes_up_leaves_the_task_alone_that_was_imported_by_then() -> None:
    """Another process has finished the deletion meanwhile, and the task was imported. covers: STATE-2"""
    at = 1
    while await imported_while_a_deletion_stands_still(at):
        at += 1
    assert at > 10


async def imported_while_a_deletion_stands_still(at: int) -> bool:
    """The deletion of a task stands still at its await `at`. False where it has fewer."""
    async with world() as here:
        beside, partition = here.beside, here.partition
        task_id = (await beside.ask("one")).task_id
        first = await export(beside.tasks, partition, task_id)
        await beside.eraser.delete_task(partition, task_id)
        await beside.importer.import_(ADA, first)
        again = await export(beside.tasks, partition, task_id)
        begun: list[bool] = []

        async def stand_still(point: int) -> None:
            if point == at:
                begun.append(not await found(beside.tasks.head(partition, task_id)))
                with suppress(NotFound):
                    await beside.eraser.delete_task(partition, task_id)
                await beside.importer.import_(ADA, first)

        here.watched.points, here.watched.there = 0, stand_still
        with suppress(NotFound):
            await here.deleting.eraser.delete_task(partition, task_id)
        if begun == [True]:  # before that it deletes what is there then
            assert await export(beside.tasks, partition, task_id) == again
            assert (await beside.ask("again", task_id)).status == "Completed"
            assert task_id in await listed_tasks(beside, None)
        return bool(begun)


async def test_a_list_that_is_read_while_a_session_is_deleted_has_all_of_its_tasks_or_none() -> None:
    """Wherever the reader was when the deletion began, and however far it came. covers: STATE-2"""
    for listed in (False, True):
        at = 1
        while await list_against_deletion(at, by_session=listed):
            at += STRIDE
        assert at > 20


async def list_against_deletion(at: int, *, by_session: bool) -> bool:
    """The deletion comes to its await `at` at each await of a reader. False where it has fewer."""
    for held in range(1, 10):
        async with world() as here:
            session = await here.prepared()
            reader = Watched(here.watched.store)
            came: list[bool] = []
            reader.there = partial(dying, here, session, held, at, came)
            beside = Process(reader, here.beside.model, clock=here.clock)
            tasks = await listed_tasks(beside, session.session_id if by_session else None)
            assert [task in tasks for task in session.tasks] in ([True] * 3, [False] * 3), (held, at)
            if came != [True]:  # one of the two has fewer awaits
                return not came
    raise AssertionError("the reader has more awaits than were tried")


async def dying(here: World, session: Doomed, held: int, at: int, came: list[bool], point: int) -> None:
    """While the reader is held, the deletion continues until it dies."""
    if point == held:
        came.append(await here.killed(session, at))
