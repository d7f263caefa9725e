"""The load: connections that cost little, and the three kinds of server spoken to in the same way.

A connection is one socket that is kept open and asked one thing at a time. Nothing of HTTP is understood
beyond what these servers send.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.processes import Measured, ServiceProcess

_END_OF_CHUNKS = b"\r\n0\r\n\r\n"


class Failed(RuntimeError):
    """An answer that is not the one that was to be measured."""


class Connection:
    """One kept-alive connection; made anew where the server has closed it because it was idle for long."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._port = port
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(port, *await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, user: str, body: bytes, headers: str = "") -> bytes:
        """The body of the answer; `headers` are whole lines."""
        await self._send("POST", path, user, body, headers)
        head = await self._head()
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return await self._reader.readexactly(length)

    async def stream(self, path: str, user: str, body: bytes, headers: str = "") -> AsyncIterator[bytes]:
        """What arrives of a chunked answer, as it arrives."""
        await self._send("POST", path, user, body, headers)
        async for data in self._chunked():
            yield data

    async def follow(self, path: str, user: str) -> AsyncIterator[bytes]:
        """As `stream`, of what is only read."""
        await self._send("GET", path, user, b"")
        async for data in self._chunked():
            yield data

    async def _chunked(self) -> AsyncIterator[bytes]:
        await self._head()
        tail = b""
        while not tail.endswith(_END_OF_CHUNKS):
            data = await self._reader.read(65536)
            if not data:
                raise Failed("the connection ended within a stream")
            tail = (tail + data)[-len(_END_OF_CHUNKS) :]
            yield data

    async def _send(self, method: str, path: str, user: str, body: bytes, headers: str = "") -> None:
        if self._reader.at_eof():
            self._writer.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {user}\r\n"
            f"{headers}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head[:16]:
            raise Failed(head.decode() + (await self._reader.read(2000)).decode(errors="replace"))
        return head


class Target(ABC):
    """A server, and how it is asked."""

    #: what stands in front of each piece of a stream
    mark: bytes
    path: str
    stream_path: str
    #: whole lines
    headers: str = ""

    def __init__(self, server: Measured) -> None:
        self.server = server

    @abstractmethod
    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes: ...

    async def ask(
        self, connection: Connection, text: str, *, task_id: str | None = None, user: str = "ada"
    ) -> bytes:
        return await connection.post(self.path, user, self.body(text, task_id), self.headers)

    async def read_stream(self, connection: Connection, text: str, *, user: str = "ada") -> tuple[int, float]:
        """How many pieces there were, and after how many milliseconds the first came."""
        started, first, read = time.perf_counter(), 0.0, b""
        body = self.body(text, stream=True)
        async for data in connection.stream(self.stream_path, user, body, self.headers):
            read += data
            if not first and self.mark in read:
                first = 1000 * (time.perf_counter() - started)
        return read.count(self.mark), first

    @asynccontextmanager
    async def connections(self, count: int) -> AsyncIterator[list[Connection]]:
        async with AsyncExitStack() as stack:
            opened = []
            for _ in range(count):
                connection = await Connection.open(self.server.port)
                stack.callback(connection.close)
                opened.append(connection)
            yield opened


class Floor(Target):
    mark, path, stream_path = b'data: "', "/", "/sse"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        return json.dumps({"text": text}).encode()


class Service(Target):
    mark = b"event: partial-response"
    path, stream_path = ServiceProcess.prefix, f"{ServiceProcess.prefix}/sse"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        document: dict[str, Any] = {"items": [{"content_type": "text", "content": text}]}
        if task_id is not None:
            document["task_id"] = task_id
        return json.dumps(document).encode()


class Model(Target):
    mark, path, stream_path = b'"delta":{"content":"', "/v1/chat/completions", "/v1/chat/completions"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        messages = [{"role": "user", "content": text}]
        return json.dumps({"model": "offline", "messages": messages, "stream": stream}).encode()


def task_of(answer: bytes) -> str:
    """The task that an answer of the service belongs to."""
    document = json.loads(answer)
    if document["status"] != "Completed":
        raise Failed(answer.decode())
    task_id: str = document["task_id"]
    return task_id
