"""The offline model through the real client: chat completions, received requests, its start and end."""

import asyncio
import base64
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AsyncAzureOpenAI,
    AsyncOpenAI,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)

from tealagents.llm.offline import OfflineModel, Script, ScriptError, create_app
from tealagents.testing.clock import overdue
from tealagents.testing.waits import eventually

Messages = list[dict[str, Any]]

DELETE = {
    "type": "function",
    "function": {"name": "Shell-delete", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def model() -> AsyncIterator[OfflineModel]:
    async with OfflineModel() as running:
        yield running


@pytest.fixture
async def client(model: OfflineModel) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=model.base_url, api_key="sk-secret", max_retries=0) as opened:
        yield opened


def user(*texts: str) -> Messages:
    return [{"role": "user", "content": text} for text in texts]


async def ask(client: AsyncOpenAI, messages: Any, **options: Any) -> Any:
    return await client.chat.completions.create(model="offline", messages=messages, **options)


async def stream(client: AsyncOpenAI, messages: Any, model: str = "offline", **options: Any) -> list[Any]:
    create: Any = client.chat.completions.create
    return [chunk async for chunk in await create(model=model, messages=messages, stream=True, **options)]


def pieces(chunks: list[Any]) -> list[str]:
    return [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]


async def test_an_answer_comes_whole_with_usage(client: AsyncOpenAI) -> None:
    """Without streaming there is one message, a finish reason and the usage."""
    answer = await ask(client, user("My name is Ada.", "What is my name?"))
    assert answer.choices[0].message.content == "Your name is Ada."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        8,
        4,
        12,
    )
    assert answer._request_id.startswith("req_")


async def test_a_stream_comes_in_words_and_ends_with_its_reason(client: AsyncOpenAI) -> None:
    """A stream opens with the role, sends words, then the finish reason; usage only when asked for."""
    chunks = await stream(client, user("My name is Ada.", "What is my name?"))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert pieces(chunks) == ["Your", " name", " is", " Ada."]
    assert [c.choices[0].finish_reason for c in chunks][-2:] == [None, "stop"]
    assert all(c.usage is None for c in chunks)


async def test_usage_in_a_stream_comes_last_and_without_choices(client: AsyncOpenAI) -> None:
    """With `include_usage` the last chunk holds the usage and no choice."""
    chunks = await stream(client, user("hello"), stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 1 + 5
    assert all(c.usage is None for c in chunks[:-1])


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_a_token_limit_breaks_the_answer_off(client: AsyncOpenAI, limit: str) -> None:
    """Both names of the limit cut after that many words, and the reason says so."""
    answer = await ask(client, user("My name is Ada.", "What is my name?"), **{limit: 2})
    assert answer.choices[0].message.content == "Your name"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2


async def test_images_are_seen(client: AsyncOpenAI) -> None:
    """Of images in data URIs it says how many, of what type and size."""
    uri = f"data:image/png;base64,{base64.b64encode(bytes(100)).decode()}"
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": uri}}]
    answer = await ask(client, [{"role": "user", "content": content}])
    assert answer.choices[0].message.content == "I see 1 image (image/png, 100 bytes). You said: “look”"
    assert answer.usage.prompt_tokens == 1 + 85


async def test_a_tool_call_streams_with_its_index(client: AsyncOpenAI) -> None:
    """A call has its name and id first, then the arguments in pieces, each under the call's index."""
    two = 'call Shell-delete {"path": "/data/x"} and call Shell-delete {"path": "/data/y"}'
    chunks = await stream(client, user(two), tools=[DELETE])
    deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
    arguments: dict[int, str] = {}
    for delta in deltas:
        arguments[delta.index] = arguments.get(delta.index, "") + delta.function.arguments
    named = [(d.index, d.function.name, d.type) for d in deltas if d.id]
    assert named == [(0, "Shell-delete", "function"), (1, "Shell-delete", "function")]
    assert [json.loads(arguments[n])["path"] for n in (0, 1)] == ["/data/x", "/data/y"]
    assert len(deltas) > 4
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_a_tools_result_is_answered(client: AsyncOpenAI) -> None:
    """What comes back from tools is said, tool by tool."""
    asked = user('call Shell-delete {"path": "/x"}; call Shell-delete {"path": "/y"}')
    first = await ask(client, asked, tools=[DELETE])
    calls = first.choices[0].message.tool_calls
    results = [{"role": "tool", "tool_call_id": c.id, "content": f"gone {n}"} for n, c in enumerate(calls)]
    said = first.choices[0].message.model_dump(exclude_none=True)
    answer = await ask(client, [*asked, said, *results], tools=[DELETE])
    assert answer.choices[0].message.content == "Shell-delete said: gone 0\nShell-delete said: gone 1"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Shell-delete"}}])
async def test_a_tool_that_has_to_be_called_is_called(client: AsyncOpenAI, choice: Any) -> None:
    """Whatever is said, with arguments that fit."""
    answer = await ask(client, user("hello"), tools=[DELETE], tool_choice=choice)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "Shell-delete"
    assert isinstance(json.loads(call.function.arguments), dict)


async def test_any_json_object_is_one(client: AsyncOpenAI) -> None:
    answer = await ask(client, user("thanks"), response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content) == {"answer": "You are welcome."}


async def test_a_tool_that_is_not_offered_is_not_called(client: AsyncOpenAI) -> None:
    """Only the tools of the request are called, and none where the request says `none`."""
    asked = user('call Shell-delete {"path": "/x"}')
    without = await ask(client, asked)
    forbidden = await ask(client, asked, tools=[DELETE], tool_choice="none")
    for answer in (without, forbidden):
        assert answer.choices[0].message.tool_calls is None
        assert "There is no tool Shell-delete" in answer.choices[0].message.content


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "empty array"),
        ([{"role": "robot", "content": "x"}], "Supported values are"),
        ([{"role": "user", "content": None}], "expected a string"),
        ([{"role": "tool", "tool_call_id": "call_1", "content": "x"}], "must be a response to a preceeding"),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
                    ],
                },
                {"role": "user", "content": "x"},
            ],
            "did not have response messages: call_1",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
                    ],
                },
            ],
            "did not have response messages: call_1",
        ),
    ],
)
async def test_a_wrong_conversation_is_refused(
    client: AsyncOpenAI, messages: Messages, complaint: str
) -> None:
    """What the real service refuses is refused, so that a client's mistake shows: covers THREAD-8."""
    with pytest.raises(BadRequestError, match=complaint):
        await ask(client, messages)


async def test_a_tool_with_a_wrong_name_is_refused(client: AsyncOpenAI) -> None:
    """Tool names are letters, digits, hyphens and underscores, as the real service wants them."""
    with pytest.raises(BadRequestError, match="does not match pattern"):
        await ask(client, user("hi"), tools=[{"type": "function", "function": {"name": "Shell.delete"}}])


async def test_azure_paths_are_served(model: OfflineModel) -> None:
    """Azure's client finds its deployment, with a first chunk that has no choices; without an
    `api-version` there is nothing."""
    azure = AsyncAzureOpenAI(azure_endpoint=model.url, api_key="key-secret", api_version="2024-10-21")
    async with azure as client:
        answer = await client.chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": "hi"}]
        )
        chunks = await stream(client, user("hi"), model="gpt")
    assert answer.model == "gpt"
    assert chunks[0].choices == []
    assert "".join(pieces(chunks)) == "Hello! How can I help?"
    assert model.requests[1]["path"] == "/openai/deployments/gpt/chat/completions"
    assert model.requests[0]["headers"]["api-key"] == "***"
    async with httpx.AsyncClient() as plain:
        lost = await plain.post(f"{model.url}/openai/deployments/gpt/chat/completions", json={})
    assert lost.status_code == 404


@pytest.mark.parametrize("prefix", ["/openai/v1", "/v1", ""])
async def test_every_usual_prefix_works(model: OfflineModel, prefix: str) -> None:
    """The paths of OpenAI, of Azure's newer API, and bare ones are the same."""
    async with AsyncOpenAI(base_url=model.url + prefix, api_key="k") as client:
        assert [m.id async for m in await client.models.list()] == ["offline"]
        assert (await client.models.retrieve("gpt-x")).id == "gpt-x"
        assert (await ask(client, user("hi"))).choices


async def test_what_is_unknown_is_refused_in_the_usual_shape(
    client: AsyncOpenAI, model: OfflineModel
) -> None:
    """Unknown paths, methods and bodies give error objects, never a failure of the server."""
    with pytest.raises(NotFoundError, match="Unknown request URL"):
        await client.embeddings.create(model="x", input="y")
    async with httpx.AsyncClient(base_url=model.base_url) as plain:
        several = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2}'
        for body in (b"", b"{", b"[1]", b'{"messages": 3, "model": "m"}', b'{"messages": [{}]}', several):
            broken = await plain.post("/chat/completions", content=body)
            assert broken.status_code == 400
            assert broken.json()["error"]["type"] == "invalid_request_error"
        assert (await plain.put("/chat/completions")).status_code == 405


async def test_exactly_so_many_pieces(client: AsyncOpenAI) -> None:
    """The model's name, or the text, asks for a number of pieces, at once or some time apart."""
    at_once = await stream(client, user("go"), model="pieces-64")
    apart = await stream(client, user("pieces-3@1ms"))
    assert [p.strip() for p in pieces(at_once)] == [str(n) for n in range(1, 65)]
    assert pieces(apart) == ["1", " 2", " 3"]


FAULTS = """
rules:
  - when: cut
    reply: {text: a b c d, fault: {kind: cut, after_pieces: 2}}
  - when: short
    reply: {text: a b c d, fault: {kind: cut, after_bytes: 40}}
  - when: open end
    reply: {text: a b c d, fault: end}
  - when: failing
    reply: {text: a b c d, fault: {kind: error, after_pieces: 3, message: it broke}}
  - when: mute
    reply: {fault: silence}
  - when: halting
    reply: {text: a b c d, fault: {kind: silence, after_pieces: 1}}
  - when: slow down
    reply: {error: {status: 429, headers: {Retry-After: 2}}}
  - when: dribble
    reply: {text: a b c d, dribble: {bytes: 5}}
"""


async def heard(client: AsyncOpenAI, text: str, pieces: list[str] | None = None) -> tuple[str, str]:
    """The text that arrived, and the finish reason or the error; `pieces` takes it as it arrives."""
    said, pieces = "", [] if pieces is None else pieces
    try:
        async for chunk in await client.chat.completions.create(
            model="offline", messages=[{"role": "user", "content": text}], stream=True
        ):
            said += chunk.choices[0].delta.content or ""
            pieces.append(said)
            if chunk.choices[0].finish_reason:
                return said, chunk.choices[0].finish_reason
    except APIError as error:
        return said, type(error).__name__
    return said, "no reason"


async def test_faults_of_a_stream(model: OfflineModel) -> None:
    """A script breaks streams in every way in which the real ones break."""
    model.script(FAULTS)
    async with AsyncOpenAI(base_url=model.base_url, api_key="k", max_retries=0) as client:
        asked = ["cut", "short", "open end", "failing", "slow down", "dribble"]
        replies = [await heard(client, text) for text in asked]
        pieces: list[str] = []
        mute = await overdue(heard(client, "mute"), 600, lambda: len(model.requests) == 7)
        halting = await overdue(heard(client, "halting", pieces), 600, lambda: "a" in pieces)
    assert replies == [
        ("a b", APIConnectionError.__name__),
        ("", APIConnectionError.__name__),
        ("a b c d", "no reason"),
        ("a b c", APIError.__name__),
        ("", RateLimitError.__name__),
        ("a b c d", "stop"),
    ]
    assert mute == ("", APITimeoutError.__name__)
    assert halting == ("a", APITimeoutError.__name__)


async def test_faults_of_a_whole_answer(model: OfflineModel) -> None:
    """The same scripts break answers that are not streamed."""
    model.script(FAULTS)
    async with AsyncOpenAI(base_url=model.base_url, api_key="k", max_retries=0) as client:
        for text, error in [
            ("cut", APIConnectionError),
            ("short", APIConnectionError),
            ("failing", InternalServerError),
        ]:
            with pytest.raises(error):
                await ask(client, user(text))
        for calls, text in enumerate(("mute", "halting"), 4):
            asked = overdue(ask(client, user(text)), 600, lambda n=calls: len(model.requests) == n)  # type: ignore[misc]
            with pytest.raises(APITimeoutError):
                await asked
        with pytest.raises(RateLimitError) as slow:
            await ask(client, user("slow down"))
        assert slow.value.response.headers["retry-after"] == "2"
        assert (await ask(client, user("open end"))).choices[0].finish_reason is None
        assert (await ask(client, user("dribble"))).choices[0].message.content == "a b c d"


async def test_a_dribble_comes_in_small_writes(model: OfflineModel) -> None:
    """The body leaves in writes of the size that the script says, streamed or whole."""
    model.script({"rules": [{"reply": {"text": "a b c d", "dribble": {"bytes": 5}}}]})
    async with httpx.AsyncClient(base_url=model.base_url) as plain:
        asked = {"model": "m", "messages": user("hi"), "stream": True}
        async with plain.stream("POST", "/chat/completions", json=asked) as answer:
            sizes = [len(part) async for part in answer.aiter_raw()]
    assert max(sizes) <= 5
    assert sum(sizes) > 500


async def test_delays_are_waited_for(client: AsyncOpenAI, model: OfflineModel) -> None:
    """Pieces wait for their time: a slow answer is overtaken by one asked for later."""
    model.script({"rules": [{"when": "slow", "reply": {"text": "late", "first_delay_ms": 300}}]})
    ended: list[str] = []

    async def timed(text: str, **options: Any) -> None:
        await (stream if options else ask)(client, user(text))
        ended.append(text)

    await asyncio.gather(timed("slow"), timed("slow stream", stream=True), timed("quick"))
    assert ended[0] == "quick"
    assert sorted(ended[1:]) == ["slow", "slow stream"]


async def test_the_received_requests_can_be_read(client: AsyncOpenAI, model: OfflineModel) -> None:
    """Requests are kept in order, with their bodies, and with secrets masked."""
    await ask(client, user("one"))
    await ask(client, user("two"), temperature=0)
    first, second = model.requests
    assert first["path"] == "/v1/chat/completions"
    assert first["body"]["messages"] == user("one")
    assert second["body"]["temperature"] == 0
    assert first["headers"]["authorization"] == "Bearer ***"
    assert "sk-secret" not in str(model.requests)
    assert first["at"] < second["at"]
    assert first["outcome"] == "answered"
    model.clear()
    assert model.requests == []


async def test_a_received_request_says_when_its_client_left(client: AsyncOpenAI, model: OfflineModel) -> None:
    """A model call that its caller gave up is seen as such: covers FLOW-1."""
    model.script({"rules": [{"reply": {"text": "a b c", "piece_delay_ms": 60_000}}]})
    async with client.chat.completions.with_streaming_response.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as answer:
        async for _ in answer.iter_bytes():
            break
    await eventually(lambda: model.requests[0]["outcome"] is not None)
    assert model.requests[0]["outcome"] == "left"


async def test_another_process_reads_the_received_requests_and_scripts_the_model(model: OfflineModel) -> None:
    """Over HTTP they are read and cleared, and the script is replaced; what is wrong with one is said."""
    async with httpx.AsyncClient(base_url=model.url) as plain:
        put = await plain.post("/_offline/script", content="rules:\n  - reply: from afar\n")
        assert put.json() == {"rules": 1}
        asked = await plain.post("/v1/chat/completions", json={"model": "m", "messages": user("hi")})
        assert asked.json()["choices"][0]["message"]["content"] == "from afar"
        received = (await plain.get("/_offline/requests")).json()
        assert received["total"] == 1
        assert received["requests"][0]["body"]["messages"] == user("hi")
        await plain.delete("/_offline/requests")
        assert (await plain.get("/_offline/requests")).json() == {"total": 0, "requests": []}
        wrong = await plain.post("/_offline/script", content="rules:\n  - repply: hi\n")
        assert wrong.status_code == 400
        assert "did you mean 'reply'?" in wrong.json()["error"]["message"]
        assert (await plain.get("/_offline/else")).status_code == 404


async def test_received_requests_are_bounded(model: OfflineModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest requests go, and are still counted."""
    monkeypatch.setattr("tealagents.llm.offline.received._MOST_REQUESTS", 3)
    async with httpx.AsyncClient(base_url=model.url) as plain:
        for _ in range(5):
            await plain.get("/v1/models")
        received = (await plain.get("/_offline/requests")).json()
    assert (received["total"], len(received["requests"])) == (5, 3)


def test_it_is_used_without_an_event_loop() -> None:
    """A plain `with` serves a synchronous client."""
    with (
        OfflineModel("rules:\n  - reply: plain\n") as model,
        OpenAI(base_url=model.base_url, api_key="k") as client,
    ):
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "plain"


async def test_pauses_end_when_they_are_released(model: OfflineModel) -> None:
    """An answer that would take days continues at once, as do later ones, until a script is put in place."""
    days = {"otherwise": {"pieces": ["a", {"text": " b", "delay_ms": 10**9}], "headers_delay_ms": 1}}
    model.script(days)
    async with AsyncOpenAI(base_url=model.base_url, api_key="k") as client:
        pieces: list[str] = []
        waiting = asyncio.create_task(heard(client, "hi", pieces))
        await eventually(lambda: "a" in pieces)
        assert not waiting.done()
        model.release()
        assert await waiting == ("a b", "stop")
        assert await heard(client, "hi") == ("a b", "stop")
        model.script(days)
        pieces.clear()
        waiting = asyncio.create_task(heard(client, "hi", pieces))
        await eventually(lambda: "a" in pieces)
        assert model.requests[-1]["outcome"] is None
        await asyncio.to_thread(model.release)
        assert await waiting == ("a b", "stop")
    with pytest.raises(RuntimeError, match="not been started"):
        OfflineModel().release()


async def test_it_leaves_nothing_behind() -> None:
    """After its end there is no thread and no listener, even if answers were being given."""
    before = set(threading.enumerate())
    async with OfflineModel({"rules": [{"when": "mute", "reply": {"fault": "silence"}}]}) as model:
        port = int(model.url.rsplit(":", 1)[1])
        async with AsyncOpenAI(base_url=model.base_url, api_key="k", max_retries=0) as client:
            waiting = [
                asyncio.create_task(heard(client, "mute")),
                asyncio.create_task(heard(client, "pieces-1000@20ms")),
            ]
            await eventually(lambda: len(model.requests) >= 2)
            await model.__aexit__(None, None, None)
            outcomes = await asyncio.gather(*waiting)
    assert {reason for _, reason in outcomes} == {APIConnectionError.__name__}
    assert {t for t in set(threading.enumerate()) - before if t.name == "offline-model"} == set()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = model.base_url


async def test_it_starts_again() -> None:
    """One object serves again after its end, and says so if it is already running."""
    model = OfflineModel()
    for _ in range(2):
        async with model, AsyncOpenAI(base_url=model.base_url, api_key="k") as client:
            assert (await ask(client, user("hi"))).choices
    with model, pytest.raises(RuntimeError, match="is already running"):
        model.__enter__()


async def test_a_taken_port_is_an_error() -> None:
    """The port of another server is refused at once."""
    async with OfflineModel() as model:
        with pytest.raises(OSError, match="in use"):
            await OfflineModel(port=int(model.url.rsplit(":", 1)[1])).__aenter__()


async def test_it_is_silent_in_the_log(client: AsyncOpenAI, caplog: pytest.LogCaptureFixture) -> None:
    """In another program's process it logs nothing."""
    caplog.set_level(logging.DEBUG)
    await ask(client, user("hi"))
    assert not [r for r in caplog.records if r.name.startswith(("uvicorn", "tealagents"))]


async def test_the_app_runs_on_any_server() -> None:
    """The ASGI application alone answers, and lives through a lifespan."""
    app = create_app(Script.from_text("rules:\n  - reply: bare\n"))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as plain:
        answer = await plain.post("/v1/chat/completions", json={"model": "m", "messages": user("hi")})
    assert answer.json()["choices"][0]["message"]["content"] == "bare"
    sent: list[str] = []
    events = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(events)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_of_its_own(tmp_path: Path, number: signal.Signals) -> None:
    """`serve` answers until it is stopped, and then exits cleanly."""
    script = tmp_path / "script.yaml"
    script.write_text("rules:\n  - reply: from a file\n")
    code = (
        "from pathlib import Path; from tealagents.llm.offline import serve; "
        f"serve('127.0.0.1', 0, Path({str(script)!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert process.stderr is not None
        said = await asyncio.to_thread(process.stderr.readline)
        base_url = said.rsplit(" ", 1)[1].strip()
        async with AsyncOpenAI(base_url=base_url, api_key="k") as client:
            answer = await ask(client, user("hi"))
        process.send_signal(number)
        rest = await asyncio.to_thread(process.communicate)
    finally:
        process.kill()
        process.wait()
    assert answer.choices[0].message.content == "from a file"
    assert "POST /v1/chat/completions 200 answered" in rest[1]
    assert process.returncode == 0


def test_a_wrong_script_is_reported_before_it_starts() -> None:
    """A script with a mistake never starts a server."""
    with pytest.raises(ScriptError, match="did you mean 'rules'"):
        OfflineModel("rulez: []\n")
