"""Notifications through PostgreSQL: LISTEN on one connection per process, NOTIFY right after a commit.

NOTIFY is not part of the commit's transaction: one that notifies holds a lock of the whole database until its
write-ahead log is synced. Measured with fsync on, 16 connections commit 4,200 times a second without it, 600
times with it, and as often as without it where topics are notified afterwards, those of some milliseconds in
one statement that writes nothing. What a process could not send before it died is found by the watches' own
recheck, and the end of a request or a pause once that process's lease has lapsed.

`Hosts` connects, here and for the store's other statements.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
from asyncpg.exceptions import (
    InterfaceError,
    InternalClientError,
    OperatorInterventionError,
    PostgresConnectionError,
    PostgresError,
    TargetServerAttributeNotMatched,
)

from tealagents.domain.errors import PersistenceUnavailable
from tealagents.stores.base import in_a_line
from tealagents.stores.links import ANSWER_SECONDS, Connect, LinkedWatches, LinkLost, LinkSession, Listener
from tealagents.stores.watches import Topic

__all__ = ["LOST", "Hosts", "PostgresWatches"]

log = logging.getLogger(__name__)

#: seconds for which topics are gathered for one statement, and the least time between two such statements
GATHER_SECONDS: Final = 0.003
INTERVAL_SECONDS: Final = 0.015
#: seconds between attempts to send failed notifications, and the number of failures that is logged
RETRY_SECONDS: Final = 0.5
REPORTED: Final = 20
#: seconds for which closing waits for them
CLOSE_SECONDS: Final = 1.0
#: seconds after which a watch looks without being woken
RECHECK_SECONDS: Final = 120.0

#: characters of a topic's name, and of the sender's that follows them in a payload
_NAME: Final = 18
#: characters of a name that choose one of 256 channels, so that a process hears little of others' topics
_BUCKET: Final = 2

_TIMEOUTS: Final = {"timeout": 4 * ANSWER_SECONDS, "command_timeout": ANSWER_SECONDS}
#: a connection that breaks, does not answer in time, or says what it should not; and a write to one that has
#: just been closed, which uvloop refuses with RuntimeError
LOST: Final = (InterfaceError, InternalClientError, OSError, TimeoutError, RuntimeError)

#: failures of one host only: also of a proxy that stands for it, and cannot reach it
_NOT_HERE: Final = (
    OSError,
    OperatorInterventionError,
    PostgresConnectionError,
    TargetServerAttributeNotMatched,
)

#: sends payloads, each to the channel that follows from it (`notify` in postgres.sql)
Send = Callable[[str, Sequence[str]], Awaitable[object]]


def _says_little(error: Exception) -> int:
    """How little the failure of a host says: that of a standby least of all, a server's own words most."""
    return 2 if isinstance(error, TargetServerAttributeNotMatched) else int(isinstance(error, OSError))


class Hosts:
    """Connects to the first host of a DSN, such as `postgresql://host1,host2/database`, that can be used.

    The driver has one timeout for all hosts: one that says nothing, as after a failover, would keep it from
    trying the others. Here, each has a share of that time. The one that was connected to last comes first.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """`arguments` are those for `asyncpg.connect`, a `dsn` and a `timeout` among them."""
        self._arguments = arguments
        #: the number of the host that was connected to last
        self._last = 0

    async def connect(self, **others: Any) -> "asyncpg.Connection[Any]":
        """A new connection; `others` replace arguments. Raises what `asyncpg.connect` does for all hosts."""
        arguments = {**self._arguments, **others}
        dsns = _by_host(arguments["dsn"])
        until = time.monotonic() + arguments["timeout"]
        failed: list[Exception] = []
        try:
            for number in sorted(range(len(dsns)), key=lambda each: each != self._last):
                share = (until - time.monotonic()) / (len(dsns) - len(failed))
                try:
                    own = {**arguments, "dsn": dsns[number], "timeout": share}
                    connection: asyncpg.Connection[Any] = await asyncpg.connect(**own)
                except _NOT_HERE as error:
                    failed.append(error)
                else:
                    self._last = number
                    return connection
            raise min(reversed(failed), key=_says_little)
        finally:  # else an error, by its traceback, would refer to itself, and keep what the callers hold
            failed.clear()


class PostgresWatches(LinkedWatches):
    """The watches of one opened store, and the notifications of its commits."""

    def __init__(self, seconds: float, *, schema: str, arguments: Mapping[str, Any], send: Send) -> None:
        self._prefix = f"tealagents_{_digest(schema, 4)}_"
        self._sender = os.urandom(4).hex()
        super().__init__(
            seconds,
            connect=self._listening(arguments),
            name=_name,
            channel=lambda name: self._prefix + name[:_BUCKET],
            recheck=RECHECK_SECONDS,
        )
        self._send = send
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._next_send = 0.0

    def announce(self, partition: str, topics: Collection[str]) -> None:
        """Wakes this process's watches now, and all others' within some milliseconds."""
        for topic in topics:
            self.notify((partition, topic))
            self._unsent.add(_name((partition, topic)))
        if topics and self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name="postgres-notify")

    async def close(self) -> None:
        try:
            if self._sending is not None:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._sending
        except TimeoutError:
            log.warning("watches of other processes were not notified: the store is being closed")
        await super().close()

    async def _send_all(self) -> None:
        """Sends until nothing is unsent, however long the store is away: its other processes wait for that.

        A first failure may be one connection's: the next try is at once.
        """
        failures = 0
        try:
            while self._unsent:
                early = self._next_send - time.monotonic()
                await asyncio.sleep(RETRY_SECONDS if failures > 1 else max(GATHER_SECONDS, early))
                self._next_send = time.monotonic() + INTERVAL_SECONDS
                names, self._unsent = self._unsent, set()
                try:
                    await self._send(self._prefix, [name + self._sender for name in names])
                except PersistenceUnavailable as error:
                    failures += 1
                    self._unsent |= names
                    if failures == REPORTED:
                        log.warning("watches of other processes are notified later: %s", error)
                else:
                    failures = 0
        finally:
            self._sending = None

    def _listening(self, arguments: Mapping[str, Any]) -> Connect:
        """Connects a session that hears what other processes send."""
        hosts = Hosts(arguments)

        @asynccontextmanager
        async def connect(listener: Listener) -> AsyncIterator[LinkSession]:
            try:
                connection = await hosts.connect(**_TIMEOUTS)
            except (PostgresError, *LOST) as error:
                raise LinkLost(in_a_line(error)) from None
            try:
                session = _ListeningConnection(connection, listener, self._sender)
                await session.check(self._prefix + self._sender, self._send)
                yield session
            except (PersistenceUnavailable, PostgresError, *LOST) as error:
                raise LinkLost(in_a_line(error)) from None
            finally:
                connection.terminate()

        return connect


class _ListeningConnection:
    """A connection that listens."""

    def __init__(self, connection: "asyncpg.Connection[Any]", listener: Listener, sender: str) -> None:
        self._connection = connection
        self._listener = listener
        self._sender = sender
        connection.add_termination_listener(lambda _: listener.broken())

    async def check(self, prefix: str, send: Send) -> None:
        """Returns once a notification that another connection sends has arrived: a pgbouncer in transaction
        mode accepts LISTEN, but delivers only what this connection itself sends."""
        arrived = asyncio.Event()
        await self._connection.add_listener(f"{prefix}ok", lambda *_: arrived.set())
        await send(prefix, ["ok"])
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await arrived.wait()
        except TimeoutError:
            raise LinkLost(
                "what another connection sends does not arrive; a pgbouncer in transaction mode delivers none"
            ) from None

    async def subscribe(self, channels: Collection[str]) -> None:
        for channel in channels:
            await self._connection.add_listener(channel, self._hear)

    async def unsubscribe(self, channels: Collection[str]) -> None:
        for channel in channels:
            await self._connection.remove_listener(channel, self._hear)

    async def heartbeat(self) -> None:
        """Not a NOTIFY: that would wake the connection of every process that listens."""
        await self._connection.execute("SELECT 1")

    def _hear(self, connection: object, pid: int, channel: str, payload: object) -> None:
        name, sender = str(payload)[:_NAME], str(payload)[_NAME:]
        if sender != self._sender:
            self._listener.hear(name)


def _by_host(dsn: str) -> list[str]:
    """A DSN for each host of this one; only the DSN itself if the driver has to see all hosts together."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    query = dict(parse_qsl(parts.query))
    port_for_each = "," in os.environ.get("PGPORT", "")
    if port_for_each or query.get("target_session_attrs") == "prefer-standby":
        return [dsn]
    if hosts:
        return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]
    each = query.get("host", "").split(",")
    if len(each) == 1:
        return [dsn]
    return [f"postgresql://{parts.netloc}{parts.path}?{urlencode({**query, 'host': host})}" for host in each]


def _name(topic: Topic) -> str:
    return _digest(" ".join(topic), _NAME // 2)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
