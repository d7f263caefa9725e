"""Forks and imports: what they hold, and what a crash in the middle leaves."""

import pytest
from engine_setup import ADA, Faulty, Scripted, calls, fails, noting, process, says
from msgspec import to_builtins

from tealagents.domain.errors import AlreadyExists, PersistenceUnavailable
from tealagents.domain.models import Caller, RequestRecord, ToolCall, User
from tealagents.domain.ports import Commit
from tealagents.state import keys
from tealagents.stores.memory import MemoryStore


async def test_a_fork_remembers_the_tools_of_its_own_past_only() -> None:
    """What ran after the point of the fork is no part of it; what ran before it is. covers: THREAD-6"""
    model = Scripted(says("one"), calls(ToolCall("c1", "Shell-look", "{}")), fails, says("fine"))
    async with process(None, model, noting([], "Shell-look")) as here:
        task_id = (await here.ask("one")).task_id
        head = (await here.tasks.head(here.partition(), task_id)).value
        said, _ = await here.tasks.history.messages(here.partition(), task_id, head.path, limit=10)
        assert (await here.ask("two", task_id)).status == "Failed"
        await here.ask("three", task_id)
        fork = here.transfer.fork
        early = await fork(here.partition(), task_id, ADA.user, message_id=said[-1].message_id)
        assert early.effects == ()
        late = await fork(here.partition(), task_id, ADA.user)
        assert [tool.call_id for tool in late.effects[0].tools] == ["c1"]


async def test_the_requests_of_a_fork_continue_each_other() -> None:
    """A copied request names the copy it continues, not the original. covers: THREAD-6"""
    async with process() as here:
        task_id = (await here.ask("one")).task_id
        await here.ask("two", task_id)
        fork = await here.transfer.fork(here.partition(), task_id, ADA.user)
        last = await here.request(fork.checkpoint_id or "")
        first = await here.request(last.parent or "")
        assert (first.task_id, first.parent) == (fork.task_id, None)


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
        document = await here.transfer.export(here.partition(), task_id)
        await here.eraser.delete_task(here.partition(), task_id)
        for at in range(1, 20):
            seen = 0

            def strike(partition: str, commit: Commit) -> str | None:
                nonlocal seen
                seen += 1
                return "away" if seen >= at else None  # noqa: B023 - used within its turn of the loop only

            store.fault = strike
            try:
                await here.transfer.import_(ADA, document)
            except PersistenceUnavailable:
                store.fault = lambda _, __: None
            else:
                break
            if lost:  # another process, after this one was lost
                async with process(store) as other:
                    await here.lease._retire()
                    await other.transfer.import_(ADA, document)
                await here.lease._renew()
            else:
                await here.transfer.import_(ADA, document)
            assert await store.scan(here.partition(), "importing/") == []
            assert (await here.ask("again", task_id)).status == "Completed"
            with pytest.raises(AlreadyExists):
                await here.transfer.import_(ADA, document)
            await here.eraser.delete_task(here.partition(), task_id)
        assert at > 3


async def test_an_import_continues_no_conversation_at_the_model_service() -> None:
    """A remote conversation that a document names is not believed: it might be another's. covers: AUTH-3"""
    async with process() as here:
        request = await here.ask()
        document = await here.transfer.export(here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        document["task"]["remote_id"] = "resp_of_somebody_else"
        document["requests"][0]["remote_id"] = "resp_of_somebody_else"
        head = await here.transfer.import_(ADA, document)
        assert "resp_of_somebody_else" not in str(to_builtins(head))
        stored = await here.ledger.get(here.partition(), keys.request(request.request_id), RequestRecord)
        assert stored is not None
        assert stored.value.remote_id is None


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
    ]
    users = [User(tid, oid) for tid, oid in pairs]
    assert len({user.key for user in users}) == len(users)
    assert len({keys.user("Tester", user.key) for user in users}) == len(users)
    assert Caller(User("mock", "ada")).user.key == "mock.ada"
