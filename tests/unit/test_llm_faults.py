"""A model service in trouble: the right error, no more calls than may help, and nothing that hangs.

Each fault is played by the offline model over real HTTP, and the calls it receives are counted.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from llm_setup import (
    KEY,
    RawConnection,
    RawService,
    call,
    chunk,
    client,
    done,
    events,
    one_by_one,
    sse,
    text_of,
)

from tealagents.domain.errors import ModelFailed, ModelTimeout, RunFailure
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.ports import Model
from tealagents.llm.offline import OfflineModel
from tealagents.testing.clock import advance, overdue
from tealagents.testing.waits import eventually

CLIENTS = ["openai-chat", "openai-responses"]


@pytest.fixture
async def service() -> AsyncIterator[OfflineModel]:
    async with OfflineModel() as running:
        yield running


@pytest.fixture(params=CLIENTS)
async def model(request: pytest.FixtureRequest, service: OfflineModel) -> AsyncIterator[Model]:
    async with client(service.base_url, request.param) as opened:
        yield opened


def always(**reply: Any) -> dict[str, Any]:
    return {"otherwise": reply}


def at_first(times: int, **reply: Any) -> dict[str, Any]:
    """So often this reply, then an answer."""
    return {"rules": [{"reply": reply, "times": times}], "otherwise": {"text": "at last"}}


async def failure(model: Model, kind: type[RunFailure] = ModelFailed, *, stream: bool = True) -> RunFailure:
    with pytest.raises(kind) as failed:
        await events(model, stream=stream)
    # a chained error would bring the service's own words, unmasked, into a traceback
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__ or failed.value.__context__ is None
    return failed.value


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
async def test_a_refusal_that_lasts_is_not_repeated(
    model: Model, service: OfflineModel, status: int, stream: bool
) -> None:
    """What no retry can change is called once, and the error quotes status, code and message."""
    service.script(always(error={"status": status, "code": "the_code", "message": "the reason"}))
    failed = await failure(model, stream=stream)
    assert f"HTTP {status} (the_code): the reason" in failed.detail
    assert "req_" in failed.detail
    assert len(service.requests) == 1


async def test_a_refusal_within_a_list_is_understood(model: Model, service: OfflineModel) -> None:
    """Gemini's compatible endpoint sends its errors so."""
    body = '[{"error": {"code": 400, "message": "the reason", "status": "INVALID_ARGUMENT"}}]'
    service.script(always(error={"status": 400, "body": body, "content_type": "application/json"}))
    assert "HTTP 400 (400): the reason [" in (await failure(model)).detail


async def test_the_log_says_why_a_call_failed_and_quotes_nothing(
    model: Model, service: OfflineModel, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, with what the service's operators ask for: status, code and request id."""
    service.script(always(error={"status": 401, "code": "invalid_api_key", "message": f"no {KEY}, hello"}))
    failed = await failure(model)
    assert isinstance(failed, ModelFailed)
    assert failed.http_status == 401
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "HTTP status 401, code invalid_api_key, request id req_" in line
    assert "hello" not in line
    assert KEY not in line


async def test_the_log_names_no_code_that_may_be_a_quotation(
    service: OfflineModel, caplog: pytest.LogCaptureFixture
) -> None:
    """A code is one word, and no secret."""
    async with client(service.base_url) as model:
        for code in ("you said hello", KEY):
            service.script(always(error={"status": 400, "code": code, "message": "no"}))
            await failure(model)
    assert caplog.text.count("HTTP status 400, request id req_") == 2


async def test_retries_that_help_are_no_warning(
    service: OfflineModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that do not help end in one."""
    caplog.set_level(logging.INFO)
    async with client(service.base_url) as model:
        service.script(at_first(2, error={"status": 503, "code": "busy", "message": "no"}))
        await events(model)
        assert caplog.text.count("(HTTP status 503, code busy, request id req_") == 2
        assert "WARNING" not in caplog.text
        service.script(always(error={"status": 503, "message": "no"}))
        await failure(model)
        assert caplog.text.count("WARNING") == 1


async def test_a_refused_key_is_said_to_be_this_services_own(model: Model, service: OfflineModel) -> None:
    """It must not look as if the user's token was wrong; and the key is not shown in any form."""
    said = f"Incorrect API key provided: {KEY}. Also sk-abcd********wxyz, Bearer abcdefghijkl."
    service.script(always(error={"status": 401, "message": said}))
    failed = await failure(model)
    assert failed.code == "model_error"
    assert "this service's own credentials" in failed.detail
    assert "TA_API_KEY" in failed.detail
    for secret in (KEY, "sk-", "wxyz", "abcdefghijkl"):
        assert secret not in failed.detail


async def test_a_call_that_is_not_allowed_is_not_blamed_on_the_key_alone(
    model: Model, service: OfflineModel
) -> None:
    """OpenRouter answers so for a message that is flagged, Azure for a network that is not let in."""
    service.script(always(error={"status": 403, "message": f"Your input was flagged. {KEY}"}))
    failed = await failure(model)
    assert failed.code == "model_error"
    said, _, advice = failed.detail.partition(" — ")
    assert "Your input was flagged." in said
    for cause in ("flagged", "the key's rights", "network rules"):
        assert cause in advice
    assert "refuses this service's own credentials" not in failed.detail
    assert KEY not in failed.detail


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_a_refusal_that_may_pass_is_tried_twice_more(
    model: Model, service: OfflineModel, status: int, stream: bool
) -> None:
    """Three calls at most, however long it lasts."""
    service.script(always(error={"status": status, "message": "later"}))
    assert f"HTTP {status}" in (await failure(model, stream=stream)).detail
    assert len(service.requests) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_that_passes_is_not_noticed(
    model: Model, service: OfflineModel, stream: bool
) -> None:
    """After two failures the third call's answer is the answer."""
    service.script(at_first(2, error={"status": 503}))
    assert text_of(await events(model, stream=stream)) == "at last"
    assert len(service.requests) == 3


async def test_a_spent_quota_is_not_asked_again(model: Model, service: OfflineModel) -> None:
    """429 for want of money lasts."""
    service.script(always(error={"status": 429, "code": "insufficient_quota", "message": "pay"}))
    assert "insufficient_quota" in (await failure(model)).detail
    assert len(service.requests) == 1


async def test_a_conversation_that_is_busy_is_asked_again(service: OfflineModel) -> None:
    """A response still runs there: it is refused with 400, and for a moment only."""
    busy = {"status": 400, "code": "conversation_locked", "headers": {"Retry-After": "0"}}
    service.script(at_first(1, error=busy))
    async with client(service.base_url, "openai-responses") as model:
        assert text_of(await events(model)) == "at last"


async def test_the_service_is_waited_for_as_long_as_it_asks(service: OfflineModel) -> None:
    """Retry-After decides the pause."""
    service.script(at_first(1, error={"status": 429, "headers": {"Retry-After": "0.2"}}))
    async with client(service.base_url) as model:
        assert text_of(await events(model)) == "at last"
    first, second = (request["at"] for request in service.requests)
    assert second - first >= 0.2


async def test_a_wait_beyond_the_deadline_is_not_begun(service: OfflineModel) -> None:
    """Asked to wait longer than there is time for, the call fails at once and says how long."""
    service.script(always(error={"status": 429, "headers": {"Retry-After": "120"}}))
    async with client(service.base_url) as model:
        failed = await failure(model)
    assert failed.retry_after == 120
    assert "it asks to wait 120 s" in failed.detail
    assert len(service.requests) == 1


@pytest.mark.parametrize(("status", "advice", "calls"), [(500, "false", 1), (409, "true", 3)])
async def test_the_services_own_advice_is_followed(
    model: Model, service: OfflineModel, status: int, advice: str, calls: int
) -> None:
    """`x-should-retry` wins over what the status says."""
    service.script(always(error={"status": status, "headers": {"x-should-retry": advice}}))
    await failure(model)
    assert len(service.requests) == calls


async def test_a_service_in_trouble_is_not_stormed(service: OfflineModel) -> None:
    """A hundred failing calls are a hundred and the budget's few more, not three hundred."""
    service.script(always(error={"status": 503}))
    async with client(service.base_url) as model:
        for _ in range(10):
            await asyncio.gather(*(failure(model) for _ in range(10)))
    assert 100 <= len(service.requests) <= 120


# --- not an answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_page_is_named_and_not_quoted(model: Model, service: OfflineModel, stream: bool) -> None:
    """HTML instead of JSON says what page it is and what to check."""
    page = "<!DOCTYPE html><html><head><title>Welcome to nginx &amp; more</title></head><body>x</body></html>"
    service.script(always(error={"status": 200, "body": page}))
    failed = await failure(model, stream=stream)
    assert "an HTML page titled 'Welcome to nginx & more'" in failed.detail
    assert "TA_BASE_URL" in failed.detail
    assert "<html" not in failed.detail
    assert len(service.requests) == 1


async def test_a_gateways_page_is_a_refusal(model: Model, service: OfflineModel) -> None:
    """HTML with an error status is retried as the status says, and named."""
    service.script(always(error={"status": 502, "body": "<html><title>Bad Gateway</title></html>"}))
    failed = await failure(model)
    assert "HTTP 502: an HTML page titled 'Bad Gateway'" in failed.detail
    assert len(service.requests) == 3


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"text"', "plain"])
async def test_nonsense_is_an_error_that_quotes_it(model: Model, service: OfflineModel, body: str) -> None:
    """200 with something that is no answer."""
    service.script(always(error={"status": 200, "body": body, "content_type": "application/json"}))
    await failure(model, stream=False)
    await failure(model, stream=True)


async def test_a_long_explanation_is_cut(model: Model, service: OfflineModel) -> None:
    """An error is a sentence, not a page; control characters and lines are gone."""
    service.script(always(error={"status": 400, "message": "x\n\x1b[31m" + "y" * 100_000}))
    failed = await failure(model)
    assert len(failed.detail) < 1000
    assert failed.detail.isprintable()


async def test_an_answer_in_one_to_a_stream_is_taken(service: OfflineModel) -> None:
    """A service that does not stream, though asked to, is understood."""
    body = {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}
    service.script(always(error={"status": 200, "body": body}))
    async with client(service.base_url) as model:
        assert text_of(await events(model, stream=True)) == "whole"


async def test_a_stream_to_a_whole_question_is_taken(service: OfflineModel) -> None:
    """A service that always streams is understood."""
    body = 'data: {"choices":[{"delta":{"content":"so"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    service.script(always(error={"status": 200, "body": body, "content_type": "text/event-stream"}))
    async with client(service.base_url) as model:
        assert text_of(await events(model, stream=False)) == "so"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_message_that_azure_filters_is_an_end(service: OfflineModel, stream: bool) -> None:
    """A 400 for content is reported as `content_filter`, as it is in an answer."""
    service.script(always(error={"status": 400, "code": "content_filter", "message": "filtered"}))
    async with client(service.base_url) as model:
        assert (await done(model, stream=stream)).finish_reason == "content_filter"
    service.script(always(text="so", finish_reason="content_filter"))
    async with client(service.base_url) as model:
        assert (await done(model, stream=stream)).finish_reason == "content_filter"


# --- streams that break ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "end"])
async def test_a_stream_that_ends_early_is_no_answer(model: Model, service: OfflineModel, kind: str) -> None:
    """Cut or ended without a finish: an error, after the pieces that came, and no second call."""
    service.script(always(text="one two three", fault={"kind": kind, "after_pieces": 2}))
    stream = one_by_one(model.stream(call(model)))
    assert [await anext(stream), await anext(stream)] == [TextDelta("one"), TextDelta(" two")]
    with pytest.raises(ModelFailed, match="was cut"):
        await anext(stream)
    assert len(service.requests) == 1


@pytest.mark.parametrize("kind", ["cut", "end"])
async def test_a_stream_that_breaks_before_its_first_piece_is_tried_again(
    model: Model, service: OfflineModel, kind: str
) -> None:
    """As long as no client has seen anything, another call can help."""
    service.script(at_first(1, text="one two", fault={"kind": kind, "after_pieces": 0}))
    assert text_of(await events(model)) == "at last"
    assert len(service.requests) == 2


async def test_a_whole_answer_that_breaks_is_tried_again(model: Model, service: OfflineModel) -> None:
    """Nothing was shown of it."""
    service.script(at_first(1, text="one two", fault="cut"))
    assert text_of(await events(model, stream=False)) == "at last"
    assert len(service.requests) == 2


async def test_an_error_in_a_stream_is_an_error(model: Model, service: OfflineModel) -> None:
    """A service that fails midway is quoted, and not called again."""
    fault = {"kind": "error", "after_pieces": 1, "message": f"broke with {KEY}", "code": "server_error"}
    service.script(always(text="one two", fault=fault))
    failed = await failure(model)
    assert "failed while answering (server_error): broke with ***" in failed.detail
    assert len(service.requests) == 1


@pytest.mark.parametrize("code", ["server_error", "server_is_overloaded", "slow_down"])
async def test_an_error_before_the_first_piece_of_a_stream_may_pass(
    model: Model, service: OfflineModel, code: str
) -> None:
    """An overloaded service sometimes says 200 first."""
    service.script(at_first(1, text="one", fault={"kind": "error", "after_pieces": 0, "code": code}))
    assert text_of(await events(model)) == "at last"
    assert len(service.requests) == 2


@pytest.mark.parametrize(
    ("sent", "quoted"),
    [
        (b'error: {"code":400,"message":"the reason","type":"server_error"}\n\n', " (400): the reason"),
        (b'event: error\ndata: {"message":"the reason","code":400}\n\n', " (400): the reason"),
        (b'event: error\ndata: {"error":{"message":"the reason"}}\n\n', ": the reason"),
        (b'event: error\ndata: {"detail":"the reason"}\n\n', ": the reason"),
        (b"event: error\ndata: the reason with " + KEY.encode() + b"\n\n", ": the reason with ***"),
        (b'{\n "error": {"code": 400, "message": "the reason"}\n}\n', " (400): the reason"),
    ],
)
@pytest.mark.parametrize("name", CLIENTS)
async def test_an_error_in_a_stream_is_quoted_however_it_is_marked(
    name: str, sent: bytes, quoted: str
) -> None:
    """By a field, by the event's name, or not at all. What no retry can change is called once."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sent)
        await connection.chunk(b"")

    async with RawService(handler).running() as service, client(service.base_url, name) as model:
        assert (await failure(model)).detail == f"The model service failed while answering{quoted}"
        assert service.connections == 1


async def test_an_error_behind_a_part_of_the_answer_is_quoted() -> None:
    """The part has arrived, and stays."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sse(chunk(content="so")) + b'error: {"message": "the reason"}\n\n')

    async with RawService(handler).running() as service, client(service.base_url) as model:
        stream = one_by_one(model.stream(call(model)))
        assert await anext(stream) == TextDelta("so")
        with pytest.raises(ModelFailed, match="answering: the reason"):
            await anext(stream)


async def test_an_answer_is_whole_once_it_has_its_finish_reason() -> None:
    """A connection that breaks while the accounts are awaited takes nothing from the answer."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sse(chunk(content="so", finish_reason="stop")))

    async with RawService(handler).running() as service, client(service.base_url) as model:
        said = await events(model)
    assert text_of(said) == "so"
    assert isinstance(said[-1], ModelDone)


# --- answers without end --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("part", ["text", "arguments", "id", "name"])
async def test_text_and_calls_of_an_answer_are_bounded_together(
    model: Model, service: OfflineModel, stream: bool, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model says that much, and all of it would be kept, read and sent again."""
    asked = {"id": "call_1", "name": "Shell-delete", "arguments": {"path": "/x"}}
    answer = {"text": "a" * 400, "tool_calls": [asked]}
    monkeypatch.setattr("tealagents.llm.service.MAX_TEXT", 500)
    service.script(always(**answer))
    assert (await done(model, stream=stream)).tool_calls
    if part == "text":
        answer["text"] = "a" * 480
    else:
        asked[part] = {"path": "x" * 100} if part == "arguments" else "x" * 100
    service.script(always(**answer))
    failed = await failure(model, stream=stream)
    assert "longer than 500 characters" in failed.detail


async def test_arguments_without_end_are_given_up_while_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is not read to its end."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        called = {"index": 0, "id": "a", "function": {"name": "A-b", "arguments": "[],"}}
        while True:
            await connection.chunk(sse(chunk(tool_calls=[called])))
            called = {"index": 0, "function": {"arguments": "[]," * 10}}

    monkeypatch.setattr("tealagents.llm.service.MAX_TEXT", 500)
    async with RawService(handler).running() as service, client(service.base_url) as model:
        assert "longer than 500 characters" in (await failure(model)).detail


# --- no connection --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_service_that_is_not_there_says_where_it_was_sought(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No server listens: the error names the URL, and the log says so."""
    url = "http://127.0.0.1:1/v1"
    async with client(url) as model:
        failed = await failure(model, stream=stream)
    assert "it cannot be reached (ClientConnectorError)" in caplog.text
    assert url in failed.detail
    assert "cannot be reached" in failed.detail


async def test_a_connection_that_is_dropped_is_tried_twice_more() -> None:
    """Accepted and closed without a word: three calls."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()

    async with RawService(handler).running() as service, client(service.base_url) as model:
        assert "cannot be reached" in (await failure(model)).detail
        assert service.connections == 3


async def test_what_is_not_http_is_an_error() -> None:
    """Another server on that port."""

    async def handler(connection: RawConnection) -> None:
        await connection.send(b"SSH-2.0-OpenSSH_9.6\r\n")
        await connection.until_client_leaves()

    async with RawService(handler).running() as service, client(service.base_url) as model:
        await failure(model)


async def test_a_redirect_is_not_followed() -> None:
    """The conversation and the key are not sent to wherever the service says."""
    elsewhere: list[bytes] = []

    async def other(connection: RawConnection) -> None:
        elsewhere.append(await connection.request())

    async with RawService(other).running() as moved:

        async def handler(connection: RawConnection) -> None:
            await connection.request()
            where = f"location: {moved.base_url}/chat\r\n".encode()
            await connection.send(b"HTTP/1.1 307 Moved\r\ncontent-length: 0\r\n" + where + b"\r\n")

        async with RawService(handler).running() as service, client(service.base_url) as model:
            failed = await failure(model)
    assert f"redirects to {moved.base_url}" in failed.detail
    assert elsewhere == []


# --- deadlines ------------------------------------------------------------------------------------------

#: in the order in which they pass when all are set forward together
HASTE: dict[str, Any] = {
    "model_timeout_seconds": 300,
    "first_piece_timeout_seconds": 60,
    "piece_timeout_seconds": 300,
}


async def too_late(service: OfflineModel, model: Model, pieces: int = 0, **how: Any) -> RunFailure:
    """How a call ends whose deadline passes once the service was asked, and so many pieces have come."""
    arrived: list[ModelEvent] = []

    async def asked() -> None:
        async for event in one_by_one(model.stream(call(model, **how))):
            arrived.append(event)

    with pytest.raises(ModelTimeout) as failed:
        await overdue(asked(), 61, lambda: bool(service.requests) and len(arrived) == pieces)
    return failed.value


@pytest.mark.parametrize("stream", [True, False])
async def test_silence_ends_at_the_first_deadline(service: OfflineModel, stream: bool) -> None:
    """No headers: the wait for the first piece covers them, and the call is not repeated."""
    service.script(always(text="one", fault="silence"))
    async with client(service.base_url, **HASTE) as model:
        failed = await too_late(service, model, stream=stream)
    assert "first_piece_timeout_seconds" in failed.detail
    assert ("did not begin to answer" in failed.detail) is stream
    assert ("did not answer within 60 s" in failed.detail) is not stream
    assert ("raise the limit, or stream" in failed.detail) is not stream
    assert len(service.requests) == 1


async def test_a_missed_deadline_is_one_warning(
    service: OfflineModel, caplog: pytest.LogCaptureFixture
) -> None:
    """As any call that failed; it names the deadline, and quotes nothing."""
    service.script(always(text="one two", fault={"kind": "silence", "after_pieces": 1}))
    async with client(service.base_url, piece_timeout_seconds=61) as model:
        await too_late(service, model, pieces=1)
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("A model call failed: ")
    assert "61 s (piece_timeout_seconds)" in line
    assert "hello" not in line
    assert "one" not in line


async def test_headers_alone_are_no_piece(service: OfflineModel) -> None:
    """A service that begins a stream and says nothing in it is silent."""
    service.script(always(text="one", fault={"kind": "silence", "after_pieces": 0}))
    async with client(service.base_url, **HASTE) as model:
        assert "first_piece" in (await too_late(service, model)).detail


async def test_silence_in_the_middle_ends_at_the_deadline_between_pieces(service: OfflineModel) -> None:
    """After a piece, the wait is for the next."""
    service.script(always(text="one two", fault={"kind": "silence", "after_pieces": 1}))
    async with client(service.base_url, piece_timeout_seconds=61) as model:
        failed = await too_late(service, model, pieces=1)
    assert "piece_timeout_seconds" in failed.detail
    assert "in the middle" in failed.detail
    assert len(service.requests) == 1


async def test_dribbling_is_silence(service: OfflineModel) -> None:
    """Bytes that complete no event do not keep a call alive."""
    service.script(always(text="one", dribble={"bytes": 1, "delay_ms": 1000}))
    async with client(service.base_url, **HASTE) as model:
        assert "first_piece" in (await too_late(service, model)).detail


async def test_comments_are_silence() -> None:
    """Neither does what is sent only to keep a connection open."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sse(chunk(content="so")))
        while True:
            await connection.chunk(b": still here\n\n")
            await asyncio.sleep(0.02)

    haste: dict[str, Any] = {"piece_timeout_seconds": 0.15}
    async with RawService(handler).running() as service, client(service.base_url, **haste) as model:
        assert "piece_timeout_seconds" in (await failure(model, ModelTimeout)).detail


async def test_a_dribbled_whole_answer_ends_at_its_deadline(service: OfflineModel) -> None:
    """Asked for whole, all of the answer must come before the first deadline."""
    service.script(always(text="one", dribble={"bytes": 1, "delay_ms": 1000}))
    async with client(service.base_url, **HASTE) as model:
        assert "first_piece" in (await too_late(service, model, stream=False)).detail


async def test_an_endless_answer_ends_at_the_deadline_of_the_whole_call(service: OfflineModel) -> None:
    """A stream that never ends is stopped, too."""
    service.script(always(text="on " * 1000, piece_delay_ms=10))
    async with client(service.base_url, model_timeout_seconds=0.3) as model:
        failed = await failure(model, ModelTimeout)
    assert "model_timeout_seconds" in failed.detail


async def test_a_slow_reader_does_not_make_the_service_late(service: OfflineModel) -> None:
    """What a consumer takes its time with is not the model's delay."""
    service.script(always(pieces=["one", " two", " three"], piece_delay_ms=20))
    async with client(service.base_url, piece_timeout_seconds=60, model_timeout_seconds=600) as model:
        pieces = []
        async for event in one_by_one(model.stream(call(model))):
            await eventually(lambda: service.requests[0]["outcome"] is not None)
            advance(asyncio.get_running_loop(), 61)
            pieces.append(event)
    assert text_of(pieces) == "one two three"


async def test_retries_end_with_the_deadline(service: OfflineModel) -> None:
    """No pause is begun that the deadline does not leave time for."""
    service.script(always(error={"status": 503}))
    haste: dict[str, Any] = {"first_piece_timeout_seconds": 60, "retry_delay_seconds": 300.0}
    async with client(service.base_url, **haste) as model:
        await failure(model)
    assert len(service.requests) == 1
