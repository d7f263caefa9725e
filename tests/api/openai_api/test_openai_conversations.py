"""Conversations with OpenAI's SDK: made, filled, continued, listed, changed, deleted."""

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.conversations import ConversationItem
from openai_talk import create, sdk, serving
from pydantic import TypeAdapter
from starlette.requests import Request
from talk import call
from threads_setup import CountedStore

from tealagents.api import query
from tealagents.api.exchange import Exchange
from tealagents.state.history import PAGE
from tealagents.testing.service import ServiceThread

PIXEL = "data:image/png;base64,iVBORw0KGgo="
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def test_a_conversation_is_filled_and_continued(ada: OpenAI) -> None:
    """It exists before its first response, with what it was begun with; items come in the order said."""
    made = ada.conversations.create(
        metadata={"topic": "names"},
        items=[
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Hello Ada."},
        ],
    )
    assert ada.conversations.retrieve(made.id) == made
    asked = ada.responses.create(model="Tester", input="What is my name?", conversation=made.id)
    assert "Ada" in asked.output_text
    ada.conversations.items.create(made.id, items=[{"role": "user", "content": "My cat is Tom."}])
    again = ada.responses.create(model="Tester", input="What is my cat?", conversation={"id": made.id})
    assert "Tom" in again.output_text
    items = list(ada.conversations.items.list(made.id, order="asc", limit=2))
    assert [item.role for item in items if item.type == "message"] == [
        *("user", "assistant", "user", "assistant", "user", "user", "assistant"),
    ]
    for item in items:
        ITEM.validate_python(item.to_dict())
        assert item.id is not None
        assert ada.conversations.items.retrieve(item.id, conversation_id=made.id) == item
    assert list(ada.conversations.items.list(made.id)) == items[::-1]
    assert again.output[0].id == items[-1].id


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_of_large_items_is_short(
    ada: OpenAI, monkeypatch: pytest.MonkeyPatch, order: Literal["asc", "desc"]
) -> None:
    """A process holds no more of them at once; the pages join to the whole."""
    said: Any = [{"role": "user", "content": f"{n}" + 900 * "x"} for n in range(5)]
    made = ada.conversations.create(items=said)
    whole = list(ada.conversations.items.list(made.id, order=order))
    assert len(whole) == 5
    monkeypatch.setattr(query, "PAGE_BYTES", 3000)
    page = ada.conversations.items.list(made.id, order=order)
    assert (len(page.data), page.has_more) == (2, True)
    assert list(page) == whole
    monkeypatch.setattr(query, "PAGE_BYTES", 10)
    assert list(ada.conversations.items.list(made.id, order=order)) == whole


def test_what_the_tools_did_is_in_the_items(ada: OpenAI, file: Path) -> None:
    """Calls, requests for approval and their answers stand where they were, a pending one at the end."""
    made = ada.conversations.create()
    words = call("Work-note", file=str(file), line="one")
    ada.responses.create(model="Tester", input=words, conversation=made.id)
    words = call("Work-write", file=str(file), line="two")
    paused = ada.responses.create(model="Tester", input=words, conversation=made.id)
    kinds = ["message", "mcp_call", "message", "message", "message", "mcp_approval_request"]
    assert [item.type for item in ada.conversations.items.list(made.id, order="asc")] == kinds
    answer: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": paused.output[-1].id,
        "approve": True,
    }
    ada.responses.create(model="Tester", input=[answer], conversation=made.id)
    kinds += ["mcp_approval_response", "mcp_call", "message"]
    items = list(ada.conversations.items.list(made.id, order="asc", limit=3))
    assert [item.type for item in items] == kinds
    for item in items:
        ITEM.validate_python(item.to_dict())


def test_a_branch_has_the_items_of_what_it_continues(ada: OpenAI, file: Path) -> None:
    """What tools did before it is among them."""
    words = call("Work-note", file=str(file), line="one")
    first = ada.responses.create(model="Tester", input=words)
    said = []
    for n in range(2):
        text = f"hello {n}"
        last = ada.responses.create(model="Tester", input=text, previous_response_id=first.id)
        assert last.conversation is not None
        items = list(ada.conversations.items.list(last.conversation.id, order="asc"))
        said.append([{**item.to_dict(), "id": ""} for item in items[:3]])
        assert [item.type for item in items] == ["message", "mcp_call", *["message"] * 3]
    assert said[0] == said[1]


def test_metadata_that_is_replaced_keeps_nothing_of_what_another_client_sets_meanwhile(
    ada: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of the two counts, and no client sent what both make together."""
    made, body, others = ada.conversations.create(metadata={"one": "1"}), Exchange.body, list[Any]()

    async def later(exchange: Exchange, request: Request, **how: Any) -> Any:
        if not others:
            others.append("under way")
            others.append(await asyncio.to_thread(ada.conversations.update, made.id, metadata={"two": "2"}))
        return await body(exchange, request, **how)

    monkeypatch.setattr(Exchange, "body", later)
    assert ada.conversations.update(made.id, metadata={"three": "3"}).metadata == {"three": "3"}
    assert others[-1].metadata == {"two": "2"}
    assert ada.conversations.retrieve(made.id).metadata == {"three": "3"}


def test_a_conversation_is_changed_and_deleted(ada: OpenAI, eve: OpenAI) -> None:
    """Metadata is replaced; what is another's, or gone, is not found."""
    made = ada.conversations.create(metadata={"one": "1"})
    assert ada.conversations.update(made.id, metadata={"two": "2"}).metadata == {"two": "2"}
    response = ada.responses.create(model="Tester", input="hello", conversation=made.id)
    for conversation in (made.id, "conv_1", made.id + "1"):
        for attempt in (
            eve.conversations.retrieve,
            eve.conversations.delete,
            lambda name: eve.conversations.update(name, metadata={}),
            lambda name: list(eve.conversations.items.list(name)),
            lambda name: eve.responses.create(model="Tester", input="hi", conversation=name),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt(conversation)
    with pytest.raises(openai.NotFoundError):
        ada.conversations.items.list(made.id, after="msg_1")
    assert ada.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        ada.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        ada.responses.retrieve(response.id)


def test_what_a_conversation_cannot_keep_is_refused(ada: OpenAI) -> None:
    """Files, empty messages, images of the assistant, instructions, too much metadata."""
    for item in (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://x.example/a.png"}]},
        {"role": "assistant", "content": [{"type": "input_image", "image_url": PIXEL}]},
        {"type": "item_reference", "id": "msg_1"},
    ):
        given: Any = [item]
        with pytest.raises(openai.BadRequestError):
            ada.conversations.create(items=given)
    too_many: Any = {str(n): n for n in range(17)}  # they are counted before any is looked at
    with pytest.raises(openai.BadRequestError, match="may have at most 16, and has 17") as refused:
        ada.conversations.create(metadata=too_many)
    assert refused.value.param == "metadata"


def test_a_conversation_takes_as_many_items_at_once_as_a_message_has_earlier_ones(wire: httpx.Client) -> None:
    """More are refused by the name that the client knows, and so is a message of too many parts."""
    said = {"role": "user", "content": "hi"}
    parts = {"role": "user", "content": [{"type": "input_text", "text": "hi"}] * 101}
    made = wire.post("/conversations", json={}).json()
    for path in ("/conversations", f"/conversations/{made['id']}/items"):
        for given, field in (([said] * 501, "items"), ([said, parts], "items")):
            refused = wire.post(path, json={"items": given})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert wire.post(path, json={"items": [said] * 500}).status_code == 200


def test_a_history_with_calls_is_added_in_words(ada: OpenAI) -> None:
    """Clients that keep conversations here add all that happened elsewhere, calls of their tools included."""
    asked: Any = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    returned: Any = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    made = ada.conversations.create()
    assert ada.conversations.items.create(made.id, items=[asked]).data == []
    added = ada.conversations.items.create(
        made.id, items=[{"role": "user", "content": "Is it sunny?"}, asked, returned]
    )
    kept = list(ada.conversations.items.list(made.id, order="asc"))
    assert kept == added.data
    assert [json.loads(item.to_json())["content"][0]["text"] for item in kept] == [
        "Is it sunny?",
        "weather({}) returned: sunny",
    ]


def test_a_message_that_a_conversation_was_filled_with_can_be_referred_to(ada: OpenAI) -> None:
    """One of the assistant keeps its words, also where it was added to what was there."""
    turn: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    made = ada.conversations.create(items=turn)
    ada.conversations.items.create(made.id, items=turn)
    for item in list(ada.conversations.items.list(made.id, order="asc"))[1::2]:
        referred: Any = [turn[0], {"type": "item_reference", "id": item.id}, {"role": "user", "content": "?"}]
        response = ada.responses.create(model="Tester", input=referred)
        assert response.conversation is not None
        kept = ada.conversations.items.list(response.conversation.id, order="asc")
        words = [json.loads(each.to_json())["content"][0]["text"] for each in kept]
        assert words[:3] == ["hi", "yo", "?"]


def test_the_newest_items_are_read_without_the_others(
    service: ServiceThread, ada: OpenAI, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list, read and add them costs the same however long the conversation is."""
    records = service.app.exchange.service.records
    store = CountedStore(records.store)
    monkeypatch.setattr(records, "store", store)
    made = ada.conversations.create()
    words = call("Work-note", file=str(file), line="one")

    def read() -> list[int]:
        """How much of the log the newest response costs, and an addition behind it."""
        for _ in range(4):
            ada.responses.create(model="Tester", input=words, conversation=made.id)
        found = []
        store.log_batches = 0
        (newest,) = ada.conversations.items.list(made.id, limit=1).data
        found.append(store.log_batches)
        ada.conversations.items.retrieve(newest.id or "", conversation_id=made.id)
        found.append(store.log_batches)
        ada.conversations.items.create(made.id, items=[{"role": "user", "content": "hi"}])
        return [*found, store.log_batches]

    first = read()
    assert first[0] > 0
    assert [read(), read()] == [first, first]


def test_a_page_behind_any_item_is_read_without_the_rest(
    service: ServiceThread, ada: OpenAI, wire: httpx.Client, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kind of item its id is of, in either order, and in a branch as well."""
    made = ada.conversations.create()
    function: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    words = (call("Work-note", file=str(file), line="1"), call("Work-write", file=str(file), line="2"))
    for text in (*words, "call weather {}"):
        asked = ada.responses.create(model="Tester", input=text, conversation=made.id, tools=[function])
        answer: Any = None
        if (item := asked.output[-1]).type == "mcp_approval_request":
            answer = {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        elif item.type == "function_call":
            answer = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        if answer is not None:
            ada.responses.create(model="Tester", input=[answer], conversation=made.id, tools=[function])
    kinds = [item.to_dict() for item in ada.conversations.items.list(made.id, order="asc")]
    assert {item["type"] for item in kinds} == {
        *("message", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
        *("function_call", "function_call_output"),
    }
    rest = 3 * PAGE
    for _ in range(rest):
        ada.conversations.items.create(made.id, items=[{"role": "user", "content": "hi"}])
    last = ada.responses.create(model="Tester", input="hello", conversation=made.id)
    ada.conversations.items.create(made.id, items=[{"role": "user", "content": "hi"}])
    branch = ada.responses.create(model="Tester", input="hello", previous_response_id=last.id).conversation
    assert branch is not None
    ada.responses.create(model="Tester", input=words[1], conversation=made.id)  # waits for approval
    records = service.app.exchange.service.records
    store = CountedStore(records.store)
    monkeypatch.setattr(records, "store", store)

    def read(path: str, **query: Any) -> Any:
        store.log_batches = 0
        found = wire.get(path, params=query).json()
        assert store.log_batches < rest
        return found

    for conversation in (made.id, branch.id):
        items = [
            item.to_dict() for item in ada.conversations.items.list(conversation, order="asc", limit=100)
        ]
        path = f"/conversations/{conversation}/items"
        assert read(path, order="asc", limit=1)["data"] == items[:1]
        for place in (*range(len(kinds)), rest // 2, *range(rest, len(items))):
            after = items[place]["id"]
            assert read(f"{path}/{after}") == items[place]
            assert read(path, order="asc", limit=1, after=after)["data"] == items[place + 1 : place + 2]
            assert read(path, limit=1, after=after)["data"] == items[:place][-1:]


def test_what_was_rolled_back_is_no_place_to_continue_from(service: ServiceThread, ada: OpenAI) -> None:
    """Nor are items of another conversation."""
    made, other = ada.conversations.create(), ada.conversations.create()
    first = ada.responses.create(model="Tester", input="one", conversation=made.id)
    ada.responses.create(model="Tester", input="two", conversation=made.id)
    ada.responses.create(model="Tester", input="three", conversation=other.id)
    gone = [*list(ada.conversations.items.list(made.id))[:2], *ada.conversations.items.list(other.id)]
    task = made.id.removeprefix("conv_")
    back = {"checkpoint_id": first.id.split("_")[1]}
    with service.client("ada") as http:
        assert http.post(f"/tasks/{task}/rollback", json=back).status_code == 200
    for item in gone:
        with pytest.raises(openai.NotFoundError):
            ada.conversations.items.retrieve(str(item.id), conversation_id=made.id)
        for order in ("asc", "desc"):
            with pytest.raises(openai.NotFoundError):
                ada.conversations.items.list(made.id, order=order, after=str(item.id))


@pytest.mark.parametrize("more", [[], ["one", "two"]], ids=["a round", "rounds"])
def test_the_input_of_a_response_begins_with_the_history_that_was_sent_with_it(
    wire: httpx.Client, more: list[str]
) -> None:
    """Under the ids that the conversation lists it with. What continues the response has only its own."""
    history = [{"role": "user", "content": each} for each in (*more, "hi")]
    history += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "and now?"}]
    first = create(wire, input=history)
    second = create(wire, input="later", previous_response_id=first["id"])

    def listed(path: str, **query: Any) -> Any:
        page = wire.get(path, params={"order": "asc", **query}).raise_for_status().json()
        return [each["id"] for each in page["data"]]

    path = f"/responses/{first['id']}/input_items"
    sent = listed(path)
    assert len(sent) == len(history)
    assert listed(path, limit=1, after=sent[0]) == sent[1:2]
    new = listed(f"/responses/{second['id']}/input_items")
    assert listed(f"/conversations/{first['conversation']['id']}/items") == [
        *(*sent, first["output"][0]["id"]),
        *(*new, second["output"][0]["id"]),
    ]


def test_items_are_added_where_nothing_waits(ada: OpenAI, file: Path) -> None:
    """A conversation that waits for a decision takes no items, and holds what it held."""
    made = ada.conversations.create()
    words = call("Work-write", file=str(file), line="one")
    ada.responses.create(model="Tester", input=words, conversation=made.id)
    held = list(ada.conversations.items.list(made.id))
    with pytest.raises(openai.ConflictError) as pending:
        ada.conversations.items.create(made.id, items=[{"role": "user", "content": "hi"}])
    assert pending.value.code == "approval_pending"
    assert list(ada.conversations.items.list(made.id)) == held


def test_a_remote_thread_takes_no_items_once_it_has_begun() -> None:
    """The model service, which keeps it, would not know of them; what it began with is known."""
    with serving(thread={"kind": "remote"}) as (service, _), sdk(service) as ada:
        made = ada.conversations.create(items=[{"role": "user", "content": "My name is Ada."}])
        asked = ada.responses.create(model="Tester", input="What is my name?", conversation=made.id)
        assert "Ada" in asked.output_text
        with pytest.raises(openai.BadRequestError):
            ada.conversations.items.create(made.id, items=[{"role": "user", "content": "My cat is Tom."}])


def test_an_item_of_an_import_is_found_whatever_request_its_id_leads_to(
    ada: OpenAI, service: ServiceThread
) -> None:
    """The ids of imported messages are those of the document, which may be made up."""
    made = ada.conversations.create()
    for text in ("one", "two"):
        ada.responses.create(model="Tester", input=text, conversation=made.id)
    task = made.id.removeprefix("conv_")
    with service.client() as native:
        document = native.get(f"/tasks/{task}/export").raise_for_status().json()
        first, *_, last = native.get(f"/tasks/{task}/messages").raise_for_status().json()["items"]
    assert first["request_id"] != last["request_id"]
    misleading = first["message_id"][:13] + last["request_id"][13:]
    text = json.dumps(document).replace(first["message_id"], misleading)
    with service.client() as native:
        native.delete(f"/tasks/{task}").raise_for_status()
        native.post("/tasks/import", json=json.loads(text)).raise_for_status()
    listed = list(ada.conversations.items.list(made.id, order="asc"))
    assert listed[0].id == f"msg_{misleading}"
    behind = ada.conversations.items.list(made.id, order="asc", after=listed[0].id)
    assert [item.id for item in behind] == [item.id for item in listed[1:]]
    assert ada.conversations.items.retrieve(listed[0].id, conversation_id=made.id).id == listed[0].id
