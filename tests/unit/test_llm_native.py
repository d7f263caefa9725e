"""What a service sends with tool calls and wants back with them: read, kept, and sent back to it alone."""

from typing import Any

import orjson
import pytest
from llm_setup import call, chunk, client, message

from tealagents.domain.events import ModelDone
from tealagents.domain.models import Message
from tealagents.domain.ports import ModelCall
from tealagents.llm.adjustments import NO_ADJUSTMENTS
from tealagents.llm.failures import Complaint
from tealagents.llm.native import ChatReasoning
from tealagents.llm.responses_reading import ResponsesReading

URL = "http://127.0.0.1:9/v1"
SIGNED = {"google": {"thought_signature": "c2lnbmVk"}}


def client_of(name: str = "openai-chat", **options: Any) -> Any:
    given = {"store": False, "model": "gpt-5"} if name == "openai-responses" else {"model": "deepseek-chat"}
    return client(URL, name, **{**given, **options})


def chat(*said: Any, model: Any = None) -> ModelDone:
    """A chat completion: one document is whole, several are a stream."""
    reading = (model or client_of())._reading()
    for each in said:
        list(reading.take(orjson.dumps(each)))
    done: ModelDone = reading.done()
    return done


def asked(n: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": n, "id": f"call_{n}", "function": {"name": "A-b", "arguments": "{}"}, **more}


def whole(**said: Any) -> dict[str, Any]:
    said = {"tool_calls": [asked()], **said}
    return {"choices": [{"message": said, "finish_reason": "tool_calls"}]}


END = chunk(finish_reason="tool_calls")


def kept(done: ModelDone, text: str = "") -> Message:
    """The stored message of an answer."""
    return message("assistant", *([text] if text else []), tool_calls=done.tool_calls, native=done.native)


def sent(model: Any, said: Message) -> Any:
    """What is sent of a message."""
    return orjson.loads(model.encode(said))


# --- chat completions ---------------------------------------------------------------------------------


def test_thoughts_go_back_with_the_calls_they_led_to() -> None:
    """DeepSeek refuses a call whose thoughts are missing, also those that were empty."""
    streamed = (chunk(reasoning_content="I need "), chunk(reasoning_content="a tool."))
    ways = (
        chat(*streamed, chunk(content="So", reasoning_content=None), chunk(tool_calls=[asked()]), END),
        chat(whole(reasoning_content="I need a tool.")),
    )
    for done in ways:
        assert sent(client_of(), kept(done, "So"))["reasoning_content"] == "I need a tool."
    assert sent(client_of(), kept(chat(whole(reasoning_content=""))))["reasoning_content"] == ""


def test_a_calls_signature_goes_back_with_that_call() -> None:
    """Gemini signs the first of several calls, and refuses it without."""
    first, second = asked(extra_content=SIGNED), asked(1)
    rest = {"index": 0, "function": {"arguments": ""}}
    ways = (
        chat(chunk(tool_calls=[first]), chunk(tool_calls=[rest, second]), END),
        chat(whole(tool_calls=[first, second])),
    )
    for done in ways:
        calls = sent(client_of(), kept(done))["tool_calls"]
        assert [each.get("extra_content") for each in calls] == [SIGNED, None]


def test_details_of_reasoning_go_back_as_they_came() -> None:
    """OpenRouter's: those of one text are joined, sealed ones stay by themselves."""
    sealed = {"type": "reasoning.encrypted", "data": "c2VhbGVk", "index": 1, "id": "call_0"}

    def text(part: str, index: int = 0, **more: Any) -> dict[str, Any]:
        return {"type": "reasoning.text", "text": part, "index": index, **more}

    pieces = [
        [text("I need ", signature=None)],
        [text("a tool.", signature="s")],
        [sealed, sealed],
        [text("", 2)],
    ]
    streamed = chat(*(chunk(reasoning_details=each) for each in pieces), chunk(tool_calls=[asked()]), END)
    details = sent(client_of(), kept(streamed))["reasoning_details"]
    assert details == [text("I need a tool.", signature="s"), sealed, sealed, text("", 2)]
    alike = [text("one"), text("two")]
    assert sent(client_of(), kept(chat(whole(reasoning_details=alike))))["reasoning_details"] == alike


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"reasoning_content": None},
        {"reasoning_details": []},
        {"reasoning_details": "x", "reasoning": "x"},
    ],
)
def test_nothing_is_added_that_the_service_has_not_sent(said: dict[str, Any]) -> None:
    """Mistral and others refuse fields that they do not know."""
    done = chat(whole(**said))
    assert done.native == ""
    assert sent(client_of(), kept(done)).keys() == {"role", "content", "tool_calls"}


def test_an_answer_keeps_no_thoughts() -> None:
    """DeepSeek's older models refuse thoughts that are sent back with one."""
    assert chat(chunk(reasoning_content="hm", content="so"), chunk(finish_reason="stop")).native == ""
    assert (
        chat(chunk(reasoning_content="hm", tool_calls=[asked()]), chunk(finish_reason="length")).native == ""
    )


@pytest.mark.parametrize(
    "other",
    [
        client_of(model="mistral-large"),
        client_of("openai-responses", model="deepseek-chat"),
        client_of("openai-responses"),
        client("http://127.0.0.1:9/other/v1", "openai-chat", model="deepseek-chat"),
    ],
)
def test_no_other_model_or_client_is_sent_it(other: Any) -> None:
    """An agent that is given another model continues the task without."""
    said = kept(chat(whole(reasoning_content="SECRET", tool_calls=[asked(extra_content=SIGNED)])))
    assert "SECRET" not in str(sent(other, said))
    assert "c2lnbmVk" not in str(sent(other, said))


@pytest.mark.parametrize("native", ["", "{", "[]", "1", '{"calls": 1}', "é\ud800"])
def test_what_this_client_has_not_made_is_not_sent(native: str) -> None:
    """Whatever another client keeps there."""
    calls = chat(whole()).tool_calls
    for model in (client_of(), client_of("openai-responses")):
        without = sent(model, message("assistant", tool_calls=calls))
        assert sent(model, message("assistant", tool_calls=calls, native=native)) == without


def test_it_is_not_sent_where_a_call_is_left_out() -> None:
    """What belongs to which call cannot be known any more."""
    done = chat(whole(tool_calls=[asked(), asked(1, extra_content=SIGNED)]))
    left = message("assistant", tool_calls=done.tool_calls[:1], native=done.native)
    assert "extra_content" not in sent(client_of(), left)["tool_calls"][0]


def test_reasoning_beyond_all_bounds_is_dropped() -> None:
    """Not kept in memory either, while it comes."""
    reasoning = ChatReasoning()
    for _ in range(600):
        reasoning.take("x" * 1000, [{"type": "reasoning.text", "text": "x" * 1000}], streamed=True)
        assert len(str(vars(reasoning))) < 2_000_000
    assert reasoning.fields() == {}
    nested = b"[" * 400 + b"]" * 400
    reading = client_of()._reading()
    list(
        reading.take(orjson.dumps(whole(tool_calls=[asked(extra_content="HERE")])).replace(b'"HERE"', nested))
    )
    assert reading.done().native == ""


# --- responses ----------------------------------------------------------------------------------------

THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"}
AFTER = {**THOUGHT, "id": "rs_2", "summary": [{"type": "summary_text", "text": "hm"}]}
SAID: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "So"}],
}


def function_call(n: int) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{n}",
        "call_id": f"call_{n}",
        "name": "A-b",
        "arguments": "{}",
    }


ITEMS: list[dict[str, Any]] = [
    {**THOUGHT, "status": "completed"},
    SAID,
    function_call(0),
    AFTER,
    function_call(1),
]


def responses(model: Any, output: list[dict[str, Any]], *, repeated: bool = True) -> ModelDone:
    events = [{"type": "response.output_item.done", "item": item} for item in output]
    response = {"id": "resp_1", "status": "completed", "output": output if repeated else []}
    reading = ResponsesReading(source=model._source)
    for event in (*events, {"type": "response.completed", "response": response}):
        list(reading.take(orjson.dumps(event)))
    done: ModelDone = reading.done()
    return done


@pytest.mark.parametrize("repeated", [True, False])
def test_sealed_reasoning_goes_back_in_its_place(repeated: bool) -> None:
    """Before the text and the calls that it led to, which the service refuses to be parted from it."""
    model = client_of("openai-responses")
    back = sent(model, kept(responses(model, ITEMS, repeated=repeated), "So"))
    assert [each.get("id") or each["type"] for each in back] == [
        *("rs_1", "message", "function_call", "rs_2", "function_call"),
    ]
    assert (back[0], back[3]) == (THOUGHT, AFTER)
    assert [each["call_id"] for each in back if each["type"] == "function_call"] == ["call_0", "call_1"]


@pytest.mark.parametrize("items", [[THOUGHT], []], ids=["with reasoning", "without"])
def test_what_a_model_says_before_its_calls_goes_back_with_its_phase(items: list[dict[str, Any]]) -> None:
    """Without it, a model takes it for its answer and ends early. None is added to what came without."""
    model = client_of("openai-responses")
    done = responses(model, [*items, {**SAID, "phase": "commentary"}, function_call(0)])
    text = {"type": "message", "role": "assistant", "content": "So", "phase": "commentary"}
    assert sent(model, kept(done, "So"))[len(items)] == text
    assert "phase" not in str(sent(model, kept(responses(model, [*items, SAID, function_call(0)]), "So")))


def test_reasoning_that_another_account_sealed_is_left_out_once_it_is_refused() -> None:
    """The calls stay: the conversation continues without the thoughts, for this message alone."""
    model = client_of("openai-responses")
    prompt = model.encode(kept(responses(model, ITEMS), "So"))
    refused = Complaint(status=400, code="invalid_encrypted_content", message="could not be verified")
    adjusted = NO_ADJUSTMENTS.learned(refused)
    asked = orjson.loads(model._body(ModelCall(prompt=[prompt]), adjusted))["input"]
    assert [each["type"] for each in asked] == ["message", "function_call", "function_call"]
    assert adjusted | NO_ADJUSTMENTS == NO_ADJUSTMENTS


def test_reasoning_that_is_not_sealed_is_not_sent_back() -> None:
    """The service has not kept it, and would not find it by its id."""
    model = client_of("openai-responses")
    done = responses(model, [{"type": "reasoning", "id": "rs_1", "summary": []}, function_call(0)])
    assert done.native == ""
    assert responses(model, [THOUGHT, SAID]).native == ""


@pytest.mark.parametrize(
    ("options", "included"),
    [
        ({"model": "gpt-5.2"}, True),
        ({"model": "openai/o4-mini"}, True),
        ({"model": "my-deployment", "reasoning_effort": "low"}, True),
        ({"model": "my-deployment"}, False),
        ({"model": "gpt-4o"}, False),
        ({"model": "gpt-5-chat-latest"}, False),
        ({"model": "gpt-5.2", "store": True}, False),
    ],
)
def test_reasoning_is_asked_for_where_there_is_some_and_it_is_not_kept(
    options: dict[str, Any], included: bool
) -> None:
    """Models that do not reason refuse to be asked."""
    model = client_of("openai-responses", **options)
    body = orjson.loads(model._body(call(model)))
    assert body.get("include") == (["reasoning.encrypted_content"] if included else None)


def test_one_message_is_one_part_of_the_prompt() -> None:
    """However many items it is sent as: the trace counts parts, and reconstructs them by messages."""
    model = client_of("openai-responses")
    said = kept(responses(model, ITEMS), "So")
    body = orjson.loads(model._body(call(model, message("user", "hi"), said)))
    assert [each.get("type") for each in body["input"]] == [
        *("message", "reasoning", "message", "function_call", "reasoning", "function_call"),
    ]
