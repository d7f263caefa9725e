"""Lists: one damaged record never fails them, and they show nothing that is gone."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from engine_setup import ADA, EVE, Process, Scripted, calls, damage, fails, noting, process, says

from tealagents.domain.errors import CorruptState
from tealagents.domain.models import Approval, Caller, Head, RequestRecord, Session, ToolCall
from tealagents.domain.ports import Commit, Record, Store, WrappedStore
from tealagents.engine.approvals import Command
from tealagents.state import keys, latest
from tealagents.state.catalog import Damaged
from tealagents.state.history import PAGE_ENDS
from tealagents.stores.encrypted import EncryptedStore
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import ShiftedClock
from tealagents.testing.counting import CountingOptions, CountingStore, StoreOperation


def plain() -> tuple[Store, Store]:
    store = MemoryStore()
    return store, store


def encrypted() -> tuple[Store, Store]:
    inner = MemoryStore()
    return inner, EncryptedStore(inner, "a passphrase that is long enough to be random, 43+")


async def paused(here: Process) -> RequestRecord:
    here.model.answers = [calls(ToolCall("c1", "Shell-delete", "{}"))]
    return await here.ask()


@pytest.mark.parametrize("stores", [plain, encrypted])
async def test_damaged_records_stand_in_lists_as_such(stores: object) -> None:
    """A list shows what it can of each item, whatever store the damage is in. covers: STATE-4"""
    inner, store = stores()  # type: ignore[operator]
    async with process(store, Scripted(), noting([], governed=True)) as here:
        requests = [await paused(here) for _ in range(3)]
        box = keys.inbox("Tester", "mock")
        ((inbox_key, _), *_) = await inner.scan(box, "inbox/")
        bad = requests[1]
        for key in (keys.session(bad.session_id), keys.approval(bad.approvals[0]), keys.task(bad.task_id)):
            await damage(inner, here.partition(), key)
        await damage(inner, box, inbox_key)
        tasks = await here.catalog.tasks(
            here.partition(), session_id=None, status=None, cursor=None, limit=50
        )
        assert [type(item) for item in tasks.items] == [Head, Damaged, Head]
        sessions = await here.catalog.sessions(here.partition(), cursor=None, limit=50)
        assert [type(item) for item in sessions.items] == [Session, Damaged, Session]
        approvals = await here.catalog.approvals(here.partition(), status="pending", cursor=None, limit=50)
        assert [type(item) for item in approvals.items] == [Approval, Damaged, Approval]
        inbox = await here.catalog.inbox("mock", status="pending", cursor=None, limit=50)
        assert [type(item) for item in inbox.items] == [Approval, Damaged, Damaged]
        with pytest.raises(CorruptState):
            await here.tasks.head(here.partition(), bad.task_id)


async def test_decided_pauses_of_a_task_that_is_gone_are_not_listed() -> None:
    """What an expired or deleted task showed for approval is as gone as the task. covers: TASK-3"""
    async with process(None, Scripted(), noting([], governed=True)) as here:
        expired, deleted, kept = [await paused(here) for _ in range(3)]
        here.model.answers = [says("done")]
        for request in (expired, deleted, kept):
            sent = await here.approvals.resume(
                ADA, request.request_id, Command(action="approve"), streamed=False
            )
            await here.service.outcome(sent)
        past = datetime.now(UTC) - timedelta(seconds=1)
        await here.changes.patch(here.partition(), expired.task_id, ADA.user, expires_at=past)
        await here.eraser.delete_task(here.partition(), deleted.task_id)
        for page in (
            await here.catalog.approvals(here.partition(), status=None, cursor=None, limit=50),
            await here.catalog.inbox("mock", status="decided", cursor=None, limit=50),
        ):
            assert [item.request_id for item in page.items if isinstance(item, Approval)] == [kept.request_id]
            assert len(page.items) == 1


@pytest.mark.parametrize("status", ["pending", None])
async def test_a_list_of_pauses_costs_the_same_for_many_as_for_few(status: str | None) -> None:
    """Approvers look every few seconds: their tasks are read at once, and not one after the other."""
    async with (
        CountingStore(CountingOptions()) as store,
        process(store, Scripted(), noting([], governed=True)) as here,
    ):
        for count in (2, 20):
            requests = [await paused(here) for _ in range(count)]
            store.operations.clear()
            for page in (
                await here.catalog.approvals(here.partition(), status=status, cursor=None, limit=count),
                await here.catalog.inbox("mock", status=status, cursor=None, limit=count),
            ):
                listed = [item.request_id for item in page.items if isinstance(item, Approval)]
                assert listed == [request.request_id for request in reversed(requests)]
            assert store.operations == {
                StoreOperation("scan", "user"): 1,
                StoreOperation("scan", "inbox"): 1,
                StoreOperation("read", "user"): 4,
            }


async def test_pauses_not_decided_in_time_are_listed_as_expired() -> None:
    """Their requests end with the look, whatever status it asks for. covers: HITL-1"""
    clock = ShiftedClock()
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    async with process(store, Scripted(), noting([], governed=True), clock=clock, lease_seconds=1e9) as here:
        old = [await paused(here) for _ in range(3)]
        clock.shift = timedelta(seconds=here.tasks.rules.approval_expiry_seconds + 1)
        new = await paused(here)

        async def listed(status: str | None) -> list[tuple[str, str]]:
            page = await here.catalog.approvals(here.partition(), status=status, cursor=None, limit=50)
            return [(item.request_id, item.status) for item in page.items if isinstance(item, Approval)]

        pending = [(new.request_id, "pending")]
        expired = [(each.request_id, "expired") for each in reversed(old)]
        assert await listed("expired") == expired
        assert await listed("pending") == pending
        assert await listed(None) == pending + expired


class Meeting(WrappedStore):
    """Once there is a `meeting`, a commit begins only together with another one."""

    shared = True
    meeting: asyncio.Barrier | None = None

    async def commit(self, partition: str, commit: Commit) -> None:
        if self.meeting:
            await asyncio.wait_for(self.meeting.wait(), 30)
        await self.store.commit(partition, commit)


@pytest.mark.parametrize("owners", [[ADA, ADA], [ADA, EVE]])
async def test_lists_end_what_is_due_on_several_tasks_at_once(owners: list[Caller]) -> None:
    """After a crash a page may have as many unfinished tasks as lines, and each end is a commit."""
    clock = ShiftedClock()
    store = Meeting(MemoryStore(clock=lambda: clock.now().timestamp()))
    async with process(store, Scripted(), noting([], governed=True), clock=clock, lease_seconds=1e9) as here:
        for caller in owners:
            here.model.answers = [calls(ToolCall("c1", "Shell-delete", "{}"))]
            await here.ask(caller=caller)
        clock.shift = timedelta(seconds=here.tasks.rules.approval_expiry_seconds + 1)
        store.meeting = asyncio.Barrier(2)
        page = await here.catalog.inbox("mock", status="expired", cursor=None, limit=50)
        assert [type(item) for item in page.items] == [Approval, Approval]


async def test_requests_whose_end_was_due_are_found_by_how_they_ended() -> None:
    """Without a look at each of them before: a client that asks for what ended has no other way to see it."""
    clock = ShiftedClock()
    store = MemoryStore(clock=lambda: clock.now().timestamp())
    async with process(store, Scripted(), noting([], governed=True), clock=clock, lease_seconds=1e9) as here:
        old = [await paused(here) for _ in range(3)]
        clock.shift = timedelta(seconds=here.tasks.rules.approval_expiry_seconds + 1)
        new = await paused(here)

        async def found(status: str) -> tuple[list[str], int]:
            page = await latest.page(
                here.tasks, here.partition(), lambda record: record.status == status, limit=9
            )
            return [record.request_id for record in page.records], page.total

        ended, total = await found("Canceled")
        assert (set(ended), total) == ({each.request_id for each in old}, 3)
        assert await found("Paused") == ([new.request_id], 1)


async def test_an_inbox_is_read_page_by_page() -> None:
    """Every pause of the tenant comes once, and the last page says that it is the last."""
    async with process(None, Scripted(), noting([], governed=True)) as here:
        requests = [await paused(here) for _ in range(4)]
        found: list[str] = []
        cursor = None
        pages = 0
        while True:
            page = await here.catalog.inbox("mock", status=None, cursor=cursor, limit=2)
            found += [item.request_id for item in page.items if isinstance(item, Approval)]
            cursor, pages = page.cursor, pages + 1
            if cursor is None:
                break
        assert found == [request.request_id for request in reversed(requests)]
        assert pages == 2


async def test_a_look_for_what_waits_reads_no_task_of_a_decided_pause() -> None:
    """Consoles look every few seconds, and most pauses were decided long ago."""
    reads: list[str] = []

    class Noting(MemoryStore):
        async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
            reads.extend(keys)
            return await super().read(partition, keys)

    async with process(Noting(), Scripted(), noting([], governed=True)) as here:
        waiting, *decided = [await paused(here) for _ in range(4)]
        here.model.answers = [says("done")]
        for request in decided:
            sent = await here.approvals.resume(
                ADA, request.request_id, Command(action="approve"), streamed=False
            )
            await here.service.outcome(sent)
        reads.clear()
        page = await here.catalog.inbox("mock", status="pending", cursor=None, limit=50)
        assert [item.request_id for item in page.items if isinstance(item, Approval)] == [waiting.request_id]
        assert {key for key in reads if key.startswith(keys.task(""))} == {keys.task(waiting.task_id)}


async def test_the_last_changed_requests_are_found_without_reading_each_task_alone() -> None:
    """Those of tasks that are gone are left out; a damaged task stands for itself alone."""
    operations = 0

    class Counting(MemoryStore):
        async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
            nonlocal operations
            operations += 1
            return await super().read(partition, keys)

    async with process(Counting(), Scripted()) as here:
        requests = [await here.ask() for _ in range(20)]
        await here.eraser.delete_task(here.partition(), requests[3].task_id)
        await damage(here.store, here.partition(), keys.task(requests[4].task_id))
        operations = 0
        page = await latest.page(here.tasks, here.partition(), lambda record: True, limit=1)
        assert [each.request_id for each in page.records] == [requests[-1].request_id]
        assert page.total == 19
        assert operations < 10


async def test_a_request_that_changes_while_a_page_is_made_is_not_listed_as_one_that_is_wanted() -> None:
    """It is shown as it is now: if it is canceled after the search, it is not among the paused ones."""
    async with process(None, Scripted(), noting([], governed=True)) as here:
        left, waiting = await paused(here), await paused(here)

        class Late(type(here.tasks)):  # type: ignore[misc]
            async def request(self, partition: str, request_id: str, *, reading: bool = False) -> object:
                if reading and request_id == left.request_id:
                    await here.service.cancel(partition, request_id, ADA.user.key)
                return await super().request(partition, request_id, reading=reading)

        here.tasks.__class__ = Late
        page = await latest.page(
            here.tasks, here.partition(), lambda record: record.status == "Paused", limit=9
        )
        assert [each.request_id for each in page.records] == [waiting.request_id]


async def test_a_page_of_checkpoints_costs_no_more_than_the_largest_one() -> None:
    """However many requests have failed since the last that completed: the page is short, with a next one."""
    store = CountingStore(CountingOptions())
    model = Scripted(says("done"), fails)
    async with store, process(store, model) as here:
        first = await here.ask()
        for _ in range(2 * PAGE_ENDS + 10):
            await here.ask(task_id=first.task_id)
        tail = (await here.tasks.head(here.partition(), first.task_id)).value.tail_seq
        found: list[str] = []
        before: int | None = tail + 1
        pages = 0
        while before is not None:
            store.operations.clear()
            page, before = await here.tasks.history.completions(
                here.partition(), first.task_id, before - 1, limit=1
            )
            assert store.operations.total() <= PAGE_ENDS // 2
            found += [end.request_id for end in page]
            pages += 1
        assert found == [first.request_id]
        assert pages == 3
