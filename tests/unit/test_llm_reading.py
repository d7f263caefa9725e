"""What the clients make of an answer, without a wire."""

import json
import random
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import orjson
import pytest
from executed_lines import lines_of
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_setup import KEY, chunk, sse

from tealagents.domain.errors import ModelFailed
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import TokenUsage, ToolCall
from tealagents.llm import chat_reading
from tealagents.llm.chat_reading import ChatReading
from tealagents.llm.encoding import MAX_EXTREMES, is_object
from tealagents.llm.failures import MAX_SEARCHED, AttemptFailed, complaint_of_body, quoted, refused
from tealagents.llm.frames import EventFrames
from tealagents.llm.responses_reading import ResponsesReading
from tealagents.llm.service import Reading

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def read(reading: Reading, *said: Any) -> list[ModelEvent]:
    found = [event for each in said for event in reading.take(orjson.dumps(each))]
    return [*found, reading.done()]


def chat(*said: Any) -> list[ModelEvent]:
    return read(ChatReading([KEY]), *said)


def responses(*said: Any) -> list[ModelEvent]:
    return read(ResponsesReading([KEY]), *said)


def ending(said: list[ModelEvent]) -> ModelDone:
    assert isinstance(said[-1], ModelDone)
    return said[-1]


def fragment(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    return chunk(
        tool_calls=[{"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}]
    )


# --- any chunking -------------------------------------------------------------------------------------

CHAT_CHUNKS: list[dict[str, Any]] = [
    {"choices": [], "prompt_filter_results": []},
    chunk(role="assistant", content=""),
    chunk(content="Gr\u00fc\u00df"),
    chunk(content="e \U0001f30d"),
    fragment(0, "call_1", "A-b", '{"x'),
    fragment(1, "call_2", "A-c", "{}"),
    fragment(0, None, None, '": 1}'),
    chunk(finish_reason="tool_calls"),
    {"id": "chatcmpl-1", "choices": [], "usage": USAGE},
]
CHAT_STREAM = b": warming up\n\n" + b"".join(map(sse, CHAT_CHUNKS)) + b"data: [DONE]\n\n"
CHAT_EVENTS = [
    TextDelta("Gr\u00fc\u00df"),
    TextDelta("e \U0001f30d"),
    ModelDone(
        finish_reason="tool_calls",
        tool_calls=(ToolCall("call_1", "A-b", '{"x": 1}'), ToolCall("call_2", "A-c", "{}")),
        usage=TokenUsage(9, 2, 11),
        model="gpt-4o",
        response_id="chatcmpl-1",
    ),
]


def through_the_wire(pieces: Iterable[bytes]) -> list[ModelEvent]:
    frames, reading = EventFrames(), ChatReading()
    found: list[ModelEvent] = []
    for piece in pieces:
        for data in frames.feed(piece):
            if data != b"[DONE]":
                found += reading.take(data)
    return [*found, reading.done()]


def test_an_answer_is_the_same_however_its_bytes_come() -> None:
    """3,000 ways to cut a stream, in the middle of characters and line ends too, give the same events."""
    chance = random.Random(1)
    streams = [CHAT_STREAM, CHAT_STREAM.replace(b"\n", b"\r\n"), CHAT_STREAM.replace(b"\n", b"\r")]
    for _ in range(1000):
        for stream in streams:
            places = chance.sample(range(len(stream)), chance.choice([1, 3, 10, 40, 300]))
            ends = sorted({*places, 0, len(stream)})
            pieces = (stream[start:end] for start, end in pairwise(ends))
            assert through_the_wire(pieces) == CHAT_EVENTS


# --- chat completions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
        ("tool_calls", "stop"),
        ("model_length", "length"),
        ("MAX_TOKENS", "length"),
        ("model_context_window_exceeded", "length"),
        ("SAFETY", "content_filter"),
        ("content_filter: PROHIBITED_CONTENT", "content_filter"),
        ("sensitive", "content_filter"),
        ("refusal", "refusal"),
        ("of a new kind", "stop"),
    ],
)
def test_ways_to_end_are_distinguished(finish: str, reason: str) -> None:
    """Length and content filter have several names and any case; what we do not know is a stop."""
    assert ending(chat(chunk(content="x", finish_reason=finish))).finish_reason == reason


def test_a_refusal_is_distinguished_from_an_answer() -> None:
    """Its text comes as `Refused`, and the call ends with `refusal`."""
    said = chat(chunk(refusal="I can"), chunk(refusal="not."), chunk(finish_reason="stop"))
    assert said[:-1] == [TextDelta("I can", refusal=True), TextDelta("not.", refusal=True)]
    assert ending(said).finish_reason == "refusal"


def test_an_answer_that_was_cut_short_calls_no_tool() -> None:
    """A call in an answer that ran out of tokens is not run, however well its arguments parse."""
    for finish, reason in (
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("model_length", "length"),
    ):
        done = ending(chat(fragment(0, "call_1", "A-b", "{}"), chunk(finish_reason=finish)))
        assert (done.finish_reason, done.tool_calls) == (reason, ())


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "TOOL_USE", "end_turn", "eos"])
def test_calls_end_an_answer_as_calls_whatever_the_service_says(finish: str) -> None:
    """Some services finish an answer with calls as `stop`, or under a name of their own."""
    done = ending(chat(fragment(0, "call_1", "A-b", "{}"), chunk(finish_reason=finish)))
    assert done.finish_reason == "tool_calls"
    assert done.tool_calls == (ToolCall("call_1", "A-b", "{}"),)


def test_calls_of_an_answer_with_an_unknown_end_are_not_run() -> None:
    """Whether they are whole cannot be known; an answer without them would be none."""
    with pytest.raises(AttemptFailed, match=re.escape("unknown finish reason (of a new kind)")):
        chat(fragment(0, "call_1", "A-b", "{}"), chunk(finish_reason="of a new kind"))


def test_calls_of_services_that_do_not_number_them_stay_distinct() -> None:
    """Without an index, or all with index 0, a name under another id is another call."""
    numbered_zero = [fragment(0, "a", "A-b", "{}"), fragment(0, "b", "A-c", "{}")]
    unnumbered = [
        fragment(None, "a", "A-b", "{"),
        fragment(None, None, None, "}"),
        fragment(None, "b", "A-c", "{}"),
    ]
    of_one_id = [fragment(0, "a", "A-b", '{"x":1}'), fragment(0, "a", "A-b", '{"x":2}')]
    done = ending(chat(*of_one_id, chunk(finish_reason="tool_calls")))
    assert [each.arguments for each in done.tool_calls] == ['{"x":1}', '{"x":2}']
    for said in (numbered_zero, unnumbered):
        done = ending(chat(*said, chunk(finish_reason="tool_calls")))
        assert done.tool_calls == (ToolCall("a", "A-b", "{}"), ToolCall("b", "A-c", "{}"))


@pytest.mark.parametrize(
    "calls",
    [
        [("A-b", '{"x":1}'), ("A-b", '{"x":2}')],
        [("A-b", ""), ("A-c", '{"x":2}')],
    ],
)
def test_whole_calls_that_are_all_numbered_zero_stay_distinct(calls: list[tuple[str, str]]) -> None:
    """Also without ids, streamed as well as whole."""
    made = [
        {"index": 0, "id": "", "function": {"name": name, "arguments": written}} for name, written in calls
    ]
    whole = {"choices": [{"message": {"tool_calls": made}, "finish_reason": "tool_calls"}]}
    streamed = [chunk(tool_calls=[each]) for each in made]
    for said in ([whole], [*streamed, chunk(finish_reason="tool_calls")]):
        done = ending(chat(*said))
        assert [(call.tool, call.arguments) for call in done.tool_calls] == calls


def test_a_name_that_is_repeated_begins_no_other_call() -> None:
    """With each fragment, or once more at the end, without an id too."""
    said = [
        fragment(0, None, "A-b", ""),
        fragment(0, None, "A-b", '{"x":'),
        fragment(0, None, "A-b", "1}"),
        fragment(0, None, "A-b", ""),
    ]
    done = ending(chat(*said, chunk(finish_reason="tool_calls")))
    assert [(call.tool, call.arguments) for call in done.tool_calls] == [("A-b", '{"x":1}')]


@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        (['{"x":"', "{}", "{}", '"}', "{}"], ['{"x":"{}{}"}', "{}"]),
        (['{"x":"\\', '"}', '{"', "}", "{}"], ['{"x":"\\"}{"}', "{}"]),
        (['{"x":', '{"y":1}', "}", '{"z":2}'], ['{"x":{"y":1}}', '{"z":2}']),
        (["1", "{}", "{}"], ["1{}{}"]),
        (["}", "{", "{}"], ["}{{}"]),
        ([" ", "{} ", " {}"], [" {} ", " {}"]),
    ],
)
def test_more_arguments_behind_a_whole_object_are_another_call(
    fragments: list[str], calls: list[str]
) -> None:
    """Where each fragment repeats the name and none has an id: an object within one begins none."""
    said = [fragment(0, None, "A-b", each) for each in fragments]
    done = ending(chat(*said, chunk(finish_reason="tool_calls")))
    assert [call.arguments for call in done.tool_calls] == calls


@pytest.mark.parametrize("begin", ['{"x":"', "1", "", "["])
def test_fragments_that_repeat_the_name_are_parsed_once_at_most(
    begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and whatever they look like."""
    parsed: list[int] = []

    def counted(text: str) -> bool:
        parsed.append(len(text))
        return is_object(text)

    monkeypatch.setattr(chat_reading, "is_object", counted)
    reading = ChatReading()
    for each in (begin, *["{}", "{"] * 500):
        reading.take(orjson.dumps(fragment(0, None, "A-b", each)))
    assert sum(parsed) <= len(begin) + 1500


@pytest.mark.parametrize("names", [{"number": 0}, {"call": "call_0"}])
def test_to_find_the_call_of_a_fragment_takes_as_long_among_many(names: dict[str, Any]) -> None:
    """By its number, and by its id."""
    lines = []
    for count in (10, 500):
        reading = ChatReading()
        for n in range(count):
            reading.take(orjson.dumps(fragment(n, f"call_{n}", "A-b", "")))
        more = orjson.dumps(fragment(names.get("number"), names.get("call"), None, "x"))
        with lines_of(chat_reading) as found:
            reading.take(more)
        lines.append(found.executed)
    assert lines[0] == lines[1]


def test_fragments_without_an_index_belong_to_the_call_with_their_id() -> None:
    """Also where the fragments of several calls are interleaved, or each repeats the name."""
    interleaved = [
        fragment(None, "a", "A-b", '{"x":'),
        fragment(None, "b", "A-c", '{"y":'),
        fragment(None, "a", None, "1}"),
        fragment(None, "b", None, "2}"),
    ]
    repeated = [
        fragment(None, "a", "A-b", '{"x":'),
        fragment(None, "a", "A-b", "1}"),
        fragment(None, "b", "A-c", '{"y":'),
        fragment(None, "b", "A-c", "2}"),
    ]
    for said in (interleaved, repeated):
        done = ending(chat(*said, chunk(finish_reason="tool_calls")))
        assert done.tool_calls == (ToolCall("a", "A-b", '{"x":1}'), ToolCall("b", "A-c", '{"y":2}'))


def test_calls_of_one_id_stay_distinct() -> None:
    """Each of a whole answer is a call of its own; of fragments without an index, one of another name is."""
    same = [
        {"id": "a", "function": {"name": "A-b", "arguments": arguments}}
        for arguments in ('{"x":1}', '{"x":2}')
    ]
    whole = {"choices": [{"message": {"tool_calls": same}, "finish_reason": "tool_calls"}]}
    done = ending(chat(whole))
    assert [call.arguments for call in done.tool_calls] == ['{"x":1}', '{"x":2}']
    said = [fragment(None, "a", "A-b", "{}"), fragment(None, "a", "A-c", "{}")]
    done = ending(chat(*said, chunk(finish_reason="tool_calls")))
    assert [call.tool for call in done.tool_calls] == ["A-b", "A-c"]


@pytest.mark.parametrize(
    "fragments",
    [
        [(0, ""), (0, '{"x":'), (0, "1}"), (1, '{"x":1}')],
        [(0, '{"x":1}'), (0, '{"x":1}')],
        [(0, ""), (1, '{"x":1}')],
        [(0, '{"x":1}'), (1, "")],
    ],
)
def test_a_call_that_a_gateway_repeats_under_its_own_id_is_one(fragments: list[tuple[int, str]]) -> None:
    """Whole, in fragments, or only by its name. What is sent back with the calls still fits them."""
    said = [fragment(index, "call_1", "A-b", arguments) for index, arguments in fragments]
    other = {"index": 7, "id": "call_2", "function": {"name": "A-b"}, "extra_content": {"google": "signed"}}
    done = ending(chat(*said, chunk(tool_calls=[other]), chunk(finish_reason="tool_calls")))
    assert done.tool_calls == (ToolCall("call_1", "A-b", '{"x":1}'), ToolCall("call_2", "A-b", ""))
    native = orjson.loads(done.native)
    assert (native["calls"], native["of_calls"]) == (2, [{}, {"extra_content": {"google": "signed"}}])


def test_a_call_without_an_id_gets_one_that_only_this_answer_has() -> None:
    """The same answer gives the same id, another answer another, two calls two."""
    said = [fragment(0, None, "A-b", "{}"), fragment(1, None, "A-b", "{}"), chunk(finish_reason="tool_calls")]
    first = [call.id for call in ending(chat(*said)).tool_calls]
    assert first == [call.id for call in ending(chat(*said)).tool_calls]
    other = [{**each, "id": "chatcmpl-2"} for each in said]
    second = [call.id for call in ending(chat(*other)).tool_calls]
    assert len({*first, *second}) == 4


def test_arguments_that_come_as_an_object_are_written_out() -> None:
    """A service that does not encode arguments is understood."""
    done = ending(chat(fragment(0, "a", "A-b", {"x": 1}), chunk(finish_reason="tool_calls")))
    assert orjson.loads(done.tool_calls[0].arguments) == {"x": 1}


def test_only_the_first_of_several_choices_counts() -> None:
    """What a service says besides is passed over."""
    other = chunk(content="other", finish_reason="length")
    other["choices"][0]["index"] = 1
    said = chat(chunk(content="one"), other, chunk(finish_reason="stop"))
    assert said[0] == TextDelta("one")
    assert len(said) == 2
    assert ending(said).finish_reason == "stop"


def test_a_service_that_counts_nothing_is_fine() -> None:
    """Without usage there are zeros; without a total, the sum."""
    assert ending(chat(chunk(finish_reason="stop"))).usage == TokenUsage()
    partly = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    assert ending(chat(chunk(finish_reason="stop"), partly)).usage == TokenUsage(3, 4, 7)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ("none", TokenUsage()),
        ([], TokenUsage()),
        ({"prompt_tokens": 1.0, "completion_tokens": 2.5, "total_tokens": "7"}, TokenUsage(1, 0, 7)),
        ({"prompt_tokens": -1, "completion_tokens": 2, "total_tokens": None}, TokenUsage(0, 2, 2)),
        ({"prompt_tokens": 2**60, "completion_tokens": 2, "total_tokens": True}, TokenUsage(0, 2, 2)),
    ],
)
def test_an_odd_usage_makes_no_answer_unusable(usage: Any, counted: TokenUsage) -> None:
    """What is no number of tokens counts as none, in both APIs."""
    assert ending(chat(chunk(finish_reason="stop"), {"choices": [], "usage": usage})).usage == counted
    if isinstance(usage, dict):
        prompt, completion, total = usage.values()
        usage = {"input_tokens": prompt, "output_tokens": completion, "total_tokens": total}
    assert ending(responses(end(usage=usage))).usage == counted


def test_thoughts_are_not_shown_but_begin_the_answer() -> None:
    """Reasoning, under its two names or as a part, yields no piece."""
    for delta in (
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
    ):
        reading = ChatReading()
        assert list(reading.take(orjson.dumps(chunk(**delta)))) == []
        assert reading.begun
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "so"},
    ]
    assert chat(chunk(content=parts), chunk(finish_reason="stop"))[:-1] == [TextDelta("so")]


def test_thoughts_alone_in_parts_begin_the_answer() -> None:
    """They count as pieces, as thoughts under a name of their own do."""
    reading = ChatReading()
    part = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    assert list(reading.take(orjson.dumps(chunk(content=[part])))) == []
    assert reading.begun


def test_a_whole_answer_gives_the_events_of_a_streamed_one() -> None:
    """One piece, the calls, and the end."""
    call = {"id": "call_1", "type": "function", "function": {"name": "A-b", "arguments": "{}"}}
    said = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    body = {
        "id": "chatcmpl-1",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}],
        "usage": USAGE,
    }
    reading = ChatReading()
    assert [*reading.whole(orjson.dumps(body)), reading.done()] == [
        TextDelta("Hm."),
        ModelDone(
            finish_reason="tool_calls",
            tool_calls=(ToolCall("call_1", "A-b", "{}"),),
            usage=TokenUsage(9, 2, 11),
            model="gpt-4o",
            response_id="chatcmpl-1",
        ),
    ]


def test_half_a_character_in_an_answer_is_no_fault() -> None:
    """Services that cut text in the middle of a pair are still read."""
    said = list(ChatReading().take(b'{"choices":[{"index":0,"delta":{"content":"\\ud83d x"}}]}'))
    assert said == [TextDelta("? x")]


HALVES = ("a \ud83d", "\ude00 b")


@pytest.mark.parametrize(
    ("reading", "events"),
    [
        (ChatReading, [chunk(content=half) for half in HALVES]),
        (ChatReading, [chunk(content=[{"type": "text", "text": half}]) for half in HALVES]),
        (ChatReading, [chunk(refusal=half) for half in HALVES]),
        (ResponsesReading, [{"type": "response.output_text.delta", "delta": half} for half in HALVES]),
        (ResponsesReading, [{"type": "response.refusal.delta", "delta": half} for half in HALVES]),
    ],
)
def test_halves_of_a_character_in_two_events_are_left_to_be_put_together(
    reading: Callable[[], Reading], events: list[Any]
) -> None:
    """Services that cut text by UTF-16 units lose no emoji."""
    here = reading()
    said = [delta.text for each in events for delta in here.take(json.dumps(each).encode())]
    assert said == [*HALVES]


def test_halves_of_a_character_in_arguments_and_thoughts_are_put_together() -> None:
    """These are read once they are whole."""
    reading = ChatReading()
    for each in (
        *(chunk(reasoning_content=half) for half in HALVES),
        *(chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": half}]) for half in HALVES),
        fragment(0, None, "A-b", '{"x": "\ud83d'),
        fragment(0, None, None, '\ude00"}'),
        chunk(finish_reason="tool_calls"),
    ):
        assert list(reading.take(json.dumps(each).encode())) == []
    done = reading.done()
    assert [call.arguments for call in done.tool_calls] == ['{"x": "\U0001f600"}']
    assert done.native.count("a \U0001f600 b") == 2


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (ChatReading, rb'{"error":{"message":"cut \ud83d","code":"server_error"}}'),
        (ChatReading, rb'{"object":"error","message":"cut \ud83d","code":"server_error"}'),
        (ResponsesReading, rb'{"type":"error","message":"cut \ud83d","code":"server_error"}'),
    ],
)
def test_half_a_character_in_an_error_midway_is_no_fault(reading: Callable[[], Reading], said: bytes) -> None:
    """Services cut the text that they quote; the error is the service's still, and can pass."""
    with pytest.raises(AttemptFailed, match=re.escape("(server_error): cut ?")) as failed:
        list(reading().take(said))
    assert failed.value.passing


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([chunk(content="so far")], "without a finish reason"),
        ([], "without a finish reason"),
        ([chunk(content="so far", finish_reason="error")], "gave it up (error)"),
        ([chunk(content="so far", finish_reason="abort")], "gave it up (abort)"),
        ([chunk(finish_reason="function_call_filter: MALFORMED_FUNCTION_CALL")], "MALFORMED_FUNCTION_CALL"),
        ([{"error": {"message": "it broke", "code": "server_error"}}], "(server_error): it broke"),
        ([{"error": "just text"}], "just text"),
        (
            [{"choices": [{"error": {"code": 502, "message": "gone"}, "finish_reason": "error"}]}],
            "(502): gone",
        ),
        ([{"object": "error", "message": "flat", "code": 503}], "(503): flat"),
        ([{"message": "bare", "code": "overloaded_error", "type": "x"}], "(overloaded_error): bare"),
        ([{"message": "bare", "type": "overloaded_error"}], "(overloaded_error): bare"),
        ([{"message": "bare", "code": 500}], "(500): bare"),
        ([{"message": "queued", "code": 200}], "without a finish reason"),
        ([{"message": "queued", "type": "status"}], "without a finish reason"),
        ([{"message": {"id": "x"}, "code": "x"}], "without a finish reason"),
        (["not an object"], "what is not a completion"),
        ([{"choices": "what"}], "what is not a completion"),
    ],
)
def test_an_answer_that_does_not_end_as_it_should_is_a_failure(said: list[Any], expected: str) -> None:
    """Cut, given up, failed midway, or not to be understood: each says which."""
    with pytest.raises(AttemptFailed) as failed:
        chat(*said)
    assert isinstance(failed.value.error, ModelFailed)
    assert expected in failed.value.error.detail


def refusal(status: int, said: Any) -> ModelFailed:
    """The error for a refusal with this status and body."""
    body = orjson.dumps(said)
    about = complaint_of_body(body, status=status, content_type="application/json", request_id="")
    error = refused(about, [KEY], url="http://model").error
    assert isinstance(error, ModelFailed)
    return error


LONGEST = "This model's maximum context length is 4096 tokens."


@pytest.mark.parametrize(
    ("status", "error", "too_long"),
    [
        (400, {"message": "no", "code": "context_length_exceeded"}, True),
        (400, {"message": "no", "code": 400, "type": "exceed_context_size_error"}, True),
        (400, {"message": LONGEST, "code": 400, "type": "BadRequestError"}, True),
        (413, {"message": "the request exceeds the available context size"}, True),
        (400, {"message": "litellm.ContextWindowExceededError: no", "code": "400"}, True),
        (400, LONGEST, True),
        (400, {"message": "bad context size", "code": 400}, False),
        (400, {"message": "maximum length of a name exceeded", "code": 400}, False),
        (429, {"message": f"slow down. {LONGEST}", "code": 429}, False),
        (500, {"message": LONGEST, "code": 500}, False),
    ],
)
def test_messages_that_are_too_long_are_known_as_such_at_every_service(
    status: int, error: Any, too_long: bool
) -> None:
    """OpenAI has a code for it, others a type, or only their words. A stream may say it as well."""
    failed = refusal(status, {"error": error})
    assert (failed.too_long, "send less" in failed.detail) == (too_long, too_long)
    for said in ({"error": error}, {"object": "error", **error}) if isinstance(error, dict) else ():
        with pytest.raises(AttemptFailed) as midway:
            chat(said)
        inherent = "code" in error  # a stream has no status
        assert isinstance(midway.value.error, ModelFailed)
        assert midway.value.error.too_long is (too_long and inherent)


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ({"raw": f"no such tool {KEY}", "provider_name": "Venice"}, "it failed (Venice: no such tool ***)"),
        ({"raw": "no such tool", "provider_name": None}, "it failed (no such tool)"),
        ({"raw": {"error": "no"}}, "it failed"),
        ("no", "it failed"),
    ],
)
def test_the_error_of_the_provider_behind_a_router_is_quoted(metadata: Any, shown: str) -> None:
    """OpenRouter's own message only says that the provider returned one. Secrets are masked in it, too."""
    said = {"error": {"message": "it failed", "code": 400, "metadata": metadata}}
    assert refusal(400, said).detail.endswith(f"(400): {shown}")
    with pytest.raises(AttemptFailed) as midway:
        chat(said)
    assert midway.value.error.detail.endswith(f"(400): {shown}")


def test_no_part_of_a_secret_is_quoted_where_a_long_message_is_cut() -> None:
    """Blanks count as they came, and are shown as one."""
    secret = "canary-of-the-model-service"
    for blanks in range(MAX_SEARCHED - len(secret) - 1, MAX_SEARCHED + 1):
        assert "canary" not in quoted(f"no {' ' * (blanks - 3)}{secret}", [secret])


def test_a_secret_in_an_unreadable_answer_is_masked() -> None:
    """What a service echoes is not passed on."""
    with pytest.raises(AttemptFailed) as failed:
        list(ChatReading([KEY]).take(f"<{KEY}>".encode()))
    assert KEY not in failed.value.error.detail


# --- responses ----------------------------------------------------------------------------------------


def response(status: str = "completed", **parts: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "gpt-4o", "status": status, "output": [], **parts}


def end(status: str = "completed", **parts: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": response(status, **parts)}


def delta(kind: str, text: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "delta": text}


FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "A-b", "arguments": "{}"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
TOKENS = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}


def test_a_response_is_read_from_its_events() -> None:
    """Text by its deltas, calls by their items, the rest from the response itself."""
    said = responses(
        {"type": "response.created", "response": response("in_progress")},
        delta("output_text", "s"),
        delta("output_text", "o"),
        {"type": "response.output_item.done", "item": FUNCTION_CALL},
        end(output=[SAID, FUNCTION_CALL], usage=TOKENS),
    )
    assert said == [
        TextDelta("s"),
        TextDelta("o"),
        ModelDone(
            finish_reason="tool_calls",
            tool_calls=(ToolCall("call_1", "A-b", "{}"),),
            usage=TokenUsage(9, 2, 11),
            model="gpt-4o",
            response_id="resp_1",
        ),
    ]


@pytest.mark.parametrize("kind", [{}, {"type": "error"}])
def test_an_error_among_the_events_of_a_response_is_quoted(kind: dict[str, Any]) -> None:
    """Some gateways send it without a type."""
    with pytest.raises(AttemptFailed) as failed:
        responses({**kind, "error": {"code": "content_policy_violation", "message": "Not this."}})
    assert failed.value.error.detail.endswith("(content_policy_violation): Not this.")
    assert not failed.value.passing


def test_a_hidden_thought_does_not_begin_a_response() -> None:
    """The wait is still for the first piece, which may be a thought that is streamed."""
    for kind, begins in (("reasoning", False), ("message", True), ("function_call", True)):
        for event in ("added", "done"):
            reading = ResponsesReading()
            item = {"type": kind, "id": "item_1"}
            said = {"type": f"response.output_item.{event}", "item": item}
            assert list(reading.take(orjson.dumps(said))) == []
            assert reading.begun is begins
    reading = ResponsesReading()
    assert list(reading.take(orjson.dumps(delta("reasoning_summary_text", "hm")))) == []
    assert reading.begun


def test_a_text_that_comes_only_as_a_done_item_is_said() -> None:
    """At services that stream no deltas, and repeat nothing at the end; but never twice."""
    item = {"type": "response.output_item.done", "item": SAID}
    for said in ([item, end()], [item, end(output=[SAID])], [delta("output_text", "so"), item, end()]):
        assert responses(*said)[:-1] == [TextDelta("so")]


def test_an_empty_delta_says_nothing() -> None:
    """It is no message before a call, no refusal, and does not stand for the text of the finished item."""
    for kind in ("output_text", "refusal"):
        item = {"type": "response.output_item.done", "item": FUNCTION_CALL}
        assert responses(delta(kind, ""), item, end())[:-1] == []
        assert responses(delta(kind, ""), end(output=[SAID]))[:-1] == [TextDelta("so")]
        assert ending(responses(delta(kind, ""), item, end())).finish_reason == "tool_calls"


def test_a_response_with_nulls_and_objects_is_understood() -> None:
    """As chat completions are: fields that may be left out are null at some services."""
    call = {**FUNCTION_CALL, "id": None, "arguments": {"x": 1}}
    said = [
        {
            "type": "response.created",
            "response": {**response("in_progress"), "output": None, "created_at": None},
        },
        {"type": "response.output_item.done", "item": call},
        {"type": "response.completed", "response": {**response(), "status": None, "output": None}},
    ]
    done = ending(responses(*said))
    assert done.tool_calls == (ToolCall("call_1", "A-b", '{"x":1}'),)


@pytest.mark.parametrize("repeated", [True, False])
def test_calls_that_share_an_id_stay_distinct(repeated: bool) -> None:
    """A service that names two calls alike, or not at all, has made two; its end may repeat them."""
    for ids in ({"call_id": "call_1"}, {}):
        items = [{"type": "function_call", "name": name, "arguments": "{}", **ids} for name in ("A-b", "A-c")]
        said = [{"type": "response.output_item.done", "item": item} for item in items]
        done = ending(responses(*said, end(output=items if repeated else [])))
        assert [call.tool for call in done.tool_calls] == ["A-b", "A-c"]


@pytest.mark.parametrize("output", [[], [FUNCTION_CALL, FUNCTION_CALL]])
def test_an_item_that_a_gateway_repeats_under_its_own_id_is_one(output: list[Any]) -> None:
    """Its calls run once, and what is sent back with them is in there once."""
    thought = {"type": "reasoning", "id": "rs_1", "encrypted_content": "sealed"}
    said = [{"type": "response.output_item.done", "item": item} for item in (thought, FUNCTION_CALL)]
    done = ending(responses(*said, *said, end(output=output and [thought, thought, *output])))
    assert done.tool_calls == (ToolCall("call_1", "A-b", "{}"),)
    native = orjson.loads(done.native)
    assert native["calls"] == 1
    assert [each if isinstance(each, str) else each["id"] for each in native["order"]] == ["rs_1", "call"]


def test_a_whole_response_gives_the_same() -> None:
    """Asked for whole, a response has its text in its output."""
    reading = ResponsesReading()
    whole = reading.whole(orjson.dumps(response(output=[SAID], usage=TOKENS)))
    said: list[ModelEvent] = [*whole, reading.done()]
    assert said[0] == TextDelta("so")
    assert ending(said).finish_reason == "stop"
    assert ending(said).usage == TokenUsage(9, 2, 11)


@pytest.mark.parametrize(
    ("why", "reason"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")],
)
def test_an_incomplete_response_says_why(why: str | None, reason: str) -> None:
    """Out of tokens, or filtered; and calls no tool."""
    done = ending(responses(end("incomplete", incomplete_details={"reason": why}, output=[FUNCTION_CALL])))
    assert (done.finish_reason, done.tool_calls) == (reason, ())


def test_a_refusal_in_a_response_is_distinguished() -> None:
    """By its deltas, or in a whole response by its part."""
    streamed = responses(delta("refusal", "No."), end())
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    for said in (streamed, responses(end(output=[refusal]))):
        assert said[0] == TextDelta("No.", refusal=True)
        assert ending(said).finish_reason == "refusal"


def test_an_approval_that_the_service_waits_for_is_no_empty_answer() -> None:
    """Its own tools are none of ours, and no one can be asked for it."""
    asking = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "Shell-delete", "arguments": "{}"}
    expected = "waits for an approval to call Shell-delete"
    with pytest.raises(AttemptFailed, match=expected):
        responses(end(output=[asking]))
    with pytest.raises(AttemptFailed, match=expected):
        list(ResponsesReading([KEY]).whole(orjson.dumps(response(output=[asking]))))


def test_what_continues_a_conversation_is_the_conversation() -> None:
    """A response continues a response; a conversation stays what it is."""

    def continued(remote_id: str | None) -> str | None:
        reading = ResponsesReading((), remote_id)
        return ending(read(reading, end())).response_id

    assert continued(None) == "resp_1"
    assert continued("resp_0") == "resp_1"
    assert continued("conv_7") == "conv_7"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([delta("output_text", "so far")], "before the service said"),
        ([end("failed", error={"code": "server_error", "message": "it broke"})], "(server_error): it broke"),
        ([{"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}], "slow down"),
        ([end("cancelled")], "cancelled"),
        (["nonsense"], "what is not a response"),
    ],
)
def test_a_response_that_does_not_end_as_it_should_is_a_failure(said: list[Any], expected: str) -> None:
    """Each says what happened."""
    with pytest.raises(AttemptFailed) as failed:
        responses(*said)
    assert expected in failed.value.error.detail


SLOW = b"[" + b"1e308," * (MAX_EXTREMES + 1) + b"1]"


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (ChatReading, b'{"choices":[{"delta":{"reasoning_details":HERE}}]}'),
        (ChatReading, b'{"usage":HERE}'),
        (ResponsesReading, b'{"type":"response.completed","response":{"usage":HERE}}'),
        (ResponsesReading, b'{"type":"response.output_item.done","item":{"arguments":HERE}}'),
    ],
)
def test_numbers_that_take_long_to_read_are_not_read(reading: Callable[[], Reading], said: bytes) -> None:
    """All other requests would wait meanwhile; the failure says why."""
    for read in (reading().take, reading().whole):
        with pytest.raises(AttemptFailed, match=r"\(it holds too many numbers with three-digit exponents"):
            list(read(said.replace(b"HERE", SLOW)))


def test_numbers_of_a_refusal_that_take_long_to_read_are_not_read() -> None:
    """What it says is quoted all the same."""
    body = b'{"error":' + SLOW.upper() + b"}"  # read, they would be written otherwise
    said = complaint_of_body(body, status=400, content_type="application/json", request_id="")
    assert said.message == body.decode()


KEYS = "choices delta index content tool_calls function error usage type response item output status id text"
WORDS = [
    "response.output_text.delta",
    "response.refusal.delta",
    "response.output_item.done",
    "response.completed",
    "completed",
    "function_call",
    "message",
    "refusal",
    "stop",
]


@pytest.mark.parametrize("reader", [ChatReading, ResponsesReading])
@settings(max_examples=300)
@given(
    said=st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.sampled_from(WORDS),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from([*KEYS.split(), "finish_reason"]) | st.text(max_size=3),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
        max_size=4,
    )
)
def test_nonsense_is_a_failure_and_no_crash(reader: Callable[[], Reading], said: list[Any]) -> None:
    """Whatever JSON a service sends, a call ends with an answer or a failure that is one of ours."""
    reading = reader()
    with suppress(AttemptFailed):
        assert isinstance(read(reading, *said)[-1], ModelDone)
