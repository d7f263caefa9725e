"""Responses with OpenAI's SDK: create, stream, retrieve, continue, branch, cancel, delete."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import Json, create, kinds, raw, retrieved, said, sdk, serving, stream, streamed, valid
from talk import call

from tealagents.api import requests
from tealagents.api.exchange import Exchange
from tealagents.api.openai import responses
from tealagents.api.requests import MOST_REQUESTS
from tealagents.api.stretches import Stretch
from tealagents.domain.models import RequestRecord
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until


def test_a_conversation_that_is_not_named_begins_none(wire: httpx.Client) -> None:
    """A client that has lost its id learns of it."""
    refused = wire.post("/responses", json={"input": "hi", "conversation": {"id": None}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation.id")


def test_a_response_is_created_and_read_again(ada: OpenAI) -> None:
    """The answer, what it used, and whose it is; read later it is the same."""
    response = ada.responses.create(model="Tester", input="hello", metadata={"topic": "greeting"})
    assert response.status == "completed"
    assert response.output_text
    assert response.usage
    assert response.usage.total_tokens > 0
    assert response.metadata == {"topic": "greeting"}
    assert response.conversation
    assert response.conversation.id.startswith("conv_")
    valid(response.to_dict(mode="json"))
    assert ada.responses.retrieve(response.id) == response


def test_a_stream_and_its_replay_are_what_the_response_says(wire: httpx.Client) -> None:
    """The text arrives in deltas; the last event holds the response; any tail can be had again."""
    events = stream(wire, input="tell me a story")
    assert [event["type"] for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    final = events[-1]["response"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == said(final)
    later = retrieved(wire, final["id"])
    assert later == final
    for n in (-1, 0, 3, len(events) - 2, len(events) - 1, len(events) + 5):
        query = {"stream": "true"} | ({"starting_after": str(n)} if n >= 0 else {})
        replay = wire.get(f"/responses/{final['id']}", params=query)
        assert streamed(replay.text) == events[n + 1 :]


def test_tools_of_the_service_are_shown_as_made(wire: httpx.Client, file: Path) -> None:
    """A call is an `mcp_call` item with its output; live, replayed and read later alike."""
    words = call("Work-note", file=str(file), line="one")
    events = stream(wire, input=words)
    final = events[-1]["response"]
    assert kinds(final) == ["mcp_call", "message"]
    made = final["output"][0]
    assert (made["server_label"], made["name"], made["status"]) == ("Work", "note", "completed")
    assert made["output"] == "noted one"
    assert retrieved(wire, final["id"]) == final
    assert kinds(create(wire, input=words)) == ["mcp_call", "message"]


def test_the_events_of_a_response_that_was_not_streamed_hold_all_that_it_says(file: Path) -> None:
    """Also what was said before a call of a tool, before a pause and before a failure."""

    def calling(tool: str) -> Json:
        arguments = {"file": str(file), "line": "one"}
        return {"text": "Let me look.", "tool_calls": [{"name": f"Work-{tool}", "arguments": arguments}]}

    script = {
        "rules": [
            {"when": {"text": "note", "tool_result": True}, "reply": {"text": "Done."}},
            {"when": {"text": "note"}, "reply": calling("note")},
            {"when": {"text": "write"}, "reply": calling("write")},
            {"when": {"text": "on and on"}, "reply": calling("note")},
        ]
    }
    with serving(script, limits={"max_tool_rounds": 1}) as (service, _), raw(service) as wire:
        for words, outcome in (
            ("note", ["message", "mcp_call", "message"]),
            ("write", ["message", "message", "mcp_approval_request"]),
            ("on and on", ["message", "mcp_call", "message"]),
        ):
            made = wire.post("/responses", json={"input": words})
            name = f"resp_{made.headers['x-request-id']}_1"
            later = retrieved(wire, name)
            assert kinds(later) == outcome
            replay = wire.get(f"/responses/{name}", params={"stream": "true"})
            assert streamed(replay.text)[-1]["response"] == later


def test_what_is_imported_or_copied_is_replayed_as_it_is_read(
    service: ServiceThread, wire: httpx.Client, file: Path
) -> None:
    """With its calls, under the ids of its items; messages that were added from elsewhere, too."""
    made = create(wire, input=call("Work-note", file=str(file), line="one"))
    before = streamed(wire.get(f"/responses/{made['id']}", params={"stream": "true"}).text)
    task = f"/tasks/{made['conversation']['id'].removeprefix('conv_')}"
    with service.client() as ada:
        document = ada.get(f"{task}/export").raise_for_status().json()
        ada.delete(task).raise_for_status()
        ada.post("/tasks/import", json=document).raise_for_status()
        copy = ada.post(f"{task}/fork", json={}).raise_for_status().json()["checkpoint_id"]
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Good day."}]
    added = wire.post(f"/conversations/{made['conversation']['id']}/items", json={"items": said}).json()
    names = [made["id"], f"resp_{copy}_1", f"resp_{added['last_id'].split('_')[1]}_1"]
    for name, outcome in zip(
        names, (["mcp_call", "message"], ["mcp_call", "message"], ["message"]), strict=True
    ):
        events = streamed(wire.get(f"/responses/{name}", params={"stream": "true"}).text)
        assert events[-1]["response"] == retrieved(wire, name)
        assert kinds(events[-1]["response"]) == outcome
        query = {"stream": "true", "starting_after": "3"}
        assert streamed(wire.get(f"/responses/{name}", params=query).text) == events[4:]
        if name == made["id"]:
            assert events == before


def test_a_conversation_continues_from_its_last_response(ada: OpenAI) -> None:
    """The history lives in the service."""
    first = ada.responses.create(model="Tester", input="My name is Ada.")
    second = ada.responses.create(model="Tester", input="What is my name?", previous_response_id=first.id)
    assert "Ada" in second.output_text
    assert second.previous_response_id == first.id
    assert second.conversation == first.conversation


def test_two_branches_from_one_response(ada: OpenAI) -> None:
    """A response that others follow is branched from: neither branch knows of the other."""
    first = ada.responses.create(model="Tester", input="My name is Ada.")
    one = ada.responses.create(model="Tester", input="My cat is Tom.", previous_response_id=first.id)
    two = ada.responses.create(model="Tester", input="My dog is Rex.", previous_response_id=first.id)
    assert one.conversation == first.conversation != two.conversation
    asked = ada.responses.create(model="Tester", input="What is my name?", previous_response_id=two.id)
    assert "Ada" in asked.output_text
    assert two.previous_response_id == first.id == ada.responses.retrieve(two.id).previous_response_id


def test_errors_are_those_of_the_sdk(ada: OpenAI, eve: OpenAI) -> None:
    """Unknown and foreign ids are not found; what cannot be served is named."""
    response = ada.responses.create(model="Tester", input="hello")
    with pytest.raises(openai.NotFoundError) as foreign:
        eve.responses.retrieve(response.id)
    assert foreign.value.code == "not_found"
    for identifier in ("resp_1", response.id + "1", "resp_" + "0" * 32):
        with pytest.raises(openai.NotFoundError):
            ada.responses.retrieve(identifier)
    with pytest.raises(openai.NotFoundError):
        eve.responses.create(model="Tester", input="hi", previous_response_id=response.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ada.responses.create(model="Tester", input="hi", top_logprobs=3)
    assert refused.value.param == "top_logprobs"
    with pytest.raises(openai.AuthenticationError):
        ada.with_options(api_key="two words").responses.create(model="Tester", input="hi")


def test_an_item_of_a_response_can_be_referred_to(ada: OpenAI, eve: OpenAI, file: Path) -> None:
    """Clients that resend the history may send only the ids of what they were answered."""

    def history(*ids: str) -> Any:
        types: Any = itertools.cycle([{"type": "item_reference"}, {"type": None}, {}])
        referred = [{**next(types), "id": each} for each in ids]
        return [{"role": "user", "content": "My cat is Tom."}, *referred, {"role": "user", "content": "And?"}]

    noted = ada.responses.create(model="Tester", input=call("Work-note", file=str(file), line="one"))
    said = ada.responses.create(model="Tester", input="My name is Ada.")
    named = [item.id for item in (*noted.output, *said.output) if item.id is not None]
    made = ada.responses.create(model="Tester", input=history(*named))
    assert made.conversation is not None
    kept = list(ada.conversations.items.list(made.conversation.id, order="asc"))
    words = [json.loads(item.to_json())["content"][0]["text"] for item in kept[:-1]]
    assert [each.partition("(")[0] for each in words] == [
        *("My cat is Tom.", "note", noted.output_text, said.output_text, "And?"),
    ]
    last = named[-1]
    for client, identifier in (
        *((eve, last), (ada, last.replace("_1_", "_2_")), (ada, "msg_1")),
        *((ada, last.replace("_1_", "_1_9")), (ada, str(named[0]).replace("_1_", "_1_9"))),
    ):
        with pytest.raises(openai.NotFoundError) as unknown:
            client.responses.create(model="Tester", input=history(identifier))
        assert identifier in str(unknown.value)


@pytest.mark.parametrize("since", ["ended", "deleted"])
def test_a_key_stands_for_what_was_sent_and_not_for_what_it_refers_to(
    wire: httpx.Client, file: Path, since: str
) -> None:
    """The same body gets the first outcome, whatever the item that it names has come to since."""
    begun = create(wire, input=call("Work-rest", file=str(file), seconds=600), background=True)
    until(lambda: retrieved(wire, begun["id"])["output"])
    (item,) = retrieved(wire, begun["id"])["output"]
    user = {"role": "user", "content": "hello"}
    body = {"input": [user, {"type": "item_reference", "id": item["id"]}, user]}
    key = {"idempotency-key": f"refers-{since}"}
    first = wire.post("/responses", json=body, headers=key)
    wire.post(f"/responses/{begun['id']}/cancel").raise_for_status()
    if since == "deleted":
        wire.delete(f"/responses/{begun['id']}").raise_for_status()
    again = wire.post("/responses", json=body, headers=key)
    assert (first.status_code, again.status_code) == (200, 200), again.text
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert wire.post("/responses", json={"input": [user]}, headers=key).status_code == 422


def test_a_key_stands_for_what_was_sent_where_the_response_before_it_is_deleted(wire: httpx.Client) -> None:
    """The same body gets its branch, which remains; another body is refused."""
    root = create(wire, input="one")
    create(wire, input="two", previous_response_id=root["id"])
    body = {"input": "three", "previous_response_id": root["id"]}
    key = {"idempotency-key": "continues"}
    first = wire.post("/responses", json=body, headers=key).json()
    assert first["conversation"] != root["conversation"]
    wire.delete(f"/conversations/{root['conversation']['id']}").raise_for_status()
    again = wire.post("/responses", json=body, headers=key)
    assert (again.status_code, again.json()) == (200, first)
    assert again.headers["idempotent-replayed"] == "true"
    assert wire.post("/responses", json={"input": "three"}, headers=key).status_code == 422
    assert wire.post("/responses", json={**body, "input": "four"}, headers=key).status_code == 404


def test_a_reference_that_can_lead_to_nothing_says_what_to_send(wire: httpx.Client) -> None:
    """To a message that was sent, which has no place in a response; or without an id that is a text."""
    sent = wire.get(f"/responses/{create(wire, input='hello')['id']}/input_items").json()["data"][0]["id"]
    user = {"role": "user", "content": "hello"}
    for reference, words in (
        ({"id": sent}, "send the message itself"),
        ({"id": sent.upper().replace("MSG", "msg"), "type": "item_reference"}, "send the message itself"),
        ({"type": "item_reference"}, "must be the id of an item of a response"),
        ({"type": "item_reference", "id": 5}, "must be the id of an item of a response"),
        ({"type": "item_reference", "id": ""}, "must be the id of an item of a response"),
    ):
        refused = wire.post("/responses", json={"input": [user, reference, user]})
        assert refused.status_code == 400, reference
        assert refused.json()["error"]["param"] == "input.1.id"
        assert words in refused.json()["error"]["message"]


def test_an_item_without_a_type_is_a_reference_only_if_it_has_nothing_else(ada: OpenAI) -> None:
    """An output whose type was forgotten is not lost."""
    for item in ({"id": "call_1", "call_id": "call_1", "output": "lost"}, {"id": 5}, {"id": ["a"]}):
        given: Any = [{"role": "user", "content": "hello"}, item]
        with pytest.raises(openai.BadRequestError):
            ada.responses.create(model="Tester", input=given)


def test_items_of_a_request_that_was_imported_are_left_out_under_their_old_ids(
    service: ServiceThread, wire: httpx.Client, file: Path
) -> None:
    """Its parts are one, and its items have got other numbers."""
    user = {"role": "user", "content": call("Work-write", file=str(file), line="one")}
    paused = create(wire, input=[user])
    answer = {"type": "mcp_approval_response", "approval_request_id": paused["output"][-1]["id"]}
    done = create(wire, input=[{**answer, "approve": True}], previous_response_id=paused["id"])
    task = done["conversation"]["id"][5:]
    with service.client() as native:
        exported = native.get(f"/tasks/{task}/export").content
        native.delete(f"/tasks/{task}").raise_for_status()
        json_body = {"content-type": "application/json"}
        native.post("/tasks/import", content=exported, headers=json_body).raise_for_status()
    for item in done["output"]:
        referred = {"type": "item_reference", "id": item["id"]}
        assert create(wire, input=[user, referred, {**user, "content": "hi"}])["status"] == "completed"


def test_calls_of_the_service_that_are_sent_again_say_what_came_of_them(
    wire: httpx.Client, model: OfflineModel
) -> None:
    """Their output, also an empty one, or the words of their error; one without an outcome is left out."""
    words = [{"type": "text", "text": "It broke, "}, {"type": "text", "text": "badly."}]
    outcomes: list[Json] = [
        {"output": "fine", "error": None},
        {"output": "", "error": None},
        {"output": None, "error": {"type": "mcp_tool_execution_error", "content": words}},
        {"error": {"type": "mcp_protocol_error", "code": -32000, "message": "no such tool"}},
        {"output": None, "error": "too late"},
        {"output": "", "error": {"type": "http_error", "code": 500, "message": "away"}},
        {"error": {"content": [{"type": "image", "data": "AA=="}, *words]}},
        {"error": {"type": "http_error", "code": 500}},
        {"output": None, "error": None},
    ]
    calls = [{"type": "mcp_call", "name": f"tool{n}", "arguments": "{}"} for n in range(len(outcomes))]
    resent = [{**each, **outcome} for each, outcome in zip(calls, outcomes, strict=True)]
    user = {"role": "user", "content": "hello"}
    create(wire, input=[user, *resent, user])
    sent = [each["content"] for each in model.requests[-1]["body"]["messages"] if each["role"] == "assistant"]
    told = ["fine", "", "It broke, badly.", "no such tool", "too late", "away", "It broke, badly."]
    told.append('{"type": "http_error", "code": 500}')
    assert sent == [f"tool{n}({{}}) returned: {each}" for n, each in enumerate(told)]


def test_what_is_referred_to_is_bounded_as_a_body_is() -> None:
    """A reference is short, and what it stands for may be long."""
    limits = {"max_body_bytes": 10_000}
    with (
        serving({"otherwise": {"text": "x" * 4_000}}, limits=limits) as (service, model),
        sdk(service) as ada,
    ):
        answers = [ada.responses.create(model="Tester", input="hello") for _ in range(3)]
        said = [answer.output[0].id for answer in answers]
        known = [*said[:2], said[0], str(said[0]).upper().replace("MSG", "msg")]
        for named in (known, said):
            history: Any = [
                {"role": "user", "content": "hello"},
                *({"type": "item_reference", "id": each} for each in named),
                {"role": "user", "content": "and?"},
            ]
            if named is known:
                assert ada.responses.create(model="Tester", input=history).status == "completed"
                assert str(model.requests[-1]["body"]["messages"]).count("x" * 4_000) == 2
            else:
                with pytest.raises(openai.APIStatusError, match="larger than 10000 bytes") as refused:
                    ada.responses.create(model="Tester", input=history)
                assert refused.value.status_code == 413


def test_a_response_is_read_once_however_many_of_its_items_are_referred_to(
    ada: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has no such items, whichever way its id is written."""
    answered = ada.responses.create(model="Tester", input="hello")
    reading, read = responses.document, list[str]()

    async def counted(exchange: Exchange, stretch: Stretch) -> Json:
        read.append(stretch.record.request_id)
        return await reading(exchange, stretch)

    monkeypatch.setattr(responses, "document", counted)
    of = answered.id.removeprefix("resp_")
    named = [f"msg_{each}_{n}" for n in range(900, 910) for each in (of, of.upper())]
    unknown: Any = [{"type": "item_reference", "id": each} for each in named]
    with pytest.raises(openai.NotFoundError):
        ada.responses.create(model="Tester", input=unknown)
    assert read == [of.partition("_")[0]]


def test_a_request_for_approval_can_be_referred_to(ada: OpenAI, file: Path) -> None:
    """With its answer behind it, as clients send it that resend the history."""
    asked: Any = {"role": "user", "content": call("Work-write", file=str(file), line="one")}
    paused = ada.responses.create(model="Tester", input=[asked])
    request = paused.output[-1]
    referred: Any = {"type": "item_reference", "id": request.id}
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    done = ada.responses.create(model="Tester", input=[asked, referred, answer])
    assert [item.type for item in done.output] == ["mcp_call", "message"]
    assert file.read_text() == "one\n"


def test_a_response_is_deleted_with_its_conversation(ada: OpenAI) -> None:
    """The only response of a conversation takes it along; one among others does not."""
    first = ada.responses.create(model="Tester", input="hello")
    second = ada.responses.create(model="Tester", input="again", previous_response_id=first.id)
    with pytest.raises(openai.ConflictError):
        ada.responses.delete(second.id)
    alone = ada.responses.create(model="Tester", input="hello")
    ada.responses.delete(alone.id)
    with pytest.raises(openai.NotFoundError):
        ada.responses.retrieve(alone.id)


def test_a_response_among_others_is_not_deleted_however_much_was_added_behind_it(ada: OpenAI) -> None:
    """What was added hides none of the others."""
    first = ada.responses.create(model="Tester", input="hello")
    assert first.conversation is not None
    second = ada.responses.create(model="Tester", input="again", conversation=first.conversation.id)
    for _ in range(MOST_REQUESTS):
        ada.conversations.items.create(first.conversation.id, items=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.ConflictError):
        ada.responses.delete(second.id)
    assert ada.responses.retrieve(first.id).output_text == first.output_text


def test_what_a_response_began_with_goes_with_it(ada: OpenAI) -> None:
    """Messages that were sent along, or are a conversation's own, are no other responses."""
    history: Any = [{"role": role, "content": "hi"} for role in ("user", "assistant", "user")]
    seed: Any = [{"role": "user", "content": "before"}]
    filled = ada.conversations.create(items=seed)
    for made in (
        ada.responses.create(model="Tester", input=history),
        ada.responses.create(model="Tester", input="hello", conversation=ada.conversations.create().id),
        ada.responses.create(model="Tester", input="hello", conversation=filled.id),
    ):
        assert made.conversation is not None
        ada.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            ada.conversations.retrieve(made.conversation.id)


def test_a_response_is_not_deleted_with_what_was_added_behind_it(ada: OpenAI) -> None:
    """In a conversation of its own, and in one that was there before, with items or without."""
    note: Any = [{"role": "user", "content": "added later"}]
    for home in (None, ada.conversations.create().id, ada.conversations.create(items=note).id):
        made = ada.responses.create(model="Tester", input="hello", conversation=home)
        assert made.conversation is not None
        ada.conversations.items.create(made.conversation.id, items=note)
        held = list(ada.conversations.items.list(made.conversation.id))
        with pytest.raises(openai.ConflictError, match="which holds others"):
            ada.responses.delete(made.id)
        assert list(ada.conversations.items.list(made.conversation.id)) == held


@pytest.mark.parametrize("more", ["item", "message"])
def test_a_response_is_not_deleted_with_what_comes_while_that_is_checked(
    service: ServiceThread, wire: httpx.Client, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """It is looked at once more as it stands then, and both stay."""
    made = create(wire, input="hello")
    conversation = made["conversation"]["id"]
    of_task = requests.of_task

    def send() -> None:
        with raw(service) as client:
            if more == "message":
                create(client, input="precious", conversation=conversation)
            else:
                items = [{"role": "user", "content": "precious"}]
                client.post(f"/conversations/{conversation}/items", json={"items": items}).raise_for_status()

    async def looked_through(*given: Any) -> AsyncGenerator[RequestRecord]:
        monkeypatch.undo()
        async for each in of_task(*given):
            yield each
        await asyncio.to_thread(send)

    monkeypatch.setattr(requests, "of_task", looked_through)
    assert wire.delete(f"/responses/{made['id']}").status_code == 409
    items = wire.get(f"/conversations/{conversation}/items").json()["data"]
    assert "precious" in str(items)
    assert retrieved(wire, made["id"]) == made


def test_a_response_of_an_imported_conversation_is_one_among_others(
    service: ServiceThread, wire: httpx.Client
) -> None:
    """Those that were imported with it, or before it, count. What the conversation began with does not."""
    history = [{"role": role, "content": "hi"} for role in ("user", "assistant", "user")]

    def imported(task: str) -> None:
        with service.client() as ada:
            document = ada.get(f"/tasks/{task}/export").raise_for_status().json()
            ada.delete(f"/tasks/{task}").raise_for_status()
            ada.post("/tasks/import", json=document).raise_for_status()

    first = create(wire, input=history)
    conversation = first["conversation"]["id"]
    task = conversation.removeprefix("conv_")
    imported(task)
    second = create(wire, input="again", conversation=conversation)
    assert wire.delete(f"/responses/{second['id']}").status_code == 409
    imported(task)
    assert wire.delete(f"/responses/{second['id']}").status_code == 409
    assert retrieved(wire, first["id"]) == first
    alone = create(wire, input=history)
    imported(alone["conversation"]["id"].removeprefix("conv_"))
    wire.delete(f"/responses/{alone['id']}").raise_for_status()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": ["text"]}, "input"),
        ({"input": [{"content": "x"}]}, "input.0.role"),
    ],
)
def test_what_is_no_input_is_named(wire: httpx.Client, body: Json, param: str) -> None:
    """By the name of the parameter, not by the types that it might have had."""
    refused = wire.post("/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    if param == "input":
        assert "must be a string or an array of objects" in refused.json()["error"]["message"]


def test_a_path_names_all_its_methods(wire: httpx.Client) -> None:
    """What is not possible somewhere is refused with what is."""
    for path, allowed in (("/responses/resp_1", "DELETE, GET, HEAD"), ("/responses", "POST")):
        refused = wire.put(path, json={})
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)


def test_what_is_not_served_below_responses_is_no_response(ada: OpenAI) -> None:
    """Compacting and counting tokens are paths of their own, and not wrong methods of a response."""
    for ask in (
        lambda: ada.responses.compact(model="Tester", input="hello"),
        lambda: ada.responses.input_tokens.count(model="Tester", input="hello"),
    ):
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            ask()


def test_the_agent_is_the_one_model(ada: OpenAI) -> None:
    """`models` lists the agent."""
    assert [model.id for model in ada.models.list()] == ["Tester"]
    assert ada.models.retrieve("Tester").id == "Tester"
    with pytest.raises(openai.NotFoundError):
        ada.models.retrieve("gpt-5")


#: what the Open Responses specification (2026-04-24) says every response has
REQUIRED = (
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "output"),
    *("previous_response_id", "instructions", "error", "tools", "tool_choice", "truncation", "text"),
    *("parallel_tool_calls", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "user"),
    *("temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background"),
    *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
    "access_programs",  # not there, but in what OpenAI's newer SDKs say
)
#: the inputs of its compliance suite, but for those of tools and streams, which have tests of their own
SUITE: list[Any] = [
    [{"type": "message", "role": "user", "content": "Say hello in exactly 3 words."}],
    [
        {"type": "message", "role": "system", "content": "You are a pirate."},
        {"type": "message", "role": "user", "content": "Say hello."},
    ],
    [
        {"type": "message", "role": "user", "content": "My name is Alice."},
        {"type": "message", "role": "assistant", "content": "Hello Alice!", "phase": "final_answer"},
        {"type": "message", "role": "user", "content": "What is my name?"},
    ],
]


@pytest.mark.parametrize("given", SUITE)
def test_open_responses(wire: httpx.Client, given: Any) -> None:
    """A response has every field of the specification, and an output."""
    response = create(wire, model="Tester", input=given)
    assert not set(REQUIRED) - response.keys()
    assert response["status"] == "completed"
    assert kinds(response) == ["message"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("", "stream=maybe"),
        ("", "stream=true&stream=true"),
        ("", "stream=true&starting_after=-1"),
        ("", "stream=true&starting_after=1e3"),
        ("/input_items", "limit=0"),
        ("/input_items", "limit=101"),
        ("/input_items", "order=up"),
    ],
)
def test_queries_that_cannot_be_meant(wire: httpx.Client, path: str, query: str) -> None:
    """They are refused by the name of the parameter."""
    response = create(wire, input="hello")
    refused = wire.get(f"/responses/{response['id']}{path}?{query}")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] in query


def test_an_answer_without_text_is_a_message() -> None:
    """Clients that find no message in an answer take it for unfinished, and ask again."""
    script = {"rules": [{"when": {"tool_result": True}, "reply": {"text": ""}}]}
    with serving(script) as (service, _), raw(service) as wire:
        events = stream(wire, input=call("Work-note", file="/dev/null", line="x"))
        final = events[-1]["response"]
        assert (kinds(final), said(final)) == (["mcp_call", "message"], "")
        assert retrieved(wire, final["id"]) == final
