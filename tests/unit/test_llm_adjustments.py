"""What a service refuses though its API has it: asked for again without, and remembered."""

import logging
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from llm_setup import RawConnection, RawService, called, client, message, one_by_one, result, text_of

from tealagents.domain.errors import ModelFailed
from tealagents.domain.models import ToolCall
from tealagents.domain.ports import Model, ModelCall

#: the refusal of a request: its status and its message; None where it is answered
Refusal = tuple[int, Any] | None

IMAGE = "data:image/png;base64,iVBORw0KGgo="
ANSWERS = {
    "openai-chat": {"choices": [{"message": {"content": "so"}, "finish_reason": "stop"}]},
    "openai-responses": {
        "id": "resp_1",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "so"}]}],
    },
}


class Picky:
    """A service that refuses what it does not take, and answers everything else."""

    def __init__(self, refusal: Callable[[dict[str, Any]], Refusal], name: str = "openai-chat") -> None:
        self.asked: list[dict[str, Any]] = []
        self._refusal = refusal
        self._answer = ANSWERS[name]
        self.raw = RawService(self._serve)

    async def _serve(self, connection: RawConnection) -> None:
        while True:
            asked = orjson.loads((await connection.request_with_body())[1])
            self.asked.append(asked)
            status, said = 200, self._answer
            if refused := self._refusal(asked):
                status, said = refused[0], {"error": {"message": refused[1], "code": None}}
            body = orjson.dumps(said)
            head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n" % status
            await connection.send(head + b"content-length: %d\r\n\r\n%s" % (len(body), body))


async def ask(model: Model, *prompt: bytes, stream: bool = False) -> str:
    asked = ModelCall(prompt=prompt, stream=stream)
    return text_of([event async for event in one_by_one(model.stream(asked))])


def hello(model: Model) -> bytes:
    return model.encode(message("user", "hello"))


def roles(body: dict[str, Any]) -> list[str]:
    return [said["role"] for said in body.get("messages") or body["input"]]


# --- the accounts of a stream -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        (400, "Unrecognized request argument supplied: stream_options"),
        (422, {"detail": [{"loc": ["body", "stream_options", "include_usage"], "msg": "Extra inputs"}]}),
    ],
)
async def test_a_service_without_stream_options_streams(
    refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused once, they are left out from then on; that is logged once."""
    caplog.set_level(logging.INFO, logger="tealagents.llm")
    service = Picky(lambda body: refusal if "stream_options" in body else None)
    async with service.raw.running(), client(service.raw.base_url, max_retries=0) as model:
        for _ in range(2):
            assert await ask(model, hello(model), stream=True) == "so"
    assert [(body["stream"], "stream_options" in body) for body in service.asked] == [
        (True, True),
        (True, False),
        (True, False),
    ]
    assert [record.message for record in caplog.records if "refuses" in record.message] == [
        "The model service refuses `stream_options`; later calls leave it out."
    ]


async def test_what_does_not_help_is_not_remembered() -> None:
    """A complaint that only quotes the words costs one more request, and no other call anything."""
    service = Picky(
        lambda body: (400, "the text stream_options is too rude") if len(service.asked) < 3 else None
    )
    async with service.raw.running(), client(service.raw.base_url) as model:
        with pytest.raises(ModelFailed, match="too rude"):
            await ask(model, hello(model), stream=True)
        assert await ask(model, hello(model), stream=True) == "so"
    assert ["stream_options" in body for body in service.asked] == [True, False, True]


# --- the order of messages ----------------------------------------------------------------------------


def only_first_is_system(body: dict[str, Any]) -> Refusal:
    return (400, "System message must be at the beginning.") if "system" in roles(body)[1:] else None


async def test_system_messages_go_into_the_first_where_only_that_may_be_one() -> None:
    """Asked again at once; later calls are put so from the first."""
    service = Picky(only_first_is_system)
    async with service.raw.running(), client(service.raw.base_url, max_retries=0) as model:
        prompt = [
            model.encode_system("Be brief."),
            model.encode_system('A summary: "x"'),
            hello(model),
            model.encode(message("assistant", "Hello.")),
            model.encode_system("A note."),
            hello(model),
        ]
        for _ in range(2):
            assert await ask(model, *prompt) == "so"
        assert await ask(model, hello(model)) == "so"
    assert len(service.asked) == 4
    assert [(said["role"], said["content"]) for said in service.asked[2]["messages"]] == [
        ("system", 'Be brief.\n\nA summary: "x"\n\nA note.'),
        ("user", "hello"),
        ("assistant", "Hello."),
        ("user", "hello"),
    ]
    assert roles(service.asked[3]) == ["user"]


async def test_a_template_that_fails_as_an_internal_error_is_understood() -> None:
    """It is no retry: there is none here."""
    service = Picky(
        lambda body: only_first_is_system(body) and (500, "Jinja: system message must come first")
    )
    async with service.raw.running(), client(service.raw.base_url, max_retries=0) as model:
        assert await ask(model, hello(model), model.encode_system("A note."), hello(model)) == "so"
    assert roles(service.asked[-1]) == ["system", "user"]


@pytest.mark.parametrize("name", ANSWERS)
async def test_neighbouring_messages_of_the_user_become_one_where_roles_alternate(name: str) -> None:
    """Texts become one text; where there are images, parts become one list."""

    def alternating(body: dict[str, Any]) -> Refusal:
        said = roles(body)
        pairs = list(pairwise(said))
        return (400, "Conversation roles must alternate user/assistant/…") if ("user",) * 2 in pairs else None

    service = Picky(alternating, name)
    async with service.raw.running(), client(service.raw.base_url, name) as model:
        texts = [model.encode(message("user", text)) for text in ("one", "two", "three")]
        assert await ask(model, model.encode_system("Be brief."), *texts) == "so"
        assert await ask(model, texts[0], model.encode(message("user", "look", images=[IMAGE]))) == "so"
    key = "messages" if name == "openai-chat" else "input"
    assert service.asked[1][key][-1]["content"] == "one\n\ntwo\n\nthree"
    parts = service.asked[2][key][0]["content"]
    assert [part.get("text") for part in parts] == ["one", "look", None]
    assert parts[0]["type"] == parts[1]["type"]


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_history_that_begins_with_an_answer_gets_a_message_before_it(name: str) -> None:
    """As a reducer cuts it, nothing of which is left out: a call stays beside its result."""

    def from_the_user_on(body: dict[str, Any]) -> Refusal:
        said = [each.get("role") for each in body.get("messages") or body["input"]]
        first = next(role for role in said if role != "system")
        return (400, "Conversation roles must alternate user/assistant/…") if first != "user" else None

    call = ToolCall(id="call_1", tool="find", arguments="{}")
    service = Picky(from_the_user_on, name)
    options = {"store": False} if name == "openai-responses" else {}
    async with service.raw.running(), client(service.raw.base_url, name, max_retries=0, **options) as model:
        told = [
            model.encode(called(call)),
            model.encode(result("call_1", "found")),
            model.encode(message("assistant", "It is there.")),
            hello(model),
        ]
        for _ in range(2):
            assert await ask(model, model.encode_system("Be brief."), *told) == "so"
        assert await ask(model, hello(model)) == "so"
    key = "messages" if name == "openai-chat" else "input"
    refused, *sent = [[each for each in body[key] if each.get("role") != "system"] for body in service.asked]
    assert [(said[0]["content"], said[1:]) for said in sent[:2]] == [
        ("(what came before is not shown)", refused)
    ] * 2
    assert [said["content"] for said in sent[2]] == ["hello"]


async def test_what_continues_a_conversation_at_the_service_begins_with_results() -> None:
    """No message comes between them and the calls, which the service has."""

    def no_system(body: dict[str, Any]) -> Refusal:
        there = [each.get("role") for each in body["input"]]
        return (400, "System message must be at the beginning.") if "system" in there else None

    service = Picky(no_system, "openai-responses")
    async with service.raw.running(), client(service.raw.base_url, "openai-responses") as model:
        found = model.encode(result("call_1", "found"))
        prompt = (model.encode_system("Be brief."), found, model.encode_system("A note."), hello(model))
        call = ModelCall(prompt=prompt, remote_id="resp_0")
        assert text_of([event async for event in one_by_one(model.stream(call))]) == "so"
    assert [each.get("role") for each in service.asked[-1]["input"]] == [None, "user"]


@pytest.mark.parametrize("status", [400, 429])
async def test_a_message_that_is_in_order_is_not_asked_again(status: int) -> None:
    """A complaint about the order means something else where there is nothing to join."""
    service = Picky(lambda _: (status, "roles must alternate"))
    async with service.raw.running(), client(service.raw.base_url, max_retries=0) as model:
        with pytest.raises(ModelFailed, match="must alternate"):
            await ask(model, model.encode_system("Be brief."), hello(model))
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    "complaint",
    [
        "System message must be at the beginning.",
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "After the optional system message, conversation roles must alternate user/assistant",
        "Only the first message can have the role 'system'",
        "Unexpected role 'system' after role 'assistant'",
        "The model does not support successive user or assistant messages",
        'messages: roles must alternate between "user" and "assistant"',
        "Function call turn comes immediately after a user turn or after a function response turn.",
    ],
)
async def test_complaints_about_the_order_are_known_by_their_words(complaint: str) -> None:
    """As templates and services word them."""
    service = Picky(lambda body: (400, complaint) if len(body["messages"]) > 2 else None)
    async with service.raw.running(), client(service.raw.base_url) as model:
        assert await ask(model, model.encode_system("a"), model.encode_system("b"), hello(model)) == "so"


# --- the ids of calls ---------------------------------------------------------------------------------

#: as vLLM makes them, and the engine where a model repeats one
FOREIGN = ("chatcmpl-tool-0123456789abcdef0123456789abcdef", "dupdupdup-2")
MISTRAL = "Tool call id was {} but must be a-z, A-Z, 0-9, with a length of 9."


def ids_of(body: dict[str, Any]) -> list[str]:
    """The ids of a body's calls, and of its results."""
    told = body.get("messages") or body["input"]
    calls = [call["id"] for said in told for call in said.get("tool_calls", ())]
    return calls + [said[key] for said in told for key in ("tool_call_id", "call_id") if key in said]


def only_nine(complaint: str, status: int = 400) -> Callable[[dict[str, Any]], Refusal]:
    def refusal(body: dict[str, Any]) -> Refusal:
        wrong = [each for each in ids_of(body) if not re.fullmatch("[a-zA-Z0-9]{9}", each)]
        return (status, complaint.format(wrong[0])) if wrong else None

    return refusal


def calls_with(model: Model, *ids: str) -> list[bytes]:
    made = called(*(ToolCall(id=each, tool="find", arguments="{}") for each in ids))
    return [hello(model), *map(model.encode, (made, *(result(each, f"of {each}") for each in ids)))]


@pytest.mark.parametrize("name", ANSWERS)
async def test_ids_of_calls_that_a_service_refuses_are_sent_as_others(name: str) -> None:
    """The same in a call and its result, and with every call; what a service takes it is sent as it is."""
    service = Picky(only_nine(MISTRAL), name)
    async with service.raw.running(), client(service.raw.base_url, name, max_retries=0) as model:
        for _ in range(2):
            assert await ask(model, *calls_with(model, *FOREIGN)) == "so"
        assert await ask(model, *calls_with(model, "abcdefghi")) == "so"
    refused, sent, again, resent, own = map(ids_of, service.asked)
    assert refused == again == [*FOREIGN] * 2
    assert sent == resent
    assert sent[:2] == sent[2:]
    assert len(set(sent)) == 2
    assert own == ["abcdefghi"] * 2


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (400, "Invalid 'messages[1].tool_calls[0].id': string too long. Expected … maximum length 40"),
        (400, "Invalid 'messages[2].tool_call_id': string too long. Expected … maximum length 40"),
        (400, "Invalid 'input[1].call_id': string too long. Expected … maximum length 64"),
        (400, "`input[5].call_id` The length of the value must be `<= 64`."),
        (400, f"Tool call id was {'x' * 3000} but must be a-z, A-Z, 0-9, with a length of 9."),
        (500, "Tool call IDs should be alphanumeric strings with length 9!"),
        (400, "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
        (400, "'messages.2.member.content.1.member.toolUse.toolUseId' … must satisfy … pattern"),
    ],
)
async def test_complaints_about_ids_are_known_by_their_words(status: int, complaint: str) -> None:
    """As services and templates word them."""
    service = Picky(only_nine(complaint, status))
    async with service.raw.running(), client(service.raw.base_url, max_retries=0) as model:
        assert await ask(model, *calls_with(model, "call_1")) == "so"


async def test_a_call_without_its_result_is_no_complaint_about_ids() -> None:
    """Other ids would not help, and the error is what the service said of those that the reader knows."""
    service = Picky(lambda _: (400, "The following tool_call_ids did not have response messages: call_1"))
    async with service.raw.running(), client(service.raw.base_url, max_retries=0) as model:
        with pytest.raises(ModelFailed, match="call_1"):
            await ask(model, *calls_with(model, "call_1"))
    assert len(service.asked) == 1


async def test_ids_stay_where_the_service_keeps_the_conversation() -> None:
    """It knows the calls by these, and by no others."""
    service = Picky(only_nine(MISTRAL), "openai-responses")
    async with service.raw.running(), client(service.raw.base_url, "openai-responses") as model:
        asked = ModelCall(prompt=[model.encode(result("call_1", "found"))], remote_id="resp_0")
        with pytest.raises(ModelFailed, match="Tool call id was call_1"):
            await anext(model.stream(asked))
    assert len(service.asked) == 1
