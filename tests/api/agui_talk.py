"""What the tests of AG-UI share: inputs, the events of a run, and the protocol's own models as the oracle."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter
from talk import AGENT, working_service

from tealagents.domain.errors import PersistenceUnavailable
from tealagents.llm.offline import OfflineModel
from tealagents.state import keys
from tealagents.testing.service import ServiceThread

Json = dict[str, Any]

#: an agent with tools, served over AG-UI; streams are compared byte for byte, so none has a keepalive in it
SPEC: Json = {
    "protocols": ["ag-ui"],
    "agent": AGENT,
    "limits": {"keepalive_seconds": 3600},
}
EVENT: TypeAdapter[Any] = TypeAdapter(Event)
#: the page's own tool
WEATHER: Json = {
    "name": "get_weather",
    "description": "The weather at a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def serving(
    script: Any = None, env: dict[str, str] | None = None, **spec: Any
) -> AbstractContextManager[tuple[ServiceThread, OfflineModel]]:
    """A service that speaks AG-UI."""
    return working_service(script, env, **{**SPEC, **spec})


@contextmanager
def unreadable_once_running(service: ServiceThread, thread: str) -> Iterator[Callable[[], None]]:
    """A store that cannot be read once the thread's next message is being answered; what ends that."""
    records = service.app.exchange.service.records
    commit = records.commit

    async def unreadable(*_: Any, **__: Any) -> None:
        raise PersistenceUnavailable("away")

    with pytest.MonkeyPatch.context() as patches:

        async def last_commit(partition: str, **changes: Any) -> str:
            version: str = await commit(partition, **changes)
            head = (changes.get("put") or {}).get(keys.task(thread))
            if head is not None and head.running and not head.queue:
                patches.setattr(records.store, "read", unreadable)
            return version

        patches.setattr(records, "commit", last_commit)
        yield patches.undo


def user(content: Any, **fields: Any) -> Json:
    return {"id": str(uuid.uuid4()), "role": "user", "content": content, **fields}


def run_input(thread: str, *messages: Json, **fields: Any) -> Json:
    """An input, as a client of this version sends it; a field that is None is left out."""
    opening = {"threadId": thread, "runId": str(uuid.uuid4()), "protocolVersion": "1.0"}
    given = {**opening, "messages": list(messages), **fields}
    return {name: value for name, value in given.items() if value is not None}


def events(text: str) -> list[Json]:
    """The events of a stream: each is what the protocol's models say, and the order is right."""
    found = []
    for frame in text.replace(": keepalive\n", "").split("\n\n"):
        if frame:
            assert frame.startswith("data: ")
            assert "\n" not in frame
            event = json.loads(frame.removeprefix("data: "))
            parsed = EVENT.validate_python(event)
            assert json.loads(parsed.model_dump_json(by_alias=True)) == event
            assert not unknown_fields(parsed), event
            found.append(event)
    check_order(found)
    return found


def unknown_fields(parsed: Any) -> set[str]:
    """What an event has that the protocol does not describe."""
    return set(parsed.__pydantic_extra__ or {})


def check_order(found: list[Json]) -> None:
    """What is opened is closed, before the end; nothing comes behind that. An error may leave steps open."""
    assert found[0]["type"] == "RUN_STARTED"
    assert found[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    opened: set[tuple[str, str]] = set()
    pairs = {"TEXT_MESSAGE": "messageId", "TOOL_CALL": "toolCallId", "STEP": "stepName"}
    for event in found[1:-1]:
        kind, _, what = event["type"].rpartition("_")
        if kind not in pairs or what == "RESULT":
            continue
        identity = (kind, event[pairs[kind]])
        if what in ("START", "STARTED"):
            assert identity not in opened
            opened.add(identity)
        else:
            assert identity in opened
            if what in ("END", "FINISHED"):
                opened.remove(identity)
    open_at_an_error = {"STEP"} if found[-1]["type"] == "RUN_ERROR" else set[str]()
    assert {kind for kind, _ in opened} <= open_at_an_error


class Page:
    """A page as AG-UI's own client is one: it keeps the messages, and sends all of them with every run."""

    def __init__(self, client: httpx.Client, thread: str | None = None) -> None:
        self.client = client
        self.thread = thread or str(uuid.uuid4())
        self.messages: list[Json] = []

    def post(self, **fields: Any) -> httpx.Response:
        return self.client.post("/ag-ui", json=run_input(self.thread, *self.messages, **fields))

    def say(self, content: Any, **fields: Any) -> list[Json]:
        self.messages.append(user(content))
        return self.run(**fields)

    def run(self, *, begun: Callable[[], object] = lambda: None, **fields: Any) -> list[Json]:
        """One run, and what it makes of the page's messages; `begun` is called once its stream is there."""
        body = run_input(self.thread, *self.messages, **fields)
        with self.client.stream("POST", "/ag-ui", json=body) as answer:
            begun()
            answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer.text)
        for event in found:
            self._apply(event)
        return found

    def answer(self, found: list[Json], *payloads: Json | None, **fields: Any) -> list[Json]:
        """The run that answers the interrupts of another; None cancels."""
        return self.run(resume=resume(found, *payloads), **fields)

    def _apply(self, event: Json) -> None:
        match event["type"]:
            case "MESSAGES_SNAPSHOT":
                there = {message["id"]: message for message in event["messages"]}
                kept = [there[m["id"]] for m in self.messages if m["id"] in there]
                known = {message["id"] for message in kept}
                self.messages = [*kept, *(m for m in event["messages"] if m["id"] not in known)]
            case "TEXT_MESSAGE_START":
                self._assistant(event["messageId"])
            case "TEXT_MESSAGE_CONTENT":
                message = self._assistant(event["messageId"])
                message["content"] = message.get("content", "") + event["delta"]
            case "TOOL_CALL_START":
                calls = self._assistant(event["parentMessageId"]).setdefault("toolCalls", [])
                function = {"name": event["toolCallName"], "arguments": ""}
                calls.append({"id": event["toolCallId"], "type": "function", "function": function})
            case "TOOL_CALL_ARGS":
                self._call(event["toolCallId"])["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                fields = {name: event[name] for name in ("toolCallId", "content")}
                self.messages.append({"id": event["messageId"], "role": "tool", **fields})

    def _assistant(self, identifier: str) -> Json:
        for message in self.messages:
            if message["id"] == identifier:
                return message
        self.messages.append({"id": identifier, "role": "assistant"})
        return self.messages[-1]

    def _call(self, identifier: str) -> Json:
        calls = [each for message in self.messages for each in message.get("toolCalls", ())]
        (found,) = [each for each in calls if each["id"] == identifier]
        shown: Json = found
        return shown

    def said(self, role: str = "assistant") -> list[str]:
        return [m.get("content", "") for m in self.messages if m["role"] == role]


def resume(found: list[Json], *payloads: Json | None) -> list[Json]:
    """Answers to the interrupts of a run, in their order."""
    asked = interrupts(found)
    assert len(asked) == len(payloads)
    return [
        {
            "interruptId": each["id"],
            **({"status": "cancelled"} if p is None else {"status": "resolved", "payload": p}),
        }
        for each, p in zip(asked, payloads, strict=True)
    ]


def interrupts(found: list[Json]) -> list[Json]:
    outcome = found[-1]["outcome"]
    assert outcome["type"] == "interrupt", found[-1]
    asked: list[Json] = outcome["interrupts"]
    return asked


def kinds(found: list[Json]) -> list[str]:
    """The types of the events; texts in one piece."""
    names = [event["type"] for event in found]
    return [name for n, name in enumerate(names) if name != "TEXT_MESSAGE_CONTENT" or names[n - 1] != name]


def streamed_text(found: list[Json]) -> str:
    return "".join(event["delta"] for event in found if event["type"] == "TEXT_MESSAGE_CONTENT")


def refusal(answer: httpx.Response, status: int, code: str) -> Json:
    """A refused input: no stream, and a body in the form of RUN_ERROR."""
    assert answer.status_code == status, answer.text
    document: Json = answer.json()
    assert (document["type"], document["code"]) == ("RUN_ERROR", code)
    EVENT.validate_python(document)
    return document
