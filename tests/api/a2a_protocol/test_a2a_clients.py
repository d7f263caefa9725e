"""The official clients, unmodified, over both bindings; and the client of A2A 0.3."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from a2a_talk import BINDINGS, message, request, sdk, streamed_text
from google.protobuf.json_format import MessageToDict
from talk import call, lines

from tealagents.testing.pytest_servers import missing
from tealagents.testing.service import ServiceThread, agent_config, offline_service

TOOLS = Path(__file__).parents[3] / ".tools" / "node"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_the_sdk_for_python(service: ServiceThread, binding: str, tmp_path: Path) -> None:
    """Its client is made from the card; it streams, reads, lists, decides, follows, and raises its errors."""
    file = tmp_path / "written"
    async with sdk(service, binding) as client:
        events = [MessageToDict(event) async for event in client.send_message(request(words="hello"))]
        task = events[0]["task"]
        assert streamed_text(events) == "Hello! How can I help?"
        read = await client.get_task(pb.GetTaskRequest(id=task["id"]))
        assert read.status.state == pb.TaskState.TASK_STATE_COMPLETED
        assert [each.role for each in read.history] == [pb.Role.ROLE_USER, pb.Role.ROLE_AGENT]
        listed = await client.list_tasks(pb.ListTasksRequest(context_id=task["contextId"]))
        assert [each.id for each in listed.tasks] == [task["id"]]

        asked = request(words=call("Work-write", file=str(file), line="one"))
        pause = [event async for event in client.send_message(asked)]
        assert pause[-1].status_update.status.state == pb.TaskState.TASK_STATE_INPUT_REQUIRED
        waiting = pause[0].task.id
        follower = client.subscribe(pb.SubscribeToTaskRequest(id=waiting))
        assert (await anext(follower)).task.status.state == pb.TaskState.TASK_STATE_INPUT_REQUIRED
        approval = request(parts=[{"data": {"action": "approve"}}], taskId=waiting)
        decided = [event async for event in client.send_message(approval)]
        assert decided[-1].status_update.status.state == pb.TaskState.TASK_STATE_COMPLETED
        seen = [event async for event in follower]
        assert seen[-1].status_update.status.state == pb.TaskState.TASK_STATE_COMPLETED
        assert lines(file) == ["one"]

        with pytest.raises(TaskNotFoundError):
            await client.get_task(pb.GetTaskRequest(id="00000000-0000-4000-8000-000000000001"))
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=task["id"]))
        with pytest.raises(UnsupportedOperationError):
            [event async for event in client.send_message(request(words="hi", taskId=task["id"]))]


@pytest.mark.parametrize("binding", BINDINGS)
def test_the_sdk_for_node(service: ServiceThread, binding: str, tmp_path: Path) -> None:
    """The same with the client for JavaScript."""
    if not shutil.which("node") or not (TOOLS / "node_modules" / "@a2a-js").exists():
        missing("@a2a-js/sdk: install Node.js 20 or newer with npm, and run tests/fixtures/tools/install.sh")
    file = tmp_path / "written"
    script = Path(__file__).with_name("node_client.cjs")
    arguments = [str(TOOLS), service.root, binding, call("Work-write", file=str(file), line="one")]
    ended = subprocess.run(
        ["node", str(script), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "answer": "Hello! How can I help?",
        "streamed": "Hello! How can I help?",
        "listed": 2,
        "history": 2,
        "waits": True,
        "done": "TASK_STATE_COMPLETED",
        "followed": "TASK_STATE_COMPLETED",
        "errors": ["TaskNotFoundError", "TaskNotCancelableError", "UnsupportedOperationError"],
    }
    assert lines(file) == ["one"]


# --- A2A 0.3 -----------------------------------------------------------------------------------------


def legacy(words: str, **fields: Any) -> dict[str, Any]:
    sent = message(**fields)
    parts = fields.get("parts", [{"kind": "text", "text": words}])
    return {"message": {**sent, "role": "user", "kind": "message", "parts": parts}}


def streamed(client: httpx.Client, method: str, params: Any) -> list[Any]:
    """What a method of 0.3 answers with, which must be a stream."""
    body = {"jsonrpc": "2.0", "id": "7", "method": method, "params": params}
    answered = client.post("/a2a", json=body)
    assert answered.status_code == 200, answered.text
    assert answered.headers["content-type"].startswith("text/event-stream"), answered.text
    lines = [line for line in answered.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_streams_of_the_version_before_say_in_the_stream_what_is_refused(service: ServiceThread) -> None:
    """Its official clients take nothing but a stream, which holds the error of the call."""
    nothing = "00000000-0000-4000-8000-000000000001"
    with service.client() as client:
        [task, *_] = streamed(client, "message/stream", legacy("hello"))
        for method, params, code in (
            ("message/stream", legacy("hello", taskId=nothing), -32001),
            ("message/stream", legacy("hello", contextId="no id"), -32602),
            ("message/stream", legacy("hello", taskId=task["result"]["id"]), -32004),
            ("message/stream", legacy("a\0b"), -32602),
            ("tasks/resubscribe", {"id": nothing}, -32001),
            ("tasks/resubscribe", {"id": task["result"]["id"]}, -32004),
        ):
            [refused] = streamed(client, method, params)
            assert (refused["id"], refused["error"]["code"]) == ("7", code), params
    with service.client(None) as stranger:
        body = {"jsonrpc": "2.0", "id": "7", "method": "message/stream", "params": legacy("hello")}
        refused = stranger.post("/a2a", json=body)
        assert (refused.status_code, refused.headers["content-type"]) == (401, "application/json")


@pytest.mark.parametrize("configuration", [{}, {"historyLength": 1}, {"historyLength": 0}])
def test_a_stream_of_the_version_before_begins_with_what_the_user_has_said(
    service: ServiceThread, configuration: dict[str, Any]
) -> None:
    """In the task's history, whose length that version does not limit by 0."""
    with service.client() as client:
        sent = {**legacy("hello"), "configuration": configuration}
        task = streamed(client, "message/stream", sent)[0]["result"]
    [said] = task["history"]
    assert (said["role"], said["parts"]) == ("user", [{"kind": "text", "text": "hello"}])
    assert (said["taskId"], said["contextId"]) == (task["id"], task["contextId"])


def file_part(encoded: str, **of_part: Any) -> dict[str, Any]:
    return {"kind": "file", "file": {"bytes": encoded, "mimeType": "image/png"}, **of_part}


def test_files_of_the_version_before_are_the_bytes_that_were_sent(service: ServiceThread) -> None:
    """Whatever else their part has, such as a field of the next version; text becomes a part of text.

    What is no base64 is refused.
    """
    with service.client() as client:
        for more in ({}, {"raw": None}, {"raw": "aGk="}, {"raw": 5}):
            parts = [file_part("+/++", **more)]
            task = streamed(client, "message/stream", legacy("", parts=parts))[0]["result"]
            [part] = task_of(client, task["id"])["history"][0]["parts"]
            assert part["file"] == {"bytes": "+/++", "mimeType": "image/png"}
        note = {"kind": "file", "file": {"bytes": "aGVsbG8=", "mimeType": "text/plain", "name": "a.txt"}}
        task = streamed(client, "message/stream", legacy("", parts=[note]))[0]["result"]
        assert task_of(client, task["id"])["history"][0]["parts"] == [{"kind": "text", "text": "hello"}]
        [refused] = streamed(client, "message/stream", legacy("", parts=[file_part("iVBO!!!!Rw0KGgo=")]))
        assert refused["error"]["code"] == -32602
        assert refused["error"]["message"] == "message.parts.0.raw: is not valid base64"


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


def test_what_the_library_cannot_convert_from_the_version_before_is_the_clients_mistake(
    service: ServiceThread,
) -> None:
    """It says what to check, and is no internal error; what is less deep is taken."""
    compatible = {"kind": "data", "data": {}, "metadata": {"data_part_compat": True}}
    deep = {"kind": "data", "data": nested(40)}
    files = [file_part(encoded) for encoded in ("iVBORw0KGg", "é")]
    wrong = [legacy("", parts=[part]) for part in (compatible, deep, *files)]
    wrong += [{**legacy("hello"), "configuration": {"historyLength": 99999999999}}]
    calls = [(method, params) for params in wrong for method in ("message/send", "message/stream")]
    with service.client() as client:
        task = streamed(client, "message/stream", legacy("hello"))[0]["result"]
        for method, params in (*calls, ("tasks/get", {"id": task["id"], "historyLength": 99999999999})):
            body = {"jsonrpc": "2.0", "id": "7", "method": method, "params": params}
            answered = client.post("/a2a", json=body)
            assert ("event-stream" in answered.headers["content-type"]) == (method == "message/stream")
            refused = json.loads(answered.text.removeprefix("data: "))
            assert (refused["id"], refused["error"]["code"]) == ("7", -32602), params
            assert refused["error"]["message"].startswith("params: cannot be read. Check base64")
        for parts in ([{"kind": "data", "data": nested(30)}], [file_part("+/++", metadata=nested(30))]):
            sent = legacy("", parts=parts, metadata=nested(30))
            end = streamed(client, "message/stream", {**sent, "metadata": nested(30)})[-1]["result"]
            assert end["status"]["state"] == "completed"
        for method, params in (
            ("tasks/pushNotificationConfig/get", {"id": task["id"]}),
            ("agent/getAuthenticatedExtendedCard", {}),
        ):
            body = {"jsonrpc": "2.0", "id": "7", "method": method, "params": params}
            assert client.post("/a2a", json=body).json()["error"]["code"] in (-32003, -32004)


def test_a_wrong_role_is_refused_in_words_of_both_versions(service: ServiceThread) -> None:
    """`user` here is `ROLE_USER` there: a client that followed the other's name would be refused again."""
    sent = legacy("hello")
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {"message": {**sent["message"], "role": "agent"}},
    }
    with service.client() as client:
        refused = client.post("/a2a", json=body).json()["error"]
    assert refused["message"] == "message.role: must be the user's"


@pytest.mark.parametrize("method", ["message/send", "message/stream", "tasks/get"])
def test_what_is_wrong_with_a_call_of_the_version_before_is_said_in_a_line(
    service: ServiceThread, method: str
) -> None:
    """It was answered with all that is wrong, two hundred times as long, and with what was sent."""
    wrong: list[Any] = [
        legacy("", parts=[{"secret": 1}] * 100),
        legacy("", parts=[{"kind": "secret"}] * 33_000),
        legacy("hello", extensions=[["secret"]] * 30_000),
        {"id": {"secret": 1}, "message": "secret"},
        {str(n): "secret" for n in range(30_000)},
        ["secret"],
    ]
    with service.client() as client:
        for params in wrong:
            body = {"jsonrpc": "2.0", "id": "7", "method": method, "params": params}
            answered = client.post("/a2a", json=body)
            refused = json.loads(answered.text.removeprefix("data: "))
            assert refused["id"] == "7"
            assert refused["error"]["code"] in (-32602, -32600)
            assert len(answered.content) < 1000
            assert "secret" not in answered.text
            assert "pydantic" not in answered.text


def task_of(client: httpx.Client, task_id: str) -> Any:
    body = {"jsonrpc": "2.0", "id": "7", "method": "tasks/get", "params": {"id": task_id}}
    return client.post("/a2a", json=body).json()["result"]


def test_methods_of_the_version_before_are_refused_in_another_version(service: ServiceThread) -> None:
    """By the error that says so, in a stream where the method has one; nothing is stored. [VER-SERVER-002]"""
    with service.client() as client:
        for version in ("1.0", "2.0", "0.2", "0.9", "x"):
            client.headers.update({"a2a-version": version})
            for method in ("message/stream", "tasks/resubscribe"):
                [refused] = streamed(client, method, legacy("hello") if method[0] == "m" else {"id": "x"})
                assert (refused["id"], refused["error"]["code"]) == ("7", -32009)
            for method in ("message/send", "tasks/get"):
                params = legacy("hello") if method[0] == "m" else {"id": "x"}
                body = {"jsonrpc": "2.0", "id": "7", "method": method, "params": params}
                error = client.post("/a2a", json=body).json()["error"]
                assert (error["code"], error["data"][0]["reason"]) == (-32009, "VERSION_NOT_SUPPORTED")
                assert error["message"] == f"A2A-Version: must be 0.3, or omitted, for {method}"
        client.headers.update({"a2a-version": "0.3"})
        assert streamed(client, "message/stream", legacy("hello"))[-1]["result"]["final"]


def test_a_pause_ends_a_stream_of_the_version_before(service: ServiceThread, tmp_path: Path) -> None:
    """Its event is the final one of the sender's stream, and not of a subscription, which continues."""
    file = tmp_path / "written"
    with service.client() as client:
        said = streamed(client, "message/stream", legacy(call("Work-write", file=str(file), line="one")))
        last = said[-1]["result"]
        assert (last["status"]["state"], last["final"]) == ("input-required", True)
        assert not any(event["result"].get("final") for event in said[:-1])
        resubscribed = {
            "jsonrpc": "2.0",
            "id": "7",
            "method": "tasks/resubscribe",
            "params": {"id": last["taskId"]},
        }
        with client.stream("POST", "/a2a", json=resubscribed) as stream:
            events = (
                json.loads(line[6:])["result"] for line in stream.iter_lines() if line.startswith("data: ")
            )
            updates = (event for event in events if event["kind"] == "status-update")
            pause = next(event for event in updates if event["status"]["state"] == "input-required")
            assert not pause["final"]
            approval = legacy(
                "", parts=[{"kind": "data", "data": {"action": "approve"}}], taskId=last["taskId"]
            )
            decided = streamed(client, "message/stream", approval)
            *_, end = updates
        assert (end["status"]["state"], end["final"]) == ("completed", True)
        assert decided[-1]["result"]["final"]


def test_clients_of_the_version_before(service: ServiceThread, tmp_path: Path) -> None:
    """The methods of 0.3 at the same URL: send, stream, get, decide, cancel, resubscribe."""
    file = tmp_path / "written"

    def call_of(client: httpx.Client, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": "7", "method": method, "params": params}
        return client.post("/a2a", json=body).json()

    with service.client() as client:
        task = call_of(client, "message/send", legacy("hello"))["result"]
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
        assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Hello! How can I help?"}]
        assert call_of(client, "tasks/get", {"id": task["id"]})["result"]["history"][0]["role"] == "user"
        body = {"jsonrpc": "2.0", "id": "7", "method": "message/stream", "params": legacy("hello")}
        events = [
            json.loads(line.removeprefix("data: "))["result"]
            for line in client.post("/a2a", json=body).text.splitlines()
            if line.startswith("data: ")
        ]
        assert [events[0]["kind"], events[-1]["kind"]] == ["task", "status-update"]
        assert events[-1]["status"]["state"] == "completed"
        *pieces, whole = [event for event in events if event["kind"] == "artifact-update"]
        text = "".join(piece["artifact"]["parts"][0]["text"] for piece in pieces)
        assert text == whole["artifact"]["parts"][0]["text"] == "Hello! How can I help?"
        assert (whole["append"], whole["lastChunk"]) == (False, True)
        paused = call_of(client, "message/send", legacy(call("Work-write", file=str(file), line="one")))[
            "result"
        ]
        assert paused["status"]["state"] == "input-required"
        approval = legacy("", parts=[{"kind": "data", "data": {"action": "approve"}}], taskId=paused["id"])
        assert call_of(client, "message/send", approval)["result"]["status"]["state"] == "completed"
        assert lines(file) == ["one"]
        assert call_of(client, "tasks/cancel", {"id": task["id"]})["error"]["code"] == -32002
        again = {"jsonrpc": "2.0", "id": "7", "method": "tasks/resubscribe", "params": {"id": task["id"]}}
        assert '"code":-32004' in client.post("/a2a", json=again).text
        assert call_of(client, "tasks/get", {"id": "nothing"})["error"]["code"] == -32001


# --- the card ----------------------------------------------------------------------------------------


def test_the_card_says_what_the_config_says() -> None:
    """Interfaces, skills, security, and how long it may be kept.

    [CARD-DISC-001, CARD-PROTO-001, CARD-PROTO-002, CARD-STRUCT-001, CARD-CACHE-001, CARD-CACHE-002]
    """
    env = {"TA_PUBLIC_URL": "https://agents.example/here"}
    with offline_service(None, env, protocols=["a2a"]) as (service, _):
        found = httpx.get(f"{service.root}/.well-known/agent-card.json")
        card = found.raise_for_status().json()
        assert found.headers["cache-control"] == "public, max-age=300"
        unchanged = httpx.get(
            f"{service.root}/.well-known/agent-card.json", headers={"if-none-match": found.headers["etag"]}
        )
        assert unchanged.status_code == 304
        assert httpx.get(f"{service.url}/a2a/.well-known/agent-card.json").json() == card
        listed = httpx.get(service.root).json()["agents"][0]["protocols"]["a2a"]
    url = f"https://agents.example/here{service.prefix}/a2a"
    assert [
        (each["protocolBinding"], each["protocolVersion"], each["url"])
        for each in card["supportedInterfaces"]
    ] == [
        ("JSONRPC", "1.0", url),
        ("HTTP+JSON", "1.0", url),
        ("JSONRPC", "0.3", url),
    ]
    assert (card["name"], card["version"], card["description"]) == ("Tester", "0.1", "An agent under test.")
    assert card["capabilities"] == {"streaming": True, "pushNotifications": False, "extendedAgentCard": False}
    assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"] == {"scheme": "Bearer"}
    assert [skill["id"] for skill in card["skills"]] == ["Tester"]
    assert listed == {"url": f"{service.prefix}/a2a", "card": "/.well-known/agent-card.json"}


def test_skills_without_ids_are_told_apart() -> None:
    """Clients know them by their ids: each has its name as one."""
    config = {**agent_config(protocols=["a2a"]), "metadata": {"skills": [{"name": "see"}, {"name": "say"}]}}
    env = {"TA_BASE_URL": "http://127.0.0.1:1", "TA_API_KEY": "unused", "TA_AUTH": "mock"}
    with ServiceThread(config, env) as service:
        card = httpx.get(f"{service.root}/.well-known/agent-card.json").json()
    assert [(skill["id"], skill["name"]) for skill in card["skills"]] == [("see", "see"), ("say", "say")]


def test_the_content_of_a_skill_is_named_by_media_types() -> None:
    """Also where the config names it in a word; a skill that says nothing of it has the agent's own."""
    see = {"name": "see", "input_modes": ["image", "text"], "outputModes": ["application/json"]}
    config = {**agent_config(protocols=["a2a"]), "metadata": {"skills": [see, {"name": "say"}]}}
    env = {"TA_BASE_URL": "http://127.0.0.1:1", "TA_API_KEY": "unused", "TA_AUTH": "mock"}
    with ServiceThread(config, env) as service:
        seeing, saying = httpx.get(f"{service.root}/.well-known/agent-card.json").json()["skills"]
    assert seeing["inputModes"] == ["image/png", "image/jpeg", "image/gif", "image/webp", "text/plain"]
    assert seeing["outputModes"] == ["application/json"]
    assert not {"inputModes", "outputModes"} & set(saying)
