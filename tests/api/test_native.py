"""What a model wants back with its tool calls, in a whole service: it is sent back, and never shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from talk import send
from thinking_model import SECRET
from wire import problem, streamed, text

from tealagents.testing.service import ServiceThread, agent_config

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def thinking() -> Iterator[ServiceThread]:
    agent = {"client": "thinking_model:Thinking", "plugins": ["Shell"]}
    env = {
        "TA_AUTH": "mock",
        "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
        "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
    }
    with ServiceThread(agent_config(agent=agent, console={"enabled": True}), env) as service:
        yield service


def test_it_comes_back_and_is_never_shown(thinking: ServiceThread) -> None:
    """In later turns and after a pause; in no answer, event, message, trace, prompt, audit or export."""
    with thinking.client() as ada:
        first = send(ada, "Shell-look")
        assert first["status"] == "Completed"
        task = {"task_id": first["task_id"]}
        events = streamed(ada, "", text("Shell-look", **task))
        assert events[-1].name == "final-response"
        paused = send(ada, "Shell-delete", **task)
        assert paused["status"] == "Paused"
        resumed = ada.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"})
        assert resumed.json()["status"] == "Completed"
        forked = ada.post(f"/tasks/{first['task_id']}/fork", json={}).json()["task_id"]
        again = send(ada, "Shell-look", task_id=forked)
        assert again["status"] == "Completed"
        prompt = ada.get(f"/requests/{again['request_id']}/prompt", params={"limit": 200}).json()
        assert prompt["gaps"] == []
        assert len(prompt["items"]) == prompt["parts_sent"] == 16
        shown = [first, paused, resumed.text, again, prompt, [event.data for event in events]]
        views = ("messages", "trace", "audit", "export", "checkpoints")
        shown += [ada.get(f"/tasks/{first['task_id']}/{view}").raise_for_status().text for view in views]
        assert SECRET not in str(shown)


def test_it_cannot_be_imported(thinking: ServiceThread) -> None:
    """A document has none of it, and is refused where some was written into it."""
    with thinking.client() as ada:
        task = send(ada, "Shell-look")["task_id"]
        document = ada.get(f"/tasks/{task}/export").raise_for_status().json()
        ada.delete(f"/tasks/{task}").raise_for_status()
        at = next(
            n for n, e in enumerate(document["entries"]) if "tool_calls" in e["body"].get("message", {})
        )
        document["entries"][at]["body"]["message"]["native"] = "mine"
        refused = ada.post("/tasks/import", json=document)
        problem(refused, 422, "invalid_request", f"entries.{at}.body.message.native")
