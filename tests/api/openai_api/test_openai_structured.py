"""Structured outputs and the choice of a tool, which go on to the model service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import WEATHER, create, retrieved, sdk, serving
from pydantic import BaseModel
from talk import call, lines

from tealagents.llm.offline import OfflineModel

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PLACE = {"type": "json_schema", "name": "place", "schema": SCHEMA}
ANSWER = '{"city": "Rome"}'


class Place(BaseModel):
    city: str


@pytest.fixture
def serves() -> Iterator[tuple[OpenAI, OfflineModel]]:
    script = {"rules": [{"when": "where", "reply": {"text": ANSWER}}]}
    with serving(script) as (service, model), sdk(service) as ada:
        yield ada, model


def body(model: OfflineModel) -> Any:
    """What the model service was sent last."""
    return model.requests[-1]["body"]


def test_an_answer_is_parsed_as_the_type_it_was_asked_for_in(serves: tuple[OpenAI, OfflineModel]) -> None:
    """Over Responses and Chat Completions, with the helpers of the SDK."""
    ada, model = serves
    response = ada.responses.parse(model="Tester", input="where", text_format=Place)
    assert response.output_parsed == Place(city="Rome")
    wanted = body(model)["response_format"]
    assert wanted["json_schema"]["schema"]["properties"] == {"city": {"title": "City", "type": "string"}}
    assert (wanted["type"], wanted["json_schema"]["strict"]) == ("json_schema", True)
    messages: Any = [{"role": "user", "content": "where"}]
    completion = ada.chat.completions.parse(model="Tester", messages=messages, response_format=Place)
    assert completion.choices[0].message.parsed == Place(city="Rome")
    assert body(model)["response_format"] == wanted


def test_a_pause_is_parsed_where_a_type_was_asked_for(file: Path) -> None:
    """The helpers return the approval request, streamed and read alike; the answer to it is of the type."""
    asks = {"name": "Work-write", "arguments": {"file": str(file), "line": "one"}}
    script = {
        "rules": [
            {"when": {"text": "where", "tool_result": True}, "reply": {"text": ANSWER}},
            {"when": "where", "reply": {"tool_calls": [asks]}},
        ]
    }
    with serving(script) as (service, _), sdk(service) as ada:
        made = ada.responses.parse(model="Tester", input="where", text_format=Place)
        with ada.responses.stream(model="Tester", input="where", text_format=Place) as events:
            events.until_done()
        streamed = events.get_final_response()
        for paused in (made, streamed):
            (request,) = paused.output
            assert request.type == "mcp_approval_request"
            assert ada.responses.retrieve(paused.id).to_dict()["output"] == [request.to_dict()]
            answer: Any = {
                "type": "mcp_approval_response",
                "approval_request_id": request.id,
                "approve": True,
            }
            response = ada.responses.parse(
                model="Tester", input=[answer], previous_response_id=paused.id, text_format=Place
            )
            assert response.output_parsed == Place(city="Rome")
        messages: Any = [{"role": "user", "content": "where"}]
        wanted: Any = {"model": "Tester", "messages": messages, "response_format": Place}
        completion = ada.chat.completions.parse(**wanted)
        with ada.chat.completions.stream(**wanted) as chunks:
            chunks.until_done()
        for said in (completion.choices[0].message, chunks.get_final_completion().choices[0].message):
            assert not said.content
            assert said.parsed is None
            assert said.refusal == "Approval is needed before Work-write can run."
    assert lines(file) == ["one"] * 2


def test_a_consent_is_shown_where_a_type_was_asked_for(ada: OpenAI, file: Path, tmp_path: Path) -> None:
    """Its link stands in the text, which the helpers leave unparsed."""
    words = call("Work-enter", file=str(file), consent=str(tmp_path / "consent"))
    paused = ada.responses.parse(model="Tester", input=words, text_format=Place)
    request: Any = paused.output[-1]
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    asked = ada.responses.parse(model="Tester", input=[answer], text_format=Place)
    assert [item.type for item in asked.output] == ["mcp_call", "message", "mcp_approval_request"]
    assert "https://secrets.example/consent" in asked.output_text
    assert asked.output_parsed is None
    with ada.responses.stream(response_id=asked.id, text_format=Place) as events:
        assert events.get_final_response().output_text == asked.output_text


def test_a_format_holds_for_its_request_and_is_shown_with_it(wire: httpx.Client, model: OfflineModel) -> None:
    """Behind the answer of a client's tool too; not in the next message."""
    shape = {
        "type": "json_schema",
        "name": "place",
        "schema": SCHEMA,
        "description": "Where",
        "strict": False,
    }
    first = create(wire, input=call("get_weather", place="Rome"), tools=[WEATHER], text={"format": shape})
    assert first["text"] == {"format": shape}
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sunny"}
    second = create(wire, input=[output])
    sent = {name: shape[name] for name in ("name", "description", "schema", "strict")}
    assert body(model)["response_format"] == {"type": "json_schema", "json_schema": sent}
    assert [retrieved(wire, each["id"])["text"] for each in (first, second)] == [{"format": shape}] * 2
    third = create(wire, input="hi", previous_response_id=second["id"])
    assert "response_format" not in body(model)
    assert third["text"] == {"format": {"type": "text"}}


def test_an_answer_may_bring_the_usual_format(wire: httpx.Client, model: OfflineModel) -> None:
    """As it may bring any other."""
    shape = {"type": "json_object"}
    first = create(wire, input=call("get_weather", place="Rome"), tools=[WEATHER], text={"format": shape})
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sunny"}
    second = create(wire, input=[output], text={"format": {"type": "text"}})
    assert "response_format" not in body(model)
    assert [each["text"]["format"] for each in (first, second)] == [shape, {"type": "text"}]


def test_any_json_object_can_be_asked_for(wire: httpx.Client, model: OfflineModel) -> None:
    made = create(wire, input="hi", text={"format": {"type": "json_object"}})
    assert body(model)["response_format"] == {"type": "json_object"}
    assert made["text"] == {"format": {"type": "json_object"}}


def test_a_client_chooses_what_the_model_calls(wire: httpx.Client, model: OfflineModel) -> None:
    """Up to the answer to a call: from then on the model chooses, or it would call for ever."""
    named = {"type": "function", "name": "get_weather"}
    words = call("get_weather", place="Rome")
    first = create(wire, input=words, tools=[WEATHER], tool_choice=named)
    assert body(model)["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert first["tool_choice"] == named
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sunny"}
    second = create(wire, input=[output])
    assert "tool_choice" not in body(model)
    assert second["tool_choice"] == "auto"
    assert retrieved(wire, first["id"]) == first


@pytest.mark.parametrize("choice", ["none", "required"])
def test_whether_the_model_calls_a_tool_is_chosen_over_chat(
    wire: httpx.Client, model: OfflineModel, choice: str
) -> None:
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    wire.post(
        "chat/completions",
        json={
            "model": "Tester",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": choice,
        },
    ).raise_for_status()
    assert body(model)["tool_choice"] == choice


def test_a_choice_without_a_tool_of_its_own_leaves_the_rest(wire: httpx.Client, model: OfflineModel) -> None:
    """With the answer to a call: instructions, tools and format remain."""
    shape = {"type": "json_schema", "name": "place", "description": None, "schema": SCHEMA, "strict": False}
    words = call("get_weather", place="Rome")
    first = create(wire, input=words, instructions="Be terse.", tools=[WEATHER], text={"format": shape})
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sunny"}
    second = create(wire, input=[output], tool_choice="none")
    assert body(model)["tool_choice"] == "none"
    assert body(model)["response_format"]["json_schema"]["name"] == "place"
    assert (second["instructions"], second["text"]) == ("Be terse.", {"format": shape})
    assert (second["tools"], second["tool_choice"]) == (first["tools"], "none")


def test_a_call_of_the_agents_own_tool_meets_what_is_required(
    wire: httpx.Client, model: OfflineModel, file: Path
) -> None:
    """It would have to call for ever."""
    create(wire, input=call("Work-rest", file=str(file), seconds=0), tools=[WEATHER], tool_choice="required")
    first, second = (request["body"] for request in model.requests[-2:])
    assert (first["tool_choice"], "tool_choice" in second) == ("required", False)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("text.format.type", {"text": {"format": {"type": "grammar"}}}),
    ("text.format.type", {"text": {"format": "json_schema"}}),
    ("text.format.description", {"text": {"format": {**PLACE, "description": {"a": 1}}}}),
    ("text.format", {"text": {"format": {**PLACE, "description": "x" * 70_000}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
    ("text.format.name", {"text": {"format": {"type": "json_schema", "name": "x y", "schema": SCHEMA}}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": "sometimes", "tools": [WEATHER]}),
    ("tool_choice", {"tool_choice": {"type": "function", "name": "other"}, "tools": [WEATHER]}),
    ("tool_choice", {"tool_choice": {"type": "file_search"}, "tools": [WEATHER]}),
]


@pytest.mark.parametrize(("field", "given"), REFUSED)
def test_a_format_or_choice_that_cannot_be_served_is_refused(
    ada: OpenAI, field: str, given: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ada.responses.create(**{"model": "Tester", "input": "hi", **given})
    assert error.value.param == field


def test_a_format_that_cannot_be_served_is_named_as_chat_has_it(ada: OpenAI) -> None:
    for field, given in (
        ("response_format.type", {"type": "grammar"}),
        ("response_format.json_schema.schema", {"type": "json_schema", "json_schema": {"name": "x"}}),
    ):
        messages: Any = [{"role": "user", "content": "hi"}]
        wanted: Any = {"model": "Tester", "messages": messages, "response_format": given}
        with pytest.raises(openai.BadRequestError) as error:
            ada.chat.completions.create(**wanted)
        assert error.value.param == field
