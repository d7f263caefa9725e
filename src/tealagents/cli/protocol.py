"""Uvicorn's HTTP/1.1 protocol (httptools) with three more limits, and 2 KB less memory per open stream.

httptools keeps a request line and headers of any size in memory before the application sees them. Uvicorn
waits for ever for the rest of a request, and for a client that does not read its answer. And uvicorn's
WebSocket protocol, with limits on the size of an incomplete message and on what waits to be read by the
client, and without a false error in the log for each refused handshake.
"""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request

from tealagents.api.bodies import DISCARD_SECONDS, MESSAGE_COUNTER
from tealagents.api.http import problem_document
from tealagents.api.sse import SEND_TIMEOUT
from tealagents.domain.errors import Draining, Overloaded
from tealagents.engine.admission import FREE
from tealagents.limits import Limits

__all__ = ["MOST_HEAD", "BoundedProtocol", "CountingProtocol", "server_options"]

#: the most bytes of a request's line and headers together, and of the framing between two chunks of a body
MOST_HEAD: Final = 64 * 1024
#: bytes that are parsed at a time, and that may wait behind pipelined requests while more is read: a request
#: that is parsed takes up to a hundred times its size
_PART: Final = 16 * 1024
#: bytes of memory that a fragment of a WebSocket message takes in addition to its content
FRAGMENT: Final = 64

_TOO_LARGE_PROBLEM: Final = json.dumps(
    problem_document(
        "too_large",
        "Too large",
        f"The request line and the headers may have {MOST_HEAD} bytes together. Send less.",
        431,
    )
).encode()
_TOO_LARGE_RESPONSE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/problem+json\r\n"
    b"content-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_TOO_LARGE_PROBLEM), _TOO_LARGE_PROBLEM)
)
_BAD_HANDSHAKE_RESPONSE: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def server_options(limits: Limits) -> dict[str, Any]:
    """The arguments of uvicorn's `Config` for a service with these limits."""
    return {
        "access_log": False,
        "log_config": None,
        "lifespan": "on",
        "interface": "asgi3",
        "http": BoundedProtocol,
        "ws": CountingProtocol,
        "ws_max_size": limits.max_body_bytes,
        "ws_per_message_deflate": False,  # a kilobyte could unpack to a megabyte
        "timeout_keep_alive": limits.idle_connection_seconds,
    }


class _Event:
    """An `asyncio.Event` without its deque of waiters, which takes 0.7 KB per open stream."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> Literal[True]:
        if not self._set:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        return True


class _Flow(FlowControl):
    """Uvicorn's flow control, with `_Event` in place of an `asyncio.Event`.

    Uvicorn reads on whenever a request is answered, or its body is asked for, and so notices a client that
    leaves. This does so only as long as little waits behind the request, or a client could send ever more.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: "_Pipeline") -> None:
        self._transport = transport
        self._pipeline = pipeline
        self.read_paused = self.write_paused = False
        self._writable = _Event()
        self._writable.set()

    async def drain(self) -> None:
        await self._writable.wait()

    def resume_reading(self) -> None:
        if len(self._pipeline.unparsed) < _PART:
            super().resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()


class _Pipeline(list[Any]):
    """Pipelined requests. Few clients send any, and a `deque` takes 0.7 KB per connection."""

    __slots__ = ("unparsed",)

    def __init__(self) -> None:
        #: what was received behind these requests; it is parsed once the last one's turn has come
        self.unparsed = b""

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class _Trailers(list[tuple[bytes, bytes]]):
    """Discards trailers: it replaces the list of headers, to which uvicorn would append them."""

    def append(self, item: tuple[bytes, bytes]) -> None:
        pass


_NO_TRAILERS: Final = _Trailers()


class _Parser(HttpRequestParser):
    """Ignores an Upgrade to anything but a WebSocket (RFC 9110, section 7.8), which Java's clients send.

    httptools takes what follows for the other protocol: the body would be lost, or read as the next request.
    """

    __slots__ = ("_protocol",)

    def __init__(self, protocol: "BoundedProtocol") -> None:
        self._protocol = protocol
        self._begin()

    def _begin(self) -> None:
        super().__init__(self._protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does, for pipelining

    def feed_data(self, data: Any) -> None:
        while True:
            try:
                return super().feed_data(data)
            except HttpParserUpgrade as upgrade:
                if self._protocol.becomes_websocket():
                    raise
                data = memoryview(data)[upgrade.args[0] :]
                head = self._protocol.head_without_upgrade()
                self._begin()  # after the last request of a connection, the parser would read nothing more
                super().feed_data(head)


class _WithoutChunks(RequestResponseCycle):
    """Answers HTTP/1.0, which has no chunks (RFC 9112, section 6.1): a stream ends with its connection."""

    _streams = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._streams = all(name != b"content-length" for name, _ in message["headers"])
            self.chunked_encoding = False if self._streams else None
        elif self._streams:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 to a request whose line and headers are too large, and closes the connection.

    After the idle timeout (`idle_connection_seconds`), it also closes a connection whose client stops sending
    in the middle of a request, or reads nothing of an answer: a client that lost its network closes nothing.

    Trailers are discarded (RFC 9110, section 6.5.1): a proxy removes headers that clients must not send, but
    not trailers.
    """

    # with more than 30 attributes, instances do not share the keys of their dictionaries: 1 KB per connection
    __slots__ = ("_answering", "_incomplete", "_overhead", "_too_large", "_unread")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)
        self.pipeline: _Pipeline = _Pipeline()  # type: ignore[assignment]
        #: the request that is being answered; `cycle` is the one that was received last
        self._answering: RequestResponseCycle | None = None
        #: a request has begun, and its body is not complete
        self._incomplete = False
        #: bytes received of the head, or since the last chunk of a body; without those that arrived together
        #: with what came before
        self._overhead = 0
        self._too_large = False
        #: bytes that the client had not read at the last check
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if (cycle := self._answering) is not None and not cycle.response_complete:
            cycle.disconnected = True  # uvicorn only sets it for the last of several pipelined requests
            cycle.message_event.set()
        self._unset_keepalive_if_required()  # after a reset, too: the timer would keep this object alive

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._incomplete = True
        self._overhead = 0

    def on_headers_complete(self) -> None:
        self._overhead = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            self._too_large = True
            raise ValueError("the head is too large")  # ends the parser, which calls `send_400_response`
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":  # RFC 9112, section 3.2
            raise ValueError("a request must have exactly one Host header")
        upgrade = self.parser.should_upgrade()
        if upgrade and not self.becomes_websocket():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("this is not a proxy")
            return  # `_Parser` parses the head again, without its Upgrade
        super().on_headers_complete()
        if not upgrade:  # to a WebSocket
            self.cycle.message_event = _Event()  # type: ignore[assignment]
            self.headers = _NO_TRAILERS
            if self.parser.get_http_version() == "1.0":
                self.cycle.__class__ = _WithoutChunks
            if self.expect_100_continue:
                # if it is answered before its body is asked for, the client may send the body or not, and
                # what follows cannot be told apart
                self.cycle.keep_alive = False

    def shutdown(self) -> None:
        super().shutdown()
        # the connection ends with this answer, even if the body still arrives
        self.expect_100_continue = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._note_body()
        super().on_body(body)

    def _note_body(self) -> None:
        """Keeps the connection of a request with `Expect: 100-continue` alive, now that its body arrives."""
        if self.expect_100_continue and self.cycle is not None and not self.cycle.response_started:
            kept = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
            self.cycle.keep_alive = kept

    def on_message_complete(self) -> None:
        self._incomplete = False
        if self.parser.should_upgrade():
            return
        self._note_body()
        super().on_message_complete()
        if not self.parser.should_keep_alive():  # trailers can say so, too; no further request is read
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()

    def becomes_websocket(self) -> bool:
        """Whether the last request asks for a WebSocket, and every request before it has been answered."""
        return self._should_upgrade() and (self.cycle is None or self.cycle.response_complete)

    def head_without_upgrade(self) -> bytes:
        """The head that was received last, without its Upgrade header."""
        version = self.parser.get_http_version().encode()
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
        headers = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([line, *headers, b"", b""])

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread = 0  # an equal number of bytes of the next answer is no sign of a stalled client
        if not (self.pipeline or self.transport.is_closing()):
            data, self.pipeline.unparsed = self.pipeline.unparsed, b""
            if data:
                self.data_received(data)
                self.flow.resume_reading()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 0  # the client has read something

    def data_received(self, data: bytes) -> None:
        timer = self.timeout_keep_alive_task
        untaken = timer is not None and self.transport.get_write_buffer_size() > 0
        if untaken:  # keep the timer: sending more does not excuse a client from reading
            self.timeout_keep_alive_task = None
        self._parse(data)
        if untaken and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = timer
        if self not in self.connections:  # a WebSocket has taken over
            self._unset_keepalive_if_required()
        if self._incomplete and self._overhead > MOST_HEAD and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")
        self._watch()

    def _parse(self, data: bytes) -> None:
        """Parses what was received, except for what follows a request that waits in the pipeline."""
        for start in range(0, len(data), _PART):
            if self.pipeline:
                self.pipeline.unparsed += data[start:]
                if len(self.pipeline.unparsed) >= _PART:
                    self.flow.pause_reading()
                return
            part = data[start : start + _PART]
            self._overhead += len(part)
            super().data_received(part)
            if self.transport.is_closing() or self not in self.connections:
                return

    def _watch(self) -> None:
        """Sets the idle timer, unless the application is still working on an answer.

        Meanwhile there is no timer: each open stream would hold one. WebSockets have a protocol of their own.
        """
        if self.timeout_keep_alive_task is not None:
            return
        working = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        if (self._incomplete or not working) and self in self.connections:
            self._set_timer()

    def _set_timer(self) -> None:
        """Ends the connection after `timeout_keep_alive` seconds, unless something is received before."""
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        answering = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        if before == self._unread > 0:
            self.transport.abort()
        # the client may be sending while reading is paused, or may have begun to send its next request; the
        # rest of that one waits unparsed while it is pipelined behind another
        elif answering or self.pipeline or self.flow.read_paused or self._unread:
            self._set_timer()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        if not self._too_large:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            self.transport.write(_TOO_LARGE_RESPONSE)
            self.transport.close()


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
