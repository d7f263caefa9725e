"""Background, cancel, what is not stored, limits, keys: how responses begin and end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import WEATHER, create, kinds, raw, retrieved, said, sdk, serving, stream, streamed
from talk import call
from wire import records, store_of

from tealagents.api import replay, unstored
from tealagents.api.exchange import Exchange
from tealagents.api.stretches import Stretch
from tealagents.domain.events import Event
from tealagents.domain.models import User
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

SCRIPT = """
rules:
  - when: {text: for ever}
    reply: {text: never, headers_delay_ms: 600000}
  - when: {text: dripping}
    reply: {text: 'drip drip drip drip drip drip', piece_delay_ms: 100}
  - when: {text: too long}
    reply: {text: cut sho, finish_reason: length}
  - when: {text: indecent}
    reply: {refusal: 'No.'}
  - when: {text: a whole book}
    reply: {error: {status: 400, message: Too long., code: context_length_exceeded}}
  - when: {text: broken}
    reply: {error: {status: 400, message: no such thing}}
"""
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElF"
    "TkSuQmCC"
)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with serving(SCRIPT, limits={"max_requests_per_user": 3}) as pair:
        yield pair


def test_a_response_in_the_background(wire: httpx.Client, ada: OpenAI) -> None:
    """It is answered at once, followed from any event by any client, and read when it has ended."""
    begun = create(wire, input="dripping", background=True)
    assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
    followed = streamed(wire.get(f"/responses/{begun['id']}", params={"stream": "true"}).text)
    assert followed[0]["type"] == "response.created"
    ended = ada.responses.retrieve(begun["id"])
    assert ended.status == "completed"
    assert ended.output_text == "drip drip drip drip drip drip"
    tail = list(ada.responses.retrieve(begun["id"], stream=True, starting_after=4))
    assert [event.sequence_number for event in tail] == list(range(5, len(followed)))


def test_a_response_that_ends_while_it_is_read_shows_nothing_of_the_next_one(
    wire: httpx.Client, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read while it ran; before its entries are read, it ends, and the next one calls a tool."""
    logged, reads = replay._logged, list[Stretch]()
    begun = create(wire, input="dripping", background=True)
    response_id, conversation = begun["id"], begun["conversation"]["id"]

    def end_and_continue() -> None:
        until(lambda: retrieved(wire, response_id)["status"] == "completed")
        create(wire, input=call("Work-note", file=str(file), line="one"), conversation=conversation)

    async def later(exchange: Exchange, stretch: Stretch) -> AsyncIterator[Event]:
        if stretch.record.status == "Running" and not reads:
            reads.append(stretch)
            await asyncio.to_thread(end_and_continue)
        async for event in logged(exchange, stretch):
            yield event

    monkeypatch.setattr(replay, "_logged", later)
    assert kinds(retrieved(wire, response_id)) == ["message"]
    assert len(reads) == 1
    assert kinds(retrieved(wire, response_id)) == ["message"]


def test_a_stream_that_is_left_continues(ada: OpenAI) -> None:
    """A client that comes back takes the rest, as if it had never left."""
    stream = ada.responses.create(model="Tester", input="dripping", stream=True, background=True)
    seen = []
    for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    stream.close()
    assert seen[0].type == "response.created"
    response_id = seen[0].response.id
    last = seen[-1].sequence_number
    rest = list(ada.responses.retrieve(response_id, stream=True, starting_after=last))
    assert [event.sequence_number for event in rest][:2] == [last + 1, last + 2]
    assert rest[-1].type == "response.completed"


def test_a_response_is_cancelled(ada: OpenAI, wire: httpx.Client) -> None:
    """What runs is ended; what has ended stays as it was."""
    begun = ada.responses.create(model="Tester", input="for ever", background=True)
    assert ada.responses.cancel(begun.id).status == "cancelled"
    assert ada.responses.retrieve(begun.id).status == "cancelled"
    events = streamed(wire.get(f"/responses/{begun.id}", params={"stream": "true"}).text)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")
    ended = ada.responses.create(model="Tester", input="hello")
    assert ada.responses.cancel(ended.id) == ended


def test_a_call_that_has_returned_is_shown_while_another_of_its_round_runs(
    wire: httpx.Client, file: Path
) -> None:
    """With its output; and once the response is cancelled, as its stream ended."""
    calls = (
        call("Work-note", file=str(file), line="one"),
        call("Work-refuse", file=str(file)),
        call("Work-rest", file=str(file), seconds=600),
    )
    begun = create(wire, input=" and ".join(calls), background=True)

    def returned(response: dict[str, Any]) -> list[Any]:
        return [item["status"] for item in response["output"]]

    until(lambda: returned(retrieved(wire, begun["id"])) == ["completed", "failed", "in_progress"])
    cancelled = wire.post(f"/responses/{begun['id']}/cancel").json()
    assert returned(cancelled) == ["completed", "failed", "incomplete"]
    assert cancelled["output"][0]["output"] == "noted one"
    events = streamed(wire.get(f"/responses/{begun['id']}", params={"stream": "true"}).text)
    assert events[-1]["response"] == cancelled == retrieved(wire, begun["id"])


def test_an_answer_that_is_cut_short_is_incomplete(wire: httpx.Client) -> None:
    """The status says so, and why."""
    response = create(wire, input="too long")
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert stream(wire, input="too long")[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("words", ["too long", "indecent"])
def test_the_items_of_a_conversation_are_those_of_its_responses(
    service: ServiceThread, wire: httpx.Client, words: str
) -> None:
    """Also where an answer is not whole, or a refusal; in a fork of the conversation, and a fork of that."""
    response = create(wire, input=words)
    task = response["conversation"]["id"].removeprefix("conv_")
    items = wire.get(f"/conversations/conv_{task}/items").json()["data"]
    assert items[0] == response["output"][0]
    with service.client() as ada:
        for _ in range(2):
            task = ada.post(f"/tasks/{task}/fork", json={}).raise_for_status().json()["task_id"]
            copied = wire.get(f"/conversations/conv_{task}/items").json()["data"]
            assert {**copied[0], "id": items[0]["id"]} == items[0]


def test_a_client_whose_messages_are_too_long_learns_it_by_openais_code(
    ada: OpenAI, wire: httpx.Client, service: ServiceThread
) -> None:
    """Frameworks shorten their history then, some because of the words. The HTTP API keeps its own code."""
    messages: Any = [{"role": "user", "content": "a whole book"}]
    for create_it in (
        lambda: ada.responses.create(model="Tester", input="a whole book"),
        lambda: ada.chat.completions.create(model="Tester", messages=messages),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            create_it()
        assert (refused.value.code, refused.value.type) == (
            "context_length_exceeded",
            "invalid_request_error",
        )
        assert "token_budget" in refused.value.message
    for begin in (ada.responses.create, ada.chat.completions.create):
        given: Any = {"input": "a whole book"} if begin == ada.responses.create else {"messages": messages}
        with pytest.raises(openai.APIError) as raised:
            list(begin(model="Tester", stream=True, **given))
        assert raised.value.code == "context_length_exceeded"
        assert "exceeds the context window" in raised.value.message
    last = stream(wire, input="a whole book")[-1]["response"]
    assert last["error"]["type"] == "context_length_exceeded"
    assert retrieved(wire, last["id"]) == last
    with service.client() as v1alpha1:
        request = v1alpha1.get(f"/requests/{last['id'].split('_')[1]}").json()
    assert request["error"]["code"] == "model_error"


def test_a_request_that_fails_raises(ada: OpenAI, wire: httpx.Client) -> None:
    """As JSON with its status, which no SDK repeats; in a stream as its last events; kept as failed."""
    with pytest.raises(openai.InternalServerError) as failed:
        ada.with_options(max_retries=2).responses.create(model="Tester", input="broken")
    assert failed.value.code == "model_error"
    assert failed.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.APIError) as raised:
        list(ada.responses.create(model="Tester", input="broken", stream=True))
    assert raised.value.code == "model_error"
    events = stream(wire, input="broken")
    error, last = events[-2:]
    assert last["type"] == "response.failed"
    body = {"code": "model_error", "message": last["response"]["error"]["message"], "param": None}
    assert {name: error[name] for name in body} == body
    assert error["error"] == {**body, "type": "server_error"}
    replay = wire.get(f"/responses/{last['response']['id']}", params={"stream": "true"})
    assert streamed(replay.text) == events
    assert last["response"]["error"]["type"] == "model_error"
    assert retrieved(wire, last["response"]["id"]) == last["response"]
    following = create(wire, input="hello", previous_response_id=last["response"]["id"])
    assert following["status"] == "completed"


@pytest.mark.parametrize("streams", [False, True])
def test_what_is_not_stored_is_erased(
    service: ServiceThread, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`store: false` leaves nothing behind once the response has ended; a branch leaves its origin alone."""
    monkeypatch.setattr(unstored, "FOLLOWED_SECONDS", 0.1)
    with raw(service, "bob") as bob:
        first = create(bob, input="hello")
        bodies: list[dict[str, Any]] = [
            {"input": "a secret"},
            {"input": "a secret", "previous_response_id": first["id"]},
        ]
        for body in bodies:
            if streams:
                response = stream(bob, store=False, **body)[-1]["response"]
            else:
                response = create(bob, store=False, **body)
            assert said(response)
            assert response["store"] is False
            gone = f"/responses/{response['id']}"
            until(lambda gone=gone: bob.get(gone).status_code == 404)  # type: ignore[misc]
        assert retrieved(bob, first["id"]) == first
        exchange = service.app.exchange
        partition = exchange.service.records.partition(User("mock", "bob"))

        def is_kept(words: bytes) -> bool:
            return any(words in record.value for record in records(store_of(service), partition).values())

        until(lambda: not (exchange._background or is_kept(b"secret")))  # read while the service is idle
        assert is_kept(b"hello")
        refused = bob.post("/responses", json={"input": "x", "store": False, "background": True})
        assert refused.status_code == 400


def test_instructions_are_for_one_response(ada: OpenAI, model: OfflineModel) -> None:
    """Instructions and system and developer messages are sent to the model once, and not carried over."""
    system: Any = [{"role": "developer", "content": "Speak Latin."}, {"role": "user", "content": "hello"}]
    first = ada.responses.create(model="Tester", input=system, instructions="Be brief.")
    prompt = str(model.requests[-1]["body"]["messages"])
    assert "Be brief." in prompt
    assert "Speak Latin." in prompt
    ada.responses.create(model="Tester", input="again", previous_response_id=first.id)
    prompt = str(model.requests[-1]["body"]["messages"])
    assert "Be brief." not in prompt
    assert "Speak Latin." not in prompt


def test_images_come_along(ada: OpenAI, model: OfflineModel) -> None:
    """As data URIs; an address is refused, for nothing is fetched that a user's text names."""

    def ask(url: str) -> Any:
        parts = [{"type": "input_text", "text": "what is this?"}, {"type": "input_image", "image_url": url}]
        return [{"role": "user", "content": parts}]

    response = ada.responses.create(model="Tester", input=ask(PIXEL))
    assert PIXEL in str(model.requests[-1]["body"]["messages"])
    (item,) = ada.responses.input_items.list(response.id).data
    assert PIXEL in str(item.to_dict())
    for url in ("https://example.com/a.png", "data:image/png;base64,???"):
        with pytest.raises(openai.BadRequestError):
            ada.responses.create(model="Tester", input=ask(url))


@pytest.mark.parametrize(("path", "field"), [("responses", "input"), ("chat/completions", "messages")])
def test_an_image_of_the_assistant_is_refused(wire: httpx.Client, path: str, field: str) -> None:
    """A history whose client takes it for known would lack it: no model is sent one but the user's."""
    image = {"responses": PIXEL, "chat/completions": {"url": PIXEL}}[path]
    kind = {"responses": "input_image", "chat/completions": "image_url"}[path]
    sent = [
        {"role": "user", "content": "draw"},
        {"role": "assistant", "content": [{"type": kind, "image_url": image}]},
        {"role": "user", "content": "hello"},
    ]
    refused = wire.post(f"/{path}", json={"model": "Tester", field: sent})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"{field}.1.content"


def test_a_key_makes_a_message_safe_to_send_again(ada: OpenAI) -> None:
    """The same key with the same body is the same response; with another body it is refused."""
    headers = {"Idempotency-Key": "one"}
    first = ada.responses.create(model="Tester", input="hello", extra_headers=headers)
    assert ada.responses.create(model="Tester", input="hello", extra_headers=headers) == first
    with pytest.raises(openai.UnprocessableEntityError):
        ada.responses.create(model="Tester", input="other", extra_headers=headers)
    branch: Any = {"model": "Tester", "input": "on", "previous_response_id": first.id}
    ada.responses.create(**branch)
    forked = ada.responses.create(**branch, extra_headers={"Idempotency-Key": "two"})
    assert ada.responses.create(**branch, extra_headers={"Idempotency-Key": "two"}) == forked


@pytest.mark.parametrize("place", [None, "previous_response_id", "conversation"])
def test_a_background_response_is_sent_again_while_it_runs(wire: httpx.Client, place: str | None) -> None:
    """Under its key it is that response, wherever its message went; another body is refused."""
    home = create(wire, input="hello")
    where = {"previous_response_id": home["id"], "conversation": home["conversation"]["id"]}
    about = {place: where[place]} if place else {}
    body = {"input": "dripping", "background": True, **about}
    key = {"Idempotency-Key": f"background-{place}"}
    first, again = (wire.post("/responses", json=body, headers=key) for _ in range(2))
    assert (again.status_code, again.json()["status"]) == (200, "in_progress")
    assert again.json()["id"] == first.json()["id"]
    streams = wire.post("/responses", json={**body, "stream": True}, headers=key)
    assert streams.status_code == 422
    assert streamed(wire.get(f"/responses/{first.json()['id']}?stream=true").text)[-1]["type"] == (
        "response.completed"
    )


def test_a_key_of_a_completion_stands_for_its_conversation_too(wire: httpx.Client) -> None:
    """The same messages to another conversation are not what was sent before."""
    body: Any = {"model": "Tester", "messages": [{"role": "user", "content": "My name is Ada."}]}
    first, second = (wire.post("/chat/completions", json=body).headers["x-conversation-id"] for _ in "ab")
    asked = {**body, "messages": [{"role": "user", "content": "What is my name?"}]}

    def ask(conversation: str) -> httpx.Response:
        headers = {"idempotency-key": "three", "x-conversation-id": conversation}
        return wire.post("/chat/completions", json=asked, headers=headers)

    assert ask(first).status_code == 200
    assert ask(first).headers["idempotent-replayed"] == "true"
    refused = ask(second)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_a_busy_conversation_is_a_conflict_and_a_busy_response_branches(ada: OpenAI) -> None:
    """A conversation is a head that moves; a response is a snapshot to continue from at any time."""
    first = ada.responses.create(model="Tester", input="My name is Ada.")
    assert first.conversation
    busy = ada.responses.create(
        model="Tester", input="for ever", previous_response_id=first.id, background=True
    )
    with pytest.raises(openai.ConflictError) as refused:
        ada.responses.create(model="Tester", input="hi", conversation=first.conversation.id)
    assert refused.value.code == "task_busy"
    assert refused.value.response.headers["retry-after"] == "1"
    with pytest.raises(openai.ConflictError):
        ada.responses.create(model="Tester", input="hi", previous_response_id=busy.id)
    branch = ada.responses.create(model="Tester", input="What is my name?", previous_response_id=first.id)
    assert "Ada" in branch.output_text
    assert branch.conversation != first.conversation
    ada.responses.cancel(busy.id)


def test_the_sdk_knows_the_request_of_every_answer(ada: OpenAI) -> None:
    """Also of what is read, cancelled or refused: it is the id in the log."""
    response = ada.responses.create(model="Tester", input="hello")
    request_id = response.id.split("_")[1]
    for answer in (response, ada.responses.retrieve(response.id), ada.responses.cancel(response.id)):
        assert answer._request_id == request_id
    running = ada.responses.create(model="Tester", input="for ever", background=True)
    assert running.conversation is not None
    with pytest.raises(openai.ConflictError) as busy:
        ada.responses.create(model="Tester", input="hi", conversation=running.conversation.id)
    assert busy.value.request_id == running.id.split("_")[1]
    ada.responses.cancel(running.id)


def test_a_response_that_waits_its_turn_shows_what_it_was_asked() -> None:
    """A queued message is nowhere else yet."""
    with serving(SCRIPT, concurrency="enqueue") as (service, _), sdk(service) as ada:
        first = ada.responses.create(model="Tester", input="for ever", background=True)
        assert first.conversation is not None
        waiting = ada.responses.create(
            model="Tester", input="and then?", background=True, conversation=first.conversation.id
        )
        assert waiting.status == "queued"
        (item,) = ada.responses.input_items.list(waiting.id).data
        assert item.to_dict()["content"] == [{"type": "input_text", "text": "and then?"}]
        for each in (waiting, first):
            assert ada.responses.cancel(each.id).status == "cancelled"


def test_too_many_at_once_are_a_rate_limit(service: ServiceThread) -> None:
    """The SDK waits for as long as the answer says and tries again."""
    with sdk(service, "carl") as carl:
        begun = [carl.responses.create(model="Tester", input="for ever", background=True) for _ in range(3)]
        with pytest.raises(openai.RateLimitError) as refused:
            carl.responses.create(model="Tester", input="hello")
        assert refused.value.response.headers["retry-after"] == "1"
        timer = threading.Timer(0.3, lambda: [carl.responses.cancel(each.id) for each in begun])
        timer.start()
        patient = carl.with_options(max_retries=5)
        assert patient.responses.create(model="Tester", input="hello").status == "completed"
        timer.join()


def test_a_caller_without_a_token_is_shown_where_to_get_one(service: ServiceThread) -> None:
    """401 in OpenAI's form on every path, with the challenge that OAuth clients look for."""
    with raw(service, None) as anonymous:
        for method, path in (
            ("POST", "/responses"),
            ("GET", "/responses/resp_1"),
            ("GET", "/models"),
            ("POST", "/chat/completions"),
            ("POST", "/conversations"),
        ):
            answer = anonymous.request(method, path, json={})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.json()["error"]["type"] == "authentication_error"
        assert anonymous.get("/nowhere").status_code == 404
        assert anonymous.put("/models").status_code == 405


def test_the_root_says_where_it_is(service: ServiceThread) -> None:
    """`GET /` names the address that clients take as `base_url`."""
    (agent,) = httpx.get(service.root).json()["agents"]
    assert agent["protocols"]["openai"] == {"base_url": f"{service.prefix}/openai/v1"}


def test_client_tools_may_be_rejected_through_other_protocols(
    service: ServiceThread, wire: httpx.Client, file: Path
) -> None:
    """A pause is one pause, whichever protocol decides it."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"), tools=[WEATHER])
    request = paused["id"].split("_")[1]
    with service.client() as ada:
        ada.post(f"/requests/{request}/resume", json={"action": "approve"}).raise_for_status()
    following = f"resp_{request}_2"
    assert retrieved(wire, following)["previous_response_id"] == paused["id"]
    assert file.read_text() == "one\n"


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
@pytest.mark.parametrize("store", [None, False])
def test_a_first_response_without_an_answer_is_branched_from(
    wire: httpx.Client, ending: str, store: bool | None
) -> None:
    """As often as one likes: there is nothing before it, so that each branch begins with its message."""
    first = create(wire, input={"failed": "broken", "cancelled": "for ever"}[ending], background=True)
    if ending == "cancelled":
        wire.post(f"/responses/{first['id']}/cancel").raise_for_status()
    until(lambda: retrieved(wire, first["id"])["status"] == ending)
    own = first["conversation"]
    body = {"input": "How many messages have I sent?", "previous_response_id": first["id"], "store": store}
    branches = [create(wire, **body) for _ in range(3)]
    assert len({said(each) for each in branches}) == 1
    homes = [each["conversation"]["id"] for each in branches]
    assert len(set(homes)) == 3
    assert (own["id"] in homes) is (store is None)
    assert all(each["previous_response_id"] == first["id"] for each in branches)
    assert all(
        (wire.get(f"/responses/{each['id']}").status_code == 404) is (store is False) for each in branches
    )


@pytest.fixture
def impatient() -> Iterator[tuple[OpenAI, OfflineModel]]:
    """A service on which leaving cancels, and a message interrupts the one before."""
    with (
        serving(SCRIPT, on_disconnect="cancel", concurrency="interrupt") as (service, model),
        sdk(service) as client,
    ):
        yield client, model


def test_a_background_response_outlives_its_stream_although_leaving_cancels(
    impatient: tuple[OpenAI, OfflineModel],
) -> None:
    """It was asked for so that it would: `starting_after` finds the rest."""
    client, _ = impatient
    with client.responses.create(model="Tester", input="dripping", stream=True, background=True) as stream:
        begun = next(iter(stream))
    assert begun.type == "response.created"
    rest = client.responses.retrieve(begun.response.id, stream=True, starting_after=begun.sequence_number)
    assert [event.type for event in rest][-1] == "response.completed"


def test_the_caller_of_an_interrupted_response_gets_a_conflict_as_over_chat(
    impatient: tuple[OpenAI, OfflineModel],
) -> None:
    """An empty text would pass for the answer."""
    client, model = impatient
    conversation = client.conversations.create().id
    asked = len(model.requests)
    caught: list[object] = []

    def wait() -> None:
        try:
            caught.append(client.responses.create(model="T", input="for ever", conversation=conversation))
        except openai.ConflictError as error:
            caught.append(error.code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: len(model.requests) > asked)
    client.responses.create(model="Tester", input="hello", conversation=conversation)
    waiting.join(30)
    assert caught == ["request_canceled"]
