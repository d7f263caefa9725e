"""Threads of workflows: sub-threads, and how far the work has come."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from threads_setup import exchange

from tealagents import Agent
from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound, TaskBusy
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import agent_config
from tealagents.threads import (
    LocalThread,
    MemoryMessages,
    NotForkable,
    RemoteThread,
    RemoteUnsupported,
    ThreadDeleted,
    WorkflowThread,
)

#: holds itself
RING: list[Any] = []
RING.append(RING)


def texts(thread: LocalThread | WorkflowThread) -> list[str]:
    return [message.text for message in thread.messages]


async def talked(*names: str) -> WorkflowThread:
    """A workflow in whose sub-threads something was said."""
    workflow = WorkflowThread()
    for name in names:
        await workflow.create_sub_thread(name).on_new_messages(exchange(f"hi {name}", "ok"))
    return workflow


# --- sub-threads ----------------------------------------------------------------------------------


def test_sub_threads_have_keys() -> None:
    """`main` where none is named; others by agent; one cannot be made twice. covers: WORKFLOW-1"""
    workflow = WorkflowThread()
    main = workflow.create_sub_thread()
    writer = workflow.create_sub_thread("writer", RemoteThread("resp_1"))
    assert workflow.get_sub_thread() is main
    assert workflow.get_sub_thread("main") is main
    assert workflow.get_sub_thread("writer") is writer
    assert dict(workflow.sub_threads) == {"main": main, "writer": writer}
    with pytest.raises(AlreadyExists):
        workflow.create_sub_thread("writer")
    with pytest.raises(NotFound, match="no sub-thread 'reviewer'"):
        workflow.get_sub_thread("reviewer")
    with pytest.raises(InvalidRequest, match="its own sub-thread"):
        workflow.create_sub_thread("itself", workflow)
    inner = WorkflowThread()
    inner.create_sub_thread("outer", WorkflowThread())
    workflow.create_sub_thread("inner", inner)
    with pytest.raises(InvalidRequest, match="its own sub-thread"):
        inner.create_sub_thread("cycle", workflow)
    with pytest.raises(InvalidRequest, match="already"):
        workflow.create_sub_thread("twice", main)


async def test_a_sub_thread_can_be_deleted() -> None:
    """It is gone, and its key is free. covers: WORKFLOW-1"""
    workflow = await talked("main", "writer")
    gone = workflow.get_sub_thread("writer")
    await workflow.delete_sub_thread("writer")
    with pytest.raises(NotFound):
        workflow.get_sub_thread("writer")
    with pytest.raises(ThreadDeleted):
        _ = gone.messages
    assert not workflow.create_sub_thread("writer").messages


async def test_agents_run_side_by_side(tmp_path: Path) -> None:
    """On different sub-threads of one workflow, each with its own conversation. covers: WORKFLOW-1"""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config()))
    async with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "key"}
        async with Agent.from_config(path, env=env, dotenv=None) as agent:
            workflow = WorkflowThread()
            names = ("Ada", "Eve", "Joe")
            for _ in range(2):
                await asyncio.gather(
                    *(agent.run(f"My name is {name}.", workflow.sub_thread(name)) for name in names)
                )
            answers = await asyncio.gather(
                *(agent.run("What is my name?", workflow.sub_thread(name)) for name in names)
            )
            await agent.run("hello", workflow)
            assert await agent.list_messages(workflow) == list(workflow.get_sub_thread().messages)
    assert [answer.text for answer in answers] == [f"Your name is {name}." for name in names]
    assert len(workflow.messages) == 2


# --- execution ------------------------------------------------------------------------------------


async def test_execution_is_remembered() -> None:
    """Steps taken, the current one, the next ones. covers: WORKFLOW-2"""
    workflow = WorkflowThread(["draft", "review"])
    execution = workflow.execution
    assert execution.remaining == ["draft", "review"]
    async with workflow.step("draft") as result:
        assert execution.current_steps == ["draft"]
        assert execution.next_steps == ["review"]
        result["text"] = "Once upon a time"
        workflow.plan("review", "publish")
    (taken,) = execution.steps_taken
    assert (taken.name, taken.result) == ("draft", {"text": "Once upon a time"})
    assert taken.started_at <= taken.ended_at
    assert not execution.current_steps
    assert execution.remaining == ["review", "publish"]


async def test_it_resumes_where_it_was_left() -> None:
    """In the step that failed, after a restart; what was done is not done again. covers: WORKFLOW-2"""
    done: list[str] = []

    async def work(workflow: WorkflowThread, fail: str | None) -> None:
        async for step in workflow.steps():
            async with workflow.step(step):
                if step == fail:
                    raise RuntimeError("the power is out")
                done.append(step)

    workflow = WorkflowThread(["one", "two", "three"])
    with pytest.raises(RuntimeError):
        await work(workflow, "two")
    assert workflow.execution.current_steps == ["two"]
    resumed = WorkflowThread.from_json(workflow.to_json())
    await work(resumed, None)
    assert done == ["one", "two", "three"]
    assert [step.name for step in resumed.execution.steps_taken] == ["one", "two", "three"]
    assert not resumed.execution.remaining


async def test_a_step_that_is_not_taken_is_noticed() -> None:
    """Rather than offered for ever; and one cannot be taken twice at once."""
    workflow = WorkflowThread(["one"])
    with pytest.raises(InvalidRequest, match="'one' was not taken"):
        async for _ in workflow.steps():
            pass
    async with workflow.step("one"):
        with pytest.raises(InvalidRequest, match="'one' has not ended yet"):
            async with workflow.step("one"):
                pass


async def test_steps_run_side_by_side() -> None:
    """Each ends by itself; one that fails is resumed, also from JSON. covers: WORKFLOW-1, WORKFLOW-2"""
    workflow = WorkflowThread(["one", "two", "poll", "poll", "last"])
    begun = asyncio.Barrier(4)

    async def work(step: str) -> None:
        async with workflow.step(step) as result:
            await begun.wait()
            await workflow.sub_thread(step).on_new_messages(exchange(step, "ok"))
            if step == "two":
                raise RuntimeError("the power is out")
            result["done"] = True

    tasks = [work(step) for step in workflow.execution.next_steps[:4]]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes].count(RuntimeError) == 1
    assert workflow.execution.remaining == ["two", "last"]
    resumed = WorkflowThread.from_json(workflow.to_json())
    async for step in resumed.steps():
        async with resumed.step(step):
            pass
    taken = [step.name for step in resumed.execution.steps_taken]
    assert sorted(taken[:3]) == ["one", "poll", "poll"]
    assert taken[3:] == ["two", "last"]


async def test_a_workflow_does_not_go_back_while_a_step_runs() -> None:
    """Nor is it deleted: the step would end in another execution than it began in. covers: WORKFLOW-3"""
    workflow = WorkflowThread(["one"])
    early = workflow.checkpoint()
    async with workflow.step("one"):
        with pytest.raises(TaskBusy, match="'one' has not ended"):
            workflow.rollback(early)
        with pytest.raises(TaskBusy):
            await workflow.delete()
    workflow.rollback(early)


@pytest.mark.parametrize("kept", [object(), "half a character: \ud800", RING])
async def test_a_result_that_is_no_json_is_refused(kept: object) -> None:
    """The step is not over, and the workflow can still be saved. covers: WORKFLOW-2"""
    workflow = WorkflowThread(["one"])
    with pytest.raises(InvalidRequest, match="result: cannot be kept as JSON"):
        async with workflow.step("one") as result:
            result["open"] = kept
    assert WorkflowThread.from_json(workflow.to_json()).execution.current_steps == ["one"]


async def test_a_step_may_come_again() -> None:
    """Twice in a row, or planned once more by itself. covers: WORKFLOW-2"""
    workflow, taken = WorkflowThread(["poll", "poll"]), 0
    async for step in workflow.steps():
        async with workflow.step(step):
            taken += 1
            if taken == 2:
                workflow.plan("poll")
    assert [step.name for step in workflow.execution.steps_taken] == ["poll"] * 3


# --- the whole ------------------------------------------------------------------------------------


async def test_the_whole_goes_back_and_forward() -> None:
    """Every sub-thread and the execution, together. covers: WORKFLOW-3"""
    workflow = WorkflowThread(["one", "two"])
    writer = workflow.create_sub_thread("writer")
    async with workflow.step("one"):
        await writer.on_new_messages(exchange("first", "ok"))
    early = str(workflow.checkpoint_id)
    async with workflow.step("two"):
        await writer.on_new_messages(exchange("second", "ok"))
        await workflow.sub_thread("reader").on_new_messages(exchange("third", "ok"))
    late = str(workflow.checkpoint_id)
    workflow.rollback(early)
    assert [message.text for message in writer.messages] == ["first", "ok"]
    assert not workflow.get_sub_thread("reader").messages
    assert workflow.execution.remaining == ["two"]
    workflow.rollback(late)
    assert len(writer.messages) == 4
    assert len(workflow.get_sub_thread("reader").messages) == 2
    assert not workflow.execution.remaining
    opened = WorkflowThread.from_json(workflow.to_json())
    opened.rollback(early)
    assert len(opened.get_sub_thread("writer").messages) == 2


async def test_the_whole_goes_back_to_its_beginning() -> None:
    """Before the first checkpoint there was nothing."""
    workflow = WorkflowThread(["one"])
    inner = workflow.create_sub_thread("inner", WorkflowThread(["deep"]))
    async with workflow.step("one"):
        await inner.on_new_messages(exchange("first", "ok"))
    workflow.rewind()
    assert not workflow.execution.steps_taken
    assert not inner.messages


@pytest.mark.parametrize("of", ["itself", "json", "fork", "copy"])
async def test_at_its_beginning_all_steps_are_to_come(of: str) -> None:
    """Those of its making, or planned before anything was begun. covers: WORKFLOW-2, WORKFLOW-3"""
    workflow = WorkflowThread(["draft", "review"])
    inner = WorkflowThread()
    inner.plan("deep", "deeper")
    workflow.create_sub_thread("inner", inner)
    async with workflow.step("draft"):
        async with inner.step("deep"):
            inner.plan("other")
        workflow.plan("publish")
    same: dict[str, Callable[[], WorkflowThread]] = {
        "itself": lambda: workflow,
        "json": lambda: WorkflowThread.from_json(workflow.to_json()),
        "fork": workflow.fork,
        "copy": workflow.copy,
    }
    again = same[of]()
    for _ in range(2):
        again.rewind()
        assert again.execution.remaining == ["draft", "review"]
        deep = again.get_sub_thread("inner")
        assert isinstance(deep, WorkflowThread)
        assert deep.execution.remaining == ["deep", "deeper"]
        async for step in again.steps():
            async with again.step(step):
                pass


async def test_another_sub_thread_of_the_name_begins_empty() -> None:
    """One that was deleted and made anew was not there at the checkpoint. covers: WORKFLOW-3"""
    workflow = await talked("writer")
    early = workflow.checkpoint()
    await workflow.delete_sub_thread("writer")
    await workflow.sub_thread("writer").on_new_messages(exchange("new", "ok"))
    workflow.rollback(early)
    assert not workflow.get_sub_thread("writer").messages


async def test_what_cannot_go_back_keeps_all_where_it_is() -> None:
    """Before anything is changed it is seen that one of the sub-threads cannot. covers: WORKFLOW-3"""
    workflow = await talked("writer")
    workflow.create_sub_thread("far", RemoteThread("conv_1"))
    early = workflow.checkpoint()
    await workflow.get_sub_thread("writer").on_new_messages(exchange("more", "ok"))
    with pytest.raises(NotForkable):
        workflow.rollback(early)
    assert len(workflow.get_sub_thread("writer").messages) == 4


async def test_the_whole_is_saved_forked_and_copied() -> None:
    """All sub-threads with it; a fork at a message of one of them. covers: WORKFLOW-3, THREAD-6"""
    workflow = await talked("main", "writer")
    workflow.create_sub_thread("far", RemoteThread("resp_1"))
    text = workflow.to_json()
    assert WorkflowThread.from_json(text).to_json() == text
    message = workflow.get_sub_thread("writer").messages[0]
    fork, copy = workflow.fork(message.message_id), workflow.copy()
    assert len(fork.get_sub_thread("writer").messages) == 1
    assert len(fork.get_sub_thread("main").messages) == 2
    assert len(copy.get_sub_thread("writer").messages) == 2
    far = fork.get_sub_thread("far")
    assert isinstance(far, RemoteThread)
    assert far.remote_id == "resp_1"
    with pytest.raises(NotFound):
        workflow.fork("nothing")
    await fork.get_sub_thread("main").on_new_messages(exchange("more", "ok"))
    assert texts(workflow) == ["hi main", "ok"]


async def test_a_fork_keeps_the_checkpoints_of_the_whole() -> None:
    """Those that lie within all its sub-threads; it goes back as its origin would. covers: WORKFLOW-3"""
    workflow = WorkflowThread(["one", "two"])
    writer = workflow.create_sub_thread("writer")
    for step in ("one", "two"):
        async with workflow.step(step):
            await writer.on_new_messages(exchange(step, "ok"))
    early, late = (each.checkpoint_id for each in workflow.checkpoints)
    whole, cut = workflow.fork(), workflow.fork(writer.messages[2].message_id)
    assert [each.checkpoint_id for each in whole.checkpoints] == [early, late]
    assert whole.checkpoint_id == late
    assert [each.checkpoint_id for each in cut.checkpoints] == [early]
    for fork in (whole, cut, WorkflowThread.from_json(whole.to_json())):
        fork.rollback(early)
        assert [m.text for m in fork.get_sub_thread("writer").messages] == ["one", "ok"]
        assert fork.execution.remaining == ["two"]
    assert len(writer.messages) == 4


async def test_a_fork_finds_a_message_in_an_inner_workflow() -> None:
    """Sub-threads of sub-threads are forked with it. covers: THREAD-6"""
    workflow = WorkflowThread()
    inner = workflow.create_sub_thread("inner", await talked("writer"))
    assert isinstance(inner, WorkflowThread)
    fork = workflow.fork(inner.get_sub_thread("writer").messages[0].message_id).get_sub_thread("inner")
    assert isinstance(fork, WorkflowThread)
    assert len(fork.get_sub_thread("writer").messages) == 1


@pytest.mark.parametrize("kept_by", ["taken", "remote", "inner"])
async def test_a_refused_deletion_erases_nothing(kept_by: str) -> None:
    """All sub-threads are asked before the first is erased. covers: THREAD-6, WORKFLOW-1"""
    workflow = await talked("s", "main")
    with ExitStack() as stack:
        if kept_by == "taken":
            stack.enter_context(workflow.get_sub_thread().taken())
        elif kept_by == "remote":
            workflow.create_sub_thread("far", RemoteThread("resp_1"))
        else:
            inner = workflow.create_sub_thread("inner", await talked("writer"))
            assert isinstance(inner, WorkflowThread)
            stack.enter_context(inner.get_sub_thread("writer").taken())
        with pytest.raises(RemoteUnsupported if kept_by == "remote" else TaskBusy):
            await workflow.delete()
    assert [message.text for message in workflow.get_sub_thread("s").messages] == ["hi s", "ok"]
    workflow.to_json()


async def test_a_deletion_that_failed_half_way_can_be_repeated() -> None:
    """What was erased before stays erased. covers: THREAD-6"""

    class Away(MemoryMessages):
        away = True

        async def clear(self) -> None:
            if self.away:
                raise OSError("the store is away")
            await super().clear()

    workflow = await talked("first")
    kept = Away()
    last = workflow.create_sub_thread("last", LocalThread(store=kept))
    await last.on_new_messages(exchange("q", "a"))
    with pytest.raises(OSError, match="away"):
        await workflow.delete()
    assert list(workflow.sub_threads) == ["last"]
    kept.away = False
    await workflow.delete()
    assert last.deleted
    assert await kept.list_messages() == []


async def test_nothing_is_taken_while_the_whole_is_deleted() -> None:
    """A sub-thread that is erased last takes no message meanwhile. covers: THREAD-6"""
    erasing, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryMessages):
        async def clear(self) -> None:
            erasing.set()
            await go_on.wait()

    workflow = WorkflowThread()
    workflow.create_sub_thread("first", LocalThread(store=Slow()))
    last = workflow.create_sub_thread("last")
    deletion = asyncio.create_task(workflow.delete())
    await erasing.wait()
    with pytest.raises(TaskBusy), last.taken():
        pass
    go_on.set()
    await deletion
    assert last.deleted


async def test_a_sub_thread_that_was_deleted_by_itself_is_gone() -> None:
    """The workflow is still saved, marked and deleted. covers: WORKFLOW-1"""
    workflow = await talked("main", "writer")
    await workflow.get_sub_thread("writer").delete()
    assert list(workflow.sub_threads) == ["main"]
    workflow.checkpoint()
    assert list(WorkflowThread.from_json(workflow.to_json()).sub_threads) == ["main"]
    await workflow.delete()


async def test_the_whole_is_deleted() -> None:
    """With all that is in it. covers: THREAD-6"""
    workflow = await talked("main", "writer")
    writer = workflow.get_sub_thread("writer")
    await workflow.delete()
    for thread in (workflow, writer):
        with pytest.raises(ThreadDeleted):
            thread.to_json()
