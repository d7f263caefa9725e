"""A server that answers as no server should: one port for each manner, well-behaved on the way there.

Where a place is only reached after some proper answers (an MCP session, metadata that names an endpoint),
those are given, so that the hostile one is what is met there.
"""

import asyncio
import contextlib
import json
import struct
import threading
import zlib
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Self

Json = dict[str, Any]
Send = Callable[[bytes], Awaitable[None]]

_MEGABYTE = bytes(1024 * 1024)


@cache
def gzip_of_zeros(megabytes: int) -> bytes:
    """A gzip file of zeros, made without compressing all of them: one flushed block, repeated."""
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packing.compress(_MEGABYTE) + packing.flush(zlib.Z_FULL_FLUSH)
    check = 0
    for _ in range(megabytes):
        check = zlib.crc32(_MEGABYTE, check)
    size = megabytes * 1024 * 1024 & 0xFFFFFFFF
    end = packing.flush(zlib.Z_FINISH)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + block * megabytes + end + struct.pack("<II", check, size)


@cache
def gzipped(content: bytes) -> bytes:
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packing.compress(content) + packing.flush()


class HostileServer:
    """One manner on a free port of loopback; `elsewhere` is what a redirect leads to."""

    def __init__(self, manner: str, elsewhere: str = "") -> None:
        self.manner = getattr(self, f"_{manner}")
        self.elsewhere = elsewhere
        #: the paths it was asked for
        self.asked: list[str] = []
        self.url = ""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split(" ", 2)
            lengths = [line[15:] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            self.asked.append(path)
            proper = self._proper(method, path, body)
            if proper is not None:
                await send(proper)
            else:
                await self.manner(send)
        with contextlib.suppress(OSError):
            writer.close()

    # --- on the way ------------------------------------------------------------------------------

    def _proper(self, method: str, path: str, body: bytes) -> bytes | None:
        if path == "/mcp-session":
            return _session(method, json.loads(body or b"{}"))
        document = {
            "/.well-known/oauth-authorization-server/proper": {
                "issuer": f"{self.url}/proper",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "code_challenge_methods_supported": ["S256"],
            },
            "/keys/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys.json",
            },
            "/proper-tenant/v2.0/.well-known/openid-configuration": {
                "issuer": f"{self.url}/proper-tenant/v2.0",
                "authorization_endpoint": f"{self.url}/proper-tenant/authorize",
                "token_endpoint": f"{self.url}/proper-tenant/token",
            },
        }.get(path)
        return None if document is None else _json(document)

    # --- the manners -----------------------------------------------------------------------------

    async def _gzip(self, send: Send) -> None:
        body = gzip_of_zeros(1024)
        await send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )

    async def _nested_gzip(self, send: Send) -> None:
        body = gzipped(gzip_of_zeros(1024))
        await send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip, gzip\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )

    async def _endless_body(self, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            await send(b"[" * 65_536)

    async def _endless_error(self, send: Send) -> None:
        await send(b"HTTP/1.1 500 No\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            await send(b"no " * 20_000)

    async def _endless_stream(self, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while True:
            await send(b"data: " + b"x" * 65_536)

    async def _dense_json(self, send: Send) -> None:
        """Just below four megabytes that stand for a million objects."""
        body = b'{"jsonrpc":"2.0","id":1,"result":{"content":[' + b"{}," * 1_300_000 + b"{}]}}"
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)

    async def _deep_json(self, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + b'{"a":' + b"[" * 200_000)

    async def _dribble(self, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{")
        while True:
            await send(b" ")
            await asyncio.sleep(0.05)

    async def _dribbled_headers(self, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\nx-long: ")
        while True:
            await send(b"x")
            await asyncio.sleep(0.05)

    async def _huge_header(self, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-huge: ")
        for _ in range(10 * 1024):
            await send(b"x" * 1024)
        await send(b"\r\n\r\n{}")

    async def _redirect(self, send: Send) -> None:
        where = f"{self.elsewhere}/stolen".encode()
        await send(b"HTTP/1.1 307 Away\r\ncontent-length: 0\r\nlocation: " + where + b"\r\n\r\n")

    async def _html(self, send: Send) -> None:
        page = b"<html><title>Sign in</title><body>" + b"<p>no</p>" * 1000
        await send(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n" + page)


def _json(value: Any, status: bytes = b"200 OK") -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\n" % status
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def _session(method: str, message: Json) -> bytes | None:
    """An MCP session up to its first call of a tool."""
    if method != "POST":
        return _json({}, b"405 No")
    results: dict[str, Json] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]},
    }
    result = results.get(message.get("method", ""))
    if result is not None:
        return _json({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return None if message.get("method") == "tools/call" else _json({}, b"202 Accepted")
