"""Tasks whose conversation the model service keeps, over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from wire import problem, streamed, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread, agent_config, offline_service

Json = dict[str, Any]
HERE = Path(__file__).parent
ENV = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
    "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
}


@pytest.fixture
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with offline_service(env=ENV, agent={"plugins": ["Shell"]}, thread={"kind": "remote"}) as pair:
        yield pair


def say(client: httpx.Client, words: str, task: str | None = None, **fields: Any) -> Json:
    body = text(words, **({"task_id": task} if task else {}), **fields)
    answer: Json = client.post("", json=body).raise_for_status().json()
    return answer


def output(answer: Json) -> str:
    return str(answer["content"]["output"])


def bodies(model: OfflineModel) -> list[Json]:
    """What the model service was asked."""
    return [request["body"] for request in model.requests if request["path"].endswith("/responses")]


def texts(client: httpx.Client, task: str) -> list[str]:
    found = client.get(f"/tasks/{task}/messages").raise_for_status().json()["items"]
    return ["".join(item["content"] for item in message["items"]) for message in found]


def test_only_what_is_new_is_sent(ada: httpx.Client, model: OfflineModel) -> None:
    """It continues the last response; the instructions go along each time. covers: THREAD-4"""
    task = say(ada, "My name is Ada.")["task_id"]
    assert output(say(ada, "What is my name?", task)) == "Your name is Ada."
    first, second = bodies(model)
    assert "previous_response_id" not in first
    assert second["previous_response_id"].startswith("resp_")
    assert [item["content"] for item in second["input"]] == ["What is my name?"]
    assert second["instructions"] == "You are a test."
    assert first["store"] is second["store"] is True
    assert texts(ada, task)[0::2] == ["My name is Ada.", "What is my name?"]


def test_an_id_that_the_model_uses_again_is_its_own_to_the_service() -> None:
    """The second call is decided by another id; the service knows it by its own. covers: HITL-1"""
    delete = {"id": "call_0", "name": "Shell-delete", "arguments": {"path": "/b"}}
    look = {"id": "call_0", "name": "Shell-look", "arguments": {"path": "/a"}}
    script = {
        "rules": [
            {
                "when": {"text": "tidy", "tool_result": True, "result_text": "/a"},
                "reply": {"tool_calls": [delete]},
            },
            {"when": {"text": "tidy", "tool_result": True}, "reply": {"text": "done"}},
            {"when": {"text": "tidy"}, "reply": {"tool_calls": [look]}},
        ]
    }
    agent, thread = {"plugins": ["Shell"]}, {"kind": "remote"}
    with (
        offline_service(script, ENV, agent=agent, thread=thread) as (service, model),
        service.client() as ada,
    ):
        paused = say(ada, "tidy")
        (shown,) = paused["content"]["tool_calls"]
        assert shown["id"] != "call_0"
        decision = {"decisions": [{"id": shown["id"], "action": "approve"}]}
        resumed = (
            ada.post(f"/requests/{paused['request_id']}/resume", json=decision).raise_for_status().json()
        )
        assert output(resumed) == "done"
        answered = [item for body in bodies(model)[1:] for item in body["input"]]
        assert [item["call_id"] for item in answered] == ["call_0", "call_0"]


def test_it_can_be_streamed(ada: httpx.Client) -> None:
    """As any other task."""
    task = say(ada, "My name is Ada.")["task_id"]
    events = streamed(ada, "", text("What is my name?", task_id=task))
    assert events[-1].name == "final-response"
    assert "".join(e.data["output_partial"] for e in events if e.name == "partial-response") == (
        "Your name is Ada."
    )


def test_tools_continue_the_response_that_asked(ada: httpx.Client, model: OfflineModel) -> None:
    """Each call carries only the results. covers: THREAD-4"""
    answer = say(ada, 'call Shell-look {"path": "/x"} and call Shell-look {"path": "/y"}')
    assert "/x holds nothing" in output(answer)
    assert "/y holds nothing" in output(answer)
    asked, answered = bodies(model)
    assert [item["type"] for item in answered["input"]] == ["function_call_output"] * 2
    assert answered["previous_response_id"]
    assert asked["tools"] == answered["tools"]
    assert output(say(ada, "hello", answer["task_id"])) == "Hello! How can I help?"


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_pause_continues_where_it_was(ada: httpx.Client, model: OfflineModel, action: str) -> None:
    """Results from before the pause and from after it are sent together. covers: THREAD-4"""
    task = say(ada, "My name is Ada.")["task_id"]
    paused = say(ada, 'call Shell-delete {"path": "/x"} and call Shell-look {"path": "/y"}', task)
    assert paused["status"] == "Paused"
    model.clear()
    path = f"/requests/{paused['request_id']}/resume"
    resumed = ada.post(path, json={"action": action}).raise_for_status().json()
    assert resumed["status"] == "Completed"
    assert "/y holds nothing" in output(resumed)
    assert ("deleted /x" in output(resumed)) == (action == "approve")
    (body,) = bodies(model)
    assert len(body["input"]) == 2
    assert output(say(ada, "What is my name?", task)) == "Your name is Ada."


def test_a_failed_request_is_no_part_of_it(ada: httpx.Client, model: OfflineModel) -> None:
    """The next one continues from the last that completed. covers: THREAD-4"""
    task = say(ada, "My name is Ada.")["task_id"]
    model.script({"rules": [{"when": "fail", "reply": {"error": {"status": 400, "message": "no"}}}]})
    assert ada.post("", json=text("fail now", task_id=task)).status_code == 502
    assert output(say(ada, "How many messages have I sent?", task)) == "You have sent 2 messages."
    assert output(say(ada, "What is my name?", task)) == "Your name is Ada."


def test_a_lost_conversation_says_so(ada: httpx.Client, running: Any) -> None:
    """`502 remote_thread_lost`; a fork from before what was lost continues. covers: THREAD-1"""
    _, model = running
    first = say(ada, "My name is Ada.")
    task = first["task_id"]
    second = say(ada, "I live in Oslo.", task)
    lost = bodies(model)[-1]["previous_response_id"]
    document = ada.get(f"/tasks/{task}/export").json()
    ids = [request["remote_id"] for request in document["requests"]]
    assert ids[0] == lost
    httpx.delete(f"{model.base_url}/responses/{ids[1]}", verify=False).raise_for_status()
    refused = problem(ada.post("", json=text("hello", task_id=task)), 502, "remote_thread_lost")
    assert refused["task_id"] == task
    assert "no longer has the conversation" in refused["detail"]
    assert second["request_id"]
    fork = ada.post(f"/tasks/{task}/fork", json={"checkpoint_id": first["request_id"]}).json()["task_id"]
    assert output(say(ada, "What is my name?", fork)) == "Your name is Ada."


def test_the_advice_about_a_lost_conversation_helps(ada: httpx.Client, model: OfflineModel) -> None:
    """Where the service has forgotten every response of the task: a fork at its last message sends its
    messages again. covers: THREAD-1, THREAD-6"""
    task = say(ada, "My name is Ada.")["task_id"]
    say(ada, "I live in Oslo.", task)
    document = ada.get(f"/tasks/{task}/export").json()
    for request in document["requests"]:
        url = f"{model.base_url}/responses/{request['remote_id']}"
        httpx.delete(url, verify=False).raise_for_status()
    lost = problem(ada.post("", json=text("hello", task_id=task)), 502, "remote_thread_lost")
    assert "fork the task at its last message (`message_id`)" in lost["detail"]
    last = ada.get(f"/tasks/{task}/messages").json()["items"][-1]["message_id"]
    fork = ada.post(f"/tasks/{task}/fork", json={"message_id": last}).raise_for_status().json()["task_id"]
    assert output(say(ada, "What is my name?", fork)) == "Your name is Ada."
    assert output(say(ada, "Where do I live?", fork)) == "You live in Oslo."


def test_rollback_goes_back_to_the_response_of_then(ada: httpx.Client) -> None:
    """And forward again. covers: THREAD-7"""
    marks = []
    task: str | None = None
    for name in ("Ada", "Eve"):
        answer = say(ada, f"My name is {name}.", task)
        task = answer["task_id"]
        marks.append(answer["request_id"])
    for mark, name in ((marks[0], "Ada"), (marks[1], "Eve"), (marks[0], "Ada")):
        ada.post(f"/tasks/{task}/rollback", json={"checkpoint_id": mark}).raise_for_status()
        assert output(say(ada, "What is my name?", task)) == f"Your name is {name}."


def test_a_fork_shares_what_the_service_keeps(ada: httpx.Client, model: OfflineModel) -> None:
    """At a checkpoint both continue the same response; in the middle of a round, where the service has no
    place to continue from, the fork's messages are sent once. covers: THREAD-6"""
    task = say(ada, "My name is Ada.")["task_id"]
    say(ada, "I live in Oslo.", task)
    fork = ada.post(f"/tasks/{task}/fork", json={}).json()["task_id"]
    say(ada, "My name is Eve.", task)
    model.clear()
    assert output(say(ada, "What is my name?", fork)) == "Your name is Ada."
    (body,) = bodies(model)
    assert len(body["input"]) == 1
    messages = ada.get(f"/tasks/{task}/messages").json()["items"]
    middle = ada.post(f"/tasks/{task}/fork", json={"message_id": messages[2]["message_id"]}).json()
    model.clear()
    assert output(say(ada, "Where do I live?", middle["task_id"])) == "You live in Oslo."
    assert output(say(ada, "What is my name?", middle["task_id"])) == "Your name is Ada."
    first, second = bodies(model)
    assert len(first["input"]) == 4
    assert "previous_response_id" not in first
    assert len(second["input"]) == 1
    assert ada.delete(f"/tasks/{task}").status_code == 204
    assert output(say(ada, "What is my name?", fork)) == "Your name is Ada."


def test_the_kind_can_change_under_a_task(tmp_path: Path) -> None:
    """What was said locally is sent once when the service is to keep it; what was said remotely is here as
    well, and nothing of it is lost on the way back. covers: THREAD-1, THREAD-4"""
    store = {"persistence": f"sqlite:///{tmp_path}/state.db"}
    facts = [("Ada", "local"), ("Eve", "remote"), ("Joe", "local"), ("Kim", "remote"), ("Lea", "remote")]
    task: str | None = None
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "key", "TA_AUTH": "mock"}
        for n, (name, kind) in enumerate(facts):
            config = agent_config(thread={"kind": kind}, **store)
            with ServiceThread(config, env) as service, service.client() as ada:
                task = say(ada, f"My name is {name}.", task)["task_id"]
                answered = say(ada, "How many messages have I sent?", task)
                assert output(answered) == f"You have sent {2 * n + 2} messages."


def test_a_task_that_is_local_again_continues_no_response(tmp_path: Path) -> None:
    """The client is the same, and what the service kept is gone: all of it is sent, and nothing continued.
    covers: THREAD-1"""
    task: str | None = None
    for kind, words in [("remote", "My name is Ada."), ("local", "What is my name?")]:
        with OfflineModel() as model:
            env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "key", "TA_AUTH": "mock"}
            config = agent_config(
                agent={"client": "openai-responses"},
                thread={"kind": kind},
                persistence=f"sqlite:///{tmp_path}/state.db",
            )
            with ServiceThread(config, env) as service, service.client() as ada:
                answer = say(ada, words, task)
                task = answer["task_id"]
    assert output(answer) == "Your name is Ada."


@pytest.mark.parametrize(
    "kinds",
    [
        ("remote", "local", "remote"),
        ("remote", "remote", "local", "remote"),
        ("local", "local", "remote"),
        ("remote", "local", "local", "remote"),
        ("remote", "remote", "remote"),
    ],
    ids=" ".join,
)
def test_a_pause_continues_where_its_request_was(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """Not where its task was: what the request did while it was local the service does not have, and is sent
    with all the rest. The first kind answers a message, the last decides the last pause; those between pause.
    covers: THREAD-4, HITL-1"""
    again = [
        {"when": {"text": "tidy", "result_text": f"/{n}"}, "reply": {"tool_calls": [_deleting(n + 1)]}}
        for n in range(len(kinds) - 3)
    ]
    script = {
        "rules": [
            *again,
            {"when": {"text": "tidy", "tool_result": True}, "reply": {"text": "done"}},
            {"when": {"text": "tidy"}, "reply": {"tool_calls": [_deleting(0)]}},
        ]
    }
    answer: Json = {}
    with OfflineModel(script) as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "key", "TA_AUTH": "mock", **ENV}
        for n, kind in enumerate(kinds):
            config = agent_config(
                agent={"client": "openai-responses", "plugins": ["Shell"]},
                thread={"kind": kind},
                persistence=f"sqlite:///{tmp_path}/state.db",
            )
            with ServiceThread(config, env) as service, service.client() as ada:
                if n < 2:
                    answer = say(ada, ("My name is Ada.", "tidy")[n], answer.get("task_id"))
                else:
                    (waiting,) = answer["content"]["tool_calls"]
                    decision = {"decisions": [{"id": waiting["id"], "action": "approve"}]}
                    path = f"/requests/{answer['request_id']}/resume"
                    answer = ada.post(path, json=decision).raise_for_status().json()
                if n == len(kinds) - 1:
                    assert output(answer) == "done"
                    path = f"/requests/{answer['request_id']}/prompt?limit=200"
                    prompt = ada.get(path).raise_for_status().json()
                    assert prompt["gaps"] == []
                    sent = bodies(model)[-1]["input"]
                    assert [each["role"] for each in prompt["items"][1:]] == list(map(_role, sent))
                    assert output(say(ada, "What is my name?", answer["task_id"])) == "Your name is Ada."
                    asked = say(ada, "How many messages have I sent?", answer["task_id"])
                    assert output(asked) == "You have sent 4 messages."


def _role(item: Json) -> str:
    """Of the message that an item of a body was made of."""
    kinds = {"function_call": "assistant", "function_call_output": "tool"}
    return kinds.get(item["type"]) or str(item["role"])


def _deleting(number: int) -> Json:
    return {"id": f"call_{number}", "name": "Shell-delete", "arguments": {"path": f"/{number}"}}


def test_the_context_of_a_request_is_not_kept(ada: httpx.Client, model: OfflineModel) -> None:
    """It is sent in the instructions: what is in the conversation, the service sends with every request."""
    given = {**text("hello"), "user_context": {"City": "Oslo"}}
    first = ada.post("", json=given).raise_for_status().json()
    assert "City: Oslo" in bodies(model)[-1]["instructions"]
    assert len(bodies(model)[-1]["input"]) == 1
    prompt = ada.get(f"/requests/{first['request_id']}/prompt").raise_for_status().json()
    assert ("note", True) in [(part["origin"], "City: Oslo" in str(part)) for part in prompt["items"]]
    assert prompt["gaps"] == []
    assert output(say(ada, "How many messages have I sent?", first["task_id"])) == "You have sent 2 messages."
    assert "Oslo" not in str(bodies(model)[-1])


def test_instructions_of_the_moment_are_not_kept(ada: httpx.Client, model: OfflineModel) -> None:
    """What went wrong with tools of a failed request is sent in the instructions, not in the conversation."""
    task = say(ada, "hello")["task_id"]
    model.script(
        {
            "rules": [
                {"when": {"tool_result": True}, "reply": {"error": {"status": 400, "message": "no"}}},
                {
                    "when": "look",
                    "reply": {"tool_calls": [{"name": "Shell-look", "arguments": {"path": "x"}}]},
                },
            ]
        }
    )
    assert ada.post("", json=text("look", task_id=task)).status_code == 502
    model.script({})
    for _ in range(2):
        say(ada, "hello", task)
        body = bodies(model)[-1]
        assert "Shell-look" in body["instructions"]
        assert len(body["input"]) == 1
