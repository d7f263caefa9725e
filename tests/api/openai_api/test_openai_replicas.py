"""Responses on several processes over one store, and after a process was killed."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, NotFoundError, OpenAI
from openai_talk import SPEC, WEATHER, sdk
from replicas import replicas
from talk import PLUGINS, call
from wire import lapse

from tealagents.testing.forking import Nursery
from tealagents.testing.pytest_stores import Place
from tealagents.testing.waits import until

SCRIPT = {
    "rules": [
        {"when": {"text": "dripping"}, "reply": {"text": "drip " * 20, "piece_delay_ms": 30}},
        {"when": {"text": "for ever"}, "reply": {"text": "never", "headers_delay_ms": 600_000}},
    ]
}


def asked(client: OpenAI, words: Any, **options: Any) -> Any:
    return client.responses.create(model="Tester", input=words, **options)


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_response_is_continued_followed_and_decided_elsewhere(
    place: Place, nursery: Nursery, tmp_path: Path
) -> None:
    """Whatever one process began, another streams, branches, approves, cancels and reads the same."""
    env = {"TA_PERSISTENCE": place.url, "TA_PLUGIN_MODULE": str(PLUGINS)}
    file = tmp_path / "written"
    with replicas(nursery, tmp_path, env=env, script=SCRIPT, **SPEC) as pair:
        one, two = sdk(pair.first), sdk(pair.second)
        first = asked(one, "My name is Ada.")
        assert two.responses.retrieve(first.id) == first
        second = asked(two, "What is my name?", previous_response_id=first.id)
        branch = asked(two, "What is my name?", previous_response_id=first.id)
        assert "Ada" in second.output_text
        assert "Ada" in branch.output_text
        live = list(asked(one, "dripping", stream=True))
        replay = list(two.responses.retrieve(live[0].response.id, stream=True, starting_after=3))
        assert replay == live[4:]
        begun = asked(one, "dripping", background=True)
        followed = list(two.responses.retrieve(begun.id, stream=True))
        assert followed[-1].type == "response.completed"
        paused = asked(one, call("Work-write", file=str(file), line="one"))
        answer = [
            {
                "type": "mcp_approval_response",
                "approval_request_id": paused.output[-1].id,
                "approve": True,
            }
        ]
        assert asked(two, answer) == asked(one, answer)
        assert file.read_text() == "one\n"
        running = asked(one, "for ever", background=True)
        assert two.responses.cancel(running.id).status == "cancelled"
        assert one.responses.retrieve(running.id).status == "cancelled"


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_what_is_not_stored_is_followed_and_cancelled_elsewhere(
    place: Place, nursery: Nursery, tmp_path: Path
) -> None:
    """To its end, behind which it is gone everywhere."""
    env = {"TA_PERSISTENCE": place.url, "TA_PLUGIN_MODULE": str(PLUGINS)}
    with replicas(nursery, tmp_path, env=env, script=SCRIPT, **SPEC) as pair:
        one, two = sdk(pair.first), sdk(pair.second)
        for words, status in [("dripping", "completed"), ("for ever", "cancelled")] * 3:
            live = asked(one, words, stream=True, store=False)
            response_id = next(live).response.id
            followed = two.responses.retrieve(response_id, stream=True)
            next(followed)
            if words == "for ever":
                cancelled = two.responses.cancel(response_id)
                assert (cancelled.id, cancelled.status) == (response_id, status)
            *_, last = live
            *_, last_elsewhere = followed
            assert last_elsewhere == last
            assert last.response.status == status
            for client in (one, two):
                until(partial(is_gone, client, response_id))


def is_gone(client: OpenAI, response_id: str) -> bool:
    try:
        client.responses.retrieve(response_id)
    except NotFoundError:
        return True
    return False


def test_what_was_answered_survives_a_kill(nursery: Nursery, tmp_path: Path) -> None:
    """After `kill -9` answers read as they were, a pause can be decided, and what ran has failed."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    file = tmp_path / "written"
    with replicas(nursery, tmp_path, 1, env=env, script=SCRIPT, **SPEC) as alone:
        client = sdk(alone.first, max_retries=3)
        first = asked(client, "My name is Ada.")
        events = list(asked(client, "dripping", stream=True))
        paused = asked(client, call("Work-write", file=str(file), line="one"))
        running = asked(client, "for ever", background=True)
        alone.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        alone.first.start()
        assert client.responses.retrieve(first.id) == first
        replay = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=2))
        assert replay == events[3:]
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": paused.output[-1].id,
            "approve": True,
        }
        assert asked(client, [answer]).status == "completed"
        assert file.read_text() == "one\n"
        until(lambda: client.responses.retrieve(running.id).status == "failed")
        error = client.responses.retrieve(running.id).error
        assert error is not None
        assert error.to_dict()["type"] == "interrupted"
        assert "Ada" in asked(client, "What is my name?", previous_response_id=first.id).output_text


def test_a_client_that_has_seen_more_than_was_stored_gets_the_end(nursery: Nursery, tmp_path: Path) -> None:
    """The process dies between two writes of its stream: the replay ends behind all that was seen."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    with replicas(nursery, tmp_path, 1, env=env, **SPEC) as alone:
        client = sdk(alone.first, max_retries=3)
        with asked(client, "pieces-100000@1ms", stream=True) as stream:
            response_id = next(stream).response.id
            while (last := next(stream).sequence_number) < 300:
                pass
            alone.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        alone.first.start()
        until(lambda: client.responses.retrieve(response_id).status == "failed")
        with pytest.raises(APIError) as raised:
            list(client.responses.retrieve(response_id, stream=True, starting_after=last))
        assert raised.value.code == "interrupted"


def test_an_output_is_known_after_a_kill(nursery: Nursery, tmp_path: Path) -> None:
    """The process ends while the model is asked behind an output: the output alone starts a new attempt."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    hangs = {"text": "never", "headers_delay_ms": 600_000}
    script = {"rules": [{"when": {"text": "hang", "tool_result": True}, "reply": hangs, "times": 1}]}
    with replicas(nursery, tmp_path, 1, env=env, script=script, **SPEC) as alone:
        client = sdk(alone.first, max_retries=3)
        paused = asked(client, f"{call('get_weather', place='Rome')} and hang", tools=[WEATHER])
        answer = [{"type": "function_call_output", "call_id": paused.output[0].call_id, "output": "sunny"}]
        running = asked(client, answer, background=True)
        until(lambda: len(alone.model.requests) == 2)
        alone.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        alone.first.start()
        until(lambda: client.responses.retrieve(running.id).status == "failed")
        again = asked(client, answer)
        assert "sunny" in again.output_text
        assert again.conversation == paused.conversation
        assert asked(client, answer) == again
