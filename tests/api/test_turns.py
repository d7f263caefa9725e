"""A message and its answer; follow-ups; the model is sent what was said."""

import uuid

import httpx
from wire import text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import offline_service


def test_a_new_message_is_answered_with_three_ids(ada: httpx.Client) -> None:
    """A first message makes a session, a task and a request. covers: FLOW-1, MODEL-4, SESSION-1, SESSION-2"""
    answer = ada.post("", json=text("hello")).raise_for_status().json()
    for name in ("session_id", "task_id", "request_id"):
        assert str(uuid.UUID(answer[name])) == answer[name]
        assert answer["content"][name] == answer[name]
    assert answer["status"] == "Completed"
    assert answer["content"]["output"]
    assert answer["content"]["source"] == "Tester:0.1"
    usage = answer["content"]["token_usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


def test_a_follow_up_message_is_answered_from_the_stored_history(ada: httpx.Client) -> None:
    """The second message needs only the task's id. covers: FLOW-2, TASK-4"""
    first = ada.post("", json=text("My name is Ada.")).json()
    second = ada.post("", json=text("What is my name?", task_id=first["task_id"])).json()
    assert "Ada" in second["content"]["output"]
    assert second["session_id"] == first["session_id"]
    assert second["task_id"] == first["task_id"]
    assert second["request_id"] != first["request_id"]


def test_the_model_is_sent_system_prompt_history_and_message_each_once(
    ada: httpx.Client, model: OfflineModel
) -> None:
    """In this order, nothing twice. covers: FLOW-2, THREAD-4"""
    task = ada.post("", json=text("one")).json()["task_id"]
    ada.post("", json=text("two", task_id=task)).raise_for_status()
    sent = model.requests[-1]["body"]["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user"]
    assert sent[0]["content"] == "You are a test."
    assert [sent[1]["content"], sent[3]["content"]] == ["one", "two"]


def test_null_is_as_left_out(ada: httpx.Client) -> None:
    """For every field that may be omitted."""
    fields = dict.fromkeys(("session_id", "task_id", "user_context", "metadata", "supersede"))
    answer = ada.post("", json=text("hello", **fields)).raise_for_status().json()
    assert answer["status"] == "Completed"


def test_user_context_is_sent_in_its_request_only(ada: httpx.Client, model: OfflineModel) -> None:
    """What the application says about one request is not kept in the history. covers: MODEL-1"""
    task = ada.post("", json=text("one", user_context={"city": "Rome"})).json()["task_id"]
    assert "Rome" in str(model.requests[-1]["body"]["messages"])
    ada.post("", json=text("two", task_id=task)).raise_for_status()
    assert "Rome" not in str(model.requests[-1]["body"]["messages"])


def test_two_hundred_turns_send_399_messages_in_order() -> None:
    """The 200th request holds the system prompt and all that was said. covers: TASK-3, STATE-3"""
    with offline_service() as (service, model), service.client() as client:
        task = client.post("", json=text("turn 1")).json()["task_id"]
        for n in range(2, 201):
            client.post("", json=text(f"turn {n}", task_id=task)).raise_for_status()
        sent = model.requests[-1]["body"]["messages"]
    assert sent[0]["role"] == "system"
    said = [m["content"] for m in sent[1:] if m["role"] == "user"]
    assert len(sent) == 400
    assert said == [f"turn {n}" for n in range(1, 201)]
    assert [m["role"] for m in sent[1:]] == ["user", "assistant"] * 199 + ["user"]
