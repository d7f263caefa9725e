"""Short ways to talk to an agent over A2A, over both of its bindings."""

import json
import uuid
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from tealagents.testing.service import RunningService

Json = dict[str, Any]

#: the names of the bindings in the card
RPC, REST = "JSONRPC", "HTTP+JSON"
BINDINGS = (RPC, REST)
VERSION = {"a2a-version": "1.0"}


def message(words: str = "hello", **fields: Any) -> Json:
    """A message of text; `parts` replaces the text."""
    parts = fields.pop("parts", [{"text": words}])
    return {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": parts, **fields}


def decision(task: Any, action: str = "approve", **fields: Any) -> Json:
    """A message that decides the pause of a task."""
    task_id = task["id"] if isinstance(task, dict) else task.id
    return message(parts=[{"data": {"action": action, **fields}}], taskId=task_id)


class Wire:
    """A2A by hand, over one binding: what the official clients would not send can be sent too."""

    def __init__(self, service: RunningService, binding: str, user: str | None = "ada") -> None:
        self.rpc = binding == RPC
        self.client = service.client(user, headers=VERSION)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()

    def call(self, method: str, params: Json | None = None) -> httpx.Response:
        """The response to an operation, named as JSON-RPC does."""
        params = dict(params or {})
        if self.rpc:
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            return self.client.post("/a2a", json=body)
        verb, path = _REST[method]
        path = (
            path.format(id=params.pop("id", None), task=params.pop("taskId", None)) if "{" in path else path
        )
        if verb == "POST" and params:
            return self.client.post(f"/a2a{path}", json=params)
        return self.client.request(verb, f"/a2a{path}", params=params)

    def result(self, method: str, params: Json | None = None) -> Json:
        """The result of an operation that must succeed."""
        response = self.call(method, params)
        assert response.status_code == 200, response.text
        document: Json = response.json()
        return dict(document["result"]) if self.rpc else document

    def error(self, method: str, params: Json | None = None) -> tuple[int | str, str]:
        """The code of the error an operation must end with, and its reason: JSON-RPC's or HTTP's."""
        return self.refusal(self.call(method, params))

    def refusal(self, response: httpx.Response) -> tuple[int | str, str]:
        document = response.json()
        error = document["error"]
        info = (error["data"] if self.rpc else error["details"])[0]
        assert info["domain"] == "a2a-protocol.org"
        assert error["message"]
        if not self.rpc:
            assert error["code"] == response.status_code, response.text
        return error["code"], info["reason"]

    def send(self, words: str = "hello", **fields: Any) -> Json:
        """The task that a message makes."""
        return dict(self.result("SendMessage", {"message": message(words, **fields)})["task"])

    def get(self, task_id: str, **fields: Any) -> Json:
        return self.result("GetTask", {"id": task_id, **fields})

    def stream(self, method: str, params: Json) -> Generator[Json]:
        """The documents of a stream that must succeed."""
        if self.rpc:
            body: Json | None = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            path, verb = "/a2a", "POST"
        else:
            verb, path = _REST[method]
            body = params if method == "SendStreamingMessage" else None
            path = "/a2a" + path.format(id=params.get("id"))
        with self.client.stream(verb, path, json=body) as response:
            if response.headers["content-type"].partition(";")[0] != "text/event-stream":
                response.read()
                raise AssertionError(response.text)
            for line in response.iter_lines():
                if line.startswith("data:"):
                    document = json.loads(line[5:])
                    yield document["result"] if self.rpc else document


_REST = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{task}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{task}/pushNotificationConfigs/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{task}/pushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{task}/pushNotificationConfigs/{id}"),
}


def state(document: Json) -> str:
    """The state of a task, or the one that an update carries; without `TASK_STATE_`."""
    found: str = document["status"]["state"]
    return found.removeprefix("TASK_STATE_")


def answer(task: Json) -> str:
    return "".join(part["text"] for artifact in task.get("artifacts", ()) for part in artifact["parts"])


def streamed_text(events: list[Json]) -> str:
    """The answer that the updates of a stream make."""
    text = ""
    for event in events:
        if update := event.get("artifactUpdate"):
            piece = "".join(part["text"] for part in update["artifact"]["parts"])
            text = text + piece if update.get("append") else piece
    return text


@asynccontextmanager
async def sdk(service: RunningService, binding: str, user: str = "ada") -> AsyncIterator[Client]:
    """The client of `a2a-sdk` over one binding, made from the card alone."""
    headers = {"authorization": f"Bearer {user}"}
    async with httpx.AsyncClient(headers=headers, timeout=30, verify=False) as http:
        card = await A2ACardResolver(http, service.root).get_agent_card()
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        yield ClientFactory(config).create(card)


def request(**message_fields: Any) -> pb.SendMessageRequest:
    return ParseDict({"message": message(**message_fields)}, pb.SendMessageRequest())
