"""Runs on a store that fails at any moment, canceled at any moment: nothing doubled, lost, or left behind."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from engine_setup import (
    ADA,
    EVE,
    Answer,
    Faulty,
    Process,
    Scripted,
    Shared,
    calls,
    damage,
    fails,
    names,
    noting,
    process,
    says,
    waits,
)
from msgspec.structs import replace

from tealagents.domain.errors import CorruptState, NotFound, Overloaded, PersistenceUnavailable, TealError
from tealagents.domain.events import Completed, ModelEvent, Terminal, TextDelta
from tealagents.domain.ids import operation_id
from tealagents.domain.models import (
    ENDED,
    Head,
    Json,
    Message,
    MessageBody,
    RequestRecord,
    StepBody,
    ToolCall,
)
from tealagents.domain.ports import Commit, ModelCall, Put, Record, Store
from tealagents.engine import publishing, run, service, wait_queue
from tealagents.engine.approvals import Command
from tealagents.engine.observer import Observer, RequestWatch
from tealagents.engine.turn import LAST_WORDS_SECONDS
from tealagents.serving import AGAIN_SECONDS, background
from tealagents.state import codec, commits, keys
from tealagents.state.audit_chain import GENESIS
from tealagents.state.endings import CANCELED, Stop
from tealagents.state.new_message import Key
from tealagents.state.queue import try_start
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock, ShiftedClock, advance
from tealagents.testing.waits import eventually
from tealagents.threads import windows
from tealagents.threads.components import open_view
from tealagents.threads.context import Context, ContextProvider, Invocation, ProviderOptions, Providers
from tealagents.threads.views import Part, Upcoming, View
from tealagents.unwinding import UNWIND_SECONDS

LOOK = ToolCall("c1", "Shell-look", '{"n": 1}')
DELETE = ToolCall("c2", "Shell-delete", '{"n": 2}')


# --- a conversation, and what must hold after it whatever happened ----------------------------------


async def converse(here: Process) -> list[str]:
    """An answer, a round of tools with a pause, and its approval: what became of each."""
    became: list[str] = []
    try:
        first = await here.ask("one", streamed=True)
        became.append(first.status)
        second = await here.ask("two", first.task_id, streamed=True)
        became.append(second.status)
        if second.status == "Paused":
            approve = Command(action="approve")
            sent = await here.approvals.resume(ADA, second.request_id, approve, streamed=True)
            became.append((await here.service.outcome(sent)).status)
    except TealError as error:
        became.append(error.code)
    return became


async def tasks_of(here: Process) -> list[str]:
    found = await here.records.store.scan(here.partition(), "tasks/")
    return [keys.last_segment(key) for key, _ in found]


async def settled(here: Process) -> None:
    """Waits until nothing runs here any more, and checks that no place and no claim is left taken."""
    await eventually(lambda: not (here.service._runs or here.service._waiting))
    assert here.service.admission.in_flight == 0


async def check(here: Process, ran: Sequence[Json]) -> None:
    """What holds for every task, whatever happened: it continues, and its log holds everything once."""
    await settled(here)
    assert len(ran) == len({repr(arguments) for arguments in ran})
    here.model.answers = [says("fine")]
    for task_id in await tasks_of(here):
        assert (await here.ask("three", task_id, supersede=True)).status == "Completed"
        await check_log(here, task_id)
    assert not here.tasks.begun


async def check_log(here: Process, task_id: str) -> None:
    head = (await here.tasks.head(here.partition(), task_id)).value
    before, once, requests = GENESIS, [], set()
    path = ((1, head.tail_seq),)
    async for logged in here.tasks.history.forwards(here.partition(), task_id, path):
        assert here.records.chain.fault(logged.entry, logged.seq, before) is None
        before = logged.entry.hash
        if isinstance(logged.body, MessageBody):
            once.append(logged.body.message.message_id)
        elif isinstance(logged.body, StepBody):
            once.append(logged.body.step.step_id)
        if logged.entry.request_id:
            requests.add(logged.entry.request_id)
    assert len(once) == len(set(once))
    for request_id in requests:
        await check_stream(here, request_id)


async def check_stream(here: Process, request_id: str) -> None:
    request = await here.request(request_id)
    assert request.status in ENDED
    events = await here.followed(request_id)
    numbers = [event.id for event in events]
    assert numbers == sorted(set(numbers))
    assert [isinstance(each.event, Terminal) for each in events] == [False] * (len(events) - 1) + [True]
    if request.status == "Completed" and not request.approvals:
        assert numbers == list(range(1, request.last_event + 1))


# --- outages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["away", "lost", "unheard"])
@pytest.mark.parametrize("seconds", [0, 0.06])
async def test_an_outage_at_any_commit(verdict: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever commit fails, surely or with its reply lost: tools run once, and the task continues.

    covers: TASK-5, STATE-4, SESSION-7
    """
    monkeypatch.setattr(commits, "RESOLVE_SECONDS", 0.02)
    at = 0
    while True:
        at += 1
        ran: list[Json] = []
        store = Faulty(MemoryStore())
        seen = 0

        def strike(partition: str, commit: Commit) -> str | None:
            nonlocal seen
            if store.unreadable:  # noqa: B023 - used within its turn of the loop only
                return "away"
            seen += 1
            if seen != at:  # noqa: B023
                return None
            if seconds:
                store.unreadable = True  # noqa: B023
                asyncio.get_running_loop().call_later(seconds, setattr, store, "unreadable", False)  # noqa: B023
            return verdict

        model = Scripted(says("hi", "there"), calls(LOOK, DELETE), says("done", "!"))
        tools = noting(ran, "Shell-look"), noting(ran, governed=True)
        async with process(store, model, *tools) as here:
            store.fault = strike
            await converse(here)
            store.fault = lambda _, __: None
            while store.unreadable:
                await asyncio.sleep(0.01)
            await check(here, ran)
        if seen < at:
            break
    assert at > 10


class Watched(Faulty):
    """Tells of every access, and lets others run in between."""

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store or MemoryStore())
        self.accesses = 0
        self.on_access: Callable[[int], None] = lambda _: None

    async def _note(self) -> None:
        await asyncio.sleep(0)
        self.accesses += 1
        self.on_access(self.accesses)
        await asyncio.sleep(0)

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        await self._note()
        return await super().read(partition, keys)

    async def commit(self, partition: str, commit: Commit) -> None:
        await self._note()
        await asyncio.shield(asyncio.ensure_future(super().commit(partition, commit)))
        await self._note()


@pytest.mark.parametrize("what", ["cancel", "drop", "leave"])
async def test_ended_at_any_moment(what: str) -> None:
    """Canceled, dropped or left at any access to the store: no place is kept, and the task continues.

    covers: TASK-5, SESSION-7
    """
    at = 0
    while True:
        at += 1
        ran: list[Json] = []
        store = Watched()
        struck = False
        model = Scripted(says("hi", "there"), calls(LOOK, DELETE), says("done", "!"))
        tools = noting(ran, "Shell-look"), noting(ran, governed=True)
        async with process(store, model, *tools) as here:
            talking = asyncio.ensure_future(converse(here))

            def strike(accesses: int) -> None:
                nonlocal struck
                runs = list(here.service._runs.values())
                if struck or accesses < at or not (runs or what == "leave"):  # noqa: B023
                    return
                struck = True
                if what == "leave":
                    talking.cancel()  # noqa: B023
                for run in runs if what != "leave" else ():
                    run.stop(Stop(None if what == "drop" else CANCELED, "ada"))

            store.on_access = strike
            await asyncio.wait([talking])
            store.on_access = lambda _: None
            await check(here, ran)
        if not struck:
            break
    assert at > 20


# --- one suspicion each -----------------------------------------------------------------------------


async def test_turns_made_elsewhere_are_not_forgotten_after_a_failed_read() -> None:
    """A history that could not be read is read again: it lacks no turn of another replica. covers: TASK-4"""

    class Stumbling(Shared):
        stumbles = False

        async def scan(self, partition: str, prefix: str, **how: Any) -> list[tuple[str, Record]]:
            if self.stumbles and prefix.startswith("log/"):
                self.stumbles = False
                raise PersistenceUnavailable("The store is away.")
            return await super().scan(partition, prefix, **how)

    store = Stumbling()
    async with process(store) as here, process(store) as there:
        task_id = (await here.ask("zero")).task_id
        await here.ask("one", task_id)
        await there.ask("two", task_id)
        store.stumbles = True
        assert (await here.ask("three", task_id)).status == "Failed"
        assert (await here.ask("four", task_id)).status == "Completed"
        said = [part for part in here.model.calls[-1].prompt if part.startswith(b"user")]
        assert said == [b"user: zero", b"user: one", b"user: two", b"user: four"]


class Withholding(MemoryStore):
    """Commits at once; of the commit that is picked, the reply comes late."""

    picked: Callable[[Commit], bool] = staticmethod(lambda commit: False)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.applied, self.reply = asyncio.Event(), asyncio.Event()

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, commit)
        if self.picked(commit):
            self.picked = lambda _: False
            self.applied.set()
            await self.reply.wait()


@pytest.mark.parametrize("view", [None, ("sliding_window", {"max_rounds": 9})], ids=["whole", "view"])
@pytest.mark.parametrize("when", ["while it runs", "when it has ended"])
async def test_an_answer_that_the_next_turn_has_read_is_not_added_again(view: Any, when: str) -> None:
    """A request that learns late that its end is stored finds its answer in the history. covers: TASK-4"""
    store = Withholding(MemoryStore.options_type())
    agent = {"view": open_view([view], "any") if view else None}
    gate = asyncio.Event()
    async with process(store, agent=agent) as here:
        task_id = (await here.ask("one")).task_id
        store.picked = lambda commit: b'"Completed"' in b"".join(put.value for put in commit.put.values())
        slow = await here.send("two", task_id)
        await store.applied.wait()
        if when == "while it runs":
            here.model.answers = [waits(gate, "a", "b"), says("hello")]
        next_one = asyncio.create_task(here.ask("three", task_id, supersede=True))
        if when == "while it runs":
            await eventually(lambda: len(here.model.calls) >= 3, every=0)
        else:
            await next_one
        store.reply.set()
        assert (await here.service.outcome(slow)).status == "Completed"
        gate.set()
        assert (await next_one).status == "Completed"
        await here.ask("four", task_id)
        said = [part for part in here.model.calls[-1].prompt if part.startswith(b"user")]
        assert said == [b"user: one", b"user: two", b"user: three", b"user: four"]


async def test_a_history_that_was_made_here_is_not_read_again() -> None:
    """From the second turn on, a turn reads the last batches and no more of the log. covers: TASK-4"""

    class Counting(MemoryStore):
        scans = 0

        async def scan(self, partition: str, prefix: str, **how: Any) -> list[tuple[str, Record]]:
            self.scans += prefix.startswith("log/")
            return await super().scan(partition, prefix, **how)

    store = Counting()
    async with process(store) as here:
        task_id = (await here.ask("one")).task_id
        for n in range(3):
            await here.ask(f"more {n}", task_id)
        assert store.scans == 0
        assert len(here.model.calls[-1].prompt) == 7


async def test_a_run_that_ends_with_its_process_is_left_to_others() -> None:
    """Nothing is begun for it any more: a task made while the event loop ends would never be finished."""
    store = Faulty(MemoryStore())
    async with process(store, Scripted(waits(asyncio.Event()))) as here:
        await here.send(streamed=True)
        await eventually(lambda: here.model.calls, every=0)
        (carrying,) = here.service._carrying
        here.tasks.begun.close()
        before, commits = asyncio.all_tasks(), list(store.commits)
        carrying.cancel()
        await asyncio.wait([carrying])
        assert asyncio.all_tasks() <= before
        assert store.commits == commits


async def test_waiting_costs_the_same_however_many_wait() -> None:
    """One look at the task serves all who wait for it; each is answered in its turn. covers: STATE-5"""
    gate, looks = asyncio.Event(), 0

    class Ticking(FakeClock):
        """No two readings are the same, so that they show what was first."""

        def now(self) -> datetime:
            self.advance(1e-6)
            return super().now()

    clock = Ticking()

    class Counting(MemoryStore):
        async def read(self, partition: str, names: Sequence[str]) -> list[Record | None]:
            nonlocal looks
            looks += any(name.startswith("task/") for name in names)
            return await super().read(partition, names)

    async def pass_by(seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            clock.advance(0.05)
            for _ in range(20):
                await asyncio.sleep(0)

    model, queue = Scripted(waits(gate), says("hello")), {"concurrency": "enqueue", "clock": clock}
    async with process(Counting(), model, lease_seconds=3600, **queue) as here:
        first = await here.send("one", streamed=True)
        task_id = first.request.task_id
        waiting = [await here.send(f"more {n}", task_id, streamed=True) for n in range(40)]
        await pass_by(0.1)
        looks = 0
        await pass_by(0.6)
        assert looks <= 4
        gate.set()
        ending = asyncio.gather(*(here.service.outcome(sent) for sent in waiting))
        while not ending.done():
            await pass_by(0.05)
        ends = await ending
        assert {end.status for end in ends} == {"Completed"}
        began = [end.started_at for end in ends if end.started_at is not None]
        assert len(began) == len(waiting)
        assert began == sorted(set(began))
        assert looks <= 10 * len(waiting)


async def test_a_request_that_is_canceled_in_its_queue_gives_its_place_back() -> None:
    """However often a user queues a message and cancels it, there is room for the next. covers: TASK-5"""
    limits = {"max_requests_per_user": 3}
    async with process(None, Scripted(waits(asyncio.Event())), concurrency="enqueue", limits=limits) as here:
        first = await here.send("one")
        for n in range(limits["max_requests_per_user"]):
            waiting = await here.send(f"more {n}", first.request.task_id)
            await here.service.cancel(here.partition(), waiting.request.request_id, ADA.user.key)
            assert (await here.service.outcome(waiting)).status == "Canceled"
        last = await here.send("last", first.request.task_id)
        assert last.request.status == "Queued"


async def test_a_pause_is_in_the_inbox_for_as_long_as_it_can_be_decided() -> None:
    """However long that is, and for a week more. covers: HITL-1"""
    clock, month, week = ShiftedClock(), 30 * 86400, 7 * 86400
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    asks = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")))
    rules: dict[str, Any] = {"limits": {"approval_expiry_seconds": month}, "lease_seconds": 1e9}
    async with process(store, asks, noting([], governed=True), clock=clock, **rules) as here:
        paused = await here.ask()

        async def listed(status: str | None) -> int:
            page = await here.catalog.inbox(ADA.user.tid, status=status, cursor=None, limit=10)
            return len(page.items)

        clock.shift = timedelta(seconds=month - 60)
        assert await listed("pending") == 1
        clock.shift = timedelta(seconds=month + week - 60)
        assert (await here.request(paused.request_id)).status == "Canceled"
        assert await listed("expired") == 1
        clock.shift = timedelta(seconds=month + week + 60)
        assert await listed(None) == 0


async def test_the_time_in_which_a_request_waited_its_turn_counts() -> None:
    """What is left of the request timeout is all that it has to run. covers: TASK-5"""
    clock, gate = ShiftedClock(), asyncio.Event()
    model = Scripted(waits(gate), waits(asyncio.Event()))
    rules: dict[str, Any] = {"concurrency": "enqueue", "lease_seconds": 1e9, "clock": clock}
    async with process(None, model, **rules) as here:
        first = await here.send("first")
        second = await here.send("second", first.request.task_id)
        clock.shift = timedelta(seconds=here.tasks.rules.request_timeout_seconds - 0.5)
        gate.set()
        async with asyncio.timeout(30):
            ended = await here.service.outcome(second)
        assert ended.error is not None
        assert (ended.status, ended.error.code) == ("Failed", "request_timeout")


async def test_the_sender_of_a_queued_request_hears_at_once_that_it_was_canceled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch on the queue calls it, although the task is still taken: it need not look for itself.
    covers: TASK-5"""
    looks: list[object] = []

    async def looked(*which: Any) -> object:
        looks.append(await try_start(*which))
        return looks[-1]

    monkeypatch.setattr(wait_queue, "try_start", looked)
    monkeypatch.setattr(wait_queue, "OVERLOOKED_SECONDS", 3600)
    async with process(None, Scripted(waits(asyncio.Event())), concurrency="enqueue") as here:
        first = await here.send("one")
        waiting = await here.send("two", first.request.task_id)
        await eventually(lambda: looks)
        await here.service.cancel(here.partition(), waiting.request.request_id, ADA.user.key)
        async with asyncio.timeout(30):
            assert (await here.service.outcome(waiting)).status == "Canceled"
        assert looks[0] is None
        assert (await here.request(first.request.request_id)).status == "Running"


async def test_a_queued_request_is_canceled_without_waiting_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message does not become part of the task. covers: TASK-5"""
    monkeypatch.setattr(service, "ASKED_SECONDS", 3600)
    async with process(None, Scripted(waits(asyncio.Event())), concurrency="enqueue") as here:
        first = await here.send("one")
        waiting = await here.send("two", first.request.task_id)
        async with asyncio.timeout(30):
            ended = await here.service.cancel(here.partition(), waiting.request.request_id, ADA.user.key)
        assert (ended.status, ended.started_at, ended.first_seq) == ("Canceled", None, 0)


async def test_who_waits_is_called_though_a_look_went_wrong() -> None:
    """Whatever a store raises once, the next look is made. covers: STATE-5"""
    gate, strikes = asyncio.Event(), 0

    class Stumbling(MemoryStore):
        async def read(self, partition: str, names: Sequence[str]) -> list[Record | None]:
            nonlocal strikes
            task = asyncio.current_task()
            if task is not None and task.get_name().startswith("queue ") and strikes == 0:
                strikes += 1
                raise RuntimeError("a driver's own")
            return await super().read(partition, names)

    async with process(Stumbling(), Scripted(waits(gate), says("hello")), concurrency="enqueue") as here:
        first = await here.send("one", streamed=True)
        second = await here.send("two", first.request.task_id, streamed=True)
        await eventually(lambda: strikes)
        gate.set()
        async with asyncio.timeout(60):
            assert (await here.service.outcome(second)).status == "Completed"


async def test_what_cannot_be_found_is_not_canceled() -> None:
    """A request of a task past its `expires_at`: the caller is refused, and it runs to its end."""
    gate, clock = asyncio.Event(), FakeClock()
    options: Any = {"clock": clock, "lease_seconds": 3000}
    async with process(None, Scripted(waits(gate, "a", "b")), **options) as here:
        sent = await here.send(streamed=True)
        request, partition = sent.request, here.partition()
        at = clock.now() + timedelta(seconds=1)
        await here.changes.patch(partition, request.task_id, ADA.user, expires_at=at)
        clock.advance(2)
        with pytest.raises(NotFound):
            await here.service.cancel(partition, request.request_id, "mock.ada")
        gate.set()
        assert (await here.service.outcome(sent)).status == "Completed"


async def test_a_message_that_finds_no_room_ends_no_pause() -> None:
    """`supersede` is refused where as many wait as may, and the pause waits on. covers: HITL-1"""
    gate = asyncio.Event()

    async def asks_late(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        await gate.wait()
        async for event in calls(DELETE)(call):
            yield event

    tool = noting([], governed=True)
    async with process(None, Scripted(asks_late), tool, concurrency="enqueue", max_queued=1) as here:
        first = await here.send("one", streamed=True)
        task_id = first.request.task_id
        await here.send("two", task_id, streamed=True)
        gate.set()
        assert (await here.service.outcome(first)).status == "Paused"
        with pytest.raises(Overloaded):
            await here.send("three", task_id, supersede=True)
        assert (await here.request(first.request.request_id)).status == "Paused"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", ["answers", "fails", "calls a tool", "is canceled", "runs out of time"])
async def test_a_request_that_is_over_is_forgotten_at_once(way: str, streamed: bool) -> None:
    """Its answer does not stay in memory until a full collection, which may be thousands of requests away."""
    gate = asyncio.Event()
    ways: dict[str, list[Answer]] = {
        "answers": [says("hello")],
        "fails": [fails],
        "calls a tool": [calls(LOOK), says("I see.")],
    }
    model = Scripted(*ways.get(way, [waits(gate, "a", "b")]))
    async with process(None, model, noting([], "Shell-look")) as here:
        gc.collect()
        gc.disable()
        try:
            sent = await here.send(streamed=streamed)
            request_id = sent.request.request_id
            runs = weakref.WeakSet([here.service.run_of(request_id)])
            assert len(runs) == 1
            if way in ("is canceled", "runs out of time"):
                await eventually(lambda: model.calls, every=0)
            if way == "is canceled":
                await here.service.cancel(sent.partition, request_id, ADA.user.key)
            if way == "runs out of time":
                advance(asyncio.get_running_loop(), 600)
            await here.service.outcome(sent)
            if streamed:
                await here.followed(request_id)
            await eventually(lambda: not list(runs), every=0)
        finally:
            gc.enable()


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_a_client_has_heard_of_is_not_left_to_a_later_sync(streamed: bool) -> None:
    """Only the beginning of a request whose client waits for its end may be synced with what follows it: not
    a tool call that is about to run, nor the beginning of a stream, whose ids are sent at once, nor one under
    a key, which must not make the model answer twice."""

    unsynced = []

    class Noting(MemoryStore):
        async def commit(self, partition: str, commit: Commit) -> None:
            if "/user/" in partition:
                unsynced.append(commit.unsynced)
            await super().commit(partition, commit)

    async with process(Noting(), Scripted(calls(LOOK), says("I see.")), noting([], "Shell-look")) as here:
        assert (await here.ask(streamed=streamed)).status == "Completed"
        first, *later = unsynced
        assert first is not streamed
        assert len(later) >= 2
        assert not any(later)
        unsynced.clear()
        await here.ask(streamed=streamed, key=Key("k", "d"))
        assert not any(unsynced)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_follower_that_has_seen_too_much_gets_the_end(elsewhere: bool) -> None:
    """Asked for what follows an event that never was, a stream still ends as it must. covers: SESSION-8"""
    store = Shared()
    gate = asyncio.Event()
    async with process(store, Scripted(waits(gate, "a", "b"))) as here, process(store) as there:
        sent = await here.send(streamed=True)
        follower = there if elsewhere else here
        following = asyncio.ensure_future(follower.followed(sent.request.request_id, 1000))
        await asyncio.sleep(0.02)
        gate.set()
        assert [type(each.event) for each in await following] == [Completed]


def lingers(stopped: asyncio.Event, gone: asyncio.Event) -> Answer:
    """Takes its time to end once it is stopped."""

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            await gone.wait()
            raise

    return answer


@pytest.mark.parametrize("way", ["cancel", "newer message", "cancel from elsewhere", "drain"])
async def test_who_stops_a_request_whose_time_is_up_waits_for_its_end(way: str) -> None:
    """It ends as it was about to, and the process goes on hearing of others. covers: STATE-5"""
    store, stopped, gone, waiting = Shared(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    model = Scripted(lingers(stopped, gone), waits(waiting), waits(waiting))
    options: Any = {"lease_seconds": 3000, "concurrency": "interrupt"}
    async with (
        process(store, model, limits={"request_timeout_seconds": 60}, **options) as here,
        process(store, **options) as there,
    ):
        sent = await here.send(streamed=True)
        request_id, task_id, partition = sent.request.request_id, sent.request.task_id, here.partition()
        await eventually(lambda: model.calls)
        advance(asyncio.get_running_loop(), 61)
        await stopped.wait()
        other = await here.send("another", streamed=True)
        ways: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "cancel": lambda: here.service.cancel(partition, request_id, ADA.user.key),
            "newer message": lambda: here.send("stop that", task_id),
            "cancel from elsewhere": lambda: there.service.cancel(partition, request_id, ADA.user.key),
            "drain": lambda: here.service.drain(0),
        }
        stopping = asyncio.ensure_future(ways[way]())
        for _ in range(100):
            await asyncio.sleep(0)
        gone.set()
        await stopping
        ended = await here.request(request_id)
        if way != "cancel from elsewhere":
            assert ended.error is not None
            assert (ended.status, ended.error.code) == ("Failed", "request_timeout")
        if way == "drain":
            assert here.service.followers.closed
        else:
            await there.service.cancel(partition, other.request.request_id, ADA.user.key)
        assert (await here.request(other.request.request_id)).status in ENDED
        assert here.service.run_of(other.request.request_id) is None


async def test_a_request_is_canceled_where_it_runs_though_the_store_is_away() -> None:
    """The answer says that the store is away; the end is stored when it is back. covers: STATE-4"""
    store = Faulty(MemoryStore())
    async with process(store, Scripted(waits(asyncio.Event()))) as here:
        sent = await here.send(streamed=True)
        store.unreadable = True
        with pytest.raises(PersistenceUnavailable):
            await here.service.cancel(sent.partition, sent.request.request_id, ADA.user.key)
        store.unreadable = False
        assert (await here.service.outcome(sent)).status == "Canceled"


async def test_no_one_cancels_the_request_of_another_user_while_the_store_is_away() -> None:
    """Whose it is cannot be asked then: only a request of the caller's own is stopped. covers: AUTH-3"""
    store = Faulty(MemoryStore())
    gate = asyncio.Event()
    async with process(store, Scripted(waits(gate))) as here:
        sent = await here.send()
        store.unreadable = True
        with pytest.raises(PersistenceUnavailable):
            await here.service.cancel(here.partition(EVE), sent.request.request_id, EVE.user.key)
        store.unreadable = False
        gate.set()
        assert (await here.service.outcome(sent)).status == "Completed"


async def test_work_in_the_background_begins_again_where_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Requests depend on it for as long as the process runs; the failure is logged."""
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise ValueError("a mistake")
        await asyncio.Event().wait()

    async with background(work):
        await eventually(lambda: "a mistake" in caplog.text)
        advance(asyncio.get_running_loop(), AGAIN_SECONDS)
        await eventually(lambda: begun == 2)


async def test_a_newer_message_does_not_wait_for_ever_for_an_end_that_cannot_be_stored() -> None:
    """While the store takes nothing, a message that would supersede another fails. covers: STATE-4"""
    store = Watched()
    async with process(store, Scripted(waits(asyncio.Event())), concurrency="interrupt") as here:
        sent = await here.send()
        store.fault = lambda _, __: "away"
        before = store.accesses
        with pytest.raises(PersistenceUnavailable):
            await here.send("stop that", sent.request.task_id)
        assert store.accesses - before < 500


async def test_a_log_that_is_longer_than_its_task_is_damage() -> None:
    """A contradiction is reported at once, rather than retried for ever. covers: STATE-4"""
    async with process() as here:
        task_id = (await here.ask()).task_id
        head = (await here.tasks.head(here.partition(), task_id)).value
        put = {keys.log(task_id, head.tail_seq + 1): Put(b"nobody's")}
        await here.store.commit(here.partition(), Commit(operation=operation_id(), put=put))
        with pytest.raises(CorruptState, match="though its task ends before it"):
            await here.ask("again", task_id)
        with pytest.raises(CorruptState, match="though its task ends before it"):
            await here.changes.patch(here.partition(), task_id, ADA.user, metadata={"a": 1})
        assert (await here.ask("another")).status == "Completed"


async def test_the_audit_names_what_was_changed() -> None:
    """A change of metadata is none of the expiry, and clearing the expiry is one. covers: SESSION-8"""
    async with process() as here:
        task_id = (await here.ask()).task_id
        await here.changes.patch(here.partition(), task_id, ADA.user, metadata={"a": 1})
        await here.changes.patch(here.partition(), task_id, ADA.user, expires_at=None)
        tail = (await here.tasks.head(here.partition(), task_id)).value.tail_seq
        entries, _ = await here.tasks.history.entries(here.partition(), task_id, tail, limit=50)
        patches = [entry.details["fields"] for entry in entries if entry.action == "task.patched"]
        assert patches == [["metadata"], ["expires_at"]]


async def test_a_request_says_while_it_runs_which_version_runs_it() -> None:
    """The one that began it, or that continued it after its pause, on every replica that reads or ends it."""
    event = asyncio.Event()
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), waits(event))
    store = MemoryStore()
    async with store, process(store, model, noting([], governed=True)) as here:
        request = await here.ask()
        assert request.source == "Tester:0.1"
        here.tasks.source = "Tester:0.2"
        sent = await here.approvals.resume(ADA, request.request_id, Command(action="approve"), streamed=False)
        here.tasks.source = "Tester:0.3"
        assert (await here.request(request.request_id)).source == "Tester:0.2"
        await here.service.cancel(here.partition(), request.request_id, "ada")
        assert (await here.service.outcome(sent)).source == "Tester:0.2"


async def test_a_write_is_seen_to_its_end_although_canceled_twice() -> None:
    """A message canceled while its deadline passes loses nothing that was being written. covers: TASK-5"""
    held, reached = asyncio.Event(), asyncio.Event()

    class Holding(Watched):
        async def commit(self, partition: str, commit: Commit) -> None:
            if any(b'"tool.intent"' in value for value, _ in commit.put.values()) and not held.is_set():
                reached.set()
                await held.wait()
            await super().commit(partition, commit)

    async with process(Holding(), Scripted(calls(LOOK)), noting([], "Shell-look")) as here:
        sent = await here.send()
        run = here.service.run_of(sent.request.request_id)
        assert run is not None
        await reached.wait()
        run.stop(Stop(CANCELED, "ada"))
        await asyncio.sleep(0.01)
        run.stop(Stop(CANCELED, "ada"))
        await asyncio.sleep(0.01)
        held.set()
        ended = await here.service.outcome(sent)
        assert ended.status == "Canceled"
        await check_log(here, ended.task_id)
        tail = (await here.tasks.head(here.partition(), ended.task_id)).value.tail_seq
        steps, _ = await here.tasks.history.steps(here.partition(), ended.task_id, tail, limit=50)
        assert [step.kind for step in steps] == ["model", "error"]


async def test_work_in_the_background_that_fails_while_it_is_ended_does_not_begin_again() -> None:
    """The process would wait for its end for ever."""
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("a mistake")

    async with asyncio.timeout(60), background(work):
        await eventually(lambda: begun)
    assert begun == 1


async def test_tasks_without_an_answer_take_room_in_the_memory_of_histories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many fail, a process keeps no more of them than its bound allows."""
    monkeypatch.setattr(windows, "KEPT_BYTES", 10 * windows.WINDOW_OVERHEAD)
    async with process(model=Scripted(fails)) as here:
        for _ in range(20):
            await here.ask()
        assert len(here.service.conversations.encoded._kept) == 10


class Deaf(ContextProvider):
    """Ignores that it is canceled, in the call of this name, until it is released."""

    def __init__(self, where: str, seconds: float = 3000) -> None:
        super().__init__(ProviderOptions(timeout_seconds=seconds))
        self.where = where
        self.called, self.heard, self.released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def invoking(self, invocation: Invocation) -> Context | None:
        await self._linger("invoking")
        return None

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        await self._linger("invoked")

    async def _linger(self, where: str) -> None:
        while where == self.where and not self.released.is_set():
            self.called.set()
            with suppress(asyncio.CancelledError):
                await self.released.wait()
            self.heard.set()


async def outlasted(here: Process, deaf: Deaf, seconds: float) -> RequestRecord:
    """How a request ends although its provider lets go neither after `seconds` nor in the time that it then
    gets."""
    asking = asyncio.ensure_future(here.ask())
    await deaf.called.wait()
    advance(asyncio.get_running_loop(), seconds)
    await deaf.heard.wait()
    await asyncio.sleep(0)
    advance(asyncio.get_running_loop(), UNWIND_SECONDS)
    ended, _ = await asyncio.wait({asking}, timeout=30)
    deaf.released.set()
    assert ended
    return await asking


async def test_a_provider_that_ignores_that_it_is_canceled_does_not_hold_up_the_end() -> None:
    """The request ends when its time is up; the provider is left behind. covers: THREAD-10"""
    deaf = Deaf("invoking")
    agent, limits = {"providers": Providers([deaf])}, {"request_timeout_seconds": 60}
    async with process(agent=agent, limits=limits, lease_seconds=30_000) as here:
        request = await outlasted(here, deaf, 61)
        assert request.error is not None
        assert request.error.code == "request_timeout"


async def test_a_provider_that_ignores_that_its_last_words_are_over_does_not_hold_up_the_end() -> None:
    """A request that fails ends, and the task takes its next message. covers: THREAD-10"""
    deaf = Deaf("invoked")
    agent = {"providers": Providers([deaf])}
    async with process(None, Scripted(fails, says("hello")), agent=agent, lease_seconds=30_000) as here:
        request = await outlasted(here, deaf, LAST_WORDS_SECONDS)
        assert request.error is not None
        assert request.error.code == "model_error"
        assert (await here.ask("again", request.task_id)).status == "Completed"


async def test_what_a_provider_that_was_left_behind_writes_into_its_state_is_in_no_turn() -> None:
    """The conversation remembers what was stored. covers: THREAD-10"""

    class Writing(Deaf):
        async def invoked(
            self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
        ) -> None:
            invocation.state["n"] = invocation.state.get("n", 0) + 1
            if invocation.state["n"] == 1:
                await self._linger("invoked")
                invocation.state["late"] = object()
                wrote.set()

    deaf, wrote = Writing("invoked", seconds=5), asyncio.Event()
    async with process(agent={"providers": Providers([deaf])}, lease_seconds=30_000) as here:
        first = await outlasted(here, deaf, 5)
        await wrote.wait()
        second = await here.ask("again", first.task_id)
        assert second.status == "Completed"
        assert (second.context or {})["providers"] == {"Writing": {"n": 2}}


@pytest.mark.parametrize("late", [object(), "x" * 1_000_000], ids=["no JSON", "too much"])
async def test_what_is_written_into_a_state_while_a_summary_is_made_is_not_kept(late: object) -> None:
    """By a provider that was left behind: the state is kept as it was checked. covers: THREAD-10"""

    class Writing(Deaf):
        async def invoked(
            self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
        ) -> None:
            invocation.state["n"] = 1
            await self._linger("invoked")
            invocation.state["late"] = late
            wrote.set()

    class Summary:
        trigger = "after_message_added"

        async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
            if upcoming.moment == self.trigger:
                deaf.released.set()
                await wrote.wait()
            async for part in parts:
                yield part

    deaf, wrote = Writing("invoked", seconds=5), asyncio.Event()
    agent = {"providers": Providers([deaf]), "view": View([Summary()])}
    async with process(agent=agent, lease_seconds=30_000) as here:
        request = await outlasted(here, deaf, 5)
    assert request.status == "Completed"
    assert (request.context or {})["providers"] == {"Writing": {"n": 1}}


async def test_a_provider_that_ignores_that_its_time_is_up_is_left_behind() -> None:
    """It costs a request its own time, not the request's. covers: THREAD-10"""
    deaf = Deaf("invoking", seconds=5)
    async with process(agent={"providers": Providers([deaf])}, lease_seconds=30_000) as here:
        assert (await outlasted(here, deaf, 5)).status == "Completed"


async def test_only_so_much_is_shown_that_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store keeps events waiting, the model waits too: the end of a request that is written from
    outside is numbered behind all that was shown. covers: SESSION-8"""
    most, back = 10, asyncio.Event()
    monkeypatch.setattr(publishing, "MOST_UNWRITTEN", most)
    pieces = [f"{n} " for n in range(5 * most)]

    class Slow(MemoryStore):
        async def commit(self, partition: str, commit: Commit) -> None:
            if any(key.startswith("events/") for key in commit.put):
                await back.wait()
            await super().commit(partition, commit)

    async with process(Slow(), Scripted(says(*pieces))) as here:
        sent = await here.send(streamed=True)
        run = here.service.run_of(sent.request.request_id)
        assert run is not None
        await eventually(lambda: run.stream.last_id > most, every=0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert run.stream.last_id - run.stream._written == most
        back.set()
        assert (await here.service.outcome(sent)).output == "".join(pieces)


async def test_what_a_run_fails_for_is_logged_where_it_is_the_operators_to_look_into(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as damage, once, and with where it is. Nothing is said of what the model service did, whose client
    has logged it, nor of what was canceled."""
    caplog.set_level("WARNING")
    async with process(None, Scripted(says("hi"), fails)) as here:
        task_id = (await here.ask()).task_id
        await here.ask("again", (await here.ask()).task_id)
        assert not caplog.records
        async with process(here.store, Scripted()) as other:
            await damage(here.store, here.partition(), keys.log(task_id, 1))
            ended = await other.ask("more", task_id)
    assert (ended.status, ended.error and ended.error.code) == ("Failed", "corrupt_state")
    [line] = [each for each in caplog.records if each.name == "tealagents.engine.run"]
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith(f"corrupt_state: Stored record 'log/{task_id}/")


class Noted(Observer):
    """Notes how runs ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def request(self, request: RequestRecord) -> RequestWatch:
        ends = self.ends

        class Watch(RequestWatch):
            def ended(self, request: RequestRecord, *, here: bool = True) -> None:
                ends.append(f"{request.status} {'here' if here else 'elsewhere'}")

            def failed(self, error: TealError) -> None:
                ends.append(f"Unknown {error.code}")

        return Watch(request)


async def test_an_end_that_is_stored_late_is_observed_as_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its callers were told that it is unknown, and read it later; it is counted and logged once."""
    monkeypatch.setattr(run, "STORE_DEADLINE_SECONDS", 0)
    store, gate, noted = Faulty(MemoryStore()), asyncio.Event(), Noted()
    async with process(store, Scripted(waits(gate)), agent={"observer": noted}) as here:
        sent = await here.send()
        store.fault = lambda _, __: "away"
        gate.set()
        with pytest.raises(PersistenceUnavailable):
            await here.service.outcome(sent)
        store.fault = lambda _, __: None
        await eventually(lambda: noted.ends)
        assert noted.ends == ["Completed here"]
        assert (await here.request(sent.request.request_id)).status == "Completed"


async def test_an_emptied_log_is_not_begun_anew_by_a_request_that_runs() -> None:
    """Its audit would be in order again, without what was said before. covers: TASK-8"""
    gate = asyncio.Event()
    async with process(None, Scripted(says("hi"), waits(gate))) as here:
        first = await here.ask()
        sent = await here.send("again", first.task_id)
        partition, key = here.partition(), keys.task(first.task_id)
        found = await here.tasks.records.get(partition, key, Head)
        assert found is not None
        emptied = replace(found.value, tail_seq=0, tail_hash="", tail_seal="", path=())
        put = {key: Put(codec.seal(partition, key, emptied))}
        logs = await names(here.store, partition, f"log/{first.task_id}/")
        await here.store.commit(partition, Commit(operation=operation_id(), put=put, delete=logs))
        gate.set()
        with pytest.raises(CorruptState, match="says that its task has no entries"):
            await here.service.outcome(sent)
        assert await names(here.store, partition, f"log/{first.task_id}/") == []
