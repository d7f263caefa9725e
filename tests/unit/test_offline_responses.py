"""The responses API through the real client: stored responses, chains, conversations, and its events."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, BadRequestError, NotFoundError

from tealagents.llm.offline import OfflineModel

DELETE: Any = {"type": "function", "name": "Shell-delete", "parameters": {}, "strict": False}


@pytest.fixture
async def model() -> AsyncIterator[OfflineModel]:
    async with OfflineModel() as running:
        yield running


@pytest.fixture
async def client(model: OfflineModel) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=model.base_url, api_key="k", max_retries=0) as opened:
        yield opened


async def respond(client: AsyncOpenAI, given: Any, **options: Any) -> Any:
    return await client.responses.create(model="offline", input=given, **options)


async def events(client: AsyncOpenAI, given: Any, **options: Any) -> list[Any]:
    create: Any = client.responses.create
    return [e async for e in await create(model="offline", input=given, stream=True, **options)]


async def texts(pages: Any) -> list[str]:
    return [item.content[0].text async for item in pages]


async def test_a_chain_remembers(client: AsyncOpenAI) -> None:
    """A response that continues another knows what was said before; only the id is sent: covers THREAD-4."""
    first = await respond(client, "My name is Ada.")
    second = await respond(client, "I live in Oslo.", previous_response_id=first.id)
    third = await respond(client, "What is my name?", previous_response_id=second.id)
    assert third.output_text == "Your name is Ada."
    assert third.previous_response_id == second.id
    assert third.status == "completed"
    assert third.usage.total_tokens == third.usage.input_tokens + third.usage.output_tokens
    assert third.usage.input_tokens > first.usage.input_tokens


async def test_a_chain_forks(client: AsyncOpenAI) -> None:
    """Two responses that continue the same one know nothing of each other: covers THREAD-6."""
    first = await respond(client, "My name is Ada.")
    await respond(client, "My name is Grace.", previous_response_id=first.id)
    other = await respond(client, "What is my name?", previous_response_id=first.id)
    assert other.output_text == "Your name is Ada."


async def test_instructions_are_not_carried_over(client: AsyncOpenAI) -> None:
    """Instructions hold for their own request only."""
    first = await respond(client, "hi", instructions="The user's name is Ada.")
    second = await respond(client, "What is my name?", previous_response_id=first.id)
    assert first.output_text == "Hello, Ada! How can I help?"
    assert second.output_text == "You have not told me your name."


async def test_stored_responses_are_read_listed_and_deleted(client: AsyncOpenAI) -> None:
    """A stored response can be fetched, its items listed with those before it, and deleted."""
    first = await respond(client, "one")
    second = await respond(client, "two", previous_response_id=first.id)
    assert (await client.responses.retrieve(second.id)).output_text == second.output_text
    listed = await texts(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert listed == ["one", "You said: “one”", "two"]
    assert await texts(client.responses.input_items.list(second.id)) == listed[::-1]
    await client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(BadRequestError):
        await respond(client, "x", previous_response_id=first.id)
    assert (await respond(client, "three", previous_response_id=second.id)).status == "completed"


async def test_what_is_not_stored_cannot_be_continued(client: AsyncOpenAI) -> None:
    """With `store=false` nothing is kept, and the error is the real one: covers THREAD-3."""
    first = await respond(client, "hi", store=False)
    with pytest.raises(BadRequestError) as lost:
        await respond(client, "x", previous_response_id=first.id)
    assert lost.value.code == "previous_response_not_found"
    assert lost.value.param == "previous_response_id"
    assert isinstance(lost.value.body, dict)
    assert lost.value.body["message"] == f"Previous response with id '{first.id}' not found."


async def test_a_conversation_keeps_its_items(client: AsyncOpenAI) -> None:
    """Responses of a conversation know its items and add to them: covers THREAD-4."""
    conversation = await client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "My name is Ada."}], metadata={"about": "tea"}
    )
    answer = await respond(client, "What is my name?", conversation=conversation.id)
    assert answer.output_text == "Your name is Ada."
    assert answer.conversation.id == conversation.id
    items = client.conversations.items
    listed = await texts(items.list(conversation.id, order="asc", limit=2))
    assert listed == ["My name is Ada.", "What is my name?", "Your name is Ada."]
    added = await items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "I live in Oslo."}]
    )
    found = await items.retrieve(added.data[0].id or "", conversation_id=conversation.id)
    assert found == added.data[0]
    again = await respond(client, "Where do I live?", conversation={"id": conversation.id})
    assert again.output_text == "You live in Oslo."


async def test_a_conversation_is_changed_and_deleted(client: AsyncOpenAI) -> None:
    """Metadata and items can be changed; a deleted conversation is lost, with the real error."""
    conversation = await client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "hi"}]
    )
    changed = await client.conversations.update(conversation.id, metadata={"a": "b"})
    assert changed.metadata == {"a": "b"}
    page = await client.conversations.items.list(conversation.id)
    await client.conversations.items.delete(page.data[0].id or "", conversation_id=conversation.id)
    assert (await client.conversations.items.list(conversation.id)).data == []
    assert (await client.conversations.delete(conversation.id)).deleted
    for call in (
        client.conversations.retrieve(conversation.id),
        respond(client, "x", conversation=conversation.id),
    ):
        with pytest.raises(NotFoundError, match=f"Conversation with id '{conversation.id}' not found"):
            await call


async def test_a_conversation_takes_twenty_items_at_a_time(client: AsyncOpenAI) -> None:
    """More items in one request are refused, as the real service does."""
    many: Any = [{"type": "message", "role": "user", "content": "x"}] * 21
    with pytest.raises(BadRequestError, match="maximum length 20"):
        await client.conversations.create(items=many)


async def test_the_events_of_a_text(client: AsyncOpenAI, model: OfflineModel) -> None:
    """A text streams in the real order, numbered without a gap, and is stored at its end."""
    streamed = await events(client, "hello")
    assert [e.type for e in streamed] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [e.sequence_number for e in streamed] == list(range(13))
    final = streamed[-1].response
    assert final.output_text == "Hello! How can I help?"
    assert (await client.responses.retrieve(final.id)).output_text == final.output_text


async def test_a_function_is_called_and_answered(client: AsyncOpenAI) -> None:
    """Calls stream their arguments; their outputs go back as items and are quoted: covers THREAD-4."""
    streamed = await events(
        client, 'call Shell-delete {"path": "/data/x"}; call Shell-delete {"path": "/data/y"}', tools=[DELETE]
    )
    deltas = [e for e in streamed if e.type == "response.function_call_arguments.delta"]
    done = [e for e in streamed if e.type == "response.function_call_arguments.done"]
    assert [e.output_index for e in done] == [0, 1]
    assert "".join(e.delta for e in deltas) == "".join(e.arguments for e in done)
    calls = streamed[-1].response.output
    assert [c.status for c in calls] == ["completed"] * 2
    outputs = [{"type": "function_call_output", "call_id": c.call_id, "output": "gone"} for c in calls]
    answer = await respond(client, outputs, previous_response_id=streamed[-1].response.id)
    assert answer.output_text == "Shell-delete said: gone\nShell-delete said: gone"
    whole = await respond(client, "call Shell-delete", tools=[DELETE])
    assert (whole.output[0].type, whole.output[0].name) == ("function_call", "Shell-delete")
    with pytest.raises(BadRequestError, match="No tool output found for function call"):
        await respond(client, "never mind", previous_response_id=whole.id)
    with pytest.raises(BadRequestError, match="No tool call found for function call output"):
        await respond(client, outputs)


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        ({"text": "a b c", "finish_reason": "content_filter"}, "incomplete", "content_filter"),
        ({"text": "a b c", "finish_reason": "length"}, "incomplete", "max_output_tokens"),
        ({"text": "a b c", "fault": {"kind": "error", "after_pieces": 1}}, "failed", None),
    ],
)
async def test_other_ends(
    client: AsyncOpenAI, model: OfflineModel, reply: dict[str, Any], status: str, reason: str | None
) -> None:
    """An answer that was cut short or failed says so, streamed or whole."""
    model.script({"rules": [{"reply": reply}]})
    last = (await events(client, "hi"))[-1]
    whole = await respond(client, "hi")
    assert last.type == f"response.{status}"
    for response in (last.response, whole):
        assert response.status == status
        assert (response.incomplete_details and response.incomplete_details.reason) == reason
        assert (response.error is not None) is (status == "failed")


async def test_a_limit_ends_a_response(client: AsyncOpenAI) -> None:
    """`max_output_tokens` cuts, and the response is incomplete."""
    answer = await respond(client, "hello", max_output_tokens=2)
    assert (answer.output_text, answer.status) == ("Hello! How", "incomplete")


async def test_a_refusal(client: AsyncOpenAI, model: OfflineModel) -> None:
    """A refusal is a content part of its own, with its own events."""
    model.script({"rules": [{"reply": {"refusal": "I would rather not."}}]})
    streamed = await events(client, "hi")
    deltas = [e.delta for e in streamed if e.type == "response.refusal.delta"]
    assert "".join(deltas) == "I would rather not."
    assert streamed[-1].response.output[0].content[0].refusal == "I would rather not."


@pytest.mark.parametrize("kind", ["cut", "end", "error"])
async def test_a_broken_response_is_not_stored(client: AsyncOpenAI, model: OfflineModel, kind: str) -> None:
    """What never ended well cannot be fetched."""
    model.script({"rules": [{"reply": {"text": "a b c", "fault": {"kind": kind, "after_pieces": 1}}}]})
    answer = await client.responses.create(model="m", input="hi", stream=True)
    seen: list[Any] = [await anext(answer)]
    with pytest.raises(APIConnectionError) if kind == "cut" else nullcontext():
        seen.extend([event async for event in answer])
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(seen[0].response.id)


async def test_images_and_parts_are_read(client: AsyncOpenAI) -> None:
    """Images are seen and listed again as they were sent."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    answer = await respond(client, [{"role": "user", "content": [image]}])
    assert answer.output_text == "I see 1 image (image/png, 3 bytes)."
    page = await client.responses.input_items.list(answer.id)
    listed: Any = page.data[0]
    assert listed.content[0].image_url == image["image_url"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "must be provided"),
        ({"input": 5}, "expected an array, but got an integer"),
        ({"input": [{"role": "robot", "content": "x"}]}, "Supported values are"),
        ({"input": [{"content": "x"}]}, "Missing required parameter: 'input\\[0\\].type'"),
        ({"input": [{"role": "user"}]}, "Missing required parameter: 'input\\[0\\].content'"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "previous_response_id": "resp_1", "conversation": "conv_1"}, "Mutually exclusive"),
        ({"input": "x", "max_output_tokens": 0}, "below minimum value"),
        ({"input": "x", "tools": [{"type": "function", "name": "a.b"}]}, "does not match pattern"),
    ],
)
async def test_wrong_requests_are_refused(client: AsyncOpenAI, options: Any, complaint: str) -> None:
    """What the real service refuses is refused here, too."""
    with pytest.raises(BadRequestError, match=complaint):
        await client.responses.create(model="m", **options)


async def test_nothing_grows_for_ever(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest responses are forgotten; what continues them is not."""
    monkeypatch.setattr("tealagents.llm.offline.stored._MOST_KEPT", 2)
    first = await respond(client, "My name is Ada.")
    second = await respond(client, "hi", previous_response_id=first.id)
    await respond(client, "hi")
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(first.id)
    third = await respond(client, "What is my name?", previous_response_id=second.id)
    assert third.output_text == "Your name is Ada."


async def test_pages_need_sense(client: AsyncOpenAI) -> None:
    """A wrong limit and an unknown cursor are refused, and nothing can be cancelled."""
    answer = await respond(client, "hi")
    with pytest.raises(BadRequestError, match="'limit'"):
        await client.responses.input_items.list(answer.id, limit=500)
    with pytest.raises(NotFoundError, match="msg_lost"):
        await client.responses.input_items.list(answer.id, after="msg_lost")
    with pytest.raises(BadRequestError, match="synchronous"):
        await client.responses.cancel(answer.id)
