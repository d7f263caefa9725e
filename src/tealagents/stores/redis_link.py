"""Notifications through Redis: a commit's script publishes, one connection per process and node subscribes.

A topic is a channel of its partition's slot. A cluster is asked to deliver within that slot's shard alone
(SPUBLISH and SSUBSCRIBE); a server on its own takes PUBLISH and SUBSCRIBE, which older ones know as well.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from redis.asyncio.connection import Connection
from redis.crc import key_slot
from redis.exceptions import RedisError

from tealagents.domain.errors import PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.stores.links import ANSWER_SECONDS, LinkedWatches, LinkLost, LinkSession, Listener
from tealagents.stores.redis_nodes import Address, Nodes, NodeUnreachable, pack, reason, send_packed
from tealagents.stores.watches import Topic

__all__ = ["RedisWatches", "channel_of"]

#: channels in one command
BATCH: Final = 500

_LOST: Final = (RedisError, OSError, TimeoutError, NodeUnreachable, PersistenceUnavailable, Unknown)


def channel_of(base: str, topic: str) -> str:
    """The channel of a topic in the partition whose keys begin with `base`."""
    return f"{base}!{topic}"


class RedisWatches(LinkedWatches):
    """The watches of one opened store."""

    def __init__(self, seconds: float, *, prefix: str, nodes: Nodes) -> None:
        self._prefix = prefix
        self._nodes = nodes
        #: whether there has been a link before
        self._again = False
        super().__init__(seconds, connect=self._subscribing, name=self._channel_of, channel=str)

    def _channel_of(self, topic: Topic) -> str:
        partition, name = topic
        return channel_of(f"{self._prefix}{{{partition}}}", name)

    @asynccontextmanager
    async def _subscribing(self, listener: Listener) -> AsyncIterator[LinkSession]:
        if self._again:  # only here, after the last link was declared lost and watches poll
            await self._nodes.look_around()
        self._again = True
        session = _SubscribedNodes(self._nodes, listener, self._channel_of(("clock", operation_id())))
        try:
            await session.publish()
            yield session
        except _LOST as error:
            raise LinkLost(reason(error)) from None
        finally:
            await session.close()


class _SubscribedNodes:
    """The connections that subscribe: one to each node that serves a slot of some channel."""

    def __init__(self, nodes: Nodes, listener: Listener, own: str) -> None:
        self._nodes = nodes
        self._listener = listener
        #: a channel that nothing else uses
        self._own = own
        self._sharded = nodes.clustered
        self._demotions = nodes.demotions
        self._subscribers: dict[Address, _Subscriber] = {}

    async def subscribe(self, channels: Collection[str]) -> None:
        await self._change("SUBSCRIBE", channels)

    async def unsubscribe(self, channels: Collection[str]) -> None:
        await self._change("UNSUBSCRIBE", channels)

    async def heartbeat(self) -> None:
        if self._nodes.clustered != self._sharded:  # commits are published by the other command now
            raise LinkLost("the server is a node of a cluster")
        if self._nodes.demotions != self._demotions:  # commits are published by another server now
            raise LinkLost("the server is a replica")
        if self._sharded:
            await asyncio.gather(*(each.ask(("PING",), 1) for each in self._subscribers.values()))
            await self.publish()
        else:  # for as many commands as a PING
            subscriber = await self._subscriber(self._nodes.node_of(0))
            await subscriber.answered(self.publish(), 1)

    async def publish(self) -> None:
        """Publishes to the own channel. Raises if an ACL forbids it, which a commit would not report."""
        command = ("SPUBLISH" if self._sharded else "PUBLISH", self._own, "")
        async with asyncio.timeout(4 * ANSWER_SECONDS):  # it may have to connect
            await self._nodes.run(key_slot(self._own.encode()), command, raw_errors=True)

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._subscribers.values()))

    async def _change(self, command: str, channels: Collection[str]) -> None:
        prefix = "S" if self._sharded else ""
        slots: dict[int, list[str]] = defaultdict(list)
        for channel in channels:
            slots[key_slot(channel.encode()) if self._sharded else 0].append(channel)
        for slot, names in slots.items():
            subscriber = await self._subscriber(self._nodes.node_of(slot))
            for batch in _batches(names):
                await subscriber.ask((prefix + command, *batch), len(batch))

    async def _subscriber(self, address: Address) -> "_Subscriber":
        if address not in self._subscribers:
            async with asyncio.timeout(4 * ANSWER_SECONDS):
                connection = await self._nodes.connect(address)
            self._subscribers[address] = _Subscriber(connection, self._listener, self._own)
            if not self._sharded:
                await self._subscribers[address].ask(("SUBSCRIBE", self._own), 1)
        return self._subscribers[address]


class _Subscriber:
    """One connection: it receives messages, and answers to the one command under way; one of these is what
    this process itself publishes to its own channel."""

    def __init__(self, connection: Connection, listener: Listener, own: str) -> None:
        self._connection = connection
        self._listener = listener
        self._own = own.encode()
        self._answers: asyncio.Queue[None] = asyncio.Queue()
        #: the number of answers still expected
        self._due = 0
        self._reading = asyncio.create_task(self._read(), name="redis-subscriber")

    async def ask(self, command: tuple[str, ...], answers: int) -> None:
        """Sends a command and awaits its answers."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await self.answered(send_packed(self._connection, pack(*command)), answers)

    async def answered(self, sending: Awaitable[None], answers: int) -> None:
        """Awaits what is `sending`, and then the answers to it, for `ANSWER_SECONDS`."""
        self._due += answers
        await sending
        async with asyncio.timeout(ANSWER_SECONDS):
            for _ in range(answers):
                await self._answers.get()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)

    async def _read(self) -> None:
        """Reads until the connection breaks, or a node ends a subscription because its slot has moved."""
        with suppress(RedisError, OSError):
            while self._take(await self._connection.read_response(disable_decoding=True)):
                pass
        self._listener.broken()

    def _take(self, message: list[Any]) -> bool:
        """Handles a message or an answer; False for an answer that was not expected."""
        if message[0] in (b"message", b"smessage") and message[1] != self._own:
            self._listener.hear(message[1].decode())
            return True
        self._due -= 1
        self._answers.put_nowait(None)
        return self._due >= 0


def _batches(names: list[str]) -> Iterable[list[str]]:
    return (names[start : start + BATCH] for start in range(0, len(names), BATCH))
