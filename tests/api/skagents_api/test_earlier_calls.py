"""Calls of agents without state: what their clients get, and what the model is sent, whole."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from earlier_agents import AGENT, CHAT, IMAGE, PIXEL, SEQUENTIAL, TYPES, sent, served, write
from httpx_sse import connect_sse
from openapi_spec_validator import validate
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread

HISTORY = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello Ada."},
    {"role": "user", "content": "What is my name?"},
]
REPORT = {
    "chat_history": [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}],
    "topic": "tea",
    "author": {"name": "Ada"},
    "points": ["hot", "green"],
    "picture": {"format": "png", "data": PIXEL},
}
ANSWERS = {
    "rules": [
        {"when": {"text": "Look at"}, "reply": "A teapot."},
        {"when": {"text": "Outline"}, "reply": "One, two."},
        {"when": {"text": "Check"}, "reply": "It is good."},
        {"when": {"text": "Write it"}, "reply": '{"title": "Tea", "pages": 3}'},
    ]
}
#: what the model is sent for `REPORT`, message by message
USER, ASSISTANT = "user", "assistant"
TOLD = [
    *REPORT["chat_history"],
    {
        "role": USER,
        "content": [
            {"type": "text", "text": "Look at the picture of tea by Ada."},
            {"type": "image_url", "image_url": {"url": IMAGE}},
        ],
    },
    {"role": ASSISTANT, "content": "A teapot."},
    {"role": USER, "content": "Outline TEA after: A teapot."},
    {"role": ASSISTANT, "content": "One, two."},
    {"role": USER, "content": "1. hot\n2. green\nCheck One, two.."},
    {"role": ASSISTANT, "content": "It is good."},
    {"role": USER, "content": "Write it: A teapot., One, two., It is good."},
]
READER, WRITER = {"role": "system", "content": "You read."}, {"role": "system", "content": "You write."}
SENT = [[READER, *TOLD[:3]], [WRITER, *TOLD[:5]], [READER, *TOLD[:7]], [WRITER, *TOLD]]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with served(write(tmp_path_factory.mktemp("chat"), CHAT)) as pair:
        yield pair


@pytest.fixture(scope="module")
def reporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    folder = tmp_path_factory.mktemp("reporter")
    with served(write(folder, SEQUENTIAL, custom_types=TYPES), ANSWERS) as pair:
        yield pair


def post(service: ServiceThread, body: Any, path: str = "", **options: Any) -> httpx.Response:
    with service.client(None) as client:
        return client.post(service.url + path, json=body, **options)


def events(service: ServiceThread, body: Any) -> list[tuple[str, dict[str, Any]]]:
    url = service.url + "/sse"
    with service.client(None) as client, connect_sse(client, "POST", url, json=body) as source:
        return [(each.event, each.json()) for each in source.iter_sse()]


def streamed(service: ServiceThread, body: Any, **options: Any) -> str:
    url = service.url.replace("http", "ws") + "/stream"
    with connect(url, **options) as socket:
        socket.send(json.dumps(body))
        return "".join(str(piece) for piece in socket)


def test_answer_of_a_conversation(chat: tuple[ServiceThread, OfflineModel]) -> None:
    """The conversation that came is what the model is sent, behind what is known of the user."""
    service, model = chat
    model.clear()
    body = {"chat_history": HISTORY, "user_context": {"City": "Oslo"}, "session_id": "any string"}
    answer = post(service, body).raise_for_status().json()
    assert list(answer) == [
        *("session_id", "source", "request_id", "token_usage", "extra_data", "output_raw", "output_pydantic"),
    ]
    assert answer["session_id"] == "any string"
    assert answer["source"] == "WeatherBot:0.1"
    assert re.fullmatch("[0-9a-f]{32}", answer["request_id"])
    assert answer["output_raw"] == "Your name is Ada."
    assert (answer["output_pydantic"], answer["extra_data"]) == (None, None)
    usage = answer["token_usage"]
    assert set(usage) == {"completion_tokens", "prompt_tokens", "total_tokens"}
    assert usage["total_tokens"] == usage["completion_tokens"] + usage["prompt_tokens"] > 0
    context = "Context of this request, given by the user's application:\n- City: Oslo"
    assert sent(model) == [
        [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": context},
            *HISTORY,
        ]
    ]


def test_a_session_id_of_a_thousand_characters_is_taken(chat: tuple[ServiceThread, OfflineModel]) -> None:
    """And repeated as it came."""
    body = {"chat_history": HISTORY, "session_id": "ß" * 1000}
    assert post(chat[0], body).raise_for_status().json()["session_id"] == body["session_id"]


def test_body_without_content_type_is_json(chat: tuple[ServiceThread, OfflineModel]) -> None:
    """Orchestrators that name no type are understood, and other types are refused."""
    service, _ = chat
    with service.client(None) as client:
        body = json.dumps({"chat_history": HISTORY})
        plain = client.post(service.url, content=body)
        assert "content-type" not in plain.request.headers
        assert plain.json()["output_raw"] == "Your name is Ada."
        other = client.post(service.url, content=body, headers={"content-type": "text/plain"})
        assert other.status_code == 422


def test_events_of_a_conversation(chat: tuple[ServiceThread, OfflineModel]) -> None:
    """Each piece with the ids, then the answer; the WebSocket sends the same text bare."""
    service, _ = chat
    *pieces, (last, answer) = events(service, {"chat_history": HISTORY})
    assert {name for name, _ in pieces} == {"partial-response"}
    assert {tuple(data) for _, data in pieces} == {("session_id", "source", "request_id", "output_partial")}
    assert "".join(data["output_partial"] for _, data in pieces) == "Your name is Ada."
    assert (last, answer["output_raw"]) == ("final-response", "Your name is Ada.")
    assert {data["request_id"] for _, data in pieces} == {answer["request_id"]}
    assert streamed(service, {"chat_history": HISTORY}) == "Your name is Ada."


def test_multimodal_conversation(tmp_path: Path) -> None:
    """The second version takes texts and images in each message."""
    with served(write(tmp_path, AGENT)) as (service, model):
        items = [
            {"content_type": "text", "content": "What is it?"},
            {"content_type": "image", "content": IMAGE},
        ]
        body = {"chat_history": [{"role": "user", "items": items}]}
        assert post(service, body).raise_for_status().json()["source"] == "Painter:0.2"
        assert sent(model)[0][1:] == [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": IMAGE}},
                ],
            }
        ]
        items[1]["content"] = "https://example.com/picture.png"
        assert post(service, body).json()["detail"].startswith("chat_history.0.items.1: must be a data URI")


def test_text_alone_is_sent_to_a_multimodal_agent_as_a_content(tmp_path: Path) -> None:
    """As the assistant orchestrator does, in each of the three ways to call."""
    with served(write(tmp_path, AGENT)) as (service, model):
        body = {"chat_history": HISTORY, "user_context": {}}
        assert post(service, body).raise_for_status().json()["output_raw"] == "Your name is Ada."
        assert events(service, body)[-1][1]["output_raw"] == "Your name is Ada."
        assert streamed(service, body) == "Your name is Ada."
        assert [messages[1:] for messages in sent(model)] == [HISTORY] * 3


def test_sequence_over_json(reporter: tuple[ServiceThread, OfflineModel]) -> None:
    """Four tasks in the order of their numbers, over one conversation; the last answer is of a type."""
    service, model = reporter
    model.clear()
    answer = post(service, REPORT).raise_for_status().json()
    assert sent(model) == SENT
    assert [request["body"]["model"] for request in model.requests] == ["gpt-4o", "gpt-4o-mini"] * 2
    assert answer["output_raw"] == '{"title": "Tea", "pages": 3}'
    assert answer["output_pydantic"] == {"title": "Tea", "pages": 3}
    shapes = [request["body"].get("response_format") for request in model.requests]
    assert shapes[:3] == [None] * 3
    wanted = shapes[3]["json_schema"]
    assert (wanted["name"], wanted["strict"]) == ("Report", True)
    assert wanted["schema"]["required"] == ["title", "pages"]
    assert wanted["schema"]["additionalProperties"] is False


def test_sequence_over_sse(reporter: tuple[ServiceThread, OfflineModel]) -> None:
    """Each task's answer as it ends, the pieces of the last one, and the answer of all."""
    service, model = reporter
    model.clear()
    received = events(service, REPORT)
    assert sent(model) == SENT
    intermediate = [data for name, data in received if name == "intermediate-task-response"]
    assert [(each["task_no"], each["task_name"]) for each in intermediate] == [
        (1, "look"),
        (2, "outline"),
        (3, "check"),
    ]
    assert [each["response"]["output_raw"] for each in intermediate] == [
        "A teapot.",
        "One, two.",
        "It is good.",
    ]
    assert [name for name, _ in received][:3] == ["intermediate-task-response"] * 3
    pieces = [data["output_partial"] for name, data in received if name == "partial-response"]
    assert len(pieces) > 1
    assert received[-1][0] == "final-response"
    final = received[-1][1]
    assert final["output_raw"] == "".join(pieces)
    assert final["output_pydantic"] == {"title": "Tea", "pages": 3}
    total = final["token_usage"]["total_tokens"]
    assert total > sum(each["response"]["token_usage"]["total_tokens"] for each in intermediate)


def test_sequence_over_websocket(reporter: tuple[ServiceThread, OfflineModel]) -> None:
    """The last task's text, bare."""
    service, model = reporter
    model.clear()
    assert streamed(service, REPORT) == '{"title": "Tea", "pages": 3}'
    assert sent(model) == SENT


@pytest.mark.parametrize("client", ["openai-chat", "openai-responses"])
def test_typed_answers_of_the_offline_model(tmp_path: Path, client: str) -> None:
    """Without a script a typed agent is answered by type, whichever API its model speaks."""
    config = SEQUENTIAL.replace("model: gpt-4o-mini\n", f"model: gpt-4o-mini\n      client: {client}\n")
    with served(write(tmp_path, config, custom_types=TYPES)) as (service, _):
        assert set(post(service, REPORT).raise_for_status().json()["output_pydantic"]) == {"title", "pages"}


def test_document_says_what_the_agent_is(chat: tuple[ServiceThread, OfflineModel]) -> None:
    """The first path is the call of the agent, with the agent's own description."""
    service, _ = chat
    with service.client(None) as client:
        paths = client.get(service.url + "/openapi.json").json()["paths"]
        first = next(iter(paths))
        assert first == "/WeatherBot/0.1"
        assert paths[first]["post"]["description"] == "Talks about the weather."
        for page in (
            "/docs",
            "/redoc",
            "/docs/redoc.standalone.js",
            "/health",
            "/health/live",
            "/health/ready",
        ):
            assert client.get(service.url + page).status_code == 200


def test_document_of_an_output_type_of_any_name(tmp_path: Path) -> None:
    """The config's own types keep theirs, also one that is called Answer."""
    types = "from pydantic import BaseModel\n\nclass Answer(BaseModel):\n    city: str\n"
    file = write(tmp_path, CHAT.replace("spec:", "output_type: Answer\nspec:"), custom_types=types)
    with served(file) as (service, _):
        document = httpx.get(service.url + "/openapi.json").json()
    assert list(document["components"]["schemas"]["Answer"]["properties"]) == ["city"]
    call = document["paths"]["/WeatherBot/0.1"]["post"]
    answered = call["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    assert answered["output_pydantic"] == {"$ref": "#/components/schemas/Answer"}
    assert answered["output_raw"] == {"type": "string"}


NAMESAKES = """
from pydantic import BaseModel

class Asked(BaseModel):
    class Item(BaseModel):
        word: str
    item: Item

class Answered(BaseModel):
    class Item(BaseModel):
        number: int
    item: Item
"""


def test_document_tells_types_of_one_name_apart(tmp_path: Path) -> None:
    """What is nested in the input is not described as what is nested in the answer."""
    text = SEQUENTIAL.replace("ReportInput", "Asked").replace("output_type: Report", "output_type: Answered")
    with served(write(tmp_path, text, custom_types=NAMESAKES)) as (service, _):
        document = httpx.get(service.url + "/openapi.json").json()
    validate(document)
    schemas = document["components"]["schemas"]
    for kind, field in (("Asked", "word"), ("Answered", "number")):
        item = schemas[kind]["properties"]["item"]["$ref"].rpartition("/")[2]
        assert list(schemas[item]["properties"]) == [field]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"chat_history": []}, "chat_history: is empty"),
        ({}, "chat_history: is empty"),
        ({"chat_history": [{"role": "system", "content": "x"}]}, "chat_history.0.role"),
        ({"chat_history": [{"role": "user"}]}, "chat_history.0.content"),
        ({"chat_history": HISTORY, "user_context": {"a": 1}}, "user_context.a"),
        ({"chat_history": HISTORY, "session_id": 7}, "session_id"),
        ({"chat_history": HISTORY, "session_id": "s" * 1001}, "session_id: may have at most 1,000"),
        ([], "body: must be a JSON object"),
        ({"chat_history": [{"role": "user", "content": "a\u0000b"}]}, "chat_history.0.content"),
    ],
)
def test_input_that_cannot_be_meant(chat: tuple[ServiceThread, OfflineModel], body: Any, field: str) -> None:
    """What does not fit the input type is refused with its field, over all three ways; no model is called."""
    service, model = chat
    model.clear()
    refused = post(service, body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert refused.json()["detail"].startswith(field)
    over_sse = post(service, body, "/sse")
    assert "invalid_request" in over_sse.text
    with pytest.raises(ConnectionClosed) as closed:
        streamed(service, body)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason.startswith(field)
    assert model.requests == []


def test_what_is_not_there_is_a_problem_document(chat: tuple[ServiceThread, OfflineModel]) -> None:
    """A path that is not served, and a method that a path does not have, which names those it has."""
    service, _ = chat
    for method, path, status, code in (
        ("GET", "/nothing", 404, "not_found"),
        ("DELETE", "", 405, "method_not_allowed"),
    ):
        answer = httpx.request(method, service.url + path)
        assert answer.status_code == answer.json()["status"] == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == code
    assert answer.headers["allow"] == "POST"
    for path in ("/nothing", "/health", ""):
        with pytest.raises(InvalidStatus) as denied, connect(service.url.replace("http", "ws") + path):
            pass
        response = denied.value.response
        assert (response.status_code, json.loads(response.body)["code"]) == (404, "not_found")
        assert response.headers["content-type"] == "application/problem+json"


def test_failed_model(reporter: tuple[ServiceThread, OfflineModel]) -> None:
    """A model that cannot answer by type, or answers otherwise, is a 502 that says so."""
    service, model = reporter
    refusing = {"status": 400, "message": "Invalid parameter: 'response_format' is not supported."}
    rules = [*ANSWERS["rules"][:3], {"reply": {"error": refusing}}]
    model.script({"rules": rules})
    try:
        refused = post(service, REPORT)
        assert refused.status_code == 502
        assert "asked for structured output (response_format) of the type Report" in refused.json()["detail"]
        assert events(service, REPORT)[-1][1]["code"] == "model_error"
        model.script({"rules": [*ANSWERS["rules"][:3], {"reply": "No JSON."}]})
        assert "The model's answer is not of the type Report" in post(service, REPORT).json()["detail"]
    finally:
        model.script(ANSWERS)


@pytest.mark.parametrize(
    ("status", "message", "advised"),
    [
        (400, "'text.format' of type 'json_schema' is not supported.", True),
        (422, "json_schema: extra inputs are not permitted", True),
        (400, "Invalid information in the message; the schema of the tool is wrong.", False),
        (401, "For more information on response_format, read the docs.", False),
        (429, "You exceeded your quota. For more information, read the docs.", False),
    ],
)
def test_only_a_refusal_of_the_format_is_explained_by_it(
    reporter: tuple[ServiceThread, OfflineModel], status: int, message: str, advised: bool
) -> None:
    """Of any other the reader would look for the cause in the type."""
    service, model = reporter
    error = {"status": status, "message": message}
    model.script({"rules": [*ANSWERS["rules"][:3], {"reply": {"error": error}}]})
    try:
        detail = post(service, REPORT).json()["detail"]
    finally:
        model.script(ANSWERS)
    assert message in detail
    assert ("asked for structured output" in detail) == advised


HOSTILE = """
from pydantic import BaseModel, Field, field_serializer, field_validator


class Answered(BaseModel):
    first_name: str = Field(alias="firstName")

    @field_validator("first_name")
    def check(cls, value):
        if value == "validator":
            raise RuntimeError("secret")
        return value

    @field_serializer("first_name")
    def plain(self, value) -> str:
        if value == "serializer":
            raise RuntimeError("secret")
        return value
"""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    config = CHAT.replace("spec:", "output_type: Answered\nspec:")
    with served(write(tmp_path_factory.mktemp("typed"), config, custom_types=HOSTILE)) as pair:
        yield pair


@pytest.mark.parametrize("culprit", ["validator", "serializer"])
def test_output_types_that_raise(typed: tuple[ServiceThread, OfflineModel], culprit: str) -> None:
    """What an output type's own code raises is a failed call with a reason, over all three ways."""
    service, model = typed
    model.script({"rules": [{"reply": json.dumps({"firstName": culprit})}]})
    body = {"chat_history": HISTORY}
    refused = post(service, body)
    reason = refused.json()["detail"]
    assert refused.status_code == 502
    assert reason.startswith("The model's answer is not of the type Answered: the type raised")
    name, problem = events(service, body)[-1]
    assert (name, problem["detail"]) == ("error", reason)
    with pytest.raises(ConnectionClosed) as closed:
        streamed(service, body)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason == reason


def test_typed_answers_have_the_names_of_their_schema(typed: tuple[ServiceThread, OfflineModel]) -> None:
    """A field with an alias is called by it, as in the document and in what the model is asked for."""
    service, model = typed
    model.script({"rules": [{"reply": '{"firstName": "Ada"}'}]})
    body = {"chat_history": HISTORY}
    for answer in (post(service, body).json(), events(service, body)[-1][1]):
        assert answer["output_pydantic"] == {"firstName": "Ada"}
    document = httpx.get(service.url + "/openapi.json").json()
    assert list(document["components"]["schemas"]["Answered"]["properties"]) == ["firstName"]


SERIALIZED = """
from pydantic import BaseModel, Field, computed_field, field_serializer


class Answered(BaseModel):
    name: str = Field(validation_alias="fullName", serialization_alias="full_name")
    pages: int

    @field_serializer("pages")
    def numbered(self, pages: int) -> str:
        return f"#{pages}"

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.pages
"""


def test_typed_answers_are_what_the_document_says(tmp_path: Path) -> None:
    """Names and types are those of the serialized type, which the model is not asked for."""
    file = write(tmp_path, CHAT.replace("spec:", "output_type: Answered\nspec:"), custom_types=SERIALIZED)
    with served(file, {"rules": [{"reply": '{"fullName": "Ada", "pages": 3}'}]}) as (service, model):
        answer = post(service, {"chat_history": HISTORY}).json()["output_pydantic"]
        document = httpx.get(service.url + "/openapi.json").json()
    assert answer == {"full_name": "Ada", "pages": "#3", "twice": 6}
    validate(document)
    described = document["components"]["schemas"]["Answered"]
    jsonschema.validate(answer, described)
    assert described["required"] == list(answer)
    asked = model.requests[-1]["body"]["response_format"]["json_schema"]["schema"]
    assert list(asked["properties"]) == ["fullName", "pages"]


UNANNOTATED = """
from typing import Annotated

from pydantic import BaseModel, PlainSerializer, PlainValidator


class Money:
    def __init__(self, amount):
        self.amount = amount


class Answered(BaseModel):
    price: Annotated[
        Money,
        PlainValidator(Money, json_schema_input_type=str),
        PlainSerializer(lambda money: money.amount),
    ]
"""


def test_an_output_whose_serializer_has_no_annotation_is_described_as_it_is_asked_for(tmp_path: Path) -> None:
    """Nothing else says what it writes."""
    file = write(tmp_path, CHAT.replace("spec:", "output_type: Answered\nspec:"), custom_types=UNANNOTATED)
    with served(file, {"rules": [{"reply": '{"price": "5"}'}]}) as (service, _):
        answer = post(service, {"chat_history": HISTORY}).json()["output_pydantic"]
        document = httpx.get(service.url + "/openapi.json").json()
    assert answer == {"price": "5"}
    assert document["components"]["schemas"]["Answered"]["properties"]["price"]["type"] == "string"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (
            {"text": '{"firstName": "A', "finish_reason": "length"},
            "it was cut off at the model's token limit",
        ),
        ({"text": "Wha", "finish_reason": "content_filter"}, "it was stopped by the model service's content"),
        ({"refusal": "I would rather not."}, "the model refused"),
        ({"text": "Sure!"}, "invalid JSON"),
    ],
)
def test_typed_answers_that_the_model_has_not_finished(
    typed: tuple[ServiceThread, OfflineModel], reply: Any, reason: str
) -> None:
    """The problem says why, and not only where the JSON ends."""
    service, model = typed
    model.script({"rules": [{"reply": reply}]})
    detail = post(service, {"chat_history": HISTORY}).json()["detail"]
    assert detail.startswith(f"The model's answer is not of the type Answered: {reason}")


def test_images_of_the_configs_own_types(tmp_path: Path) -> None:
    """An embedded image may name its format by an enum; what only looks like an image is data."""
    types = """
from enum import Enum
from pydantic import BaseModel
from sk_agents.ska_types import HistoryMessage


class Format(Enum):
    PNG = "png"


class Picture(BaseModel):
    format: Format
    data: bytes


class Table(BaseModel):
    format: str
    data: str


class Given(BaseModel):
    chat_history: list[HistoryMessage] | None = None
    topic: str
    author: dict[str, str]
    embedded_image: Picture
    table: Table
"""
    config = SEQUENTIAL.replace("ReportInput", "Given").replace("output_type: Report\n", "")
    with served(write(tmp_path, config, custom_types=types)) as (service, model):
        table = {"format": "csv", "data": "a,b"}
        body = {**REPORT, "embedded_image": {"format": "png", "data": PIXEL}, "table": table}
        post(service, body).raise_for_status()
    assert sent(model)[0][-1]["content"][1:] == [{"type": "image_url", "image_url": {"url": IMAGE}}]


def test_templates_over_typed_values(tmp_path: Path) -> None:
    """What Python knows of a field is filled in, or refused in words: never left out without a word."""
    types = """
from datetime import date
from pydantic import AnyUrl, BaseModel


class Agent(BaseModel):
    name: str

    @property
    def label(self):
        return f"<{self.name}>"


class Given(BaseModel):
    day: date
    agents: list[Agent]
    page: AnyUrl | None = None
"""
    instructions = (
        "{{ day }} {{ day.year }}{% for each in agents %} {{ each.label }}{% endfor %}"
        "{% if page %}{{ page.host }}{% endif %}"
    )
    config = f"""
apiVersion: skagents/v1
kind: Sequential
service_name: Chooser
version: 1.0
input_type: Given
spec:
  agents:
    - {{name: default, model: gpt-4o, system_prompt: You choose.}}
  tasks:
    - {{name: choose, task_no: 1, agent: default, instructions: {json.dumps(instructions)}}}
"""
    with served(write(tmp_path, config, custom_types=types)) as (service, model):
        body = {"day": "2024-05-06", "agents": [{"name": "A"}, {"name": "B"}]}
        post(service, body).raise_for_status()
        assert sent(model)[0][-1]["content"] == "2024-05-06 2024 <A> <B>"
        refused = post(service, {**body, "page": "https://example.com"})
    assert refused.status_code == 422
    assert "host of AnyUrl cannot be read in templates" in refused.json()["detail"]


def test_fields_that_are_not_in_the_json_of_their_type(tmp_path: Path) -> None:
    """Templates read them by name; an object as a whole is filled in without them."""
    types = """
from datetime import date
from pydantic import BaseModel, Field


class Author(BaseModel):
    name: str
    born: date = Field(exclude=True)


class ReportInput(BaseModel):
    chat_history: list[dict] = Field([], exclude=True)
    topic: str = Field(exclude=True)
    author: Author


class Report(BaseModel):
    title: str
"""
    text = "Look at the picture of {{ topic }} by {{ author.name }}."
    config = SEQUENTIAL.replace(
        text, "On {{ topic }} by {{ author.name }} ({{ author.born.year }}), {{ author }}"
    )
    body = {"topic": "Hats", "author": {"name": "Ada", "born": "1815-12-10"}, "chat_history": HISTORY}
    with served(write(tmp_path, config, custom_types=types)) as (service, model):
        post(service, body)
        said = [message["content"] for message in sent(model)[0]]
    assert said[-1] == "On Hats by Ada (1815), {'name': 'Ada'}"
    assert HISTORY[0]["content"] in said


def test_types_that_files_import(tmp_path: Path) -> None:
    """A file of types may name what a piece of a message is, and what agents answer with."""
    types = """
from sk_agents.ska_types import BaseMultiModalInput, ContentType, InvokeResponse, TokenUsage

assert InvokeResponse[str](token_usage=TokenUsage(completion_tokens=1, prompt_tokens=2, total_tokens=3))


class Given(BaseMultiModalInput):
    def model_post_init(self, context):
        assert self.chat_history[0].items[0].content_type is ContentType.TEXT
"""
    config = CHAT.replace("BaseInputWithUserContext", "Given")
    with served(write(tmp_path, config, custom_types=types)) as (service, model):
        items = [{"content": "What is it?"}, {"content_type": "image", "content": IMAGE}]
        post(service, {"chat_history": [{"role": "user", "items": items}]}).raise_for_status()
        assert sent(model)[0][-1]["content"][1]["type"] == "image_url"
        items[1]["content_type"] = "sound"
        refused = post(service, {"chat_history": [{"role": "user", "items": items}]})
        assert refused.json()["detail"].startswith("chat_history.0.items.1.content_type")
