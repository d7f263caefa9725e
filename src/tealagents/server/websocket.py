"""Uvicorn's WebSocket protocol with two more limits: on an incomplete message, and on what the client leaves
unread. And without a false error in the log for each handshake that is refused.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request

from tealagents.api.bodies import DISCARD_SECONDS, MESSAGE_COUNTER
from tealagents.api.sse import SEND_TIMEOUT
from tealagents.domain.errors import Draining, Overloaded
from tealagents.engine.admission import FREE

#: bytes of memory that a fragment of a WebSocket message takes in addition to its content
FRAGMENT: Final = 64

_BAD_HANDSHAKE_RESPONSE: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class CountingProtocol(WebSocketsSansIOProtocol):
    """Counts the bytes of an incomplete message, and reads none before the application accepts the caller.

    A client that sends pings is read no faster than it reads the pongs, and one that reads nothing for
    `SEND_TIMEOUT` seconds is disconnected: uvicorn would keep in memory what waits to be read.

    It also marks the handshake of a WebSocket that was refused with a response as complete. Uvicorn does so
    only if it was accepted, or closed without a response. For any other one it logs an error when the
    application returns, so callers without credentials could fill the log.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: called with the number of bytes that are held; raises `Overloaded`
        self._resize: Callable[[int], None] | None = None
        #: the timer of the next look whether the client reads
        self._next_look: asyncio.TimerHandle | None = None
        self._discards = False

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:  # the application was started, and runs from the loop's next iteration on
            cast(dict[str, Any], self.scope)[MESSAGE_COUNTER] = self._count_with
            self.read_paused = True  # until the application calls `receive` to accept or refuse the caller
            self.transport.pause_reading()

    def _count_with(self, resize: Callable[[int], None]) -> None:
        self._resize = resize

    def data_received(self, data: bytes) -> None:
        if self._discards:
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.close_sent:
            self._refuse_handshake()
        if self._resize is None or self._discards:
            return
        held = (self.conn.current_size or 0) + FRAGMENT * len(self.frames) + len(self.conn.reader.buffer)
        if self.close_sent:  # the application gives its share of the budget back, and counts no more
            if held > FREE:
                self._discards, self.frames = True, []
                self.conn.reader.discard()
            return
        try:
            self._resize(held)
        except Overloaded as error:
            self.conn.fail(CloseCode.TRY_AGAIN_LATER, error.detail)
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        super().handle_ping()
        self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        if not (self.writable.is_set() or self.transport.is_closing()):
            self.transport.pause_reading()

    async def receive(self) -> Any:
        message = await super().receive()  # which resumes reading
        self._wait_for_reader()
        return message

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_at_reader(math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_looking()
        if not self.read_paused:
            self.transport.resume_reading()

    def _look_at_reader(self, before: float) -> None:
        """Ends the connection if no fewer bytes are unread than `before`, and looks again later."""
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self.transport.abort()
        else:
            self._next_look = self.loop.call_later(SEND_TIMEOUT, self._look_at_reader, unread)

    def _stop_looking(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_looking()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.disconnected = True  # else an application that still sends would be taken for faulty
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.INTERNAL_ERROR})

    def _refuse_handshake(self) -> None:
        """Answers a handshake that cannot be parsed, for which uvicorn does not call the application."""
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()) or _BAD_HANDSHAKE_RESPONSE)
        self.transport.close()

    def handle_parser_exception(self) -> None:
        """Sends the close code, and discards what still arrives for `DISCARD_SECONDS`.

        Uvicorn closes the connection at once, which resets a client that is still sending: it never reads the
        code.
        """
        close = self.conn.close_sent
        assert close is not None
        self._discards = self.close_sent = self.disconnected = True
        self.frames = []
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(DISCARD_SECONDS, self.transport.close)

    def shutdown(self) -> None:
        """Closes it with the code and a reason for "try again later", which uvicorn does not send."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
        elif not self.transport.is_closing():
            self.stop_keepalive()
            code, reason = CloseCode.TRY_AGAIN_LATER, Draining().detail
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
