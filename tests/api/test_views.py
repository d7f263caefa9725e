"""Views and context providers of the service, over HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from wire import problem, text

from tealagents.bootstrap import application
from tealagents.config import load
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread, agent_config, offline_service
from tealagents.threads.errors import ThreadConfigError

Json = dict[str, Any]
HERE = Path(__file__).parent
ENV = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
}


@contextmanager
def talking(
    *,
    reducers: list[Json] | None = None,
    providers: list[Any] | None = None,
    catalogue: Path | None = HERE / "catalogue.json",
    **spec: Any,
) -> Iterator[tuple[httpx.Client, OfflineModel, ServiceThread]]:
    thread = {"reducers": reducers or [], "context_providers": providers or []}
    env = ENV | ({"TA_PLUGIN_CATALOG_FILE": str(catalogue)} if catalogue else {})
    with (
        offline_service(env=env, agent={"plugins": ["Shell"]}, thread=thread, **spec) as (service, model),
        service.client() as client,
    ):
        yield client, model, service


def say(client: httpx.Client, words: str, task: str | None = None, **fields: Any) -> Json:
    body = text(words, **({"task_id": task} if task else {}), **fields)
    answer: Json = client.post("", json=body).raise_for_status().json()
    return answer


def spoken(model: OfflineModel) -> list[list[Json]]:
    """The messages of each call of the model, without system messages."""
    return [
        [message for message in request["body"]["messages"] if message["role"] != "system"]
        for request in model.requests
    ]


def steps(client: httpx.Client, task: str, kind: str) -> list[Json]:
    found = client.get(f"/tasks/{task}/trace", params={"limit": 200}).raise_for_status().json()["items"]
    return [step for step in found if step["kind"] == kind]


LOOK = 'call Shell-look {"path": "/x"} and call Shell-look {"path": "/y"}'


def test_every_call_of_the_model_keeps_to_the_count() -> None:
    """Tool rounds included; what is stored is whole, what was left out is in the trace. covers: THREAD-8"""
    with talking(reducers=[{"name": "message_count", "max_messages": 5}]) as (client, model, _):
        task = say(client, "My name is Ada.")["task_id"]
        for n in range(6):
            say(client, LOOK if n % 2 else f"turn {n}", task)
        calls = spoken(model)
        assert len(calls) == 10
        assert all(len(messages) <= 5 for messages in calls)
        for messages in calls:
            called = [call["id"] for m in messages for call in m.get("tool_calls") or ()]
            assert called == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        assert all(request["body"]["messages"][0]["role"] == "system" for request in model.requests)
        stored = client.get(f"/tasks/{task}/messages", params={"limit": 200}).json()["items"]
        assert len(stored) == 2 + 3 * 2 + 3 * 5
        reductions = steps(client, task, "reduction")
        assert reductions
        assert all(step["input"] == {"reducers": ["message_count"]} for step in reductions)
        ids = [message["message_id"] for message in stored]
        assert all(step["output"]["everything_before"] in ids for step in reductions)


def test_what_the_application_says_counts_too() -> None:
    """`user_context` is a message of the running round. covers: THREAD-8"""
    with talking(reducers=[{"name": "message_count", "max_messages": 3}]) as (client, model, _):
        task = say(client, "one")["task_id"]
        say(client, "two", task, user_context={"city": "Oslo"})
        assert len(spoken(model)[-1]) == 3


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_view_is_the_same_behind_a_pause(action: str, tmp_path: Path) -> None:
    """Also where another process decides it. covers: THREAD-8"""
    store: Json = {"persistence": f"sqlite:///{tmp_path}/state.db"}
    reducers = [{"name": "message_count", "max_messages": 4}]
    with talking(reducers=reducers, **store) as (client, model, _):
        task = say(client, "My name is Ada.")["task_id"]
        say(client, "I live in Oslo.", task)
        paused = say(client, 'call Shell-delete {"path": "/x"}', task)
        assert paused["status"] == "Paused"
    with talking(reducers=reducers, **store) as (client, model, _):
        path = f"/requests/{paused['request_id']}/resume"
        assert client.post(path, json={"action": action}).json()["status"] == "Completed"
        (messages,) = spoken(model)
        assert [message["role"] for message in messages] == ["assistant", "user", "assistant", "tool"]


def test_a_reducer_that_breaks_its_promise_fails_the_request() -> None:
    """Nothing is sent; the task continues. covers: THREAD-8"""
    with talking(reducers=[{"name": "threads_extras:broken"}]) as (client, model, _):
        task = say(client, LOOK)["task_id"]
        before = len(model.requests)
        refused = problem(client.post("", json=text("hello", task_id=task)), 502, "model_error")
        assert "separated a tool call from its result" in refused["detail"]
        assert len(model.requests) == before


def test_a_reducer_of_a_third_party() -> None:
    """`module:function`, beside those that come along. covers: THREAD-8"""
    with talking(reducers=[{"name": "threads_extras:forgetful"}]) as (client, _, _):
        task = say(client, "My name is Ada.")["task_id"]
        assert say(client, "What is my name?", task)["content"]["output"] == "You have not told me your name."


@pytest.mark.parametrize(
    ("thread", "complaint"),
    [
        ({"reducers": [{"name": "mesage_count"}]}, "Unknown reducer"),
        ({"reducers": [{"name": "token_budget"}]}, "context window of the model 'offline' is not known"),
        ({"context_providers": ["user_preference"]}, "Unknown context provider"),
    ],
)
def test_a_config_that_cannot_be_served_says_why(thread: Json, complaint: str, tmp_path: Path) -> None:
    """At the start, in one sentence."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config(thread=thread)))
    env = {"TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "key"}
    with pytest.raises(ThreadConfigError, match=complaint):
        application(load(path, env=env, dotenv=None))


# --- context providers ----------------------------------------------------------------------------


def test_preferences_survive_a_restart(tmp_path: Path) -> None:
    """In a new session of the same user; the trace shows what was added. covers: THREAD-10"""
    store: Json = {"persistence": f"sqlite:///{tmp_path}/state.db"}
    with talking(providers=["user_preferences"], **store) as (client, _, _):
        say(client, "I prefer tea.")
    with talking(providers=["user_preferences"], **store) as (client, model, service):
        answer = say(client, "hello")
        instructions = [m["content"] for m in model.requests[-1]["body"]["messages"] if m["role"] == "system"]
        assert instructions[1].endswith("- tea")
        (step,) = steps(client, answer["task_id"], "context")
        assert step["name"] == "user_preferences"
        assert step["output"]["instructions"] == instructions[1]
        with service.client("eve") as eve:
            say(eve, "hello")
            assert len(model.requests[-1]["body"]["messages"]) == 2


@pytest.mark.parametrize("required", [False, True])
def test_a_provider_that_fails(required: bool) -> None:
    """A step of the trace; where it is required, the request fails. covers: THREAD-10"""
    provider = {"name": "threads_extras:Failing", "required": required}
    with talking(providers=[provider]) as (client, _, _):
        answer = client.post("", json=text("hello"))
        if required:
            reported = problem(answer, 502, "model_error")
            assert (
                "The context provider Failing failed in invoking: RuntimeError: no pencil"
                in reported["detail"]
            )
        else:
            (step,) = steps(client, answer.json()["task_id"], "context")
            assert step["is_error"]
            assert step["output"] == {"error": "RuntimeError: no pencil"}
            assert answer.json()["content"]["output"] == "Hello! How can I help?"


def test_tools_of_a_provider_are_called() -> None:
    """Offered beside the agent's own. covers: THREAD-10"""
    with talking(providers=["facts"], catalogue=None) as (client, model, _):
        answer = say(client, 'call facts-remember {"fact": "Ada has a bicycle."}')
        assert answer["content"]["output"] == "facts-remember said: Noted."
        offered = [tool["function"]["name"] for tool in model.requests[0]["body"]["tools"]]
        assert {"Shell-look", "facts-search", "facts-remember"} <= set(offered)
        assert "bicycle" in say(client, 'call facts-search {"query": "bicycles"}')["content"]["output"]


def test_tools_of_a_provider_are_governed(tmp_path: Path) -> None:
    """The catalogue decides about them, too; one that it does not name is not trusted. covers: HITL-2"""
    catalogue = tmp_path / "catalogue.json"
    search = {"tool_id": "facts-search", "governance": {"requires_hitl": False, "cost": "low"}}
    search["governance"] |= {"data_sensitivity": "public"}  # type: ignore[operator]
    plugin = {"plugin_id": "facts", "plugin_type": {"type_name": "code"}, "tools": [search]}
    catalogue.write_text(json.dumps({"plugins": [plugin]}))
    with talking(providers=["facts"], catalogue=catalogue) as (client, _, _):
        paused = say(client, 'call facts-remember {"fact": "Ada has a bicycle."}')
        assert paused["status"] == "Paused"
        [call] = paused["content"]["tool_calls"]
        assert (call["plugin_name"], call["function_name"]) == ("facts", "remember")
        url = paused["content"]["approval_url"].removeprefix(client.base_url.path.rstrip("/"))
        approved = client.post(url, json={"action": "approve"}).raise_for_status().json()
        assert approved["content"]["output"] == "facts-remember said: Noted."
        assert "bicycle" in say(client, 'call facts-search {"query": "bicycles"}')["content"]["output"]


def governing_facts(path: Path, cost: str = "low") -> Path:
    remember = {"tool_id": "facts-remember", "governance": {"requires_hitl": True, "cost": cost}}
    search = {"tool_id": "facts-search", "governance": {"requires_hitl": False}}
    path.write_text(json.dumps({"plugins": [{"plugin_id": "facts", "tools": [remember, search]}]}))
    return path


def pause_of(client: httpx.Client, paused: Json) -> Json:
    path = f"/requests/{paused['request_id']}/approvals/{paused['content']['approval_id']}"
    shown: Json = client.get(path).raise_for_status().json()
    return shown


def test_a_call_of_a_providers_tool_is_shown_and_edited_like_any_other(tmp_path: Path) -> None:
    """An approver reads what the tool takes, and a typo leaves the pause as it is, also in another process.

    covers: HITL-1
    """
    store: Json = {"persistence": f"sqlite:///{tmp_path}/state.db"}
    catalogue = governing_facts(tmp_path / "catalogue.json")
    with talking(providers=["facts"], catalogue=catalogue, **store) as (client, model, _):
        paused = say(client, 'call facts-remember {"fact": "I like tea."}')
        (offered,) = (
            tool["function"]
            for tool in model.requests[0]["body"]["tools"]
            if tool["function"]["name"] == "facts-remember"
        )
    with talking(providers=["facts"], catalogue=catalogue, **store) as (client, _, _):
        (call,) = pause_of(client, paused)["tool_calls"]
        assert (call["description"], call["parameters"]) == (offered["description"], offered["parameters"])
        path = f"/requests/{paused['request_id']}/resume"
        edited: Json = {"id": call["id"], "arguments": {"fct": "I like coffee."}}
        decision: Json = {"action": "approve", "decisions": [edited]}
        refused = problem(client.post(path, json=decision), 422, "invalid_request", "decisions.0.arguments")
        assert "'fact' is a required property" in refused["detail"]
        assert pause_of(client, paused)["status"] == "pending"
        edited["arguments"] = {"fact": "I like coffee."}
        done = client.post(path, json=decision).raise_for_status().json()
        assert done["content"]["output"] == "facts-remember said: Noted."
        assert "coffee" in say(client, 'call facts-search {"query": "coffee"}')["content"]["output"]


def test_a_providers_tool_that_is_governed_otherwise_by_now_is_not_shown(tmp_path: Path) -> None:
    """It is not the one that the pause is for any more. covers: HITL-1"""
    store: Json = {"persistence": f"sqlite:///{tmp_path}/state.db"}
    catalogue = governing_facts(tmp_path / "catalogue.json")
    with talking(providers=["facts"], catalogue=catalogue, **store) as (client, _, _):
        paused = say(client, 'call facts-remember {"fact": "I like tea."}')
    governing_facts(catalogue, cost="high")
    with talking(providers=["facts"], catalogue=catalogue, **store) as (client, _, _):
        (call,) = pause_of(client, paused)["tool_calls"]
        assert (call["description"], call["parameters"]) == (None, None)


def test_a_remote_conversation_has_its_context() -> None:
    """Sent in the instructions, which go with each call. covers: THREAD-4, THREAD-10"""
    thread = {"kind": "remote", "context_providers": ["user_preferences"]}
    with offline_service(thread=thread) as (service, model), service.client() as client:
        say(client, "I prefer tea.")
        say(client, "hello")
        assert model.requests[-1]["body"]["instructions"].endswith("- tea")
        assert len(model.requests[-1]["body"]["input"]) == 1
