"""Watches whose wake-ups come through a server: one connection per process, monitored and re-established.

The first watch opens the connection. While it is lost, watches wait by a timer. All are woken when the loss
is noticed, and again when the link is back, because notifications in between were lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol

from tealagents.stores.watches import Topic, Watches

__all__ = ["ANSWER_SECONDS", "LinkLost", "LinkSession", "LinkedWatches"]

log = logging.getLogger(__name__)

#: seconds between two pings of the server; other traffic does not prove that the link still works
HEARTBEAT_SECONDS: Final = 1.2
#: seconds for an answer on the link; with the heartbeat at most two, the longest that a lost link may go
#: unnoticed
ANSWER_SECONDS: Final = 0.75
#: the first and the longest pause, in seconds, before reconnecting
RECONNECT_SECONDS: Final = 0.1
LONGEST_RECONNECT_SECONDS: Final = 5.0


class LinkLost(Exception):
    """The link cannot be opened, has broken, or does not answer. The text holds no credentials."""


class LinkSession(Protocol):
    """A connection that notifications come through. Its methods raise `LinkLost`."""

    async def subscribe(self, channels: Collection[str]) -> None:
        """Returns once messages to the channels arrive here."""
        ...

    async def unsubscribe(self, channels: Collection[str]) -> None: ...

    async def heartbeat(self) -> None:
        """Returns once the server has answered."""
        ...


class Listener(Protocol):
    """Receives the reports of a session."""

    def hear(self, name: str) -> None:
        """The topic with this name was notified."""
        ...

    def broken(self) -> None:
        """The connection has broken."""
        ...


#: connects, and closes the connection when its context is left
Connect = Callable[[Listener], AbstractAsyncContextManager[LinkSession]]


class _Wanted:
    """The topics that are watched, and the channels that they need."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        #: the number of watched topics per channel
        self.channels: Counter[str] = Counter()
        #: channels that may have to be subscribed to or unsubscribed from
        self.altered: set[str] = set()

    def add(self, name: str, topic: Topic, channel: str) -> None:
        if name not in self.topics:
            self.topics[name] = topic
            self.channels[channel] += 1
            if self.channels[channel] == 1:
                self.altered.add(channel)

    def drop(self, name: str, channel: str) -> None:
        if self.topics.pop(name, None):
            self.channels[channel] -= 1
            if not self.channels[channel]:
                del self.channels[channel]
                self.altered.add(channel)


class LinkedWatches(Watches):
    """The watches of a store that is notified of commits by a server.

    `name` gives a topic's name on the wire, `channel` the channel to which that name is sent.
    """

    def __init__(
        self,
        seconds: float,
        *,
        connect: Connect,
        name: Callable[[Topic], str],
        channel: Callable[[str], str],
        recheck: float | None = None,
    ) -> None:
        super().__init__(seconds, live=False, recheck=recheck)
        self._connect = connect
        self._name = name
        self._channel = channel
        self._wanted = _Wanted()
        #: channels that are subscribed to
        self._in_effect: set[str] = set()
        #: settled when `_in_effect` has changed
        self._change: asyncio.Future[None] | None = None
        #: set when subscriptions were altered, or the connection has broken
        self._due = asyncio.Event()
        self._broken = self._down = False
        self._task: asyncio.Task[None] | None = None

    async def subscribe(self, topic: Topic) -> None:
        name = self._name(topic)
        channel = self._channel(name)
        self._wanted.add(name, topic, channel)
        self._look()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_linked(), name="store-link")
        while channel not in self._in_effect and not self._down:
            if self._change is None:
                self._change = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._change)

    def unsubscribe(self, topic: Topic) -> None:
        name = self._name(topic)
        self._wanted.drop(name, self._channel(name))
        self._look()

    async def close(self) -> None:
        """Closes the connection; watches that are still open wait by a timer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._lose()

    def hear(self, name: str) -> None:
        if topic := self._wanted.topics.get(name):
            self.notify(topic)

    def broken(self) -> None:
        self._broken = True
        self._due.set()

    def _look(self) -> None:
        if self._wanted.altered:
            self._due.set()

    # --- the link ---------------------------------------------------------------------------------

    async def _keep_linked(self) -> None:
        pause = RECONNECT_SECONDS
        while True:
            try:
                async with self._connect(self) as session:
                    await self._serve(session)
            except LinkLost as error:
                level = logging.DEBUG if self._down else logging.WARNING
                log.log(level, "no notifications from the store; watches poll: %s", error)
            pause = RECONNECT_SECONDS if self.live else min(pause * 2, LONGEST_RECONNECT_SECONDS)
            self._lose()
            await asyncio.sleep(pause)

    def _lose(self) -> None:
        self.live, self._down = False, True
        self._in_effect.clear()
        self._settle_change()
        self.wake_all()

    def _settle_change(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    async def _serve(self, session: LinkSession) -> None:
        """Keeps the subscriptions up to date until the session is lost."""
        now = asyncio.get_running_loop().time
        self._broken = False
        wanted = self._wanted
        wanted.altered = set(wanted.channels)
        ask_at = now() + HEARTBEAT_SECONDS
        while True:
            while wanted.altered:
                await self._bring_into_effect(session)
            if self._down:
                self.wake_all()
            self.live, self._down = True, False
            await self._until_due(ask_at)
            if self._broken:
                raise LinkLost("the connection broke")
            if now() >= ask_at:
                ask_at = now() + HEARTBEAT_SECONDS
                if self._wanted.topics:
                    await session.heartbeat()

    async def _bring_into_effect(self, session: LinkSession) -> None:
        altered, self._wanted.altered = self._wanted.altered, set()
        wanted = altered & self._wanted.channels.keys()
        old = (altered - wanted) & self._in_effect
        self._in_effect -= old
        if new := wanted - self._in_effect:
            await session.subscribe(new)
        if old:
            await session.unsubscribe(old)
        self._in_effect |= new
        self._settle_change()

    async def _until_due(self, deadline: float) -> None:
        """Returns when there is something to do, or at the deadline by the event loop's clock."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._due.wait()
        self._due.clear()
