"""Conversations that the model service keeps."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from itertools import cycle
from typing import Any

import httpx
import orjson
import pytest
from llm_setup import (
    RawConnection,
    RawService,
    call,
    client,
    done,
    events,
    message,
    one_by_one,
    result,
    sse,
    text_of,
)
from msgspec import structs

from tealagents.domain.errors import ModelFailed, RemoteThreadLost
from tealagents.domain.events import TextDelta
from tealagents.domain.models import Item, Message, ToolCall
from tealagents.domain.ports import Model, RemoteConversations
from tealagents.llm import openai_responses, responses_reading
from tealagents.llm.offline import OfflineModel

TOOL_SCRIPT = {
    "rules": [
        {"when": {"tool_result": True}, "reply": "It is gone."},
        {"reply": {"tool_calls": [{"name": "Shell-delete", "arguments": {"path": "/x"}, "id": "call_1"}]}},
    ]
}


@pytest.fixture
async def service() -> AsyncIterator[OfflineModel]:
    async with OfflineModel() as running:
        yield running


@pytest.fixture
async def model(service: OfflineModel) -> AsyncIterator[Any]:
    async with client(service.base_url, "openai-responses") as opened:
        yield opened


def shown(messages: list[Any]) -> list[tuple[str, str]]:
    return [(each.role, each.text) for each in messages]


async def new_conversation(service: OfflineModel) -> str:
    async with httpx.AsyncClient() as http:
        made = await http.post(f"{service.base_url}/conversations", json={})
        conversation_id: str = made.json()["id"]
        return conversation_id


async def test_only_what_is_new_is_sent(model: Any, service: OfflineModel) -> None:
    """The service remembers; the instructions are sent each time: it does not keep them. covers: THREAD-1"""
    first = await done(model, message("user", "My name is Ada."))
    said = await events(model, message("user", "What is my name?"), remote_id=first.response_id)
    assert text_of(said) == "Your name is Ada."
    body = service.requests[-1]["body"]
    assert len(body["input"]) == 1
    assert body["instructions"] == "Be brief."
    assert body["previous_response_id"] == first.response_id
    assert body["store"] is True


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_are_answered_in_the_same_chain(model: Any, service: OfflineModel, stream: bool) -> None:
    """A result continues the response that asked for it."""
    service.script(TOOL_SCRIPT)
    asked = await done(model, message("user", "delete /x"), stream=stream)
    assert asked.finish_reason == "tool_calls"
    (wanted,) = asked.tool_calls
    assert (wanted.id, wanted.tool, wanted.arguments) == ("call_1", "Shell-delete", '{"path": "/x"}')
    said = await events(model, result("call_1", "ok"), stream=stream, remote_id=asked.response_id)
    assert text_of(said) == "It is gone."


async def test_the_messages_of_a_chain_can_be_listed(model: Any, service: OfflineModel) -> None:
    """Oldest first, calls with their results, each once, without the instructions. covers: THREAD-5"""
    service.script(TOOL_SCRIPT)
    asked = await done(model, message("user", "delete /x"))
    last = await done(model, result("call_1", "ok"), remote_id=asked.response_id)
    listed = await model.list_remote(last.response_id)
    assert shown(listed) == [
        ("user", "delete /x"),
        ("assistant", ""),
        ("tool", "ok"),
        ("assistant", "It is gone."),
    ]
    assert listed[1].tool_calls == asked.tool_calls
    assert (listed[2].tool_call_id, listed[2].tool) == ("call_1", "Shell-delete")
    assert len({each.message_id for each in listed}) == 4


async def test_a_conversation_is_continued_and_listed_by_its_id(model: Any, service: OfflineModel) -> None:
    """What continues a conversation is the conversation, however many turns it has."""
    conversation = await new_conversation(service)
    for turn in range(120):
        answered = await done(model, message("user", f"turn {turn}"), stream=False, remote_id=conversation)
        assert answered.response_id == conversation
    listed = await model.list_remote(conversation)
    assert [each.text for each in listed if each.role == "user"] == [f"turn {turn}" for turn in range(120)]
    assert len(listed) == 240


@pytest.mark.parametrize("number", [2, 25])
@pytest.mark.parametrize("kind", ["response", "conversation"])
async def test_calls_that_were_never_answered_do_not_block_a_conversation(
    model: Any, service: OfflineModel, kind: str, number: int
) -> None:
    """The service waits for each of them: it is sent that there is no result, with the next message."""
    calls = [{"name": "Shell-delete", "arguments": {}, "id": f"call_{n}"} for n in range(number)]
    service.script({"rules": [{"reply": {"tool_calls": calls}, "times": 1}], "otherwise": {"text": "Hello."}})
    kept = await new_conversation(service) if kind == "conversation" else None
    asked = await done(model, message("user", "delete all"), remote_id=kept)
    for _ in range(2):
        asked = await done(model, message("user", "hello"), remote_id=asked.response_id)
    sent = [item for item in service.requests[-2]["body"]["input"] if item["type"] != "message"]
    assert [item["call_id"] for item in sent] == [call["id"] for call in calls]
    assert all("ended before this call was answered" in item["output"] for item in sent)
    assert [item["type"] for item in service.requests[-1]["body"]["input"]] == ["message"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ["cut", "end", "error"])
async def test_a_message_is_not_sent_to_a_conversation_again_that_may_have_taken_it_in(
    model: Any, service: OfflineModel, kind: str, stream: bool
) -> None:
    """The service may have answered behind a stream that broke: with a retry the message would be there
    twice. A response that was cut is continued by nothing, and is made again."""
    first = await done(model, message("user", "hello"))
    conversation = await new_conversation(service)
    fault = {"kind": kind, "after_pieces": 0}
    for remote_id, calls in ((conversation, 1), (first.response_id, 2)):
        rules = [{"reply": {"text": "one", "fault": fault}, "times": 1}]
        service.script({"rules": rules, "otherwise": {"text": "at last"}})
        service.clear()
        with nullcontext() if calls == 2 else pytest.raises(ModelFailed):
            assert text_of(await events(model, remote_id=remote_id, stream=stream)) == "at last"
        assert len(service.requests) == calls


async def test_a_message_whose_connection_was_dropped_is_not_sent_to_a_conversation_again() -> None:
    """It may have arrived before."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()

    name = "openai-responses"
    async with RawService(handler).running() as service, client(service.base_url, name) as model:
        with pytest.raises(ModelFailed):
            await events(model, remote_id="conv_1")
        assert service.connections == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_what_a_conversation_has_refused_is_sent_again(
    model: Any, service: OfflineModel, status: int
) -> None:
    """A refusal with a status has changed nothing."""
    conversation = await new_conversation(service)
    rules = [{"reply": {"error": {"status": status, "headers": {"Retry-After": "0"}}}, "times": 1}]
    service.script({"rules": rules, "otherwise": {"text": "at last"}})
    assert text_of(await events(model, remote_id=conversation)) == "at last"


@pytest.mark.parametrize("status", [408, 502, 504])
async def test_what_a_gateway_may_have_passed_on_is_not_sent_to_a_conversation_again(
    model: Any, service: OfflineModel, status: int
) -> None:
    """It did not wait for the answer; a response can be continued twice, a conversation would hold both."""
    conversation = await new_conversation(service)
    service.script({"rules": [{"reply": {"error": {"status": status}}, "times": 1}]})
    with pytest.raises(ModelFailed):
        await events(model, remote_id=conversation)
    assert text_of(await events(model)) == "Hello! How can I help?"


async def test_a_conversation_without_a_connection_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was sent."""
    caplog.set_level(logging.INFO, "tealagents.llm.service")
    async with client("http://127.0.0.1:1/v1", "openai-responses") as model:
        with pytest.raises(ModelFailed):
            await events(model, remote_id="conv_1")
    assert caplog.text.count("Trying the model service again") == 2


async def test_the_id_of_a_response_is_the_last_that_the_service_names() -> None:
    """Gateways give the whole response another one than its beginning; a conversation has only its own."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        for name, status in (("a", "in_progress"), ("b", "completed")):
            item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "so"}]}
            response = {"id": name, "status": status, "output": [item]}
            kind = "created" if status == "in_progress" else status
            await connection.chunk(sse({"type": f"response.{kind}", "response": response}))

    name = "openai-responses"
    async with RawService(handler).running() as service, client(service.base_url, name) as model:
        for remote_id, ids in ((None, ["b"]), ("resp_1", ["b"]), ("conv_1", [])):
            asked = call(model, remote_id=remote_id)
            said, _ = [event async for event in one_by_one(model.stream(asked))]
            assert said == TextDelta("so")
            assert asked.response_ids == ids


async def test_images_come_back_as_they_went(model: Any) -> None:
    """An image in a kept message is an image again."""
    image = "data:image/png;base64,iVBORw0KGgo="
    answered = await done(model, message("user", "look", images=[image]))
    first, _ = await model.list_remote(answered.response_id)
    assert first.items == (Item("text", "look"), Item("image", image))


async def test_images_that_are_larger_than_an_answer_may_be_are_listed() -> None:
    """Those of one page together."""
    image = {"type": "input_image", "image_url": "data:image/png;base64," + 5_000_000 * "A"}
    items = [{"id": f"m{n}", "type": "message", "role": "user", "content": [image]} for n in range(2)]
    kept = {"/v1/conversations/conv_1": {}, "/v1/conversations/conv_1/items": {"data": items}}
    async with listing(kept) as model:
        assert [each.items[0].content for each in await model.list_remote("conv_1")] == [
            image["image_url"],
            image["image_url"],
        ]


@pytest.mark.parametrize("remote_id", ["resp_1", "conv_1"])
async def test_the_urls_of_images_are_asked_for(remote_id: str) -> None:
    """OpenAI lists them on request only; an image of which there is no URL is shown to be one."""
    named, unnamed = ({"type": "input_image", "image_url": url} for url in ("https://a.example/i.png", None))
    asked = b"include%5B%5D=message.input_image.image_url"

    async def handler(connection: RawConnection) -> None:
        while True:
            head = (await connection.request()).split()[1]
            content = [named if asked in head else unnamed, unnamed]
            items = {"data": [{"id": "m1", "type": "message", "role": "user", "content": content}]}
            body = orjson.dumps(items if b"items" in head else {"output": []})
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    name = "openai-responses"
    async with RawService(handler).running() as service, client(service.base_url, name) as model:
        assert isinstance(model, RemoteConversations)
        (listed,) = await model.list_remote(remote_id)
    assert listed.items == (Item("image", "https://a.example/i.png"), Item("text", "[image]"))


async def test_a_lost_response_is_said_to_be_lost(model: Any, service: OfflineModel) -> None:
    """Deleted at the service: a clear error, from a call and from a listing, without a retry."""
    answered = await done(model, message("user", "hello"))
    await model.delete_remote(answered.response_id)
    service.clear()
    with pytest.raises(RemoteThreadLost, match="no longer has") as lost:
        await events(model, remote_id=answered.response_id)
    assert lost.value.code == "remote_thread_lost"
    assert len(service.requests) == 1
    with pytest.raises(RemoteThreadLost):
        await model.list_remote(answered.response_id)


async def test_what_another_agent_has_lost_is_said_to_be_lost(model: Any, service: OfflineModel) -> None:
    """An agent of this platform as the model service names the id, in words of its own."""
    answered = await done(model, message("user", "hello"))
    said = f"There is no response with id '{answered.response_id}'. Check the id; it may have been deleted."
    service.script({"otherwise": {"error": {"status": 404, "code": "not_found", "message": said}}})
    with pytest.raises(RemoteThreadLost):
        await events(model, remote_id=answered.response_id)


async def test_a_lost_conversation_is_said_to_be_lost(model: Any, service: OfflineModel) -> None:
    """The same for a conversation."""
    conversation = await new_conversation(service)
    await model.delete_remote(conversation)
    with pytest.raises(RemoteThreadLost, match=r"Start a new thread\.$") as lost:
        await events(model, remote_id=conversation)
    assert "fork" not in lost.value.detail
    with pytest.raises(RemoteThreadLost):
        await model.list_remote(conversation)


async def test_deleting_takes_the_whole_chain_and_can_be_repeated(model: Any) -> None:
    """Nothing of the conversation stays at the service."""
    first = await done(model, message("user", "one"))
    second = await done(model, message("user", "two"), remote_id=first.response_id)
    await model.delete_remote(second.response_id)
    for response_id in (first.response_id, second.response_id):
        with pytest.raises(RemoteThreadLost):
            await model.list_remote(response_id)
    await model.delete_remote(second.response_id)


async def test_a_delete_that_broke_off_can_be_repeated(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all is gone the rest is found from its end."""
    names: list[str] = []
    for turn in range(3):
        earlier = names[-1] if names else None
        names.append((await done(model, message("user", f"{turn}"), remote_id=earlier)).response_id or "")
    delete, tries = model._delete, iter([True, False])

    async def stumbling(path: str, remote_id: str) -> None:
        if not next(tries, True):
            raise ModelFailed("The model service is away.")
        await delete(path, remote_id)

    monkeypatch.setattr(model, "_delete", stumbling)
    with pytest.raises(ModelFailed):
        await model.delete_remote(names[-1])
    await model.delete_remote(names[-1])
    for name in names:
        with pytest.raises(RemoteThreadLost):
            await model.list_remote(name)


async def test_a_response_is_forked_by_continuing_it_twice(model: Any) -> None:
    """Two futures of one past. covers: THREAD-6"""
    past = await done(model, message("user", "My name is Ada."))
    await done(model, message("user", "My name is Bob."), remote_id=past.response_id)
    asked = await events(model, message("user", "What is my name?"), remote_id=past.response_id)
    assert text_of(asked) == "Your name is Ada."


async def test_another_404_is_not_a_lost_conversation(model: Any, service: OfflineModel) -> None:
    """A wrong URL or model is a failure of the call."""
    answered = await done(model, message("user", "hello"))
    for error in (
        {"status": 404, "code": "model_not_found", "message": "The model `x` does not exist."},
        {"status": 404, "body": "<html><title>404</title></html>"},
        {"status": 404, "code": "not_found", "message": f"There is nothing at /{answered.response_id}."},
    ):
        service.script({"otherwise": {"error": error}})
        with pytest.raises(ModelFailed):
            await events(model, remote_id=answered.response_id)


@pytest.mark.parametrize("remote_id", ["../models", "resp_1?x=1", "resp_1/../../x", "conv_/../x"])
async def test_an_id_cannot_leave_its_place_in_the_path(
    model: Any, service: OfflineModel, remote_id: str
) -> None:
    """Whatever an id holds, it is one segment of the path."""
    service.clear()
    with pytest.raises((RemoteThreadLost, ModelFailed)):
        await model.list_remote(remote_id)
    paths = [request["path"] for request in service.requests]
    assert all(path.startswith(("/v1/responses/", "/v1/conversations/")) for path in paths)


async def test_local_threads_work_here_too(service: OfflineModel) -> None:
    """Without `store` the whole history is sent, and nothing is kept."""
    async with client(service.base_url, "openai-responses", store=False) as model:
        history = [
            message("user", "My name is Ada."),
            message("assistant", "Hello."),
            message("user", "What is my name?"),
        ]
        assert text_of(await events(model, *history)) == "Your name is Ada."
        body = service.requests[-1]["body"]
    assert body["store"] is False
    assert len(body["input"]) == 3


async def test_who_can_keep_conversations_says_so(service: OfflineModel) -> None:
    """Chat completions cannot. covers: THREAD-2"""
    chat: Model = client(service.base_url, "openai-chat")
    responses: Model = client(service.base_url, "openai-responses")
    assert not chat.supports_remote_threads
    assert responses.supports_remote_threads
    assert isinstance(responses, RemoteConversations)
    assert not isinstance(chat, RemoteConversations)


def said(number: int, role: str, *, named: bool) -> dict[str, Any]:
    """An item as a service keeps it, with an id or without."""
    item = {"type": "message", "role": role, "content": [{"type": "text", "text": str(number)}]}
    return {"id": f"m{number}", **item} if named else item


@pytest.mark.parametrize("named", [True, False], ids=["with ids", "without ids"])
@pytest.mark.parametrize("whole", [False, True], ids=["only what was new", "also what came before"])
@pytest.mark.parametrize("empty", [False, True], ids=["answered", "cut before it said anything"])
async def test_a_listing_is_the_same_whatever_a_service_lists_with_a_response(
    named: bool, whole: bool, empty: bool
) -> None:
    """It does not depend on whether a response's input holds what came before it, nor on an answer in the
    middle that is empty."""
    kept: dict[str, Any] = {}
    past: list[Any] = []
    for n in (1, 2, 3):
        answer = [] if empty and n == 2 else [said(2 * n, "assistant", named=named)]
        before = f"resp_{n - 1}" if n > 1 else None
        kept[f"/v1/responses/resp_{n}"] = {"previous_response_id": before, "output": answer}
        new = [said(2 * n - 1, "user", named=named)]
        asked = [*past, *new] if whole else new
        kept[f"/v1/responses/resp_{n}/input_items"] = {"data": asked, "has_more": False}
        past += [*new, *answer]
    async with listing(kept) as model:
        listed = "".join(each.text for each in await model.list_remote("resp_3"))
        assert listed == ("12356" if empty else "123456")


async def test_the_result_of_a_call_in_the_response_before_names_its_tool() -> None:
    """The service lists with each response only what was new."""
    asked, call = said(1, "user", named=True), {"id": "f1", "type": "function_call", "call_id": "c1"}
    result = {"id": "f2", "type": "function_call_output", "call_id": "c1", "output": "ok"}
    kept = {
        "/v1/responses/resp_1": {"output": [{**call, "name": "Shell-delete", "arguments": "{}"}]},
        "/v1/responses/resp_1/input_items": {"data": [asked]},
        "/v1/responses/resp_2": {"previous_response_id": "resp_1", "output": []},
        "/v1/responses/resp_2/input_items": {"data": [result]},
    }
    async with listing(kept) as model:
        listed = await model.list_remote("resp_2")
    assert [(each.role, each.request_id, each.tool) for each in listed] == [
        ("user", "resp_1", None),
        ("assistant", "resp_1", None),
        ("tool", "resp_2", "Shell-delete"),
    ]


async def test_equal_messages_of_a_service_without_ids_are_all_listed() -> None:
    """Also where an answer was cut, and what was asked is asked again."""
    asked, answer = said(1, "user", named=False), said(2, "assistant", named=False)
    kept: dict[str, Any] = {}
    for n in (1, 2, 3, 4):
        kept[f"/v1/responses/resp_{n}"] = {
            "previous_response_id": f"resp_{n - 1}" if n > 1 else None,
            "output": [] if n == 3 else [answer],
        }
        kept[f"/v1/responses/resp_{n}/input_items"] = {"data": [asked], "has_more": False}
    async with listing(kept) as model:
        assert "".join(each.text for each in await model.list_remote("resp_4")) == "1212112"


async def test_a_part_of_a_conversation_is_not_taken_for_all_of_it() -> None:
    """A service that has more items, and gives no id to ask for them by."""
    items = {"data": [said(1, "user", named=False)], "has_more": True}
    async with listing({"/v1/responses/resp_1": {}, "/v1/responses/resp_1/input_items": items}) as model:
        with pytest.raises(ModelFailed, match=r"lists only 1 items of .*no id to continue from"):
            await model.list_remote("resp_1")


@pytest.mark.parametrize("ends", [["a"], ["a", "b"]], ids=["one page", "a circle"])
async def test_a_listing_that_does_not_advance_ends(ends: list[str]) -> None:
    """A service that says that there is more, and lists the same again: a failure rather than for ever."""
    pages = cycle({"data": [{**said(1, "user", named=True), "id": end}], "has_more": True} for end in ends)
    kept = {"/v1/responses/resp_1": {}, "/v1/responses/resp_1/input_items": pages}
    async with listing(kept) as model, asyncio.timeout(30):
        with pytest.raises(ModelFailed, match=r"the same id to continue from"):
            await model.list_remote("resp_1")


async def test_a_listing_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that always says that there is more, under new ids."""
    monkeypatch.setattr(openai_responses, "_MOST_ITEMS", 5)
    pages = ({"data": [said(n, "user", named=True)], "has_more": n < 20} for n in range(21))
    kept = {"/v1/responses/resp_1": {}, "/v1/responses/resp_1/input_items": pages}
    async with listing(kept) as model:
        with pytest.raises(ModelFailed, match="lists more than 5 items"):
            await model.list_remote("resp_1")


async def test_calls_in_a_row_are_added_to_their_message_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is made anew once, however many calls it has."""
    made: list[int] = []

    def replace(message: Message, *, tool_calls: tuple[ToolCall, ...]) -> Message:
        made.append(len(tool_calls))
        return structs.replace(message, tool_calls=tool_calls)

    monkeypatch.setattr(responses_reading, "replace", replace)
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "A-b"} for n in range(7)]
    items = [said(1, "user", named=True), *calls[:4], said(2, "user", named=True), *calls[4:]]
    kept = {"/v1/conversations/conv_1": {}, "/v1/conversations/conv_1/items": {"data": items}}
    async with listing(kept) as model:
        listed = await model.list_remote("conv_1")
    assert [[call.id for call in each.tool_calls] for each in listed] == [
        *([], ["c0", "c1", "c2", "c3"]),
        *([], ["c4", "c5", "c6"]),
    ]
    assert made == [4, 3]


async def test_a_chain_that_leads_back_to_itself_is_read_once() -> None:
    """A service without ids of items that names each of two responses as the one before the other."""
    kept: dict[str, Any] = {}
    for n, before in ((1, 2), (2, 1)):
        output = [said(n, "assistant", named=False)]
        kept[f"/v1/responses/resp_{n}"] = {"previous_response_id": f"resp_{before}", "output": output}
        kept[f"/v1/responses/resp_{n}/input_items"] = {"data": []}
    async with listing(kept) as model, asyncio.timeout(30):
        assert [each.text for each in await model.list_remote("resp_2")] == ["1", "2"]
        await model.delete_remote("resp_2")


@pytest.mark.parametrize(
    "body", [b"<html><title>Sign in</title></html>", b"{", b'{"data": "x", "output": "x"}']
)
async def test_a_listing_that_cannot_be_read_is_a_failure_of_the_service(body: bytes) -> None:
    """As an answer is: what the service has sent is quoted, and a page named."""
    kept = {
        "/v1/responses/resp_1": body,
        "/v1/conversations/conv_1": {},
        "/v1/conversations/conv_1/items": body,
    }
    async with listing(kept) as model:
        for remote_id in ("resp_1", "conv_1"):
            with pytest.raises(ModelFailed) as failed:
                await model.list_remote(remote_id)
            assert ("Sign in" if b"Sign" in body else "what is not a conversation") in failed.value.detail
            assert failed.value.__context__ is None
        with pytest.raises(ModelFailed):
            await model.delete_remote("resp_1")


async def test_a_time_that_cannot_be_read_hides_no_message() -> None:
    """A service that counts milliseconds."""
    items = {"data": [said(1, "user", named=True)]}
    kept = {
        "/v1/conversations/conv_1": {"created_at": 1760000000000},
        "/v1/conversations/conv_1/items": items,
    }
    async with listing(kept) as model:
        assert shown(await model.list_remote("conv_1")) == [("user", "1")]


@asynccontextmanager
async def listing(kept: dict[str, Any]) -> AsyncIterator[RemoteConversations]:
    """The client of a service that answers each path with what is kept there, or with the next of it."""

    async def handler(connection: RawConnection) -> None:
        while True:
            head = await connection.request()
            found = kept[head.split()[1].decode().partition("?")[0]]
            found = next(found) if isinstance(found, Iterator) else found
            body = found if isinstance(found, bytes) else orjson.dumps(found)
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    name = "openai-responses"
    async with RawService(handler).running() as service, client(service.base_url, name) as model:
        assert isinstance(model, RemoteConversations)
        yield model
