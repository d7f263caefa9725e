"""What the model was sent, put together again from what is stored, held against what it has received."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from wire import NOBODYS, Json, problem, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import offline_service

HERE = Path(__file__).parent
ENV = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
    "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
}
LOOK = 'call Shell-look {"path": "/x"} and call Shell-look {"path": "/y"}'
PAUSE = 'call Shell-look {"path": "/x"} and call Shell-delete {"path": "/y"}'
#: a request that fails after its tool has run
FAILING = {
    "rules": [
        {
            "when": {"text": "then fail", "tool_result": True},
            "reply": {"error": {"status": 400, "message": "no such luck"}},
        }
    ]
}


@contextmanager
def talking(script: Any = None, **spec: Any) -> Iterator[tuple[httpx.Client, OfflineModel]]:
    spec = {"console": {"enabled": True}, **spec}
    with (
        offline_service(script, ENV, agent={"plugins": ["Shell"]}, **spec) as (service, model),
        service.client() as client,
    ):
        yield client, model


def say(client: httpx.Client, words: str, task: str | None = None, **fields: Any) -> Json:
    body = text(words, **({"task_id": task} if task else {}), **fields)
    answer: Json = client.post("", json=body).json()
    return answer


def prompt(client: httpx.Client, request_id: str, limit: int = 3, **query: str) -> Json:
    """A prompt with the items of all its pages."""
    found: list[Json] = []
    cursor: str | None = None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = client.get(f"/requests/{request_id}/prompt", params={"limit": limit, **query, **more})
        document: Json = page.raise_for_status().json()
        found += document["items"]
        cursor = document["next_cursor"]
        if cursor is None:
            return {**document, "items": found}


def received(model: OfflineModel) -> list[list[tuple[str, str, list[str]]]]:
    """The messages of each call with tools: role, text, and the ids of tool calls. A summary has no tools."""
    return [
        [
            (each["role"], _text(each.get("content")), [call["id"] for call in each.get("tool_calls") or ()])
            for each in request["body"]["messages"]
        ]
        for request in model.requests
        if request["body"].get("tools")
    ]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def as_prompt(document: Json) -> list[tuple[str, str, list[str]]]:
    return [
        (
            item["role"],
            "".join(each["content"] for each in item["items"] if each["content_type"] == "text"),
            [call["id"] for call in item["tool_calls"]],
        )
        for item in document["items"]
    ]


def model_calls(client: httpx.Client, *tasks: str) -> list[Json]:
    """The calls of the model in the traces, in the order in which they were made."""
    found = [
        step
        for task in tasks
        for step in client.get(f"/tasks/{task}/trace", params={"limit": 200}).json()["items"]
        if step["kind"] == "model"
    ]
    return sorted(found, key=lambda step: str(step["started_at"]))


CONFIGS: dict[str, Json] = {
    "everything": {},
    "counted": {"thread": {"reducers": [{"name": "message_count", "max_messages": 4}]}},
    "summarized": {
        "thread": {"reducers": [{"name": "summarize", "max_messages": 4, "keep_messages": 2}]},
    },
    "forgetful": {"thread": {"reducers": [{"name": "threads_extras:forgetful"}]}},
    "with facts": {"thread": {"context_providers": ["facts"]}},
    "hesitant": {"thread": {"reducers": ["threads_extras:hesitant"]}},
    "with examples": {"thread": {"context_providers": ["threads_extras:Examples"]}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_what_the_model_received(name: str) -> None:
    """Tool rounds, pauses, failures, branches, forks and notes: part by part, in each call of the model."""
    with talking(FAILING, **CONFIGS[name]) as (client, model):
        task = say(client, "My name is Ada.", user_context={"city": "Oslo"})["task_id"]
        say(client, LOOK, task)
        assert say(client, f"{LOOK} then fail", task)["code"] == "model_error"
        paused = say(client, PAUSE, task, user_context={"city": "Bergen"})
        client.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"}).raise_for_status()
        say(client, "What is my name?", task)
        first = client.get(f"/tasks/{task}/checkpoints").json()["items"][-1]["checkpoint_id"]
        client.post(f"/tasks/{task}/rollback", json={"checkpoint_id": first}).raise_for_status()
        say(client, "What is my name, on another branch?", task)
        fork = client.post(f"/tasks/{task}/fork", json={}).json()["task_id"]
        say(client, LOOK, fork)
        calls = model_calls(client, task, fork)
        sent = [each for each in received(model) if "then fail" not in str(each[-4:])]
        failed = [step for step in calls if "then fail" in str(as_prompt(_of(client, step))[-1:])]
        assert len(failed) == 1
        calls.remove(failed[0])
        assert len(calls) == len(sent) >= 9
        for step, messages in zip(calls, sent, strict=True):
            document = _of(client, step)
            assert as_prompt(document) == messages
            assert document["gaps"] == []
            assert document["parts_sent"] == len(messages)


def _of(client: httpx.Client, step: Json) -> Json:
    return prompt(client, step["request_id"], step_id=step["step_id"])


def test_each_part_says_where_it_comes_from() -> None:
    """And a message which one it is."""
    with talking(FAILING) as (client, _):
        task = say(client, "My name is Ada.")["task_id"]
        say(client, f"{LOOK} then fail", task)
        last = say(client, "And now?", task, user_context={"city": "Oslo"})["request_id"]
        found = prompt(client, last)
        assert [item["origin"] for item in found["items"]] == [
            *("system_prompt", "history", "history", "note", "context", "request")
        ]
        assert "Do not repeat these calls" in found["items"][3]["items"][0]["content"]
        messages = {
            each["message_id"]: each for each in client.get(f"/tasks/{task}/messages").json()["items"]
        }
        for item in found["items"]:
            if item["message_id"] is not None:
                assert item["items"] == messages[item["message_id"]]["items"]
                assert item["request_id"] == messages[item["message_id"]]["request_id"]


def test_a_remote_conversation_was_sent_what_was_new() -> None:
    """The model service has the rest; system prompt and notes went as one text."""
    with talking(thread={"kind": "remote"}) as (client, model):
        task = say(client, "My name is Ada.")["task_id"]
        say(client, LOOK, task)
        bodies = [each["body"] for each in model.requests if each["path"].endswith("/responses")]
        for step, body in zip(model_calls(client, task), bodies, strict=True):
            document = _of(client, step)
            assert document["gaps"] == []
            system, *sent = document["items"]
            assert system["items"][0]["content"] == body["instructions"]
            assert [item["items"][0]["content"] for item in sent] == [
                each.get("output") or each["content"] for each in body["input"]
            ]


def test_what_a_reducer_has_changed_is_marked() -> None:
    """The text that is shown is the stored one."""
    reducers = [{"name": "trim_tool_results", "max_characters": 5}]
    with talking(thread={"reducers": reducers}) as (client, _):
        task = say(client, LOOK)["task_id"]
        found = prompt(client, say(client, "And now?", task)["request_id"])
        assert found["gaps"] == ["altered"]
        assert [item["role"] for item in found["items"] if item["altered"]] == ["tool", "tool"]


def test_a_message_of_which_the_trace_has_only_the_text_is_marked() -> None:
    """The picture of a context provider would be stored again with every request."""
    with talking(thread={"context_providers": ["threads_extras:Pictures"]}) as (client, _):
        found = prompt(client, say(client, "Where is it?")["request_id"])
    assert found["gaps"] == ["altered"]
    (shown,) = (item for item in found["items"] if item["altered"])
    assert (shown["origin"], shown["role"]) == ("context", "user")
    assert shown["items"] == [{"content_type": "text", "content": "This is Oslo."}]


def test_a_request_that_is_on_no_path_any_more_says_so() -> None:
    """After a rollback, what failed on the branch that was left has lost what was noted before it."""
    with talking(FAILING) as (client, _):
        first = say(client, "My name is Ada.")
        task = first["task_id"]
        lost = say(client, f"{LOOK} then fail", task)["request_id"]
        say(client, "My name is Eve.", task)
        client.post(f"/tasks/{task}/rollback", json={"checkpoint_id": first["request_id"]}).raise_for_status()
        assert prompt(client, lost)["gaps"] == ["path"]


def test_the_system_prompt_is_withheld_where_there_is_no_console() -> None:
    """It is the operator's, who shows it by serving the console."""
    with talking(console={"enabled": False}) as (client, _):
        found = prompt(client, say(client, "hi")["request_id"])
    assert [(item["origin"], item["withheld"]) for item in found["items"]] == [
        ("system_prompt", True),
        ("request", False),
    ]
    assert found["items"][0]["items"] == []
    assert "You are a test." not in str(found)


def test_a_step_that_is_no_call_of_the_request_is_not_found() -> None:
    """Neither one of another request, nor an unknown one, nor any of a request that has called no model."""
    with talking() as (client, _):
        one, other = say(client, "hi"), say(client, "hi")
        (step,) = model_calls(client, other["task_id"])
        for name in (step["step_id"], NOBODYS):
            answer = client.get(f"/requests/{one['request_id']}/prompt", params={"step_id": name})
            problem(answer, 404, "not_found")
        fork = client.post(f"/tasks/{one['task_id']}/fork", json={}).json()["checkpoint_id"]
        problem(client.get(f"/requests/{fork}/prompt"), 404, "not_found")
        malformed = client.get(f"/requests/{one['request_id']}/prompt", params={"step_id": "x"})
        problem(malformed, 422, "invalid_request", "step_id")


HOSTILE: list[Json] = [
    {"kind": "context", "input": {"call": "invoking"}, "output": {"instructions": 5, "messages": {"a": 1}}},
    {"kind": "context", "input": {"call": "invoking"}, "output": {"instructions": [], "messages": [None, 1]}},
    {
        "kind": "context",
        "input": {"call": "invoking"},
        "output": {"messages": [{"role": "x", "text": "y"}, {}]},
    },
    {
        "kind": "reduction",
        "name": "view",
        "output": {"kept_messages": "x", "everything_before": [1], "left_out": 7, "altered": [{}]},
    },
    {"kind": "reduction", "name": "view", "output": {"summary": 5}},
    {"kind": "model", "input": {"messages": "many"}},
]


@pytest.mark.parametrize("written", HOSTILE, ids=str)
def test_a_trace_that_a_user_has_written_is_read_as_such(written: Json) -> None:
    """An imported document may say anything of its steps."""
    with talking() as (client, _):
        one = say(client, LOOK)
        document = client.get(f"/tasks/{one['task_id']}/export").json()
        steps = [each["body"]["step"] for each in document["entries"] if "step" in each["body"]]
        (tool, _) = (step for step in steps if step["kind"] == "tool")
        tool |= written
        client.delete(f"/tasks/{one['task_id']}").raise_for_status()
        client.post("/tasks/import", json=document).raise_for_status()
        for step in model_calls(client, one["task_id"]):
            assert _of(client, step)["items"]
