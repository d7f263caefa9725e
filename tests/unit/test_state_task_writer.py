"""Writing a task while a request runs on it, on a store that does not always answer."""

import asyncio

import pytest
from engine_setup import ADA, Faulty, Process, Scripted, calls, fails, noting, process, says, waits

from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.models import Item, Json, MessageBody, Note, StepBody, ToolCall, ToolIntent
from tealagents.domain.ports import Commit
from tealagents.engine.approvals import Command
from tealagents.state import commits
from tealagents.state.audit_chain import GENESIS, Draft, draft
from tealagents.state.new_message import NewMessage
from tealagents.state.task_writer import Fenced, TaskWriter
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock


class Outage(Faulty):
    """Takes one commit to a task's log and gives no reply for a while after it; `applied` says whether."""

    def __init__(self, clock: FakeClock, *, at: int, applied: bool, seconds: float = 0.4) -> None:
        super().__init__(MemoryStore(clock=lambda: clock.now().timestamp()))
        self._clock = clock
        self._at = at
        self._applied = applied
        self._until = clock.monotonic()
        self._seconds = seconds
        self._seen = 0
        self.fault = self._strike

    def _strike(self, partition: str, commit: Commit) -> str | None:
        if self.unreadable:
            return "away"
        if not any(key.startswith("log/") for key in commit.put):
            return None
        self._seen += 1
        if self._seen != self._at:
            return None
        self.unreadable, self._until = True, self._clock.monotonic() + self._seconds
        return "lost" if self._applied else "unheard"

    async def pass_by(self) -> None:
        """Lets a moment pass, and what it wakes run."""
        self._clock.advance(0.02)
        self.unreadable = self.unreadable and self._clock.monotonic() < self._until
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of a commit is looked for during a tenth of a second, not five."""
    monkeypatch.setattr(commits, "RESOLVE_SECONDS", 0.1)


async def bodies(here: Process, task_id: str) -> list[object]:
    head = (await here.tasks.head(here.partition(), task_id)).value
    whole = ((1, head.tail_seq),)
    return [logged.body async for logged in here.tasks.history.forwards(here.partition(), task_id, whole)]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("at", [2, 3, 4])
async def test_nothing_is_written_twice_after_an_outage(at: int, applied: bool) -> None:
    """Whatever the outcome of an in-doubt write, each intent, step and message is in the log once.

    covers: TASK-5, STATE-4
    """
    clock = FakeClock()
    store = Outage(clock, at=at, applied=applied)
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("done"))
    ran: list[Json] = []
    async with process(store, model, noting(ran), clock=clock) as here:
        sent = await here.send()
        while here.service.run_of(sent.request.request_id):
            await store.pass_by()
        ended = await here.request(sent.request.request_id)
        assert ended.status == ("Completed" if at == 4 else "Failed")
        assert len(ran) == (0 if at == 2 else 1)
        found = await bodies(here, ended.task_id)
        messages = [body.message.message_id for body in found if isinstance(body, MessageBody)]
        assert len(messages) == len(set(messages))
        assert len([body for body in found if isinstance(body, ToolIntent)]) == 1
        steps = [body.step.step_id for body in found if isinstance(body, StepBody)]
        assert len(steps) == len(set(steps))
        head = (await here.tasks.head(here.partition(), ended.task_id)).value
        before = GENESIS
        entries, _ = await here.tasks.history.entries(
            here.partition(), head.task_id, head.tail_seq, limit=200
        )
        for n, entry in enumerate(entries, 1):
            assert here.records.chain.fault(entry, n, before) is None
            before = entry.hash


async def test_a_pause_whose_reply_is_lost_is_one_pause() -> None:
    """The pause is found to be stored, and its one approval can be decided. covers: HITL-1"""
    clock = FakeClock()
    store = Outage(clock, at=2, applied=True)
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("done"))
    ran: list[Json] = []
    async with process(store, model, noting(ran, governed=True), clock=clock) as here:
        sent = await here.send()
        while here.service.run_of(sent.request.request_id):
            await store.pass_by()
        paused = await here.request(sent.request.request_id)
        assert paused.status == "Paused"
        assert len(paused.approvals) == 1
        resumed = await here.approvals.resume(
            ADA, paused.request_id, Command(action="approve"), streamed=False
        )
        assert (await here.service.outcome(resumed)).status == "Completed"
        assert len(ran) == 1


async def test_more_entries_than_one_commit_holds() -> None:
    """A round of many calls is written in several commits, and read as one. covers: TASK-3"""
    wanted = [ToolCall(f"c{n}", "Shell-delete", "{}") for n in range(450)]
    async with process(None, Scripted(calls(*wanted), fails), noting([])) as here:
        ended = await here.ask()
        assert ended.status == "Failed"
        found = await bodies(here, ended.task_id)
        assert len([body for body in found if isinstance(body, MessageBody)]) == 452


@pytest.mark.parametrize("late", [0, 1])
async def test_of_two_commits_in_doubt_either_may_be_applied_later(late: int) -> None:
    """What is written once more after both is in the log once. covers: STATE-4"""
    store, clock = Faulty(MemoryStore()), FakeClock()
    unheard: list[tuple[str, Commit]] = []

    def fault(partition: str, commit: Commit) -> str:
        unheard.append((partition, commit))
        return "unheard"

    async with process(store, clock=clock) as here:
        writer = await begun(here)
        entry = draft("tool.called", "service", writer.request.request_id, Note("paid"))
        store.fault = fault
        for _ in range(2):
            await in_doubt(writer, entry, clock)
        store.fault = lambda *_: None
        commits = list({commit.operation: (partition, commit) for partition, commit in unheard}.values())
        await store.store.commit(*commits[late])
        await writer.append([entry])
        found = await bodies(here, writer.head.task_id)
        assert len([body for body in found if isinstance(body, Note)]) == 1


async def test_what_another_has_written_is_not_taken_for_a_commit_in_doubt() -> None:
    """It stands where that one would: what was not applied is written behind it. covers: STATE-4"""
    store, clock = Faulty(MemoryStore()), FakeClock()
    async with process(store, clock=clock) as here:
        writer = await begun(here)
        entry = draft("tool.called", "service", writer.request.request_id, Note("paid"))
        store.fault = lambda *_: "unheard"
        await in_doubt(writer, entry, clock)
        store.fault = lambda *_: None
        await here.changes.patch(here.partition(), writer.head.task_id, ADA.user, metadata={"by": "ada"})
        await writer.append([entry])
        notes = [body.text for body in await bodies(here, writer.head.task_id) if isinstance(body, Note)]
        assert notes == ["changed", "paid"]


async def in_doubt(writer: TaskWriter, entry: Draft, clock: FakeClock) -> None:
    """Appends an entry to a log whose store does not reply, until that is given up."""
    trying = asyncio.ensure_future(writer.append([entry]))
    while not trying.done():
        clock.advance(0.02)
        await asyncio.sleep(0)
    assert isinstance(trying.exception(), PersistenceUnavailable)


async def begun(here: Process) -> TaskWriter:
    """The writer of a new request that no run carries on."""
    message = NewMessage(items=(Item("text", "hi"),))
    writer = await here.service.submission.begin(ADA, message, None)
    assert isinstance(writer, TaskWriter)
    return writer


async def test_a_process_whose_lease_has_lapsed_writes_no_more() -> None:
    """It has not heard yet that it lost the lease: its clock says so. covers: STATE-5"""
    clock = FakeClock()
    async with process(clock=clock, lease_seconds=15) as here:
        writer = await begun(here)
        entry = draft("tool.called", "service", writer.request.request_id, Note("paid"))
        clock.advance(15)
        with pytest.raises(Fenced):
            await writer.append([entry])
        assert entry.body not in await bodies(here, writer.head.task_id)


async def test_who_ran_a_request_before_its_pause_writes_no_more_once_another_process_resumed_it() -> None:
    """The request is the same, its process is not: one writes at a time. covers: STATE-5"""
    store, never = MemoryStore(), asyncio.Event()
    tool, asks = noting([], governed=True), calls(ToolCall("c1", "Shell-delete", "{}"))
    async with (
        process(store, Scripted(asks), tool) as here,
        process(store, Scripted(waits(never)), tool) as there,
    ):
        sent = await here.send()
        run = here.service.run_of(sent.request.request_id)
        assert run is not None
        paused = await here.service.outcome(sent)
        await there.approvals.resume(ADA, paused.request_id, Command(action="approve"), streamed=False)
        entry = draft("tool.called", "service", paused.request_id, Note("paid"))
        with pytest.raises(Fenced):
            await run._writer.append([entry])
        assert entry.body not in await bodies(there, paused.task_id)
