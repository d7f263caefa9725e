"""What a process remembers of a task, and how little of the log is read for a view."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from threads_setup import SYSTEM, CountedStore, Engine

from tealagents.domain.models import Item, Json
from tealagents.domain.paths import split
from tealagents.state.changes import Changes
from tealagents.state.forking import fork
from tealagents.state.new_message import Earlier
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import FakeClock
from tealagents.testing.models import ScriptedModel
from tealagents.threads.components import open_view
from tealagents.threads.windows import UNUSED_SECONDS, continues


@pytest.fixture
async def store() -> AsyncIterator[CountedStore]:
    async with CountedStore(MemoryStore()) as opened:
        yield opened


def view(name: str, **options: Any) -> Any:
    return open_view([(name, options)], "any")


def last_sent(model: ScriptedModel) -> list[str]:
    return [str(message["content"]) for message in model.calls[-1].messages]


def brought(name: str, count: int) -> list[Earlier]:
    """`count` rounds that a client brings."""
    words = [(f"{name}{n}", "yes") for n in range(count)]
    roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")
    return [
        Earlier(role, (Item("text", text),)) for said in words for role, text in zip(roles, said, strict=True)
    ]


async def talk(engine: Engine, count: int, task_id: str | None = None) -> str:
    """`count` turns on one task."""
    for n in range(count):
        task_id = (await engine.say(f"message {n}", task_id)).task_id
    assert task_id is not None
    return task_id


async def test_a_turn_reads_as_much_on_turn_500_as_on_turn_50(store: CountedStore) -> None:
    """The cost of a turn does not grow with the task. covers: THREAD-8"""
    model = ScriptedModel()
    async with Engine(store, model, view=view("token_budget", max_tokens=200)) as engine:
        task_id = await talk(engine, 50)
        costs = []
        for _ in range(2):
            store.trips = store.log_batches = 0
            await engine.say("and now?", task_id)
            costs.append((store.trips, store.log_batches, len(model.calls[-1].messages)))
            await talk(engine, 450, task_id)
    assert costs[0] == costs[1]


async def test_another_process_reads_only_what_it_shows(store: CountedStore) -> None:
    """A replica that never saw the task reads its end, and no more than a page beyond. covers: THREAD-8"""
    model = ScriptedModel()
    async with Engine(store, model) as engine:
        task_id = await talk(engine, 200)
    async with Engine(store, model, view=view("message_count", max_messages=7)) as engine:
        store.log_batches = 0
        await engine.say("now", task_id)
        assert last_sent(model)[1:] == ["message 197", "ok", "message 198", "ok", "message 199", "ok", "now"]
        assert store.log_batches <= 8


async def test_replicas_in_turn_send_the_same_view(store: CountedStore) -> None:
    """Each catches up with what the other has added; one that was long away begins anew. covers: THREAD-8"""
    model = ScriptedModel(lambda messages: f"{len(messages)} messages")
    reducers = view("message_count", max_messages=5)
    async with Engine(store, model, view=reducers) as one, Engine(store, model, view=reducers) as other:
        task_id = await talk(one, 3)
        for n, engine in enumerate([other, one, other, one, one, other]):
            await engine.say(f"turn {n}", task_id)
            shown = last_sent(model)[1:]
            assert shown[-1] == f"turn {n}"
            assert shown[-3] == (f"turn {n - 1}" if n else "message 2")
            assert len(shown) == 5
        await talk(one, 20, task_id)
        await other.say("back", task_id)
        assert last_sent(model)[1:] == ["message 18", "6 messages", "message 19", "6 messages", "back"]


async def test_a_wider_view_is_read_where_the_window_ends(store: CountedStore) -> None:
    """After a turn with large results the view widens again, over what was forgotten meanwhile."""
    answers = {"large": "word " * 180}
    model = ScriptedModel(lambda messages: answers.get(str(messages[-1]["content"]), "ok"))
    async with Engine(
        store, model, view=view("token_budget", max_tokens=300, tokenizer="estimate")
    ) as engine:
        task_id = await talk(engine, 30)
        wide = len(last_sent(model))
        await engine.say("large", task_id)
        await engine.say("small", task_id)
        assert len(last_sent(model)) < wide / 2
        await talk(engine, 40, task_id)
        assert len(last_sent(model)) == pytest.approx(wide, abs=2)


async def test_failed_requests_are_passed_over(store: CountedStore) -> None:
    """Neither their messages nor their place is in the view."""
    from tealagents.domain.errors import ModelFailed

    def say(messages: list[Json]) -> Any:
        return ModelFailed("no") if messages[-1]["content"] == "fail" else "ok"

    model = ScriptedModel(say)
    for warm in (True, False):
        async with Engine(store, model, view=view("sliding_window", max_rounds=3)) as engine:
            task_id = await talk(engine, 2)
            assert (await engine.say("fail", task_id)).status == "Failed"
            if warm:
                await engine.say("now", task_id)
        if not warm:
            async with Engine(store, model, view=view("sliding_window", max_rounds=3)) as engine:
                await engine.say("now", task_id)
        assert last_sent(model)[1:] == ["message 0", "ok", "message 1", "ok", "now"]


# --- what the conversation remembers --------------------------------------------------------------


def summarising(messages: list[Json]) -> str:
    """A summary that names the first and the last message it is made of."""
    if "Summarise" not in str(messages[-1]["content"]):
        return "ok"
    lines = str(messages[-2]["content"]).splitlines()
    return f"From {lines[0]} to {lines[-2]}"


async def test_a_summary_survives_a_restart(store: CountedStore) -> None:
    """It is part of the checkpoint, and paid for once. covers: THREAD-8"""
    model = ScriptedModel(summarising)
    reducers = view("summarize", max_messages=6, keep_messages=2)
    async with Engine(store, model, view=reducers) as engine:
        task_id = await talk(engine, 5)
    calls = len(model.calls)
    store.log_batches = 0
    async with Engine(store, model, view=reducers) as engine:
        await engine.say("now", task_id)
    assert len(model.calls) == calls + 1
    assert last_sent(model)[1].endswith("From User: message 0 to User: message 2")
    assert last_sent(model)[2:] == ["message 3", "ok", "message 4", "ok", "now"]


async def test_a_summarys_tokens_are_the_requests(store: CountedStore) -> None:
    """`token_usage` is the sum over all calls of the model, and the summary a step of its own."""
    model = ScriptedModel(summarising)
    async with Engine(store, model, view=view("summarize", max_messages=6, keep_messages=2)) as engine:
        task_id = await talk(engine, 4)
        record = await engine.say("fifth", task_id)
        steps = [step for step in await engine.steps(task_id) if step.request_id == record.request_id]
    assert [(step.kind, step.name) for step in steps] == [
        ("reduction", "summarize"),
        ("reduction", "view"),
        ("model", "scripted"),
    ]
    used = [step.usage.total_tokens for step in steps if step.usage]
    assert len(used) == 2
    assert record.usage.total_tokens == sum(used)


async def test_a_checkpoint_has_its_own_summary(store: CountedStore) -> None:
    """Back at an earlier checkpoint the summary is that of then, forward again the later one; a fork takes
    it along. covers: THREAD-7, THREAD-8"""
    model = ScriptedModel(summarising)
    reducers = view("summarize", max_messages=6, keep_messages=2)
    async with Engine(store, model, view=reducers) as engine:
        task_id = (await engine.say("message 0")).task_id
        requests = [await engine.say(f"message {n}", task_id) for n in range(1, 9)]
        late = last_sent(model)[1]
        changes = Changes(engine.tasks)
        user = engine.caller.user
        await changes.rollback(engine.partition, task_id, user, requests[1].request_id)
        await engine.say("early", task_id)
        assert last_sent(model) == [SYSTEM, "message 0", "ok", "message 1", "ok", "message 2", "ok", "early"]
        await changes.rollback(engine.partition, task_id, user, requests[-1].request_id)
        forked = await fork(engine.tasks, engine.partition, task_id, user)
        for conversation in (task_id, forked.task_id):
            await engine.say("again", conversation)
            assert last_sent(model)[1] == late
            assert last_sent(model)[-3:] == ["message 8", "ok", "again"]


async def test_a_fork_in_the_middle_of_a_round_remembers_what_was_before(store: CountedStore) -> None:
    """The summary made in the round that is cut in two is not taken along. covers: THREAD-6"""
    model = ScriptedModel(summarising)
    async with Engine(
        store, model, view=view("summarize", max_messages=6, keep_messages=2, trigger="after_message_added")
    ) as engine:
        task_id = await talk(engine, 4)
        head = (await engine.tasks.head(engine.partition, task_id)).value
        messages, _ = await engine.tasks.history.messages(engine.partition, task_id, head.path, limit=100)
        forked = await fork(
            engine.tasks, engine.partition, task_id, engine.caller.user, message_id=messages[-2].message_id
        )
        await engine.say("now", forked.task_id)
    assert [str(message["content"]) for message in model.calls[-2].messages][1:] == [
        *(text for n in range(3) for text in (f"message {n}", "ok")),
        "message 3",
        "now",
    ]


async def test_rounds_that_the_agent_did_not_answer_are_counted(store: CountedStore) -> None:
    """Behind half a round, or messages that were added, the summary and what is newer than it are shown: no
    round is lost between them. covers: THREAD-6, THREAD-8"""
    model = ScriptedModel(summarising)
    async with Engine(store, model, view=view("summarize", max_messages=7, keep_messages=2)) as engine:
        task_id, user = await talk(engine, 6), engine.caller.user
        head = (await engine.tasks.head(engine.partition, task_id)).value
        messages, _ = await engine.tasks.history.messages(engine.partition, task_id, head.path, limit=100)
        place = messages[-2].message_id
        forked = await fork(engine.tasks, engine.partition, task_id, user, message_id=place)
        await Changes(engine.tasks).add(
            engine.partition, task_id, user, [Earlier("user", (Item("text", "note"),))]
        )
        known = ["message 3", "ok", "message 4", "ok", "message 5"]
        for conversation, shown in ((forked.task_id, known), (task_id, [*known, "ok", "note"])):
            await engine.say("now", conversation)
            assert last_sent(model)[1].endswith("From User: message 0 to User: message 2")
            assert last_sent(model)[2:] == [*shown, "now"]


async def test_rounds_that_a_client_brings_are_counted_one_by_one(store: CountedStore) -> None:
    """However many came with one request: before the first message, or between two. covers: THREAD-8"""
    model = ScriptedModel()
    async with Engine(store, model, view=view("sliding_window", max_rounds=3)) as engine:
        task_id = (await engine.say("now", earlier=brought("a", 4))).task_id
        assert last_sent(model)[1:] == ["a2", "yes", "a3", "yes", "now"]
        await Changes(engine.tasks).add(engine.partition, task_id, engine.caller.user, brought("b", 4))
        await engine.say("and now", task_id)
        assert last_sent(model)[1:] == ["b2", "yes", "b3", "yes", "and now"]
        await engine.say("later", task_id)
        assert last_sent(model)[1:] == ["b3", "yes", "and now", "ok", "later"]


async def test_rounds_that_a_client_brings_are_summarised(store: CountedStore) -> None:
    """The summary ends between two of them, and stays right in a fork that ends there, after a rollback, and
    in another process. covers: THREAD-6, THREAD-7, THREAD-8"""
    model = ScriptedModel(summarising)
    reducers = view("summarize", max_messages=6, keep_messages=2)
    async with Engine(store, model, view=reducers) as engine:
        task_id, user = (await engine.say("first")).task_id, engine.caller.user
        changes = Changes(engine.tasks)
        await changes.add(engine.partition, task_id, user, brought("a", 6))
        summed = await engine.say("now", task_id)
        assert last_sent(model)[1].endswith("From User: first to User: a4")
        assert last_sent(model)[2:] == ["a5", "yes", "now"]
        await changes.add(engine.partition, task_id, user, brought("b", 2))
        head = (await engine.tasks.head(engine.partition, task_id)).value
        messages, _ = await engine.tasks.history.messages(engine.partition, task_id, head.path, limit=100)
        (place,) = (each.message_id for each in messages if each.text == "b1")
        forked = await fork(engine.tasks, engine.partition, task_id, user, message_id=place)
        shown = ["a5", "yes", "now", "ok", "b0", "yes", "b1"]
        model.calls.clear()
    async with Engine(store, model, view=view("summarize", max_messages=20, keep_messages=2)) as engine:
        for conversation, behind in ((task_id, [*shown, "yes"]), (forked.task_id, shown)):
            await engine.say("and now", conversation)
            assert last_sent(model)[1].endswith("From User: first to User: a4")
            assert last_sent(model)[2:] == [*behind, "and now"]
        await Changes(engine.tasks).rollback(engine.partition, task_id, user, summed.request_id)
        await engine.say("again", task_id)
        assert last_sent(model)[2:] == ["a5", "yes", "now", "ok", "again"]


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (((1, 4),), ((1, 9),), True),
        (((1, 4),), ((1, 4), (8, 9)), True),
        (((1, 4),), ((1, 3),), False),
        (((1, 4),), ((2, 9),), False),
        (((1, 4), (7, 9)), ((1, 4), (8, 9)), False),
        ((), ((1, 4),), False),
    ],
)
def test_a_path_continues_another(old: Any, new: Any, expected: bool) -> None:
    """Only with entries behind it."""
    assert continues(old, new) is expected


def test_a_path_is_cut_behind_a_number() -> None:
    """Each entry is in one of the two parts."""
    path = ((1, 4), (7, 9), (12, 20))
    assert split(path, 2) == (((1, 2),), ((3, 4), (7, 9), (12, 20)))
    assert split(path, 9) == (((1, 4), (7, 9)), ((12, 20),))
    assert split(path, 0) == ((), path)


async def test_what_was_not_used_for_ten_minutes_leaves_the_memory(store: CountedStore) -> None:
    """It may have been erased meanwhile, by this process or another: nothing else would free it."""
    held: list[list[str]] = []
    async with Engine(store, ScriptedModel()) as engine:
        clock = FakeClock()
        engine.tasks.records.clock = clock
        windows = engine.service.conversations.windows
        attending = asyncio.create_task(engine.service.conversations.attend())
        await talk(engine, 1)
        for _ in range(3):
            while not clock.sleepers:
                await asyncio.sleep(0)
            clock.advance(UNUSED_SECONDS / 2)
            await asyncio.sleep(0)
            held.append(list(windows._kept))
            if len(held) == 1:
                (task_id,) = held[0]
                await talk(engine, 1, task_id)
        attending.cancel()
    assert held == [[task_id], [task_id], []]
