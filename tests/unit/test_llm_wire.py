"""The way to the service: connections are used again, closed when they should be, and hold no surprises."""

import asyncio
import gzip
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llm_setup import (
    ANSWER,
    KEY,
    RawConnection,
    RawService,
    answer_whole,
    call,
    chunk,
    client,
    done,
    events,
    message,
    one_by_one,
    sse,
    text_of,
)

from tealagents.domain.errors import ModelFailed
from tealagents.domain.events import ModelDone, TextDelta
from tealagents.llm.offline import OfflineModel
from tealagents.outbound.addresses import proxy_for
from tealagents.parts import START_ERRORS
from tealagents.testing.signing_in import self_signed


@pytest.fixture
async def service() -> AsyncIterator[OfflineModel]:
    async with OfflineModel() as running:
        yield running


class Endless:
    """A handler that begins a stream, and knows when its client has left."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._first = first
        self.left = asyncio.Event()

    async def __call__(self, connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sse(self._first))
        await connection.until_client_leaves()
        self.left.set()


# --- leaving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("openai-chat", chunk(content="on")),
        ("openai-responses", {"type": "response.output_text.delta", "delta": "on"}),
    ],
)
async def test_closing_the_stream_closes_the_connection(name: str, first: dict[str, Any]) -> None:
    """A caller who needs no more of an answer stops the service from making it."""
    handler = Endless(first)
    async with RawService(handler).running() as service, client(service.base_url, name) as model:
        stream = one_by_one(model.stream(call(model)))
        assert await anext(stream) == TextDelta("on")
        await stream.aclose()
        await asyncio.wait_for(handler.left.wait(), 60)


async def test_canceling_a_wait_closes_the_connection() -> None:
    """In the middle of an answer."""
    handler = Endless(chunk(content="on"))
    async with RawService(handler).running() as service, client(service.base_url) as model:
        stream = one_by_one(model.stream(call(model)))
        assert await anext(stream) == TextDelta("on")
        waiting = asyncio.create_task(_next(stream))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(handler.left.wait(), 60)


async def test_canceling_the_wait_for_an_answer_closes_the_connection() -> None:
    """Before anything has come."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        asked.set()
        await connection.until_client_leaves()
        left.set()

    async with RawService(handler).running() as service, client(service.base_url) as model:
        waiting = asyncio.create_task(events(model))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(left.wait(), 60)


async def _next(stream: AsyncIterator[object]) -> object:
    return await anext(stream)


async def test_a_canceled_call_leaves_the_others_alone(service: OfflineModel) -> None:
    """All callers share the client, also while it is still being made."""
    service.script({"otherwise": {"text": "one two", "piece_delay_ms": 20}})
    async with client(service.base_url) as model:
        canceled, kept = (asyncio.create_task(events(model)) for _ in range(2))
        await asyncio.sleep(0)
        canceled.cancel()
        assert text_of(await kept) == "one two"


# --- connections ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
async def test_a_connection_is_used_again(name: str, stream: bool) -> None:
    """Call after call on one connection, also after a stream that was read to its end."""
    async with OfflineModel() as service:
        port = int(service.url.rpartition(":")[2])

        async def forward(connection: RawConnection) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_copied(connection._reader, writer), _copied(reader, connection._writer))
            finally:
                writer.close()

        async with RawService(forward).running() as counted, client(counted.base_url, name) as model:
            for _ in range(5):
                await done(model, stream=stream)
            assert counted.connections == 1


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_a_stream_that_stays_open_after_its_end_costs_a_connection_only() -> None:
    """A service that says it is done and does not end its response is not waited for long."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sse(chunk(content="so", finish_reason="stop")) + b"data: [DONE]\n\n")
        await connection.until_client_leaves()

    async with RawService(handler).running() as service, client(service.base_url) as model:
        for _ in range(2):
            assert text_of(await events(model)) == "so"
        assert service.connections == 2


async def test_a_response_that_is_complete_is_not_waited_for() -> None:
    """Nothing follows its last event, whether or not the service ends the stream."""
    complete = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}}

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        await connection.chunk(sse({"type": "response.output_text.delta", "delta": "so"}) + sse(complete))
        await connection.until_client_leaves()

    patient: dict[str, Any] = {"piece_timeout_seconds": 3600, "model_timeout_seconds": 3600}
    async with (
        RawService(handler).running() as service,
        client(service.base_url, "openai-responses", **patient) as model,
        asyncio.timeout(30),
    ):
        assert text_of(await events(model)) == "so"


async def test_a_connection_that_was_closed_meanwhile_goes_unseen() -> None:
    """The service closes after each answer, without saying so: every call is answered all the same."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))

    async with RawService(handler).running() as service, client(service.base_url) as model:
        for _ in range(5):
            assert text_of(await events(model, stream=False)) == "so"


async def test_answers_end_where_the_connection_does() -> None:
    """A body without a length ends with its connection; that is no proof that the answer is whole."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        await connection.send(sse(chunk(content="so")))

    async with RawService(handler).running() as service, client(service.base_url) as model:
        stream = one_by_one(model.stream(call(model)))
        assert await anext(stream) == TextDelta("so")
        with pytest.raises(ModelFailed, match="was cut"):
            await anext(stream)


async def test_what_follows_the_end_mark_of_a_stream_is_not_read() -> None:
    """Even if it arrives together with the mark."""

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        await connection.begin_stream()
        whole = sse(chunk(content="so", finish_reason="stop"))
        await connection.chunk(whole + b"data: [DONE]\n\ndata: bye\n\ndata: [DONE]\n\ndata: {}\n\n")
        await connection.until_client_leaves()

    async with RawService(handler).running() as service, client(service.base_url) as model:
        said = await events(model)
    assert text_of(said) == "so"
    assert isinstance(said[-1], ModelDone)


async def test_a_compressed_answer_is_refused() -> None:
    """We ask for none: a few bytes may stand for gigabytes. An answer and a refusal alike."""
    heads: list[bytes] = []
    statuses = [b"400 No", b"200 OK"]

    async def handler(connection: RawConnection) -> None:
        heads.append(await connection.request())
        head = b"HTTP/1.1 " + statuses.pop() + b"\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n"
        await connection.send(head + gzip.compress(ANSWER))

    async with RawService(handler).running() as service, client(service.base_url) as model:
        for _ in range(2):
            with pytest.raises(ModelFailed, match="came in a content encoding, and none was asked for"):
                await events(model, stream=False)
    assert b"accept-encoding: identity" in heads[0].lower()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_status_of_a_compressed_refusal_decides_as_usual(stream: bool) -> None:
    """Only its explanation is not read: one that passes is tried again, another shows its status."""
    heads = [b"429 Slow\r\nretry-after: 0", b"503 Busy", b"401 Who"]

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        head = b"HTTP/1.1 " + heads.pop(0) + b"\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n"
        await connection.send(head + gzip.compress(b'{"error":{"message":"no"}}'))

    async with RawService(handler).running() as service, client(service.base_url) as model:
        with pytest.raises(ModelFailed, match=r"HTTP 401.*content encoding.*own credentials") as failed:
            await events(model, stream=stream)
    assert (failed.value.http_status, heads) == (401, [])


# --- what is sent along ---------------------------------------------------------------------------------


async def test_the_calls_headers_are_sent() -> None:
    """Trace context and request id go with the request, the key as a bearer token, and no cookie ever."""
    heads: list[bytes] = []

    async def handler(connection: RawConnection) -> None:
        connection.heads = heads
        await answer_whole(connection)

    traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "r-1"}
    options: dict[str, Any] = {"organization": "org-1", "project": "proj-1", "headers": {"x-team": "seven"}}
    async with RawService(handler).running() as service, client(service.base_url, **options) as model:
        await events(model, stream=False, headers=traced)
        await events(model, stream=False)
    first, second = (head.decode().lower() for head in heads)
    assert first.startswith("post /v1/chat/completions http/1.1\r\n")
    for line in (
        f"traceparent: {traced['traceparent']}",
        "x-request-id: r-1",
        f"authorization: bearer {KEY}",
        "content-type: application/json",
        "openai-organization: org-1",
        "openai-project: proj-1",
        "x-team: seven",
    ):
        assert f"\r\n{line}\r\n" in first
    assert "traceparent" not in second
    assert "cookie" not in second


@pytest.mark.parametrize("dated", [{}, {"azure_api_version": "2024-10-21", "azure_deployment": "mine"}])
@pytest.mark.parametrize("stream", [True, False])
async def test_every_request_is_addressed_as_the_first_one(dated: dict[str, Any], stream: bool) -> None:
    """The SDK is asked once; later requests differ from its own in the body and the call's headers only."""
    async with OfflineModel() as service, client(service.url, headers={"x-team": "7"}, **dated) as model:
        for number, said in enumerate(("hello", "a longer message", "bye")):
            asked = message("user", said)
            await events(model, asked, stream=stream, headers={"x-request-id": f"r-{number}"})
        first, *later = service.requests
    own = {"x-request-id", "content-length"}
    assert first["headers"]["x-team"] == "7"
    for number, request in enumerate(later, start=1):
        assert (request["path"], request["query"]) == (first["path"], first["query"])
        assert set(request["headers"]) == set(first["headers"])
        assert {name for name, value in request["headers"].items() if value != first["headers"][name]} == own
        assert request["headers"]["x-request-id"] == f"r-{number}"


async def test_a_callers_header_takes_a_configured_ones_place_for_its_own_call_only() -> None:
    """The next call is sent what is configured."""
    async with OfflineModel() as service, client(service.url, headers={"x-request-id": "ours"}) as model:
        for headers in ({"X-Request-Id": "its own"}, {}, {"X-Request-Id": "its own"}, {}):
            await events(model, stream=False, headers=headers)
        sent = [request["headers"]["x-request-id"] for request in service.requests]
    assert sent == ["its own", "ours", "its own", "ours"]


async def test_without_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that lies about in the environment is not for whatever service is configured."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    heads: list[bytes] = []

    async def handler(connection: RawConnection) -> None:
        connection.heads = heads
        await answer_whole(connection)

    async with RawService(handler).running() as service, client(service.base_url, api_key=None) as model:
        await events(model, stream=False)
        await events(model, stream=False)
    assert len(heads) == 2
    assert not any(b"authorization" in head.lower() for head in heads)
    assert b"sk-of-somebody-else" not in heads[0]


async def provided() -> str:
    return "provided-token"


@pytest.mark.parametrize(
    ("own", "authorization"),
    [
        ({"api_key": None}, set()),
        ({}, {f"authorization: Bearer {KEY}"}),
        ({"api_key": None, "token_provider": provided}, {"authorization: Bearer provided-token"}),
        ({"azure_api_version": "2024-10-21"}, {f"api-key: {KEY}"}),
        (
            {"azure_api_version": "2024-10-21", "api_key": None, "token_provider": provided},
            {"authorization: Bearer provided-token"},
        ),
    ],
)
async def test_headers_in_the_environment_are_not_sent(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], authorization: set[str]
) -> None:
    """The SDK would send them to any service, and an `Authorization` instead of the configured key."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-env")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-env")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Env: yes\nAuthorization: Bearer sk-env\nx-team: env")
    heads: list[bytes] = []

    async def handler(connection: RawConnection) -> None:
        connection.heads = heads
        await answer_whole(connection)

    async with (
        RawService(handler).running() as service,
        client(service.base_url, headers={"x-team": "seven"}, **own) as model,
    ):
        await events(model, stream=False)
    lines = set(heads[0].decode().split("\r\n"))
    assert {line for line in lines if line.startswith(("authorization:", "api-key:"))} == authorization
    assert "x-team: seven" in lines
    assert [line for line in lines if "env" in line] == []


async def test_nothing_secret_is_logged(service: OfflineModel, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the key nor what is said, at the lowest level, in success and in failure."""
    caplog.set_level(logging.DEBUG)
    async with client(service.base_url) as model:
        await events(model, headers={"x-request-id": "r-1"})
        service.script({"otherwise": {"error": {"status": 503, "message": f"not with {KEY}"}}})
        with pytest.raises(ModelFailed):
            await events(model)
    assert caplog.text
    assert KEY not in caplog.text
    assert "hello" not in caplog.text


# --- TLS and proxies --------------------------------------------------------------------------------------


async def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a trusted issuer is refused; `SSL_CERT_FILE` names all of them, as the error says."""
    pem = self_signed(tmp_path / "certificate.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    async with RawService(answer_whole).running(tls) as service:
        async with client(service.base_url) as model:
            failed = r"CERTIFICATE_VERIFY_FAILED.*authority in SSL_CERT_FILE, with all others"
            with pytest.raises(ModelFailed, match=failed):
                await events(model, stream=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        async with client(service.base_url) as model:
            assert text_of(await events(model, stream=False)) == "so"


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://api.example.com/v1", None),
        ({"https_proxy": "http://p:3128"}, "https://api.example.com/v1", "http://p:3128"),
        ({"https_proxy": "p:3128"}, "https://api.example.com/v1", "http://p:3128"),
        ({"all_proxy": "http://p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"http_proxy": "http://p:1"}, "https://api.example.com/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "example.com"}, "https://api.example.com/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "a, *.example.com"}, "https://api.example.com/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "a.example:8443"}, "https://a.example:8443/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "a.example:8443"}, "https://a.example/v1", "http://p:1"),
        ({"https_proxy": "http://p:1", "no_proxy": "[2001:db8::1]"}, "https://[2001:db8::1]/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "a,10.0.0.0/8"}, "https://10.1.2.3/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "a, *"}, "https://api.example.com/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "a,10.0.0.0/8"}, "https://11.1.2.3/v1", "http://p:1"),
        ({"http_proxy": "http://p:1"}, "http://127.0.0.1:8000/v1", None),
    ],
)
def test_the_environments_proxy_is_used(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As everywhere; but nothing on this machine is asked for through another one."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


async def test_a_proxy_is_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes to the proxy with the whole URL, and its password is in no error."""
    heads: list[bytes] = []

    async def refuse(connection: RawConnection) -> None:
        heads.append(await connection.request())
        await connection.send(b"HTTP/1.1 407 No\r\ncontent-length: 9\r\n\r\npr0xypass")

    async with RawService(refuse).running() as proxy:
        place = proxy.base_url.removeprefix("http://").removesuffix("/v1")
        monkeypatch.setenv("http_proxy", f"http://user:pr0xypass@{place}")
        monkeypatch.delenv("no_proxy", raising=False)
        async with client("http://model.example.invalid/v1") as model:
            with pytest.raises(ModelFailed, match="407") as failed:
                await events(model, stream=False)
    assert heads[0].startswith(b"POST http://model.example.invalid/v1/chat/completions HTTP/1.1")
    assert b"Proxy-Authorization: Basic " in heads[0]
    assert "pr0xypass" not in failed.value.detail


def test_a_proxy_that_speaks_no_http_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the first call."""
    monkeypatch.setenv("https_proxy", "socks5://p:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(
        START_ERRORS, match=r"HTTP proxy, not socks5\. Set HTTPS_PROXY to one, or name api.example"
    ):
        client("https://api.example.com/v1")


async def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To each caller, and once in the log; and the client can be closed."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    async with client("https://api.example.com/v1") as model:
        for _ in range(2):
            with pytest.raises(ModelFailed, match="Check SSL_CERT_FILE"):
                await events(model, stream=False)
    assert len([line for line in caplog.messages if "certificates" in line]) == 1


async def test_an_answer_ends_with_exactly_one_end(service: OfflineModel) -> None:
    """However it is asked for. covers: Model.stream"""
    for name in ("openai-chat", "openai-responses"):
        async with client(service.base_url, name) as model:
            for stream in (True, False):
                said = await events(model, stream=stream)
                assert [isinstance(event, ModelDone) for event in said].count(True) == 1
                assert isinstance(said[-1], ModelDone)


@pytest.mark.parametrize(
    "proxy",
    [
        "http://u:ca/nary@127.0.0.1:9",
        "http://u:1/canary@127.0.0.1:9",
        "http://u:ca#nary@proxy",
        "u:1?canary@proxy:3128",
        "http://u:canary@:80",
        "http://u:canary@proxy:port",
    ],
)
def test_a_proxy_that_is_no_address_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """An unescaped character of a password is why most of them are none."""
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(OSError, match="of the form http://user:password@host:port") as refused:
        proxy_for("https://model.example/v1")
    assert "nary" not in str(refused.value)
