"""Remote threads of the library whose model service is another agent of tealagents."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tealagents import Agent
from tealagents.testing.service import ServiceThread, agent_config


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """One of the test's own, who has no other conversations."""
    return str(request.node.name)


@pytest.fixture
async def outer(service: ServiceThread, tmp_path: Path, user: str) -> AsyncIterator[Agent]:
    """An agent of the library; its model is the agent of the service."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config(model="Tester")))
    env = {"TA_BASE_URL": f"{service.url}/openai/v1", "TA_API_KEY": user}
    async with Agent.from_config(path, env=env, dotenv=None) as agent:
        yield agent


def kept(service: ServiceThread, user: str) -> int:
    """How many conversations of the user the service has."""
    with service.client(user) as http:
        return len(http.get("/tasks").raise_for_status().json()["items"])


async def test_a_thread_is_deleted_whatever_its_conversation_holds(
    service: ServiceThread, outer: Agent, user: str
) -> None:
    """The service deletes no single response of a conversation: it is deleted as a whole, as is the one that
    a rollback left."""
    thread = outer.get_remote_thread()
    for words in ("one", "two", "three"):
        await outer.run(words, thread)
    thread.rollback(thread.checkpoints[0].checkpoint_id)
    for words in ("four", "five"):
        await outer.run(words, thread)
    assert kept(service, user) == 2
    await thread.delete()
    assert kept(service, user) == 0


async def test_deleting_a_fork_leaves_the_conversation_that_it_branched_off_from(
    service: ServiceThread, outer: Agent, user: str
) -> None:
    """It has a conversation of its own there, with copies of what came before."""
    thread = outer.get_remote_thread()
    await outer.run("My name is Ada.", thread)
    fork = thread.fork()
    await outer.run("one", thread)
    for words in ("two", "three"):
        await outer.run(words, fork)
    assert kept(service, user) == 2
    await fork.delete()
    assert [each.text for each in await outer.list_messages(thread) if each.role == "user"] == [
        *("My name is Ada.", "one"),
    ]
    assert (await outer.run("What is my name?", thread)).text == "Your name is Ada."
    await thread.delete()
    assert kept(service, user) == 0


async def test_a_thread_that_became_remote_lists_what_was_said_before(outer: Agent) -> None:
    """The messages that were sent with its first one belong to the conversation at the service."""
    local = outer.get_local_thread()
    for words in ("My name is Ada.", "I live in Oslo."):
        await outer.run(words, local)
    thread = outer.to_remote(local)
    for words in ("What is my name?", "Where do I live?"):
        await outer.run(words, thread)
    listed = await outer.list_messages(thread)
    assert [each.text for each in listed if each.role == "user"] == [
        *("My name is Ada.", "I live in Oslo.", "What is my name?", "Where do I live?"),
    ]
    assert [each.role for each in listed] == ["user", "assistant"] * 4
    back = await outer.to_local(thread)
    assert (await outer.run("What did I say first?", back)).text == "You first said: “My name is Ada.”"
    await thread.delete()
