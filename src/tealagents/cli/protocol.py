"""HTTP/1.1 as uvicorn serves it with httptools, with three bounds more, and 2 KB less of each open stream.

httptools keeps a request line and headers of any size in memory before the application sees any of it, and
uvicorn waits for ever for the rest of a request, and for a client that reads no answer. And WebSockets as it
serves them, with a bound on what is held of a message, and without a false error for each that is refused.
"""

import asyncio
import json
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
from tealagents.domain.errors import Draining, Overloaded
from tealagents.engine.admission import FREE
from tealagents.limits import Limits

__all__ = ["MOST_HEAD", "BoundedProtocol", "CountingProtocol", "server_options"]

#: bytes of a request's line and headers together, and of what a chunked body holds between its contents
MOST_HEAD: Final = 64 * 1024
#: bytes of memory that a fragment of a message takes beside its content
FRAGMENT: Final = 64

_PROBLEM: Final = json.dumps(
    problem_document(
        "too_large",
        "Too large",
        f"The request line and the headers may have {MOST_HEAD} bytes together. Send less.",
        431,
    )
).encode()
_ANSWER: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/problem+json\r\n"
    b"content-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_PROBLEM), _PROBLEM)
)
_BAD_HANDSHAKE: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def server_options(limits: Limits) -> dict[str, Any]:
    """What uvicorn's `Config` is given for a service with these limits."""
    return {
        "access_log": False,
        "log_config": None,
        "lifespan": "on",
        "interface": "asgi3",
        "http": BoundedProtocol,
        "ws": CountingProtocol,
        "ws_max_size": limits.max_body_bytes,
        "ws_per_message_deflate": False,  # a kilobyte would unpack to a megabyte
        "timeout_keep_alive": limits.idle_connection_seconds,
    }


class _Event:
    """An `asyncio.Event` without its queue of waiters, which takes 0.7 KB of every open stream."""

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
    """Uvicorn's own makes an `asyncio.Event`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._writable = _Event()
        self._writable.set()

    async def drain(self) -> None:
        await self._writable.wait()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()


class _Pipeline(list[Any]):
    """What a client has sent ahead: a `deque` takes 0.7 KB of every connection though few clients do."""

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class _Trailers(list[tuple[bytes, bytes]]):
    """Stands where uvicorn keeps headers, for what comes behind a body."""

    def append(self, item: tuple[bytes, bytes]) -> None:
        pass


_NO_TRAILERS: Final = _Trailers()


class _Parser(HttpRequestParser):
    """Ignores an Upgrade to anything but a WebSocket (RFC 9110, section 7.8), such as Java's clients send.

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
                self._begin()  # behind a request that is the last of its connection it would read no more
                super().feed_data(head)


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 to a request whose line and headers are too large, and closes the connection.

    Trailers are dropped (RFC 9110, section 6.5.1): a proxy in front removes what it must from headers alone.
    It also closes a connection whose client stops sending before a request is complete, or takes nothing of
    an answer, after the same time as one that is idle. A client that lost its network closes nothing.
    """

    # beyond 30 attributes in its dictionary an instance no longer shares the keys: a kilobyte per connection
    __slots__ = ("_answering", "_incomplete", "_overhead", "_too_large", "_untaken")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        #: the request that is being answered: `cycle` is the one that was received last
        self._answering: RequestResponseCycle | None = None
        #: a request has begun, and its body has not ended
        self._incomplete = False
        #: bytes of the head that is being received, or since the last content of a body, but for those that
        #: came together with what was before
        self._overhead = 0
        self._too_large = False
        #: bytes that the client had not taken at the last look
        self._untaken = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if (cycle := self._answering) is not None and not cycle.response_complete:
            cycle.disconnected = True  # also where others were sent behind it
            cycle.message_event.set()
        self._unset_keepalive_if_required()  # also of one that was reset: the timer would keep all of it

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._incomplete = True
        self._overhead = 0

    def on_headers_complete(self) -> None:
        self._overhead = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            self._too_large = True
            raise ValueError("the head is too large")  # which ends the parser, and comes back as a 400
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":  # RFC 9112, section 3.2
            raise ValueError("a request must have exactly one Host header")
        upgrade = self.parser.should_upgrade()
        if upgrade and not self.becomes_websocket():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("this is not a proxy")
            return  # the head comes again, without its Upgrade
        super().on_headers_complete()
        if not upgrade:  # to a WebSocket
            self.cycle.message_event = _Event()  # type: ignore[assignment]
            self.headers = _NO_TRAILERS
            if self.expect_100_continue:
                # answered before its body was asked for, this may come or not: what follows may be either
                self.cycle.keep_alive = False

    def shutdown(self) -> None:
        super().shutdown()
        # the connection ends with this answer, also where the body comes after all
        self.expect_100_continue = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._body_has_come()
        super().on_body(body)

    def _body_has_come(self) -> None:
        """Of a request that asked before it sent one: what follows it can be told apart after all."""
        if self.expect_100_continue and self.cycle is not None and not self.cycle.response_started:
            kept = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
            self.cycle.keep_alive = kept

    def on_message_complete(self) -> None:
        self._incomplete = False
        if self.parser.should_upgrade():
            return
        self._body_has_come()
        super().on_message_complete()
        if not self.parser.should_keep_alive():  # trailers may say so, too: it reads no further request
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()

    def becomes_websocket(self) -> bool:
        """Whether the request whose head was received asks to, and none before it waits for its answer."""
        return self._should_upgrade() and (self.cycle is None or self.cycle.response_complete)

    def head_without_upgrade(self) -> bytes:
        """The head that was received last, as a client sends it that offers no other protocol."""
        version = self.parser.get_http_version().encode()
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
        headers = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([line, *headers, b"", b""])

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._untaken = 0  # as much of the next answer says nothing of this one
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._untaken = 0  # it has taken something, whatever it is given next

    def data_received(self, data: bytes) -> None:
        self._overhead += len(data)
        timer = self.timeout_keep_alive_task
        untaken = timer is not None and self.transport.get_write_buffer_size() > 0
        if untaken:  # the timer stands: a client that goes on sending need not take anything
            self.timeout_keep_alive_task = None
        super().data_received(data)
        if untaken and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = timer
        if self not in self.connections:  # a WebSocket has taken over
            self._unset_keepalive_if_required()
        if self._incomplete and self._overhead > MOST_HEAD and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")
        self._watch()

    def _watch(self) -> None:
        """Sees that a connection ends on which nothing happens, unless the application has yet to speak.

        No timer stands while it has: an open stream would hold it. A WebSocket has a protocol of its own.
        """
        if self.timeout_keep_alive_task is not None:
            return
        speaking = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        if (self._incomplete or not speaking) and self in self.connections:
            self._expect_more()

    def _expect_more(self) -> None:
        """Ends the connection after a while, unless more is received before."""
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        before, self._untaken = self._untaken, self.transport.get_write_buffer_size()
        answering = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        if before == self._untaken > 0:
            self.transport.abort()
        # the client may well be sending where we do not read, or have sent the beginning of its next request
        elif answering or self.flow.read_paused or self._untaken:
            self._expect_more()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        if not self._too_large:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            self.transport.write(_ANSWER)
            self.transport.close()


class CountingProtocol(WebSocketsSansIOProtocol):
    """Counts what it holds of a message that is not whole, and reads nothing before a caller is accepted.

    It also knows that a WebSocket that was refused with a response has had its handshake. uvicorn notes that
    only where it was accepted, or closed without a response. For any other it logs an error when the
    application returns, with which anyone without credentials could fill the log.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: is given how many bytes are held, and raises `Overloaded`
        self._resize: Callable[[int], None] | None = None
        self._discards = False

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:  # the application has been started, and runs from the next turn of the loop
            cast(dict[str, Any], self.scope)[MESSAGE_COUNTER] = self._count_by
            self.read_paused = True  # until the application receives what accepts or refuses it
            self.transport.pause_reading()

    def _count_by(self, resize: Callable[[int], None]) -> None:
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
        if self.close_sent:  # the application gives back what it has counted, and counts no more
            if held > FREE:
                self._discards, self.frames = True, []
                self.conn.reader.discard()
            return
        try:
            self._resize(held)
        except Overloaded as error:
            self.conn.fail(CloseCode.TRY_AGAIN_LATER, error.detail)
            self.handle_parser_exception()

    def _refuse_handshake(self) -> None:
        """Answers one that cannot be read, for which uvicorn calls no application."""
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()) or _BAD_HANDSHAKE)
        self.transport.close()

    def handle_parser_exception(self) -> None:
        """Closes it with the code that was decided on, and discards for a while what is still being sent.

        uvicorn closes the connection at once: a client that is sending is reset, and reads no code.
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
        """Closes it as every other that is to be tried again; uvicorn has another code, and no reason."""
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
