"""What the tests of the model clients share: messages, calls, and a raw service for what no real one does."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import orjson

from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import Item, Message, Role, ToolCall
from tealagents.domain.ports import Governance, Model, ModelCall, ToolSpec
from tealagents.llm import open_model

KEY = "sk-canary-0123456789abcdef"
AT = datetime(2026, 1, 1, tzinfo=UTC)


def message(role: Role = "user", *texts: str, images: Sequence[str] = (), **parts: Any) -> Message:
    items = (*(Item("text", text) for text in texts), *(Item("image", image) for image in images))
    return Message(message_id="m", request_id="r", role=role, created_at=AT, items=items, **parts)


def tool(name: str = "Shell-delete") -> ToolSpec:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return ToolSpec(name=name, description="Delete one file.", parameters=parameters, governance=Governance())


def called(*calls: ToolCall, text: str = "") -> Message:
    return message("assistant", *([text] if text else []), tool_calls=calls)


def result(call_id: str, output: str) -> Message:
    return message("tool", output, tool_call_id=call_id)


def client(base_url: str, name: str = "openai-chat", **options: Any) -> Model:
    """A client that waits for nothing long, as a test's deadlines is short."""
    given = {"model": "gpt-4o", "api_key": KEY, "retry_delay_seconds": 0.0, **options}
    return open_model(name, base_url=base_url, **given)


def call(model: Model, *messages: Message, stream: bool = True, **parts: Any) -> ModelCall:
    said = messages or (message("user", "hello"),)
    prompt = [model.encode_system("Be brief."), *(model.encode(each) for each in said)]
    return ModelCall(prompt=prompt, stream=stream, **parts)


async def events(model: Model, *messages: Message, stream: bool = True, **parts: Any) -> list[ModelEvent]:
    return [event async for event in one_by_one(model.stream(call(model, *messages, stream=stream, **parts)))]


async def one_by_one(stream: AsyncGenerator[Sequence[ModelEvent], None]) -> AsyncGenerator[ModelEvent, None]:
    """The events of a call, however many of them came at once."""
    async with aclosing(stream) as batches:
        async for batch in batches:
            for event in batch:
                yield event


async def done(model: Model, *messages: Message, stream: bool = True, **parts: Any) -> ModelDone:
    *pieces, last = await events(model, *messages, stream=stream, **parts)
    assert isinstance(last, ModelDone)
    assert not any(isinstance(piece, ModelDone) for piece in pieces)
    return last


def text_of(said: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in said if isinstance(event, TextDelta))


# --- a raw service ------------------------------------------------------------------------------------


class RawConnection:
    """One connection to the raw service: what a handler answers with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        #: of the requests that came on it
        self.heads: list[bytes] = []

    async def request(self) -> bytes:
        """The head of the next request, once its body has come as well."""
        return (await self.request_with_body())[0]

    async def request_with_body(self) -> tuple[bytes, bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return head, await self._reader.readexactly(int(length or b"0"))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def begin_stream(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def until_client_leaves(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    def close(self) -> None:
        self._writer.close()


Handler = Callable[[RawConnection], Awaitable[None]]


class RawService:
    """A TCP server that does what its handler does with each connection, and counts them."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.connections = 0
        self.base_url = ""

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["RawService"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "http" if tls is None else "https"
        self.base_url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = RawConnection(reader, writer)
        try:
            await self._handler(connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            connection.close()


def chunk(**delta: Any) -> dict[str, Any]:
    """A chunk of a chat completion with this delta."""
    finish = delta.pop("finish_reason", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-4o", "choices": [choice]}


#: a whole chat completion
ANSWER = b'{"id":"chatcmpl-1","choices":[{"message":{"content":"so"},"finish_reason":"stop"}]}'


async def answer_whole(connection: RawConnection) -> None:
    """Answers every request on the connection in one."""
    while True:
        await connection.request()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: who=you\r\n"
        await connection.send(head + b"content-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))


def sse(said: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(said) + b"\n\n"
