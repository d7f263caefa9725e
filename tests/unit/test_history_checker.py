"""The history checker finds what it is there to find: each kind of fault is planted once."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tealagents.testing.clock import overdue
from tealagents.testing.history import ClientHistory, Correspondent, Heard, Look, Verdict, check, gaps
from tealagents.testing.service import ServiceThread, agent_config

MODEL = {"client": "tealagents.testing.digest_model:DigestModel", "model": "digest"}
#: seconds that an answer may take; they pass only where none comes
PATIENCE = 60.0


class World:
    """A service, a client, and what they exchanged: two tasks, the first of three messages."""

    def __init__(self, service: ServiceThread, correspondent: Correspondent, history: ClientHistory) -> None:
        self.service = service
        self.correspondent = correspondent
        self.history = history
        self.first = history.operations["word-1"]

    async def verdict(self) -> Verdict:
        return await check(self.history, self.correspondent.http, [self.service.url])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with ServiceThread(agent_config(agent=MODEL), {"TA_AUTH": "mock"}) as service:
        async with service.async_client() as http:
            history = ClientHistory()
            correspondent = Correspondent(history, http, [service.url], random.Random(1), deadline=PATIENCE)
            first = await correspondent.send(None)
            await correspondent.send(first.task_id, attempts=3)
            await correspondent.send(first.task_id, streamed=True)
            await correspondent.send(None)
            await correspondent.look(first.task_id or "")
            yield World(service, correspondent, history)


async def test_a_consistent_history_passes(world: World) -> None:
    """Nothing is found where nothing is wrong, and every message was answered."""
    assert world.history.count("ok") == 4
    assert (await world.verdict()).faults == {}


async def test_an_answer_that_is_not_there_is_lost(world: World) -> None:
    """A client got another answer, or one to a message that the task does not hold."""
    world.history.operations["word-2"].answer = "something else"
    ghost = replace(world.first, word="word-9")
    world.history.operations["word-9"] = ghost
    world.history.looks.clear()
    found = (await world.verdict()).faults
    assert found.keys() == {"lost"}
    assert [sentence.split()[0] for sentence in found["lost"]] == ["word-2", "word-9"]


async def test_a_failure_that_is_completed_is_lost(world: World) -> None:
    """What was reported to have failed for good must not be there as an answer."""
    operation = world.history.operations["word-2"]
    operation.outcome, operation.code = "failed", "model_error"
    assert (await world.verdict()).faults.keys() == {"lost"}


async def test_a_first_message_that_failed_is_looked_for_in_its_task() -> None:
    """No answer named the task that it made; the refusal did."""
    env = {"TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "k", "TA_AUTH": "mock"}
    with ServiceThread(agent_config(), env) as service:
        async with service.async_client() as http:
            history = ClientHistory()
            correspondent = Correspondent(history, http, [service.url], random.Random(1), deadline=PATIENCE)
            failed = await correspondent.send(None)
            assert failed.code == "model_error"
            assert (await check(history, http, [service.url])).faults == {}


def test_a_stream_that_leaves_something_out_is_found() -> None:
    """A number, a piece of its text, or all of it."""
    texts = [Heard(n, "partial-response", {"output_partial": text}) for n, text in ((2, "a"), (3, "b"))]
    first, last = Heard(1, "request", {}), Heard(4, "final-response", {"content": {"output": "ab"}})
    assert gaps([first, *texts, last], "word") == []
    assert gaps([first, *texts, replace(last, id=5)], "word") == [
        "the stream of word has the numbers [1, 2, 3, 5]"
    ]
    for kept in (texts[:1], []):
        heard = [first, *kept, replace(last, id=len(kept) + 2)]
        said = kept[0].data["output_partial"] if kept else ""
        assert gaps(heard, "word") == [f"the text of word is {said!r}"]


async def test_the_same_message_twice_is_doubled(world: World) -> None:
    """The service was sent a word a second time, behind the checker's back."""
    body = {"items": [{"content_type": "text", "content": "word-2"}], "task_id": world.first.task_id}
    (await world.correspondent.http.post("", json=body)).raise_for_status()
    found = (await world.verdict()).faults
    assert "word-2 is there 2 times" in found["doubled"]


@pytest.mark.parametrize("how", ["nobody sent it", "it was refused", "it was sent elsewhere"])
async def test_a_message_that_should_not_be_there_is_a_phantom(world: World, how: str) -> None:
    """It stands in a task, and no request could have put it there."""
    operation = world.history.operations["word-3"]
    if how == "nobody sent it":
        del world.history.operations["word-3"]
    elif how == "it was refused":
        operation.outcome, operation.request_id = "failed", None
    else:
        operation.task_id = world.history.operations["word-4"].task_id
    assert "phantom" in (await world.verdict()).faults


async def test_a_look_that_missed_a_message_is_stale(world: World) -> None:
    """What was answered before a look began, the look must see."""
    look = world.history.looks[0]
    assert look.words == {"word-1", "word-2", "word-3"}
    world.history.looks.append(replace(look, words=frozenset({"word-1", "word-2"})))
    assert (await world.verdict()).faults == {"stale": ["a look did not see word-3"]}


async def test_a_read_that_saw_what_is_gone_reveals_a_loss(world: World) -> None:
    """What one reader has seen must not be lost."""
    look = world.history.looks[0]
    world.history.looks.append(Look(look.task_id, look.began, look.words | {"word-7"}))
    assert (await world.verdict()).faults == {"lost": ["a look saw word-7, which is not there"]}


async def test_answers_out_of_order_are_stale(world: World) -> None:
    """Of two messages one was answered before the other was sent: so they stand in the task."""
    first, second = (world.history.operations[name] for name in ("word-1", "word-2"))
    first.began, second.ended = second.ended + 1, first.began - 1
    assert (await world.verdict()).faults.keys() == {"stale"}


async def test_an_answer_from_an_older_history_is_stale(world: World) -> None:
    """The model must have been sent all that was completed: here one more word is thought to be."""
    operations = world.history.operations
    operations["word-x"] = replace(operations.pop("word-1"), word="word-x")
    found = (await world.verdict()).faults
    assert found.keys() == {"phantom", "lost", "stale"}


async def test_a_task_that_does_not_end_is_stuck(world: World) -> None:
    """A request that runs for ever, as the checker sees it."""
    slow = agent_config(agent={**MODEL, "model": "digest-60000ms"})
    with ServiceThread(slow, {"TA_AUTH": "mock"}) as service, service.client() as looking:

        def is_stored() -> bool:
            return bool(looking.get("/tasks").raise_for_status().json()["items"])

        async with service.async_client() as http:
            history = ClientHistory()
            correspondent = Correspondent(history, http, [service.url], random.Random(1), deadline=PATIENCE)
            operation = await overdue(correspondent.send(None), PATIENCE, is_stored)
            assert operation.outcome == "unknown"
            operation.task_id = (await http.get("/tasks")).json()["items"][0]["task_id"]
            verdict = await check(history, http, [service.url])
            assert len(verdict.stuck) == 2
            request = (await http.get(f"/tasks/{operation.task_id}/messages")).json()["items"][0][
                "request_id"
            ]
            await http.post(f"/requests/{request}/cancel")
