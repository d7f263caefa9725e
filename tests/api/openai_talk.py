"""What the tests of OpenAI's API share: its SDK on a service, and its types as the oracle."""

import json
from contextlib import AbstractContextManager
from typing import Any

import httpx
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from talk import AGENT, working_service

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import RunningService, ServiceThread

Json = dict[str, Any]

#: an agent with tools, served over this API
SPEC: Json = {"protocols": ["openai"], "agent": AGENT}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
#: the client's own tool
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
DONE = "[DONE]"


def serving(script: Any = None, **spec: Any) -> AbstractContextManager[tuple[ServiceThread, OfflineModel]]:
    """A service that speaks OpenAI's API."""
    return working_service(script, **{**SPEC, **spec})


def sdk(service: RunningService, user: str = "ada", **options: Any) -> OpenAI:
    """The SDK as a user of the service, which sends nothing twice."""
    return OpenAI(base_url=f"{service.url}/openai/v1", api_key=user, **{"max_retries": 0, **options})


def raw(service: RunningService, user: str | None = "ada") -> httpx.Client:
    """A plain client whose paths begin at the API's `base_url`."""
    client = service.client(user)
    client.base_url = httpx.URL(f"{service.url}/openai/v1")
    return client


def valid(document: Json) -> Json:
    """A response that is what the SDK's types say."""
    Response.model_validate(document)
    return document


def streamed(text: str) -> list[Json]:
    """The events of a stream: each what the SDK's types say, numbered without a gap, the end marked."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert frames.pop() == f"data: {DONE}"
    found = []
    for frame in frames:
        name, data = frame.splitlines()
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        found.append(event)
    return found


def stream(client: httpx.Client, **body: Any) -> list[Json]:
    """The events of a new response."""
    answer = client.post("/responses", json={"stream": True, **body})
    assert answer.status_code == 200, answer.text
    events = streamed(answer.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def create(client: httpx.Client, **body: Any) -> Json:
    """A new response."""
    answer = client.post("/responses", json=body)
    assert answer.status_code == 200, answer.text
    return valid(answer.json())


def retrieved(client: httpx.Client, response_id: str) -> Json:
    answer = client.get(f"/responses/{response_id}")
    assert answer.status_code == 200, answer.text
    return valid(answer.json())


def said(response: Json) -> str:
    """The text of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part.get("text", "") for part in parts)


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]
