"""The operations of A2A over both bindings, held against what its specification asks of a text agent.

The names in brackets are the requirements, as the public compatibility kit numbers them: see docs/a2a.md.
"""

import asyncio
import base64
import re
import threading
import uuid
from collections.abc import Callable
from itertools import groupby
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a_talk import BINDINGS, REST, RPC, VERSION, Json, Wire, answer, message, state, streamed_text
from google.api.field_behavior_pb2 import FieldBehavior, field_behavior  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict
from talk import working_service

from tealagents.api import requests
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain.errors import PersistenceUnavailable
from tealagents.domain.json_limits import MOST_EXTREMES, MOST_VALUES
from tealagents.domain.models import Caller
from tealagents.state import latest
from tealagents.state.new_message import Key, NewMessage
from tealagents.stores.memory import MemoryStore
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

JSON = {**VERSION, "content-type": "application/json"}
ENQUEUES = """
rules:
  - when: {text: until released}
    reply: {pieces: [drip, {text: ' drip', delay_ms: 600000}]}
"""
NOBODYS = "00000000-0000-4000-8000-000000000001"


# --- sending -----------------------------------------------------------------------------------------


def test_a_message_is_answered_with_a_task(wire: Wire) -> None:
    """Ids of the service, an ended status with its time, the answer as an artifact, no history unasked.

    [CORE-SEND-001, CORE-MULTI-001a, CORE-MULTI-003, CORE-EXECUTION-MODE-001, DM-TASK-001]
    """
    task, other = wire.send(), wire.send()
    assert state(task) == "COMPLETED"
    assert answer(task) == "Hello! How can I help?"
    assert str(uuid.UUID(task["id"])) == task["id"] != other["id"]
    assert str(uuid.UUID(task["contextId"])) == task["contextId"] != other["contextId"]
    assert task["status"]["timestamp"].endswith("Z")
    assert "history" not in task


def test_a_context_is_a_conversation(wire: Wire, ada: httpx.Client) -> None:
    """What is said in it later is answered by new tasks, and read as one history over v1alpha1."""
    first = wire.send("My name is Ada.")
    second = wire.send("What is my name?", contextId=first["contextId"])
    assert second["contextId"] == first["contextId"]
    assert second["id"] != first["id"]
    assert "Ada" in answer(second)
    listed = ada.get(f"/tasks/{first['contextId']}/messages").json()["items"]
    assert [each["request_id"] for each in listed] == [first["id"]] * 2 + [second["id"]] * 2


def test_a_client_may_name_its_context(wire: Wire, eves: Wire) -> None:
    """An unused UUID becomes the context, for its owner alone; no other text does.

    [CORE-MULTI-002, CORE-MULTI-002a]
    """
    context = str(uuid.uuid4())
    assert wire.send(contextId=context)["contextId"] == context
    assert wire.send(contextId=context)["contextId"] == context
    assert eves.error("SendMessage", {"message": message(contextId=context)})[1] == "TASK_NOT_FOUND"
    refused = wire.error("SendMessage", {"message": message(contextId="my context")})
    assert refused == (-32602 if wire.rpc else 400, "INVALID_PARAMS")


def test_a_context_in_upper_case_is_the_same_context(wire: Wire) -> None:
    """Where it is begun, continued and listed."""
    context = str(uuid.uuid4())
    tasks = [wire.send(contextId=name) for name in (context.upper(), context)]
    assert [task["contextId"] for task in tasks] == [context] * 2
    listed = wire.result("ListTasks", {"contextId": context.upper()})["tasks"]
    assert {task["id"] for task in listed} == {task["id"] for task in tasks}


def test_a_context_that_another_message_has_begun_meanwhile_is_continued(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unused when it was looked for, and is there when the message is stored."""
    context, submitted, others = str(uuid.uuid4()), requests.submitted, list[Any]()

    async def later(
        exchange: Exchange, caller: Caller, new: NewMessage, key: Key | None, *, streamed: bool
    ) -> RequestView:
        if new.new_task_id is not None and not others:
            others.append(new)
            others.append(await asyncio.to_thread(wire.send, "My name is Ada.", contextId=context))
        return await submitted(exchange, caller, new, key, streamed=streamed)

    monkeypatch.setattr(requests, "submitted", later)
    task = wire.send("What is my name?", contextId=context)
    assert task["contextId"] == others[1]["contextId"] == context
    assert "Ada" in answer(task)


def test_a_context_that_was_deleted_does_not_begin_anew(wire: Wire, ada: httpx.Client) -> None:
    """Its client would not see that what it said is gone. Nor does the id of a task name a new context."""
    task = wire.send("My name is Ada.")
    assert wire.error("SendMessage", {"message": message(contextId=task["id"])})[1] == "TASK_NOT_FOUND"
    ada.delete(f"/tasks/{task['contextId']}").raise_for_status()
    gone = message("What is my name?", contextId=task["contextId"])
    assert wire.error("SendMessage", {"message": gone})[1] == "TASK_NOT_FOUND"


def test_the_id_that_a_client_chose_is_free_once_its_context_is_deleted(
    wire: Wire, eves: Wire, ada: httpx.Client
) -> None:
    """Nothing of it is kept: the next user who sends it begins a new context, as with the id of a session."""
    context = str(uuid.uuid4())
    for calls in (wire, eves):
        task = calls.send("What is my name?", contextId=context)
        [listed] = calls.result("ListTasks", {"contextId": context})["tasks"]
        assert listed["id"] == task["id"]
        if calls is wire:
            assert eves.error("SendMessage", {"message": message(contextId=context)})[1] == "TASK_NOT_FOUND"
            ada.delete(f"/tasks/{context}").raise_for_status()


def test_a_message_to_an_ended_task_is_refused(wire: Wire) -> None:
    """[CORE-SEND-002]"""
    task = wire.send()
    code, reason = wire.error("SendMessage", {"message": message(taskId=task["id"])})
    assert (code, reason) == (-32004 if wire.rpc else 400, "UNSUPPORTED_OPERATION")


def test_ids_in_a_message_must_be_known_and_fit(wire: Wire) -> None:
    """An unknown task is not found; a context that is not the task's is refused.

    [CORE-MULTI-004, CORE-MULTI-006]
    """
    for unknown in (NOBODYS, "no id"):
        refused = wire.error("SendMessage", {"message": message(taskId=unknown)})
        assert refused == (-32001 if wire.rpc else 404, "TASK_NOT_FOUND")
    task, other = wire.send(), wire.send()
    mismatched = message(taskId=task["id"], contextId=other["contextId"])
    assert wire.error("SendMessage", {"message": mismatched})[1] == "INVALID_PARAMS"


def test_what_a_message_may_be_made_of(wire: Wire) -> None:
    """Text, JSON and images; any other type is unsupported, and nothing is fetched. [CORE-SEND-003]"""
    picture = {"raw": base64.b64encode(b"\x89PNG").decode(), "mediaType": "image/png"}
    data = {"data": {"n": 12345678901234567, "half": 0.5}}
    raw = {"raw": base64.b64encode(b'{"n": 1}').decode(), "mediaType": "application/json; charset=utf-8"}
    marked = {"text": "# hi", "mediaType": "text/markdown"}
    notes = [
        {"raw": base64.b64encode("Füße".encode()).decode(), "mediaType": media_type, "filename": "notes.txt"}
        for media_type in ("text/plain", "Text/Markdown; charset=utf-8")
    ]
    task = wire.send(parts=[{"text": "look"}, picture, data, marked, raw, *notes])
    said = wire.get(task["id"])["history"][0]
    assert said["role"] == "ROLE_USER"
    assert said["parts"][:2] == [{"text": "look"}, picture]
    assert said["parts"][2]["text"] == '{"n":12345678901234567,"half":0.5}'
    assert said["parts"][4]["text"] == '{"n":1}'
    assert said["parts"][5:] == [{"text": "Füße"}] * 2
    for media_type, bodies in (
        ("application/json", (b"{", b"\xff", b'"a\\u0000b"', b"")),
        ("text/plain", (b"F\xfc\xdfe", b"a\0b", "look".encode("utf-16"))),
    ):
        for broken in bodies:
            part = {"raw": base64.b64encode(broken).decode(), "mediaType": media_type}
            refused = wire.error("SendMessage", {"message": message(parts=[part])})
            assert refused == (-32602 if wire.rpc else 400, "INVALID_PARAMS"), broken
    for part in (
        {"raw": "dGNr", "mediaType": "application/x-unsupported"},
        {"raw": "dGNr"},
        {"raw": "", "mediaType": "image/png"},
        {"raw": "dGNr", "mediaType": "image/svg+xml"},
        {"text": "x", "mediaType": "video/mp4"},
        {"url": "http://127.0.0.1:1/secret"},
        {"url": "data:image/png;base64,iVBORw0KGgo="},
    ):
        refused = wire.error("SendMessage", {"message": message(parts=[part])})
        assert refused == (-32005 if wire.rpc else 400, "CONTENT_TYPE_NOT_SUPPORTED"), part


@pytest.mark.parametrize(
    "part", [{"raw": "dGNr"}, {"raw": "dGNr", "mediaType": "image/jpg"}, {"url": "http://127.0.0.1:1/x.png"}]
)
def test_a_part_that_is_not_accepted_is_named_with_what_is(wire: Wire, part: Json) -> None:
    """The sender of ten files learns which one it was, and that an image without its type is not taken."""
    refused = wire.call("SendMessage", {"message": message(parts=[{"text": "look"}, part])})
    assert wire.refusal(refused)[1] == "CONTENT_TYPE_NOT_SUPPORTED"
    said = refused.json()["error"]["message"]
    assert said.startswith("message.parts.1: must be inline and of mediaType text/plain or ")
    assert all(kind in said for kind in ("application/json", "image/png", "image/jpeg"))


@pytest.mark.parametrize(("each", "most"), [(b"[1,2]", MOST_VALUES // 3), (b"1e300", MOST_EXTREMES)])
def test_json_in_raw_parts_has_the_limits_of_a_body_together(wire: Wire, each: bytes, most: int) -> None:
    """Base64 hides it from the limits of the body that brings it."""

    def part(count: int) -> Json:
        raw = base64.b64encode(b"[" + b",".join([each] * count) + b"]").decode()
        return {"raw": raw, "mediaType": "application/json"}

    few, rest = part(most // 2), part(most - most // 2 + 1)
    for taken in (few, rest):
        assert (
            state(wire.send(parts=[taken, {"raw": "W10=", "mediaType": "application/json"}])) == "COMPLETED"
        )
    refused = wire.error("SendMessage", {"message": message(parts=[few, rest])})
    assert refused == (-32602 if wire.rpc else 400, "INVALID_PARAMS")


@pytest.mark.parametrize(
    "content", [{"text": "hi"}, {"text": ""}, {"raw": "iVBORw0KGgo=", "mediaType": "image/png"}]
)
def test_data_that_is_null_beside_another_content_is_none(wire: Wire, content: Json) -> None:
    """In whatever order: some clients send null for what is not set. Alone it is JSON. A field that is not
    known is passed over there too."""
    null: Json = {"data": None}
    for part in ({**content, **null}, {**null, **content}, {**null, **content, "kind": "text"}):
        task = wire.send(parts=[{"text": "look"}, part])
        assert wire.get(task["id"])["history"][0]["parts"][1] == content
    assert wire.get(wire.send(parts=[{"data": None}])["id"])["history"][0]["parts"] == [{"text": "null"}]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("-_--", "+/++"),
        ("iVBORw0KGg", "iVBORw0KGg=="),
        ("iVBO!!!!Rw0KGgo=", None),
        ("iVBORw0KGgo=!!!!", None),
        ("not base64 at all, sorry", None),
        ("!!!!", None),
        ("=", None),
        ("é", None),
    ],
)
def test_raw_parts_are_the_bytes_that_were_sent(wire: Wire, sent: str, kept: str | None) -> None:
    """In base64 of either alphabet, padded or not, as ProtoJSON has it; what is none is refused."""
    part = {"raw": sent, "mediaType": "image/png"}
    if kept is not None:
        assert wire.get(wire.send(parts=[part])["id"])["history"][0]["parts"] == [{**part, "raw": kept}]
        return
    for media_type in ("image/png", "application/json"):
        refused = wire.call("SendMessage", {"message": message(parts=[{**part, "mediaType": media_type}])})
        assert wire.refusal(refused) == (-32602 if wire.rpc else 400, "INVALID_PARAMS")
        assert refused.json()["error"]["message"] == "message.parts.0.raw: is not valid base64"


def test_an_answer_at_once_names_the_task_that_continues(wire: Wire, release: Callable[[], None]) -> None:
    """[CORE-EXECUTION-MODE-002]"""
    task = wire.result("SendMessage", _at_once("until released"))["task"]
    assert state(task) in ("WORKING", "SUBMITTED")
    subscribed = wire.stream("SubscribeToTask", {"id": task["id"]})
    next(subscribed)
    release()
    *_, last = subscribed
    assert state(last["statusUpdate"]) == "COMPLETED"


def test_a_task_that_waited_its_turn_is_seen_to_work() -> None:
    """Followers learn that it is no longer submitted before anything of its answer comes."""
    serving = working_service(ENQUEUES, protocols=["a2a"], concurrency="enqueue")
    with serving as (service, offline), Wire(service, BINDINGS[0]) as wire:
        first = wire.result("SendMessage", _at_once("until released"))["task"]
        said = message("hello", contextId=first["contextId"])
        updates = wire.stream("SendStreamingMessage", {"message": said})
        assert state(next(updates)["task"]) == "SUBMITTED"
        offline.release()
        followed = list(updates)
        again = list(wire.stream("SendStreamingMessage", {"message": said}))
    shown = [state(each["statusUpdate"]) if "statusUpdate" in each else "artifact" for each in followed]
    assert [key for key, _ in groupby(shown)] == ["SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    assert again[1:] == followed


def test_a_task_that_waits_its_turn_shows_what_it_was_asked() -> None:
    """In all answers, with the id that the message keeps; once it is canceled, the message is gone."""
    serving = working_service(ENQUEUES, protocols=["a2a"], concurrency="enqueue")
    with serving as (service, offline), Wire(service, BINDINGS[0]) as wire:
        context = wire.result("SendMessage", _at_once("until released"))["task"]["contextId"]
        sent = [_at_once(words, contextId=context) for words in ("one", "two")]
        for each in sent:
            each["configuration"]["historyLength"] = 5
        first, second = (wire.result("SendMessage", each)["task"] for each in sent)
        for task, words in ((first, "one"), (second, "two")):
            (said,) = task["history"]
            assert (said["role"], said["parts"]) == ("ROLE_USER", [{"text": words}])
            assert wire.result("GetTask", {"id": task["id"]})["history"] == [said]
            assert "history" not in wire.result("GetTask", {"id": task["id"], "historyLength": 0})
        listed = wire.result("ListTasks", {"contextId": context, "historyLength": 1})["tasks"]
        shown = [
            said["messageId"] for each in listed for said in each["history"] if each["id"] == first["id"]
        ]
        assert shown == [first["history"][0]["messageId"]]
        wire.result("CancelTask", {"id": second["id"]})
        assert "history" not in wire.result("GetTask", {"id": second["id"]})
        offline.release()
        (began,) = until(lambda: wire.result("GetTask", {"id": first["id"]})["history"][:1])
        assert began == first["history"][0]


def test_a_repeated_message_is_answered_with_the_first_outcome(wire: Wire, model: Any) -> None:
    """Whether it has ended or still runs, alone or as a stream; with other words its id is refused."""
    sent = {"message": message("dripping")}
    found: list[Any] = []

    def send() -> None:
        found.append(wire.call("SendMessage", sent).json())

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.append(wire.call("SendMessage", sent).json())
    tasks = [(each["result"] if wire.rpc else each)["task"] for each in found]
    assert [task["id"] for task in tasks] == [tasks[0]["id"]] * 5
    assert {state(task) for task in tasks} == {"COMPLETED"}
    events = list(wire.stream("SendStreamingMessage", sent))
    assert events[0]["task"]["id"] == tasks[0]["id"]
    assert streamed_text(events) == answer(tasks[0])
    assert len(model.requests) == 1
    other = wire.call("SendMessage", {"message": {**sent["message"], "parts": [{"text": "something else"}]}})
    assert wire.refusal(other)[1] == "INVALID_PARAMS"
    assert "The messageId stands for another message." in other.json()["error"]["message"]


@pytest.mark.parametrize(
    "absent", [{"contextId": ""}, {"contextId": None}, {"metadata": None}, {"extensions": []}]
)
def test_a_repeated_message_may_leave_out_what_is_empty(wire: Wire, absent: Json) -> None:
    """In ProtoJSON an empty field and one that is left out are the same."""
    sent = message()
    first, again = (
        wire.result("SendMessage", {"message": each})["task"] for each in ({**sent, **absent}, sent)
    )
    assert again["id"] == first["id"]


def test_the_same_message_over_both_bindings_is_one(service: ServiceThread, model: Any) -> None:
    """The id of a message is its sender's, wherever it is sent."""
    sent = {"message": message()}
    with Wire(service, "JSONRPC") as rpc, Wire(service, "HTTP+JSON") as rest:
        task = rpc.result("SendMessage", sent)["task"]
        assert rest.result("SendMessage", sent)["task"]["id"] == task["id"]
    assert len(model.requests) == 1


def test_a_busy_context_says_so(wire: Wire) -> None:
    """Another message in it is refused, naming the task that runs, until that is canceled."""
    configuration = {"returnImmediately": True}
    task = wire.result("SendMessage", {"message": message("for ever"), "configuration": configuration})[
        "task"
    ]
    again = {"message": message("hello", contextId=task["contextId"])}
    refused = wire.call("SendMessage", again)
    assert wire.refusal(refused) == (-32000 if wire.rpc else 409, "TASK_BUSY")
    error = refused.json()["error"]
    assert (error["data"] if wire.rpc else error["details"])[0]["metadata"]["taskId"] == task["id"]
    assert state(wire.result("CancelTask", {"id": task["id"]})) == "CANCELED"
    assert state(wire.result("SendMessage", again)["task"]) == "COMPLETED"


def test_what_the_model_service_refuses_ends_the_task_failed(wire: Wire) -> None:
    """A failure is a state of the task, with what happened, and the context can be continued."""
    task = wire.send("break")
    assert state(task) == "FAILED"
    assert "the model broke" in task["status"]["message"]["parts"][0]["text"]
    assert state(wire.get(task["id"])) == "FAILED"
    *_, last = wire.stream("SendStreamingMessage", {"message": message("break")})
    assert state(last["statusUpdate"]) == "FAILED"
    assert state(wire.send(contextId=task["contextId"])) == "COMPLETED"


# --- streams -----------------------------------------------------------------------------------------


def test_a_stream_begins_with_the_task_and_ends_with_it(wire: Wire) -> None:
    """The task, its updates in order, its end, and then nothing.

    [CORE-STREAM-001, CORE-STREAM-003, STREAM-ORDER-001, HTTP_JSON-SSE-001, JSONRPC-SSE-001]
    """
    events = list(wire.stream("SendStreamingMessage", {"message": message("count to three")}))
    task = events[0]["task"]
    assert state(task) in ("WORKING", "SUBMITTED")
    states = [state(event["statusUpdate"]) for event in events[1:] if "statusUpdate" in event]
    assert states == ["WORKING", "COMPLETED"]
    assert state(events[-1]["statusUpdate"]) == "COMPLETED"
    for event in events[1:]:
        (update,) = event.values()
        assert (update["taskId"], update["contextId"]) == (task["id"], task["contextId"])
    assert streamed_text(events) == answer(wire.get(task["id"]))


def test_a_stream_begins_with_what_the_user_has_said(wire: Wire, release: Callable[[], None]) -> None:
    """In the task's history, where some clients look for the id of the context; nothing of the answer is
    there, also when the message is sent again. A `historyLength` of 0 leaves it out."""
    sent = {"message": message("until released")}
    stream = wire.stream("SendStreamingMessage", sent)
    task = next(stream)["task"]
    [said] = task["history"]
    assert (said["role"], said["parts"]) == ("ROLE_USER", [{"text": "until released"}])
    assert (said["taskId"], said["contextId"]) == (task["id"], task["contextId"])
    follower = wire.stream("SubscribeToTask", {"id": task["id"]})
    assert next(follower)["task"]["history"] == [said]
    release()
    assert list(follower) == list(stream)
    assert wire.get(task["id"])["history"][0] == said
    for configuration, shown in (({}, [said]), ({"historyLength": 5}, [said]), ({"historyLength": 0}, None)):
        again = {**sent, "configuration": configuration}
        assert next(wire.stream("SendStreamingMessage", again))["task"].get("history") == shown


def test_a_stream_begins_without_another_read_of_the_store(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is at hand. With the store away, the client would not learn of the task that runs."""

    async def away(*_: object, **__: object) -> list[str]:
        raise PersistenceUnavailable("cannot be read")

    monkeypatch.setattr(MemoryStore, "scan", away)
    first, *updates = wire.stream("SendStreamingMessage", {"message": message("hello")})
    assert first["task"]["history"][0]["parts"] == [{"text": "hello"}]
    assert state(updates[-1]["statusUpdate"]) == "COMPLETED"


def test_a_stream_of_a_task_that_waits_its_turn_begins_with_what_the_user_has_said() -> None:
    """With the id that the message keeps."""
    serving = working_service(ENQUEUES, protocols=["a2a"], concurrency="enqueue")
    with serving as (service, offline), Wire(service, BINDINGS[0]) as wire:
        first = wire.result("SendMessage", _at_once("until released"))["task"]
        sent = {"message": message("hello", contextId=first["contextId"])}
        updates = wire.stream("SendStreamingMessage", sent)
        task = next(updates)["task"]
        assert state(task) == "SUBMITTED"
        assert [each["parts"] for each in task["history"]] == [[{"text": "hello"}]]
        offline.release()
        assert state(list(updates)[-1]["statusUpdate"]) == "COMPLETED"
        assert wire.get(task["id"])["history"][:1] == task["history"]


@pytest.mark.parametrize("words", ["count to three", "break"])
def test_a_stream_of_a_message_that_was_answered_ends_once(wire: Wire, words: str) -> None:
    """The updates come again; no state that ends a task comes before the last of them. [CORE-STREAM-003]"""
    sent = {"message": message(words)}
    task = wire.result("SendMessage", sent)["task"]
    first, *updates = wire.stream("SendStreamingMessage", sent)
    assert (first["task"]["id"], state(first["task"])) == (task["id"], "WORKING")
    assert "artifacts" not in first["task"]
    states = [state(event["statusUpdate"]) for event in updates if "statusUpdate" in event]
    assert states == ["WORKING", state(task)]
    assert state(updates[-1]["statusUpdate"]) == state(task)
    assert streamed_text(updates) == answer(task)


@pytest.mark.parametrize("words", ["count to three", "think first"])
def test_an_answer_is_closed_by_all_of_its_text(wire: Wire, words: str) -> None:
    """The last update of the artifact replaces the pieces: some clients keep nothing else.

    So it is when the stream is repeated, and where there is but one piece.
    """
    sent = {"message": message(words)}
    for events in [list(wire.stream("SendStreamingMessage", sent)) for _ in range(2)]:
        *pieces, whole = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
        assert pieces
        assert not any(piece.get("lastChunk") for piece in pieces)
        assert (whole.get("append", False), whole["lastChunk"]) == (False, True)
        assert answer({"artifacts": [whole["artifact"]]}) == answer(wire.get(events[0]["task"]["id"]))
        assert "artifactUpdate" in events[-2]
        assert state(events[-1]["statusUpdate"]) == "COMPLETED"


def test_what_did_not_become_an_answer_is_not_closed(wire: Wire) -> None:
    """No client takes a part of an answer for the whole."""
    events = list(wire.stream("SendStreamingMessage", {"message": message("broken off")}))
    assert state(events[-1]["statusUpdate"]) == "FAILED"
    assert streamed_text(events) == "half of"
    assert not any(event["artifactUpdate"].get("lastChunk") for event in events if "artifactUpdate" in event)


def test_text_that_comes_with_tool_calls_is_no_part_of_the_answer(wire: Wire) -> None:
    """It is shown while it comes, and replaced by the answer; the task ends with the same artifact."""
    events = list(wire.stream("SendStreamingMessage", {"message": message("think first")}))
    pieces = [
        event["artifactUpdate"]["artifact"]["parts"][0]["text"]
        for event in events
        if "artifactUpdate" in event
    ]
    assert pieces[0].startswith("let")
    assert streamed_text(events) == "the answer" == answer(wire.get(events[0]["task"]["id"]))


def test_followers_see_the_same_events_and_do_not_depend_on_each_other(
    wire: Wire, release: Callable[[], None]
) -> None:
    """Each gets the task as it is, then every update in order, no matter which others leave.

    [STREAM-ORDER-002, STREAM-ORDER-003, STREAM-ORDER-004, STREAM-SUB-001, STREAM-SUB-002]
    """
    sending = wire.stream("SendStreamingMessage", {"message": message("until released")})
    task = next(sending)["task"]
    leaves = wire.stream("SubscribeToTask", {"id": task["id"]})
    assert state(next(leaves)["task"]) == "WORKING"
    follower = wire.stream("SubscribeToTask", {"id": task["id"]})
    first = next(follower)
    assert first["task"]["id"] == task["id"]
    leaves.close()
    release()
    assert list(follower) == list(sending)


def test_an_ended_task_is_not_followed(wire: Wire) -> None:
    """[STREAM-SUB-003, STREAM-SUB-004]"""
    task = wire.send()
    refused = wire.error("SubscribeToTask", {"id": task["id"]})
    assert refused == (-32004 if wire.rpc else 400, "UNSUPPORTED_OPERATION")
    for unknown in (NOBODYS, "no id"):
        refused = wire.error("SubscribeToTask", {"id": unknown})
        assert refused == (-32001 if wire.rpc else 404, "TASK_NOT_FOUND")


@pytest.mark.parametrize("verb", ["POST", "GET"])
def test_subscribing_over_http_needs_no_body_and_no_content_type(
    service: ServiceThread, release: Callable[[], None], verb: str
) -> None:
    """By POST as by GET."""
    with Wire(service, "HTTP+JSON") as rest:
        task = rest.result("SendMessage", _at_once("until released"))["task"]
        with rest.client.stream(verb, f"/a2a/tasks/{task['id']}:subscribe") as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            release()
            assert "COMPLETED" in stream.read().decode()


def _at_once(words: str, **fields: Any) -> dict[str, Any]:
    return {"message": message(words, **fields), "configuration": {"returnImmediately": True}}


# --- reading -----------------------------------------------------------------------------------------


def test_a_task_is_read_as_it_stands(wire: Wire) -> None:
    """While it runs and when it has ended, with its messages in the order they were exchanged.

    [CORE-GET-001, CORE-HIST-004, CORE-HIST-005, CORE-HIST-006]
    """
    task = wire.result("SendMessage", _at_once("for ever"))["task"]
    running = wire.get(task["id"])
    assert state(running) == "WORKING"
    assert [each["parts"][0]["text"] for each in running["history"]] == ["for ever"]
    wire.result("CancelTask", {"id": task["id"]})
    assert state(wire.get(task["id"])) == "CANCELED"
    done = wire.get(wire.send("hello there")["id"])
    assert [(each["role"], each["parts"][0]["text"]) for each in done["history"]] == [
        ("ROLE_USER", "hello there"),
        ("ROLE_AGENT", answer(done)),
    ]


def test_an_unknown_task_is_not_found(wire: Wire) -> None:
    """[CORE-GET-002]"""
    for unknown in (NOBODYS, "no id", "%00", "x" * 5000):
        assert wire.error("GetTask", {"id": unknown}) == (-32001 if wire.rpc else 404, "TASK_NOT_FOUND")


def test_how_much_history_is_the_clients_to_say(wire: Wire) -> None:
    """None, some of the last, or all; less than none is refused. [CORE-HIST-001 to 003]"""
    task = wire.send()
    assert "history" not in wire.get(task["id"], historyLength=0)
    assert [each["role"] for each in wire.get(task["id"], historyLength=1)["history"]] == ["ROLE_AGENT"]
    assert len(wire.get(task["id"], historyLength=9)["history"]) == 2
    assert wire.error("GetTask", {"id": task["id"], "historyLength": -1})[1] == "INVALID_PARAMS"
    sent = {"message": message(), "configuration": {"historyLength": 2}}
    assert len(wire.result("SendMessage", sent)["task"]["history"]) == 2
    refused = {"message": message(), "configuration": {"historyLength": -1}}
    assert wire.error("SendMessage", refused)[1] == "INVALID_PARAMS"


def test_tasks_are_listed_those_that_changed_last_first(wire: Wire, eves: Wire) -> None:
    """Page by page, the caller's own, without artifacts unless they are asked for.

    [CORE-LIST-001, CORE-LIST-002, CORE-LIST-003, CORE-LIST-004, CORE-LIST-005]
    """
    first = wire.send()
    tasks = [first, *(wire.send(contextId=first["contextId"]) for _ in range(4))]
    newest = [task["id"] for task in reversed(tasks)]
    query: dict[str, Any] = {"contextId": first["contextId"], "pageSize": 2}
    pages = [wire.result("ListTasks", query)]
    while token := pages[-1]["nextPageToken"]:
        pages.append(wire.result("ListTasks", {**query, "pageToken": token}))
    assert [task["id"] for page in pages for task in page["tasks"]] == newest
    assert [len(page["tasks"]) for page in pages] == [2, 2, 1]
    assert {(page["totalSize"], page["pageSize"]) for page in pages} == {(5, 2)}
    assert not any("artifacts" in task for page in pages for task in page["tasks"])
    full = wire.result(
        "ListTasks", {"contextId": first["contextId"], "includeArtifacts": True, "historyLength": 1}
    )
    assert [answer(task) for task in full["tasks"]] == ["Hello! How can I help?"] * 5
    assert [len(task["history"]) for task in full["tasks"]] == [1] * 5
    assert eves.result("ListTasks", {"contextId": first["contextId"]})["tasks"] == []


def test_a_page_token_can_stand_in_a_url_as_it_is(service: ServiceThread) -> None:
    """As a user of curl writes it there, who encodes nothing."""
    with Wire(service, REST) as rest:
        older, newer = rest.send(), rest.send()
        first = rest.client.get("/a2a/tasks?pageSize=1").json()
        second = rest.client.get(f"/a2a/tasks?pageSize=1&pageToken={first['nextPageToken']}").json()
    assert [task["id"] for page in (first, second) for task in page["tasks"]] == [newer["id"], older["id"]]


def test_a_page_of_large_tasks_ends_early(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a hundred large histories would block all other callers. [CORE-LIST-002]"""
    first = wire.send()
    tasks = [first, *(wire.send(contextId=first["contextId"]) for _ in range(2))]
    monkeypatch.setattr(requests, "PAGE_BYTES", 10)
    query: dict[str, Any] = {"contextId": first["contextId"], "historyLength": 1}
    pages = [wire.result("ListTasks", query)]
    while token := pages[-1]["nextPageToken"]:
        pages.append(wire.result("ListTasks", {**query, "pageToken": token}))
    listed = [[task["id"] for task in page["tasks"]] for page in pages]
    assert listed == [[task["id"]] for task in reversed(tasks)]
    assert {page["totalSize"] for page in pages} == {3}


def test_a_task_that_is_deleted_while_it_is_listed_is_left_out(
    wire: Wire, ada: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history that is asked for is read when the tasks have been found."""
    tasks, page = [wire.send() for _ in range(3)], latest.page

    async def later(*args: Any, **fields: Any) -> latest.LatestPage:
        found = await page(*args, **fields)
        await asyncio.to_thread(ada.delete, f"/tasks/{tasks[1]['contextId']}")
        return found

    monkeypatch.setattr(latest, "page", later)
    listed = wire.result("ListTasks", {"pageSize": 3, "historyLength": 1})
    assert [task["id"] for task in listed["tasks"]] == [tasks[2]["id"], tasks[0]["id"]]


def test_lists_are_filtered(wire: Wire) -> None:
    """By status and by the time of its last change; what no list can be asked for is refused."""
    done = wire.send()
    failed = wire.send("break", contextId=done["contextId"])
    context = {"contextId": done["contextId"]}
    listed = wire.result("ListTasks", {**context, "status": "TASK_STATE_FAILED"})
    assert [task["id"] for task in listed["tasks"]] == [failed["id"]]
    since = wire.result("ListTasks", {**context, "statusTimestampAfter": failed["status"]["timestamp"]})
    assert failed["id"] in [task["id"] for task in since["tasks"]]
    assert not wire.result("ListTasks", {**context, "statusTimestampAfter": "2999-01-01T00:00:00Z"})["tasks"]
    for every in ("TASK_STATE_UNSPECIFIED", 0, "UNRECOGNIZED"):  # the last is none to the SDK for JavaScript
        assert wire.result("ListTasks", {**context, "status": every})["totalSize"] == 2
    for wrong in (
        {"pageSize": 0},
        {"pageSize": 101},
        {"pageToken": "x"},
        {"historyLength": -1},
        {"status": 99},
        {"status": "TASK_STATE_DONE"},
        {"status": "completed"},
    ):
        assert wire.error("ListTasks", {**context, **wrong})[1] == "INVALID_PARAMS", wrong


def test_what_no_list_can_be_asked_for_is_refused_of_an_empty_one_too(service: ServiceThread) -> None:
    """A mistake does not wait for the first task to be noticed."""
    with Wire(service, RPC, "nil") as rpc:
        assert rpc.result("ListTasks", {"historyLength": 1})["totalSize"] == 0
        assert rpc.error("ListTasks", {"historyLength": -1}) == (-32602, "INVALID_PARAMS")


# --- canceling ---------------------------------------------------------------------------------------


def test_a_running_task_is_canceled_once(wire: Wire) -> None:
    """It is when the call returns; what has ended, or is unknown, cannot be.

    [CORE-CANCEL-001, CORE-CANCEL-002, CORE-CANCEL-003]
    """
    stream = wire.stream("SendStreamingMessage", {"message": message("for ever")})
    task = next(stream)["task"]
    assert state(wire.result("CancelTask", {"id": task["id"]})) == "CANCELED"
    *_, last = stream
    assert state(last["statusUpdate"]) == "CANCELED"
    for ended in (task, wire.send()):
        refused = wire.error("CancelTask", {"id": ended["id"]})
        assert refused == (-32002 if wire.rpc else 400, "TASK_NOT_CANCELABLE")
    assert wire.error("CancelTask", {"id": NOBODYS}) == (-32001 if wire.rpc else 404, "TASK_NOT_FOUND")


# --- what is not supported, and versions -------------------------------------------------------------


def test_what_the_card_does_not_declare_is_refused(wire: Wire) -> None:
    """Push notifications, also those asked for with a message, and the extended card.

    [CORE-CAP-001, CORE-CAP-003]
    """
    task = wire.send()
    config = {"taskId": task["id"], "url": "http://127.0.0.1:1/hook"}
    for method, params in (
        ("CreateTaskPushNotificationConfig", config),
        ("GetTaskPushNotificationConfig", {"taskId": task["id"], "id": "x"}),
        ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
        ("DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "x"}),
        (
            "SendMessage",
            {"message": message(), "configuration": {"taskPushNotificationConfig": {"url": "http://x/"}}},
        ),
    ):
        refused = wire.error(method, params)
        assert refused == (-32003 if wire.rpc else 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"), method
    assert wire.error("GetExtendedAgentCard")[1] == "UNSUPPORTED_OPERATION"


def test_versions_are_distinguished(wire: Wire) -> None:
    """1.0 is served with any patch, none given means 0.3, and what is not supported is named.

    [VER-SERVER-001, VER-SERVER-002, VER-SERVER-003, VER-CLIENT-002]
    """
    refused = ("1.1", "1.99", "1", "1.0.1.1", "0.3", "99.0", "x", "")
    for version, served in (("1.0", True), ("1.0.1", True), *((each, False) for each in refused)):
        wire.client.headers.update({"a2a-version": version})
        response = wire.call("ListTasks")
        if served:
            assert "error" not in response.json()
        else:
            assert wire.refusal(response) == (-32009 if wire.rpc else 400, "VERSION_NOT_SUPPORTED"), version


def test_the_version_may_be_a_parameter(wire: Wire) -> None:
    """For clients that set no headers, or an empty one; else the header counts. [VER-SERVER-001]"""
    wire.client.headers.pop("a2a-version")
    wire.client.params = {"A2A-Version": "1.0"}
    task = wire.send()
    assert wire.result("ListTasks", {"contextId": task["contextId"]})["totalSize"] == 1
    assert state(list(wire.stream("SendStreamingMessage", {"message": message()}))[-1]["statusUpdate"])
    wire.client.headers.update({"a2a-version": ""})
    assert "tasks" in wire.result("ListTasks")
    wire.client.params = {"A2A-Version": "99.0"}
    assert wire.error("ListTasks")[1] == "VERSION_NOT_SUPPORTED"
    wire.client.headers.update(VERSION)
    assert "tasks" in wire.result("ListTasks")


def test_json_rpc_is_served_with_a_slash_as_well(service: ServiceThread) -> None:
    """Clients that join the URL and an empty path put one there."""
    body = {"jsonrpc": "2.0", "id": "x", "method": "ListTasks", "params": {}}
    with service.client(headers=VERSION) as client:
        assert client.post("/a2a/", json=body).json()["id"] == "x"


def test_json_rpc_errors_are_those_of_json_rpc(service: ServiceThread) -> None:
    """Unknown methods, wrong parameters, no requests at all.

    [JSONRPC-ERR-001, JSONRPC-ERR-002]
    """
    with service.client(headers=VERSION) as client:
        for body, code in (
            ({"jsonrpc": "2.0", "id": 1, "method": "Nothing"}, -32601),
            ({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {}}, -32602),
            ({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": 5}}, -32602),
            ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}, -32602),
            ({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": ["x"]}, -32602),
            ({"jsonrpc": "1.0", "id": 1, "method": "GetTask"}, -32600),
            ({"jsonrpc": "2.0", "id": 1}, -32600),
            ([], -32600),
            ("text", -32600),
        ):
            answered = client.post("/a2a", json=body)
            assert answered.status_code == 200, answered.text
            assert answered.headers["content-type"] == "application/json"
            assert answered.json()["jsonrpc"] == "2.0"
            assert answered.json()["error"]["code"] == code, body
            assert answered.json()["id"] == (body.get("id") if isinstance(body, dict) else None)


def test_the_error_of_a_call_that_cannot_be_stored_names_the_call(service: ServiceThread) -> None:
    """A client waits for the answer under its id."""
    call = {"jsonrpc": "2.0", "id": 12, "method": "SendMessage", "params": {"message": message("a\0b")}}
    with service.client(headers=VERSION) as client:
        answered = client.post("/a2a", json=call).json()
        assert (answered["id"], answered["error"]["code"]) == (12, -32602)
        assert client.post("/a2a", content=b'{"id": 12,', headers=JSON).json()["id"] is None


@pytest.mark.parametrize("field", ["messageId", "role", "parts"])
def test_a_message_needs_its_required_fields(wire: Wire, field: str) -> None:
    """They are checked before anything is done. [CORE-ERR-001, CORE-ERR-002, DM-MSG-001]"""
    sent = message()
    del sent[field]
    assert wire.error("SendMessage", {"message": sent})[1] == "INVALID_PARAMS"
    assert wire.error("SendStreamingMessage", {"message": sent})[1] == "INVALID_PARAMS"
    assert wire.error("SendMessage", {"message": message(role="ROLE_AGENT")})[1] == "INVALID_PARAMS"


def test_a_call_about_a_task_needs_its_id(service: ServiceThread) -> None:
    """It is named; a list of tasks needs none."""
    with Wire(service, RPC) as wire:
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            for params in ({}, {"id": ""}):
                refused = wire.call(method, params)
                assert wire.refusal(refused)[1] == "INVALID_PARAMS"
                assert refused.json()["error"]["message"] == "id: is required"
        wire.result("ListTasks")


def test_what_is_required_is_what_the_schema_marks() -> None:
    """A field that a later version requires is noticed here; push notifications are refused anyway."""

    def required(of: Any) -> set[str]:
        found = set()
        for field in of.fields:
            if FieldBehavior.REQUIRED in field.GetOptions().Extensions[field_behavior]:
                found.add(field.name)
            inner = field.message_type
            if (
                inner
                and inner.file.package != "google.protobuf"
                and inner.name != "TaskPushNotificationConfig"
            ):
                found |= {f"{field.name}.{name}" for name in required(inner)}
        return found

    whole = {"message", "message.message_id", "message.role", "message.parts"}
    assert required(pb.SendMessageRequest.DESCRIPTOR) == whole
    for kind in (pb.GetTaskRequest, pb.CancelTaskRequest, pb.SubscribeToTaskRequest):
        assert required(kind.DESCRIPTOR) == {"id"}
    assert required(pb.ListTasksRequest.DESCRIPTOR) == set()


def test_what_is_wrong_with_a_message_is_named_as_its_client_has_sent_it(wire: Wire) -> None:
    """Its metadata, and the context that it names."""
    for fields, named in (
        ({"metadata": {"about": "x" * 70_000}}, "message.metadata"),
        ({"contextId": "nothing"}, "message.contextId"),
    ):
        refused = wire.call("SendMessage", {"message": message(**fields)})
        assert wire.refusal(refused)[1] == "INVALID_PARAMS"
        assert refused.json()["error"]["message"].startswith(f"{named}: ")


def test_documents_are_as_the_schema_has_them(wire: Wire) -> None:
    """Names in camel case, enumerations as names, times in UTC; unknown fields are ignored.

    [DM-SERIAL-001, DM-SERIAL-002, DM-SERIAL-003, DM-SERIAL-004, DM-SERIAL-005]
    """
    params = {"message": {**message(), "unheardOf": 1}, "configuration": {"historyLength": 5}, "extra": 42}
    result = wire.result("SendMessage", params)
    assert ParseDict(result, pb.SendMessageResponse()).WhichOneof("payload") == "task"
    task = result["task"]
    assert set(task) == {"id", "contextId", "status", "artifacts", "history"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", task["status"]["timestamp"])
    for said in task["history"]:
        assert set(said) == {"messageId", "taskId", "contextId", "role", "parts"}
        assert said["role"] in ("ROLE_USER", "ROLE_AGENT")
    for event in wire.stream("SendStreamingMessage", {"message": message()}):
        assert ParseDict(event, pb.StreamResponse()).WhichOneof("payload")
