"""Server-sent events: frames, and the response that sends them.

A frame is made of text that was encoded once; nothing of a delta is parsed or validated again. All
events that are there are sent in one write, so a burst costs one write and no delta is held back.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tealagents.alarms import alarms
from tealagents.state.codec import encode_json

log = logging.getLogger(__name__)

#: a comment is one line: the blank one after an event would make some clients report an empty event
KEEPALIVE = b": keepalive\n"
#: characters that some client libraries wrongly take for the end of a line, with their JSON escapes
_LINE_ENDS = ((b"\xc2\x85", rb"\u0085"), (b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))
#: seconds after which a client that reads nothing is disconnected
SEND_TIMEOUT = 60.0
#: seconds between two checks whether the client has read the end of a response
FLUSH_LOOK = 0.25
#: marks the scope of a HEAD that is answered as GET: it must not start a stream
HEAD = "tealagents.head"
#: where a scope holds what sends an event in the stream that its call is answered with
SAY = "tealagents.say"
#: where a scope holds its connection
_TRANSPORT = "tealagents.transport"
#: where a scope takes the stream that its call is answered with, to be sent when the call has been unwound
_STREAM = "tealagents.stream"


def data(document: object) -> bytes:
    """An event that has no name; the document becomes one line of JSON."""
    return b"data: %b\n\n" % encode_json(document)


def data_of(response: Response) -> bytes:
    """The body of a JSON response as such an event."""
    return b"data: %b\n\n" % bytes(response.body)


def frame(event_id: int | None, name: str, data: object) -> bytes:
    """One event. `data` becomes one line of JSON. Without an id it is no part of the request's log."""
    identity = b"" if event_id is None else b"\nid: %d" % event_id
    return b"event: %s%b\ndata: %b\n\n" % (name.encode(), identity, encode_json(data))


def _escaped(events: bytes) -> bytes:
    """Events with the same data, in lines as every client sees them.

    Their data is JSON, so that these characters stand in strings alone.
    """
    if not events.isascii():
        for character, escape in _LINE_ENDS:
            events = events.replace(character, escape)
    return events


def event_response(document: object, headers: Mapping[str, str]) -> Response:
    """A response that is a stream of one event."""
    return events_response(data(document), headers)


def events_response(events: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """A response that is a stream of events that are there already."""
    said = {"cache-control": "no-store", **(headers or {})}
    return Response(_escaped(events), headers=said, media_type="text/event-stream")


def remember_connection(scope: Scope, send: Send) -> None:
    """Notes the connection of a scope, so that it can be ended at once; `send` must be the server's own.

    ASGI has no way to abort: a connection closes only after the client has read everything written to it,
    which a client that never reads does not do.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if hasattr(transport, "abort"):
        scope[_TRANSPORT] = transport


async def answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serves an application. A stream that it answers with is sent when the application has returned.

    So the routing and the parsed request are freed before the stream, which may stay open for long.
    """
    streams: list[_Stream] = []
    scope[_STREAM] = streams
    try:
        await app(scope, receive, send)
        for stream in streams:
            await stream.send(scope, receive, send)
    finally:
        for stream in streams:
            stream.over()
        # each refers to a task whose context refers to the scope: cut here, as the scope may hold 20 MB of a
        # message, which would otherwise stay until the garbage collector runs
        streams.clear()


class EventStreamResponse(Response):
    """Sends frames as they come, a comment when nothing does, and ends with the generator.

    `on_disconnect` is called when the client leaves before the end. One that has taken nothing for
    `SEND_TIMEOUT` seconds is taken to have left. `on_end` is called once nothing more is sent, also where
    nothing was: the generator of a response whose client has left by then never starts.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        keepalive_seconds: float,
        headers: Mapping[str, str] | None = None,
        on_disconnect: Callable[[], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self.frames = frames
        self.on_disconnect = on_disconnect
        self._stream = _Stream(frames, keepalive_seconds, on_disconnect, on_end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get(HEAD):
            await self.frames.aclose()
            await super().__call__(scope, receive, send)
        else:
            scope[_STREAM].append(self._stream)
            await self._start(send)

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response at once, the stream included."""
        await self._start(send)
        await self._stream.send(scope, receive, send)

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


class _Stream:
    """The body of such a response. It keeps only what is still to be sent."""

    __slots__ = ("_keepalive", "_left", "_on_disconnect", "_on_end", "_sender", "frames")

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        keepalive: float,
        on_disconnect: Callable[[], None] | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        self.frames = frames
        self._keepalive = keepalive
        self._on_disconnect = on_disconnect
        self._on_end = on_end
        self._sender: asyncio.Task[None] | None = None
        self._left = False

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = _Sending(send, scope.get(_TRANSPORT), self._keepalive, self._leave)
        # a task of its own, so that a frame wakes this one and not every application around the response
        sender = self._sender = asyncio.create_task(self._send(sending))
        try:
            if await _left_before(sender, receive) and not sending.ended:
                self._leave()
            await asyncio.wait([sender])
        finally:
            sending.stop()
            sender.cancel()
            self.over()
        if not (self._left and sender.cancelled()):
            sender.result()
        elif self._on_disconnect is not None:
            self._on_disconnect()

    def over(self) -> None:
        """Nothing more is to be sent: calls `on_end`, once a sender that was just canceled has ended."""
        if self._sender is not None and not self._sender.done():
            self._sender.add_done_callback(lambda _: self.over())
            return
        self._sender = None  # a canceled one knows, by its error's traceback, of this stream
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def _leave(self) -> None:
        self._left = True
        if self._sender is not None:
            self._sender.cancel()

    async def _send(self, sending: "_Sending") -> None:
        sending.watch()
        async with contextlib.aclosing(self.frames) as frames:
            async for data in frames:
                if data:  # this reader may not be allowed to see the event
                    await sending.body(_escaped(data))
                data = b""  # what was sent is not kept for as long as nothing comes
        await sending.end()


class Announcements:
    """Messages before a response: the first makes it a stream, of which the response becomes the last."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, document: object) -> None:
        """Sends an event; returns when the connection has taken it."""
        self._frames.put_nowait(frame(None, "message", document))
        await self._frames.join()

    async def before(
        self,
        answered: Coroutine[Any, Any, Response],
        quiet: float,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Sends the response, alone where it comes before any event and within `quiet` seconds.

        A client that leaves before, or takes nothing, cancels `answered`.
        """
        answer = asyncio.ensure_future(answered)
        answer.add_done_callback(lambda _: self._frames.put_nowait(b""))
        later = asyncio.get_running_loop().call_later(quiet, self._frames.put_nowait, KEEPALIVE)
        first = asyncio.create_task(self._frames.get())
        try:
            if await _left_before(first, receive):
                return
            later.cancel()
            if event := first.result():
                stream = EventStreamResponse(self._until(answer, event), keepalive_seconds=quiet)
                await stream.send(scope, receive, send)
            else:
                await patiently(answer.result(), scope, receive, send)
        finally:
            first.cancel()
            later.cancel()
            answer.cancel()

    async def _until(self, answer: asyncio.Future[Response], event: bytes) -> AsyncGenerator[bytes, None]:
        while event:
            yield event
            self._frames.task_done()
            event = await self._frames.get()
        yield b"event: message\n" + data_of(answer.result())


async def _left_before(sender: asyncio.Task[Any], receive: Receive) -> bool:
    """Whether the client leaves before all is sent. Returns at the latest when it is."""
    me = asyncio.current_task()
    assert me is not None
    watched = _Watched(me)
    sender.add_done_callback(watched.stop)
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except asyncio.CancelledError:
        if not sender.done() or me.uncancel():
            raise
    finally:
        watched.over = True
    return not sender.done()


class _Watched:
    """A task that watches whether a client leaves, until what it is sent has ended."""

    __slots__ = ("over", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.over = False

    def stop(self, _: object) -> None:
        if not self.over:
            self.task.cancel()


async def patiently(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, keepalive_seconds: float = math.inf
) -> None:
    """Serves a library's application; gives a client up that takes nothing of the response, or of its end.

    A stream of events has a comment after `keepalive_seconds` of silence, and an end: MCP's SDK leaves it out
    when the process stops, which the server would log as an error. What the scope holds as `SAY` adds an
    event to it.
    """
    sending = _Sending(send, scope.get(_TRANSPORT), math.inf, lambda: None)
    sending.watch()
    is_stream, begun = False, asyncio.Event()

    async def say(document: object) -> None:
        await begun.wait()
        if not sending.ended:
            await sending.body(frame(None, "message", document))

    async def write(message: Message) -> None:
        nonlocal is_stream
        if message["type"] == "http.response.body":
            sending.ended = not message.get("more_body", False)
            if is_stream:
                message["body"] = _escaped(message.get("body", b""))
        await sending.write(message)
        if message["type"] == "http.response.start" and _is_stream(message):
            is_stream = True
            sending.keep_alive(keepalive_seconds)
            begun.set()

    try:
        # a library may refuse a HEAD; a stream that is asked for so would never end
        asked = {"method": "HEAD"} if HEAD in scope else {}
        await app({**scope, **asked, SAY: say}, receive, write)
        await (sending.end() if is_stream and not sending.ended else sending.taken())
    finally:
        sending.stop()


def _is_stream(start: Message) -> bool:
    kind = dict(start.get("headers", ())).get(b"content-type", b"")
    return bool(kind.startswith(b"text/event-stream"))


class _Sending:
    """Hands a response to the server; keeps the connection alive; gives up a client that takes nothing."""

    # fmt: off
    __slots__ = (
        "_alarms", "_gave_up", "_keepalive", "_last", "_leave", "_ping", "_send", "_transport", "_untaken",
        "_waiting", "ended",
    )
    # fmt: on

    def __init__(
        self,
        send: Send,
        transport: asyncio.Transport | None,
        keepalive: float,
        leave: Callable[[], None],
    ) -> None:
        self._send = send
        self._transport = transport
        self._keepalive = keepalive
        self._leave = leave
        self._alarms = alarms()
        #: when something was last handed over, or taken
        self._last = 0.0
        #: the end has been handed over, on which some servers report that the client has left
        self.ended = False
        #: how many are waiting to hand something over, and what was not taken when it was last looked at
        self._waiting = 0
        self._untaken = 0
        self._gave_up = False
        self._ping: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begins to look whether the client takes what it is sent."""
        self._last = self._now()
        self.look()

    def keep_alive(self, seconds: float) -> None:
        """From now on, sends a comment after so many seconds of silence."""
        self._keepalive = seconds
        self.look()

    def body(self, data: bytes, *, more: bool = True) -> Coroutine[Any, Any, None]:
        return self.write({"type": "http.response.body", "body": data, "more_body": more})

    async def end(self) -> None:
        """Ends the response; returns when the client has taken it, as far as that can be seen."""
        self.ended = True
        await self.body(b"", more=False)
        await self.taken()

    async def taken(self) -> None:
        """Returns when the client has taken what it was sent, or is given up."""
        self._waiting += 1  # from here on, waits for the client to read
        await asyncio.sleep(0)
        while self._buffered():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(FLUSH_LOOK)

    def stop(self) -> None:
        self._alarms.unset(self)
        if self._ping is not None and not self._ping.done():
            self._ping.cancel()
        if self._gave_up:
            log.info("a client that reads nothing is disconnected")

    async def write(self, message: Message) -> None:
        if not self._waiting:
            self._last = self._now()
        self._waiting += 1
        try:
            await self._send(message)
        finally:
            self._waiting -= 1

    def _buffered(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _now(self) -> float:
        return self._alarms.loop.time()

    def look(self) -> None:
        """Gives the client up, or sends it a comment, where it is time to; and looks again later."""
        now = self._now()
        wait = self._keepalive
        if self._waiting:
            if self._takes_nothing(now):
                self._give_up()
                return
        elif now - self._last >= self._keepalive * 0.99:
            self._ping = asyncio.create_task(self._comment())
        else:
            wait -= now - self._last
        self._alarms.set(self, now + min(wait, SEND_TIMEOUT / 2))

    async def _comment(self) -> None:
        if not self.ended:
            await self.body(KEEPALIVE)

    def _takes_nothing(self, now: float) -> bool:
        """Whether the client has taken nothing for as long as it may."""
        untaken = self._buffered()
        if untaken != self._untaken:
            self._untaken, self._last = untaken, now
        return now - self._last >= SEND_TIMEOUT

    def _give_up(self) -> None:
        self._gave_up = True
        if self._transport is not None:
            self._transport.abort()
        self._leave()
