"""Forks and imports: what they hold, and what a crash in the middle leaves."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from engine_setup import (
    ADA,
    EVE,
    Faulty,
    Process,
    Scripted,
    Watched,
    calls,
    exchange_of,
    fails,
    names,
    nothing,
    noting,
    process,
    says,
    waits,
)
from executed_lines import lines_of
from msgspec import to_builtins

from tealagents.domain import paths
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    NotOwner,
    PersistenceUnavailable,
    Unknown,
)
from tealagents.domain.models import (
    Caller,
    Head,
    Item,
    Json,
    RequestRecord,
    Session,
    ToolCall,
    ToolOutcome,
    User,
)
from tealagents.domain.ports import Commit, Record
from tealagents.engine.approvals import Command
from tealagents.state import commits, document_paths, forking, keys
from tealagents.state.copying import Copy
from tealagents.state.exporting import export
from tealagents.state.forking import fork
from tealagents.state.importing import Import
from tealagents.state.keys import last_segment
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.records import RecordStore, Stored
from tealagents.state.session_deletion import SessionDeletion
from tealagents.stores.memory import MemoryStore
from tealagents.testing.waits import eventually


class Impatient(SystemClock):
    """Its seconds pass when a caller waits for them."""

    def __init__(self) -> None:
        self._passed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._passed

    async def sleep(self, seconds: float) -> None:
        self._passed += seconds


async def test_a_fork_remembers_the_tools_of_its_own_past_only() -> None:
    """What ran after the point of the fork is no part of it; what ran before it is. covers: THREAD-6"""
    model = Scripted(says("one"), calls(ToolCall("c1", "Shell-look", "{}")), fails, says("fine"))
    async with process(None, model, noting([], "Shell-look")) as here:
        task_id = (await here.ask("one")).task_id
        head = (await here.tasks.head(here.partition(), task_id)).value
        said, _ = await here.tasks.history.messages(here.partition(), task_id, head.path, limit=10)
        assert (await here.ask("two", task_id)).status == "Failed"
        await here.ask("three", task_id)
        early = await fork(here.tasks, here.partition(), task_id, ADA.user, message_id=said[-1].message_id)
        assert early.effects == ()
        late = await fork(here.tasks, here.partition(), task_id, ADA.user)
        assert [tool.call_id for tool in late.effects[0].tools] == ["c1"]


async def test_a_fork_expires_when_its_source_does() -> None:
    """What was to be gone by then is not kept by a copy. covers: THREAD-6"""
    async with process() as here:
        request = await here.ask()
        soon = here.records.clock.now() + timedelta(hours=1)
        where = here.partition(), request.task_id
        await here.changes.patch(*where, ADA.user, expires_at=soon)
        forked = await fork(here.tasks, *where, ADA.user)
        assert (await here.tasks.head(here.partition(), forked.task_id)).value.expires_at == soon


async def test_the_requests_of_a_fork_have_neither_the_pauses_nor_the_keys_of_their_source() -> None:
    """Those are decided, and repeated, where they belong. covers: THREAD-6"""
    model = Scripted(calls(ToolCall("c1", "Shell-look", "{}")), says("done"))
    async with process(None, model, noting([], "Shell-look", governed=True)) as here:
        paused = await here.ask(key=Key("k" * 64, "d" * 64))
        command = Command(action="approve")
        sent = await here.approvals.resume(ADA, paused.request_id, command, streamed=False)
        assert (await here.service.outcome(sent)).approvals
        forked = await fork(here.tasks, here.partition(), paused.task_id, ADA.user)
        copied = await here.request(forked.checkpoint_id or "")
        assert (copied.approvals, copied.pause, copied.idempotency) == ((), None, None)


async def test_an_idempotency_key_neither_leaves_with_a_task_nor_comes_with_one() -> None:
    """It is no task data; a document may name any. covers: THREAD-7"""
    key = Key("k" * 64, "d" * 64)
    async with process() as here:
        request = await here.ask(key=key)
        document = to_builtins(await export(here.tasks, here.partition(), request.task_id))
        assert [each.get("idempotency") for each in document["requests"]] == [None]
        document["requests"][0]["idempotency"] = [key.name, key.digest]
        await here.eraser.delete_task(here.partition(), request.task_id)
        await here.importer.import_(ADA, document)
        assert (await here.request(request.request_id)).idempotency is None


async def test_a_fork_that_is_rolled_back_forgets_the_tools_that_its_source_forgets() -> None:
    """Those of requests behind the checkpoint; in its import as well. covers: THREAD-6, THREAD-7"""
    model = Scripted(says("one"), calls(ToolCall("c1", "Shell-look", "{}")), fails, says("three"), says("on"))
    async with process(None, model, noting([], "Shell-look")) as here:
        first = await here.ask("one")
        await here.ask("two", first.task_id)
        await here.ask("three", first.task_id)
        forked = await fork(here.tasks, here.partition(), first.task_id, ADA.user)
        document = await export(here.tasks, here.partition(), forked.task_id)

        async def remembered(head: Head) -> list[list[str]]:
            """The calls that are known at the end, and at the first checkpoint."""
            last = await here.request(head.checkpoint_id or "")
            where = here.partition(), head.task_id
            back = await here.changes.rollback(*where, ADA.user, last.parent or "")
            return [[tool.call_id for tool in paths.effects_on_path(each)] for each in (head, back)]

        source = (await here.tasks.head(here.partition(), first.task_id)).value
        assert await remembered(source) == [["c1"], []]
        assert await remembered(forked) == [["c1"], []]
        await here.eraser.delete_task(here.partition(), forked.task_id)
        assert await remembered(await here.importer.import_(ADA, document)) == [["c1"], []]


async def test_a_branch_behind_a_failed_request_knows_the_tools_that_its_task_knows() -> None:
    """Those of a branch that was rolled back before are no part of its history. covers: THREAD-6, TASK-3"""
    model = Scripted(
        *(says("one"), says("two"), calls(ToolCall("c1", "Shell-look", "{}")), fails),
        *(calls(ToolCall("c2", "Shell-look", "{}")), fails, fails),
    )
    async with process(None, model, noting([], "Shell-look")) as here:
        first = await here.ask("one")
        where = here.partition(), first.task_id
        for said in ("two", "three"):
            await here.ask(said, first.task_id)
        await here.changes.rollback(*where, ADA.user, first.request_id)
        tried, failed = await here.ask("four", first.task_id), await here.ask("five", first.task_id)
        assert (tried.status, failed.status) == ("Failed", "Failed")
        branch = await fork(here.tasks, *where, ADA.user, failed=failed)
        for head in ((await here.tasks.head(*where)).value, branch):
            assert [tool.call_id for tool in paths.effects_on_path(head)] == ["c2"]
        await here.changes.rollback(*where, ADA.user, first.request_id)
        branch = await fork(here.tasks, *where, ADA.user, failed=failed)
        assert "c2" in [tool.call_id for tool in paths.effects_on_path(branch)]


async def test_a_fork_within_a_request_that_waits_for_approval_waits_for_nothing() -> None:
    """It has ended with the message, and its export can be imported. covers: THREAD-6, TASK-5"""
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")))
    async with process(None, model, noting([], governed=True)) as here:
        paused = await here.ask("delete")
        assert paused.status == "Paused"
        where = here.partition(), paused.task_id
        path = paths.current_path((await here.tasks.head(*where)).value)
        said, _ = await here.tasks.history.messages(*where, path, limit=10)
        forked = await fork(here.tasks, *where, ADA.user, message_id=said[0].message_id)
        copied = await here.request(forked.checkpoint_id or "")
        assert (copied.status, copied.pause) == ("Completed", None)
        document = await export(here.tasks, here.partition(), forked.task_id)
        await here.eraser.delete_task(here.partition(), forked.task_id)
        assert (await here.importer.import_(ADA, document)).status == "Completed"


async def test_a_fork_takes_time_in_proportion_to_its_history() -> None:
    """A request of twice the calls and messages costs twice as much, not four times. covers: THREAD-6"""
    async with process() as here:
        request = await here.ask("one")
        document = to_builtins(await export(here.tasks, here.partition(), request.task_id))
        await here.eraser.delete_task(here.partition(), request.task_id)
        lines = [await lines_of_a_fork(here, crowded(document, n)) for n in (100, 200)]
        assert lines[1] < 2.5 * lines[0]


def crowded(document: Json, n: int) -> Json:
    """The document with `n` calls and `n` messages more in its request."""
    first, *rest = document["entries"]
    request_id = first["request_id"]
    wanted = [{"id": f"c{i}", "tool": "", "arguments": ""} for i in range(n)]
    intent = {"type": "intent", "request_id": request_id, "calls": wanted}
    message = first["body"]["message"]
    bodies = [{"type": "message", "message": {**message, "message_id": str(uuid4())}} for _ in range(n)]
    added = [{**first, "body": body} for body in (intent, *bodies)]
    entries = [{**each, "seq": seq} for seq, each in enumerate((first, *added, *rest), 1)]
    tail, (request,) = len(entries), document["requests"]
    return {
        **document,
        "task": {**document["task"], "tail_seq": tail, "path": [[1, tail]]},
        "requests": [{**request, "last_seq": tail, "path": [[1, tail]]}],
        "entries": entries,
    }


async def lines_of_a_fork(here: Process, document: Json) -> int:
    """How many lines of the module run while the document's task is forked."""
    task_id = (await here.importer.import_(ADA, document)).task_id
    with lines_of(forking) as lines:
        await fork(here.tasks, here.partition(), task_id, ADA.user)
    await here.eraser.delete_task(here.partition(), task_id)
    return lines.executed


async def test_a_point_in_a_round_lies_where_the_messages_show_it() -> None:
    """Results are shown in the order of their calls, but that of an approved one is last. covers: THREAD-6"""
    wanted = [ToolCall("c1", "Shell-delete", "{}"), ToolCall("c2", "Shell-look", "{}")]
    tools = noting([], governed=True), noting([], "Shell-look")
    async with process(None, Scripted(calls(*wanted), says("done")), *tools) as here:
        paused = await here.ask("look, and delete")
        command = Command(action="approve")
        sent = await here.approvals.resume(ADA, paused.request_id, command, streamed=False)
        assert (await here.service.outcome(sent)).status == "Completed"
        head = (await here.tasks.head(here.partition(), paused.task_id)).value
        history = here.tasks.history
        shown, _ = await history.messages(here.partition(), head.task_id, head.path, limit=10)
        assert [message.tool_call_id for message in shown if message.role == "tool"] == ["c1", "c2"]

        async def forked(at: int) -> Head:
            point = shown[at].message_id
            return await fork(here.tasks, here.partition(), head.task_id, ADA.user, message_id=point)

        with pytest.raises(InvalidRequest, match="between a tool call and its result"):
            await forked(2)
        copy = await forked(3)
        copied, _ = await history.messages(here.partition(), copy.task_id, copy.path, limit=10)
        assert [message.text for message in copied] == [message.text for message in shown[:4]]


async def test_the_requests_of_a_fork_continue_each_other() -> None:
    """A copied request names the copy it continues, not the original. covers: THREAD-6"""
    async with process() as here:
        task_id = (await here.ask("one")).task_id
        await here.ask("two", task_id)
        forked = await fork(here.tasks, here.partition(), task_id, ADA.user)
        last = await here.request(forked.checkpoint_id or "")
        first = await here.request(last.parent or "")
        assert (first.task_id, first.parent) == (forked.task_id, None)


@pytest.mark.parametrize("lost", [False, True])
async def test_an_import_that_broke_off_can_be_made_again(lost: bool) -> None:
    """Wherever it broke off, the same document is imported whole, and nothing is left over.

    covers: STATE-2, TASK-5
    """
    store = Faulty(MemoryStore())
    async with process(store) as here:
        task_id = (await here.ask("one")).task_id
        for n in range(5):
            await here.ask(f"more {n}", task_id)
        document = await export(here.tasks, here.partition(), task_id)
        await here.eraser.delete_task(here.partition(), task_id)
        for at in range(1, 20):
            seen = 0

            def strike(partition: str, commit: Commit) -> str | None:
                nonlocal seen
                seen += 1
                return "away" if seen >= at else None  # noqa: B023 - used within its turn of the loop only

            store.fault = strike
            try:
                await here.importer.import_(ADA, document)
            except PersistenceUnavailable:
                store.fault = lambda _, __: None
            else:
                break
            if lost:  # another process, after this one was lost
                async with process(store) as other:
                    await here.lease._retire()
                    await other.importer.import_(ADA, document)
                await here.lease._renew()
            else:
                await here.importer.import_(ADA, document)
            assert await store.scan(here.partition(), "importing/") == []
            assert (await here.ask("again", task_id)).status == "Completed"
            with pytest.raises(AlreadyExists):
                await here.importer.import_(ADA, document)
            await here.eraser.delete_task(here.partition(), task_id)
        assert at > 3


@pytest.mark.parametrize("session", [False, True])
async def test_a_fork_whose_source_is_deleted_meanwhile_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, session: bool
) -> None:
    """It is not found, which is no damage, and of what was copied nothing stays. covers: STATE-4"""
    written = 0

    async def read(records: RecordStore, partition: str, task_id: str, name: str) -> Stored[RequestRecord]:
        nonlocal written
        written += 1
        if written == 6:
            if session:
                await here.eraser.delete_session(here.partition(), first.session_id)
            else:
                await here.eraser.delete_task(here.partition(), first.task_id)
        return await request(records, partition, task_id, name)

    request = RecordStore.request
    async with process() as here:
        first = await here.ask("one")
        for n in range(8):
            await here.ask(f"more {n}", first.task_id)
        monkeypatch.setattr(RecordStore, "request", read)
        with pytest.raises(NotFound):
            await fork(here.tasks, here.partition(), first.task_id, ADA.user)
        left = await names(here.store, here.partition())
        assert [name for name in left if name.startswith(("log/", "request/", "task/"))] == []


async def test_a_fork_of_which_is_not_known_whether_it_ended_stays_whole() -> None:
    """What may be visible is not cleared away."""
    store = Faulty(MemoryStore())

    def lost(_: str, commit: Commit) -> str | None:
        store.unreadable = any(key.startswith("tasks/") for key in commit.put)
        return "lost" if store.unreadable else None

    async with process(store) as here:
        first = await here.ask("one")
        clock, here.records.clock = here.records.clock, Impatient()
        store.fault = lost
        with pytest.raises(PersistenceUnavailable):
            await fork(here.tasks, here.partition(), first.task_id, ADA.user)
        store.fault, store.unreadable, here.records.clock = (lambda _, __: None), False, clock
        page = await here.catalog.tasks(here.partition(), session_id=None, status=None, cursor=None, limit=9)
        forks = [item for item in page.items if isinstance(item, Head) and item.task_id != first.task_id]
        assert (await here.ask("on", forks[0].task_id)).status == "Completed"


class Unheard(Faulty):
    """Loses the reply to the commit that makes a fork visible, once other clients have seen the fork."""

    seen: Callable[[str], Awaitable[None]]

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, commit)
        for name in commit.put:
            if name.startswith("tasks/"):
                await self.seen(last_segment(name))
                raise Unknown


@pytest.mark.parametrize("other_client", ["continues it", "deletes it"])
async def test_a_fork_whose_reply_was_lost_is_what_others_have_made_of_it(other_client: str) -> None:
    """Another client may see it first: what it has read stays true. covers: STATE-2, THREAD-6"""
    store, made = Unheard(MemoryStore()), list[str]()
    async with process(store) as here, process(store.store) as other:
        first = await other.ask("one")

        async def seen(task_id: str) -> None:
            made.append(task_id)
            if other_client == "deletes it":
                await other.eraser.delete_task(other.partition(), task_id)
            else:
                await other.ask("on", task_id)

        store.seen = seen
        if other_client == "deletes it":
            with pytest.raises(NotFound):
                await fork(here.tasks, here.partition(), first.task_id, ADA.user)
            assert [name for name in await names(store, here.partition()) if made[0] in name] == []
        else:
            forked = await fork(here.tasks, here.partition(), first.task_id, ADA.user)
            assert (await other.ask("again", forked.task_id)).status == "Completed"
        assert len(made) == 1


async def test_a_fork_is_made_though_its_session_was_about_to_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deletion that is refused, because a task runs, changes nothing for others. covers: THREAD-6"""
    finish = Copy.finish

    async def late(copy: Copy, head: Head, session: Stored[Session] | None) -> Head:
        assert session is not None
        monkeypatch.undo()
        deletion = SessionDeletion(here.tasks, here.partition(), session)
        await deletion.mark(if_empty=True)
        assert not await deletion.erase_if_empty()
        return await finish(copy, head, session)

    async with process() as here:
        first = await here.ask("one")
        monkeypatch.setattr(Copy, "finish", late)
        forked = await fork(here.tasks, here.partition(), first.task_id, ADA.user)
        assert (await here.ask("on", forked.task_id)).status == "Completed"


class InDoubt(Faulty):
    """Does not say what became of a commit with an idempotency key, while `outcome` says what it was."""

    outcome = ""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.fault = lambda _, commit: self.outcome if any(map(of_a_key, commit.put)) else None

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        if self.outcome and any(key.startswith("log/") for key in keys):
            raise PersistenceUnavailable("The store is away.")
        return await super().read(partition, keys)


def of_a_key(name: str) -> bool:
    return name.startswith("key/")


@pytest.mark.parametrize("outcome", ["lost", "unheard"])
async def test_a_branch_in_doubt_is_kept_only_where_its_message_is_stored(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the error names is there, and its key leads to it; else nothing is left. covers: STATE-4"""
    monkeypatch.setattr(commits, "RESOLVE_SECONDS", 0)
    store, message, key = InDoubt(MemoryStore()), NewMessage(items=(Item("text", "three"),)), Key("k", "d")
    async with process(store) as here:
        exchange = exchange_of(here)
        first = await here.ask("one")
        await here.ask("two", first.task_id)
        before = await names(store, here.partition())

        async def branch() -> RequestRecord:
            sent = await exchange.branch(ADA, first, message, key, streamed=False)
            return await exchange.outcome(sent)

        store.outcome = outcome
        with pytest.raises(PersistenceUnavailable) as doubt:
            await branch()
        store.outcome = ""
        if outcome == "lost":
            again = await branch()
            assert again.ids == doubt.value.ids
            assert again.error is not None
            assert again.error.code == "interrupted"
        else:
            assert await names(store, here.partition()) == before
            assert (await branch()).status == "Completed"


async def exported_and_deleted(here: Process) -> tuple[RequestRecord, Json, Json]:
    """The last request of a task, its document, and the same document in another user's session."""
    hers = await here.ask("mine", caller=EVE)
    request = await here.ask("one")
    document = await export(here.tasks, here.partition(), request.task_id)
    await here.eraser.delete_task(here.partition(), request.task_id)
    return request, document, json.loads(json.dumps(document).replace(request.session_id, hers.session_id))


async def test_an_import_that_failed_can_be_made_by_another_process() -> None:
    """What is wrong with it is reported, and nothing of it is in the way of the right one. covers: TASK-5"""
    store = MemoryStore()
    async with process(store) as here, process(store) as other:
        request, document, wrong = await exported_and_deleted(here)
        with pytest.raises(NotOwner):
            await here.importer.import_(ADA, wrong)
        assert await store.scan(here.partition(), "importing/") == []
        assert (await other.importer.import_(ADA, document)).task_id == request.task_id


@pytest.mark.parametrize("refused", ["request that exists", "session of another"])
async def test_a_refused_import_leaves_no_trace(refused: str) -> None:
    """Whose the ids of its document are is written down only with the task. covers: TASK-5"""
    store = MemoryStore()
    async with process(store) as here:
        request, document, wrong = await exported_and_deleted(here)
        kept = await here.ask("two")
        moved = json.loads(
            json.dumps(wrong if refused == "session of another" else document)
            .replace(request.task_id, str(uuid4()))
            .replace(
                request.request_id, kept.request_id if refused == "request that exists" else str(uuid4())
            )
        )
        with pytest.raises((AlreadyExists, NotOwner)):
            await here.importer.import_(ADA, moved)
        locators = {
            name
            for digit in "0123456789abcdef"
            for name in await names(store, keys.locators(here.records.agent, digit))
        }
        assert locators == set()
        assert await names(store, here.partition(), "importing/") == []


async def test_an_import_of_requests_that_another_has_imported_leaves_those_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two documents name one request: the task that was quicker keeps it, and its locator. covers: TASK-5"""
    store = MemoryStore()
    async with process(store) as here:
        request, document, _ = await exported_and_deleted(here)
        request_id, one, two = str(uuid4()), str(uuid4()), str(uuid4())

        def moved(task_id: str) -> Json:
            text = json.dumps(document).replace(request.task_id, task_id)
            renamed: Json = json.loads(text.replace(request.request_id, request_id))
            return renamed

        take_guard = Import._take_guard

        async def late(second: Import) -> None:
            monkeypatch.undo()
            await here.importer.import_(ADA, moved(one))
            await take_guard(second)

        monkeypatch.setattr(Import, "_take_guard", late)
        with pytest.raises(AlreadyExists):
            await here.importer.import_(ADA, moved(two))
        assert (await here.request(request_id)).task_id == one
        locators = keys.locators(here.records.agent, request_id)
        assert f"locator/{request_id}" in await names(store, locators)


async def test_an_import_of_another_service_that_was_cut_off_can_be_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it left behind is the user's own, wherever its ids were made. covers: TASK-5"""
    async with process() as here:
        request, document, _ = await exported_and_deleted(here)
        text = json.dumps(document).replace(request.task_id, str(uuid4()))
        moved = json.loads(text.replace(request.request_id, str(uuid4())))

        async def cut_off(copy: Copy, *_: object) -> Head:
            await copy.flush()
            raise asyncio.CancelledError

        monkeypatch.setattr(Copy, "finish", cut_off)
        with pytest.raises(asyncio.CancelledError):
            await here.importer.import_(ADA, moved)
        monkeypatch.undo()
        assert (await here.importer.import_(ADA, moved)).task_id == moved["task"]["task_id"]


async def test_a_task_that_is_being_imported_is_begun_by_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is taken, also where the import was cut off: nothing is damaged. covers: TASK-5, STATE-4"""
    reached, go_on, finish = asyncio.Event(), asyncio.Event(), Copy.finish

    async def late(copy: Copy, head: Head, session: Stored[Session] | None) -> Head:
        reached.set()
        await go_on.wait()
        return await finish(copy, head, session)

    async with process() as here:
        request, document, _ = await exported_and_deleted(here)
        monkeypatch.setattr(Copy, "finish", late)
        for cut_off in (True, False):
            reached.clear()
            importing = asyncio.create_task(here.importer.import_(ADA, document))
            await reached.wait()
            if cut_off:
                importing.cancel()
                await asyncio.wait([importing])
            with pytest.raises(AlreadyExists, match="import"):
                await here.ask("hello", new_task_id=request.task_id)
        go_on.set()
        await importing
        assert (await here.ask("on", request.task_id)).status == "Completed"


async def test_of_an_import_and_a_message_that_begin_one_task_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the message is when the import takes the id. covers: TASK-5"""
    at = 1
    while await imported_while_a_message_begins(at, monkeypatch):
        at += 1
    assert at > 3


async def imported_while_a_message_begins(at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """It takes the id, and nothing else yet, at await `at` of the message. False where that has fewer."""
    store = Watched(MemoryStore())
    async with process(store) as here, process(store.store) as other:
        request, document, _ = await exported_and_deleted(other)
        taken, go_on = asyncio.Event(), asyncio.Event()
        imports: list[asyncio.Task[Head]] = []
        write = Import._write

        async def late(begun: Import) -> Head:
            taken.set()
            await go_on.wait()
            return await write(begun)

        async def start(point: int) -> None:
            if point == at:
                imports.append(asyncio.create_task(other.importer.import_(ADA, document)))
                imports[0].add_done_callback(lambda _: taken.set())
                await taken.wait()

        monkeypatch.setattr(Import, "_write", late)
        store.points, store.there = 0, start
        message = await asyncio.gather(here.ask(new_task_id=request.task_id), return_exceptions=True)
        store.there = nothing
        go_on.set()
        outcomes = [*message, *await asyncio.gather(*imports, return_exceptions=True)]
        monkeypatch.undo()
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert [type(refusal) for refusal in refused] == [AlreadyExists] * len(imports)
        return bool(imports)


async def test_an_import_that_came_too_late_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one of the same document was quicker, between two looks. covers: TASK-5"""
    store = MemoryStore()
    async with process(store) as here, process(store) as other:
        request = await here.ask("one")
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        take_guard = Import._take_guard

        async def late(second: Import) -> None:
            monkeypatch.undo()
            await other.importer.import_(ADA, document)
            await take_guard(second)

        monkeypatch.setattr(Import, "_take_guard", late)
        with pytest.raises(AlreadyExists):
            await here.importer.import_(ADA, document)
        assert await store.scan(here.partition(), "importing/") == []
        assert await export(other.tasks, here.partition(), request.task_id)
        assert (await other.ask("on", request.task_id)).status == "Completed"


async def test_of_two_processes_that_import_one_document_the_first_to_take_the_task_makes_it() -> None:
    """However their steps fall, the other is refused, and there is one task, whole. covers: TASK-5"""
    at, until, stood = 1, 1, 0
    while (reached := await imported_twice(at, until)) is not None:
        at, until, stood = (at, until + 1, stood + 1) if reached else (at + 1, 1, stood)
    assert at > 8
    assert stood > 3 * at


async def imported_twice(at: int, until: int) -> bool | None:
    """One import waits at its await `at` until another has come to its await `until`, and then ends first.

    False where the other has fewer awaits, and None where the first has.
    """
    store = Faulty(MemoryStore())
    one, two = Watched(store), Watched(store)
    stands, ended, others = asyncio.Event(), asyncio.Event(), list[asyncio.Task[Head]]()
    async with process(one) as here, process(two) as other:
        request, document, _ = await exported_and_deleted(here)

        async def begin(point: int) -> None:
            if point == at:
                others.append(asyncio.create_task(other.importer.import_(ADA, document)))
                others[0].add_done_callback(lambda _: stands.set())
                await stands.wait()

        async def stand(point: int) -> None:
            if point == until:
                stands.set()
                await ended.wait()

        store.commits.clear()
        one.points, one.there, two.points, two.there = 0, begin, 0, stand
        first = await asyncio.gather(here.importer.import_(ADA, document), return_exceptions=True)
        one.there = nothing
        ended.set()
        outcomes = [*first, *await asyncio.gather(*others, return_exceptions=True)]
        two.there = nothing
        if not others:
            return None
        guard = keys.importing(request.task_id)
        taken = next(commit.put[guard].value for _, commit in store.commits if guard in commit.put)
        made, refused = outcomes if here.lease.worker_id.encode() in taken else reversed(outcomes)
        assert made == (await here.tasks.head(here.partition(), request.task_id)).value, (at, until)
        assert isinstance(refused, AlreadyExists)
        assert (await here.ask("on", request.task_id)).status == "Completed"
        assert await names(store, here.partition(), "importing/") == []
        assert await names(store, keys.erasing("Tester")) == []
        return two.points >= until


async def test_of_two_imports_of_one_document_in_one_process_the_second_is_refused() -> None:
    """At every step of the first, which it does not disturb. covers: TASK-5"""
    at = 1
    while await imported_again(at):
        at += 1
    assert at > 8


async def imported_again(at: int) -> bool:
    """The same document comes again at await `at` of its import. False where that has fewer."""
    store, refused = Watched(MemoryStore()), False
    async with process(store) as here:
        request, document, _ = await exported_and_deleted(here)

        async def again(point: int) -> None:
            nonlocal refused
            if point == at:
                refused = True
                with pytest.raises(AlreadyExists):
                    await here.importer.import_(ADA, document)

        store.points, store.there = 0, again
        await here.importer.import_(ADA, document)
        store.there = nothing
        assert (await here.ask("on", request.task_id)).status == "Completed"
    return refused


async def test_tasks_of_one_new_session_can_be_imported_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that makes the session changes nothing for the other. covers: TASK-5"""
    async with process() as here:
        first = await here.ask("one")
        second = await here.ask("two", session_id=first.session_id)
        tasks = [first.task_id, second.task_id]
        documents = [await export(here.tasks, here.partition(), each) for each in tasks]
        await here.eraser.delete_session(here.partition(), first.session_id)
        finish = Copy.finish

        async def late(copy: Copy, head: Head, session: Stored[Session] | None) -> Head:
            monkeypatch.undo()
            await here.importer.import_(ADA, documents[1])
            return await finish(copy, head, session)

        monkeypatch.setattr(Copy, "finish", late)
        await here.importer.import_(ADA, documents[0])
        for each in tasks:
            assert (await here.ask("on", each)).status == "Completed"


async def test_an_import_into_a_session_that_is_deleted_meanwhile_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a fork does; that a task exists would be no help. covers: TASK-5"""
    async with process() as here:
        request, document, _ = await exported_and_deleted(here)
        finish = Copy.finish

        async def late(copy: Copy, head: Head, session: Stored[Session] | None) -> Head:
            await here.eraser.delete_session(here.partition(), request.session_id)
            return await finish(copy, head, session)

        monkeypatch.setattr(Copy, "finish", late)
        with pytest.raises(NotFound, match=r"session .* was deleted"):
            await here.importer.import_(ADA, document)
        assert await here.store.scan(here.partition(), "importing/") == []


async def test_an_import_over_a_task_that_has_expired_names_who_can_erase_it() -> None:
    """Its owner cannot: to them it is not there. covers: TASK-5"""
    async with process() as here:
        request = await here.ask("one")
        document = await export(here.tasks, here.partition(), request.task_id)
        with pytest.raises(AlreadyExists, match="Delete it, and import it again"):
            await here.importer.import_(ADA, document)
        past = here.records.clock.now()
        await here.changes.patch(here.partition(), request.task_id, ADA.user, expires_at=past)
        with pytest.raises(AlreadyExists, match=r"has expired: .* `tealagents state prune`"):
            await here.importer.import_(ADA, document)


async def test_a_task_that_never_expires_in_the_words_of_some_clients_can_be_imported() -> None:
    """They say the end of the year 9999. covers: TASK-5"""
    never = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    async with process() as here:
        request = await here.ask("one")
        await here.changes.patch(here.partition(), request.task_id, ADA.user, expires_at=never)
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert (await here.importer.import_(ADA, document)).expires_at == never


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59"])
async def test_an_expiry_outside_the_calendar_is_refused(at: str) -> None:
    """In UTC, in which it would be shown. covers: TASK-5"""
    async with process() as here:
        _, document, _ = await exported_and_deleted(here)
        document["task"]["expires_at"] = at
        with pytest.raises(InvalidRequest, match=r"task\.expires_at: .*lie in 1970 to 9999"):
            await here.importer.import_(ADA, document)


async def test_a_document_that_has_expired_is_refused() -> None:
    """As a task no one could reach it, nor import it again. covers: TASK-5"""
    async with process() as here:
        request, document, _ = await exported_and_deleted(here)
        document["task"]["expires_at"] = here.records.clock.now() - timedelta(seconds=1)
        with pytest.raises(InvalidRequest, match=r"task\.expires_at: has passed"):
            await here.importer.import_(ADA, document)
        document["task"]["expires_at"] = None
        assert (await here.importer.import_(ADA, document)).task_id == request.task_id


async def test_a_failed_import_that_wakes_up_leaves_the_one_alone_that_was_made_by_then() -> None:
    """Its process was taken for dead while it removed what it had written. covers: TASK-5, STATE-2"""
    at = 1
    while await imported_while_a_failed_import_stands_still(at):
        at += 1
    assert at > 10


async def imported_while_a_failed_import_stands_still(at: int) -> bool:
    """It stands still at its await `at`. False where it has fewer."""
    store = MemoryStore()
    watched = Watched(store)
    async with process(watched) as here, process(store) as other:
        request, document, wrong = await exported_and_deleted(other)
        made: list[Head] = []

        async def stand_still(point: int) -> None:
            if point == at:
                await here.lease._retire()
                made.append(await other.importer.import_(ADA, document))

        watched.points, watched.there = 0, stand_still
        with pytest.raises((NotOwner, AlreadyExists)):
            await here.importer.import_(ADA, wrong)
        if made:  # a task whose log has a hole takes no message
            assert (await other.ask("on", request.task_id)).status == "Completed"
        return bool(made)


async def test_tools_of_a_forks_past_are_remembered_by_its_import() -> None:
    """A side effect is never forgotten, wherever the task has been. covers: TASK-3"""
    model = Scripted(says("one"), calls(ToolCall("c1", "Shell-look", "{}")), fails, says("fine"), says("on"))
    async with process(None, model, noting([], "Shell-look")) as here:
        task_id = (await here.ask("one")).task_id
        await here.ask("two", task_id)
        await here.ask("three", task_id)
        forked = await fork(here.tasks, here.partition(), task_id, ADA.user)
        for _ in range(2):
            document = await export(here.tasks, here.partition(), forked.task_id)
            await here.eraser.delete_task(here.partition(), forked.task_id)
            imported = await here.importer.import_(ADA, document)
            assert [tool.call_id for tool in paths.effects_on_path(imported)] == ["c1"]


async def test_a_document_brings_no_request_that_its_log_does_not_name() -> None:
    """No one would find it to erase it with its task. covers: TASK-5"""
    async with process() as here:
        _, document, _ = await exported_and_deleted(here)
        stray = {**document["requests"][0], "request_id": str(uuid4())}
        document["requests"] = [*document["requests"], stray]
        with pytest.raises(InvalidRequest, match=r"requests\.1: is not named by any entry"):
            await here.importer.import_(ADA, document)


async def test_what_is_too_large_for_a_head_is_refused() -> None:
    """Before anything is written. covers: MODEL-3"""
    async with process() as here:
        request = await here.ask("one")
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        document["task"]["origin"] = {"task_id": "x" * 2_000_000}
        with pytest.raises(InvalidRequest, match=r"task\.origin"):
            await here.importer.import_(ADA, document)
        assert not [name for name in await names(here.store, here.partition()) if "import" in name]


def noted(document: Json, path: list[list[int]], entries: int = 0) -> Json:
    """The document with as many entries more, and another path."""
    known, note = document["entries"], {"type": "note", "text": "", "data": {}}
    more = {**known[-1], "request_id": None, "body": note}
    document["entries"] = [*known, *({**more, "seq": len(known) + n} for n in range(1, entries + 1))]
    document["task"]["tail_seq"] = len(known) + entries
    document["task"]["path"] = path
    return document


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ([[1, 2], [3, 4]], "a gap between two pairs"),
        ([[n, n] for n in range(1, 40_000, 2)], "larger than 196608"),
    ],
)
async def test_a_path_of_more_pairs_than_it_needs_is_refused(path: list[list[int]], reason: str) -> None:
    """It would be read and written with every message. covers: MODEL-3"""
    async with process() as here:
        request = await here.ask("one")
        document = to_builtins(await export(here.tasks, here.partition(), request.task_id))
        await here.eraser.delete_task(here.partition(), request.task_id)
        with pytest.raises(InvalidRequest, match=rf"task\.path: .*{reason}"):
            await here.importer.import_(ADA, noted(document, path, 40_000))


class Counting(Faulty):
    """Counts how often a log is read from, and how many batches."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.scans = self.batches = 0

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        found = await super().scan(partition, prefix, **page)
        if prefix.startswith("log/"):
            self.scans += 1
            self.batches += len(found)
        return found


async def test_a_path_in_many_pieces_costs_no_more_reads_than_one_in_few() -> None:
    """What is read for one piece is not read again for the next."""
    store, scans = Counting(), []
    async with store, process(store) as here:
        for pieces in ([[6, 1005]], [[n, n] for n in range(6, 1006, 2)]):
            request = await here.ask("one")
            document = to_builtins(await export(here.tasks, here.partition(), request.task_id))
            await here.eraser.delete_task(here.partition(), request.task_id)
            head = await here.importer.import_(ADA, noted(document, [[1, 4], *pieces], 1_500))
            store.scans = 0
            messages, _ = await here.tasks.history.messages(
                here.partition(), head.task_id, head.path, limit=50
            )
            said = [
                each async for each in here.tasks.history.rounds(here.partition(), head.task_id, head.path)
            ]
            assert (len(messages), len(said)) == (2, 1)
            scans.append(store.scans)
    assert scans[0] == scans[1]


@pytest.mark.parametrize("place", [0, 15, 29])
async def test_to_read_a_request_takes_no_more_batches_than_it_has_entries(place: int) -> None:
    """However long the task goes on behind it."""
    store = Counting()
    async with store, process(store) as here:
        requests = [await here.ask()]
        requests += [await here.ask("more", requests[0].task_id) for _ in range(29)]
        store.scans = store.batches = 0
        said = await here.tasks.history.messages_of(here.partition(), requests[place], 1_000_000)
        assert [message.role for message in said] == ["user", "assistant"]
        assert store.scans == 2
        assert store.batches <= requests[place].last_seq - requests[place].first_seq + 1


async def test_an_import_continues_no_conversation_at_the_model_service() -> None:
    """A remote conversation that a document names is not believed: it might be another's. covers: AUTH-3"""
    async with process() as here:
        request = await here.ask()
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        document["task"]["remote_id"] = "resp_of_somebody_else"
        document["requests"][0]["remote_id"] = "resp_of_somebody_else"
        head = await here.importer.import_(ADA, document)
        assert "resp_of_somebody_else" not in str(to_builtins(head))
        stored = await here.records.get(here.partition(), keys.request(request.request_id), RequestRecord)
        assert stored is not None
        assert stored.value.remote_id is None


@pytest.mark.parametrize("image", ["data:image/png;base64,=", "https://example.com/cat.png"])
async def test_an_image_that_no_message_could_bring_is_brought_by_no_document(image: str) -> None:
    """The model would be sent it with every later turn. covers: TASK-5"""
    async with process() as here:
        _, document, _ = await exported_and_deleted(here)
        message = next(e["body"]["message"] for e in document["entries"] if "message" in e["body"])
        message["items"] = [{"content_type": "image", "content": image}]
        with pytest.raises(InvalidRequest, match=r"message\.items: an image (is not|must be a data URI)"):
            await here.importer.import_(ADA, document)


async def test_the_kind_of_an_image_is_imported_in_lower_case() -> None:
    """As that of every message is stored."""
    async with process() as here:
        request, document, _ = await exported_and_deleted(here)
        message = next(e["body"]["message"] for e in document["entries"] if "message" in e["body"])
        message["items"] = [{"content_type": "image", "content": "DATA:Image/PNG;base64,iVBORw0KGgo="}]
        await here.importer.import_(ADA, document)
        again = await export(here.tasks, here.partition(), request.task_id)
    message = next(e["body"]["message"] for e in again["entries"] if "message" in e["body"])
    assert message["items"][0]["content"] == "data:image/png;base64,iVBORw0KGgo="


def test_users_of_different_tenants_never_share_a_partition() -> None:
    """Whatever dots are in the names of tenants and users. covers: AUTH-3"""
    pairs = [
        ("a.b", "c"),
        ("a", "b.c"),
        ("a~1b", "c"),
        ("a.b~", "c"),
        ("a.b", "~c"),
        ("a~.b", "c"),
        ("a~0.b", "c"),
        ("", "c"),
        ("", "b.c"),
        (".", "c"),
    ]
    users = [User(tid, oid) for tid, oid in pairs]
    assert len({user.key for user in users}) == len(users)
    assert len({keys.user("Tester", user.key) for user in users}) == len(users)
    assert [User.of(user.key) for user in users] == users
    for none in ("", ".", "a", "a.", "a~.b", "a~2b.c"):
        with pytest.raises(ValueError, match="is not a tenant and an object id"):
            User.of(none)
    assert Caller(User("mock", "ada")).user.key == "mock.ada"


async def failed_at(here: Process, task_id: str, call_id: str) -> None:
    """A request that calls a tool and then fails."""
    here.model.answers = [calls(ToolCall(call_id, "Shell-look", "{}")), fails]
    assert (await here.ask(call_id, task_id)).status == "Failed"


async def test_an_import_says_that_there_were_more_tool_calls_where_its_fork_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a fork knows of calls that it cannot name any more is in its head alone."""
    monkeypatch.setattr(paths, "MAX_EFFECTS", 2)
    async with process(None, Scripted(), noting([], "Shell-look")) as here:
        task_id = (await here.ask("one")).task_id
        await failed_at(here, task_id, "pay")
        here.model.answers = [says("three")]
        await here.ask("three", task_id)
        task_id = (await fork(here.tasks, here.partition(), task_id, ADA.user)).task_id
        for call_id in ("look", "look again"):
            await failed_at(here, task_id, call_id)
        head = (await here.tasks.head(here.partition(), task_id)).value
        assert paths.effects_cut(head)
        document = to_builtins(await export(here.tasks, here.partition(), task_id))
        await here.eraser.delete_task(here.partition(), task_id)
        imported = await here.importer.import_(ADA, document)
        assert paths.effects_on_path(imported) == paths.effects_on_path(head)
        assert paths.effects_cut(imported)


async def test_an_import_looks_at_a_tool_call_a_few_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once more for every request that failed after it."""
    looked: list[str] = []
    size = paths._size

    def noted(tool: ToolOutcome) -> int:
        looked.append(tool.call_id)
        return size(tool)

    async with process(None, Scripted(), noting([], "Shell-look")) as here:
        task_id = (await here.ask("one")).task_id
        for n in range(20):
            await failed_at(here, task_id, f"call {n}")
        document = to_builtins(await export(here.tasks, here.partition(), task_id))
        await here.eraser.delete_task(here.partition(), task_id)
        monkeypatch.setattr(paths, "_size", noted)
        await here.importer.import_(ADA, document)
    assert max(Counter(looked).values()) <= 3


async def test_an_imported_task_knows_the_tool_calls_of_withdrawn_requests_as_its_source_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is known of them hangs on their ends, as their messages are not on the path. covers: TASK-3"""
    monkeypatch.setattr(paths, "MAX_EFFECTS", 4)
    never, model = asyncio.Event(), Scripted()
    async with process(None, model, noting([], "Shell-look"), concurrency="rollback") as here:
        task_id = (await here.ask("one")).task_id
        await failed_at(here, task_id, "before")
        for call_id in ("c1", "c2", "c3"):
            model.answers = [calls(ToolCall(call_id, "Shell-look", "{}")), waits(never)]
            model.calls.clear()
            await here.send("look", task_id)
            await eventually(lambda: len(model.calls) == 2)
        model.answers = [says("done")]
        assert (await here.ask("instead", task_id)).status == "Completed"
        head = (await here.tasks.head(here.partition(), task_id)).value
        known = [tool.call_id for tool in paths.effects_on_path(head)]
        assert known == ["before", "c1", "c2", "c3"]
        document = to_builtins(await export(here.tasks, here.partition(), task_id))
        await here.eraser.delete_task(here.partition(), task_id)
        imported = await here.importer.import_(ADA, document)
        assert [tool.call_id for tool in paths.effects_on_path(imported)] == known
        assert paths.effects_cut(imported) == paths.effects_cut(head)


async def regenerated(here: Process, turns: int) -> str:
    """A task of that many turns, each sent again from before it; behind some come a change and a failure."""
    last = await here.ask("one")
    for n in range(turns):
        for again in (False, True):
            answer = await here.ask(f"more {n}", last.task_id)
            if not again:
                await here.changes.rollback(here.partition(), last.task_id, ADA.user, last.request_id)
        last = answer
        if n % 5 == 4:
            await here.changes.patch(here.partition(), last.task_id, ADA.user, metadata={"n": n})
        if n % 7 == 6:
            here.model.answers[:] = [fails, says("hello")]
            assert (await here.ask("fail", last.task_id)).status == "Failed"
    return last.task_id


async def everything(here: Process, task_id: str) -> list[object]:
    """A task's path and those of its requests, without the one entry that an import begins with."""
    head = (await here.tasks.head(here.partition(), task_id)).value
    requests = await here.records.scan(here.partition(), "request/", RequestRecord, limit=500)
    shift = 1 if any(request.imported for _, request in requests) else 0
    found: list[object] = [sorted(key for key, _ in requests)]
    for path in (head.path, *(request.path for _, request in requests)):
        found.append(tuple((first - shift, last - shift) for first, last in path))
    return found


async def test_the_document_of_a_task_does_not_grow_with_the_square_of_its_turns() -> None:
    """Of paths it holds what is behind the parents', and the import has them whole. covers: THREAD-6"""
    async with process(None, Scripted(says("hello"))) as here:
        sizes, documents = [], []
        for turns in (30, 60):
            task_id = await regenerated(here, turns)
            documents.append(await export(here.tasks, here.partition(), task_id))
            sizes.append(len(json.dumps(documents[-1]["requests"])))
            before = await everything(here, task_id)
            await here.eraser.delete_task(here.partition(), task_id)
            document = json.loads(json.dumps(documents[-1]))
            await here.importer.import_(ADA, document)
            assert await everything(here, task_id) == before
            assert (await export(here.tasks, here.partition(), task_id))["requests"][-1]["path"]
            await here.eraser.delete_task(here.partition(), task_id)
        assert sizes[1] < 2.1 * sizes[0]


async def test_the_document_of_a_task_without_gaps_has_whole_paths() -> None:
    """As it always had. covers: THREAD-6"""
    async with process() as here:
        task_id = (await here.ask("one")).task_id
        for n in range(3):
            await here.ask(f"more {n}", task_id)
        document = await export(here.tasks, here.partition(), task_id)
        assert [request["path"][0][0] for request in document["requests"]] == [1] * 4


async def test_a_task_of_many_turns_that_were_sent_again_is_imported() -> None:
    """Its path may be as long as a head holds it. covers: THREAD-6, MODEL-3"""
    async with process() as here:
        request = await here.ask("one")
        document = to_builtins(await export(here.tasks, here.partition(), request.task_id))
        await here.eraser.delete_task(here.partition(), request.task_id)
        await here.importer.import_(ADA, noted(document, [[n, n] for n in range(1, 20_000, 2)], 20_000))
        assert (await here.ask("on", request.task_id)).status == "Completed"


@pytest.mark.parametrize("bound", ["MOST_PAIRS", "MOST_STEPS"])
async def test_a_document_that_would_grow_by_its_paths_is_refused(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Nothing of it is kept. covers: MODEL-3"""
    async with process(None, Scripted(says("hello"))) as here:
        task_id = await regenerated(here, 30)
        document = json.loads(json.dumps(await export(here.tasks, here.partition(), task_id)))
        await here.eraser.delete_task(here.partition(), task_id)
        monkeypatch.setattr(document_paths, bound, 20)
        with pytest.raises(InvalidRequest, match="requests: have paths of more than"):
            await here.importer.import_(ADA, document)
        monkeypatch.undo()
        await here.importer.import_(ADA, document)


async def test_others_have_their_turn_while_a_task_is_exported() -> None:
    """However long it is, and however fast the store. covers: THREAD-6"""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with process() as here:
        task_id = (await here.ask("one")).task_id
        for n in range(30):
            await here.ask(f"more {n}", task_id)
        running = asyncio.create_task(others())
        await export(here.tasks, here.partition(), task_id)
        running.cancel()
        assert turns > 30
