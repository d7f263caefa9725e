"""Sends a delivery to the client, until it is complete or the client disconnects."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from tealagents.llm.offline.delivery import BodyEnding, Delivery

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: An ASGI extension of this package's server, which closes the connection at once.
CLOSE_EXTENSION = "tealagents.close_connection"

#: Seconds; during shorter pauses, a client that disconnects is not noticed until their end.
_SHORT = 0.05


class Pauses:
    """The pauses of scripted answers, which can all be ended early."""

    def __init__(self) -> None:
        self._are_over = False
        self._running: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        """Ends all current pauses, and skips later ones. Call it in their event loop."""
        self._are_over = True
        for ended in self._running:
            if not ended.done():
                ended.set_result(None)

    def resume(self) -> None:
        """Later pauses take their full time again."""
        self._are_over = False

    @contextmanager
    def one(self) -> Iterator["asyncio.Future[None]"]:
        """Registers a pause. The future is done once the pause is ended early."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._are_over:
            ended.set_result(None)
        self._running.add(ended)
        try:
            yield ended
        finally:
            self._running.discard(ended)


class Peer:
    """The client of a request, which may disconnect at any time."""

    def __init__(self, receive: Receive, pauses: Pauses) -> None:
        self._receive = receive
        self._pauses = pauses
        self._watch: asyncio.Task[None] | None = None

    async def stays(self, seconds: float) -> bool:
        """Waits for `seconds`. Returns whether the client is still connected."""
        watch = self._watching()
        if seconds < _SHORT:
            await asyncio.sleep(seconds)
            return not watch.done()
        with self._pauses.one() as ended:
            await asyncio.wait({watch, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not watch.done()

    async def leaves(self) -> None:
        """Waits until the client disconnects."""
        await self._watching()

    def forget(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _watching(self) -> asyncio.Task[None]:
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_gone())
        return self._watch

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def transmit(delivery: Delivery, scope: Scope, receive: Receive, send: Send, pauses: Pauses) -> str:
    """Sends a delivery. Returns its `Received.outcome`: `answered`, `broken` or `left`."""
    peer = Peer(receive, pauses)
    try:
        return await _transmit(delivery, scope, peer, send)
    finally:
        peer.forget()


async def _transmit(delivery: Delivery, scope: Scope, peer: Peer, send: Send) -> str:
    if delivery.is_mute:
        await peer.leaves()
        return "broken"
    if delivery.headers_delay and not await peer.stays(delivery.headers_delay):
        return "left"
    await send({"type": "http.response.start", "status": delivery.status, "headers": delivery.headers})
    if not await _sent(delivery, peer, send):
        return "left"
    if delivery.ending is BodyEnding.COMPLETE:
        return "answered"
    if delivery.ending is BodyEnding.CUT and not _close(scope):
        return "broken"
    await peer.leaves()
    return "broken"


async def _sent(delivery: Delivery, peer: Peer, send: Send) -> bool:
    """Sends the body. Returns whether the client stayed connected."""
    steps = delivery.steps or ((0.0, b""),)
    is_complete = delivery.ending is BodyEnding.COMPLETE
    for position, (delay, data) in enumerate(steps, start=1):
        if (delay or position > 1) and not await peer.stays(delay):
            return False
        is_last = is_complete and position == len(steps)
        if is_last and delivery.commit is not None:
            delivery.commit()
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})
    return True


def _close(scope: Scope) -> bool:
    """Closes the connection. False if the server lacks the extension: other servers close it, with an error
    in their log, when an answer does not end."""
    close = (scope.get("extensions") or {}).get(CLOSE_EXTENSION)
    if close is not None:
        close()
    return close is not None
