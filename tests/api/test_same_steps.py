"""A turn is written once: the library and the service record the same steps."""

from functools import partial
from pathlib import Path
from typing import Any

import yaml
from talk import PLUGINS, approve, call, send, working_service

from tealagents import Agent
from tealagents.testing.service import agent_config


def config_of(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config(agent={"plugins": ["Work"]})))
    return path


def shape(step: Any) -> tuple[Any, ...]:
    """What is the same of a step wherever it is recorded: kind, name, outcome, and what it holds."""
    get = step.get if isinstance(step, dict) else partial(getattr, step)
    held = [*sorted(get("input") or {}), *sorted(get("output") or {})]
    return get("kind"), get("name"), get("outcome"), bool(get("is_error")), held


async def test_the_steps_of_a_conversation_are_the_same_both_ways(tmp_path: Path) -> None:
    """In kind and order, over REST and in the library: a tool, one that fails, one that is approved.

    covers: TASK-3
    """
    note = tmp_path / "notes"
    approved = call("Work-write", file=str(note), line="x")
    said = [call("Work-repeat", text="a", times=2), call("Work-slip"), approved, "bye"]
    with working_service() as (service, model), service.client() as ada:
        answers = [send(ada, said[0])]
        task_id = answers[0]["task_id"]
        for words in said[1:]:
            answers.append(send(ada, words, task_id=task_id))
            if answers[-1]["status"] == "Paused":
                approve(ada, answers[-1]["content"])
        over_rest = ada.get(f"/tasks/{task_id}/trace", params={"limit": 200}).json()["items"]
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "key", "TA_PLUGIN_MODULE": str(PLUGINS)}
        in_library: list[Any] = []
        async with Agent.from_config(
            config_of(tmp_path), env=env, dotenv=None, approve=lambda _: True
        ) as agent:
            thread = agent.new_thread()
            for words in said:
                in_library += (await agent.run(words, thread)).steps
    assert [shape(step) for step in in_library] == [shape(step) for step in over_rest]
    assert [step.kind for step in in_library].count("tool") == 3
    assert [step.name for step in in_library if step.kind == "approval"] == ["requested", "decided"]
