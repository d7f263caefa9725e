"""Uvicorn's HTTP/1.1 protocol (httptools) with three more limits, and 2 KB less memory per open stream.

httptools keeps a request line and headers of any size in memory before the application sees them. Uvicorn
waits for ever for the rest of a request, and for a client that does not read its answer.
"""

import asyncio
import json
from typing import Any, Final, Literal

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tealagents.api.http import problem_document

#: the most bytes of a request's line and headers together, and of the framing between two chunks of a body
MOST_HEAD: Final = 64 * 1024
#: bytes that are parsed at a time, and that may wait behind pipelined requests while more is read: a request
#: that is parsed takes up to a hundred times its size
_PART: Final = 16 * 1024

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
