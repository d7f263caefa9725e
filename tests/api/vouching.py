"""A proxy that adds a user's token to every request: for suites that send no credentials."""

import asyncio
import re
import threading
from typing import Self

_OWN_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)


class Vouching:
    """Listens on loopback, and speaks for a user to a service on another port of it."""

    def __init__(self, port: int, user: str) -> None:
        self._upstream = port
        self._added = f"\r\nauthorization: Bearer {user}\r\nconnection: close\r\n\r\n".encode()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="vouching proxy")
        self._server: asyncio.Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request: its head, with what is added, then whatever either side sends."""
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            head = _OWN_CONNECTION.sub(b"", await reader.readuntil(b"\r\n\r\n"))
            up_writer.write(head.removesuffix(b"\r\n\r\n") + self._added)
            pumps = [
                asyncio.ensure_future(_pump(reader, up_writer)),
                asyncio.ensure_future(_pump(up_reader, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            up_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
